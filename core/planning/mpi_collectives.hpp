// The algorithm "mpi" of collectives in the host's memory: the MPI library's own.
//
// In programs that call MPI, with jali in between (core/interposer), the call itself is passed on. In jali's
// own programs it is one step of a schedule (LibraryCollective), begun by the nonblocking function of MPI,
// which a rank tests like messages: a blocking call would observe neither failures nor the watchdog. It needs
// MPI ranks, and a call that MPI has predefined types and operations for. The library defines the results for
// NaNs in minima and maxima, and the order of combining.
#pragma once

#include "composition/standard_collectives.hpp"
#include "schedule/schedule.hpp"

#include <string>
#include <string_view>

namespace jali {

inline constexpr std::string_view by_mpi = "mpi"; // also the name of its messages' carrier

// Why MPI has no such collective between so many ranks, whatever its library; empty if it has. The same on
// all ranks.
std::string why_mpi_has_not(const CollectiveCall& call, int ranks);

// The part of rank `rank`: on the call's buffers and "scratch", by the library `by_mpi`. Throws
// CollectiveError where MPI lacks the call, PlanError where the call does not fit the number of ranks.
Schedule schedule_by_mpi(const CollectiveCall& call, int ranks, int rank);

} // namespace jali
