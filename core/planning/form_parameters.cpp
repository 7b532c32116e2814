#include "planning/form_parameters.hpp"

#include <algorithm>
#include <limits>

namespace jali {

FormParameters FormParameters::of_factors(std::span<const int> factors, std::vector<std::string> libraries) {
    FormParameters result;
    long long ranks = 1;
    for (const int factor : factors) {
        if (factor < 1)
            throw PlanError("the factor " + std::to_string(factor) +
                            " of a hierarchy; factors are 1 or more");
        ranks *= factor;
        if (ranks > std::numeric_limits<int>::max())
            throw PlanError("the factors of a hierarchy make more ranks than there can be");
    }
    result.ranks = static_cast<int>(ranks);
    int groups = 1;
    for (std::size_t k = 0; k + 1 < factors.size(); ++k) {
        groups *= factors[k];
        result.sizes.emplace_back(groups, result.ranks / groups);
    }
    result.libraries = std::move(libraries);
    return result;
}

std::optional<std::vector<int>> FormParameters::factors() const {
    std::vector<int> result;
    int groups = 1;
    for (const auto& of_level : sizes) {
        const auto differs = [&](int size) { return size != of_level[0]; };
        if (of_level.empty() || std::any_of(of_level.begin(), of_level.end(), differs)) return std::nullopt;
        const int finer = static_cast<int>(of_level.size());
        result.push_back(finer / groups);
        groups = finer;
    }
    result.push_back(ranks / groups);
    return result;
}

PlanParameters FormParameters::plan_parameters() const {
    PlanParameters result(Hierarchy::from_sizes(ranks, sizes));
    result.libraries = libraries;
    result.stripe = stripe;
    result.stripe_weights = stripe_weights;
    result.ring = ring;
    result.depth = depth;
    return result;
}

std::string FormParameters::describe() const {
    std::string text = std::string(name_of(form)) + ", hierarchy ";
    if (const auto equal = factors()) {
        for (std::size_t k = 0; k < equal->size(); ++k)
            text += (k ? " x " : "") + std::to_string((*equal)[k]);
    } else {
        for (const auto& of_level : sizes) text += std::to_string(of_level.size()) + " groups / ";
        text += "1";
    }
    text += ", libraries ";
    for (std::size_t k = 0; k < libraries.size(); ++k) text += (k ? ", " : "") + libraries[k];
    return text + ", stripe " + std::to_string(stripe) + (stripe_weights.empty() ? "" : ", weighted") +
           ", ring " + std::to_string(ring) + ", depth " + std::to_string(depth);
}

} // namespace jali
