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

// The number of virtual nodes per direction. Lanes go into directions that are not split, first into the last
// ones, by powers of two, and only where the block extent stays even, so that all lanes of a block share a
// parity. What does not fit makes the vector narrower. Split directions never hold lanes: ghosts are whole
// blocks, so that packing copies blocks; the price is that a lattice that is split in every direction runs
// one lane wide.
Extents lane_grid(const Partition& partition, int wanted_lanes);

// The grid that keeps the most lanes, then communicates and computes least (largest local volume plus largest
// local surface), then leaves fewest odd local extents, then splits the last directions. Throws LayoutError
// if no grid of nranks ranks fits.
Extents choose_grid(const Extents& extents, int nranks, int wanted_lanes);

} // namespace jali
