// A reduction to three roots, in C++ alone: composed, planned for two nodes that are only described, proved,
// and run by six threads.
#include <jali/jali.hpp>

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

using namespace jali;

// Two nodes of three ranks with a wire between each two; a card per node, which its ranks share.
Machine two_nodes() {
    Machine machine;
    machine.name = "two nodes";
    machine.nodes = 2;
    machine.inside = {{.name = "socket", .parts = 3, .pairs = true, .bandwidth = 40e9, .latency = 0.2e-6}};
    machine.nics = {{.rated = 12.5e9, .bandwidth = 12e9}};
    machine.binding = {0, 0, 0};
    machine.network_latency = 2e-6;
    const LibraryLevel at{.usable = true, .latency = 1e-6, .gap = 0.5e-6};
    machine.libraries = {{.name = "thread", .at = {at, at}}}; // between nodes, inside them
    machine.finish();
    return machine;
}

int main() {
    constexpr int ranks = 6;
    constexpr std::int64_t count = 1000; // elements for each root
    const std::vector<int> roots = {0, 2, 5};

    Composition composition(ranks, DataType::fp64);
    const int data = composition.add_buffer("data", {count * static_cast<std::int64_t>(roots.size())});
    const int sum = composition.add_buffer("sum", {count}, false);
    for (std::size_t k = 0; k < roots.size(); ++k) {
        const Piece part{data, count * static_cast<std::int64_t>(k)};
        composition.reduce(part, {sum, 0}, count, RankSet::all(ranks), roots[k], Operation::sum);
    }

    const Choice choice = choose_for(two_nodes(), composition);
    std::printf("%s: %.1f us\n", choice.parameters.describe().c_str(), choice.simulation.result.time * 1e6);
    const PlanParameters parameters = choice.parameters.plan_parameters();
    std::vector<std::shared_ptr<const Schedule>> schedules;
    std::vector<const Schedule*> all;
    for (int rank = 0; rank < ranks; ++rank) {
        schedules.push_back(std::make_shared<const Schedule>(plan_rank(composition, parameters, rank)));
        all.push_back(schedules.back().get());
    }
    check_plan(composition, all); // throws CheckError if anything could go wrong

    const auto communicators = make_thread_communicators(ranks);
    std::vector<int> wrong(ranks, 0);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            std::vector<double> mine(count * roots.size(), rank + 1.0), total(count, 0.0);
            const auto space = std::make_shared<MessageSpace>(
                std::vector<MessageSpace::NamedCommunicator>{{"thread", communicators[rank]->duplicate()}});
            const auto plan = PersistentPlan::make(schedules[rank], space, "reduction to three roots");
            const std::vector<std::byte*> buffers = {reinterpret_cast<std::byte*>(mine.data()),
                                                     reinterpret_cast<std::byte*>(total.data())};
            plan->run(buffers);
            const bool root = rank == 0 || rank == 2 || rank == 5;
            for (const double value : total) wrong[rank] += value != (root ? 21.0 : 0.0); // 1 + 2 + ... + 6
        });
    }
    for (auto& thread : threads) thread.join();

    int errors = 0;
    for (const int n : wrong) errors += n;
    std::printf("%d ranks, %d wrong elements\n", ranks, errors);
    return errors == 0 ? 0 : 1;
}
