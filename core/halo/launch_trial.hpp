// Timing runs of a launch: the trial restores all that they change.
//
// The memory that the launch writes is saved at the start and restored before every series of runs, so that
// all have the same start, and at the end, also after an error. Writes are not marked, ghosts that were stale
// become stale again (with undefined contents), counters are restored. Sums are begun anew by the next run.
// Profiles do not see it.
#pragma once

#include "halo/launch.hpp"
#include "halo/recorded_launch.hpp"

#include <vector>

namespace jali {

class LaunchTrial {
  public:
    // Throws OutOfMemory where there is no room for a copy of what is written.
    explicit LaunchTrial(Launch& launch);
    ~LaunchTrial(); // finish(), without errors
    LaunchTrial(const LaunchTrial&) = delete;

    // Seconds of each of so many runs of the kernel over all its sites on this rank, after one that does not
    // count. Halos stay as they are, so that no other rank is needed.
    std::vector<double> kernel(int repetitions);
    // Prepares exchanges of the ghosts that are stale now by the launch's policy. Collective; throws GpuError
    // where the policy is not possible.
    void prepare_exchange();
    // Seconds per run of each of so many series of `runs` whole runs, each of which exchanges what was stale
    // when the trial began; after one run that does not count. Collective.
    std::vector<double> exchange(int series, int runs);
    // The driver calls of a few runs in which all ghosts that the launch reads are stale; on a device,
    // perhaps as repetitions of a graph. All its ghosts are stale afterwards. Collective.
    RecordedCalls record(bool in_graph = false);
    void finish(); // restores everything

  private:
    struct Saved {
        FieldStorage* field;
        Memory here;
        GpuMemory there;
    };
    struct Held {
        FieldStorage* field;
        int slab, parity;
        std::uint64_t version;
    };
    void restore();
    void make_stale();

    Unrecorded unrecorded_;
    Launch& launch_;
    std::vector<Saved> saved_;
    std::vector<Held> held_;
    std::vector<char> stale_;
    std::vector<HaloCounters> counted_; // of the touched fields
    HaloCounters counted_in_layout_;
    std::vector<std::pair<LaunchCounters*, std::vector<std::int64_t>>> counters_; // values at the start
    bool finished_ = false;
};

} // namespace jali
