// Parameters of the kernel that passes messages between devices; the same structures as in
// prelude/messages.hpp.
#pragma once

#include "device/gpu.hpp"

#include <cstdint>

namespace jali {

constexpr int most_messages_of_launch = 16;
enum PassStep : std::int64_t { step_grant_credit = 1, step_take = 2 };
enum PassRole : std::int64_t { role_await = 1, role_put = 2, role_announce = 4 };
struct IncomingMessage {
    GpuAddress ready, arrived, count;
};
struct OutgoingMessage {
    GpuAddress from, to;
    std::int64_t bytes;
    GpuAddress ready, arrived, count, done;
    std::int64_t roles, unit, first_block, blocks;
};
struct PassArguments {
    std::int64_t incoming, outgoing, steps;
    GpuAddress watch;
    IncomingMessage in[most_messages_of_launch];
    OutgoingMessage out[most_messages_of_launch];
};

} // namespace jali
