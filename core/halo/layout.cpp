#include "halo/layout.hpp"

#include "geometry/site_order.hpp"

#include <algorithm>

namespace jali {

std::int64_t c_index(std::span<const std::int64_t> site, std::span<const std::int64_t> box) {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < box.size(); ++d) index = index * box[d] + site[d];
    return index;
}

void c_site(std::int64_t index, std::span<const std::int64_t> box, std::span<std::int64_t> site) {
    for (std::size_t d = box.size(); d-- > 0; index /= box[d]) site[d] = index % box[d];
}

// Of an entry of a neighbour table, as few as leave room for every class that an offset may need: at most
// 3 * 2^(n - 1).
static int fewest_block_bits(int ndim) {
    return 32 - std::max(6, ndim + 1);
}

Layout::Layout(Geometry geometry, int wanted_lanes, BlockOrder order, int block_bits)
    : geometry_(std::move(geometry)), order_(std::move(order)),
      lane_grid_(jali::lane_grid(partition(), wanted_lanes)), b_(extents()),
      block_bits_(std::max(block_bits, fewest_block_bits(geometry_.ndim()))) {
    const int n = ndim();
    const Extents& tile = order_.tile;
    if (!tile.empty() &&
        (static_cast<int>(tile.size()) != n || *std::min_element(tile.begin(), tile.end()) < 1)) {
        throw LayoutError("tile " + format_extents(tile) +
                          ": give one extent of at least 1 for each of the " + std::to_string(n) +
                          " directions");
    }
    lanes_ = lane_grid_.lanes();
    for (int d = 0; d < n; ++d) b_[d] = extents()[d] / lane_grid_.nodes[d];
    nblocks_ = product(b_);
    // Of the largest rank, so that all ranks agree; a quarter more is room for ghosts.
    double largest = 1;
    for (int d = 0; d < n; ++d)
        largest *=
            static_cast<double>(partition().largest_extent(d)) / static_cast<double>(lane_grid_.nodes[d]);
    while (block_bits_ < most_block_bits && 1.25 * largest >= static_cast<double>(most_blocks()))
        ++block_bits_;
    if (largest >= static_cast<double>(most_blocks())) too_many_blocks(static_cast<std::int64_t>(largest), 0);

    if (of_arrays() && (lanes_ != 1 || !tile.empty()))
        throw LayoutError("a C-ordered array has one lane and no tiles");
    if (checkerboard() && extents().back() % 2 != 0)
        throw LayoutError("local extent " + std::to_string(extents().back()) +
                          " in the last direction: an array of the sites of one parity needs an even one");
    if (c_order() && order_.group == 1) return;
    const auto stored = order_of_blocks();

    // of direction `along`: from here on shifted lanes are beyond the end of the lattice
    const std::int64_t half = lane_grid_.along < 0 ? 0 : extents()[lane_grid_.along] / 2;
    coordinates_.resize((n + 1) * nblocks_);
    block_of_.resize(nblocks_);
    box_index_.resize(nblocks_);
    for (std::int64_t block = 0; block < nblocks_; ++block) {
        std::int64_t rest = stored[block], index = 0, stride = 1;
        block_of_[rest] = static_cast<std::int32_t>(block);
        for (int d = 0; d < n; ++d) {
            const std::int64_t c = rest % b_[d];
            rest /= b_[d];
            coordinates_[d * nblocks_ + block] = static_cast<std::int32_t>(origin()[d] + c);
            if (d == lane_grid_.along && c >= half) coordinates_[n * nblocks_ + block] = n * lanes_;
            index += c * stride;
            stride *= extents()[d];
        }
        box_index_[block] = index;
    }
    lane_offsets_.resize(2 * n * lanes_);
    box_lane_.assign(2 * lanes_, 0);
    for (int set = 0; set < 2; ++set) {
        for (int lane = 0; lane < lanes_; ++lane) {
            std::int64_t rest = lane, stride = 1;
            for (int d = 0; d < n; ++d) {
                std::int64_t more = (rest % lane_grid_.nodes[d]) * b_[d];
                rest /= lane_grid_.nodes[d];
                if (d == lane_grid_.along && lane_grid_.shifted(lane)) more = set == 0 ? half : -half;
                lane_offsets_[(set * n + d) * lanes_ + lane] = static_cast<std::int32_t>(more);
                box_lane_[set * lanes_ + lane] += more * stride;
                stride *= extents()[d];
            }
        }
    }
}

