// The order in which the sites of a box are stored or visited. This is the one place that decides it:
// everything else goes through the tables made from it.
#pragma once

#include "geometry/box.hpp"

namespace jali {

// Position -> lexicographic index. `parity` gives a site's parity by lexicographic index. Sites are visited
// tile by tile (an empty tile means one tile), lexicographically in both; or, with `across` tiles, column by
// column of at most so many tiles across, each along the last direction. All even sites come first, or those
// of each tile.
std::vector<std::int32_t> site_order(const Extents& box, const Extents& tile,
                                     const std::vector<std::uint8_t>& parity, std::int64_t across = 0,
                                     bool parities_apart = true);

} // namespace jali
