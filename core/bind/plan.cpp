// The planner in Python: hierarchies, the parameters of a plan, one rank's schedule.
#include "composition/plan.hpp"
#include "bind/errors.hpp"
#include "planning/plan_counts.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

} // namespace

void bind_plan(nb::module_& m) {
    translate_error<PlanError>("PlanError");
    nb::class_<Hierarchy>(m, "Hierarchy", "Nested groups of ranks, outermost first, down to single ranks.")
        .def(nb::init<int>(), "ranks"_a, "All ranks in one group.")
        .def(
            "__init__",
            [](Hierarchy* self, int ranks, const std::vector<int>& factors) {
                new (self) Hierarchy(ranks, factors);
            },
            "ranks"_a, "factors"_a, "Equal groups; the product of the factors is the number of ranks.")
        .def_static("from_sizes", &Hierarchy::from_sizes, "ranks"_a, "sizes"_a,
                    "Groups by their sizes, level by level; the split into single ranks is added.")
        .def_static("binary", &Hierarchy::binary, "ranks"_a, "Halves of halves, down to single ranks.")
        .def("set_order", &Hierarchy::set_order, "rank_at"_a, "The rank at each position.")
        .def_prop_ro("ranks", &Hierarchy::ranks)
        .def_prop_ro("levels", &Hierarchy::levels)
        .def("rank_at", &Hierarchy::rank_at, "position"_a)
        .def(
            "group",
            [](const Hierarchy& self, int level, int position) {
                if (level < -1 || level >= self.levels() || position < 0 || position >= self.ranks())
                    throw PlanError("level " + std::to_string(level) + ", position " +
                                    std::to_string(position) + " does not exist in " + self.describe());
                const Group group = self.group(level, position);
                return std::make_pair(group.begin, group.end);
            },
            "level"_a, "position"_a, "Positions [begin, end) of the group after split `level`.")
        .def("describe", &Hierarchy::describe);

    nb::class_<PlanParameters>(m, "PlanParameters", "How a composition is lowered; see jali.planner.Plan.")
        .def(
            "__init__",
            [](PlanParameters* self, Hierarchy hierarchy, std::vector<std::string> libraries, int stripe,
               std::vector<double> stripe_weights, int ring, int depth, bool reproducible,
               std::optional<std::size_t> scratch_limit, std::size_t pack_below) {
                new (self) PlanParameters(std::move(hierarchy));
                self->libraries = std::move(libraries);
                self->stripe = stripe;
                self->stripe_weights = std::move(stripe_weights);
                self->ring = ring;
                self->depth = depth;
                self->reproducible = reproducible;
                if (scratch_limit) self->scratch_limit = *scratch_limit;
                self->pack_below = pack_below;
            },
            "hierarchy"_a, "libraries"_a = std::vector<std::string>{}, "stripe"_a = 1,
            "stripe_weights"_a = std::vector<double>{}, "ring"_a = 1, "depth"_a = 1, "reproducible"_a = false,
            "scratch_limit"_a = nb::none(), "pack_below"_a = 65536)
        .def_ro("hierarchy", &PlanParameters::hierarchy)
        .def_ro("libraries", &PlanParameters::libraries)
        .def_ro("stripe", &PlanParameters::stripe)
        .def_ro("stripe_weights", &PlanParameters::stripe_weights)
        .def_ro("ring", &PlanParameters::ring)
        .def_ro("depth", &PlanParameters::depth)
        .def_ro("reproducible", &PlanParameters::reproducible)
        .def_prop_ro("scratch_limit",
                     [](const PlanParameters& self) -> std::optional<std::size_t> {
                         if (self.scratch_limit == std::numeric_limits<std::size_t>::max())
                             return std::nullopt;
                         return self.scratch_limit;
                     })
        .def_ro("pack_below", &PlanParameters::pack_below);

    m.def("check_parameters", &check_parameters, "composition"_a, "parameters"_a);
    m.def(
        "plan_rank",
        [](const Composition& composition, const PlanParameters& parameters, int rank) {
            return std::make_shared<Schedule>(plan_rank(composition, parameters, rank));
        },
        "composition"_a, "parameters"_a, "rank"_a, Released(),
        "One rank's schedule; its last buffer is the scratch.");
    m.def(
        "stages_of",
        [](const Composition& composition, const PlanParameters& parameters) {
            std::vector<std::pair<std::string, int>> result;
            for (const Stage& stage : stages_of(composition, parameters))
                result.emplace_back(stage.name, stage.step);
            return result;
        },
        "composition"_a, "parameters"_a, "(name, step of the composition) of each stage.");
    m.def(
        "count_messages",
        [](const Composition& composition, const PlanParameters& parameters, int each) {
            PlanCounts counts;
            {
                nb::gil_scoped_release released;
                counts = count_messages(composition, parameters, each);
            }
            std::vector<std::map<int, std::pair<std::int64_t, std::int64_t>>> stages;
            for (const auto& levels : counts.stages)
                for (auto& into = stages.emplace_back(); const auto& [level, amount] : levels)
                    into[level] = {amount.messages, amount.bytes};
            return std::make_tuple(std::move(stages), counts.counted, counts.uneven);
        },
        "composition"_a, "parameters"_a, "each"_a = 512,
        "For each stage {level: (messages, bytes)} over all ranks and chunks; how many ranks were counted, "
        "all or "
        "those that stand for all; the share by which bytes of ranks differ that one stands for. Up to "
        "`each` "
        "ranks the sums are exact.");
    m.def(
        "messages_of",
        [](const Schedule& schedule) {
            std::vector<std::tuple<int, std::size_t, int, int, int>> result;
            for (const Step& step : schedule.steps())
                if (const auto* send = std::get_if<Send>(&step.action))
                    result.emplace_back(send->to, send->from.bytes, step.mark.stage, step.mark.chunk,
                                        step.mark.level);
            return result;
        },
        "schedule"_a, "(to, bytes, stage, chunk, level) of each message that this rank sends.");
}
