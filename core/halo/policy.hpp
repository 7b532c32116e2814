// The table of halo policies: how a halo exchange is done. A new policy is a new entry.
//
// A policy selects the transport (halo_transport.hpp), whether the bulk is computed meanwhile, and, on
// devices, whether the boundary is one launch or one for each direction, as soon as its halos arrive, and
// which steps become one launch (schedule/batches.hpp). All policies give the same bits.
#pragma once

#include "halo/halo_transport.hpp"

#include <span>
#include <string>
#include <vector>

namespace jali {

struct HaloPolicy {
    std::string name;
    const HaloTransport* transport;
    bool overlap;       // the bulk is computed while halos travel
    bool per_direction; // boundary in disjoint sets of sites, each launched when its halos are there
    std::span<const Fusion> fusions;
    std::string description;
    std::string transport_name; // the first part of the name: the transport

    bool in_kernel() const;          // blocks of the launch's kernel take part in the exchange
    bool reads_what_arrives() const; // and one that waits for ghosts reads them
    // How many kinds of blocks of a launch wait for other ranks beside those of the bulk; of each there is
    // one.
    int waiting_roles() const;
    // Two ranks cannot share a device: a wait of one rank beside a bulk may keep the other from beginning.
    bool device_per_rank() const { return transport->traits.device_per_rank || in_kernel(); }
};

// The policies for a vendor's devices, or for the host (null); the first is the default.
std::span<const HaloPolicy> halo_policies(const GpuVendor* vendor);

// Names of all policies, for the host and for vendors whose libraries have these names.
std::vector<std::string> halo_policy_names(std::span<const std::string> libraries);

// The policy of that name; empty: the one that JALI_HALO_POLICY names, else the first. "auto" and
// "auto-graph" are the first until a measurement (src/jali/tune). Throws std::invalid_argument with the list
// of policies for any other name.
const HaloPolicy& halo_policy(const std::string& name, const GpuVendor* vendor);

// Empty if devices of this kind can have the policy at all, else why not; a null vendor is the host.
std::string why_never(const HaloPolicy& policy, const GpuVendor* vendor);

// Empty if the ranks of a layout on devices can exchange halos by this policy, else why not. Collective at
// first; the same on all ranks.
std::string why_no_halo_policy(const HaloPolicy& policy, LocalLayout& layout, Communicator& communicator);

// The policy with another transport in the same order, with no part in the kernel.
const HaloPolicy& with_transport(const HaloPolicy& policy, const HaloTransport& transport,
                                 const GpuVendor* vendor);

// Whether that name (empty: JALI_HALO_POLICY) requests no certain policy, so that another may be taken.
bool any_halo_policy(const std::string& name);

} // namespace jali
