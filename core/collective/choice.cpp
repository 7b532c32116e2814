#include "collective/choice.hpp"
#include "settings/counted.hpp"

#include "collective/structures.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace jali {

namespace {

// More ranks than this: an all-reduce in one step is no longer looked at; it has ranks^2 partial results.
constexpr int one_step_ranks = 16;
// The depth is adjusted for those of the short list that take no longer than this times the best.
constexpr double near = 1.1;
// What helps less than this share of the time is no reason for another depth.
constexpr double gain = 1e-3;
// More nodes than this: structures are compared on so many first, of each kind the best few go on, and fewer
// are simulated.
constexpr int sample_nodes = 16, kept = 2, sampled_estimates = 3;
// More ranks than this: steps in which every rank sends to all are no longer mixed with steps from or to one
// root. Such plans look alike from no two ranks, and a rank's part is as large as the group.
constexpr int mixed_ranks = 64;
// So many of the best are simulated exactly.
constexpr std::size_t finalists = 3, most_runners_up = 5;
constexpr int depths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr double unknown = std::numeric_limits<double>::infinity();

// What is simulated: next to no data, all of it, or all of it exactly as it will be, each rank with its part.
enum class Load : std::uint8_t { empty, full, exact };
using CompositionOf = std::function<const Composition&(Form, Load)>;

std::string digits(double value, int precision) {
    char text[400]; // the largest double has 309 before the point
    return {text, std::to_chars(text, std::end(text), value, std::chars_format::fixed, precision).ptr};
}

std::string shortest(double value) {
    char text[32];
    return {text, std::to_chars(text, std::end(text), value).ptr};
}

FormParameters with_depth(FormParameters parameters, int depth) {
    parameters.depth = depth;
    return parameters;
}

struct Estimate {
    Structure structure;
    double empty = 0;     // seconds without data
    double full = 0;      // seconds with data
    double load = 0;      // seconds that the busiest link needs
    double per_chunk = 0; // seconds that each further chunk costs

    double at(int depth) const {
        const double moving = std::max(0.0, full - empty - load);
        return load + moving / depth + empty + (depth - 1) * per_chunk;
    }
    int best_depth() const {
        return *std::min_element(std::begin(depths), std::end(depths),
                                 [&](int a, int b) { return at(a) < at(b); });
    }
    double best() const { return at(best_depth()); }
};

class Search {
  public:
    Search(const Machine& machine, int ranks, std::vector<Form> forms, CompositionOf composition_of,
           const SearchProgress& progress)
        : machine_(machine), ranks_(ranks), forms_(std::move(forms)),
          composition_of_(std::move(composition_of)), progress_(progress), structures_(machine_, ranks) {}
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

    // The same on fewer nodes. `only`: the pieces are so many that nothing else is searched.
    void sample_on(std::unique_ptr<Search> fewer, bool only) {
        sample_ = std::move(fewer);
        sample_only_ = only;
    }
    bool is_large() const { return structures_.full_nodes() > sample_nodes && structures_.rest() == 0; }

    Choice run(int shortlist);

  private:
    struct Tried {
        FormParameters parameters;
        double time; // `unknown`: it does not fit
        bool rank_by_rank = false;
    };

    void say(const std::string& what) const {
        if (progress_) progress_(what);
    }
    PlanSimulation simulated(const FormParameters& parameters, Load load) const {
        const bool exactly = load == Load::exact;
        return simulate_plan(composition_of_(parameters.form, load), parameters.plan_parameters(), machine_,
                             exactly ? Symmetric::exactly : Symmetric::everywhere, !exactly);
    }

