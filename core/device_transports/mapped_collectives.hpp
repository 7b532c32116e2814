// Messages of plans that are put into the memory of a peer, and said to be there, in the order of the stream.
//
// They are messages between devices (mapped_messages.hpp) that a plan makes when it is made, and starts again
// and again. What arrives in buffers of the plan's own, or in arrays that stay where they are, is written
// there; arrays of the user that are others at each run get it from a landing of the plan's.
#pragma once

#include "device_transports/message_transport.hpp"
#include "running/collective_transport.hpp"

#include <memory>

namespace jali {

// Of an entry whose messages go like these. Collective. Throws GpuError, on all ranks.
std::shared_ptr<CollectiveConnection> make_mapped_collectives(const CollectiveRanks& ranks,
                                                              const CollectiveTransport& transport,
                                                              const MessageTransport& by);

} // namespace jali
