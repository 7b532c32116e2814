#include "device/handle_type.hpp"
#include "settings/settings.hpp"

namespace jali {

const char* name_of(HandleType type) {
    for (const HandleTypeRow& row : handle_types)
        if (row.type == type) return row.name;
    return "none";
}

std::optional<HandleType> forced_handle_type() {
    for (const HandleTypeRow& row : handle_types)
        if (settings().peer_handles == row.name) return row.type;
    return std::nullopt;
}

} // namespace jali
