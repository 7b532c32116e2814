// Shared state of a communicator's collectives on one device: the transports that its ranks found possible,
// and the plans that are ready to run.
//
// It chooses the entry of collective_transport.hpp for a plan's messages where its parameters name none, and
// the possible algorithms of the rules (rules.hpp), in the same way on all ranks.
#pragma once

#include "composition/plan.hpp"
#include "planning/algorithms.hpp"
#include "planning/rules.hpp"
#include "running/collective_queues.hpp"
#include "running/gpu_plan.hpp"
#include "running/plan_cache.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace jali {

// Throws CollectiveError.
void refuse_other_ranks(const Composition& composition, int ranks);

class DeviceCollectives {
  public:
    // Collective. `versions` are those that rules may test, `on_host` runs calls through the host. Throws
    // PlanError for invalid sizes of queues.
    DeviceCollectives(std::shared_ptr<Gpu> gpu, const std::shared_ptr<Communicator>& communicator,
                      Hosts hosts, LibraryVersions versions, RunsOnHost on_host);

    void serve_mpi_program() { mpi_program_ = true; } // see Collectives

    // Why the entry of this name cannot carry messages between these devices; empty if it can. Collective at
    // first, the same on all ranks. Throws PlanError for an unknown name.
    std::string why_not(const std::string& entry) { return open(named(entry)); }
    // Likewise, why it lacks this collective of its own.
    std::string why_not(const std::string& entry, const CollectiveCall& call) {
        return why_not(named(entry), call);
    }

    // The algorithm of a call: the requested one, else by the rules. Reports on rank 0 if an earlier entry is
    // closed. Collective where it opens an entry. Throws CollectiveError, RulesError.
    CollectiveChoice algorithm_of(const CollectiveCall& call, bool persistent = false);
    // How a call runs on this rank, a line per instruction where it is one launch. Likewise.
    std::string explain(const CollectiveCall& call);

    // Puts a call on a stream of the device, such as gpu()->stream(), on these addresses, one for each of its
    // buffers (standard_collectives.hpp; 0 where this rank has no bytes of one). Calls are started in the
    // same order on all ranks, and compared in checked mode; Gpu::synchronize waits, and reports failed
    // ranks. Throws CollectiveError, RulesError, PlanError, GpuError, CompileError.
    void start(const CollectiveCall& call, std::span<const GpuAddress> buffers, void* stream,
               const std::source_location& location = std::source_location::current());

    // The plan of a call, which may be run again and again; null: none is kept. `checked` ones count
    // overflows.
    std::shared_ptr<DevicePlan> find(const CollectiveCall& call, bool checked) {
        return kept_[checked].find(call);
    }
    std::shared_ptr<DevicePlan> plan_of(const CollectiveCall& call, bool checked); // made if need be

    // Before the first run of a call's plan, where it is checked or all are proved: throws ScheduleError on
    // all ranks if its effect differs from the call's. Collective then. `stream` is that of the run.
    void prove_once(const CollectiveCall& call, DevicePlan& plan, std::span<const GpuAddress> buffers,
                    void* stream, bool checked);
    // The driver calls of some runs of a call's plan, as GpuPlan::record. Collective.
    RecordedCalls record(const CollectiveCall& call, GpuPlan& plan, std::span<const GpuAddress> buffers);

    // A plan of a call for graphs, with fixed arrays at these addresses: peers may write to them directly.
    // Exists as long as it has owners. Collective. Throws the errors of start().
    std::shared_ptr<DevicePlan> persistent_plan(const CollectiveCall& call,
                                                std::span<const GpuAddress> buffers);

    // This rank's part of a composition. Libraries of the parameters are names of entries, empty for the one
    // that carries messages by default; messages of `inside` stay inside hosts. Collective where it opens a
    // entry. Throws CollectiveError for a composition of other ranks, PlanError, GpuError, CompileError.
    std::shared_ptr<GpuPlan> plan(const Composition& composition, PlanParameters parameters, std::string what,
                                  bool checked = false, std::span<const GpuAddress> fixed = {},
                                  const std::string& inside = "");

    CacheCounts counts() const { return kept_[false].counts(); }
    void keep_at_most(std::size_t plans) { kept_[false].most = kept_[true].most = in_graphs_.most = plans; }
    const std::shared_ptr<Gpu>& gpu() const { return ranks_.gpu; }

    // Finite numbers that became infinite in 16-bit results on all ranks since the last call; waits for the
    // device. Collective.
    std::int64_t take_overflows();
    // After a checked call: throws AgreedError on all ranks where there are such numbers. Collective.
    void report_overflows(const CollectiveCall& call);

  private:
    struct TransportEntry {
        std::string name;
        const CollectiveTransport* spec;
        const CollectiveRanks* ranks;                    // between whom
        std::shared_ptr<CollectiveConnection> transport; // null: closed, or not used yet
        std::string why_not;
    };

    TransportEntry& named(const std::string& name,
                          bool as_library = false); // which carries messages of plans
    TransportEntry&
    inside(TransportEntry& entry); // the same for messages inside hosts alone, where that makes a difference
    const std::string& open(TransportEntry& entry);
    std::string why_not(TransportEntry& entry, const CollectiveCall& call);
    const std::string& default_transport(bool inside_hosts = false);
    // The transports of an algorithm's messages inside hosts and between them; the second is empty if they
    // need no distinction.
    std::pair<std::string, std::string> transports_of(const Algorithm& algorithm, const AlgorithmSpec& spec);
    std::string why_not(const AlgorithmSpec& spec, const CollectiveCall& call, std::string& closed);
    CollectiveChoice choose(const CollectiveCall& call, bool persistent);
    std::shared_ptr<DevicePlan> make_plan(const CollectiveCall& call, const CollectiveChoice& choice,
                                          bool checked, std::span<const GpuAddress> fixed = {});
    std::shared_ptr<DevicePlan> plan_of_transport(const std::string& name, const CollectiveCall& call,
                                                  std::string what);
    void find_library_version(); // the vendor's. The first time collective

    void refuse_without_kernels(const std::string& what) const;

    CollectiveRanks ranks_, within_; // all, and those of this rank's host
    Hosts hosts_;
    std::vector<int> ranks_of_hosts_;
    bool mpi_program_ = false;
    LibraryVersions versions_; // that of the vendor's library once requested, empty if ranks have others
    std::array<PlanCache<DevicePlan>, 2> kept_; // as they are, and those that count overflows
    PlanCache<DevicePlan> in_graphs_;           // that take arrays anywhere
    struct Fixed {
        CollectiveCall call;
        std::vector<GpuAddress> buffers;
        std::weak_ptr<DevicePlan> plan;
    };
    std::vector<Fixed> fixed_;
    std::string why_no_kernels_; // on some rank; then entries remain that have collectives themselves
    std::vector<TransportEntry> entries_, inside_;    // those of `inside_` carry messages inside hosts alone
    std::shared_ptr<CollectiveQueues> queues_;        // null: they cannot be
    std::shared_ptr<CollectiveQueues> within_queues_; // inside hosts; likewise, or not used yet
};

} // namespace jali
