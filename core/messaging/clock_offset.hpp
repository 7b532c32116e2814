// Offsets between the steady clocks of ranks, so that times recorded on different ranks can be compared.
#pragma once

#include "messaging/communicator.hpp"

#include <cstdint>
#include <vector>

namespace jali {

struct ClockOffset {
    std::int64_t nanoseconds = 0; // that the rank's clock is ahead of rank 0's
    std::int64_t uncertainty = 0; // largest error of the offset: half of the fastest round trip
};

// One offset for every rank, the same on all ranks. Collective. A rank whose clock cannot be told apart from
// rank 0's (the processes of a host share a clock) has offset 0.
std::vector<ClockOffset> clock_offsets(Communicator& communicator);

} // namespace jali
