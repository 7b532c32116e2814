// A layout on the host or the device of its fields, with its tables there, the memory that messages use, and
// the connections of this rank to its neighbours.
#pragma once

#include "device/arena.hpp"
#include "device/gpu.hpp"
#include "halo/halo_pad.hpp"
#include "halo/layout.hpp"
#include "peers/transport.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace jali {

// Counts of exchanged slab parts (one parity of one slab of one field) and messages.
struct HaloCounters {
    std::int64_t exchanged = 0; // stale parts that were filled
    std::int64_t avoided = 0;   // parts that a launch read and that were still valid
    std::int64_t messages = 0;  // sent; in a field's counters, messages that carried it
    std::int64_t bytes = 0;     // sent

    void add(const HaloCounters& more) {
        exchanged += more.exchanged;
        avoided += more.avoided;
        messages += more.messages;
        bytes += more.bytes;
    }
};

class LocalLayout : public Layout {
  public:
    // With a device blocks are single sites, stored in groups of `device_group`; `tile` is in blocks.
    LocalLayout(Partition partition, int rank, int wanted_lanes, Extents tile = {},
                std::shared_ptr<Gpu> gpu = nullptr, int block_bits = 0);

    // Of C-ordered arrays. Throws LayoutError for a checkerboard whose last local extent is odd.
    LocalLayout(Partition partition, int rank, std::shared_ptr<Gpu> gpu, SiteOrder sites);

    static constexpr int device_group = 32;                  // GROUP of the kernels' prelude
    const std::shared_ptr<Gpu>& gpu() const { return gpu_; } // null: the host
    const GpuVendor* vendor() const { return gpu_ ? &gpu_->vendor() : nullptr; }

    // The same arrays where a device's kernels read them.
    struct OnDevice {
        GpuMemory coordinates, lane_offsets, extents, box_blocks; // box_blocks: [site of the box]: its block
    };
    const OnDevice& on_device();

    // One of this layout's tables: its entries, as they are (32 bits), or as codes of 8 or 16 bits for what
    // each differs from its site by, where few differences occur, and these differences, by code.
    int code_bits(const NeighbourTable& table);
    GpuAddress on_device(const NeighbourTable& table, int bits = 32);
    GpuAddress differences_on_device(const NeighbourTable& table);
    // The blocks of a slab that are sent.
    GpuAddress on_device(const Slab& slab);
    // [block]: the block of another layout of this box that has the same site; null where all are the same.
    GpuAddress positions_in(const std::shared_ptr<LocalLayout>& other);

    HaloCounters counters; // of all fields of this layout

    // Scratch for the messages of one exchange at a time, at least this large; its contents are not kept.
    std::byte* send_space(std::size_t bytes) { return space(send_space_, bytes, "halo messages sent"); }
    std::byte* receive_space(std::size_t bytes) {
        return space(receive_space_, bytes, "halo messages received");
    }

    // Between devices: the stream for the bulk while halos are exchanged on the device's own stream, and the
    // pad that synchronizes halos. The first call of pad is collective; it throws GpuError on all ranks if
    // devices cannot reach each other.
    void* bulk_stream();
    // The result of `ask` for these ranks; see transports. Collective at first.
    const std::string& why_not(WhyNot ask, Communicator& communicator);
    const std::string& why_not(const Transport& transport, Communicator& communicator) {
        return why_not(transport.why_not, communicator); // which several may share
    }
    const std::shared_ptr<HaloPad>& pad(const std::shared_ptr<Communicator>& communicator);
    // Numbers that change, on all ranks alike, when memory that receives messages has moved: ghosts, which
    // make room for more slabs, or buffers.
    std::vector<std::size_t> positions() const {
        std::vector<std::size_t> all{slabs().size()};
        for (HaloChannel channel : {HaloChannel::stored_slots, HaloChannel::copied_slots})
            all.push_back(pad_ ? pad_->slot_bytes(channel) : 0);
        return all;
    }
    // [rank][slab][parity]: `first` of that rank's slabs. Collective when there are more slabs than last
    // time.
    const std::vector<std::vector<std::int64_t>>& first_ghosts(Communicator& communicator);

  private:
    static std::byte* space(Memory& memory, std::size_t bytes, const char* label);
    GpuAddress kept_on_device(const void* data, std::size_t bytes, const char* label);

    std::shared_ptr<Gpu> gpu_;
    std::unique_ptr<OnDevice> on_device_;
    const std::vector<std::uint32_t>& differences(const NeighbourTable& table);

    std::map<const void*, std::vector<std::uint32_t>> differences_; // of tables, in order
    std::map<std::pair<const void*, int>, GpuMemory> codes_;
    std::map<std::weak_ptr<LocalLayout>, GpuMemory, std::owner_less<>> positions_in_; // by layout
    std::map<const void*, GpuMemory> lists_; // by what they are copies of, which this layout keeps
    std::unique_ptr<GpuStream> bulk_stream_;
    std::shared_ptr<HaloPad> pad_;
    std::vector<std::vector<std::int64_t>> first_ghosts_;
    std::map<WhyNot, std::string> why_not_;
    Memory send_space_, receive_space_;
};

} // namespace jali
