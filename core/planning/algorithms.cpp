#include "planning/algorithms.hpp"

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
    static const std::vector<Algorithm> entries{
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
        {.name = "two_level",
         .collectives = {all_reduce},
         .form = rooted,
         .hierarchy = hosts,
         .summary = "reduce to a rank of each host, all-reduce between these, broadcast inside hosts",
         .leaders = true},
        {.name = "two_level",
         .collectives = {broadcast, reduce},
         .form = single,
         .hierarchy = hosts,
         .summary = "between hosts to or from one rank of each, then or before that inside them"},
        {.name = "slices",
         .collectives = {all_reduce},
         .form = composed,
         .hierarchy = hosts,
         .summary = "reduce-scatter inside hosts, each rank's slice all-reduced between them, all-gather "
                    "inside, in chunks",
         .chunk = 2 * MiB},
        {.name = "slices",
         .collectives = but_all_reduce,
         .form = single,
         .hierarchy = hosts,
         .summary = "between hosts once, a slice by each rank, then inside them",
         .striped = true,
         .chunk = 2 * MiB},
    };
    return entries;
}

// MPICH's compositions by its names, whose meaning depends on the collective, and ours for those without an
// entry.
const std::vector<AlgorithmAlias>& alias_table() {
    static const std::vector<AlgorithmAlias> entries = [] {
        std::vector<AlgorithmAlias> made;
        for (int k = 0; k < jali::collectives; ++k) {
            made.push_back({"flat", static_cast<Collective>(k), ""});
            made.push_back({"node_only", static_cast<Collective>(k), "", true});
        }
        const AlgorithmAlias greek[] = {
            {"alpha", all_reduce, "two_level"},
            {"beta", all_reduce, ""},
            {"gamma", all_reduce, "", true},
            {"delta", all_reduce, "slices"},
            {"alpha", broadcast, "two_level"},
            {"beta", broadcast, "two_level"},
            {"gamma", broadcast, ""},
            {"delta", broadcast, "", true},
            {"alpha", reduce, "two_level"},
            {"beta", reduce, "two_level"},
            {"gamma", reduce, ""},
            {"alpha", all_gather, "slices"},
            {"beta", all_gather, ""},
            {"alpha", all_to_all, "slices"},
            {"beta", all_to_all, ""},
        };
        made.insert(made.end(), std::begin(greek), std::end(greek));
        return made;
    }();
    return entries;
}

// Leaders are the first ranks of their hosts. Their all-reduce is a reduce-scatter and an all-gather, in
// place in the result's memory, where each leader has its host's data. Everything is cut at its parts'
// borders: pieces on devices are equal or disjoint.
Composition by_leaders(const CollectiveCall& call, const Hosts& hosts, int ranks) {
    Composition made(ranks, call.type);
    const std::int64_t count = call.counts.at(0);
    const int send = made.add_buffer(call.in_place ? "data" : "send", {count});
    const int recv = call.in_place ? send : made.add_buffer("recv", {count}, false);
    std::vector<int> leaders;
    for (const std::vector<int>& host : hosts) leaders.push_back(host.front());
    const auto members = [ranks](std::vector<int> of) {
        std::ranges::sort(of);
        return RankSet::list(ranks, std::move(of));
    };
    const auto without = [&](const std::vector<int>& of, int one) {
        std::vector<int> rest;
        for (const int rank : of)
            if (rank != one) rest.push_back(rank);
        return rest;
    };
    const std::vector<std::int64_t> at = near_equal_offsets(count, static_cast<int>(leaders.size()));
    const auto for_each_piece = [&](const auto& write) {
        for (std::size_t k = 0; k < leaders.size(); ++k) write(at[k], at[k + 1] - at[k], leaders[k]);
    };
    for (const std::vector<int>& host : hosts)
        for_each_piece([&](std::int64_t begin, std::int64_t size, int) {
            made.reduce({send, begin}, {recv, begin}, size, members(host), host.front(), call.operation,
                        call.user);
        });
    made.fence();
    for_each_piece([&](std::int64_t begin, std::int64_t size, int leader) {
        made.reduce({recv, begin}, {recv, begin}, size, members(leaders), leader, call.operation, call.user);
    });
    made.fence();
    for_each_piece([&](std::int64_t begin, std::int64_t size, int leader) {
        made.multicast({recv, begin}, {recv, begin}, size, leader, members(without(leaders, leader)));
    });
    made.fence();
    for (const std::vector<int>& host : hosts)
        for_each_piece([&](std::int64_t begin, std::int64_t size, int) {
            const std::vector<int> others = without(host, host.front());
            if (!others.empty())
                made.multicast({recv, begin}, {recv, begin}, size, host.front(), members(others));
        });
    return made;
}

