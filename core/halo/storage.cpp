#include "halo/storage.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace jali {

namespace {

std::atomic<std::int64_t> process_exchanged, process_avoided, process_messages, process_bytes;

void for_range(ThreadPool* pool, std::int64_t end, std::int64_t grain, const ThreadPool::Body& body) {
    if (pool != nullptr) {
        pool->parallel_for(0, end, grain, body);
    } else if (end > 0) {
        body(0, 0, end);
    }
}

// Where a section of a site's bytes is: in a box array, and in memory of so many lanes.
struct SectionOffsets {
    std::int64_t units, first, site_bytes; // `first`: bytes of the sections before
};

// One unit per lane: array[site(block, lane) * site_bytes + first + r units] <-> the section's
// [r * W + lane] in the block.
template <int W, class Unit>
void import_blocks(std::byte* data, const std::byte* array, const SectionOffsets& offsets,
                   const LocalLayout& layout, std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
        const std::byte* from[W];
        for (int l = 0; l < W; ++l)
            from[l] = array + layout.box_site(block, l) * offsets.site_bytes + offsets.first;
        std::byte* to = data + (block * offsets.site_bytes + offsets.first) * W;
        for (std::int64_t r = 0; r < offsets.units; ++r) {
            for (int l = 0; l < W; ++l)
                std::memcpy(to + (r * W + l) * sizeof(Unit), from[l] + r * sizeof(Unit), sizeof(Unit));
        }
    }
}

template <int W, class Unit>
void export_blocks(const std::byte* data, std::byte* array, const SectionOffsets& offsets,
                   const LocalLayout& layout, std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
        std::byte* to[W];
        for (int l = 0; l < W; ++l)
            to[l] = array + layout.box_site(block, l) * offsets.site_bytes + offsets.first;
        const std::byte* from = data + (block * offsets.site_bytes + offsets.first) * W;
        for (std::int64_t r = 0; r < offsets.units; ++r) {
            for (int l = 0; l < W; ++l)
                std::memcpy(to[l] + r * sizeof(Unit), from + (r * W + l) * sizeof(Unit), sizeof(Unit));
        }
    }
}

// Calls f.template operator()<W>() with W = lanes, so that the loops over lanes have constant bounds.
template <class F>
void with_lanes(int lanes, F f) {
    switch (lanes) {
    case 1:
        return f.template operator()<1>();
    case 2:
        return f.template operator()<2>();
    case 4:
        return f.template operator()<4>();
    case 8:
        return f.template operator()<8>();
    case 16:
        return f.template operator()<16>();
    case 32:
        return f.template operator()<32>();
    default:
        return f.template operator()<64>();
    }
}

// Calls f.template operator()<Unit>(offsets) for every section of a site's memory.
template <class F>
void for_each_section(const SiteMemory& memory, F f) {
    SectionOffsets offsets{0, 0, memory.bytes()};
    for (const MemorySection& section : memory.sections) {
        offsets.units = section.units;
        switch (section.unit_bytes) {
        case 1:
            f.template operator()<std::uint8_t>(offsets);
            break;
        case 2:
            f.template operator()<std::uint16_t>(offsets);
            break;
        case 4:
            f.template operator()<std::uint32_t>(offsets);
            break;
        default:
            f.template operator()<std::uint64_t>(offsets);
        }
        offsets.first += section.bytes();
    }
}

void check_memory(const SiteMemory& memory, const std::string& label) {
    const auto refuse = [&](const std::string& what) { throw LayoutError("field '" + label + "': " + what); };
    if (memory.sections.empty()) refuse("no memory per site");
    for (const auto& [units, unit_bytes, packet_units] : memory.sections) {
        if (units < 1) refuse(std::to_string(units) + " units per site");
        if (unit_bytes != 1 && unit_bytes != 2 && unit_bytes != 4 && unit_bytes != 8)
            refuse("units of " + std::to_string(unit_bytes) + " bytes; they have 1, 2, 4 or 8");
        const int bytes = packet_units * unit_bytes;
        if (packet_units < 1 || units % packet_units != 0 || bytes > 16 || (bytes & (bytes - 1)) != 0)
            refuse("packets of " + std::to_string(packet_units) + " units of " + std::to_string(unit_bytes) +
                   " bytes, of " + std::to_string(units) +
                   "; packets divide them, and have 1, 2, 4, 8 or 16 bytes");
    }
}

