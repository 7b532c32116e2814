// core/device_transports/device_messages in Python: the users' ends, and their arguments.
//
// Python code handles rare cases: streams of other libraries, and graphs that record a start
// (jali.comm.device_messages).
#include "device_transports/device_messages.hpp"
#include "bind/ending.hpp"
#include "bind/errors.hpp"
#include "bind/gpu_array.hpp"
#include "bind/graph_recorder.hpp"
#include "peers/peer_memory.hpp"
#include "schedule/recorded_calls.hpp"
#include "settings/counted.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

// An end, and its array, which stays alive as long.
struct PersistentMessage {
    nb::object array; // a GpuArray
    std::unique_ptr<DeviceMessage> end;

    DeviceMessage& met() const {
        if (!end->has_met()) {
            nb::gil_scoped_release released;
            end->meet();
        }
        return *end;
    }
};

nb::handle message_type; // exists as long as the module

// Ends in the order in which they were given. Raises ParameterError unless they are a sequence of ends.
class Messages {
  public:
    explicit Messages(nb::handle given) {
        PyObject* const object = given.ptr();
        nb::object other; // a sequence of another type, as a list
        if (!PyList_Check(object) && !PyTuple_Check(object)) {
            if (!nb::isinstance(given, nb::module_::import_("collections.abc").attr("Sequence")))
                refuse(given);
            other = nb::list(given);
        }
        PyObject* const sequence = other.is_valid() ? other.ptr() : object;
        const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
        ends_.reserve(static_cast<std::size_t>(count));
        for (Py_ssize_t k = 0; k < count; ++k) {
            const nb::handle one = PySequence_Fast_GET_ITEM(sequence, k);
            if (!one.type().is(message_type) || !nb::inst_ready(one)) refuse(given);
            ends_.push_back(nb::inst_ptr<PersistentMessage>(one)->end.get());
        }
    }
    explicit Messages(const PersistentMessage& one) : ends_{one.end.get()} {}

    bool empty() const { return ends_.empty(); }
    std::span<DeviceMessage* const> all() const { return ends_; }
    // The object that starts them all; it throws if one belongs to another.
    DeviceMessages& owner() const { return *ends_.front()->all(); }

  private:
    [[noreturn]] static void refuse(nb::handle given) {
        throw MessageError("messages are a list of ends that persistent_send and persistent_receive made, "
                           "not " +
                           std::string(nb::repr(given).c_str()));
    }
    std::vector<DeviceMessage*> ends_;
};

// `given()` makes a tuple of these as Python has them.
template <class Given>
void start(const Messages& messages, nb::handle stream, Given given) {
    if (messages.empty()) return;
    if (const nb::object recorded_by = recorder(); !recorded_by.is_none()) {
        nb::module_::import_("jali.comm.device_messages").attr("record")(recorded_by, given(), stream);
        return;
    }
    const std::optional<void*> on = stream_of(stream);
    nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
    messages.owner().start(messages.all(), on);
}

// A whole number of Python's or NumPy's that fits; none for all else, flags among it.
std::optional<std::int64_t> whole(nb::handle given) {
    if (PyBool_Check(given.ptr())) return std::nullopt;
    if (!PyLong_Check(given.ptr()) && !nb::isinstance(given, nb::module_::import_("numpy").attr("integer")))
        return std::nullopt;
    std::int64_t number = 0;
    if (!nb::try_cast(nb::steal(PyNumber_Index(given.ptr())), number)) return std::nullopt;
    return number;
}

int rank_of(nb::handle given, int size) {
    const auto number = whole(given);
    if (!number || *number < 0 || *number >= size)
        throw MessageError("rank " + std::string(nb::repr(given).c_str()) + " does not exist among " +
                           counted(size, "rank"));
    return static_cast<int>(*number);
}

std::int64_t tag_of(nb::handle given) {
    const auto number = whole(given);
    if (!number || *number < 0)
        throw MessageError("tag " + std::string(nb::repr(given).c_str()) +
                           " of a message; tags are whole numbers from 0 to 2**63 - 1");
    return *number;
}

std::string transport_name_of(nb::handle given) {
    if (!nb::isinstance<nb::str>(given))
        throw MessageError("transport=" + std::string(nb::repr(given).c_str()) +
                           ": the transport of a message is a name, such as 'copy-engine'");
    auto name = nb::cast<std::string>(given);
    if (name.empty())
        throw MessageError(
            "transport='': the transport of a message is a name, or None for that of its size");
    return name;
}

