// The functions of a GPU's driver, found at run time: one entry each. A vendor's entry (vendor.hpp) contains
// its names of them, and all other differences between vendors.
//
// Nothing is linked and no vendor's header is used; what is declared here is what jali calls. All functions
// return an error number, 0 for success. Handles are opaque pointers, addresses of device memory are 64-bit
// numbers.
#pragma once

#include "device/vendor.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace jali {

using GpuAddress = std::uint64_t;

using GpuHandle = std::uint64_t; // of physical memory

struct IpcHandle {
    char bytes[64];
};

// The kind of memory with a handle of its own, and its users; same layout in both drivers.
struct VirtualProperties {
    int kind = 1;        // pinned, the only one
    int handle_kind = 1; // exported as a file descriptor
    int location = 1;    // on a device
    int device = 0;
    void* unused = nullptr;
    unsigned char compressed = 0, network = 0; // network: adapters may read and write it
    unsigned char rest[6] = {};
};
struct VirtualAccess {
    int location = 1; // a device
    int device = 0;
    int rights = 3; // to read and to write
};

// One line for each, however long.
// clang-format off
// entry(member, parameters)
#define JALI_GPU_FUNCTIONS(entry) \
    entry(init, (unsigned flags)) \
    entry(driver_version, (int* version)) \
    entry(device_count, (int* count)) \
    entry(device_get, (int* device, int ordinal)) \
    entry(device_name, (char* name, int length, int device)) \
    entry(device_attribute, (int* value, int which, int device)) \
    entry(device_memory, (std::size_t* bytes, int device)) \
    entry(device_uuid, (void* bytes16, int device)) \
    entry(context_retain, (void** context, int device)) \
    entry(context_set, (void* context)) \
    entry(context_current, (void** context)) \
    entry(context_synchronize, ()) \
    entry(memory_info, (std::size_t* free, std::size_t* total)) \
    entry(allocate, (GpuAddress* address, std::size_t bytes)) \
    entry(release, (GpuAddress address)) \
    entry(host_allocate, (void** address, std::size_t bytes, unsigned flags)) \
    entry(host_release, (void* address)) \
    entry(copy_in, (GpuAddress to, const void* from, std::size_t bytes, void* stream)) \
    entry(copy_out, (void* to, GpuAddress from, std::size_t bytes, void* stream)) \
    entry(copy, (GpuAddress to, GpuAddress from, std::size_t bytes, void* stream)) \
    entry(fill, (GpuAddress to, unsigned char value, std::size_t bytes, void* stream)) \
    entry(stream_create, (void** stream, unsigned flags, int priority)) \
    entry(stream_synchronize, (void* stream)) \
    entry(stream_query, (void* stream)) \
    entry(stream_wait, (void* stream, void* event, unsigned flags)) \
    entry(stream_priorities, (int* least, int* greatest)) \
    entry(host_function, (void* stream, void (*function)(void*), void* argument)) \
    entry(event_create, (void** event, unsigned flags)) \
    entry(event_destroy, (void* event)) \
    entry(event_record, (void* event, void* stream)) \
    entry(event_query, (void* event)) \
    entry(event_synchronize, (void* event)) \
    entry(event_elapsed, ( float* ms, void* from, void* to)) \
    entry(module_load, (void** module, const void* image)) \
    entry(module_function, ( void** function, void* module, const char* name)) \
    entry(function_attribute, (int* value, int which, void* function)) \
    entry(occupancy, (int* blocks, void* function, int threads, std::size_t shared_bytes)) \
    entry(launch, (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra)) \
    entry(capture_begin, (void* stream, int mode)) \
    entry(is_capturing, (void* stream, int* status)) \
    entry(capture_end, (void* stream, void** graph)) \
    entry(exchange_capture_mode, (int* mode)) \
    entry(graph_instantiate, (void** instance, void* graph, unsigned long long flags)) \
    entry(graph_launch, (void* instance, void* stream)) \
    entry(graph_instance_destroy, (void* instance)) \
    entry(graph_destroy, (void* graph)) \
    entry(can_access_peer, (int* can, int device, int peer)) \
    entry(enable_peer, (void* context, unsigned flags)) \
    entry(ipc_export, (IpcHandle* handle, GpuAddress address)) \
    entry(ipc_open, (GpuAddress* address, IpcHandle handle, unsigned flags)) \
    entry(ipc_close, (GpuAddress address)) \
    entry(pointer_attribute, (void* value, int which, GpuAddress address)) \
    entry(error_name, (int error, const char** text)) \
    entry(error_text, (int error, const char** text))