// Calls f(block, lane, index) for every site of a part of the local box; index counts them, direction 0
// fastest.
template <class F>
void for_each_site_of_part(const LocalLayout& layout, const Extents& origin, const Extents& extents, F f) {
    const int n = layout.ndim();
    if (static_cast<int>(origin.size()) != n || static_cast<int>(extents.size()) != n) {
        throw LayoutError("a part of a box needs " + std::to_string(n) + " origins and extents; got " +
                          std::to_string(origin.size()) + " and " + std::to_string(extents.size()));
    }
    for (int d = 0; d < n; ++d) {
        if (origin[d] < 0 || extents[d] < 0 || origin[d] + extents[d] > layout.extents()[d]) {
            throw LayoutError("direction " + std::to_string(d) + ": sites " + std::to_string(origin[d]) +
                              " to " + std::to_string(origin[d] + extents[d] - 1) +
                              " are not inside the local extent " + std::to_string(layout.extents()[d]));
        }
        if (extents[d] == 0) return;
    }
    Extents site = origin;
    std::int64_t index = 0;
    while (true) {
        const auto [block, lane] = layout.locate_inside(site);
        f(block, lane, index++);
        int d = 0;
        while (d < n && ++site[d] == origin[d] + extents[d]) {
            site[d] = origin[d];
            ++d;
        }
        if (d == n) return;
    }
}

constexpr std::int64_t box_grain = 512; // blocks: a few hundred kilobytes

} // namespace

int SiteMemory::bytes() const {
    int sum = 0;
    for (const MemorySection& section : sections) sum += section.bytes();
    return sum;
}

int SiteMemory::alignment() const {
    int least = 8;
    for (const MemorySection& section : sections) least = std::min(least, section.unit_bytes);
    return least;
}

HaloCounters process_halo_counters() {
    return {process_exchanged.load(), process_avoided.load(), process_messages.load(), process_bytes.load()};
}

void count_in_process(const HaloCounters& more) {
    process_exchanged.fetch_add(more.exchanged, std::memory_order_relaxed);
    process_avoided.fetch_add(more.avoided, std::memory_order_relaxed);
    process_messages.fetch_add(more.messages, std::memory_order_relaxed);
    process_bytes.fetch_add(more.bytes, std::memory_order_relaxed);
}

FieldStorage::FieldStorage(std::shared_ptr<LocalLayout> layout, SiteMemory memory, std::string label,
                           ThreadPool* pool, int parities)
    : layout_(std::move(layout)), memory_of_site_(std::move(memory)), site_bytes_(memory_of_site_.bytes()),
      label_(std::move(label)), parities_(parities) {
    check_memory(memory_of_site_, label_);
    if (parities < 1 || parities > 3)
        throw LayoutError("field '" + label_ + "': parities " + std::to_string(parities) +
                          "; 1, 2 or 3 are known");
    block_bytes_ = static_cast<std::size_t>(site_bytes_) * layout_->lanes();
    // Where an extent is odd, a step around the lattice leads to a site of the same parity. Kernels load what
    // is there, and discard it behind an open edge, so there is memory for all sites.
    const auto& extents = layout_->partition().global_extents();
    const bool whole =
        parities == 3 || std::any_of(extents.begin(), extents.end(), [](auto n) { return n % 2 != 0; });
    if (!whole && parities == 2) first_owned_ = layout_->even_blocks() / layout_->group() * layout_->group();
    owned_ =
        (!whole && parities == 1 ? layout_->whole_groups(layout_->even_blocks()) : layout_->first_ghost()) -
        first_owned_;
    allocate(pool);
}

FieldStorage::FieldStorage(std::shared_ptr<LocalLayout> layout, SiteMemory memory, std::string label,
                           std::byte* array, std::shared_ptr<void> owner, void* stream, int parities)
    : layout_(std::move(layout)), memory_of_site_(std::move(memory)), site_bytes_(memory_of_site_.bytes()),
      label_(std::move(label)), owner_(std::move(owner)), stream_(stream), parities_(parities) {
    check_memory(memory_of_site_, label_);
    if (parities == 3 ? !layout_->c_order() : !layout_->checkerboard() || parities < 1 || parities > 2)
        throw LayoutError("field '" + label_ +
                          "': arrays have a layout in C order, those of one parity a checkerboard");
    const auto& sections = memory_of_site_.sections;
    const auto packet = static_cast<std::uintptr_t>(sections[0].packet_bytes());
    const auto other = [&](const MemorySection& section) { return section != sections[0]; };
    if (layout_->gpu() && std::any_of(sections.begin(), sections.end(), other))
        throw LayoutError("field '" + label_ + "': an array of a device with norms");
    if (layout_->gpu() && reinterpret_cast<std::uintptr_t>(array) % packet != 0)
        throw LayoutError("field '" + label_ + "': the array begins at an address that is no multiple of " +
                          std::to_string(packet) + " bytes, in which its sites are read; copy it");
    block_bytes_ = static_cast<std::size_t>(site_bytes_);
    first_owned_ = first_block();
    base_ = array - first_owned_ * static_cast<std::int64_t>(block_bytes_);
    allocate(nullptr);
}

