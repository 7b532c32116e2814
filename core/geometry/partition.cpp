#include "geometry/partition.hpp"
#include "settings/counted.hpp"

#include <algorithm>

namespace jali {

void check_extents(const Extents& extents) {
    if (extents.empty() || extents.size() > max_dimensions) {
        throw LayoutError("a lattice has 1 to " + std::to_string(max_dimensions) + " directions; got " +
                          std::to_string(extents.size()));
    }
    for (std::size_t d = 0; d < extents.size(); ++d) {
        if (extents[d] < 1 || extents[d] > 0x3fffffff) {
            throw LayoutError("lattice " + format_extents(extents) + ": extent " +
                              std::to_string(extents[d]) + " in direction " + std::to_string(d) +
                              "; extents are 1 to " + std::to_string(0x3fffffff));
        }
    }
}

Partition::Partition(Extents extents, Extents grid) : extents_(std::move(extents)), grid_(std::move(grid)) {
    check_extents(extents_);
    if (grid_.size() != extents_.size()) {
        throw LayoutError("rank grid " + format_extents(grid_) + " has " + std::to_string(grid_.size()) +
                          " directions, lattice " + format_extents(extents_) + " has " +
                          std::to_string(extents_.size()));
    }
    std::int64_t ranks = 1;
    for (int d = 0; d < ndim(); ++d) {
        if (grid_[d] < 1 || grid_[d] > extents_[d]) {
            throw LayoutError("rank grid " + format_extents(grid_) + " on lattice " +
                              format_extents(extents_) + ": " + counted(grid_[d], "rank") + " in direction " +
                              std::to_string(d) + "; every rank must own a site, so use 1 to " +
                              std::to_string(extents_[d]));
        }
        ranks *= grid_[d];
        if (ranks > 0x7fffffff) {
            throw LayoutError("rank grid " + format_extents(grid_) + " has more than 2^31 ranks");
        }
    }
    nranks_ = static_cast<int>(ranks);
}

void Partition::check_rank(int rank) const {
    if (rank < 0 || rank >= nranks_) {
        throw LayoutError("rank " + std::to_string(rank) + " is outside the grid " + format_extents(grid_) +
                          " of " + counted(nranks_, "rank"));
    }
}

Extents Partition::coordinates(int rank) const {
    check_rank(rank);
    Extents c(grid_.size());
    for (std::size_t d = 0; d < grid_.size(); ++d) {
        c[d] = rank % grid_[d];
        rank = static_cast<int>(rank / grid_[d]);
    }
    return c;
}

Extents Partition::origin(int rank) const {
    Extents c = coordinates(rank);
    for (std::size_t d = 0; d < c.size(); ++d) {
        c[d] = c[d] * (extents_[d] / grid_[d]) + std::min(c[d], extents_[d] % grid_[d]);
    }
    return c;
}

Extents Partition::extents(int rank) const {
    Extents c = coordinates(rank);
    for (std::size_t d = 0; d < c.size(); ++d) {
        c[d] = extents_[d] / grid_[d] + (c[d] < extents_[d] % grid_[d] ? 1 : 0);
    }
    return c;
}

int Partition::rank_at(std::span<const std::int64_t> coordinates, bool periodic) const {
    if (coordinates.size() != grid_.size()) {
        throw LayoutError("rank_at: " + std::to_string(coordinates.size()) + " coordinates for a grid of " +
                          std::to_string(grid_.size()) + " directions");
    }
    std::int64_t rank = 0;
    for (int d = ndim() - 1; d >= 0; --d) {
        std::int64_t c = coordinates[d];
        if (c < 0 || c >= grid_[d]) {
            if (!periodic) {
                return -1;
            }
            c = ((c % grid_[d]) + grid_[d]) % grid_[d];
        }
        rank = rank * grid_[d] + c;
    }
    return static_cast<int>(rank);
}

int Partition::rank_of_site(std::span<const std::int64_t> site) const {
    if (site.size() != extents_.size()) {
        throw LayoutError("a site of lattice " + format_extents(extents_) + " has " +
                          std::to_string(extents_.size()) + " coordinates; got " +
                          std::to_string(site.size()));
    }
    Extents c(extents_.size());
    for (int d = 0; d < ndim(); ++d) {
        if (site[d] < 0 || site[d] >= extents_[d]) {
            throw LayoutError("coordinate " + std::to_string(site[d]) + " in direction " + std::to_string(d) +
                              " is outside the lattice " + format_extents(extents_));
        }
        const std::int64_t small = extents_[d] / grid_[d], larger = extents_[d] % grid_[d];
        const std::int64_t in_larger = larger * (small + 1); // sites owned by the ranks that have one more
        c[d] = site[d] < in_larger ? site[d] / (small + 1) : larger + (site[d] - in_larger) / small;
    }
    return rank_at(c);
}

} // namespace jali
