// Which plan for a described machine: a search by model, with reasons.
//
// Each structure (structures.hpp) is simulated twice without a pipeline, once with the data and once with
// next to none. That yields a cheap estimate for every depth: what the busiest link needs, the rest shrinking
// with the depth, what each message costs beyond its bytes growing with it. The best estimates are then
// simulated as they are, the depth is adjusted by doubling and halving, and libraries and stripe weights are
// varied on the best.
//
// A search may take ranks for alike whose pieces are nearly equal; the best few it finds are simulated once
// more, exactly. Many nodes are searched on few first: of structures that differ inside a node only, those
// that do best on a sample go on. Nothing depends on measured times, so that all ranks make the same choice.
#pragma once

#include "planning/form_parameters.hpp"
#include "simulation/plan_simulation.hpp"

#include <functional>
#include <string>
#include <vector>

namespace jali {

struct Candidate { // parameters that were simulated
    FormParameters parameters;
    double time = 0; // seconds
};

struct Choice {
    FormParameters parameters;         // of the best plan found
    PlanSimulation simulation;         // on the machine, of all its ranks
    std::vector<Candidate> runners_up; // the best of other structures
    int estimated = 0;                 // structures that were estimated
    int simulated = 0;                 // plans that were simulated in full
    std::string why;                   // what was compared, and what determines the time
};

// Called with the current candidates of a search. Its exceptions end the search.
using SearchProgress = std::function<void(const std::string&)>;

constexpr int searched_estimates = 6; // so many of the best estimates are simulated

// The best plan found for a standard collective with a payload p * d of `size` bytes, among the first `ranks`
// of the machine (finished). Throws CollectiveError for a size or ranks that cannot be, or where nothing
// fits, PlanError for a root that does not exist.
Choice choose(const Machine& machine, Collective collective, double size, int ranks, int root = 0,
              int shortlist = searched_estimates, const SearchProgress& progress = {});

// The same for any composition. Throws CollectiveError.
Choice choose_for(const Machine& machine, const Composition& composition, int shortlist = searched_estimates,
                  const SearchProgress& progress = {});

// For each level of a hierarchy a library of the machine that carries messages across all of it: between
// nodes the first, inside them the last. Throws PlanError where there is none.
std::vector<std::string> default_libraries(const Machine& machine, const Hierarchy& hierarchy);

} // namespace jali
