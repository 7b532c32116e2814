// Requests whose messages lie in staged memory, until MPI says that they are complete.
//
// The program has MPI's own requests, so lists may be mixed, and statuses are MPI's. While a call may
// complete a request its entry is taken out: MPI may give its handle to another thread's request before this
// one has looked. A request that is complete when it is made, whose handle MPI gives to several, is ended at
// once.
#pragma once

#include "interposer/mpi_functions.hpp"
#include "interposer/staging.hpp"

#include <memory>
#include <optional>

namespace jali::interposer {

struct KeptRequest {
    std::unique_ptr<Staging> staging; // null: there is none
    std::shared_ptr<void> arrays;     // what else MPI reads
    bool prepared = false;
    bool done = false; // it is not under way: what was received has been written back

    // MPI says that it is complete; `status` is the one it gave. Throws GpuError.
    void complete(const void* status);
};

// After a call that has begun, or prepared, something on staged memory. Throws GpuError.
void keep_until_complete(H request, KeptRequest kept);

bool any_kept() noexcept;
std::optional<KeptRequest> take(H request); // none: it is not ours
void put_back(H request, KeptRequest kept);

void started(H request); // one that was prepared, about to start: what is sent is read again
void give_up(H request, KeptRequest kept); // the program has freed it while it was under way
void end_requests() noexcept;              // before MPI_Finalize: waits for those that were given up

} // namespace jali::interposer
