#include "simulation/plan_simulation.hpp"
#include "settings/counted.hpp"

#include "simulation/plan_graph.hpp"

#include <algorithm>
#include <map>

namespace jali {

namespace {

// Pieces may differ by this share where many ranks are simulated as one; fewer ranks only if they are equal.
constexpr double nearly = 0.01;
constexpr int many_ranks = 128;

// A plan looks the same from each rank only if every rank is root as often as any other, in every step.
bool roots_alike(const Composition& composition) {
    std::vector<int> times(composition.ranks());
    for (const auto& step : composition.steps()) {
        std::fill(times.begin(), times.end(), 0);
        for (const Primitive& primitive : step) ++times[primitive.root];
        if (std::any_of(times.begin(), times.end(), [&](int n) { return n != times[0]; })) return false;
    }
    return true;
}

// Compares the parts of ranks with those predicted by a symmetry.
class Comparison {
  public:
    Comparison(const PlanGraph& plan, int ranks, bool only_messages)
        : plan_(plan), ranks_(ranks), only_messages_(only_messages) {}

    bool alike(const Symmetry& symmetry, int rank, int by) {
        const TransferGraph &a = part(rank), &b = part(symmetry.shifted(rank, by));
        const auto peers = symmetry.renamed(by);
        auto difference = a.difference(b, peers);
        if (!difference && only_messages_) {
            difference = a.difference(b, peers, true);
            works_differ = true;
        }
        uneven = std::max(uneven, difference.value_or(0));
        return difference && *difference <= (only_messages_ ? nearly : 0);
    }
    int planned() const { return static_cast<int>(parts_.size()); }

    bool works_differ = false;
    double uneven = 0;

  private:
    const TransferGraph& part(int rank) {
        const auto [at, inserted] = parts_.try_emplace(rank, ranks_);
        if (inserted) plan_.add_kinds(at->second, rank);
        return at->second;
    }

    const PlanGraph& plan_;
    int ranks_;
    bool only_messages_;
    std::map<int, TransferGraph> parts_;
};

// Every digit alone, and all together; if `quick`, all together only. Digits that do not fit are left out.
std::optional<Symmetry> symmetry_of(Comparison& compare, const PlanParameters& parameters,
                                    const Machine& machine, bool quick) {
    auto symmetry = Symmetry::of(parameters.hierarchy, parameters.ring, machine);
    if (!symmetry) return symmetry;
    const auto all_shifted = [&] {
        int by = 0;
        for (const auto& digit : symmetry->digits())
            if (digit.shifts) by += (digit.factor - 1) * digit.below;
        return by;
    };
    if (quick && compare.alike(*symmetry, 0, all_shifted())) return symmetry;
    for (int k = 0; k < static_cast<int>(symmetry->digits().size()); ++k) {
        const auto digit = symmetry->digits()[k];
        if (digit.shifts && !(compare.alike(*symmetry, 0, digit.below) &&
                              compare.alike(*symmetry, 0, (digit.factor - 1) * digit.below)))
            symmetry = symmetry->without(k);
    }
    if (symmetry->order() == 1) return std::nullopt;
    for (const int rank : symmetry->representatives())
        if (!compare.alike(*symmetry, rank, all_shifted())) return std::nullopt;
    return symmetry;
}

} // namespace

PlanSimulation simulate_plan(const Composition& composition, const PlanParameters& parameters,
                             const Machine& machine, Symmetric symmetric, bool summary) {
    const int ranks = composition.ranks();
    const PlanGraph plan(composition, parameters);
    if (ranks > machine.ranks())
        throw PlanError("machine '" + machine.name + "' with " + counted(machine.nodes, "node") + " has " +
                        counted(machine.ranks(), "rank") + ", the plan " + std::to_string(ranks));
    // Around a ring of links that both directions share there is more than one fair way to share them; with
    // all ranks simulated, chance decides, and times differ by up to a hundredth.
    const bool settles = parameters.ring == 1;
    const bool small = ranks < many_ranks && symmetric == Symmetric::exactly;
    if (symmetric != Symmetric::never && !(small && !settles) && plan.chunks_apart() &&
        roots_alike(composition)) {
        const bool searching = symmetric == Symmetric::everywhere;
        Comparison compare(plan, ranks, searching || ranks >= many_ranks);
        if (const auto symmetry = symmetry_of(compare, parameters, machine, searching)) {
            TransferGraph graph(ranks);
            for (const int rank : symmetry->representatives()) plan.add(graph, rank);
            graph.finish(&*symmetry, nearly);
            try {
                return {simulate(graph, machine, summary), compare.planned(),
                        settles && !compare.works_differ && compare.uneven == 0, compare.uneven};
            } catch (const ScheduleError&) {
                // Coalescing made a cycle: as without a symmetry.
            }
        }
    }
    PlanSimulation found;
    found.planned = ranks;
    TransferGraph graph(ranks);
    for (int rank = 0; rank < ranks; ++rank) plan.add(graph, rank);
    graph.finish();
    try {
        found.result = simulate(graph, machine, summary);
    } catch (const ScheduleError&) {
        found.result =
            simulate(ranks, [&](int rank) { return plan_rank(composition, parameters, rank); }, machine);
    }
    return found;
}

} // namespace jali
