#include "running/device_collectives.hpp"
#include "device/ccl_api.hpp"
#include "device/gpu_compiler.hpp"
#include "planning/algorithms.hpp"
#include "running/collective_kernel.hpp"
#include "running/compared_calls.hpp"
#include "schedule/first_run.hpp"
#include "settings/counted.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace jali {

namespace {

bool takes(const CollectiveTransport& entry, const CollectiveCall& call) {
    return call.operation != Operation::user || entry.rules.user_operations;
}

} // namespace

void refuse_other_ranks(const Composition& composition, int ranks) {
    if (ranks != composition.ranks())
        throw CollectiveError("a plan for " + counted(composition.ranks(), "rank") + " cannot run on " +
                              std::to_string(ranks));
}

DeviceCollectives::DeviceCollectives(std::shared_ptr<Gpu> gpu,
                                     const std::shared_ptr<Communicator>& communicator, Hosts hosts,
                                     LibraryVersions versions, RunsOnHost on_host)
    : ranks_{std::move(gpu), communicator, communicator->duplicate(), std::move(on_host)}, within_(ranks_),
      hosts_(std::move(hosts)), versions_(std::move(versions)) {
    within_.wanted.assign(static_cast<std::size_t>(communicator->size()), 0);
    for (const std::vector<int>& host : hosts_) {
        ranks_of_hosts_.push_back(static_cast<int>(host.size()));
        if (std::ranges::find(host, communicator->rank()) == host.end()) continue;
        for (const int rank : host) within_.wanted[static_cast<std::size_t>(rank)] = 1;
    }
    const GpuVendor& vendor = ranks_.gpu->vendor();
    why_no_kernels_ = first_reported(*ranks_.control, GpuCompiler::why_not(vendor), "setting up collectives");
    for (const CollectiveTransport* entry : collective_transports()) {
        if (entry->of_library() && vendor.ccl.setting.empty()) continue; // this vendor has no library
        entries_.push_back({name_of(*entry, &vendor), entry, &ranks_, nullptr, ""});
        if (!entry->rules.costly) open(entries_.back());
    }
    for (const TransportEntry& entry : entries_)
        if (entry.spec->traits.maps_memory && are_nested(hosts_))
            inside_.push_back({entry.name, entry.spec, &within_, nullptr, ""});
}

const std::string& DeviceCollectives::open(TransportEntry& entry) {
    if (!entry.transport && entry.why_not.empty()) {
        // a transport that writes to peers' memory waits and signals by kernels
        if (entry.spec->traits.maps_memory && !why_no_kernels_.empty())
            return entry.why_not = why_no_kernels_;
        try {
            entry.transport = entry.spec->make(*entry.ranks);
        } catch (const GpuError& error) {
            entry.why_not = error.what();
        }
        if (auto queues = std::dynamic_pointer_cast<CollectiveQueues>(entry.transport))
            (entry.ranks == &ranks_ ? queues_ : within_queues_) = queues;
    }
    return entry.why_not;
}

DeviceCollectives::TransportEntry& DeviceCollectives::inside(TransportEntry& entry) {
    // a transport between all ranks also covers those of the host, and is shared with other plans
    if (entry.transport) return entry;
    const auto there =
        std::ranges::find_if(inside_, [&](const TransportEntry& r) { return r.name == entry.name; });
    return there != inside_.end() ? *there : entry;
}

DeviceCollectives::TransportEntry& DeviceCollectives::named(const std::string& name, bool as_library) {
    std::vector<std::string> known;
    for (TransportEntry& entry : entries_) {
        if (as_library && entry.spec->rules.carries == nullptr) continue;
        if (entry.name == name) return entry;
        known.push_back(entry.name);
    }
    std::string names;
    for (const std::string& one : known)
        names += (names.empty() ? "" : &one == &known.back() ? " and " : ", ") + one;
    throw PlanError(
        (as_library ? "library '" + name + "' carries no messages" : "'" + name + "' carries nothing") +
        " between these devices; " + names + (known.size() > 1 ? " do" : " does"));
}

