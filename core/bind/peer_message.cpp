// core/transport/peer_message in Python; src/jali/comm/device_messages.py lets the two ends meet.
#include "transport/peer_message.hpp"
#include "bind/errors.hpp"

#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

void* stream_or(const Gpu& gpu, const nb::object& stream) {
    return stream.is_none() ? gpu.stream() : reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream));
}

} // namespace

void bind_peer_message(nb::module_& m) {
    m.def(
        "agree_on_peer_handles",
        [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
            return agree_on_handle_type(gpu, communicator);
        },
        "gpu"_a, "communicator"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Tries how processes can map each other's device memory and chooses; why they cannot, or empty. "
        "Collective.");

    nb::class_<MessageEnds>(m, "MessageEnds", "The ends of messages between devices of one rank.")
        .def(nb::init<std::shared_ptr<Gpu>, std::shared_ptr<Communicator>>(), "gpu"_a, "communicator"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("why_not", &MessageEnds::why_not, "rank"_a,
             "Why that rank's memory is out of reach; empty if it is not.")
        .def_prop_ro("all_reached", &MessageEnds::all_reached, "By all ranks: the same on each.");

    nb::class_<PeerMessage>(m, "PeerMessage", "One end of a message between devices.")
        .def(nb::init<std::shared_ptr<MessageEnds>, int, bool, GpuAddress, std::size_t>(), "ends"_a, "peer"_a,
             "sends"_a, "address"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_ro_static("told_bytes", &PeerMessage::told_bytes)
        .def("told",
             [](const PeerMessage& self) {
                 const auto told = self.told();
                 return nb::bytes(told.data(), told.size());
             })
        .def(
            "meet",
            [](PeerMessage& self, const nb::bytes& other, bool by_copy) {
                const auto* data = static_cast<const std::byte*>(other.data());
                self.meet({data, other.size()}, by_copy ? PeerMessage::Way::copy : PeerMessage::Way::store);
            },
            "other"_a, "by_copy"_a, "What the other end told; the copy engine is the sender's choice.")
        .def_prop_ro("lands_beside", &PeerMessage::lands_beside)
        .def(
            "copy_alone",
            [](const PeerMessage& self, const nb::object& stream) {
                self.copy_alone(stream_or(*self.ends().gpu(), stream));
            },
            "stream"_a = nb::none(), "Of a sender: the bytes alone, whatever the receiver does.")
        .def_static(
            "start",
            [](const std::vector<PeerMessage*>& messages, const nb::object& stream) {
                if (!messages.empty())
                    PeerMessage::start(messages, stream_or(*messages.front()->ends().gpu(), stream));
            },
            "messages"_a, "stream"_a = nb::none(), "Puts a start of each on a stream (jali's).");
}
