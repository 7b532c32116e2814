#include "device/ccl_api.hpp"
#include "settings/settings.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace jali {

namespace {

constexpr int oldest = 21000; // the first with averages

std::mutex suggesting;
std::map<GpuKind, std::string> suggested;

std::vector<std::string> candidates(GpuKind kind, std::string found) {
    if (std::lock_guard lock(suggesting); found.empty()) found = suggested[kind];
    const bool cuda = kind == GpuKind::cuda;
    const std::string& named = cuda ? settings().nccl : settings().rccl;
    if (!named.empty()) return {named};
    std::vector<std::string> files;
    if (!found.empty()) files.push_back(found);
    if (cuda) {
        files.insert(files.end(), {"libnccl.so.2", "libnccl.so"});
    } else {
        files.insert(files.end(), {"librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"});
    }
    return files;
}

std::string how_to_install(GpuKind kind) {
    if (kind == GpuKind::cuda)
        return "pip install nvidia-nccl-cu12 or nvidia-nccl-cu13 (as the driver's CUDA version is), load the "
               "machine's module, or set JALI_NCCL to the library";
    return "install ROCm's RCCL, or set JALI_RCCL to the library";
}

// Until 2.8 a version was major * 1000 + minor * 100 + patch.
int uniform(int version) {
    return version >= 10000 ? version : version / 1000 * 10000 + version % 1000;
}

std::string readable(int version) {
    return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
           std::to_string(version % 100);
}

std::unique_ptr<CclApi> load(GpuKind kind, const std::vector<std::string>& files) {
    auto api = std::make_unique<CclApi>();
    api->kind = kind;
    const std::string name = CclApi::name_of_library(kind);
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
    if (handle == nullptr) throw GpuError(name + " was not found (" + tried + "): " + how_to_install(kind));
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
    const bool cuda = kind == GpuKind::cuda;
#define JALI_FIND(member, nccl, rccl, parameters)                                                            \
    api->member = reinterpret_cast<decltype(api->member)>(dlsym(handle, cuda ? #nccl : #rccl));
    JALI_CCL_NEWER(JALI_FIND)
#undef JALI_FIND
    api->last_error = reinterpret_cast<decltype(api->last_error)>(dlsym(handle, "ncclGetLastError"));
    if (api->get_version != nullptr && api->get_version(&api->version) == ccl_success)
        api->version = uniform(api->version);
    if (!missing.empty() || api->version < oldest)
        throw GpuError(name + " " + readable(api->version) + " (" + api->library + ") " +
                       (missing.empty() ? "is too old" : "lacks " + missing) + "; jali needs " +
                       readable(oldest) + " or newer: " + how_to_install(kind));
    return api;
}

} // namespace

const CclApi& CclApi::get(GpuKind kind, const std::string& found) {
    static std::mutex mutex;
    // by what was looked for; never destroyed, since communicators may outlive static objects
    static auto* loaded = new std::map<std::pair<GpuKind, std::vector<std::string>>, std::unique_ptr<CclApi>>;
    std::lock_guard lock(mutex);
    const auto files = candidates(kind, found);
    auto& api = (*loaded)[{kind, files}];
    if (!api) api = load(kind, files);
    return *api;
}

void CclApi::suggest(GpuKind kind, const std::string& found) {
    std::lock_guard lock(suggesting);
    suggested[kind] = found;
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
