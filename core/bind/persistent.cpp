// Plans that run, in Python.
#include "running/persistent.hpp"
#include "bind/host_arrays.hpp"

#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

std::span<std::byte* const> read(HostArrays& into, const PersistentPlan& plan, const nb::args& given) {
    const std::vector<nb::handle> objects(given.begin(), given.end());
    for (std::size_t k = 0; k < objects.size(); ++k) into[k].read(objects[k]);
    return into.fit(plan, objects);
}

} // namespace

void bind_persistent(nb::module_& m) {
    nb::class_<MessageSpace>(
        m, "MessageSpace",
        "Where plans on the same ranks exchange messages; transports are (library, communicator).")
        .def(nb::init<std::vector<MessageSpace::NamedCommunicator>>(), "transports"_a)
        .def_prop_ro("rank", &MessageSpace::rank)
        .def_prop_ro("size", &MessageSpace::size)
        .def_prop_ro("windows", &MessageSpace::windows)
        .def_prop_ro("tags", &MessageSpace::tags)
        .def_prop_ro("under_way", &MessageSpace::under_way);

    nb::class_<PersistentPlan>(
        m, "PersistentPlan",
        "One rank's schedule, ready to run on arrays. Scratch and work buffers are its own.")
        .def(nb::new_(&PersistentPlan::make), "schedule"_a, "space"_a, "what"_a)
        .def(
            "run",
            [](PersistentPlan& plan, const nb::args& given) {
                HostArrays arrays(given.size());
                run_on_host(plan, read(arrays, plan, given));
            },
            "Start and wait; one array per buffer, None where a buffer has no bytes.")
        .def(
            "start",
            [](PersistentPlan& plan, const nb::args& given) {
                const auto arrays = held_until_the_end(given.size());
                const auto addresses = read(*arrays, plan, given);
                nb::gil_scoped_release released;
                plan.start(addresses, arrays);
            },
            "Arrays are kept alive until the end, and must not be touched until then.")
        .def("test", &PersistentPlan::test, Released())
        .def("wait", &PersistentPlan::wait, Released())
        .def_prop_ro("running", &PersistentPlan::running)
        .def_prop_ro("what", &PersistentPlan::what);
}
