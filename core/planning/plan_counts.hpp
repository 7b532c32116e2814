// Messages of a plan, counted without making its schedules: by stage and level of the hierarchy, over all
// ranks and chunks.
#pragma once

#include "composition/plan.hpp"

#include <cstdint>
#include <map>
#include <vector>

namespace jali {

struct CountedMessages {
    std::int64_t messages = 0, bytes = 0;
};

struct PlanCounts {
    std::vector<std::map<int, CountedMessages>> stages; // by level; as stages_of has them
    int counted = 0;                                    // counted ranks: all, or representatives
    // The largest share by which bytes differ between ranks of which one was counted for all; 0: none do.
    double uneven = 0;
};

// Up to `each` ranks every one is counted, if ranks that do alike do not send exactly as much; more only
// where they do not do alike. Throws PlanError, as check_parameters does.
PlanCounts count_messages(const Composition& composition, const PlanParameters& parameters, int each = 512);

} // namespace jali
