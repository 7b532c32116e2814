#include "composition/hierarchy.hpp"
#include "composition/composition.hpp"
#include "settings/counted.hpp"

#include <algorithm>
#include <numeric>

namespace jali {

namespace {

std::string list_text(std::span<const int> values) {
    std::string text = "(";
    for (std::size_t k = 0; k < values.size(); ++k) text += (k ? ", " : "") + std::to_string(values[k]);
    return text + ")";
}

void check_ranks(int ranks) {
    if (ranks < 1) throw PlanError("a hierarchy of " + counted(ranks, "rank") + "; at least one is needed");
}

} // namespace

Hierarchy::Hierarchy(int ranks) : ranks_(ranks) {
    check_ranks(ranks);
    add_level(std::vector<int>(ranks, 1));
}

Hierarchy::Hierarchy(int ranks, std::span<const int> factors) : ranks_(ranks) {
    check_ranks(ranks);
    long long product = 1;
    for (int factor : factors) {
        if (factor < 1)
            throw PlanError("hierarchy " + list_text(factors) + " has the factor " + std::to_string(factor) +
                            "; factors are 1 or more");
        product *= factor;
        if (product > ranks) break;
    }
    if (product != ranks)
        throw PlanError("hierarchy " + list_text(factors) + " makes " +
                        (product > ranks ? "more than " + std::to_string(ranks) : std::to_string(product)) +
                        " ranks, but there are " + std::to_string(ranks) + "; the product must agree");
    int size = ranks;
    for (int factor : factors) {
        size /= factor;
        add_level(std::vector<int>(ranks / size, size));
    }
    if (levels() == 0) add_level(std::vector<int>(ranks, 1));
}

Hierarchy Hierarchy::from_sizes(int ranks, const std::vector<std::vector<int>>& sizes) {
    check_ranks(ranks);
    Hierarchy result;
    result.ranks_ = ranks;
    for (const auto& of_level : sizes) {
        for (int size : of_level) {
            if (size < 1)
                throw PlanError("groups " + list_text(of_level) + " have one of size " +
                                std::to_string(size));
        }
        if (std::accumulate(of_level.begin(), of_level.end(), 0LL) != ranks)
            throw PlanError("groups " + list_text(of_level) + " do not add up to " + counted(ranks, "rank"));
        result.add_level(of_level);
    }
    if (result.levels() == 0 || result.groups_of(result.levels() - 1) < ranks)
        result.add_level(std::vector<int>(ranks, 1));
    return result;
}

Hierarchy Hierarchy::binary(int ranks) {
    check_ranks(ranks);
    Hierarchy result;
    result.ranks_ = ranks;
    std::vector<int> sizes{ranks};
    while (static_cast<int>(sizes.size()) < ranks) {
        std::vector<int> halves;
        for (int size : sizes) {
            halves.push_back((size + 1) / 2);
            if (size > 1) halves.push_back(size / 2);
        }
        sizes = std::move(halves);
        result.add_level(sizes);
    }
    if (result.levels() == 0) result.add_level({1});
    return result;
}

void Hierarchy::add_level(const std::vector<int>& sizes) {
    std::vector<int> begins(ranks_), ends(ranks_);
    int begin = 0;
    for (int size : sizes) {
        std::fill(begins.begin() + begin, begins.begin() + begin + size, begin);
        std::fill(ends.begin() + begin, ends.begin() + begin + size, begin + size);
        begin += size;
    }
    if (!begins_.empty()) {
        for (int position = 0; position < ranks_; ++position) {
            if (begins[position] < begins_.back()[position] || ends[position] > ends_.back()[position])
                throw PlanError("groups " + list_text(sizes) + " of level " + std::to_string(begins_.size()) +
                                " do not nest in those of the level before: the group of position " +
                                std::to_string(position) + " crosses a boundary");
        }
    }
    begins_.push_back(std::move(begins));
    ends_.push_back(std::move(ends));
}

void Hierarchy::set_order(std::vector<int> rank_at) {
    std::vector<int> positions(ranks_, -1);
    if (static_cast<int>(rank_at.size()) != ranks_)
        throw PlanError("an order of " + counted(rank_at.size(), "rank") + " for " + std::to_string(ranks_));
    for (int position = 0; position < ranks_; ++position) {
        const int rank = rank_at[position];
        if (rank < 0 || rank >= ranks_ || positions[rank] >= 0)
            throw PlanError("the order of ranks has " + std::to_string(rank) + " at position " +
                            std::to_string(position) + ", which is " +
                            (rank < 0 || rank >= ranks_ ? "no rank" : "there twice") +
                            "; it must be a permutation of 0.." + std::to_string(ranks_ - 1));
        positions[rank] = position;
    }
    order_ = std::move(rank_at);
    positions_ = std::move(positions);
}

std::vector<Group> Hierarchy::parts(int level, int position) const {
    const Group whole = group(level - 1, position);
    std::vector<Group> result;
    for (int begin = whole.begin; begin < whole.end;) {
        result.push_back(group(level, begin));
        begin = result.back().end;
    }
    return result;
}

int Hierarchy::groups_of(int level) const {
    int count = 0;
    for (int begin = 0; begin < ranks_; begin = ends_[level][begin]) ++count;
    return count;
}

int Hierarchy::level_between(int a, int b) const {
    int level = 0;
    while (level < levels() && begins_[level][a] == begins_[level][b]) ++level;
    return level;
}

Hierarchy Hierarchy::below_ring(int nodes) const {
    std::vector<int> sizes;
    for (int level = 0; level < levels() && sizes.empty(); ++level) {
        if (groups_of(level) != nodes) continue;
        for (int begin = 0; begin < ranks_; begin = ends_[level][begin])
            sizes.push_back(ends_[level][begin] - begin);
    }
    if (sizes.empty()) {
        if (nodes < 1 || ranks_ % nodes != 0)
            throw PlanError("a ring of " + counted(nodes, "node") + " does not fit " +
                            counted(ranks_, "rank") + ": the hierarchy " + describe() +
                            " has no level of as many groups, and " + std::to_string(nodes) +
                            " does not divide " + std::to_string(ranks_));
        sizes.assign(nodes, ranks_ / nodes);
    }
    Hierarchy result;
    result.ranks_ = ranks_;
    result.order_ = order_;
    result.positions_ = positions_;
    result.add_level(sizes);
    for (int level = 0; level < levels(); ++level) {
        bool nests = true, finer = false;
        for (int position = 0; position < ranks_; ++position) {
            nests = nests && begins_[level][position] >= result.begins_.back()[position] &&
                    ends_[level][position] <= result.ends_.back()[position];
            finer = finer || begins_[level][position] != result.begins_.back()[position];
        }
        if (!nests || !finer) continue;
        result.begins_.push_back(begins_[level]);
        result.ends_.push_back(ends_[level]);
    }
    return result;
}

std::string Hierarchy::describe() const {
    std::string text;
    for (int level = 0; level < levels(); ++level) {
        std::vector<int> counts; // parts of each group of the level above
        bool equal = true;
        for (int begin = 0; begin < ranks_;) {
            const Group above = group(level - 1, begin);
            int count = 0;
            for (int at = above.begin; at < above.end; at = ends_[level][at]) ++count;
            counts.push_back(count);
            begin = above.end;
        }
        for (int begin = 0; begin < ranks_; begin = ends_[level][begin])
            equal = equal && ends_[level][begin] - begin == ends_[level][0];
        text += level ? " x " : "";
        if (equal && std::all_of(counts.begin(), counts.end(), [&](int c) { return c == counts[0]; })) {
            text += std::to_string(counts[0]);
            continue;
        }
        std::vector<int> sizes;
        for (int begin = 0; begin < ranks_; begin = ends_[level][begin])
            sizes.push_back(ends_[level][begin] - begin);
        text += sizes.size() <= 16 ? list_text(sizes) : std::to_string(sizes.size()) + " uneven groups";
    }
    return text;
}

} // namespace jali
