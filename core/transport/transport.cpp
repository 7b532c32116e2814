#include "transport/transport.hpp"
#include "device/vendor.hpp"

namespace jali {

std::string name_of(const Transport& transport, const GpuVendor* vendor) {
    return name_of(transport, vendor == nullptr ? "" : vendor->ccl.setting); // which bears the library's name
}

std::string name_of(const Transport& transport, const std::string& library) {
    if (*transport.name) return transport.name;
    return library.empty() ? "library" : library;
}

std::vector<std::string> names_of(std::span<const Transport* const> rows,
                                  std::span<const std::string> libraries) {
    std::vector<std::string> names;
    for (const Transport* row : rows) {
        const bool of_vendor = *row->name == '\0';
        if (!of_vendor) names.emplace_back(row->name);
        for (const std::string& library : libraries)
            if (of_vendor && !library.empty()) names.push_back(library);
    }
    return names;
}

} // namespace jali