std::vector<std::int32_t> Layout::order_of_blocks() {
    if (c_order()) {
        std::vector<std::int32_t> stored(static_cast<std::size_t>(nblocks_));
        for (std::int64_t block = 0; block < nblocks_; ++block)
            stored[block] = static_cast<std::int32_t>(box_site_in_c_order(block));
        return stored;
    }
    const std::vector<std::uint8_t> parity = parities();
    even_ = std::count(parity.begin(), parity.end(), std::uint8_t{0});
    if (checkerboard()) {
        std::vector<std::int32_t> stored(static_cast<std::size_t>(nblocks_));
        std::int64_t next[2] = {0, even_};
        for (std::int64_t index = 0; index < nblocks_; ++index) {
            const std::int64_t site = box_site_in_c_order(index);
            stored[next[parity[site]]++] = static_cast<std::int32_t>(site);
        }
        return stored;
    }
    return site_order(b_, order_.tile, parity, order_.across);
}

std::pair<std::int64_t, int> Layout::locate(std::span<const std::int64_t> site) const {
    geometry_.check_site(site);
    return locate_inside(site);
}

int Layout::lane_of(std::span<const std::int64_t> site, std::span<std::int64_t> block) const {
    std::int64_t lane = 0;
    for (int d = ndim() - 1; d >= 0; --d) lane = lane * lane_grid_.nodes[d] + site[d] / b_[d];
    const bool shifted = lane_grid_.along >= 0 && lane_grid_.shifted(lane);
    for (int d = 0; d < ndim(); ++d) {
        const bool moved = shifted && d == lane_grid_.along;
        block[d] = (site[d] + (moved ? b_[d] / 2 : 0)) % b_[d];
    }
    return static_cast<int>(lane);
}

std::pair<std::int64_t, int> Layout::locate_inside(std::span<const std::int64_t> site) const {
    std::array<std::int64_t, max_dimensions> block;
    const std::span<std::int64_t> c(block.data(), site.size());
    const int lane = lane_of(site, c);
    return {block_at(c), lane};
}

std::int64_t Layout::find(std::span<const std::int64_t> site, std::span<std::int64_t> crossed) const {
    const auto n = static_cast<std::size_t>(ndim());
    std::array<std::int64_t, max_dimensions> inside, block;
    const std::span<std::int64_t> c(block.data(), n);
    Offset key;
    for (std::size_t d = 0; d < n; ++d) {
        const Landing landing = geometry_.landing(static_cast<int>(d), site[d], extents()[d]);
        inside[d] = landing.c;
        crossed[d] = landing.crossed;
        if (landing.key == 0) continue;
        key.resize(n);
        key[d] = landing.key;
    }
    const int lane = lane_of({inside.data(), n}, c);
    if (key.empty()) return block_at(c) * lanes_ + lane;
    const auto slab =
        std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.box.key == key; });
    return (first_ghost() + slab->ghost_block[lexicographic(c, blocks_of(key))]) * lanes_ + lane;
}

std::vector<int> Layout::slabs_at(const Offset& offset) {
    geometry_.check_halo(offset);
    std::vector<int> numbers;
    for (const Offset& key : geometry_.slab_keys(offset)) numbers.push_back(slab_for(key));
    return numbers;
}

std::int64_t Layout::box_site_in_c_order(std::int64_t block) const {
    std::array<std::int64_t, max_dimensions> site;
    const std::span<std::int64_t> c(site.data(), b_.size());
    c_site(block, b_, c);
    return lexicographic(c, b_);
}

