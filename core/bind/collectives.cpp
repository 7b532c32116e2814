// core/running/collectives in Python: calls, and a communicator's state for them.
#include "bind/collectives.hpp"
#include "bind/ending.hpp"
#include "bind/errors.hpp"
#include "bind/user_operation.hpp"
#include "running/compared_calls.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace jali {

std::shared_ptr<DeviceCollectives> collectives_on(Collectives& there, const nb::object& gpu) {
    const auto of_core = nb::cast<std::shared_ptr<Gpu>>(gpu);
    if (const auto* found = there.find(*of_core)) return *found;
    nb::gil_scoped_release released;
    return there.on(of_core);
}

nb::dict dict_of(const CacheCounts& counts) {
    nb::dict all;
    all["found"] = counts.found;
    all["made"] = counts.made;
    all["dropped"] = counts.dropped;
    all["kept"] = counts.kept;
    return all;
}

} // namespace jali

namespace {

CollectiveCall call_of(const std::string& collective, const nb::object& type, const nb::object& counts,
                       int root, const nb::object& operation, bool in_place, const nb::object& algorithm,
                       bool reproducible) {
    CollectiveCall call;
    call.collective = collective_of(collective);
    call.type = data_type_of(
        nb::cast<std::string>(nb::module_::import_("jali.comm.elements").attr("element_name")(type)));
    if (nb::isinstance<nb::int_>(counts))
        call.counts = {nb::cast<std::int64_t>(counts)};
    else
        call.counts = nb::cast<std::vector<std::int64_t>>(counts);
    call.root = root;
    if (nb::isinstance<nb::callable>(operation)) {
        call.operation = Operation::user;
        call.user = user_operation(operation, call.type);
    } else {
        call.operation = operation_of(nb::cast<std::string>(operation));
    }
    call.in_place = in_place;
    if (!algorithm.is_none()) call.algorithm = nb::cast<std::string>(algorithm);
    call.reproducible = reproducible;
    return call;
}

} // namespace

void bind_collectives(nb::module_& m) {
    translate_error<CollectiveError>("ParameterError");
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const AgreedError& error) {
            const nb::object made =
                nb::module_::import_("jali.comm.checking").attr("on_every_rank")(error.what());
            PyErr_SetObject(made.type().ptr(), made.ptr());
        }
    });

    m.def(
        "compare_calls",
        [](Communicator& ranks, std::vector<std::pair<std::string, std::string>> facts,
           std::string location) { compare_calls(ranks, {std::move(facts), std::move(location)}); },
        "ranks"_a, "facts"_a, "location"_a, nb::call_guard<nb::gil_scoped_release>(),
        "ParameterError on every rank unless all have these facts, key and value; `location` is reported. "
        "Collective.");

    nb::class_<CollectiveCall>(m, "CollectiveCall", "What somebody calls, equal on all ranks.")
        .def(nb::new_(&call_of), "collective"_a, "type"_a, "counts"_a, "root"_a = 0, "operation"_a = "sum",
             "in_place"_a = false, "algorithm"_a = nb::none(), "reproducible"_a = false,
             "`counts`: elements as `jali.planner.Composition.standard` takes them, one number or one for "
             "each rank; `operation`: a name or a function of two arrays.")
        .def_prop_ro("collective",
                     [](const CollectiveCall& call) { return std::string(name_of(call.collective)); })
        .def_prop_ro("type", [](const CollectiveCall& call) { return std::string(name_of(call.type)); })
        .def_ro("counts", &CollectiveCall::counts)
        .def_ro("root", &CollectiveCall::root)
        .def_prop_ro("operation",
                     [](const CollectiveCall& call) {
                         return call.user ? call.user->name() : std::string(name_of(call.operation));
                     })
        .def_ro("in_place", &CollectiveCall::in_place)
        .def_ro("algorithm", &CollectiveCall::algorithm, "Asked for by name; empty: chosen.")
        .def_ro("reproducible", &CollectiveCall::reproducible)
        .def(
            "__eq__",
            [](const CollectiveCall& a, nb::handle b) {
                return nb::isinstance<CollectiveCall>(b) && a == nb::cast<const CollectiveCall&>(b);
            },
            nb::sig("def __eq__(self, other: object, /) -> bool"))
        .def("__hash__", [](const CollectiveCall& call) { return std::hash<CollectiveCall>()(call); })
        .def(
            "payload", [](const CollectiveCall& call, int ranks) { return payload(call, ranks); }, "ranks"_a,
            "Bytes of the largest buffer.")
        .def(
            "composition",
            [](const CollectiveCall& call, int ranks, const std::string& form) {
                return make_composition(ranks, call, form_of(form));
            },
            "ranks"_a, "form"_a, "What it means, in one of the forms of its collective.");

    nb::class_<Collectives>(m, "Collectives", "What a communicator keeps for its collectives.")
        .def(nb::new_([](std::shared_ptr<Communicator> ranks,
                         const std::function<std::shared_ptr<Communicator>()>& share_memory,
                         const std::string& what) {
                 nb::gil_scoped_release released;
                 return ended_without_lock(Collectives::make(std::move(ranks), share_memory, what));
             }),
             "ranks"_a, "share_memory"_a, "what"_a,
             "Collective. `share_memory()` makes the same ranks' communicator for which those of one host "
             "share memory; `what` says in errors which call makes this.")
        .def_prop_ro("transports",
                     [](const Collectives& self) {
                         return std::vector<MessageSpace::NamedCommunicator>(self.transports().begin(),
                                                                             self.transports().end());
                     })
        .def_prop_ro("space", &Collectives::space)
        .def_prop_ro("versions", &Collectives::versions,
                     "Of MPI's library by its name, if it is the same on all ranks.")
        .def_prop_ro("hosts", &Collectives::hosts, "Ranks of each, in the order of their first ranks.")
        .def("override_hosts", &Collectives::override_hosts, "hosts"_a,
             "As if ranks were on these hosts; the same on all ranks, before any call. ParameterError.")
        .def("algorithm_of", &Collectives::algorithm_of, "call"_a,
             "What a call on arrays of the host takes, and why. ParameterError.")
        .def("plan_of", &Collectives::idle_plan_of, "call"_a, nb::call_guard<nb::gil_scoped_release>(),
             "What does a call on arrays of the host, ready to run. ParameterError.")
        .def(
            "on_device",
            [](Collectives& self, const nb::object& gpu) {
                return ended_without_lock(collectives_on(self, gpu));
            },
            "gpu"_a, "The collectives on arrays of a device; the first use is collective.")
        .def_prop_ro(
            "plans", [](const Collectives& self) { return dict_of(self.counts()); },
            "How many were found, made and dropped, and how many are kept.")
        .def("keep_at_most", &Collectives::keep_at_most, "plans"_a);
}
