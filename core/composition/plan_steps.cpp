// Roles on routes become hops, copies and reductions; partial results that are equal are shared.
#include "composition/plan_steps.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace jali {

namespace {

bool same_data(const Primitive& a, const Primitive& b) {
    return a.kind == b.kind && a.from.buffer == b.from.buffer && a.from.offset == b.from.offset &&
           a.count == b.count && a.reduction == b.reduction;
}

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
            // that waits for it (for scratch to be reused) cannot form a cycle.
            const auto key_of = [this](const HopOfRank& hop) {
                return std::tuple(hop.sending ? rank_ : hop.peer, hop.sending ? hop.peer : rank_, hop.piece);
            };
            std::stable_sort(stage.hops.begin(), stage.hops.end(),
                             [&](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
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

    // Sends the root's `from` to every member of `targets` but the root, into `to` (nowhere: this rank only
    // forwards the piece).
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
            // Children are ordered by stage, the earliest first; backwards the last ones arrive first.
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
    // this rank's value. Returns the result's slot: `destination` if given.
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
            // A partial result that is not shared has no other use: the next one may replace it.
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

} // namespace

StepOfRank step_of_rank(const Composition& composition, const PlanParameters& parameters,
                        const Routes& routes, const std::vector<Primitive>& step, int rank) {
    return StepBuilder(composition, parameters, routes, step, rank).build();
}

} // namespace jali
