// The eight standard collectives as compositions, in the single-step and multi-step forms of HiCCL's Table 2.
//
// Buffers are "send" and "recv"; where only the root sends or receives (broadcast, scatter; reduce, gather)
// they have no elements elsewhere. In place there is one buffer, "data": the whole vector (broadcast, reduce,
// all-reduce), or all chunks with the rank's own chunk at its own place (all-gather, reduce-scatter,
// all-to-all, and the root of scatter and gather; its other ranks hold their chunk alone). Only the result is
// defined afterwards: in place, a reduce-scatter may leave any contents outside the own chunk. Where a form
// needs room for intermediate results that neither buffer may hold, there is a third buffer, "work".
#pragma once

#include "composition/composition.hpp"

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>

namespace jali {

// A call that cannot be: the caller's mistake.
struct CollectiveError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// One that all ranks throw, so that one of them may report it.
struct AgreedError : CollectiveError {
    using CollectiveError::CollectiveError;
};

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

// single: one step (in place, all-reduce and all-to-all need a second one that copies). composed: broadcast =
// all-gather after scatter; reduce = gather after reduce-scatter; all-gather = broadcast after gather;
// reduce-scatter = scatter after reduce; all-reduce = all-gather after reduce-scatter. rooted (all-reduce
// only): broadcast after reduce. mirrored (scatter only): reductions of one source, the root, whose routes
// are those of a gather with all arrows turned: they leave the root's node by the cards of all its ranks.
// pairwise (all-to-all only): one step after the other, in which every rank sends to the one at the step's
// distance after it.
enum class Form : std::uint8_t { single, composed, rooted, mirrored, pairwise };

// The arguments of a call, equal on all ranks.
struct CollectiveCall {
    Collective collective = Collective::all_reduce;
    DataType type = DataType::fp64;
    // Elements. broadcast, reduce, all-reduce: of the whole vector in counts[0] (one entry). scatter, gather,
    // all-gather, reduce-scatter: of each rank's chunk (one entry: all alike). all-to-all: of the message
    // from rank i to rank j in counts[i * ranks + j] (one entry: all alike).
    std::vector<std::int64_t> counts;
    int root = 0;
    Operation operation = Operation::sum;
    std::shared_ptr<const UserOperation> user;
    bool in_place = false;
    bool reproducible = false; // combined in the order of ranks
    std::string algorithm;     // requested by name; empty: the executing code chooses

    bool operator==(const CollectiveCall& other) const;
};

// Bytes of the largest buffer of a call, in near-equal parts where counts differ.
std::int64_t payload(const CollectiveCall& call, int ranks);
// Of each buffer of a rank.
std::vector<std::size_t> bytes_of_buffers(const CollectiveCall& call, int ranks, int rank);

// Forms that exist for a collective.
std::vector<Form> forms_of(Collective collective);
std::string_view name_of(Form form); // "single", "composed", "rooted", "mirrored"
Form form_of(std::string_view name); // throws PlanError that lists the names

// Where each rank's part of a vector of `count` elements begins when it is cut into near-equal parts: ranks +
// 1 numbers.
std::vector<std::int64_t> near_equal_offsets(std::int64_t count, int ranks);

// Throws PlanError unless there is such a rank.
void check_root(Collective collective, int root, int ranks);
// Throws PlanError if the call does not fit the number of ranks, or the form does not exist for it.
void check_call(int ranks, const CollectiveCall& call, Form form);
// Throws the same.
Composition make_composition(int ranks, const CollectiveCall& call, Form form);
// Of fp32 with a payload p * d of so many bytes, at least one element each; `even`: a little more, so that
// parts of a whole vector are equal.
Composition standard_for_size(Collective collective, Form form, double bytes, int root, int ranks,
                              bool even = false);

} // namespace jali

template <>
struct std::hash<jali::CollectiveCall> {
    std::size_t operator()(const jali::CollectiveCall& call) const noexcept;
};
