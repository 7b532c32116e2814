// core/transport/ccl in Python. Every call that may wait releases the interpreter lock.
#include "transport/ccl.hpp"
#include "bind/ending.hpp"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;
using Handle = std::optional<std::uintptr_t>; // of a stream; None is the device's own
using Counts = std::vector<std::size_t>;

CclCommunicator::Stream stream_of(Handle handle) {
    if (!handle) return std::nullopt;
    return reinterpret_cast<void*>(*handle);
}

} // namespace

void bind_ccl(nb::module_& m) {
    nb::class_<CclCommunicator>(m, "CclCommunicator",
                                "GPUs of several ranks; see jali.comm.ccl.CclCommunicator.")
        .def(nb::new_([](Communicator& ranks, const std::shared_ptr<Gpu>& gpu, const std::string& library) {
                 nb::gil_scoped_release released;
                 return ended_without_lock(
                     std::make_shared<CclCommunicator>(CclGroup::shared(ranks, gpu, library)));
             }),
             "ranks"_a, "gpu"_a, "library"_a = "")
        .def_prop_ro("rank", &CclCommunicator::rank)
        .def_prop_ro("size", &CclCommunicator::size)
        .def_prop_ro(
            "library",
            [](const CclCommunicator& self) {
                return nb::make_tuple(self.api().name(), self.api().version_text(), self.api().library);
            },
            "(name, version, file)")
        .def(
            "symmetric",
            [](CclCommunicator& self, std::size_t bytes) { return self.ranks().symmetric(bytes); }, "bytes"_a,
            Released())
        .def_prop_ro("why_no_windows", [](CclCommunicator& self) { return self.ranks().why_no_windows(); })
        .def("group_start", &CclCommunicator::group_start)
        .def("group_end", &CclCommunicator::group_end, Released())
        .def("group_drop", &CclCommunicator::group_drop)
        .def(
            "exchange",
            [](CclCommunicator& self,
               const std::vector<std::tuple<GpuAddress, std::size_t, int, bool>>& messages, Handle stream) {
                std::vector<CclMessage> all;
                for (const auto& [at, bytes, peer, sends] : messages) all.push_back({at, bytes, peer, sends});
                self.exchange(all, stream_of(stream));
            },
            "messages"_a, "stream"_a = nb::none(), Released(),
            "Messages that go on at once: (address, bytes, peer, whether it is sent).")
        .def(
            "send",
            [](CclCommunicator& self, GpuAddress from, std::size_t count, const std::string& type, int to,
               Handle stream) { self.send(from, count, data_type_of(type), to, stream_of(stream)); },
            "data"_a, "count"_a, "type"_a, "to"_a, "stream"_a = nb::none(), Released())
        .def(
            "receive",
            [](CclCommunicator& self, GpuAddress to, std::size_t count, const std::string& type, int from,
               Handle stream) { self.receive(to, count, data_type_of(type), from, stream_of(stream)); },
            "data"_a, "count"_a, "type"_a, "source"_a, "stream"_a = nb::none(), Released())
        .def(
            "all_reduce",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, std::size_t count,
               const std::string& type, const std::string& operation, Handle stream) {
                self.all_reduce(from, to, count, data_type_of(type), operation_of(operation),
                                stream_of(stream));
            },
            "data"_a, "out"_a, "count"_a, "type"_a, "operation"_a, "stream"_a = nb::none(), Released())
        .def(
            "reduce",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, std::size_t count,
               const std::string& type, const std::string& operation, int root, Handle stream) {
                self.reduce(from, to, count, data_type_of(type), operation_of(operation), root,
                            stream_of(stream));
            },
            "data"_a, "out"_a, "count"_a, "type"_a, "operation"_a, "root"_a, "stream"_a = nb::none(),
            Released())
        .def(
            "reduce_scatter",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, std::size_t count,
               const std::string& type, const std::string& operation, Handle stream) {
                self.reduce_scatter(from, to, count, data_type_of(type), operation_of(operation),
                                    stream_of(stream));
            },
            "data"_a, "out"_a, "count"_a, "type"_a, "operation"_a, "stream"_a = nb::none(), Released())
        .def(
            "broadcast",
            [](CclCommunicator& self, GpuAddress data, std::size_t count, const std::string& type, int root,
               Handle stream) { self.broadcast(data, count, data_type_of(type), root, stream_of(stream)); },
            "data"_a, "count"_a, "type"_a, "root"_a, "stream"_a = nb::none(), Released())
        .def(
            "all_gather",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, const Counts& counts,
               const std::string& type,
               Handle stream) { self.all_gather(from, to, counts, data_type_of(type), stream_of(stream)); },
            "data"_a, "out"_a, "counts"_a, "type"_a, "stream"_a = nb::none(), Released())
        .def(
            "gather",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, const Counts& counts,
               const std::string& type, int root,
               Handle stream) { self.gather(from, to, counts, data_type_of(type), root, stream_of(stream)); },
            "data"_a, "out"_a, "counts"_a, "type"_a, "root"_a, "stream"_a = nb::none(), Released())
        .def(
            "scatter",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, const Counts& counts,
               const std::string& type, int root, Handle stream) {
                self.scatter(from, to, counts, data_type_of(type), root, stream_of(stream));
            },
            "data"_a, "out"_a, "counts"_a, "type"_a, "root"_a, "stream"_a = nb::none(), Released())
        .def(
            "all_to_all",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, std::size_t count,
               const std::string& type,
               Handle stream) { self.all_to_all(from, to, count, data_type_of(type), stream_of(stream)); },
            "data"_a, "out"_a, "count"_a, "type"_a, "stream"_a = nb::none(), Released())
        .def(
            "all_to_all_v",
            [](CclCommunicator& self, GpuAddress from, GpuAddress to, const Counts& sent,
               const Counts& received, const std::string& type, Handle stream) {
                self.all_to_all(from, to, sent, received, data_type_of(type), stream_of(stream));
            },
            "data"_a, "out"_a, "sent"_a, "received"_a, "type"_a, "stream"_a = nb::none(), Released())
        .def(
            "check_combines",
            [](const CclCommunicator& self, const std::string& type, const std::string& operation) {
                self.check_combines(data_type_of(type), operation_of(operation));
            },
            "type"_a, "operation"_a)
        .def(
            "check", [](CclCommunicator& self) { self.ranks().check(); }, Released())
        .def(
            "wait",
            [](CclCommunicator& self, const GpuEvent& event, const std::string& what) {
                self.ranks().wait(event, what);
            },
            "event"_a, "what"_a, Released())
        .def(
            "synchronize",
            [](CclCommunicator& self, const std::string& what, Handle stream) {
                self.synchronize(what, stream_of(stream));
            },
            "what"_a, "stream"_a = nb::none(), Released());
}
