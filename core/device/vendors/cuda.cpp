// NVIDIA's devices: the CUDA driver (libcuda), NVRTC, NCCL.
#include "device/vendor.hpp"

namespace jali {

GpuVendor cuda_vendor() {
    GpuVendor vendor;
    vendor.name = "cuda";
    vendor.platform = "CUDA";
    vendor.driver = {"NVIDIA's driver", {"libcuda.so.1", "libcuda.so"}, "cuda_driver", ""};
    vendor.functions = {
        {"init", "cuInit"},
        {"driver_version", "cuDriverGetVersion"},
        {"device_count", "cuDeviceGetCount"},
        {"device_get", "cuDeviceGet"},
        {"device_name", "cuDeviceGetName"},
        {"device_attribute", "cuDeviceGetAttribute"},
        {"device_memory", "cuDeviceTotalMem_v2"},
        {"device_uuid", "cuDeviceGetUuid"},
        {"context_retain", "cuDevicePrimaryCtxRetain"},
        {"context_set", "cuCtxSetCurrent"},
        {"context_current", "cuCtxGetCurrent"},
        {"context_synchronize", "cuCtxSynchronize"},
        {"memory_info", "cuMemGetInfo_v2"},
        {"allocate", "cuMemAlloc_v2"},
        {"release", "cuMemFree_v2"},
        {"host_allocate", "cuMemHostAlloc"},
        {"host_release", "cuMemFreeHost"},
        {"copy_in", "cuMemcpyHtoDAsync_v2"},
        {"copy_out", "cuMemcpyDtoHAsync_v2"},
        {"copy", "cuMemcpyDtoDAsync_v2"},
        {"fill", "cuMemsetD8Async"},
        {"stream_create", "cuStreamCreateWithPriority"},
        {"stream_synchronize", "cuStreamSynchronize"},
        {"stream_query", "cuStreamQuery"},
        {"stream_wait", "cuStreamWaitEvent"},
        {"stream_priorities", "cuCtxGetStreamPriorityRange"},
        {"host_function", "cuLaunchHostFunc"},
        {"event_create", "cuEventCreate"},
        {"event_destroy", "cuEventDestroy_v2"},
        {"event_record", "cuEventRecord"},
        {"event_query", "cuEventQuery"},
        {"event_synchronize", "cuEventSynchronize"},
        {"event_elapsed", "cuEventElapsedTime"},
        {"module_load", "cuModuleLoadData"},
        {"module_function", "cuModuleGetFunction"},
        {"function_attribute", "cuFuncGetAttribute"},
        {"occupancy", "cuOccupancyMaxActiveBlocksPerMultiprocessor"},
        {"launch", "cuLaunchKernel"},
        {"capture_begin", "cuStreamBeginCapture_v2"},
        {"is_capturing", "cuStreamIsCapturing"},
        {"exchange_capture_mode", "cuThreadExchangeStreamCaptureMode"},
        {"capture_end", "cuStreamEndCapture"},
        {"graph_instantiate", "cuGraphInstantiateWithFlags"},
        {"graph_launch", "cuGraphLaunch"},
        {"graph_instance_destroy", "cuGraphExecDestroy"},
        {"graph_destroy", "cuGraphDestroy"},
        {"can_access_peer", "cuDeviceCanAccessPeer"},
        {"enable_peer", "cuCtxEnablePeerAccess"},
        {"ipc_export", "cuIpcGetMemHandle"},
        {"ipc_open", "cuIpcOpenMemHandle_v2"},
        {"ipc_close", "cuIpcCloseMemHandle"},
        {"pointer_attribute", "cuPointerGetAttribute"},
        {"error_name", "cuGetErrorName"},
        {"error_text", "cuGetErrorString"},
        {"virtual_create", "cuMemCreate"},
        {"virtual_release", "cuMemRelease"},
        {"virtual_reserve", "cuMemAddressReserve"},
        {"virtual_unreserve", "cuMemAddressFree"},
        {"virtual_map", "cuMemMap"},
        {"virtual_unmap", "cuMemUnmap"},
        {"virtual_access", "cuMemSetAccess"},
        {"virtual_granularity", "cuMemGetAllocationGranularity"},
        {"virtual_export", "cuMemExportToShareableHandle"},
        {"virtual_import", "cuMemImportFromShareableHandle"},
        {"virtual_retain", "cuMemRetainAllocationHandle"},
        {"address_range", "cuMemGetAddressRange_v2"},
        {"launch_with", "cuLaunchKernelEx"},
        {"peer_attribute", "cuDeviceGetP2PAttribute"},
    };
    vendor.attributes = {
        {"warp_size", 10},
        {"multiprocessors", 16},
        {"l2_bytes", 38},
        {"threads_per_multiprocessor", 39},
        {"major", 75},
        {"minor", 76},
        {"shared_bytes_per_block", 8},
        {"pci_domain", 50},
        {"pci_bus", 33},
        {"pci_device", 34},
        {"network_reads_virtual", 110},
    };
    vendor.link = "NVLink";
    vendor.architecture = "sm_";
    vendor.oldest = 12000; // has all functions of the table
    vendor.compiler.library = {
        "NVRTC",
        {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"},
        "nvrtc",
        "pip install 'jali[cuda]' (or nvidia-cuda-nvrtc of your driver's CUDA version), or set JALI_NVRTC to "
        "the library",
        {"nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*"}};
    vendor.compiler.functions = {
        {"version", "nvrtcVersion"},        {"create", "nvrtcCreateProgram"},
        {"compile", "nvrtcCompileProgram"}, {"log_size", "nvrtcGetProgramLogSize"},
        {"log", "nvrtcGetProgramLog"},      {"code_size", "nvrtcGetCUBINSize"},
        {"code", "nvrtcGetCUBIN"},          {"destroy", "nvrtcDestroyProgram"},
    };
    vendor.compiler.options = {
        "--std=c++17",
        "--fmad=false",
        "--device-as-default-execution-space", // everything in a kernel's text is for the device
        "--device-int128",
        "--diag-suppress=177",
    };
    vendor.compiler.target = "--gpu-architecture=";
    vendor.compiler.bounds_blocks = true;
    vendor.ccl = {
        "NCCL",
        {"libnccl.so.2", "libnccl.so"},
        "nccl",
        "pip install nvidia-nccl-cu12 or nvidia-nccl-cu13 (as the driver's CUDA version is), load the "
        "machine's module, or set JALI_NCCL to the library",
        {"nvidia/nccl/lib/libnccl.so*"}};
    vendor.mpi_queries = {"MPIX_Query_cuda_support"};
    vendor.mpi_number = 0;
    vendor.mpi_memory_kind = "cuda";
    vendor.mpi_setting = "mv2_use_cuda";
    vendor.dlpack = 2;
    vendor.default_stream = 1;
    vendor.named_streams = {1, 2};
    return vendor;
}

} // namespace jali
