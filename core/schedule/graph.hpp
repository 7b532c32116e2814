// The numbered parts of a schedule and their dependencies: shared by the checks and by executors.
//
// Parts are numbered by priority (start receives, wait, start sends, signal, begin a library's collectives,
// copy, reduce, compute) and, within it, by their place in the schedule: among the parts that are ready the
// one with the smallest number runs first. Messages of one envelope (direction, peer, tag, library) start in
// the order of the schedule, whenever they become ready, so that both ends count them alike.
#pragma once

#include "schedule/schedule.hpp"

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace jali {

class Graph {
  public:
    // Throws ScheduleError if a need does not exist or there is a cycle.
    explicit Graph(const Schedule& schedule);

    int size() const { return static_cast<int>(ports_.size()); }
    // Parts 0 to messages - 1 are receives, waits, sends, signals, and collectives of libraries.
    int messages() const { return messages_; }
    int first_kernel() const { return first_kernel_; } // from here on parts are those of kernels
    const Port& port(int part) const { return ports_[part]; }

    // How many things must happen before the part starts: needed parts that end, and the start of the message
    // before it in its envelope.
    const std::vector<std::int32_t>& waits_for() const { return waits_for_; }
    // Parts that wait for the end of this one.
    std::span<const std::int32_t> followers(int part) const {
        return {followers_.data() + begin_[part], followers_.data() + begin_[part + 1]};
    }
    // Where the need of another part is listed twice, it is also counted twice.
    // The message that waits for the start of this one; -1: none.
    int next_of_envelope(int part) const { return part < messages_ ? next_of_envelope_[part] : -1; }

    // All parts in an order in which they may run, smallest ready number first.
    const std::vector<std::int32_t>& order() const { return order_; }

  private:
    std::vector<Port> ports_;
    std::vector<std::int32_t> waits_for_, begin_, followers_, next_of_envelope_, order_;
    int messages_ = 0, first_kernel_ = 0;
};

// A set of small numbers whose smallest member is found at once: words of bits, and words that say which of
// those are not empty.
class NumberSet {
  public:
    void resize(int numbers) {
        levels_.clear();
        for (std::size_t n = static_cast<std::size_t>(numbers); levels_.empty() || n > 1;)
            levels_.emplace_back(n = (n + 63) / 64 + (n == 0), 0);
    }
    void clear() {
        for (auto& level : levels_) level.assign(level.size(), 0);
    }
    bool empty() const { return levels_.back()[0] == 0; }
    int first() const {
        std::size_t k = 0;
        for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
            k = k << 6 | static_cast<std::size_t>(std::countr_zero((*level)[k]));
        return static_cast<int>(k);
    }
    void insert(int number) {
        auto k = static_cast<std::size_t>(number);
        for (auto& level : levels_) {
            level[k >> 6] |= std::uint64_t{1} << (k & 63);
            k >>= 6;
        }
    }
    void erase(int number) {
        auto k = static_cast<std::size_t>(number);
        for (auto& level : levels_) {
            if ((level[k >> 6] &= ~(std::uint64_t{1} << (k & 63))) != 0) return;
            k >>= 6;
        }
    }

  private:
    std::vector<std::vector<std::uint64_t>> levels_;
};

// 'receive from 3' or 'kernel/boundary', for messages.
std::string quoted_name(const Schedule& schedule, const Port& port);

} // namespace jali
