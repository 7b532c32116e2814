// The proof that the schedules of all ranks, together, implement a composition.
//
// Schedules are reported as events (schedule/scheduled_events) and proved like work on devices
// (schedule/prover); this file adds the properties of plans: schedules belong to this composition, their
// buffers have given initial and required final contents, and errors name steps and elements. No data is
// used: one order suffices, because all conflicting accesses are proved to be ordered. It does not judge
// speed, and supports no kernels.
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
// CheckError, which names rank, step, buffer and elements, and the expected contents.
void check_plan(const Composition& composition, std::span<const Schedule* const> of_ranks,
                const CheckOptions& options = {});

} // namespace jali
