#include "collective/plan.hpp"

#include "collective/routes.hpp"
#include "schedule/builder.hpp"
#include "transport/communicator.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace jali {

namespace {

// Where a piece lies on this rank: in a buffer of the composition, or in a temporary one that is given a
// place in the scratch later. Offsets are in elements and count from the start of the primitive's piece.
struct Slot {
    int buffer = -1;
    std::int64_t offset = 0;
    int temporary = -1;
    bool nowhere() const { return buffer < 0 && temporary < 0; }
    bool operator==(const Slot&) const = default;
};

// Which elements: a stripe (-1: all) of a primitive, on the route from position `origin`.
struct PieceId {
    int primitive = 0; // within its step
    int origin = 0, stripe = 0;
    auto operator<=>(const PieceId&) const = default;
};

// What this rank does in one stage, in every channel alike.
struct HopOfRank {
    int peer = 0; // rank
    bool sending = false;
    PieceId piece;
    Slot slot;
    int level = 0;
};

struct CopyOfRank {
    PieceId piece;
    Slot from, to;
};

struct ReduceOfRank {
    PieceId piece;
    std::vector<Slot> from;
    Slot to;
    bool last = false; // the average is taken here
};

struct StageOfRank {
    std::vector<HopOfRank> hops; // by sender, receiver, piece
    std::vector<CopyOfRank> copies;
    std::vector<ReduceOfRank> reduces;
};

struct StepOfRank {
    std::vector<StageOfRank> stages;
    std::vector<PieceId> temporaries; // the piece that each temporary slot holds
};

bool same_data(const Primitive& a, const Primitive& b) {
    return a.kind == b.kind && a.from.buffer == b.from.buffer && a.from.offset == b.from.offset &&
           a.count == b.count && a.reduction == b.reduction;
}

// This rank's part of one step of the composition: its roles on the routes of all primitives.
class StepBuilder {
  public:
    StepBuilder(const Composition& composition, const PlanParameters& parameters, const Routes& routes,
                const std::vector<Primitive>& step, int rank)
        : composition_(composition), parameters_(parameters), routes_(routes), step_(step), rank_(rank),
          here_(parameters.hierarchy.position_of(rank)) {
        result_.stages.resize(routes.stages());
        if (parameters.ring > 1 || parameters.stripe > 1 || parameters.reproducible) return;
        for (std::size_t k = 1; k < step.size() && !share_; ++k)
            share_ = step[k].kind == Primitive::Kind::reduction && same_data(step[k - 1], step[k]);
    }

    StepOfRank build() {
        for (std::size_t k = 0; k < step_.size(); ++k) {
            const Primitive& primitive = step_[k];
            if (primitive.count == 0) continue;
            const int root = parameters_.hierarchy.position_of(primitive.root);
            if (primitive.kind == Primitive::Kind::multicast)
                multicast(static_cast<int>(k), primitive, root);
            else if (parameters_.reproducible)
                reduce_at_root(static_cast<int>(k), primitive, root);
            else
                reduce(static_cast<int>(k), primitive, root);
        }
        for (StageOfRank& stage : result_.stages) {
            // By sender, then receiver: both sides of a message have it at the same place of the order, so
            // that what waits for it (scratch that is used again) cannot wait in a circle.
            const auto place = [this](const HopOfRank& hop) {
                return std::tuple(hop.sending ? rank_ : hop.peer, hop.sending ? hop.peer : rank_, hop.piece);
            };
            std::stable_sort(stage.hops.begin(), stage.hops.end(),
                             [&](const auto& a, const auto& b) { return place(a) < place(b); });
        }
        return std::move(result_);
    }

  private:
    Slot temporary(PieceId piece) {
        result_.temporaries.push_back(piece);
        return {-1, 0, static_cast<int>(result_.temporaries.size()) - 1};
    }

    static Slot user(const Piece& piece) { return {piece.buffer, piece.offset, -1}; }

    void add_hop(const Hop& hop, int stage, bool sending, PieceId piece, const Slot& slot) {
        const int peer = parameters_.hierarchy.rank_at(hop.peer);
        result_.stages[stage].hops.push_back({peer, sending, piece, slot, hop.level});
    }

