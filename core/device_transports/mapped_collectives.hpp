// Messages of plans that are written to the memory of a peer, and signalled, in the order of the stream.
//
// They are messages between devices (mapped_messages.hpp) that a plan makes at its creation, and starts
// repeatedly. Buffers of the plan's own, and arrays with fixed addresses, are written directly; arrays of the
// user that change at each run are copied from a landing buffer of the plan.
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
