// Notices between MPI ranks, apart from their messages: "this rank failed", "this rank has ended", "this rank
// stops since another one failed, and has reported it". A rank whose process has died sends none: other ranks
// of its host detect its death and send the notice.
//
// Notices travel on an MPI communicator of their own. A rank sends at most one, so a receive from every other
// rank is posted once; every wait tests these receives now and then, in turn. (No receive from any source:
// MPICH 5.0.2 over UCX loses messages to it when some senders are on this host and some elsewhere.) One
// MpiNotices serves a communicator and all that are split from it, which threads may use at once; ranks are
// those of the outermost one.
#pragma once

#include "messaging/communicator.hpp"
#include "messaging/failure_detector.hpp"
#include "messaging/mpi_abi.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace jali {

// The other ranks that have reported a failure with the same cause so far, so that one rank can print it for
// all; numbered as in RankFailure. None where ranks are not MPI's.
std::vector<int> failed_alike(Communicator& communicator, const std::string& cause);
// Notifies the other ranks that this rank has reported why it stops, unless it has sent a notice before.
void stopping(Communicator& communicator);
// Whether every other rank has sent a notice. True where ranks are not MPI's.
bool all_have_spoken(Communicator& communicator);

class MpiNotices {
  public:
    // `communicator` is used for notices only from now on and is not freed, since freeing is collective.
    MpiNotices(const MpiAbi& mpi, MpiHandle communicator, int rank, int size);
    ~MpiNotices();
    MpiNotices(const MpiNotices&) = delete;
    MpiNotices& operator=(const MpiNotices&) = delete;

    // `processes` are in the order of ranks; each is checked from now on until its rank has sent a notice.
    void watch_processes(std::span<const ProcessToken> processes);

    void read(); // tests one of the receives, so that MPI makes progress
    void throw_if_failed() const {
        if (failed_) throw RankFailure(failed_rank_, cause_);
    }
    bool any_left() const { return leavers_ > 0; }
    bool left(int rank) const { return left_at_[rank] != 0; }
    double seconds_since_left(int rank) const; // since the notice arrived here

    void fail(const std::string& cause) noexcept; // as Communicator::fail, and so on
    std::vector<int> failed_alike(const std::string& cause);
    void stopping() noexcept;
    bool all_have_spoken();
    void leave() noexcept;
    void await_others_leaving();
    void free(); // after that: frees the communicator. Collective

  private:
    struct Notice {
        enum Kind : std::int32_t { failed = 1, left = 2, stops = 3 };
        std::int32_t kind;
        std::int32_t rank;
        char text[1016];
    };

    // With the mutex held, as all below.
    bool listening() const { return !waiting_for_.empty(); }
    void read_all();
    void has_failed(int rank, const std::string& cause);
    void stop_listening();
    bool read_from(std::size_t index); // tests the receive from waiting_for_[index]: true if complete
    void detect_failures();
    void send_notice(Notice::Kind kind, const std::string& text, int about) noexcept;

    const MpiAbi& mpi_;
    MpiHandle communicator_;
    int rank_, size_;

    std::unique_ptr<std::vector<Notice>> incoming_; // by rank
    std::vector<MpiHandle> requests_;               // by rank
    std::vector<int> waiting_for_;                  // ranks whose notice has not arrived
    std::size_t next_ = 0;                          // of waiting_for_, to test
    FailureDetector failure_detector_;              // of waiting_for_, as far as the kernel reports

    std::vector<int> failures_; // ranks that reported a failure, in order of arrival
    bool spoken_ = false;       // has sent a notice
    bool leaving_ = false;
    std::mutex mutex_;
    // Read without the mutex, written with it: a failure's rank and cause before failed_.
    int failed_rank_ = -1;
    std::string cause_;
    std::atomic<bool> failed_ = false;
    std::atomic<int> leavers_ = 0;
    std::vector<std::atomic<std::int64_t>> left_at_; // by rank, in ns of steady_clock; 0: it has not
};

} // namespace jali
