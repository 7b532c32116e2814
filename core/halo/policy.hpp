// Ways of doing a halo exchange, as rows of a table: a new way is a new row.
//
// A row says who carries what was packed, whether the bulk is computed meanwhile, and, on devices, whether
// the boundary is one launch or one for each direction, as soon as its halos are there. All rows give the
// same bits.
#pragma once

#include "device/vendor.hpp"

#include <span>
#include <string>
#include <vector>

namespace jali {

enum class HaloCarrier {
    messages,       // of the communicator, between hosts
    host_staged,    // from a device, by way of pinned host memory, as messages of the communicator
    copy_engine,    // packed here, brought into a buffer at the receiver by a copy engine
    remote_write,   // the pack kernel writes into the receiver's ghosts
    buffered_write, // the pack kernel writes into a buffer at the receiver
    library,        // packed here, sent and received by the vendor's library: NCCL or RCCL
    gpu_aware_mpi,  // packed here, sent and received by an MPI library that reaches into devices
};

// Carried through slots at the receiver (halo_pad.hpp).
constexpr bool uses_slots(HaloCarrier carrier) {
    return carrier == HaloCarrier::copy_engine || carrier == HaloCarrier::buffered_write;
}
// The kernel that packs is the transport as well.
constexpr bool packs_into_receiver(HaloCarrier carrier) {
    return carrier == HaloCarrier::remote_write || carrier == HaloCarrier::buffered_write;
}
// Takes devices that reach each other's memory.
constexpr bool needs_peers(HaloCarrier carrier) {
    return carrier == HaloCarrier::remote_write || uses_slots(carrier);
}
// Nothing is decided by the host at each exchange, so that it may be part of a graph.
constexpr bool can_be_recorded(HaloCarrier carrier) {
    return packs_into_receiver(carrier) || carrier == HaloCarrier::library;
}

struct HaloPolicy {
    std::string name;
    HaloCarrier carrier;
    bool overlap;       // the bulk is computed while halos travel
    bool per_direction; // boundary in disjoint sets of sites, each launched when its halos are there
    std::string description;
    std::string carried_by; // the first part of the name: who carries
};

// The rows for a vendor's devices, or for the host (null); the first is taken where nothing was said.
std::span<const HaloPolicy> halo_policies(const GpuVendor* vendor);

// The row of that name; empty: the one that JALI_HALO_POLICY names, else the first. "auto" and
// "auto-graph" are the first until somebody has measured (src/jali/tune). Throws std::invalid_argument with
// the list of rows for any other name.
const HaloPolicy& halo_policy(const std::string& name, const GpuVendor* vendor);

// The row that differs from this one by its carrier alone.
const HaloPolicy& with_carrier(const HaloPolicy& row, HaloCarrier carrier, const GpuVendor* vendor);

// Whether no row is asked for by that name (empty: by JALI_HALO_POLICY), so that another may be taken.
bool any_halo_policy(const std::string& name);

// What of an exchange is left out, so that the cost of the rest is seen; results are then wrong. The
// experiment `halo_off`, a list such as "bulk,boundary"; looked at in every exchange.
struct HaloSwitches {
    bool pack = true, transport = true, bulk = true, boundary = true;
};
HaloSwitches halo_switches();

} // namespace jali
