// State of a communicator's collectives: the carriers of their messages, the choice of algorithms, and the
// plans that are ready to run on memory of the host and of devices.
//
// Equal calls share a plan. Ranks need not agree on the kept plans, since plans take their tags when they
// start. Used by one thread at a time, as communicators are.
#pragma once

#include "planning/algorithms.hpp"
#include "planning/rules.hpp"
#include "running/device_collectives.hpp"
#include "running/persistent.hpp"
#include "running/plan_cache.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace jali {

class Collectives : public std::enable_shared_from_this<Collectives> {
  public:
    // Collective. `share_memory` makes the communicator of the same ranks for which those of one host share
    // memory; it is called where there may be several hosts. `what` names the calling function in errors.
    // Throws AgreedError on all ranks where one has another jali, cannot read the rules or has others.
    using SharesMemory = std::function<std::shared_ptr<Communicator>()>;
    static std::shared_ptr<Collectives> make(std::shared_ptr<Communicator> ranks,
                                             const SharesMemory& share_memory, std::string_view what);
    // The same, with a communicator of its own for ranks of one host.
    static std::shared_ptr<Collectives> make(const std::shared_ptr<Communicator>& ranks);

    const std::shared_ptr<Communicator>& ranks() const { return ranks_; }
    const std::shared_ptr<MessageSpace>& space() const { return space_; }
    // Libraries by name; the first is the default for messages of plans.
    std::span<const MessageSpace::NamedCommunicator> transports() const { return transports_; }
    const Hosts& hosts() const { return hosts_; } // ranks of each
    // Of MPI's library, if it is the same on all ranks.
    const LibraryVersions& versions() const { return have_.versions; }
    // As if ranks were on these hosts, in the order of their first ranks: for tests and trials of algorithms
    // between hosts on one. The same on all ranks, before any call. Throws CollectiveError.
    void override_hosts(Hosts hosts);

    // Calls come from a program that calls MPI: the rules get this fact.
    void serve_mpi_program() { have_.mpi_program = have_.hands_over = true; }

    // The algorithm that a call on memory of the host takes, and why. In a program that calls MPI, `by_mpi`
    // means that the call is to be passed to MPI unchanged. Throws CollectiveError, RulesError.
    CollectiveChoice algorithm_of(const CollectiveCall& call) const;

    // Begins a call on these addresses, one for each of its buffers (standard_collectives.hpp; null where
    // this rank has no bytes of one), which stay until it has ended: test() and wait() of what this returns.
    // Calls are started in the same order on all ranks and waited for in any; in checked mode they are
    // compared. Throws CollectiveError, RulesError, PlanError.
    std::shared_ptr<PersistentPlan>
    start(const CollectiveCall& call, std::span<std::byte* const> buffers,
          const std::source_location& location = std::source_location::current()) {
        compare(call, location);
        std::shared_ptr<PersistentPlan> plan = idle_plan_of(call);
        plan->start(buffers);
        return plan;
    }
    // The same until it has ended; also throws the errors of waiting.
    void run(const CollectiveCall& call, std::span<std::byte* const> buffers,
             const std::source_location& location = std::source_location::current()) {
        compare(call, location);
        idle_plan_of(call)->run(buffers);
    }

    // A plan of this call that is not under way: null if none is kept.
    std::shared_ptr<PersistentPlan> find_idle(const CollectiveCall& call);
    std::shared_ptr<PersistentPlan> idle_plan_of(const CollectiveCall& call); // made if need be

    // The collectives on a device of this rank. Collective where it is the first call for that device.
    const std::shared_ptr<DeviceCollectives>& on(const std::shared_ptr<Gpu>& gpu);
    const std::shared_ptr<DeviceCollectives>* find(const Gpu& gpu) const; // null: there was no call

    CacheCounts counts() const { return plans_.counts(); }
    void keep_at_most(std::size_t plans) { plans_.most = plans; }

  private:
    using SamePlans = std::vector<std::shared_ptr<PersistentPlan>>; // of calls under way several times

    Collectives(std::shared_ptr<Communicator> ranks, const SharesMemory& share_memory, std::string_view what);
    std::shared_ptr<PersistentPlan> make_plan(const CollectiveCall& call) const;
    void compare(const CollectiveCall& call, const std::source_location& location); // in checked mode

    std::shared_ptr<Communicator> ranks_;
    std::vector<MessageSpace::NamedCommunicator> transports_;
    std::shared_ptr<MessageSpace> space_;
    Hosts hosts_;
    std::vector<int> ranks_of_hosts_;
    HostAlgorithms have_;
    PlanCache<SamePlans> plans_;
    std::map<const Gpu*, std::shared_ptr<DeviceCollectives>> on_devices_;
};

// Addresses of a call's buffers, of any types: buffers_of(x.data(), sum.data()).
template <class... Elements>
std::array<std::byte*, sizeof...(Elements)> buffers_of(Elements*... data) {
    return {reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<Elements>*>(data))...};
}

} // namespace jali
