#include "schedule/adversarial_scheduler.hpp"
#include "schedule/copy_and_reduce.hpp"
#include "schedule/graph.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace jali {

namespace {

// SplitMix64: any seed will do, also 0.
class Draws {
  public:
    explicit Draws(std::uint64_t seed) : state_(seed) {}
    std::size_t below(std::size_t bound) {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return static_cast<std::size_t>((z ^ (z >> 31)) % bound);
    }

  private:
    std::uint64_t state_;
};

// Events that can happen now.
class Pool {
  public:
    void clear() {
        events_.clear();
        begin_ = 0;
    }
    bool empty() const { return begin_ == events_.size(); }
    void add(int event) { events_.push_back(event); }

    int take(AdversarialScheduler::Order order, Draws& draws) {
        if (order == AdversarialScheduler::Order::oldest) return events_[begin_++];
        if (order == AdversarialScheduler::Order::random)
            std::swap(events_[draws.below(events_.size())], events_.back());
        const int event = events_.back();
        events_.pop_back();
        return event;
    }

  private:
    std::vector<int> events_;
    std::size_t begin_ = 0; // of what is left, oldest first
};

} // namespace

AdversarialScheduler::Order order_of(std::string_view name) {
    if (name == "random") return AdversarialScheduler::Order::random;
    if (name == "oldest") return AdversarialScheduler::Order::oldest;
    if (name == "newest") return AdversarialScheduler::Order::newest;
    throw std::invalid_argument("there is no order '" + std::string(name) +
                                "': choose random, oldest or newest");
}

struct VirtualRanks::State {
    // Tasks of all ranks are numbered through: rank r has first[r] to first[r + 1]. Event numbers: task t
    // that is no message, or the receive of a message that moves: t; a send that departs: t.
    explicit State(std::span<const Schedule* const> of_ranks)
        : schedules(of_ranks.begin(), of_ranks.end()), first{0} {
        for (const auto* schedule : schedules) {
            graphs.emplace_back(*schedule);
            first.push_back(first.back() + graphs.back().size());
        }
        for (std::size_t r = 0; r < schedules.size(); ++r)
            rank_of.insert(rank_of.end(), graphs[r].size(), static_cast<int>(r));
        partner.assign(first.back(), -1);
        pair_messages();
    }

    // Sends and receives of one envelope are matched in the order of the schedules.
    void pair_messages() {
        using Key = std::tuple<int, int, int, int, int>; // from, to, tag, library, task
        std::vector<Key> sends, receives;
        std::map<std::string, int> libraries;
        for (int r = 0; r < static_cast<int>(schedules.size()); ++r) {
            std::vector<int> library;
            for (const auto& name : schedules[r]->libraries())
                library.push_back(libraries.emplace(name, static_cast<int>(libraries.size())).first->second);
            for (int k = 0; k < graphs[r].messages(); ++k) {
                const auto envelope = envelope_of(schedules[r]->steps()[graphs[r].port(k).step]);
                if (!envelope) throw ScheduleError("a library's own collective needs the library");
                const auto [is_sent, signals, peer, tag, by] = *envelope;
                const int line = 2 * library.at(by) + signals;
                if (is_sent)
                    sends.emplace_back(r, peer, tag, line, first[r] + k);
                else
                    receives.emplace_back(peer, r, tag, line, first[r] + k);
            }
        }
        std::sort(sends.begin(), sends.end());
        std::sort(receives.begin(), receives.end());
        bool meet = sends.size() == receives.size();
        for (std::size_t k = 0; meet && k < sends.size(); ++k) {
            const auto& [from, to, tag, library, send] = sends[k];
            const int receive = std::get<4>(receives[k]);
            meet = std::tie(from, to, tag, library) ==
                       std::tie(std::get<0>(receives[k]), std::get<1>(receives[k]), std::get<2>(receives[k]),
                                std::get<3>(receives[k])) &&
                   region(send).bytes == region(receive).bytes;
            partner[send] = receive;
            partner[receive] = send;
        }
        if (meet) return;
        check_messages(schedules); // throws with the reason
        throw ScheduleError("messages do not meet");
    }

    const Step& step(int task) const {
        const int r = rank_of[task];
        return schedules[r]->steps()[graphs[r].port(task - first[r]).step];
    }
    Region region(int message) const { return region_of_message(step(message)); }
    bool is_message(int task) const { return partner[task] >= 0; }
    bool is_send(int task) const { return envelope_of(step(task))->sends; }
    // Whether it may end before the other end is ready.
    bool departs_alone(int task) const {
        return scheduler.buffered || std::holds_alternative<Signal>(step(task).action);
    }

    std::vector<const Schedule*> schedules;
    std::vector<Graph> graphs;
    std::vector<int> first;
    std::vector<int> rank_of, partner; // of tasks

    // Of the present run:
    std::span<const std::vector<std::byte*>> memory;
    AdversarialScheduler scheduler;
    std::vector<std::int32_t> open;
    std::vector<char> ready;                   // messages that are next in order
    std::vector<std::vector<std::byte>> aside; // by send
    std::vector<char> sent_aside;              // by send: its data is aside
    Pool pool, starved_pool;
    int remaining = 0;