void Layout::too_many_blocks(std::int64_t blocks, std::int64_t ghosts) const {
    throw LayoutError("local lattice " + format_extents(extents()) + " with " + std::to_string(lanes_) +
                      " lanes has " + std::to_string(blocks) + " blocks and " + std::to_string(ghosts) +
                      " ghost blocks; at most 2^" + std::to_string(block_bits_) +
                      " - 1 = " + std::to_string(most_blocks() - 1) + " fit, so use more ranks");
}

std::vector<std::uint8_t> Layout::parities() const {
    std::vector<std::uint8_t> parity;
    parity.reserve(nblocks_);
    for_each_site(b_, [&](const Extents& c) { parity.push_back(geometry_.parity(c)); });
    return parity;
}

std::vector<std::int32_t> Layout::tile_by_tile() const {
    auto visited = site_order(b_, order_.tile, parities(), order_.across, false);
    for (std::int32_t& index : visited) index = block_of_[index];
    return visited;
}

Extents Layout::blocks_of(const Offset& key) const {
    Extents box = b_;
    for (int d = 0; d < ndim(); ++d)
        if (key[d] != 0) box[d] = 1;
    return box;
}

int Layout::slab_for(const Offset& key) {
    for (const auto& slab : slabs_) {
        if (slab.box.key == key) return slab.number;
    }
    Slab slab;
    slab.box = geometry_.slab(key);
    slab.number = static_cast<int>(slabs_.size());
    const Extents box = blocks_of(key);

    // Both sides list the same sites by global coordinates, so they agree on order and parity.
    auto send = std::make_shared<std::vector<std::int32_t>>();
    slab.ghost_block.assign(product(box), 0);
    std::int64_t next = ghosts_;
    for (int parity = 0; parity < 2; ++parity) {
        slab.first[parity] = next;
        Extents ghost(ndim()), mine(ndim());
        for_each_site(box, [&](const Extents& c) {
            for (int d = 0; d < ndim(); ++d) {
                ghost[d] = slab.box.ghost_origin[d] + c[d];
                mine[d] = slab.box.send_origin[d] + c[d];
            }
            if (geometry_.parity(ghost) == parity) {
                slab.ghost_block[lexicographic(c, box)] = static_cast<std::int32_t>(next++);
                ++slab.count[parity];
            }
            if (geometry_.parity(mine) == parity) {
                send->push_back(static_cast<std::int32_t>(block_at(mine)));
                ++slab.send_count[parity];
            }
        });
        next = whole_groups(next);
    }
    slab.send_blocks = std::move(send);
    if (first_ghost() + next >= most_blocks()) too_many_blocks(nblocks_, next);
    ghosts_ = next;
    slab_of_ghost_.resize(ghosts_, slab.number);
    slabs_.push_back(std::move(slab));
    return slabs_.back().number;
}

