// Runs a schedule on the host: ready steps run, then the steps that they enable.
//
// One thread. Ready steps run in the order of their priority (start receives, start sends, copy, reduce,
// compute) and of the schedule; pending messages are tested in between, so that a chunk proceeds when its own
// inputs have arrived, and a kernel makes progress on messages between its blocks of work (it may start some,
// too). A started schedule needs no attention until a later `test`. Several may run at once, and a thread
// that tests or waits for one advances its others up to their kernels, so ranks may wait for them in
// different orders. An error on this rank is reported to the others before it is rethrown.
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
    // `what` names the schedule in errors and in the watchdog's message. `pool`, which is free whenever no
    // kernel of the schedule runs, helps with long copies. Throws ScheduleError.
    explicit Executor(std::shared_ptr<const Schedule> schedule, std::string what = "",
                      std::shared_ptr<ThreadPool> pool = nullptr);
    ~Executor();
    Executor(Executor&&) noexcept;
    Executor& operator=(Executor&&) noexcept;

    // buffers[k] is the address of buffer k; transports[l] carries the messages of library l (one transport
    // may stand for all libraries). Tags are those of the steps plus `first_tag`. All must stay until the
    // end. Runs ready steps at once, but no kernels. Throws std::logic_error if it is still running; errors
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
