#include "transport/mpi_notices.hpp"
#include "transport/patience.hpp"

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include <sched.h>

namespace jali {

MpiNotices::MpiNotices(const MpiAbi& mpi, MpiHandle communicator, int rank, int size)
    : mpi_(mpi), communicator_(communicator), rank_(rank), size_(size), incoming_(std::make_unique<Notice>()),
      left_(size, false) {
    if (size_ > 1) listen();
}

MpiNotices::~MpiNotices() {
    if (!listening_) return;
    if (!mpi_.finalized()) stop_listening();
    if (listening_) static_cast<void>(incoming_.release()); // MPI may still write to it
}

void MpiNotices::fail(const std::string& cause) noexcept {
    if (failed_ || leaving_) return;
    failed_ = true;
    failed_rank_ = rank_;
    cause_ = cause;
    tell(Notice::failed, cause);
}

void MpiNotices::leave() noexcept {
    if (leaving_ || failed_ || mpi_.finalized()) return;
    leaving_ = true;
    tell(Notice::left, "");
}

void MpiNotices::await_others_leaving() {
    if (mpi_.finalized()) return;
    Patience patience(std::numeric_limits<double>::infinity()); // the others may have hours of work left
    for (int round = 0; listening_ && !failed_; ++round) {
        read();
        if (round < 1000)
            sched_yield();
        else
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        patience.look_at_clock([] { return std::string(); });
    }
    if (listening_) stop_listening();
}

void MpiNotices::listen() {
    mpi_.check(mpi_.Irecv(incoming_.get(), sizeof(Notice), mpi_.byte_type, mpi_.any_source, 0, communicator_,
                          &request_),
               "MPI_Irecv");
    listening_ = true;
}

void MpiNotices::stop_listening() {
    mpi_.Cancel(&request_);
    for (int i = 0; i < 1000 && listening_; ++i) {
        int done = 0;
        MpiStatus status;
        if (mpi_.Test(&request_, &done, &status) != 0 || done) listening_ = false;
    }
}

void MpiNotices::read() {
    while (listening_) {
        int done = 0;
        MpiStatus status;
        mpi_.check(mpi_.Test(&request_, &done, &status), "listening for failures");
        if (!done) return;
        listening_ = false;
        const Notice notice = *incoming_;
        if (notice.kind == Notice::failed && !failed_) {
            failed_ = true;
            failed_rank_ = notice.rank;
            cause_ = notice.text;
        } else if (notice.kind == Notice::left) {
            left_[notice.rank] = true;
            ++leavers_;
        }
        if (leavers_ < size_ - 1) listen(); // the last word of the last other rank has been heard otherwise
    }
}

// Sends a notice to all others. Short messages leave at once; those that do not are left to the library.
void MpiNotices::tell(Notice::Kind kind, const std::string& text) noexcept {
    auto* notice = new Notice{}; // kept: MPI may still read it
    notice->kind = kind;
    notice->rank = rank_;
    std::strncpy(notice->text, text.c_str(), sizeof notice->text - 1);
    std::vector<MpiHandle> requests;
    for (int k = 1; k < size_; ++k) {
        MpiHandle request = 0;
        if (mpi_.Isend(notice, sizeof(Notice), mpi_.byte_type, (rank_ + k) % size_, 0, communicator_,
                       &request) == 0)
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