PersistentMessage make(std::shared_ptr<DeviceMessages> all, const GpuArray& x, nb::handle peer,
                       nb::handle tag, bool sends, nb::handle transport_name) {
    const ArrayKind& kind = *x.kind;
    const MessageArray array{rank_of(peer, all->size()), tag_of(tag), sends, kind.nbytes > 0 ? x.address : 0,
                             kind.nbytes};
    const std::string name = transport_name.is_none() ? "" : transport_name_of(transport_name);
    const std::string shape = nb::repr(kind.shape).c_str(), element = nb::cast<std::string>(kind.element);
    auto* const owner = reinterpret_cast<void*>(x.owner_stream);
    std::unique_ptr<DeviceMessage> end;
    {
        nb::gil_scoped_release released;
        end = std::make_unique<DeviceMessage>(std::move(all), array, element, shape, name, owner);
    }
    return {nb::find(x), std::move(end)};
}

} // namespace

void bind_device_messages(nb::module_& m) {
    m.def(
        "agree_on_peer_handles",
        [](const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
            return agree_on_handle_type(gpu, communicator);
        },
        "gpu"_a, "communicator"_a, Released(),
        "Tries how processes can map each other's device memory and chooses; why they cannot, or empty. "
        "Collective.");

    translate_error<MessageError>("ParameterError");
    nb::class_<DeviceMessages>(m, "DeviceMessages",
                               "What the persistent messages of a communicator share on one device. Made at "
                               "their first use, which is collective.")
        .def(nb::new_([](std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator) {
                 nb::gil_scoped_release released;
                 return ended_without_lock( // with the library's communicator, perhaps
                     std::make_shared<DeviceMessages>(std::move(gpu), std::move(communicator)));
             }),
             "gpu"_a, "communicator"_a, "Collective.")
        .def_prop_ro("gpu", &DeviceMessages::gpu)
        .def(
            "why_not",
            [](const DeviceMessages& self, nb::handle transport_name, nb::handle rank) {
                const int peer = rank_of(rank, self.size());
                return self.why_not(transport_name_of(transport_name), peer);
            },
            "transport"_a.none(), "rank"_a.none(),
            nb::sig("def why_not(self, transport: str, rank: int) -> str"),
            "Why messages with `rank` cannot go by this transport; empty if they can. Raises ParameterError "
            "for transports "
            "that are none.")
        .def(
            "make", &make, "x"_a, "peer"_a.none(), "tag"_a.none(), "sends"_a, "transport"_a.none(),
            nb::sig("def make(self, x: GpuArray, peer: int, tag: int, sends: bool, transport: str | None) -> "
                    "PersistentMessage"),
            "See `Communicator.persistent_send` and `persistent_receive`.");

    nb::class_<PersistentMessage> message(
        m, "PersistentMessage",
        "One end of a message between devices: `start()` sends, or receives, the array as it then is.\n\n"
        "The array stays where it is and alive as long as this is. Attributes: `peer`, `tag`, `sends`, "
        "`array`, `nbytes`.",
        nb::is_final(), nb::is_weak_referenceable());
    message_type = message;
    message
        .def_prop_ro(
            "owner", [](const PersistentMessage& self) { return self.end->all(); },
            "What the messages of its communicator share on its device.")
        .def_prop_ro(
            "peer", [](const PersistentMessage& self) { return self.end->array().peer; },
            "The rank of the other end.")
        .def_prop_ro(
            "tag", [](const PersistentMessage& self) { return self.end->array().tag; },
            "The same at both ends.")
        .def_prop_ro(
            "sends", [](const PersistentMessage& self) { return self.end->array().sends; },
            "Whether it is the sending end.")
        .def_prop_ro(
            "array", [](const PersistentMessage& self) { return self.array.attr("owner"); },
            nb::for_getter(nb::sig("def array(self) -> typing.Any")), "The array, as it was given.")
        .def_prop_ro(
            "nbytes", [](const PersistentMessage& self) { return self.end->array().bytes; },
            "Bytes of the array.")
        .def_prop_ro(
            "view", [](const PersistentMessage& self) { return self.array; },
            nb::for_getter(nb::sig("def view(self) -> GpuArray")), "Where the array is.")
        .def_prop_ro(
            "transport", [](const PersistentMessage& self) { return self.met().transport_name(); },
            "How it goes, by the sender's choice: \"remote-write\", \"copy-engine\", \"nccl\" or \"rccl\", "
            "\"gpu-aware-mpi\", \"host-staged\", or \"local\". Waits for the other end to be made.")
        .def_prop_ro(
            "why", [](const PersistentMessage& self) { return self.met().why(); },
            "Why it goes by that transport, in words; waits for the other end to be made.")
        .def_prop_ro(
            "recordable",
            [](const PersistentMessage& self) { return self.met().transport().traits.recordable; },
            "Whether a start may be part of a graph; waits for the other end to be made.")
        .def_prop_ro(
            "lands_beside", [](const PersistentMessage& self) { return self.end->end().lands_beside(); },
            "Of a receiver whose other end has been made: whether others cannot write the array, so that the "
            "bytes land beside it and are copied.")
        .def(
            "start",
            [](const PersistentMessage& self, nb::handle stream) {
                start(Messages(self), stream, [&] { return nb::make_tuple(nb::find(self)); });
            },
            "stream"_a = nb::none(), nb::sig("def start(self, stream: typing.Any = None) -> None"),
            "Start it alone; see `Communicator.start`, which is for messages that are under way at once.")
        .def(
            "copy_alone",
            [](const PersistentMessage& self, nb::handle stream) {
                const DeviceMessage& end = self.met();
                const std::optional<void*> on = stream_of(stream);
                nb::gil_scoped_release released;
                end.copy_alone(on ? *on : end.all()->gpu()->stream());
            },
            "stream"_a = nb::none(), nb::sig("def copy_alone(self, stream: typing.Any = None) -> None"),
            "Put the bytes of a message by the copy engine without any order with the receiver: what "
            "benchmarks compare with.\n\n"
            "For senders of messages that are put into the memory of a peer; ParameterError for others.")
        .def(
            "meet", [](const PersistentMessage& self) { self.met(); },
            "Wait until the other end has been made too. The first start does it. Raises ParameterError if "
            "the ends do not fit.")
        .def("__repr__", [](const PersistentMessage& self) { return self.end->describe(); });

    m.def(
        "start_messages",
        [](nb::handle messages, nb::handle stream) {
            start(Messages(messages), stream, [&] { return nb::tuple(messages); });
        },
        "messages"_a.none(), "stream"_a = nb::none(),
        nb::sig("def start_messages(messages: collections.abc.Sequence[PersistentMessage], stream: "
                "typing.Any = None) -> None"),
        "See `Communicator.start`.");
    m.def(
        "check_messages",
        [](nb::handle given) {
            const Messages messages(given);
            nb::gil_scoped_release released;
            if (!messages.empty()) messages.owner().check(messages.all());
        },
        "messages"_a.none(),
        nb::sig("def check_messages(messages: collections.abc.Sequence[PersistentMessage]) -> None"),
        "See `Communicator.check_messages`.");
    m.def(
        "explain_messages",
        [](nb::handle given) {
            const Messages messages(given);
            nb::gil_scoped_release released;
            return messages.empty() ? "" : messages.owner().describe(messages.all());
        },
        "messages"_a.none(),
        nb::sig("def explain_messages(messages: collections.abc.Sequence[PersistentMessage]) -> str"),
        "See `Communicator.explain_messages`.");
    m.def(
        "warm_up_messages",
        [](nb::handle given) {
            const Messages messages(given);
            nb::gil_scoped_release released;
            messages.owner().warm_up(messages.all());
        },
        "messages"_a,
        nb::sig("def warm_up_messages(messages: collections.abc.Sequence[PersistentMessage]) -> None"),
        "What a start that a graph records needs done before, on all ranks.");
    m.def(
        "recorded_messages",
        [](nb::handle given) {
            const Messages messages(given);
            nb::gil_scoped_release released;
            return messages.owner().record(messages.all());
        },
        "messages"_a,
        nb::sig("def recorded_messages(messages: collections.abc.Sequence[PersistentMessage]) -> "
                "RecordedCalls"),
        "What this rank gives to its driver in some starts of these messages. All ranks that they connect "
        "call this.");
}
