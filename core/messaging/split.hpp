// Who goes where when ranks split into groups: told by every rank to every other, decided by each alike.
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

// Collective. `kept` and `number` are agreed on along the way: what the transport must know of all ranks.
Parts agree_on_parts(Communicator& communicator, int color, int key, std::span<const std::int64_t> kept,
                     std::int64_t number = 0);

} // namespace jali
