// A launch whose kernel runs on the layout's device.
//
// All work is put on the device's stream and run() returns without waiting, unless it returns sums to the
// host. Contributions to sums are written by the kernel and cut into digits by a builtin kernel
// (prelude/builtin.hpp): integers, so that the order of threads does not matter, in the words that ranks add.
// Counters stay on the device until they are read.
#pragma once

#include "halo/gpu_exchange.hpp"
#include "halo/launch.hpp"
#include "schedule/first_run.hpp"

#include <map>
#include <memory>
#include <vector>

namespace jali {

class GpuLaunch : public Launch {
  public:
    explicit GpuLaunch(LaunchDefinition definition);
    void run(double* sums) override;
    void run_leaving_sums() override;
    GpuAddress words_of_sums() const override { return totals_.address(); }
    void sums_taken() override { totals_are_zero_ = true; }
    void make_ready() override;
    void warm_up() override;
    void check() override;
    std::string describe() override;
    Schedule schedule() override;

  protected:
    void prepare() override;
    void compute() override;
    void compute_between(const std::vector<char>& stale) override;
    void prepare_exchange(const std::vector<char>& stale) override { plan_for(stale); }
    void drop_exchanges() override;
    void exchange_indirect(const IndirectHalos& halos) override;
    using Launch::exchange_indirect;
    void kernel_changed() override;
    std::vector<double> time(int repetitions, const std::function<void()>& work) override;

  private:
    // Positions on the device: a range of blocks, or a list.
    struct Positions {
        std::int64_t begin = 0, end = 0;
        GpuMemory blocks;
        std::int64_t size() const { return end - begin; }
    };

    // An exchange for one set of stale parts; the bulk, and the boundary stage by stage.
    struct LaunchPlan {
        std::unique_ptr<GpuExchange> exchange;
        Positions bulk;
        std::vector<Positions> boundary;
        GpuMemory order; // of contributions, slice by slice
    };

    class Computation;
    using ExchangeFunction = std::function<void(GpuExchange&, HaloComputation&)>;
    LaunchPlan& plan_for(const std::vector<char>& stale);
    Positions positions_of(const std::vector<std::int32_t>& blocks) const;
    void with_exchange(const std::vector<char>& stale, const ExchangeFunction& f);
    void with_exchange(const IndirectHalos& halos, const ExchangeFunction& f);
    // Of the kernel that exchanges halos as well, which is compiled when it is first needed: blocks that find
    // a place at a time.
    std::int64_t resident_with_halos();
    // Empty if waiting blocks leave the bulk a place, else why not; for this rank.
    std::string why_not_resident(const LaunchPlan& plan);
    void refuse_unless_resident(const std::string& trouble) const; // throws GpuError if there is any
    void where_mapped(const std::function<void()>& exchange);
    void fall_back(const HaloTransport* transport, const std::string& trouble);
    void settle_transport(LocalLayout& layout);
    void prepare_sums();
    bool has_halos() const { return !requests_.empty() || !indirect_.empty(); }
    void check_once();
    GpuAddress run_kernel(); // and its halos; returns the order of the contributions to sums
    void fill_parameters();
    std::int64_t blocks_for(const Positions& positions) const; // one position for each place of a thread
    void set_positions(const Positions& positions, std::int64_t first_contribution);
    void enqueue(const Positions& positions, std::int64_t first_contribution, Phase phase, void* stream);
    std::vector<std::int64_t> starts_of_slices(const std::vector<std::int32_t>& blocks) const;
    GpuMemory order_by_slice(const std::vector<std::int32_t>& blocks) const;
    void deposit(GpuAddress order);
    void reduce(double* sums, GpuAddress order);

    std::shared_ptr<Gpu> gpu_;
    std::vector<std::uint64_t> arguments_; // begin, end, parameters: the structure that the kernel takes
    Positions whole_;
    std::vector<FieldStorage*> borrowed_; // arrays of other owners, one for each of their streams
    GpuMemory contributions_, whole_order_, starts_, totals_;
    GpuMemory terms_;              // of contributions, where not each is a sum by itself
    bool totals_are_zero_ = false; // since they were returned or taken
    std::int64_t turn_ = 0;        // how often they were
    PinnedMemory totals_here_;
    std::int64_t deposit_blocks_ = 1, resident_blocks_ = 1;
    std::int64_t resident_with_halos_ = 0; // 0: not known
    std::vector<std::int64_t> reduced_;
    std::map<std::vector<char>, LaunchPlan> plans_;
    using IndirectPlans =
        std::map<std::pair<const IndirectHalos*, std::vector<char>>, std::unique_ptr<GpuExchange>>;
    IndirectPlans indirect_plans_;
    std::vector<std::map<std::vector<char>, LaunchPlan>>
        recorded_plans_; // of other policies: graphs still use them
    std::vector<IndirectPlans> recorded_indirect_;
    bool recorded_ = false; // an exchange is part of a graph
    FirstRun first_run_;
};

} // namespace jali
