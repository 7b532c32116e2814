// core/schedule/recorded_calls in Python: driver calls, proved, and changed by tests.
#include "schedule/recorded_calls.hpp"
#include "schedule/first_run.hpp"
#include "schedule/scheduled_events.hpp"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void bind_recorded_calls(nb::module_& m) {
    nb::class_<RecordedCalls>(
        m, "RecordedCalls",
        "What the driver is given for some runs of a launch, of messages or of a collective, on one rank.")
        .def(
            "reported",
            [](RecordedCalls& self) {
                std::vector<std::byte> reported;
                {
                    nb::gil_scoped_release released;
                    reported = reported_events([&] { return self.decode(); });
                }
                return nb::bytes(reported.data(), reported.size());
            },
            "What the other ranks need to know for check_reported.")
        .def(
            "check_together",
            [](RecordedCalls& self, Communicator& communicator) { check_together(self, communicator); },
            "communicator"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Proves that they are in order, with those of all ranks; RuntimeError on all of them. "
            "Collective.")
        .def("describe", &RecordedCalls::describe)
        .def_prop_ro(
            "calls",
            [](const RecordedCalls& self) {
                std::map<const void*, int> streams;
                std::vector<std::tuple<std::string, std::string, int>> all;
                for (const DriverCall& call : self.calls) {
                    const auto next = static_cast<int>(streams.size());
                    all.emplace_back(name_of(call.kind), call.name,
                                     streams.emplace(call.stream, next).first->second);
                }
                return all;
            },
            "(kind, kernel, number of its stream) of each.")
        .def(
            "arguments",
            [](const RecordedCalls& self, std::size_t call) {
                const auto& bytes = self.calls.at(call).arguments;
                return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
            },
            "call"_a, "The structure that a kernel got.")
        .def_prop_ro(
            "memory",
            [](const RecordedCalls& self) {
                nb::dict all;
                for (const auto& [address, bytes] : self.memory.seen())
                    all[nb::int_(address)] =
                        nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                return all;
            },
            nb::sig("def memory(self) -> dict[int, bytes]"), "What kernels read of tables, by address.")
        .def(
            "without",
            [](const RecordedCalls& self, std::size_t call) {
                RecordedCalls other = self;
                other.calls.erase(other.calls.begin() + static_cast<std::ptrdiff_t>(call));
                return other;
            },
            "call"_a, nb::keep_alive<0, 1>(), "The same, and this call was never made.")
        .def(
            "with_call_repeated",
            [](const RecordedCalls& self, std::size_t call) {
                RecordedCalls other = self;
                const DriverCall again = other.calls.at(call);
                other.calls.insert(other.calls.begin() + static_cast<std::ptrdiff_t>(call), again);
                return other;
            },
            "call"_a, nb::keep_alive<0, 1>(), "The same, and this call was made twice.")
        .def(
            "with_call_moved",
            [](const RecordedCalls& self, std::size_t call, std::size_t to) {
                RecordedCalls other = self;
                DriverCall moved = std::move(other.calls.at(call));
                other.calls.erase(other.calls.begin() + static_cast<std::ptrdiff_t>(call));
                other.calls.insert(other.calls.begin() + static_cast<std::ptrdiff_t>(to), std::move(moved));
                return other;
            },
            "call"_a, "to"_a, nb::keep_alive<0, 1>(), "The same, and this call was made earlier or later.")
        .def(
            "with_arguments",
            [](const RecordedCalls& self, std::size_t call, nb::bytes arguments) {
                RecordedCalls other = self;
                const auto* data = reinterpret_cast<const std::byte*>(arguments.c_str());
                other.calls.at(call).arguments.assign(data, data + arguments.size());
                return other;
            },
            "call"_a, "arguments"_a, nb::keep_alive<0, 1>(), "The same, and the kernel got others.")
        .def(
            "with_memory",
            [](const RecordedCalls& self, GpuAddress address, nb::bytes contents) {
                RecordedCalls other = self;
                const auto* data = reinterpret_cast<const std::byte*>(contents.c_str());
                other.memory.change(address, {data, data + contents.size()});
                return other;
            },
            "address"_a, "contents"_a, nb::keep_alive<0, 1>(), "The same, and a table had other entries.")
        .def_prop_ro(
            "blocks",
            [](const RecordedCalls& self) {
                std::map<std::uint64_t, std::tuple<std::uint64_t, std::string>> all;
                for (const auto& [address, block] : self.memory.blocks())
                    all[address] = {block.bytes, block.label};
                return all;
            },
            "{address: (bytes, label)} of the blocks of memory that are touched.")
        .def(
            "with_block",
            [](const RecordedCalls& self, std::uint64_t address, std::uint64_t bytes) {
                RecordedCalls other = self;
                other.memory.blocks().at(address).bytes = bytes;
                return other;
            },
            "address"_a, "bytes"_a, nb::keep_alive<0, 1>(),
            "The same, and a block of memory had another size.")
        .def(
            "with_addresses",
            [](const RecordedCalls& self, std::size_t call, std::uint64_t to, std::uint64_t source,
               std::uint64_t bytes) {
                RecordedCalls other = self;
                DriverCall& changed = other.calls.at(call);
                changed.to = to;
                changed.from = source;
                changed.bytes = bytes;
                return other;
            },
            "call"_a, "to"_a, "source"_a, "bytes"_a, nb::keep_alive<0, 1>(),
            "The same, and a copy or message moved other bytes.")
        .def(
            "with_occupancy",
            [](const RecordedCalls& self, std::size_t call, std::int64_t resident, std::uint64_t device) {
                RecordedCalls other = self;
                other.calls.at(call).resident = resident;
                other.calls.at(call).device = device;
                return other;
            },
            "call"_a, "resident"_a, "device"_a, nb::keep_alive<0, 1>(),
            "The same on another device, or on one with other places.")
        .def(
            "occupancy",
            [](const RecordedCalls& self, std::size_t call) {
                const DriverCall& of = self.calls.at(call);
                return std::tuple(of.blocks, of.resident, of.device);
            },
            "call"_a,
            "Of a launch: its blocks, how many find a place at a time, and the number of the device.")
        .def(
            "addresses",
            [](const RecordedCalls& self, std::size_t call) {
                const DriverCall& of = self.calls.at(call);
                return std::tuple(of.to, of.from, of.bytes);
            },
            "call"_a, "Of a copy or message: to, from, bytes.");
    m.def(
        "check_reported",
        [](const std::map<int, nb::bytes>& by_rank) {
            std::map<int, std::vector<std::byte>> all;
            for (const auto& [rank, reported] : by_rank) {
                const auto bytes = std::as_bytes(std::span(reported.c_str(), reported.size()));
                all[rank].assign(bytes.begin(), bytes.end());
            }
            nb::gil_scoped_release released;
            prove_reported(all);
        },
        "by_rank"_a, "Proves that what these ranks reported is in order; RuntimeError says what is not.");
    m.def("first_runs_are_proved", &first_runs_are_proved,
          "What is given to devices is to be proved before it runs.");
    m.def(
        "first_runs", [] { return std::pair(first_runs.proved.load(), first_runs.unproved.load()); },
        "How many launches with halos, collectives and starts of messages of this process were proved before "
        "they first ran, and how many were not.");
    m.def(
        "check_recorded",
        [](const std::vector<const RecordedCalls*>& of_ranks) {
            std::vector<RankEvents> all;
            for (const RecordedCalls* recorded : of_ranks) {
                RecordedCalls copy = *recorded; // decoding reads memory
                all.push_back(copy.decode());
            }
            prove(all);
        },
        nb::call_guard<nb::gil_scoped_release>(), "of_ranks"_a,
        "Proves that what all ranks gave to their drivers is in order; RuntimeError says what is not.");
}
