// Which sites of a box the lanes of a vector hold, and the rank grid that keeps the most lanes.
#pragma once

#include "geometry/partition.hpp"

namespace jali {

// Where the lanes of a vector lie: the virtual nodes per direction, and which of them are shifted.
//
// All lanes of a block share a parity. Two halves of a direction do so where half its extent is even. Where
// it is odd, the second half is also shifted, by half the extent of another such direction: then site (c, e)
// of lane 0 meets (c + n_d / 2, e + n_e / 2 mod n_e) of lane 1. A step out of a half in direction d leads to
// e + n_e / 2 in the other one, in every lane, since the shift is half of a period: a neighbour is one block
// in another order of lanes there as everywhere.
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
