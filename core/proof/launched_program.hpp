// A recorded launch of the kernel of collectives: its arguments and its table, and conditions for all its
// channels and iterations.
#pragma once

#include "proof/recorded_plan.hpp"
#include "running/collective_kernel.hpp"
#include "schedule/call_decoder.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace jali {

struct LaunchedProgram {
    // Throws ScheduleError for programs that the kernel cannot run, for memory that does not exist, and
    // unless slices of channels and iterations cover every region, and two of them, if one is written, are
    // the same bytes in the same packets or disjoint.
    LaunchedProgram(CallDecoder& decoder, const RecordedPlan& plan, const DriverCall& call);

    // Where the slice of a region begins, and its bytes; none or less: nothing is in it.
    std::pair<std::int64_t, std::int64_t> slice(const DeviceInstruction& i, std::int64_t channel,
                                                std::int64_t iteration) const {
        const std::int64_t begin = (iteration * a.channels + channel) * i.chunk;
        return {begin, std::min(i.chunk, i.bytes - begin)};
    }
    std::int64_t iterations() const { return plan->wire == Wire::flagged ? 1 : a.iterations; } // of slices
    std::int64_t packet_bytes() const { return plan->wire == Wire::flagged ? 32 : 16; }        // in a slot

    const RecordedPlan* plan;
    CollectiveArguments a;
    std::vector<DeviceInstruction> instructions;
    std::vector<DeviceOperand> sources;
    std::vector<DeviceAction> actions;
    std::vector<DeviceWait> waits;
    std::vector<std::int32_t> per_iteration; // [rank][2]: sent, received
    std::vector<GpuAddress> memories;        // [rank]
    std::int64_t threads = 0;                // of a block

  private:
    void read_table(CallDecoder& decoder);
    void check_instruction(const DeviceInstruction& i) const;
    void check_operand(const DeviceOperand& o, const DeviceInstruction& i, bool target) const;
    void check_regions() const;
    void check_messages() const;
};

// A channel of a launch while its events are made.
struct LaunchedChannel {
    const LaunchedProgram& p;
    std::int64_t channel;                    // -1: all of a program without messages
    const std::int64_t* numbers;             // [rank][2] at the beginning of the launch
    std::vector<std::int32_t> before, unmet; // predecessors of later events; events that the next meeting
                                             // waits for
    std::string name;

    bool all() const { return channel < 0; }
    std::int64_t iterations() const { return all() ? 1 : p.a.iterations; }
    std::pair<std::int64_t, std::int64_t> slice(const DeviceInstruction& i, std::int64_t iteration) const {
        return all() ? std::pair(std::int64_t{0}, i.bytes) : p.slice(i, channel, iteration);
    }
    void meet() {
        before.insert(before.end(), unmet.begin(), unmet.end());
        unmet.clear();
    }
    std::int64_t per(std::int64_t peer, int received) const {
        return p.per_iteration[static_cast<std::size_t>(2 * peer + received)];
    }
    std::int64_t number(std::int64_t peer, std::int64_t packet, int received, std::int64_t iteration) const {
        return numbers[2 * peer + received] + iteration * per(peer, received) + packet;
    }
    GpuAddress slot(std::int64_t owner, std::int64_t sender, std::int64_t number) const {
        const CollectiveArguments& a = p.a;
        return at(owner, a.queues + ((channel * a.ranks + sender) * a.slots + (number & (a.slots - 1))) *
                                        a.slot_bytes);
    }
    GpuAddress arrived(std::int64_t owner, std::int64_t sender, std::int64_t number) const {
        const CollectiveArguments& a = p.a;
        return at(owner, a.arrived + 8 * ((channel * a.ranks + sender) * a.slots + (number & (a.slots - 1))));
    }
    GpuAddress freed(std::int64_t owner, std::int64_t by) const {
        return at(owner, p.a.freed + 8 * (channel * p.a.ranks + by));
    }
    GpuAddress at(std::int64_t owner, std::int64_t bytes) const {
        return p.memories[static_cast<std::size_t>(owner)] + static_cast<std::uint64_t>(bytes);
    }
};

// Throws ScheduleError, "a collective kernel <what>".
inline void check_collective(bool holds, const std::string& what) {
    if (!holds) throw ScheduleError("a collective kernel " + what);
}

} // namespace jali
