#include "device/gpu_api.hpp"
#include "settings/settings.hpp"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace jali {

namespace {

struct Loaded {
    std::unique_ptr<GpuApi> api;
    std::string why_not; // the first failure is remembered: a driver does not appear while a process runs
};

// Where the drivers live, the first that loads is taken.
std::vector<std::string> candidates(GpuKind kind) {
    const std::string& named = kind == GpuKind::cuda ? settings().cuda_driver : settings().hip_driver;
    if (!named.empty()) return {named};
    if (kind == GpuKind::cuda) return {"libcuda.so.1", "libcuda.so"};
    return {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"};
}

// The oldest driver that has all functions of the table.
constexpr int oldest_cuda = 12000;

std::unique_ptr<GpuApi> load(GpuKind kind) {
    auto api = std::make_unique<GpuApi>();
    api->kind = kind;
    void* handle = nullptr;
    std::string tried;
    for (const auto& file : candidates(kind)) {
        handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr) {
            api->library = file;
            break;
        }
        const char* why = dlerror();
        tried += (tried.empty() ? "" : "; ") + std::string(why != nullptr ? why : file);
    }
    const std::string vendor = kind == GpuKind::cuda ? "NVIDIA's driver" : "AMD's HIP runtime";
    if (handle == nullptr) throw GpuError(vendor + " was not found (" + tried + ")");
    std::string missing;
    auto find = [&](const char* name) {
        void* symbol = dlsym(handle, name);
        if (symbol == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
        return symbol;
    };
#define JALI_FIND(member, cuda_name, hip_name, parameters)                                                   \
    api->member =                                                                                            \
        reinterpret_cast<decltype(api->member)>(find(kind == GpuKind::cuda ? #cuda_name : #hip_name));
    JALI_GPU_FUNCTIONS(JALI_FIND)
    std::swap(missing, api->lacking);
    JALI_GPU_OPTIONAL_FUNCTIONS(JALI_FIND)
    std::swap(missing, api->lacking);
#undef JALI_FIND
    if (kind == GpuKind::cuda)
        api->launch_with = reinterpret_cast<decltype(api->launch_with)>(dlsym(handle, "cuLaunchKernelEx"));
    if (api->driver_version != nullptr) api->driver_version(&api->version);
    const std::string version =
        std::to_string(api->version / 1000) + "." + std::to_string(api->version % 1000 / 10);
    if (kind == GpuKind::cuda && api->version < oldest_cuda)
        throw GpuError(vendor + " " + api->library + " supports CUDA " + version +
                       ", jali needs 12.0 or newer: install a newer driver");
    if (!missing.empty())
        throw GpuError(vendor + " " + api->library + " lacks " + missing + ": install a newer one");
    api->check(api->init(0), vendor + " cannot be used");
    return api;
}

} // namespace

const char* name_of(GpuKind kind) {
    return kind == GpuKind::cuda ? "cuda" : "hip";
}

const GpuApi& GpuApi::get(GpuKind kind) {
    static std::mutex mutex;
    static Loaded loaded[2];
    std::lock_guard lock(mutex);
    Loaded& one = loaded[kind == GpuKind::cuda ? 0 : 1];
    if (!one.api && one.why_not.empty()) {
        try {
            one.api = load(kind);
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

// HIP took the address of the descriptor before 7.1, and takes the descriptor since.
int GpuApi::import_descriptor(GpuHandle* handle, int descriptor) const {
    constexpr int file_descriptor = 1, hip_by_value = 70100000;
    const bool by_value = kind == GpuKind::cuda || version >= hip_by_value;
    void* shared = by_value ? reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)) : &descriptor;
    return virtual_import(handle, shared, file_descriptor);
}

void GpuApi::fail(int error, std::string_view what) const {
    throw GpuError(std::string(what) + ": " + text_of(error));
}

} // namespace jali
