// All ranks' schedules as one graph: each schedule well formed, every send with its receive.
//
// Steps of all ranks are numbered through (base_[rank] + step). It says nothing about contents.
#pragma once

#include "collective/plan_words.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace jali {

// The runs of consecutive bytes of a gather, as run(source offset, target offset, bytes).
template <class Run>
void for_runs(const CopyRows& copy, Run run) {
    if (!copy.rows || copy.row_bytes == 0) {
        run(copy.from.offset, copy.to.offset, copy.to.bytes);
        return;
    }
    const std::size_t count = copy.to.bytes / copy.row_bytes;
    const auto* rows = copy.rows->data() + copy.first_row;
    for (std::size_t k = 0; k < count;) {
        std::size_t next = k + 1;
        while (next < count && rows[next] == rows[next - 1] + 1) ++next;
        run(copy.from.offset + rows[k] * copy.row_bytes, copy.to.offset + k * copy.row_bytes,
            (next - k) * copy.row_bytes);
        k = next;
    }
}

class PairedPlan : public PlanWords {
  public:
    using PlanWords::PlanWords;

  protected:
    void check_structure(); // buffers, regions, needs, peers, marks: each schedule by itself

    // The k-th send of an envelope (from, to, tag) meets its k-th receive. That they cannot come in another
    // order is left to be proved (envelope_orders_).
    void pair_messages();

    // The steps of a rank in an order that respects its needs; the order of the schedule if that one does.
    std::vector<int> local_order(int rank) const;

    // Per step of the rank, a set of bits: the steps that have ended when it starts, by the rank's own needs.
    std::vector<std::uint64_t> closure(int rank) const;

    int rank_of(int global) const;

    int total_ = 0;                                    // steps of all ranks
    std::vector<int> base_;                            // first step of each rank
    std::vector<char> written_;                        // per rank and buffer: does any step write it?
    std::vector<int> peer_;                            // the other side of a message, or -1
    std::vector<std::pair<int, int>> envelope_orders_; // (first, second): steps that share rank, peer and tag

  private:
    void check_region(int rank, int s, const Region& region, bool writes);
    void check_message(int rank, int s, int peer, int tag, int library);
    void check_step(int rank, int s);
    void check_rows(int rank, int s, const CopyRows& copy) const;
    void check_rows_apart(int rank, int s);
};

} // namespace jali
