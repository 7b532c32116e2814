#include "interposer/requests.hpp"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace jali::interposer {

namespace {

struct Kept {
    std::unique_ptr<Staging> staging;
    bool prepared;
    bool done = false; // written back already
    std::shared_ptr<void> arrays = nullptr;
};

std::mutex mutex;
std::unordered_map<H, Kept> kept;
std::vector<H> given_up;
std::atomic<std::size_t> count = 0;

struct alignas(16) AnyStatus {
    std::byte bytes[128];
};

void write_back(Staging& staging, const void* status) {
    int cancelled = 0;
    std::int64_t bytes = 0;
    if (mpi().Test_cancelled(status, &cancelled) == 0 && cancelled) return;
    staging.write_back(mpi().Get_elements_x(status, mpi().byte, &bytes) == 0 ? bytes : -1);
}

// With the mutex held: those that the program has freed and that have ended since.
void look_after_given_up(bool wait) {
    std::size_t left = 0;
    for (H request : given_up) {
        AnyStatus status;
        int done = 0;
        std::byte handle[sizeof(H)];
        mpi().put_handle(handle, 0, request);
        if (wait ? mpi().Wait(handle, &status) != 0 : mpi().Test(handle, &done, &status) != 0) done = 1;
        if (wait || done) {
            const auto found = kept.find(request);
            if (found != kept.end()) {
                if (found->second.staging) write_back(*found->second.staging, &status);
                kept.erase(found);
            }
        } else {
            given_up[left++] = request;
        }
    }
    given_up.resize(left);
    count = kept.size();
}

} // namespace

void keep_until_complete(H request, std::unique_ptr<Staging> staging, bool prepared) {
    request = mpi().handle(request);
    if (!prepared) {
        if (request == mpi().request_null) return staging->write_back(0);
        AnyStatus status;
        int done = 0;
        MpiAbi::find("").check(mpi().Request_get_status(request, &done, &status), "MPI_Request_get_status");
        if (done) return write_back(*staging, &status);
    }
    std::lock_guard lock(mutex);
    if (!given_up.empty()) look_after_given_up(false);
    Kept& entry = kept[request];
    entry.staging = std::move(staging);
    entry.prepared = entry.done = prepared; // not under way yet
    count = kept.size();
}

void keep_alive(H request, std::shared_ptr<void> arrays, bool prepared) {
    request = mpi().handle(request);
    AnyStatus status;
    int done = 0;
    if (!prepared && mpi().Request_get_status(request, &done, &status) == 0 && done) return;
    std::lock_guard lock(mutex);
    Kept& entry = kept[request];
    entry.prepared = entry.done = prepared;
    entry.arrays = std::move(arrays);
    count = kept.size();
}

bool any_kept() noexcept {
    return count > 0;
}

bool is_kept(H request) noexcept {
    std::lock_guard lock(mutex);
    return kept.contains(request);
}

void completed(H request, const void* status) {
    std::unique_ptr<Staging> ended;
    Staging* staging = nullptr;
    {
        std::lock_guard lock(mutex);
        const auto found = kept.find(request);
        if (found == kept.end()) return;
        if (!std::exchange(found->second.done, true)) staging = found->second.staging.get();
        if (!found->second.prepared) {
            ended = std::move(found->second.staging);
            kept.erase(found);
            count = kept.size();
        }
    }
    if (staging != nullptr && status != nullptr) write_back(*staging, status);
}

void seen_complete(H request, const void* status) {
    Staging* staging = nullptr;
    {
        std::lock_guard lock(mutex);
        const auto found = kept.find(request);
        if (found != kept.end() && !std::exchange(found->second.done, true))
            staging = found->second.staging.get();
    }
    if (staging != nullptr) write_back(*staging, status);
}

void started(H request) {
    std::lock_guard lock(mutex);
    const auto found = kept.find(request);
    if (found == kept.end()) return;
    found->second.done = false;
    if (found->second.staging) found->second.staging->read();
}

bool give_up(H request) {
    std::lock_guard lock(mutex);
    const auto found = kept.find(request);
    if (found == kept.end()) return false;
    if (found->second.prepared) { // MPI frees it when it has ended: wait for that, as its memory goes
        AnyStatus status;
        std::byte handle[sizeof(H)];
        mpi().put_handle(handle, 0, request);
        mpi().Wait(handle, &status); // at once where it is not under way
        if (!found->second.done && found->second.staging) write_back(*found->second.staging, &status);
        kept.erase(found);
        count = kept.size();
        return false;
    }
    given_up.push_back(request);
    return true;
}

void end_requests() {
    std::lock_guard lock(mutex);
    look_after_given_up(true);
}

} // namespace jali::interposer
