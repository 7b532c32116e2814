#include "geometry/site_order.hpp"

#include <algorithm>

namespace jali {

namespace {

// Tiles by their coordinates: lexicographically, or column by column: columns run along the last direction
// and are a few tiles wide in the others, so that tiles that follow in the last direction come soon after.
std::vector<Extents> tiles_in_order(const Extents& tiles, std::int64_t across) {
    Extents width = tiles, columns(tiles.size());
    width.back() = 1;
    while (across > 0 && product(width) > across) {
        const auto widest = std::max_element(width.rbegin(), width.rend());
        *widest = (*widest + 1) / 2;
    }
    std::vector<Extents> order;
    if (across == 0 || tiles.size() < 2) {
        for_each_site(tiles, [&](const Extents& t) { order.push_back(t); });
        return order;
    }
    for (std::size_t d = 0; d < tiles.size(); ++d) columns[d] = (tiles[d] + width[d] - 1) / width[d];
    columns.back() = 1;
    for_each_site(columns, [&](const Extents& column) {
        Extents inner = width, t = tiles;
        for (std::size_t d = 0; d + 1 < tiles.size(); ++d)
            inner[d] = std::min(width[d], tiles[d] - column[d] * width[d]);
        inner.back() = tiles.back();
        for_each_site(inner, [&](const Extents& i) {
            for (std::size_t d = 0; d < tiles.size(); ++d)
                t[d] = column[d] * width[d] * (d + 1 < tiles.size()) + i[d];
            order.push_back(t);
        });
    });
    return order;
}

// Calls visit(lexicographic index) for the sites of a tile.
template <class Visit>
void for_each_in_tile(const Extents& t, const Extents& step, const Extents& box, Visit&& visit) {
    Extents inner(box.size()), c(box.size());
    for (std::size_t d = 0; d < box.size(); ++d) inner[d] = std::min(step[d], box[d] - t[d] * step[d]);
    for_each_site(inner, [&](const Extents& i) {
        for (std::size_t d = 0; d < box.size(); ++d) c[d] = t[d] * step[d] + i[d];
        visit(lexicographic(c, box));
    });
}

} // namespace

std::vector<std::int32_t> site_order(const Extents& box, const Extents& tile,
                                     const std::vector<std::uint8_t>& parity, std::int64_t across,
                                     bool parities_apart) {
    Extents step = tile.empty() ? box : tile, tiles(box.size());
    for (std::size_t d = 0; d < box.size(); ++d) {
        step[d] = std::min(step[d], box[d]);
        tiles[d] = (box[d] + step[d] - 1) / step[d];
    }
    const auto order_of_tiles = tiles_in_order(tiles, across);
    std::vector<std::int32_t> order;
    order.reserve(parity.size());
    const auto add = [&](const Extents& t, std::uint8_t wanted) {
        for_each_in_tile(t, step, box, [&](std::int64_t index) {
            if (parity[index] == wanted) order.push_back(static_cast<std::int32_t>(index));
        });
    };
    if (parities_apart) {
        for (std::uint8_t wanted = 0; wanted < 2; ++wanted)
            for (const Extents& t : order_of_tiles) add(t, wanted);
    } else {
        for (const Extents& t : order_of_tiles)
            for (std::uint8_t wanted = 0; wanted < 2; ++wanted) add(t, wanted);
    }
    return order;
}

} // namespace jali
