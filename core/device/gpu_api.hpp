// The functions of a GPU's driver, found at run time: one row each, with its name in CUDA and in HIP.
//
// Nothing is linked and no vendor's header is used; what is declared here is what jali calls. All functions
// return an error number, 0 for success. Handles are opaque pointers, addresses of device memory are 64-bit
// numbers. Where the two differ in more than a name (numbers of attributes, functions that exist in one only)
// the difference is in this file's table or in gpu_api.cpp, nowhere else. AMD's side has never run on
// hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace jali {

enum class GpuKind { cuda, hip };

const char* name_of(GpuKind kind); // "cuda", "hip"

// A driver that is missing, too old or says no; the text holds the driver's own words.
struct GpuError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

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
// row(member, name in CUDA, name in HIP, parameters)
#define JALI_GPU_FUNCTIONS(row) \
    row(init, cuInit, hipInit, (unsigned flags)) \
    row(driver_version, cuDriverGetVersion, hipDriverGetVersion, (int* version)) \
    row(device_count, cuDeviceGetCount, hipGetDeviceCount, (int* count)) \
    row(device_get, cuDeviceGet, hipDeviceGet, (int* device, int ordinal)) \
    row(device_name, cuDeviceGetName, hipDeviceGetName, (char* name, int length, int device)) \
    row(device_attribute, cuDeviceGetAttribute, hipDeviceGetAttribute, (int* value, int which, int device)) \
    row(device_memory, cuDeviceTotalMem_v2, hipDeviceTotalMem, (std::size_t* bytes, int device)) \
    row(device_uuid, cuDeviceGetUuid, hipDeviceGetUuid, (void* bytes16, int device)) \
    row(context_retain, cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain, (void** context, int device)) \
    row(context_set, cuCtxSetCurrent, hipCtxSetCurrent, (void* context)) \
    row(context_synchronize, cuCtxSynchronize, hipDeviceSynchronize, ()) \
    row(memory_info, cuMemGetInfo_v2, hipMemGetInfo, (std::size_t* free, std::size_t* total)) \
    row(allocate, cuMemAlloc_v2, hipMalloc, (GpuAddress* address, std::size_t bytes)) \
    row(release, cuMemFree_v2, hipFree, (GpuAddress address)) \
    row(host_allocate, cuMemHostAlloc, hipHostMalloc, (void** address, std::size_t bytes, unsigned flags)) \
    row(host_release, cuMemFreeHost, hipHostFree, (void* address)) \
    row(copy_in, cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, (GpuAddress to, const void* from, std::size_t bytes, void* stream)) \
    row(copy_out, cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void* to, GpuAddress from, std::size_t bytes, void* stream)) \
    row(copy, cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (GpuAddress to, GpuAddress from, std::size_t bytes, void* stream)) \
    row(fill, cuMemsetD8Async, hipMemsetD8Async, (GpuAddress to, unsigned char value, std::size_t bytes, void* stream)) \
    row(stream_create, cuStreamCreateWithPriority, hipStreamCreateWithPriority, (void** stream, unsigned flags, int priority)) \
    row(stream_destroy, cuStreamDestroy_v2, hipStreamDestroy, (void* stream)) \
    row(stream_synchronize, cuStreamSynchronize, hipStreamSynchronize, (void* stream)) \
    row(stream_query, cuStreamQuery, hipStreamQuery, (void* stream)) \
    row(stream_wait, cuStreamWaitEvent, hipStreamWaitEvent, (void* stream, void* event, unsigned flags)) \
    row(stream_priorities, cuCtxGetStreamPriorityRange, hipDeviceGetStreamPriorityRange, (int* least, int* greatest)) \
    row(host_function, cuLaunchHostFunc, hipLaunchHostFunc, (void* stream, void (*function)(void*), void* argument)) \
    row(event_create, cuEventCreate, hipEventCreateWithFlags, (void** event, unsigned flags)) \
    row(event_destroy, cuEventDestroy_v2, hipEventDestroy, (void* event)) \
    row(event_record, cuEventRecord, hipEventRecord, (void* event, void* stream)) \
    row(event_query, cuEventQuery, hipEventQuery, (void* event)) \
    row(event_synchronize, cuEventSynchronize, hipEventSynchronize, (void* event)) \
    row(event_elapsed, cuEventElapsedTime, hipEventElapsedTime, ( float* ms, void* from, void* to)) \
    row(module_load, cuModuleLoadData, hipModuleLoadData, (void** module, const void* image)) \
    row(module_function, cuModuleGetFunction, hipModuleGetFunction, ( void** function, void* module, const char* name)) \
    row(function_attribute, cuFuncGetAttribute, hipFuncGetAttribute, (int* value, int which, void* function)) \
    row(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, void* function, int threads, std::size_t shared_bytes)) \
    row(launch, cuLaunchKernel, hipModuleLaunchKernel, (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra)) \
    row(capture_begin, cuStreamBeginCapture_v2, hipStreamBeginCapture, (void* stream, int mode)) \
    row(is_capturing, cuStreamIsCapturing, hipStreamIsCapturing, (void* stream, int* status)) \
    row(capture_end, cuStreamEndCapture, hipStreamEndCapture, (void* stream, void** graph)) \
    row(graph_instantiate, cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags, (void** instance, void* graph, unsigned long long flags)) \
    row(graph_launch, cuGraphLaunch, hipGraphLaunch, (void* instance, void* stream)) \
    row(graph_instance_destroy, cuGraphExecDestroy, hipGraphExecDestroy, (void* instance)) \
    row(graph_destroy, cuGraphDestroy, hipGraphDestroy, (void* graph)) \
    row(can_access_peer, cuDeviceCanAccessPeer, hipDeviceCanAccessPeer, (int* can, int device, int peer)) \
    row(enable_peer, cuCtxEnablePeerAccess, hipCtxEnablePeerAccess, (void* context, unsigned flags)) \
    row(ipc_export, cuIpcGetMemHandle, hipIpcGetMemHandle, (IpcHandle* handle, GpuAddress address)) \
    row(ipc_open, cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle, (GpuAddress* address, IpcHandle handle, unsigned flags)) \
    row(ipc_close, cuIpcCloseMemHandle, hipIpcCloseMemHandle, (GpuAddress address)) \
    row(pointer_attribute, cuPointerGetAttribute, hipPointerGetAttribute, (void* value, int which, GpuAddress address)) \
    row(error_name, cuGetErrorName, hipDrvGetErrorName, (int error, const char** text)) \
    row(error_text, cuGetErrorString, hipDrvGetErrorString, (int error, const char** text))

