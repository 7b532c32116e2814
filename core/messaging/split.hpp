// Splitting ranks into groups: all ranks exchange color and key, and each computes the same result.
#pragma once

#include "messaging/communicator.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace jali {

struct Parts {
    std::vector<int> members;       // ranks that gave this rank's color, ordered by key, then rank
    int rank = -1;                  // of this rank among them; -1 and no members for a negative color
    std::vector<std::int64_t> kept; // the numbers that some rank gave as `kept`, in order, once each
    std::int64_t largest = 0;       // of the numbers given as `number`
};

// Collective. `kept` and `number` are values of the transport, combined over all ranks on the way.
Parts agree_on_parts(Communicator& communicator, int color, int key, std::span<const std::int64_t> kept,
                     std::int64_t number = 0);

} // namespace jali
