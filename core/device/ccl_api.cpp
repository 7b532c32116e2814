#include "device/ccl_api.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace jali {

namespace {

constexpr int oldest = 21000; // the first with averages

// Until 2.8 a version was major * 1000 + minor * 100 + patch.
int uniform(int version) {
    return version >= 10000 ? version : version / 1000 * 10000 + version % 1000;
}

std::string readable(int version) {
    return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
           std::to_string(version % 100);
}

std::unique_ptr<CclApi> load(const GpuVendor& vendor, const std::vector<std::string>& files) {
    const std::string &name = vendor.ccl.title, &install = vendor.ccl.install;
    if (name.empty()) throw GpuError("jali knows no library of collectives for " + vendor.name + " devices");
    auto api = std::unique_ptr<CclApi>(new CclApi{vendor});
    void* handle = nullptr;
    std::string tried;
    for (const auto& file : files) {
        handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr) {
            api->library = file;
            break;
        }
        const char* why = dlerror();
        tried += (tried.empty() ? "" : "; ") + std::string(why != nullptr ? why : file);
    }
    if (handle == nullptr) throw GpuError(name + " was not found (" + tried + "): " + install);
    std::string missing;
    const auto need = [&](const char* symbol) {
        void* found = dlsym(handle, symbol);
        if (found == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(symbol);
        return found;
    };
#define JALI_FIND(member, symbol, parameters)                                                                \
    api->member = reinterpret_cast<decltype(api->member)>(need(#symbol));
    JALI_CCL_FUNCTIONS(JALI_FIND)
#undef JALI_FIND
    api->error_text = reinterpret_cast<decltype(api->error_text)>(need("ncclGetErrorString"));
    const auto named = [&](const char* member, const char* usual_name) {
        const auto other = vendor.ccl_functions.find(member);
        return dlsym(handle, other != vendor.ccl_functions.end() ? other->second.c_str() : usual_name);
    };
#define JALI_FIND(member, symbol, parameters)                                                                \
    api->member = reinterpret_cast<decltype(api->member)>(named(#member, #symbol));
    JALI_CCL_NEWER(JALI_FIND)
#undef JALI_FIND
    api->last_error = reinterpret_cast<decltype(api->last_error)>(dlsym(handle, "ncclGetLastError"));
    if (api->get_version != nullptr && api->get_version(&api->version) == ccl_success)
        api->version = uniform(api->version);
    if (!missing.empty() || api->version < oldest)
        throw GpuError(name + " " + readable(api->version) + " (" + api->library + ") " +
                       (missing.empty() ? "is too old" : "lacks " + missing) + "; jali needs " +
                       readable(oldest) + " or newer: " + install);
    return api;
}

} // namespace

const CclApi& CclApi::get(const GpuVendor& vendor, const std::string& found) {
    static std::mutex mutex;
    // by the searched names; never destroyed, since communicators may outlive static objects
    static auto* loaded =
        new std::map<std::pair<const GpuVendor*, std::vector<std::string>>, std::unique_ptr<CclApi>>;
    std::lock_guard lock(mutex);
    const auto files = vendor.ccl.candidates(found);
    auto& api = (*loaded)[{&vendor, files}];
    if (!api) api = load(vendor, files);
    return *api;
}

std::string CclApi::version_text() const {
    return readable(version);
}

std::string CclApi::text_of(int error, CclHandle comm) const {
    const char* text = error_text(error);
    std::string all = text != nullptr ? text : "error " + std::to_string(error);
    const char* details = last_error != nullptr ? last_error(comm) : nullptr;
    if (details != nullptr && *details != '\0') all += ", " + std::string(details);
    return all;
}

} // namespace jali
