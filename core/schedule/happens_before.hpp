// Which nodes of a graph without circles come before which.
//
// Nodes are laid out on chains, in each of which every node comes before the next; a node knows how far along
// every chain that reaches what comes before it. Graphs of streams and ranks have few chains.
#pragma once

#include <span>
#include <vector>

namespace jali {

class HappensBefore {
  public:
    HappensBefore() = default;
    // `followers` of every node, and all nodes in an order that respects them.
    HappensBefore(std::span<const std::vector<int>> followers, std::span<const int> order) {
        chain_.resize(followers.size());
        position_.resize(followers.size());
        reached_.resize(followers.size());
        std::vector<int> lengths;
        for (int node : order) {
            std::vector<int>& mine = reached_[node];
            mine.resize(lengths.size(), -1);
            std::size_t chain = 0; // one whose end comes before this node
            while (chain < lengths.size() && mine[chain] + 1 != lengths[chain]) ++chain;
            if (chain == lengths.size()) {
                lengths.push_back(0);
                mine.push_back(-1);
            }
            chain_[node] = static_cast<int>(chain);
            mine[chain] = position_[node] = lengths[chain]++;
            for (int next : followers[node]) {
                std::vector<int>& its = reached_[next];
                if (its.size() < mine.size()) its.resize(mine.size(), -1);
                for (std::size_t c = 0; c < mine.size(); ++c)
                    if (its[c] < mine[c]) its[c] = mine[c];
            }
        }
    }

    bool operator()(int a, int b) const {
        const auto chain = static_cast<std::size_t>(chain_[a]);
        return a != b && chain < reached_[b].size() && reached_[b][chain] >= position_[a];
    }

  private:
    std::vector<int> chain_, position_;
    std::vector<std::vector<int>> reached_; // [node][chain]: the last position that is not after it; -1: none
};

} // namespace jali
