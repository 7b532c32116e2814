#include "halo/layout.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}
std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
    return a - floor_div(a, b) * b;
}

// Calls f(c) for every c in the box, direction 0 fastest.
template <class F>
void for_each_site(const Extents& box, F f) {
    Extents c(box.size(), 0);
    for (auto n : box) {
        if (n == 0) return;
    }
    while (true) {
        f(c);
        std::size_t d = 0;
        while (d < box.size() && ++c[d] == box[d]) c[d++] = 0;
        if (d == box.size()) return;
    }
}

std::int64_t lexicographic(const Extents& c, const Extents& box) {
    std::int64_t index = 0;
    for (std::size_t d = box.size(); d-- > 0;) index = index * box[d] + c[d];
    return index;
}

std::int64_t product(const Extents& box) {
    std::int64_t n = 1;
    for (auto e : box) n *= e;
    return n;
}

std::string format_offset(const Offset& offset) {
    std::string text = "(";
    for (std::size_t d = 0; d < offset.size(); ++d) text += (d ? ", " : "") + std::to_string(offset[d]);
    return text + ")";
}

} // namespace

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

// Calls visit(lexicographic index) for the blocks of a tile.
template <class Visit>
void for_each_in_tile(const Extents& t, const Extents& step, const Extents& blocks, Visit&& visit) {
    Extents inner(blocks.size()), c(blocks.size());
    for (std::size_t d = 0; d < blocks.size(); ++d) inner[d] = std::min(step[d], blocks[d] - t[d] * step[d]);
    for_each_site(inner, [&](const Extents& i) {
        for (std::size_t d = 0; d < blocks.size(); ++d) c[d] = t[d] * step[d] + i[d];
        visit(lexicographic(c, blocks));
    });
}

} // namespace

