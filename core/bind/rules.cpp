// core/collective/algorithms and rules in Python: the table of ways, and which is chosen.
#include "collective/rules.hpp"
#include "bind/errors.hpp"
#include "collective/algorithms.hpp"

#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void bind_rules(nb::module_& m) {
    nb::class_<Algorithm>(
        m, "Algorithm",
        "One way of a collective: `form` of the composition, `hierarchy` flat, binary (halves of halves) or "
        "hosts; `ring` over all ranks or hosts; `chunk` bytes of a chunk of the pipeline (0: all in one).")
        .def_ro("name", &Algorithm::name)
        .def_prop_ro("collectives",
                     [](const Algorithm& row) {
                         nb::list names;
                         for (const Collective collective : row.collectives)
                             names.append(std::string(name_of(collective)));
                         return nb::tuple(names);
                     })
        .def_prop_ro("form", [](const Algorithm& row) { return std::string(name_of(row.form)); })
        .def_prop_ro("hierarchy", [](const Algorithm& row) { return std::string(name_of(row.hierarchy)); })
        .def_ro("summary", &Algorithm::summary)
        .def_ro("ring", &Algorithm::ring)
        .def_ro("striped", &Algorithm::striped, "Roots are spread over the ranks of their host.")
        .def_ro("on_devices", &Algorithm::on_devices, "Whether arrays in device memory take it too.")
        .def_ro("chunk", &Algorithm::chunk)
        .def("depth", &Algorithm::depth, "payload"_a, "Chunks of the pipeline, for a payload in bytes.");
    m.def("algorithms", [] {
        nb::list rows;
        for (const Algorithm& row : algorithms()) rows.append(nb::cast(&row, nb::rv_policy::reference));
        return rows;
    });

    translate_error<RulesError>("ParameterError");
    nb::class_<CollectiveChoice>(m, "CollectiveChoice", "What a collective takes, and the rule that says so.")
        .def_prop_ro("name", [](const CollectiveChoice& choice) { return choice.way.name; })
        .def_prop_ro(
            "carrier", [](const CollectiveChoice& choice) { return choice.way.carrier; },
            "Who carries its messages; empty: the usual one.")
        .def_ro("why", &CollectiveChoice::why);
    m.def(
        "choose_on_host",
        [](const std::string& collective, const std::string& type, std::vector<std::int64_t> counts,
           const std::string& operation, bool in_place, bool reproducible,
           const std::vector<int>& ranks_of_hosts) {
            CollectiveCall call;
            call.collective = collective_of(collective);
            call.type = data_type_of(type);
            call.counts = std::move(counts);
            call.operation = operation_of(operation);
            call.in_place = in_place;
            CollectiveFacts facts = facts_of(call, ranks_of_hosts);
            facts.reproducible = reproducible;
            return collective_rules()->choose(facts, [&](const CollectiveWay& way) -> std::string {
                if (way.carrier.empty() && find_algorithm(way.name, call.collective, false) != nullptr)
                    return "";
                return "'" + way.name + "' is for devices";
            });
        },
        "collective"_a, "type"_a, "counts"_a, "operation"_a, "in_place"_a, "reproducible"_a,
        "ranks_of_hosts"_a, "The way of a collective in host memory that names none. ParameterError.");
    m.def(
        "payload",
        [](const std::string& collective, const std::string& type, std::vector<std::int64_t> counts,
           int ranks) {
            CollectiveCall call;
            call.collective = collective_of(collective);
            call.type = data_type_of(type);
            call.counts = std::move(counts);
            return payload(call, ranks);
        },
        "collective"_a, "type"_a, "counts"_a, "ranks"_a, "Bytes of the largest buffer of a call.");
    m.def(
        "rules_digest", [] { return collective_rules()->digest(); },
        "Equal where the rules of collectives are. ParameterError where they cannot be read.");
    m.def(
        "check_rules",
        [](const std::string& text, const std::string& file) {
            return ChoiceRules(text, file, way_names()).size();
        },
        "text"_a, "file"_a,
        "How many rules a file of this name and text has. ParameterError names what is wrong.");
    m.def("shipped_rules", &shipped_rules, "The rules that come with jali, as the text of their file.");
}
