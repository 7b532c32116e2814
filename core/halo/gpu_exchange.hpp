// The exchange of one set of stale ghost parts between devices, put on streams around a kernel.
//
// One message per slab, as on the host; its parts are sections of whole groups of ghost sites, stored as in
// the field, so that a section lands in its ghosts as it is. Packing is one launch for all messages. Who
// carries them is the policy's row: MPI, by way of pinned memory or from the device (the host waits); NCCL;
// or the devices themselves, into the neighbour's ghosts or slots (halo_pad.hpp), where nobody on the host
// waits for anything. What the kernel's parts compute is the caller's business.
#pragma once

#include "halo/exchange.hpp"
#include "halo/policy.hpp"
#include "halo/storage.hpp"
#include "transport/ccl.hpp"

#include <functional>
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

// Why these ranks and their devices cannot carry halos in this way; empty if they can. Collective at first;
// all ranks get an answer or none.
std::string why_no_carrier(HaloCarrier carrier, PlacedLayout& layout,
                           const std::shared_ptr<Communicator>& communicator);

class GpuExchange {
  public:
    // `stale` is [request][parity]; the same on all ranks. Collective where the policy's carrier is not
    // messages. `written` are the fields and parities that the kernel writes. Throws GpuError; CannotMap, on
    // all ranks, where a field's ghosts cannot be mapped.
    GpuExchange(std::shared_ptr<PlacedLayout> layout, const std::vector<HaloRequest>& requests,
                const std::vector<char>& stale, const HaloPolicy& policy,
                std::shared_ptr<Communicator> communicator,
                const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& written);

    // Exchanges; calls bulk (if overlapped, and if there is one) and boundary when what they need is ordered
    // before them on the stream that they are given. What comes next on the device's own stream comes after
    // all of it. Marks the ghosts as filled with the versions at the start, and counts. Throws CannotMap
    // before anything has been done. The last part of the boundary comes after the exchange and the bulk, or,
    // if it fills, after the exchange alone, for the places that the end of the bulk leaves.
    using Bulk = std::function<void(void* stream)>;
    using Boundary = std::function<void(int stage, void* stream)>;
    void run(const Bulk& bulk_if_any, const Boundary& boundary, bool boundary_fills);

    // The stages of the boundary: stage s needs the messages of slabs that reach into directions up to this,
    // in ascending order. One that needs all, unless the policy goes by directions.
    int stages() const { return static_cast<int>(stages_.size()); }
    int direction_of(int stage) const { return stages_[stage].direction; }

    ~GpuExchange();

  private:
    struct Part {
        FieldStorage* field;
        int parity;
        std::int64_t send_count, receive_count;  // sites
        std::int64_t send_sites;                 // where its sites begin in the slab's list
        std::int64_t ghost;                      // first ghost block
        std::int64_t their_ghost;                // at the receiver, counted from its first
        std::size_t send_offset, receive_offset; // in the message
        std::int64_t produced;                   // where a producer puts it
    };
    struct Message {
        int slab = 0, from = 0, to = 0, direction = 0; // the highest one that its slab reaches into
        std::int64_t their_offset = 0;                 // its place in the receiver's slot
        std::size_t send_bytes = 0, receive_bytes = 0, send_offset = 0, receive_offset = 0;
        std::vector<Part> parts;
    };
    // What lies in one piece both where it was packed and in the receiver's ghosts: a field's part of a
    // message.
    struct Piece {
        GpuAddress from, to;
        std::size_t send_bytes, receive_bytes;
        int sender, receiver, slab;
    };
    struct Stage {
        int direction;
        std::size_t messages = 0;
        std::int64_t first_job = 0, jobs = 0, first_word = 0, words = 0; // of receiving, of arrival
        std::vector<Piece> pieces; // as ccl and direct send them: in an order that all ranks share
    };
    struct Filled {
        FieldStorage* field;
        int slab, parity;
        std::uint64_t version;
    };

    void make_messages(const std::vector<HaloRequest>& requests, const std::vector<char>& stale);
    void take_channel(HaloChannel channel);
    void agree_on_places(HaloChannel channel);
    void agree_on_ghosts();
    bool ends_with_packing() const; // one launch packs, and waits for what arrives
    GpuAddress place_of(const Message& message, const Part& part) const; // where packing puts it
    void await_stage(std::size_t s, void* stream);
    void receive_stage(std::size_t s, void* stream);
    void make_tables(); // the kernels' descriptions of what to do, with present addresses
    void produce_items(void* stream);
    void pack(void* stream);
    void copy_to_host(void* stream);
    void carry_staged(void* stream);
    void carry_directly();
    void carry_by_ccl(void* stream);
    void copy_to_slots(void* stream);
    void count();
    Work sent() const; // for profiles
    Work carried(const Stage& stage) const;
    Work received(std::size_t stage) const;

    std::shared_ptr<PlacedLayout> layout_;
    std::shared_ptr<Gpu> gpu_;
    HaloPolicy policy_;
    std::shared_ptr<Communicator> communicator_;
    std::vector<std::shared_ptr<FieldStorage>> kept_;
    std::shared_ptr<HaloPad> pad_; // null where others carry messages
    HaloChannel channel_ = HaloChannel::ghosts;
    std::vector<FieldStorage*> mapped_; // whose ghosts the neighbours write, in an order all ranks share
    std::shared_ptr<CclCommunicator> ccl_;
    std::vector<Message> messages_; // stage by stage
    std::vector<Stage> stages_;
    std::vector<Filled> filled_;
    bool writes_packed_ = false; // the kernel may write what is being packed
    GpuMemory produced_;         // what producers of halo items compute
    std::size_t send_bytes_ = 0, receive_bytes_ = 0;
    GpuMemory send_;
    PinnedMemory send_here_, receive_here_;
    HaloBlocks pack_blocks_ = halo_blocks;
    GpuMemory parts_, sends_, send_jobs_, sections_, receive_jobs_, retired_;
    GpuMemory senders_, opened_, awaited_; // words: of all who may send, of who sends to here, of arrival
    std::int64_t sender_count_ = 0, opened_count_ = 0, awaited_count_ = 0, send_job_count_ = 0;
    std::vector<std::uint64_t> addresses_; // that the tables were made for
    std::unique_ptr<GpuEvent> before_, packed_, arrived_, side_done_;
    std::vector<std::unique_ptr<GpuEvent>> stage_arrived_; // of all stages but the last
};

} // namespace jali
