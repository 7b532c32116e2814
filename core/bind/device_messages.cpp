// core/transport/device_messages in Python: src/jali/comm/device_messages.py derives from DeviceMessage.
#include "transport/device_messages.hpp"
#include "bind/ending.hpp"
#include "bind/errors.hpp"
#include "bind/placed_array.hpp"
#include "transport/peer_memory.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Handle = std::optional<std::uintptr_t>; // of a stream; None is jali's own

} // namespace

void bind_device_messages(nb::module_& m) {
    m.def(
        "agree_on_peer_handles",
        [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
            return agree_on_handle_type(gpu, communicator);
        },
        "gpu"_a, "communicator"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Tries how processes can map each other's device memory and chooses; why they cannot, or empty. "
        "Collective.");

    translate_error<MessageError>("ParameterError");
    nb::class_<DeviceMessages>(m, "DeviceMessages",
                               "What the messages of a communicator share on one device.")
        .def(nb::new_([](std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator) {
                 nb::gil_scoped_release released;
                 return ended_without_lock( // with the library's communicator, perhaps
                     std::make_shared<DeviceMessages>(std::move(gpu), std::move(communicator)));
             }),
             "gpu"_a, "communicator"_a, "Collective.")
        .def(
            "why_not",
            [](const DeviceMessages& self, const std::string& way, int rank) {
                return self.why_not(way, rank);
            },
            "way"_a, "rank"_a, "Why messages with that rank cannot go this way; empty if they can.")
        .def(
            "start",
            [](DeviceMessages& self, const std::vector<DeviceMessage*>& messages, Handle stream) {
                if (std::find(messages.begin(), messages.end(), nullptr) != messages.end())
                    throw nb::type_error("start: None is no message");
                std::optional<void*> on;
                if (stream) on = reinterpret_cast<void*>(*stream);
                nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
                self.start(messages, on);
            },
            "messages"_a, "stream"_a = nb::none(), "Puts a start of each on a stream (jali's).")
        .def(
            "describe",
            [](DeviceMessages& self, const std::vector<DeviceMessage*>& messages) {
                return self.describe(messages);
            },
            "messages"_a, nb::call_guard<nb::gil_scoped_release>(),
            "What a start of these puts on streams, a line for each step. Waits for their other ends.")
        .def(
            "tell",
            [](DeviceMessages& self, const std::vector<int>& peers, nb::bytes mine) {
                std::vector<std::vector<std::byte>> told;
                {
                    nb::gil_scoped_release released;
                    told = self.tell(peers, std::as_bytes(std::span(mine.c_str(), mine.size())));
                }
                std::vector<nb::bytes> all;
                for (const auto& one : told) all.emplace_back(one.data(), one.size());
                return all;
            },
            "peers"_a, "mine"_a, "What these ranks tell, each of which is told this; waits for them.")
        .def(
            "rehearse",
            [](DeviceMessages& self, const std::vector<DeviceMessage*>& messages) {
                self.rehearse(messages);
            },
            "messages"_a, nb::call_guard<nb::gil_scoped_release>(),
            "What a start that a graph records needs done before, on both ranks; no array changes.");

    nb::class_<DeviceMessage>(m, "DeviceMessage", "One end of a message between devices.")
        .def(
            "__init__",
            [](DeviceMessage* self, std::shared_ptr<DeviceMessages> all, const PlacedArray& x, int peer,
               std::int64_t tag, bool sends, const std::string& way) {
                const ArrayKind& kind = *x.kind;
                const std::string shape = nb::repr(kind.shape).c_str(),
                                  element = nb::cast<std::string>(kind.element);
                const MessageArray array{peer, tag, sends, kind.nbytes > 0 ? x.address : 0, kind.nbytes};
                auto* owner = reinterpret_cast<void*>(x.owner_stream);
                nb::gil_scoped_release released;
                new (self) DeviceMessage(std::move(all), array, element, shape, way, owner);
            },
            "messages"_a, "x"_a, "peer"_a, "tag"_a, "sends"_a, "way"_a)
        .def_prop_ro("peer", [](const DeviceMessage& self) { return self.array().peer; })
        .def_prop_ro("tag", [](const DeviceMessage& self) { return self.array().tag; })
        .def_prop_ro("sends", [](const DeviceMessage& self) { return self.array().sends; })
        .def_prop_ro("nbytes", [](const DeviceMessage& self) { return self.array().bytes; })
        .def_prop_ro("address", [](const DeviceMessage& self) { return self.array().address; })
        // of ends that have met
        .def_prop_ro("way", &DeviceMessage::way)
        .def_prop_ro("why", &DeviceMessage::why)
        .def_prop_ro("recordable",
                     [](const DeviceMessage& self) { return self.transport().traits.recordable; })
        .def_prop_ro("noted", [](const DeviceMessage& self) { return self.transport().rules.noted; })
        .def_prop_ro("sent_from", &DeviceMessage::sent_from)
        .def_prop_ro("lands_beside", [](const DeviceMessage& self) { return self.end().lands_beside(); })
        .def(
            "copy_alone",
            [](const DeviceMessage& self, Handle stream) {
                self.copy_alone(stream ? reinterpret_cast<void*>(*stream) : self.all()->gpu()->stream());
            },
            "stream"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>())
        .def("meet", &DeviceMessage::meet, nb::call_guard<nb::gil_scoped_release>())
        .def("__repr__", &DeviceMessage::describe);
}
