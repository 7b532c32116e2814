// Calls that jali's own plans execute instead of the MPI library, with the same decision on all ranks.
//
// Ranks know only the arguments that MPI requires to be equal: the collective, the amount of data, root and
// operation. Rules (planning/rules.hpp) choose by these. The place of memory and the layout of types are
// local to each rank, which stages and packs its arguments. Only a plan on devices needs all ranks to have
// their arguments there; they exchange this, if calls are long enough to make it worthwhile.
#pragma once

#include "composition/standard_collectives.hpp"
#include "interposer/mpi_functions.hpp"
#include "interposer/staging.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace jali::interposer {

struct CollectiveCallWithHandles {
    Collective collective;
    // Of elements (reductions) or bytes: of the whole vector, of each rank's chunk (one entry: all alike), as
    // in CollectiveCall.
    std::vector<std::int64_t> counts;
    H type = 0, op = 0; // of reductions
    int root = 0;
    bool in_place = false;      // on all ranks
    bool root_in_place = false; // on this one, which is the root

    bool operator==(const CollectiveCallWithHandles&) const = default;
};

// After MPI has started, by all ranks of COMM_WORLD: decides whether jali may execute calls.
void start_service();
void end_service() noexcept; // before MPI ends
bool serving() noexcept;

// Executes the call, if by a plan, and returns the plan's name; none: left to MPI. `sent` and `received` are
// empty where this rank has no such argument; `devices`: some of it may be on one. Collective. Throws errors
// of the plan.
std::optional<std::string> serve(H comm, const CollectiveCallWithHandles& call, const void* send,
                                 const void* receive, const std::vector<Elements>& sent,
                                 const std::vector<Elements>& received, bool devices);

// The program frees the communicator: all its ranks release jali's objects for it.
void forget(H comm);

} // namespace jali::interposer
