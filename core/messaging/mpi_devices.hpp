// Whether an MPI library takes addresses of device memory, as far as it can be asked.
#pragma once

#include "messaging/mpi_abi.hpp"

#include <string>

namespace jali {

// Empty if it does, for devices of this vendor ("cuda"); else what was asked and what would change it.
// Of this process alone: ranks have to agree. Throws std::invalid_argument for a JALI_GPU_AWARE_MPI that is
// neither 0 nor 1.
std::string why_mpi_takes_no_devices(const MpiAbi& mpi, MpiHandle communicator, const std::string& kind);

} // namespace jali
