// The proof of moments: order first, then what memory holds.
#include "schedule/happens_before.hpp"
#include "schedule/held_contents.hpp"
#include "schedule/moments.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace jali {

namespace {

class Prover {
  public:
    explicit Prover(std::span<const RankMoments> ranks) : ranks_(ranks) {}

    void run() {
        number();
        match_passages();
        match_words();
        compare_what_is_said();
        check_ends_of_memory();
        order_ = sorted(followers_, "");
        before_ = HappensBefore(followers_, order_);
        check_order_of_signals();
        check_order_of_accesses();
        check_places();
        HeldContents held(ranks_, [this](int n) { return name(n); });
        for (int n : order_) {
            const auto arrived = arrivals_.find(n);
            held.pass(n, places_[n].rank, moment(n), arrived != arrivals_.end() ? &arrived->second : nullptr);
        }
    }

  private:
    struct Place {
        int rank, moment;
    };
    const Moment& moment(int n) const { return ranks_[places_[n].rank].moments[places_[n].moment]; }
    int number_of(int rank, int moment) const { return first_[rank] + moment; }
    std::string name(int n) const {
        return "'" + moment(n).name + "' of rank " + std::to_string(ranks_[places_[n].rank].rank);
    }
    void edge(int before, int after) { followers_[before].push_back(after); }

    void number() {
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            first_.push_back(static_cast<int>(places_.size()));
            for (std::size_t m = 0; m < ranks_[r].moments.size(); ++m)
                places_.push_back({static_cast<int>(r), static_cast<int>(m)});
        }
        followers_.resize(places_.size());
        for (std::size_t n = 0; n < places_.size(); ++n)
            for (std::int32_t before : moment(static_cast<int>(n)).after)
                edge(first_[places_[n].rank] + before, static_cast<int>(n));
    }

