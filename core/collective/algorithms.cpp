#include "collective/algorithms.hpp"

#include <algorithm>

namespace jali {

namespace {

using enum Collective;
using enum Form;
using enum Algorithm::Shape;

constexpr std::int64_t KiB = 1 << 10, MiB = 1 << 20;
constexpr int most_chunks = 32;
const std::vector<Collective> but_all_reduce{broadcast, reduce, all_gather, reduce_scatter,
                                             scatter,   gather, all_to_all};

const std::vector<Algorithm>& table() {
    static const std::vector<Algorithm> rows{
        {"direct", but_all_reduce, single, flat, "everything straight from its source to its destination"},
        {"one_shot", {all_reduce}, single, flat, "every rank sends all it has to all others and combines"},
        {"two_step",
         {all_reduce, broadcast, reduce},
         composed,
         flat,
         "reduce-scatter or scatter, then all-gather or gather, each direct"},
        {"recursive_doubling",
         {all_reduce, all_gather},
         single,
         binary,
         "partners at doubling distances exchange all they have"},
        {"recursive_halving",
         {reduce_scatter},
         single,
         binary,
         "partners at halving distances exchange the halves they are not responsible for"},
        {"halving_doubling",
         {all_reduce},
         composed,
         binary,
         "recursive halving, then recursive doubling (Rabenseifner)"},
        {"binomial",
         {broadcast, reduce, gather, scatter},
         single,
         binary,
         "a binomial tree from or to the root"},
        {"bruck", {all_to_all}, single, binary, "log2(ranks) rounds, in each of which messages are combined"},
        {"pairwise",
         {all_to_all},
         pairwise,
         flat,
         "one partner after the other: to the next rank and from the one before, then to the second next"},
        {.name = "ring",
         .collectives = {all_gather, reduce_scatter},
         .form = single,
         .hierarchy = flat,
         .summary = "chunks go from neighbour to neighbour",
         .ring = true},
        {.name = "ring",
         .collectives = {all_reduce},
         .form = composed,
         .hierarchy = flat,
         .summary = "a ring reduce-scatter, then a ring all-gather",
         .ring = true},
        {.name = "chain",
         .collectives = {broadcast, reduce},
         .form = single,
         .hierarchy = flat,
         .summary = "a pipeline from neighbour to neighbour",
         .ring = true,
         .chunk = 256 * KiB},
        {.name = "pipelined",
         .collectives = {all_reduce, reduce},
         .form = composed,
         .hierarchy = flat,
         .summary = "two steps in chunks: a chunk is gathered while the next is reduced",
         .on_devices = false,
         .chunk = MiB},
        // inside hosts and between them
        {.name = "hosts",
         .collectives = but_all_reduce,
         .form = single,
         .hierarchy = hosts,
         .summary = "between hosts once, then inside them; roots spread over the ranks of their host",
         .striped = true,
         .on_devices = false,
         .chunk = 2 * MiB},
        {.name = "hosts",
         .collectives = {all_reduce},
         .form = composed,
         .hierarchy = hosts,
         .summary = "reduce-scatter and all-gather, inside hosts and between them, in chunks",
         .on_devices = false,
         .chunk = 2 * MiB},
    };
    return rows;
}

} // namespace

bool Algorithm::has(Collective collective) const {
    return std::ranges::find(collectives, collective) != collectives.end();
}

int Algorithm::depth(std::int64_t payload) const {
    return chunk == 0 ? 1 : static_cast<int>(std::clamp<std::int64_t>(payload / chunk, 1, most_chunks));
}

std::string_view name_of(Algorithm::Shape shape) {
    constexpr std::string_view names[] = {"flat", "binary", "hosts"};
    return names[static_cast<int>(shape)];
}

std::span<const Algorithm> algorithms() {
    return table();
}

const Algorithm* find_algorithm(std::string_view name, Collective collective, bool on_devices) {
    for (const Algorithm& row : table())
        if (row.name == name && row.has(collective) && (row.on_devices || !on_devices)) return &row;
    return nullptr;
}

} // namespace jali
