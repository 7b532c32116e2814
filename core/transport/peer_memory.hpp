// A block of this rank's device memory that the other ranks of a communicator on this host have mapped.
//
// Between processes it is mapped by the driver's IPC handles or by file descriptors (device/handle_type.hpp);
// devices of one process reach each other directly. Whether all ranks can do it is found out together, so
// that all do the same. Kernels that wait for words in such memory are told to stop by `abandoned()`, when
// the host has heard that a rank failed.
#pragma once

#include "device/gpu.hpp"
#include "transport/communicator.hpp"
#include "transport/descriptors.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace jali {

// Some memory cannot be mapped by other ranks; all of them have been told.
class CannotMap : public GpuError {
    using GpuError::GpuError;
};

// What a rank tells others about its device and a block of its memory, so that they can map it.
struct MemoryHandle {
    std::int64_t process, ordinal;
    GpuAddress address;          // 0: none
    std::uint64_t offset, bytes; // from where its allocation begins; what is mapped of that
    HandleType type;             // with which other processes map it; none: they cannot
    IpcHandle ipc;               // of the allocation
    FdToken token;               // for the allocation
    char host[64], device[40];
    char why_not[104]; // where the type is none
};

// A block of this rank's device memory that other ranks may map while this stands; what they have mapped
// stays mapped.
class HandleExporter {
  public:
    HandleExporter() = default;
    // Of the `bytes` bytes from `address` on, whoever has made the memory; none for an address of 0.
    // `lasting`: where the memory is of the device's pool, others may map it as long as that keeps it.
    HandleExporter(Gpu& gpu, GpuAddress address, std::size_t bytes, bool lasting = false);
    const MemoryHandle& handle() const { return handle_; }

  private:
    friend class HandleTypeTrial;
    void by_ipc(const Gpu& gpu, GpuAddress address, std::size_t bytes, std::string& trouble);
    void by_descriptor(const Gpu& gpu, GpuAddress address, std::size_t bytes, bool lasting,
                       std::string& trouble);
    MemoryHandle handle_{};
    std::shared_ptr<FdExporter> descriptors_;
};

// What an address of this process is to all ranks: the process whose memory is there, and where that has it.
struct MemoryName {
    std::uint64_t space, address;
};
MemoryName name_of_memory(std::uint64_t address);

// The memory of one handle as this rank's device sees it. The allocation that it is part of is mapped as a
// whole, and must outlive this.
class MappedMemory {
  public:
    MappedMemory() = default; // nothing
    // Throws GpuError where the memory cannot be mapped: "<the driver's words>".
    MappedMemory(const std::shared_ptr<Gpu>& gpu, const MemoryHandle& handle);
    MappedMemory(MappedMemory&& other) noexcept { *this = std::move(other); }
    MappedMemory& operator=(MappedMemory&& other) noexcept;
    ~MappedMemory() { close(); }

    GpuAddress address() const { return address_; } // 0 where there is none

  private:
    void close() noexcept;
    std::shared_ptr<Gpu> gpu_;
    GpuAddress address_ = 0, opened_ = 0;
    ImportedRange imported_;
};

// Device memory of every rank as this rank's device sees it. The allocations that it is part of are mapped as
// a whole. To be made by all ranks. Dropping it is each rank's own affair: pages stay as long as somebody has
// them mapped, whatever their owner does.
class PeerMapping {
  public:
    // Collective. `mine` is any address of this rank's device memory, 0 if it has none, and `bytes` what
    // is to be reached from there on; `wanted` says whose memory this rank wants to reach (empty:
    // everybody's). Throws CannotMap on all ranks where some memory cannot be mapped.
    PeerMapping(const std::shared_ptr<Gpu>& gpu, Communicator& communicator, GpuAddress mine,
                std::size_t bytes, const std::vector<char>& wanted = {});
    PeerMapping(const PeerMapping&) = delete;

    GpuAddress of(int rank) const { return addresses_[rank]; } // 0 where there is none or wanted
    const std::vector<GpuAddress>& all() const { return addresses_; }

  private:
    std::vector<MappedMemory> mapped_;
    std::vector<GpuAddress> addresses_;
};

// Kernels of this device that wait for other ranks: where one has failed they are told to stop, and the host
// says why.
class PeerWatch {
  public:
    // `waiting` is what a rank says it did when it has waited for too long.
    PeerWatch(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator, std::string waiting);
    ~PeerWatch();
    PeerWatch(const PeerWatch&) = delete;

    GpuAddress abandoned() const; // not 0: whoever waits shall stop
    void abandon();               // the host gives up
    // Work that waits for others has been put on this stream; until it is done a waiting host listens to the
    // other ranks.
    void note_work(void* stream) { note_work(stream, gpu_->is_capturing(stream)); }
    void note_work(void* stream, bool captured);
    // What comes on this stream waits for the work that was noted.
    void order_behind_work(void* stream);

  private:
    void record_noted();

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Communicator> communicator_;
    GpuEvent pending_;
    bool noted_ = false; // there is work on the device's own stream that is not behind `pending_` yet
    std::uint64_t noted_at_ = 0;
    bool recorded_late_ = false; // other work may be behind `pending_` as well
    std::optional<std::chrono::steady_clock::time_point> first_failure_;
    bool in_graph_ = false;
    PinnedMemory abandoned_;
};

// Closes a mapping when the work that is on the device's own stream now is done; waits for nothing.
void drop_later(const std::shared_ptr<Gpu>& gpu, std::unique_ptr<PeerMapping> mapping);

class PeerMemory {
  public:
    // Collective. Throws GpuError, on all ranks, if some rank's device cannot be reached by another.
    // `waiting` is what a rank says it did when it has waited for too long.
    PeerMemory(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator, std::string waiting);
    PeerMemory(const PeerMemory&) = delete;

    // Empty if every rank's device can be reached by every other; else why not. Collective; the same on all
    // ranks. See agree_on_handle_type.
    static std::string why_not(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);

    // A block of so many bytes, of which the first `zeroed` are 0, in place of the one before: all ranks wait
    // for their devices. Collective, with equal numbers.
    void allocate(std::size_t bytes, std::size_t zeroed, std::string_view label);

    std::size_t bytes() const { return memory_.size(); }
    GpuAddress base(int rank) const { return mapping_->of(rank); } // as this rank's device sees it
    const std::vector<GpuAddress>& bases() const { return mapping_->all(); }
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
    const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

    GpuAddress abandoned() const { return watch_->abandoned(); } // not 0: whoever waits shall stop
    void abandon() { watch_->abandon(); }                        // the host gives up
    void note_work(void* stream) { watch_->note_work(stream); }  // see PeerWatch
    void note_work(void* stream, bool captured) { watch_->note_work(stream, captured); }
    void order_behind_work(void* stream) { watch_->order_behind_work(stream); }

  private:
    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Communicator> communicator_;
    GpuMemory memory_;
    std::unique_ptr<PeerWatch> watch_;
    std::unique_ptr<PeerMapping> mapping_;
};

// Tries the ways to map memory between the processes of a communicator and lets the device's pool make its
// memory for the first that works: empty, or why none does. Ranks on other hosts are left out. Collective;
// the same on all ranks. What was allocated before stays what it is.
std::string agree_on_handle_type(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);

// The largest of what the ranks of a communicator say. Collective.
std::size_t largest_on_ranks(Communicator& communicator, std::size_t mine);

} // namespace jali
