// The schedule of an exchange of halos around a kernel, on hosts and between devices.
//
// A transport's entry lists its moves: the steps of its messages, and their times (halo_batches.hpp). Two
// fusions are of steps: instead of a put or an unpack, packing or receiving writes to the destination. All
// others are of batches.
#pragma once

#include "halo/halo_batches.hpp"
#include "halo/halo_messages.hpp"

#include <vector>

namespace jali {

// Memory that a buffer of the schedule stands for.
struct HaloBuffer {
    enum class Of : std::uint8_t {
        owned,        // blocks of a field
        ghosts,       // of a field
        their_ghosts, // of the same field on another rank
        items,        // that producers compute
        packed,       // messages, to be sent
        staged,       // the same, on the host of a device
        received,     // messages, on the host
        slot,         // where other ranks write messages
        their_slot,   // the same on another rank
    };
    Of of;
    FieldStorage* field = nullptr;
    int rank = -1;
    bool operator==(const HaloBuffer&) const = default;
};

struct HaloSchedule {
    Schedule schedule;
    std::vector<HaloBuffer> buffers; // [buffer of the schedule]
    std::vector<Batch> batches;      // in the order in which they are put on streams
    // Steps that pack: for which part of which message.
    struct Pack {
        int message;
        const HaloMessages::Part* part;
        Region from, to; // `from` contains all blocks of a field, or produced data
    };
    std::vector<Pack> packs;

    std::size_t bytes_of(HaloBuffer::Of of) const; // of the largest such buffer
};

// `messages` must stay where they are. `written` are fields that the kernel, of which `body` is null on
// devices, writes.
HaloSchedule halo_schedule(const HaloMessages& messages, const HaloPolicy& policy, const HaloShape& shape,
                           const std::vector<FieldStorage*>& written, Kernel::Body body = {});

} // namespace jali
