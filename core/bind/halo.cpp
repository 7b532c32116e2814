// core/halo in Python: partitions, layouts, field storage. Launches and sums are in launch.cpp.
#include "bind/errors.hpp"
#include "bind/placed_array.hpp"
#include "halo/gpu_exchange.hpp"
#include "halo/policy.hpp"
#include "halo/site_table.hpp"
#include "halo/storage.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A read-only NumPy view of memory that `owner` keeps alive.
template <class T>
nb::object view(const T* data, std::vector<std::size_t> shape, nb::handle owner) {
    return nb::cast(nb::ndarray<nb::numpy, const T>(data, shape.size(), shape.data(), owner));
}

template <class T>
nb::object view(const std::vector<T>& data, std::vector<std::size_t> shape, nb::handle owner) {
    return view(data.data(), std::move(shape), owner);
}

// A NumPy array of what was made for it.
template <class T>
nb::object owned(std::vector<T>* data, std::vector<std::size_t> shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data->data(), shape.size(), shape.data(), owner));
}

std::uintptr_t address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

nb::tuple tuple_of(const std::vector<std::int64_t>& values) {
    return nb::tuple(nb::cast(values));
}

nb::dict dict_of(const HaloCounters& counters) {
    nb::dict dict;
    dict["exchanged"] = counters.exchanged;
    dict["avoided"] = counters.avoided;
    dict["messages"] = counters.messages;
    dict["bytes"] = counters.bytes;
    return dict;
}

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

// [(units, bytes of a unit, units of a packet)], as jali.codegen.formats makes them.
using Sections = std::vector<std::tuple<int, int, int>>;
SiteMemory memory_of(const Sections& sections) {
    SiteMemory memory;
    for (const auto& [units, unit_bytes, packet_units] : sections)
        memory.sections.push_back({units, unit_bytes, packet_units});
    return memory;
}

void bind_partition(nb::module_& m) {
    nb::class_<Partition>(m, "Partition",
                          "How a lattice is cut over ranks: a product of one-dimensional cuts.")
        .def(nb::init<Extents, Extents>(), "extents"_a, "grid"_a,
             "LayoutError unless every rank of the grid owns at least one site.")
        .def_prop_ro("ndim", &Partition::ndim)
        .def_prop_ro("nranks", &Partition::nranks)
        .def_prop_ro("global_extents", [](const Partition& p) { return tuple_of(p.global_extents()); })
        .def_prop_ro("grid", [](const Partition& p) { return tuple_of(p.grid()); })
        .def(
            "coordinates", [](const Partition& p, int rank) { return tuple_of(p.coordinates(rank)); },
            "rank"_a)
        .def(
            "origin", [](const Partition& p, int rank) { return tuple_of(p.origin(rank)); }, "rank"_a)
        .def(
            "extents", [](const Partition& p, int rank) { return tuple_of(p.extents(rank)); }, "rank"_a)
        .def(
            "rank_at",
            [](const Partition& p, const Extents& c, bool periodic) { return p.rank_at(c, periodic); },
            "coordinates"_a, "periodic"_a = true,
            "Rank at grid coordinates, wrapped; -1 outside if not periodic.")
        .def(
            "rank_of_site", [](const Partition& p, const Extents& site) { return p.rank_of_site(site); },
            "site"_a);
    m.def(
        "choose_grid",
        [](const Extents& extents, int nranks, int lanes) {
            return tuple_of(choose_grid(extents, nranks, lanes));
        },
        "extents"_a, "nranks"_a, "lanes"_a,
        "Rank grid that keeps the most lanes, then has least volume and surface per rank. LayoutError if "
        "none fits.");
}

using VisitedObject = std::variant<const PlacedLayout*, const RowBlocks*>;

// int32 [block][lane]: global coordinates in a direction.
nb::object coordinates_of(const VisitedBlocks& blocks, int d, int ndim) {
    auto* found = new std::vector<std::int32_t>;
    found->reserve(static_cast<std::size_t>(blocks.count) * blocks.lanes);
    for (std::int64_t block = 0; block < blocks.count; ++block) {
        for (int lane = 0; lane < blocks.lanes; ++lane)
            found->push_back(static_cast<std::int32_t>(blocks.coordinate(d, ndim, block, lane)));
    }
    return owned(found, {static_cast<std::size_t>(blocks.count), static_cast<std::size_t>(blocks.lanes)});
}