std::string DeviceCollectives::why_not(TransportEntry& entry, const CollectiveCall& call) {
    if (!entry.spec->rules.itself) return "'" + entry.name + "' has no collectives itself";
    if (!takes(*entry.spec, call)) return "'" + entry.name + "' has no operations of the user";
    if (!open(entry).empty()) return entry.why_not;
    try {
        entry.transport->check(call);
    } catch (const GpuError& error) {
        return error.what();
    } catch (const CollectiveError& error) {
        return error.what();
    }
    return "";
}

// `closed`: the same, where it is not this call but the entry that is not possible here.
std::string DeviceCollectives::why_not(const AlgorithmSpec& spec, const CollectiveCall& call,
                                       std::string& closed) {
    const bool algorithm = find_algorithm(spec.name, call.collective, true) != nullptr;
    if (!algorithm &&
        std::ranges::none_of(entries_, [&](const TransportEntry& r) { return r.name == spec.name; }))
        return "'" + spec.name + "' is not for " + ranks_.gpu->kind() + " devices";
    if (std::string why = why_not_between(spec, call.collective, ranks_of_hosts_); !why.empty()) return why;
    if (!algorithm) {
        TransportEntry& entry = named(spec.name);
        if (!takes(*entry.spec, call)) return "'" + entry.name + "' has no operations of the user";
        if (!open(entry).empty()) return closed = entry.why_not;
        return why_not(entry, call);
    }
    const std::string& forced = settings().device_transport; // in any case
    for (const std::string& transport : {spec.transport, spec.between}) {
        if (transport.empty()) continue;
        if (std::ranges::none_of(entries_, [&](const TransportEntry& r) { return r.name == transport; }))
            return "'" + transport + "' is not for " + ranks_.gpu->kind() + " devices";
        if (!forced.empty() && transport != forced) return "'" + forced + "' is to carry all messages";
    }
    const Algorithm& algorithm_spec = *find_algorithm(spec.name, call.collective, true);
    auto [first, second] = transports_of(algorithm_spec, spec);
    if (first.empty()) { // the first of all transports, whether it is possible or not
        const auto carries = [](const TransportEntry& r) { return r.spec->rules.carries != nullptr; };
        first = forced.empty() ? std::ranges::find_if(entries_, carries)->name : forced;
    }
    std::vector<TransportEntry*> used{&named(first)};
    if (!second.empty()) used = {&inside(*used[0]), &named(second)};
    for (TransportEntry* const entry : used) {
        if (!takes(*entry->spec, call)) return "'" + entry->name + "' has no operations of the user";
        if (!why_no_kernels_.empty()) return closed = why_no_kernels_;
        if (!open(*entry).empty()) return closed = entry->why_not;
    }
    return "";
}

std::pair<std::string, std::string> DeviceCollectives::transports_of(const Algorithm& algorithm,
                                                                     const AlgorithmSpec& spec) {
    std::string first = spec.transport, second = spec.between.empty() ? spec.transport : spec.between;
    if (algorithm.hierarchy != Algorithm::Shape::hosts || !are_nested(hosts_))
        return {hosts_.size() > 1 ? second : first, ""};
    if (first.empty()) {
        first = default_transport(true);
        second = default_transport();
    }
    if (first == second) second.clear();
    return {first, second};
}

CollectiveChoice DeviceCollectives::algorithm_of(const CollectiveCall& call, bool persistent) {
    CollectiveChoice asked = requested_algorithm(call, true);
    const std::string& name = asked.spec.name;
    const bool of_others =
        algorithm_names().itself.contains(name) &&
        std::ranges::none_of(entries_, [&](const TransportEntry& entry) { return entry.name == name; });
    if (!name.empty() && !of_others) {
        std::string why =
            asked.spec.one_host ? why_not_between(asked.spec, call.collective, ranks_of_hosts_) : "";
        for (const std::string& transport : {asked.spec.transport, asked.spec.between})
            if (!transport.empty() && why.empty() &&
                std::ranges::none_of(entries_,
                                     [&](const TransportEntry& entry) { return entry.name == transport; }))
                why = "'" + transport + "' is not for " + ranks_.gpu->kind() + " devices";
        if (why.empty()) return asked;
        throw CollectiveError(std::string(name_of(call.collective)) + " on devices, " + asked.why + " as '" +
                              (asked.spec.written.empty() ? text_of(asked.spec) : asked.spec.written) +
                              "': " + why);
    }
    if (of_others && !call.algorithm.empty()) {
        const auto theirs =
            std::ranges::find_if(entries_, [](const TransportEntry& r) { return r.spec->of_library(); });
        throw CollectiveError(
            "algorithm '" + name + "' is not for " + ranks_.gpu->kind() + " devices; " +
            (theirs != entries_.end() ? "theirs is '" + theirs->name + "'" : "they have none"));
    }
    return choose(call, persistent);
}

