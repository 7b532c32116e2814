#include "interposer/device_pointers.hpp"
#include "device/vendor.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <link.h>

namespace jali::interposer {

namespace {

// Numbers of pointer attributes, the same in both drivers.
constexpr int of_context = 1, of_memory_type = 2, of_managed = 8, of_ordinal = 9;
constexpr unsigned is_device_memory = 2;

struct Driver {
    const GpuVendor* vendor;
    int (*pointer_attribute)(void* value, int which, GpuAddress address);
    int (*current)(void** context);
    int (*set_current)(void* context);
};
constexpr std::size_t most_drivers = 4;
std::array<Driver, most_drivers> drivers; // those that are loaded
std::atomic<std::size_t> count = 0;
std::atomic<unsigned long long> libraries_seen = 0; // libraries that were loaded at the last search

unsigned long long libraries_loaded() {
    unsigned long long loaded = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            *static_cast<unsigned long long*>(data) = info->dlpi_adds;
            return 1; // the first tells all
        },
        &loaded);
    return loaded;
}

void find_drivers(unsigned long long loaded) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    for (const std::string& name : vendor_names()) {
        const GpuVendor* vendor = find_vendor(name);
        const std::size_t known = count;
        if (std::any_of(drivers.begin(), drivers.begin() + known,
                        [&](const Driver& driver) { return driver.vendor == vendor; }))
            continue;
        for (const std::string& file : vendor->driver.candidates()) {
            void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
            if (library == nullptr) continue;
            if (known >= most_drivers) break;
            Driver& driver = drivers[known];
            const auto find = [&](auto& function, const char* name) {
                void* address = dlsym(library, vendor->functions.at(name).c_str());
                std::memcpy(&function, &address, sizeof function);
                return address != nullptr;
            };
            if (!find(driver.pointer_attribute, "pointer_attribute") ||
                !find(driver.current, "context_current") || !find(driver.set_current, "context_set"))
                break;
            driver.vendor = vendor;
            count = known + 1;
            break;
        }
    }
    libraries_seen = loaded;
}

const Driver* driver_of(const void* address) {
    const auto there = reinterpret_cast<GpuAddress>(address);
    for (std::size_t k = 0; k < count; ++k) {
        unsigned type = 0, managed = 0;
        // An address unknown to a driver is the host's, as is every address for an uninitialised driver.
        if (drivers[k].pointer_attribute(&type, of_memory_type, there) == gpu_success &&
            type == is_device_memory &&
            (drivers[k].pointer_attribute(&managed, of_managed, there) != gpu_success || managed == 0))
            return &drivers[k];
    }
    return nullptr;
}

} // namespace

bool find_driver() {
    if (const unsigned long long loaded = libraries_loaded(); loaded != libraries_seen) find_drivers(loaded);
    return has_driver();
}

bool has_driver() noexcept {
    return count.load(std::memory_order_acquire) > 0;
}

bool on_device(const void* address) {
    return address != nullptr && driver_of(address) != nullptr;
}

DeviceMemory device_memory(const void* address) {
    const Driver* driver = address != nullptr ? driver_of(address) : nullptr;
    if (driver == nullptr) return {};
    const auto there = reinterpret_cast<GpuAddress>(address);
    int ordinal = 0;
    DeviceMemory memory;
    if (const int error = driver->pointer_attribute(&ordinal, of_ordinal, there); error != gpu_success)
        throw GpuError(driver->vendor->platform + " does not say which device has memory that it knows");
    driver->pointer_attribute(&memory.context, of_context, there); // some have none
    memory.gpu = Gpu::open(*driver->vendor, ordinal);
    return memory;
}

CurrentContexts::CurrentContexts() {
    static_assert(most == most_drivers);
    if (!has_driver()) return;
    for (std::size_t k = 0; k < count; ++k) // an uninitialised driver has none
        known_[k] = drivers[k].current(&contexts_[k]) == gpu_success;
}

CurrentContexts::~CurrentContexts() {
    for (int k = 0; k < most; ++k) {
        void* now = nullptr;
        if (known_[k] && drivers[k].current(&now) == gpu_success && now != contexts_[k])
            drivers[k].set_current(contexts_[k]);
    }
}

bool in_own_context(const DeviceMemory& memory) {
    if (memory.context == nullptr) return true;
    DeviceMemory own;
    own.gpu = memory.gpu;
    const InContextOf current(own);
    void* context = nullptr;
    return memory.gpu->api().context_current(&context) == gpu_success && context == memory.context;
}

InContextOf::InContextOf(const DeviceMemory& memory) : api_(memory.gpu->api()) {
    api_.check(api_.context_current(&before_), "asking for the current context");
    void* const wanted = memory.context != nullptr ? memory.context : memory.gpu->context();
    api_.check(api_.context_set(wanted), "making the context of an address current");
}

InContextOf::~InContextOf() {
    api_.context_set(before_);
}

} // namespace jali::interposer