FieldStorage::FieldStorage(std::shared_ptr<LocalLayout> layout, SiteMemory memory, std::string label,
                           HaloProducer producer)
    : layout_(std::move(layout)), memory_of_site_(std::move(memory)), site_bytes_(memory_of_site_.bytes()),
      label_(std::move(label)), producer_(std::make_unique<HaloProducer>(std::move(producer))) {
    check_memory(memory_of_site_, label_);
    const int nparameters = static_cast<int>(producer_->parameters.size());
    auto fits = [&](int index) { return index >= 8 && index < nparameters; };
    const bool lacks_kernel =
        layout_->gpu() ? producer_->gpu_kernel.handle == nullptr : producer_->kernel == nullptr;
    if (lacks_kernel || !fits(producer_->output_parameter) ||
        !std::all_of(producer_->sources.begin(), producer_->sources.end(),
                     [&](auto& s) { return fits(s.first); })) {
        throw LayoutError("halo item '" + label_ + "': needs a kernel, and addresses in parameters 8 to " +
                          std::to_string(nparameters - 1));
    }
    for (auto& [index, source] : producer_->sources) {
        if (source->layout() != layout_)
            throw LayoutError("halo item '" + label_ + "': a source field has another layout");
    }
    block_bytes_ = static_cast<std::size_t>(site_bytes_) * layout_->lanes();
    first_owned_ = layout_->first_ghost();
    allocate(nullptr);
}

FieldStorage::~FieldStorage() {
    if (mapping_) layout_->gpu()->keep_until_done(std::move(mapping_)); // messages may still be under way
}

void FieldStorage::allocate(ThreadPool* pool) {
    if (layout_->gpu()) return allocate_on_device();
    const auto ghosts = layout_->ghost_blocks();
    // ghosts may be exposed, and kernels use the address by then
    Memory bigger =
        Arena::host().allocate(static_cast<std::size_t>(owned_ + ghosts) * block_bytes_, label_, ghosts > 0);
    const auto kept = static_cast<std::size_t>(owned_ + ghosts_) * block_bytes_;
    for_range(pool, owned_ + ghosts, box_grain, [&](int, std::int64_t b, std::int64_t e) {
        const auto begin = b * block_bytes_, end = e * block_bytes_;
        const auto copied = memory_.data() == nullptr ? begin : std::clamp(kept, begin, end);
        if (copied > begin) std::memcpy(bigger.data() + begin, memory_.data() + begin, copied - begin);
        std::memset(bigger.data() + copied, 0, end - copied);
    });
    memory_ = std::move(bigger);
    exposure_.reset();
    ghosts_ = ghosts;
    if (owner_) return;
    base_ = memory_.data() - first_owned_ * static_cast<std::int64_t>(block_bytes_);
}

void FieldStorage::reserve_ghosts(ThreadPool* pool) {
    if (lacks_ghosts()) allocate(pool);
}

// Ranks decide to map anew by data that are the same on all of them: storage moves only to make room for more
// slabs.
void FieldStorage::map_ghosts(Communicator& communicator) {
    const std::size_t slabs = layout_->slabs().size();
    if (mapped_slabs_ == slabs) return;
    reserve_ghosts();
    layout_->gpu() ? map_ghosts_on_device(communicator) : expose_ghosts(communicator);
    mapped_slabs_ = slabs;
}

void FieldStorage::expose_ghosts(Communicator& communicator) {
    const auto memory = exposed_memory(communicator);
    ExposureName mine;
    exposure_ = memory->expose(memory_, static_cast<std::size_t>(ghosts_) * block_bytes_, mine);
    exposed_ = gather_values(communicator, mine, "places of ghosts");
    there_.assign(exposed_.size(), 0);
    for (std::size_t rank = 0; rank < exposed_.size(); ++rank)
        there_[rank] = reinterpret_cast<GpuAddress>(memory->address(static_cast<int>(rank), exposed_[rank]));
}

std::vector<std::int32_t> FieldStorage::blocks_of_part(const Extents& origin, const Extents& extents) const {
    std::vector<std::int32_t> blocks;
    for_each_site_of_part(*layout_, origin, extents, [&](std::int64_t block, std::int64_t, std::int64_t) {
        blocks.push_back(static_cast<std::int32_t>(block));
    });
    return blocks;
}

