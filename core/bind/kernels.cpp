// core/device/kernel_files, kernel_cache, gpu_compiler and prelude in Python.
#include "bind/errors.hpp"
#include "bind/vendors.hpp"
#include "device/gpu_compiler.hpp"
#include "device/kernel_cache.hpp"
#include "device/prelude.hpp"
#include "running/collective_kernel.hpp"
#include "settings/notice.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Path = std::filesystem::path;

// `compile(source, target)` must keep its address.
CachedKernel of_host(Path source, Path result, std::string text, const nb::callable& compile) {
    CachedKernel kernel{std::move(source), std::move(result), std::move(text), {}, {}};
    kernel.compile = [&compile](const Path& from, const Path& to) {
        nb::gil_scoped_acquire acquired;
        compile(from, to);
    };
    kernel.interrupted = [] {
        nb::gil_scoped_acquire acquired;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    };
    return kernel;
}

std::pair<std::string, std::string> pair_of(KernelText kernel) {
    return {std::move(kernel.defines), std::move(kernel.text)};
}

} // namespace

void bind_kernels(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;

    translate_error<CompileError>("CompileError");
    set_warner([](const std::string& words) {
        nb::gil_scoped_acquire acquired;
        if (PyErr_WarnEx(PyExc_RuntimeWarning, words.c_str(), 1) != 0) throw nb::python_error();
    });

    m.def("prelude", &prelude_part, "part"_a, "A text of the prelude of kernels.");
    m.def("gpu_prelude", &gpu_prelude, "The C++ that every kernel for a GPU starts with.");
    m.def("gpu_prelude_digest", &gpu_prelude_digest);
    m.def("with_gpu_prelude", &with_gpu_prelude, "kernel"_a,
          "A kernel as the cache keeps it (its defines, an empty line, its text) with the prelude in "
          "between, as "
          "it is compiled.");
    m.def("without_comments", &without_comments, "text"_a);
    m.def(
        "cache_key",
        [](const std::string& name, const std::vector<std::string>& parts) { return cache_key(name, parts); },
        "name"_a, "parts"_a, "Name of a kernel in the cache, by all that it depends on.");
    m.def("cache_directory", &cache_directory,
          "$JALI_CACHE_DIR, or jali/ in the user's cache directory; made if absent. CompileError where it "
          "cannot be used.");
    m.def("file_identity", &identity_of, "file"_a, "Equal for one and the same file; None for none.");
    m.def("keep_text", &keep_text, "file"_a, "text"_a, Released(),
          "A file of this text, written where it is missing or has another.");
    m.def(
        "compile_cached",
        [](Path source, Path result, std::string text, const nb::callable& compile) {
            const CachedKernel kernel =
                of_host(std::move(source), std::move(result), std::move(text), compile);
            nb::gil_scoped_release released;
            compiled(kernel);
        },
        "source"_a, "result"_a, "text"_a, "compile"_a,
        "Makes the machine code in `result` by `compile(source, target)` where it is missing, damaged or "
        "older "
        "than its source. CompileError.");
    m.def(
        "compile_again",
        [](Path source, Path result, std::string text, const nb::callable& compile, const std::string& wrong,
           std::optional<FileIdentity> useless) {
            const CachedKernel kernel =
                of_host(std::move(source), std::move(result), std::move(text), compile);
            nb::gil_scoped_release released;
            compile_again(kernel, wrong, useless);
        },
        "source"_a, "result"_a, "text"_a, "compile"_a, "wrong"_a, "useless"_a.none(),
        "Likewise where `result` still is the file of this identity; `wrong` is what is wrong with it.");

    nb::class_<GpuCompiler>(m, "GpuCompiler", "The run-time compiler of a vendor, loaded.")
        .def_prop_ro("kind", &GpuCompiler::kind)
        .def_prop_ro("path", &GpuCompiler::path)
        .def_prop_ro("version", &GpuCompiler::version)
        .def_prop_ro("identity", &GpuCompiler::identity, "Changes when it may make other code.")
        .def(
            "compile",
            [](const GpuCompiler& compiler, const std::string& source, const std::string& name,
               const std::string& architecture, const std::vector<std::string>& options) {
                std::vector<std::byte> code;
                {
                    nb::gil_scoped_release released;
                    code = compiler.compile(source, name, architecture, options);
                }
                return nb::bytes(code.data(), code.size());
            },
            "source"_a, "name"_a, "architecture"_a, "options"_a = std::vector<std::string>(),
            "Machine code for an architecture such as \"sm_90\". CompileError with the compiler's words.");
    m.def(
        "find_gpu_compiler", [](const std::string& kind) { return &GpuCompiler::get(vendor_of(kind)); },
        "kind"_a, nb::rv_policy::reference,
        "The run-time compiler for the devices of a vendor; CompileError says what to install.");

    m.def(
        "load_kernel",
        [](Gpu& gpu, const std::string& name, const std::string& defines, const std::string& text,
           const std::string& entry) {
            std::optional<LoadedKernel> loaded;
            {
                nb::gil_scoped_release released; // a driver may wait for the device before it loads
                loaded = load_kernel(gpu, name, {defines, text}, entry);
            }
            return nb::make_tuple(std::move(loaded->function), loaded->source, loaded->found);
        },
        nb::sig("def load_kernel(gpu: Gpu, name: str, defines: str, text: str, entry: str) -> "
                "tuple[GpuFunction, pathlib.Path, bool]"),
        "gpu"_a, "name"_a, "defines"_a, "text"_a, "entry"_a,
        "A function of a kernel on a device, the path of its source, and whether it was there already. "
        "CompileError, DeviceError.");
    m.def("builtin_text", [] { return pair_of(builtin_text()); }, "Defines and text of the builtin kernels.");
    m.def(
        "collective_text",
        [](const std::string& wire, const std::string& element, const std::string& operation, bool checked) {
            Reduction how;
            how.type = data_type_of(element);
            if (operation != "none") how.operation = operation_of(operation);
            return pair_of(collective_text(wire == "flagged" ? Wire::flagged : Wire::slotted,
                                           operation != "none" ? &how : nullptr, checked));
        },
        "wire"_a, "element"_a, "operation"_a, "checked"_a = false,
        "Defines and text of the kernel of collectives whose messages are `wire` (\"flagged\" or "
        "\"slotted\") and "
        "that combine elements in this way; \"none\" only moves.");
}
