#include "halo/policy.hpp"
#include "peers/peer_memory.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

namespace jali {

namespace {

constexpr const HaloTransport* of_devices[] = {&halos_by_remote_write,  &halos_by_buffered_write,
                                               &halos_by_copy_engine,   &halos_by_library,
                                               &halos_by_gpu_aware_mpi, &halos_by_staging};
constexpr const HaloTransport* of_hosts[] = {&halos_by_exposed_memory, &halos_by_messages_of_hosts};

// Where all arrives for one stage, packing waits for it, so that one launch less is needed.
constexpr Fusion packing_waits{.words = "packing waits",
                               .together = set_of({StepRole::put, StepRole::signal, StepRole::wait}),
                               .not_with = set_of({StepRole::unpack, StepRole::bulk, StepRole::boundary}),
                               .if_only_stage = true,
                               .if_nobody_else_waits = true};
constexpr Fusion boundary_waits{"boundary waits", set_of({StepRole::wait, StepRole::boundary})};
constexpr Fusion bulk_packs{"bulk packs", set_of({StepRole::pack, StepRole::bulk})};
constexpr Fusion one_launch{.words = "one launch",
                            .together = set_of({StepRole::pack, StepRole::bulk, StepRole::boundary}),
                            .if_only_stage = true};

constexpr Fusion of_launches[] = {packing_waits}, of_bulk[] = {bulk_packs, boundary_waits, packing_waits},
                 of_all[] = {boundary_waits, one_launch, packing_waits};

struct Order {
    const char* name;
    bool overlap, per_direction;
    std::span<const Fusion> fusions;
    const char* words;
};

constexpr Order orders[] = {
    {"overlap", true, false, of_launches,
     "sites that need no arriving halo are computed meanwhile, the others after"},
    {"wait", false, false, of_launches, "then all sites are computed at once"},
    {"directions", true, true, of_launches,
     "sites that need no arriving halo are computed meanwhile, the others direction by direction"},
    {"pack-in-bulk", true, false, of_bulk,
     "by blocks of the launch that computes sites which need no halo; another waits and computes the others"},
    {"one-launch", true, false, of_all,
     "one launch packs, computes sites that need no halo, waits and computes the others"},
};

bool in_kernel(std::span<const Fusion> fusions) {
    return std::any_of(fusions.begin(), fusions.end(), [](const Fusion& f) { return f.in_kernel(); });
}

// Boundaries direction by direction, and what blocks of a kernel do, are of devices; those pack straight into
// ghosts.
bool is_policy(const HaloTransport& t, const Order& order) {
    const bool of_device = t.make != nullptr, packs_into_ghosts = t.traits.stores && !t.traits.buffered;
    return (of_device || !order.per_direction) &&
           (!in_kernel(order.fusions) || (of_device && packs_into_ghosts));
}

std::vector<HaloPolicy> policies_of(std::span<const HaloTransport* const> transports,
                                    const std::string& library) {
    std::vector<HaloPolicy> policies;
    for (const HaloTransport* t : transports)
        for (const Order& o : orders)
            if (is_policy(*t, o))
                policies.push_back({name_of(*t, library) + "-" + o.name, t, o.overlap, o.per_direction,
                                    o.fusions, std::string(t->how) + "; " + o.words, name_of(*t, library)});
    return policies;
}

} // namespace

bool HaloPolicy::in_kernel() const {
    return jali::in_kernel(fusions);
}

bool HaloPolicy::reads_what_arrives() const {
    return std::any_of(fusions.begin(), fusions.end(),
                       [](const Fusion& f) { return f.reads_what_arrives(); });
}

int HaloPolicy::waiting_roles() const {
    int most = 0;
    for (const Fusion& f : fusions)
        if (f.in_kernel()) most = std::max(most, f.has(StepRole::pack) + f.has(StepRole::boundary));
    return most;
}

std::span<const HaloPolicy> halo_policies(const GpuVendor* vendor) {
    static const std::vector<HaloPolicy> hosts = policies_of(of_hosts, "");
    if (vendor == nullptr) return hosts;
    static std::mutex mutex;
    static std::map<const GpuVendor*, std::vector<HaloPolicy>>
        of_vendors; // policies of vendors keep their addresses
    std::lock_guard lock(mutex);
    auto& policies = of_vendors[vendor];
    if (policies.empty()) policies = policies_of(of_devices, vendor->ccl.setting);
    return policies;
}

std::vector<std::string> halo_policy_names(std::span<const std::string> libraries) {
    std::vector<std::string> names;
    const auto add = [&](const std::vector<HaloPolicy>& policies) {
        for (const HaloPolicy& policy : policies)
            if (std::find(names.begin(), names.end(), policy.name) == names.end())
                names.push_back(policy.name);
    };
    add(policies_of(of_hosts, ""));
    for (const std::string& library : libraries) add(policies_of(of_devices, library));
    return names;
}

const HaloPolicy& halo_policy(const std::string& name, const GpuVendor* vendor) {
    const auto policies = halo_policies(vendor);
    if (any_halo_policy(name)) return policies[0];
    const std::string& wanted = name.empty() ? settings().halo_policy : name;
    std::string known;
    for (const auto& policy : policies) {
        if (wanted == policy.name) return policy;
        known += (known.empty() ? "" : ", ") + policy.name;
    }
    // a program may have lattices on the host and on devices
    if (name.empty()) return policies[0];
    throw std::invalid_argument("halo policy " + name + " does not exist; there are: " + known +
                                ", auto, auto-graph");
}

const HaloPolicy& with_transport(const HaloPolicy& policy, const HaloTransport& transport,
                                 const GpuVendor* vendor) {
    for (const HaloPolicy& other : halo_policies(vendor))
        if (other.transport == &transport && other.overlap == policy.overlap &&
            other.per_direction == policy.per_direction && !other.in_kernel())
            return other;
    throw std::logic_error("halo policy " + policy.name + " has no counterpart");
}

std::string why_never(const HaloPolicy& policy, const GpuVendor* vendor) {
    if (vendor == nullptr || vendor->fine_grained == 0 || !policy.reads_what_arrives()) return "";
    return "ghosts lie in memory of which a running kernel of these devices need not see what others store";
}

std::string why_no_halo_policy(const HaloPolicy& policy, LocalLayout& layout, Communicator& communicator) {
    if (policy.device_per_rank())
        if (const std::string& shared = layout.why_not(RankDevices::shared_by, communicator); !shared.empty())
            return shared + ", but this policy takes one for each rank" +
                   (policy.in_kernel() ? ", since blocks of its launches wait for other ranks beside the bulk"
                                       : "") +
                   ": start as many ranks per host as it has GPUs, or give each rank another one "
                   "('cuda:<number>', CUDA_VISIBLE_DEVICES and its like)";
    const std::string& trouble = layout.why_not(*policy.transport, communicator);
    return trouble.empty() ? why_never(policy, layout.vendor()) : trouble;
}

bool any_halo_policy(const std::string& name) {
    const std::string& wanted = name.empty() ? settings().halo_policy : name;
    return wanted.empty() || wanted == "auto" || wanted == "auto-graph";
}

} // namespace jali