CollectiveChoice DeviceCollectives::choose(const CollectiveCall& call, bool persistent) {
    const std::shared_ptr<const ChoiceRules> rules = collective_rules();
    if (rules->ask_for_devices_library()) find_library_version();
    CollectiveFacts facts = facts_of(call, ranks_of_hosts_, versions_, mpi_program_);
    facts.memory = ranks_.gpu->kind();
    facts.persistent = persistent;
    std::vector<std::string> closed;
    CollectiveChoice choice = rules->choose(facts, [&](const AlgorithmSpec& spec) {
        std::string reason;
        std::string why = why_not(spec, call, reason);
        const auto says_it = [&](const std::string& other) {
            return other.find(reason) != std::string::npos;
        };
        if (!reason.empty() && std::ranges::none_of(closed, says_it)) closed.push_back(reason);
        return why;
    });
    if (!closed.empty() && ranks_.control->rank() == 0) {
        std::string text = "collectives on devices go by way of '" + text_of(choice.spec) + "', since ";
        for (const std::string& reason : closed) text += (&reason == closed.data() ? "" : "; ") + reason;
        report_once(text);
    }
    return choice;
}

void DeviceCollectives::find_library_version() {
    const std::string& library = ranks_.gpu->vendor().ccl.setting;
    if (library.empty() || versions_.contains(library)) return;
    struct ReportedVersion {
        char version[32] = {};
        bool operator==(const ReportedVersion& other) const {
            return std::strcmp(version, other.version) == 0;
        }
    } mine;
    try {
        const std::string text = CclApi::get(ranks_.gpu->vendor(), "").version_text();
        std::strncpy(mine.version, text.c_str(), sizeof(mine.version) - 1);
    } catch (const GpuError&) { // entries of the library report why they are not possible
    }
    const auto all = gather_values(*ranks_.control, mine, "versions of the library of collectives");
    const bool alike = std::ranges::adjacent_find(all, std::not_equal_to<>()) == all.end();
    versions_.emplace(library, alike ? mine.version : "");
}

const std::string& DeviceCollectives::default_transport(bool inside_hosts) {
    if (const std::string& name = settings().device_transport; !name.empty()) return name;
    const TransportEntry* last = nullptr;
    for (TransportEntry& entry : entries_) {
        if (entry.spec->rules.carries == nullptr) continue;
        last = &entry;
        if (open(entry).empty() || (inside_hosts && open(inside(entry)).empty())) break;
    }
    return last->name;
}

std::shared_ptr<DevicePlan> DeviceCollectives::plan_of(const CollectiveCall& call, bool checked) {
    if (std::shared_ptr<DevicePlan> kept = find(call, checked)) return kept;
    std::shared_ptr<DevicePlan> made = make_plan(call, algorithm_of(call), checked);
    kept_[checked].add(call, made).reset();
    return made;
}

