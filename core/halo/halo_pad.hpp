// The synchronization of halos between the devices of a layout's ranks: a signal pad, and buffers of slots.
//
// Exchanges go through one of three channels, each with words and an epoch of its own: into the neighbours'
// ghosts, or into slots, filled by kernels or by copy engines. A message of exchange e has arrived when its
// word of data is e + 1. It may be written when the receiver's credit word has reached e + ahead: for ghosts
// the word counts the exchanges for which they have been opened, so that no writer overtakes a reader; for
// slots the consumed exchanges. Kernels use two slots in turn, by the epoch, so that two exchanges may be
// pending. A copy engine's copy has one address, also in each repetition of a graph, after any number of
// other exchanges: it has one slot, which was consumed before.
#pragma once

#include "peers/signal_pad.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace jali {

enum class HaloChannel { ghosts, stored_slots, copied_slots };

class HaloPad {
  public:
    static constexpr int most_messages = 512; // of one exchange, numbered by slab

    // Collective. `sender_of` is the rank whose message fills a slab of this rank. Throws GpuError, on all
    // ranks, if some rank's device cannot be reached by another.
    HaloPad(std::shared_ptr<Gpu> gpu, const std::shared_ptr<Communicator>& communicator,
            const std::function<int(std::int64_t slab)>& sender_of);

    // Words on `rank`, as this rank's device sees them.
    GpuAddress arrived(HaloChannel channel, int rank, int message) const {
        return pad_.word(rank, row_of(channel, SignalWords::data), message);
    }
    GpuAddress credit(HaloChannel channel, int rank, int by) const {
        return pad_.word(rank, row_of(channel, SignalWords::credit), by);
    }
    GpuAddress epoch(HaloChannel channel) const { // exchanges so far, on the device
        return pad_.epoch(static_cast<int>(channel));
    }
    static constexpr std::int64_t ahead(HaloChannel channel) {
        return channel == HaloChannel::ghosts ? 1 : 1 - slots(channel);
    }

    // Slots of at least so many bytes on this rank. Collective; where some rank needs larger ones all wait
    // for their devices. True if addresses have changed.
    bool reserve(HaloChannel channel, std::size_t bytes);
    std::size_t slot_bytes(HaloChannel channel) const { // the same on all ranks; 0: there are none
        return of(channel).slot_bytes;
    }
    // From the slot of an exchange to that of the next.
    std::int64_t stride(HaloChannel channel) const {
        return slots(channel) > 1 ? static_cast<std::int64_t>(slot_bytes(channel)) : 0;
    }
    GpuAddress slot(HaloChannel channel, int rank) const { // the first
        return of(channel).slots ? of(channel).slots->of(rank) : 0;
    }

    void note_exchange(void* stream) { pad_.note_work(stream); } // has been put on it
    GpuAddress watch() const { return pad_.watch(); }

  private:
    struct Channel {
        std::unique_ptr<SymmetricBuffer> slots;
        std::size_t slot_bytes = 0;
    };
    static constexpr int slots(HaloChannel channel) { return channel == HaloChannel::stored_slots ? 2 : 1; }
    static int row_of(HaloChannel channel, SignalWords::Kind kind) {
        return 2 * static_cast<int>(channel) + (kind == SignalWords::credit);
    }
    const Channel& of(HaloChannel channel) const { return channels_[static_cast<std::size_t>(channel)]; }

    SignalPad pad_;
    std::array<Channel, 3> channels_;
};

} // namespace jali
