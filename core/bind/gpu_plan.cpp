// core/collective/gpu_plan in Python: collectives as one launch on each device.
#include "collective/gpu_plan.hpp"
#include "bind/errors.hpp"
#include "bind/placed_array.hpp"

#include <array>
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

// Of one array per buffer of the user, or None where this rank has no bytes of it.
std::vector<GpuAddress> addresses_of(const GpuPlan& plan, const nb::tuple& arrays) {
    std::vector<GpuAddress> addresses(
        std::min<std::size_t>(arrays.size(), GpuPlan::most_buffers)); // a plan that has not so many says so
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

} // namespace

void bind_gpu_plan(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;

    nb::class_<DeviceProgram>(m, "DeviceProgram", "A rank's schedule as one launch on a device runs it.")
        .def_ro("channels", &DeviceProgram::channels, "Blocks of threads.")
        .def_ro("iterations", &DeviceProgram::iterations)
        .def_prop_ro("wire",
                     [](const DeviceProgram& p) { return p.wire == Wire::flagged ? "flagged" : "slotted"; })
        .def_ro("combines", &DeviceProgram::combines, "Whether it combines elements, or only moves them.")
        .def_prop_ro("type", [](const DeviceProgram& p) { return std::string(name_of(p.how.type)); })
        .def_prop_ro("operation",
                     [](const DeviceProgram& p) { return std::string(name_of(p.how.operation)); })
        .def("describe", &DeviceProgram::describe);

    nb::class_<CollectiveQueues>(m, "CollectiveQueues", "Queues of messages between the devices of ranks.")
        .def(nb::init<std::shared_ptr<Gpu>, std::shared_ptr<Communicator>>(), "gpu"_a, "communicator"_a,
             Released())
        .def("take_overflows", &GpuPlan::take_overflows, Released(),
             "Finite numbers that became infinite in 16-bit results since the last call; waits for the "
             "device.")
        .def(
            "compile",
            [](const CollectiveQueues& queues, const Schedule& schedule, const Composition& composition) {
                return compile_for_device(schedule, queues.size(), queues.rank(), pieces_of(composition),
                                          queues.parameters(), queues.gpu()->vendor().ccl.setting);
            },
            "schedule"_a, "composition"_a, "This rank's stages; PlanError where a device cannot do them.");
    m.def(
        "compile_for_device",
        [](const Schedule& schedule, int ranks, int rank, const Composition& composition, const Gpu& gpu) {
            return compile_for_device(schedule, ranks, rank, pieces_of(composition),
                                      DeviceProgramParameters{}, gpu.vendor().ccl.setting);
        },
        "schedule"_a, "ranks"_a, "rank"_a, "composition"_a, "gpu"_a,
        "Stages without queues, for messages of the library alone.");

    nb::class_<DeviceStage>(m, "DeviceStage", "Messages of the vendor's library, then a program.")
        .def_ro("program", &DeviceStage::program)
        .def_prop_ro("messages", [](const DeviceStage& stage) { return stage.messages.size(); });

    nb::class_<GpuPlan>(m, "GpuPlan", "A collective that is ready to run on a device, again and again.")
        .def(nb::init<std::shared_ptr<Gpu>, std::shared_ptr<CollectiveQueues>,
                      std::shared_ptr<CclCommunicator>, std::vector<DeviceStage>, const Schedule&,
                      GpuFunction, std::string>(),
             "gpu"_a, "queues"_a.none(), "ccl"_a.none(), "stages"_a, "schedule"_a, "kernel"_a, "what"_a,
             Released())
        .def("describe", &GpuPlan::describe)
        .def_prop_ro("stages", &GpuPlan::stages)
        .def("program", &GpuPlan::program, "stage"_a = 0, nb::rv_policy::reference_internal)
        .def_prop_ro("what", &GpuPlan::what)
        .def_prop_ro("gpu", &GpuPlan::shared_gpu)
        .def_prop_ro("user_buffers", &GpuPlan::user_buffers)
        .def("bytes_of", &GpuPlan::bytes_of, "buffer"_a, "Bytes of a user's buffer on this rank.")
        .def(
            "__call__",
            [](GpuPlan& plan, const nb::tuple& arrays) {
                const auto addresses = addresses_of(plan, arrays);
                nb::gil_scoped_release released; // a full stream waits, perhaps for a rank that is a thread
                plan.run(addresses, plan.gpu().stream());
            },
            "arrays"_a,
            "Puts a run on jali's stream; a PlacedArray or None per buffer. ParameterError for those of "
            "other sizes.")
        .def(
            "run",
            [](GpuPlan& plan, const std::vector<GpuAddress>& buffers, nb::object stream, int times) {
                void* on = stream.is_none() ? plan.gpu().stream()
                                            : reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream));
                nb::gil_scoped_release released;
                for (int n = 0; n < times; ++n) plan.run(buffers, on);
            },
            "buffers"_a, "stream"_a = nb::none(), "times"_a = 1,
            "Puts runs on a stream (jali's), on addresses of the device.")
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
            "Collective.");
}
