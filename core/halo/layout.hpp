// One rank's part of a lattice: blocks, lanes, neighbour tables and ghost slabs.
//
// The local box is cut into `lanes` virtual nodes; a block is the sites with the same place in each of them,
// one per vector lane. Owned blocks are ordered parity first (even blocks, then odd), then by `block_order`;
// ghost blocks follow, slab by slab, each slab parity first and then lexicographically. Tables and slabs are
// built on first use and kept. Every rank must ask for the same tables in the same order: slabs are numbered
// as they appear, and the number is the tag of their messages. Nothing here communicates or holds field data.
#pragma once

#include "device/arena.hpp"
#include "device/gpu.hpp"
#include "halo/partition.hpp"
#include "transport/peer.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace jali {

// Bits of an entry of a neighbour table that hold a block; the others hold its class. Large layouts use more,
// and have room for fewer classes.
inline constexpr int fewest_block_bits = 26, most_block_bits = 30;

using Offset = std::vector<std::int64_t>;

// Of an offset in each direction. Twice the front's own bound, for reads seen from a written site; with a
// coordinate it stays far from overflow, and the windings that it makes fit 32 bits.
inline constexpr std::int64_t largest_offset = std::int64_t{1} << 30;

// For one offset: where each owned block's neighbours are.
struct NeighbourTable {
    Offset offset;
    bool with_windings = false;
    std::vector<std::uint32_t> entries;     // [block]: class << block_bits | block; class 0 is a plain load
    std::vector<std::int32_t> permutations; // [class][lane]: the source lane
    // [class][ndim][lane]: crossings of the global boundary in +d minus those in -d; only with_windings
    std::vector<std::int32_t> windings;
    int classes = 0;
    std::vector<int> slabs; // numbers of the ghost slabs that a read at this offset falls into
    GpuMemory on_device;    // the entries, where the layout is a device's
};

// What moved, in slab parts (one parity of one slab of one field) and messages.
struct HaloCounters {
    std::int64_t exchanged = 0; // stale parts that were filled
    std::int64_t avoided = 0;   // parts that a launch read and that were still valid
    std::int64_t messages = 0;  // sent; in a field's counters, messages that carried it
    std::int64_t bytes = 0;     // sent

    void add(const HaloCounters& more) {
        exchanged += more.exchanged;
        avoided += more.avoided;
        messages += more.messages;
        bytes += more.bytes;
    }
};

// A layer of sites next to the local box, and its counterpart that this rank owns and sends.
struct Slab {
    Offset key;     // +j: the layer extent - 1 + j; -j: the layer -j; 0: the whole local extent
    int number = 0; // also the message tag
    int from = 0;   // the rank that owns these sites
    int to = 0;     // the rank whose slab of this key this rank owns
    std::array<std::int64_t, 2> first{};      // of even, odd ghost blocks: first_ghost + first ...
    std::array<std::int64_t, 2> count{};      // even, odd ghost blocks
    std::array<std::int64_t, 2> send_count{}; // even, odd blocks in send_blocks
    std::shared_ptr<const std::vector<std::int32_t>>
        send_blocks;                 // in the order of the receiver's ghost blocks
    GpuMemory on_device;             // send_blocks, where the layout is a device's
    std::vector<std::int32_t> place; // [lexicographic in the slab]: ghost block - first_ghost

    GpuAddress device_send_blocks() const { return on_device.address(); }
    std::int64_t blocks() const { return count[0] + count[1]; }
    int highest_direction() const {
        int d = static_cast<int>(key.size()) - 1;
        while (d > 0 && key[d] == 0) --d;
        return d;
    }
    int parity_of(std::int64_t ghost) const { return ghost >= first[1] && ghost < first[1] + count[1]; }
};

// The order of owned blocks within one parity: storage position -> lexicographic block index (direction 0
// fastest). `parity` gives a block's parity by lexicographic index. Blocks are visited tile by tile (tile
// extents in blocks; an empty tile means one tile), lexicographically in both; or, with `across` tiles,
// column by column of at most so many tiles across, each along the last direction. This is the one place that
// decides it: everything else goes through the tables made from it.
std::vector<std::int32_t> block_order(const Extents& blocks, const Extents& tile,
                                      const std::vector<std::uint8_t>& parity, std::int64_t across = 0,
                                      bool parities_apart = true);

class Layout {
  public:
    // Throws LayoutError if the rank is outside the partition or there are 2^30 blocks or more. With a device
    // its fields and tables live there, and blocks are single sites, stored in groups of `device_group`.
    // `block_bits`: at least so many, for tests.
    Layout(Partition partition, int rank, int wanted_lanes, Extents tile = {},
           std::shared_ptr<Gpu> gpu = nullptr, int block_bits = fewest_block_bits);

