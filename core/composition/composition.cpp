#include "composition/composition.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

namespace jali {

namespace {

using std::to_string;

void check_rank(int rank, int ranks, const char* what) {
    if (rank < 0 || rank >= ranks) {
        throw PlanError(std::string(what) + " " + to_string(rank) + " does not exist; ranks are 0 to " +
                        to_string(ranks - 1));
    }
}

std::string describe_ranks(const RankSet& set) {
    constexpr std::size_t shown = 8;
    switch (set.kind()) {
    case RankSet::Kind::all:
        return "all";
    case RankSet::Kind::others:
        return "all but " + to_string(set.which());
    case RankSet::Kind::one:
        return to_string(set.which());
    case RankSet::Kind::list:
        break;
    }
    const auto& members = *set.listed();
    std::string text;
    for (std::size_t k = 0; k < std::min(shown, members.size()); ++k) {
        text += (k ? ", " : "") + to_string(members[k]);
    }
    if (members.size() > shown) text += ", ... (" + counted(members.size(), "rank") + ")";
    return "{" + text + "}";
}

std::string describe_piece(const CompositionBuffer& buffer, std::int64_t offset, std::int64_t count) {
    return buffer.name + "[" + to_string(offset) + ":" + to_string(offset + count) + "]";
}

std::string describe_primitive(const Composition& composition, const Primitive& primitive) {
    const auto& buffers = composition.buffers();
    const std::string from =
        describe_piece(buffers[primitive.from.buffer], primitive.from.offset, primitive.count);
    const std::string to = describe_piece(buffers[primitive.to.buffer], primitive.to.offset, primitive.count);
    const std::string root = to_string(primitive.root), ranks = describe_ranks(primitive.ranks);
    if (primitive.kind == Primitive::Kind::multicast) {
        return "multicast " + from + " of " + root + " -> " + to + " of " + ranks;
    }
    const Reduction& how = composition.reductions()[primitive.reduction];
    const std::string name =
        how.operation == Operation::user ? how.user->name() : std::string(name_of(how.operation));
    return "reduce(" + name + ") " + from + " of " + ranks + " -> " + to + " of " + root;
}

} // namespace

RankSet RankSet::all(int ranks) {
    if (ranks < 1) throw PlanError("a group of " + counted(ranks, "rank") + "; it needs at least one");
    RankSet set;
    set.ranks_ = ranks;
    if (ranks == 1) {
        set.kind_ = Kind::one;
        set.which_ = 0;
    }
    return set;
}

RankSet RankSet::others(int ranks, int without) {
    RankSet set = all(ranks);
    check_rank(without, ranks, "rank");
    set.kind_ = Kind::others;
    set.which_ = without;
    return ranks == 2 ? one(2, 1 - without) : set;
}

RankSet RankSet::one(int ranks, int rank) {
    RankSet set = all(ranks);
    check_rank(rank, ranks, "rank");
    set.kind_ = Kind::one;
    set.which_ = rank;
    return set;
}

RankSet RankSet::list(int ranks, std::vector<int> members) {
    RankSet set = all(ranks);
    if (members.empty()) throw PlanError("a set of no ranks; name at least one");
    std::sort(members.begin(), members.end());
    check_rank(members.front(), ranks, "rank");
    check_rank(members.back(), ranks, "rank");
    if (const auto twice = std::adjacent_find(members.begin(), members.end()); twice != members.end()) {
        throw PlanError("rank " + to_string(*twice) + " is named twice in a set of ranks");
    }
    const int size = static_cast<int>(members.size());
    if (size == ranks) return set;
    if (size == 1) return one(ranks, members[0]);
    if (size == ranks - 1) {
        int missing = 0;
        while (missing < size && members[missing] == missing) ++missing;
        return others(ranks, missing);
    }
    set.kind_ = Kind::list;
    set.members_ = std::make_shared<const std::vector<int>>(std::move(members));
    return set;
}

int RankSet::size() const {
    switch (kind_) {
    case Kind::all:
        return ranks_;
    case Kind::others:
        return ranks_ - 1;
    case Kind::one:
        return 1;
    case Kind::list:
        break;
    }
    return static_cast<int>(members_->size());
}

bool RankSet::contains(int rank) const {
    if (rank < 0 || rank >= ranks_) return false;
    switch (kind_) {
    case Kind::all:
        return true;
    case Kind::others:
        return rank != which_;
    case Kind::one:
        return rank == which_;
    case Kind::list:
        break;
    }
    return std::binary_search(members_->begin(), members_->end(), rank);
}

std::vector<int> RankSet::members() const {
    if (kind_ == Kind::one) return {which_};
    if (kind_ == Kind::list) return *members_;
    std::vector<int> result(ranks_);
    std::iota(result.begin(), result.end(), 0);
    if (kind_ == Kind::others) result.erase(result.begin() + which_);
    return result;
}

bool RankSet::operator==(const RankSet& other) const {
    return kind_ == other.kind_ && ranks_ == other.ranks_ && which_ == other.which_ &&
           (kind_ != Kind::list || *members_ == *other.members_);
}

Composition::Composition(int ranks, DataType type) : ranks_(ranks), type_(type) {
    constexpr int most = 1 << 20; // as of machines; plans hold some numbers for each
    if (ranks < 1 || ranks > most)
        throw PlanError("a composition of " + counted(ranks, "rank") + "; it needs at least one, and " +
                        to_string(most) + " are the most");
}

int Composition::add_buffer(std::string name, std::vector<std::int64_t> counts, bool input) {
    const auto same_name = [&](const CompositionBuffer& buffer) { return buffer.name == name; };
    if (std::any_of(buffers_.begin(), buffers_.end(), same_name)) {
        throw PlanError("there is a buffer '" + name + "' already");
    }
    if (counts.size() != 1 && counts.size() != static_cast<std::size_t>(ranks_)) {
        throw PlanError("buffer '" + name + "' has " + to_string(counts.size()) +
                        " counts; give one, or one for each of " + counted(ranks_, "rank"));
    }
    const std::int64_t most =
        std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(type_));
    for (const std::int64_t count : counts) {
        if (count < 0 || count > most) {
            throw PlanError("buffer '" + name + "' of " + counted(count, "element") + "; it must be 0 to " +
                            to_string(most));
        }
    }
    buffers_.push_back({std::move(name), std::move(counts), input});
    return static_cast<int>(buffers_.size()) - 1;
}

