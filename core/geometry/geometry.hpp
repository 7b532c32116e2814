// One rank's box of a lattice and its surroundings: the targets of steps, and the slabs that ranks exchange.
//
// Sites and boxes only: callers define their place in memory, and their transport. Every rank can compute the
// geometry of any other.
#pragma once

#include "geometry/partition.hpp"

namespace jali {

// Of an offset in each direction. Twice the front's own bound, for reads seen from a written site; with a
// coordinate it stays far from overflow, and the windings that it makes fit 32 bits.
inline constexpr std::int64_t largest_offset = std::int64_t{1} << 30;

// A layer of sites next to the local box, and its counterpart that this rank owns and sends.
struct SlabBox {
    Offset key;           // +j: the layer extent - 1 + j; -j: the layer -j; 0: the whole local extent
    int from = 0;         // the rank that owns these sites
    int to = 0;           // the rank whose slab of this key this rank owns
    Extents extents;      // of the slab
    Extents ghost_origin; // of the slab, in local coordinates
    Extents send_origin;  // of the sent box, in local coordinates
};

// Where a step leads in one direction.
struct Landing {
    std::int64_t c = 0;       // the coordinate in the box, or 0 in a slab
    std::int64_t key = 0;     // of the slab, 0 inside the box
    std::int64_t crossed = 0; // periods, + minus -
};

class Geometry {
  public:
    // Throws LayoutError if the rank is outside the partition.
    Geometry(Partition partition, int rank);

    const Partition& partition() const { return partition_; }
    int rank() const { return rank_; }
    int ndim() const { return partition_.ndim(); }
    const Extents& extents() const { return extents_; } // local
    const Extents& origin() const { return origin_; }

    // Of the global coordinates of a site that local ones name, which may lie around the box.
    int parity(std::span<const std::int64_t> site) const;

    // Throws LayoutError outside the box.
    void check_site(std::span<const std::int64_t> site) const;
    // Throws LayoutError if the offset is larger than `largest_offset` in any direction.
    void check_offset(const Offset& offset) const;
    // The same, and if a split direction's smallest local extent is less than the offset in it.
    void check_halo(const Offset& offset) const;

    // The parities (1 even, 2 odd, 3 both) that can be read at an offset from sites of these parities.
    // Conservative where a global extent is odd, since there the boundary joins equal parities. Throws
    // LayoutError as check_offset does.
    int reach(int parities, const Offset& offset) const;

    // Where coordinate y leads, inside or around the box; a direction that is not split has this period.
    Landing landing(int d, std::int64_t y, std::int64_t period) const;

    // The slabs that reads at an offset fall into: in each split direction the layers 1..|o|, and the local
    // extent unless the shift leaves it on every rank. The list depends on the partition and the offset only,
    // so all ranks agree.
    std::vector<Offset> slab_keys(const Offset& offset) const;
    SlabBox slab(const Offset& key) const;

  private:
    Partition partition_;
    int rank_;
    Extents extents_, origin_;
};

} // namespace jali
