// core/halo in Python: field storage. Layouts are in layout.cpp, launches and sums in launch.cpp.
#include "bind/errors.hpp"
#include "bind/gpu_array.hpp"
#include "bind/halo_numbers.hpp"
#include "bind/vendors.hpp"
#include "halo/policy.hpp"
#include "halo/storage.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The extents of a box array [x_{d-1}]...[x_0][reals...] as (extents, direction 0 first).
template <class A>
Extents box_extents(const A& array, const FieldStorage& field) {
    const auto ndim = static_cast<std::size_t>(field.layout()->ndim());
    std::string shape;
    std::size_t bytes = array.itemsize();
    for (std::size_t k = 0; k < array.ndim(); ++k) {
        shape += (k ? ", " : "") + std::to_string(array.shape(k));
        if (k >= ndim) bytes *= array.shape(k);
    }
    if (array.ndim() < ndim || bytes != static_cast<std::size_t>(field.site_bytes())) {
        throw LayoutError("field '" + field.label() + "': array of shape (" + shape + ") and " +
                          std::to_string(bytes) + " bytes per site; expected " + std::to_string(ndim) +
                          " box extents, the last direction first, and " +
                          std::to_string(field.site_bytes()) + " bytes per site");
    }
    Extents extents(ndim);
    for (std::size_t d = 0; d < ndim; ++d) extents[d] = static_cast<std::int64_t>(array.shape(ndim - 1 - d));
    return extents;
}

template <class A>
void require_whole_box(const A& array, const FieldStorage& field) {
    const auto extents = box_extents(array, field);
    if (extents != field.layout()->extents()) {
        throw LayoutError("field '" + field.label() + "': array of a box of " + format_extents(extents) +
                          " sites; the local box is " + format_extents(field.layout()->extents()));
    }
}

