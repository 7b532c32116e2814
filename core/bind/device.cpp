// core/device in Python: memory, threads, compiled kernels.
#include "bind/errors.hpp"
#include "device/arena.hpp"
#include "device/kernel_module.hpp"
#include "device/thread_pool.hpp"

#include <memory>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void bind_device(nb::module_& m) {
    nb::register_exception_translator(
        [](const std::exception_ptr& pointer, void*) {
            try {
                std::rethrow_exception(pointer);
            } catch (const OutOfMemory& error) {
                PyErr_SetString(PyExc_MemoryError, error.what());
            }
        },
        nullptr);
    translate_error<ModuleError>("CompileError");

    nb::class_<Memory>(m, "Memory",
                       "A labelled, aligned block of host memory; contents are unspecified at first.")
        .def_prop_ro("address",
                     [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
        .def_prop_ro("nbytes", &Memory::size)
        .def(
            "array",
            [](nb::object self) {
                const auto& memory = nb::cast<const Memory&>(self);
                const std::size_t shape[] = {memory.size()};
                return nb::ndarray<nb::numpy, std::uint8_t>(memory.data(), 1, shape, self);
            },
            "The block as a NumPy array of bytes, which keeps the block alive.");
    m.def(
        "allocate",
        [](std::size_t bytes, const std::string& label) { return Arena::host().allocate(bytes, label); },
        "bytes"_a, "label"_a, "Memory from the process's arena; MemoryError says who holds what.");
    m.def("memory_held", [] { return Arena::host().ledger().held(); }, "Bytes that jali holds now.");
    m.def("memory_peak", [] { return Arena::host().ledger().peak(); }, "Most bytes that jali ever held.");
    m.def(
        "memory_usage",
        [] {
            nb::list entries;
            for (const auto& entry : Arena::host().ledger().usage())
                entries.append(nb::make_tuple(entry.label, entry.bytes, entry.blocks));
            return entries;
        },
        "[(label, bytes, blocks)], largest first.");

    m.def("usable_cores", &usable_cores, "Cores that this process may use.");
    m.def("default_threads", &default_threads, "ranks_on_host"_a,
          "Threads of one of several equal ranks on this host: JALI_THREADS, else cores per rank.");
    nb::class_<ThreadPool>(m, "ThreadPool", "The threads of one rank, the caller included.")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("threads", &ThreadPool::threads);

    nb::class_<KernelModule>(m, "KernelModule",
                             "A loaded shared object; stays loaded until the process ends.")
        .def(nb::init<const std::string&>(), "path"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("path", &KernelModule::path)
        .def(
            "symbol",
            [](const KernelModule& module, const std::string& name) {
                return reinterpret_cast<std::uintptr_t>(module.symbol(name));
            },
            "name"_a, "Address of an entry point.");
}
