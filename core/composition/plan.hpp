// From a composition to one rank's schedule.
//
// Every primitive becomes a tree of hops: its piece is cut into chunks (pipeline), striped over ranks near
// the root, passed along a ring of nodes and down the levels of the hierarchy; reductions run the same trees
// backwards. All ranks enumerate hops in one global order, each only its own: hops of one pair, stage and
// chunk travel as one message, dependences follow from the regions that steps touch. Because every dependence
// points backwards in that order, no plan can deadlock, however small its scratch.
#pragma once

#include "composition/composition.hpp"
#include "composition/hierarchy.hpp"
#include "schedule/schedule.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace jali {

struct PlanParameters {
    explicit PlanParameters(Hierarchy hierarchy) : hierarchy(std::move(hierarchy)) {}

    Hierarchy hierarchy;
    std::vector<std::string> libraries; // per level of the hierarchy; empty: "" everywhere; one: for all
    int stripe = 1;                     // ranks over which a root spreads a piece
    std::vector<double> stripe_weights; // per rank: its capacity (share of a NIC); empty: all equal
    int ring = 1;                       // nodes of the ring; 1: no ring
    int depth = 1;                      // chunks of the pipeline
    bool reproducible = false; // combine in the order of ranks, at the root: the same bits for any plan
    std::size_t scratch_limit = std::numeric_limits<std::size_t>::max(); // bytes per rank
    std::size_t pack_below = 65536; // regions below this size share a message; larger ones travel alone
};

// Throws PlanError, by name of the parameters that do not fit each other or the composition.
void check_parameters(const Composition& composition, const PlanParameters& parameters);

// The schedule of one rank. Its buffers are those of the composition, then "scratch". Throws PlanError, also
// if the scratch does not suffice (the text gives the needed size).
Schedule plan_rank(const Composition& composition, const PlanParameters& parameters, int rank);

// Stages of the plan, the same on all ranks.
struct Stage {
    std::string name; // "stripe", "ring hop 2", "level 1", ...
    int step = 0;     // of the composition
};
std::vector<Stage> stages_of(const Composition& composition, const PlanParameters& parameters);

} // namespace jali
