#include "bind/device_request.hpp"
#include "bind/graph_recorder.hpp"

#include <cstdint>
#include <utility>

#include <nanobind/stl/shared_ptr.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

DeviceRequest DeviceRequest::begun(const std::shared_ptr<Gpu>& gpu, void* stream) {
    auto end = std::make_unique<GpuEvent>(gpu, false);
    end->record(stream);
    return {std::move(end), stream, gpu->is_capturing(stream), {}};
}

namespace {

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<DeviceRequest>(self)->result.ptr());
    return 0;
}

int release(PyObject* self) {
    nb::inst_ptr<DeviceRequest>(self)->result.reset();
    return 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(release)},
                       {0, nullptr}};

} // namespace

void bind_device_request(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<DeviceRequest>(
        m, "DeviceRequest", nb::type_slots(slots), nb::is_final(),
        "A collective on a device that was not waited for.\n\n"
        "It is on jali's stream already (or on that which it was given), so whatever jali does next with its "
        "arrays comes after it. Raises DeviceError, with the first cause, when a rank has failed and the "
        "device has given it up.")
        .def(
            "test",
            [](const DeviceRequest& self) {
                refuse_call("test");
                const bool reached = self.end->reached();
                if (reached) self.end->gpu()->refuse_if_aborted();
                return reached;
            },
            "Whether the device has done it.")
        .def(
            "wait",
            [](const DeviceRequest& self) {
                refuse_call("wait");
                self.end->gpu()->refuse_if_aborted();
                return self.result;
            },
            "What the blocking call would have returned; like that, it does not wait for the device.")
        .def(
            "wait_on_host", [](const DeviceRequest& self) { self.end->wait(); }, Released(),
            "Returns when the device has done it; meanwhile failures of other ranks are heard.")
        .def(
            "let_wait",
            [](const DeviceRequest& self, std::uintptr_t stream) {
                void* const waits = reinterpret_cast<void*>(stream);
                if (waits == self.stream) return;
                nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
                self.end->let_wait(waits);
            },
            "stream"_a, "What comes on this stream of the device waits for it.")
        .def(
            "extend", [](const DeviceRequest& self) { self.end->record(self.stream); }, Released(),
            "All that its stream has been given by now counts as part of it.")
        .def_prop_ro(
            "stream", [](const DeviceRequest& self) { return reinterpret_cast<std::uintptr_t>(self.stream); },
            "Handle of the stream that it is on.")
        .def_ro("captured", &DeviceRequest::captured,
                "It is part of a graph, and done when that is launched.");
}