    std::optional<Estimate> estimate(const Structure& structure);
    std::vector<Estimate> estimates();      // the best first
    std::vector<StructureKind> promising(); // what goes on to more nodes
    std::vector<Candidate> by_time() const; // of those tried that fit
    std::vector<Candidate> grown() const;   // the best of the sample, on all nodes
    int search(int shortlist);              // tries plans; how many structures it began with
    void climb(FormParameters best);        // doubles and halves the depth while that helps
    void vary();                            // libraries, level by level, and weighted stripes
    void try_second_libraries(const std::vector<FormParameters>& parameters);
    double time(const FormParameters& parameters); // tries them if need be
    Tried* find(const FormParameters& parameters);
    Tried& note(const FormParameters& parameters, double time);
    double best_time() const { return tried_[best_].time; }
    Choice choice(const FormParameters& best, PlanSimulation simulation, int estimated, int plans) const;
    CollectiveError nothing_fits() const {
        return CollectiveError("no plan fits machine '" + machine_.name + "' and its libraries");
    }

    const Machine machine_;
    int ranks_;
    std::vector<Form> forms_;
    CompositionOf composition_of_;
    const SearchProgress& progress_;
    Structures structures_;
    std::unique_ptr<Search> sample_;
    bool sample_only_ = false;
    std::vector<Tried> tried_;
    int best_ = -1;
};

std::optional<Estimate> Search::estimate(const Structure& structure) {
    SimulationResult empty, full;
    try {
        empty = simulated(structure.parameters, Load::empty).result;
        full = simulated(structure.parameters, Load::full).result;
    } catch (const std::invalid_argument&) { // plan, composition and machine do not fit
        return std::nullopt;
    }
    note(structure.parameters, full.time);
    // A further chunk costs each rank's messages their gap once more.
    const double messages = 2.0 * static_cast<double>(full.transfers) / ranks_;
    double gap = 0;
    for (const Library& library : machine_.libraries)
        for (const LibraryLevel& at : library.at) gap = std::max(gap, at.gap);
    return Estimate{structure, empty.time, full.time, full.bottleneck_load,
                    std::min(empty.time, messages * gap)};
}

std::vector<Estimate> Search::estimates() {
    auto structures = structures_.of(forms_);
    if (sample_) {
        const auto good = sample_->promising();
        std::erase_if(structures, [&](const Structure& structure) {
            return std::find(good.begin(), good.end(), structure.kind) == good.end();
        });
    }
    std::vector<Estimate> found;
    const std::string all = std::to_string(structures.size()),
                      nodes = std::to_string(std::max(1, structures_.full_nodes()));
    for (std::size_t k = 0; k < structures.size(); ++k) {
        say("structure " + std::to_string(k + 1) + " of " + all + " on " + nodes + " nodes");
        if (auto estimated = estimate(structures[k])) found.push_back(std::move(*estimated));
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Estimate& a, const Estimate& b) { return a.best() < b.best(); });
    return found;
}

std::vector<StructureKind> Search::promising() {
    std::vector<StructureKind> result;
    for (const Estimate& estimate : estimates()) {
        const StructureKind& kind = estimate.structure.kind;
        const auto same = std::count_if(result.begin(), result.end(), [&](const StructureKind& other) {
            return kind.same_between_nodes(other);
        });
        if (same < kept) result.push_back(kind);
    }
    return result;
}

Search::Tried* Search::find(const FormParameters& parameters) {
    const auto found = std::find_if(tried_.begin(), tried_.end(),
                                    [&](const Tried& tried) { return tried.parameters == parameters; });
    return found == tried_.end() ? nullptr : &*found;
}

Search::Tried& Search::note(const FormParameters& parameters, double time) {
    Tried* tried = find(parameters);
    if (tried == nullptr) tried = &tried_.emplace_back(Tried{parameters, time});
    tried->time = time;
    if (best_ < 0 || time < best_time()) best_ = static_cast<int>(tried - tried_.data());
    return *tried;
}

double Search::time(const FormParameters& parameters) {
    if (const Tried* tried = find(parameters)) return tried->time;
    say("plan " + std::to_string(tried_.size() + 1));
    try {
        const PlanSimulation found = simulated(parameters, Load::full);
        Tried& tried = note(parameters, found.result.time);
        tried.rank_by_rank = found.planned == ranks_;
        return tried.time;
    } catch (const std::invalid_argument&) {
        return tried_.emplace_back(Tried{parameters, unknown}).time;
    }
}

