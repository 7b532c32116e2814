// How far the steady clocks of ranks are apart, so that what they noted can be laid side by side.
#pragma once

#include "messaging/communicator.hpp"

#include <cstdint>
#include <vector>

namespace jali {

struct ClockOffset {
    std::int64_t nanoseconds = 0; // that the rank's clock is ahead of rank 0's
    std::int64_t uncertainty = 0; // by which that may be wrong: half of the quickest answer's time
};

// Of every rank, the same on all of them. Collective. A rank that rank 0 cannot tell apart from itself (the
// processes of a host share a clock) has offset 0.
std::vector<ClockOffset> clock_offsets(Communicator& communicator);

} // namespace jali
