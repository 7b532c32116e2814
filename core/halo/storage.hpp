// The data of one field on one rank: owned blocks, ghost blocks, and what the ghosts hold.
//
// Memory is [block][unit][lane], and on devices [group][packet][site of the group][unit of the packet]; the
// caller defines the meaning of a site's bytes (SiteMemory, made by jali.codegen.storage_formats). Every
// parity of the field counts its writes; every ghost slab remembers, per parity, the count it was filled at,
// so staleness is one comparison. Boxes of NumPy-like arrays ([x_{d-1}]...[x_0][byte of a site]) go in and
// out. A storage with a producer is a halo item: it owns no sites, and its ghosts are filled with what the
// producer's kernel computes at the sender. Nothing here communicates.
#pragma once

#include "device/arena.hpp"
#include "device/thread_pool.hpp"
#include "halo/launch_counters.hpp"
#include "halo/local_layout.hpp"
#include "messaging/exposed_memory.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jali {

HaloCounters process_halo_counters(); // over all layouts of this process
void count_in_process(const HaloCounters& more);

using KernelFunction = void (*)(const std::uint64_t*, std::int64_t, std::int64_t);

// How the bytes of a site are kept: sections that follow each other, each so many units of 1, 2, 4 or 8
// bytes. On devices units lie in packets, which divide a section. All numbers are the caller's.
struct MemorySection {
    int units = 0, unit_bytes = 0, packet_units = 0;

    int bytes() const { return units * unit_bytes; }
    int packet_bytes() const { return packet_units * unit_bytes; }
    bool operator==(const MemorySection&) const = default;
};
struct SiteMemory {
    std::vector<MemorySection> sections;

    int bytes() const;     // of a site
    int alignment() const; // the smallest unit: every site, and every lane of a block, is a multiple of it
    bool operator==(const SiteMemory&) const = default;
};

class FieldStorage;

// Computes the data of a halo item: a kernel over the sender's blocks that uses its fields at the block
// itself only, and writes position p to output + p blocks, output being parameters[output_parameter].
// Parameters 0 to 7 and the addresses are filled in.
struct HaloProducer {
    KernelFunction kernel = nullptr; // on the host,
    GpuFunction gpu_kernel;          // or on a device, where the output is a field
    int threads = 0;                 // per block of it
    int members = 1;                 // of a batch, for each of which a thread is needed
    std::vector<std::uint64_t> parameters;
    std::vector<std::pair<int, std::shared_ptr<FieldStorage>>>
        sources; // parameter that holds its address, field
    int output_parameter = 0;
    std::shared_ptr<LaunchCounters> counters; // the kernel's counts; may be null
};

class FieldStorage {
  public:
    // Zeroed (by the pool's threads if there is one). Of the sites of one parity (1 even, 2 odd) only these
    // are in memory, and only these may be touched. Throws LayoutError, OutOfMemory.
    FieldStorage(std::shared_ptr<LocalLayout> layout, SiteMemory memory, std::string label,
                 ThreadPool* pool = nullptr, int parities = 3);
    // In memory of another owner: a C-ordered array of the local box, or of its sites of one parity, on the
    // layout's device or host, which `owner` keeps alive; sections of a site follow each other. On a device
    // its owner continues to use it on `stream`. Its ghosts are separate, as those of other fields.
    FieldStorage(std::shared_ptr<LocalLayout> layout, SiteMemory memory, std::string label, std::byte* array,
                 std::shared_ptr<void> owner, void* stream = nullptr, int parities = 3);
    // A halo item: ghosts only.
    FieldStorage(std::shared_ptr<LocalLayout> layout, SiteMemory memory, std::string label,
                 HaloProducer producer);
    ~FieldStorage();
    FieldStorage(const FieldStorage&) = delete;

    const std::shared_ptr<LocalLayout>& layout() const { return layout_; }
    const SiteMemory& memory() const { return memory_of_site_; }
    int site_bytes() const { return site_bytes_; }
    const std::string& label() const { return label_; }
    std::size_t block_bytes() const { return block_bytes_; }
    std::size_t bytes() const { return layout_->gpu() ? device_.size() : memory_.size(); }
    const HaloProducer* producer() const { return producer_.get(); }
    // Replaces the parameters of the producer; a change makes the item stale.
    void set_producer_parameters(const std::vector<std::uint64_t>& parameters);

    // Address of block 0, on the host or on the layout's device. That block may not exist (halo items, fields
    // on odd sites), but others are found in the same way. Valid until the next reserve_ghosts that grows.
    std::byte* data() const { return base_; }
    // Of the first ghost block, and how far it is from where it would be if ghosts followed the owned blocks.
    std::byte* ghosts() const {
        if (!owner_) return base_ + owned_end() * static_cast<std::int64_t>(block_bytes_);
        return layout_->gpu() ? reinterpret_cast<std::byte*>(device_.address()) : memory_.data();
    }
    std::int64_t ghosts_away() const {
        return ghosts() - (base_ + layout_->first_ghost() * static_cast<std::int64_t>(block_bytes_));
    }
    GpuAddress address() const { return reinterpret_cast<GpuAddress>(base_); }
    GpuAddress address_of_ghost(std::int64_t block) const {
        return reinterpret_cast<GpuAddress>(ghosts()) +
               static_cast<std::size_t>(block - layout_->first_ghost()) * block_bytes_;
    }
    // The parities of its sites (1 even, 2 odd, 3 both); its blocks; the range of them for which there is
    // memory, which begins with a group and ends with one, unless it is borrowed; and where that is.
    int parities() const { return parities_; }
    std::int64_t first_block() const { return parities_ == 2 ? layout_->even_blocks() : 0; }
    std::int64_t end_block() const { return parities_ == 1 ? layout_->even_blocks() : layout_->nblocks(); }
    std::int64_t first_owned() const { return first_owned_; }
    std::int64_t owned_end() const { return owner_ ? end_block() : first_owned_ + owned_; }
    std::size_t owned_bytes() const {
        return static_cast<std::size_t>(owned_end() - first_owned_) * block_bytes_;
    }
    std::byte* owned_data() const { return base_ + first_owned_ * static_cast<std::int64_t>(block_bytes_); }
    GpuAddress owned_address() const { return reinterpret_cast<GpuAddress>(owned_data()); }

