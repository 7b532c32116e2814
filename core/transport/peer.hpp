// Memory of other ranks' devices, and mailboxes in it.
//
// A PeerMailbox is a block of this rank's device memory that the other ranks of a communicator on this host
// have mapped: a header of words (messages that have arrived, exchanges that others have consumed) and two
// slots for messages. Between processes it is mapped by the driver's IPC handles; devices of one process
// reach each other directly. Whether all ranks can do it is found out together, so that all do the same.
#pragma once

#include "device/gpu.hpp"
#include "transport/communicator.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace jali {

class PeerMailbox {
  public:
    static constexpr int most_messages = 512; // of one exchange, numbered by slab

    // Collective. Throws GpuError, on all ranks, if some rank's device cannot be reached by another.
    PeerMailbox(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator);
    ~PeerMailbox();
    PeerMailbox(const PeerMailbox&) = delete;

    // Empty if every rank's device can be reached by every other; else why not. Collective; the same on all
    // ranks.
    static std::string why_not(Gpu& gpu, Communicator& communicator);

    // Slots of at least so many bytes on this rank. Collective; where some rank needs larger ones all wait
    // for their devices and begin anew. True if addresses have changed.
    bool reserve(std::size_t bytes);

    std::size_t slot_bytes() const { return slot_bytes_; } // the same on all ranks
    // Addresses in the mailbox of `rank` as this rank's device sees them.
    GpuAddress slot(int rank) const { return base(rank) + header_bytes_; }
    GpuAddress arrived(int rank, int message) const { return base(rank) + message * sizeof(std::int64_t); }
    // How many exchanges `by` has consumed, in the mailbox of `rank`.
    GpuAddress consumed(int rank, int by) const {
        return base(rank) + (most_messages + by) * sizeof(std::int64_t);
    }
    GpuAddress epoch() const { return epoch_.address(); } // exchanges so far, on the device
    GpuAddress abandoned() const;                         // not 0: whoever waits shall stop
    void abandon();                                       // the host gives up
    // An exchange has been put on this stream; until it is done a waiting host listens to the other ranks.
    void note_exchange(void* stream) {
        ++enqueued;
        in_graph_ |= gpu_->is_capturing(stream); // and then it may be under way at any time
        if (!in_graph_) pending_->record(stream);
    }
    std::uint64_t enqueued = 0; // exchanges so far, on the host

  private:
    GpuAddress base(int rank) const { return bases_[rank]; }
    void close();

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Communicator> communicator_;
    std::size_t slot_bytes_ = 0, header_bytes_ = 0;
    GpuMemory memory_, epoch_;
    std::unique_ptr<GpuEvent> pending_;
    bool in_graph_ = false;
    PinnedMemory abandoned_;
    std::vector<GpuAddress> bases_;
    std::vector<GpuAddress> opened_; // to be closed
};

} // namespace jali
