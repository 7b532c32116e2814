#include "simulation/symmetry.hpp"

#include <algorithm>
#include <functional>

namespace jali {

Symmetry::Symmetry(int ranks, std::vector<Digit> digits) : ranks_(ranks), digits_(std::move(digits)) {
    for (const Digit& digit : digits_)
        if (digit.shifts) order_ *= digit.factor;
    shift_of_.assign(ranks, 0);
    for (int rank = 0; rank < ranks; ++rank) {
        for (const Digit& digit : digits_)
            if (digit.shifts) shift_of_[rank] += rank / digit.below % digit.factor * digit.below;
        if (shift_of_[rank] == 0) representatives_.push_back(rank);
    }
}

Symmetry Symmetry::without(int digit) const {
    std::vector<Digit> digits = digits_;
    digits[digit].shifts = false;
    return {ranks_, std::move(digits)};
}

int Symmetry::shifted(int rank, int by) const {
    int result = 0;
    for (const Digit& d : digits_)
        result += (rank / d.below % d.factor + by / d.below % d.factor) % d.factor * d.below;
    return result;
}

int Symmetry::shifted_back(int rank, int by) const {
    int result = 0;
    for (const Digit& d : digits_)
        result += (rank / d.below % d.factor + d.factor - by / d.below % d.factor) % d.factor * d.below;
    return result;
}

std::vector<int> Symmetry::shifts() const {
    std::vector<int> result;
    for (int rank = 0; rank < ranks_; ++rank)
        if (shift_of_[rank] == rank) result.push_back(rank);
    return result;
}

std::vector<int> Symmetry::renamed(int by) const {
    std::vector<int> result(ranks_);
    for (int rank = 0; rank < ranks_; ++rank) result[rank] = shifted(rank, by);
    return result;
}

std::optional<Symmetry> Symmetry::of(const Hierarchy& hierarchy, int ring, std::vector<int> sizes) {
    const int ranks = hierarchy.ranks();
    sizes.insert(sizes.end(), {ranks, 1});
    for (int level = 0; level < hierarchy.levels(); ++level) {
        const int size = hierarchy.group(level, 0).size();
        if (ranks % size != 0) return std::nullopt;
        for (int position = 0; position < ranks; position += size)
            if (hierarchy.group(level, position) != Group{position, position + size}) return std::nullopt;
        sizes.push_back(size);
    }
    for (int position = 0; position < ranks; ++position)
        if (hierarchy.rank_at(position) != position) return std::nullopt;
    if (ring > 1) {
        if (ranks % ring != 0) return std::nullopt;
        sizes.push_back(ranks / ring);
    }
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    std::vector<Digit> digits;
    for (std::size_t k = 1; k < sizes.size(); ++k) {
        if (sizes[k - 1] % sizes[k] != 0) return std::nullopt;
        digits.push_back({sizes[k], sizes[k - 1] / sizes[k], true});
    }
    if (digits.empty()) return std::nullopt;
    return Symmetry(ranks, std::move(digits));
}

std::optional<Symmetry> Symmetry::of(const Hierarchy& hierarchy, int ring, const Machine& machine) {
    const int ranks = hierarchy.ranks(), node = machine.ranks_per_node();
    if (ranks % node != 0) return std::nullopt;
    std::vector<int> sizes{node}; // of groups
    for (int size = node; const NodeLevel& level : machine.inside) sizes.push_back(size /= level.parts);
    const auto nested = of(hierarchy, ring, std::move(sizes));
    if (!nested) return std::nullopt;
    std::vector<Digit> digits = nested->digits();
    // Inside a node a shift has to carry the ranks of a card to the ranks of an equal one.
    const auto equal = [](const Nic& a, const Nic& b) {
        return a.bandwidth == b.bandwidth && a.duplex == b.duplex && a.crowd == b.crowd &&
               a.crowded == b.crowded;
    };
    for (Digit& digit : digits) {
        if (digit.below >= node) continue;
        const auto next = [&](int rank) {
            const int value = rank / digit.below % digit.factor;
            return rank + ((value + 1) % digit.factor - value) * digit.below;
        };
        for (int a = 0; a < node && digit.shifts; ++a) {
            digit.shifts = equal(machine.nics[machine.binding[a]], machine.nics[machine.binding[next(a)]]);
            for (int b = 0; b < a && digit.shifts; ++b)
                digit.shifts = (machine.binding[a] == machine.binding[b]) ==
                               (machine.binding[next(a)] == machine.binding[next(b)]);
        }
    }
    Symmetry result(ranks, std::move(digits));
    if (result.order() == 1) return std::nullopt;
    return result;
}

} // namespace jali
