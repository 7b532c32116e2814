#include "planning/plan_search.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

namespace jali {

namespace {

// The depth is adjusted for those of the short list that take no longer than this times the best.
constexpr double near = 1.1;
// A gain below this share of the time is no reason for another depth.
constexpr double gain = 1e-3;
// So many of each kind of structures are kept from few nodes to more.
constexpr int kept = 2;
// So many of the best are simulated exactly.
constexpr std::size_t finalists = 3, most_runners_up = 5;
constexpr int depths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr double unknown = std::numeric_limits<double>::infinity();

std::string digits(double value, int precision) {
    char text[400]; // the largest double has 309 before the point
    return {text, std::to_chars(text, std::end(text), value, std::chars_format::fixed, precision).ptr};
}

FormParameters with_depth(FormParameters parameters, int depth) {
    parameters.depth = depth;
    return parameters;
}

} // namespace

struct PlanSearch::Estimate {
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

std::optional<PlanSearch::Estimate> PlanSearch::estimate(const Structure& structure) {
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

std::vector<PlanSearch::Estimate> PlanSearch::estimates() {
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

std::vector<StructureKind> PlanSearch::promising() {
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

PlanSearch::Tried* PlanSearch::find(const FormParameters& parameters) {
    const auto found = std::find_if(tried_.begin(), tried_.end(),
                                    [&](const Tried& tried) { return tried.parameters == parameters; });
    return found == tried_.end() ? nullptr : &*found;
}

PlanSearch::Tried& PlanSearch::note(const FormParameters& parameters, double time) {
    Tried* tried = find(parameters);
    if (tried == nullptr) tried = &tried_.emplace_back(Tried{parameters, time});
    tried->time = time;
    if (best_ < 0 || time < best_time()) best_ = static_cast<int>(tried - tried_.data());
    return *tried;
}

double PlanSearch::time(const FormParameters& parameters) {
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

void PlanSearch::climb(FormParameters best) {
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

void PlanSearch::vary() {
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

void PlanSearch::try_second_libraries(const std::vector<FormParameters>& parameters) {
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

int PlanSearch::search(int shortlist) {
    const auto ranked = estimates();
    if (ranked.empty()) throw nothing_fits();
    const double fastest = best_time();
    std::vector<FormParameters> short_list;
    for (std::size_t k = 0; k < ranked.size() && static_cast<int>(k) < shortlist; ++k) {
        // The time of its busiest link is a lower bound for all plans of a structure.
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
    // Small messages may be faster with another library at every level.
    if (ranks_ <= mixed_ranks) try_second_libraries(short_list);
    return static_cast<int>(ranked.size());
}

std::vector<Candidate> PlanSearch::by_time() const {
    std::vector<Candidate> result;
    for (const Tried& tried : tried_)
        if (tried.time < unknown) result.push_back({tried.parameters, tried.time});
    std::stable_sort(result.begin(), result.end(),
                     [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
    return result;
}

std::vector<Candidate> PlanSearch::grown() const {
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

Choice PlanSearch::run(int shortlist) {
    if (ranks_ == 1) {
        FormParameters only;
        only.libraries = {""};
        only.form = forms_.front();
        return {only, simulated(only, Load::exact), {}, 1, 1, "one rank: nothing to send"};
    }
    PlanSearch& searched = sample_only_ ? *sample_ : *this;
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

Choice PlanSearch::choice(const FormParameters& best, PlanSimulation simulation, int estimated,
                          int plans) const {
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

} // namespace jali
