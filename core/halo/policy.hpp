// Ways of doing a halo exchange, as rows of a table: a new way is a new row.
//
// A row says which transport carries (halo_transport.hpp), whether the bulk is computed meanwhile, and, on
// devices, whether the boundary is one launch or one for each direction, as soon as its halos are there. All
// rows give the same bits.
#pragma once

#include "halo/halo_transport.hpp"

#include <span>
#include <string>
#include <vector>

namespace jali {

// What of an exchange is done by blocks of the kernel's own launch (prelude/halos.hpp). Of transports by
// which packing puts rows where they are read: waiting for them is then all that is left to do.
enum class HaloFusion {
    none,
    pack,       // packing, beside the bulk
    everything, // packing, the bulk, the waiting and the boundary
};

struct HaloPolicy {
    std::string name;
    const HaloTransport* transport;
    bool overlap;       // the bulk is computed while halos travel
    bool per_direction; // boundary in disjoint sets of sites, each launched when its halos are there
    HaloFusion fusion;
    std::string description;
    std::string carried_by; // the first part of the name: who carries
};

// The rows for a vendor's devices, or for the host (null); the first is taken where nothing was said.
std::span<const HaloPolicy> halo_policies(const GpuVendor* vendor);

// The row of that name; empty: the one that JALI_HALO_POLICY names, else the first. "auto" and
// "auto-graph" are the first until somebody has measured (src/jali/tune). Throws std::invalid_argument with
// the list of rows for any other name.
const HaloPolicy& halo_policy(const std::string& name, const GpuVendor* vendor);

// Empty if the ranks of a layout on devices can exchange halos by this row, else why not. Collective at
// first; the same on all ranks.
std::string why_no_halo_policy(const HaloPolicy& row, PlacedLayout& layout, Communicator& communicator);

// The row with another transport in the same order, without fusions.
const HaloPolicy& with_transport(const HaloPolicy& row, const HaloTransport& transport,
                                 const GpuVendor* vendor);

// Whether no row is asked for by that name (empty: by JALI_HALO_POLICY), so that another may be taken.
bool any_halo_policy(const std::string& name);

// What of an exchange is left out, so that the cost of the rest is seen; results are then wrong. The
// experiment `halo_off`, a list such as "bulk,boundary"; looked at in every exchange.
struct HaloSwitches {
    bool pack = true, transport = true, bulk = true, boundary = true;
    bool all() const { return pack && transport && bulk && boundary; }
};
HaloSwitches halo_switches();

} // namespace jali
