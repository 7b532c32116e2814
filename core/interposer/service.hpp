// Calls that jali's own plans do instead of the MPI library: which these are is decided alike on all ranks.
//
// What ranks know of each other's arguments is what MPI asks to be equal: the collective, how much travels,
// root and operation. Rules (planning/rules.hpp) choose by that. Where memory lies and how types are laid
// out is each rank's own affair: it stages and packs what it has. Only a plan on devices needs all ranks to
// have their arguments there; they ask each other, where calls are long enough for that to pay.
#pragma once

#include "composition/standard.hpp"
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

// After MPI has started, by all ranks of COMM_WORLD: whether anybody but MPI may have calls to do.
void start_service();
void end_service() noexcept; // before MPI ends
bool serving() noexcept;

// Does the call, if a plan is what it goes by, and says by which; none: MPI is to do it. `sent` and
// `received` are empty where this rank has no such argument; `devices`: some of it may be on one. Collective.
// Throws what went wrong.
std::optional<std::string> serve(H comm, const CollectiveCallWithHandles& call, const void* send,
                                 const void* receive, const std::vector<Elements>& sent,
                                 const std::vector<Elements>& received, bool devices);

// The program gives the communicator up: so do all ranks of it now.
void forget(H comm);

} // namespace jali::interposer
