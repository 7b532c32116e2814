// Queues of messages between the devices of a communicator's ranks, shared by all plans of these ranks.
//
// They are in memory that all ranks have mapped; the kernel of collectives stores into queues of other ranks
// (device_program.hpp). Plans on them run one after the other, in the same order on all ranks.
#pragma once

#include "device/stream_order.hpp"
#include "peers/signal_pad.hpp"
#include "running/collective_transport.hpp"

#include <cstdint>
#include <memory>

namespace jali {

class CollectiveQueues : public CollectiveConnection {
  public:
    // Collective. Throws GpuError, on all ranks, where devices cannot reach each other; PlanError for sizes
    // of the experiment `device_queues` that cannot be.
    explicit CollectiveQueues(const CollectiveRanks& ranks);

    static constexpr int most_ranks = 64; // of the kernel

    const DeviceProgramParameters& parameters() const { return parameters_; }
    // How many finite numbers became infinite in a 16-bit result since the last call, on this rank; waits for
    // the device. Kernels count only if they were compiled to.
    std::int64_t take_overflows();

  private:
    friend class GpuPlan;
    enum Row { arrived_slotted, freed_slotted, freed_flagged, flagged }; // flags are words, with data between
    std::int64_t queues(Wire wire) const {                               // where they begin, in bytes
        return wire == Wire::flagged ? pad_->offset(flagged) : pad_->offset_of_bytes();
    }

    DeviceProgramParameters parameters_;
    std::unique_ptr<SignalPad> pad_; // its epochs: [wire: flagged first][channel][rank][sent, received]
    GpuMemory bases_, overflows_;
    std::shared_ptr<StreamOrder> order_; // of plans
};

} // namespace jali
