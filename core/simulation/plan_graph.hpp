// One rank's part of a plan as nodes of a transfer graph, without a schedule in between.
//
// Chunks of a pipeline are equivalent: those whose pieces have the same sizes differ only in their number, as
// long as no two primitives use the same elements in pieces cut differently. So a chunk of each kind is
// written once, with all needs, and repeated. Where chunks are not disjoint, complete schedules are made and
// added. Either way the graph is that of the schedules: the same nodes, in the same order, with the same
// needs.
#pragma once

#include "composition/plan_steps.hpp"
#include "simulation/transfer_graph.hpp"

#include <vector>

namespace jali {

class PlanGraph {
  public:
    // Both must outlive it. Throws PlanError, as check_parameters does.
    PlanGraph(const Composition& composition, const PlanParameters& parameters);

    // Whether chunks touch no elements of each other, and memory for temporaries is not bounded.
    bool chunks_apart() const { return apart_; }

    // Adds the part of `rank`; the graph coalesces.
    void add(TransferGraph& graph, int rank) const;

    // Adds one chunk of each kind only, to compare ranks. Needs chunks_apart().
    void add_kinds(TransferGraph& graph, int rank) const;

  private:
    void find_kinds();

    const Composition& composition_;
    const PlanParameters& parameters_;
    Routes routes_;
    bool apart_ = false;
    std::vector<int> kind_of_; // per chunk
    std::vector<int> chunks_;  // per kind: the first chunk of that kind
    std::vector<std::string> libraries_;
};

} // namespace jali