void Search::climb(FormParameters best) {
    for (const bool deeper : {true, false}) {
        for (;;) {
            const int depth = deeper ? best.depth * 2 : best.depth / 2;
            if (depth < 1 || depth > *std::prev(std::end(depths))) break;
            FormParameters other = with_depth(best, depth);
            if (time(other) >= time(best) * (1 - gain)) break;
            best = std::move(other);
        }
    }
}

void Search::vary() {
    FormParameters best = tried_[best_].parameters;
    const auto take_if_faster = [&](FormParameters other) {
        if (time(other) < time(best)) best = std::move(other);
    };
    const std::vector<int>& crossed = structures_.crossed(best);
    for (std::size_t split = 0; split < crossed.size(); ++split) {
        for (const std::string& name : structures_.libraries_at(crossed[split])) {
            if (name == best.libraries[split]) continue;
            FormParameters other = best;
            other.libraries[split] = name;
            take_if_faster(std::move(other));
        }
    }
    if (best.stripe > 1) {
        FormParameters other = best;
        other.stripe_weights = structures_.stripe_weights();
        if (!other.stripe_weights.empty()) take_if_faster(std::move(other));
    }
    climb(std::move(best));
}

void Search::try_second_libraries(const std::vector<FormParameters>& parameters) {
    const int found = best_;
    for (FormParameters other : parameters) {
        const std::vector<int>& crossed = structures_.crossed(other);
        for (std::size_t split = 0; split < crossed.size(); ++split) {
            const std::string second = structures_.best_library(crossed[split], 1);
            if (!second.empty()) other.libraries[split] = second;
        }
        time(other);
    }
    if (best_ != found) vary();
}

int Search::search(int shortlist) {
    const auto ranked = estimates();
    if (ranked.empty()) throw nothing_fits();
    const double fastest = best_time();
    std::vector<FormParameters> short_list;
    for (std::size_t k = 0; k < ranked.size() && static_cast<int>(k) < shortlist; ++k) {
        // What its busiest link needs is less than any plan of a structure takes.
        if (ranked[k].load < fastest)
            short_list.push_back(with_depth(ranked[k].structure.parameters, ranked[k].best_depth()));
    }
    std::vector<std::pair<double, const FormParameters*>> timed;
    for (const FormParameters& parameters : short_list) timed.emplace_back(time(parameters), &parameters);
    std::stable_sort(timed.begin(), timed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [seconds, parameters] : timed)
        if (seconds < near * best_time()) climb(*parameters);
    vary();
    // Small messages may want another library at every level.
    if (ranks_ <= mixed_ranks) try_second_libraries(short_list);
    return static_cast<int>(ranked.size());
}

