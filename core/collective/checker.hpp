// A symbolic proof that the schedules of all ranks, together, do what a composition says.
//
// The checker runs no data. It pairs messages, orders all steps as a rendezvous transport would (a cycle is a
// deadlock), and carries through this order what every byte *is*: undefined, a piece of some rank's buffer,
// or a combination of such pieces. At the end every element is compared with a symbolic evaluation of the
// composition. One order suffices because all accesses that conflict are proved to be ordered by what steps
// need; so every execution moves the same data. It does not judge speed, and knows no kernels: a schedule
// that computes other things is checked by Schedule::check.
#pragma once

#include "collective/composition.hpp"
#include "collective/hierarchy.hpp"
#include "schedule/schedule.hpp"

#include <limits>
#include <span>
#include <string_view>

namespace jali {

enum class Fault : std::uint8_t {
    structure,    // not a plan of this composition: ranks, buffers, kinds of steps, needs that do not exist
    bounds,       // a region outside its buffer, an element cut in two
    message,      // sends and receives that do not match, or may overtake each other
    deadlock,     // steps that wait for each other
    race,         // accesses that conflict and may come in either order
    unwritten,    // reads what nothing before has written
    overwritten,  // writes what the composition does not write
    contribution, // the right place, the wrong contents
    scratch,      // more scratch than allowed
    hierarchy,    // a message that does not cross the level it is marked with
};
constexpr int faults = 10;
std::string_view name_of(Fault fault);

struct CheckError : PlanError {
    CheckError(Fault kind, int rank, int step, const std::string& what)
        : PlanError(what), kind(kind), rank(rank), step(step) {}
    Fault kind;
    int rank, step; // where it shows; -1: nowhere in particular
};

struct CheckOptions {
    std::size_t scratch_limit = std::numeric_limits<std::size_t>::max(); // bytes per rank
    // Floating-point elements and user operations have to be combined in the order of ranks, exactly as
    // Composition::evaluate does it, 16-bit types in one row (each row rounds).
    bool reproducible = false;
    const Hierarchy* hierarchy = nullptr; // if given, marked levels are compared with it
};

// of_ranks[r] is the schedule of rank r; its buffers are those of the composition, then "scratch". Throws
// CheckError, which names rank, step, buffer and elements, and what was expected.
void check_plan(const Composition& composition, std::span<const Schedule* const> of_ranks,
                const CheckOptions& options = {});

} // namespace jali
