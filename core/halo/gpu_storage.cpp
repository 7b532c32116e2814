// FieldStorage on a device: the same operations, done by builtin kernels (prelude/builtin.hpp).
#include "device/timeline.hpp"
#include "halo/storage.hpp"

#include <algorithm>
#include <string>

namespace jali {

namespace {

// Parameters of the builtin kernels; see builtin.hpp.
struct SectionOnDevice {
    std::int64_t units, packet_units, first, site_bytes;
};
struct BoxArguments {
    std::int64_t count;
    SectionOnDevice section;
    GpuAddress blocks, array, field;
    std::int64_t begin, end;
};
struct ReorderArguments {
    std::int64_t begin, end, from_begin, from_end;
    SectionOnDevice from_section, to_section;
    GpuAddress from, to, positions;
};

constexpr unsigned builtin_threads = 256;
constexpr std::size_t box_piece = std::size_t{64} << 20; // bytes of an array on the device at a time

// Calls f(suffix of the kernel's name, section) for every section of a site. An array has no packets.
template <class F>
void for_each_section(const FieldStorage& field, F f) {
    const SiteMemory& memory = field.memory();
    std::int64_t first = 0;
    for (const MemorySection& section : memory.sections) {
        f("_" + std::to_string(section.unit_bytes),
          SectionOnDevice{section.units, field.borrowed() ? 0 : section.packet_units, first, memory.bytes()});
        first += section.bytes();
    }
}

template <class Arguments>
void run_builtin(Gpu& gpu, const std::string& name, const Arguments& arguments, std::int64_t work) {
    if (work == 0) return;
    const CurrentGpu current(gpu);
    const std::int64_t blocks = std::min<std::int64_t>((work + builtin_threads - 1) / builtin_threads,
                                                       std::int64_t{32} * gpu.multiprocessors());
    const DeviceSpan span(gpu, gpu.stream(), Phase::move, name);
    gpu.launch(gpu.builtin(name), static_cast<unsigned>(blocks), builtin_threads, arguments, gpu.stream());
}

} // namespace

void FieldStorage::await_owner() const {
    const auto& gpu = layout_->gpu();
    if (owner_ && gpu && stream_ != gpu->stream() && !gpu->is_capturing(gpu->stream()))
        gpu->wait_for(stream_);
}

void FieldStorage::let_owner_go_on() const {
    const auto& gpu = layout_->gpu();
    if (owner_ && gpu && stream_ != gpu->stream() && !gpu->is_capturing(gpu->stream()))
        gpu->let_wait(stream_);
}

void FieldStorage::allocate_on_device() {
    Gpu& gpu = *layout_->gpu();
    const auto ghosts = layout_->ghost_blocks();
    if (owner_ && ghosts == 0) return;
    const bool mapped_by_others = layout_->partition().nranks() > 1;
    GpuMemory bigger =
        gpu.allocate(static_cast<std::size_t>(owned_ + ghosts) * block_bytes_, label_, mapped_by_others);
    const auto kept = device_.size() > 0 ? static_cast<std::size_t>(owned_ + ghosts_) * block_bytes_ : 0;
    if (kept > 0) gpu.copy(bigger.address(), device_.address(), kept);
    gpu.fill(bigger.address() + kept, 0, bigger.size() - kept);
    device_ = std::move(bigger);
    ghosts_ = ghosts;
    if (owner_) return;
    base_ = reinterpret_cast<std::byte*>(device_.address() -
                                         static_cast<std::size_t>(first_owned_) * block_bytes_);
}

void FieldStorage::map_ghosts_on_device(Communicator& communicator) {
    if (mapping_) layout_->gpu()->keep_until_done(std::move(mapping_));
    layout_->gpu()->drop_done();
    std::vector<char> wanted(static_cast<std::size_t>(communicator.size()), 0);
    for (const Slab& slab : layout_->slabs()) wanted[slab.box.to] = 1;
    const GpuAddress ghosts = device_.address() + static_cast<std::size_t>(owned_) * block_bytes_;
    try {
        mapping_ = std::make_unique<PeerMapping>(layout_->gpu(), communicator, ghosts,
                                                 static_cast<std::size_t>(ghosts_) * block_bytes_, wanted);
    } catch (const CannotMap& error) {
        throw CannotMap("neighbours cannot write the ghosts of '" + label_ + "' (" + error.what() +
                        "); buffered-write needs no mapped fields");
    }
}

void FieldStorage::box_to_device(const std::byte* array, const std::int32_t* blocks, std::int64_t sites) {
    Gpu& gpu = *layout_->gpu();
    const auto site_bytes = static_cast<std::size_t>(site_bytes_);
    const std::int64_t piece = std::max<std::int64_t>(1, static_cast<std::int64_t>(box_piece / site_bytes));
    GpuMemory list, staged = gpu.allocate(std::min(sites, piece) * site_bytes, "arrays on their way");
    if (blocks != nullptr) list = gpu.upload(blocks, sites * sizeof *blocks, "sites on their way");
    const GpuAddress which = blocks != nullptr ? list.address() : layout_->on_device().box_blocks.address();
    await_owner();
    for (std::int64_t first = 0; first < sites; first += piece) {
        const auto count = std::min(piece, sites - first);
        gpu.copy_in(staged.address(), array + first * site_bytes, count * site_bytes);
        for_each_section(*this, [&](const std::string& suffix, const SectionOnDevice& section) {
            run_builtin(gpu, "box_in" + suffix,
                        BoxArguments{count, section, which + first * sizeof(std::int32_t), staged.address(),
                                     address(), first_block(), end_block()},
                        count * section.units);
        });
    }
    let_owner_go_on();
    gpu.synchronize(); // the caller's array may change
}

void FieldStorage::box_from_device(std::byte* array, const std::int32_t* blocks, std::int64_t sites) const {
    Gpu& gpu = *layout_->gpu();
    const auto site_bytes = static_cast<std::size_t>(site_bytes_);
    const std::int64_t piece = std::max<std::int64_t>(1, static_cast<std::int64_t>(box_piece / site_bytes));
    GpuMemory list, staged = gpu.allocate(std::min(sites, piece) * site_bytes, "arrays on their way");
    if (blocks != nullptr) list = gpu.upload(blocks, sites * sizeof *blocks, "sites on their way");
    const GpuAddress which = blocks != nullptr ? list.address() : layout_->on_device().box_blocks.address();
    await_owner();
    for (std::int64_t first = 0; first < sites; first += piece) {
        const auto count = std::min(piece, sites - first);
        for_each_section(*this, [&](const std::string& suffix, const SectionOnDevice& section) {
            run_builtin(gpu, "box_out" + suffix,
                        BoxArguments{count, section, which + first * sizeof(std::int32_t), staged.address(),
                                     address(), first_block(), end_block()},
                        count * section.units);
        });
        gpu.copy_out(array + first * site_bytes, staged.address(), count * site_bytes);
    }
    gpu.synchronize();
}

void FieldStorage::copy_on_device(const FieldStorage& other) {
    const LocalLayout &to = *layout_, &from = *other.layout_;
    if (to.gpu() != from.gpu()) { // through an array on the host
        std::vector<std::byte> array(static_cast<std::size_t>(to.sites()) * site_bytes_);
        if ((parities_ & other.parities_) != parities_) export_box(array.data());
        other.export_box(array.data());
        import_box(array.data());
        return;
    }
    Gpu& gpu = *to.gpu();
    const GpuAddress positions = layout_->positions_in(other.layout_);
    std::vector<SectionOnDevice> theirs;
    for_each_section(other,
                     [&](const std::string&, const SectionOnDevice& section) { theirs.push_back(section); });
    std::size_t next = 0;
    await_owner();
    other.await_owner();
    for_each_section(*this, [&](const std::string& suffix, const SectionOnDevice& section) {
        run_builtin(gpu, "reorder" + suffix,
                    ReorderArguments{first_block(), end_block(), other.first_block(), other.end_block(),
                                     theirs[next++], section, other.address(), address(), positions},
                    (end_block() - first_block()) * section.units);
    });
    let_owner_go_on();
    other.let_owner_go_on();
}

} // namespace jali
