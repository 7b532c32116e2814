// The eight standard collectives as compositions, in the single-step and multi-step forms of HiCCL's Table 2.
//
// Buffers are "send" and "recv"; in place there is one buffer, "data". Counts are per rank (`counts`, one
// entry: the same for all ranks): chunk i, of counts[i] elements, belongs to rank i.
#pragma once

#include "collective/composition.hpp"

namespace jali {

enum class Collective : std::uint8_t {
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    all_reduce,
    scatter,
    gather,
    all_to_all
};
constexpr int collectives = 8;
std::string_view name_of(Collective collective); // "all_reduce"
Collective collective_of(std::string_view name); // also with dashes; throws PlanError that lists the names

// single: one step. composed: broadcast = all-gather after scatter; reduce = gather after reduce-scatter;
// all-gather = broadcast after gather; reduce-scatter = scatter after reduce; all-reduce = all-gather after
// reduce-scatter. rooted (all-reduce only): broadcast after reduce.
enum class Form : std::uint8_t { single, composed, rooted };

struct CollectiveCall {
    Collective collective = Collective::all_reduce;
    DataType type = DataType::fp64;
    // Elements. broadcast, reduce, all-reduce: of the whole vector in counts[0] (one entry). scatter, gather,
    // all-gather, reduce-scatter: of each rank's chunk. all-to-all: of the message from rank i to rank j in
    // counts[i * ranks + j] (one entry: all alike).
    std::vector<std::int64_t> counts;
    int root = 0;
    Operation operation = Operation::sum;
    std::shared_ptr<const UserOperation> user;
    bool in_place = false;
};

// Throws PlanError if the call does not fit the number of ranks, or the form does not exist for it.
Composition make_composition(int ranks, const CollectiveCall& call, Form form);

} // namespace jali
