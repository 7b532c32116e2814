#include "running/collectives.hpp"
#include "composition/plan.hpp"
#include "messaging/host_identity.hpp"
#include "messaging/mpi_abi.hpp"
#include "messaging/mpi_operation.hpp"
#include "running/compared_calls.hpp"
#include "settings/settings.hpp"
#include "settings/version.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace jali {

namespace {

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine, std::string_view what) {
    std::vector<std::string> texts;
    for (const auto& bytes : ranks.all_gather(std::as_bytes(std::span(mine)), what))
        texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return texts;
}

// In the order of their first ranks.
std::vector<std::vector<int>> hosts_of(Communicator& ranks) {
    std::vector<std::vector<int>> hosts;
    if (!ranks.can_share_memory()) {
        hosts.emplace_back(ranks.size());
        std::iota(hosts[0].begin(), hosts[0].end(), 0);
        return hosts;
    }
    const std::vector<std::string> names = gather_texts(ranks, host_identity(), "hosts of ranks");
    for (int rank = 0; rank < ranks.size(); ++rank) {
        const auto same = std::ranges::find_if(
            hosts, [&](const std::vector<int>& host) { return names[host.front()] == names[rank]; });
        (same == hosts.end() ? hosts.emplace_back() : *same).push_back(rank);
    }
    return hosts;
}

// Throws AgreedError on every rank unless all have the same jali, and the same, readable rules. Returns the
// other libraries whose versions are the same on all ranks.
LibraryVersions compare_libraries(Communicator& ranks) {
    constexpr std::string_view read = "rules ";
    const MpiAbi* const mpi = MpiAbi::found();
    const std::string mine = std::string(version()) + "\n" + (mpi ? mpi->library + " " + mpi->version : " ");
    std::string rules;
    try {
        rules = std::string(read) + collective_rules()->digest();
    } catch (const RulesError& error) {
        rules = error.what();
    }
    std::vector<std::string> versions, of_mpi, reported;
    for (std::string& text : gather_texts(ranks, mine + "\n" + rules, "versions and rules of jali")) {
        for (std::vector<std::string>* lines : {&versions, &of_mpi}) {
            const std::size_t end = std::min(text.find('\n'), text.size());
            lines->push_back(text.substr(0, end));
            text.erase(0, end + 1);
        }
        reported.push_back(std::move(text));
    }
    const auto in_errors = [](std::size_t rank) { return "rank " + std::to_string(rank); };
    for (std::size_t rank = 0; rank < reported.size(); ++rank)
        if (versions[rank] != versions[0])
            throw AgreedError("rank 0 has jali " + versions[0] + ", " + in_errors(rank) + " has jali " +
                              versions[rank] + "; all ranks of a job need the same version");
    for (std::size_t rank = 0; rank < reported.size(); ++rank)
        if (!reported[rank].starts_with(read))
            throw AgreedError((reported.size() > 1 ? in_errors(rank) + ": " : "") + reported[rank]);
    for (std::size_t rank = 0; rank < reported.size(); ++rank)
        if (reported[rank] != reported[0])
            throw AgreedError(
                "ranks 0 and " + std::to_string(rank) +
                " have other rules of collectives; JALI_COLLECTIVE_RULES is to name the same text on all");
    const bool alike = std::ranges::adjacent_find(of_mpi, std::not_equal_to<>()) == of_mpi.end();
    if (mpi == nullptr || mpi->library.empty() || !alike) return {};
    return {{mpi->library, mpi->version}};
}

} // namespace

std::shared_ptr<Collectives> Collectives::make(std::shared_ptr<Communicator> ranks,
                                               const SharesMemory& share_memory, std::string_view what) {
    return std::shared_ptr<Collectives>(new Collectives(std::move(ranks), share_memory, what));
}

std::shared_ptr<Collectives> Collectives::make(const std::shared_ptr<Communicator>& ranks) {
    if (!ranks) throw std::invalid_argument("collectives of a communicator that is null");
    return make(ranks, [&] { return make_host_communicator(*ranks); }, "Collectives::make");
}

