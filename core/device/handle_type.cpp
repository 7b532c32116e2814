#include "device/handle_type.hpp"
#include "settings/settings.hpp"

namespace jali {

const char* name_of(HandleType type) {
    for (const HandleTypeSpec& spec : handle_types)
        if (spec.type == type) return spec.name;
    return "none";
}

std::optional<HandleType> forced_handle_type() {
    for (const HandleTypeSpec& spec : handle_types)
        if (settings().peer_handles == spec.name) return spec.type;
    return std::nullopt;
}

} // namespace jali
