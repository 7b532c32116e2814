// A kernel bound to fields, a domain and its halos: the complete work of one call of a site function.
//
// Built once, run often. run() copies the parameters that the owner prepared, fills in addresses that may
// change, finds the stale ghost slabs, and either runs the kernel over all sites or exchanges halos while the
// bulk runs. Contributions to sums are reduced over threads and ranks. All ranks must run the same launches
// in the same order. What is the same on the host and on devices is here; the rest in host_launch and
// gpu_launch. The kernel ABI is described in docs/notes/kernel-abi.md.
#pragma once

#include "device/gpu.hpp"
#include "device/timeline.hpp"
#include "halo/policy.hpp"
#include "halo/site_table.hpp"
#include "halo/storage.hpp"
#include "messaging/communicator.hpp"
#include "sum/site_reduction.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace jali {

struct LaunchRead {
    std::shared_ptr<FieldStorage> field;
    Offset offset;
    int parities; // of the sites read: 1 even, 2 odd, 3 both
};

// A field that the kernel finds by tables of sites, since its layout is not the launch's, and the offsets at
// which these read it.
struct IndirectAccess {
    std::shared_ptr<FieldStorage> field;
    std::vector<Offset> reads;
};

// Where a launch runs: a list of blocks, or, if the list is empty, the blocks begin..end-1.
struct LaunchDomain {
    std::int64_t begin = 0, end = 0;
    std::vector<std::int32_t> blocks;
    std::vector<std::uint32_t> masks; // lane bits per position; empty: all lanes
    std::int64_t size() const {
        return blocks.empty() ? end - begin : static_cast<std::int64_t>(blocks.size());
    }
};

// A contribution of every site, and its results: one, or one for each entry, selected by the site's label.
struct LaunchTerm {
    int first = 0;   // result
    int entries = 1; // results, from there on
    int label = -1;  // which of the labels; -1: none
    int group = -1;  // of terms with the same label and entries; -1: no label
};

struct LaunchSums {
    int count = 0;                   // contributions per site, of 8 bytes
    int labels = 0;                  // whole numbers of 64 bits per site, behind the contributions
    std::vector<LaunchTerm> terms;   // of the contributions; empty: each goes to a result of its own
    std::vector<SiteReduction> how;  // what each result is; empty: all are sums
    std::vector<std::int32_t> slice; // [block][lane]: its slice, or empty for one sum over all sites
    int nslices = 1;
    bool in_kernel_reduction = false; // on a device: parameters[2] are the words of the sums themselves
    bool fast = false;                // plain double sums: the last bits depend on threads and partition

    int results() const { // per slice
        int all = count;
        if (!terms.empty()) all = 0;
        for (const LaunchTerm& term : terms) all = std::max(all, term.first + term.entries);
        return all;
    }
    int groups() const { // of labels
        int all = 0;
        for (const LaunchTerm& term : terms) all = std::max(all, term.group + 1);
        return all;
    }
    LaunchTerm term(int contribution) const {
        return terms.empty() ? LaunchTerm{contribution} : terms[static_cast<std::size_t>(contribution)];
    }
    // Of [slice][result].
    SiteReduction reduction(std::size_t result) const {
        return how.empty() ? SiteReduction::sum : how[result % how.size()];
    }
    bool has_extremes() const {
        return std::any_of(how.begin(), how.end(), [](SiteReduction r) { return r != SiteReduction::sum; });
    }
    bool has_sums() const {
        return count > 0 && (how.empty() || std::count(how.begin(), how.end(), SiteReduction::sum) > 0);
    }
};

// The work of a kernel, for profiles: its name, and per site the bytes that must be moved, the bytes moved
// without any cache, and the operations.
struct LaunchCost {
    std::string name;
    std::int64_t bytes = 0, moved = 0, flops = 0;
    std::uint8_t arithmetic = 0;
    Work of(std::int64_t sites) const {
        return {sites, sites * bytes, sites * moved, sites * flops, arithmetic};
    }
};

