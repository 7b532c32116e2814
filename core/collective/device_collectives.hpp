// What the collectives of a communicator share on one device: the carriers that its ranks found to be open.
//
// Which row of collective_transport.hpp carries a plan's messages where its parameters name none, and which
// way of the rules (rules.hpp) is possible, is decided here, in the same way on all ranks.
#pragma once

#include "collective/collective_queues.hpp"
#include "collective/gpu_plan.hpp"
#include "collective/plan.hpp"
#include "collective/rules.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace jali {

class DeviceCollectives {
  public:
    // Collective. Throws PlanError for sizes of queues that cannot be.
    DeviceCollectives(std::shared_ptr<Gpu> gpu, const std::shared_ptr<Communicator>& communicator);

    // Why the row of this name carries nothing between these devices; empty if it does. The first time
    // collective, the same on all ranks. Throws PlanError for a name that is none.
    std::string why_not(const std::string& row) { return open(named(row)); }
    // Likewise why it has not this collective of its own.
    std::string why_not(const std::string& row, const DeviceCall& call) { return why_not(named(row), call); }

    // The way of a call that names none, by the rules. Says so on rank 0 where a row in front is closed.
    // Collective where it opens a row. Throws RulesError.
    CollectiveChoice choose(const DeviceCall& call, std::span<const int> ranks_of_hosts);

    // This rank's part of a composition. Libraries of the parameters are names of rows, empty for the one
    // that carries messages by default; `kernel` compiles the collective kernel, with null where nothing is
    // combined. Collective where it opens a row. Throws PlanError, GpuError.
    using Kernel = std::function<GpuFunction(Wire wire, const Reduction* how)>;
    std::shared_ptr<GpuPlan> plan(const Composition& composition, PlanParameters parameters,
                                  const Kernel& kernel, std::string what);
    // A collective of the row itself, likewise. Throws CollectiveError where it has it not.
    std::shared_ptr<DevicePlan> plan(const std::string& row, const DeviceCall& call, std::string what);

    // Finite numbers that became infinite in 16-bit results on all ranks since the last call; waits for the
    // device. Collective.
    std::int64_t take_overflows();

  private:
    struct Row {
        std::string name;
        const CollectiveTransport* transport;
        std::shared_ptr<CollectiveCarrier> carrier; // null: it is closed, or nobody has asked
        std::string why_not;
    };

    Row& named(const std::string& name, bool as_library = false); // which carries messages of plans
    const std::string& open(Row& row);
    std::string why_not(Row& row, const DeviceCall& call);
    const std::string& default_carrier();
    std::string why_not(const CollectiveWay& way, const DeviceCall& call, std::string& closed);

    CollectiveRanks ranks_;
    std::vector<Row> rows_;
    std::shared_ptr<CollectiveQueues> queues_; // null: they cannot be
};

} // namespace jali