    void multicast(int number, const Primitive& primitive, int root) {
        const Slot from = user(primitive.from), to = user(primitive.to);
        if (here_ == root && !(from == to) && primitive.ranks.contains(primitive.root))
            result_.stages[0].copies.push_back({{number, root, -1}, from, to});
        deliver(number, root, primitive.ranks, from, primitive.ranks.contains(rank_) ? to : Slot{});
    }

    // Sends what the root has (`from`) to every member of `targets` but the root; there it arrives in `to`
    // (nowhere: this rank only passes the piece on).
    void deliver(int number, int root, const RankSet& targets, const Slot& from, const Slot& to) {
        for (int stripe = 0; stripe < routes_.stripes(); ++stripe) {
            routes_.find(root, stripe, targets, here_, role_);
            if (!role_.takes_part) continue;
            const PieceId piece{number, root, stripe};
            Slot held = from;
            if (role_.parent.peer >= 0) {
                held = to.nowhere() ? temporary(piece) : to;
                add_hop(role_.parent, role_.parent.stage, false, piece, held);
            }
            for (const Hop& child : role_.children) add_hop(child, child.stage, true, piece, held);
        }
    }

    // The routes of a multicast, backwards: partial results move towards the root.
    void reduce(int number, const Primitive& primitive, int root) {
        const bool source = primitive.ranks.contains(rank_), at_root = here_ == root;
        const bool averages = composition_.reductions()[primitive.reduction].divide_by > 1;
        const Slot destination = user(primitive.to);
        for (int stripe = 0; stripe < routes_.stripes(); ++stripe) {
            routes_.find(root, stripe, primitive.ranks, here_, role_);
            if (!role_.takes_part && !at_root) continue;
            const PieceId piece{number, root, stripe};
            Slot value = source ? user(primitive.from) : Slot{};
            // Children stand by stage, the earliest first; backwards the last ones arrive first.
            for (std::size_t end = role_.children.size(); end > 0;) {
                std::size_t begin = end - 1;
                while (begin > 0 && role_.children[begin - 1].stage == role_.children[end - 1].stage) --begin;
                const bool last = at_root && begin == 0;
                value = absorb(begin, end, piece, primitive, value, last ? &destination : nullptr, averages);
                end = begin;
            }
            if (at_root && role_.children.empty() && (averages || !(value == destination)))
                result_.stages[0].reduces.push_back({piece, {value}, destination, true});
            if (role_.parent.peer >= 0) send_up(primitive, piece, value);
        }
    }

    // Receives the partial results of children begin..end, which arrive in one stage, and combines them with
    // what this rank has. Returns where the result is: in `destination` if that is given.
    Slot absorb(std::size_t begin, std::size_t end, PieceId piece, const Primitive& primitive,
                const Slot& value, const Slot* destination, bool averages) {
        const int stage = backwards(role_.children[begin].stage);
        Shared* known = share_ ? &shared(stage, primitive) : nullptr;
        if (known != nullptr && destination == nullptr) {
            for (const Absorbed& other : known->absorbed)
                if (other.value == value && *other.ranks == primitive.ranks) return other.result;
        }
        const bool alone = value.nowhere() && end - begin == 1 && !(destination != nullptr && averages);
        std::vector<Slot> sources;
        if (!value.nowhere()) sources.push_back(value);
        for (std::size_t k = begin; k < end; ++k) {
            const Hop& child = role_.children[k];
            Slot landing;
            if (known != nullptr) {
                for (const Travelled& other : known->landed)
                    if (other.peer == child.peer && *other.ranks == primitive.ranks) landing = other.slot;
            }
            if (landing.nowhere()) {
                landing = alone && destination != nullptr ? *destination : temporary(piece);
                add_hop(child, stage, false, piece, landing);
                if (known != nullptr) known->landed.push_back({child.peer, &primitive.ranks, landing});
            }
            sources.push_back(landing);
        }
        Slot result = sources[0];
        if (!alone || (destination != nullptr && !(result == *destination))) {
            // Nobody else needs a partial result that is not shared: the next one may take its place.
            const bool replace = !share_ && value.temporary >= 0;
            result = destination != nullptr ? *destination : replace ? value : temporary(piece);
            result_.stages[stage].reduces.push_back(
                {piece, std::move(sources), result, destination != nullptr});
        }
        if (known != nullptr && destination == nullptr)
            known->absorbed.push_back({value, &primitive.ranks, result});
        return result;
    }