template <class A>
std::byte* bytes_of(const A& array) {
    return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

nb::object new_array(const FieldStorage& field, const Extents& extents) {
    nb::list shape;
    for (auto d = extents.size(); d-- > 0;) shape.append(extents[d]);
    shape.append(field.site_bytes());
    return nb::module_::import_("numpy").attr("empty")(nb::tuple(shape), "uint8");
}

// [(units, bytes of a unit, units of a packet)], as jali.codegen.storage_formats makes them.
using Sections = std::vector<std::tuple<int, int, int>>;
SiteMemory memory_of(const Sections& sections) {
    SiteMemory memory;
    for (const auto& [units, unit_bytes, packet_units] : sections)
        memory.sections.push_back({units, unit_bytes, packet_units});
    return memory;
}

void bind_storage(nb::module_& m) {
    nb::class_<FieldStorage>(m, "FieldStorage",
                             "One field's data on one rank, [block][unit][lane], with ghosts.")
        .def(
            "__init__",
            [](FieldStorage* self, std::shared_ptr<LocalLayout> layout, const Sections& memory,
               std::string label, std::shared_ptr<ThreadPool> pool, int parities) {
                nb::gil_scoped_release released;
                new (self) FieldStorage(std::move(layout), memory_of(memory), std::move(label), pool.get(),
                                        parities);
            },
            "layout"_a, "memory"_a, "label"_a, "pool"_a = nb::none(), "parities"_a = 3,
            "Zeroed. memory: [(units, bytes of a unit, units of a packet on devices)] of a site. parities: 1 "
            "for even "
            "sites alone, 2 for odd ones.")
        .def_prop_ro("parities", &FieldStorage::parities)
        .def(
            "__init__",
            [](FieldStorage* self, std::shared_ptr<LocalLayout> layout, const Sections& memory,
               std::string label, nb::object array, std::uintptr_t stream, int parities) {
                const GpuArray* on_device = gpu_array_of(array);
                if ((on_device ? on_device->kind->gpu : nullptr) != layout->gpu())
                    throw LayoutError("field '" + label + "': the array is not where the layout is");
                std::byte* data = nullptr;
                std::size_t bytes = 0;
                if (on_device != nullptr) {
                    data = reinterpret_cast<std::byte*>(on_device->address);
                    bytes = on_device->kind->nbytes;
                } else {
                    auto held = nb::cast<ConstArray>(array, false); // one that is written is writable
                    data = bytes_of(held);
                    bytes = held.nbytes();
                }
                const std::int64_t even = layout->even_blocks();
                const std::int64_t sites = parities == 1   ? even
                                           : parities == 2 ? layout->sites() - even
                                                           : layout->sites();
                if (bytes != static_cast<std::size_t>(sites * memory_of(memory).bytes()))
                    throw LayoutError("field '" + label + "': an array of " + std::to_string(bytes) +
                                      " bytes; the local box has " + std::to_string(sites) + " sites of " +
                                      std::to_string(memory_of(memory).bytes()));
                // Dropped by the last user of the storage, with or without the interpreter's lock.
                std::shared_ptr<void> owner(new nb::object(std::move(array)), [](void* p) {
                    if (!nb::is_alive()) return;
                    nb::gil_scoped_acquire acquired;
                    delete static_cast<nb::object*>(p);
                });
                nb::gil_scoped_release released;
                new (self) FieldStorage(std::move(layout), memory_of(memory), std::move(label), data,
                                        std::move(owner), reinterpret_cast<void*>(stream), parities);
            },
            "layout"_a, "memory"_a, "label"_a, "array"_a, "stream"_a = 0, "parities"_a = 3,
            "In a C-ordered array of the local box, or of its sites of one parity, whose memory it uses as "
            "long "
            "as it lives: of NumPy, or a GpuArray whose owner goes on to use it on `stream`.")
        .def_prop_ro("borrowed", &FieldStorage::borrowed, "Whether it is somebody else's array.")
        .def("await_owner", &FieldStorage::await_owner, nb::call_guard<nb::gil_scoped_release>(),
             "For somebody else's array on a device: what comes next waits for the owner's stream.")
        .def("let_owner_go_on", &FieldStorage::let_owner_go_on, nb::call_guard<nb::gil_scoped_release>(),
             "The owner's stream waits for what has been put on jali's.")
        .def_prop_ro("layout", &FieldStorage::layout)
        .def_prop_ro("site_bytes", &FieldStorage::site_bytes)
        .def_prop_ro("label", &FieldStorage::label)
        .def_prop_ro("nbytes", &FieldStorage::bytes)
        .def_prop_ro(
            "address", [](const FieldStorage& f) { return address(f.data()); },
            "Of block 0; moves when ghosts grow.")
        .def("versions", [](const FieldStorage& f) { return nb::make_tuple(f.version(0), f.version(1)); })
        .def("mark_written", &FieldStorage::mark_written, "parities"_a = 3,
             "On all ranks alike, whichever of them wrote.")
        .def("stale", &FieldStorage::stale, "slab"_a, "parity"_a)
        .def_prop_ro("halo_counters", [](const FieldStorage& f) { return dict_of(f.counters); })
        .def(
            "set_producer_parameters",
            [](FieldStorage& f, Vector<std::uint64_t> parameters) {
                f.set_producer_parameters({parameters.data(), parameters.data() + parameters.size()});
            },
            "parameters"_a)
        .def(
            "import_box",
            [](FieldStorage& f, ConstArray array, std::shared_ptr<ThreadPool> pool) {
                require_whole_box(array, f);
                std::byte* bytes = bytes_of(array);
                nb::gil_scoped_release released;
                f.import_box(bytes, pool.get());
            },
            "array"_a, "pool"_a = nb::none(),
            "From [x_{d-1}]...[x_0][bytes of a site], an array of any type. Marks all as written.")
        .def(
            "export_box",
            [](const FieldStorage& f, std::optional<nb::object> out, std::shared_ptr<ThreadPool> pool) {
                nb::object result = out ? *out : new_array(f, f.layout()->extents());
                auto array = nb::cast<Array>(result, false);
                require_whole_box(array, f);
                std::byte* bytes = bytes_of(array);
                {
                    nb::gil_scoped_release released;
                    f.export_box(bytes, pool.get());
                }
                return result;
            },
            "out"_a = nb::none(), "pool"_a = nb::none(),
            nb::sig("def export_box(self, out: numpy.typing.NDArray | None = None, "
                    "pool: ThreadPool | None = None) -> numpy.typing.NDArray"),
            "To [x_{d-1}]...[x_0][bytes of a site]; a new array of uint8 unless given.")
        .def(
            "import_part",
            [](FieldStorage& f, const Extents& origin, ConstArray array) {
                const auto extents = box_extents(array, f);
                std::byte* bytes = bytes_of(array);
                nb::gil_scoped_release released;
                f.import_part(origin, extents, bytes);
            },
            "origin"_a, "array"_a, "A part of the local box; marks nothing: call mark_written on all ranks.")
        .def(
            "export_part",
            [](const FieldStorage& f, const Extents& origin, const Extents& extents) {
                nb::object result = new_array(f, extents);
                auto array = nb::cast<Array>(result, false);
                std::byte* bytes = bytes_of(array);
                {
                    nb::gil_scoped_release released;
                    f.export_part(origin, extents, bytes);
                }
                return result;
            },
            "origin"_a, "extents"_a,
            nb::sig("def export_part(self, origin: collections.abc.Sequence[int], "
                    "extents: collections.abc.Sequence[int]) -> numpy.typing.NDArray"))
        .def(
            "fill_zero", [](FieldStorage& f, std::shared_ptr<ThreadPool> pool) { f.fill_zero(pool.get()); },
            "pool"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "copy_from",
            [](FieldStorage& f, const FieldStorage& other, std::shared_ptr<ThreadPool> pool) {
                nb::gil_scoped_release released;
                f.copy_from(other, pool.get());
            },
            "other"_a, "pool"_a = nb::none(), "Same local box and memory of a site, any lanes and order.")
        .def("prepare_copy_from", &FieldStorage::prepare_copy_from, "other"_a,
             nb::call_guard<nb::gil_scoped_release>(),
             "Makes what copy_from needs, which a graph has no time for.");
    m.def(
        "halo_item",
        [](std::shared_ptr<LocalLayout> layout, const Sections& memory, std::string label,
           std::uintptr_t kernel, Vector<std::uint64_t> parameters,
           std::vector<std::pair<int, std::shared_ptr<FieldStorage>>> sources, int output_parameter,
           const GpuFunction* gpu_kernel, int threads, int members,
           std::shared_ptr<LaunchCounters> counters) {
            HaloProducer producer;
            if (gpu_kernel != nullptr) producer.gpu_kernel = *gpu_kernel;
            producer.threads = threads;
            producer.members = members;
            producer.kernel = reinterpret_cast<KernelFunction>(kernel);
            producer.parameters.assign(parameters.data(), parameters.data() + parameters.size());
            producer.sources = std::move(sources);
            producer.output_parameter = output_parameter;
            producer.counters = std::move(counters);
            nb::gil_scoped_release released;
            return std::make_shared<FieldStorage>(std::move(layout), memory_of(memory), std::move(label),
                                                  std::move(producer));
        },
        "layout"_a, "memory"_a, "label"_a, "kernel"_a, "parameters"_a, "sources"_a, "output_parameter"_a,
        "gpu_kernel"_a.none() = nb::none(), "threads"_a = 0, "members"_a = 1,
        "counters"_a.none() = nb::none(),
        "A FieldStorage of ghosts only: the sender's `kernel` computes what travels, from sources "
        "[(parameter, field)], and counts in `counters`, which are final with the launch that reads.");
    m.def(
        "halo_counters", [] { return dict_of(process_halo_counters()); },
        "Over all layouts of this process.");
    m.def(
        "halo_policies",
        [](const std::string& device) {
            nb::list entries;
            const GpuVendor* vendor = device == "cpu" ? nullptr : &vendor_of(device);
            for (const auto& entry : halo_policies(vendor))
                entries.append(nb::make_tuple(entry.name, entry.description,
                                              entry.transport->traits.recordable, entry.transport_name,
                                              entry.overlap, entry.per_direction, why_never(entry, vendor)));
            return entries;
        },
        "device"_a = "cpu",
        "[(name, description, whether its exchanges can be parts of graphs, who carries, whether the bulk is "
        "computed meanwhile, whether the boundary is computed direction by direction, why such devices "
        "cannot "
        "have it or '')] for a kind of device, "
        "such as \"cuda\"; choose with JALI_HALO_POLICY or "
        "Launch(policy=...).");
    m.def(
        "halo_batches",
        [](const std::string& device, const std::string& policy, int stages, bool produces, bool has_bulk,
           bool bulk_waits_for_packing, bool boundary_fills) {
            const HaloPolicy& entry = halo_policy(policy, &vendor_of(device));
            HaloShape shape{stages, produces, has_bulk, bulk_waits_for_packing, boundary_fills, true, {}};
            nb::list steps;
            for (const Batch& batch : halo_batches(entry, shape)) {
                nb::list roles;
                for (StepRole role : batch.roles) roles.append(name_of(role));
                steps.append(nb::make_tuple(nb::tuple(roles), batch.stage, batch.stream, batch.needs));
            }
            return steps;
        },
        "device"_a, "policy"_a, "stages"_a = 1, "produces"_a = false, "has_bulk"_a = true,
        "bulk_waits_for_packing"_a = false, "boundary_fills"_a = false,
        "Batches of an exchange by a policy between devices of a kind, as launches: [(roles, stage of the "
        "boundary or -1, stream, numbers of earlier ones that it needs)]; other streams begin with what was "
        "on "
        "stream 0, which at the end waits for them.");
}

} // namespace

void bind_partition(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_launch(nb::module_& m);
void bind_sum(nb::module_& m);

void bind_halo(nb::module_& m) {
    translate_error<LayoutError>("LayoutError");
    bind_partition(m);
    bind_layout(m);
    bind_storage(m);
    bind_launch(m);
    bind_sum(m);
}
