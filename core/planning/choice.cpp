#include "planning/choice.hpp"
#include "settings/counted.hpp"

#include "planning/plan_search.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>

namespace jali {

namespace {

// More ranks than this: an all-reduce in one step is no longer tried; it has ranks^2 partial results.
constexpr int one_step_ranks = 16;
// More nodes than this: structures are compared on so many first, and fewer plans are simulated.
constexpr int sample_nodes = 16, sampled_estimates = 3;

std::string shortest(double value) {
    char text[32];
    return {text, std::to_chars(text, std::end(text), value).ptr};
}

void check(const Machine& machine, double size, int ranks) {
    if (machine.links() == 0)
        throw CollectiveError("machine '" + machine.name +
                              "' is not finished; call finish() after its last change");
    if (ranks < 1 || ranks > machine.ranks())
        throw CollectiveError(counted(ranks, "rank") + " on machine '" + machine.name + "' with " +
                              std::to_string(machine.ranks()));
    if (!(size > 0 && size < 0x1p62)) // and so of elements
        throw CollectiveError("a size of " + shortest(size) + " bytes; it must be positive and below 2^62");
}

std::vector<Form> searched_forms(Collective collective, int ranks) {
    auto forms = forms_of(collective);
    std::erase(forms, Form::pairwise); // as many steps as ranks
    if (collective == Collective::all_reduce && ranks > one_step_ranks) std::erase(forms, Form::single);
    if (collective != Collective::all_reduce && ranks > mixed_ranks) std::erase(forms, Form::composed);
    return forms;
}

// A standard collective in its forms. Equal parts are compared in a search; the chosen plan is simulated with
// its own.
CompositionOf standard(Collective collective, double size, int root, int ranks) {
    const double small = std::max(4.0 * ranks, size * 1e-6);
    const auto made = std::make_shared<std::map<std::pair<Form, Load>, Composition>>();
    return [=](Form form, Load load) -> const Composition& {
        auto found = made->find({form, load});
        if (found == made->end()) {
            const bool exactly = load == Load::exact;
            const double bytes = load == Load::empty ? small : exactly ? size : std::max(small, size);
            const bool even = collective == Collective::all_reduce && !exactly;
            found = made->emplace(std::pair(form, load),
                                  standard_for_size(collective, form, bytes, root, ranks, even))
                        .first;
        }
        return found->second;
    };
}

// How the payload shrinks with the number of ranks if every rank is to send as much as before: with an
// all-to-all, to each other rank. Whole vectors stay.
double scaling(Collective collective) {
    switch (collective) {
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::all_reduce:
        return 0;
    case Collective::all_to_all:
        return 2;
    default:
        return 1;
    }
}

// The same composition with as few elements as keep its shape: all divided by the smallest count.
Composition shrunk(const Composition& whole) {
    std::int64_t unit = std::numeric_limits<std::int64_t>::max();
    for (const auto& step : whole.steps())
        for (const Primitive& primitive : step) unit = std::min(unit, primitive.count);
    Composition small(whole.ranks(), whole.type());
    for (const CompositionBuffer& buffer : whole.buffers()) {
        auto counts = buffer.counts;
        for (std::int64_t& count : counts) count = count / unit + (count % unit != 0);
        small.add_buffer(buffer.name, std::move(counts), buffer.input);
    }
    for (const auto& step : whole.steps()) {
        for (const Primitive& primitive : step) {
            const Piece from{primitive.from.buffer, primitive.from.offset / unit},
                to{primitive.to.buffer, primitive.to.offset / unit};
            const std::int64_t count = primitive.count / unit;
            if (primitive.kind == Primitive::Kind::multicast) {
                small.multicast(from, to, count, primitive.root, primitive.ranks);
                continue;
            }
            const Reduction& how = whole.reductions()[primitive.reduction];
            small.reduce(from, to, count, primitive.ranks, primitive.root, how.operation, how.user);
        }
        small.fence();
    }
    return small;
}

} // namespace

Choice choose(const Machine& machine, Collective collective, double size, int ranks, int root, int shortlist,
              const SearchProgress& progress) {
    check(machine, size, ranks);
    check_root(collective, root, ranks);
    const auto forms = searched_forms(collective, ranks);
    PlanSearch search(machine, ranks, forms, standard(collective, size, root, ranks), progress);
    if (ranks / machine.ranks_per_node() > sample_nodes && ranks % machine.ranks_per_node() == 0) {
        Machine part = machine;
        part.nodes = sample_nodes;
        part.finish();
        const int few = part.ranks();
        const double share = std::pow(static_cast<double>(few) / ranks, scaling(collective));
        search.sample_on(std::make_unique<PlanSearch>(
                             part, few, forms, standard(collective, size * share, root % few, few), progress),
                         collective == Collective::all_to_all);
        shortlist = std::min(shortlist, sampled_estimates);
    }
    return search.run(shortlist);
}

Choice choose_for(const Machine& machine, const Composition& composition, int shortlist,
                  const SearchProgress& progress) {
    std::int64_t largest = 0;
    for (const CompositionBuffer& buffer : composition.buffers())
        for (const std::int64_t count : buffer.counts) largest = std::max(largest, count);
    check(machine, static_cast<double>(largest) * static_cast<double>(size_of(composition.type())),
          composition.ranks());
    const Composition small = shrunk(composition);
    const auto composition_of = [&](Form, Load load) -> const Composition& {
        return load == Load::empty ? small : composition;
    };
    return PlanSearch(machine, composition.ranks(), {Form::single}, composition_of, progress).run(shortlist);
}

std::vector<std::string> default_libraries(const Machine& machine, const Hierarchy& hierarchy) {
    std::vector<std::string> names;
    for (int level = 0; level < hierarchy.levels(); ++level) {
        const auto [begin, end] = hierarchy.group(level - 1, 0);
        std::set<int> crossed; // levels of the machine
        for (int position = begin + 1; position < end; ++position)
            if (!(hierarchy.group(level, position) == hierarchy.group(level, begin)))
                crossed.insert(machine.level_between(hierarchy.rank_at(begin), hierarchy.rank_at(position)));
        std::vector<std::string> usable;
        for (const Library& library : machine.libraries)
            if (std::all_of(crossed.begin(), crossed.end(), [&](int k) { return library.at[k].usable; }))
                usable.push_back(library.name);
        if (usable.empty())
            throw PlanError("no library of machine '" + machine.name + "' carries all messages of level " +
                            std::to_string(level));
        names.push_back(crossed.contains(0) ? usable.front() : usable.back());
    }
    return names;
}

} // namespace jali
