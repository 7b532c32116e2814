// What a device's driver is given for launches, messages and collectives, recorded and proved to be in order.
//
// The calls are decoded from what the driver received: kernels by their names and arguments, and by the
// tables in device memory that these point to; copies, events and messages as they are. What a family of
// kernels does is known to its `KernelFamily`; only what a compiler was told of a kernel, and what shall come
// out in the end, is told by whoever recorded: the `RecordedSubject`.
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

// Memory as it was when it was first looked at: what tables held, and where blocks ended.
class SeenMemory {
  public:
    explicit SeenMemory(Gpu* gpu) : gpu_(gpu) {}
    // Throws ScheduleError for what lies in no block, or beyond its end.
    std::span<const std::byte> at(GpuAddress address, std::size_t bytes);
    std::optional<MemoryBlock> block_at(std::uint64_t address); // of this process
    void close() { gpu_ = nullptr; }                            // what was not looked at by now stays unknown
    // What is there counts as this from now on.
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
    // A run begins or ends at this event; adds what nobody may touch beyond it.
    virtual void mark(bool /*begins*/, int /*event*/, std::vector<Stretch>& /*touched*/) {}
};

// What runs were recorded of.
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

// Of one rank: some runs, one after the other.
struct RecordedCalls {
    int rank = 0;
    std::shared_ptr<const RecordedSubject> subject; // null: of messages alone
    std::vector<RecordedArray> arrays;
    std::vector<DriverCall> calls;
    SeenMemory memory{nullptr};
    std::map<GpuAddress, int> writers; // of words of signal pads that were looked at: who alone may set them

    // Throws ScheduleError for calls that are wrong by themselves or cannot be decoded.
    RankEvents decode();
    void read_memory();           // at all memory that decoding needs, as it is now
    std::string describe() const; // a line for each call
};

// Records some runs of `once`, after one that tells what memory has to be looked at. Three at least: the
// second slot of a buffer, and then the first one again. `meet` is a barrier of all ranks that these runs
// have to do with.
void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, int rank,
                 const std::function<void()>& meet, const std::function<void()>& once, int runs = 3);
// Those are all ranks. Collective.
void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, Communicator& communicator,
                 const std::function<void()>& once, int runs = 3);

// Proves, on every rank, that the calls of all ranks are in order. Collective; throws ScheduleError on all.
void check_together(RecordedCalls& mine, Communicator& communicator);

} // namespace jali
