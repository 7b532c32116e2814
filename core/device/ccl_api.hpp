// The functions of a library of collectives on GPUs, found at run time: NCCL for CUDA, RCCL for HIP.
//
// Both have the same names, numbers of types and of operations (nccl.h of NVIDIA/nccl and of ROCm/rccl), so
// one table serves both. Nothing is linked and no vendor's header is used; what is declared here is what jali
// calls. All functions return a result number, 0 for success. Streams are those of the driver. RCCL has never
// run on hardware.
#pragma once

#include "device/gpu_api.hpp"

#include <cstddef>
#include <string>

namespace jali {

struct CclId { // what ranks must share before they can become a group
    char bytes[128];
};

using CclHandle = void*; // of a communicator
using CclWindow = void*; // of memory registered with a communicator

// clang-format off

// entry(member, name, parameters): what every version since 2.10 has
#define JALI_CCL_FUNCTIONS(entry)                                                                              \
    entry(get_version, ncclGetVersion, (int* version))                                                         \
    entry(get_id, ncclGetUniqueId, (CclId* id))                                                                \
    entry(init_rank, ncclCommInitRank, (CclHandle* comm, int ranks, CclId id, int rank))                       \
    entry(destroy, ncclCommDestroy, (CclHandle comm))                                                          \
    entry(abort, ncclCommAbort, (CclHandle comm))                                                              \
    entry(async_error, ncclCommGetAsyncError, (CclHandle comm, int* error))                                    \
    entry(group_start, ncclGroupStart, ())                                                                     \
    entry(group_end, ncclGroupEnd, ())                                                                         \
    entry(send, ncclSend,                                                                                      \
        (const void* from, std::size_t count, int type, int peer, CclHandle comm, void* stream))             \
    entry(receive, ncclRecv,                                                                                   \
        (void* to, std::size_t count, int type, int peer, CclHandle comm, void* stream))                     \
    entry(all_reduce, ncclAllReduce,                                                                           \
        (const void* from, void* to, std::size_t count, int type, int operation, CclHandle comm,             \
         void* stream))                                                                                      \
    entry(reduce_scatter, ncclReduceScatter,                                                                   \
        (const void* from, void* to, std::size_t count, int type, int operation, CclHandle comm,             \
         void* stream))                                                                                      \
    entry(all_gather, ncclAllGather,                                                                           \
        (const void* from, void* to, std::size_t count, int type, CclHandle comm, void* stream))             \
    entry(broadcast, ncclBroadcast,                                                                            \
        (const void* from, void* to, std::size_t count, int type, int root, CclHandle comm, void* stream))   \
    entry(reduce, ncclReduce,                                                                                  \
        (const void* from, void* to, std::size_t count, int type, int operation, int root, CclHandle comm,   \
         void* stream))

// entry(member, name in NCCL, parameters): null where the loaded version lacks it (NCCL has windows since
// 2.27, the others since 2.28)
#define JALI_CCL_NEWER(entry)                                                                                  \
    entry(window_register, ncclCommWindowRegister,                                                             \
        (CclHandle comm, void* memory, std::size_t bytes, CclWindow* window, int flags))                     \
    entry(window_deregister, ncclCommWindowDeregister, (CclHandle comm, CclWindow window))                     \
    entry(all_to_all, ncclAlltoAll,                                                                            \
        (const void* from, void* to, std::size_t count, int type, CclHandle comm, void* stream))             \
    entry(gather, ncclGather,                                                                                  \
        (const void* from, void* to, std::size_t count, int type, int root, CclHandle comm, void* stream))   \
    entry(scatter, ncclScatter,                                                                                \
        (const void* from, void* to, std::size_t count, int type, int root, CclHandle comm, void* stream))

// clang-format on

struct CclApi {
    const GpuVendor& vendor;
    std::string library = {}; // the file that was loaded
    int version = 0;          // major * 10000 + minor * 100 + patch

#define JALI_DECLARE(member, name, parameters) int(*member) parameters = nullptr;
    JALI_CCL_FUNCTIONS(JALI_DECLARE)
#undef JALI_DECLARE
#define JALI_DECLARE(member, name, parameters) int(*member) parameters = nullptr;
    JALI_CCL_NEWER(JALI_DECLARE)
#undef JALI_DECLARE
    const char* (*error_text)(int error) = nullptr;      // never null after get()
    const char* (*last_error)(CclHandle comm) = nullptr; // since 2.13

    // The library for devices of this vendor, loaded once. The vendor's setting names another file than the
    // usual ones; `found` is a path known to the caller, empty for the suggested ones. Throws GpuError that
    // names the searched files and what to install.
    static const CclApi& get(const GpuVendor& vendor, const std::string& found);

    const std::string& name() const { return vendor.ccl.title; }
    std::string version_text() const; // "2.28.3"
    // The library's text for an error, with its last recorded details, if any.
    std::string text_of(int error, CclHandle comm) const;
};

constexpr int ccl_success = 0, ccl_in_progress = 7;
constexpr int ccl_symmetric = 1; // flag of a window: the same place in memory of the same size on all ranks

// Numbers of element types and of operations in both libraries.
enum CclType : int {
    ccl_int8 = 0,
    ccl_uint8 = 1,
    ccl_int32 = 2,
    ccl_uint32 = 3,
    ccl_int64 = 4,
    ccl_uint64 = 5,
    ccl_fp16 = 6,
    ccl_fp32 = 7,
    ccl_fp64 = 8,
    ccl_bf16 = 9
};
enum CclOperation : int { ccl_sum = 0, ccl_prod = 1, ccl_max = 2, ccl_min = 3, ccl_avg = 4 };

} // namespace jali
