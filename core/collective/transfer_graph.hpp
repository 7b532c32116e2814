// What all ranks send and compute, as one compact graph: the simulator's view of schedules.
//
// Schedules come rank by rank and shrink at once: sends and receives of one pair, stage, channel and library
// become one transfer, copies and reductions of one rank, stage and channel one piece of work. The two sides
// of a transfer are joined at the end; it needs what either side needs.
#pragma once

#include "schedule/schedule.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace jali {

class TransferGraph {
  public:
    // Without coalescing every step is a node of its own.
    explicit TransferGraph(int ranks, bool coalesce = true);

    // Adds what `rank` does. Throws ScheduleError for a peer that does not exist.
    void add(int rank, const Schedule& schedule);

    // Adds what `rank` does if it does what the only rank of `pattern` does, with every peer q replaced by
    // peer_of[q].
    void add_alike(int rank, const TransferGraph& pattern, const std::vector<int>& peer_of);

    // Whether the only rank of `other` does the same as the only rank of this graph, with peers replaced.
    // Sizes may differ by a thousandth: chunks are only nearly equal.
    bool alike(const TransferGraph& other, const std::vector<int>& peer_of) const;

    // By hand: nodes with what they need (numbers of earlier nodes). `bytes` of work count reads and writes.
    int add_transfer(int from, int to, double bytes, const std::string& library, Mark mark,
                     const std::vector<int>& needs);
    int add_work(int rank, double bytes, bool reduction, Mark mark, const std::vector<int>& needs);

    // Joins the two sides of each transfer. Throws ScheduleError for a side without the other, or of another
    // size. To be called once, after the last rank.
    void finish();

    int ranks() const { return ranks_; }
    int nodes() const { return static_cast<int>(nodes_.size()); }

    enum class Kind : std::uint8_t { send, receive, copy, reduction, nothing };
    struct Node {
        Kind kind = Kind::nothing; // send stands for the transfer, receive for the side that was joined
        std::int16_t library = 0;
        std::int32_t rank = 0, peer = -1;
        Mark mark;
        double bytes = 0;
        std::int64_t order = 0; // of messages that are not coalesced
    };
    const Node& node(int k) const { return nodes_[k]; }
    const std::vector<std::string>& libraries() const { return libraries_; }
    std::int64_t edges() const { return static_cast<std::int64_t>(needs_.size()); }

  private:
    friend class Simulation;
    int library_number(const std::string& name);

    int ranks_;
    bool coalesce_;
    double slack_ = 0; // sizes of the two sides may differ by this share
    std::vector<Node> nodes_;
    std::vector<std::int64_t> needs_begin_{0};
    std::vector<std::int32_t> needs_;
    std::vector<std::int32_t> joined_; // node -> the node that stands for it
    std::vector<std::string> libraries_;
};

} // namespace jali
