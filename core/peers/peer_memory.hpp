// Blocks of this rank's device memory that other ranks of a communicator on this host have mapped.
//
// Between processes they are mapped by the driver's IPC handles or by file descriptors
// (device/handle_type.hpp); devices of one process reach each other directly. All ranks determine together
// whether each of them can, so that all do the same. Kernels that wait for words in such memory are stopped
// by `AbortWatch` when the host is notified of a failed rank.
#pragma once

#include "device/gpu.hpp"
#include "messaging/communicator.hpp"
#include "messaging/descriptors.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace jali {

// Some memory cannot be mapped by other ranks; thrown on all ranks.
class CannotMap : public GpuError {
    using GpuError::GpuError;
};

// A rank's device and a block of its memory, as sent to other ranks to map it.
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

// A block of this rank's device memory that other ranks may map while this object exists; mappings outlive
// it.
class HandleExporter {
  public:
    HandleExporter() = default;
    // Of the `bytes` bytes from `address` on, in memory of any library; none for an address of 0. `lasting`:
    // where the memory is of the device's pool, others may map it as long as that keeps it.
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

// The name of an address for all ranks: the process that owns the memory, and its address there.
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
// a whole. To be made by all ranks. Destroying it is local: pages stay as long as any rank has them mapped,
// whatever their owner does.
class PeerMapping {
  public:
    enum class Missing { throws, is_reported }; // what cannot be mapped

    // Collective. `mine` is any address of this rank's device memory, 0 if it has none, and `bytes` what
    // is to be reached from there on; `wanted` selects the ranks whose memory this rank needs (empty: all).
    // Throws CannotMap on all ranks if some memory cannot be mapped, or reports it.
    PeerMapping(const std::shared_ptr<Gpu>& gpu, Communicator& communicator, GpuAddress mine,
                std::size_t bytes, const std::vector<char>& wanted = {}, Missing missing = Missing::throws);
    PeerMapping(const PeerMapping&) = delete;

    GpuAddress of(int rank) const { return addresses_[rank]; } // 0 where there is none or wanted
    const std::vector<GpuAddress>& all() const { return addresses_; }
    const std::string& why_not(int rank) const {
        return why_not_[rank];
    } // empty: it is mapped, or not wanted

  private:
    std::vector<MappedMemory> mapped_;
    std::vector<GpuAddress> addresses_;
    std::vector<std::string> why_not_;
};

// The devices of a communicator's ranks, and what prevents two from reaching each other's memory of any kind.
// Collective.
class RankDevices {
  public:
    enum Obstacle { none, other_host, no_access, same_device, kinds };

    RankDevices(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);
    Obstacle obstacle(int rank) const { return obstacles_[rank]; } // of this rank's device and that one's
    bool same_process(int rank) const { return same_process_[rank]; }
    // Empty, or the first ranks that have the same device: "ranks 0 and 2 use one GPU (<its identity>)", or
    // that virtual ranks of other parts may have it. The same on all ranks.
    const std::string& shared() const { return shared_; }
    static std::string shared_by(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);
    // Empty, or the report that a process has more ranks as threads than devices: a rank that waits on its
    // device for another rank may then wait for the work of a third, outside of this communicator. The same
    // on all ranks.
    const std::string& crowd() const { return crowd_; }
    static std::string crowded(const Gpu& gpu, Communicator& communicator); // collective

  private:
    std::vector<Obstacle> obstacles_;
    std::vector<char> same_process_;
    std::string shared_, crowd_;
};

// Tries the ways to map memory between the processes of a communicator and lets the device's pool make its
// memory for the first that works: empty, or why none does. Ranks on other hosts are left out. Collective;
// the same on all ranks. Earlier allocations do not change.
std::string agree_on_handle_type(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);

// The largest value of a communicator's ranks. Collective.
std::size_t largest_on_ranks(Communicator& communicator, std::size_t mine);

} // namespace jali
