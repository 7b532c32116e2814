// MPI's own collective operations, begun like a message: one makes progress whenever a rank tests it, and a
// wait reports failures and times out, as with messages. It is therefore begun by MPI's nonblocking
// functions, whose last arguments are the communicator and the request.
#pragma once

#include "messaging/communicator.hpp"
#include "messaging/mpi_abi.hpp"

#include <functional>
#include <memory>

namespace jali {

// Whether the messages of this communicator are MPI's, so that its ranks are those of one of MPI's.
bool is_of_mpi(const Communicator& communicator);

using BeginsInMpi = std::function<int(const MpiAbi& mpi, MpiHandle communicator, MpiHandle* request)>;

// A request of the communicator, for test() and wait(). All its ranks begin the same in the same order.
// `function` names the call in errors; `keep` is held until the operation completes. Throws RankFailure,
// TransportError; std::logic_error for a communicator that is not MPI's.
std::unique_ptr<Request> begin_in_mpi(Communicator& communicator, const char* function,
                                      const BeginsInMpi& begin, std::shared_ptr<const void> keep);

} // namespace jali
