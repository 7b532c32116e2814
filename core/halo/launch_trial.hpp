// A launch run for the clock: everything that it changes is as before when the trial is over.
//
// What the launch writes is saved at the start and put back before every series of runs, so that all begin
// alike, and at the end, also after an error. Writes are not marked, ghosts that were stale become stale
// again (what is in them then is nobody's), counters are put back. Sums are begun anew by the next run.
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
    ~LaunchTrial(); // finish(), without a word
    LaunchTrial(const LaunchTrial&) = delete;

    // Seconds of each of so many runs of the kernel over all its sites on this rank, after one that does not
    // count. Halos stay as they are, so that no other rank is needed.
    std::vector<double> kernel(int repetitions);
    // Makes ready for exchanges of what is stale now by the launch's policy. Collective; throws GpuError
    // where the policy is not possible.
    void prepare_exchange();
    // Seconds per run of each of so many series of `runs` whole runs, each of which exchanges what was stale
    // when the trial began; after one run that does not count. Collective.
    std::vector<double> exchange(int series, int runs);
    // What the driver is given for a few runs in which everything that the launch asks of its halos is stale;
    // on a device, perhaps as repetitions of a graph. All its ghosts are stale afterwards. Collective.
    RecordedCalls record(bool in_graph = false);
    void finish(); // puts everything back

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
