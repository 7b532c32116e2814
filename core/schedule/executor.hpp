// Runs a schedule on the host: whatever is ready runs, and what it enables runs next.
//
// One thread. Ready steps run in the order of their priority (start receives, start sends, copy, reduce,
// compute) and of the schedule; messages under way are tested in between, so that a chunk moves on when its
// own inputs are there, and a kernel makes progress on messages between its blocks of work (it may start
// some, too). A schedule that was started may be left alone and looked at again later (`test`). Several may
// be under way at once, and a thread that tests or waits for one keeps its others moving up to their kernels,
// so ranks may wait for them in different orders. An error on this rank is told to the others before it is
// thrown on.
#pragma once

#include "device/thread_pool.hpp"
#include "messaging/communicator.hpp"
#include "schedule/schedule.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

class Executor {
  public:
    // `what` names the schedule in errors and in the watchdog's message. `pool`, which is free whenever this
    // runs but no kernel of it, helps with long copies. Throws ScheduleError.
    explicit Executor(std::shared_ptr<const Schedule> schedule, std::string what = "",
                      std::shared_ptr<ThreadPool> pool = nullptr);
    ~Executor();
    Executor(Executor&&) noexcept;
    Executor& operator=(Executor&&) noexcept;

    // buffers[k] is the address of buffer k; transports[l] carries the messages of library l (one transport
    // may stand for all libraries). Tags are those of the steps plus `first_tag`. All must stay until the
    // end. Runs what is ready at once, but no kernels. Throws std::logic_error if it is still running; errors
    // of steps as in test(). The thread that starts a schedule is the one that tests and waits.
    void start(std::span<std::byte* const> buffers, std::span<Communicator* const> transports,
               int first_tag = 0);

    // Makes progress; true when all steps have ended. Throws what a kernel throws, RankFailure, or
    // TransportError. After an error the executor may be started again (its messages were withdrawn).
    bool test();

    // Until all steps have ended. The watchdog's TransportError names the step, peer and transport.
    void wait();

    void run(std::span<std::byte* const> buffers, Communicator& communicator); // start and wait

    bool running() const;
    const Schedule& schedule() const;

  private:
    struct State;
    struct Running;
    std::unique_ptr<State> state_;
};

} // namespace jali