    void make_ready(int event) {
        const bool starves =
            scheduler.starved >= 0 && (rank_of[event] == scheduler.starved ||
                                       (is_message(event) && rank_of[partner[event]] == scheduler.starved));
        (starves ? starved_pool : pool).add(event);
    }

    void happened(int task) {
        if (--open[task] == 0) becomes_ready(task);
    }

    void becomes_ready(int task) {
        if (!is_message(task)) return make_ready(task);
        ready[task] = true;
        const int r = rank_of[task];
        if (departs_alone(is_send(task) ? task : partner[task])) {
            // A send departs some time; its receive follows some time after both.
            if (is_send(task))
                make_ready(task);
            else if (sent_aside[partner[task]])
                make_ready(task);
        } else if (ready[partner[task]]) {
            make_ready(is_send(task) ? partner[task] : task);
        }
        if (const int next = graphs[r].next_of_envelope(task - first[r]); next >= 0)
            happened(first[r] + next);
    }

    void ended(int task) {
        --remaining;
        const int r = rank_of[task];
        for (int follower : graphs[r].followers(task - first[r])) happened(first[r] + follower);
    }

    std::byte* at(int task) {
        const Region& where = region(task);
        return memory[rank_of[task]][where.buffer] + where.offset;
    }

    void happen(int event) {
        const int r = rank_of[event];
        const Step& what = step(event);
        const auto nothing = [](std::size_t) {};
        if (is_message(event)) {
            const std::size_t bytes = region(event).bytes;
            const int other = partner[event];
            if (is_send(event)) {
                if (bytes > 0) aside[event].assign(at(event), at(event) + bytes);
                sent_aside[event] = true;
                if (ready[other]) make_ready(other);
            } else {
                if (bytes > 0)
                    std::memmove(at(event), sent_aside[other] ? aside[other].data() : at(other), bytes);
                if (!sent_aside[other]) ended(other);
            }
        } else if (const auto* copy = std::get_if<Copy>(&what.action)) {
            for (const auto& spec : copy->specs) run_copy(spec, memory[r], nothing);
        } else if (const auto* reduce = std::get_if<Reduce>(&what.action)) {
            for (const auto& spec : reduce->specs) run_reduce(reduce->how, spec, memory[r], nothing);
        } else {
            std::get<Kernel>(what.action).body(graphs[r].port(event - first[r]).part, memory[r], nullptr);
        }
        ended(event);
    }

    void run() {
        const int tasks = first.back();
        open.clear();
        for (const auto& graph : graphs)
            open.insert(open.end(), graph.waits_for().begin(), graph.waits_for().end());
        ready.assign(tasks, false);
        sent_aside.assign(tasks, false);
        if (scheduler.buffered) aside.resize(tasks);
        pool.clear();
        starved_pool.clear();
        remaining = tasks;
        for (int task = 0; task < tasks; ++task)
            if (graphs[rank_of[task]].waits_for()[task - first[rank_of[task]]] == 0) becomes_ready(task);
        Draws draws(scheduler.seed);
        while (remaining > 0) {
            Pool& from = pool.empty() ? starved_pool : pool;
            if (from.empty()) throw Deadlock(describe_deadlock());
            happen(from.take(scheduler.order, draws));
        }
    }

    std::string describe_deadlock() const {
        std::string text = "deadlock, " + std::to_string(remaining) + " parts have not ended";
        int shown = 0, half = 0;
        for (int task = 0; task < first.back(); ++task) {
            if (!is_message(task) || !ready[task] || ready[partner[task]]) continue;
            ++half;
            if (shown == 4) continue;
            ++shown;
            const int other = partner[task];
            text += (shown > 1 ? "; rank " : ": rank ") + std::to_string(rank_of[task]) + " waits in step '" +
                    step(task).name + "' for step '" + step(other).name + "' of rank " +
                    std::to_string(rank_of[other]);
        }
        return text + (half > shown ? " and " + std::to_string(half - shown) + " more" : "");
    }
};

VirtualRanks::VirtualRanks(std::span<const Schedule* const> schedules)
    : state_(std::make_unique<State>(schedules)) {
}

VirtualRanks::~VirtualRanks() = default;

void VirtualRanks::run(std::span<const std::vector<std::byte*>> memory,
                       const AdversarialScheduler& scheduler) {
    State& s = *state_;
    if (memory.size() != s.schedules.size())
        throw std::invalid_argument("memory of " + counted(memory.size(), "rank") + " for " +
                                    std::to_string(s.schedules.size()));
    for (std::size_t r = 0; r < memory.size(); ++r) {
        if (memory[r].size() != s.schedules[r]->buffers().size())
            throw std::invalid_argument(std::to_string(memory[r].size()) + " addresses for the " +
                                        counted(s.schedules[r]->buffers().size(), "buffer") + " of rank " +
                                        std::to_string(r));
    }
    s.memory = memory;
    s.scheduler = scheduler;
    s.run();
}

} // namespace jali