std::shared_ptr<DevicePlan> DeviceCollectives::persistent_plan(const CollectiveCall& call,
                                                               std::span<const GpuAddress> buffers) {
    const CollectiveChoice choice = algorithm_of(call, true);
    const bool algorithm = find_algorithm(choice.spec.name, call.collective, true) != nullptr;
    const auto into_arrays = [&] {
        const auto into = [&](const std::string& transport) {
            return named(transport.empty() ? default_transport() : transport).spec->rules.into_arrays;
        };
        const auto [first, second] =
            transports_of(*find_algorithm(choice.spec.name, call.collective, true), choice.spec);
        return into(first) || (!second.empty() && into(second));
    };
    if (!algorithm || !into_arrays()) {
        if (std::shared_ptr<DevicePlan> kept = in_graphs_.find(call)) return kept;
        std::shared_ptr<DevicePlan> made = make_plan(call, choice, false);
        in_graphs_.add(call, made).reset();
        return made;
    }
    std::erase_if(fixed_, [](const Fixed& one) { return one.plan.expired(); });
    std::shared_ptr<DevicePlan> found;
    for (const Fixed& one : fixed_)
        if (one.call == call && std::ranges::equal(one.buffers, buffers)) found = one.plan.lock();
    // Other ranks may have used other arrays before, or released them.
    const auto all = gather_values(*ranks_.control, static_cast<char>(found != nullptr), "a plan of a graph");
    if (std::ranges::find(all, 0) == all.end()) return found;
    std::shared_ptr<DevicePlan> made = make_plan(call, choice, false, buffers);
    fixed_.push_back({call, {buffers.begin(), buffers.end()}, made});
    return made;
}

void DeviceCollectives::start(const CollectiveCall& call, std::span<const GpuAddress> buffers, void* stream,
                              const std::source_location& location) {
    if (settings().checked) compare_calls(*ranks_.communicator, describe(call, true, location));
    const std::shared_ptr<DevicePlan> plan = plan_of(call, false);
    prove_once(call, *plan, buffers, stream, false);
    plan->run(buffers, stream);
}

std::string DeviceCollectives::explain(const CollectiveCall& call) {
    const CollectiveChoice choice = algorithm_of(call);
    const std::string text = make_plan(call, choice, false)->describe();
    return text_of(choice.spec) + " (" + choice.why + ")" + (text.empty() ? "" : ": " + text);
}

void DeviceCollectives::prove_once(const CollectiveCall& call, DevicePlan& plan,
                                   std::span<const GpuAddress> buffers, void* stream, bool checked) {
    Gpu& gpu = *ranks_.gpu;
    if (!(checked || first_runs_are_proved()) || gpu.is_capturing(gpu.stream()) || gpu.is_capturing(stream))
        return;
    auto* const of_jali = dynamic_cast<GpuPlan*>(&plan); // a plan of an entry's own collectives is none
    if (of_jali == nullptr || of_jali->proved()) return;
    const bool elsewhere = stream != gpu.stream(); // checked runs are on the device's own
    if (elsewhere) gpu.wait_for(stream);
    of_jali->check(buffers, of_jali->composition_of(call), call.reproducible, *ranks_.communicator);
    if (elsewhere) gpu.let_wait(stream);
}

RecordedCalls DeviceCollectives::record(const CollectiveCall& call, GpuPlan& plan,
                                        std::span<const GpuAddress> buffers) {
    return plan.record(buffers, plan.composition_of(call), call.reproducible, *ranks_.communicator);
}

std::shared_ptr<DevicePlan> DeviceCollectives::make_plan(const CollectiveCall& call,
                                                         const CollectiveChoice& choice, bool checked,
                                                         std::span<const GpuAddress> fixed) {
    const int ranks = ranks_.control->size();
    std::string what = std::string(name_of(call.collective)) + " of " + std::to_string(payload(call, ranks)) +
                       " bytes on devices (" + text_of(choice.spec) + ")";
    const Algorithm* entry = find_algorithm(choice.spec.name, call.collective, true);
    if (entry == nullptr) return plan_of_transport(choice.spec.name, call, std::move(what));
    const auto [first, second] = transports_of(*entry, choice.spec);
    AlgorithmPlan parts = jali::plan_of(*entry, call, hosts_, first, second, true);
    const std::shared_ptr<GpuPlan> made = plan(parts.composition, std::move(parts.parameters),
                                               std::move(what), checked, fixed, second.empty() ? "" : first);
    made->composition_of = [entry, hosts = hosts_](const CollectiveCall& same) {
        return composition_of(*entry, same, hosts);
    };
    return made;
}

void DeviceCollectives::refuse_without_kernels(const std::string& what) const {
    if (why_no_kernels_.empty()) return;
    std::string others;
    for (const TransportEntry& entry : entries_)
        if (entry.spec->rules.itself) others += (others.empty() ? "'" : " or '") + entry.name + "'";
    throw CompileError(what + ": " + why_no_kernels_ + "; without kernels collectives go by " + others);
}

