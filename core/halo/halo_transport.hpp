// What transports do for halos: rows, and the carrier of one exchange that a row makes.
//
// A row says in which steps its messages go (halo_steps.hpp). An exchange between devices (gpu_exchange)
// packs by one launch and gives its carrier each of the other steps in order. A new transport is a file with
// a carrier and a row, and the row's name in the table of policy.cpp.
#pragma once

#include "device/timeline.hpp"
#include "halo/halo_kernels.hpp"
#include "halo/halo_messages.hpp"
#include "halo/halo_steps.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace jali {

// Carries the messages of one exchange between devices, again and again.
class HaloCarrier {
  public:
    explicit HaloCarrier(HaloMessages& halo) : halo_(halo) {}
    virtual ~HaloCarrier() = default;
    HaloCarrier(const HaloCarrier&) = delete;

    // Before anything is done. Throws CannotMap on all ranks where memory of another is to be mapped anew.
    virtual void begin() {}
    // Where packing puts a part.
    virtual GpuAddress place_of(const HaloMessages::Message& message,
                                const HaloMessages::Part& part) const = 0;
    // Addresses that the carrier's tables and places depend on; and the tables, when one has changed.
    virtual std::vector<std::uint64_t> addresses() const { return {}; }
    virtual void make_tables() {}
    // Of one that packs into memory of others: the words of a message, and how a launch with these actions
    // signals and waits.
    virtual PackMessage words_of(const HaloMessages::Message&) const { return {}; }
    virtual void prepare(PackArguments&, const HaloStep&) const {}

    // What a step that neither packs nor computes needs of other ranks before it can be recorded in a graph.
    // The ghosts are old, and may be written.
    virtual void rehearse(const HaloStep&, void*) {}
    // Puts a step that neither packs nor computes on the stream, or does what is the host's.
    virtual void carry(const HaloStep& step, void* stream) = 0;
    virtual void end(void*) {} // of every run

  protected:
    [[noreturn]] static void refuse(const HaloStep& step) {
        throw std::logic_error("halos: nothing does '" + jali::words_of(step) + "' in one");
    }
    HaloMessages& halo_;
};

struct HaloTransport : Transport {
    const char* how; // in descriptions
    std::span<const HaloMove> moves;
    std::span<const HaloFusion> fusions;  // in every policy
    const HaloTransport* where_unreached; // instead, where it is not possible and nobody asked for it by name
    const HaloTransport* where_unmapped;  // instead, where a field's memory cannot be mapped; may be null
    const char* way;                      // "the host"
    std::unique_ptr<HaloCarrier> (*make)(HaloMessages& halo); // null: between hosts (exchange.hpp)
};

extern const HaloTransport halos_by_remote_write, halos_by_buffered_write, halos_by_copy_engine,
    halos_by_library, halos_by_gpu_aware_mpi, halos_by_staging;                 // between devices
extern const HaloTransport halos_by_exposed_memory, halos_by_messages_of_hosts; // between hosts

} // namespace jali
