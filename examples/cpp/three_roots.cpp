// A reduction to three roots, in C++ alone: composed, planned for two nodes, proved, and run by six threads.
#include <jali/jali.hpp>

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

using namespace jali;

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

    const std::vector<int> factors = {2, 3}; // two nodes of three ranks
    PlanParameters parameters(Hierarchy(ranks, factors));
    parameters.depth = 4;
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
                std::vector<MessageSpace::Carrier>{{"thread", communicators[rank]->duplicate()}});
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
