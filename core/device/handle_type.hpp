// The types of handles by which a process maps memory of another process's device: entries of a table.
//
// "ipc": the driver's handles for its ordinary allocations. "virtual": memory with a handle of its own
// (virtual_memory.hpp), passed on as a file descriptor. The pool's memory must fit the type, so each device
// has one (Gpu::handle_type); core/peers/peer_memory maps.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>

namespace jali {

enum class HandleType : std::int64_t { none, ipc, descriptor };

struct HandleTypeSpec {
    HandleType type;
    const char* name;
};
// In the order in which they are tried.
constexpr HandleTypeSpec handle_types[] = {{HandleType::ipc, "ipc"}, {HandleType::descriptor, "virtual"}};

const char* name_of(HandleType type);

// The type that JALI_PEER_HANDLES names; nothing if it is "auto".
std::optional<HandleType> forced_handle_type();

} // namespace jali
