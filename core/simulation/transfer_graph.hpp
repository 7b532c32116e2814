// The messages and computations of all ranks, as one compact graph: the simulator's form of schedules.
//
// Schedules come rank by rank and shrink at once: sends and receives of one pair, stage, chunk and library
// become one transfer, reductions of one rank, stage and chunk one piece of work, copies two: those into
// messages and those out of them. The two sides
// of a transfer are joined at the end; it needs what either side needs.
#pragma once

#include "schedule/schedule.hpp"
#include "simulation/symmetry.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace jali {

class TransferGraph {
  public:
    // send represents the transfer, receive the joined side, delay a time without use of resources; a kernel
    // uses the memory of its rank, shared with concurrent ones.
    enum class Kind : std::uint8_t { send, receive, copy, reduction, nothing, kernel, delay };
    struct Node {
        Kind kind = Kind::nothing;
        std::int16_t library = 0;
        std::int32_t rank = 0, peer = -1;
        Mark mark;
        double bytes = 0;       // of a kernel or a delay: seconds
        std::int64_t order = 0; // of messages that are not coalesced; of copies: 1 if out of messages
    };

    // Without coalescing every step is a node of its own.
    explicit TransferGraph(int ranks, bool coalesce = true);

    // Adds the schedule of `rank`. Throws ScheduleError for a peer that does not exist.
    void add(int rank, const Schedule& schedule);

    // The same, node by node: coalesced already, libraries by their place in `libraries`. Needs count from
    // `first`.
    void begin_rank(int rank, const std::vector<std::string>& libraries);
    void add_node(Node node, const std::vector<int>& needs, int first);

    // By how much (relative) sizes differ if the only rank of `other` does the same as the only rank of this
    // graph, with every peer q of this one replaced by peer_of[q]; none if it does not. Or only its messages.
    std::optional<double> difference(const TransferGraph& other, const std::vector<int>& peer_of,
                                     bool only_messages = false) const;

    // By hand: nodes with their needs (numbers of earlier nodes). `bytes` of work count reads and writes.
    int add_transfer(int from, int to, double bytes, const std::string& library, Mark mark,
                     const std::vector<int>& needs);
    int add_work(int rank, double bytes, bool reduction, Mark mark, const std::vector<int>& needs);
    // Seconds that a kernel takes if it has the rank's memory for itself, or that just pass. Kernels of a
    // rank that do not need each other run side by side.
    int add_kernel(int rank, double seconds, Mark mark, const std::vector<int>& needs);
    int add_delay(int rank, double seconds, Mark mark, const std::vector<int>& needs);

    // Joins the two sides of each transfer. Throws ScheduleError for a side without the other, or of another
    // size. To be called once, after the last rank. With a symmetry only its representatives were added, and
    // sizes may differ by `slack` (relative).
    void finish(const Symmetry* symmetry = nullptr, double slack = 0);

    int ranks() const { return ranks_; }
    int nodes() const { return static_cast<int>(nodes_.size()); }

    const Node& node(int k) const { return nodes_[k]; }
    std::vector<int> needs(int k) const {
        return {needs_.begin() + needs_begin_[k], needs_.begin() + needs_begin_[k + 1]};
    }
    const std::vector<std::string>& libraries() const { return libraries_; }
    std::int64_t edges() const { return static_cast<std::int64_t>(needs_.size()); }

  private:
    friend class Simulation;
    int library_number(const std::string& name);
    int add_own(Kind kind, int rank, double amount, Mark mark, const std::vector<int>& needs);

    int ranks_, rank_ = -1; // the rank that is being added
    bool coalesce_;
    const Symmetry* symmetry_ = nullptr;
    std::vector<Node> nodes_;
    std::vector<std::int64_t> needs_begin_{0};
    std::vector<std::int32_t> needs_;
    std::vector<std::int32_t> joined_; // node -> its representative
    std::vector<std::int32_t> shift_;  // ... which this shift maps to the node; empty: no symmetry
    std::vector<int> library_of_;      // of the rank that is being added
    std::vector<std::string> libraries_;
};

} // namespace jali
