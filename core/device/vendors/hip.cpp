// AMD's devices: the HIP runtime (libamdhip64), hipRTC, RCCL. Never run on hardware.
#include "device/vendor.hpp"

namespace jali {

GpuVendor hip_vendor() {
    GpuVendor vendor;
    vendor.name = "hip";
    vendor.platform = "HIP";
    vendor.driver = {
        "AMD's HIP runtime",
        {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"},
        "hip_driver",
        ""};
    vendor.functions = {
        {"init", "hipInit"},
        {"driver_version", "hipDriverGetVersion"},
        {"device_count", "hipGetDeviceCount"},
        {"device_get", "hipDeviceGet"},
        {"device_name", "hipDeviceGetName"},
        {"device_attribute", "hipDeviceGetAttribute"},
        {"device_memory", "hipDeviceTotalMem"},
        {"device_uuid", "hipDeviceGetUuid"},
        {"context_retain", "hipDevicePrimaryCtxRetain"},
        {"context_set", "hipCtxSetCurrent"},
        {"context_current", "hipCtxGetCurrent"},
        {"context_synchronize", "hipDeviceSynchronize"},
        {"memory_info", "hipMemGetInfo"},
        {"allocate", "hipMalloc"},
        {"allocate_with", "hipExtMallocWithFlags"},
        {"release", "hipFree"},
        {"host_allocate", "hipHostMalloc"},
        {"host_release", "hipHostFree"},
        {"copy_in", "hipMemcpyHtoDAsync"},
        {"copy_out", "hipMemcpyDtoHAsync"},
        {"copy", "hipMemcpyDtoDAsync"},
        {"fill", "hipMemsetD8Async"},
        {"stream_create", "hipStreamCreateWithPriority"},
        {"stream_synchronize", "hipStreamSynchronize"},
        {"stream_query", "hipStreamQuery"},
        {"stream_wait", "hipStreamWaitEvent"},
        {"stream_priorities", "hipDeviceGetStreamPriorityRange"},
        {"host_function", "hipLaunchHostFunc"},
        {"event_create", "hipEventCreateWithFlags"},
        {"event_destroy", "hipEventDestroy"},
        {"event_record", "hipEventRecord"},
        {"event_query", "hipEventQuery"},
        {"event_synchronize", "hipEventSynchronize"},
        {"event_elapsed", "hipEventElapsedTime"},
        {"module_load", "hipModuleLoadData"},
        {"module_function", "hipModuleGetFunction"},
        {"function_attribute", "hipFuncGetAttribute"},
        {"occupancy", "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"},
        {"launch", "hipModuleLaunchKernel"},
        {"capture_begin", "hipStreamBeginCapture"},
        {"is_capturing", "hipStreamIsCapturing"},
        {"exchange_capture_mode", "hipThreadExchangeStreamCaptureMode"},
        {"capture_end", "hipStreamEndCapture"},
        {"graph_instantiate", "hipGraphInstantiateWithFlags"},
        {"graph_launch", "hipGraphLaunch"},
        {"graph_instance_destroy", "hipGraphExecDestroy"},
        {"graph_destroy", "hipGraphDestroy"},
        {"can_access_peer", "hipDeviceCanAccessPeer"},
        {"enable_peer", "hipCtxEnablePeerAccess"},
        {"ipc_export", "hipIpcGetMemHandle"},
        {"ipc_open", "hipIpcOpenMemHandle"},
        {"ipc_close", "hipIpcCloseMemHandle"},
        {"pointer_attribute", "hipPointerGetAttribute"},
        {"error_name", "hipDrvGetErrorName"},
        {"error_text", "hipDrvGetErrorString"},
        {"virtual_create", "hipMemCreate"},
        {"virtual_release", "hipMemRelease"},
        {"virtual_reserve", "hipMemAddressReserve"},
        {"virtual_unreserve", "hipMemAddressFree"},
        {"virtual_map", "hipMemMap"},
        {"virtual_unmap", "hipMemUnmap"},
        {"virtual_access", "hipMemSetAccess"},
        {"virtual_granularity", "hipMemGetAllocationGranularity"},
        {"virtual_export", "hipMemExportToShareableHandle"},
        {"virtual_import", "hipMemImportFromShareableHandle"},
        {"virtual_retain", "hipMemRetainAllocationHandle"},
        {"address_range", "hipMemGetAddressRange"},
        {"peer_attribute", "hipDeviceGetP2PAttribute"},
    };
    vendor.attributes = {
        {"warp_size", 87},
        {"multiprocessors", 63},
        {"l2_bytes", 19},
        {"threads_per_multiprocessor", 57},
        {"major", 23},
        {"minor", 61},
        {"shared_bytes_per_block", 74},
        {"pci_domain", 69},
        {"pci_bus", 67},
        {"pci_device", 68},
    };
    vendor.peer_attributes = 0;
    vendor.link = "xGMI";
    vendor.major_unit = 10000000;
    vendor.minor_unit = 100000;
    vendor.descriptors_by_value = 70100000;
    vendor.fine_grained = 1; // hipDeviceMallocFinegrained
    // hipRTC was a part of the runtime before ROCm 6
    vendor.compiler.library = {"hipRTC",
                               {"libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6",
                                "/opt/rocm/lib/libhiprtc.so", "libamdhip64.so", "libamdhip64.so.5"},
                               "hiprtc",
                               "install ROCm's hipRTC, or set JALI_HIPRTC to the library"};
    vendor.compiler.functions = {
        {"version", "hiprtcVersion"},        {"create", "hiprtcCreateProgram"},
        {"compile", "hiprtcCompileProgram"}, {"log_size", "hiprtcGetProgramLogSize"},
        {"log", "hiprtcGetProgramLog"},      {"code_size", "hiprtcGetCodeSize"},
        {"code", "hiprtcGetCode"},           {"destroy", "hiprtcDestroyProgram"},
    };
    vendor.compiler.options = {
        "-std=c++17",
        "-ffp-contract=off",
        "-O3",
    };
    vendor.compiler.target = "--offload-arch=";
    vendor.ccl = {"RCCL",
                  {"librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"},
                  "rccl",
                  "install ROCm's RCCL, or set JALI_RCCL to the library"};
    vendor.ccl_functions = {{"all_to_all", "ncclAllToAll"}};
    vendor.mpi_queries = {"MPIX_Query_rocm_support", "MPIX_Query_hip_support"};
    vendor.mpi_number = 2;
    vendor.mpi_memory_kind = "rocm";
    vendor.mpi_setting = "mv2_use_rocm";
    vendor.dlpack = 10;
    vendor.default_stream = 0;
    vendor.named_streams = {0};
    vendor.note = "never run on AMD hardware";
    return vendor;
}

} // namespace jali
