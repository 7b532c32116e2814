// The data of one field on one rank: owned blocks, ghost blocks, and what the ghosts hold.
//
// Memory is [block][real][lane]. Every parity of the field counts its writes; every ghost slab remembers, per
// parity, the count it was filled at, so staleness is one comparison. Boxes of NumPy-like arrays
// ([x_{d-1}]...[x_0][real]) go in and out. A storage with a producer is a halo item: it owns no sites, and
// its ghosts are filled with what the producer's kernel computes at the sender. Nothing here communicates.
#pragma once

#include "device/arena.hpp"
#include "device/thread_pool.hpp"
#include "halo/layout.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jali {

HaloCounters process_halo_counters(); // over all layouts of this process
void count_in_process(const HaloCounters& more);

using KernelFunction = void (*)(const std::uint64_t*, std::int64_t, std::int64_t);

class FieldStorage;

// Computes what a halo item carries: a kernel over the sender's blocks that uses its fields at the block
// itself only, and writes position p's reals to output + p * reals (vectors), output being
// words[output_word]. Words 0 to 7 and the addresses are filled in.
struct HaloProducer {
    KernelFunction kernel = nullptr; // on the host,
    GpuFunction gpu_kernel;          // or on a device, where the output is a field of so many reals
    int threads = 0;                 // per block of it
    std::vector<std::uint64_t> words;
    std::vector<std::pair<int, std::shared_ptr<FieldStorage>>> sources; // word that holds its address, field
    int output_word = 0;
};

class FieldStorage {
  public:
    // scalar_bytes: 4 or 8. Zeroed (by the pool's threads if there is one). Throws LayoutError, OutOfMemory.
    FieldStorage(std::shared_ptr<Layout> layout, int reals_per_site, int scalar_bytes, std::string label,
                 ThreadPool* pool = nullptr);
    // A halo item: ghosts only.
    FieldStorage(std::shared_ptr<Layout> layout, int reals_per_site, int scalar_bytes, std::string label,
                 HaloProducer producer);
    ~FieldStorage();
    FieldStorage(const FieldStorage&) = delete;

    const std::shared_ptr<Layout>& layout() const { return layout_; }
    int reals() const { return reals_; }
    int scalar_bytes() const { return scalar_bytes_; }
    const std::string& label() const { return label_; }
    std::size_t block_bytes() const { return block_bytes_; }
    std::size_t bytes() const { return layout_->gpu() ? device_.size() : memory_.size(); }
    const HaloProducer* producer() const { return producer_.get(); }
    // Replaces the words of the producer; a change makes the item stale.
    void set_producer_words(const std::vector<std::uint64_t>& words);

    // Address of block 0, on the host or on the layout's device. For a halo item that block does not exist,
    // but ghosts are found in the same way. Valid until the next reserve_ghosts that grows.
    std::byte* data() const { return base_; }
    GpuAddress address() const { return reinterpret_cast<GpuAddress>(base_); }
    bool lacks_ghosts() const { return ghosts_ < layout_->ghost_blocks(); }
    void
    reserve_ghosts(ThreadPool* pool = nullptr); // room for all ghost blocks of the layout; keeps the data

    // On devices: where the ghost blocks of every rank's part of this field begin, as this rank's device sees
    // them; 0 for ranks to which this one sends nothing. map_ghosts() makes room for them and maps them,
    // again when there are more: it is collective whenever the layout has more slabs than at its last call.
    // Throws CannotMap on all ranks.
    void map_ghosts(Communicator& communicator);
    GpuAddress ghosts_of(int rank) const { return mapping_->of(rank); }

    // Writes: `parities` is a mask (1 even, 2 odd). All ranks must mark alike, whichever of them wrote.
    void mark_written(int parities);
    std::uint64_t version(int parity) const;
    std::uint64_t held(int slab, int parity) const {
        const auto index = static_cast<std::size_t>(2 * slab + parity);
        return index < held_.size() ? held_[index] : 0;
    }
    void set_held(int slab, int parity, std::uint64_t version);
    bool stale(int slab, int parity) const { return held(slab, parity) != version(parity); }
    HaloCounters counters;

    // Whole local box. T is float or double; the array has sites() * reals() of them. import marks both
    // parities.
    template <class T>
    void import_box(const T* array, ThreadPool* pool = nullptr);
    template <class T>
    void export_box(T* array, ThreadPool* pool = nullptr) const;
    // A part of the local box, origin and extents in local coordinates; throws LayoutError if it sticks out.
    // Import marks nothing: the caller marks on all ranks.
    template <class T>
    void import_part(const Extents& origin, const Extents& extents, const T* array);
    template <class T>
    void export_part(const Extents& origin, const Extents& extents, T* array) const;

    void fill_zero(ThreadPool* pool = nullptr); // marks both parities
    // Takes the values of a storage of the same local box and reals, whatever its lanes, order and precision.
    void copy_from(const FieldStorage& other, ThreadPool* pool = nullptr);

  private:
    void require_sites(const char* what) const;
    void allocate(ThreadPool* pool);
    // The same on a device, in gpu_storage.cpp. `blocks` says which block each site of the array is.
    void allocate_on_device();
    template <class T>
    void box_to_device(const T* array, const std::int32_t* blocks, std::int64_t sites);
    template <class T>
    void box_from_device(T* array, const std::int32_t* blocks, std::int64_t sites) const;
    std::vector<std::int32_t> blocks_of_part(const Extents& origin, const Extents& extents) const;
    void copy_on_device(const FieldStorage& other);

    std::shared_ptr<Layout> layout_;
    int reals_, scalar_bytes_;
    std::string label_;
    std::unique_ptr<HaloProducer> producer_;
    std::size_t block_bytes_;
    Memory memory_;
    GpuMemory device_;
    std::unique_ptr<PeerMapping> mapping_; // of the ghosts
    std::size_t mapped_slabs_ = 0;         // of the layout, when it was made
    std::byte* base_ = nullptr;
    std::int64_t owned_ = 0, ghosts_ = 0; // blocks in memory
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
