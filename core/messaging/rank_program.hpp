// How a rank of a C++ program ends: normally, with an error of its own, or after another rank's failure.
#pragma once

#include "messaging/communicator.hpp"

#include <functional>
#include <memory>

namespace jali {

// Runs `program` as this rank. 0: it has returned on all ranks. 1: it has thrown; the error is printed on
// stderr and reported to the other ranks, whose calls throw RankFailure; an MPI process then ends with
// MPI_Abort, since others may wait in calls that are not jali's.
int run_rank(const std::shared_ptr<Communicator>& ranks, const std::function<void()>& program);

// Runs `program` on so many virtual ranks at once, each a thread of this process. Likewise 0 or 1.
int run_virtual_ranks(int ranks,
                      const std::function<void(const std::shared_ptr<Communicator>& ranks)>& program);

} // namespace jali
