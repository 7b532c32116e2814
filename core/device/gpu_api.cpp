#include "device/gpu_api.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include <dlfcn.h>

namespace jali {

namespace {

struct Loaded {
    std::unique_ptr<GpuApi> api;
    std::string why_not; // the first failure is remembered: a driver does not appear while a process runs
};

std::unique_ptr<GpuApi> load(const GpuVendor& vendor) {
    auto api = std::unique_ptr<GpuApi>(new GpuApi{vendor});
    void* handle = nullptr;
    std::string tried;
    for (const auto& file : vendor.driver.candidates()) {
        handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr) {
            api->library = file;
            break;
        }
        const char* why = dlerror();
        tried += (tried.empty() ? "" : "; ") + std::string(why != nullptr ? why : file);
    }
    const std::string& title = vendor.driver.title;
    if (handle == nullptr) throw GpuError(title + " was not found (" + tried + ")");
    std::string missing;
    auto find = [&](const char* member) {
        const auto name = vendor.functions.find(member);
        void* symbol = name != vendor.functions.end() ? dlsym(handle, name->second.c_str()) : nullptr;
        if (symbol == nullptr)
            missing += (missing.empty() ? "" : ", ") +
                       (name != vendor.functions.end() ? name->second : std::string(member));
        return symbol;
    };
#define JALI_FIND(member, parameters) api->member = reinterpret_cast<decltype(api->member)>(find(#member));
    JALI_GPU_FUNCTIONS(JALI_FIND)
    std::swap(missing, api->lacking);
    JALI_GPU_OPTIONAL_FUNCTIONS(JALI_FIND)
    std::swap(missing, api->lacking);
#undef JALI_FIND
    const auto find_own = [&](const char* member, auto& function) { // that may be missing without an error
        if (const auto name = vendor.functions.find(member); name != vendor.functions.end())
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
                dlsym(handle, name->second.c_str()));
    };
    find_own("launch_with", api->launch_with);
    find_own("allocate_with", api->allocate_with);
    find_own("peer_attribute", api->peer_attribute);
    if (api->driver_version != nullptr) api->driver_version(&api->version);
    if (api->version < vendor.oldest)
        throw GpuError(title + " " + api->library + " supports " + vendor.platform + " " +
                       vendor.version_text(api->version) + ", jali needs " +
                       vendor.version_text(vendor.oldest) + " or newer: install a newer driver");
    if (!missing.empty())
        throw GpuError(title + " " + api->library + " lacks " + missing + ": install a newer one");
    api->check(api->init(0), title + " cannot be used");
    return api;
}

} // namespace

const GpuApi& GpuApi::get(const GpuVendor& vendor) {
    static std::mutex mutex;
    static auto& loaded = *new std::map<const GpuVendor*, Loaded>; // never destroyed: devices refer to it
    std::lock_guard lock(mutex);
    Loaded& one = loaded[&vendor];
    if (!one.api && one.why_not.empty()) {
        try {
            one.api = load(vendor);
        } catch (const GpuError& error) {
            one.why_not = error.what();
        }
    }
    if (!one.api) throw GpuError(one.why_not);
    return *one.api;
}

std::string GpuApi::text_of(int error) const {
    const char *name = nullptr, *text = nullptr;
    if (error_name != nullptr) error_name(error, &name);
    if (error_text != nullptr) error_text(error, &text);
    return std::string(name != nullptr ? name : "error " + std::to_string(error)) +
           (text != nullptr ? ", " + std::string(text) : "");
}

int GpuApi::import_descriptor(GpuHandle* handle, int descriptor) const {
    constexpr int file_descriptor = 1;
    const bool by_value = version >= vendor.descriptors_by_value;
    void* shared = by_value ? reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)) : &descriptor;
    return virtual_import(handle, shared, file_descriptor);
}

void GpuApi::fail(int error, std::string_view what) const {
    throw GpuError(std::string(what) + ": " + text_of(error));
}

} // namespace jali
