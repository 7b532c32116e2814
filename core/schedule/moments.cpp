#include "schedule/moments.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <type_traits>

namespace jali {

namespace {

// ---- to bytes and back ---------------------------------------------------------------------------------

template <class Archive>
void members(Archive& archive, Moment& m) {
    archive(m.name, m.after, m.reads, m.writes, m.waits, m.signals, m.expects, m.holds, m.moves);
}
template <class Archive>
void members(Archive& archive, RankMoments& r) {
    archive(r.rank, r.moments, r.footprints, r.sites, r.words, r.passages);
}

template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;
template <>
constexpr bool is_list<std::string> = true;

// One class for both ways, so that they cannot part.
class Archive {
  public:
    Archive() = default; // to bytes
    explicit Archive(std::span<const std::byte> from) : from_(from), reads_(true) {}

    template <class... T>
    void operator()(T&... values) {
        (one(values), ...);
    }
    std::vector<std::byte> out;

  private:
    void raw(void* data, std::size_t bytes) {
        if (bytes == 0) return;
        if (!reads_) {
            const auto* begin = static_cast<const std::byte*>(data);
            out.insert(out.end(), begin, begin + bytes);
            return;
        }
        if (bytes > from_.size()) throw ScheduleError("the moments of a rank came incomplete");
        std::memcpy(data, from_.data(), bytes);
        from_ = from_.subspan(bytes);
    }
    template <class T>
    void one(T& value) {
        if constexpr (is_list<T>) {
            std::uint64_t count = value.size();
            raw(&count, sizeof count);
            if (reads_ && count > from_.size()) throw ScheduleError("the moments of a rank came incomplete");
            value.resize(count);
            if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
                raw(value.data(), count * sizeof(typename T::value_type));
            } else {
                for (auto& element : value) one(element);
            }
        } else if constexpr (std::is_trivially_copyable_v<T>) {
            raw(&value, sizeof value);
        } else {
            members(*this, value);
        }
    }
    std::span<const std::byte> from_;
    bool reads_ = false;
};

// ---- the proof -----------------------------------------------------------------------------------------

using Bits = std::vector<std::uint64_t>;

// What a stretch of memory holds, from its first byte on.
struct Held {
    std::uint64_t end = 0;
    const RankMoments* of = nullptr;
    std::uint64_t label = 0;
    std::int32_t list = 0;
    std::int64_t site_bytes = 1, offset = 0; // bytes from the beginning of the list
    int since = -1;                          // the moment
};
using Contents = std::map<std::uint64_t, Held>; // of a space, by where they begin

class Prover {
  public:
    explicit Prover(std::span<const RankMoments> ranks) : ranks_(ranks) {}

