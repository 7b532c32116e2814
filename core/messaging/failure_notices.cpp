#include "messaging/failure_notices.hpp"
#include "messaging/wait_loop.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <limits>
#include <thread>

#include <sched.h>

namespace jali {

namespace {

// A rank's last notice takes precedence over its death: it may be in transit when the process has ended.
constexpr int calls_for_last_words = 5;

std::int64_t nanoseconds_now() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

} // namespace

MpiNotices::MpiNotices(const MpiAbi& mpi, MpiHandle communicator, int rank, int size)
    : mpi_(mpi), communicator_(communicator), rank_(rank), size_(size),
      incoming_(std::make_unique<std::vector<Notice>>(size)), requests_(size), left_at_(size) {
    for (int k = 1; k < size; ++k) {
        const int from = (rank + k) % size;
        mpi_.check(mpi_.Irecv(&(*incoming_)[from], sizeof(Notice), mpi_.byte_type, from, 0, communicator_,
                              &requests_[from]),
                   "MPI_Irecv");
        waiting_for_.push_back(from);
    }
}

void MpiNotices::watch_processes(std::span<const ProcessToken> processes) {
    for (int from : waiting_for_) failure_detector_.enlist(from, processes[from]);
}

MpiNotices::~MpiNotices() {
    if (!listening()) return;
    if (!mpi_.finalized()) stop_listening();
    if (listening()) static_cast<void>(incoming_.release()); // MPI may still write to it
}

void MpiNotices::fail(const std::string& cause) noexcept {
    const std::lock_guard lock(mutex_);
    if (failed_ || leaving_) return;
    has_failed(rank_, cause);
    spoken_ = true;
    send_notice(Notice::failed, cause, rank_);
}

void MpiNotices::free() {
    const std::lock_guard lock(mutex_);
    if (listening()) stop_listening();
    mpi_.check(mpi_.Comm_free(&communicator_), "MPI_Comm_free");
}

double MpiNotices::seconds_since_left(int rank) const {
    return static_cast<double>(nanoseconds_now() - left_at_[rank]) * 1e-9;
}

void MpiNotices::stopping() noexcept {
    const std::lock_guard lock(mutex_);
    if (spoken_ || leaving_ || mpi_.finalized()) return;
    spoken_ = true;
    send_notice(Notice::stops, "", rank_);
}

bool MpiNotices::all_have_spoken() {
    const std::lock_guard lock(mutex_);
    if (mpi_.finalized()) return true;
    read_all();
    return waiting_for_.empty();
}

std::vector<int> MpiNotices::failed_alike(const std::string& cause) {
    const std::lock_guard lock(mutex_);
    if (!mpi_.finalized()) read_all();
    std::vector<int> alike;
    for (int rank : failures_)
        if (std::strncmp((*incoming_)[rank].text, cause.c_str(), sizeof(Notice::text) - 1) == 0)
            alike.push_back(rank);
    return alike;
}

void MpiNotices::leave() noexcept {
    const std::lock_guard lock(mutex_);
    if (leaving_ || failed_ || mpi_.finalized()) return;
    leaving_ = true;
    send_notice(Notice::left, "", rank_);
}

void MpiNotices::await_others_leaving() {
    if (mpi_.finalized()) return;
    WaitLoop wait_loop(std::numeric_limits<double>::infinity()); // the others may have hours of work left
    std::unique_lock lock(mutex_);
    for (int round = 0; listening() && !failed_; ++round) {
        read_all();
        detect_failures();
        lock.unlock();
        if (round < 1000)
            sched_yield();
        else
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        wait_loop.check_clock([] { return std::string(); });
        lock.lock();
    }
    if (listening()) stop_listening();
}

void MpiNotices::stop_listening() {
    for (int from : waiting_for_) {
        failure_detector_.forget(from);
        mpi_.Cancel(&requests_[from]);
    }
    std::erase_if(waiting_for_, [this](int from) {
        for (int i = 0; i < 1000; ++i) {
            int done = 0;
            MpiStatus status;
            if (mpi_.Test(&requests_[from], &done, &status) != 0 || done) return true;
        }
        return false;
    });
}

void MpiNotices::read_all() {
    for (std::size_t k = waiting_for_.size(); k > 0; --k) read_from(k - 1);
}

// Sets failed_ last, so that a thread that reads failed_ without the mutex sees the rank and the cause.
void MpiNotices::has_failed(int rank, const std::string& cause) {
    failed_rank_ = rank;
    cause_ = cause;
    failed_ = true;
}

void MpiNotices::read() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !listening()) return; // another thread does
    next_ = next_ + 1 < waiting_for_.size() ? next_ + 1 : 0;
    read_from(next_);
    detect_failures();
}

void MpiNotices::detect_failures() {
    if (failed_) return;
    for (const auto& [rank, calls] : failure_detector_.call()) {
        const auto at = std::find(waiting_for_.begin(), waiting_for_.end(), rank) - waiting_for_.begin();
        const bool spoke = read_from(static_cast<std::size_t>(at));
        if (failed_) return;
        if (spoke || calls < calls_for_last_words) continue;
        has_failed(rank, "its process has died");
        if (!leaving_) { // ranks of other hosts cannot detect it
            spoken_ = true;
            send_notice(Notice::failed, cause_, rank);
        }
        return;
    }
}

bool MpiNotices::read_from(std::size_t index) {
    const int from = waiting_for_[index];
    int done = 0;
    MpiStatus status;
    mpi_.check(mpi_.Test(&requests_[from], &done, &status), "listening for failures");
    if (!done) return false;
    failure_detector_.forget(from);
    waiting_for_.erase(waiting_for_.begin() + static_cast<std::ptrdiff_t>(index));
    const Notice& notice = (*incoming_)[from];
    if (notice.kind == Notice::failed) failures_.push_back(from);
    if (notice.kind == Notice::failed && !failed_) {
        has_failed(notice.rank, notice.text);
    } else if (notice.kind == Notice::left) {
        left_at_[notice.rank] = nanoseconds_now();
        ++leavers_;
    }
    return true;
}

// Sends a notice to all ranks except this one and `about`. Short messages are sent at once; the MPI library
// completes the rest.
void MpiNotices::send_notice(Notice::Kind kind, const std::string& text, int about) noexcept {
    auto* notice = new Notice{}; // kept: MPI may still read it
    notice->kind = kind;
    notice->rank = about;
    std::strncpy(notice->text, text.c_str(), sizeof notice->text - 1);
    std::vector<MpiHandle> requests;
    for (int k = 1; k < size_; ++k) {
        const int to = (rank_ + k) % size_;
        MpiHandle request = 0;
        if (to != about &&
            mpi_.Isend(notice, sizeof(Notice), mpi_.byte_type, to, 0, communicator_, &request) == 0)
            requests.push_back(request);
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    for (auto& request : requests) {
        int done = 0;
        MpiStatus status;
        while (mpi_.Test(&request, &done, &status) == 0 && !done && std::chrono::steady_clock::now() < limit)
            sched_yield();
    }
}

} // namespace jali
