#include "peers/transport.hpp"
#include "device/vendor.hpp"

namespace jali {

std::string name_of(const Transport& transport, const GpuVendor* vendor) {
    return name_of(transport, vendor == nullptr ? "" : vendor->ccl.setting); // which bears the library's name
}

std::string name_of(const Transport& transport, const std::string& library) {
    if (!transport.of_library()) return transport.name;
    return (library.empty() ? "library" : library) + transport.name;
}

std::vector<std::string> names_of(std::span<const Transport* const> transports,
                                  std::span<const std::string> libraries) {
    std::vector<std::string> names;
    for (const Transport* entry : transports) {
        if (!entry->of_library()) names.emplace_back(entry->name);
        for (const std::string& library : libraries)
            if (entry->of_library() && !library.empty()) names.push_back(name_of(*entry, library));
    }
    return names;
}

} // namespace jali
