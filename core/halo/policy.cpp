#include "halo/policy.hpp"
#include "settings/settings.hpp"

#include <map>
#include <mutex>
#include <stdexcept>

namespace jali {

namespace {

struct Carrier {
    HaloCarrier carrier;
    const char *name, *words; // no name: the vendor's
};

constexpr Carrier carriers[] = {
    {HaloCarrier::remote_write, "remote-write", "the pack kernel stores into the neighbour's ghosts"},
    {HaloCarrier::buffered_write, "buffered-write",
     "the pack kernel stores into a buffer at the neighbour, which places it"},
    {HaloCarrier::copy_engine, "copy-engine",
     "packed here, copied into a buffer at the neighbour by a copy engine"},
    {HaloCarrier::library, "",
     "packed here, sent by the vendor's library straight into the neighbour's ghosts"},
    {HaloCarrier::gpu_aware_mpi, "gpu-aware-mpi",
     "packed here, sent by an MPI library that takes addresses of devices"},
    {HaloCarrier::host_staged, "host-staged", "packed here, sent as messages by way of pinned host memory"},
};

struct Order {
    const char* name;
    bool overlap, per_direction;
    const char* words;
};

constexpr Order orders[] = {
    {"overlap", true, false, "sites that need no arriving halo are computed meanwhile, the others after"},
    {"wait", false, false, "then all sites are computed at once"},
    {"directions", true, true,
     "sites that need no arriving halo are computed meanwhile, the others direction by direction"},
};

std::string name_of(const Carrier& carrier, const GpuVendor& vendor) {
    if (*carrier.name) return carrier.name;
    return vendor.ccl.setting.empty() ? "library" : vendor.ccl.setting; // which bears the library's name
}

std::vector<HaloPolicy> rows_of(const GpuVendor& vendor) {
    std::vector<HaloPolicy> rows;
    for (const Carrier& c : carriers)
        for (const Order& o : orders)
            rows.push_back({name_of(c, vendor) + "-" + o.name, c.carrier, o.overlap, o.per_direction,
                            std::string(c.words) + "; " + o.words, name_of(c, vendor)});
    return rows;
}

std::vector<HaloPolicy> rows_of_hosts() {
    constexpr Carrier on_hosts[] = {
        {HaloCarrier::remote_write, "remote-write",
         "packed straight into the ghosts of neighbours on this host, sent as messages to others"},
        {HaloCarrier::messages, "messages", "packed here, sent as messages"},
    };
    std::vector<HaloPolicy> rows;
    for (const Carrier& c : on_hosts)
        for (const Order& o : orders)
            if (!o.per_direction)
                rows.push_back({std::string(c.name) + "-" + o.name, c.carrier, o.overlap, false,
                                std::string(c.words) + "; " + o.words, c.name});
    return rows;
}

} // namespace

std::span<const HaloPolicy> halo_policies(const GpuVendor* vendor) {
    static const std::vector<HaloPolicy> hosts = rows_of_hosts();
    if (vendor == nullptr) return hosts;
    static std::mutex mutex;
    static std::map<const GpuVendor*, std::vector<HaloPolicy>>
        of_vendors; // rows of vendors stay where they are
    std::lock_guard lock(mutex);
    auto& rows = of_vendors[vendor];
    if (rows.empty()) rows = rows_of(*vendor);
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

const HaloPolicy& with_carrier(const HaloPolicy& row, HaloCarrier carrier, const GpuVendor* vendor) {
    for (const HaloPolicy& other : halo_policies(vendor))
        if (other.carrier == carrier && other.overlap == row.overlap &&
            other.per_direction == row.per_direction)
            return other;
    throw std::logic_error("halo policy " + row.name + " has no counterpart");
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
