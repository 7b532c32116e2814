// The event loop: ready nodes start, active transfers share links, ended nodes enable others.
#include "simulation/simulator.hpp"
#include "settings/counted.hpp"

#include "composition/composition.hpp"
#include "simulation/sharing.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <unordered_map>

namespace jali {

using Node = TransferGraph::Node;
using Kind = TransferGraph::Kind;

// Earlier chunks first, then earlier stages: old chunks drain before new ones enter.
static std::uint64_t priority(const Mark& mark) {
    return static_cast<std::uint64_t>(mark.chunk + 1) << 32 | static_cast<std::uint32_t>(mark.stage + 1);
}

class Simulation {
  public:
    Simulation(const TransferGraph& graph, const Machine& machine)
        : graph_(graph), machine_(machine), shares_(links_of(machine)) {
        if (graph.ranks() > machine.ranks()) {
            throw PlanError("machine '" + machine.name + "' with " + counted(machine.nodes, "node") +
                            " has " + counted(machine.ranks(), "rank") + ", the plan " +
                            std::to_string(graph.ranks()));
        }
        if (graph.symmetry_ != nullptr) order_ = graph.symmetry_->order();
        link_edges();
        find_connections();
    }

    SimulationResult run(bool summary);

  private:
    struct Event {
        double time;
        std::uint64_t priority;
        int node;
        bool operator>(const Event& other) const {
            return std::tie(time, priority, node) > std::tie(other.time, other.priority, other.node);
        }
    };
    // Messages of a pair and library, copies and reductions of a rank.
    static bool waits_in_turn(Kind kind) {
        return kind == Kind::send || kind == Kind::copy || kind == Kind::reduction;
    }
    struct Waiting {
        std::uint64_t priority;
        int node;
        bool operator<(const Waiting& other) const {
            return std::tie(priority, node) < std::tie(other.priority, other.node);
        }
    };
    // One at a time: the messages of a pair and library, the work of a rank.
    struct Queue {
        int running = -1;
        std::set<Waiting> waiting;
    };
    // Messages of one pair and library: their path, and their queue. With a symmetry the links represent all
    // their shifted images, and so many transfers cross each at once.
    struct Connection {
        int from = 0, to = 0;
        int library = 0;
        Path path;
        int times[most_crossed];
        Queue queue;
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
    void find_connections();
    void join_links();
    int link_root(int link);
    void ready(int node, double now);
    void start(int node, double now, int after);
    void compute(int node, double now);
    void flow(int node, double now);
    void end(int node, double now);
    Queue& queue_of(int node);
    void spread_links(std::vector<LinkUse>& uses);
    SimulationResult result(bool summary);

    const TransferGraph& graph_;
    const Machine& machine_;
    Shares shares_;
    std::vector<std::int64_t> next_begin_;
    std::vector<std::int32_t> next_, missing_;
    std::vector<std::int32_t>
        next_shift_; // with a symmetry: the earlier node's position relative to the later one
    std::vector<double> ready_at_, begin_, end_;
    std::vector<std::int32_t> cause_, cause_shift_;
    std::vector<std::int32_t> connection_of_; // per transfer
    std::vector<Connection> connections_;
    std::vector<int> link_parent_; // links that shifts carry into each other, as a forest
    std::vector<Queue> engines_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<int> instantly_; // ended in the moment they began
    std::int64_t done_ = 0, event_count_ = 0;
    int order_ = 1; // so many transfers are equivalent to one
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
                if (from != to) visit(from, to, k, graph_.needs_[e]);
            }
        }
    };
    each([&](int from, int to, int, int) { ++next_begin_[from + 1], ++missing_[to]; });
    for (int k = 0; k < n; ++k) next_begin_[k + 1] += next_begin_[k];
    next_.resize(next_begin_[n]);
    std::vector<std::int64_t> at(next_begin_.begin(), next_begin_.end() - 1);
    const Symmetry* symmetry = graph_.symmetry_;
    if (symmetry != nullptr) next_shift_.resize(next_begin_[n]);
    each([&](int from, int to, int later, int earlier) {
        if (symmetry != nullptr)
            next_shift_[at[from]] = symmetry->shifted_back(graph_.shift_[earlier], graph_.shift_[later]);
        next_[at[from]++] = to;
    });
}

