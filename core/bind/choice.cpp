// Searches for plans in Python: jali.planner.choice.
#include "planning/choice.hpp"
#include "planning/structures.hpp"

#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

template <class Value>
nb::tuple tuple_of(const std::vector<Value>& values) {
    nb::list list;
    for (const Value& value : values) list.append(value);
    return nb::tuple(list);
}

nb::tuple tuples_of(const std::vector<std::vector<int>>& levels) {
    nb::list list;
    for (const auto& level : levels) list.append(tuple_of(level));
    return nb::tuple(list);
}

// Calls `progress` (None: nothing) and checks whether an interrupt ends the search.
SearchProgress progress_of(const nb::object& progress) {
    return [reported = nb::handle(progress)](const std::string& what) { // the caller holds it
        nb::gil_scoped_acquire held;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (!reported.is_none()) reported(what);
    };
}

} // namespace

void bind_choice(nb::module_& m) {
    nb::class_<FormParameters>(m, "FormParameters",
                               "The five parameters, and the form of the composition. `sizes` are the groups "
                               "of each split along the ranks,\noutermost first, without the last split into "
                               "single ranks; `libraries` has one name per split.")
        .def(
            "__init__",
            [](FormParameters* self, std::vector<std::vector<int>> sizes, int ranks,
               std::vector<std::string> libraries, int stripe, int ring, int depth, const std::string& form,
               std::vector<double> stripe_weights) {
                new (self) FormParameters{
                    std::move(sizes),         ranks, std::move(libraries), stripe, ring, depth, form_of(form),
                    std::move(stripe_weights)};
            },
            "sizes"_a, "ranks"_a, "libraries"_a, "stripe"_a = 1, "ring"_a = 1, "depth"_a = 1,
            "form"_a = "single", "stripe_weights"_a = std::vector<double>{})
        .def_static(
            "of_factors",
            [](const std::vector<int>& factors, std::vector<std::string> libraries, int stripe, int ring,
               int depth, const std::string& form, std::vector<double> stripe_weights) {
                auto result = FormParameters::of_factors(factors, std::move(libraries));
                result.stripe = stripe;
                result.ring = ring;
                result.depth = depth;
                result.form = form_of(form);
                result.stripe_weights = std::move(stripe_weights);
                return result;
            },
            "factors"_a, "libraries"_a, "stripe"_a = 1, "ring"_a = 1, "depth"_a = 1, "form"_a = "single",
            "stripe_weights"_a = std::vector<double>{},
            "Equal groups, by the factors of the number of ranks.")
        .def_prop_ro(
            "sizes", [](const FormParameters& self) { return tuples_of(self.sizes); },
            nb::for_getter(nb::sig("def sizes(self) -> tuple[tuple[int, ...], ...]")))
        .def_ro("ranks", &FormParameters::ranks)
        .def_prop_ro(
            "libraries", [](const FormParameters& self) { return tuple_of(self.libraries); },
            nb::for_getter(nb::sig("def libraries(self) -> tuple[str, ...]")))
        .def_ro("stripe", &FormParameters::stripe)
        .def_ro("ring", &FormParameters::ring)
        .def_ro("depth", &FormParameters::depth)
        .def_prop_ro("form", [](const FormParameters& self) { return std::string(name_of(self.form)); })
        .def_prop_ro(
            "stripe_weights", [](const FormParameters& self) { return tuple_of(self.stripe_weights); },
            nb::for_getter(nb::sig("def stripe_weights(self) -> tuple[float, ...]")))
        .def_prop_ro(
            "factors",
            [](const FormParameters& self) {
                const auto factors = self.factors();
                return factors ? nb::object(tuple_of(*factors)) : nb::none();
            },
            nb::for_getter(nb::sig("def factors(self) -> tuple[int, ...] | None")),
            "Factors of the number of ranks, or None where groups differ.")
        .def("plan_parameters", &FormParameters::plan_parameters, "Without the form.")
        .def("describe", &FormParameters::describe)
        .def(
            "__eq__", [](const FormParameters& self, const FormParameters& other) { return self == other; },
            nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
        .def("__repr__", [](const FormParameters& self) { return "<" + self.describe() + ">"; });

    nb::class_<Candidate>(m, "Candidate", "Parameters that were simulated, and their time in seconds.")
        .def_ro("parameters", &Candidate::parameters)
        .def_ro("time", &Candidate::time);

    nb::class_<Choice>(m, "Choice", "The best plan found; see jali.planner.choice.")
        .def_ro("parameters", &Choice::parameters)
        .def_ro("simulation", &Choice::simulation)
        .def_prop_ro(
            "runners_up", [](const Choice& self) { return tuple_of(self.runners_up); },
            nb::for_getter(nb::sig("def runners_up(self) -> tuple[Candidate, ...]")))
        .def_ro("estimated", &Choice::estimated)
        .def_ro("simulated", &Choice::simulated)
        .def_ro("why", &Choice::why);

    m.def(
        "choose",
        [](const Machine& machine, const std::string& collective, double size, int ranks, int root,
           int shortlist, const nb::object& progress) {
            const auto said = progress_of(progress);
            nb::gil_scoped_release released;
            return choose(machine, collective_of(collective), size, ranks, root, shortlist, said);
        },
        "machine"_a, "collective"_a, "size"_a, "ranks"_a, "root"_a = 0, "shortlist"_a = searched_estimates,
        "progress"_a = nb::none(),
        "The best plan found for a standard collective with a payload p*d of `size` bytes.");
    m.def(
        "choose_for",
        [](const Machine& machine, const Composition& composition, int shortlist,
           const nb::object& progress) {
            const auto said = progress_of(progress);
            nb::gil_scoped_release released;
            return choose_for(machine, composition, shortlist, said);
        },
        "machine"_a, "composition"_a, "shortlist"_a = searched_estimates, "progress"_a = nb::none(),
        "The best plan found for a composition.");
    m.def("default_libraries", &default_libraries, "machine"_a, "hierarchy"_a,
          "For each level of a hierarchy a library that carries messages across all of it.");
    m.def(
        "factorings", [](int nodes) { return tuples_of(factorings(nodes)); },
        nb::sig("def factorings(nodes: int) -> tuple[tuple[int, ...], ...]"), "nodes"_a,
        "Ways to split nodes: at once, by prime factors, in two near-equal steps.");
}
