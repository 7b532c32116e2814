// What calls are recorded of a launch on a device: its halos and its kernel.
//
// What the site function touches is known from its compiler, the LaunchDefinition. What it expects of its
// ghosts comes from the geometry alone, as lists of global sites.
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

// What the site function touches at some positions, by its compiler's word.
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

    // Worked out once for all runs and decodings: it takes longer than the rest of a proof. Any thread may
    // ask.
    const TouchedSites& touched_at(std::vector<std::int32_t> positions) const;

  private:
    mutable std::mutex mutex_;
    mutable std::deque<TouchedSites> known_; // which stay where they are
};

} // namespace jali
