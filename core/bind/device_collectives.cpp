// core/running/device_collectives in Python, and the plans that it makes.
#include "running/device_collectives.hpp"
#include "bind/collectives.hpp"
#include "bind/ending.hpp"
#include "bind/errors.hpp"
#include "bind/gpu_array.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void jali::fit_on_device(const DevicePlan& plan, std::span<const GpuArray* const> arrays,
                         GpuAddress* addresses) {
    const auto count =
        std::min<std::size_t>(arrays.size(), DevicePlan::most_buffers); // a plan with fewer reports the error
    for (std::size_t k = 0; k < count; ++k) {
        const GpuArray* array = arrays[k];
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
}

namespace {

// Of one array per buffer of the user, or None where this rank has no bytes of it.
std::vector<GpuAddress> addresses_of(const DevicePlan& plan, const nb::tuple& given) {
    std::vector<const GpuArray*> arrays;
    for (nb::handle array : given) arrays.push_back(gpu_array_of(array));
    std::vector<GpuAddress> addresses(std::min<std::size_t>(arrays.size(), DevicePlan::most_buffers));
    fit_on_device(plan, arrays, addresses.data());
    return addresses;
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
        .def("warm_up", &DevicePlan::warm_up, Released(),
             "Runs it once on other memory: libraries connect ranks at their first call, which no graph can "
             "do. Collective.")
        .def("bytes_of", &DevicePlan::bytes_of, "buffer"_a, "Bytes of a user's buffer on this rank.")
        .def(
            "__call__",
            [](DevicePlan& plan, const nb::tuple& arrays) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
                plan.run(addresses, plan.gpu()->stream());
            },
            "arrays"_a,
            "Puts a run on jali's stream; a GpuArray or None per buffer. ParameterError for those of "
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
        "collective_transports",
        [](const std::vector<std::string>& libraries) {
            std::vector<std::tuple<std::string, std::string, bool, bool>> entries;
            for (const CollectiveTransport* transport : collective_transports())
                for (const std::string& name :
                     names_of(std::array<const Transport*, 1>{transport}, libraries))
                    entries.emplace_back(name, transport->words, transport->rules.carries != nullptr,
                                         transport->rules.itself);
            return entries;
        },
        "libraries"_a,
        "What carries collectives between devices of all vendors, by the names of their libraries: (name, "
        "what it is, whether it carries messages of plans, whether it has collectives itself).");

    m.def(
        "collective_traits",
        [](const std::vector<std::string>& libraries) {
            std::vector<std::tuple<std::string, bool, bool, bool>> entries;
            for (const CollectiveTransport* transport : collective_transports())
                for (const std::string& name :
                     names_of(std::array<const Transport*, 1>{transport}, libraries))
                    entries.emplace_back(name, transport->traits.maps_memory, transport->of_library(),
                                         transport->rules.user_operations);
            return entries;
        },
        "libraries"_a,
        "What these transports are like: (name, whether it maps the memory of peers, whether it is a "
        "vendor's "
        "library, whether it takes operations of the user).");

    nb::class_<DeviceCollectives>(m, "DeviceCollectives",
                                  "What the collectives of a communicator share on one device.")
        .def_prop_ro("gpu", &DeviceCollectives::gpu)
        .def("why_not", nb::overload_cast<const std::string&>(&DeviceCollectives::why_not), "transport"_a,
             Released(), "Why this transport carries nothing between these devices; empty if it does.")
        .def("why_not",
             nb::overload_cast<const std::string&, const CollectiveCall&>(&DeviceCollectives::why_not),
             "transport"_a, "call"_a, Released(), "Why it has not this collective itself; empty if it has.")
        .def("algorithm_of", &DeviceCollectives::algorithm_of, "call"_a, "persistent"_a = false, Released(),
             "What a call takes, and why. ParameterError.")
        .def("explain", &DeviceCollectives::explain, "call"_a, Released(),
             "How a call runs on this rank, a line per instruction where it is one launch. Collective where "
             "it uses a transport first.")
        .def(
            "plan_of",
            [](DeviceCollectives& self, const CollectiveCall& call, bool checked) {
                return ended_without_lock(self.plan_of(call, checked));
            },
            "call"_a, "checked"_a = false, Released(),
            "The plan of a call, made if need be; `checked` ones count overflows. ParameterError, PlanError, "
            "DeviceError.")
        .def(
            "persistent_plan",
            [](DeviceCollectives& self, const CollectiveCall& call, const nb::tuple& arrays) {
                std::vector<GpuAddress> addresses;
                for (nb::handle one : arrays) {
                    const GpuArray* array = gpu_array_of(one);
                    addresses.push_back(array != nullptr ? array->address : 0);
                }
                nb::gil_scoped_release released;
                return ended_without_lock(self.persistent_plan(call, addresses));
            },
            "call"_a, "arrays"_a,
            "A plan of a call for graphs, on arrays that stay where they are, a GpuArray or None per "
            "buffer. Collective. ParameterError, PlanError, DeviceError.")
        .def(
            "prove_once",
            [](DeviceCollectives& self, const CollectiveCall& call, DevicePlan& plan, const nb::tuple& arrays,
               bool checked) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released;
                self.prove_once(call, plan, addresses, self.gpu()->stream(), checked);
            },
            "call"_a, "plan"_a, "arrays"_a, "checked"_a = false,
            "Before the first run of a call's plan, where it is checked or all are proved. Collective then; "
            "RuntimeError on all ranks where it does something else than the call means.")
        .def(
            "recorded",
            [](DeviceCollectives& self, const CollectiveCall& call, GpuPlan& plan, const nb::tuple& arrays) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released;
                return self.record(call, plan, addresses);
            },
            "call"_a, "plan"_a, "arrays"_a,
            "What the driver is given for some runs of a call's plan on arrays, which are as before "
            "afterwards. Collective.")
        .def(
            "plan",
            [](DeviceCollectives& self, const Composition& composition, const PlanParameters& parameters,
               const std::string& what) {
                return ended_without_lock(self.plan(composition, parameters, what));
            },
            "composition"_a, "parameters"_a, "what"_a, Released(),
            "This rank's part of a composition. PlanError, DeviceError, CompileError.")
        .def_prop_ro(
            "plans", [](const DeviceCollectives& self) { return dict_of(self.counts()); },
            "How many were found, made and dropped, and how many are kept.")
        .def("keep_at_most", &DeviceCollectives::keep_at_most, "plans"_a);
}
