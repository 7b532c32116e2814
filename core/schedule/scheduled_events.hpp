// Schedules of hosts as events, for the proof that all ranks' parts are in order.
#pragma once

#include "messaging/communicator.hpp"
#include "schedule/ordered_events.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace jali {

// Some runs of this rank's schedule, one after the other; `locations` are those of its buffers, in the memory
// of their owners. Throws ScheduleError for a schedule that is invalid by itself.
RankEvents events_of(const Schedule& schedule, int rank, std::span<const Stretch> locations, int runs = 3);

// One run of a schedule without kernels whose steps are well formed, with what they move and combine. Event
// 0 comes before all of it, the last one after all of it. `step_of` gets the step of each event; -1: none.
RankEvents events_with_contents(const Schedule& schedule, int rank, std::span<const Stretch> locations,
                                bool reproducible, std::vector<int>& step_of);

// `make` returns the events of this rank. Proves, on every rank, that those of all are in order. Collective;
// throws ScheduleError on all, also where `make` does so on one of them.
void prove_together(Communicator& communicator, const std::function<RankEvents()>& make);
// The same in two parts, for transfer between ranks: one rank's report, and the proof of the reports of all
// connected ranks, in the order of their numbers.
std::vector<std::byte> reported_events(const std::function<RankEvents()>& make);
void prove_reported(const std::map<int, std::vector<std::byte>>& by_rank);

} // namespace jali
