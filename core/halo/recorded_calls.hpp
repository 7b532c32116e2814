// What the driver is given for launches and messages, recorded and proved to be in order.
//
// The calls are decoded from what the driver received: kernels by their names and arguments, and by the
// tables in device memory that these point to; copies, events and messages as they are. Only what a site
// function touches comes from elsewhere, from its compiler: the LaunchDefinition. What a launch expects of
// its ghosts comes from the geometry alone, as lists of global sites.
#pragma once

#include "device/driver_record.hpp"
#include "halo/launch.hpp"
#include "schedule/moments.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

// Device memory as it was when it was first looked at.
class SeenMemory {
  public:
    explicit SeenMemory(Gpu* gpu) : gpu_(gpu) {}
    std::span<const std::byte> at(GpuAddress address, std::size_t bytes);
    void close() { gpu_ = nullptr; } // what was not looked at by now stays unknown
    // What is there counts as this from now on.
    void change(GpuAddress address, std::vector<std::byte> bytes) { seen_[address] = std::move(bytes); }
    const std::map<GpuAddress, std::vector<std::byte>>& seen() const { return seen_; }

  private:
    Gpu* gpu_;
    std::map<GpuAddress, std::vector<std::byte>> seen_;
};

// An array that messages carry to another rank, or that they fill, in every run.
struct CarriedArray {
    std::uint64_t address = 0, bytes = 0;
    std::uint64_t label = 0; // the same at both ends, another for every message
    bool sends = false;
};

// Of one rank: runs of a launch in which all that is requested was stale, or of anything else.
struct RecordedCalls {
    int rank = 0;
    const LaunchDefinition* definition = nullptr;
    std::vector<HaloRequest> requests; // of the kernel's own layout, then of others
    std::vector<CarriedArray> arrays;
    std::vector<DriverCall> calls;
    SeenMemory memory{nullptr};

    // Throws ScheduleError for calls that are wrong by themselves or cannot be decoded.
    RankMoments decode();
    void look();                  // at all memory that decoding needs, as it is now
    std::string describe() const; // a line for each call
};

// Records a few runs of `once`, after one that tells what memory has to be looked at. Collective.
void record_runs(RecordedCalls& into, const std::shared_ptr<Gpu>& gpu, Communicator& communicator,
                 const std::function<void()>& once);

// Proves, on every rank, that the calls of all ranks are in order. Collective; throws ScheduleError on all.
void check_together(RecordedCalls& mine, Communicator& communicator);

} // namespace jali
