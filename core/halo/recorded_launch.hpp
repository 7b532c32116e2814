// What calls are recorded of a launch on a device: its halos and its kernel.
//
// What the site function touches is known from its compiler, the LaunchDefinition. What it expects of its
// ghosts comes from the geometry alone, as lists of global sites.
#pragma once

#include "halo/launch.hpp"
#include "schedule/recorded_calls.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jali {

struct RecordedLaunch : RecordedSubject {
    const LaunchDefinition* definition = nullptr;
    std::vector<HaloRequest> requests; // of the kernel's own layout, then of others; all stale in every run

    std::unique_ptr<KernelFamily> family(CallDecoder& decoder,
                                         std::span<const DriverCall> calls) const override;
    std::string describe(const DriverCall& call) const override;
};

} // namespace jali