std::shared_ptr<const NeighbourTable> Layout::neighbours(const Offset& offset, bool windings) {
    const int n = ndim();
    geometry_.check_halo(offset);
    if (auto found = tables_.find({offset, windings}); found != tables_.end()) return found->second;
    auto table = std::make_shared<NeighbourTable>();
    table->offset = offset;
    table->with_windings = windings;

    std::map<Offset, int> slab_of_key; // numbered alike by all ranks
    for (const Offset& key : geometry_.slab_keys(offset)) {
        const int number = slab_for(key);
        slab_of_key[key] = number;
        table->slabs.push_back(number);
    }

    // Per direction and block coordinate: where the offset lands, and how many virtual nodes (unsplit) or
    // global boundaries (split) it crosses; in the direction along which lanes are shifted, also how many
    // boundaries it crosses for those. A class is a vector of crossings: at most two values per direction,
    // three in that one.
    struct OfBlocks : Landing {
        std::int64_t crossed_shifted;
    };
    std::vector<std::vector<OfBlocks>> landings(n);
    for (int d = 0; d < n; ++d) {
        for (std::int64_t c = 0; c < b_[d]; ++c) {
            const auto shifted = d == lane_grid_.along ? (c + b_[d] / 2) % b_[d] + offset[d] : 0;
            landings[d].push_back({geometry_.landing(d, c + offset[d], b_[d]), floor_div(shifted, b_[d])});
        }
    }
    std::map<std::vector<std::int64_t>, std::uint32_t> class_of_crossings;
    // Appends the class's rows, or finds equal ones: class 0 is the plain load and always present.
    auto class_for = [&](const std::vector<std::int64_t>& crossings) -> std::uint32_t {
        std::vector<std::int32_t> source(lanes_), wound(windings ? n * lanes_ : 0);
        for (int lane = 0; lane < lanes_; ++lane) {
            std::int64_t rest = lane, stride = 1, from = 0;
            for (int d = 0; d < n; ++d) {
                const auto crossed = crossings[d == lane_grid_.along && lane_grid_.shifted(lane) ? n : d];
                const auto v = rest % lane_grid_.nodes[d] + (partition().split(d) ? 0 : crossed);
                from += floor_mod(v, lane_grid_.nodes[d]) * stride;
                if (windings) {
                    wound[d * lanes_ + lane] = static_cast<std::int32_t>(
                        partition().split(d) ? crossed : floor_div(v, lane_grid_.nodes[d]));
                }
                rest /= lane_grid_.nodes[d];
                stride *= lane_grid_.nodes[d];
            }
            source[lane] = static_cast<std::int32_t>(from);
        }
        for (int k = 0; k < table->classes; ++k) {
            if (std::equal(source.begin(), source.end(), table->permutations.begin() + k * lanes_) &&
                std::equal(wound.begin(), wound.end(),
                           table->windings.begin() + k * static_cast<int>(wound.size()))) {
                return k;
            }
        }
        const int most = 1 << (32 - block_bits_);
        if (table->classes == most) {
            throw LayoutError(
                "offset " + format_offset(offset) + " needs more than " + std::to_string(most) +
                " classes of lane permutations and windings" +
                (block_bits_ > fewest_block_bits(n) ? "; with more ranks there is room for more" : ""));
        }
        table->permutations.insert(table->permutations.end(), source.begin(), source.end());
        table->windings.insert(table->windings.end(), wound.begin(), wound.end());
        return table->classes++;
    };
    class_for(std::vector<std::int64_t>(n + 1, 0));

    table->entries.resize(nblocks_);
    std::vector<std::int64_t> crossings(n + 1), last_crossings; // behind the directions: of shifted lanes
    std::uint32_t last_class = 0;
    Offset key(n);
    Extents target(n);
    for_each_site(b_, [&](const Extents& c) {
        bool ghost = false, moved = false;
        for (int d = 0; d < n; ++d) {
            const auto& landing = landings[d][c[d]];
            target[d] = landing.c;
            key[d] = landing.key;
            crossings[d] = landing.crossed;
            ghost |= landing.key != 0;
            moved ^= lane_grid_.skew[d] != 0 && landing.crossed % 2 != 0;
            if (d == lane_grid_.along) crossings[n] = landing.crossed_shifted;
        }
        if (moved)
            target[lane_grid_.along] =
                (target[lane_grid_.along] + b_[lane_grid_.along] / 2) % b_[lane_grid_.along];
        if (crossings != last_crossings) {
            auto [found, fresh] = class_of_crossings.try_emplace(crossings, 0);
            if (fresh) found->second = class_for(crossings);
            last_class = found->second;
            last_crossings = crossings;
        }
        std::int64_t block;
        if (ghost) {
            const Slab& slab = slabs_[slab_of_key.at(key)];
            block = first_ghost() + slab.ghost_block[lexicographic(target, blocks_of(key))];
        } else {
            block = block_at(target);
        }
        table->entries[block_at(c)] = last_class << block_bits_ | static_cast<std::uint32_t>(block);
    });
    tables_[{offset, windings}] = table;
    return table;
}

} // namespace jali
