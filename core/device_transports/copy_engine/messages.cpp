// Copy engine: between two small launches on the same stream, the first waits for the receiver's array, the
// second signals that it has been written.
#include "device_transports/device_transports.hpp"
#include "device_transports/mapped_messages.hpp"

namespace jali {

const MessageTransport messages_by_copy_engine{{copy_engine}, make_mapped_messages};

} // namespace jali