namespace {

void check_piece(const Composition& composition, const Piece& piece, std::int64_t count, const RankSet& ranks,
                 const char* what) {
    const auto& buffers = composition.buffers();
    if (piece.buffer < 0 || piece.buffer >= static_cast<int>(buffers.size())) {
        throw PlanError(std::string(what) + ": there is no buffer " + to_string(piece.buffer) +
                        "; the composition has " + to_string(buffers.size()));
    }
    const CompositionBuffer& buffer = buffers[piece.buffer];
    const auto check_at = [&](int rank) {
        const std::int64_t there = buffer.count(rank);
        if (piece.offset < 0 || piece.offset > there || count > there - piece.offset) {
            throw PlanError(std::string(what) + ": " + describe_piece(buffer, piece.offset, count) +
                            " does not exist on rank " + to_string(rank) + ", where '" + buffer.name +
                            "' has " + counted(there, "element"));
        }
    };
    if (ranks.size() == 0) return;
    if (buffer.counts.size() == 1 || ranks.kind() == RankSet::Kind::one) {
        check_at(ranks.kind() == RankSet::Kind::list  ? ranks.listed()->front()
                 : ranks.kind() == RankSet::Kind::one ? ranks.which()
                 : ranks.contains(0)                  ? 0
                                                      : 1);
    } else {
        for (int rank = 0; rank < composition.ranks(); ++rank) {
            if (ranks.contains(rank)) check_at(rank);
        }
    }
}

bool same(const Piece& a, const Piece& b) {
    return a.buffer == b.buffer && a.offset == b.offset;
}

// Checks for both kinds of primitives.
void check_primitive(const Composition& composition, const Primitive& primitive) {
    const bool multicast = primitive.kind == Primitive::Kind::multicast;
    const char* what = multicast ? "multicast" : "reduce";
    const int ranks = composition.ranks();
    check_rank(primitive.root, ranks, "root");
    if (primitive.ranks.ranks() != ranks) {
        throw PlanError(std::string(what) + " names ranks of a group of " +
                        to_string(primitive.ranks.ranks()) + "; the composition has " + to_string(ranks));
    }
    if (primitive.count < 0) {
        throw PlanError(std::string(what) + " of " + counted(primitive.count, "element"));
    }
    const RankSet root = RankSet::one(ranks, primitive.root);
    check_piece(composition, primitive.from, primitive.count, multicast ? root : primitive.ranks, what);
    check_piece(composition, primitive.to, primitive.count, multicast ? primitive.ranks : root, what);
    const Piece &from = primitive.from, &to = primitive.to;
    const bool touch = from.buffer == to.buffer && from.offset < to.offset + primitive.count &&
                       to.offset < from.offset + primitive.count;
    if (touch && !same(from, to) && primitive.ranks.contains(primitive.root)) {
        const CompositionBuffer& buffer = composition.buffers()[from.buffer];
        throw PlanError(std::string(what) + ": at its root, rank " + to_string(primitive.root) + ", " +
                        describe_piece(buffer, from.offset, primitive.count) + " and " +
                        describe_piece(buffer, to.offset, primitive.count) +
                        " overlap; they must be the same or apart");
    }
}

} // namespace

