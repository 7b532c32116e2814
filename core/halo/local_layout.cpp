#include "halo/local_layout.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace jali {

namespace {

constexpr std::size_t most_codes = 4096; // whose differences fit a first-level cache

// A multiprocessor works on a tile at a time, so those next in the last direction follow at once.
BlockOrder order_on(const std::shared_ptr<Gpu>& gpu, Extents tile) {
    if (!gpu) return {std::move(tile)};
    return {std::move(tile), gpu->multiprocessors(), LocalLayout::device_group};
}

} // namespace

LocalLayout::LocalLayout(Partition partition, int rank, int wanted_lanes, Extents tile,
                         std::shared_ptr<Gpu> gpu, int block_bits)
    : Layout(Geometry(std::move(partition), rank), gpu ? 1 : wanted_lanes, order_on(gpu, std::move(tile)),
             block_bits),
      gpu_(std::move(gpu)) {
}

LocalLayout::LocalLayout(Partition partition, int rank, std::shared_ptr<Gpu> gpu, SiteOrder sites)
    : Layout(Geometry(std::move(partition), rank), 1, {{}, 0, gpu ? device_group : 1, sites}),
      gpu_(std::move(gpu)) {
}

void* LocalLayout::bulk_stream() {
    if (!bulk_stream_) bulk_stream_ = std::make_unique<GpuStream>(gpu_);
    return bulk_stream_->handle();
}

const std::string& LocalLayout::why_not(WhyNot ask, Communicator& communicator) {
    const auto found = why_not_.find(ask);
    if (found != why_not_.end()) return found->second;
    return why_not_[ask] = ask(gpu_, communicator);
}

const std::shared_ptr<HaloPad>& LocalLayout::pad(const std::shared_ptr<Communicator>& communicator) {
    if (!pad_)
        pad_ = std::make_shared<HaloPad>(gpu_, communicator,
                                         [this](std::int64_t slab) { return slabs()[slab].box.from; });
    return pad_;
}

const std::vector<std::vector<std::int64_t>>& LocalLayout::first_ghosts(Communicator& communicator) {
    const std::size_t wanted = 2 * slabs().size(); // the same on all ranks
    if (!first_ghosts_.empty() && first_ghosts_[0].size() == wanted) return first_ghosts_;
    std::vector<std::int64_t> mine;
    for (const Slab& slab : slabs()) mine.insert(mine.end(), slab.first.begin(), slab.first.end());
    const auto all = communicator.all_gather(std::as_bytes(std::span(mine)), "places of ghosts");
    first_ghosts_.assign(all.size(), std::vector<std::int64_t>(wanted));
    for (std::size_t r = 0; r < all.size(); ++r) {
        check_bytes(all[r], wanted * sizeof(std::int64_t), static_cast<int>(r), "places of ghosts");
        std::memcpy(first_ghosts_[r].data(), all[r].data(), wanted * sizeof(std::int64_t));
    }
    return first_ghosts_;
}

const LocalLayout::OnDevice& LocalLayout::on_device() {
    if (!on_device_) {
        auto upload = [&](const auto& array) {
            return gpu_->upload(array.data(), array.size() * sizeof array[0], "site tables");
        };
        // the last row is of shifted lanes, which devices have not
        const std::span lane_0(coordinates().data(), static_cast<std::size_t>(ndim() * nblocks()));
        std::vector<std::int32_t> box_blocks(static_cast<std::size_t>(nblocks()));
        for (std::int64_t block = 0; block < nblocks(); ++block)
            box_blocks[box_index()[block]] = static_cast<std::int32_t>(block);
        on_device_ =
            std::make_unique<OnDevice>(OnDevice{upload(lane_0), upload(lane_offsets()),
                                                upload(partition().global_extents()), upload(box_blocks)});
    }
    return *on_device_;
}

std::byte* LocalLayout::space(Memory& memory, std::size_t bytes, const char* label) {
    if (memory.size() < bytes) {
        memory.release();
        memory = Arena::host().allocate(bytes, label);
    }
    return memory.data();
}

GpuAddress LocalLayout::kept_on_device(const void* data, std::size_t bytes, const char* label) {
    if (bytes == 0) return 0;
    GpuMemory& memory = lists_[data];
    if (memory.size() == 0) memory = gpu_->upload(data, bytes, label);
    return memory.address();
}

const std::vector<std::uint32_t>& LocalLayout::differences(const NeighbourTable& table) {
    auto [found, fresh] = differences_.try_emplace(&table);
    auto& all = found->second;
    if (!fresh) return all;
    std::unordered_set<std::uint32_t> seen;
    for (std::uint32_t site = 0; site < table.entries.size() && seen.size() <= most_codes; ++site)
        seen.insert(table.entries[site] - site);
    all.assign(seen.begin(), seen.end());
    std::sort(all.begin(), all.end());
    return all;
}

int LocalLayout::code_bits(const NeighbourTable& table) {
    const std::size_t count = differences(table).size();
    return count <= 256 ? 8 : count <= most_codes ? 16 : 32;
}

GpuAddress LocalLayout::differences_on_device(const NeighbourTable& table) {
    const auto& all = differences(table);
    return kept_on_device(all.data(), all.size() * sizeof all[0], "neighbour tables");
}

GpuAddress LocalLayout::on_device(const NeighbourTable& table, int bits) {
    const auto& entries = table.entries;
    if (bits < 32 && !entries.empty()) {
        GpuMemory& memory = codes_[{&table, bits}];
        if (memory.size() > 0) return memory.address();
        const auto& all = differences(table);
        std::vector<std::uint8_t> bytes(entries.size() * static_cast<std::size_t>(bits / 8));
        for (std::uint32_t site = 0; site < entries.size(); ++site) {
            const auto code = static_cast<std::uint16_t>(
                std::lower_bound(all.begin(), all.end(), entries[site] - site) - all.begin());
            std::memcpy(bytes.data() + site * static_cast<std::size_t>(bits / 8), &code,
                        static_cast<std::size_t>(bits / 8)); // the low byte comes first
        }
        memory = gpu_->upload(bytes.data(), bytes.size(), "neighbour tables");
        return memory.address();
    }
    return kept_on_device(entries.data(), entries.size() * sizeof entries[0], "neighbour tables");
}

GpuAddress LocalLayout::on_device(const Slab& slab) {
    const auto& blocks = *slab.send_blocks;
    return kept_on_device(blocks.data(), blocks.size() * sizeof blocks[0], "site lists");
}

GpuAddress LocalLayout::positions_in(const std::shared_ptr<LocalLayout>& other) {
    if (other.get() == this) return 0;
    if (const auto known = positions_in_.find(other); known != positions_in_.end())
        return known->second.address();
    std::erase_if(positions_in_, [](const auto& kept) { return kept.first.expired(); });
    GpuMemory memory;
    if (box_index() != other->box_index()) {
        std::vector<std::int32_t> theirs(static_cast<std::size_t>(nblocks())), list(theirs.size());
        for (std::int64_t block = 0; block < nblocks(); ++block)
            theirs[other->box_index()[block]] = static_cast<std::int32_t>(block);
        for (std::int64_t block = 0; block < nblocks(); ++block) list[block] = theirs[box_index()[block]];
        memory = gpu_->upload(list.data(), list.size() * sizeof list[0], "site tables");
    }
    return positions_in_.emplace(other, std::move(memory)).first->second.address();
}

} // namespace jali