void bind_layout(nb::module_& m) {
    nb::class_<NeighbourTable>(m, "NeighbourTable", "For one offset: where each block's neighbours are.")
        .def_prop_ro("offset", [](const NeighbourTable& t) { return tuple_of(t.offset); })
        .def_ro("classes", &NeighbourTable::classes)
        .def_prop_ro(
            "entries",
            [](nb::object self) {
                const auto& t = nb::cast<const NeighbourTable&>(self);
                return view(t.entries, {t.entries.size()}, self);
            },
            "uint32 [block]: class << block_bits | block number; class 0 is a plain load.")
        .def_prop_ro(
            "permutations",
            [](nb::object self) {
                const auto& t = nb::cast<const NeighbourTable&>(self);
                const auto lanes = t.permutations.size() / t.classes;
                return view(t.permutations, {static_cast<std::size_t>(t.classes), lanes}, self);
            },
            "int32 [class][lane]: source lane.")
        .def_prop_ro(
            "windings",
            [](nb::object self) {
                const auto& t = nb::cast<const NeighbourTable&>(self);
                const auto lanes = t.permutations.size() / t.classes;
                const auto ndim = t.with_windings ? t.offset.size() : 0;
                return view(t.windings, {static_cast<std::size_t>(t.classes), ndim, lanes}, self);
            },
            "int32 [class][direction][lane]: crossings of the global boundary, + minus -.")
        .def_prop_ro("entries_address", [](const NeighbourTable& t) { return address(t.entries.data()); })
        .def_prop_ro("permutations_address",
                     [](const NeighbourTable& t) { return address(t.permutations.data()); });

    nb::class_<PlacedLayout>(m, "Layout",
                             "One rank's part of a lattice: blocks, lanes, neighbour tables, ghost slabs.")
        .def(nb::init<Partition, int, int, Extents, std::shared_ptr<Gpu>, int>(), "partition"_a, "rank"_a,
             "lanes"_a, "tile"_a = Extents{}, "gpu"_a = nb::none(), "block_bits"_a = fewest_block_bits,
             "lanes: wanted vector lanes, a power of two; tile: block extents of the tiles of the storage "
             "order; gpu: the device where fields live; block_bits: at least so many, for tests.")
        .def_static(
            "c_ordered",
            [](Partition partition, int rank, std::shared_ptr<Gpu> gpu) {
                return std::make_shared<PlacedLayout>(std::move(partition), rank, std::move(gpu));
            },
            "partition"_a, "rank"_a, "gpu"_a = nb::none(),
            "The layout of C-ordered arrays of a rank's box, on the host or a device.")
        .def_prop_ro("c_order", &PlacedLayout::c_order)
        .def_prop_ro("first_ghost", &PlacedLayout::first_ghost)
        .def_prop_ro("block_bits", &PlacedLayout::block_bits, "Bits of a table's entry that hold the block.")
        .def_prop_ro("gpu", [](const PlacedLayout& l) { return l.gpu(); })
        .def_prop_ro("partition", &PlacedLayout::partition)
        .def_prop_ro("rank", &PlacedLayout::rank)
        .def_prop_ro("ndim", &PlacedLayout::ndim)
        .def_prop_ro("extents", [](const PlacedLayout& l) { return tuple_of(l.extents()); })
        .def_prop_ro("origin", [](const PlacedLayout& l) { return tuple_of(l.origin()); })
        .def_prop_ro("virtual_nodes", [](const PlacedLayout& l) { return tuple_of(l.lane_grid().nodes); })
        .def(
            "tile_by_tile",
            [](const PlacedLayout& l) {
                auto* order = new std::vector<std::int32_t>(l.tile_by_tile());
                return owned(order, {order->size()});
            },
            "All blocks, the even and then the odd ones of each tile.")
        .def_prop_ro("block_extents", [](const PlacedLayout& l) { return tuple_of(l.block_extents()); })
        .def_prop_ro("lanes", &PlacedLayout::lanes)
        .def_prop_ro("sites", &PlacedLayout::sites)
        .def_prop_ro("nblocks", &PlacedLayout::nblocks)
        .def_prop_ro("even_blocks", &PlacedLayout::even_blocks,
                     "Blocks [0, even_blocks) are even, the others odd.")
        .def_prop_ro("ghost_blocks", &PlacedLayout::ghost_blocks)
        .def(
            "site_coordinates",
            [](const PlacedLayout& l, int d) {
                if (d < 0 || d >= l.ndim()) throw nb::index_error("a layout has no such direction");
                return coordinates_of(VisitedBlocks::of(l), d, l.ndim());
            },
            "direction"_a, "int32 [block][lane]: global coordinates in a direction.")
        .def_prop_ro(
            "box_sites",
            [](const PlacedLayout& l) {
                auto* found = new std::vector<std::int64_t>;
                found->reserve(l.sites());
                for (std::int64_t block = 0; block < l.nblocks(); ++block)
                    for (int lane = 0; lane < l.lanes(); ++lane) found->push_back(l.box_site(block, lane));
                return owned(found,
                             {static_cast<std::size_t>(l.nblocks()), static_cast<std::size_t>(l.lanes())});
            },
            "int64 [block][lane]: indices in the local box, direction 0 fastest.")
        .def(
            "locate", [](const PlacedLayout& l, const Extents& site) { return l.locate(site); }, "site"_a,
            "(block, lane) of local coordinates.")
        .def(
            "neighbours",
            [](PlacedLayout& l, const Offset& offset, bool windings) {
                nb::gil_scoped_release released;
                return std::const_pointer_cast<NeighbourTable>(l.neighbours(offset, windings));
            },
            "offset"_a, "windings"_a = false,
            "Built once and kept; all ranks must ask alike. LayoutError if too wide.")
        .def(
            "on_device",
            [](PlacedLayout& l, const NeighbourTable& table, int bits) { return l.on_device(table, bits); },
            "table"_a, "bits"_a = 32,
            nb::call_guard<nb::gil_scoped_release>(), // the device may be waited for
            "Address of one of its tables on its device: entries, or codes of 8 or 16 bits.")
        .def("code_bits", &PlacedLayout::code_bits, "table"_a, nb::call_guard<nb::gil_scoped_release>(),
             "How many bits codes of a table need; 32: it has none.")
        .def("differences_on_device", &PlacedLayout::differences_on_device, "table"_a,
             nb::call_guard<nb::gil_scoped_release>(),
             "Address of what the codes of a table stand for: entry - site, modulo 2^32.")
        .def("reach", &PlacedLayout::reach, "parities"_a, "offset"_a,
             "Parities (mask) that can be read at the offset.")
        .def_prop_ro(
            "slabs",
            [](const PlacedLayout& l) {
                nb::list rows;
                for (const Slab& s : l.slabs()) {
                    rows.append(nb::make_tuple(tuple_of(s.box.key), l.first_ghost() + s.first[0], s.count[0],
                                               s.count[1], s.box.from, s.box.to));
                }
                return rows;
            },
            "[(key, first ghost block, even blocks, odd blocks, from rank, to rank)]")
        .def(
            "why_not_halo_policy",
            [](const std::shared_ptr<PlacedLayout>& l, const std::shared_ptr<Communicator>& communicator,
               const std::string& name) -> std::string {
                const HaloPolicy& row = halo_policy(name, l->gpu() != nullptr);
                nb::gil_scoped_release released;
                return l->gpu() ? why_no_carrier(row.carrier, *l, communicator) : "";
            },
            "communicator"_a, "policy"_a,
            "Why these ranks cannot exchange halos in this way, empty if they can. Collective.")
        .def_prop_ro("halo_counters", [](const PlacedLayout& l) { return dict_of(l.counters); });

    nb::class_<RowBlocks>(m, "RowBlocks",
                          "Pieces of the rows of C-ordered arrays of a rank's box, a site for each lane.")
        .def(
            "__init__",
            [](RowBlocks* self, const PlacedLayout& layout, int lanes) {
                new (self) RowBlocks(layout.geometry(), lanes);
            },
            "layout"_a, "lanes"_a)
        .def_prop_ro("lanes", &RowBlocks::lanes)
        .def_prop_ro("nblocks", &RowBlocks::nblocks)
        .def_prop_ro("filled", &RowBlocks::filled, "Whether every lane is a site.")
        .def(
            "inside",
            [](const RowBlocks& r) {
                auto* found = new std::vector<std::int32_t>;
                for (std::int64_t block = 0; block < r.nblocks(); ++block) found->push_back(r.inside(block));
                return owned(found, {static_cast<std::size_t>(r.nblocks())});
            },
            "int32 [block]: lanes that are sites.")
        .def(
            "site_coordinates",
            [](const RowBlocks& r, int d) {
                const VisitedBlocks blocks = VisitedBlocks::of(r);
                const int n = static_cast<int>(r.lane_offsets().size()) / r.lanes();
                if (d < 0 || d >= n) throw nb::index_error("a layout has no such direction");
                return coordinates_of(blocks, d, n);
            },
            "direction"_a, "int32 [block][lane]: global coordinates in a direction.");
    nb::class_<SiteTable>(m, "SiteTable", "Where the lanes of visited blocks read fields of another layout.")
        .def_ro_static("run_words", &SiteTable::run_words)
        .def(
            "__init__",
            [](SiteTable* self, const VisitedObject& visited, PlacedLayout& layout, Extents coarser,
               Extents finer, const Offset& offset, bool windings) {
                const VisitedBlocks blocks =
                    std::visit([](auto* v) { return VisitedBlocks::of(*v); }, visited);
                const LatticeRatio ratio{std::move(coarser), std::move(finer)};
                nb::gil_scoped_release released;
                new (self) SiteTable(std::move(*make_site_table(blocks, layout, ratio, offset, windings)));
            },
            "visited"_a, "layout"_a, "coarser"_a, "finer"_a, "offset"_a, "windings"_a = false,
            "LayoutError where a site belongs to another rank. All ranks must ask alike.")
        .def_prop_ro(
            "entries",
            [](nb::object self) {
                const auto& t = nb::cast<const SiteTable&>(self);
                return view(t.entries, {t.entries.size()}, self);
            },
            "uint32 [block]: the first of consecutive sites, or 2^31 | a row of the lists, 2^30 where that "
            "is two runs.")
        .def_prop_ro(
            "lists",
            [](nb::object self) {
                const auto& t = nb::cast<const SiteTable&>(self);
                return view(t.lists, {t.lists.size()}, self);
            },
            "uint32 [row][lanes + 3]: sites; the beginnings of two runs and the lanes of the first.")
        .def_prop_ro(
            "list_classes",
            [](nb::object self) {
                const auto& t = nb::cast<const SiteTable&>(self);
                return view(t.list_classes, {t.list_classes.size()}, self);
            },
            "uint16 [row][lane], with windings: classes.")
        .def_prop_ro(
            "windings",
            [](nb::object self) {
                const auto& t = nb::cast<const SiteTable&>(self);
                const auto classes = static_cast<std::size_t>(t.classes);
                return view(t.windings, {classes, t.windings.size() / classes, std::size_t{1}}, self);
            },
            "int32 [class][direction][1]: crossings of the global boundary, + minus -.");
}