std::vector<Candidate> Search::by_time() const {
    std::vector<Candidate> result;
    for (const Tried& tried : tried_)
        if (tried.time < unknown) result.push_back({tried.parameters, tried.time});
    std::stable_sort(result.begin(), result.end(),
                     [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
    return result;
}

std::vector<Candidate> Search::grown() const {
    std::vector<Candidate> result;
    const auto there = sample_->structures_.of(forms_), here = structures_.of(forms_);
    for (const Candidate& candidate : sample_->by_time()) {
        const FormParameters shallow = with_depth(candidate.parameters, 1);
        const auto small = std::find_if(there.begin(), there.end(), [&](const Structure& structure) {
            return structure.parameters == shallow;
        });
        if (small == there.end()) continue; // varied
        const auto large = std::find_if(here.begin(), here.end(), [&](const Structure& structure) {
            return structure.kind == small->kind;
        });
        if (large != here.end())
            result.push_back({with_depth(large->parameters, candidate.parameters.depth), unknown});
    }
    return result;
}

Choice Search::run(int shortlist) {
    if (ranks_ == 1) {
        FormParameters only;
        only.libraries = {""};
        only.form = forms_.front();
        return {only, simulated(only, Load::exact), {}, 1, 1, "one rank: nothing to send"};
    }
    Search& searched = sample_only_ ? *sample_ : *this;
    const int estimated = searched.search(shortlist);
    const int plans = static_cast<int>(searched.tried_.size());
    auto candidates = sample_only_ ? grown() : by_time();
    if (candidates.empty()) throw nothing_fits();
    candidates.resize(std::min(candidates.size(), finalists));
    std::vector<std::optional<PlanSimulation>> exact(candidates.size());
    for (std::size_t k = 0; k < candidates.size(); ++k) {
        const FormParameters& parameters = candidates[k].parameters;
        if (const Tried* tried = find(parameters); tried != nullptr && tried->rank_by_rank) continue;
        say("exactly: " + parameters.describe());
        exact[k] = simulated(parameters, Load::exact);
        candidates[k].time = note(parameters, exact[k]->result.time).time;
    }
    const auto best = std::min_element(candidates.begin(), candidates.end(),
                                       [](const auto& a, const auto& b) { return a.time < b.time; });
    auto& simulation = exact[best - candidates.begin()];
    if (!simulation) simulation = simulated(best->parameters, Load::exact);
    return choice(best->parameters, std::move(*simulation), estimated, plans);
}

Choice Search::choice(const FormParameters& best, PlanSimulation simulation, int estimated, int plans) const {
    Choice made{best, std::move(simulation), {}, estimated, plans, {}};
    // One runner-up per structure: its best depth.
    std::vector<FormParameters> seen{with_depth(best, 1)};
    for (Candidate& candidate : by_time()) {
        FormParameters shallow = with_depth(candidate.parameters, 1);
        if (std::find(seen.begin(), seen.end(), shallow) != seen.end()) continue;
        seen.push_back(std::move(shallow));
        made.runners_up.push_back(std::move(candidate));
        if (made.runners_up.size() == most_runners_up) break;
    }
    const SimulationResult& result = made.simulation.result;
    made.why =
        std::to_string(estimated) + " structures estimated, " + std::to_string(plans) + " plans simulated.";
    if (result.bottleneck >= 0) {
        const double share = result.bottleneck_load / result.time;
        made.why += " The busiest link, " + machine_.link_name(result.bottleneck) + ", is needed for " +
                    digits(share * 100, 0) + "% of the time.";
    }
    if (!made.runners_up.empty() && result.time > 0) {
        const Candidate& next = made.runners_up.front();
        made.why += " The next best structure (" + next.parameters.describe() + ") takes " +
                    digits(next.time / result.time, 2) + " times as long.";
    }
    return made;
}

void check(const Machine& machine, double size, int ranks) {
    if (ranks < 1 || ranks > machine.ranks())
        throw CollectiveError(counted(ranks, "rank") + " on machine '" + machine.name + "' with " +
                              std::to_string(machine.ranks()));
    if (!(size > 0 && size < unknown))
        throw CollectiveError("a size of " + shortest(size) + " bytes; it must be positive and finite");
}

std::vector<Form> searched_forms(Collective collective, int ranks) {
    auto forms = forms_of(collective);
    std::erase(forms, Form::pairwise); // as many steps as ranks
    if (collective == Collective::all_reduce && ranks > one_step_ranks) std::erase(forms, Form::single);
    if (collective != Collective::all_reduce && ranks > mixed_ranks) std::erase(forms, Form::composed);
    return forms;
}

// A standard collective in its forms. Equal parts are compared in a search; what is chosen is simulated with
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
    Search search(machine, ranks, forms, standard(collective, size, root, ranks), progress);
    if (search.is_large()) {
        Machine part = machine;
        part.nodes = sample_nodes;
        part.finish();
        const int few = part.ranks();
        const double share = std::pow(static_cast<double>(few) / ranks, scaling(collective));
        search.sample_on(std::make_unique<Search>(
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
    return Search(machine, composition.ranks(), {Form::single}, composition_of, progress).run(shortlist);
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
