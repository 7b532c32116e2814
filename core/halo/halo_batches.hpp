// The order of an exchange of halos around a kernel: what a transport's moves and a policy make of it, and
// the batches in which devices get it.
#pragma once

#include "schedule/batches.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace jali {

struct HaloTransport;
struct HaloPolicy;

// What a transport does, and when. Moves of one time follow each other.
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

// What of an exchange is left out, so that the cost of the rest is seen; results are then wrong. The
// experiment `halo_off`, a list such as "bulk,boundary"; looked at in every exchange.
struct HaloSwitches {
    bool pack = true, transport = true, bulk = true, boundary = true;
    bool all() const { return pack && transport && bulk && boundary; }
    bool operator==(const HaloSwitches&) const = default;
};
HaloSwitches halo_switches();

// What an exchange depends on beside its policy and its messages.
struct HaloShape {
    int stages = 1;
    bool produces = false;               // there are halo items
    bool has_bulk = false;               // beside the exchange
    bool bulk_waits_for_packing = false; // it may write what is packed
    bool boundary_fills = false;         // it takes places that the end of the bulk leaves
    bool kernel_has_roles = false;       // its blocks can take part in the exchange
    HaloSwitches on = {};
    bool operator==(const HaloShape&) const = default;
};

// In the order in which they are put on streams; fused by nothing yet. Calls begun(...) whenever a batch
// begins: of the messages of a stage or, -1, of all, and of a transport, or, null, whatever carries them. The
// policy's own transport is one of those that move.
using HaloBatchBegun =
    std::function<void(StepRole role, int stage, std::size_t number, const HaloTransport* transport)>;
std::vector<Batch> ordered_batches(const HaloPolicy& policy, const HaloShape& shape,
                                   std::span<const HaloTransport* const> transports,
                                   const HaloBatchBegun& begun);
// By the rules of transport and policy; what is switched off has no roles then.
void fuse(std::vector<Batch>& batches, const HaloPolicy& policy, const HaloShape& shape);

// Both, of whatever messages.
std::vector<Batch> halo_batches(const HaloPolicy& policy, const HaloShape& shape);

} // namespace jali
