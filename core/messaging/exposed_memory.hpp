// Memory of other ranks that this rank writes to: the one-sided half of a transport.
//
// A rank exposes a stretch of its memory and sends its name to the others; a rank that reaches it maps the
// stretch at an address of its own and stores there, so that gathered or computed data need no further copy.
// Nothing here synchronizes: messages without bytes do, which order the stores before them with the reads
// after them. A transport that maps memory makes an ExposedMemory; with the others no rank reaches another.
#pragma once

#include "device/arena.hpp"
#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jali {

// A stretch that other ranks may write during the lifetime of this object.
class Exposure {
  public:
    virtual ~Exposure() = default;
};

// The description of a stretch that a rank sends to others.
struct ExposureName {
    std::uint64_t offset = 0, bytes = 0; // as its transport counts
    std::uint64_t address = 0;           // in its own process, for checks
};

class ExposedMemory : public GroupResource {
  public:
    // Whether this rank and `rank` reach each other's memory: the same on both.
    virtual bool reaches(int rank) const = 0;
    // Empty if some rank reaches another, else why none does; the same on all ranks.
    virtual const std::string& why_not() const = 0;

    // The last `bytes` bytes of a block, which keeps its address and contents. Their pages are of another
    // kind from now on, so `memory` has to have pages of its own. Throws TransportError.
    virtual std::unique_ptr<Exposure> expose(Memory& memory, std::size_t bytes, ExposureName& name) = 0;
    // Where a stretch of `rank` is for this one; null if it is not reached.
    virtual std::byte* address(int rank, const ExposureName& name) const = 0;

    // Of the same ranks, for the messages and signals of this memory. Null: the communicator it was made for.
    std::shared_ptr<Communicator> host_communicator;
};

// The exposed memory of a communicator's ranks, made at the first call, which is collective. MPI ranks get a
// transport whose messages within a host go through shared memory.
std::shared_ptr<ExposedMemory> exposed_memory(Communicator& communicator);

} // namespace jali
