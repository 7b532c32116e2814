// Runs a schedule on the host: one thread walks the steps in their order, and kernels make progress on
// messages.
//
// The order starts every message that can be started before anything is computed, and waits only when there
// is nothing else to do. An error on this rank is told to the others before it is thrown on.
#pragma once

#include "schedule/schedule.hpp"
#include "transport/communicator.hpp"

#include <memory>
#include <span>
#include <vector>

namespace jali {

class Executor {
  public:
    explicit Executor(std::shared_ptr<const Schedule> schedule); // throws ScheduleError

    // buffers[k] is the address of buffer k. Throws what a kernel throws, or RankFailure.
    void run(std::span<std::byte* const> buffers, Communicator& communicator);

    const Schedule& schedule() const { return *schedule_; }

  private:
    void run_steps(std::span<std::byte* const> buffers, Communicator& communicator);

    std::shared_ptr<const Schedule> schedule_;
    std::vector<Port> order_;
    std::vector<std::unique_ptr<Request>> requests_; // by step
};

} // namespace jali
