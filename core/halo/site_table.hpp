// Fields whose sites are ordered differently from those that a kernel visits: C-ordered arrays, and fields of
// another lattice or of vectors of another length.
//
// A kernel visits blocks of sites, a lane each: those of a Layout, or pieces of the rows of C-ordered arrays.
// A table says where each lane reads, at an offset, in fields of another layout.
#pragma once

#include "halo/layout.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace jali {

// Pieces of the rows of a C-ordered array of the local box: consecutive sites in the last direction, one per
// lane. The last piece of a row may have lanes beyond its end, which are no sites.
class RowBlocks {
  public:
    RowBlocks(const Geometry& geometry, int lanes);

    int lanes() const { return lanes_; }
    std::int64_t nblocks() const { return nblocks_; }
    bool filled() const { return row_ % lanes_ == 0; } // every lane is a site
    int inside(std::int64_t block) const {             // lanes that are sites
        const std::int64_t left = row_ - block % pieces_ * lanes_;
        return static_cast<int>(left < lanes_ ? left : lanes_);
    }
    // As those of a Layout.
    const std::vector<std::int32_t>& coordinates() const { return coordinates_; }
    const std::vector<std::int32_t>& lane_offsets() const { return lane_offsets_; }

  private:
    int lanes_;
    std::int64_t row_, pieces_, nblocks_; // sites of a row, pieces of a row, in all
    std::vector<std::int32_t> coordinates_, lane_offsets_;
};

// The blocks that a kernel visits, of either kind.
struct VisitedBlocks {
    int lanes = 1;
    std::int64_t count = 0;
    const std::vector<std::int32_t>*coordinates = nullptr, *lane_offsets = nullptr;
    const RowBlocks* rows = nullptr; // null: blocks of a layout, all of whose lanes are sites

    static VisitedBlocks of(const Layout& layout) {
        return {layout.lanes(), layout.nblocks(), &layout.coordinates(), &layout.lane_offsets(), nullptr};
    }
    static VisitedBlocks of(const RowBlocks& rows) {
        return {rows.lanes(), rows.nblocks(), &rows.coordinates(), &rows.lane_offsets(), &rows};
    }
    int inside(std::int64_t block) const { return rows != nullptr ? rows->inside(block) : lanes; }
    std::int64_t coordinate(int d, int ndim, std::int64_t block, int lane) const { // global
        return (*coordinates)[d * count + block] +
               (*lane_offsets)[(*coordinates)[ndim * count + block] + d * lanes + lane];
    }
};

// From a visited site to one of another lattice: in each direction the coordinate divided by `coarser`, then
// times `finer`, of which one is 1.
struct LatticeRatio {
    Extents coarser, finer;
};

// Where the lanes of each visited block read a field of `layout` at an offset from the site that the ratio
// leads to.
struct SiteTable {
    // [block]: the first of as many consecutive sites of an array as there are lanes, or scattered | row of
    // lists, or scattered | paired | row: the sites of the row are two runs.
    std::vector<std::uint32_t> entries;
    // [row]: of each lane its site (block * lanes + lane); where each of two runs has, or would have, lane 0;
    // lanes of the first
    std::vector<std::uint32_t> lists;
    std::vector<std::uint16_t> list_classes; // [row][lane], only with windings
    std::vector<std::int32_t> windings;      // [class][ndim]: boundaries crossed; class 0: none
    int classes = 1;

    static constexpr std::uint32_t scattered = std::uint32_t{1} << 31, paired = std::uint32_t{1} << 30;
    static constexpr int run_words = 3; // of a row of lists, behind the sites
};

// Throws LayoutError as Layout::slabs_at does, where the site that the ratio leads to belongs to another
// rank, and where there are too many sites or classes.
std::shared_ptr<SiteTable> make_site_table(const VisitedBlocks& visited, Layout& layout,
                                           const LatticeRatio& ratio, const Offset& offset, bool windings);

} // namespace jali
