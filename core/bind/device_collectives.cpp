// core/collective/device_collectives in Python, and the plans that it makes.
#include "collective/device_collectives.hpp"
#include "bind/ending.hpp"
#include "bind/errors.hpp"
#include "bind/placed_array.hpp"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// Of one array per buffer of the user, or None where this rank has no bytes of it.
std::vector<GpuAddress> addresses_of(const DevicePlan& plan, const nb::tuple& arrays) {
    std::vector<GpuAddress> addresses(std::min<std::size_t>(
        arrays.size(), DevicePlan::most_buffers)); // a plan that has not so many says so
    for (std::size_t k = 0; k < addresses.size(); ++k) {
        const PlacedArray* array = placed_array(arrays[k]);
        const std::size_t bytes = array != nullptr ? array->kind->nbytes : 0;
        addresses[k] = array != nullptr ? array->address : 0;
        if (static_cast<int>(k) >= plan.user_buffers() || bytes == plan.bytes_of(static_cast<int>(k)))
            continue;
        const std::string text =
            plan.what() + ": a buffer has " + std::to_string(plan.bytes_of(static_cast<int>(k))) +
            " bytes on this rank, " +
            (array != nullptr ? "the array given for it has " + std::to_string(bytes) : "none was given");
        raise_python("jali.errors", "ParameterError", text.c_str());
        throw nb::python_error();
    }
    return addresses;
}

// `on_host(views)` gets memory of the host for each buffer, None where this rank has no bytes of it.
DeviceCall call_of(const std::string& collective, const std::string& type, std::vector<std::int64_t> counts,
                   int root, const std::string& operation, bool in_place, bool reproducible,
                   std::function<void(nb::list)> on_host) {
    DeviceCall call;
    call.collective = collective_of(collective);
    call.type = data_type_of(type);
    call.counts = std::move(counts);
    call.root = root;
    call.operation = operation_of(operation);
    call.in_place = in_place;
    call.reproducible = reproducible;
    call.on_host = [on_host = std::move(on_host)](std::span<const std::span<std::byte>> buffers) {
        nb::gil_scoped_acquire acquired;
        nb::list views;
        for (const std::span<std::byte> bytes : buffers)
            views.append(bytes.empty() ? nb::none()
                                       : nb::steal(PyMemoryView_FromMemory(
                                             reinterpret_cast<char*>(bytes.data()),
                                             static_cast<Py_ssize_t>(bytes.size()), PyBUF_WRITE)));
        on_host(views);
    };
    return call;
}

} // namespace

