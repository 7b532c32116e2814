// Shares of links, updated when transfers begin and end.
#include "simulation/sharing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace jali {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Offers that change by less are not passed on. Rates are right to about this much.
constexpr double tolerance = 1e-4;

} // namespace

Shares::Shares(std::vector<Link> links)
    : links_(std::move(links)), busy_(links_.size(), 0), busy_since_(links_.size(), 0),
      on_link_(links_.size()), is_dirty_(links_.size(), 0) {
}

void Shares::mark(int link) {
    if (is_dirty_[link]) return;
    is_dirty_[link] = 1;
    dirty_.push_back(link);
}

void Shares::add(int name, double bytes, std::uint64_t priority, std::span<const Crossing> crossings,
                 double now) {
    int number;
    if (free_.empty()) {
        number = static_cast<int>(flows_.size());
        flows_.emplace_back();
    } else {
        number = free_.back();
        free_.pop_back();
    }
    Flow& flow = flows_[number];
    flow = {};
    flow.name = name;
    flow.priority = priority;
    flow.left = bytes;
    flow.since = now;
    flow.end = infinity;
    flow.count = static_cast<int>(crossings.size());
    for (int j = 0; j < flow.count; ++j) {
        const int link = crossings[j].link;
        flow.at[j] = crossings[j];
        flow.offer[j] = infinity;
        auto& members = on_link_[link];
        if (members.empty()) busy_since_[link] = now;
        const auto at =
            std::upper_bound(members.begin(), members.end(), priority, [&](auto value, const auto& member) {
                return value < flows_[member.first].priority;
            });
        members.insert(at, {number, static_cast<std::int8_t>(j)});
        mark(link);
    }
    flow.heap = static_cast<int>(heap_.size());
    heap_.push_back(number);
}

void Shares::remove(int number, double now) {
    Flow& flow = flows_[number];
    for (int j = 0; j < flow.count; ++j) {
        const int link = flow.at[j].link;
        auto& members = on_link_[link];
        members.erase(
            std::find(members.begin(), members.end(), std::pair<std::int32_t, std::int8_t>(number, j)));
        if (members.empty())
            busy_[link] += now - busy_since_[link];
        else
            mark(link);
    }
    const int position = flow.heap, last = heap_.back();
    heap_.pop_back();
    if (last != number) {
        put(position, last);
        sift(position);
    }
    flow.heap = -1;
    free_.push_back(number);
}

// Offers of one link, from the rates that its transfers can use: the smallest offer of their other links. A
// transfer that crosses the link twice (the link represents two equivalent ones) gets the same offer for
// both.
void Shares::share(int link) {
    const auto& members = on_link_[link];
    double left = links_[link].capacity;
    std::size_t crowd = 0;
    for (const auto& [flow, slot] : members) crowd += static_cast<std::size_t>(flows_[flow].at[slot].times);
    if (crowd > links_[link].crowd) left *= links_[link].crowded;
    for (std::size_t begin = 0, end; begin < members.size(); begin = end) {
        const std::uint64_t priority = flows_[members[begin].first].priority;
        end = links_[link].ordered ? begin : members.size();
        while (end < members.size() && flows_[members[end].first].priority == priority) ++end;
        wanted_.clear();
        double waiting = 0; // transfers
        for (std::size_t k = begin; k < end; ++k) {
            const Flow& flow = flows_[members[k].first];
            double want = infinity;
            for (int j = 0; j < flow.count; ++j)
                if (flow.at[j].link != link) want = std::min(want, flow.offer[j]);
            wanted_.emplace_back(want, static_cast<int>(k));
            waiting += flow.at[members[k].second].times;
        }
        std::sort(wanted_.begin(), wanted_.end());
        // Water filling: transfers with low limits get their limits, the others an equal share of the rest.
        double rest = left, level = infinity;
        for (std::size_t k = 0; k < wanted_.size(); ++k) {
            const auto& [flow, slot] = members[wanted_[k].second];
            const double equal = rest / waiting;
            if (wanted_[k].first > equal) {
                level = equal;
                rest = 0;
                break;
            }
            rest -= wanted_[k].first * flows_[flow].at[slot].times;
            waiting -= flows_[flow].at[slot].times;
        }
        for (const auto& [want, k] : wanted_) {
            Flow& flow = flows_[members[k].first];
            const int slot = members[k].second;
            const double now = std::isinf(level) ? want + std::max(rest, 0.0) : level,
                         before = flow.offer[slot];
            flow.offer[slot] = now;
            if (std::abs(now - before) <= tolerance * now || (std::isinf(before) && std::isinf(now)))
                continue;
            if (!flow.touched) {
                flow.touched = true;
                touched_.push_back(members[k].first);
            }
            // Other links are updated if it limits, or did limit, the transfer's rate there.
            const double smaller = std::min(now, before);
            for (int j = 0; j < flow.count; ++j) {
                if (flow.at[j].link == link) continue;
                double others = infinity;
                for (int i = 0; i < flow.count; ++i)
                    if (i != j && flow.at[i].link != link) others = std::min(others, flow.offer[i]);
                if (smaller < others) mark(flow.at[j].link);
            }
        }
        left = std::max(rest, 0.0);
    }
}

void Shares::settle(double now) {
    // Shares converge link by link; the limit only guards against offers that swing by rounding.
    std::size_t limit = 16 * dirty_.size() + 64;
    for (std::size_t k = 0; k < dirty_.size(); ++k) {
        const int link = dirty_[k];
        is_dirty_[link] = 0;
        if (limit == 0) continue;
        --limit;
        share(link);
        if (k > 65536) {
            dirty_.erase(dirty_.begin(), dirty_.begin() + static_cast<std::ptrdiff_t>(k) + 1);
            k = static_cast<std::size_t>(-1);
        }
    }
    dirty_.clear();
    for (const int number : touched_) {
        Flow& flow = flows_[number];
        flow.touched = false;
        if (flow.heap < 0) continue;
        double rate = infinity;
        for (int j = 0; j < flow.count; ++j) rate = std::min(rate, flow.offer[j]);
        if (rate == flow.rate) continue;
        flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
        flow.since = now;
        flow.rate = rate;
        flow.end = rate > 0 ? now + flow.left / rate : infinity;
        sift(flow.heap);
    }
    touched_.clear();
}

double Shares::next_end() const {
    return heap_.empty() ? infinity : flows_[heap_[0]].end;
}

void Shares::take_ended(double until, double now, std::vector<int>& names) {
    while (!heap_.empty() && flows_[heap_[0]].end <= until) {
        const int number = heap_[0];
        names.push_back(flows_[number].name);
        remove(number, now);
    }
}

void Shares::put(int position, int number) {
    heap_[position] = number;
    flows_[number].heap = position;
}

void Shares::sift(int position) {
    const int number = heap_[position];
    const double end = flows_[number].end;
    const int count = static_cast<int>(heap_.size());
    while (position > 0 && flows_[heap_[(position - 1) / 2]].end > end) {
        put(position, heap_[(position - 1) / 2]);
        position = (position - 1) / 2;
    }
    for (;;) {
        int child = 2 * position + 1;
        if (child >= count) break;
        if (child + 1 < count && flows_[heap_[child + 1]].end < flows_[heap_[child]].end) ++child;
        if (flows_[heap_[child]].end >= end) break;
        put(position, heap_[child]);
        position = child;
    }
    put(position, number);
}

} // namespace jali
