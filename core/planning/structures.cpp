#include "planning/structures.hpp"

#include <algorithm>
#include <iterator>
#include <set>

namespace jali {

namespace {

constexpr double giga = 1e9;

// Each once, in the order of their first.
template <class Value>
std::vector<Value> distinct(const std::vector<Value>& values) {
    std::vector<Value> result;
    for (const Value& value : values)
        if (std::find(result.begin(), result.end(), value) == result.end()) result.push_back(value);
    return result;
}

} // namespace

std::vector<int> prime_factors(int n) {
    std::vector<int> result;
    for (int k = 2; n > 1; k = k > n / k ? n : k + 1)
        for (; n % k == 0; n /= k) result.push_back(k);
    std::reverse(result.begin(), result.end());
    return result;
}

std::vector<std::vector<int>> factorings(int n) {
    std::vector<std::vector<int>> result{{n}, prime_factors(n)};
    int near = 1;
    for (int k = 2; k <= n / k; ++k)
        if (n % k == 0) near = k;
    if (near > 1) result.push_back({n / near, near});
    return distinct(result);
}

Structures::Structures(const Machine& machine, int ranks)
    : machine_(machine), ranks_(ranks), full_nodes_(ranks / machine.ranks_per_node()),
      rest_(ranks % machine.ranks_per_node()) {
    std::vector<std::vector<int>> between;
    if (full_nodes_ == 0 || (full_nodes_ == 1 && rest_ == 0))
        between.emplace_back();
    else if (rest_ > 0)
        between.push_back({full_nodes_ + 1});
    else
        between = factorings(full_nodes_);
    const bool several = full_nodes_ > 1 || (full_nodes_ == 1 && rest_ > 0);
    add({{}, {several ? 0 : outermost_inside()}, StructureKind::Between::flat, 0});
    const auto inside = inside_splits();
    for (const auto& outer : between)
        for (std::size_t number = 0; number < inside.size(); ++number)
            add_nested(outer, inside[number], static_cast<int>(number));
}

int Structures::outermost_inside() const {
    for (std::size_t k = 0; k < machine_.inside.size(); ++k)
        if (machine_.inside[k].parts > 1) return static_cast<int>(k) + 1;
    return 0;
}

std::vector<Structures::Splits> Structures::inside_splits() const {
    const int outermost = outermost_inside();
    if (full_nodes_ == 0) // part of one node: in one step
        return {ranks_ > 1 ? Splits{{ranks_, outermost}} : Splits{}};
    if (outermost == 0) return {Splits{}};
    Splits by_level, halves;
    for (int level = 1; level < machine_.levels(); ++level) {
        const int parts = machine_.inside[level - 1].parts;
        if (parts > 1) by_level.emplace_back(parts, level);
        for (const int prime : prime_factors(parts)) halves.emplace_back(prime, level);
    }
    return distinct<Splits>({by_level, {{machine_.ranks_per_node(), outermost}}, halves});
}

void Structures::add(Nested nested) {
    const auto same = [&](const Nested& other) {
        return other.sizes == nested.sizes && other.crossed == nested.crossed;
    };
    if (std::none_of(hierarchies_.begin(), hierarchies_.end(), same))
        hierarchies_.push_back(std::move(nested));
}

void Structures::add_nested(const std::vector<int>& between, const Splits& inside, int number) {
    using Between = StructureKind::Between;
    Nested nested{{}, {}, Between::at_once, number};
    if (between.size() > 1)
        nested.between = between == prime_factors(full_nodes_) ? Between::primes : Between::two_steps;
    if (full_nodes_ > 0 && rest_ > 0) { // nodes differ: their ranks in one step
        if (number > 0) return;
        nested.sizes.emplace_back(full_nodes_, machine_.ranks_per_node());
        nested.sizes.back().push_back(rest_);
        nested.crossed = {0, outermost_inside()};
        return add(std::move(nested));
    }
    int groups = 1;
    const auto split = [&](int factor, int level) {
        groups *= factor;
        nested.sizes.emplace_back(groups, ranks_ / groups);
        nested.crossed.push_back(level);
    };
    for (const int factor : between) split(factor, 0);
    for (const auto& [factor, level] : inside) split(factor, level);
    if (!nested.sizes.empty() && nested.sizes.back()[0] == 1) nested.sizes.pop_back();
    add(std::move(nested));
}

std::vector<Structure> Structures::of(std::span<const Form> forms) const {
    const int nodes = full_nodes_ + (rest_ > 0), in_node = std::min(ranks_, machine_.ranks_per_node());
    const std::set<int> nics(machine_.binding.begin(), machine_.binding.end());
    std::set<int> stripes{1, in_node};
    if (nodes > 1) stripes.insert(std::min(static_cast<int>(nics.size()), in_node));
    std::vector<Structure> result;
    for (const Nested& nested : hierarchies_) {
        const auto of_nodes = [&](const auto& groups) { return static_cast<int>(groups.size()) == nodes; };
        std::vector<int> rings{1};
        // A ring of nodes that are split in several steps is that of nodes in one step.
        if (nodes > 2 && !nested.sizes.empty() && of_nodes(nested.sizes[0])) rings.push_back(nodes);
        if (nodes <= 1 && ranks_ > 2) rings.push_back(ranks_);
        std::vector<std::string> libraries;
        for (const int level : nested.crossed) libraries.push_back(best_library(level));
        for (const Form form : forms)
            for (const int stripe : stripes)
                for (const int ring : rings)
                    result.push_back({{form, nested.between, ring > 1, nested.inside, stripe},
                                      {nested.sizes, ranks_, libraries, stripe, ring, 1, form, {}}});
    }
    return result;
}

const std::vector<int>& Structures::crossed(const FormParameters& parameters) const {
    const auto found = std::find_if(hierarchies_.begin(), hierarchies_.end(), [&](const Nested& nested) {
        return nested.sizes == parameters.sizes && nested.crossed.size() == parameters.libraries.size();
    });
    if (found == hierarchies_.end())
        throw PlanError("no structure of machine '" + machine_.name + "': " + parameters.describe());
    return found->crossed;
}

std::vector<std::string> Structures::libraries_at(int level) const {
    std::vector<std::string> names;
    for (const Library& library : machine_.libraries)
        if (library.at[level].usable) names.push_back(library.name);
    return names;
}

std::string Structures::best_library(int level, int nth) const {
    // A flat split between nodes also carries messages inside them.
    const double wire = level == 0 ? machine_.nics[0].bandwidth : machine_.inside[level - 1].bandwidth;
    std::vector<std::pair<double, std::string>> ranked; // by the seconds of a message of a megabyte
    for (const Library& library : machine_.libraries) {
        const LibraryLevel& at = library.at[level];
        if (!at.usable) continue;
        const double rate = std::min({wire * at.efficiency, at.bandwidth, at.duplex / 2, library.engine});
        ranked.emplace_back(at.latency + at.gap + 1e6 / rate, library.name);
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return nth < static_cast<int>(ranked.size()) ? ranked[nth].second : "";
}

std::vector<double> Structures::stripe_weights() const {
    const auto& binding = machine_.binding;
    std::vector<double> share;
    for (const int nic : binding)
        share.push_back(machine_.nics[nic].bandwidth / giga /
                        std::count(binding.begin(), binding.end(), nic));
    if (std::all_of(share.begin(), share.end(), [&](double one) { return one == share[0]; })) return {};
    std::vector<double> weights(ranks_);
    for (int rank = 0; rank < ranks_; ++rank) weights[rank] = share[rank % share.size()];
    return weights;
}

} // namespace jali
