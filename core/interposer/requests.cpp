#include "interposer/requests.hpp"

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace jali::interposer {

namespace {

struct GivenUp {
    H request;
    KeptRequest kept;
};

std::mutex mutex; // of all below
std::unordered_map<H, KeptRequest> kept;
std::vector<GivenUp> given_up;
std::atomic<std::size_t> count = 0;

// Those that the program has freed and that have ended since.
void check_given_up(bool wait) {
    std::vector<GivenUp> all;
    {
        std::lock_guard lock(mutex);
        all.swap(given_up);
    }
    std::vector<GivenUp> left;
    for (GivenUp& each : all) {
        MpiStatus status;
        int done = 0;
        std::byte handle[sizeof(H)];
        mpi().put_handle(handle, 0, each.request);
        const int code = wait ? mpi().Wait(handle, &status) : mpi().Test(handle, &done, &status);
        if (code == 0 && !wait && !done) {
            left.push_back(std::move(each));
            continue;
        }
        if (code == 0) each.kept.complete(&status);
        if (each.kept.prepared) mpi().Request_free(handle);
    }
    std::lock_guard lock(mutex);
    for (GivenUp& each : left) given_up.push_back(std::move(each));
}

} // namespace

void KeptRequest::complete(const void* status) {
    int cancelled = 0;
    if (std::exchange(done, true) || !staging) return;
    if (mpi().Test_cancelled(status, &cancelled) == 0 && cancelled) return;
    std::int64_t bytes = 0;
    staging->write_back(mpi().Get_elements_x(status, mpi().byte, &bytes) == 0 ? bytes : -1);
}

void keep_until_complete(H request, KeptRequest made) {
    request = mpi().handle(request);
    made.done = made.prepared; // not under way yet
    if (!made.prepared && request != mpi().request_null) {
        MpiStatus status;
        int done = 0;
        // The call that completes it reports an error.
        if (mpi().Request_get_status(request, &done, &status) == 0 && done) return made.complete(&status);
    }
    check_given_up(false);
    put_back(request, std::move(made));
}

bool any_kept() noexcept {
    return count > 0;
}

std::optional<KeptRequest> take(H request) {
    std::lock_guard lock(mutex);
    const auto found = kept.find(mpi().handle(request));
    if (found == kept.end()) return std::nullopt;
    std::optional<KeptRequest> taken = std::move(found->second);
    kept.erase(found);
    count = kept.size();
    return taken;
}

void put_back(H request, KeptRequest entry) {
    std::lock_guard lock(mutex);
    kept.insert_or_assign(mpi().handle(request), std::move(entry));
    count = kept.size();
}

void started(H request) {
    std::optional<KeptRequest> taken = take(request);
    if (!taken) return;
    taken->done = false;
    if (taken->staging) taken->staging->read();
    put_back(request, std::move(*taken));
}

void give_up(H request, KeptRequest entry) {
    std::lock_guard lock(mutex);
    given_up.push_back({request, std::move(entry)});
}

void end_requests() noexcept {
    try {
        check_given_up(true);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "jali: a message whose request was freed: %s\n", error.what());
    }
}

} // namespace jali::interposer