    // Whether the owned blocks are in another owner's memory, whose changes are not reported.
    bool borrowed() const { return owner_ != nullptr; }
    // On a device: makes its stream wait for the owner's, or the owner's for the work on it. No effect while
    // a graph is recorded, whose runs are in that order.
    void* owner_stream() const { return stream_; }
    void await_owner() const;
    void let_owner_go_on() const;
    bool lacks_ghosts() const { return ghosts_ < layout_->ghost_blocks(); }
    void
    reserve_ghosts(ThreadPool* pool = nullptr); // room for all ghost blocks of the layout; keeps the data

    // Where the ghost blocks of every rank's part of this field begin, as this rank, or its device, reaches
    // them; 0 for ranks to which this one sends nothing, or that it does not reach. map_ghosts() makes room
    // for them and maps them, again when there are more: it is collective whenever the layout has more slabs
    // than at its last call. Throws CannotMap on all ranks (devices), TransportError.
    void map_ghosts(Communicator& communicator);
    GpuAddress ghosts_of(int rank) const { return layout_->gpu() ? mapping_->of(rank) : there_[rank]; }
    // The same, as they are in the process of that rank, for checks; and how many bytes.
    const ExposureName& exposed_by(int rank) const { return exposed_[rank]; }

    // Writes: `parities` is a mask (1 even, 2 odd). All ranks must mark alike, whichever of them wrote.
    void mark_written(int parities);
    std::uint64_t version(int parity) const;
    std::uint64_t held(int slab, int parity) const {
        const auto index = static_cast<std::size_t>(2 * slab + parity);
        return index < held_.size() ? held_[index] : 0;
    }
    void set_held(int slab, int parity, std::uint64_t version);
    bool changes_unreported() const; // it is borrowed, or made of a field that is
    // Whether it changes when that one does.
    bool depends_on(const FieldStorage& other) const;
    // Always true where changes are not reported.
    bool stale(int slab, int parity) const {
        return changes_unreported() || held(slab, parity) != version(parity);
    }
    HaloCounters counters;

    // Whole local box: sites() * site_bytes() bytes, section after section of each site. import marks both
    // parities.
    void import_box(const std::byte* array, ThreadPool* pool = nullptr);
    void export_box(std::byte* array, ThreadPool* pool = nullptr) const;
    // A part of the local box, origin and extents in local coordinates; throws LayoutError if it sticks out.
    // Import marks nothing: the caller marks on all ranks.
    void import_part(const Extents& origin, const Extents& extents, const std::byte* array);
    void export_part(const Extents& origin, const Extents& extents, std::byte* array) const;

    void fill_zero(ThreadPool* pool = nullptr); // marks both parities
    // Takes the bytes of a storage of the same local box and memory, whatever its lanes and order, at the
    // sites that both have.
    void copy_from(const FieldStorage& other, ThreadPool* pool = nullptr);
    // Allocates what copy_from needs, with its errors; graphs record copies that are prepared.
    void prepare_copy_from(const FieldStorage& other);

  private:
    void require_sites(const char* what) const;
    void allocate(ThreadPool* pool);
    void expose_ghosts(Communicator& communicator);
    // The same on a device, in gpu_storage.cpp. `blocks` says which block each site of the array is.
    void allocate_on_device();
    void map_ghosts_on_device(Communicator& communicator);
    void box_to_device(const std::byte* array, const std::int32_t* blocks, std::int64_t sites);
    void box_from_device(std::byte* array, const std::int32_t* blocks, std::int64_t sites) const;
    std::vector<std::int32_t> blocks_of_part(const Extents& origin, const Extents& extents) const;
    void copy_on_device(const FieldStorage& other);

    std::shared_ptr<LocalLayout> layout_;
    SiteMemory memory_of_site_;
    int site_bytes_;
    std::string label_;
    std::unique_ptr<HaloProducer> producer_;
    std::shared_ptr<void> owner_; // of the owned blocks, where they are borrowed
    void* stream_ = nullptr;      // theirs, on a device
    std::size_t block_bytes_;
    std::unique_ptr<Exposure> exposure_; // of the ghosts, on the host; it goes after the memory
    std::vector<ExposureName> exposed_;  // by every rank
    std::vector<GpuAddress> there_;      // by rank
    Memory memory_;
    GpuMemory device_;
    std::unique_ptr<PeerMapping> mapping_; // of the ghosts, on devices
    std::size_t mapped_slabs_ = 0;         // of the layout, when it was made
    std::byte* base_ = nullptr;
    int parities_ = 3;
    std::int64_t first_owned_ = 0, owned_ = 0, ghosts_ = 0; // blocks in memory
    std::uint64_t version_[2] = {1, 1};
    std::vector<std::uint64_t> held_; // [slab][parity]; 0: never filled
};

// Ghosts of one field (or halo item) that a launch reads.
struct HaloRequest {
    std::shared_ptr<FieldStorage> field;
    int slab = 0;
    int parities = 0; // 1 even, 2 odd
};

} // namespace jali
