// The collectives of the control plane as messages.
//
// Each takes about log2(ranks) rounds: a dissemination barrier, Bruck's all-gather, recursive doubling, a
// binomial tree. Every message starts with its sender's call and the number of bytes that follow, and is
// checked before it is used. In every collective a rank first sends to the rank below it and receives from
// the one above: if not all ranks make the same call, two neighbours differ, and one of them notifies all
// ranks. All messages of one group have one tag, since all ranks call the same collectives in the same order.
#pragma once

#include "messaging/call.hpp"
#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

// Messages of the owner's, of which any number may be under way at once, with one tag.
class ControlChannel {
  public:
    explicit ControlChannel(Communicator& owner) : owner_(owner) {}
    virtual ~ControlChannel() = default;
    int rank() const { return owner_.rank(); }
    int size() const { return owner_.size(); }
    virtual std::unique_ptr<Request> send(std::span<const std::byte> data, int to) = 0;
    virtual std::unique_ptr<Request> receive(std::span<std::byte> data, int from, bool may_be_shorter) = 0;
    virtual void wait(std::span<std::unique_ptr<Request>> requests, const std::string& what) {
        owner_.wait(requests, what);
    }
    void fail(const std::string& cause) noexcept { owner_.fail(cause); } // notifies all ranks

    std::uint64_t calls = 0; // so far

  private:
    Communicator& owner_;
};

void barrier_by_messages(ControlChannel& channel, std::string_view what);
void all_reduce_sum_by_messages(ControlChannel& channel, std::span<std::int64_t> values,
                                std::string_view what);
std::vector<std::vector<std::byte>>
all_gather_by_messages(ControlChannel& channel, std::span<const std::byte> mine, std::string_view what);
std::vector<std::byte> broadcast_by_messages(ControlChannel& channel, std::span<const std::byte> data,
                                             int root, std::string_view what);

} // namespace jali
