// One rank's part of a plan of a composition: on memory of the host an executor runs its schedule, on memory
// of devices launches on their streams do. Either part is made at its first use.
//
// All ranks start plans of one communicator in the same order. Used by one thread at a time, as communicators
// are.
#pragma once

#include "composition/composition.hpp"
#include "composition/plan.hpp"
#include "running/collectives.hpp"
#include "running/persistent.hpp"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace jali {

// Whether a plan with these libraries is for memory of devices alone.
bool is_for_devices(const PlanParameters& parameters);

class RunningPlan {
  public:
    // `what` names it in errors. Makes the part on the host unless the plan is for devices alone. Throws
    // CollectiveError for a composition of other ranks, PlanError.
    RunningPlan(std::shared_ptr<Collectives> there, std::shared_ptr<const Composition> composition,
                PlanParameters parameters, std::string what);

    // The part on memory of the host, which test(), wait() and running() are about from now on. Throws
    // PlanError where there is none.
    PersistentPlan& on_host();
    // The part on a device. Collective at its first use there. Throws the errors of DeviceCollectives::plan.
    const std::shared_ptr<GpuPlan>& on(const std::shared_ptr<Gpu>& gpu) { return there(gpu).plan; }

    // Puts a run on a stream of a device, such as gpu->stream(), on these addresses, one for each buffer of
    // the composition (0 where this rank has no bytes of it). Where first runs are proved, the first one is
    // checked before. Throws the errors of on(), GpuPlan::check and GpuPlan::run, std::logic_error during a
    // run on the host.
    void start(const std::shared_ptr<Gpu>& gpu, std::span<const GpuAddress> buffers, void* stream);
    // Prepares a run that is to be recorded in a graph. Collective.
    void warm_up(const std::shared_ptr<Gpu>& gpu, std::span<const GpuAddress> buffers);
    // Proves that the plan on devices, on all ranks together, implements the composition. Buffers are
    // restored afterwards. Collective; throws ScheduleError on all ranks.
    void check(const std::shared_ptr<Gpu>& gpu, std::span<const GpuAddress> buffers);

    // For the last started run. On devices wait() returns at once, since the run is on the stream. An ended
    // run throws if its device was aborted.
    bool test();
    void wait();
    bool running();

  private:
    struct OnDevice {
        OnDevice(std::shared_ptr<GpuPlan> made, const std::shared_ptr<Gpu>& gpu)
            : plan(std::move(made)), ended(gpu, false) {}
        std::shared_ptr<GpuPlan> plan;
        GpuEvent ended; // the last run
    };
    OnDevice& there(const std::shared_ptr<Gpu>& gpu);
    PersistentPlan& host() const;
    void check(GpuPlan& plan, std::span<const GpuAddress> buffers);
    void prove_once(GpuPlan& plan, std::span<const GpuAddress> buffers, void* stream);

    std::shared_ptr<Collectives> collectives_;
    std::shared_ptr<const Composition> composition_;
    PlanParameters parameters_;
    std::string what_;
    std::shared_ptr<PersistentPlan> on_host_; // null: the plan is for devices alone
    std::map<const Gpu*, OnDevice> on_devices_;
    const GpuEvent* last_ = nullptr; // null: it was on the host
};

} // namespace jali
