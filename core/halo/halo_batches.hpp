// The order of an exchange of halos around a kernel, as defined by a transport's moves and a policy, and its
// batches for devices.
#pragma once

#include "schedule/batches.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace jali {

struct HaloTransport;
struct HaloPolicy;

// The time of a transport's move. Moves of the same time are consecutive.
enum class HaloTime : std::uint8_t {
    first,
    first_by_stage, // each stage's, before the bulk
    behind_bulk,
    by_stage, // before the boundary of each stage
    with_last_stage,
};
struct HaloMove {
    StepRole role;
    HaloTime time;
};

// Parts of an exchange to leave out, to measure the cost of the rest; results are then wrong. The experiment
// `halo_off`, a list such as "bulk,boundary"; read in every exchange.
struct HaloSwitches {
    bool pack = true, transport = true, bulk = true, boundary = true;
    bool all() const { return pack && transport && bulk && boundary; }
    bool operator==(const HaloSwitches&) const = default;
};
HaloSwitches halo_switches();

// Further properties that an exchange depends on, besides its policy and its messages.
struct HaloShape {
    int stages = 1;
    bool produces = false;               // there are halo items
    bool has_bulk = false;               // beside the exchange
    bool bulk_waits_for_packing = false; // the bulk may write packed data
    bool boundary_fills = false;         // the boundary uses places that the end of the bulk leaves
    bool kernel_has_roles = false;       // its blocks can take part in the exchange
    HaloSwitches on = {};
    bool operator==(const HaloShape&) const = default;
};

// In the order in which they are put on streams; fused by nothing yet. Calls begun(...) whenever a batch
// begins: for the messages of a stage or, -1, of all, and of a transport, or, null, of any. The policy's own
// transport is one of those that move.
using HaloBatchBegun =
    std::function<void(StepRole role, int stage, std::size_t number, const HaloTransport* transport)>;
std::vector<Batch> ordered_batches(const HaloPolicy& policy, const HaloShape& shape,
                                   std::span<const HaloTransport* const> transports,
                                   const HaloBatchBegun& begun);
// By the rules of transport and policy; batches that are switched off get no roles.
void fuse(std::vector<Batch>& batches, const HaloPolicy& policy, const HaloShape& shape);

// Both, of whatever messages.
std::vector<Batch> halo_batches(const HaloPolicy& policy, const HaloShape& shape);

} // namespace jali
