// core/messaging in Python. Every call that may wait releases the interpreter lock.
#include "bind/errors.hpp"
#include "messaging/communicator.hpp"
#include "messaging/descriptors.hpp"
#include "messaging/failure_notices.hpp"
#include "messaging/host_identity.hpp"
#include "messaging/mpi_abi.hpp"
#include "messaging/ping_pong.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;
using Source = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Target = nb::ndarray<nb::c_contig, nb::device::cpu>;

// A request and the objects that must outlive it.
struct PendingMessage {
    std::shared_ptr<Communicator> communicator;
    nb::object buffer;
    std::unique_ptr<Request> request;
};

std::span<const std::byte> bytes_of(const nb::bytes& data) {
    return {static_cast<const std::byte*>(data.data()), data.size()};
}

nb::bytes to_python(const std::vector<std::byte>& data) {
    return nb::bytes(data.data(), data.size());
}

// The memory of an array, without a copy. Raises ParameterError unless it has contiguous memory.
template <class Array>
Array memory_of(const nb::object& data) {
    Array array;
    if (nb::try_cast(data, array, false)) return array;
    const std::string text =
        std::string("a message is a C-contiguous ") +
        (std::is_same_v<Array, Target> ? "array in host memory that may be written"
                                       : "array in host memory") +
        ", not " + nb::repr(nb::handle(data.type())).c_str() +
        (nb::hasattr(data, "strides") ? ", or not such a one; pass numpy.ascontiguousarray of it" : "");
    raise_python("jali.errors", "ParameterError", text.c_str());
    throw nb::python_error();
}

void wait_for(Communicator& communicator, const std::vector<PendingMessage*>& pending,
              const std::string& what) {
    std::vector<std::unique_ptr<Request>> requests;
    bool complete = true;
    for (auto* message : pending) {
        if (message == nullptr) throw nb::type_error("wait: None is no message");
        requests.push_back(std::move(message->request));
        complete = complete && (!requests.back() || communicator.test(*requests.back()));
    }
    if (complete) return; // getting the lock back would cost more than the message
    nb::gil_scoped_release released;
    communicator.wait(requests, what);
}

} // namespace

