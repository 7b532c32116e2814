// Plans that run on devices: a schedule as one launch over the memory of peers, and the queues that it uses.
#pragma once

#include "collective/collective_kernel.hpp"
#include "collective/device_program.hpp"
#include "device/timeline.hpp"
#include "schedule/recorded_calls.hpp"
#include "transport/ccl.hpp"
#include "transport/signal_pad.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace jali {

// Queues of messages between the devices of a communicator's ranks, which all plans of these share; see
// device_program.hpp. Plans on them run one after the other, in the same order on all ranks.
class CollectiveQueues {
  public:
    // Collective. Throws GpuError, on all ranks, where devices cannot reach each other.
    CollectiveQueues(std::shared_ptr<Gpu> gpu, const std::shared_ptr<Communicator>& communicator);

    static constexpr int most_ranks = 64; // of the kernel

    const std::shared_ptr<Gpu>& gpu() const { return pad_->gpu(); }
    int rank() const { return pad_->communicator()->rank(); }
    int size() const { return pad_->communicator()->size(); }
    const DeviceProgramParameters& parameters() const { return parameters_; }

  private:
    friend class GpuPlan;
    enum Row { arrived_slotted, freed_slotted, freed_flagged, flagged }; // flags are words, with data between
    std::int64_t queues(Wire wire) const {                               // where they begin, in bytes
        return wire == Wire::flagged ? pad_->offset(flagged) : pad_->offset_of_bytes();
    }
    void order(void* stream, bool captured); // behind what came before

    DeviceProgramParameters parameters_;
    std::unique_ptr<SignalPad> pad_; // its epochs: [wire: flagged first][channel][rank][sent, received]
    GpuMemory bases_, overflows_;
    void* last_stream_ = nullptr;
};

struct RecordedPlan;

class GpuPlan {
  public:
    static constexpr int most_buffers = most_collective_buffers;

    // The schedule's last buffer is "scratch" and a buffer "work" before it the plan's own as well, as in
    // PersistentPlan. `kernel` is the collective kernel for the way in which the stages combine and
    // for their wire. `queues` may
    // be null where no message goes through the memory of peers, `ccl` where none goes through the library.
    // Throws PlanError, GpuError.
    GpuPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CollectiveQueues> queues,
            std::shared_ptr<CclCommunicator> ccl, std::vector<DeviceStage> stages, const Schedule& schedule,
            GpuFunction kernel, std::string what);

    // Puts a run on a stream, on these addresses: one per buffer of the user. May be recorded in a graph.
    void run(std::span<const GpuAddress> buffers, void* stream);

    int user_buffers() const { return user_buffers_; }
    std::size_t bytes_of(int buffer) const { return bytes_[buffer]; } // of a user's buffer, on this rank
    int stages() const { return static_cast<int>(stages_.size()); }
    const DeviceProgram& program(int stage) const { return stages_[stage].plan.program; }
    const std::string& what() const { return what_; }
    const Gpu& gpu() const { return *gpu_; }
    const std::shared_ptr<Gpu>& shared_gpu() const { return gpu_; }
    std::string describe() const; // stage by stage

    // How many finite numbers became infinite in a 16-bit result since the last call, on this rank; waits for
    // the device. Kernels count only if they were compiled to.
    static std::int64_t take_overflows(CollectiveQueues& queues);

    // What the driver is given for some runs on these addresses, whose contents are as before afterwards: for
    // check_together (recorded_plan.hpp). `composition` is what the plan was made for, `reproducible` whether
    // so. Collective. Throws GpuError, also where a graph is recorded; OutOfMemory where there is no room for
    // a copy of the buffers.
    RecordedCalls record(std::span<const GpuAddress> buffers, const Composition& composition,
                         bool reproducible, Communicator& communicator);

    static constexpr unsigned most_threads = 512;

  private:
    Work work() const;
    struct Stage {
        DeviceStage plan;
        GpuMemory table;
        unsigned threads = most_threads; // of a block
        CollectiveArguments arguments{};
    };
    void prepare(Stage& stage, std::span<const GpuAddress> own);
    int runs_to_record(Communicator& communicator) const;
    void choose_channels(RecordedPlan& subject, Communicator& communicator) const;
    void check_given(std::span<const GpuAddress> buffers) const;

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<CollectiveQueues> queues_;
    std::shared_ptr<CclCommunicator> ccl_;
    GpuFunction kernel_;
    std::string what_;
    int user_buffers_ = 0;
    std::vector<std::size_t> bytes_;
    bool has_work_ = false;
    GpuMemory scratch_, work_;
    std::vector<Stage> stages_;
};

} // namespace jali
