// Driver calls of launches, messages and collectives on a device, recorded and proved to be in order.
//
// The calls are decoded from the driver's input: kernels from their names and arguments, and the tables in
// device memory that these point to; copies, events and messages directly. A `KernelFamily` defines the
// effects of a family of kernels; only the declarations for a kernel's compiler, and the expected result, are
// supplied by the recorder: the `RecordedSubject`.
#pragma once

#include "device/driver_record.hpp"
#include "device/gpu.hpp"
#include "device/memory_blocks.hpp"
#include "messaging/communicator.hpp"
#include "schedule/ordered_events.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace jali {

class CallDecoder;

// Memory at its first inspection: contents of tables, and ends of blocks.
class SeenMemory {
  public:
    explicit SeenMemory(Gpu* gpu) : gpu_(gpu) {}
    // Throws ScheduleError for memory in no block, or beyond its end.
    std::span<const std::byte> at(GpuAddress address, std::size_t bytes);
    std::optional<MemoryBlock> block_at(std::uint64_t address); // of this process
    void close() { gpu_ = nullptr; }                            // memory not inspected by now stays unknown
    // Replaces the contents from now on.
    void change(GpuAddress address, std::vector<std::byte> bytes) { seen_[address] = std::move(bytes); }
    const std::map<GpuAddress, std::vector<std::byte>>& seen() const { return seen_; }
    std::map<std::uint64_t, MemoryBlock>& blocks() { return blocks_; } // by where they begin
    const std::map<std::uint64_t, MemoryBlock>& blocks() const { return blocks_; }

  private:
    Gpu* gpu_;
    std::map<GpuAddress, std::vector<std::byte>> seen_;
    std::map<std::uint64_t, MemoryBlock> blocks_;
};

// Kernels that belong together, while calls are decoded.
class KernelFamily {
  public:
    virtual ~KernelFamily() = default;
    // False: it is none of these.
    virtual bool launch(const DriverCall& call) = 0;
    // A run begins or ends at this event; adds memory that no event may touch beyond it.
    virtual void mark(bool /*begins*/, int /*event*/, std::vector<Stretch>& /*touched*/) {}
};

// The subject of recorded runs.
class RecordedSubject {
  public:
    virtual ~RecordedSubject() = default;
    virtual std::unique_ptr<KernelFamily> family(CallDecoder& decoder,
                                                 std::span<const DriverCall> calls) const = 0;
    virtual std::string describe(const DriverCall& call) const { return call.name; } // of a launch
};

// An array that messages carry to another rank, or that they fill, in every run.
struct RecordedArray {
    std::uint64_t address = 0, bytes = 0;
    std::uint64_t label = 0; // the same at both ends, another for every message
    bool sends = false;
};

// One rank's calls of some consecutive runs.
struct RecordedCalls {
    int rank = 0;
    std::shared_ptr<const RecordedSubject> subject; // null: of messages alone
    std::vector<RecordedArray> arrays;
    std::vector<DriverCall> calls;
    SeenMemory memory{nullptr};
    std::map<GpuAddress, int> writers; // of the inspected words of signal pads: the only rank that may set
                                       // each

    // Throws ScheduleError for calls that are wrong by themselves or cannot be decoded.
    RankEvents decode();
    void read_memory();           // at all memory that decoding needs, as it is now
    std::string describe() const; // a line for each call
};

// Records some runs of `once`, after one that determines the memory to inspect. Three at least: the second
// slot of a buffer, and then the first one again. `meet` is a barrier of all ranks that take part in these
// runs.
void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, int rank,
                 const std::function<void()>& meet, const std::function<void()>& once, int runs = 3);
// Those are all ranks. Collective.
void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, Communicator& communicator,
                 const std::function<void()>& once, int runs = 3);

// Proves, on every rank, that the calls of all ranks are in order. Collective; throws ScheduleError on all.
void check_together(RecordedCalls& mine, Communicator& communicator);

} // namespace jali
