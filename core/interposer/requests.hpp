// Requests whose messages lie in staged memory, until MPI says that they are complete.
//
// The program has MPI's own requests, so lists may be mixed, and statuses are MPI's. A request whose handle
// MPI gives to several (those that are complete from the start) is ended here at once.
#pragma once

#include "interposer/mpi_functions.hpp"
#include "interposer/staging.hpp"

#include <memory>

namespace jali::interposer {

// After a call that has begun, or prepared, something on staged memory. Throws GpuError.
void keep_until_complete(H request, std::unique_ptr<Staging> staging, bool prepared);

// What MPI reads until the request is complete, beside the staged memory that it may have.
void keep_alive(H request, std::shared_ptr<void> arrays, bool prepared);

bool any_kept() noexcept;
bool is_kept(H request) noexcept;

// MPI says so; `status` is the one it gave, null where it failed: then nothing is copied. Throws GpuError.
void completed(H request, const void* status);
void seen_complete(H request, const void* status); // likewise, of one that the program still has
void started(H request); // one that was prepared, about to start: what is sent is read again
bool give_up(H request); // the program has freed it; true: it is ours to wait for
void end_requests();     // before MPI_Finalize: waits for those that were given up

} // namespace jali::interposer