void Composition::multicast(Piece from, Piece to, std::int64_t count, int root, RankSet leaves) {
    add({Primitive::Kind::multicast, root, std::move(leaves), from, to, count, -1});
}

void Composition::reduce(Piece from, Piece to, std::int64_t count, RankSet sources, int root,
                         Operation operation, std::shared_ptr<const UserOperation> user) {
    if (sources.size() == 0) throw PlanError("reduce without sources; name at least one rank");
    Reduction how{type_, operation, 1, operation == Operation::user ? std::move(user) : nullptr};
    try {
        check_reduction(how);
    } catch (const std::invalid_argument& error) {
        throw PlanError(error.what());
    }
    if (operation == Operation::avg) how.divide_by = sources.size();
    const auto equal = [&](const Reduction& other) {
        return other.operation == how.operation && other.divide_by == how.divide_by && other.user == how.user;
    };
    auto known = std::find_if(reductions_.begin(), reductions_.end(), equal);
    if (known == reductions_.end()) known = reductions_.insert(known, std::move(how));
    const int index = static_cast<int>(known - reductions_.begin());
    add({Primitive::Kind::reduction, root, std::move(sources), from, to, count, index});
}

void Composition::add(Primitive primitive) {
    check_primitive(*this, primitive);
    if (primitive.count == 0 || primitive.ranks.size() == 0) return;
    const bool stays = primitive.kind == Primitive::Kind::multicast && same(primitive.from, primitive.to) &&
                       primitive.ranks == RankSet::one(ranks_, primitive.root);
    if (stays) return;
    if (fenced_) steps_.emplace_back();
    fenced_ = false;
    steps_.back().push_back(std::move(primitive));
}

void Composition::fence() {
    fenced_ = true;
}

void Composition::evaluate(std::span<const std::vector<std::byte*>> memory) const {
    if (memory.size() != static_cast<std::size_t>(ranks_)) {
        throw PlanError("memory of " + counted(memory.size(), "rank") + " for a composition of " +
                        to_string(ranks_));
    }
    for (const auto& of_rank : memory) {
        if (of_rank.size() != buffers_.size()) {
            throw PlanError("memory of " + counted(of_rank.size(), "buffer") + " for a composition of " +
                            to_string(buffers_.size()));
        }
    }
    const std::size_t element = size_of(type_);
    const auto at = [&](int rank, const Piece& piece) {
        return memory[rank][piece.buffer] + static_cast<std::size_t>(piece.offset) * element;
    };
    std::vector<const void*> sources;
    for (const auto& step : steps_) {
        for (const Primitive& primitive : step) {
            const auto count = static_cast<std::size_t>(primitive.count);
            if (primitive.kind == Primitive::Kind::multicast) {
                const std::byte* from = at(primitive.root, primitive.from);
                for (const int rank : primitive.ranks.members()) {
                    std::byte* to = at(rank, primitive.to);
                    if (to != from) std::memcpy(to, from, count * element);
                }
            } else {
                sources.clear();
                for (const int rank : primitive.ranks.members()) sources.push_back(at(rank, primitive.from));
                jali::reduce(reductions_[primitive.reduction], at(primitive.root, primitive.to), sources,
                             count);
            }
        }
    }
}

