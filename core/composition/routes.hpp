// Which route a piece takes from a root to its targets: stripe, then ring, then tree.
//
// A route is a tree of hops over positions of the hierarchy. find() returns one rank's place in it (its
// sender and receivers) without building the rest. Reductions take the same routes backwards.
#pragma once

#include "composition/plan.hpp"

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace jali {

struct Hop {
    int peer = -1; // position
    int stage = 0; // within the step of the composition
    int level = 0; // of the hierarchy, that it crosses
};

struct Role {
    bool takes_part = false;
    Hop parent;                // peer -1: none
    std::vector<Hop> children; // by stage
};

class Routes {
  public:
    explicit Routes(const PlanParameters& parameters); // throws PlanError

    int stages() const { return stages_; } // of every step of a composition
    int stripes() const { return stripe_; }
    std::string stage_name(int stage) const;

    // The place of position `here` in the route of stripe `stripe` from position `root` to all members of
    // `targets` except the root.
    void find(int root, int stripe, const RankSet& targets, int here, Role& role) const;

    // The position over which a stripe goes: near the root (in the smallest group that has room for all
    // stripes), evenly spread; stripe 0 stays at the root.
    int stripe_position(int root, int stripe) const;

    // The part of `count` elements that chunk `chunk` and stripe `stripe` (-1: all stripes) carry.
    std::pair<std::int64_t, std::int64_t> piece(std::int64_t count, int chunk, int root, int stripe) const;

  private:
    class Targets; // members of a set in a range of positions, quickly
    const std::vector<int>& prefix(const RankSet& set) const;

    const PlanParameters& parameters_;
    Hierarchy tree_; // with a ring: its nodes are level 0
    bool ring_;
    int stripe_, ring_nodes_, first_level_, first_tree_stage_, stages_;
    std::vector<Group> nodes_; // of the ring
    std::vector<int> node_of_; // by position
    mutable std::map<const void*, std::pair<std::shared_ptr<const std::vector<int>>, std::vector<int>>>
        prefixes_;
};

} // namespace jali
