// The messages of one exchange of halos between devices: which parts of which fields, from whom, to whom.
//
// One message per slab, as on the host; its parts are sections of whole groups of ghost sites, stored as in
// the field, so that a section lands in its ghosts as it is.
#pragma once

#include "device/timeline.hpp"
#include "halo/halo_kernels.hpp"
#include "halo/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace jali {

// Blocks of a launch that packs or places: how many, about, and their threads.
struct HaloBlocks {
    std::size_t most;
    unsigned threads;
};
// So many fill a link. Beside a bulk, whose blocks often take a multiprocessor each, as few multiprocessors
// as nearly do (measured on H200).
constexpr HaloBlocks halo_blocks{128, 256}, beside_bulk{12, 1024};

// Deals an item of a message out to blocks; how many there are.
std::int64_t deal_out(std::vector<HaloJob>& jobs, std::size_t item, std::size_t message, std::size_t bytes,
                      std::size_t all_bytes, const HaloBlocks& blocks);

struct HaloMessages {
    struct Part {
        FieldStorage* field;
        int parity;
        std::int64_t send_count, receive_count; // sites
        std::int64_t send_sites;                // where its sites begin in the slab's list
        std::int64_t ghost;                     // first ghost block
        std::int64_t their_ghost; // at the receiver, counted from its first; set by who needs it
        std::size_t send_offset, receive_offset; // in the message
        std::int64_t produced;                   // where a producer puts it
    };
    struct Message {
        int slab = 0, from = 0, to = 0, direction = 0; // the highest one that its slab reaches into
        std::size_t send_bytes = 0, receive_bytes = 0, send_offset = 0, receive_offset = 0;
        std::vector<Part> parts;
    };
    // Of the boundary: needs the messages of slabs that reach into directions up to this.
    struct Stage {
        int direction;
        std::size_t messages = 0;
    };
    // What lies in one piece both where it was packed and in the receiver's ghosts: a field's part of a
    // message.
    struct Piece {
        GpuAddress from, to;
        std::size_t send_bytes, receive_bytes;
        int sender, receiver, slab;
    };

    std::size_t send_bytes_of(const Part& part) const {
        return layout->whole_groups(part.send_count) * part.field->block_bytes();
    }
    std::size_t receive_bytes_of(const Part& part) const {
        return layout->whole_groups(part.receive_count) * part.field->block_bytes();
    }
    static GpuAddress ghosts_of(const Part& part) { return part.field->address_of_ghost(part.ghost); }
    // Stage by stage, in an order that all ranks share, of messages that were packed from `packed` on.
    std::vector<std::vector<Piece>> pieces(GpuAddress packed) const;
    // Calls f(stage, number of the message, message), stage by stage.
    template <class F>
    void for_each(F f) const {
        std::size_t next = 0;
        for (std::size_t s = 0; s < stages.size(); ++s)
            for (std::size_t k = 0; k < stages[s].messages; ++k, ++next) f(s, next, messages[next]);
    }
    // The word that counts blocks or messages that are done: of a message, or of what else has a number.
    GpuAddress retired_word(std::size_t number) const {
        return retired.address() + number * sizeof(std::int64_t);
    }
    Work sent() const; // for profiles
    Work received() const;
    Work received(std::size_t stage) const;

    std::shared_ptr<PlacedLayout> layout;
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<Communicator> communicator;
    std::vector<std::shared_ptr<FieldStorage>> fields; // that are sent, in an order that all ranks share
    std::vector<Message> messages;                     // stage by stage
    std::vector<Stage> stages;
    std::size_t send_bytes = 0, receive_bytes = 0;
    bool bulk_waits_for_packing = false; // it may write what is being packed
    GpuMemory retired;                   // [message], then of whom the carrier says: zero before and after
};

} // namespace jali
