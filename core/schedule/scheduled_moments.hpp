// Schedules as moments: what hosts do, for the proof that all ranks' parts of it are in order.
#pragma once

#include "schedule/moments.hpp"
#include "transport/communicator.hpp"

#include <functional>
#include <span>

namespace jali {

// Some runs of this rank's schedule, one after the other; `places` are those of its buffers, in the memory of
// whoever has them. Throws ScheduleError for a schedule that is wrong by itself.
RankMoments moments_of(const Schedule& schedule, int rank, std::span<const Stretch> places, int runs = 3);

// `make` tells the moments of this rank. Proves, on every rank, that those of all are in order. Collective;
// throws ScheduleError on all, also where `make` does so on one of them.
void prove_together(Communicator& communicator, const std::function<RankMoments()>& make);

} // namespace jali
