// The event loop: what is ready starts, what is under way shares links, what ends enables others.
#include "collective/simulator.hpp"

#include "collective/composition.hpp"
#include "collective/sharing.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>

namespace jali {

using Node = TransferGraph::Node;
using Kind = TransferGraph::Kind;

// Earlier channels first, then earlier stages: old chunks drain before new ones enter.
static std::uint64_t urgency(const Mark& mark) {
    return static_cast<std::uint64_t>(mark.channel + 1) << 32 | static_cast<std::uint32_t>(mark.stage + 1);
}

class Simulation {
  public:
    Simulation(const TransferGraph& graph, const Machine& machine)
        : graph_(graph), machine_(machine), shares_(links_of(machine)) {
        if (graph.ranks() > machine.ranks()) {
            throw PlanError("machine '" + machine.name + "' with " + std::to_string(machine.nodes) +
                            " nodes has " + std::to_string(machine.ranks()) + " ranks, the plan " +
                            std::to_string(graph.ranks()));
        }
        link_edges();
    }

    SimulationResult run();

  private:
    struct Event {
        double time;
        std::uint64_t urgency;
        int node;
        bool operator>(const Event& other) const {
            return std::tie(time, urgency, node) > std::tie(other.time, other.urgency, other.node);
        }
    };
    struct Waiting {
        std::uint64_t urgency;
        int node;
        bool operator<(const Waiting& other) const {
            return std::tie(urgency, node) < std::tie(other.urgency, other.node);
        }
    };
    // One at a time: the messages of a pair and library, the work of a rank.
    struct Queue {
        int running = -1;
        std::set<Waiting> waiting;
        int last = -1; // what ran before
    };

    static std::vector<Shares::Link> links_of(const Machine& machine) {
        std::vector<Shares::Link> result(machine.links());
        for (int k = 0; k < machine.links(); ++k) {
            result[k].capacity = machine.capacity(k);
            result[k].ordered = machine.ordered(k);
            const Nic* nic = machine.nic_of(k);
            if (nic == nullptr) continue;
            result[k].crowd = static_cast<std::size_t>(nic->crowd);
            result[k].crowded = nic->crowded;
        }
        return result;
    }

    void link_edges();
    void ready(int node, double now);
    void start(int node, double now, int after);
    void flow(int node, double now);
    void end(int node, double now);
    Queue& queue_of(int node);
    const Path& path_of(int node);
    SimulationResult result();

