#include "transport/transport.hpp"
#include "device/vendor.hpp"

namespace jali {

std::string name_of(const Transport& transport, const GpuVendor* vendor) {
    if (*transport.name || vendor == nullptr) return transport.name;
    return vendor->ccl.setting.empty() ? "library" : vendor->ccl.setting; // which bears the library's name
}

} // namespace jali