    void send_up(const Primitive& primitive, PieceId piece, const Slot& value) {
        const int stage = backwards(role_.parent.stage);
        if (share_) {
            Shared& known = shared(stage, primitive);
            for (const Travelled& other : known.sent)
                if (other.peer == role_.parent.peer && *other.ranks == primitive.ranks) return;
            known.sent.push_back({role_.parent.peer, &primitive.ranks, value});
        }
        add_hop(role_.parent, stage, true, piece, value);
    }

    // Every contribution travels to the root as it is and is combined there in the order of ranks.
    void reduce_at_root(int number, const Primitive& primitive, int root) {
        if (!(members_set_ && *members_set_ == primitive.ranks)) {
            members_set_ = primitive.ranks;
            members_ = primitive.ranks.members();
        }
        const RankSet target = RankSet::one(primitive.ranks.ranks(), primitive.root);
        const Slot from = user(primitive.from), to = user(primitive.to);
        std::vector<Slot> arrivals;
        for (int source : members_) {
            const int origin = parameters_.hierarchy.position_of(source);
            Slot landing;
            if (here_ == root)
                arrivals.push_back(landing = origin == root ? from : temporary({number, origin, -1}));
            if (origin != root) deliver(number, origin, target, from, landing);
        }
        if (here_ != root) return;
        const bool averages = composition_.reductions()[primitive.reduction].divide_by > 1;
        if (arrivals.size() > 1 || averages || !(arrivals[0] == to))
            result_.stages.back().reduces.push_back({{number, root, -1}, std::move(arrivals), to, true});
    }

    int backwards(int stage) const { return routes_.stages() - 1 - stage; }

    // Several reductions of the same data with different roots share their partial results: this is how an
    // all-reduce in one step becomes recursive doubling.
    struct Absorbed {
        Slot value;
        const RankSet* ranks;
        Slot result;
    };
    struct Travelled {
        int peer; // position
        const RankSet* ranks;
        Slot slot;
    };
    struct Shared {
        std::vector<Absorbed> absorbed;
        std::vector<Travelled> landed, sent;
    };

    Shared& shared(int stage, const Primitive& primitive) {
        return shared_[{stage, primitive.from.buffer, primitive.from.offset, primitive.count,
                        primitive.reduction}];
    }

    const Composition& composition_;
    const PlanParameters& parameters_;
    const Routes& routes_;
    const std::vector<Primitive>& step_;
    int rank_, here_;
    bool share_ = false;
    Role role_;
    StepOfRank result_;
    std::map<std::tuple<int, int, std::int64_t, std::int64_t, int>, Shared> shared_; // by stage and data
    std::optional<RankSet> members_set_;
    std::vector<int> members_;
};

// Turns stages into steps of a schedule, channel by channel, in the global order: step of the composition,
// stage plus channel, stage.
class PlanBuilder {
  public:
    PlanBuilder(const Composition& composition, const PlanParameters& parameters, int rank)
        : composition_(composition), parameters_(parameters), routes_(parameters), rank_(rank),
          size_(static_cast<std::int64_t>(size_of(composition.type()))) {}

    Schedule build() {
        for (const auto& buffer : composition_.buffers())
            builder_.add_buffer(buffer.name, buffer.count(rank_) * size_, buffer.input);
        const int stages = routes_.stages(), depth = parameters_.depth;
        int first_stage = 0;
        for (const auto& step : composition_.steps()) {
            step_ = &step;
            part_ = StepBuilder(composition_, parameters_, routes_, step, rank_).build();
            places_.assign(depth, std::vector<Place>(part_.temporaries.size()));
            for (int column = 0; column < stages + depth - 1; ++column) {
                const int last = std::min(column, stages - 1);
                for (int stage = std::max(0, column - depth + 1); stage <= last; ++stage) {
                    mark_ = {first_stage + stage, column - stage, -1};
                    add(part_.stages[stage], column - stage);
                }
            }
            first_stage += stages;
        }
        try {
            Schedule schedule = builder_.finish(parameters_.scratch_limit);
            schedule.set_libraries(parameters_.libraries.empty() ? std::vector<std::string>{""}
                                                                 : parameters_.libraries);
            return schedule;
        } catch (const ScratchError& error) {
            throw PlanError("rank " + std::to_string(rank_) + ": " + error.what() +
                            "; allow more, or take a deeper pipeline than " + std::to_string(depth) +
                            (depth == 1 ? " channel" : " channels"));
        }
    }

