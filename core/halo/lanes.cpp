#include "halo/lanes.hpp"
#include "settings/counted.hpp"

#include <functional>
#include <tuple>
#include <utility>

namespace jali {

int LaneGrid::lanes() const {
    return static_cast<int>(product(nodes));
}

bool LaneGrid::shifted(std::int64_t lane) const {
    bool odd = false;
    for (std::size_t d = 0; d < nodes.size(); ++d) {
        odd ^= skew[d] != 0 && lane % nodes[d] % 2 != 0;
        lane /= nodes[d];
    }
    return odd;
}

LaneGrid lane_grid(const Partition& partition, int wanted_lanes) {
    if (wanted_lanes < 1 || wanted_lanes > 64 || (wanted_lanes & (wanted_lanes - 1)) != 0) {
        throw LayoutError("lanes: " + std::to_string(wanted_lanes) + " is not a power of two from 1 to 64");
    }
    const int ndim = partition.ndim();
    LaneGrid grid{Extents(ndim, 1), std::vector<char>(ndim, 0)};
    Extents& v = grid.nodes;
    int lanes = 1;
    for (bool grew = true; grew && lanes < wanted_lanes;) {
        grew = false;
        for (int d = ndim - 1; d >= 0 && lanes < wanted_lanes; --d) {
            // b = n / (2 v) must be an even integer
            if (!partition.split(d) && partition.global_extents()[d] % (4 * v[d]) == 0) {
                v[d] *= 2;
                lanes *= 2;
                grew = true;
            }
        }
    }
    const auto odd_half = [&](int d) {
        return !partition.split(d) && partition.global_extents()[d] % 4 == 2;
    };
    int along = 0;
    while (along < ndim && !odd_half(along)) ++along;
    for (int d = ndim - 1; d > along && lanes < wanted_lanes; --d) {
        if (!odd_half(d)) continue;
        v[d] = 2;
        lanes *= 2;
        grid.skew[d] = 1;
        grid.along = along;
    }
    return grid;
}

Extents choose_grid(const Extents& extents, int nranks, int wanted_lanes) {
    check_extents(extents);
    if (nranks < 1) {
        throw LayoutError("cannot split over " + counted(nranks, "rank"));
    }
    using Score = std::tuple<int, double, int, Extents>; // smaller is better
    const int ndim = static_cast<int>(extents.size());
    Extents grid(ndim, 1), best;
    Score best_score;

    auto judge = [&]() {
        const Partition p(extents, grid);
        double volume = 1;
        for (int d = 0; d < ndim; ++d) {
            volume *= static_cast<double>(p.largest_extent(d));
        }
        double surface = 0;
        int odd = 0;
        for (int d = 0; d < ndim; ++d) {
            if (p.split(d)) {
                surface += 2 * volume / static_cast<double>(p.largest_extent(d));
                odd += p.largest_extent(d) % 2 != 0 || p.smallest_extent(d) % 2 != 0;
            }
        }
        Score score{-lane_grid(p, wanted_lanes).lanes(), volume + surface, odd, grid};
        if (best.empty() || score < best_score) {
            best = grid;
            best_score = std::move(score);
        }
    };
    std::function<void(int, int)> split = [&](int d, int left) {
        if (d == ndim - 1) {
            if (left <= extents[d]) {
                grid[d] = left;
                judge();
            }
            return;
        }
        for (int p = 1; p <= left && p <= extents[d]; ++p) {
            if (left % p == 0) {
                grid[d] = p;
                split(d + 1, left / p);
            }
        }
    };
    split(0, nranks);
    if (best.empty()) {
        throw LayoutError("lattice " + format_extents(extents) + " (" + std::to_string(product(extents)) +
                          " sites) cannot be split over " + counted(nranks, "rank") +
                          ": no rank grid of that product gives every rank a site; every factor of the "
                          "number of ranks must fit into a direction");
    }
    return best;
}

} // namespace jali