Collectives::Collectives(std::shared_ptr<Communicator> ranks, const SharesMemory& share_memory,
                         std::string_view what)
    : ranks_(std::move(ranks)) {
    ranks_->barrier(what); // ranks that make another call get an error
    const std::string transport = ranks_->transport();
    transports_.emplace_back(transport, ranks_->duplicate());
    if (const std::shared_ptr<Communicator> beneath = ranks_->beneath())
        transports_.emplace_back(beneath->transport(), beneath->duplicate());
    if (ranks_->can_share_memory()) {
        const std::shared_ptr<Communicator> sharing = share_memory();
        if (sharing->transport() == std::string_view("shm"))
            transports_.emplace(transports_.begin(), "shm", sharing->duplicate());
    }
    space_ = std::make_shared<MessageSpace>(transports_);
    for (const auto& [name, communicator] : transports_) {
        have_.transports.push_back(name);
        if (name == by_mpi && is_of_mpi(*communicator)) have_.why_not_mpi.clear();
    }
    have_.versions = compare_libraries(*ranks_);
    hosts_ = hosts_of(*ranks_);
    for (const std::vector<int>& host : hosts_) ranks_of_hosts_.push_back(static_cast<int>(host.size()));
}

void Collectives::compare(const CollectiveCall& call, const std::source_location& location) {
    if (settings().checked) compare_calls(*ranks_, describe(call, false, location));
}

CollectiveChoice Collectives::algorithm_of(const CollectiveCall& call) const {
    return choose_on_host(call, ranks_of_hosts_, have_);
}

std::shared_ptr<PersistentPlan> Collectives::find_idle(const CollectiveCall& call) {
    const std::shared_ptr<SamePlans> same = plans_.find(call);
    if (!same) return nullptr;
    const auto idle = std::ranges::find_if(*same, [](const auto& plan) { return !plan->running(); });
    return idle != same->end() ? *idle : nullptr;
}

std::shared_ptr<PersistentPlan> Collectives::idle_plan_of(const CollectiveCall& call) {
    if (std::shared_ptr<PersistentPlan> idle = find_idle(call)) return idle;
    std::shared_ptr<PersistentPlan> made = make_plan(call);
    if (const std::shared_ptr<SamePlans> same = plans_.find(call))
        same->push_back(made);
    else
        plans_.add(call, std::make_shared<SamePlans>(1, made)).reset();
    return made;
}

std::shared_ptr<PersistentPlan> Collectives::make_plan(const CollectiveCall& call) const {
    HostAlgorithms have = have_;
    have.hands_over = false;
    const AlgorithmSpec spec = choose_on_host(call, ranks_of_hosts_, have).spec;
    const auto schedule = [&] {
        if (spec.name == by_mpi) return schedule_by_mpi(call, ranks_->size(), ranks_->rank());
        const Algorithm& algorithm = *find_algorithm(spec.name, call.collective, false);
        const AlgorithmPlan made = plan_of(algorithm, call, hosts_, spec.transport, spec.between, false);
        return plan_rank(made.composition, made.parameters, ranks_->rank());
    };
    return PersistentPlan::make(std::make_shared<const Schedule>(schedule()), space_,
                                std::string(name_of(call.collective)) + " of " +
                                    std::to_string(payload(call, ranks_->size())) + " bytes (" +
                                    text_of(spec) + ")");
}

void Collectives::override_hosts(Hosts hosts) {
    std::vector<int> all;
    for (const std::vector<int>& host : hosts) all.insert(all.end(), host.begin(), host.end());
    std::ranges::sort(all);
    std::vector<int> expected(ranks_->size());
    std::iota(expected.begin(), expected.end(), 0);
    if (all != expected || std::ranges::any_of(hosts, [](const auto& host) { return host.empty(); }))
        throw CollectiveError("hosts are lists of ranks, in which each of 0 to " +
                              std::to_string(ranks_->size() - 1) + " is once");
    hosts_ = std::move(hosts);
    ranks_of_hosts_.clear();
    for (const std::vector<int>& host : hosts_) ranks_of_hosts_.push_back(static_cast<int>(host.size()));
    plans_ = {};
    on_devices_.clear();
}

const std::shared_ptr<DeviceCollectives>* Collectives::find(const Gpu& gpu) const {
    const auto found = on_devices_.find(&gpu);
    return found != on_devices_.end() ? &found->second : nullptr;
}

const std::shared_ptr<DeviceCollectives>& Collectives::on(const std::shared_ptr<Gpu>& gpu) {
    if (!gpu) throw std::invalid_argument("collectives on a device that is null");
    if (const auto* found = find(*gpu)) return *found;
    // Plans on devices may outlive this.
    const auto on_host = [self = weak_from_this()](const CollectiveCall& call,
                                                   std::span<std::byte* const> buffers) {
        const auto there = self.lock();
        if (!there) throw TransportError("a collective by way of the host, whose communicator is gone");
        there->idle_plan_of(call)->run(buffers);
    };
    auto made = std::make_shared<DeviceCollectives>(gpu, ranks_, hosts_, have_.versions, on_host);
    if (have_.mpi_program) made->serve_mpi_program();
    return on_devices_.emplace(gpu.get(), std::move(made)).first->second;
}

} // namespace jali