  private:
    // Where a temporary slot lies in one channel, and the message that brought it (a step).
    struct Place {
        Region region{};
        int arrival = -1;
        bool known = false;
    };

    std::pair<std::int64_t, std::int64_t> elements(PieceId piece, int channel) const {
        return routes_.piece((*step_)[piece.primitive].count, channel, piece.origin, piece.stripe);
    }

    std::size_t bytes_of(PieceId piece, int channel) const {
        const auto [begin, end] = elements(piece, channel);
        return static_cast<std::size_t>((end - begin) * size_);
    }

    Region region(const Slot& slot, PieceId piece, int channel) {
        const auto [begin, end] = elements(piece, channel);
        const auto bytes = static_cast<std::size_t>((end - begin) * size_);
        if (slot.temporary < 0)
            return {slot.buffer, static_cast<std::size_t>((slot.offset + begin) * size_), bytes};
        const PieceId& held = part_.temporaries[slot.temporary];
        Place& place = places_[channel][slot.temporary];
        if (!place.known) {
            const std::size_t held_bytes = bytes_of(held, channel);
            place = {{builder_.add_temporary(held_bytes), 0, held_bytes}, -1, true};
        }
        const auto inside = static_cast<std::size_t>((begin - elements(held, channel).first) * size_);
        return {place.region.buffer, place.region.offset + inside, bytes};
    }

    void add(const StageOfRank& stage, int channel) {
        Copy own;
        for (const CopyOfRank& copy : stage.copies) {
            const Region from = region(copy.from, copy.piece, channel);
            const Region to = region(copy.to, copy.piece, channel);
            if (from.bytes > 0) own.rows.push_back({from, to, from.bytes, nullptr, 0});
        }
        if (!own.rows.empty()) builder_.add(name("copy"), std::move(own), mark_);
        for (std::size_t begin = 0, end; begin < stage.hops.size(); begin = end) {
            end = begin + 1;
            while (end < stage.hops.size() && stage.hops[end].peer == stage.hops[begin].peer &&
                   stage.hops[end].sending == stage.hops[begin].sending)
                ++end;
            add_messages(std::span(stage.hops).subspan(begin, end - begin), channel);
        }
        add_reduces(stage.reduces, channel);
    }

    // Small pieces for one rank travel together, in the order that both sides know; large ones alone.
    void add_messages(std::span<const HopOfRank> hops, int channel) {
        std::vector<const HopOfRank*> together;
        for (const HopOfRank& hop : hops) {
            const std::size_t bytes = bytes_of(hop.piece, channel);
            if (bytes == 0) continue;
            if (bytes < parameters_.pack_below) {
                together.push_back(&hop);
            } else {
                const HopOfRank* alone = &hop;
                add_message({&alone, 1}, channel);
            }
        }
        if (!together.empty()) add_message(together, channel);
    }

