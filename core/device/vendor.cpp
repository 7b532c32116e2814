#include "device/vendor.hpp"
#include "settings/settings.hpp"

#include <mutex>
#include <utility>

namespace jali {

std::vector<GpuVendor> shipped_vendors(); // one of each file of the folder vendors: CMakeLists.txt

namespace {

std::mutex adding;

using Vendors = std::map<std::string, GpuVendor>;

Vendors& vendors() {
    static Vendors& all = []() -> Vendors& {
        auto& made = *new Vendors; // never destroyed: devices refer to their entries
        for (GpuVendor& vendor : shipped_vendors()) {
            const std::string name = vendor.name;
            made.emplace(name, std::move(vendor));
        }
        return made;
    }();
    return all;
}

std::map<const VendorLibrary*, std::vector<std::string>>& suggested() {
    static auto& all = *new std::map<const VendorLibrary*, std::vector<std::string>>;
    return all;
}

} // namespace

std::vector<std::string> VendorLibrary::candidates(const std::string& found) const {
    if (const std::string named = setting.empty() ? "" : text_of_setting(setting); !named.empty())
        return {named};
    std::vector<std::string> all;
    {
        std::lock_guard lock(adding);
        all = suggested()[this];
    }
    if (!found.empty() && (all.empty() || all.front() != found)) all = {found};
    all.insert(all.end(), files.begin(), files.end());
    return all;
}

void suggest_library(const VendorLibrary& library, std::vector<std::string> files) {
    std::lock_guard lock(adding);
    suggested()[&library] = std::move(files);
}

std::string GpuVendor::version_text(int version) const {
    return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / minor_unit);
}

void add_vendor(GpuVendor vendor) {
    std::lock_guard lock(adding);
    const std::string name = vendor.name;
    if (!vendors().emplace(name, std::move(vendor)).second)
        throw std::invalid_argument("there is a vendor '" + name + "' already");
}

const GpuVendor* find_vendor(const std::string& name) {
    std::lock_guard lock(adding);
    const auto found = vendors().find(name);
    return found == vendors().end() ? nullptr : &found->second;
}

std::vector<std::string> vendor_names() {
    std::lock_guard lock(adding);
    std::vector<std::string> names;
    for (const auto& [name, vendor] : vendors()) names.push_back(name);
    return names;
}

const GpuVendor& vendor_named(const std::string& name) {
    if (const GpuVendor* found = find_vendor(name)) return *found;
    std::string known;
    for (const std::string& other : vendor_names()) known += (known.empty() ? "" : ", ") + other;
    throw std::invalid_argument("there is no vendor '" + name + "'; there are " + known);
}

} // namespace jali
