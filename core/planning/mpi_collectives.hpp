// The algorithm "mpi" of collectives in the host's memory: the MPI library's own.
//
// In programs that call MPI, with jali in between (core/interposer), the call itself is handed on. In jali's
// own it is one step of a schedule (LibraryCollective), begun by the nonblocking function of MPI, which a
// rank looks at as it does at messages: a blocked one would hear neither of failures nor of the watchdog. It
// needs ranks that are MPI's, and a call that MPI has predefined types and operations for. What it does with
// NaNs in minima and maxima, and in which order it combines, is the library's affair.
#pragma once

#include "composition/standard.hpp"
#include "schedule/schedule.hpp"

#include <string>
#include <string_view>

namespace jali {

inline constexpr std::string_view by_mpi = "mpi"; // also the name of who carries its messages

// Why MPI has no such collective between so many ranks, whatever its library; empty if it has. The same on
// all ranks.
std::string why_mpi_has_not(const CollectiveCall& call, int ranks);

// What rank `rank` does of it: on the call's buffers and "scratch", by the library `by_mpi`. Throws
// CollectiveError where MPI has it not, PlanError where the call does not fit the number of ranks.
Schedule schedule_by_mpi(const CollectiveCall& call, int ranks, int rank);

} // namespace jali
