// The recorded calls of a launch on a device: its halos and its kernel.
//
// The compiler's LaunchDefinition declares the memory that the site function touches. The expected contents
// of ghosts follow from the geometry alone, as lists of global sites.
#pragma once

#include "halo/launch.hpp"
#include "schedule/recorded_calls.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace jali {

// The memory that the site function touches at some positions, as its compiler declares it.
struct TouchedSites {
    using Blocks = std::vector<std::pair<std::int32_t, std::int32_t>>; // [first, last), in order
    std::vector<std::int32_t> positions;
    std::vector<std::pair<const FieldStorage*, Blocks>> reads, writes;
    std::vector<const FieldStorage*> all_read, all_written;
    std::vector<std::pair<const HaloRequest*, int>> ghosts; // and the parity
};

struct RecordedLaunch : RecordedSubject {
    const LaunchDefinition* definition = nullptr;
    std::vector<HaloRequest> requests; // of the kernel's own layout, then of others; all stale in every run

    std::unique_ptr<KernelFamily> family(CallDecoder& decoder,
                                         std::span<const DriverCall> calls) const override;
    std::string describe(const DriverCall& call) const override;

    // Computed once for all runs and decodings: it takes longer than the rest of a proof. Any thread may call
    // it.
    const TouchedSites& touched_at(std::vector<std::int32_t> positions) const;

  private:
    mutable std::mutex mutex_;
    mutable std::deque<TouchedSites> known_; // with stable addresses
};

} // namespace jali