    void add_message(std::span<const HopOfRank* const> hops, int channel) {
        const HopOfRank& first = *hops[0];
        Mark mark = mark_;
        mark.level = first.level;
        std::vector<Region> rows;
        std::size_t bytes = 0;
        bool joined = true; // one after the other in memory
        for (const HopOfRank* hop : hops) {
            const bool lands = hops.size() > 1 && lands_in_message(*hop, channel);
            const Region row =
                lands ? Region{0, 0, bytes_of(hop->piece, channel)} : region(hop->slot, hop->piece, channel);
            joined = joined && !lands &&
                     (rows.empty() || (rows.back().buffer == row.buffer &&
                                       rows.back().offset + rows.back().bytes == row.offset));
            rows.push_back(row);
            bytes += row.bytes;
        }
        const Region whole = joined ? Region{rows[0].buffer, rows[0].offset, bytes}
                                    : Region{builder_.add_temporary(bytes), 0, bytes};
        Lane& lane = lanes_[{first.peer, first.sending}];
        const int tag = lane.next(), library = parameters_.libraries.size() > 1 ? first.level : 0;
        Copy moves; // into or out of the message
        std::size_t offset = 0;
        for (std::size_t k = 0; k < hops.size() && !joined; ++k) {
            const Region inside{whole.buffer, offset, rows[k].bytes};
            if (first.sending)
                moves.rows.push_back({rows[k], inside, inside.bytes, nullptr, 0});
            else if (lands_in_message(*hops[k], channel))
                places_[channel][hops[k]->slot.temporary] = {inside, -1, true};
            else
                moves.rows.push_back({inside, rows[k], inside.bytes, nullptr, 0});
            offset += rows[k].bytes;
        }
        int step;
        if (first.sending) {
            if (!moves.rows.empty()) builder_.add(name("pack for", first.peer), std::move(moves), mark_);
            step = builder_.add(name("to", first.peer), Send{whole, first.peer, tag, library}, mark);
        } else {
            step = builder_.add(name("from", first.peer), Receive{whole, first.peer, tag, library}, mark);
            if (!moves.rows.empty()) builder_.add(name("unpack from", first.peer), std::move(moves), mark_);
            for (const HopOfRank* hop : hops)
                if (hop->slot.temporary >= 0) places_[channel][hop->slot.temporary].arrival = step;
        }
        // Two messages with one tag must not overtake each other.
        if (const int before = lane.steps[tag]; before >= 0) builder_.add_need(step, before);
        lane.steps[tag] = step;
    }

    // Whether a piece stays in the message that brings it instead of being moved to a place of its own.
    bool lands_in_message(const HopOfRank& hop, int channel) const {
        return !hop.sending && hop.slot.temporary >= 0 && !places_[channel][hop.slot.temporary].known &&
               part_.temporaries[hop.slot.temporary] == hop.piece;
    }

    // Rows whose inputs came with the same messages make one step.
    void add_reduces(const std::vector<ReduceOfRank>& reduces, int channel) {
        Reduce step;
        std::vector<int> arrivals, before;
        int reduction = -1;
        bool divides = false;
        const auto flush = [&] {
            if (!step.rows.empty()) builder_.add(name("reduce"), std::move(step), mark_);
            step = {};
        };
        for (const ReduceOfRank& reduce : reduces) {
            ReduceRow row;
            arrivals.clear();
            for (const Slot& slot : reduce.from) {
                row.from.push_back(region(slot, reduce.piece, channel));
                if (slot.temporary >= 0) arrivals.push_back(places_[channel][slot.temporary].arrival);
            }
            row.into = region(reduce.to, reduce.piece, channel);
            if (row.into.bytes == 0) continue;
            const Reduction& how = composition_.reductions()[(*step_)[reduce.piece.primitive].reduction];
            const int which = (*step_)[reduce.piece.primitive].reduction;
            if (which != reduction || reduce.last != divides || arrivals != before) {
                flush();
                step.how = how;
                if (!reduce.last) step.how.divide_by = 1;
                reduction = which;
                divides = reduce.last;
                before = arrivals;
            }
            if (!step.rows.empty() && extends(step.rows.back(), row)) {
                ReduceRow& last = step.rows.back();
                last.into.bytes += row.into.bytes;
                for (Region& from : last.from) from.bytes += row.into.bytes;
            } else {
                step.rows.push_back(std::move(row));
            }
        }
        flush();
    }

    static bool extends(const ReduceRow& a, const ReduceRow& b) {
        const auto follows = [](const Region& x, const Region& y) {
            return x.buffer == y.buffer && x.offset + x.bytes == y.offset;
        };
        if (a.from.size() != b.from.size() || !follows(a.into, b.into)) return false;
        for (std::size_t k = 0; k < a.from.size(); ++k)
            if (!follows(a.from[k], b.from[k])) return false;
        return true;
    }

