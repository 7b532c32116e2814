// The grouping of ranks: nested groups, outermost first, down to single ranks.
//
// Ranks stand at *positions* 0..p-1 along the hierarchy (rank = position unless an order is given); a group
// is a range of positions. A vector of factors makes equal groups; groups may also be given by their sizes,
// level by level, so that nodes need not be equal. Level 0 splits everything into the outermost groups, the
// last level splits groups into single ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace jali {

struct Group {
    int begin = 0, end = 0; // positions
    int size() const { return end - begin; }
    bool contains(int position) const { return begin <= position && position < end; }
    bool operator==(const Group&) const = default;
};

class Hierarchy {
  public:
    // All ranks in one group that is split into single ranks.
    explicit Hierarchy(int ranks);

    // Factors, outermost first; their product must be `ranks`. Throws PlanError otherwise.
    Hierarchy(int ranks, std::span<const int> factors);

    // sizes[l] are the sizes of the groups after split l, along positions; each must refine the one before.
    // The last split, into single ranks, is added. Throws PlanError.
    static Hierarchy from_sizes(int ranks, const std::vector<std::vector<int>>& sizes);

    // Every group is halved (the first half one larger if need be) until single ranks remain.
    static Hierarchy binary(int ranks);

    // The rank at each position: a permutation. Throws PlanError.
    void set_order(std::vector<int> rank_at);

    int ranks() const { return ranks_; }
    int levels() const { return static_cast<int>(begins_.size()); }
    int rank_at(int position) const { return order_.empty() ? position : order_[position]; }
    int position_of(int rank) const { return order_.empty() ? rank : positions_[rank]; }

    // The group after split `level` (0..levels-1) that contains the position; level -1: everything.
    Group group(int level, int position) const {
        return level < 0 ? Group{0, ranks_} : Group{begins_[level][position], ends_[level][position]};
    }
    int groups_of(int level) const; // how many groups there are after that split

    // The first level whose groups separate two positions, which a message between them crosses.
    int level_between(int a, int b) const;

    // Groups into which split `level` cuts the group of level-1 that contains `position`.
    std::vector<Group> parts(int level, int position) const;

    // A hierarchy whose level 0 are the nodes of a ring: the groups of the level that has `nodes` groups,
    // else equal blocks of positions; below it those levels whose groups nest in them. Throws PlanError if
    // there is no such level and `nodes` does not divide ranks.
    Hierarchy below_ring(int nodes) const;

    std::string describe() const; // "4 x 4", "(3, 4, 4) x 1"

  private:
    Hierarchy() = default;
    void add_level(const std::vector<int>& sizes); // of the groups along positions

    int ranks_ = 0;
    std::vector<std::vector<int>> begins_, ends_; // per level: of the group of each position
    std::vector<int> order_, positions_;
};

} // namespace jali
