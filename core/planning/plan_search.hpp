// A search for a plan among the structures of a machine (choice.hpp describes it), of any composition that
// may have several forms.
#pragma once

#include "planning/choice.hpp"
#include "planning/structures.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace jali {

// The simulated load: next to no data, all data, or all data exactly, each rank with its part.
enum class Load : std::uint8_t { empty, full, exact };
using CompositionOf = std::function<const Composition&(Form, Load)>;

// More ranks than this: steps in which every rank sends to all are no longer mixed with steps from or to one
// root. Such plans have no symmetry of ranks, and a rank's part is as large as the group. Nor are all
// libraries tried.
constexpr int mixed_ranks = 64;

// `machine` is copied; `progress` must outlive the search.
class PlanSearch {
  public:
    PlanSearch(const Machine& machine, int ranks, std::vector<Form> forms, CompositionOf composition_of,
               const SearchProgress& progress)
        : machine_(machine), ranks_(ranks), forms_(std::move(forms)),
          composition_of_(std::move(composition_of)), progress_(progress), structures_(machine_, ranks) {}
    PlanSearch(const PlanSearch&) = delete;
    PlanSearch& operator=(const PlanSearch&) = delete;

    // The same on fewer nodes. `only`: the pieces are so many that nothing else is searched.
    void sample_on(std::unique_ptr<PlanSearch> fewer, bool only) {
        sample_ = std::move(fewer);
        sample_only_ = only;
    }
    // Throws CollectiveError where nothing fits.
    Choice run(int shortlist);

  private:
    struct Estimate;
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
    std::vector<StructureKind> promising(); // kept for more nodes
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
    std::unique_ptr<PlanSearch> sample_;
    bool sample_only_ = false;
    std::vector<Tried> tried_;
    int best_ = -1;
};

} // namespace jali
