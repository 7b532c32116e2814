#include "composition/plan.hpp"
#include "settings/counted.hpp"

#include "composition/plan_writer.hpp"
#include "schedule/builder.hpp"

namespace jali {

namespace {

// Planning takes time and memory for each, and no transport has tags for so many (PersistentPlan reports it).
constexpr int most_chunks = 1 << 16;

} // namespace

void check_parameters(const Composition& composition, const PlanParameters& parameters) {
    const int ranks = composition.ranks();
    const auto number = [](auto value) { return std::to_string(value); };
    if (parameters.hierarchy.ranks() != ranks)
        throw PlanError("the hierarchy " + parameters.hierarchy.describe() + " is for " +
                        counted(parameters.hierarchy.ranks(), "rank") + ", the composition for " +
                        number(ranks));
    const int levels = parameters.hierarchy.levels();
    const auto libraries = static_cast<int>(parameters.libraries.size());
    if (libraries > 1 && libraries != levels)
        throw PlanError(number(libraries) + " libraries for a hierarchy of " + number(levels) + " levels (" +
                        parameters.hierarchy.describe() + "); name one for each level, or one for all");
    if (parameters.stripe < 1 || parameters.stripe > ranks)
        throw PlanError("stripe " + number(parameters.stripe) + ": a piece is spread over 1 to " +
                        counted(ranks, "rank"));
    if (parameters.ring < 1 || parameters.ring > ranks)
        throw PlanError("ring " + number(parameters.ring) + ": a ring has 1 (no ring) to " +
                        counted(ranks, "node"));
    if (parameters.ring > 1) static_cast<void>(parameters.hierarchy.below_ring(parameters.ring));
    if (parameters.depth < 1 || parameters.depth > most_chunks)
        throw PlanError("depth " + number(parameters.depth) + ": a pipeline has 1 to " + number(most_chunks) +
                        " chunks");
    const auto& weights = parameters.stripe_weights;
    if (!weights.empty()) {
        if (static_cast<int>(weights.size()) != ranks)
            throw PlanError(number(weights.size()) + " stripe weights for " + counted(ranks, "rank"));
        for (int rank = 0; rank < ranks; ++rank)
            if (!(weights[rank] > 0) || weights[rank] > 1e300)
                throw PlanError("the stripe weight of rank " + number(rank) + " is " + number(weights[rank]) +
                                "; it must be positive and finite");
    }
}

Schedule plan_rank(const Composition& composition, const PlanParameters& parameters, int rank) {
    if (rank < 0 || rank >= composition.ranks())
        throw PlanError("rank " + std::to_string(rank) + " does not exist among " +
                        std::to_string(composition.ranks()));
    check_parameters(composition, parameters);
    const Routes routes(parameters);
    std::vector<StepOfRank> parts;
    for (const auto& step : composition.steps())
        parts.push_back(step_of_rank(composition, parameters, routes, step, rank));
    ScheduleBuilder builder;
    PlanWriter(composition, parameters, routes, rank, builder).write(parts);
    try {
        Schedule schedule = builder.finish(parameters.scratch_limit);
        schedule.set_libraries(parameters.libraries.empty() ? std::vector<std::string>{""}
                                                            : parameters.libraries);
        return schedule;
    } catch (const ScratchError& error) {
        throw PlanError("rank " + std::to_string(rank) + ": " + error.what() +
                        "; allow more, or take a deeper pipeline than " + std::to_string(parameters.depth) +
                        (parameters.depth == 1 ? " chunk" : " chunks"));
    }
}

std::vector<Stage> stages_of(const Composition& composition, const PlanParameters& parameters) {
    check_parameters(composition, parameters);
    const Routes routes(parameters);
    std::vector<Stage> result;
    for (std::size_t step = 0; step < composition.steps().size(); ++step) {
        // A step of reductions alone walks its routes backwards.
        bool backwards = !parameters.reproducible;
        for (const Primitive& primitive : composition.steps()[step])
            backwards = backwards && primitive.kind == Primitive::Kind::reduction;
        for (int stage = 0; stage < routes.stages(); ++stage) {
            const int shown = backwards ? routes.stages() - 1 - stage : stage;
            result.push_back({routes.stage_name(shown), static_cast<int>(step)});
        }
    }
    return result;
}

} // namespace jali
