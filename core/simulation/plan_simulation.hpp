// Plans on described machines: the graph of all ranks, or of representatives, and its simulation.
#pragma once

#include "composition/plan.hpp"
#include "simulation/simulator.hpp"

namespace jali {

struct PlanSimulation {
    SimulationResult result;
    int planned = 0; // ranks whose part was made
    // Whether ranks treated as equivalent are so. If not, they send the same messages except for `uneven`, a
    // share of their sizes, and may copy a little more or less in between: the result is an estimate. It is
    // also one if they form a ring, whose links may have other, equally fair shares.
    bool exact = true;
    double uneven = 0;
};

enum class Symmetric : std::uint8_t {
    never,   // every rank is planned and simulated
    exactly, // one rank for all that do the same; of many ranks also where only their messages are the same
    everywhere, // the same for few ranks, and with fewer of them compared: for searches
};

// Throws PlanError if plan and machine do not fit, ScheduleError if the plan cannot finish.
PlanSimulation simulate_plan(const Composition& composition, const PlanParameters& parameters,
                             const Machine& machine, Symmetric symmetric = Symmetric::exactly,
                             bool summary = false);

} // namespace jali