std::string Composition::describe() const {
    constexpr std::size_t shown = 16;
    std::string text =
        "composition of " + counted(ranks_, "rank") + ", " + std::string(name_of(type_)) + "\n";
    for (const auto& buffer : buffers_) {
        const auto [least, most] = std::minmax_element(buffer.counts.begin(), buffer.counts.end());
        text += "  buffer " + buffer.name + ": " + to_string(*least) +
                (*least == *most ? "" : " to " + to_string(*most)) + " elements" +
                (buffer.input ? "" : ", undefined at the start") + "\n";
    }
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        text += "  step " + to_string(s) + "\n";
        for (std::size_t k = 0; k < std::min(shown, steps_[s].size()); ++k) {
            text += "    " + describe_primitive(*this, steps_[s][k]) + "\n";
        }
        if (steps_[s].size() > shown) {
            text += "    ... and " + to_string(steps_[s].size() - shown) + " more\n";
        }
    }
    return text;
}

// The check goes rank by rank. The accesses of primitives are sorted once per step, by buffer and place; a
// rank selects its own, in order, and one sweep finds overlaps. So p ranks and n primitives cost O(n log n +
// p s + m) time, where s primitives name many ranks and m name single ones.
namespace {

struct Access {
    int buffer = 0;
    std::int64_t begin = 0, end = 0;
    bool reads = false, writes = false;
    const Primitive* by = nullptr;
};

bool before(const Access& a, const Access& b) {
    return std::tie(a.buffer, a.begin) < std::tie(b.buffer, b.begin);
}

struct Interval {
    std::int64_t begin, end;
};

// The accesses of one step's primitives: at single ranks, and at many, the same for all ranks of a primitive.
struct StepAccess {
    std::vector<std::pair<int, Access>> single; // by rank
    std::vector<std::size_t> first;             // in `single`, of each rank; one more at the end
    std::vector<Access> many;                   // at the ranks of Access::by
};

// Whether the root has a separate access instead of the one for all ranks.
bool root_apart(const Primitive& primitive) {
    return same(primitive.from, primitive.to) && primitive.ranks.contains(primitive.root);
}

StepAccess access_of(const std::vector<Primitive>& step, int ranks) {
    StepAccess access;
    for (const Primitive& primitive : step) {
        const bool multicast = primitive.kind == Primitive::Kind::multicast;
        const Access from{primitive.from.buffer,
                          primitive.from.offset,
                          primitive.from.offset + primitive.count,
                          true,
                          false,
                          &primitive};
        const Access to{
            primitive.to.buffer, primitive.to.offset, primitive.to.offset + primitive.count, false, true,
            &primitive};
        const Access &at_root = multicast ? from : to, &at_ranks = multicast ? to : from;
        access.single.push_back({primitive.root, at_root});
        if (root_apart(primitive)) {
            // In place: a multicast only reads there, a reduction reads and writes.
            access.single.back().second.reads = true;
            if (primitive.ranks.kind() == RankSet::Kind::one) continue;
        }
        if (primitive.ranks.kind() == RankSet::Kind::one)
            access.single.push_back({primitive.ranks.which(), at_ranks});
        else
            access.many.push_back(at_ranks);
    }
    std::sort(access.many.begin(), access.many.end(), before);
    std::sort(access.single.begin(), access.single.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : before(a.second, b.second);
    });
    access.first.assign(ranks + 1, 0);
    for (const auto& entry : access.single) ++access.first[entry.first + 1];
    std::partial_sum(access.first.begin(), access.first.end(), access.first.begin());
    return access;
}

// The accesses of one rank, by buffer and place.
void pick(const StepAccess& step, int rank, std::vector<Access>& mine) {
    mine.clear();
    std::size_t next = step.first[rank];
    const std::size_t end = step.first[rank + 1];
    for (const Access& access : step.many) {
        const Primitive& primitive = *access.by;
        if (!primitive.ranks.contains(rank) || (rank == primitive.root && root_apart(primitive))) continue;
        while (next < end && before(step.single[next].second, access))
            mine.push_back(step.single[next++].second);
        mine.push_back(access);
    }
    while (next < end) mine.push_back(step.single[next++].second);
}

