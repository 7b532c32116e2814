// How fast a transport is between two ranks.
#pragma once

#include "messaging/communicator.hpp"

namespace jali {

// Seconds that a message of `bytes` bytes takes one way: the mean over `rounds` there and back between this
// rank and `peer`, which makes the same call; the lower rank begins. Throws TransportError if wrong data
// arrive.
double ping_pong(Communicator& communicator, int peer, std::size_t bytes, int rounds);

} // namespace jali
