// Requests whose messages are in staged memory, until MPI reports their completion.
//
// The program has MPI's own requests, so lists may be mixed, and statuses are MPI's. While a call may
// complete a request its entry is taken out: MPI may reuse its handle for another thread's request before
// this thread reads the entry. A request that is complete when it is made, whose handle MPI gives to several,
// is completed at once.
#pragma once

#include "interposer/mpi_functions.hpp"
#include "interposer/staging.hpp"

#include <memory>
#include <optional>

namespace jali::interposer {

struct KeptRequest {
    std::unique_ptr<Staging> staging; // null: there is none
    std::shared_ptr<void> arrays;     // arrays that MPI reads
    bool prepared = false;
    bool done = false; // it is not active: received data have been written back

    // Called on completion with MPI's `status`. Throws GpuError.
    void complete(const void* status);
};

// After a call that has begun, or prepared, something on staged memory. Throws GpuError.
void keep_until_complete(H request, KeptRequest kept);

bool any_kept() noexcept;
std::optional<KeptRequest> take(H request); // none: it is not ours
void put_back(H request, KeptRequest kept);

void started(H request);                   // a prepared request, before its start: sent data are read again
void give_up(H request, KeptRequest kept); // the program has freed it while it was under way
void end_requests() noexcept;              // before MPI_Finalize: waits for those that were given up

} // namespace jali::interposer
