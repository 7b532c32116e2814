#include "device/vendor.hpp"
#include "settings/settings.hpp"

#include <mutex>
#include <utility>

namespace jali {

namespace {

std::mutex adding;

std::map<std::string, GpuVendor>& rows() {
    // never destroyed: devices refer to their rows
    static auto& all = *new std::map<std::string, GpuVendor>;
    return all;
}

} // namespace

std::vector<std::string> VendorLibrary::candidates() const {
    const std::string named = setting.empty() ? "" : text_of_setting(setting);
    return named.empty() ? files : std::vector<std::string>{named};
}

std::string GpuVendor::version_text(int version) const {
    return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / minor_unit);
}

void add_vendor(GpuVendor vendor) {
    std::lock_guard lock(adding);
    const std::string name = vendor.name;
    if (!rows().emplace(name, std::move(vendor)).second)
        throw std::invalid_argument("there is a vendor '" + name + "' already");
}

const GpuVendor* find_vendor(const std::string& name) {
    std::lock_guard lock(adding);
    const auto found = rows().find(name);
    return found == rows().end() ? nullptr : &found->second;
}

const GpuVendor& vendor_named(const std::string& name) {
    if (const GpuVendor* found = find_vendor(name)) return *found;
    std::lock_guard lock(adding);
    std::string known;
    for (const auto& [other, row] : rows()) known += (known.empty() ? "" : ", ") + other;
    throw std::invalid_argument("there is no vendor '" + name + "' (known: " + known + ")");
}

} // namespace jali