// The kernel of a launch that exchanges halos as well (prelude/halos.hpp).
struct KernelWithHalos {
    GpuFunction function;
    int threads = 0; // of a block
    int sites = 1;   // of a thread, at a time
};

struct LaunchDefinition {
    std::shared_ptr<LocalLayout> layout;
    std::shared_ptr<const RowBlocks> rows; // what is visited, if not the layout's blocks
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<ThreadPool> pool;
    KernelFunction kernel = nullptr; // on the host,
    GpuFunction gpu_kernel;          // or on the layout's device
    int threads = 0;                 // per block of it
    int members = 1; // turns of a thread at a position: those of a batch's members, on a device
    int sites = 1;   // per thread of it, at a time
    std::function<KernelWithHalos()> compile_with_halos; // null: there is none
    KernelWithHalos with_halos;                          // once it was needed
    // Blocks for so many positions, of which a block takes `tile` turns at a time.
    std::int64_t blocks_of(std::int64_t positions, std::int64_t tile) const {
        return (positions * members + tile - 1) / tile;
    }
    int waves = 0; // blocks of a launch at most, in units of what the device holds at once; 0: any number
    const std::uint64_t* parameters =
        nullptr; // read at every run; the owner keeps them and may change scalars
    int nparameters = 0;
    std::vector<std::pair<int, std::shared_ptr<FieldStorage>>>
        patches; // parameter that holds the field's address
    std::vector<std::pair<int, std::shared_ptr<FieldStorage>>>
        away; // parameter: the distance to a field's ghosts, in bytes
    std::vector<LaunchRead> reads;
    std::vector<IndirectAccess> indirect;
    std::vector<std::pair<std::shared_ptr<FieldStorage>, int>> writes; // field, parities
    LaunchDomain domain;
    LaunchSums sums;
    int ncounters = 0;
    LaunchCost cost;
    bool any_policy = false;            // another policy may be taken where this one is not possible
    const HaloPolicy* policy = nullptr; // null: the one of halo_policy("")
};

class Launch {
  public:
    // Throws LayoutError for parts that do not fit together.
    static std::unique_ptr<Launch> make(LaunchDefinition definition);
    virtual ~Launch();
    Launch(const Launch&) = delete;

    // sums: [nslices][results], or null if there are none; 8 bytes each, whole numbers as they are. Throws
    // RankFailure.
    virtual void run(double* sums) = 0;
    // Runs on a device without waiting: this rank's sums remain there as the words of core/sum, [slice][sum],
    // at words_of_sums(), which ranks may add and maximise, for a kernel that reads their values and leaves
    // zeros, as sums_taken() records. Throws LayoutError on the host and where there are no sums.
    virtual void run_leaving_sums();
    virtual GpuAddress words_of_sums() const { return 0; }
    virtual void sums_taken() {}
    // The parts of a run that are done only if necessary: tables, room for ghosts, zeros for sums. Graphs
    // rely on it.
    virtual void make_ready() {}
    // Prepares a run with the host and other ranks before it is recorded in a graph: exchanges of ghosts that
    // are stale now are prepared, and count as done, as do the run's writes. Collective.
    virtual void warm_up() { mark_written(); }
    // Fills stale ghosts that a run reads, except those of fields (of parities) that are in `changing`, or
    // made of them, or whose changes are not reported: a graph exchanges these itself. Collective.
    void refresh_ghosts(const std::vector<std::pair<std::shared_ptr<FieldStorage>, int>>& changing);
    // Sites that the last run left out since their labels are of no entry, on all ranks; one number for each
    // group.
    const std::vector<std::int64_t>& left_out() const { return left_out_; }
    // As a run does, for one that a graph repeats.
    void mark_written();
    // [slice][result]: whole numbers among the results of a run become doubles.
    void as_doubles(double* sums) const;

