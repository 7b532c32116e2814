#include "transport/message_transport.hpp"

namespace jali {

namespace {

constexpr const MessageTransport* rows[message_rows] = {&messages_to_oneself,       &messages_by_remote_write,
                                                        &messages_by_copy_engine,   &messages_by_library,
                                                        &messages_by_gpu_aware_mpi, &messages_by_staging};

} // namespace

std::span<const MessageTransport* const, message_rows> message_transports() {
    return rows;
}

} // namespace jali