// Likewise, but jali works without them (see virtual_memory.hpp): null where the driver lacks one.
#define JALI_GPU_OPTIONAL_FUNCTIONS(entry) \
    entry(virtual_create, (GpuHandle* handle, std::size_t bytes, const VirtualProperties* properties, unsigned long long flags)) \
    entry(virtual_release, (GpuHandle handle)) \
    entry(virtual_reserve, (GpuAddress* address, std::size_t bytes, std::size_t alignment, GpuAddress wish, unsigned long long flags)) \
    entry(virtual_unreserve, (GpuAddress address, std::size_t bytes)) \
    entry(virtual_map, (GpuAddress address, std::size_t bytes, std::size_t offset, GpuHandle handle, unsigned long long flags)) \
    entry(virtual_unmap, (GpuAddress address, std::size_t bytes)) \
    entry(virtual_access, (GpuAddress address, std::size_t bytes, const VirtualAccess* access, std::size_t count)) \
    entry(virtual_granularity, (std::size_t* bytes, const VirtualProperties* properties, int which)) \
    entry(virtual_export, (void* shared, GpuHandle handle, int kind, unsigned long long flags)) \
    entry(virtual_import, (GpuHandle* handle, void* shared, int kind)) \
    entry(virtual_retain, (GpuHandle* handle, GpuAddress address)) \
    entry(address_range, (GpuAddress* begin, std::size_t* bytes, GpuAddress address))

// entry(member): attributes of a device
#define JALI_GPU_ATTRIBUTES(entry) \
    entry(warp_size) \
    entry(multiprocessors) \
    entry(l2_bytes) \
    entry(threads_per_multiprocessor) \
    entry(major) \
    entry(minor) \
    entry(shared_bytes_per_block) \
    entry(pci_domain) \
    entry(pci_bus) \
    entry(pci_device)
// clang-format on

// A launch with attributes, as CUDA's driver takes it (CUlaunchConfig, CUlaunchAttribute).
struct CudaLaunchAttribute {
    int id;
    int unused;
    int value[16];
};
struct CudaLaunch {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    const CudaLaunchAttribute* attributes;
    unsigned count;
};
// The kernel may begin while the one before it on the stream still runs, and waits for it by itself.
constexpr int may_begin_early = 6;
constexpr int priority_of_launch = 8;

struct GpuApi {
    const GpuVendor& vendor;
    std::string library = {}; // the file that was loaded
    int version = 0;          // of the driver, in its own numbering

#define JALI_DECLARE(member, parameters) int(*member) parameters = nullptr;
    JALI_GPU_FUNCTIONS(JALI_DECLARE)
    JALI_GPU_OPTIONAL_FUNCTIONS(JALI_DECLARE)
#undef JALI_DECLARE
    // CUDA's alone, since version 11.8; null where it is not there or has no name.
    int (*launch_with)(const CudaLaunch* launch, void* function, void** parameters, void** extra) = nullptr;
    // HIP only; null if missing or without a name. See GpuVendor::fine_grained.
    int (*allocate_with)(GpuAddress* address, std::size_t bytes, unsigned flags) = nullptr;
    // The link of two devices, by the numbers of GpuVendor::peer_attributes; null where the driver lacks it.
    int (*peer_attribute)(int* value, int attribute, int device, int peer) = nullptr;
    std::string lacking = {}; // functions that could be missing and are

    // Memory of a file descriptor, which stays the caller's; the driver's answer.
    int import_descriptor(GpuHandle* handle, int descriptor) const;

    // The driver of this vendor, loaded and initialised once. Throws GpuError that names the searched files
    // and what is missing.
    static const GpuApi& get(const GpuVendor& vendor);

    // Throws GpuError "<what>: <name>, <text>" unless `error` is 0.
    void check(int error, std::string_view what) const {
        if (error != 0) fail(error, what);
    }
    [[noreturn]] void fail(int error, std::string_view what) const;
    std::string text_of(int error) const;
};

// Error numbers that are answers rather than failures; the same in both drivers.
constexpr int gpu_success = 0, gpu_out_of_memory = 2, gpu_not_ready = 600, gpu_peer_enabled = 704;

} // namespace jali
