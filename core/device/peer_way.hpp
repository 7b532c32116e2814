// The ways in which a process maps memory of another process's device: rows of a table.
//
// "ipc": the driver's handles for its ordinary allocations. "virtual": memory with a handle of its own
// (virtual_memory.hpp), passed on as a file descriptor. What a device's pool hands out must fit the way, so
// each device has one (Gpu::peer_way); core/transport/peer_memory maps.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>

namespace jali {

enum class PeerWay : std::int64_t { none, ipc, descriptor };

struct PeerWayRow {
    PeerWay way;
    const char* name;
};
// In the order in which they are tried.
constexpr PeerWayRow peer_ways[] = {{PeerWay::ipc, "ipc"}, {PeerWay::descriptor, "virtual"}};

const char* name_of(PeerWay way);

// The way that JALI_PEER_HANDLES names; nothing if it is "auto".
std::optional<PeerWay> forced_peer_way();

} // namespace jali