// Likewise, but jali works without them (see virtual_memory.hpp): null where the driver lacks one.
#define JALI_GPU_OPTIONAL_FUNCTIONS(row) \
    row(virtual_create, cuMemCreate, hipMemCreate, (GpuHandle* handle, std::size_t bytes, const VirtualProperties* properties, unsigned long long flags)) \
    row(virtual_release, cuMemRelease, hipMemRelease, (GpuHandle handle)) \
    row(virtual_reserve, cuMemAddressReserve, hipMemAddressReserve, (GpuAddress* address, std::size_t bytes, std::size_t alignment, GpuAddress wish, unsigned long long flags)) \
    row(virtual_unreserve, cuMemAddressFree, hipMemAddressFree, (GpuAddress address, std::size_t bytes)) \
    row(virtual_map, cuMemMap, hipMemMap, (GpuAddress address, std::size_t bytes, std::size_t offset, GpuHandle handle, unsigned long long flags)) \
    row(virtual_unmap, cuMemUnmap, hipMemUnmap, (GpuAddress address, std::size_t bytes)) \
    row(virtual_access, cuMemSetAccess, hipMemSetAccess, (GpuAddress address, std::size_t bytes, const VirtualAccess* access, std::size_t count)) \
    row(virtual_granularity, cuMemGetAllocationGranularity, hipMemGetAllocationGranularity, (std::size_t* bytes, const VirtualProperties* properties, int which)) \
    row(virtual_export, cuMemExportToShareableHandle, hipMemExportToShareableHandle, (void* shared, GpuHandle handle, int kind, unsigned long long flags)) \
    row(virtual_import, cuMemImportFromShareableHandle, hipMemImportFromShareableHandle, (GpuHandle* handle, void* shared, int kind)) \
    row(virtual_retain, cuMemRetainAllocationHandle, hipMemRetainAllocationHandle, (GpuHandle* handle, GpuAddress address)) \
    row(address_range, cuMemGetAddressRange_v2, hipMemGetAddressRange, (GpuAddress* begin, std::size_t* bytes, GpuAddress address))

// row(member, number in CUDA, number in HIP): attributes of a device
#define JALI_GPU_ATTRIBUTES(row) \
    row(warp_size, 10, 87) \
    row(multiprocessors, 16, 63) \
    row(l2_bytes, 38, 19) \
    row(threads_per_multiprocessor, 39, 57) \
    row(major, 75, 23) \
    row(minor, 76, 61) \
    row(shared_bytes_per_block, 8, 74) \
    row(pci_domain, 50, 69) \
    row(pci_bus, 33, 67) \
    row(pci_device, 34, 68)
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
    GpuKind kind;
    std::string library; // the file that was loaded
    int version = 0;     // of the driver, in its own numbering

#define JALI_DECLARE(member, cuda, hip, parameters) int(*member) parameters = nullptr;
    JALI_GPU_FUNCTIONS(JALI_DECLARE)
    JALI_GPU_OPTIONAL_FUNCTIONS(JALI_DECLARE)
#undef JALI_DECLARE
    // CUDA's alone, since version 11.8; null where it is not there.
    int (*launch_with)(const CudaLaunch* launch, void* function, void** parameters, void** extra) = nullptr;
    std::string lacking; // functions that could be missing and are

    // Memory of a file descriptor, which stays the caller's; the driver's answer.
    int import_descriptor(GpuHandle* handle, int descriptor) const;

    // The driver of this kind, loaded and initialised once; JALI_CUDA_DRIVER and JALI_HIP_DRIVER name another
    // file than the usual one. Throws GpuError that says what was looked for and what is missing.
    static const GpuApi& get(GpuKind kind);

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