    static constexpr int device_group = 32;                  // GROUP of the kernels' prelude
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; } // null: the host
    int group() const { return gpu_ ? device_group : 1; }
    // Room for `blocks` blocks in whole groups.
    std::int64_t whole_groups(std::int64_t blocks) const {
        return (blocks + group() - 1) / group() * group();
    }

    const Partition& partition() const { return partition_; }
    int rank() const { return rank_; }
    int ndim() const { return partition_.ndim(); }
    const Extents& extents() const { return extents_; } // local
    const Extents& origin() const { return origin_; }
    const LaneGrid& lane_grid() const { return lane_grid_; }
    const Extents& block_extents() const { return b_; }
    const Extents& tile() const { return tile_; }
    // All blocks, the even and then the odd ones of each tile, so that neighbours are visited together.
    std::vector<std::int32_t> tile_by_tile() const;
    int lanes() const { return lanes_; }
    std::int64_t sites() const { return nblocks_ * lanes_; }
    std::int64_t nblocks() const { return nblocks_; }
    int block_bits() const { return block_bits_; } // of an entry of a neighbour table
    std::int64_t block_of_entry(std::uint32_t entry) const { return entry & ((1u << block_bits_) - 1); }
    std::int64_t even_blocks() const { return even_; } // blocks [0, even) are even, [even, nblocks) odd
    // Ghost blocks follow the owned ones; each parity of a slab begins with a group.
    std::int64_t first_ghost() const { return whole_groups(nblocks_); }
    std::int64_t ghost_blocks() const { return ghosts_; } // groups filled up included

    // [ndim][block]: global coordinates of lane 0; behind them, [block], where in lane_offsets the block's
    // set begins: the first, or the second where shifted lanes wrap around the lattice.
    const std::vector<std::int32_t>& coordinates() const { return coordinates_; }
    const std::vector<std::int32_t>& lane_offsets() const { return lane_offsets_; } // [set][ndim][lane]
    // Site index in the local box (direction 0 fastest), of lane 0 and of any.
    const std::vector<std::int64_t>& box_index() const { return box_index_; }
    const std::int64_t* box_lanes(std::int64_t block) const { // [lane]: add to box_index
        return box_lane_.data() + (coordinates_[ndim() * nblocks_ + block] != 0) * lanes_;
    }
    std::int64_t box_site(std::int64_t block, int lane) const {
        return box_index_[block] + box_lanes(block)[lane];
    }

    // The same arrays where a device's kernels read them.
    struct OnDevice {
        GpuMemory coordinates, lane_offsets, extents, box_blocks; // box_blocks: [site of the box]: its block
    };
    const OnDevice& on_device();

    // (block, lane) of a site given by local coordinates; throws LayoutError outside the local box.
    std::pair<std::int64_t, int> locate(std::span<const std::int64_t> site) const;
    std::pair<std::int64_t, int> locate_inside(std::span<const std::int64_t> site) const; // without looking

    // Throws LayoutError if a split direction's smallest local extent is less than the offset in it, or the
    // offset is larger than `largest_offset` in any.
    std::shared_ptr<const NeighbourTable> neighbours(const Offset& offset, bool windings = false);

    const std::vector<Slab>& slabs() const { return slabs_; }
    int slab_of_ghost(std::int64_t ghost) const { return slab_of_ghost_[ghost]; }

    HaloCounters counters; // of all fields of this layout

    // Scratch for the messages of one exchange at a time, at least this large; its contents are not kept.
    std::byte* send_space(std::size_t bytes) { return space(send_space_, bytes, "halo messages sent"); }
    std::byte* receive_space(std::size_t bytes) {
        return space(receive_space_, bytes, "halo messages received");
    }

    // Between devices: the stream on which the bulk is computed while halos travel on the device's own, and
    // this rank's mailbox. The first call of mailbox is collective; it throws GpuError on all ranks where
    // devices cannot reach each other.
    void* bulk_stream();
    const std::string&
    why_no_mailbox(Communicator& communicator); // empty: there can be one; collective at first
    const std::shared_ptr<PeerMailbox>& mailbox(const std::shared_ptr<Communicator>& communicator);
    // Where only words are exchanged: a mailbox without slots, whose words stay where they are. Collective at
    // first.
    const std::shared_ptr<PeerMailbox>& doorbell(const std::shared_ptr<Communicator>& communicator);
    // [rank][slab][parity]: `first` of that rank's slabs. Collective when there are more slabs than last
    // time.
    const std::vector<std::vector<std::int64_t>>& first_ghosts(Communicator& communicator);

    // The parities (1 even, 2 odd, 3 both) that can be read at an offset from sites of these parities.
    // Conservative where a global extent is odd, since there the boundary joins equal parities. Throws
    // LayoutError as neighbours does.
    int reach(int parities, const Offset& offset) const;

  private:
    void check(const Offset& offset) const;
    std::int64_t most_blocks() const { return std::int64_t{1} << block_bits_; }
    [[noreturn]] void too_many_blocks(std::int64_t blocks, std::int64_t ghosts) const;
    int slab_for(const Offset& key); // its number, made if need be
    static std::byte* space(Memory& memory, std::size_t bytes, const char* label);

    std::shared_ptr<Gpu> gpu_;
    std::unique_ptr<OnDevice> on_device_;
    std::unique_ptr<GpuStream> bulk_stream_;
    std::shared_ptr<PeerMailbox> mailbox_, doorbell_;
    std::vector<std::vector<std::int64_t>> first_ghosts_;
    std::optional<std::string> why_no_mailbox_;
    Partition partition_;
    int rank_;
    std::vector<std::uint8_t> parities() const; // by lexicographic index
    std::int64_t tiles_across() const;

    Extents extents_, origin_;
    LaneGrid lane_grid_;
    Extents b_, tile_;
    int lanes_ = 1, block_bits_;
    std::int64_t nblocks_ = 0, even_ = 0, ghosts_ = 0;
    std::vector<std::int32_t> coordinates_, lane_offsets_, block_of_; // block_of_[lexicographic] = block
    std::vector<std::int64_t> box_index_, box_lane_;                  // box_lane_: [set][lane]
    std::map<std::pair<Offset, bool>, std::shared_ptr<const NeighbourTable>> tables_;
    std::vector<Slab> slabs_;
    std::vector<std::int32_t> slab_of_ghost_;
    Memory send_space_, receive_space_;
};

} // namespace jali