void Simulation::find_connections() {
    connection_of_.assign(graph_.nodes(), -1);
    std::unordered_map<std::uint64_t, int> known;
    for (int k = 0; k < graph_.nodes(); ++k) {
        const Node& node = graph_.node(k);
        if (node.kind != Kind::send) continue;
        const std::uint64_t key =
            (static_cast<std::uint64_t>(node.rank) << 28 | static_cast<std::uint64_t>(node.peer)) << 8 |
            static_cast<std::uint64_t>(node.library);
        const auto [at, inserted] = known.try_emplace(key, static_cast<int>(connections_.size()));
        if (inserted) {
            const int level = machine_.level_between(node.rank, node.peer);
            const int library = machine_.library(graph_.libraries()[node.library], level);
            Connection& connection = connections_.emplace_back();
            connection.from = node.rank;
            connection.to = node.peer;
            connection.path = machine_.path(node.rank, node.peer, library);
            connection.library = library;
            std::fill_n(connection.times, most_crossed, 1);
        }
        connection_of_[k] = at->second;
    }
    if (graph_.symmetry_ != nullptr) join_links();
}

int Simulation::link_root(int link) {
    while (link_parent_[link] != link) link = link_parent_[link] = link_parent_[link_parent_[link]];
    return link;
}

// Assigns representatives to links. A link of a transfer is one of those that it uses when its sender, or its
// receiver, is shifted to a representative; cards go with the ranks bound to them.
void Simulation::join_links() {
    const Symmetry& symmetry = *graph_.symmetry_;
    const int node = machine_.ranks_per_node();
    link_parent_.resize(machine_.links());
    std::iota(link_parent_.begin(), link_parent_.end(), 0);
    const auto join = [&](int a, int b) {
        a = link_root(a);
        b = link_root(b);
        link_parent_[std::max(a, b)] = std::min(a, b);
    };
    for (const int direction : {0, 1, 2})
        for (int rank = 0; rank < node; ++rank)
            join(machine_.nic_link(rank, direction),
                 machine_.nic_link(symmetry.representative(rank), direction));
    std::vector<int> inside; // shifts that stay in a node
    for (int shift = 0; shift < node; ++shift)
        if (symmetry.shift_of(shift) == shift) inside.push_back(shift);
    const auto path = [&](const Connection& connection, int from, int to) {
        return machine_.path(from, to, connection.library);
    };
    for (Connection& connection : connections_) {
        const int by = symmetry.shift_of(connection.to);
        const Path there = path(connection, symmetry.shifted_back(connection.from, by), connection.to - by);
        for (int j = 0; j < connection.path.count; ++j) join(connection.path.links[j], there.links[j]);
        std::fill_n(connection.times, most_crossed, 0);
        for (const int shift : inside) {
            const Path other = path(connection, symmetry.shifted(connection.from, shift),
                                    symmetry.shifted(connection.to, shift));
            for (int j = 0; j < connection.path.count; ++j)
                connection.times[j] += other.links[j] == connection.path.links[j];
        }
    }
    for (Connection& connection : connections_)
        for (int j = 0; j < connection.path.count; ++j)
            connection.path.links[j] = link_root(connection.path.links[j]);
}

Simulation::Queue& Simulation::queue_of(int k) {
    const Node& node = graph_.node(k);
    if (node.kind != Kind::send) return engines_[node.rank];
    return connections_[connection_of_[k]].queue;
}

