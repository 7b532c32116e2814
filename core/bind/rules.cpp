// core/planning/algorithms and rules in Python: the table of algorithms, and their choice.
#include "planning/rules.hpp"
#include "bind/errors.hpp"
#include "messaging/mpi_abi.hpp"
#include "planning/algorithms.hpp"

#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
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
                     [](const Algorithm& entry) {
                         nb::list names;
                         for (const Collective collective : entry.collectives)
                             names.append(std::string(name_of(collective)));
                         return nb::tuple(names);
                     })
        .def_prop_ro("form", [](const Algorithm& entry) { return std::string(name_of(entry.form)); })
        .def_prop_ro("hierarchy",
                     [](const Algorithm& entry) { return std::string(name_of(entry.hierarchy)); })
        .def_ro("summary", &Algorithm::summary)
        .def_ro("ring", &Algorithm::ring)
        .def_ro("striped", &Algorithm::striped, "Roots are spread over the ranks of their host.")
        .def_ro("leaders", &Algorithm::leaders,
                "One rank of each host combines what its host has, and gets what all have.")
        .def_ro("on_devices", &Algorithm::on_devices, "Whether arrays in device memory take it too.")
        .def_ro("chunk", &Algorithm::chunk)
        .def("depth", &Algorithm::depth, "payload"_a, "Chunks of the pipeline, for a payload in bytes.")
        .def(
            "plan",
            [](const Algorithm& entry, const CollectiveCall& call, const Hosts& hosts,
               const std::string& inside, const std::string& between, bool on_devices) {
                AlgorithmPlan made = plan_of(entry, call, hosts, inside, between, on_devices);
                return std::pair(std::move(made.composition), std::move(made.parameters));
            },
            "call"_a, "hosts"_a, "inside"_a = "", "between"_a = "", "on_devices"_a = false,
            "Composition and parameters of a call between ranks of these hosts, whose messages these carry.");
    m.def(
        "algorithm_aliases",
        [] {
            nb::list entries;
            for (const AlgorithmAlias& entry : algorithm_aliases())
                entries.append(nb::make_tuple(std::string(entry.name), std::string(name_of(entry.collective)),
                                              std::string(entry.algorithm), entry.one_host));
            return entries;
        },
        nb::sig("def algorithm_aliases() -> list[tuple[str, str, str, bool]]"),
        "Other names of algorithms: (name, collective, algorithm or nothing where it is the usual one that "
        "knows "
        "of no "
        "hosts, whether all ranks are to be on one host).");
    m.def("algorithms", [] {
        nb::list entries;
        for (const Algorithm& entry : algorithms())
            entries.append(nb::cast(&entry, nb::rv_policy::reference));
        return entries;
    });

    translate_error<RulesError>("ParameterError");
    nb::class_<CollectiveChoice>(m, "CollectiveChoice", "What a collective takes, and the rule that says so.")
        .def_prop_ro("name", [](const CollectiveChoice& choice) { return choice.spec.name; })
        .def_prop_ro(
            "transport", [](const CollectiveChoice& choice) { return choice.spec.transport; },
            "Who carries its messages; empty: the usual one.")
        .def_prop_ro(
            "between", [](const CollectiveChoice& choice) { return choice.spec.between; },
            "Who carries those between hosts; empty: the same.")
        .def_prop_ro("spec", [](const CollectiveChoice& choice) { return text_of(choice.spec); })
        .def_prop_ro("one_host", [](const CollectiveChoice& choice) { return choice.spec.one_host; })
        .def_ro("why", &CollectiveChoice::why);
    m.def(
        "choose_on_host",
        [](const CollectiveCall& call, const std::vector<int>& ranks_of_hosts) {
            return choose_on_host(call, ranks_of_hosts);
        },
        "call"_a, "ranks_of_hosts"_a, "The algorithm of a collective in host memory. ParameterError.");
    nb::class_<MatchedRule>(m, "MatchedRule", "An algorithm of a rule that holds for a call.")
        .def_prop_ro("name", [](const MatchedRule& self) { return self.spec.name; })
        .def_prop_ro("transport", [](const MatchedRule& self) { return self.spec.transport; })
        .def_prop_ro("between", [](const MatchedRule& self) { return self.spec.between; })
        .def_prop_ro("spec", [](const MatchedRule& self) { return text_of(self.spec); })
        .def_prop_ro("one_host", [](const MatchedRule& self) { return self.spec.one_host; })
        .def_ro("file", &MatchedRule::file)
        .def_ro("line", &MatchedRule::line)
        .def_ro("why", &MatchedRule::reason, "What the rule says of itself.")
        .def_ro("conditions", &MatchedRule::conditions, "Of the rule, as its file has them.");
    m.def(
        "matched_rules",
        [](const CollectiveCall& call, const std::vector<int>& ranks_of_hosts, const std::string& memory,
           const LibraryVersions& versions, bool persistent) {
            CollectiveFacts facts = facts_of(call, ranks_of_hosts, versions);
            facts.memory = memory;
            facts.persistent = persistent;
            return collective_rules()->specs(facts);
        },
        "call"_a, "ranks_of_hosts"_a, "memory"_a = "host", "versions"_a = LibraryVersions(),
        "persistent"_a = false,
        "All algorithms that the rules in use have for a call, in the order in which they are tried. "
        "ParameterError where the rules cannot be read.");
    m.def(
        "why_not_between",
        [](const std::string& name, bool one_host, const std::string& collective,
           const std::vector<int>& ranks_of_hosts) {
            return why_not_between({.name = name, .one_host = one_host}, collective_of(collective),
                                   ranks_of_hosts);
        },
        "name"_a, "one_host"_a, "collective"_a, "ranks_of_hosts"_a,
        "Why an algorithm does not apply to ranks that are spread over hosts so; empty if it does.");
    m.def(
        "requested_algorithm",
        [](const CollectiveCall& call, bool on_devices) { return requested_algorithm(call, on_devices); },
        "call"_a, "on_devices"_a,
        "What a call asks for by name, or JALI_COLLECTIVE; no name where neither does. ParameterError.");
    m.attr("BY_MPI") = std::string(by_mpi);
    m.def(
        "why_mpi_has_not", [](const CollectiveCall& call, int ranks) { return why_mpi_has_not(call, ranks); },
        "call"_a, "ranks"_a,
        "Why MPI has no such collective between so many ranks, whatever its library; empty if it has.");
    m.def(
        "names_of_algorithms",
        [](const std::string& collective, bool on_devices) {
            return names_of_algorithms(collective_of(collective), on_devices);
        },
        "collective"_a, "on_devices"_a, "Algorithms of a collective on the host, or on devices.");
    m.def(
        "rules_digest", [] { return collective_rules()->digest(); },
        "Equal where the rules of collectives are. ParameterError where they cannot be read.");
    m.def(
        "check_rules",
        [](const std::string& text, const std::string& file) {
            return ChoiceRules(text, file, algorithm_names()).size();
        },
        "text"_a, "file"_a,
        "How many rules a file of this name and text has. ParameterError names what is wrong.");
    m.def(
        "rules_ask_for_library", [] { return collective_rules()->ask_for_devices_library(); },
        "Whether a rule in use asks for the version of the devices' library.");
    m.def(
        "mpi_libraries",
        [] {
            nb::list names;
            for (const std::string_view name : mpi_libraries()) names.append(std::string(name));
            return nb::tuple(names);
        },
        nb::sig("def mpi_libraries() -> tuple[str, ...]"), "MPI libraries, as rules ask for their versions.");
    m.def("shipped_rules", &shipped_rules, "The rules that come with jali, as the text of their file.");
}
