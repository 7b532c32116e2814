// What transports do for halos: rows, and the carrier of one exchange that a row makes.
//
// An exchange between devices (gpu_exchange) packs its messages by one launch and tells its carrier at each
// point of the sequence; what a carrier has nothing to do for, it leaves out. A new transport is a file with
// a carrier and a row, and the row's name in the table of policy.cpp.
#pragma once

#include "device/timeline.hpp"
#include "halo/halo_kernels.hpp"
#include "halo/halo_messages.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
    // Of one that packs: the words of a message, and how the launch signals and waits.
    virtual PackMessage words_of(const HaloMessages::Message&) const { return {}; }
    virtual void prepare(PackArguments&) const {}

    // Behind packing on the stream, before the bulk. Calls `arrived` behind each stage whose messages have
    // come, and returns true, or leaves that to receive().
    using Arrived = std::function<void(std::size_t stage)>;
    virtual bool carry(void*, const Arrived&) { return false; }
    virtual void carry_by_host(void*) {}        // while the bulk runs
    virtual void receive(std::size_t, void*) {} // what comes on the stream has the ghosts of this stage
    virtual void end(void*) {}

  protected:
    HaloMessages& halo_;
};

struct HaloTransport : Transport {
    const char* how; // in descriptions
    bool packs;      // the kernel that packs carries as well: copied rows and a put are one step
    const HaloTransport* where_unreached; // instead, where it is not possible and nobody asked for it by name
    const HaloTransport* where_unmapped;  // instead, where a field's memory cannot be mapped; may be null
    const char* way;                      // "the host"
    std::unique_ptr<HaloCarrier> (*make)(HaloMessages& halo); // null: between hosts (exchange.hpp)
};

extern const HaloTransport halos_by_remote_write, halos_by_buffered_write, halos_by_copy_engine,
    halos_by_library, halos_by_gpu_aware_mpi, halos_by_staging;                 // between devices
extern const HaloTransport halos_by_exposed_memory, halos_by_messages_of_hosts; // between hosts

} // namespace jali
