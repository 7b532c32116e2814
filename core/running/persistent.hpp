// A plan that is ready to run repeatedly on one rank, and the space in which plans exchange messages.
//
// Plans that run on the same ranks share a MessageSpace: a duplicate of their communicator for every library,
// whose tags are cut into windows. The n-th start takes window n modulo their number, so ranks agree on
// windows without messages, as long as they start the same plans in the same order; they may wait for them in
// any order (executors of one thread progress together). It does not depend on Python or arrays: buffers are
// addresses, given at every start.
#pragma once

#include "composition/composition.hpp"
#include "device/arena.hpp"
#include "schedule/executor.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace jali {

class PersistentPlan;

std::vector<bool> written_buffers(const Schedule& schedule); // whether a run writes it

// Used by one thread at a time, as communicators are.
class MessageSpace {
  public:
    using NamedCommunicator =
        std::pair<std::string, std::shared_ptr<Communicator>>; // a library's name and communicator

    // Transports have the same ranks, and no other users. The first also answers to "" (any library). Throws
    // PlanError if there is none or they differ in rank or size.
    explicit MessageSpace(std::vector<NamedCommunicator> transports);

    int rank() const { return transports_.front().second->rank(); }
    int size() const { return transports_.front().second->size(); }
    int windows() const { return static_cast<int>(under_way_.size()); } // plans that may be under way at once
    int tags() const { return tags_; }                                  // of one window
    int under_way() const;                                              // plans started and not ended

    // Throws PlanError that lists the libraries there are.
    Communicator& transport_of(const std::string& library) const;

  private:
    friend class PersistentPlan;
    int next_window() const { return static_cast<int>(starts_ % under_way_.size()); }

    std::vector<NamedCommunicator> transports_;
    // Per window; a plan lives at least until it has ended.
    std::vector<std::shared_ptr<PersistentPlan>> under_way_;
    int tags_ = 0;
    std::uint64_t starts_ = 0;
};

class PersistentPlan : public std::enable_shared_from_this<PersistentPlan> {
  public:
    // The schedule's last buffer is "scratch"; the plan provides it itself, and a buffer "work" right before
    // it, which standard collectives use between two steps. `what` names the plan in errors. Throws PlanError
    // if the schedule uses libraries or tags that the space lacks; ScheduleError.
    static std::shared_ptr<PersistentPlan> make(std::shared_ptr<const Schedule> schedule,
                                                std::shared_ptr<MessageSpace> space, std::string what);

    // Begins a run on these addresses, one per buffer of the user (null if it has no bytes). They must stay
    // valid until the end; `keep` is held until then. If as many plans are under way as there are windows, it
    // first waits for the oldest. Throws std::logic_error if this plan is under way itself, and what waiting
    // throws.
    void start(std::span<std::byte* const> buffers, std::shared_ptr<const void> keep = nullptr);

    bool test();                                    // makes progress; true when this plan is not under way
    void wait();                                    // until it has ended; throws what Executor::wait throws
    void run(std::span<std::byte* const> buffers) { // start and wait, when nothing needs to be kept
        start(buffers);
        wait();
    }

    bool can_start_at_once() const {
        return !space_->under_way_[space_->next_window()];
    } // waits for no other
    bool running() const { return window_ >= 0; }
    const Schedule& schedule() const { return *schedule_; }
    const std::string& what() const { return what_; }
    int user_buffers() const { return user_buffers_; } // the first ones
    bool writes(int buffer) const { return written_[buffer]; }
    bool brief() const { return brief_; } // no step takes long, except waiting

  private:
    friend class MessageSpace;
    PersistentPlan(std::shared_ptr<const Schedule> schedule, std::shared_ptr<MessageSpace> space,
                   std::string what);
    void end();

    std::shared_ptr<MessageSpace> space_;
    std::shared_ptr<const Schedule> schedule_;
    std::string what_;
    Executor executor_;
    Memory scratch_, work_;
    int user_buffers_ = 0;
    std::vector<bool> written_;
    bool brief_ = false;
    std::vector<Communicator*> transports_; // per library of the schedule
    std::vector<std::byte*> addresses_;
    std::shared_ptr<const void> keep_;
    int window_ = -1;        // while it runs
    std::int64_t begun_ = 0; // in ns, if recorded
};

} // namespace jali
