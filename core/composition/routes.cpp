#include "composition/routes.hpp"

#include <algorithm>

namespace jali {

namespace {

// Cuts are at multiples of this many elements where pieces are large, so that they stay aligned for vectors.
constexpr std::int64_t granule = 16;

std::int64_t cut(std::int64_t count, double share, int parts) {
    auto at = static_cast<std::int64_t>(static_cast<double>(count) * share + 0.5);
    if (count / parts >= 16 * granule) at = at / granule * granule;
    return std::clamp<std::int64_t>(at, 0, count);
}

} // namespace

class Routes::Targets {
  public:
    Targets(const Routes& routes, const RankSet& set, int root, int relay)
        : hierarchy_(routes.parameters_.hierarchy), set_(set), root_(root), relay_(relay) {
        if (set.kind() == RankSet::Kind::list) prefix_ = routes.prefix(set).data();
        if (set.kind() == RankSet::Kind::one || set.kind() == RankSet::Kind::others)
            which_ = hierarchy_.position_of(set.which());
    }

    bool contains(int position) const { return set_.contains(hierarchy_.rank_at(position)); }

    // Whether a group has a target besides the root and the relay at which the search began.
    bool in(Group group) const {
        int count = 0;
        switch (set_.kind()) {
        case RankSet::Kind::all:
            count = group.size();
            break;
        case RankSet::Kind::others:
            count = group.size() - group.contains(which_);
            break;
        case RankSet::Kind::one:
            count = group.contains(which_);
            break;
        case RankSet::Kind::list:
            count = prefix_[group.end] - prefix_[group.begin];
            break;
        }
        if (count == 0) return false;
        count -= group.contains(root_) && contains(root_);
        if (relay_ != root_) count -= group.contains(relay_) && contains(relay_);
        return count > 0;
    }

