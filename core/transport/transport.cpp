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

} // namespace jali