void Simulation::ready(int k, double now) {
    ready_at_[k] = now;
    if (!waits_in_turn(graph_.node(k).kind)) {
        begin_[k] = now;
        compute(k, now);
        return;
    }
    Queue& queue = queue_of(k);
    if (queue.running >= 0)
        queue.waiting.insert({priority(graph_.node(k).mark), k});
    else {
        queue.running = k;
        start(k, now, -1);
    }
}

void Simulation::start(int k, double now, int after) {
    const Node& node = graph_.node(k);
    begin_[k] = now;
    if (after >= 0 && ready_at_[k] < now) {
        cause_[k] = after;
        if (!cause_shift_.empty()) cause_shift_[k] = 0;
    }
    if (node.kind == Kind::send) {
        // The latency of a delayed message overlaps its wait.
        const double at = std::max(now, ready_at_[k] + connections_[connection_of_[k]].path.latency);
        if (at > now)
            events_.push({at, priority(node.mark), k});
        else
            flow(k, now);
        return;
    }
    const double speed = node.kind == Kind::copy ? machine_.copy : machine_.reduction;
    const double time = machine_.launch + (std::isinf(speed) ? 0 : node.bytes / speed);
    if (time > 0)
        events_.push({now + time, priority(node.mark), k});
    else
        instantly_.push_back(k);
}

// Nodes without a queue: nothing, a delay, or a kernel, which takes its share of the rank's memory.
void Simulation::compute(int k, double now) {
    const Node& node = graph_.node(k);
    const int link = machine_.memory_link(node.rank);
    if (node.kind == Kind::nothing || node.bytes <= 0) {
        instantly_.push_back(k);
    } else if (node.kind == Kind::delay || link < 0) {
        events_.push({now + node.bytes, priority(node.mark), -1 - k});
    } else {
        const Shares::Crossing used[] = {{link, 1}};
        shares_.add(k, node.bytes * machine_.memory, priority(node.mark), used, now);
    }
}

void Simulation::flow(int k, double now) {
    const Node& node = graph_.node(k);
    const Connection& connection = connections_[connection_of_[k]];
    const Path& path = connection.path;
    Shares::Crossing used[most_crossed];
    int count = 0;
    double narrowest = unlimited;
    for (int j = 0; j < path.count; ++j) {
        const double capacity = shares_.capacity(path.links[j]);
        if (std::isinf(capacity)) continue;
        narrowest = std::min(narrowest, capacity);
        used[count++] = {path.links[j], connection.times[j]};
    }
    // The gap holds the links as if the message were longer.
    double bytes = node.bytes / path.efficiency;
    if (count > 0) bytes += path.gap * narrowest;
    if (count == 0 || bytes == 0) {
        const double wait = count == 0 ? path.gap : 0;
        if (wait > 0)
            events_.push({now + wait, priority(node.mark), -1 - k});
        else
            instantly_.push_back(k);
    } else
        shares_.add(k, bytes, priority(node.mark), {used, static_cast<std::size_t>(count)}, now);
    LevelUse& level = levels_[path.level];
    level.bytes += node.bytes * order_;
    level.transfers += order_;
}

void Simulation::end(int k, double now) {
    end_[k] = now;
    ++done_;
    if (waits_in_turn(graph_.node(k).kind)) {
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
            if (!cause_shift_.empty()) cause_shift_[next] = next_shift_[e];
            ready(next, now);
        }
    }
}

