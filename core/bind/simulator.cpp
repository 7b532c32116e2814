// core/simulation in Python: machines and the simulator. Files of machines are read by jali.planner.machine.
#include "simulation/simulator.hpp"
#include "composition/plan.hpp"
#include "composition/standard_collectives.hpp"
#include "simulation/plan_graph.hpp"
#include "simulation/plan_simulation.hpp"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using LevelTuple = std::tuple<std::string, int, bool, double, double, double>;
using NicTuple = std::tuple<double, double, double, int, double>;
using AtTuple = std::tuple<bool, double, double, double, double, double>;
using LibraryTuple = std::tuple<std::string, double, std::vector<AtTuple>>;
using MarkTuple = std::tuple<int, int, int>;

Mark mark_of(const MarkTuple& m) {
    return {std::get<0>(m), std::get<1>(m), std::get<2>(m)};
}

Symmetric symmetric_of(const std::string& name) {
    if (name == "never") return Symmetric::never;
    if (name == "exactly") return Symmetric::exactly;
    if (name == "everywhere") return Symmetric::everywhere;
    throw PlanError("symmetry '" + name + "'; there are never, exactly, everywhere");
}

const char* name_of(TransferGraph::Kind kind) {
    switch (kind) {
    case TransferGraph::Kind::send:
    case TransferGraph::Kind::receive:
        return "transfer";
    case TransferGraph::Kind::copy:
        return "copy";
    case TransferGraph::Kind::reduction:
        return "reduction";
    case TransferGraph::Kind::delay:
        return "delay";
    default:
        return "kernel";
    }
}

} // namespace

