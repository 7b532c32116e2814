// What MPI ranks tell each other outside of their messages: "this rank failed", "this rank has ended", "this
// rank stops since another one failed, and has said so". A rank whose process has died says nothing: the
// others of its host find it missing, and say so for it.
//
// Travels on an MPI communicator of its own. A rank says one thing at most, so a receive from every other
// rank is posted once; whoever waits for anything reads them now and then, in turn. (Not one from any source:
// MPICH 5.0.2 over UCX loses messages to those when the senders are partly on this host, partly elsewhere.)
// One for a communicator and all that are split from it, which threads may use at once; ranks are those of
// the outermost one.
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

// The other ranks that have said so far that they failed with this very cause, so that one of them can speak
// for all; numbered as in RankFailure. None where ranks are not MPI's.
std::vector<int> failed_alike(Communicator& communicator, const std::string& cause);
// Tells the other ranks that this one has said why it stops, unless it has told them something before.
void stopping(Communicator& communicator);
// Whether every other rank has told something. True where ranks are not MPI's.
bool all_have_spoken(Communicator& communicator);

class MpiNotices {
  public:
    // `communicator` is for notices alone from now on; it stays, since freeing it would be collective.
    MpiNotices(const MpiAbi& mpi, MpiHandle communicator, int rank, int size);
    ~MpiNotices();
    MpiNotices(const MpiNotices&) = delete;
    MpiNotices& operator=(const MpiNotices&) = delete;

    // Those of the ranks, in order: from now on the roll is called of them until a rank has said something.
    void watch_processes(std::span<const ProcessToken> processes);

    void read(); // looks at one of the receives, which lets MPI work
    void throw_if_failed() const {
        if (failed_) throw RankFailure(failed_rank_, cause_);
    }
    bool any_left() const { return leavers_ > 0; }
    bool left(int rank) const { return left_at_[rank] != 0; }
    double seconds_since_left(int rank) const; // since this rank heard of it

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
    bool read_from(std::size_t index); // looks at the receive from waiting_for_[index]: whether it came
    void detect_failures();
    void send_notice(Notice::Kind kind, const std::string& text, int about) noexcept;

    const MpiAbi& mpi_;
    MpiHandle communicator_;
    int rank_, size_;

    std::unique_ptr<std::vector<Notice>> incoming_; // by rank
    std::vector<MpiHandle> requests_;               // by rank
    std::vector<int> waiting_for_;                  // ranks whose word has not been heard
    std::size_t next_ = 0;                          // of waiting_for_, to look at
    FailureDetector failure_detector_;              // of waiting_for_, as far as the kernel tells

    std::vector<int> failures_; // ranks whose word was that they failed, as heard
    bool spoken_ = false;       // has told something
    bool leaving_ = false;
    std::mutex mutex_;
    // What anybody asks for: written with the mutex held, of a failure before it is said to be.
    int failed_rank_ = -1;
    std::string cause_;
    std::atomic<bool> failed_ = false;
    std::atomic<int> leavers_ = 0;
    std::vector<std::atomic<std::int64_t>> left_at_; // by rank, in ns of steady_clock; 0: it has not
};

} // namespace jali
