// Memory of other ranks that this one writes into: the one-sided half of a transport.
//
// A rank exposes a stretch of its memory and tells the others its name; whoever reaches that rank finds the
// stretch at an address of its own and stores there, so that what is gathered or computed lands where it is
// wanted. Nothing here says when: that is what messages without bytes are for, which order the stores before
// them with the reads behind them. A transport that maps memory makes one of these; the others reach nobody.
#pragma once

#include "device/arena.hpp"
#include "messaging/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jali {

// A stretch that others may write while this stands.
class Exposure {
  public:
    virtual ~Exposure() = default;
};

// What a rank tells others about a stretch.
struct ExposureName {
    std::uint64_t offset = 0, bytes = 0; // as its transport counts
    std::uint64_t address = 0;           // in its own process, for checks
};

class ExposedMemory : public GroupResource {
  public:
    // Whether this rank reaches that one, and is reached by it: both say the same.
    virtual bool reaches(int rank) const = 0;
    // Empty if some rank reaches another, else why none does; the same on all ranks.
    virtual const std::string& why_not() const = 0;

    // The last `bytes` bytes of a block, which keeps its address and contents. Their pages are of another
    // kind from now on, so `memory` has to have pages of its own. Throws TransportError.
    virtual std::unique_ptr<Exposure> expose(Memory& memory, std::size_t bytes, ExposureName& name) = 0;
    // Where a stretch of `rank` is for this one; null if it is not reached.
    virtual std::byte* address(int rank, const ExposureName& name) const = 0;

    // Of the same ranks: messages and signals that go with it. Null: those of the communicator that asked.
    std::shared_ptr<Communicator> host_communicator;
};

// Of the ranks of a communicator, made at the first call, which is collective. Ranks of MPI get a transport
// whose messages go through memory that hosts share.
std::shared_ptr<ExposedMemory> exposed_memory(Communicator& communicator);

} // namespace jali