void bind_simulator(nb::module_& m) {
    nb::class_<Machine>(m, "Machine", "A described machine, in seconds and bytes; see jali.planner.machine.")
        .def(
            "__init__",
            [](Machine* self, std::string name, int nodes, const std::vector<LevelTuple>& levels,
               const std::vector<NicTuple>& nics, std::vector<int> binding, double network_latency,
               const std::vector<LibraryTuple>& libraries, double copy, double reduction, double launch,
               double memory) {
                new (self) Machine();
                self->name = std::move(name);
                self->nodes = nodes;
                for (const auto& [level, parts, pairs, bandwidth, duplex, latency] : levels)
                    self->inside.push_back({level, parts, pairs, bandwidth, duplex, latency});
                for (const auto& [rated, bandwidth, duplex, crowd, crowded] : nics)
                    self->nics.push_back({rated, bandwidth, duplex, crowd, crowded});
                self->binding = std::move(binding);
                self->network_latency = network_latency;
                for (const auto& [library, engine, at] : libraries) {
                    self->libraries.push_back({library, {}, engine});
                    for (const auto& [usable, latency, gap, bandwidth, duplex, efficiency] : at)
                        self->libraries.back().at.push_back(
                            {usable, latency, gap, bandwidth, duplex, efficiency});
                }
                self->copy = copy;
                self->reduction = reduction;
                self->launch = launch;
                self->memory = memory;
                self->finish();
            },
            "name"_a, "nodes"_a, "levels"_a, "nics"_a, "binding"_a, "network_latency"_a, "libraries"_a,
            "copy"_a, "reduction"_a, "launch"_a, "memory"_a = unlimited)
        .def_ro("name", &Machine::name)
        .def_ro("nodes", &Machine::nodes)
        .def_prop_ro("ranks", &Machine::ranks)
        .def_prop_ro("ranks_per_node", &Machine::ranks_per_node)
        .def("level_between", &Machine::level_between, "source"_a, "to"_a)
        .def("capacity", &Machine::capacity, "link"_a)
        .def("link_name", &Machine::link_name, "link"_a)
        .def(
            "path",
            [](const Machine& self, int source, int to, const std::string& library) {
                const int level = self.level_between(source, to);
                const Path path = self.path(source, to, self.library(library, level));
                return std::make_pair(std::vector<int>(path.links, path.links + path.count), path.latency);
            },
            "source"_a, "to"_a, "library"_a = "", "Links of a message, and its latency in seconds.");

    nb::class_<TransferGraph>(m, "TransferGraph",
                              "What all ranks send and compute; marks are (stage, chunk, level).")
        .def(nb::init<int, bool>(), "ranks"_a, "coalesce"_a = true)
        .def("add", &TransferGraph::add, "rank"_a, "schedule"_a)
        .def(
            "add_transfer",
            [](TransferGraph& self, int source, int to, double bytes, const std::vector<int>& needs,
               const MarkTuple& mark, const std::string& library) {
                return self.add_transfer(source, to, bytes, library, mark_of(mark), needs);
            },
            "source"_a, "to"_a, "bytes"_a, "needs"_a = std::vector<int>{}, "mark"_a = MarkTuple{-1, -1, -1},
            "library"_a = "")
        .def(
            "add_work",
            [](TransferGraph& self, int rank, double bytes, bool reduction, const std::vector<int>& needs,
               const MarkTuple& mark) { return self.add_work(rank, bytes, reduction, mark_of(mark), needs); },
            "rank"_a, "bytes"_a, "reduction"_a, "needs"_a = std::vector<int>{},
            "mark"_a = MarkTuple{-1, -1, -1})
        .def(
            "add_kernel",
            [](TransferGraph& self, int rank, double seconds, const std::vector<int>& needs,
               const MarkTuple& mark) { return self.add_kernel(rank, seconds, mark_of(mark), needs); },
            "rank"_a, "seconds"_a, "needs"_a = std::vector<int>{}, "mark"_a = MarkTuple{-1, -1, -1},
            "Seconds that it takes with the rank's memory for itself.")
        .def(
            "add_delay",
            [](TransferGraph& self, int rank, double seconds, const std::vector<int>& needs,
               const MarkTuple& mark) { return self.add_delay(rank, seconds, mark_of(mark), needs); },
            "rank"_a, "seconds"_a, "needs"_a = std::vector<int>{}, "mark"_a = MarkTuple{-1, -1, -1},
            "Seconds in which nothing is used up.")
        .def("finish", [](TransferGraph& self) { self.finish(); })
        .def_prop_ro("nodes", &TransferGraph::nodes)
        .def_prop_ro(
            "content",
            [](const TransferGraph& self) {
                using Entry = std::tuple<int, int, int, std::string, int, int, double, std::vector<int>>;
                std::vector<Entry> entries;
                for (int k = 0; k < self.nodes(); ++k) {
                    const auto& node = self.node(k);
                    entries.emplace_back(static_cast<int>(node.kind), node.rank, node.peer,
                                         node.peer < 0 ? "" : self.libraries()[node.library], node.mark.stage,
                                         node.mark.chunk, node.bytes, self.needs(k));
                }
                return entries;
            },
            "(kind, rank, peer, library, stage, chunk, bytes, needs) of every node");

    nb::class_<SimulationResult>(m, "SimulationResult", "Times in seconds from the start, sizes in bytes.")
        .def_ro("time", &SimulationResult::time)
        .def_ro("transfers", &SimulationResult::transfers)
        .def_ro("works", &SimulationResult::works)
        .def_ro("events", &SimulationResult::events)
        .def_ro("bottleneck", &SimulationResult::bottleneck)
        .def_ro("bottleneck_load", &SimulationResult::bottleneck_load)
        .def_prop_ro(
            "links",
            [](const SimulationResult& r) {
                std::vector<std::tuple<int, double, double>> all;
                for (const auto& use : r.links) all.emplace_back(use.link, use.bytes, use.busy);
                return all;
            },
            "(link, bytes, busy seconds) of the links that were used")
        .def_prop_ro(
            "stages",
            [](const SimulationResult& r) {
                std::vector<std::tuple<int, double, double, double, std::int64_t>> all;
                for (const auto& s : r.stages)
                    all.emplace_back(s.stage, s.begin, s.end, s.bytes, s.transfers);
                return all;
            },
            "(stage, begin, end, bytes, transfers)")
        .def_ro("begin", &SimulationResult::begin, "seconds at which each node of the graph began")
        .def_ro("end", &SimulationResult::end, "seconds at which each node of the graph ended")
        .def_prop_ro(
            "levels",
            [](const SimulationResult& r) {
                std::vector<std::pair<double, std::int64_t>> all;
                for (const auto& use : r.levels) all.emplace_back(use.bytes, use.transfers);
                return all;
            },
            "(bytes, transfers) per level of the machine, between nodes first")
        .def_prop_ro(
            "critical_path",
            [](const SimulationResult& r) {
                std::vector<std::tuple<std::string, int, int, int, int, double, double, double>> all;
                for (const auto& c : r.critical_path)
                    all.emplace_back(name_of(c.kind), c.rank, c.peer, c.mark.stage, c.mark.chunk, c.begin,
                                     c.end, c.bytes);
                return all;
            },
            "(kind, rank, peer, stage, chunk, begin, end, bytes), first to last");

    nb::class_<PlanSimulation>(m, "PlanSimulation", "A simulated plan.")
        .def_ro("result", &PlanSimulation::result)
        .def_ro("planned", &PlanSimulation::planned, "ranks whose part was made")
        .def_ro("exact", &PlanSimulation::exact, "whether ranks that were taken to do the same do")
        .def_ro("uneven", &PlanSimulation::uneven, "share by which their messages differ");

    m.def(
        "simulate_plan",
        [](const Composition& composition, const PlanParameters& parameters, const Machine& machine,
           const std::string& symmetric, bool summary) {
            nb::gil_scoped_release released;
            return simulate_plan(composition, parameters, machine, symmetric_of(symmetric), summary);
        },
        "composition"_a, "parameters"_a, "machine"_a, "symmetric"_a = "exactly", "summary"_a = false,
        "Plans and simulates all ranks, or those that stand for all. PlanError: plan and machine do not fit; "
        "RuntimeError: it cannot end.");
    m.def(
        "plan_graph",
        [](const Composition& composition, const PlanParameters& parameters, bool by_schedules) {
            nb::gil_scoped_release released;
            const PlanGraph plan(composition, parameters);
            TransferGraph graph(composition.ranks());
            for (int rank = 0; rank < composition.ranks(); ++rank) {
                if (by_schedules)
                    graph.add(rank, plan_rank(composition, parameters, rank));
                else
                    plan.add(graph, rank);
            }
            graph.finish();
            return graph;
        },
        "composition"_a, "parameters"_a, "by_schedules"_a,
        "The transfer graph of all ranks, made directly or from their schedules.");
    m.def(
        "standard_for_size",
        [](const std::string& collective, const std::string& form, double bytes, int root, int ranks,
           bool even) {
            nb::gil_scoped_release released;
            return standard_for_size(collective_of(collective), form_of(form), bytes, root, ranks, even);
        },
        "collective"_a, "form"_a, "bytes"_a, "root"_a, "ranks"_a, "even"_a = false,
        "A standard collective of fp32 with a payload p*d of `bytes`, or a little more so that parts are "
        "equal.");
    m.def(
        "simulate_graph",
        [](const TransferGraph& graph, const Machine& machine) {
            nb::gil_scoped_release released;
            return simulate(graph, machine);
        },
        "graph"_a, "machine"_a,
        "ValueError: the graph does not fit the machine; RuntimeError: it cannot finish.");
}
