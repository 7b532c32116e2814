#include "halo/gpu_launch.hpp"
#include "halo/exchange.hpp"
#include "halo/launch_trial.hpp"
#include "schedule/recorded_calls.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"
#include "sum/binned.hpp"

#include <algorithm>
#include <cstring>

namespace jali {

namespace {

constexpr unsigned deposit_threads = 256;
constexpr std::int64_t values_per_thread = 16; // of a deposit, at least, where there are enough

// Parameters of the builtin kernel deposit; see prelude/builtin.hpp.
struct DepositArguments {
    GpuAddress values;
    std::int64_t stride;
    GpuAddress order, starts;
    std::int64_t slices, components, blocks;
    GpuAddress words, terms;
    std::int64_t results;
};

// Of a contribution, for deposit; `counts`: the group whose sites without an entry it counts, or -1.
struct DepositTerm {
    std::int64_t how, first, entries, label, counts;
};

struct HandOverArguments {
    GpuAddress words, host;
    std::int64_t count, turn;
};

} // namespace

GpuLaunch::GpuLaunch(LaunchDefinition definition)
    : Launch(std::move(definition)), gpu_(definition_.layout->gpu()) {
    auto& d = definition_;
    if (!d.domain.masks.empty()) throw LayoutError("launch: lane masks on a device, which has no lanes");
    arguments_.resize(2 + d.nparameters);
    if (d.domain.blocks.empty()) {
        whole_.begin = d.domain.begin;
        whole_.end = d.domain.end;
    } else {
        whole_ = positions_of(d.domain.blocks);
    }
    for (FieldStorage* field : touched_) {
        auto same = [&](const FieldStorage* other) { return other->owner_stream() == field->owner_stream(); };
        if (field->borrowed() && std::none_of(borrowed_.begin(), borrowed_.end(), same))
            borrowed_.push_back(field);
    }
    kernel_changed();
    prepare_sums();
}

void GpuLaunch::kernel_changed() {
    const auto& d = definition_;
    resident_blocks_ =
        std::max<std::int64_t>(1, gpu_->occupancy(d.gpu_kernel, d.threads)) * gpu_->multiprocessors();
    resident_with_halos_ = 0;
}

std::int64_t GpuLaunch::resident_with_halos() {
    auto& d = definition_;
    if (d.with_halos.function.handle == nullptr) {
        if (!d.compile_with_halos)
            throw GpuError("halo policy " + d.policy->name +
                           ": this launch has no kernel that exchanges halos");
        d.with_halos = d.compile_with_halos();
    }
    if (resident_with_halos_ == 0)
        resident_with_halos_ =
            std::max<std::int64_t>(1, gpu_->occupancy(d.with_halos.function, d.with_halos.threads)) *
            gpu_->multiprocessors();
    return resident_with_halos_;
}

std::string GpuLaunch::why_not_resident(const LaunchPlan& plan) {
    const auto& d = definition_;
    if (!d.policy->in_kernel()) return "";
    const std::int64_t waiting = d.policy->waiting_roles(), bulk = plan.bulk.size() > 0 ? 1 : 0;
    const std::int64_t resident_blocks = resident_with_halos();
    if (resident_blocks >= waiting + bulk) return "";
    const auto counted = [](std::int64_t n) { return std::to_string(n) + (n == 1 ? " block" : " blocks"); };
    return "on rank " + std::to_string(d.communicator->rank()) + " " + gpu_->name() + " has places for " +
           counted(resident_blocks) + " of '" + d.cost.name + "' (" + std::to_string(d.with_halos.threads) +
           " threads each), but this policy wants them for " + counted(waiting + bulk) + ": " +
           std::to_string(waiting) + " may wait for other ranks, and the bulk goes on beside them";
}

GpuLaunch::Positions GpuLaunch::positions_of(const std::vector<std::int32_t>& blocks) const {
    Positions positions;
    positions.end = static_cast<std::int64_t>(blocks.size());
    if (!blocks.empty())
        positions.blocks = gpu_->upload(blocks.data(), blocks.size() * sizeof blocks[0], "site lists");
    return positions;
}

void GpuLaunch::prepare_sums() {
    const auto& sums = definition_.sums;
    if (sums.count == 0) return;
    const std::int64_t n = whole_.size();
    std::vector<std::int64_t> starts(static_cast<std::size_t>(sums.nslices) + 1, 0);
    if (sums.slice.empty()) {
        starts.back() = n;
    } else {
        std::vector<std::int32_t> blocks(static_cast<std::size_t>(n));
        for (std::int64_t p = 0; p < n; ++p) blocks[p] = block_at(p);
        starts = starts_of_slices(blocks);
        whole_order_ = order_by_slice(blocks);
    }
    starts_ = gpu_->upload(starts.data(), starts.size() * sizeof starts[0], "site lists");
    if (!sums.terms.empty() || sums.has_extremes()) {
        std::vector<DepositTerm> terms;
        int counted = -1; // the last group whose sites a term counts
        for (int k = 0; k < sums.count; ++k) {
            const LaunchTerm term = sums.term(k);
            const auto how = static_cast<std::int64_t>(sums.reduction(static_cast<std::size_t>(term.first)));
            const int counts = term.group > counted ? term.group : -1;
            terms.push_back({how, term.first, term.entries, term.label, counts});
            counted = std::max(counted, term.group);
        }
        terms_ = gpu_->upload(terms.data(), terms.size() * sizeof terms[0], "sums");
    }
    if (!sums.in_kernel_reduction)
        contributions_ =
            gpu_->allocate(static_cast<std::size_t>(sums.count + sums.labels) * n * sizeof(double), "sums");
    const auto words =
        (static_cast<std::size_t>(sums.nslices) * sums.results() + sums.groups()) * BinnedSum::words;
    totals_ = gpu_->allocate((words + 1) * sizeof(std::int64_t), "sums");
    totals_here_ = gpu_->allocate_pinned((words + 1) * sizeof(std::int64_t), "sums");
    std::memset(totals_here_.data(), 0, totals_here_.size());
    reduced_.resize(words);
    const std::int64_t per_block = values_per_thread * deposit_threads;
    const std::int64_t most = std::max<std::int64_t>(1, 4 * gpu_->multiprocessors() / sums.nslices);
    deposit_blocks_ = std::clamp<std::int64_t>((n / sums.nslices + per_block - 1) / per_block, 1, most);
}

std::vector<std::int64_t> GpuLaunch::starts_of_slices(const std::vector<std::int32_t>& blocks) const {
    const auto& sums = definition_.sums;
    std::vector<std::int64_t> starts(static_cast<std::size_t>(sums.nslices) + 1, 0);
    for (std::int32_t block : blocks) ++starts[sums.slice[block] + 1];
    for (int s = 0; s < sums.nslices; ++s) starts[s + 1] += starts[s];
    return starts;
}

GpuMemory GpuLaunch::order_by_slice(const std::vector<std::int32_t>& blocks) const {
    const auto& sums = definition_.sums;
    std::vector<std::int32_t> order(blocks.size());
    auto next = starts_of_slices(blocks); // where the next position of each slice goes
    for (std::size_t p = 0; p < blocks.size(); ++p)
        order[next[sums.slice[blocks[p]]]++] = static_cast<std::int32_t>(p);
    return gpu_->upload(order.data(), order.size() * sizeof order[0], "site lists");
}

void GpuLaunch::fill_parameters() {
    const auto& d = definition_;
    std::uint64_t* parameters = arguments_.data() + 2;
    std::memcpy(parameters, d.parameters, d.nparameters * sizeof(std::uint64_t));
    fill_device_parameters(parameters, *d.layout);
    parameters[6] = counters_->address();
    for (const auto& [index, field] : d.patches) parameters[index] = field->address();
    for (const auto& [index, field] : d.away)
        parameters[index] = static_cast<std::uint64_t>(field->ghosts_away());
}

std::int64_t GpuLaunch::blocks_for(const Positions& positions) const {
    const std::int64_t tile = std::int64_t{definition_.threads} * definition_.sites;
    return definition_.blocks_of(positions.size(), tile);
}

void GpuLaunch::set_positions(const Positions& positions, std::int64_t first_contribution) {
    const auto& d = definition_;
    arguments_[0] = static_cast<std::uint64_t>(positions.begin);
    arguments_[1] = static_cast<std::uint64_t>(positions.end);
    std::uint64_t* parameters = arguments_.data() + 2;
    parameters[0] = positions.blocks.address();
    if (d.sums.in_kernel_reduction) {
        parameters[2] = totals_.address();
    } else if (d.sums.count > 0) {
        parameters[2] = contributions_.address() + first_contribution * sizeof(double);
        parameters[3] = static_cast<std::uint64_t>(whole_.size());
    }
}

void GpuLaunch::enqueue(const Positions& positions, std::int64_t first_contribution, Phase phase,
                        void* stream) {
    if (positions.size() == 0) return;
    const auto& d = definition_;
    set_positions(positions, first_contribution);
    std::int64_t blocks = blocks_for(positions);
    // Beside an exchange some blocks start late; their work must be less than a whole wave's.
    const bool beside_exchange = phase == Phase::bulk;
    if (d.sums.in_kernel_reduction) { // each adds to the device's words
        // Blocks that read neighbours find them in a cache that they share as long as they are near one
        // another: those that begin one after the other are, those that each take many tiles drift apart.
        const bool of_neighbours = std::ranges::any_of(d.reads, [](const LaunchRead& read) {
            return std::ranges::any_of(read.offset, [](int step) { return step != 0; });
        });
        const std::int64_t rounds = of_neighbours ? 16 : beside_exchange ? 4 : 1;
        blocks = std::min(blocks, rounds * resident_blocks_);
    }
    if (d.waves > 0 && !beside_exchange) blocks = std::min(blocks, d.waves * resident_blocks_);
    const DeviceSpan span(*gpu_, stream, phase, d.cost.name, d.cost.of(positions.size()));
    // Exchange, bulk, boundary: a bulk that fills the device does not delay an exchange, and the boundary
    // uses the places that the end of the bulk leaves.
    const LaunchPriority priority = beside_exchange            ? LaunchPriority::middle
                                    : phase == Phase::boundary ? LaunchPriority::last
                                                               : LaunchPriority::of_stream;
    gpu_->launch(d.gpu_kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(d.threads),
                 std::as_bytes(std::span(arguments_)), stream, priority);
}

void GpuLaunch::prepare() {
    make_ready();
    for (FieldStorage* field : borrowed_) field->await_owner();
    totals_are_zero_ = false;
    fill_parameters();
}

void GpuLaunch::compute() {
    enqueue(whole_, 0, Phase::kernel, gpu_->stream());
}

void GpuLaunch::drop_exchanges() {
    if (recorded_) {
        recorded_plans_.push_back(std::move(plans_));
        recorded_indirect_.push_back(std::move(indirect_plans_));
    }
    plans_.clear();
    indirect_plans_.clear();
    first_run_.forget();
}

// Contributions to sums lie part by part.
class GpuLaunch::Computation : public HaloComputation {
  public:
    Computation(GpuLaunch& launch, LaunchPlan& plan) : launch_(launch), plan_(plan) {}