void bind_device_collectives(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;

    nb::class_<DeviceProgram>(m, "DeviceProgram", "A rank's schedule as one launch on a device runs it.")
        .def_ro("channels", &DeviceProgram::channels, "Blocks of threads.")
        .def_ro("iterations", &DeviceProgram::iterations)
        .def_prop_ro("wire",
                     [](const DeviceProgram& p) { return p.wire == Wire::flagged ? "flagged" : "slotted"; })
        .def("describe", &DeviceProgram::describe);

    nb::class_<DevicePlan>(m, "DevicePlan", "A collective that is ready to run on a device, again and again.")
        .def("describe", &DevicePlan::describe)
        .def_prop_ro("what", &DevicePlan::what)
        .def_prop_ro("gpu", &DevicePlan::gpu)
        .def_prop_ro("recordable", &DevicePlan::recordable, "Whether it may be part of a graph.")
        .def_prop_ro("user_buffers", &DevicePlan::user_buffers)
        .def("bytes_of", &DevicePlan::bytes_of, "buffer"_a, "Bytes of a user's buffer on this rank.")
        .def(
            "__call__",
            [](DevicePlan& plan, const nb::tuple& arrays) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
                plan.run(addresses, plan.gpu()->stream());
            },
            "arrays"_a,
            "Puts a run on jali's stream; a PlacedArray or None per buffer. ParameterError for those of "
            "other sizes.")
        .def(
            "run",
            [](DevicePlan& plan, const std::vector<GpuAddress>& buffers, nb::object stream, int times) {
                void* on = stream.is_none() ? plan.gpu()->stream()
                                            : reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream));
                nb::gil_scoped_release released;
                for (int n = 0; n < times; ++n) plan.run(buffers, on);
            },
            "buffers"_a, "stream"_a = nb::none(), "times"_a = 1,
            "Puts runs on a stream (jali's), on addresses of the device.");

    nb::class_<GpuPlan, DevicePlan>(m, "GpuPlan", "One of a schedule: launches, and messages between them.")
        .def_prop_ro("stages", &GpuPlan::stages)
        .def("program", &GpuPlan::program, "stage"_a = 0, nb::rv_policy::reference_internal)
        .def(
            "recorded",
            [](GpuPlan& plan, const nb::tuple& arrays, const Composition& composition, bool reproducible,
               Communicator& communicator) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released;
                return plan.record(addresses, composition, reproducible, communicator);
            },
            "arrays"_a, "composition"_a, "reproducible"_a, "communicator"_a,
            "What the driver is given for some runs on these arrays, which are as before afterwards. "
            "Collective.")
        .def(
            "check",
            [](GpuPlan& plan, const nb::tuple& arrays, const Composition& composition, bool reproducible,
               Communicator& communicator) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released;
                plan.check(addresses, composition, reproducible, communicator);
            },
            "arrays"_a, "composition"_a, "reproducible"_a, "communicator"_a,
            "Proves that it is in order, for all ranks together; RuntimeError on all of them. Collective.")
        .def_prop_ro("proved", &GpuPlan::proved, "By check().");

    m.def(
        "collective_rows",
        [](const std::vector<std::string>& libraries) {
            std::vector<std::tuple<std::string, std::string, bool, bool>> rows;
            for (const CollectiveTransport* row : collective_transports())
                for (const std::string& name : names_of(std::array<const Transport*, 1>{row}, libraries))
                    rows.emplace_back(name, row->words, row->rules.carries != nullptr, row->rules.itself);
            return rows;
        },
        "libraries"_a,
        "What carries collectives between devices of all vendors, by the names of their libraries: (name, "
        "what it is, whether it carries messages of plans, whether it has collectives itself).");

    translate_error<CollectiveError>("ParameterError");
    nb::class_<DeviceCall>(m, "DeviceCall", "A collective as users call it.")
        .def(nb::new_(&call_of), "collective"_a, "type"_a, "counts"_a, "root"_a, "operation"_a, "in_place"_a,
             "reproducible"_a, "on_host"_a,
             "`on_host(views)` does the same in memory of the host; None for a buffer without bytes here.");
    nb::class_<DeviceCollectives>(m, "DeviceCollectives",
                                  "What the collectives of a communicator share on one device.")
        .def(nb::new_([](std::shared_ptr<Gpu> gpu, const std::shared_ptr<Communicator>& communicator) {
                 nb::gil_scoped_release released;
                 return ended_without_lock(std::make_shared<DeviceCollectives>(std::move(gpu), communicator));
             }),
             "gpu"_a, "communicator"_a, "Collective.")
        .def("why_not", nb::overload_cast<const std::string&>(&DeviceCollectives::why_not), "row"_a,
             Released(), "Why this row carries nothing between these devices; empty if it does.")
        .def("why_not", nb::overload_cast<const std::string&, const DeviceCall&>(&DeviceCollectives::why_not),
             "row"_a, "call"_a, Released(), "Why it has not this collective itself; empty if it has.")
        .def(
            "choose",
            [](DeviceCollectives& self, const DeviceCall& call, const std::vector<int>& ranks_of_hosts) {
                return self.choose(call, ranks_of_hosts);
            },
            "call"_a, "ranks_of_hosts"_a, Released(), "The way of a call that names none. ParameterError.")
        .def(
            "plan",
            [](DeviceCollectives& self, const Composition& composition, const PlanParameters& parameters,
               const std::function<GpuFunction(std::string, std::string, std::string)>& kernel,
               const std::string& what) {
                const auto compile = [&](Wire wire, const Reduction* how) {
                    return kernel(wire == Wire::flagged ? "flagged" : "slotted",
                                  std::string(how != nullptr ? name_of(how->type) : "uint32"),
                                  std::string(how != nullptr ? name_of(how->operation) : "none"));
                };
                return ended_without_lock(self.plan(composition, parameters, compile, what));
            },
            "composition"_a, "parameters"_a, "kernel"_a, "what"_a, Released(),
            "This rank's part of a composition; `kernel(wire, element, operation)` compiles. PlanError, "
            "DeviceError.")
        .def(
            "plan_of_row",
            [](DeviceCollectives& self, const std::string& row, const DeviceCall& call,
               const std::string& what) { return ended_without_lock(self.plan(row, call, what)); },
            "row"_a, "call"_a, "what"_a, Released(),
            "A collective of the row itself. ParameterError, DeviceError.")
        .def("take_overflows", &DeviceCollectives::take_overflows, Released(),
             "Finite numbers that became infinite in 16-bit results on all ranks since the last call.");
}
