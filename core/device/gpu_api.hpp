// The functions of a GPU's driver, found at run time: one row each. What a vendor calls them, and all else in
// which vendors differ, is in its row (vendor.hpp).
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

// What memory that has a handle of its own shall be, and who may use it; laid out alike in both drivers.
struct VirtualProperties {
    int kind = 1;        // pinned, the only one
    int handle_kind = 1; // exported as a file descriptor
    int place = 1;       // on a device
    int device = 0;
    void* unused = nullptr;
    unsigned char compressed = 0, network = 0; // network: adapters may read and write it
    unsigned char rest[6] = {};
};
struct VirtualAccess {
    int place = 1; // a device
    int device = 0;
    int rights = 3; // to read and to write
};

// One line for each, however long.
// clang-format off
// row(member, parameters)
#define JALI_GPU_FUNCTIONS(row) \
    row(init, (unsigned flags)) \
    row(driver_version, (int* version)) \
    row(device_count, (int* count)) \
    row(device_get, (int* device, int ordinal)) \
    row(device_name, (char* name, int length, int device)) \
    row(device_attribute, (int* value, int which, int device)) \
    row(device_memory, (std::size_t* bytes, int device)) \
    row(device_uuid, (void* bytes16, int device)) \
    row(context_retain, (void** context, int device)) \
    row(context_set, (void* context)) \
    row(context_current, (void** context)) \
    row(context_synchronize, ()) \
    row(memory_info, (std::size_t* free, std::size_t* total)) \
    row(allocate, (GpuAddress* address, std::size_t bytes)) \
    row(release, (GpuAddress address)) \
    row(host_allocate, (void** address, std::size_t bytes, unsigned flags)) \
    row(host_release, (void* address)) \
    row(copy_in, (GpuAddress to, const void* from, std::size_t bytes, void* stream)) \
    row(copy_out, (void* to, GpuAddress from, std::size_t bytes, void* stream)) \
    row(copy, (GpuAddress to, GpuAddress from, std::size_t bytes, void* stream)) \
    row(fill, (GpuAddress to, unsigned char value, std::size_t bytes, void* stream)) \
    row(stream_create, (void** stream, unsigned flags, int priority)) \
    row(stream_synchronize, (void* stream)) \
    row(stream_query, (void* stream)) \
    row(stream_wait, (void* stream, void* event, unsigned flags)) \
    row(stream_priorities, (int* least, int* greatest)) \
    row(host_function, (void* stream, void (*function)(void*), void* argument)) \
    row(event_create, (void** event, unsigned flags)) \
    row(event_destroy, (void* event)) \
    row(event_record, (void* event, void* stream)) \
    row(event_query, (void* event)) \
    row(event_synchronize, (void* event)) \
    row(event_elapsed, ( float* ms, void* from, void* to)) \
    row(module_load, (void** module, const void* image)) \
    row(module_function, ( void** function, void* module, const char* name)) \
    row(function_attribute, (int* value, int which, void* function)) \
    row(occupancy, (int* blocks, void* function, int threads, std::size_t shared_bytes)) \
    row(launch, (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra)) \
    row(capture_begin, (void* stream, int mode)) \
    row(is_capturing, (void* stream, int* status)) \
    row(capture_end, (void* stream, void** graph)) \
    row(exchange_capture_mode, (int* mode)) \
    row(graph_instantiate, (void** instance, void* graph, unsigned long long flags)) \
    row(graph_launch, (void* instance, void* stream)) \
    row(graph_instance_destroy, (void* instance)) \
    row(graph_destroy, (void* graph)) \
    row(can_access_peer, (int* can, int device, int peer)) \
    row(enable_peer, (void* context, unsigned flags)) \
    row(ipc_export, (IpcHandle* handle, GpuAddress address)) \
    row(ipc_open, (GpuAddress* address, IpcHandle handle, unsigned flags)) \
    row(ipc_close, (GpuAddress address)) \
    row(pointer_attribute, (void* value, int which, GpuAddress address)) \
    row(error_name, (int error, const char** text)) \
    row(error_text, (int error, const char** text))

// Likewise, but jali works without them (see virtual_memory.hpp): null where the driver lacks one.
#define JALI_GPU_OPTIONAL_FUNCTIONS(row) \
    row(virtual_create, (GpuHandle* handle, std::size_t bytes, const VirtualProperties* properties, unsigned long long flags)) \
    row(virtual_release, (GpuHandle handle)) \
    row(virtual_reserve, (GpuAddress* address, std::size_t bytes, std::size_t alignment, GpuAddress wish, unsigned long long flags)) \
    row(virtual_unreserve, (GpuAddress address, std::size_t bytes)) \
    row(virtual_map, (GpuAddress address, std::size_t bytes, std::size_t offset, GpuHandle handle, unsigned long long flags)) \
    row(virtual_unmap, (GpuAddress address, std::size_t bytes)) \
    row(virtual_access, (GpuAddress address, std::size_t bytes, const VirtualAccess* access, std::size_t count)) \
    row(virtual_granularity, (std::size_t* bytes, const VirtualProperties* properties, int which)) \
    row(virtual_export, (void* shared, GpuHandle handle, int kind, unsigned long long flags)) \
    row(virtual_import, (GpuHandle* handle, void* shared, int kind)) \
    row(virtual_retain, (GpuHandle* handle, GpuAddress address)) \
    row(address_range, (GpuAddress* begin, std::size_t* bytes, GpuAddress address))

// row(member): attributes of a device
#define JALI_GPU_ATTRIBUTES(row) \
    row(warp_size) \
    row(multiprocessors) \
    row(l2_bytes) \
    row(threads_per_multiprocessor) \
    row(major) \
    row(minor) \
    row(shared_bytes_per_block) \
    row(pci_domain) \
    row(pci_bus) \
    row(pci_device)
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
    // HIP's alone; null where it is not there or has no name. See GpuVendor::fine_grained.
    int (*allocate_with)(GpuAddress* address, std::size_t bytes, unsigned flags) = nullptr;
    // Null where the driver has it not: what links two devices, by the numbers of GpuVendor::peer_attributes.
    int (*peer_attribute)(int* value, int attribute, int device, int peer) = nullptr;
    std::string lacking = {}; // functions that could be missing and are

    // Memory of a file descriptor, which stays the caller's; the driver's answer.
    int import_descriptor(GpuHandle* handle, int descriptor) const;

    // The driver of this vendor, loaded and initialised once. Throws GpuError that says what was looked for
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
