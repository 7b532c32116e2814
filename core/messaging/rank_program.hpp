// How a rank of a C++ program ends: in order, with an error of its own, or since another rank had one.
#pragma once

#include "messaging/communicator.hpp"

#include <functional>
#include <memory>

namespace jali {

// Runs `program` as this rank. 0: it has returned, and so have those of all other ranks. 1: it has thrown,
// which stderr says and the other ranks have been told, whose calls throw RankFailure; a process of MPI then
// ends with MPI_Abort, since others may wait in calls that are not jali's.
int run_rank(const std::shared_ptr<Communicator>& ranks, const std::function<void()>& program);

// Runs `program` on so many virtual ranks at once, each a thread of this process. Likewise 0 or 1.
int run_virtual_ranks(int ranks,
                      const std::function<void(const std::shared_ptr<Communicator>& ranks)>& program);

} // namespace jali
