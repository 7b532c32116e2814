// One rank's part of a lattice in memory: blocks, lanes, neighbour tables and ghost slabs.
//
// The local box is cut into `lanes` virtual nodes; a block is the sites with the same place in each of them,
// one per vector lane. Owned blocks are ordered parity first (even blocks, then odd), then by `site_order`;
// ghost blocks follow, slab by slab, each slab parity first and then lexicographically. Tables and slabs are
// built on first use and kept. Every rank must ask for the same tables in the same order: slabs are numbered
// as they appear, and the number is the tag of their messages. Nothing here communicates, holds field data or
// depends on devices.
#pragma once

#include "geometry/geometry.hpp"
#include "halo/lanes.hpp"

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace jali {

// Bits of an entry of a neighbour table that hold a block; the others hold its class. Large layouts use more,
// and have room for fewer classes.
inline constexpr int most_block_bits = 30;

// For one offset: where each owned block's neighbours are.
struct NeighbourTable {
    Offset offset;
    bool with_windings = false;
    std::vector<std::uint32_t> entries;     // [block]: class << block_bits | block; class 0 is a plain load
    std::vector<std::int32_t> permutations; // [class][lane]: the source lane
    // [class][ndim][lane]: crossings of the global boundary in +d minus those in -d; only with_windings
    std::vector<std::int32_t> windings;
    int classes = 0;
    std::vector<int> slabs; // numbers of the ghost slabs that a read at this offset reaches
};

// The blocks of a slab.
struct Slab {
    SlabBox box;
    int number = 0;                           // also the message tag
    std::array<std::int64_t, 2> first{};      // of even, odd ghost blocks: first_ghost + first ...
    std::array<std::int64_t, 2> count{};      // even, odd ghost blocks
    std::array<std::int64_t, 2> send_count{}; // even, odd blocks in send_blocks
    std::shared_ptr<const std::vector<std::int32_t>>
        send_blocks;                       // in the order of the receiver's ghost blocks
    std::vector<std::int32_t> ghost_block; // [lexicographic in the slab]: ghost block - first_ghost

    std::int64_t blocks() const { return count[0] + count[1]; }
    int highest_direction() const {
        int d = static_cast<int>(box.key.size()) - 1;
        while (d > 0 && box.key[d] == 0) --d;
        return d;
    }
    int parity_of(std::int64_t ghost) const { return ghost >= first[1] && ghost < first[1] + count[1]; }
};

// How blocks are stored: in groups of so many, and tile by tile as `site_order` has it; or as the elements of
// C-ordered arrays, a site to a block, the last direction fastest: of one array [x_0]...[x_{d-1}], parities
// mixed; or as a checkerboard, of one for each parity, [x_0]...[x_{d-1} / 2], the even one first. Groups are
// then those of ghosts.
enum class SiteOrder { tiles, c_order, checkerboard };
struct BlockOrder {
    Extents tile;            // in blocks; empty: one tile
    std::int64_t across = 0; // tiles
    int group = 1;
    SiteOrder sites = SiteOrder::tiles;
};

// The place of a site in a C-ordered array of a box, and the inverse.
std::int64_t c_index(std::span<const std::int64_t> site, std::span<const std::int64_t> box);
void c_site(std::int64_t index, std::span<const std::int64_t> box, std::span<std::int64_t> site);

class Layout {
  public:
    // Throws LayoutError if the rank is outside the partition or there are 2^30 blocks or more. `block_bits`:
    // at least so many, for tests.
    Layout(Geometry geometry, int wanted_lanes, BlockOrder order = {}, int block_bits = 0);

    const Geometry& geometry() const { return geometry_; }
    const Partition& partition() const { return geometry_.partition(); }
    int rank() const { return geometry_.rank(); }
    int ndim() const { return geometry_.ndim(); }
    const Extents& extents() const { return geometry_.extents(); } // local
    const Extents& origin() const { return geometry_.origin(); }

    int group() const { return order_.group; }
    // Room for `blocks` blocks in whole groups.
    std::int64_t whole_groups(std::int64_t blocks) const {
        return (blocks + group() - 1) / group() * group();
    }
    const LaneGrid& lane_grid() const { return lane_grid_; }
    const Extents& block_extents() const { return b_; }
    // All blocks, the even and then the odd ones of each tile, so that neighbours are visited together.
    std::vector<std::int32_t> tile_by_tile() const;
    bool c_order() const { return order_.sites == SiteOrder::c_order; }
    bool checkerboard() const { return order_.sites == SiteOrder::checkerboard; }
    bool of_arrays() const { return c_order() || checkerboard(); }
    int lanes() const { return lanes_; }
    std::int64_t sites() const { return nblocks_ * lanes_; }
    std::int64_t nblocks() const { return nblocks_; }
    int block_bits() const { return block_bits_; } // of an entry of a neighbour table
    std::int64_t block_of_entry(std::uint32_t entry) const { return entry & ((1u << block_bits_) - 1); }
    // blocks [0, even) are even, [even, nblocks) odd, unless they are in C order
    std::int64_t even_blocks() const { return even_; }
    // Ghost blocks follow the owned ones; each parity of a slab begins with a group.
    std::int64_t first_ghost() const { return whole_groups(nblocks_); }
    std::int64_t ghost_blocks() const { return ghosts_; } // groups filled up included

    // Where the tables below are not kept, all follows from the order: C-ordered arrays of the host may be
    // large. [ndim][block]: global coordinates of lane 0; behind them, [block], where in lane_offsets the
    // block's set begins: the first, or the second where shifted lanes wrap around the lattice.
    const std::vector<std::int32_t>& coordinates() const { return coordinates_; }
    const std::vector<std::int32_t>& lane_offsets() const { return lane_offsets_; } // [set][ndim][lane]
    // Site index in the local box (direction 0 fastest), of lane 0 and of any.
    const std::vector<std::int64_t>& box_index() const { return box_index_; }
    const std::int64_t* box_lanes(std::int64_t block) const { // [lane]: add to box_index
        return box_lane_.data() + (coordinates_[ndim() * nblocks_ + block] != 0) * lanes_;
    }
    std::int64_t box_site(std::int64_t block, int lane) const {
        return c_order() ? box_site_in_c_order(block) : box_index_[block] + box_lanes(block)[lane];
    }

    // (block, lane) of a site given by local coordinates; throws LayoutError outside the local box.
    std::pair<std::int64_t, int> locate(std::span<const std::int64_t> site) const;
    std::pair<std::int64_t, int> locate_inside(std::span<const std::int64_t> site) const; // without looking

    // The number (block * lanes + lane) of the site that local coordinates name, which may lie around the
    // box; beyond a split direction it is a ghost of one of `slabs_at`. `crossed`, [ndim]: boundaries of the
    // lattice between it and the box, + minus -.
    std::int64_t find(std::span<const std::int64_t> site, std::span<std::int64_t> crossed) const;
    // Numbers of the slabs that reads at an offset fall into. Throws LayoutError as Geometry::check_halo
    // does.
    std::vector<int> slabs_at(const Offset& offset);

    // Throws LayoutError as Geometry::check_halo does, or where there are too many classes.
    std::shared_ptr<const NeighbourTable> neighbours(const Offset& offset, bool windings = false);

    int reach(int parities, const Offset& offset) const { return geometry_.reach(parities, offset); }

    const std::vector<Slab>& slabs() const { return slabs_; }
    int slab_of_ghost(std::int64_t ghost) const { return slab_of_ghost_[ghost]; }

  private:
    std::int64_t most_blocks() const { return std::int64_t{1} << block_bits_; }
    [[noreturn]] void too_many_blocks(std::int64_t blocks, std::int64_t ghosts) const;
    std::vector<std::uint8_t> parities() const;  // by lexicographic index
    std::vector<std::int32_t> order_of_blocks(); // [block]: its lexicographic index; counts the even ones
    Extents blocks_of(const Offset& key) const;  // of the slab, in blocks
    std::int64_t box_site_in_c_order(std::int64_t block) const;
    std::int64_t block_at(std::span<const std::int64_t> c) const { // c: in blocks
        return c_order() ? c_index(c, b_) : block_of_[lexicographic(c, b_)];
    }
    // The lane that holds a site, and the coordinates of its block, in blocks.
    int lane_of(std::span<const std::int64_t> site, std::span<std::int64_t> block) const;
    int slab_for(const Offset& key); // its number, made if need be

    Geometry geometry_;
    BlockOrder order_;
    LaneGrid lane_grid_;
    Extents b_;
    int lanes_ = 1, block_bits_;
    std::int64_t nblocks_ = 0, even_ = 0, ghosts_ = 0;
    std::vector<std::int32_t> coordinates_, lane_offsets_, block_of_; // block_of_[lexicographic] = block
    std::vector<std::int64_t> box_index_, box_lane_;                  // box_lane_: [set][lane]
    std::map<std::pair<Offset, bool>, std::shared_ptr<const NeighbourTable>> tables_;
    std::vector<Slab> slabs_;
    std::vector<std::int32_t> slab_of_ghost_;
};

} // namespace jali
