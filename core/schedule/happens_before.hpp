// The order of nodes of a graph without cycles.
//
// Nodes are laid out on chains, in each of which every node comes before the next; a node stores its last
// predecessor on every chain. Graphs of streams and ranks have few chains; if there are many, a query
// searches backwards, no farther than the graph's order requires.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace jali {

// By node, those that another end of its edges is.
class Neighbours {
  public:
    using Edge = std::pair<int, int>; // from, to
    Neighbours() = default;
    Neighbours(std::size_t nodes, std::span<const Edge> edges, bool backwards = false) : begin_(nodes + 1) {
        for (const auto& [from, to] : edges) ++begin_[static_cast<std::size_t>(backwards ? to : from) + 1];
        for (std::size_t n = 0; n < nodes; ++n) begin_[n + 1] += begin_[n];
        all_.resize(edges.size());
        std::vector<int> at(begin_.begin(), begin_.end() - 1);
        for (const auto& [from, to] : edges) all_[at[backwards ? to : from]++] = backwards ? from : to;
    }
    std::span<const int> operator[](int node) const {
        return {all_.data() + begin_[node], all_.data() + begin_[node + 1]};
    }

  private:
    std::vector<int> begin_, all_;
};

class HappensBefore {
  public:
    HappensBefore() = default;
    // All nodes in an order that respects the edges.
    HappensBefore(std::span<const Neighbours::Edge> edges, std::span<const int> order)
        : before_(order.size(), edges, true), index_(order.size()), chain_(order.size()),
          position_(order.size()), reached_(order.size()), seen_(order.size()) {
        for (std::size_t k = 0; k < order.size(); ++k) index_[order[k]] = static_cast<int>(k);
        std::vector<int> lengths;
        for (const int node : order) {
            std::vector<int>& mine = reached_[node];
            mine.resize(lengths.size(), -1);
            for (const int earlier : before_[node]) {
                const std::vector<int>& its = reached_[earlier];
                for (std::size_t c = 0; c < its.size(); ++c)
                    if (mine[c] < its[c]) mine[c] = its[c];
            }
            std::size_t chain = 0; // one whose end comes before this node
            while (chain < lengths.size() && mine[chain] + 1 != lengths[chain]) ++chain;
            if (chain == lengths.size()) {
                if (chain == most_chains) {
                    reached_.clear();
                    return;
                }
                lengths.push_back(0);
                mine.push_back(-1);
            }
            chain_[node] = static_cast<int>(chain);
            mine[chain] = position_[node] = lengths[chain]++;
        }
    }

    // To be called by one thread at a time.
    bool operator()(int a, int b) const {
        if (index_[a] >= index_[b]) return false;
        if (reached_.empty()) return found(a, b);
        const auto chain = static_cast<std::size_t>(chain_[a]);
        return chain < reached_[b].size() && reached_[b][chain] >= position_[a];
    }
    int index(int node) const { return index_[node]; } // in the order

  private:
    static constexpr std::size_t most_chains = 256;
    bool found(int a, int b) const {
        for (const int earlier : before_[b])
            if (earlier == a) return true;
        ++search_;
        stack_.assign(1, b);
        while (!stack_.empty()) {
            const int node = stack_.back();
            stack_.pop_back();
            for (const int earlier : before_[node]) {
                if (earlier == a) return true;
                if (index_[earlier] < index_[a] || seen_[earlier] == search_) continue;
                seen_[earlier] = search_;
                stack_.push_back(earlier);
            }
        }
        return false;
    }

    Neighbours before_;
    std::vector<int> index_, chain_, position_;
    std::vector<std::vector<int>> reached_; // [node][chain]: the last position that is not after it; -1: none
    mutable std::vector<int> seen_, stack_;
    mutable int search_ = 0;
};

} // namespace jali
