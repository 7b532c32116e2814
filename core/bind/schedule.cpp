// core/schedule in Python: graphs of steps that are built, checked, described and run on arrays.
#include "schedule/executor.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using RegionTuple = std::tuple<int, std::size_t, std::size_t>;
using PortPair = std::pair<int, int>;

Region region(const RegionTuple& r) {
    return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
}

std::vector<Port> ports(const std::vector<PortPair>& pairs) {
    std::vector<Port> result;
    for (const auto& [step, part] : pairs) result.push_back({step, part});
    return result;
}

std::vector<std::vector<Region>> regions(const std::vector<std::vector<RegionTuple>>& of_parts) {
    std::vector<std::vector<Region>> result;
    for (const auto& part : of_parts) {
        result.emplace_back();
        for (const auto& r : part) result.back().push_back(region(r));
    }
    return result;
}

} // namespace

void bind_schedule(nb::module_& m) {
    nb::class_<Schedule>(
        m, "Schedule",
        "A graph of steps over named buffers. Regions are (buffer, offset, bytes); needs are (step, part).")
        .def(nb::init<>())
        .def("add_buffer", &Schedule::add_buffer, "name"_a, "bytes"_a, "holds_data"_a = false)
        .def(
            "add_receive",
            [](Schedule& s, std::string name, const RegionTuple& into, int source, int tag,
               const std::vector<PortPair>& needs) {
                return s.add(std::move(name), Receive{region(into), source, tag}, ports(needs));
            },
            "name"_a, "into"_a, "source"_a, "tag"_a, "needs"_a = std::vector<PortPair>{})
        .def(
            "add_send",
            [](Schedule& s, std::string name, const RegionTuple& data, int to, int tag,
               const std::vector<PortPair>& needs) {
                return s.add(std::move(name), Send{region(data), to, tag}, ports(needs));
            },
            "name"_a, "data"_a, "to"_a, "tag"_a, "needs"_a = std::vector<PortPair>{})
        .def(
            "add_wait",
            [](Schedule& s, std::string name, int step, const std::vector<PortPair>& needs) {
                return s.add(std::move(name), Wait{step}, ports(needs));
            },
            "name"_a, "step"_a, "needs"_a)
        .def(
            "add_copy",
            [](Schedule& s, std::string name, const RegionTuple& data, const RegionTuple& to,
               std::size_t row_bytes, const std::vector<std::int32_t>& rows,
               const std::vector<PortPair>& needs) {
                auto list = rows.empty() ? nullptr : std::make_shared<const std::vector<std::int32_t>>(rows);
                return s.add(std::move(name), Copy{{{region(data), region(to), row_bytes, list, 0}}},
                             ports(needs));
            },
            "name"_a, "data"_a, "to"_a, "row_bytes"_a, "rows"_a = std::vector<std::int32_t>{},
            "needs"_a = std::vector<PortPair>{})
        .def(
            "add_kernel",
            [](Schedule& s, std::string name, nb::callable body,
               const std::vector<std::vector<RegionTuple>>& reads,
               const std::vector<std::vector<RegionTuple>>& writes,
               const std::vector<std::vector<PortPair>>& needs) {
                Kernel kernel;
                auto shared =
                    std::shared_ptr<nb::callable>(new nb::callable(std::move(body)), [](nb::callable* p) {
                        nb::gil_scoped_acquire acquired;
                        delete p;
                    });
                kernel.body = [shared](int part, std::span<std::byte* const>, const Progress*) {
                    nb::gil_scoped_acquire acquired;
                    (*shared)(part);
                };
                kernel.reads = regions(reads);
                kernel.writes = regions(writes);
                std::vector<Part> parts;
                for (std::size_t k = 0; k < needs.size(); ++k)
                    parts.push_back({std::to_string(k), ports(needs[k])});
                return s.add_kernel(std::move(name), std::move(kernel), std::move(parts));
            },
            "name"_a, "body"_a, "reads"_a, "writes"_a, "needs"_a,
            "body(part); reads, writes and needs are given per part.")
        .def("check", &Schedule::check, "RuntimeError says which step reads, writes, needs or waits wrongly.")
        .def("describe", &Schedule::describe)
        .def(
            "run",
            [](std::shared_ptr<Schedule> self, const std::vector<Array>& buffers,
               Communicator& communicator) {
                if (buffers.size() != self->buffers().size()) {
                    throw ScheduleError(std::to_string(buffers.size()) + " arrays for " +
                                        std::to_string(self->buffers().size()) + " buffers");
                }
                std::vector<std::byte*> addresses;
                for (std::size_t k = 0; k < buffers.size(); ++k) {
                    if (buffers[k].nbytes() < self->buffers()[k].bytes) {
                        throw ScheduleError("buffer '" + self->buffers()[k].name + "' has " +
                                            std::to_string(self->buffers()[k].bytes) + " bytes, its array " +
                                            std::to_string(buffers[k].nbytes()));
                    }
                    addresses.push_back(static_cast<std::byte*>(buffers[k].data()));
                }
                Executor executor(self);
                nb::gil_scoped_release released;
                executor.run(addresses, communicator);
            },
            "buffers"_a, "communicator"_a, "Runs once on the host; one array per buffer.");
}
