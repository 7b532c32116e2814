// The proof that the schedules of all ranks, together, do what a composition says.
//
// Schedules are reported as events (schedule/scheduled_events) and proved as whatever runs on devices is
// (schedule/prover); here stands what is a plan's: that schedules are of this composition, what their buffers
// hold before and shall hold after, and how errors name steps and elements. No data is run: one order
// suffices, because all accesses that conflict are proved to be ordered. It does not judge speed, and knows
// no kernels.
#pragma once

#include "composition/composition.hpp"
#include "composition/hierarchy.hpp"
#include "schedule/schedule.hpp"

#include <limits>
#include <span>

namespace jali {

struct CheckError : PlanError {
    CheckError(Fault kind, int rank, int step, const std::string& what)
        : PlanError(what), kind(kind), rank(rank), step(step) {}
    Fault kind;
    int rank, step; // where it shows; -1: nowhere in particular
};

struct CheckOptions {
    std::size_t scratch_limit = std::numeric_limits<std::size_t>::max(); // bytes per rank
    // Floating-point elements and user operations have to be combined in the order of ranks, exactly as
    // Composition::evaluate does it, 16-bit types in one spec (each spec rounds).
    bool reproducible = false;
    const Hierarchy* hierarchy = nullptr; // if given, marked levels are compared with it
};

// of_ranks[r] is the schedule of rank r; its buffers are those of the composition, then "scratch". Throws
// CheckError, which names rank, step, buffer and elements, and what was expected.
void check_plan(const Composition& composition, std::span<const Schedule* const> of_ranks,
                const CheckOptions& options = {});

} // namespace jali
