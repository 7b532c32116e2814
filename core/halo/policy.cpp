#include "halo/policy.hpp"
#include "settings/settings.hpp"

#include <stdexcept>

namespace jali {

namespace {

struct Carrier {
    HaloCarrier carrier;
    const char *name, *words;
};

constexpr Carrier carriers[] = {
    {HaloCarrier::ghosts, "ghosts", "the pack kernel stores into the neighbour's ghosts"},
    {HaloCarrier::store, "store", "the pack kernel stores into a mailbox at the neighbour, which places it"},
    {HaloCarrier::copy, "copy", "packed here, copied into a mailbox at the neighbour by a copy engine"},
    {HaloCarrier::ccl, "ccl", "packed here, sent by NCCL or RCCL straight into the neighbour's ghosts"},
    {HaloCarrier::direct, "direct", "packed here, sent by an MPI library that takes addresses of devices"},
    {HaloCarrier::messages, "staged", "packed here, sent as messages by way of pinned host memory"},
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

std::vector<HaloPolicy> rows_of_devices() {
    std::vector<HaloPolicy> rows;
    for (const Carrier& c : carriers)
        for (const Order& o : orders)
            rows.push_back({std::string(c.name) + "-" + o.name, c.carrier, o.overlap, o.per_direction,
                            std::string(c.words) + "; " + o.words});
    return rows;
}

} // namespace

std::span<const HaloPolicy> halo_policies(bool on_device) {
    static const std::vector<HaloPolicy> host = {
        {"overlap", HaloCarrier::messages, true, false,
         "sites that need no arriving halo are computed while halos travel, the others after"},
        {"wait", HaloCarrier::messages, false, false,
         "halos are exchanged first, then all sites are computed at once"},
    };
    static const std::vector<HaloPolicy> device = rows_of_devices();
    return on_device ? device : host;
}

const HaloPolicy& halo_policy(const std::string& name, bool on_device) {
    const auto rows = halo_policies(on_device);
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