    bool has_bulk() const override { return plan_.bulk.size() > 0; }
    bool has_roles() const override { return true; }
    // A short bulk leaves few places before it ends, and joining the streams once more takes as long.
    bool boundary_fills() const override {
        constexpr int long_waves = 4;
        return launch_.gpu_->has_priorities() &&
               launch_.blocks_for(plan_.bulk) > long_waves * launch_.resident_blocks_;
    }
    void bulk(void* stream) override { launch_.enqueue(plan_.bulk, 0, Phase::bulk, stream); }
    void boundary(int stage, void* stream) override {
        launch_.enqueue(plan_.boundary[stage], first_of(stage),
                        launch_.definition_.policy->overlap ? Phase::boundary : Phase::kernel, stream);
    }

    // Waiting blocks are the last. They take half of the places at most, but one at least, and together with
    // packing blocks, which wait for other ranks too (HaloRoles), leave one: the bulk always gets a place if
    // the device has as many as why_not_resident requires.
    Roles roles(const Batch& batch) override {
        const std::int64_t resident = launch_.resident_with_halos();
        const auto& d = launch_.definition_;
        const auto blocks_of = [&](const Positions& positions) {
            const std::int64_t tile = std::int64_t{d.with_halos.threads} * d.with_halos.sites;
            return d.blocks_of(positions.size(), tile);
        };
        Roles roles;
        roles.resident_blocks = resident;
        HaloRoles& blocks = roles.blocks;
        if (batch.has(StepRole::bulk)) {
            blocks.bulk_blocks = blocks_of(plan_.bulk);
            if (d.sums.in_kernel_reduction) blocks.bulk_blocks = std::min(blocks.bulk_blocks, 16 * resident);
        }
        if (batch.has(StepRole::boundary)) {
            const Positions& late = plan_.boundary[batch.stage];
            // at least one waits for data that later launches may read
            blocks.late_blocks =
                std::clamp<std::int64_t>(blocks_of(late), 1, std::max<std::int64_t>(1, (resident - 1) / 2));
            blocks.begin = late.begin;
            blocks.end = late.end;
            blocks.blocks = late.blocks.address();
            if (d.sums.count > 0 && !d.sums.in_kernel_reduction)
                blocks.sums = launch_.contributions_.address() + first_of(batch.stage) * sizeof(double);
        }
        return roles;
    }
    void launch(const Batch& batch, const HaloRoles& roles, void* stream) override {
        const auto& d = launch_.definition_;
        launch_.set_positions(plan_.bulk, 0);
        const auto& words = launch_.arguments_;
        std::vector<std::byte> bytes(words.size() * sizeof(std::uint64_t) + sizeof roles);
        std::memcpy(bytes.data(), words.data(), bytes.size() - sizeof roles);
        std::memcpy(bytes.data() + bytes.size() - sizeof roles, &roles, sizeof roles);
        const bool bulk = batch.has(StepRole::bulk), late = batch.has(StepRole::boundary);
        const std::int64_t sites =
            (bulk ? plan_.bulk.size() : 0) + (late ? plan_.boundary[batch.stage].size() : 0);
        const Phase phase = bulk && late ? Phase::kernel : bulk ? Phase::bulk : Phase::boundary;
        const DeviceSpan span(*launch_.gpu_, stream, phase, d.cost.name, d.cost.of(sites));
        launch_.gpu_->launch(d.with_halos.function, static_cast<unsigned>(roles.grid()),
                             static_cast<unsigned>(d.with_halos.threads), bytes, stream,
                             LaunchPriority::of_stream);
    }

