#include "geometry/geometry.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <utility>

namespace jali {

Geometry::Geometry(Partition partition, int rank)
    : partition_(std::move(partition)), rank_(rank), extents_(partition_.extents(rank)),
      origin_(partition_.origin(rank)) {
}

int Geometry::parity(std::span<const std::int64_t> site) const {
    std::int64_t sum = 0;
    for (int d = 0; d < ndim(); ++d) {
        const auto c = origin_[d] + site[d], whole = partition_.global_extents()[d];
        sum += c >= 0 && c < whole ? c : floor_mod(c, whole);
    }
    return static_cast<int>(sum & 1);
}

void Geometry::check_site(std::span<const std::int64_t> site) const {
    if (static_cast<int>(site.size()) != ndim()) {
        throw LayoutError("a site has " + std::to_string(ndim()) + " coordinates; got " +
                          std::to_string(site.size()));
    }
    for (int d = 0; d < ndim(); ++d) {
        if (site[d] < 0 || site[d] >= extents_[d]) {
            throw LayoutError("local coordinate " + std::to_string(site[d]) + " in direction " +
                              std::to_string(d) + " is outside the local box " + format_extents(extents_) +
                              " of rank " + std::to_string(rank_));
        }
    }
}

void Geometry::check_offset(const Offset& offset) const {
    if (static_cast<int>(offset.size()) != ndim()) {
        throw LayoutError("offset " + format_offset(offset) + " has " + std::to_string(offset.size()) +
                          " components; the lattice has " + std::to_string(ndim()) + " directions");
    }
    for (const auto n : offset) {
        if (n > largest_offset || n < -largest_offset) {
            throw LayoutError("offset " + format_offset(offset) + " is larger than 2^30 = " +
                              std::to_string(largest_offset) + " sites in a direction");
        }
    }
}

void Geometry::check_halo(const Offset& offset) const {
    check_offset(offset);
    for (int d = 0; d < ndim(); ++d) {
        const auto width = offset[d] < 0 ? -offset[d] : offset[d];
        const auto extent = partition_.smallest_extent(d);
        if (!partition_.split(d) || width <= extent) continue;
        const auto whole = partition_.global_extents()[d];
        throw LayoutError("local extent " + std::to_string(extent) + " in direction " + std::to_string(d) +
                          " cannot carry a halo of width " + std::to_string(width) + "; use at most " +
                          counted(std::max<std::int64_t>(1, whole / width), "rank") + " in direction " +
                          std::to_string(d) + " (lattice " + std::to_string(whole) + ")");
    }
}

int Geometry::reach(int parities, const Offset& offset) const {
    check_offset(offset);
    std::int64_t sum = 0;
    for (int d = 0; d < ndim(); ++d) {
        if (offset[d] != 0 && partition_.global_extents()[d] % 2 != 0) return 3;
        sum += offset[d];
    }
    return sum % 2 == 0 ? parities : ((parities & 1) << 1 | (parities & 2) >> 1);
}

Landing Geometry::landing(int d, std::int64_t y, std::int64_t period) const {
    if (!partition_.split(d)) return {floor_mod(y, period), 0, floor_div(y, period)};
    const auto n = extents_[d];
    const auto key = y < 0 ? y : y >= n ? y - n + 1 : 0;
    return {key == 0 ? y : 0, key, floor_div(origin_[d] + y, partition_.global_extents()[d])};
}

std::vector<Offset> Geometry::slab_keys(const Offset& offset) const {
    std::vector<std::vector<std::int64_t>> choices(ndim());
    Extents counts(ndim());
    for (int d = 0; d < ndim(); ++d) {
        const auto width = offset[d] < 0 ? -offset[d] : offset[d];
        if (!partition_.split(d) || width < partition_.largest_extent(d)) choices[d].push_back(0);
        for (std::int64_t j = 1; partition_.split(d) && j <= width; ++j)
            choices[d].push_back(offset[d] < 0 ? -j : j);
        counts[d] = static_cast<std::int64_t>(choices[d].size());
    }
    std::vector<Offset> keys;
    Offset key(ndim());
    for_each_site(counts, [&](const Extents& pick) {
        for (int d = 0; d < ndim(); ++d) key[d] = choices[d][pick[d]];
        if (std::any_of(key.begin(), key.end(), [](auto k) { return k != 0; })) keys.push_back(key);
    });
    return keys;
}

SlabBox Geometry::slab(const Offset& key) const {
    SlabBox slab{key, 0, 0, extents_, Extents(ndim()), Extents(ndim())};
    Extents from = partition_.coordinates(rank_), to = from;
    for (int d = 0; d < ndim(); ++d) {
        const auto k = key[d];
        if (k != 0) slab.extents[d] = 1;
        slab.ghost_origin[d] = k > 0 ? extents_[d] - 1 + k : k;
        slab.send_origin[d] = k > 0 ? k - 1 : k < 0 ? extents_[d] + k : 0;
        from[d] += (k > 0) - (k < 0);
        to[d] -= (k > 0) - (k < 0);
    }
    slab.from = partition_.rank_at(from);
    slab.to = partition_.rank_at(to);
    return slab;
}

} // namespace jali
