// What MPI ranks tell each other outside of their messages: "this rank failed", "this rank has ended".
//
// Travels on an MPI communicator of its own. A receive for notices is always posted until the last word of
// the last other rank has been heard; whoever waits for anything reads it now and then. One for a
// communicator and all that are split from it; ranks are those of the outermost one.
#pragma once

#include "transport/communicator.hpp"
#include "transport/mpi_abi.hpp"

#include <memory>
#include <string>
#include <vector>

namespace jali {

class MpiNotices {
  public:
    // `communicator` is for notices alone from now on; it stays, since freeing it would be collective.
    MpiNotices(const MpiAbi& mpi, MpiHandle communicator, int rank, int size);
    ~MpiNotices();
    MpiNotices(const MpiNotices&) = delete;
    MpiNotices& operator=(const MpiNotices&) = delete;

    void read(); // lets MPI work
    void throw_if_failed() const {
        if (failed_) throw RankFailure(failed_rank_, cause_);
    }
    bool any_left() const { return leavers_ > 0; }
    bool left(int rank) const { return left_[rank]; }

    void fail(const std::string& cause) noexcept; // as Communicator::fail, and so on
    void leave() noexcept;
    void await_others_leaving();

  private:
    struct Notice {
        enum Kind : std::int32_t { failed = 1, left = 2 };
        std::int32_t kind;
        std::int32_t rank;
        char text[1016];
    };

    void listen();
    void stop_listening();
    void tell(Notice::Kind kind, const std::string& text) noexcept;

    const MpiAbi& mpi_;
    MpiHandle communicator_;
    int rank_, size_;

    std::unique_ptr<Notice> incoming_;
    MpiHandle request_ = 0;
    bool listening_ = false;

    bool failed_ = false;
    bool leaving_ = false;
    int failed_rank_ = -1;
    std::string cause_;
    int leavers_ = 0;
    std::vector<bool> left_;
};

} // namespace jali
