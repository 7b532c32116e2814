// Transports of halos: entries, and the connection of one exchange that an entry makes.
//
// An entry lists the steps of its messages (halo_schedule.hpp). An exchange between devices (gpu_exchange)
// packs by one launch and gives its connection each of the other batches in order. A new transport is a file
// with a connection and an entry, and the entry's name in the table of policy.cpp.
#pragma once

#include "halo/halo_on_device.hpp"
#include "peers/host_messages.hpp"
#include "peers/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace jali {

// Carries the messages of one exchange between devices, repeatedly.
class HaloConnection {
  public:
    explicit HaloConnection(HaloOnDevice& halo) : halo_(halo) {}
    virtual ~HaloConnection() = default;
    HaloConnection(const HaloConnection&) = delete;

    // Called before any work. Throws CannotMap on all ranks if another rank's memory must be mapped anew and
    // cannot.
    virtual void begin() {}
    // Of one that is buffered: where messages for this rank are written.
    virtual GpuAddress slot_of(int) const { return 0; }
    // Addresses that the transport's tables depend on, beside those of the buffers; and the tables, when one
    // has changed.
    virtual std::vector<std::uint64_t> addresses() const { return {}; }
    virtual void make_tables() {}
    // For a transport that packs into memory of other ranks: the words of a message, and how a launch of this
    // batch signals and waits.
    virtual PackMessage words_of(const HaloMessages::Message&) const { return {}; }
    virtual void prepare(PackArguments&, const Batch&) const {}

    // The preparation with other ranks of a batch that neither packs nor computes, before it is recorded in a
    // graph. The ghosts are old, and may be written.
    virtual void warm_up(const Batch&, void*) {}
    // Puts a batch that neither packs nor computes on the stream, or performs it on the host.
    virtual void carry(const Batch& batch, void* stream) = 0;
    virtual void end(void*) {} // of every run

  protected:
    [[noreturn]] static void refuse(const Batch& batch) {
        throw std::logic_error("halos: nothing does '" + jali::words_of(batch) + "' in one");
    }
    const Schedule& schedule() const { return halo_.steps.schedule; }
    // Starts the sends or the receives of a batch.
    void start(HostMessages& messages, bool sends, const Batch& batch) const {
        batch.for_each(schedule(), StepRole::message, [&](const Step& step) {
            const Envelope envelope = *envelope_of(step);
            const Region region = region_of_message(step);
            if (envelope.sends == sends)
                messages.start(sends, halo_.at(region), region.bytes, envelope.peer, envelope.tag);
        });
    }
    HaloOnDevice& halo_;
};

struct HaloTransport : Transport {
    const char* how; // in descriptions
    std::span<const HaloMove> moves;
    std::span<const Fusion> fusions;      // in every policy
    const HaloTransport* where_unreached; // instead, where it is not possible and was not requested by name
    const HaloTransport* where_unmapped;  // instead, where a field's memory cannot be mapped; may be null
    const char* via;                      // "the host"
    std::unique_ptr<HaloConnection> (*make)(HaloOnDevice& halo); // null: between hosts (exchange.hpp)
};

extern const HaloTransport halos_by_remote_write, halos_by_buffered_write, halos_by_copy_engine,
    halos_by_library, halos_by_gpu_aware_mpi, halos_by_staging;                 // between devices
extern const HaloTransport halos_by_exposed_memory, halos_by_messages_of_hosts; // between hosts

} // namespace jali
