// The partition of a lattice over ranks: a product of one-dimensional cuts.
//
// Direction d of n sites is cut into p pieces; the first n % p pieces get one site more. Ranks are numbered
// with direction 0 fastest. Every rank knows the whole partition, so nothing here communicates. Arrays use it
// too: it does not depend on lanes, parity or fields.
#pragma once

#include "geometry/box.hpp"

namespace jali {

inline constexpr int max_dimensions = 8;

// Throws LayoutError unless there are 1 to 8 extents that a lattice can have.
void check_extents(const Extents& extents);

class Partition {
  public:
    // Throws LayoutError unless there are 1 to 8 directions, and every rank owns at least one site.
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

} // namespace jali
