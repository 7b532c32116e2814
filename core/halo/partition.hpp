// How a lattice is cut over ranks: a product of one-dimensional cuts.
//
// Direction d of n sites is cut into p pieces; the first n % p pieces get one site more. Ranks are numbered
// with direction 0 fastest. Every rank knows the whole partition, so nothing here communicates. Arrays use it
// too: it knows nothing of lanes, parity or fields.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace jali {

// A lattice cannot be laid out as asked; becomes jali.LayoutError in Python.
struct LayoutError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline constexpr int max_dimensions = 5;

using Extents = std::vector<std::int64_t>;

std::string format_extents(std::span<const std::int64_t> extents); // "4x4x8"

class Partition {
  public:
    // Throws LayoutError unless there are 1 to 5 directions, and every rank owns at least one site.
    Partition(Extents extents, Extents grid);

    int ndim() const { return static_cast<int>(extents_.size()); }
    int nranks() const { return nranks_; }
    const Extents& global_extents() const { return extents_; }
    const Extents& grid() const { return grid_; }
    bool split(int d) const { return grid_[d] > 1; }

    Extents coordinates(int rank) const;
    Extents origin(int rank) const;
    Extents extents(int rank) const;
    std::int64_t smallest_extent(int d) const { return extents_[d] / grid_[d]; }
    std::int64_t largest_extent(int d) const { return (extents_[d] + grid_[d] - 1) / grid_[d]; }

    // The rank at these grid coordinates. Outside the grid: wrapped if periodic, else -1.
    int rank_at(std::span<const std::int64_t> coordinates, bool periodic = true) const;
    int rank_of_site(std::span<const std::int64_t> site) const;

  private:
    void check_rank(int rank) const;

    Extents extents_, grid_;
    int nranks_ = 1;
};

// Where the lanes of a vector lie: the virtual nodes per direction, and which of them are shifted.
//
// All lanes of a block share a parity. Two halves of a direction do so where half its extent is even. Where
// it is odd, the second half is also shifted, by half the extent of another such direction: then site (c, e)
// of lane 0 meets (c + n_d / 2, e + n_e / 2 mod n_e) of lane 1. Whoever leaves its half in direction d comes
// to e + n_e / 2 in the other one, in whatever lane, since the shift is half of a period: a neighbour is one
// block in another order of lanes there as everywhere.
struct LaneGrid {
    Extents nodes;          // virtual nodes per direction
    std::vector<char> skew; // per direction: 1 if its second half is shifted
    int along = -1;         // the direction that they are shifted along, which holds no lanes; -1: none is
    int lanes() const;
    // Whether this lane is shifted: by half a period, so an even number of shifts is none.
    bool shifted(std::int64_t lane) const;
};

// Lanes go into directions that are not split, first into the last ones, by powers of two; then, shifted,
// into those with an odd half. What does not fit makes the vector narrower. Split directions never hold
// lanes: ghosts are whole blocks, so that packing copies blocks; the price is that a lattice that is split in
// every direction runs one lane wide.
LaneGrid lane_grid(const Partition& partition, int wanted_lanes);

// The grid that keeps the most lanes, then communicates and computes least (largest local volume plus largest
// local surface), then leaves fewest odd local extents, then splits the last directions. Throws LayoutError
// if no grid of nranks ranks fits.
Extents choose_grid(const Extents& extents, int nranks, int wanted_lanes);

} // namespace jali