    void run() {
        number();
        match_passages();
        match_words();
        sort();
        find_reach();
        check_order_of_accesses();
        check_contents();
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
                arrivals_.emplace(to, std::pair(receive->where, send->where));
            }
        }
    }

    void match_words() {
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<std::int64_t, int>>
            set; // word: value, moment
        std::map<std::pair<std::uint64_t, std::uint64_t>, std::int64_t> first;
        for (const RankMoments& rank : ranks_)
            for (const SignalWord& w : rank.words) first[{w.space, w.address}] = w.value;
        for (std::size_t n = 0; n < places_.size(); ++n) {
            for (const SignalWord& w : moment(static_cast<int>(n)).signals) {
                const auto [found, fresh] = set[{w.space, w.address}].emplace(w.value, static_cast<int>(n));
                if (!fresh)
                    throw ScheduleError(name(static_cast<int>(n)) + " and " + name(found->second) +
                                        " both set a word to " + std::to_string(w.value));
            }
        }
        for (std::size_t n = 0; n < places_.size(); ++n) {
            for (const SignalWord& w : moment(static_cast<int>(n)).waits) {
                const auto key = std::pair(w.space, w.address);
                if (const auto known = first.find(key); known != first.end() && known->second >= w.value)
                    continue;
                // any of the later values would do; the first one is what it can rely on
                const auto& values = set[key];
                const auto found = values.lower_bound(w.value);
                if (found == values.end())
                    throw ScheduleError(name(static_cast<int>(n)) + " waits for a word to become " +
                                        std::to_string(w.value) + ", which nobody sets");
                edge(found->second, static_cast<int>(n));
            }
        }
        // The values of a word must come in their order, else a wait for a smaller one may see the larger.
        for (const auto& [word, values] : set)
            for (auto at = values.begin(); at != values.end() && std::next(at) != values.end(); ++at)
                in_order_.push_back({at->second, std::next(at)->second});
    }

    void sort() {
        const auto n = static_cast<int>(places_.size());
        std::vector<int> missing(n, 0);
        for (const auto& all : followers_)
            for (int f : all) ++missing[f];
        for (int k = 0; k < n; ++k)
            if (missing[k] == 0) order_.push_back(k);
        for (std::size_t at = 0; at < order_.size(); ++at)
            for (int f : followers_[order_[at]])
                if (--missing[f] == 0) order_.push_back(f);
        if (static_cast<int>(order_.size()) == n) return;
        // backwards along what is missing until a moment comes again
        std::vector<std::vector<int>> before(n);
        for (int k = 0; k < n; ++k)
            for (int f : followers_[k])
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
        throw ScheduleError("nothing can go on: " + circle + ", which waits for the first");
    }

    void find_reach() {
        const std::size_t words = (places_.size() + 63) / 64;
        reach_.assign(places_.size(), Bits(words, 0));
        for (auto at = order_.rbegin(); at != order_.rend(); ++at) {
            Bits& mine = reach_[*at];
            for (int f : followers_[*at]) {
                mine[f >> 6] |= std::uint64_t{1} << (f & 63);
                for (std::size_t w = 0; w < words; ++w) mine[w] |= reach_[f][w];
            }
        }
        for (const auto& [one, next] : in_order_)
            if (!before(one, next))
                throw ScheduleError(name(one) + " sets a word that " + name(next) +
                                    " sets to a larger value, and nothing orders them");
    }
    bool before(int a, int b) const { return reach_[a][b >> 6] >> (b & 63) & 1; }

    struct Access {
        int moment;
        bool writes;
        std::span<const Stretch> at; // of one space
    };

    static bool meet(std::span<const Stretch> a, std::span<const Stretch> b, Stretch& where) {
        if (a.back().end <= b.front().begin || b.back().end <= a.front().begin) return false;
        auto i = std::lower_bound(a.begin(), a.end(), b.front().begin,
                                  [](const Stretch& s, std::uint64_t begin) { return s.end <= begin; });
        auto j = std::lower_bound(b.begin(), b.end(), a.front().begin,
                                  [](const Stretch& s, std::uint64_t begin) { return s.end <= begin; });
        while (i != a.end() && j != b.end()) {
            if (i->begin < j->end && j->begin < i->end) {
                where = {i->space, std::max(i->begin, j->begin), std::min(i->end, j->end)};
                return true;
            }
            if (i->end <= j->end) {
                ++i;
            } else {
                ++j;
            }
        }
        return false;
    }

    void check_order_of_accesses() {
        std::map<std::uint64_t, std::vector<Access>> by_space;
        for (std::size_t n = 0; n < places_.size(); ++n) {
            const RankMoments& rank = ranks_[places_[n].rank];
            const auto add = [&](std::int32_t footprint, bool writes) {
                const auto& all = rank.footprints[footprint];
                for (std::size_t from = 0; from < all.size();) {
                    std::size_t to = from;
                    while (to < all.size() && all[to].space == all[from].space) ++to;
                    by_space[all[from].space].push_back(
                        {static_cast<int>(n), writes, std::span(all).subspan(from, to - from)});
                    from = to;
                }
            };
            for (std::int32_t footprint : moment(static_cast<int>(n)).reads) add(footprint, false);
            for (std::int32_t footprint : moment(static_cast<int>(n)).writes) add(footprint, true);
        }
        Stretch where;
        for (auto& [space, accesses] : by_space) {
            for (std::size_t i = 0; i < accesses.size(); ++i) {
                const Access& a = accesses[i];
                for (std::size_t j = 0; j < i; ++j) {
                    const Access& b = accesses[j];
                    if ((!a.writes && !b.writes) || a.moment == b.moment || before(a.moment, b.moment) ||
                        before(b.moment, a.moment) || !meet(a.at, b.at, where))
                        continue;
                    throw ScheduleError(name(b.moment) + (b.writes ? " writes" : " reads") + " what " +
                                        name(a.moment) + (a.writes ? " writes" : " reads") +
                                        ", and nothing orders them (" +
                                        std::to_string(where.end - where.begin) + " bytes at " +
                                        std::to_string(where.begin) + ")");
                }
            }
        }
    }

    // ---- contents, in any order that is possible, since all that conflicts is ordered -------------------

    // Makes an entry begin at `at`, if one spans it.
    static void cut(Contents& contents, std::uint64_t at) {
        auto after = contents.upper_bound(at);
        if (after == contents.begin()) return;
        auto entry = std::prev(after);
        if (entry->first == at || entry->second.end <= at) return;
        Held rest = entry->second;
        rest.offset += static_cast<std::int64_t>(at - entry->first);
        entry->second.end = at;
        contents.emplace_hint(after, at, rest);
    }
    static void clear(Contents& contents, const Stretch& where) {
        cut(contents, where.begin);
        cut(contents, where.end);
        contents.erase(contents.lower_bound(where.begin), contents.lower_bound(where.end));
    }
    void clear(const RankMoments& rank, std::int32_t footprint) {
        for (const Stretch& s : rank.footprints[footprint])
            if (const auto found = contents_.find(s.space);
                found != contents_.end() && !found->second.empty())
                clear(found->second, s);
    }
    void move(const Stretch& to, const Stretch& from) {
        std::vector<std::pair<std::uint64_t, Held>> moved;
        Contents& there = contents_[from.space];
        cut(there, from.begin);
        cut(there, from.end);
        for (auto at = there.lower_bound(from.begin); at != there.end() && at->first < from.end; ++at) {
            Held held = at->second;
            const std::uint64_t begin = at->first - from.begin + to.begin;
            held.end = held.end - from.begin + to.begin;
            moved.push_back({begin, held});
        }
        Contents& here = contents_[to.space];
        clear(here, to);
        for (const auto& [begin, held] : moved) here[begin] = held;
    }

    void expect(int n, const RankMoments& rank, const Holding& e) {
        const auto fail = [&](const std::string& what) {
            throw ScheduleError(name(n) + " reads " + what + " where it expects others (" +
                                std::to_string(e.where.end - e.where.begin) + " bytes at " +
                                std::to_string(e.where.begin) + ")");
        };
        const Contents& contents = contents_[e.where.space];
        std::uint64_t at = e.where.begin;
        while (at < e.where.end) {
            auto entry = contents.upper_bound(at);
            if (entry == contents.begin() || (--entry)->second.end <= at)
                fail("memory that no exchange filled");
            const Held& held = entry->second;
            if (held.label != e.label) fail("another field, or older values, from " + name(held.since));
            const std::int64_t in_list = held.offset + static_cast<std::int64_t>(at - entry->first);
            if (held.site_bytes != e.site_bytes || in_list % e.site_bytes != 0)
                fail("parts of sites, from " + name(held.since));
            const auto& has = held.of->sites[held.list];
            const auto& wants = rank.sites[e.list];
            const std::uint64_t end = std::min(held.end, e.where.end);
            auto k = static_cast<std::size_t>(in_list / e.site_bytes);
            auto w = static_cast<std::size_t>(e.first +
                                              static_cast<std::int64_t>(at - e.where.begin) / e.site_bytes);
            for (std::uint64_t byte = at; byte < end;
                 byte += static_cast<std::uint64_t>(e.site_bytes), ++k, ++w)
                if (k >= has.size() || w >= wants.size() || has[k] != wants[w])
                    fail("other sites, from " + name(held.since));
            at = end;
        }
    }

    void check_contents() {
        for (int n : order_) {
            const RankMoments& rank = ranks_[places_[n].rank];
            const Moment& m = moment(n);
            for (const Holding& e : m.expects) expect(n, rank, e);
            for (std::int32_t footprint : m.writes) clear(rank, footprint);
            for (const auto& [to, from] : m.moves) move(to, from);
            if (const auto found = arrivals_.find(n); found != arrivals_.end())
                move(found->second.first, found->second.second);
            for (const Holding& h : m.holds) {
                Contents& contents = contents_[h.where.space];
                clear(contents, h.where);
                contents[h.where.begin] = {
                    h.where.end, &rank, h.label, h.list, h.site_bytes, h.first * h.site_bytes, n};
            }
        }
    }

    std::span<const RankMoments> ranks_;
    std::vector<Place> places_;
    std::vector<int> first_, order_;
    std::vector<std::vector<int>> followers_;
    std::vector<Bits> reach_;
    std::vector<std::pair<int, int>> in_order_;
    std::map<int, std::pair<Stretch, Stretch>> arrivals_; // receiving moment: to, from
    std::map<std::uint64_t, Contents> contents_;
};

} // namespace

std::vector<std::byte> RankMoments::to_bytes() const {
    Archive archive;
    archive(const_cast<RankMoments&>(*this)); // only read
    return std::move(archive.out);
}

RankMoments RankMoments::from_bytes(std::span<const std::byte> bytes) {
    RankMoments moments;
    Archive archive(bytes);
    archive(moments);
    return moments;
}

void prove(std::span<const RankMoments> of_ranks) {
    Prover(of_ranks).run();
}

} // namespace jali