void bind_transport(nb::module_& m) {
    nb::register_exception_translator(
        [](const std::exception_ptr& pointer, void*) {
            try {
                std::rethrow_exception(pointer);
            } catch (const RankFailure& failure) {
                const nb::object kind = nb::module_::import_("jali.errors").attr("RankError");
                nb::object error =
                    kind("rank " + std::to_string(failure.rank) + " failed: " + failure.what() +
                         (failure.here.empty() ? "" : " (" + failure.here + ")"));
                error.attr("rank") = failure.rank;
                error.attr("cause") = failure.what();
                PyErr_SetObject(kind.ptr(), error.ptr());
            }
        },
        nullptr);
    translate_error<TransportError>("RankError");

    set_wait_hook([] {
        nb::gil_scoped_acquire acquired;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });

    nb::class_<PendingMessage>(m, "PendingMessage", "A message under way; keeps its buffer alive.");

    nb::class_<Communicator>(m, "Communicator", "A group of ranks; see jali.comm.Communicator.")
        .def_prop_ro("rank", &Communicator::rank)
        .def_prop_ro("size", &Communicator::size)
        .def_prop_ro("transport", [](const Communicator& self) { return std::string(self.transport()); })
        .def_prop_ro("largest_tag", &Communicator::largest_tag)
        .def("why_not_from_devices", &Communicator::why_not_from_devices, "kind"_a,
             "Why messages cannot be sent from memory of devices of a kind; empty if they can.")
        .def_prop_ro("takes_threads", &Communicator::takes_threads,
                     "Whether communicators that were made from one another may be used by different threads "
                     "at once.")
        .def("split", &Communicator::split, "color"_a, "key"_a, Released())
        .def("duplicate", &Communicator::duplicate, Released())
        .def(
            "send",
            [](std::shared_ptr<Communicator> self, nb::object data, int to, int tag) {
                const auto source = memory_of<Source>(data);
                auto request = self->send(source.data(), source.nbytes(), to, tag);
                return PendingMessage{std::move(self), std::move(data), std::move(request)};
            },
            "data"_a.none(), "to"_a, "tag"_a)
        .def(
            "receive",
            [](std::shared_ptr<Communicator> self, nb::object data, int from, int tag) {
                const auto target = memory_of<Target>(data);
                auto request = self->receive(target.data(), target.nbytes(), from, tag);
                return PendingMessage{std::move(self), std::move(data), std::move(request)};
            },
            "data"_a.none(), "source"_a, "tag"_a)
        .def(
            "test",
            [](Communicator& self, PendingMessage& message) {
                if (message.request && self.test(*message.request)) message.request.reset();
                return !message.request;
            },
            "message"_a)
        .def("wait", &wait_for, "messages"_a, "what"_a)
        .def("barrier", &Communicator::barrier, "what"_a = "", Released())
        .def(
            "all_reduce_sum",
            [](Communicator& self, nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu> values,
               std::string_view what) {
                std::span<std::int64_t> span(values.data(), values.size());
                nb::gil_scoped_release released;
                self.all_reduce_sum(span, what);
            },
            "values"_a.noconvert(), "what"_a = "")
        .def(
            "gather_bytes",
            [](Communicator& self, nb::bytes data, std::string_view what) {
                std::vector<std::vector<std::byte>> all;
                {
                    const auto mine = bytes_of(data);
                    nb::gil_scoped_release released;
                    all = self.all_gather(mine, what);
                }
                nb::list result;
                for (const auto& one : all) result.append(to_python(one));
                return result;
            },
            "data"_a, "what"_a = "")
        .def(
            "broadcast_bytes",
            [](Communicator& self, nb::bytes data, int root, std::string_view what) {
                std::vector<std::byte> result;
                {
                    const auto mine = bytes_of(data);
                    nb::gil_scoped_release released;
                    result = self.broadcast(mine, root, what);
                }
                return to_python(result);
            },
            "data"_a, "root"_a, "what"_a = "")
        .def("fail", &Communicator::fail, "cause"_a, Released())
        .def("failed_alike", &failed_alike, "cause"_a,
             "Other MPI ranks that have said so far that they failed with this very cause.")
        .def("stopping", &stopping, Released(),
             "Tells the other MPI ranks that this one has said why it stops, unless it has told them "
             "anything before.")
        .def("all_have_spoken", &all_have_spoken, Released(),
             "Whether every other MPI rank has told anything: that it failed, stops or has left.")
        .def("check", &Communicator::check)
        .def(
            "leave",
            [](Communicator& self) {
                self.end_resources();
                self.leave();
            },
            Released())
        .def("await_others_leaving", &Communicator::await_others_leaving, Released());

    translate_error<DescriptorError>("DeviceError");
    using Token = std::tuple<std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
    nb::class_<FdExporter>(m, "FdExporter", "File descriptors for other processes of this user; for tests.")
        .def(
            "__init__",
            [](FdExporter* self, const std::vector<std::pair<int, std::size_t>>& pieces) {
                std::vector<SharedPiece> shared;
                for (const auto& [number, bytes] : pieces) shared.push_back({Descriptor(dup(number)), bytes});
                new (self) FdExporter(std::move(shared));
            },
            "pieces"_a, "pieces: [(descriptor, bytes)], which are duplicated")
        .def_prop_ro(
            "token",
            [](const FdExporter& self) {
                const FdToken& t = self.token();
                return Token{t.process, t.name, t.secret, t.number, t.namespace_of_processes};
            },
            "process, name of its socket, secret, number of the export, namespace of processes");
    m.def(
        "fetch_descriptors",
        [](const Token& token) {
            const auto [process, name, secret, number, of_processes] = token;
            std::vector<SharedPiece> pieces;
            {
                nb::gil_scoped_release released;
                pieces = fetch_descriptors({process, name, secret, number, of_processes});
            }
            std::vector<std::pair<int, std::size_t>> result;
            for (const SharedPiece& piece : pieces)
                result.emplace_back(dup(piece.descriptor.number()), piece.bytes);
            return result;
        },
        "token"_a, "[(descriptor, bytes)], the caller's to close. Raises DeviceError.");

    m.def("make_self_communicator", &make_self_communicator);
    m.def("make_thread_communicators", &make_thread_communicators, "ranks"_a);
    m.def("ping_pong", &ping_pong, "communicator"_a, "peer"_a, "bytes"_a, "rounds"_a, Released(),
          "Seconds that a message takes one way; called by both ranks.");
    m.def("host_identity", &host_identity, "Equal for processes that run on one host, and only for those.");
    m.def("make_host_communicator", &make_host_communicator, "base"_a, Released());
    m.def("make_mpi_communicator", &make_mpi_communicator, "handle"_a, "library"_a, Released());
    m.def(
        "mpi_library",
        [](const std::string& library) {
            const auto& mpi = MpiAbi::find(library);
            return nb::make_tuple(mpi.name, mpi.path);
        },
        "library"_a, "(name of the ABI, path) of the MPI library in use.");
}
