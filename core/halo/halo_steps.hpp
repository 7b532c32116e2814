// Steps of an exchange of halos around a kernel: what a transport and a policy's order make of them, and
// fusions of steps into one launch. Data only: gpu_exchange puts them on streams, `explain()` and the
// simulator read them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace jali {

struct HaloPolicy;

enum class HaloAction : std::uint8_t {
    begin,    // nothing: what may go beside the exchange comes after it
    produce,  // halo items are computed
    offer,    // signal: this rank's ghosts, or slots, may be written
    pack,     // rows are copied
    admit,    // wait: the receivers' ghosts, or slots, may be written
    put,      // what is packed is written there
    signal,   // it is there
    wait,     // for what the senders put here
    place,    // it is copied into ghosts
    exchange, // sends and receives of a library, on the stream
    fetch,    // to the host
    message,  // sends and receives of the host
    bring,    // from the host
    bulk,     // sites that need no halo
    boundary, // all others
    join,     // nothing: what comes next comes after what was beside
};
const char* name_of(HaloAction action);

using HaloActions = std::uint32_t; // a set of them
constexpr HaloActions set_of(std::initializer_list<HaloAction> actions) {
    HaloActions set = 0;
    for (HaloAction action : actions) set |= 1U << static_cast<unsigned>(action);
    return set;
}

struct HaloStep {
    std::vector<HaloAction> actions; // in this order; several: fused
    int stage = -1;                  // of the boundary; -1: of the whole exchange
    bool beside = false;             // on the stream beside the device's own
    std::vector<int> needs;          // earlier steps
    bool has(HaloAction action) const { return has_any(set_of({action})); }
    bool has_any(HaloActions set) const;
};

// What a transport does, and when. Moves of one time follow each other.
enum class HaloTime : std::uint8_t {
    first,
    first_by_stage, // each stage's, before the bulk
    behind_bulk,
    by_stage, // before the boundary of each stage
    with_last_stage,
};
struct HaloMove {
    HaloAction action;
    HaloTime time;
};

// A rule: steps that have any of these actions become one launch, stage by stage, if no other step must come
// between them.
struct HaloFusion {
    const char* words;
    HaloActions together;
    HaloActions not_with = 0;          // steps that have one of these stay as they are
    bool if_only_stage = false;        // they are of all stages at once
    bool if_nobody_else_waits = false; // else what needs one of them would wait for all
    bool in_kernel() const {           // blocks of the kernel that computes sites do it
        return (together & set_of({HaloAction::bulk, HaloAction::boundary})) != 0;
    }
    bool reads_what_arrives() const { // ghosts are read by the launch that waits for them
        return (together & set_of({HaloAction::boundary})) != 0;
    }
};

// What of an exchange is left out, so that the cost of the rest is seen; results are then wrong. The
// experiment `halo_off`, a list such as "bulk,boundary"; looked at in every exchange.
struct HaloSwitches {
    bool pack = true, transport = true, bulk = true, boundary = true;
    bool all() const { return pack && transport && bulk && boundary; }
    bool operator==(const HaloSwitches&) const = default;
};
HaloSwitches halo_switches();

// What the steps of an exchange depend on beside its policy.
struct HaloShape {
    int stages = 1;
    bool produces = false;               // there are halo items
    bool has_bulk = false;               // beside the exchange
    bool bulk_waits_for_packing = false; // it may write what is packed
    bool boundary_fills = false;         // it takes places that the end of the bulk leaves
    bool kernel_has_roles = false;       // its blocks can take part in the exchange
    HaloSwitches on;
    bool operator==(const HaloShape&) const = default;
};

// In the order in which they are put on streams. What is left out has no actions.
std::vector<HaloStep> halo_steps(const HaloPolicy& policy, const HaloShape& shape);

// "pack + admit + put + signal", with its stage.
std::string words_of(const HaloStep& step);

} // namespace jali