int count_ranks(const Hosts& hosts) {
    int ranks = 0;
    for (const std::vector<int>& host : hosts) ranks += static_cast<int>(host.size());
    return ranks;
}

Hierarchy hierarchy_of(const Algorithm& entry, const Hosts& hosts, int ranks) {
    if (entry.hierarchy == binary) return Hierarchy::binary(ranks);
    if (entry.hierarchy == flat || !are_nested(hosts)) return Hierarchy(ranks);
    std::vector<int> sizes, order;
    for (const std::vector<int>& host : hosts) {
        sizes.push_back(static_cast<int>(host.size()));
        order.insert(order.end(), host.begin(), host.end());
    }
    Hierarchy hierarchy = Hierarchy::from_sizes(ranks, {sizes});
    hierarchy.set_order(std::move(order));
    return hierarchy;
}

} // namespace

bool are_nested(const Hosts& hosts) {
    return hosts.size() > 1 && static_cast<int>(hosts.size()) < count_ranks(hosts);
}

Composition composition_of(const Algorithm& entry, const CollectiveCall& call, const Hosts& hosts) {
    const int ranks = count_ranks(hosts);
    Composition made = make_composition(ranks, call, entry.form); // throws for invalid calls
    // Leaders combine host by host, so data to be combined in the order of ranks pass through them
    // uncombined; and an average of averages is not the average.
    if (!entry.leaders || !are_nested(hosts) || call.reproducible || call.operation == Operation::avg)
        return made;
    return by_leaders(call, hosts, ranks);
}

AlgorithmPlan plan_of(const Algorithm& entry, const CollectiveCall& call, const Hosts& hosts,
                      const std::string& inside, const std::string& between, bool on_devices) {
    const int ranks = count_ranks(hosts);
    PlanParameters parameters(hierarchy_of(entry, hosts, ranks));
    const bool nested = entry.hierarchy == Algorithm::Shape::hosts && are_nested(hosts);
    const std::string& across = between.empty() ? inside : between;
    if (!inside.empty()) {
        if (nested)
            parameters.libraries = {across, inside};
        else
            parameters.libraries = {hosts.size() > 1 ? across : inside};
    }
    if (nested && entry.striped &&
        (call.collective == Collective::broadcast || call.collective == Collective::reduce))
        parameters.stripe = static_cast<int>(hosts.front().size());
    if (entry.ring) parameters.ring = ranks;
    parameters.reproducible = call.reproducible;
    if (on_devices)
        parameters.pack_below = 0;
    else
        parameters.depth = entry.depth(payload(call, ranks));
    return {composition_of(entry, call, hosts), std::move(parameters)};
}

std::span<const AlgorithmAlias> algorithm_aliases() {
    return alias_table();
}

const AlgorithmAlias* find_alias(std::string_view name, Collective collective) {
    for (const AlgorithmAlias& entry : alias_table())
        if (entry.name == name && entry.collective == collective) return &entry;
    return nullptr;
}

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
    for (const Algorithm& entry : table())
        if (entry.name == name && entry.has(collective) && (entry.on_devices || !on_devices)) return &entry;
    return nullptr;
}

} // namespace jali
