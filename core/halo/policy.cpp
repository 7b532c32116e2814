#include "halo/policy.hpp"
#include "settings/settings.hpp"

#include <map>
#include <mutex>
#include <stdexcept>

namespace jali {

namespace {

constexpr const HaloTransport* of_devices[] = {&halos_by_remote_write,  &halos_by_buffered_write,
                                               &halos_by_copy_engine,   &halos_by_library,
                                               &halos_by_gpu_aware_mpi, &halos_by_staging};
constexpr const HaloTransport* of_hosts[] = {&halos_by_exposed_memory, &halos_by_messages_of_hosts};

struct Order {
    const char* name;
    bool overlap, per_direction;
    const char* words;
    HaloFusion fusion = HaloFusion::none;
};

constexpr Order orders[] = {
    {"overlap", true, false, "sites that need no arriving halo are computed meanwhile, the others after"},
    {"wait", false, false, "then all sites are computed at once"},
    {"directions", true, true,
     "sites that need no arriving halo are computed meanwhile, the others direction by direction"},
    {"pack-in-bulk", true, false,
     "by blocks of the launch that computes sites which need no halo; another waits and computes the others",
     HaloFusion::pack},
    {"one-launch", true, false,
     "one launch packs, computes sites that need no halo, waits and computes the others",
     HaloFusion::everything},
};

bool can_fuse(const HaloTransport& transport, const GpuVendor* vendor) {
    return vendor != nullptr && transport.packs && !transport.traits.buffered;
}

std::vector<HaloPolicy> rows_of(std::span<const HaloTransport* const> transports, const GpuVendor* vendor) {
    std::vector<HaloPolicy> rows;
    for (const HaloTransport* t : transports)
        for (const Order& o : orders)
            if ((vendor != nullptr || !o.per_direction) &&
                (o.fusion == HaloFusion::none || can_fuse(*t, vendor)))
                rows.push_back({name_of(*t, vendor) + "-" + o.name, t, o.overlap, o.per_direction, o.fusion,
                                std::string(t->how) + "; " + o.words, name_of(*t, vendor)});
    return rows;
}

} // namespace

std::span<const HaloPolicy> halo_policies(const GpuVendor* vendor) {
    static const std::vector<HaloPolicy> hosts = rows_of(of_hosts, nullptr);
    if (vendor == nullptr) return hosts;
    static std::mutex mutex;
    static std::map<const GpuVendor*, std::vector<HaloPolicy>>
        of_vendors; // rows of vendors stay where they are
    std::lock_guard lock(mutex);
    auto& rows = of_vendors[vendor];
    if (rows.empty()) rows = rows_of(of_devices, vendor);
    return rows;
}

const HaloPolicy& halo_policy(const std::string& name, const GpuVendor* vendor) {
    const auto rows = halo_policies(vendor);
    if (any_halo_policy(name)) return rows[0];
    const std::string& wanted = name.empty() ? settings().halo_policy : name;
    std::string known;
    for (const auto& row : rows) {
        if (wanted == row.name) return row;
        known += (known.empty() ? "" : ", ") + row.name;
    }
    // a program may have lattices on the host and on devices
    if (name.empty()) return rows[0];
    throw std::invalid_argument("halo policy " + name + " does not exist; there are: " + known +
                                ", auto, auto-graph");
}

const HaloPolicy& with_transport(const HaloPolicy& row, const HaloTransport& transport,
                                 const GpuVendor* vendor) {
    for (const HaloPolicy& other : halo_policies(vendor))
        if (other.transport == &transport && other.overlap == row.overlap &&
            other.per_direction == row.per_direction && other.fusion == HaloFusion::none)
            return other;
    throw std::logic_error("halo policy " + row.name + " has no counterpart");
}

std::string why_no_halo_policy(const HaloPolicy& row, PlacedLayout& layout, Communicator& communicator) {
    const std::string& trouble = layout.why_not(*row.transport, communicator);
    if (!trouble.empty() || row.fusion != HaloFusion::everything) return trouble;
    return layout.vendor()->fine_grained == 0 ? ""
                                              : "ghosts lie in memory of which a running kernel of these "
                                                "devices need not see what others store";
}

bool any_halo_policy(const std::string& name) {
    const std::string& wanted = name.empty() ? settings().halo_policy : name;
    return wanted.empty() || wanted == "auto" || wanted == "auto-graph";
}

HaloSwitches halo_switches() {
    const std::string& off = settings().halo_off;
    if (off.empty()) return {};
    const auto is_on = [&](const char* part) { return off.find(part) == std::string::npos; };
    return {is_on("pack"), is_on("transport"), is_on("bulk"), is_on("boundary")};
}

} // namespace jali
