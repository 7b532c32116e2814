// One rank's part of a plan before it becomes a schedule: its hops, copies and reductions, stage by stage,
// the same in every chunk. Private to the planner (plan.cpp) and its simulation (plan_graph.cpp).
#pragma once

#include "composition/routes.hpp"

#include <vector>

namespace jali {

// The location of a piece on this rank: in a buffer of the composition, or in a temporary one, which gets a
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

// The hops, copies and reductions of this rank in one stage, the same in every chunk.
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

// This rank's part of one step of the composition: its roles on the routes of all primitives.
StepOfRank step_of_rank(const Composition& composition, const PlanParameters& parameters,
                        const Routes& routes, const std::vector<Primitive>& step, int rank);

} // namespace jali