void FieldStorage::set_producer_parameters(const std::vector<std::uint64_t>& parameters) {
    if (!producer_ || parameters.size() != producer_->parameters.size()) {
        throw LayoutError("halo item '" + label_ + "': " + std::to_string(parameters.size()) +
                          " parameters given, " +
                          std::to_string(producer_ ? producer_->parameters.size() : 0) + " expected");
    }
    if (parameters != producer_->parameters) {
        producer_->parameters = parameters;
        mark_written(3);
    }
}

void FieldStorage::mark_written(int parities) {
    version_[0] += parities & 1;
    version_[1] += (parities >> 1) & 1;
}

std::uint64_t FieldStorage::version(int parity) const {
    std::uint64_t version = version_[parity];
    // Every count only grows, so the sum is unchanged only if all are.
    if (producer_) {
        for (const auto& [index, source] : producer_->sources) version += source->version(parity);
    }
    return version;
}

bool FieldStorage::changes_unreported() const {
    return borrowed() || (producer_ && std::any_of(producer_->sources.begin(), producer_->sources.end(),
                                                   [](const auto& s) { return s.second->borrowed(); }));
}

bool FieldStorage::depends_on(const FieldStorage& other) const {
    return this == &other ||
           (producer_ && std::any_of(producer_->sources.begin(), producer_->sources.end(),
                                     [&](const auto& s) { return s.second.get() == &other; }));
}

void FieldStorage::set_held(int slab, int parity, std::uint64_t version) {
    const auto index = static_cast<std::size_t>(2 * slab + parity);
    if (index >= held_.size()) held_.resize(2 * layout_->slabs().size(), 0);
    held_[index] = version;
}

void FieldStorage::require_sites(const char* what) const {
    if (producer_) throw LayoutError(std::string(what) + ": halo item '" + label_ + "' owns no sites");
}

void FieldStorage::import_box(const std::byte* array, ThreadPool* pool) {
    require_sites("import_box");
    if (layout_->gpu()) {
        box_to_device(array, nullptr, layout_->sites());
        return mark_written(parities_);
    }
    const std::int64_t first = first_block();
    for_each_section(memory_of_site_, [&]<class Unit>(const SectionOffsets& offsets) {
        with_lanes(layout_->lanes(), [&]<int W>() {
            for_range(pool, end_block() - first, box_grain, [&](int, std::int64_t b, std::int64_t e) {
                import_blocks<W, Unit>(base_, array, offsets, *layout_, first + b, first + e);
            });
        });
    });
    mark_written(parities_);
}

void FieldStorage::export_box(std::byte* array, ThreadPool* pool) const {
    require_sites("export_box");
    if (layout_->gpu()) return box_from_device(array, nullptr, layout_->sites());
    if (parities_ != 3) std::memset(array, 0, static_cast<std::size_t>(layout_->sites()) * site_bytes_);
    const std::int64_t first = first_block();
    for_each_section(memory_of_site_, [&]<class Unit>(const SectionOffsets& offsets) {
        with_lanes(layout_->lanes(), [&]<int W>() {
            for_range(pool, end_block() - first, box_grain, [&](int, std::int64_t b, std::int64_t e) {
                export_blocks<W, Unit>(base_, array, offsets, *layout_, first + b, first + e);
            });
        });
    });
}

void FieldStorage::import_part(const Extents& origin, const Extents& extents, const std::byte* array) {
    require_sites("import_part");
    if (layout_->gpu()) {
        const auto blocks = blocks_of_part(origin, extents);
        return box_to_device(array, blocks.data(), static_cast<std::int64_t>(blocks.size()));
    }
    const auto lanes = layout_->lanes();
    for_each_section(memory_of_site_, [&]<class Unit>(const SectionOffsets& offsets) {
        for_each_site_of_part(
            *layout_, origin, extents, [&](std::int64_t block, std::int64_t lane, std::int64_t i) {
                if (block < first_block() || block >= end_block()) return;
                std::byte* to = base_ + (block * offsets.site_bytes + offsets.first) * lanes;
                const std::byte* from = array + i * offsets.site_bytes + offsets.first;
                for (std::int64_t r = 0; r < offsets.units; ++r)
                    std::memcpy(to + (r * lanes + lane) * sizeof(Unit), from + r * sizeof(Unit),
                                sizeof(Unit));
            });
    });
}

