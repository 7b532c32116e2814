// Mailboxes for halos in the memory of other ranks' devices.
//
// A PeerMailbox is a block of peer memory: a header of words (messages that have arrived, exchanges that
// others have consumed) and two slots for messages.
#pragma once

#include "transport/peer_memory.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace jali {

class PeerMailbox {
  public:
    static constexpr int most_messages = 512; // of one exchange, numbered by slab

    // Collective. Throws GpuError, on all ranks, if some rank's device cannot be reached by another.
    PeerMailbox(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator);

    // Slots of at least so many bytes on this rank. Collective; where some rank needs larger ones all wait
    // for their devices and begin anew. True if addresses have changed.
    bool reserve(std::size_t bytes);

    std::size_t slot_bytes() const { return slot_bytes_; } // the same on all ranks
    // Addresses in the mailbox of `rank` as this rank's device sees them.
    GpuAddress slot(int rank) const { return memory_.base(rank) + header_bytes_; }
    GpuAddress arrived(int rank, int message) const {
        return memory_.base(rank) + message * sizeof(std::int64_t);
    }
    // How many exchanges `by` has consumed, in the mailbox of `rank`.
    GpuAddress consumed(int rank, int by) const {
        return memory_.base(rank) + (most_messages + by) * sizeof(std::int64_t);
    }
    GpuAddress epoch() const { return epoch_.address(); } // exchanges so far, on the device
    GpuAddress abandoned() const { return memory_.abandoned(); }
    // An exchange has been put on this stream.
    void note_exchange(void* stream) {
        ++enqueued;
        memory_.note_work(stream);
    }
    std::uint64_t enqueued = 0; // exchanges so far, on the host

  private:
    PeerMemory memory_;
    std::size_t slot_bytes_ = 0, header_bytes_ = 0;
    GpuMemory epoch_;
};

} // namespace jali