void bind_storage(nb::module_& m) {
    nb::class_<FieldStorage>(m, "FieldStorage",
                             "One field's data on one rank, [block][unit][lane], with ghosts.")
        .def(
            "__init__",
            [](FieldStorage* self, std::shared_ptr<PlacedLayout> layout, const Sections& memory,
               std::string label, std::shared_ptr<ThreadPool> pool) {
                nb::gil_scoped_release released;
                new (self) FieldStorage(std::move(layout), memory_of(memory), std::move(label), pool.get());
            },
            "layout"_a, "memory"_a, "label"_a, "pool"_a = nb::none(),
            "Zeroed. memory: [(units, bytes of a unit, units of a packet on devices)] of a site.")
        .def(
            "__init__",
            [](FieldStorage* self, std::shared_ptr<PlacedLayout> layout, const Sections& memory,
               std::string label, nb::object array, std::uintptr_t stream) {
                const PlacedArray* placed = placed_array(array);
                if ((placed ? placed->kind->gpu : nullptr) != layout->gpu())
                    throw LayoutError("field '" + label + "': the array is not where the layout is");
                std::byte* data = nullptr;
                std::size_t bytes = 0;
                if (placed != nullptr) {
                    data = reinterpret_cast<std::byte*>(placed->address);
                    bytes = placed->kind->nbytes;
                } else {
                    auto held = nb::cast<ConstArray>(array, false); // one that is written is writable
                    data = bytes_of(held);
                    bytes = held.nbytes();
                }
                if (bytes != static_cast<std::size_t>(layout->sites() * memory_of(memory).bytes()))
                    throw LayoutError("field '" + label + "': an array of " + std::to_string(bytes) +
                                      " bytes; the local box has " + std::to_string(layout->sites()) +
                                      " sites of " + std::to_string(memory_of(memory).bytes()));
                // Dropped by whoever uses the storage last, with or without the interpreter's lock.
                std::shared_ptr<void> owner(new nb::object(std::move(array)), [](void* p) {
                    if (!nb::is_alive()) return;
                    nb::gil_scoped_acquire acquired;
                    delete static_cast<nb::object*>(p);
                });
                nb::gil_scoped_release released;
                new (self) FieldStorage(std::move(layout), memory_of(memory), std::move(label), data,
                                        std::move(owner), reinterpret_cast<void*>(stream));
            },
            "layout"_a, "memory"_a, "label"_a, "array"_a, "stream"_a = 0,
            "In a C-ordered array of the local box, whose memory it uses as long as it lives: of NumPy, or a "
            "PlacedArray whose owner goes on to use it on `stream`.")
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
            "other"_a, "pool"_a = nb::none(), "Same local box and memory of a site, any lanes and order.");
    m.def(
        "halo_item",
        [](std::shared_ptr<PlacedLayout> layout, const Sections& memory, std::string label,
           std::uintptr_t kernel, Vector<std::uint64_t> parameters,
           std::vector<std::pair<int, std::shared_ptr<FieldStorage>>> sources, int output_parameter,
           const GpuFunction* gpu_kernel, int threads) {
            HaloProducer producer;
            if (gpu_kernel != nullptr) producer.gpu_kernel = *gpu_kernel;
            producer.threads = threads;
            producer.kernel = reinterpret_cast<KernelFunction>(kernel);
            producer.parameters.assign(parameters.data(), parameters.data() + parameters.size());
            producer.sources = std::move(sources);
            producer.output_parameter = output_parameter;
            nb::gil_scoped_release released;
            return std::make_shared<FieldStorage>(std::move(layout), memory_of(memory), std::move(label),
                                                  std::move(producer));
        },
        "layout"_a, "memory"_a, "label"_a, "kernel"_a, "parameters"_a, "sources"_a, "output_parameter"_a,
        "gpu_kernel"_a.none() = nb::none(), "threads"_a = 0,
        "A FieldStorage of ghosts only: the sender's `kernel` computes what travels, from sources "
        "[(parameter, "
        "field)].");
    m.def(
        "halo_counters", [] { return dict_of(process_halo_counters()); },
        "Over all layouts of this process.");
    m.def(
        "halo_policies",
        [](bool on_device) {
            nb::list rows;
            for (const auto& row : halo_policies(on_device))
                rows.append(nb::make_tuple(row.name, row.description));
            return rows;
        },
        "on_device"_a = false, "[(name, description)]; choose with JALI_HALO_POLICY or Launch(policy=...).");
    m.def(
        "recordable_halo_policies",
        [] {
            nb::list rows;
            for (const auto& row : halo_policies(true))
                if (can_be_recorded(row.carrier)) rows.append(row.name);
            return rows;
        },
        "Names of the rows for devices whose exchanges can be parts of graphs.");
}

} // namespace

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