[[noreturn]] void refuse_race(const Composition& composition, std::size_t step, int rank, const Access& a,
                              const Access& b) {
    const auto does = [&](const Access& access) {
        return "'" + describe_primitive(composition, *access.by) + "'" +
               (access.writes ? " writes" : " reads");
    };
    const std::int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
    throw PlanError("step " + to_string(step) + " races on rank " + to_string(rank) + ": " + does(a) +
                    " and " + does(b) + " " +
                    describe_piece(composition.buffers()[a.buffer], begin, end - begin) +
                    "; put a fence between them or use another place");
}

// `mine` is sorted: an access overlaps an earlier one if it begins before the furthest end so far.
void check_races(const Composition& composition, std::size_t step, int rank,
                 const std::vector<Access>& mine) {
    const Access *furthest = nullptr, *furthest_write = nullptr;
    for (const Access& access : mine) {
        if (furthest && furthest->buffer != access.buffer) furthest = furthest_write = nullptr;
        const Access* against = access.writes ? furthest : furthest_write;
        if (against && against->end > access.begin) refuse_race(composition, step, rank, *against, access);
        if (!furthest || access.end > furthest->end) furthest = &access;
        if (access.writes && (!furthest_write || access.end > furthest_write->end)) furthest_write = &access;
    }
}

void check_defined(const Composition& composition, std::size_t step, int rank, const Access& access,
                   const std::vector<Interval>& defined) {
    // Intervals of `defined` are disjoint: a defined access lies in one of them.
    auto after =
        std::upper_bound(defined.begin(), defined.end(), access.begin,
                         [](std::int64_t begin, const Interval& interval) { return begin < interval.begin; });
    const std::int64_t until =
        after == defined.begin() ? access.begin : std::max(std::prev(after)->end, access.begin);
    if (until >= access.end) return;
    const CompositionBuffer& buffer = composition.buffers()[access.buffer];
    const std::int64_t end = after == defined.end() ? access.end : std::min(after->begin, access.end);
    throw PlanError("step " + to_string(step) + ": '" + describe_primitive(composition, *access.by) +
                    "' reads " + describe_piece(buffer, until, end - until) + " on rank " + to_string(rank) +
                    ", which is no input and was not written in an earlier step");
}

// Adds sorted intervals to sorted, disjoint ones; joins adjacent ones.
void unite(std::vector<Interval>& defined, const std::vector<Interval>& more, std::vector<Interval>& spare) {
    if (more.empty()) return;
    spare.clear();
    std::merge(defined.begin(), defined.end(), more.begin(), more.end(), std::back_inserter(spare),
               [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    defined.clear();
    for (const Interval& interval : spare) {
        if (!defined.empty() && interval.begin <= defined.back().end) {
            defined.back().end = std::max(defined.back().end, interval.end);
        } else {
            defined.push_back(interval);
        }
    }
}

} // namespace

void Composition::check() const {
    std::vector<StepAccess> steps;
    for (const auto& step : steps_) steps.push_back(access_of(step, ranks_));

    std::vector<std::vector<Interval>> defined(buffers_.size()), written(buffers_.size());
    std::vector<Interval> spare;
    std::vector<Access> mine;
    for (int rank = 0; rank < ranks_; ++rank) {
        for (auto& intervals : defined) intervals.clear();
        for (std::size_t step = 0; step < steps.size(); ++step) {
            pick(steps[step], rank, mine);
            check_races(*this, step, rank, mine);
            for (auto& intervals : written) intervals.clear();
            for (const Access& access : mine) {
                if (buffers_[access.buffer].input) continue;
                if (access.reads) check_defined(*this, step, rank, access, defined[access.buffer]);
                if (access.writes) written[access.buffer].push_back({access.begin, access.end});
            }
            for (std::size_t b = 0; b < buffers_.size(); ++b) unite(defined[b], written[b], spare);
        }
    }
}

} // namespace jali