    std::string name(const char* doing, int peer = -1) const {
        std::string text = "stage " + std::to_string(mark_.stage) + " channel " +
                           std::to_string(mark_.channel) + ": " + doing;
        return peer < 0 ? text : text + " rank " + std::to_string(peer);
    }

    // Tags of the messages from or to one rank: each its own, as far as they go.
    struct Lane {
        int count = 0;
        std::vector<int> steps; // last with each tag, or -1
        int next() {
            const int tag = count++ % (max_tag + 1);
            if (tag == static_cast<int>(steps.size())) steps.push_back(-1);
            return tag;
        }
    };

    const Composition& composition_;
    const PlanParameters& parameters_;
    Routes routes_;
    int rank_;
    std::int64_t size_; // of an element
    ScheduleBuilder builder_;
    const std::vector<Primitive>* step_ = nullptr;
    StepOfRank part_;
    std::vector<std::vector<Place>> places_; // by channel and temporary slot
    std::map<std::pair<int, bool>, Lane> lanes_;
    Mark mark_;
};

} // namespace

void check_parameters(const Composition& composition, const PlanParameters& parameters) {
    const int ranks = composition.ranks();
    const auto number = [](auto value) { return std::to_string(value); };
    if (parameters.hierarchy.ranks() != ranks)
        throw PlanError("the hierarchy " + parameters.hierarchy.describe() + " is for " +
                        number(parameters.hierarchy.ranks()) + " ranks, the composition for " +
                        number(ranks));
    const int levels = parameters.hierarchy.levels();
    const auto libraries = static_cast<int>(parameters.libraries.size());
    if (libraries > 1 && libraries != levels)
        throw PlanError(number(libraries) + " libraries for a hierarchy of " + number(levels) + " levels (" +
                        parameters.hierarchy.describe() + "); name one for each level, or one for all");
    if (parameters.stripe < 1 || parameters.stripe > ranks)
        throw PlanError("stripe " + number(parameters.stripe) + ": a piece is spread over 1 to " +
                        number(ranks) + " ranks");
    if (parameters.ring < 1 || parameters.ring > ranks)
        throw PlanError("ring " + number(parameters.ring) + ": a ring has 1 (no ring) to " + number(ranks) +
                        " nodes");
    if (parameters.ring > 1) static_cast<void>(parameters.hierarchy.below_ring(parameters.ring));
    if (parameters.depth < 1)
        throw PlanError("depth " + number(parameters.depth) + ": a pipeline has 1 channel or more");
    const auto& weights = parameters.stripe_weights;
    if (!weights.empty()) {
        if (static_cast<int>(weights.size()) != ranks)
            throw PlanError(number(weights.size()) + " stripe weights for " + number(ranks) + " ranks");
        for (int rank = 0; rank < ranks; ++rank)
            if (!(weights[rank] > 0) || weights[rank] > 1e300)
                throw PlanError("the stripe weight of rank " + number(rank) + " is " + number(weights[rank]) +
                                "; it must be positive and finite");
    }
}

Schedule plan_rank(const Composition& composition, const PlanParameters& parameters, int rank) {
    if (rank < 0 || rank >= composition.ranks())
        throw PlanError("rank " + std::to_string(rank) + " does not exist among " +
                        std::to_string(composition.ranks()));
    check_parameters(composition, parameters);
    return PlanBuilder(composition, parameters, rank).build();
}

std::vector<Stage> stages_of(const Composition& composition, const PlanParameters& parameters) {
    check_parameters(composition, parameters);
    const Routes routes(parameters);
    std::vector<Stage> result;
    for (std::size_t step = 0; step < composition.steps().size(); ++step) {
        // A step of reductions alone walks its routes backwards.
        bool backwards = !parameters.reproducible;
        for (const Primitive& primitive : composition.steps()[step])
            backwards = backwards && primitive.kind == Primitive::Kind::reduction;
        for (int stage = 0; stage < routes.stages(); ++stage) {
            const int shown = backwards ? routes.stages() - 1 - stage : stage;
            result.push_back({routes.stage_name(shown), static_cast<int>(step)});
        }
    }
    return result;
}

} // namespace jali