    const LaunchDefinition& definition() const { return definition_; }
    // Ghosts that the launch reads: of the kernel's own layout, then of others.
    std::vector<HaloRequest> requests() const {
        std::vector<HaloRequest> all = requests_;
        for (const IndirectHalos& halos : indirect_)
            all.insert(all.end(), halos.requests.begin(), halos.requests.end());
        return all;
    }
    const std::shared_ptr<LaunchCounters>& counters() const { return counters_; }
    // Other ways to do the same, none of which changes a bit. Graphs keep the way they were recorded.
    // Another policy for halos, on all ranks alike; exchanges are prepared anew.
    void set_policy(const HaloPolicy& policy);
    // The same kernel compiled (for so many sites per thread) or started otherwise, on a device. Throws
    // LayoutError on the host.
    void set_kernel(const GpuFunction& kernel, int threads, int waves, int sites);
    // How its kernel that exchanges halos as well is compiled, if a policy asks for it.
    void set_kernel_with_halos(std::function<KernelWithHalos()> compile);
    // Whether a run would exchange halos now; the same on all ranks.
    bool halos_stale() const;
    // For a run in which all ghosts that it reads are stale: check() proves that it is in order, describe()
    // returns its steps as text. Both are collective. On a device they examine the driver calls of such runs,
    // which are made for this purpose and undone; on the host the schedule. Throws ScheduleError.
    virtual void check() = 0;
    virtual std::string describe() = 0;
    // The steps of such a run, around a kernel; of none where no halos are read. Collective.
    virtual Schedule schedule() = 0;

  protected:
    friend class LaunchTrial;
    explicit Launch(LaunchDefinition definition);
    std::vector<LaunchCounters*> all_counters() const; // also those of its producers

    // The parts of a run, in this order. compute() is the kernel over everything, with halos as they are;
    // compute_between() exchanges the stale parts that it is given as well.
    virtual void prepare() = 0;
    virtual void compute() = 0;
    virtual void compute_between(const std::vector<char>& stale) = 0;
    virtual void prepare_exchange(const std::vector<char>& stale) = 0; // collective
    virtual void drop_exchanges() = 0;
    virtual void kernel_changed() {}
    // For trials: seconds of so many runs of `work`, each by itself.
    virtual std::vector<double> time(int repetitions, const std::function<void()>& work) = 0;

    // Ghosts of fields of one other layout. They are exchanged before the kernel begins.
    struct IndirectHalos {
        std::shared_ptr<LocalLayout> layout;
        std::vector<HaloRequest> requests;
        std::vector<char> stale; // [request][parity]
    };
    virtual void exchange_indirect(const IndirectHalos& halos) = 0;
    void exchange_indirect(); // what is stale
    // The ones of other layouts that are stale, each with its stale parts.
    void for_each_stale_indirect(const std::function<void(const IndirectHalos&)>& f);

    VisitedBlocks visited() const {
        return definition_.rows ? VisitedBlocks::of(*definition_.rows)
                                : VisitedBlocks::of(*definition_.layout);
    }
    // Every key becomes the largest that a rank has. Collective.
    void meet_extremes(std::span<std::uint64_t> keys) const;
    bool find_stale(); // fills stale_, counts what is avoided; false if nothing is
    // The parts of all requests, [request][parity].
    static std::vector<char> all_of(const std::vector<HaloRequest>& requests);
    // Per position of the domain: the highest direction into which a slab reaches whose stale ghosts it
    // reads; -1: it reads none.
    std::vector<int> late_directions(const std::vector<char>& stale) const;
    std::int32_t block_at(std::int64_t position) const {
        const auto& domain = definition_.domain;
        return domain.blocks.empty() ? static_cast<std::int32_t>(domain.begin + position)
                                     : domain.blocks[position];
    }

    LaunchDefinition definition_;
    std::vector<HaloRequest> requests_;
    std::vector<IndirectHalos> indirect_;
    IndirectHalos refreshed_;            // all requests, where a graph has its ghosts filled before it runs
    std::vector<FieldStorage*> touched_; // fields whose ghosts must have room
    std::vector<char> stale_;            // [request][parity]
    std::shared_ptr<LaunchCounters> counters_;
    std::vector<std::int64_t> left_out_;

  private:
    void add_requests();
    void add_indirect();
    void check_sums() const;
};

} // namespace jali
