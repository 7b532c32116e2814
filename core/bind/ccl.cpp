// core/peers/ccl_group in Python. Every call that may wait releases the interpreter lock.
#include "bind/ending.hpp"
#include "device/ccl_api.hpp"
#include "device/vendor.hpp"
#include "peers/ccl_group.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void bind_ccl(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;

    m.def(
        "find_ccl",
        [](const std::string& kind) {
            const CclApi& api = CclApi::get(vendor_named(kind), "");
            return nb::make_tuple(api.name(), api.version_text(), api.library);
        },
        nb::sig("def find_ccl(kind: str) -> tuple[str, str, str]"), "kind"_a,
        "Name, version and file of the library of collectives for devices of a kind; DeviceError where there "
        "is "
        "none.");

    nb::class_<CclGroup>(m, "CclGroup", "The library's communicator of ranks; see jali.comm.CclCommunicator.")
        .def(nb::new_([](Communicator& ranks, const std::shared_ptr<Gpu>& gpu, const std::string& library) {
                 nb::gil_scoped_release released;
                 return ended_without_lock(CclGroup::shared(ranks, gpu, library));
             }),
             "ranks"_a, "gpu"_a, "library"_a = "")
        .def_prop_ro(
            "library",
            [](const CclGroup& self) {
                return nb::make_tuple(self.api().name(), self.api().version_text(), self.api().library);
            },
            nb::for_getter(nb::sig("def library(self) -> tuple[str, str, str]")), "(name, version, file)")
        .def("symmetric", &CclGroup::symmetric, "bytes"_a, Released())
        .def_prop_ro("why_no_windows", &CclGroup::why_no_windows)
        .def("check", &CclGroup::check, Released())
        .def("wait", &CclGroup::wait, "event"_a, "what"_a, Released())
        .def(
            "synchronize",
            [](CclGroup& self, const std::string& what, std::optional<std::uintptr_t> stream) {
                self.synchronize(what, stream ? reinterpret_cast<void*>(*stream) : self.gpu()->stream());
            },
            "what"_a, "stream"_a = nb::none(), Released());
}
