// Plans of schedules on devices: one launch over the memory of peers, or launches with messages of other
// transports between them.
#pragma once

#include "composition/standard_collectives.hpp"
#include "device/stream_program.hpp"
#include "device/timeline.hpp"
#include "running/collective_queues.hpp"
#include "running/device_plan.hpp"
#include "schedule/first_run.hpp"
#include "schedule/recorded_calls.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace jali {

struct RecordedPlan;

class GpuPlan : public DevicePlan {
  public:
    // The schedule's last buffer is "scratch" and a buffer "work" before it the plan's own as well, as in
    // PersistentPlan. `connections` are numbered by the stages; `queues` may be null if no message uses them.
    // `kernel` is the collective kernel for the stages' reduction and wire. `fixed`: the user's buffers, if
    // the same for all runs; empty: each run supplies them. Collective where there are transports. Throws
    // PlanError, GpuError.
    GpuPlan(std::shared_ptr<Gpu> gpu, std::shared_ptr<CollectiveQueues> queues,
            std::vector<std::shared_ptr<CollectiveConnection>> connections, std::vector<DeviceStage> stages,
            const Schedule& schedule, GpuFunction kernel, std::string what,
            std::span<const GpuAddress> fixed = {});
    ~GpuPlan() override;

    // For a call's plan: its composition.
    std::function<Composition(const CollectiveCall& call)> composition_of;

    bool is_fixed() const { return !fixed_.empty(); }
    void warm_up() override; // fixed buffers are connected already
    int stages() const { return static_cast<int>(stages_.size()); }
    const DeviceProgram& program(int stage) const { return stages_[stage].plan.program; }
    std::string describe() const override; // stage by stage

    // The driver calls of some runs on these addresses, whose contents are restored afterwards: for
    // check_together (recorded_plan.hpp). `composition` and `reproducible` are the plan's. Collective. Throws
    // GpuError, also where a graph is recorded; OutOfMemory where there is no room for a copy of the buffers.
    RecordedCalls record(std::span<const GpuAddress> buffers, const Composition& composition,
                         bool reproducible, Communicator& communicator);
    // Proves that they are in order, for all ranks together; throws ScheduleError on all. Collective.
    void check(std::span<const GpuAddress> buffers, const Composition& composition, bool reproducible,
               Communicator& communicator);
    bool proved() const { return first_run_.proved(); } // by check()

    static constexpr unsigned most_threads = 512;

  private:
    void put(std::span<const GpuAddress> buffers, void* stream) override;
    Work work() const;
    struct Stage {
        DeviceStage plan;
        std::vector<StageExchange> exchanges; // of its messages
        GpuMemory table;
        unsigned threads = most_threads; // of a block
        CollectiveArguments arguments{};
    };
    void prepare(Stage& stage, std::span<const GpuAddress> own);
    void prepare_messages(std::span<const GpuAddress> own);
    void add_to_program(Stage& stage, std::vector<int>& before);
    int runs_to_record(Communicator& communicator) const;
    void choose_channels(RecordedPlan& subject, Communicator& communicator) const;

    std::shared_ptr<CollectiveQueues> queues_;
    std::shared_ptr<StreamOrder> order_; // of runs, which share the members below: that of the queues
    std::vector<std::shared_ptr<CollectiveConnection>> connections_;
    GpuFunction kernel_;
    bool has_work_ = false;
    std::vector<GpuAddress> fixed_;
    GpuMemory scratch_, work_;
    std::vector<Stage> stages_;
    StreamProgram program_;           // of all stages
    std::optional<GpuStream> beside_; // of launches that need not wait for the messages of their stage
    FirstRun first_run_;
    bool is_recorded_ = false;
};

} // namespace jali
