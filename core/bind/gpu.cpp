// core/device/gpu in Python: devices, their memory and kernels.
#include "device/gpu.hpp"
#include "bind/errors.hpp"
#include "bind/vendors.hpp"
#include "device/scalar_block.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

const GpuVendor& vendor_of(const std::string& name) {
    const GpuVendor& vendor = vendor_named(name);
    nb::module_::import_("jali.vendors").attr("suggest_libraries")(name); // once
    return vendor;
}

namespace {

// For all that puts work on a stream, or waits: a stream that is full waits, perhaps for a rank that is a
// thread of this process and needs the interpreter.
using Released = nb::call_guard<nb::gil_scoped_release>;

std::span<const std::byte> bytes_of(const nb::bytes& image) {
    return {reinterpret_cast<const std::byte*>(image.c_str()), image.size()};
}

} // namespace

void bind_gpu(nb::module_& m) {
    translate_error<GpuError>("DeviceError");

    nb::class_<VendorLibrary>(m, "VendorLibrary",
                              "A library of a vendor, looked for when it is first needed.")
        .def_ro("title", &VendorLibrary::title, "In messages.")
        .def_ro("files", &VendorLibrary::files, "The first that loads is taken.")
        .def_ro("setting", &VendorLibrary::setting, "The setting that names another file.")
        .def_ro("install", &VendorLibrary::install, "What to do where none is found.")
        .def_ro("packages", &VendorLibrary::packages, "Patterns below the folders of sys.path.");
    nb::class_<VendorCompiler>(m, "VendorCompiler", "A run-time compiler with the interface of NVRTC.")
        .def_ro("library", &VendorCompiler::library)
        .def_ro("functions", &VendorCompiler::functions)
        .def_ro("options", &VendorCompiler::options)
        .def_ro("bounds_blocks", &VendorCompiler::bounds_blocks,
                "Whether it takes the number of blocks of a multiprocessor as a bound on registers.");
    nb::class_<GpuVendor>(m, "GpuVendor", "What tells one vendor's devices from another's.")
        .def_ro("name", &GpuVendor::name)
        .def_ro("platform", &GpuVendor::platform)
        .def_ro("driver", &GpuVendor::driver)
        .def_ro("functions", &GpuVendor::functions,
                "Names of the driver's functions, by core/device/gpu_api.hpp.")
        .def_ro("attributes", &GpuVendor::attributes, "Numbers of a device's attributes, likewise.")
        .def_ro("compiler", &GpuVendor::compiler)
        .def_ro("ccl", &GpuVendor::ccl, "Its library of collectives; without a title where it has none.")
        .def_ro("mpi_setting", &GpuVendor::mpi_setting)
        .def_ro("mpi_queries", &GpuVendor::mpi_queries,
                "Functions of MPI libraries that return 1 where they take such memory.")
        .def_ro("link", &GpuVendor::link, "Links between devices by which atomic operations go.")
        .def_ro("dlpack", &GpuVendor::dlpack, "Number of such devices in DLPack.")
        .def_ro("default_stream", &GpuVendor::default_stream,
                "Handle of the stream that other libraries use unless told otherwise.")
        .def_ro("named_streams", &GpuVendor::named_streams,
                "Numbers up to 2 that DLPack lets takers name as streams.")
        .def_ro("note", &GpuVendor::note);
    m.def("vendor_names", &vendor_names, "Of all vendors, in alphabetical order.");
    m.def("vendor", &vendor_named, "name"_a, nb::rv_policy::reference,
          "The vendor of this name; ValueError where there is none.");
    m.def(
        "suggest_library",
        [](const std::string& kind, const std::string& part, std::vector<std::string> files) {
            const GpuVendor& vendor = vendor_named(kind);
            suggest_library(part == "driver"     ? vendor.driver
                            : part == "compiler" ? vendor.compiler.library
                                                 : vendor.ccl,
                            std::move(files));
        },
        "kind"_a, "part"_a, "files"_a,
        "Where a library of a vendor lies, its \"driver\", \"compiler\" or \"ccl\", for all that are not "
        "told of "
        "another one.");

    nb::class_<GpuMemory>(m, "GpuMemory", "A labelled block of device memory.")
        .def_prop_ro("address", &GpuMemory::address)
        .def_prop_ro("nbytes", &GpuMemory::size);

    nb::class_<GpuFunction>(m, "GpuFunction", "A kernel that is loaded on a device.")
        .def_ro("name", &GpuFunction::name)
        .def_rw("variant", &GpuFunction::variant,
                "What it was compiled for, where there are several of that name.")
        .def_ro("registers", &GpuFunction::registers, "Registers of a thread.")
        .def_ro("local_bytes", &GpuFunction::local_bytes, "Spilled or indexed memory of a thread.")
        .def_ro("most_threads", &GpuFunction::most_threads, "Threads that a block may have.");

    nb::class_<GpuGraph>(m, "GpuGraph", "What jali's stream did once, to be repeated as a whole.")
        .def(
            "__init__",
            [](GpuGraph* self, std::shared_ptr<Gpu> gpu, nb::callable work) {
                void* stream = gpu->stream();
                new (self) GpuGraph(std::move(gpu), stream, [&] { work(); });
            },
            "gpu"_a, "work"_a, "Records what `work()` puts on jali's stream; it is not run.")
        .def("make_ready", &GpuGraph::make_ready, Released(),
             "For launches, once; the device may be waited for.");

    nb::class_<GpuEvent>(m, "GpuEvent", "A moment in the work of a device.")
        .def(nb::init<std::shared_ptr<Gpu>, bool>(), "gpu"_a, "timed"_a = true)
        .def("wait", &GpuEvent::wait, Released())
        .def(
            "reached",
            [](const GpuEvent& event) {
                const bool reached = event.reached();
                if (reached) event.gpu()->refuse_if_aborted();
                return reached;
            },
            "DeviceError where what came before may not be there: see Gpu.refuse_if_aborted.")
        .def_prop_ro("gpu", &GpuEvent::gpu)
        .def("seconds_since", &GpuEvent::seconds_since, "earlier"_a);

    nb::class_<Gpu>(m, "Gpu", "A GPU of this process.")
        .def_static(
            "open",
            [](const std::string& kind, int ordinal) {
                const GpuVendor& vendor = vendor_of(kind);
                const nb::gil_scoped_release released; // its first memory waits for the other devices
                return Gpu::open(vendor, ordinal);
            },
            "kind"_a, "ordinal"_a, "The device of this number; DeviceError says why it cannot be used.")
        .def_static(
            "count", [](const std::string& kind) { return Gpu::count(vendor_of(kind)); }, "kind"_a,
            "Devices that this process sees; DeviceError where there is no driver.")
        .def_static(
            "links",
            [](const std::string& kind) {
                std::vector<std::tuple<int, int, int, int, int>> entries;
                for (const Gpu::Link& link : Gpu::links(vendor_of(kind)))
                    entries.emplace_back(link.device, link.peer, link.reaches, link.atomics, link.rank);
                return entries;
            },
            "kind"_a,
            "Of all pairs of devices: (device, peer, whether they reach each other's memory, whether with "
            "atomic "
            "operations, rank of the speed); -1 where the driver does not tell. DeviceError.")
        .def_static(
            "driver",
            [](const std::string& kind) {
                const GpuApi& api = GpuApi::get(vendor_of(kind));
                return nb::make_tuple(api.library, api.vendor.version_text(api.version));
            },
            "kind"_a, "(file, version such as \"12.8\"); DeviceError where there is none.")
        .def_prop_ro("kind", &Gpu::kind)
        .def_prop_ro("ordinal", &Gpu::ordinal)
        .def_prop_ro("name", &Gpu::name)
        .def_prop_ro("architecture", &Gpu::architecture)
        .def_prop_ro("identity", &Gpu::identity, "Equal for processes that share the physical device.")
        .def_prop_ro("multiprocessors", &Gpu::multiprocessors)
        .def_prop_ro("l2_bytes", &Gpu::l2_bytes)
        .def_prop_ro("total_memory", &Gpu::total_memory)
        .def_prop_ro("free_memory", &Gpu::free_memory)
        .def_prop_ro("memory_held", [](const Gpu& gpu) { return gpu.ledger().held(); })
        .def_prop_ro("memory_peak", [](const Gpu& gpu) { return gpu.ledger().peak(); })
        .def("has_handle", &Gpu::has_handle, "address"_a,
             "Whether the memory at this address, the pool's or another library's, has a handle of its own.")
        .def_prop_ro(
            "peer_handles", [](const Gpu& gpu) { return name_of(gpu.handle_type()); },
            "The way in which other processes map this device's memory: \"ipc\" or \"virtual\".")
        .def(
            "why_not_peer_handles",
            [](const Gpu& gpu) {
                std::map<std::string, std::string> types;
                for (const HandleTypeSpec& entry : handle_types)
                    types[entry.name] = gpu.allows(entry.type)
                                            ? gpu.why_not_handle_type(entry.type)
                                            : std::string("JALI_PEER_HANDLES leaves it out");
                return types;
            },
            Released(), "Every handle type, with why the driver refuses; empty where it does not.")
        .def_prop_ro("memory_cached", &Gpu::cached)
        .def("memory_usage",
             [](const Gpu& gpu) {
                 nb::list entries;
                 for (const auto& entry : gpu.ledger().usage())
                     entries.append(nb::make_tuple(entry.label, entry.bytes, entry.blocks));
                 return entries;
             })
        .def("trim", &Gpu::trim, Released(), "Gives memory that is kept for reuse back to the driver.")
        .def_prop_ro(
            "stream", [](const Gpu& gpu) { return reinterpret_cast<std::uintptr_t>(gpu.stream()); },
            "Handle of the stream that carries jali's work.")
        .def_prop_ro(
            "capturing", [](const Gpu& gpu) { return gpu.is_capturing(gpu.stream()); },
            "Whether what is put on jali's stream becomes part of a graph.")
        .def(
            "record",
            [](Gpu& gpu, GpuEvent& event, std::optional<std::uintptr_t> stream) {
                event.record(stream ? reinterpret_cast<void*>(*stream) : gpu.stream());
            },
            "event"_a, "stream"_a = nb::none(), Released(),
            "The event is reached when the work so far has been done.")
        .def(
            "launch_graph",
            [](Gpu& gpu, GpuGraph& graph, std::optional<std::uintptr_t> stream) {
                graph.launch(stream ? reinterpret_cast<void*>(*stream) : gpu.stream());
            },
            "graph"_a, "stream"_a = nb::none(), Released(),
            "On a stream (jali's). Launches of one graph wait for each other.")
        .def(
            "copy",
            [](Gpu& gpu, const GpuMemory& to, const GpuMemory& from) {
                gpu.copy(to.address(), from.address(), std::min(to.size(), from.size()));
            },
            "to"_a, "source"_a, Released())
        .def(
            "copy_address",
            [](Gpu& gpu, GpuAddress to, GpuAddress from, std::size_t bytes,
               std::optional<std::uintptr_t> stream) {
                void* on = stream ? reinterpret_cast<void*>(*stream) : gpu.stream();
                if (bytes > 0) gpu.copy(to, from, bytes, on);
            },
            "to"_a, "source"_a, "bytes"_a, "stream"_a = nb::none(), Released(),
            "Device memory, on a stream (jali's).")
        .def(
            "fill",
            [](Gpu& gpu, const GpuMemory& memory, unsigned char value) {
                gpu.fill(memory.address(), value, memory.size());
            },
            "memory"_a, "value"_a, Released(),
            "Every byte of a block becomes this, in order with jali's work.")
        .def("refuse_if_aborted", &Gpu::refuse_if_aborted,
             "DeviceError, with the first cause, where kernels that wait for other ranks have been told to "
             "stop: "
             "what the device has computed since is not there.")
        .def("synchronize", &Gpu::synchronize, Released(), "Waits for the work so far.")
        .def("let_others_capture", &Gpu::let_others_capture,
             "What this thread asks of the driver from now on never ends a capture of another thread.")
        .def(
            "wait_for",
            [](Gpu& gpu, std::uintptr_t stream) { gpu.wait_for(reinterpret_cast<void*>(stream)); },
            "stream"_a, Released(), "What jali does from now on waits for the work so far on another stream.")
        .def(
            "let_wait",
            [](Gpu& gpu, std::uintptr_t stream) { gpu.let_wait(reinterpret_cast<void*>(stream)); },
            "stream"_a, Released(), "Another stream waits for jali's work so far.")
        .def(
            "order",
            [](const std::shared_ptr<Gpu>& gpu, std::uintptr_t before, std::uintptr_t after) {
                GpuEvent moment(gpu, false);
                moment.record(reinterpret_cast<void*>(before));
                moment.let_wait(reinterpret_cast<void*>(after));
            },
            "before"_a, "after"_a, Released(),
            "What comes on the stream `after` waits for the work so far on `before`; jali's stream has no "
            "part in "
            "it.")
        .def(
            "allocate",
            [](Gpu& gpu, std::size_t bytes, const std::string& label) { return gpu.allocate(bytes, label); },
            "bytes"_a, "label"_a, Released())
        .def(
            "allocate_pinned",
            [](Gpu& gpu, std::size_t bytes, const std::string& label) {
                auto memory = std::make_unique<PinnedMemory>([&] {
                    const nb::gil_scoped_release released;
                    return gpu.allocate_pinned(bytes, label);
                }());
                auto* data = reinterpret_cast<unsigned char*>(memory->data());
                const nb::capsule owner(memory.release(),
                                        [](void* held) noexcept { delete static_cast<PinnedMemory*>(held); });
                return nb::ndarray<nb::numpy, unsigned char, nb::ndim<1>>(data, {bytes}, owner);
            },
            "bytes"_a, "label"_a, "Page-locked memory of the host, as an array of bytes.")
        .def(
            "upload",
            [](Gpu& gpu, nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array, const std::string& label) {
                const void* data = array.data();
                const std::size_t bytes = array.nbytes();
                nb::gil_scoped_release released;
                return gpu.upload(data, bytes, label);
            },
            "array"_a, "label"_a)
        .def(
            "download",
            [](Gpu& gpu, const GpuMemory& memory, nb::ndarray<nb::c_contig, nb::device::cpu> array) {
                void* data = array.data();
                const std::size_t bytes = array.nbytes();
                nb::gil_scoped_release released;
                gpu.copy_out(data, memory.address(), bytes);
                gpu.synchronize();
            },
            "memory"_a, "array"_a)
        .def(
            "download_address",
            [](Gpu& gpu, GpuAddress address, nb::ndarray<nb::c_contig, nb::device::cpu> array) {
                void* data = array.data();
                const std::size_t bytes = array.nbytes();
                nb::gil_scoped_release released;
                gpu.copy_out(data, address, bytes);
                gpu.synchronize();
            },
            "address"_a, "array"_a, "Device memory into host memory, after jali's work so far.")
        .def(
            "upload_address",
            [](Gpu& gpu, GpuAddress address, nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array) {
                const void* data = array.data();
                const std::size_t bytes = array.nbytes();
                nb::gil_scoped_release released;
                gpu.copy_in(address, data, bytes);
                gpu.synchronize(); // the host's bytes may be freed
            },
            "address"_a, "array"_a)
        .def(
            "function",
            [](Gpu& gpu, const nb::bytes& image, const std::string& name) {
                const auto bytes = bytes_of(image);
                nb::gil_scoped_release released; // a driver may wait for the device before it loads
                return gpu.function(bytes, name);
            },
            "image"_a, "name"_a)
        .def(
            "launch",
            [](Gpu& gpu, const GpuFunction& function, unsigned blocks, unsigned threads,
               const nb::bytes& arguments, int times, std::optional<std::uintptr_t> stream) {
                const auto argument = bytes_of(arguments);
                void* const on = stream ? reinterpret_cast<void*>(*stream) : gpu.stream();
                nb::gil_scoped_release released;
                const CurrentGpu current(gpu);
                for (int n = 0; n < times; ++n) gpu.launch(function, blocks, threads, argument, on);
            },
            "function"_a, "blocks"_a, "threads"_a, "arguments"_a, "times"_a = 1, "stream"_a = nb::none(),
            "Puts a kernel that takes one structure on a stream (jali's).")
        .def("occupancy", &Gpu::occupancy, "function"_a, "threads"_a, "Blocks per multiprocessor.");

    nb::class_<ScalarBlock>(m, "ScalarBlock",
                            "Doubles that kernels read by address, and the host when they are there.")
        .def(
            "__init__",
            [](ScalarBlock* self, std::shared_ptr<Gpu> gpu, int count) {
                nb::gil_scoped_release released; // where there is no more memory, the device is waited for
                new (self) ScalarBlock(std::move(gpu), count);
            },
            "gpu"_a.none(), "count"_a = 1, "gpu: None on the host.")
        .def("address", &ScalarBlock::address, "k"_a = 0, "Where kernels find number k.")
        .def("mirror", &ScalarBlock::mirror, "k"_a = 0,
             "Where kernels of a device store it for the host; on the host the same as address.")
        .def("value", &ScalarBlock::value, "k"_a = 0,
             "As the host sees it: of a device, after the work so far.")
        .def("set", &ScalarBlock::set, "k"_a, "value"_a, "On the host.");
}
