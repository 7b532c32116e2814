#include "device_transports/message_transport.hpp"

namespace jali {

namespace {

constexpr const MessageTransport* transports[message_transport_count] = {
    &messages_to_oneself, &messages_by_remote_write,  &messages_by_copy_engine,
    &messages_by_library, &messages_by_gpu_aware_mpi, &messages_by_staging};

} // namespace

std::span<const MessageTransport* const, message_transport_count> message_transports() {
    return transports;
}

} // namespace jali