void FieldStorage::export_part(const Extents& origin, const Extents& extents, std::byte* array) const {
    require_sites("export_part");
    if (layout_->gpu()) {
        const auto blocks = blocks_of_part(origin, extents);
        return box_from_device(array, blocks.data(), static_cast<std::int64_t>(blocks.size()));
    }
    const auto lanes = layout_->lanes();
    for_each_section(memory_of_site_, [&]<class Unit>(const SectionOffsets& offsets) {
        for_each_site_of_part(
            *layout_, origin, extents, [&](std::int64_t block, std::int64_t lane, std::int64_t i) {
                std::byte* to = array + i * offsets.site_bytes + offsets.first;
                if (block < first_block() || block >= end_block()) {
                    std::memset(to, 0, static_cast<std::size_t>(offsets.units) * sizeof(Unit));
                    return;
                }
                const std::byte* from = base_ + (block * offsets.site_bytes + offsets.first) * lanes;
                for (std::int64_t r = 0; r < offsets.units; ++r)
                    std::memcpy(to + r * sizeof(Unit), from + (r * lanes + lane) * sizeof(Unit),
                                sizeof(Unit));
            });
    });
}

void FieldStorage::fill_zero(ThreadPool* pool) {
    require_sites("fill_zero");
    if (const auto& gpu = layout_->gpu()) {
        await_owner();
        gpu->fill(owned_address(), 0, owned_bytes());
        let_owner_go_on();
        return mark_written(parities_);
    }
    for_range(pool, owned_end() - first_owned_, box_grain, [&](int, std::int64_t b, std::int64_t e) {
        std::memset(owned_data() + b * block_bytes_, 0, (e - b) * block_bytes_);
    });
    mark_written(parities_);
}

void FieldStorage::prepare_copy_from(const FieldStorage& other) {
    require_sites("copy_from");
    other.require_sites("copy_from");
    const LocalLayout &to = *layout_, &from = *other.layout_;
    if (to.extents() != from.extents() || to.origin() != from.origin() ||
        memory_of_site_ != other.memory_of_site_) {
        throw LayoutError("copy_from: '" + other.label_ + "' has local box " +
                          format_extents(from.extents()) + " and " + std::to_string(other.site_bytes_) +
                          " bytes per site, '" + label_ + "' has " + format_extents(to.extents()) + " and " +
                          std::to_string(site_bytes_) + ", or keeps them in another way");
    }
    if (to.gpu() && to.gpu() == from.gpu()) layout_->positions_in(other.layout_);
}

void FieldStorage::copy_from(const FieldStorage& other, ThreadPool* pool) {
    prepare_copy_from(other);
    const LocalLayout &to = *layout_, &from = *other.layout_;
    const int common = parities_ & other.parities_;
    if (to.gpu() || from.gpu()) {
        copy_on_device(other);
        return mark_written(common);
    }
    if (layout_ == other.layout_ || (to.c_order() == from.c_order() && to.box_index() == from.box_index() &&
                                     to.lanes() == from.lanes())) {
        const std::int64_t first = std::max(first_block(), other.first_block());
        for_range(pool, std::min(end_block(), other.end_block()) - first, box_grain,
                  [&](int, std::int64_t b, std::int64_t e) {
                      const auto at = (first + b) * static_cast<std::int64_t>(block_bytes_);
                      std::memcpy(base_ + at, other.base_ + at, (e - b) * block_bytes_);
                  });
        return mark_written(common);
    }
    // Where the source holds each site of the box: block and lane.
    std::vector<std::pair<std::int64_t, int>> block_and_lane_of(from.sites());
    for (std::int64_t block = 0; block < from.nblocks(); ++block)
        for (int lane = 0; lane < from.lanes(); ++lane)
            block_and_lane_of[from.box_site(block, lane)] = {block, lane};
    const std::int64_t first = first_block();
    for_each_section(memory_of_site_, [&]<class Unit>(const SectionOffsets& offsets) {
        for_range(pool, end_block() - first, box_grain, [&](int, std::int64_t b, std::int64_t e) {
            for (std::int64_t block = first + b; block < first + e; ++block) {
                std::byte* data = base_ + (block * offsets.site_bytes + offsets.first) * to.lanes();
                for (int lane = 0; lane < to.lanes(); ++lane) {
                    const auto [there, their_lane] = block_and_lane_of[to.box_site(block, lane)];
                    if (there < other.first_block() || there >= other.end_block()) continue;
                    const std::byte* source =
                        other.base_ + (there * offsets.site_bytes + offsets.first) * from.lanes();
                    for (std::int64_t r = 0; r < offsets.units; ++r)
                        std::memcpy(data + (r * to.lanes() + lane) * sizeof(Unit),
                                    source + (r * from.lanes() + their_lane) * sizeof(Unit), sizeof(Unit));
                }
            }
        });
    });
    mark_written(common);
}

} // namespace jali
