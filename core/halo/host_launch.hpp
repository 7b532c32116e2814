// A launch whose kernel runs on the threads of this rank.
//
// Contributions to sums are deposited chunk by chunk, by each thread for itself, and merged at the end. Where
// ghosts are stale the kernel is a step of the schedule that exchanges them.
#pragma once

#include "halo/exchange.hpp"
#include "halo/launch.hpp"
#include "sum/binned.hpp"

#include <map>

namespace jali {

class HostLaunch : public Launch {
  public:
    explicit HostLaunch(LaunchDefinition definition);
    void run(double* sums) override;

    // The schedule of a run in which all ghosts that it reads are stale; null if it reads none.
    HaloExchange* full_exchange();
    void settle_transport();
    void check() override;
    std::string describe() override;
    Schedule schedule() override;

  protected:
    void prepare() override;
    void compute() override { run_domain(definition_.domain, Phase::kernel, nullptr); }
    void compute_between(const std::vector<char>& stale) override { run_with_halos(plan_for(stale)); }
    void prepare_exchange(const std::vector<char>& stale) override { plan_for(stale); }
    void drop_exchanges() override { plans_.clear(); }
    void exchange_indirect(const IndirectHalos& halos) override;
    using Launch::exchange_indirect;
    std::vector<double> time(int repetitions, const std::function<void()>& work) override;

  private:
    // One thread's copy of the parameters and what it accumulates, on cache lines of its own.
    struct alignas(64) Worker {
        std::vector<std::uint64_t> parameters;
        std::vector<std::int64_t> counters;
        Memory contributions;               // doubles [component][chunk][lane], aligned for vectors
        std::vector<BinnedSum> binned;      // [slice][component]
        std::vector<double> plain;          // the same, for fast sums
        std::vector<std::uint64_t> keys;    // the same, for maxima and minima
        std::vector<double> sorted;         // one component of a chunk, slice by slice
        std::vector<std::int32_t> target;   // place of each value of the chunk in it; before: its bucket
        std::vector<std::int32_t> ends;     // [slice or entry]: end of its values, 0 if it has none
        std::vector<std::int32_t> buckets;  // those that have some
        std::vector<std::int64_t> left_out; // [group]: sites whose label is of no entry
        bool used = false;                  // in this run
    };
    // An exchange for one set of stale parts, and the positions that may run before it ends.
    struct LaunchPlan {
        std::unique_ptr<HaloExchange> exchange;
        LaunchDomain parts[2]; // bulk, boundary; the second is empty when not overlapped
    };

    void prepare_sums();
    void run_domain(const LaunchDomain& domain, Phase phase, const ThreadPool::Progress* progress);
    Work work_of(const LaunchDomain& domain) const;
    void run_piece(int thread, std::int64_t begin, std::int64_t end);
    void deposit(Worker& worker, std::int64_t begin, std::int64_t end);
    void mask_out(Worker& worker, const std::uint32_t* masks, std::int64_t n) const;
    // Sorts n contributions by their buckets in `target`, once for all terms.
    void sort(Worker& worker, std::int64_t n);
    // Contribution `term` bucket by bucket, `step` results apart from `first` on. Returns how many are in no
    // bucket below `buckets`, which are left out.
    std::int64_t add_sorted(Worker& worker, std::int64_t n, int term, int buckets, std::size_t first,
                            std::size_t step);
    void deposit_labelled(Worker& worker, std::int64_t n);
    void add(Worker& worker, std::size_t result, const double* values, std::int64_t n) const;
    const double* contributions(const Worker& worker, int term) const;
    void reduce(double* sums);
    void reduce_sums(double* sums);
    void count_left_out();
    void reduce_extremes(double* sums);
    LaunchPlan& plan_for(const std::vector<char>& stale);
    void run_part(LaunchPlan& plan, int part, const ThreadPool::Progress* progress);
    void run_with_halos(LaunchPlan& plan);

    std::vector<Worker> workers_;
    std::map<std::vector<char>, LaunchPlan> plans_;
    std::map<std::pair<const LocalLayout*, std::vector<char>>, std::unique_ptr<HaloExchange>> indirect_plans_;
    std::vector<std::int64_t> reduced_;
    ThreadPool::Body body_;
    const LaunchDomain* running_ = nullptr;
    HaloSwitches switches_;  // of this run
    std::int64_t chunk_ = 0; // positions per kernel call when there are sums
};

} // namespace jali
