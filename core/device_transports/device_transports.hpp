// Transports of bytes between devices: the part of an entry that halos and messages share.
#pragma once

#include "peers/ccl_group.hpp"
#include "peers/symmetric_buffer.hpp"
#include "peers/transport.hpp"

namespace jali {

inline constexpr Transport remote_write{
    "remote-write",
    "stores of a kernel",
    {.recordable = true, .one_sided = true, .maps_memory = true, .stores = true},
    SymmetricBuffer::why_not};

inline constexpr Transport array_write{
    "array-write",
    "stores of a kernel into arrays",
    {.recordable = true, .one_sided = true, .maps_memory = true, .stores = true},
    SymmetricBuffer::why_not};

inline constexpr Transport copy_engine{"copy-engine",
                                       "a copy engine",
                                       {.recordable = true, .one_sided = true, .maps_memory = true},
                                       SymmetricBuffer::why_not};

inline constexpr Transport vendors_library{"",
                                           "the vendor's library, on the stream",
                                           {.recordable = true, .device_per_rank = true},
                                           [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
                                               return CclGroup::why_not(communicator, gpu);
                                           }};

inline constexpr Transport librarys_windows{
    "-windows",
    "the vendor's library, on the stream, through symmetric windows of its own",
    {.recordable = true, .device_per_rank = true},
    [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
        std::string why = CclGroup::why_not(communicator, gpu);
        return why.empty() ? CclGroup::shared(communicator, gpu)->why_no_windows() : why;
    }};

inline constexpr Transport librarys_streams{"-streams",
                                            "the vendor's library, in parts on several streams",
                                            {.recordable = true, .device_per_rank = true},
                                            [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
                                                return CclGroup::why_not(communicator, gpu);
                                            }};

inline constexpr Transport gpu_aware_mpi{"gpu-aware-mpi",
                                         "an MPI library that takes addresses of devices",
                                         {.host_waits = true},
                                         [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
                                             return communicator.why_not_from_devices(gpu->kind());
                                         }};

inline constexpr Transport host_staged{
    "host-staged",
    "messages by way of pinned host memory",
    {.host_waits = true},
    [](const std::shared_ptr<Gpu>&, Communicator&) { return std::string(); }};

} // namespace jali
