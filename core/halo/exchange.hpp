// The exchange of one set of stale ghost parts between hosts: a schedule around a kernel, run by an executor.
//
// Where the neighbour's memory is exposed, packing writes to its ghosts, between two signals: permission to
// write, and completion. Else the packed data are sent as a message. Ghost blocks are whole blocks of the
// sender, so packing gathers blocks; for a halo item a kernel writes them. The caller defines what the
// kernel's parts compute.
#pragma once

#include "halo/halo_schedule.hpp"
#include "halo/policy.hpp"
#include "schedule/executor.hpp"
#include "schedule/ordered_events.hpp"

#include <memory>
#include <vector>

namespace jali {

class HaloExchange {
  public:
    // `stale` is [request][parity]. `body` runs part 0 and, if `overlap`, part 1 of the kernel; the last part
    // runs after all arrivals. Requests and staleness must be the same on all ranks. `written` are the fields
    // that the kernel writes. Collective where the policy maps memory. Throws TransportError.
    HaloExchange(std::shared_ptr<LocalLayout> layout, const std::vector<HaloRequest>& requests,
                 const std::vector<char>& stale, const HaloPolicy& policy, bool overlap,
                 std::shared_ptr<Communicator> communicator, std::shared_ptr<ThreadPool> pool,
                 const std::vector<FieldStorage*>& written,
                 std::function<void(int part, const Progress*)> body);

    // Exchanges, computes, marks the ghosts as filled with the versions at the start, and counts.
    void run();
    void leave_out(); // only marks them: the ghosts keep what they hold

    const Schedule& schedule() const { return executor_->schedule(); }
    RankEvents events(); // of some runs; throws ScheduleError

  private:
    std::byte* address_of(const HaloBuffer& buffer);

    HaloMessages halo_;
    std::shared_ptr<Communicator> communicator_;
    std::shared_ptr<ExposedMemory> exposed_; // null: all data are sent as messages
    std::vector<HaloBuffer> buffers_;        // of the schedule
    std::size_t packed_bytes_ = 0, received_bytes_ = 0;
    std::vector<std::byte*> addresses_;
    std::unique_ptr<Executor> executor_;
};

// Parameters 0 to 7 of the kernel ABI for positions of a block list, without sums, masks and counters.
void fill_device_parameters(std::uint64_t* parameters,
                            LocalLayout& layout); // the same with addresses on the device
void fill_standard_parameters(std::uint64_t* parameters, const LocalLayout& layout,
                              const std::int32_t* blocks);

} // namespace jali