  private:
    const Hierarchy& hierarchy_;
    const RankSet& set_;
    int root_, relay_, which_ = -1;
    const int* prefix_ = nullptr;
};

Routes::Routes(const PlanParameters& parameters)
    : parameters_(parameters),
      tree_(parameters.ring > 1 ? parameters.hierarchy.below_ring(parameters.ring) : parameters.hierarchy),
      ring_(parameters.ring > 1), stripe_(parameters.stripe), ring_nodes_(parameters.ring) {
    first_level_ = ring_ ? 1 : 0;
    first_tree_stage_ = (stripe_ > 1 ? 1 : 0) + (ring_ ? ring_nodes_ - 1 : 0);
    stages_ = first_tree_stage_ + tree_.levels() - first_level_;
    if (!ring_) return;
    for (int begin = 0; begin < tree_.ranks(); begin = nodes_.back().end) {
        nodes_.push_back(tree_.group(0, begin));
        node_of_.insert(node_of_.end(), nodes_.back().size(), static_cast<int>(nodes_.size()) - 1);
    }
}

std::string Routes::stage_name(int stage) const {
    if (stripe_ > 1) {
        if (stage == 0) return "stripe";
        --stage;
    }
    if (ring_) {
        if (stage < ring_nodes_ - 1) return "ring hop " + std::to_string(stage + 1);
        stage -= ring_nodes_ - 1;
    }
    return "level " + std::to_string(stage + first_level_);
}

const std::vector<int>& Routes::prefix(const RankSet& set) const {
    auto& [members, counts] = prefixes_[set.listed().get()];
    if (!members) {
        members = set.listed(); // keeps the address from being used again
        counts.assign(set.ranks() + 1, 0);
        for (int rank : *members) counts[parameters_.hierarchy.position_of(rank) + 1] = 1;
        for (int p = 0; p < set.ranks(); ++p) counts[p + 1] += counts[p];
    }
    return counts;
}

int Routes::stripe_position(int root, int stripe) const {
    if (stripe == 0) return root;
    const Hierarchy& hierarchy = parameters_.hierarchy;
    int level = hierarchy.levels() - 1;
    while (hierarchy.group(level, root).size() < stripe_) --level;
    const Group group = hierarchy.group(level, root);
    const int step = static_cast<int>(static_cast<long long>(stripe) * group.size() / stripe_);
    return group.begin + (root - group.begin + step) % group.size();
}

std::pair<std::int64_t, std::int64_t> Routes::piece(std::int64_t count, int chunk, int root,
                                                    int stripe) const {
    const int depth = parameters_.depth;
    const std::int64_t begin = cut(count, static_cast<double>(chunk) / depth, depth);
    const std::int64_t end = chunk + 1 == depth ? count : cut(count, (chunk + 1.0) / depth, depth);
    if (stripe < 0 || stripe_ == 1) return {begin, end};
    const auto& weights = parameters_.stripe_weights;
    double before = stripe, weight = 1, all = stripe_;
    if (!weights.empty()) {
        before = weight = all = 0;
        for (int k = 0; k < stripe_; ++k) {
            const double w = weights[parameters_.hierarchy.rank_at(stripe_position(root, k))];
            if (k < stripe) before += w;
            if (k == stripe) weight = w;
            all += w;
        }
    }
    const std::int64_t size = end - begin;
    const std::int64_t first = cut(size, before / all, stripe_);
    const std::int64_t last = stripe + 1 == stripe_ ? size : cut(size, (before + weight) / all, stripe_);
    return {begin + first, begin + last};
}

void Routes::find(int root, int stripe, const RankSet& set, int here, Role& role) const {
    role.takes_part = false;
    role.parent.peer = -1;
    role.children.clear();
    const int first = stripe_position(root, stripe); // where the tree begins
    const Targets targets(*this, set, root, first);
    const Hierarchy& hierarchy = parameters_.hierarchy;
    const auto hop = [&](int peer, int stage) {
        return Hop{peer, stage, hierarchy.level_between(here, peer)};
    };

    if (!targets.in({0, hierarchy.ranks()}) && (first == root || !targets.contains(first))) return;
    if (first != root) {
        if (here == root) {
            role.takes_part = true;
            role.children.push_back(hop(first, 0));
            return;
        }
        if (here == first) role.parent = hop(root, 0);
    }
    role.takes_part = here == first;

    // The rank of another group that receives from `holder` of group `own`: the one at the same index. The
    // root has the piece already, so it never forwards it.
    const auto heir = [&](Group group, int holder, Group own) {
        int position = group.begin + (holder - own.begin) % group.size();
        if (position == root) position = group.begin + (position - group.begin + 1) % group.size();
        return position;
    };

    int holder = first;
    if (ring_) {
        const int own = node_of_[first], mine = node_of_[here];
        const Group own_node = nodes_[own];
        const auto next = [&](int node, int step) { return (node + step + ring_nodes_) % ring_nodes_; };
        // Nodes without targets are left out of the ring.
        const auto visited_from = [&](int node) {
            for (node = next(node, 1); node != own; node = next(node, 1))
                if (targets.in(nodes_[node])) return node;
            return -1;
        };
        if (mine != own) {
            if (!targets.in(nodes_[mine])) return;
            holder = heir(nodes_[mine], first, own_node);
        }
        if (here == holder) {
            const int base = stripe_ > 1 ? 1 : 0;
            int hops = 0; // of the ring, up to this node
            if (mine != own) {
                int before = own;
                for (int node = next(own, 1); node != mine; node = next(node, 1)) {
                    if (!targets.in(nodes_[node])) continue;
                    before = node;
                    ++hops;
                }
                role.takes_part = true;
                role.parent = hop(before == own ? first : heir(nodes_[before], first, own_node), base + hops);
                ++hops;
            }
            const int after = visited_from(mine);
            if (after >= 0) role.children.push_back(hop(heir(nodes_[after], first, own_node), base + hops));
        }
    }
    for (int level = first_level_; level < tree_.levels(); ++level) {
        const Group own = tree_.group(level, holder);
        const int stage = first_tree_stage_ + level - first_level_;
        if (here == holder) {
            const Group whole = tree_.group(level - 1, holder);
            for (int begin = whole.begin; begin < whole.end;) {
                const Group group = tree_.group(level, begin);
                begin = group.end;
                if (group == own || !targets.in(group)) continue;
                role.children.push_back(hop(heir(group, holder, own), stage));
            }
        } else if (const Group mine = tree_.group(level, here); !(mine == own)) {
            if (!targets.in(mine)) return;
            const int found = heir(mine, holder, own);
            if (found == here) {
                role.takes_part = true;
                role.parent = hop(holder, stage);
            }
            holder = found;
        }
    }
}

} // namespace jali
