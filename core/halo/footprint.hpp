// The memory that a launch's kernel touches at some positions, as declared by its compiler
// (LaunchDefinition): proofs of launches rely on it, and tests poison the rest.
#pragma once

#include "halo/launch.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace jali {

struct SiteFootprint {
    using OfFields = std::map<const FieldStorage*, std::vector<char>>; // [block] of the launch's own layout
    OfFields reads, writes;
    std::set<std::pair<const HaloRequest*, int>> ghosts;    // and the parity
    std::vector<const FieldStorage*> all_read, all_written; // whole fields of other layouts
};

// Throws ScheduleError for positions that are no sites, and for ghosts that no request is for.
SiteFootprint footprint_at(const LaunchDefinition& launch, std::span<const HaloRequest> requests,
                           std::span<const std::int32_t> positions);

} // namespace jali