    const TransferGraph& graph_;
    const Machine& machine_;
    Shares shares_;
    std::vector<std::int64_t> next_begin_;
    std::vector<std::int32_t> next_, missing_;
    std::vector<double> ready_at_, begin_, end_;
    std::vector<std::int32_t> cause_;
    std::unordered_map<std::uint64_t, Queue> pairs_;
    std::unordered_map<std::uint64_t, Path> paths_;
    std::vector<Queue> engines_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<int> instantly_; // ended in the moment they began
    std::int64_t done_ = 0, event_count_ = 0;
    std::vector<LinkUse> links_;
    std::vector<LevelUse> levels_;
};

void Simulation::link_edges() {
    const int n = graph_.nodes();
    next_begin_.assign(n + 1, 0);
    missing_.assign(n, 0);
    const auto each = [&](auto&& visit) {
        for (int k = 0; k < n; ++k) {
            const int to = graph_.joined_[k];
            for (auto e = graph_.needs_begin_[k]; e < graph_.needs_begin_[k + 1]; ++e) {
                const int from = graph_.joined_[graph_.needs_[e]];
                if (from != to) visit(from, to);
            }
        }
    };
    each([&](int from, int to) { ++next_begin_[from + 1], ++missing_[to]; });
    for (int k = 0; k < n; ++k) next_begin_[k + 1] += next_begin_[k];
    next_.resize(next_begin_[n]);
    std::vector<std::int64_t> at(next_begin_.begin(), next_begin_.end() - 1);
    each([&](int from, int to) { next_[at[from]++] = to; });
}

const Path& Simulation::path_of(int k) {
    const Node& node = graph_.node(k);
    const std::uint64_t key =
        (static_cast<std::uint64_t>(node.rank) << 28 | static_cast<std::uint64_t>(node.peer)) << 8 |
        static_cast<std::uint64_t>(node.library);
    const auto [at, inserted] = paths_.try_emplace(key);
    if (inserted) {
        const int level = machine_.level_between(node.rank, node.peer);
        at->second =
            machine_.path(node.rank, node.peer, machine_.library(graph_.libraries()[node.library], level));
    }
    return at->second;
}

Simulation::Queue& Simulation::queue_of(int k) {
    const Node& node = graph_.node(k);
    if (node.kind != Kind::send) return engines_[node.rank];
    return pairs_[(static_cast<std::uint64_t>(node.rank) << 28 | static_cast<std::uint64_t>(node.peer)) << 8 |
                  static_cast<std::uint64_t>(node.library)];
}

void Simulation::ready(int k, double now) {
    ready_at_[k] = now;
    if (graph_.node(k).kind == Kind::nothing) {
        begin_[k] = now;
        instantly_.push_back(k);
        return;
    }
    Queue& queue = queue_of(k);
    if (queue.running >= 0)
        queue.waiting.insert({urgency(graph_.node(k).mark), k});
    else {
        queue.running = k;
        start(k, now, -1);
    }
}

void Simulation::start(int k, double now, int after) {
    const Node& node = graph_.node(k);
    begin_[k] = now;
    if (after >= 0 && ready_at_[k] < now) cause_[k] = after;
    if (node.kind == Kind::send) {
        // The latency of a message that had to wait overlaps what it waited for.
        const double at = std::max(now, ready_at_[k] + path_of(k).latency);
        if (at > now)
            events_.push({at, urgency(node.mark), k});
        else
            flow(k, now);
        return;
    }
    const double speed = node.kind == Kind::copy ? machine_.copy : machine_.reduction;
    const double time = machine_.launch + (std::isinf(speed) ? 0 : node.bytes / speed);
    if (time > 0)
        events_.push({now + time, urgency(node.mark), k});
    else
        instantly_.push_back(k);
}

void Simulation::flow(int k, double now) {
    const Node& node = graph_.node(k);
    const Path& path = path_of(k);
    int used[10], count = 0;
    double narrowest = unlimited;
    for (int j = 0; j < path.count; ++j) {
        const double capacity = shares_.capacity(path.links[j]);
        if (std::isinf(capacity)) continue;
        narrowest = std::min(narrowest, capacity);
        used[count++] = path.links[j];
    }
    // The gap holds the links as if the message were longer.
    double bytes = node.bytes / path.efficiency;
    if (count > 0) bytes += path.gap * narrowest;
    if (count == 0 || bytes == 0) {
        const double wait = count == 0 ? path.gap : 0;
        if (wait > 0)
            events_.push({now + wait, urgency(node.mark), -1 - k});
        else
            instantly_.push_back(k);
    } else
        shares_.add(k, bytes, urgency(node.mark), {used, static_cast<std::size_t>(count)}, now);
    LevelUse& level = levels_[path.level];
    level.bytes += node.bytes;
    ++level.transfers;
}

void Simulation::end(int k, double now) {
    end_[k] = now;
    ++done_;
    if (graph_.node(k).kind != Kind::nothing) {
        Queue& queue = queue_of(k);
        queue.running = -1;
        if (!queue.waiting.empty()) {
            const int first = queue.waiting.begin()->node;
            queue.waiting.erase(queue.waiting.begin());
            queue.running = first;
            start(first, now, k);
        }
    }
    for (auto e = next_begin_[k]; e < next_begin_[k + 1]; ++e) {
        const int next = next_[e];
        if (--missing_[next] == 0) {
            cause_[next] = k;
            ready(next, now);
        }
    }
}

SimulationResult Simulation::run() {
    const int n = graph_.nodes();
    ready_at_.assign(n, 0);
    begin_.assign(n, 0);
    end_.assign(n, 0);
    cause_.assign(n, -1);
    engines_.resize(graph_.ranks());
    levels_.resize(machine_.levels());
    // What is ready at the start begins in the order of urgency, as a rank would post it.
    std::vector<Waiting> first;
    int total = 0;
    for (int k = 0; k < n; ++k) {
        if (graph_.joined_[k] != k) continue;
        ++total;
        if (missing_[k] == 0) first.push_back({urgency(graph_.node(k).mark), k});
    }
    std::sort(first.begin(), first.end());
    for (const Waiting& waiting : first) ready(waiting.node, 0);

    double now = 0;
    std::vector<int> ended;
    for (;;) {
        while (!instantly_.empty()) {
            ended.swap(instantly_);
            for (const int k : ended) end(k, now);
            ended.clear();
        }
        shares_.settle(now);
        const double event = events_.empty() ? unlimited : events_.top().time;
        const double transfer = shares_.next_end();
        now = std::min(event, transfer);
        if (std::isinf(now)) break;
        // What ends within a billionth of the time ends together: equal transfers differ by rounding only.
        const double until = now * (1 + 1e-9);
        shares_.take_ended(until, now, ended);
        for (const int k : ended) end(k, now);
        event_count_ += static_cast<std::int64_t>(ended.size());
        ended.clear();
        while (!events_.empty() && events_.top().time <= until) {
            const int k = events_.top().node;
            events_.pop();
            ++event_count_;
            if (k < 0)
                end(-1 - k, now);
            else if (graph_.node(k).kind == Kind::send)
                flow(k, now);
            else
                end(k, now);
        }
    }
    if (done_ != total) {
        throw ScheduleError("the plan stops after " + std::to_string(done_) + " of " + std::to_string(total) +
                            " transfers and works: the rest wait for each other");
    }
    return result();
}

SimulationResult Simulation::result() {
    SimulationResult r;
    r.events = event_count_;
    r.levels = levels_;
    int last = -1;
    std::map<int, StageUse> stages;
    std::vector<double> load(machine_.links(), 0), bytes(machine_.links(), 0);
    for (int k = 0; k < graph_.nodes(); ++k) {
        if (graph_.joined_[k] != k) continue;
        const Node& node = graph_.node(k);
        if (last < 0 || end_[k] > end_[last]) last = k;
        if (node.kind != Kind::send) {
            r.works += node.kind != Kind::nothing;
            continue;
        }
        ++r.transfers;
        auto [at, inserted] =
            stages.try_emplace(node.mark.stage, StageUse{node.mark.stage, begin_[k], end_[k], 0, 0});
        StageUse& stage = at->second;
        stage.begin = std::min(stage.begin, begin_[k]);
        stage.end = std::max(stage.end, end_[k]);
        stage.bytes += node.bytes;
        ++stage.transfers;
        const Path& path = path_of(k);
        for (int j = 0; j < path.count; ++j) {
            bytes[path.links[j]] += node.bytes;
            load[path.links[j]] += node.bytes / path.efficiency / shares_.capacity(path.links[j]);
        }
    }
    if (last >= 0) r.time = end_[last];
    for (const auto& [number, stage] : stages) r.stages.push_back(stage);
    for (int k = 0; k < machine_.links(); ++k) {
        if (bytes[k] == 0 || std::isinf(shares_.capacity(k))) continue;
        r.links.push_back({k, bytes[k], shares_.busy(k)});
        if (load[k] > r.bottleneck_load) {
            r.bottleneck_load = load[k];
            r.bottleneck = k;
        }
    }
    for (int k = last; k >= 0; k = cause_[k]) {
        const Node& node = graph_.node(k);
        r.critical_path.push_back(
            {node.kind, node.rank, node.peer, node.mark, begin_[k], end_[k], node.bytes});
    }
    std::reverse(r.critical_path.begin(), r.critical_path.end());
    return r;
}

SimulationResult simulate(const TransferGraph& graph, const Machine& machine) {
    return Simulation(graph, machine).run();
}

// Each rank's peers as rank `by` sees them: every digit of the rank is shifted by that of `by`.
static std::vector<int> shifted(int ranks, const std::vector<int>& factors, int by) {
    std::vector<int> result(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
        int below = ranks, from = rank, shift = by, to = 0;
        for (const int factor : factors) {
            below /= factor;
            to += (from / below + shift / below) % factor * below;
            from %= below;
            shift %= below;
        }
        result[rank] = to;
    }
    return result;
}

// The graph of all ranks from that of one, if a few others do the same; false otherwise.
static bool add_by_symmetry(TransferGraph& graph, const std::function<Schedule(int)>& schedule_of,
                            const std::vector<int>& factors) {
    const int ranks = graph.ranks();
    TransferGraph pattern(ranks);
    pattern.add(0, schedule_of(0));
    for (const int rank : {ranks - 1, ranks / 2, ranks / 3}) {
        TransferGraph other(ranks);
        other.add(rank, schedule_of(rank));
        if (!pattern.alike(other, shifted(ranks, factors, rank))) return false;
    }
    for (int rank = 0; rank < ranks; ++rank) graph.add_alike(rank, pattern, shifted(ranks, factors, rank));
    return true;
}

SimulationResult simulate(int ranks, const std::function<Schedule(int)>& schedule_of, const Machine& machine,
                          const std::vector<int>& factors) {
    for (const bool coalesce : {true, false}) {
        TransferGraph graph(ranks, coalesce);
        const bool alike = coalesce && !factors.empty() && add_by_symmetry(graph, schedule_of, factors);
        if (!alike)
            for (int rank = 0; rank < ranks; ++rank) graph.add(rank, schedule_of(rank));
        graph.finish();
        try {
            SimulationResult result = simulate(graph, machine);
            result.planned = alike ? 4 : ranks;
            return result;
        } catch (const ScheduleError&) {
            if (!coalesce) throw;
        }
    }
    return {};
}

} // namespace jali