std::vector<std::int32_t> block_order(const Extents& blocks, const Extents& tile,
                                      const std::vector<std::uint8_t>& parity, std::int64_t across,
                                      bool parities_apart) {
    Extents step = tile.empty() ? blocks : tile, tiles(blocks.size());
    for (std::size_t d = 0; d < blocks.size(); ++d) {
        step[d] = std::min(step[d], blocks[d]);
        tiles[d] = (blocks[d] + step[d] - 1) / step[d];
    }
    const auto order_of_tiles = tiles_in_order(tiles, across);
    std::vector<std::int32_t> order;
    order.reserve(parity.size());
    const auto add = [&](const Extents& t, std::uint8_t wanted) {
        for_each_in_tile(t, step, blocks, [&](std::int64_t index) {
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

Layout::Layout(Partition partition, int rank, int wanted_lanes, Extents tile, std::shared_ptr<Gpu> gpu,
               int block_bits)
    : gpu_(std::move(gpu)), partition_(std::move(partition)), rank_(rank), extents_(partition_.extents(rank)),
      origin_(partition_.origin(rank)), lane_grid_(jali::lane_grid(partition_, gpu_ ? 1 : wanted_lanes)),
      b_(extents_), tile_(std::move(tile)), block_bits_(block_bits) {
    const int n = ndim();
    if (!tile_.empty() &&
        (tile_.size() != extents_.size() || *std::min_element(tile_.begin(), tile_.end()) < 1)) {
        throw LayoutError("tile " + format_extents(tile_) +
                          ": give one extent of at least 1 for each of the " + std::to_string(n) +
                          " directions");
    }
    lanes_ = lane_grid_.lanes();
    for (int d = 0; d < n; ++d) b_[d] = extents_[d] / lane_grid_.nodes[d];
    nblocks_ = product(b_);
    // Of the largest rank, so that all ranks agree; a quarter more is room for ghosts.
    double largest = 1;
    for (int d = 0; d < n; ++d)
        largest *=
            static_cast<double>(partition_.largest_extent(d)) / static_cast<double>(lane_grid_.nodes[d]);
    while (block_bits_ < most_block_bits && 1.25 * largest >= static_cast<double>(most_blocks()))
        ++block_bits_;
    if (largest >= static_cast<double>(most_blocks())) too_many_blocks(static_cast<std::int64_t>(largest), 0);

    const std::vector<std::uint8_t> parity = parities();
    const auto order = block_order(b_, tile_, parity, tiles_across());
    even_ = std::count(parity.begin(), parity.end(), std::uint8_t{0});

    // of direction `along`: from here on shifted lanes are beyond the end of the lattice
    const std::int64_t half = lane_grid_.along < 0 ? 0 : extents_[lane_grid_.along] / 2;
    coordinates_.resize((n + 1) * nblocks_);
    block_of_.resize(nblocks_);
    box_index_.resize(nblocks_);
    for (std::int64_t block = 0; block < nblocks_; ++block) {
        std::int64_t rest = order[block], index = 0, stride = 1;
        block_of_[rest] = static_cast<std::int32_t>(block);
        for (int d = 0; d < n; ++d) {
            const std::int64_t c = rest % b_[d];
            rest /= b_[d];
            coordinates_[d * nblocks_ + block] = static_cast<std::int32_t>(origin_[d] + c);
            if (d == lane_grid_.along && c >= half) coordinates_[n * nblocks_ + block] = n * lanes_;
            index += c * stride;
            stride *= extents_[d];
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
                stride *= extents_[d];
            }
        }
    }
}

std::pair<std::int64_t, int> Layout::locate(std::span<const std::int64_t> site) const {
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
    return locate_inside(site);
}

std::pair<std::int64_t, int> Layout::locate_inside(std::span<const std::int64_t> site) const {
    std::int64_t lane = 0, index = 0;
    for (int d = ndim() - 1; d >= 0; --d) lane = lane * lane_grid_.nodes[d] + site[d] / b_[d];
    const bool shifted = lane_grid_.along >= 0 && lane_grid_.shifted(lane);
    for (int d = ndim() - 1; d >= 0; --d) {
        const bool moved = shifted && d == lane_grid_.along;
        index = index * b_[d] + (site[d] + (moved ? b_[d] / 2 : 0)) % b_[d];
    }
    return {block_of_[index], static_cast<int>(lane)};
}

void Layout::too_many_blocks(std::int64_t blocks, std::int64_t ghosts) const {
    throw LayoutError("local lattice " + format_extents(extents_) + " with " + std::to_string(lanes_) +
                      " lanes has " + std::to_string(blocks) + " blocks and " + std::to_string(ghosts) +
                      " ghost blocks; at most 2^" + std::to_string(block_bits_) +
                      " - 1 = " + std::to_string(most_blocks() - 1) + " fit, so use more ranks");
}

void Layout::check(const Offset& offset) const {
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

int Layout::reach(int parities, const Offset& offset) const {
    check(offset);
    std::int64_t sum = 0;
    for (int d = 0; d < ndim(); ++d) {
        if (offset[d] != 0 && partition_.global_extents()[d] % 2 != 0) return 3;
        sum += offset[d];
    }
    return sum % 2 == 0 ? parities : ((parities & 1) << 1 | (parities & 2) >> 1);
}

std::vector<std::uint8_t> Layout::parities() const {
    std::vector<std::uint8_t> parity;
    parity.reserve(nblocks_);
    for_each_site(b_, [&](const Extents& c) {
        std::int64_t sum = 0;
        for (std::size_t d = 0; d < c.size(); ++d) sum += origin_[d] + c[d];
        parity.push_back(sum & 1);
    });
    return parity;
}

// A multiprocessor works on a tile at a time, so those next in the last direction follow at once.
std::int64_t Layout::tiles_across() const {
    return gpu_ ? gpu_->multiprocessors() : 0;
}

std::vector<std::int32_t> Layout::tile_by_tile() const {
    auto order = block_order(b_, tile_, parities(), tiles_across(), false);
    for (std::int32_t& index : order) index = block_of_[index];
    return order;
}

void* Layout::bulk_stream() {
    if (!bulk_stream_) bulk_stream_ = std::make_unique<GpuStream>(gpu_);
    return bulk_stream_->handle();
}

const std::string& Layout::why_no_mailbox(Communicator& communicator) {
    if (!why_no_mailbox_) why_no_mailbox_ = PeerMemory::why_not(gpu_, communicator);
    return *why_no_mailbox_;
}

const std::shared_ptr<PeerMailbox>& Layout::mailbox(const std::shared_ptr<Communicator>& communicator) {
    if (!mailbox_) mailbox_ = std::make_shared<PeerMailbox>(gpu_, communicator);
    return mailbox_;
}

const std::shared_ptr<PeerMailbox>& Layout::doorbell(const std::shared_ptr<Communicator>& communicator) {
    if (!doorbell_) {
        doorbell_ = std::make_shared<PeerMailbox>(gpu_, communicator);
        doorbell_->reserve(0);
    }
    return doorbell_;
}

const std::vector<std::vector<std::int64_t>>& Layout::first_ghosts(Communicator& communicator) {
    const std::size_t wanted = 2 * slabs_.size(); // the same on all ranks
    if (!first_ghosts_.empty() && first_ghosts_[0].size() == wanted) return first_ghosts_;
    std::vector<std::int64_t> mine;
    for (const Slab& slab : slabs_) mine.insert(mine.end(), slab.first.begin(), slab.first.end());
    const auto all = communicator.all_gather(std::as_bytes(std::span(mine)), "places of ghosts");
    first_ghosts_.assign(all.size(), std::vector<std::int64_t>(wanted));
    for (std::size_t r = 0; r < all.size(); ++r) {
        check_bytes(all[r], wanted * sizeof(std::int64_t), static_cast<int>(r), "places of ghosts");
        std::memcpy(first_ghosts_[r].data(), all[r].data(), wanted * sizeof(std::int64_t));
    }
    return first_ghosts_;
}

const Layout::OnDevice& Layout::on_device() {
    if (!on_device_) {
        auto upload = [&](const auto& array) {
            return gpu_->upload(array.data(), array.size() * sizeof array[0], "site tables");
        };
        // the last row is of shifted lanes, which devices have not
        const std::span coordinates(coordinates_.data(), static_cast<std::size_t>(ndim() * nblocks_));
        std::vector<std::int32_t> box_blocks(static_cast<std::size_t>(nblocks_));
        for (std::int64_t block = 0; block < nblocks_; ++block)
            box_blocks[box_index_[block]] = static_cast<std::int32_t>(block);
        on_device_ =
            std::make_unique<OnDevice>(OnDevice{upload(coordinates), upload(lane_offsets_),
                                                upload(partition_.global_extents()), upload(box_blocks)});
    }
    return *on_device_;
}

std::byte* Layout::space(Memory& memory, std::size_t bytes, const char* label) {
    if (memory.size() < bytes) {
        memory.release();
        memory = Arena::host().allocate(bytes, label);
    }
    return memory.data();
}

int Layout::slab_for(const Offset& key) {
    for (const auto& slab : slabs_) {
        if (slab.key == key) return slab.number;
    }
    Slab slab;
    slab.key = key;
    slab.number = static_cast<int>(slabs_.size());
    Extents box(ndim()), ghost_start(ndim()), send_start(ndim()), from = partition_.coordinates(rank_),
                                                                  to = from;
    for (int d = 0; d < ndim(); ++d) {
        const auto k = key[d];
        box[d] = k == 0 ? b_[d] : 1;
        ghost_start[d] = k > 0 ? extents_[d] - 1 + k : k;
        send_start[d] = k > 0 ? k - 1 : k < 0 ? extents_[d] + k : 0;
        from[d] += (k > 0) - (k < 0);
        to[d] -= (k > 0) - (k < 0);
    }
    slab.from = partition_.rank_at(from);
    slab.to = partition_.rank_at(to);

    // Both sides list the same sites by global coordinates, so they agree on order and parity.
    auto send = std::make_shared<std::vector<std::int32_t>>();
    slab.place.assign(product(box), 0);
    std::int64_t next = ghosts_;
    for (int parity = 0; parity < 2; ++parity) {
        slab.first[parity] = next;
        for_each_site(box, [&](const Extents& c) {
            std::int64_t ghost_sum = 0, send_sum = 0;
            Extents mine(ndim());
            for (int d = 0; d < ndim(); ++d) {
                ghost_sum += floor_mod(origin_[d] + ghost_start[d] + c[d], partition_.global_extents()[d]);
                mine[d] = send_start[d] + c[d];
                send_sum += origin_[d] + mine[d];
            }
            if ((ghost_sum & 1) == parity) {
                slab.place[lexicographic(c, box)] = static_cast<std::int32_t>(next++);
                ++slab.count[parity];
            }
            if ((send_sum & 1) == parity) {
                send->push_back(block_of_[lexicographic(mine, b_)]);
                ++slab.send_count[parity];
            }
        });
        next = whole_groups(next);
    }
    if (gpu_) slab.on_device = gpu_->upload(send->data(), send->size() * sizeof(std::int32_t), "site lists");
    slab.send_blocks = std::move(send);
    if (first_ghost() + next >= most_blocks()) too_many_blocks(nblocks_, next);
    ghosts_ = next;
    slab_of_ghost_.resize(ghosts_, slab.number);
    slabs_.push_back(std::move(slab));
    return slabs_.back().number;
}

std::shared_ptr<const NeighbourTable> Layout::neighbours(const Offset& offset, bool windings) {
    const int n = ndim();
    check(offset);
    if (auto found = tables_.find({offset, windings}); found != tables_.end()) return found->second;
    for (int d = 0; d < n; ++d) {
        const auto width = offset[d] < 0 ? -offset[d] : offset[d];
        const auto extent = partition_.smallest_extent(d);
        if (partition_.split(d) && width > extent) {
            const auto whole = partition_.global_extents()[d];
            throw LayoutError("local extent " + std::to_string(extent) + " in direction " +
                              std::to_string(d) + " cannot carry a halo of width " + std::to_string(width) +
                              "; use at most " + std::to_string(std::max<std::int64_t>(1, whole / width)) +
                              " ranks in direction " + std::to_string(d) + " (lattice " +
                              std::to_string(whole) + ")");
        }
    }

    auto table = std::make_shared<NeighbourTable>();
    table->offset = offset;
    table->with_windings = windings;

    // The slabs: in each split direction the layers 1..|o|, and the local extent unless the shift leaves it
    // on every rank. The list depends on the partition and the offset only, so all ranks number alike.
    Offset key(n, 0);
    std::vector<std::vector<std::int64_t>> choices(n);
    for (int d = 0; d < n; ++d) {
        const auto width = offset[d] < 0 ? -offset[d] : offset[d];
        if (!partition_.split(d) || width < partition_.largest_extent(d)) choices[d].push_back(0);
        for (std::int64_t j = 1; partition_.split(d) && j <= width; ++j)
            choices[d].push_back(offset[d] < 0 ? -j : j);
    }
    Extents counts(n);
    for (int d = 0; d < n; ++d) counts[d] = static_cast<std::int64_t>(choices[d].size());
    std::map<Offset, int> slab_of_key;
    for_each_site(counts, [&](const Extents& pick) {
        for (int d = 0; d < n; ++d) key[d] = choices[d][pick[d]];
        if (std::any_of(key.begin(), key.end(), [](auto k) { return k != 0; })) {
            const int number = slab_for(key);
            slab_of_key[key] = number;
            table->slabs.push_back(number);
        }
    });

    // Per direction and block coordinate: where the offset lands, and how many virtual nodes (unsplit) or
    // global boundaries (split) it crosses; in the direction along which lanes are shifted, also how many
    // boundaries it crosses for those. A class is a vector of crossings: at most two values per direction,
    // three in that one.
    struct Landing {
        std::int64_t c, key, crossed, crossed_shifted;
    };
    std::vector<std::vector<Landing>> landings(n);
    for (int d = 0; d < n; ++d) {
        for (std::int64_t c = 0; c < b_[d]; ++c) {
            const auto y = c + offset[d];
            if (partition_.split(d)) {
                const auto k = y < 0 ? y : y >= b_[d] ? y - b_[d] + 1 : 0;
                landings[d].push_back(
                    {k == 0 ? y : 0, k, floor_div(origin_[d] + y, partition_.global_extents()[d]), 0});
            } else {
                const auto there = d == lane_grid_.along ? (c + b_[d] / 2) % b_[d] + offset[d] : 0;
                landings[d].push_back({floor_mod(y, b_[d]), 0, floor_div(y, b_[d]), floor_div(there, b_[d])});
            }
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
                const auto v = rest % lane_grid_.nodes[d] + (partition_.split(d) ? 0 : crossed);
                from += floor_mod(v, lane_grid_.nodes[d]) * stride;
                if (windings) {
                    wound[d * lanes_ + lane] = static_cast<std::int32_t>(
                        partition_.split(d) ? crossed : floor_div(v, lane_grid_.nodes[d]));
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
                (block_bits_ > fewest_block_bits ? "; with more ranks there is room for more" : ""));
        }
        table->permutations.insert(table->permutations.end(), source.begin(), source.end());
        table->windings.insert(table->windings.end(), wound.begin(), wound.end());
        return table->classes++;
    };
    class_for(std::vector<std::int64_t>(n + 1, 0));

    table->entries.resize(nblocks_);
    std::vector<std::int64_t> crossings(n + 1), last_crossings; // behind the directions: of shifted lanes
    std::uint32_t last_class = 0;
    Extents target(n), slab_box(n);
    std::int64_t index = 0;
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
            for (int d = 0; d < n; ++d) slab_box[d] = key[d] == 0 ? b_[d] : 1;
            block = first_ghost() + slab.place[lexicographic(target, slab_box)];
        } else {
            block = block_of_[lexicographic(target, b_)];
        }
        table->entries[block_of_[index++]] = last_class << block_bits_ | static_cast<std::uint32_t>(block);
    });
    if (gpu_)
        table->on_device = gpu_->upload(table->entries.data(), table->entries.size() * sizeof(std::uint32_t),
                                        "neighbour tables");
    tables_[{offset, windings}] = table;
    return table;
}

} // namespace jali
