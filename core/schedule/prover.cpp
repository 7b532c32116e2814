// The proof of events: first the order, then the contents of memory.
#include "schedule/happens_before.hpp"
#include "schedule/held_contents.hpp"
#include "schedule/ordered_events.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace jali {

namespace {

class Prover {
  public:
    Prover(std::span<const RankEvents> ranks, const ProofWords& words) : ranks_(ranks), words_(words) {}

    void run() {
        number();
        match_passages();
        match_words();
        compare_what_is_said();
        check_ends_of_memory();
        order_ = sorted({}, "");
        before_ = HappensBefore(edges_, order_);
        std::optional<ScheduleError> wrong;
        try {
            follow_contents();
        } catch (const ScheduleError& error) { // a race, if there is one, is the better explanation
            wrong = error;
        }
        check_order_of_signals();
        check_order_of_accesses();
        check_order_of_passages();
        check_occupancy();
        if (wrong) throw ScheduleError(*wrong);
    }

  private:
    struct EventIndex {
        int rank, event;
    };
    const RankEvents& rank_of(int n) const { return ranks_[nodes_[n].rank]; }
    const OrderedEvent& event(int n) const { return rank_of(n).events[nodes_[n].event]; }
    int number_of(int rank, int event) const { return first_[rank] + event; }
    std::string name(int n) const { return words_.event(rank_of(n), nodes_[n].event); }
    void edge(int before, int after) { edges_.push_back({before, after}); }
    [[noreturn]] void fail(Fault kind, int n, const std::string& what) const {
        throw ScheduleError(name(n) + what, kind, rank_of(n).rank, nodes_[n].event);
    }

    void number() {
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            first_.push_back(static_cast<int>(nodes_.size()));
            for (std::size_t m = 0; m < ranks_[r].events.size(); ++m) {
                for (const std::int32_t before : ranks_[r].events[m].after)
                    edge(first_[r] + before, static_cast<int>(nodes_.size()));
                nodes_.push_back({static_cast<int>(r), static_cast<int>(m)});
            }
        }
    }