std::shared_ptr<GpuPlan> DeviceCollectives::plan(const Composition& composition, PlanParameters parameters,
                                                 std::string what, bool checked,
                                                 std::span<const GpuAddress> fixed,
                                                 const std::string& only_inside) {
    refuse_other_ranks(composition, ranks_.control->size());
    refuse_without_kernels(what);
    if (parameters.libraries.empty()) parameters.libraries = {""};
    for (std::string& name : parameters.libraries)
        if (name.empty()) name = default_transport();
    const int rank = ranks_.control->rank();
    const Schedule schedule = plan_rank(composition, parameters, rank);
    std::vector<std::shared_ptr<CollectiveConnection>> transports;
    std::vector<int> of_libraries;
    std::shared_ptr<CollectiveQueues> queues = queues_ ? queues_ : within_queues_;
    for (const std::string& name : schedule.libraries()) {
        TransportEntry& all = named(name, true);
        TransportEntry& entry = name == only_inside ? inside(all) : all;
        if (!open(entry).empty())
            throw GpuError(what + " goes through " + entry.spec->rules.carries + ", but " + entry.why_not);
        if (auto these = std::dynamic_pointer_cast<CollectiveQueues>(entry.transport)) {
            queues = std::move(these);
            of_libraries.push_back(by_kernel);
            continue;
        }
        const auto found = std::ranges::find(transports, entry.transport);
        of_libraries.push_back(static_cast<int>(found - transports.begin()));
        if (found == transports.end()) transports.push_back(entry.transport);
    }
    const DeviceProgramParameters sizes = queues ? queues->parameters() : DeviceProgramParameters();
    std::vector<DeviceStage> stages = compile_for_device(schedule, ranks_.control->size(), rank,
                                                         pieces_of(composition), sizes, of_libraries);
    const DeviceProgram* combining = nullptr;
    for (const DeviceStage& stage : stages)
        if (stage.program.combines) combining = &stage.program;
    // the wire is the same in all stages: it depends on the composition
    GpuFunction function = collective_kernel(*ranks_.gpu, stages[0].program.wire,
                                             combining != nullptr ? &combining->how : nullptr, checked);
    return std::make_shared<GpuPlan>(ranks_.gpu, queues, std::move(transports), std::move(stages), schedule,
                                     std::move(function), std::move(what), fixed);
}

std::shared_ptr<DevicePlan>
DeviceCollectives::plan_of_transport(const std::string& name, const CollectiveCall& call, std::string what) {
    TransportEntry& entry = named(name);
    if (!takes(*entry.spec, call)) {
        std::string others;
        for (const TransportEntry& other : entries_)
            if (takes(*other.spec, call)) others += "'" + other.name + "', ";
        throw CollectiveError("algorithm '" + name + "' has no operations of the user; choose " + others +
                              "or none");
    }
    // throws for arguments that cannot be, which algorithms do by themselves
    make_composition(ranks_.control->size(), call, forms_of(call.collective).front());
    if (!open(entry).empty()) throw GpuError(entry.why_not);
    entry.transport->check(call);
    return entry.transport->plan(call, std::move(what));
}

std::int64_t DeviceCollectives::take_overflows() {
    if (!queues_ && !within_queues_) return 0; // which is so on all ranks
    std::int64_t count = 0;
    for (const auto& queues : {queues_, within_queues_})
        if (queues) count += queues->take_overflows();
    ranks_.communicator->all_reduce_sum({&count, 1}, "overflows of a collective");
    return count;
}

void DeviceCollectives::report_overflows(const CollectiveCall& call) {
    if (call.type != DataType::fp16 && call.type != DataType::bf16) return;
    const std::int64_t count = take_overflows();
    if (count == 0) return;
    const std::string type(name_of(call.type));
    throw AgreedError(std::string(name_of(call.collective)) + ": " + std::to_string(count) +
                      " results are too large for " + type +
                      " and became infinite; scale the numbers, or send them as fp32");
}

} // namespace jali
