// Whether an MPI library takes addresses of device memory, as far as it offers a query.
#pragma once

#include "messaging/mpi_abi.hpp"

#include <string>

namespace jali {

// Empty if it does, for devices of this vendor ("cuda"); else the result of the query and what would change
// it. For this process only: ranks have to agree. Throws std::invalid_argument for a JALI_GPU_AWARE_MPI that
// is neither 0 nor 1.
std::string why_mpi_takes_no_devices(const MpiAbi& mpi, MpiHandle communicator, const std::string& kind);

} // namespace jali