    void match_passages() {
        using Key = std::tuple<int, int, int, int>; // from, to, channel, tag
        std::map<Key, std::pair<std::vector<std::pair<int, const Passage*>>,
                                std::vector<std::pair<int, const Passage*>>>>
            all;
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            const int me = ranks_[r].rank;
            for (const Passage& p : ranks_[r].passages) {
                auto& ends =
                    all[p.sends ? Key{me, p.peer, p.channel, p.tag} : Key{p.peer, me, p.channel, p.tag}];
                (p.sends ? ends.first : ends.second).push_back({static_cast<int>(r), &p});
            }
        }
        for (const auto& [key, ends] : all) {
            const auto& [sends, receives] = ends;
            for (std::size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
                if (k >= sends.size() || k >= receives.size()) {
                    const auto& [r, p] = k < sends.size() ? sends[k] : receives[k];
                    throw ScheduleError(name(number_of(r, p->moment)) + " has no counterpart on rank " +
                                        std::to_string(p->peer));
                }
                const auto& [s, send] = sends[k];
                const auto& [r, receive] = receives[k];
                const int from = number_of(s, send->moment), to = number_of(r, receive->moment);
                if (send->bytes != receive->bytes)
                    throw ScheduleError(name(from) + " sends " + std::to_string(send->bytes) + " bytes, " +
                                        name(to) + " receives " + std::to_string(receive->bytes));
                edge(from, to);
                edge(number_of(r, receive->opened), number_of(s, send->closed));
                arrivals_.emplace(to, Move{receive->where, send->where});
            }
        }
    }

    void match_words() {
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::int64_t, int>>
            set; // word: value, moment
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> first;
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::int32_t> writers;
        for (const RankMoments& rank : ranks_)
            for (const SignalWord& w : rank.words) {
                first[{w.space, w.address}] = w.value;
                if (w.writer >= 0) writers[{w.space, w.address}] = w.writer;
            }
        for (std::size_t n = 0; n < places_.size(); ++n) {
            for (const SignalWord& w : moment(static_cast<int>(n)).signals) {
                if (const auto writer = writers.find({w.space, w.address});
                    writer != writers.end() && writer->second != ranks_[places_[n].rank].rank)
                    throw ScheduleError(name(static_cast<int>(n)) + " sets a word that rank " +
                                        std::to_string(writer->second) + " alone may set");
                const auto [found, fresh] = set[{w.space, w.address}].emplace(w.value, static_cast<int>(n));
                if (!fresh)
                    throw ScheduleError(name(static_cast<int>(n)) + " and " + name(found->second) +
                                        " both set a word to " + std::to_string(w.value));
            }
        }
        for (std::size_t n = 0; n < places_.size(); ++n) {
            for (const SignalWord& w : moment(static_cast<int>(n)).waits) {
                const auto key = std::pair(w.space, w.address);
                if (const auto known = first.find(key);
                    known != first.end() && (w.exactly ? known->second == w.value : known->second >= w.value))
                    continue;
                // any of the later values would do; the first one is what it can rely on
                const auto& values = set[key];
                const auto found = w.exactly ? values.find(w.value) : values.lower_bound(w.value);
                if (found == values.end())
                    throw ScheduleError(name(static_cast<int>(n)) + " waits for a word to become " +
                                        std::to_string(w.value) + ", which nobody sets");
                edge(found->second, static_cast<int>(n));
                signals_of_[static_cast<int>(n)].push_back(found->second);
            }
        }
        // The values of a word must come in their order, else a wait for a smaller one may see the larger.
        for (const auto& [word, values] : set)
            for (auto at = values.begin(); at != values.end() && std::next(at) != values.end(); ++at)
                in_order_.push_back({at->second, std::next(at)->second});
    }

    std::vector<int> sorted(const std::vector<std::vector<int>>& followers,
                            const std::string& trouble) const {
        const auto n = static_cast<int>(places_.size());
        std::vector<int> missing(n, 0), order;
        for (const auto& all : followers)
            for (int f : all) ++missing[f];
        for (int k = 0; k < n; ++k)
            if (missing[k] == 0) order.push_back(k);
        for (std::size_t at = 0; at < order.size(); ++at)
            for (int f : followers[order[at]])
                if (--missing[f] == 0) order.push_back(f);
        if (static_cast<int>(order.size()) == n) return order;
        // backwards along what is missing until a moment comes again
        std::vector<std::vector<int>> before(n);
        for (int k = 0; k < n; ++k)
            for (int f : followers[k])
                if (missing[k] > 0 && missing[f] > 0) before[f].push_back(k);
        int at = static_cast<int>(std::find_if(missing.begin(), missing.end(), [](int m) { return m > 0; }) -
                                  missing.begin());
        std::vector<char> seen(n, 0);
        while (!seen[at]) {
            seen[at] = 1;
            at = before[at].front();
        }
        std::string circle = name(at);
        for (int next = before[at].front(); next != at; next = before[next].front())
            circle += ", which waits for " + name(next);
        throw ScheduleError(trouble + "nothing can go on: " + circle + ", which waits for the first");
    }

    // What finds no place while others wait begins after these have waited; there must be no circle either.
    void check_places() const {
        struct Launch {
            LaunchPlaces places;
            int first; // moment
            std::vector<int> waits;
        };
        std::map<std::uint64_t, std::vector<Launch>> of_devices;
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            std::map<std::int32_t, Launch> mine;
            for (std::size_t m = 0; m < ranks_[r].moments.size(); ++m) {
                const Moment& at = ranks_[r].moments[m];
                if (at.launch < 0) continue;
                const int n = number_of(static_cast<int>(r), static_cast<int>(m));
                const LaunchPlaces& places = ranks_[r].launches[at.launch];
                Launch& launch = mine.try_emplace(at.launch, Launch{places, n, {}}).first->second;
                const auto signals = signals_of_.find(n);
                const auto comes_later = [&](int signal) { return !before_(signal, launch.first); };
                if (signals == signals_of_.end() || std::ranges::none_of(signals->second, comes_later))
                    continue;
                launch.waits.push_back(n);
                if (places.resident > 0 && places.blocks > places.resident && places.ahead >= places.resident)
                    throw ScheduleError(name(n) + " is of a launch whose blocks hold " +
                                        std::to_string(std::min(places.ahead, places.resident)) + " of the " +
                                        std::to_string(places.resident) +
                                        " places of its device while they wait, and " +
                                        std::to_string(places.blocks) + " blocks need one");
            }
            for (const auto& [number, launch] : mine)
                if (launch.places.resident > 0) of_devices[launch.places.device].push_back(launch);
        }
        auto followers = followers_;
        std::string who;
        for (const auto& [device, launches] : of_devices) {
            for (const Launch& launch : launches) {
                // while this wait goes on the launch may want to begin
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
                                blocks += moment(n).waiting > 0 ? moment(n).waiting : other.places.blocks;
                        blocks = std::min({blocks, other.places.blocks, other.places.resident});
                        all += static_cast<double>(blocks) / static_cast<double>(other.places.resident);
                    }
                    return all;
                };
                for (const Launch& other : launches) {
                    for (const int wait : other.waits) {
                        if (&other == &launch || !beside(wait, other) ||
                            held(wait) <= 1 - 1 / static_cast<double>(launch.places.resident))
                            continue;
                        followers[wait].push_back(launch.first);
                        if (who.empty())
                            who = "blocks that wait may hold all places of a device (" + name(wait) + ": " +
                                  std::to_string(other.places.blocks) + " blocks, of which " +
                                  std::to_string(other.places.resident) + " find one), and then ";
                    }
                }
            }
        }
        if (!who.empty()) sorted(followers, who);
    }

    void check_order_of_signals() const {
        for (const auto& [one, next] : in_order_)
            if (!before_(one, next))
                throw ScheduleError(name(one) + " sets a word that " + name(next) +
                                    " sets to a larger value, and nothing orders them");
    }

    void compare_what_is_said() const {
        std::map<std::uint64_t, std::pair<int, std::int64_t>> said; // the first who says it, and what
        for (std::size_t r = 0; r < ranks_.size(); ++r)
            for (const Said& s : ranks_[r].said) {
                const int n = number_of(static_cast<int>(r), s.moment);
                const auto [first, fresh] = said.emplace(s.about, std::pair(n, s.value));
                if (first->second.second != s.value)
                    throw ScheduleError(
                        name(first->second.first) + " and " + name(n) +
                        " differ in what both have to know: " + std::to_string(first->second.second) +
                        " and " + std::to_string(s.value));
            }
    }

    // What is touched ends where the memory ends in which it begins.
    void check_ends_of_memory() const {
        struct Extents { // in the order of their beginnings, with the last end so far
            std::vector<std::pair<const MemoryExtent*, int>> all; // and whose
            std::vector<std::uint64_t> ends;
        };
        std::map<std::pair<std::uint64_t, bool>, Extents> by_space; // and whether they are parts
        for (const RankMoments& rank : ranks_)
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
            std::vector<char> looked_at(ranks_[r].footprints.size(), 0);
            for (std::size_t m = 0; m < ranks_[r].moments.size(); ++m) {
                const Moment& at = ranks_[r].moments[m];
                const auto look = [&](std::int32_t footprint, const char* verb) {
                    if (std::exchange(looked_at[footprint], 1)) return;
                    for (const Stretch& s : ranks_[r].footprints[footprint]) {
                        std::string beyond = "where no rank has memory, at " + std::to_string(s.begin);
                        const auto part = find(s, true, beyond), block = find(s, false, beyond);
                        if (part != Ends::beyond && block != Ends::beyond &&
                            (part == Ends::inside || block == Ends::inside))
                            continue;
                        throw ScheduleError(name(number_of(static_cast<int>(r), static_cast<int>(m))) + " " +
                                            verb + " " + std::to_string(s.end - s.begin) + " bytes " +
                                            beyond);
                    }
                };
                for (std::int32_t footprint : at.reads) look(footprint, "reads");
                for (std::int32_t footprint : at.writes) look(footprint, "writes");
                for (std::int32_t footprint : at.words) look(footprint, "looks for a word of");
            }
        }
    }

    // Stretches in the order of their beginnings, each against those that have begun and not ended.
    void check_order_of_accesses() const {
        struct Access {
            std::uint64_t begin, end;
            int moment;
            bool writes;
        };
        std::map<std::uint64_t, std::vector<Access>> by_space;
        for (std::size_t n = 0; n < places_.size(); ++n) {
            const auto add = [&](std::int32_t footprint, bool writes) {
                for (const Stretch& s : ranks_[places_[n].rank].footprints[footprint])
                    by_space[s.space].push_back({s.begin, s.end, static_cast<int>(n), writes});
            };
            for (std::int32_t footprint : moment(static_cast<int>(n)).reads) add(footprint, false);
            for (std::int32_t footprint : moment(static_cast<int>(n)).writes) add(footprint, true);
        }
        std::vector<const Access*> open;
        for (auto& [space, accesses] : by_space) {
            std::sort(accesses.begin(), accesses.end(),
                      [](const Access& a, const Access& b) { return a.begin < b.begin; });
            open.clear();
            for (const Access& a : accesses) {
                std::erase_if(open, [&](const Access* b) { return b->end <= a.begin; });
                for (const Access* b : open)
                    if ((a.writes || b->writes) && a.moment != b->moment && !before_(a.moment, b->moment) &&
                        !before_(b->moment, a.moment))
                        complain(*b, a);
                open.push_back(&a);
            }
        }
    }
    template <class Access>
    [[noreturn]] void complain(const Access& a, const Access& b) const {
        throw ScheduleError(name(a.moment) + (a.writes ? " writes" : " reads") + " what " + name(b.moment) +
                            (b.writes ? " writes" : " reads") + ", and nothing orders them (" +
                            std::to_string(std::min(a.end, b.end) - b.begin) + " bytes at " +
                            std::to_string(b.begin) + ")");
    }

    std::span<const RankMoments> ranks_;
    std::vector<Place> places_;
    std::vector<int> first_, order_;
    std::vector<std::vector<int>> followers_;
    HappensBefore before_;
    std::vector<std::pair<int, int>> in_order_;
    std::map<int, std::vector<int>> signals_of_; // of what waits
    std::map<int, Move> arrivals_;               // by the moment that receives
};

} // namespace

void prove(std::span<const RankMoments> of_ranks) {
    Prover(of_ranks).run();
}

} // namespace jali
