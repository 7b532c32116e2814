// Runs schedules on a described machine: a discrete-event simulation of all ranks.
//
// It works on the transfer graph of the schedules. A transfer begins when both its sides are ready
// (rendezvous) and the earlier messages of its pair and library have been sent; active transfers share links.
// In links of one direction those of an earlier chunk and stage go first, as in a queue; a limit on both
// directions together is shared in a max-min fair way. A rank runs one copy or reduction at a time;
// concurrent kernels share its memory with each other and with its messages, the most urgent first. It moves
// no data and checks no results.
#pragma once

#include "simulation/machine.hpp"
#include "simulation/transfer_graph.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace jali {

struct LinkUse {
    int link = 0;
    double bytes = 0, busy = 0; // busy: seconds with at least one transfer
};

struct StageUse {
    int stage = 0;
    double begin = 0, end = 0, bytes = 0;
    std::int64_t transfers = 0;
};

struct LevelUse {
    double bytes = 0;
    std::int64_t transfers = 0;
};

struct Critical {
    TransferGraph::Kind kind;
    int rank, peer;
    Mark mark;
    double begin, end, bytes;
};

struct SimulationResult {
    double time = 0;
    std::int64_t transfers = 0, works = 0, events = 0;
    std::vector<LinkUse> links; // those that were used
    std::vector<StageUse> stages;
    std::vector<LevelUse> levels;        // physical: 0 between nodes
    int bottleneck = -1;                 // the link that was needed longest, relative to its capacity
    double bottleneck_load = 0;          // its least time in seconds
    std::vector<Critical> critical_path; // from first to last
    std::vector<double> begin, end;      // of each node of the graph
};

// Throws PlanError if the graph does not fit the machine, ScheduleError if it cannot finish. A summary has no
// critical path, no times of nodes, and of links that do alike only the first.
SimulationResult simulate(const TransferGraph& graph, const Machine& machine, bool summary = false);

// Calls schedule_of once for each rank (twice if coalescing made a cycle: then without).
SimulationResult simulate(int ranks, const std::function<Schedule(int)>& schedule_of, const Machine& machine);

} // namespace jali