SimulationResult Simulation::run(bool summary) {
    const int n = graph_.nodes();
    ready_at_.assign(n, 0);
    begin_.assign(n, 0);
    end_.assign(n, 0);
    cause_.assign(n, -1);
    if (graph_.symmetry_ != nullptr) cause_shift_.assign(n, 0);
    engines_.resize(graph_.ranks());
    levels_.resize(machine_.levels());
    // Nodes that are ready at the start begin in the order of priority, as a rank would post them.
    std::vector<Waiting> first;
    int total = 0;
    for (int k = 0; k < n; ++k) {
        if (graph_.joined_[k] != k) continue;
        ++total;
        if (missing_[k] == 0) first.push_back({priority(graph_.node(k).mark), k});
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
        // Nodes whose ends differ by a billionth of the time end together: equal transfers differ by rounding
        // only.
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
    return result(summary);
}

SimulationResult Simulation::result(bool summary) {
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
            r.works += node.kind != Kind::nothing ? order_ : 0;
            continue;
        }
        r.transfers += order_;
        auto [at, inserted] =
            stages.try_emplace(node.mark.stage, StageUse{node.mark.stage, begin_[k], end_[k], 0, 0});
        StageUse& stage = at->second;
        stage.begin = std::min(stage.begin, begin_[k]);
        stage.end = std::max(stage.end, end_[k]);
        stage.bytes += node.bytes * order_;
        stage.transfers += order_;
        const Connection& connection = connections_[connection_of_[k]];
        for (int j = 0; j < connection.path.count; ++j) {
            const int link = connection.path.links[j];
            bytes[link] += node.bytes * connection.times[j];
            load[link] +=
                node.bytes / connection.path.efficiency * connection.times[j] / shares_.capacity(link);
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
    if (summary) return r;
    r.begin = begin_;
    r.end = end_;
    if (graph_.symmetry_ != nullptr) spread_links(r.links);
    // A step is relative to the next one; the last is at its place in the graph.
    int at = 0;
    for (int k = last; k >= 0; k = cause_[k]) {
        const Node& node = graph_.node(k);
        const auto shifted = [&](int rank) {
            return rank < 0 || graph_.symmetry_ == nullptr ? rank : graph_.symmetry_->shifted(rank, at);
        };
        r.critical_path.push_back(
            {node.kind, shifted(node.rank), shifted(node.peer), node.mark, begin_[k], end_[k], node.bytes});
        if (graph_.symmetry_ != nullptr) at = graph_.symmetry_->shifted(at, cause_shift_[k]);
    }
    std::reverse(r.critical_path.begin(), r.critical_path.end());
    return r;
}

// From representative links to all.
void Simulation::spread_links(std::vector<LinkUse>& uses) {
    struct Source {
        const Connection* connection = nullptr;
        int slot = 0;
    };
    std::unordered_map<int, Source> source; // of a link
    for (const Connection& connection : connections_)
        for (int j = 0; j < connection.path.count; ++j)
            source.try_emplace(connection.path.links[j], Source{&connection, j});
    const std::vector<int> shifts = graph_.symmetry_->shifts();
    std::vector<LinkUse> all;
    for (const LinkUse& use : uses) {
        const auto [connection, slot] = source.at(use.link);
        const std::size_t first = all.size();
        for (const int shift : shifts) {
            const Path path =
                machine_.path(graph_.symmetry_->shifted(connection->from, shift),
                              graph_.symmetry_->shifted(connection->to, shift), connection->library);
            all.push_back({path.links[slot], use.bytes, use.busy});
        }
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
        std::sort(begin, all.end(), [](auto& a, auto& b) { return a.link < b.link; });
        all.erase(std::unique(begin, all.end(), [](auto& a, auto& b) { return a.link == b.link; }),
                  all.end());
    }
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.link < b.link; });
    uses = std::move(all);
}

SimulationResult simulate(const TransferGraph& graph, const Machine& machine, bool summary) {
    return Simulation(graph, machine).run(summary);
}

SimulationResult simulate(int ranks, const std::function<Schedule(int)>& schedule_of,
                          const Machine& machine) {
    for (const bool coalesce : {true, false}) {
        TransferGraph graph(ranks, coalesce);
        for (int rank = 0; rank < ranks; ++rank) graph.add(rank, schedule_of(rank));
        graph.finish();
        try {
            return simulate(graph, machine);
        } catch (const ScheduleError&) {
            if (!coalesce) throw;
        }
    }
    return {};
}

} // namespace jali
