// Transports of collectives between devices: entries, and the connection that an entry makes for all
// collectives of a communicator on one device.
//
// A transport may carry the messages of plans (gpu_plan.hpp), for any algorithm: the kernel's own queues
// within a launch (collective_queues.hpp), others between launches, all messages of a stage at once. Or it
// has collectives of its own, and its name is then that of an algorithm. A new transport is a file with a
// transport and an entry, and the entry's name in the table of collective_transport.cpp.
#pragma once

#include "composition/standard_collectives.hpp"
#include "peers/transport.hpp"
#include "running/device_plan.hpp"
#include "running/device_program.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

// Does a call on copies in host memory, one per buffer; null where this rank has no bytes of it.
using RunsOnHost = std::function<void(const CollectiveCall& call, std::span<std::byte* const> buffers)>;

// The parameters of a transport: `communicator` is the user's, `control` carries the transports' own
// messages.
struct CollectiveRanks {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<Communicator> communicator, control;
    RunsOnHost on_host;
    // By rank: the destinations of messages of plans, if not all ranks. Transports that map memory map only
    // theirs.
    std::vector<char> wanted = {};
};

struct CollectiveTransport;

// Puts a stage's messages on a stream, between these buffers.
using StageExchange = std::function<void(std::span<const GpuAddress> buffers, void* stream)>;

class CollectiveConnection {
  public:
    CollectiveConnection(const CollectiveTransport& transport, const Gpu& gpu);
    virtual ~CollectiveConnection() = default;
    CollectiveConnection(const CollectiveConnection&) = delete;

    // Puts a stage's messages on a stream, as concurrent messages; those between two ranks match in their
    // order.
    virtual void exchange(std::span<const StageMessage> messages, std::span<const GpuAddress> buffers,
                          void* stream);
    // The same for all stages of a new plan, whose list of messages does not change. Collective. `own` are
    // addresses of the plan's own and of fixed buffers, 0 for buffers that each run supplies. Throws
    // GpuError, OutOfMemory.
    virtual std::vector<StageExchange> prepare(std::span<const std::span<const StageMessage>> stages,
                                               std::span<const GpuAddress> own);

    // Collectives of its own. Throws CollectiveError, or GpuError if the devices' library lacks the
    // collective.
    virtual void check(const CollectiveCall&) const {}
    // `what` names it in errors.
    virtual std::shared_ptr<DevicePlan> plan(const CollectiveCall& call, std::string what);

    const CollectiveTransport& transport;
    const std::string name; // as devices of this vendor have it
};

// Which collectives may take a transport.
struct CollectiveRules {
    const char* carries = nullptr; // messages of plans, and their path; null: none
    bool itself = false;           // has collectives, which are taken where no algorithm is
    bool user_operations = false;  // also those
    bool into_arrays = false;      // of peers, if fixed: see DeviceCollectives::persistent_plan
    bool costly = false;           // made at its first use
};

struct CollectiveTransport : Transport {
    // Collective. Throws GpuError, on all ranks, where it is not possible.
    std::shared_ptr<CollectiveConnection> (*make)(const CollectiveRanks& ranks);
    CollectiveRules rules;
};

extern const CollectiveTransport collectives_by_remote_write, collectives_by_library,
    collectives_by_librarys_windows, collectives_by_librarys_streams, collectives_by_copy_engine,
    collectives_by_array_write, collectives_by_gpu_aware_mpi, collectives_by_staging;

// In the order in which they are taken.
std::span<const CollectiveTransport* const> collective_transports();

} // namespace jali