  private:
    std::int64_t first_of(int stage) const { // contribution
        std::int64_t first = plan_.bulk.size();
        for (int s = 0; s < stage; ++s) first += plan_.boundary[s].size();
        return first;
    }
    GpuLaunch& launch_;
    LaunchPlan& plan_;
};

void GpuLaunch::compute_between(const std::vector<char>& stale) {
    recorded_ = recorded_ || gpu_->is_capturing(gpu_->stream());
    with_exchange(stale, [](GpuExchange& exchange, HaloComputation& around) { exchange.run(around); });
}

void GpuLaunch::with_exchange(const std::vector<char>& stale, const ExchangeFunction& f) {
    where_mapped([&] {
        LaunchPlan& plan = plan_for(stale);
        refuse_unless_resident(why_not_resident(plan)); // the kernel may be compiled otherwise by now
        Computation computation(*this, plan);
        f(*plan.exchange, computation);
    });
}

void GpuLaunch::refuse_unless_resident(const std::string& trouble) const {
    if (!trouble.empty())
        throw GpuError("halo policy " + definition_.policy->name + " is not possible here: " + trouble);
}

// By another transport where a field cannot be mapped.
void GpuLaunch::where_mapped(const std::function<void()>& exchange) {
    for (;;) {
        try {
            return exchange();
        } catch (const CannotMap& error) { // thrown before any work is started
            if (!definition_.any_policy || definition_.policy->transport->where_unmapped == nullptr) throw;
            drop_exchanges();
            fall_back(definition_.policy->transport->where_unmapped, error.what());
        }
    }
}

// Switches to another transport with the same order, if no policy was requested; the same on all ranks.
void GpuLaunch::fall_back(const HaloTransport* transport, const std::string& trouble) {
    auto& d = definition_;
    d.policy = &with_transport(*d.policy, *transport, d.layout->vendor());
    if (d.communicator->rank() != 0) return;
    report_once("halos between devices go by way of " + std::string(transport->via) + " (policy " +
                d.policy->name + "), since " + trouble);
}

void GpuLaunch::settle_transport(LocalLayout& layout) {
    const auto& d = definition_;
    const HaloTransport& transport = *d.policy->transport;
    if (!d.any_policy || transport.where_unreached == nullptr) return;
    const std::string& trouble = layout.why_not(transport, *d.communicator);
    if (!trouble.empty()) fall_back(transport.where_unreached, trouble);
}

// In checked mode the driver calls of every rank are checked before the first run. A launch without halos may
// belong to one rank only.
void GpuLaunch::check_once() {
    if (first_run_.proved() || !first_runs_are_proved() || !has_halos() || gpu_->is_capturing(gpu_->stream()))
        return;
    first_run_.prove_by([this] { check(); });
}

GpuAddress GpuLaunch::run_kernel() {
    check_once();
    prepare();
    if (!indirect_.empty()) first_run_.begins();
    exchange_indirect();
    GpuAddress order = whole_order_.address();
    if (requests_.empty() || !find_stale()) {
        compute();
    } else {
        first_run_.begins();
        compute_between(stale_);
        order = plan_for(stale_).order.address();
    }
    mark_written();
    for (FieldStorage* field : borrowed_) field->let_owner_go_on();
    return order;
}

void GpuLaunch::run(double* sums) {
    const CallScope call(definition_.policy->name);
    const HostSpan span(Phase::launch, definition_.cost.name);
    const GpuAddress order = run_kernel();
    if (definition_.sums.count > 0) reduce(sums, order);
}

void GpuLaunch::run_leaving_sums() {
    const auto& d = definition_;
    if (d.sums.count == 0) Launch::run_leaving_sums();
    const CallScope call(d.policy->name);
    const HostSpan span(Phase::launch, d.cost.name);
    const GpuAddress order = run_kernel();
    if (!d.sums.in_kernel_reduction) deposit(order);
}

void GpuLaunch::make_ready() {
    const CurrentGpu current(*gpu_);
    if (definition_.sums.count > 0 && !totals_are_zero_) {
        gpu_->fill(totals_.address(), 0, totals_.size());
        totals_are_zero_ = true;
    }
    for (FieldStorage* field : touched_) field->reserve_ghosts();
    definition_.layout->on_device(); // its tables
}

std::vector<double> GpuLaunch::time(int repetitions, const std::function<void()>& work) {
    std::vector<std::unique_ptr<GpuEvent>> events;
    for (int k = 0; k <= repetitions; ++k) events.push_back(std::make_unique<GpuEvent>(gpu_, true));
    events[0]->record(gpu_->stream());
    for (int k = 0; k < repetitions; ++k) {
        work();
        events[k + 1]->record(gpu_->stream());
    }
    gpu_->synchronize();
    std::vector<double> seconds;
    for (int k = 0; k < repetitions; ++k) seconds.push_back(events[k + 1]->seconds_since(*events[k]));
    return seconds;
}

void GpuLaunch::deposit(GpuAddress order) {
    const auto& d = definition_;
    DepositArguments arguments{contributions_.address(), whole_.size(),   order,           starts_.address(),
                               d.sums.nslices,           d.sums.count,    deposit_blocks_, totals_.address(),
                               terms_.address(),         d.sums.results()};
    const std::int64_t jobs = static_cast<std::int64_t>(d.sums.nslices) * d.sums.count * deposit_blocks_;
    const DeviceSpan span(*gpu_, gpu_->stream(), Phase::sums, d.cost.name);
    gpu_->launch(gpu_->builtin("deposit"), static_cast<unsigned>(std::min<std::int64_t>(jobs, 1 << 20)),
                 deposit_threads, arguments, gpu_->stream());
}

void GpuLaunch::reduce(double* sums, GpuAddress order) {
    const auto& d = definition_;
    const auto accumulators = static_cast<std::size_t>(d.sums.nslices) * d.sums.results();
    if (!d.sums.in_kernel_reduction) deposit(order);
    // a kernel stores them into the host's memory sooner than a copy would
    HandOverArguments arguments{totals_.address(), reinterpret_cast<GpuAddress>(totals_here_.data()),
                                static_cast<std::int64_t>(reduced_.size()), ++turn_};
    const std::int64_t hand_over_blocks = (arguments.count + deposit_threads - 1) / deposit_threads;
    gpu_->launch(gpu_->builtin("hand_over"),
                 static_cast<unsigned>(std::min<std::int64_t>(hand_over_blocks, 256)), deposit_threads,
                 arguments, gpu_->stream());
    totals_are_zero_ = true;
    const auto* here = reinterpret_cast<const std::int64_t*>(totals_here_.data());
    gpu_->wait_for_word(here + reduced_.size(), turn_);
    const HostSpan span(Phase::sums, d.cost.name);
    std::copy_n(here, reduced_.size(), reduced_.data());
    std::vector<std::uint64_t> keys;
    for (std::size_t k = 0; d.sums.has_extremes() && k < accumulators; ++k)
        keys.push_back(static_cast<std::uint64_t>(reduced_[k * BinnedSum::words]));
    if (d.communicator->size() > 1 && d.sums.has_sums())
        d.communicator->all_reduce_sum(reduced_, d.cost.name);
    if (d.sums.has_extremes()) meet_extremes(keys);
    left_out_.clear();
    for (int g = 0; g < d.sums.groups(); ++g)
        left_out_.push_back(reduced_[(accumulators + g) * BinnedSum::words]);
    for (std::size_t k = 0; k < accumulators; ++k) {
        const SiteReduction how = d.sums.reduction(k);
        sums[k] = how != SiteReduction::sum ? Extreme::number(keys[k], how)
                                            : BinnedSum::value_of_words(std::span(reduced_).subspan(
                                                  k * BinnedSum::words, BinnedSum::words));
    }
}

GpuLaunch::LaunchPlan& GpuLaunch::plan_for(const std::vector<char>& stale) {
    auto [found, fresh] = plans_.try_emplace(stale);
    LaunchPlan& plan = found->second;
    if (!fresh) return plan;
    auto& d = definition_;
    try {
        settle_transport(*d.layout);
        plan.exchange =
            std::make_unique<GpuExchange>(d.layout, requests_, stale, *d.policy, d.communicator, d.writes);
        const int stages = plan.exchange->stages();
        std::vector<std::vector<std::int32_t>> sets(static_cast<std::size_t>(stages) + 1);
        if (d.policy->overlap) {
            const std::vector<int> late = late_directions(stale);
            for (std::int64_t p = 0; p < d.domain.size(); ++p) {
                int set = 0;
                while (late[p] >= 0 && (set == 0 || late[p] > plan.exchange->direction_of(set - 1))) ++set;
                sets[set].push_back(block_at(p));
            }
        } else {
            for (std::int64_t p = 0; p < d.domain.size(); ++p) sets.back().push_back(block_at(p));
        }
        plan.bulk = positions_of(sets[0]);
        for (int s = 1; s <= stages; ++s) plan.boundary.push_back(positions_of(sets[s]));
        if (d.policy->in_kernel())
            refuse_unless_resident(
                first_reported(*d.communicator, why_not_resident(plan), "places for halos"));
        if (!d.sums.slice.empty()) {
            std::vector<std::int32_t> all;
            for (const auto& set : sets) all.insert(all.end(), set.begin(), set.end());
            plan.order = order_by_slice(all);
        }
    } catch (...) {
        plans_.erase(found);
        throw;
    }
    return plan;
}

void GpuLaunch::warm_up() {
    make_ready();
    check_once();
    for_each_stale_indirect([this](const IndirectHalos& halos) {
        with_exchange(halos, [](GpuExchange& exchange, HaloComputation& none) { exchange.warm_up(none); });
    });
    if (!requests_.empty() && find_stale())
        with_exchange(stale_,
                      [](GpuExchange& exchange, HaloComputation& around) { exchange.warm_up(around); });
    mark_written();
}

void GpuLaunch::exchange_indirect(const IndirectHalos& halos) {
    recorded_ = recorded_ || gpu_->is_capturing(gpu_->stream());
    with_exchange(halos, [](GpuExchange& exchange, HaloComputation& none) { exchange.run(none); });
}

void GpuLaunch::with_exchange(const IndirectHalos& halos, const ExchangeFunction& f) {
    auto& d = definition_;
    where_mapped([&] {
        auto& exchange = indirect_plans_[{&halos, halos.stale}];
        if (!exchange) {
            settle_transport(*halos.layout);
            exchange = std::make_unique<GpuExchange>(halos.layout, halos.requests, halos.stale, *d.policy,
                                                     d.communicator, decltype(d.writes)());
        }
        HaloComputation nothing;
        f(*exchange, nothing);
    });
}

void GpuLaunch::check() {
    LaunchTrial trial(*this);
    RecordedCalls recorded = trial.record(); // of no calls where there are no halos
    trial.finish();
    check_together(recorded, *definition_.communicator);
}

Schedule GpuLaunch::schedule() {
    const std::vector<char> all = all_of(requests_);
    if (std::find(all.begin(), all.end(), 1) == all.end()) return {};
    Schedule steps;
    with_exchange(all, [&](GpuExchange& exchange, HaloComputation&) { steps = exchange.schedule(); });
    return steps;
}

std::string GpuLaunch::describe() {
    LaunchTrial trial(*this);
    RecordedCalls recorded = trial.record();
    const auto end = std::find_if(recorded.calls.begin(), recorded.calls.end(), [](const DriverCall& call) {
        return call.kind == DriverCall::Kind::mark && call.name == "end";
    }); // of the first run: the others are given the same
    recorded.calls.erase(end, recorded.calls.end());
    const std::string calls = recorded.describe();
    if (calls.empty()) return "kernel: compute (no halos)\n";
    const auto plan = plans_.find(all_of(requests_));
    if (plan == plans_.end()) return calls;
    return plan->second.exchange->describe() + "given to the driver:\n" + calls;
}

} // namespace jali
