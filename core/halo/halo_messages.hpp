// The messages of one exchange of halos: the parts of fields, with sender and receiver.
//
// One message per slab, tagged by its number, carries the stale parities of every field that is read there.
// Messages are matched by slab, not by peer: with two ranks in a direction both neighbours are the same peer.
// Its parts are whole groups of ghost sites, stored as in the field, so that they are received into the
// ghosts unchanged; those of a field are contiguous, on both sides.
#pragma once

#include "halo/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace jali {

struct HaloTransport;

struct HaloMessages {
    struct Part {
        FieldStorage* field;
        int parity;
        std::int64_t send_count, receive_count;  // sites, on hosts blocks
        std::int64_t send_sites;                 // where its sites begin in the slab's list
        std::int64_t ghost;                      // first ghost block
        std::size_t send_offset, receive_offset; // in the message
        std::size_t send_bytes, receive_bytes;   // of whole groups
        std::size_t produced;                    // where a producer puts it
    };
    struct Message {
        int slab = 0, from = 0, to = 0, direction = 0; // the highest one that its slab reaches into
        int stage = 0;
        std::size_t send_bytes = 0, receive_bytes = 0, receive_offset = 0;
        std::vector<Part> parts;
        const HaloTransport *goes_by = nullptr, *comes_by = nullptr;
        // The place at the receiver, set by a sender that writes there: in its slot, or [part]: its first
        // ghost block, counted from the first of all.
        std::size_t their_slot = 0;
        std::vector<std::int64_t> their_ghosts;
    };
    // The filled ghosts, in the order of the requests, and their versions.
    struct Filled {
        FieldStorage* field;
        int slab, parity;
        std::uint64_t version;
    };

    // `stale` is [request][parity]; the same on all ranks. `by_direction`: a stage for each direction that
    // messages reach into, else one.
    HaloMessages(std::shared_ptr<LocalLayout> layout, const std::vector<HaloRequest>& requests,
                 const std::vector<char>& stale, bool by_direction);

    static GpuAddress ghosts_of(const Part& part) { return part.field->address_of_ghost(part.ghost); }
    // Before an exchange, and after it: the ghosts hold the versions of its start.
    void note_versions();
    void mark_filled();
    void count(); // one exchange

    int stages() const { return static_cast<int>(directions.size()); }

    std::shared_ptr<LocalLayout> layout;
    std::vector<std::shared_ptr<FieldStorage>> fields; // that are sent, in an order that all ranks share
    std::vector<Message> messages;                     // stage by stage
    std::vector<int>
        directions; // [stage] of the boundary: needs messages that reach into directions up to it
    std::vector<Filled> filled;
    std::size_t send_bytes = 0, receive_bytes = 0, produced_bytes = 0;

  private:
    std::vector<std::pair<FieldStorage*, HaloCounters>> counts_; // per exchange
    HaloCounters total_;
};

} // namespace jali
