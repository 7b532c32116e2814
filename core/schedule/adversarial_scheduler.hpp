// Runs the schedules of all ranks inside one thread, in adversarial orders.
//
// A schedule is right if it gives the same result whatever the order in which ready steps run and messages
// move; here the order is random, or adversarial: the newest ready step first, one rank starved as long as
// another can proceed. Messages are rendezvous: a send and its receive end together, some time after both
// were ready; `buffered`, a send may end before, its data put aside. A signal ends before its wait. If no
// step can proceed before all have ended, the schedules deadlock. No threads, no transport: thousands of
// plans per second, for tests and for showing that a faulty plan is wrong.
#pragma once

#include "schedule/schedule.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace jali {

// No rank can proceed. The text names the messages that have one side ready.
struct Deadlock : ScheduleError {
    using ScheduleError::ScheduleError;
};

struct AdversarialScheduler {
    enum class Order : std::uint8_t { random, oldest, newest };
    Order order = Order::random; // oldest: what became ready first runs first
    std::uint64_t seed = 0;
    int starved = -1; // a rank that moves, also in messages, only when no other can
    bool buffered = false;
};

AdversarialScheduler::Order
order_of(std::string_view name); // throws std::invalid_argument that lists the names

class VirtualRanks {
  public:
    // One schedule per rank; they must stay. Throws ScheduleError: cycles, messages that do not meet.
    explicit VirtualRanks(std::span<const Schedule* const> schedules);
    ~VirtualRanks();

    // memory[rank][buffer]; buffers of different ranks must not overlap. Throws Deadlock and what kernels
    // throw.
    void run(std::span<const std::vector<std::byte*>> memory, const AdversarialScheduler& scheduler = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace jali
