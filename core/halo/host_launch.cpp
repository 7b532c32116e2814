#include "halo/host_launch.hpp"
#include "schedule/scheduled_events.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

namespace jali {

namespace {

constexpr std::int64_t largest_piece = 256;       // positions between two tests of messages
constexpr std::int64_t contribution_reals = 4096; // per thread: 32 KiB, which stay in its first caches

// Eight sums side by side, since each addition would wait for the one before.
double plain_sum(const double* values, std::int64_t n) {
    double parts[8] = {}, rest = 0;
    const std::int64_t whole = n & ~std::int64_t{7};
    for (std::int64_t i = 0; i < whole; i += 8) {
        for (int k = 0; k < 8; ++k) parts[k] += values[i + k];
    }
    for (auto i = whole; i < n; ++i) rest += values[i];
    return ((parts[0] + parts[4]) + (parts[1] + parts[5])) + ((parts[2] + parts[6]) + (parts[3] + parts[7])) +
           rest;
}

} // namespace

HostLaunch::HostLaunch(LaunchDefinition definition) : Launch(std::move(definition)) {
    auto& d = definition_;
    workers_.resize(d.pool->threads());
    for (auto& worker : workers_) {
        worker.parameters.resize(d.nparameters);
        worker.counters.resize(d.ncounters);
    }
    prepare_sums();
    body_ = [this](int thread, std::int64_t begin, std::int64_t end) { run_piece(thread, begin, end); };
}

void HostLaunch::prepare_sums() {
    const auto& d = definition_;
    const auto& sums = d.sums;
    if (sums.count == 0) return;
    const std::int64_t lanes = visited().lanes;
    const int reals = sums.count + sums.labels;
    chunk_ = std::max<std::int64_t>(contribution_reals / (reals * lanes), 8);
    const auto accumulators = static_cast<std::size_t>(sums.nslices) * sums.results();
    int buckets = sums.slice.empty() ? 0 : sums.nslices;
    for (const LaunchTerm& term : sums.terms) {
        if (term.label >= 0) buckets = std::max(buckets, term.entries + 1);
    }
    for (auto& worker : workers_) {
        worker.contributions = Arena::host().allocate(reals * chunk_ * lanes * sizeof(double), "sums");
        if (sums.has_extremes()) worker.keys.resize(accumulators);
        if (sums.has_sums() && sums.fast) worker.plain.resize(accumulators);
        if (sums.has_sums() && !sums.fast) worker.binned.resize(accumulators);
        if (buckets > 0) {
            worker.sorted.resize(chunk_ * lanes);
            worker.target.resize(chunk_ * lanes);
            worker.ends.resize(buckets);
        }
        worker.left_out.resize(sums.groups());
    }
    if (sums.has_sums() && !sums.fast && d.communicator->size() > 1)
        reduced_.resize(accumulators * BinnedSum::words);
}

// Where no rank's memory is reached halos are messages, unless a policy was requested by name; the same on
// all ranks.
void HostLaunch::settle_transport() {
    auto& d = definition_;
    const HaloTransport& transport = *d.policy->transport;
    const std::string& trouble = d.layout->why_not(transport, *d.communicator);
    if (trouble.empty()) return;
    if (!d.any_policy)
        throw TransportError("halo policy " + d.policy->name + " is not possible here: " + trouble);
    d.policy = &with_transport(*d.policy, *transport.where_unreached, nullptr);
}

HostLaunch::LaunchPlan& HostLaunch::plan_for(const std::vector<char>& stale) {
    settle_transport();
    auto [found, fresh] = plans_.try_emplace(stale);
    LaunchPlan& plan = found->second;
    if (!fresh) return plan;
    const auto& d = definition_;
    const auto& domain = d.domain;
    if (d.policy->overlap) {
        const std::vector<int> late = late_directions(stale);
        for (std::int64_t p = 0; p < domain.size(); ++p) {
            auto& part = plan.parts[late[p] >= 0 ? 1 : 0];
            part.blocks.push_back(block_at(p));
            if (!domain.masks.empty()) part.masks.push_back(domain.masks[p]);
        }
    } else {
        plan.parts[0] = domain;
    }
    std::vector<FieldStorage*> written;
    for (const auto& [field, parities] : d.writes) written.push_back(field.get());
    plan.exchange = std::make_unique<HaloExchange>(
        d.layout, requests_, stale, *d.policy, d.policy->overlap, d.communicator, d.pool, written,
        [this, &plan](int part, const Progress* progress) { run_part(plan, part, progress); });
    return plan;
}

void HostLaunch::run_part(LaunchPlan& plan, int part, const ThreadPool::Progress* progress) {
    const bool bulk = definition_.policy->overlap && part == 0;
    const Phase phase = bulk ? Phase::bulk : definition_.policy->overlap ? Phase::boundary : Phase::kernel;
    if (bulk ? switches_.bulk : switches_.boundary) run_domain(plan.parts[part], phase, progress);
}

void HostLaunch::run_with_halos(LaunchPlan& plan) {
    switches_ = halo_switches();
    if (!switches_.pack)
        throw std::invalid_argument("halo_off=pack: on the host packing is a part of the transport; "
                                    "leave out transport, bulk or boundary");
    if (switches_.transport) return plan.exchange->run();
    for (int part = 0; part < (definition_.policy->overlap ? 2 : 1); ++part) run_part(plan, part, nullptr);
    plan.exchange->leave_out();
}

void HostLaunch::exchange_indirect(const IndirectHalos& halos) {
    settle_transport();
    auto& exchange = indirect_plans_[{halos.layout.get(), halos.stale}];
    if (!exchange)
        exchange = std::make_unique<HaloExchange>(
            halos.layout, halos.requests, halos.stale, *definition_.policy, false, definition_.communicator,
            definition_.pool, std::vector<FieldStorage*>(), [](int, const Progress*) {});
    if (halo_switches().transport) return exchange->run();
    exchange->leave_out();
}

HaloExchange* HostLaunch::full_exchange() {
    const std::vector<char> all = all_of(requests_);
    if (std::find(all.begin(), all.end(), 1) == all.end()) return nullptr;
    return plan_for(all).exchange.get();
}

void HostLaunch::check() {
    prepare(); // room for ghosts, which have addresses then
    if (HaloExchange* exchange = full_exchange())
        prove_together(*definition_.communicator, [&] { return exchange->events(); });
}

std::string HostLaunch::describe() {
    const HaloExchange* exchange = full_exchange();
    return exchange ? exchange->schedule().describe() : "kernel: compute (no halos)\n";
}

Schedule HostLaunch::schedule() {
    const HaloExchange* exchange = full_exchange();
    return exchange ? exchange->schedule() : Schedule();
}

Work HostLaunch::work_of(const LaunchDomain& domain) const {
    std::int64_t sites = domain.size() * visited().lanes;
    if (!domain.masks.empty()) {
        sites = 0;
        for (std::uint32_t mask : domain.masks) sites += std::popcount(mask);
    }
    return definition_.cost.of(sites);
}

void HostLaunch::run_domain(const LaunchDomain& domain, Phase phase, const ThreadPool::Progress* progress) {
    const auto size = domain.size();
    if (size == 0) return;
    const HostSpan span(phase, definition_.cost.name, watched() ? work_of(domain) : Work{});
    const bool listed = !domain.blocks.empty();
    for (auto& worker : workers_) {
        worker.parameters[0] = listed ? reinterpret_cast<std::uint64_t>(domain.blocks.data()) : 0;
        worker.parameters[1] =
            domain.masks.empty() ? 0 : reinterpret_cast<std::uint64_t>(domain.masks.data());
    }
    // Masks are per position; for a range of blocks positions are blocks, so the masks start at its first.
    if (!listed && !domain.masks.empty()) {
        for (auto& worker : workers_) worker.parameters[1] -= domain.begin * sizeof(std::uint32_t);
    }
    running_ = &domain;
    const auto begin = listed ? 0 : domain.begin;
    const auto grain =
        std::clamp<std::int64_t>(size / (8 * static_cast<std::int64_t>(workers_.size())), 16, largest_piece);
    definition_.pool->parallel_for(begin, begin + size, grain, body_, progress);
}

void HostLaunch::run_piece(int thread, std::int64_t begin, std::int64_t end) {
    Worker& worker = workers_[thread];
    if (definition_.sums.count == 0) {
        definition_.kernel(worker.parameters.data(), begin, end);
        return;
    }
    worker.used = true;
    worker.parameters[2] = reinterpret_cast<std::uint64_t>(worker.contributions.data());
    worker.parameters[3] = static_cast<std::uint64_t>(chunk_);
    for (auto b = begin; b < end; b += chunk_) {
        const auto e = std::min(end, b + chunk_);
        definition_.kernel(worker.parameters.data(), b, e);
        deposit(worker, b, e);
    }
}

const double* HostLaunch::contributions(const Worker& worker, int term) const {
    return worker.contributions.as<double>() + term * chunk_ * visited().lanes;
}

// Lanes that are no sites of the domain change nothing; their labels are of the first entry, to which they
// add zero.
void HostLaunch::mask_out(Worker& worker, const std::uint32_t* masks, std::int64_t n) const {
    const auto& sums = definition_.sums;
    const std::int64_t lanes = visited().lanes;
    for (int k = 0; k < sums.count + sums.labels; ++k) {
        double* values = worker.contributions.as<double>() + k * chunk_ * lanes;
        const double neutral = k < sums.count ? Extreme::neutral(sums.reduction(sums.term(k).first)) : 0;
        for (std::int64_t i = 0; i < n; ++i) {
            if ((masks[i / lanes] >> (i % lanes) & 1) == 0) values[i] = neutral;
        }
    }
}

void HostLaunch::add(Worker& worker, std::size_t result, const double* values, std::int64_t n) const {
    const auto& sums = definition_.sums;
    if (const SiteReduction how = sums.reduction(result); how != SiteReduction::sum) {
        Extreme::raise(worker.keys[result], how, values, n);
    } else if (sums.fast) {
        worker.plain[result] += plain_sum(values, n);
    } else {
        worker.binned[result].deposit(values, n);
    }
}

void HostLaunch::sort(Worker& worker, std::int64_t n) {
    auto& ends = worker.ends;
    for (std::int32_t bucket : worker.buckets) ends[bucket] = 0;
    worker.buckets.clear();
    if (static_cast<std::int64_t>(ends.size()) <=
        n) { // a scan of all buckets is faster than a test for every value
        for (std::int64_t i = 0; i < n; ++i) ++ends[worker.target[i]];
        for (std::size_t bucket = 0; bucket < ends.size(); ++bucket) {
            if (ends[bucket] > 0) worker.buckets.push_back(static_cast<std::int32_t>(bucket));
        }
    } else {
        for (std::int64_t i = 0; i < n; ++i) {
            if (ends[worker.target[i]]++ == 0) worker.buckets.push_back(worker.target[i]);
        }
    }
    std::int32_t start = 0;
    for (std::int32_t bucket : worker.buckets) start += std::exchange(ends[bucket], start);
    for (std::int64_t i = 0; i < n; ++i) worker.target[i] = ends[worker.target[i]]++;
}

std::int64_t HostLaunch::add_sorted(Worker& worker, std::int64_t n, int term, int buckets, std::size_t first,
                                    std::size_t step) {
    const double* values = contributions(worker, term);
    for (std::int64_t i = 0; i < n; ++i) worker.sorted[worker.target[i]] = values[i];
    std::int64_t begin = 0, left_out = 0;
    for (std::int32_t bucket : worker.buckets) {
        const std::int64_t end = worker.ends[bucket];
        if (bucket < buckets) {
            add(worker, first + bucket * step, worker.sorted.data() + begin, end - begin);
        } else {
            left_out += end - begin;
        }
        begin = end;
    }
    return left_out;
}

void HostLaunch::deposit(Worker& worker, std::int64_t begin, std::int64_t end) {
    const auto& sums = definition_.sums;
    const std::int64_t lanes = visited().lanes, n = (end - begin) * lanes;
    if (const auto* masks = reinterpret_cast<const std::uint32_t*>(worker.parameters[1]))
        mask_out(worker, masks + begin, n);
    if (sums.slice.empty()) {
        for (int k = 0; k < sums.count; ++k) {
            if (const LaunchTerm term = sums.term(k); term.label < 0)
                add(worker, term.first, contributions(worker, k), n);
        }
        return deposit_labelled(worker, n);
    }
    const bool listed = !running_->blocks.empty();
    for (auto p = begin; p < end; ++p) {
        const auto* slices = sums.slice.data() + (listed ? running_->blocks[p] : p) * lanes;
        std::copy_n(slices, lanes, worker.target.begin() + (p - begin) * lanes);
    }
    sort(worker, n);
    for (int k = 0; k < sums.count; ++k)
        add_sorted(worker, n, k, sums.nslices, sums.term(k).first, sums.results());
}

void HostLaunch::deposit_labelled(Worker& worker, std::int64_t n) {
    const auto& sums = definition_.sums;
    LaunchTerm before; // the chunk is sorted by its label
    for (int k = 0; k < sums.count; ++k) {
        const LaunchTerm term = sums.term(k);
        if (term.label < 0) continue;
        if (term.label != before.label || term.entries != before.entries) {
            const double* labels = contributions(worker, sums.count + term.label);
            for (std::int64_t i = 0; i < n; ++i) {
                const auto label = std::bit_cast<std::int64_t>(labels[i]);
                worker.target[i] =
                    label < 0 || label >= term.entries ? term.entries : static_cast<std::int32_t>(label);
            }
            sort(worker, n);
        }
        const auto left_out = add_sorted(worker, n, k, term.entries, term.first, 1);
        if (term.group != before.group)
            worker.left_out[term.group] += left_out; // one group's terms are together
        before = term;
    }
}

void HostLaunch::reduce(double* sums) {
    if (definition_.sums.has_sums()) reduce_sums(sums);
    if (definition_.sums.has_extremes()) reduce_extremes(sums);
    if (definition_.sums.labels > 0) count_left_out();
}

void HostLaunch::count_left_out() {
    left_out_.assign(definition_.sums.groups(), 0);
    for (const Worker& worker : workers_) {
        for (std::size_t g = 0; worker.used && g < left_out_.size(); ++g) left_out_[g] += worker.left_out[g];
    }
    if (definition_.communicator->size() > 1)
        definition_.communicator->all_reduce_sum(left_out_, definition_.cost.name);
}

void HostLaunch::reduce_extremes(double* sums) {
    auto& keys = workers_[0].keys;
    for (std::size_t w = 1; w < workers_.size(); ++w) {
        for (std::size_t k = 0; workers_[w].used && k < keys.size(); ++k)
            keys[k] = std::max(keys[k], workers_[w].keys[k]);
    }
    meet_extremes(keys);
    for (std::size_t k = 0; k < keys.size(); ++k) {
        const SiteReduction how = definition_.sums.reduction(k);
        if (how != SiteReduction::sum) sums[k] = Extreme::number(keys[k], how);
    }
}

void HostLaunch::reduce_sums(double* sums) {
    const auto& d = definition_;
    const auto accumulators = static_cast<std::size_t>(d.sums.nslices) * d.sums.results();
    const bool alone = d.communicator->size() == 1;
    if (d.sums.fast) {
        std::fill(sums, sums + accumulators, 0.0);
        for (const auto& worker : workers_) {
            for (std::size_t k = 0; worker.used && k < accumulators; ++k) sums[k] += worker.plain[k];
        }
        if (alone) return;
        const auto parts =
            d.communicator->all_gather(std::as_bytes(std::span(sums, accumulators)), d.cost.name);
        std::fill(sums, sums + accumulators, 0.0);
        for (std::size_t r = 0; r < parts.size(); ++r) {
            const auto& part = parts[r];
            check_bytes(part, accumulators * sizeof(double), static_cast<int>(r), d.cost.name);
            for (std::size_t k = 0; k < accumulators; ++k) {
                double value;
                std::memcpy(&value, part.data() + k * sizeof value, sizeof value);
                sums[k] += value;
            }
        }
        return;
    }
    auto& total = workers_[0].binned;
    for (std::size_t w = 1; w < workers_.size(); ++w) {
        for (std::size_t k = 0; workers_[w].used && k < accumulators; ++k)
            total[k].merge(workers_[w].binned[k]);
    }
    if (alone) {
        for (std::size_t k = 0; k < accumulators; ++k) sums[k] = total[k].value();
        return;
    }
    auto words_of = [&](std::size_t k) {
        return std::span(reduced_).subspan(k * BinnedSum::words, BinnedSum::words);
    };
    for (std::size_t k = 0; k < accumulators; ++k) total[k].write_words(words_of(k));
    d.communicator->all_reduce_sum(reduced_, d.cost.name);
    for (std::size_t k = 0; k < accumulators; ++k) sums[k] = BinnedSum::value_of_words(words_of(k));
}

void HostLaunch::prepare() {
    const auto& d = definition_;
    for (FieldStorage* field : touched_) field->reserve_ghosts(d.pool.get());
    Worker& first = workers_[0];
    std::memcpy(first.parameters.data(), d.parameters, d.nparameters * sizeof(std::uint64_t));
    fill_standard_parameters(first.parameters.data(), *d.layout, nullptr);
    const VisitedBlocks blocks = visited();
    first.parameters[4] = reinterpret_cast<std::uint64_t>(blocks.coordinates->data());
    first.parameters[5] = reinterpret_cast<std::uint64_t>(blocks.lane_offsets->data());
    for (const auto& [index, field] : d.patches)
        first.parameters[index] = reinterpret_cast<std::uint64_t>(field->data());
    for (const auto& [index, field] : d.away)
        first.parameters[index] = static_cast<std::uint64_t>(field->ghosts_away());
    for (std::size_t w = 1; w < workers_.size(); ++w) {
        std::memcpy(workers_[w].parameters.data(), first.parameters.data(),
                    d.nparameters * sizeof(std::uint64_t));
    }
    if (d.ncounters > 0 || d.sums.count > 0) {
        for (auto& worker : workers_) {
            worker.used = false;
            worker.parameters[6] = reinterpret_cast<std::uint64_t>(worker.counters.data());
            std::fill(worker.counters.begin(), worker.counters.end(), 0);
            std::fill(worker.plain.begin(), worker.plain.end(), 0.0);
            std::fill(worker.keys.begin(), worker.keys.end(), Extreme::none);
            for (auto& sum : worker.binned) sum.clear();
            std::fill(worker.left_out.begin(), worker.left_out.end(), 0);
        }
    }
}

void HostLaunch::run(double* sums) {
    const auto& d = definition_;
    const CallScope call(d.policy->name);
    prepare();
    exchange_indirect();
    if (requests_.empty() || !find_stale()) {
        compute();
    } else {
        compute_between(stale_);
    }
    mark_written();
    if (d.ncounters > 0) {
        for (const auto& worker : workers_) counters_->add(worker.counters);
    }
    if (d.sums.count > 0) {
        const HostSpan span(Phase::sums, d.cost.name);
        reduce(sums);
    }
}

std::vector<double> HostLaunch::time(int repetitions, const std::function<void()>& work) {
    std::vector<double> seconds;
    for (int k = 0; k < repetitions; ++k) {
        const auto start = std::chrono::steady_clock::now();
        work();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
}

} // namespace jali
