// Remote write: a kernel stores into the receiver's array. Begins sooner than a copy engine, which is faster
// for long messages.
#include "device_transports/device_transports.hpp"
#include "device_transports/mapped_messages.hpp"

namespace jali {

const MessageTransport messages_by_remote_write{
    {remote_write}, make_mapped_messages, {.most_bytes = std::size_t{4} << 20}};

} // namespace jali
