// What a search for a plan varies: the five parameters, and the form of the composition.
//
// They are kept as sizes of groups, not as a Hierarchy, so that equal ones are seen to be equal.
#pragma once

#include "composition/plan.hpp"
#include "composition/standard_collectives.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace jali {

struct FormParameters {
    // The groups of each split along the ranks, outermost first, without the last split into single ranks.
    std::vector<std::vector<int>> sizes;
    int ranks = 1;
    std::vector<std::string> libraries; // one per split
    int stripe = 1, ring = 1, depth = 1;
    Form form = Form::single;
    std::vector<double> stripe_weights; // as in PlanParameters

    // Equal groups, by the factors of the number of ranks. Throws PlanError for factors that make no groups.
    static FormParameters of_factors(std::span<const int> factors, std::vector<std::string> libraries);

    // The factors of the number of ranks, where the groups of each split are equal.
    std::optional<std::vector<int>> factors() const;
    PlanParameters plan_parameters() const; // without the form; throws PlanError
    std::string describe() const;           // "single, hierarchy 4 x 4, libraries nccl, ipc, stripe 1, ..."

    bool operator==(const FormParameters&) const = default;
};

} // namespace jali