    void match_passages() {
        struct End {
            std::tuple<int, int, int, int> key; // from, to, tag, channel
            int rank;
            const Passage* passage;
        };
        std::vector<End> sends, receives;
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            const int me = ranks_[r].rank;
            for (const Passage& p : ranks_[r].passages)
                (p.sends ? sends : receives)
                    .push_back({p.sends ? std::tuple(me, p.peer, p.tag, p.channel)
                                        : std::tuple(p.peer, me, p.tag, p.channel),
                                static_cast<int>(r), &p});
        }
        for (auto* ends : {&sends, &receives})
            std::stable_sort(ends->begin(), ends->end(),
                             [](const End& a, const End& b) { return a.key < b.key; });
        sent_.assign(nodes_.size(), -1);
        received_.assign(nodes_.size(), -1);
        for (std::size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
            const bool unmet_send =
                k < sends.size() && (k == receives.size() || sends[k].key < receives[k].key);
            if (unmet_send || k == sends.size() || receives[k].key < sends[k].key) {
                const auto without_channel = [&](const std::vector<End>& ends) {
                    auto key = k < ends.size() ? ends[k].key : std::tuple(-1, -1, -1, -1);
                    std::get<3>(key) = 0;
                    return key;
                };
                const auto& [key, r, p] = unmet_send ? sends[k] : receives[k];
                fail(Fault::message, number_of(r, p->event),
                     std::string(unmet_send ? " sends " : " waits for ") + std::to_string(p->bytes) +
                         " bytes " + (unmet_send ? "to" : "from") + " rank " + std::to_string(p->peer) +
                         " with tag " + std::to_string(p->tag) + ", which does not " +
                         (unmet_send ? "receive" : "send") + " them" +
                         (without_channel(sends) == without_channel(receives) ? " by the same library" : ""));
            }
            const auto& [key, s, send] = sends[k];
            const auto& [same_key, r, receive] = receives[k];
            const int from = number_of(s, send->event), to = number_of(r, receive->event);
            if (send->bytes != receive->bytes)
                fail(Fault::message, to,
                     " expects " + std::to_string(receive->bytes) + " bytes; " + name(from) + " sends " +
                         std::to_string(send->bytes));
            edge(from, to);
            rendezvous_.push_back({number_of(r, receive->opened), number_of(s, send->closed)});
            sent_[from] = received_[to] = static_cast<int>(transfers_.size());
            transfers_.push_back({send->where, receive->where, {}});
            if (k == 0 || sends[k - 1].key != key) continue;
            for (const auto* ends : {&sends, &receives})
                in_turn_.push_back({number_of((*ends)[k].rank, (*ends)[k - 1].passage->opened),
                                    number_of((*ends)[k].rank, (*ends)[k].passage->opened)});
        }
    }

    void match_words() {
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::int64_t, int>>
            set; // word: value, event
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> first;
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::int32_t> writers;
        for (const RankEvents& rank : ranks_)
            for (const SignalWord& w : rank.words) {
                first[{w.space, w.address}] = w.value;
                if (w.writer >= 0) writers[{w.space, w.address}] = w.writer;
            }
        for (std::size_t n = 0; n < nodes_.size(); ++n) {
            for (const SignalWord& w : event(static_cast<int>(n)).signals) {
                if (const auto writer = writers.find({w.space, w.address});
                    writer != writers.end() && writer->second != ranks_[nodes_[n].rank].rank)
                    fail(Fault::message, static_cast<int>(n),
                         " sets a word that rank " + std::to_string(writer->second) + " alone may set");
                const auto [found, fresh] = set[{w.space, w.address}].emplace(w.value, static_cast<int>(n));
                if (!fresh)
                    fail(Fault::message, static_cast<int>(n),
                         " and " + name(found->second) + " both set a word to " + std::to_string(w.value));
            }
        }
        for (std::size_t n = 0; n < nodes_.size(); ++n) {
            for (const SignalWord& w : event(static_cast<int>(n)).waits) {
                const auto key = std::pair(w.space, w.address);
                if (const auto known = first.find(key);
                    known != first.end() && (w.exactly ? known->second == w.value : known->second >= w.value))
                    continue;
                // any later value ends the wait; only the first one is guaranteed
                const auto& values = set[key];
                const auto found = w.exactly ? values.find(w.value) : values.lower_bound(w.value);
                if (found == values.end())
                    fail(Fault::message, static_cast<int>(n),
                         " waits for a word to become " + std::to_string(w.value) + ", which nobody sets");
                edge(found->second, static_cast<int>(n));
                signals_of_[static_cast<int>(n)].push_back(found->second);
            }
        }
        // The values of a word must be set in ascending order, else a wait for a smaller one may see the
        // larger.
        for (const auto& [word, values] : set)
            for (auto at = values.begin(); at != values.end() && std::next(at) != values.end(); ++at)
                in_order_.push_back({at->second, std::next(at)->second});
    }

    // All events, in an order in which they can happen where sends wait for their receivers.
    std::vector<int> sorted(std::span<const Neighbours::Edge> more, const std::string& trouble) const {
        auto edges = edges_;
        edges.insert(edges.end(), rendezvous_.begin(), rendezvous_.end());
        edges.insert(edges.end(), more.begin(), more.end());
        const Neighbours followers(nodes_.size(), edges);
        const auto n = static_cast<int>(nodes_.size());
        std::vector<int> missing(n, 0), order;
        order.reserve(n);
        for (const auto& [before, after] : edges) ++missing[after];
        for (int k = 0; k < n; ++k)
            if (missing[k] == 0) order.push_back(k);
        for (std::size_t at = 0; at < order.size(); ++at)
            for (int f : followers[order[at]])
                if (--missing[f] == 0) order.push_back(f);
        if (static_cast<int>(order.size()) == n) return order;
        // backwards along missing predecessors until an event recurs
        std::vector<int> before(n, -1);
        for (const auto& [earlier, later] : edges)
            if (missing[earlier] > 0 && missing[later] > 0 && before[later] < 0) before[later] = earlier;
        int at = static_cast<int>(std::find_if(missing.begin(), missing.end(), [](int m) { return m > 0; }) -
                                  missing.begin());
        std::vector<char> seen(n, 0);
        while (!seen[at]) {
            seen[at] = 1;
            at = before[at];
        }
        std::string circle = name(at), last = circle;
        constexpr int most = 8;
        int listed = 1;
        for (int next = before[at]; next != at; next = before[next])
            if (const std::string one = name(next); one != last) {
                if (++listed <= most) circle += ", which waits for " + one;
                last = one;
            }
        if (listed > most) circle += ", ... (" + std::to_string(listed) + " in the circle)";
        throw ScheduleError(trouble + "nothing can go on: " + circle + ", which waits for the first",
                            Fault::deadlock, rank_of(at).rank, nodes_[at].event);
    }

    // A launch that gets no place while others wait begins after their waits; this must form no cycle either.
    void check_occupancy() const {
        struct Launch {
            LaunchOccupancy occupancy;
            int first; // event
            std::vector<int> waits;
        };
        std::map<std::uint64_t, std::vector<Launch>> of_devices;
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            std::map<std::int32_t, Launch> mine;
            for (std::size_t m = 0; m < ranks_[r].events.size(); ++m) {
                const OrderedEvent& at = ranks_[r].events[m];
                if (at.launch < 0) continue;
                const int n = number_of(static_cast<int>(r), static_cast<int>(m));
                const LaunchOccupancy& occupancy = ranks_[r].launches[at.launch];
                Launch& launch = mine.try_emplace(at.launch, Launch{occupancy, n, {}}).first->second;
                const auto signals = signals_of_.find(n);
                const auto comes_later = [&](int signal) { return !before_(signal, launch.first); };
                if (signals == signals_of_.end() || std::ranges::none_of(signals->second, comes_later))
                    continue;
                launch.waits.push_back(n);
                if (occupancy.resident > 0 && occupancy.blocks > occupancy.resident &&
                    occupancy.ahead >= occupancy.resident)
                    fail(Fault::deadlock, n,
                         " is of a launch whose blocks hold " +
                             std::to_string(std::min(occupancy.ahead, occupancy.resident)) + " of the " +
                             std::to_string(occupancy.resident) +
                             " places of its device while they wait, and " +
                             std::to_string(occupancy.blocks) + " blocks need one");
            }
            for (const auto& [number, launch] : mine)
                if (launch.occupancy.resident > 0) of_devices[launch.occupancy.device].push_back(launch);
        }
        std::vector<Neighbours::Edge> more;
        std::string who;
        for (const auto& [device, launches] : of_devices) {
            for (const Launch& launch : launches) {
                // the launch may be ready during this wait
                const auto beside = [&](int wait, const Launch& other) {
                    return !before_(wait, launch.first) && !before_(launch.first, other.first);
                };
                const auto held = [&](int wait) { // of the device, by all that may wait at the same time
                    double all = 0;
                    for (const Launch& other : launches) {
                        if (&other == &launch) continue;
                        std::int64_t blocks = 0;
                        for (const int n : other.waits)
                            if (n == wait || (beside(n, other) && !before_(n, wait) && !before_(wait, n)))
                                blocks += event(n).waiting > 0 ? event(n).waiting : other.occupancy.blocks;
                        blocks = std::min({blocks, other.occupancy.blocks, other.occupancy.resident});
                        all += static_cast<double>(blocks) / static_cast<double>(other.occupancy.resident);
                    }
                    return all;
                };
                for (const Launch& other : launches) {
                    for (const int wait : other.waits) {
                        if (&other == &launch || !beside(wait, other) ||
                            held(wait) <= 1 - 1 / static_cast<double>(launch.occupancy.resident))
                            continue;
                        more.push_back({wait, launch.first});
                        if (who.empty())
                            who = "blocks that wait may hold all places of a device (" + name(wait) + ": " +
                                  std::to_string(other.occupancy.blocks) + " blocks, of which " +
                                  std::to_string(other.occupancy.resident) + " find one), and then ";
                    }
                }
            }
        }
        if (!who.empty()) sorted(more, who);
    }

    void check_order_of_signals() const {
        for (const auto& [one, next] : in_order_)
            if (!before_(one, next))
                fail(Fault::race, one,
                     " sets a word that " + name(next) + " sets to a larger value, and nothing orders them");
    }

    void compare_what_is_said() const {
        std::map<std::uint64_t, std::pair<int, std::int64_t>> said; // the first event that states it, and its
                                                                    // value
        for (std::size_t r = 0; r < ranks_.size(); ++r)
            for (const Said& s : ranks_[r].said) {
                const int n = number_of(static_cast<int>(r), s.event);
                const auto [first, fresh] = said.emplace(s.about, std::pair(n, s.value));
                if (first->second.second != s.value)
                    fail(Fault::structure, first->second.first,
                         " and " + name(n) + " differ in what both have to know: " +
                             std::to_string(first->second.second) + " and " + std::to_string(s.value));
            }
    }

    void check_order_of_passages() const {
        for (const auto& [one, next] : in_turn_)
            if (one != next && !before_(one, next))
                fail(
                    Fault::message, next,
                    " may start before " + name(one) +
                        ", which has the same peer and tag: the two messages can be mistaken for each other");
    }

    // An access ends inside the memory in which it begins.
    void check_ends_of_memory() const {
        struct Extents { // in the order of their beginnings, with the last end so far
            std::vector<std::pair<const MemoryExtent*, int>> all; // and the rank
            std::vector<std::uint64_t> ends;
        };
        std::map<std::pair<std::uint64_t, bool>, Extents> by_space; // and whether they are parts
        for (const RankEvents& rank : ranks_)
            for (const MemoryExtent& m : rank.memory)
                by_space[{m.where.space, m.part}].all.push_back({&m, rank.rank});
        for (auto& [space, extents] : by_space) {
            std::sort(extents.all.begin(), extents.all.end(), [](const auto& a, const auto& b) {
                return a.first->where.begin < b.first->where.begin;
            });
            std::uint64_t end = 0;
            for (const auto& [m, rank] : extents.all)
                extents.ends.push_back(end = std::max(end, m->where.end));
        }
        enum class Ends { elsewhere, inside, beyond }; // of blocks, or of parts
        const auto find = [&](const Stretch& s, bool part, std::string& beyond) {
            const auto found = by_space.find({s.space, part});
            if (found == by_space.end()) return Ends::elsewhere;
            const auto& [all, end] = found->second;
            auto k = std::partition_point(all.begin(), all.end(),
                                          [&](const auto& m) { return m.first->where.begin <= s.begin; }) -
                     all.begin();
            auto ends = Ends::elsewhere;
            for (; k > 0 && end[k - 1] > s.begin; --k) {
                const auto& [m, rank] = all[k - 1];
                if (s.end <= m->where.end) return Ends::inside;
                if (s.begin >= m->where.end) continue;
                ends = Ends::beyond;
                beyond = "where '" + m->name + "' of rank " + std::to_string(rank) + " has " +
                         std::to_string(m->where.end - s.begin) + " left";
            }
            return ends;
        };
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            std::vector<char> checked(ranks_[r].footprints.size(), 0);
            for (std::size_t m = 0; m < ranks_[r].events.size(); ++m) {
                const OrderedEvent& at = ranks_[r].events[m];
                const auto check = [&](std::int32_t footprint, const char* verb) {
                    if (std::exchange(checked[footprint], 1)) return;
                    for (const Stretch& s : ranks_[r].footprints[footprint]) {
                        std::string beyond = "where no rank has memory, at " + std::to_string(s.begin);
                        const auto part = find(s, true, beyond), block = find(s, false, beyond);
                        if (part != Ends::beyond && block != Ends::beyond &&
                            (part == Ends::inside || block == Ends::inside))
                            continue;
                        fail(Fault::structure, number_of(static_cast<int>(r), static_cast<int>(m)),
                             std::string(" ") + verb + " " + std::to_string(s.end - s.begin) + " bytes " +
                                 beyond);
                    }
                };
                for (std::int32_t footprint : at.reads) check(footprint, "reads");
                for (std::int32_t footprint : at.writes) check(footprint, "writes");
                for (std::int32_t footprint : at.words) check(footprint, "looks for a word of");
            }
        }
    }

    // A use of memory, from the first of these events to the last; for a move or combination of an event also
    // its number, since an event may do them in any order.
    struct Access {
        std::uint64_t space, begin, end;
        int first, last;
        bool writes;
        int index = -1;
    };
    void check_order_of_accesses() const {
        std::vector<Access> all, touched;
        for (std::size_t n = 0; n < nodes_.size(); ++n) {
            const auto node = static_cast<int>(n);
            const OrderedEvent& m = event(node);
            const auto add = [&](std::int32_t footprint, bool writes) {
                for (const Stretch& s : rank_of(node).footprints[footprint])
                    if (s.begin < s.end) all.push_back({s.space, s.begin, s.end, node, node, writes});
            };
            for (const std::int32_t footprint : m.reads) add(footprint, false);
            for (const std::int32_t footprint : m.writes) add(footprint, true);
            if (m.moves.size() + m.combinations.size() < 2) continue;
            touched.clear();
            const auto add_touched = [&](const Stretch& s, bool writes, std::size_t index) {
                if (s.begin < s.end)
                    touched.push_back({s.space, s.begin, s.end, node, node, writes, static_cast<int>(index)});
            };
            for (std::size_t k = 0; k < m.moves.size(); ++k) {
                add_touched(m.moves[k].from, false, k);
                add_touched(m.moves[k].to, true, k);
            }
            for (std::size_t k = 0; k < m.combinations.size(); ++k) {
                for (const Stretch& from : m.combinations[k].from)
                    add_touched(from, false, m.moves.size() + k);
                add_touched(m.combinations[k].to, true, m.moves.size() + k);
            }
            sweep(touched);
        }
        for (std::size_t r = 0; r < ranks_.size(); ++r)
            for (const Passage& p : ranks_[r].passages)
                if (p.bytes > 0)
                    all.push_back({p.where.space, p.where.begin, p.where.end,
                                   number_of(static_cast<int>(r), p.opened),
                                   number_of(static_cast<int>(r), p.closed), !p.sends});
        sweep(all);
    }

    // In the order of their beginnings, each against those that have begun and not ended: `open`, in the
    // order of their events. Among these, what is ordered against its neighbours is so against all.
    void sweep(std::vector<Access>& accesses) const {
        std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) {
            return std::tie(a.space, a.begin) < std::tie(b.space, b.begin);
        });
        std::vector<const Access*> open;
        std::uint64_t ends = 0; // the first of them
        const auto earlier = [&](const Access* a, const Access* b) {
            return before_.index(a->first) < before_.index(b->first);
        };
        for (const Access& a : accesses) {
            if (!open.empty() && (open[0]->space != a.space || ends <= a.begin)) {
                ends = std::numeric_limits<std::uint64_t>::max();
                std::erase_if(open, [&](const Access* b) {
                    const bool past = b->space != a.space || b->end <= a.begin;
                    if (!past) ends = std::min(ends, b->end);
                    return past;
                });
            }
            const auto here = std::lower_bound(open.begin(), open.end(), &a, earlier);
            for (auto next = here; next != open.end(); ++next) {
                if (a.writes || (*next)->writes) check_order(a, **next);
                if ((*next)->writes) break;
            }
            for (auto last = here; last != open.begin();) {
                --last;
                if (a.writes || (*last)->writes) check_order(**last, a);
                if ((*last)->writes) break;
            }
            ends = open.empty() ? a.end : std::min(ends, a.end);
            open.insert(here, &a);
        }
    }
    void check_order(const Access& a, const Access& b) const {
        const Access& later = b.begin < a.begin ? a : b; // in memory
        const Stretch both{a.space, later.begin, std::min(a.end, b.end)};
        if (a.index >= 0) {
            const bool itself =
                a.index == b.index && a.begin == b.begin && a.end == b.end && a.writes != b.writes;
            if (!itself || static_cast<std::size_t>(a.index) < event(a.first).moves.size())
                fail(Fault::race, a.first,
                     ": a part of it writes what another reads or writes: " + words_.location(both));
            return;
        }
        const bool same = a.first == b.first && a.last == a.first && b.last == b.first;
        if (same || before_(a.last, b.first) || before_(b.last, a.first)) return;
        const auto& [writer, other] = a.writes ? std::tie(a, b) : std::tie(b, a);
        fail(Fault::race, writer.first,
             " writes " + words_.location(both) + ", which " + name(other.first) +
                 (other.writes ? " writes" : " reads") + ", and nothing orders them");
    }

    void follow_contents() {
        HeldContents held(ranks_, words_);
        const auto of = [&](int transfer) { return transfer < 0 ? nullptr : &transfers_[transfer]; };
        for (int n : order_) held.pass(nodes_[n].rank, nodes_[n].event, of(sent_[n]), of(received_[n]));
    }

    std::span<const RankEvents> ranks_;
    const ProofWords& words_;
    std::vector<EventIndex> nodes_;
    std::vector<int> first_, order_;
    std::vector<Neighbours::Edge> edges_, rendezvous_, in_order_, in_turn_;
    HappensBefore before_;
    std::map<int, std::vector<int>> signals_of_; // by wait
    std::vector<HeldContents::Transfer> transfers_;
    std::vector<int> sent_, received_; // by the moment that does so
};

} // namespace

std::string ProofWords::event(const RankEvents& of, int event) const {
    return "'" + of.events[event].name + "' of rank " + std::to_string(of.rank);
}

std::string ProofWords::location(const Stretch& where) const {
    return std::to_string(where.end - where.begin) + " bytes at " + std::to_string(where.begin);
}

std::string ProofWords::held(const RankEvents& of, int event, int n, std::int64_t number) const {
    return "byte " + std::to_string(number) + " of array " + std::to_string(n) + " that " +
           this->event(of, event) + " held";
}

void prove(std::span<const RankEvents> of_ranks, const ProofWords& words) {
    Prover(of_ranks, words).run();
}

} // namespace jali
