// Partitions and layouts in Python: the places of sites, on ranks and in memory.
#include "bind/halo_numbers.hpp"
#include "halo/gpu_exchange.hpp"
#include "halo/policy.hpp"
#include "halo/site_table.hpp"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// A read-only NumPy view of memory that `owner` keeps alive.
template <class T>
nb::object view(const T* data, std::vector<std::size_t> shape, nb::handle owner) {
    return nb::cast(nb::ndarray<nb::numpy, const T>(data, shape.size(), shape.data(), owner));
}

template <class T>
nb::object view(const std::vector<T>& data, std::vector<std::size_t> shape, nb::handle owner) {
    return view(data.data(), std::move(shape), owner);
}

// A NumPy array that takes over a vector.
template <class T>
nb::object owned(std::vector<T>* data, std::vector<std::size_t> shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data->data(), shape.size(), shape.data(), owner));
}

nb::tuple tuple_of(const std::vector<std::int64_t>& values) {
    return nb::tuple(nb::cast(values));
}

using VisitedObject = std::variant<const LocalLayout*, const RowBlocks*>;

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

} // namespace

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
    nb::class_<Geometry>(m, "Geometry", "One rank's box of a lattice and the slabs around it; no memory.")
        .def(nb::init<Partition, int>(), "partition"_a, "rank"_a)
        .def_prop_ro("extents", [](const Geometry& g) { return tuple_of(g.extents()); })
        .def_prop_ro("origin", [](const Geometry& g) { return tuple_of(g.origin()); })
        .def("check_halo", &Geometry::check_halo, "offset"_a,
             "LayoutError where a box is too small for reads at the offset.")
        .def("reach", &Geometry::reach, "parities"_a, "offset"_a,
             "Parities (mask) that can be read at the offset.")
        .def(
            "slab_keys",
            [](const Geometry& g, const Offset& offset) {
                nb::list keys;
                for (const Offset& key : g.slab_keys(offset)) keys.append(tuple_of(key));
                return keys;
            },
            "offset"_a, "Keys of the slabs that reads at the offset fall into; the same on all ranks.")
        .def(
            "slab",
            [](const Geometry& g, const Offset& key) {
                const SlabBox slab = g.slab(key);
                return nb::make_tuple(slab.from, slab.to, tuple_of(slab.extents), tuple_of(slab.ghost_origin),
                                      tuple_of(slab.send_origin));
            },
            "key"_a,
            "(owner, rank that reads this rank's, extents, origin of the ghosts, origin of what is sent).");
    m.def(
        "choose_grid",
        [](const Extents& extents, int nranks, int lanes) {
            return tuple_of(choose_grid(extents, nranks, lanes));
        },
        "extents"_a, "nranks"_a, "lanes"_a,
        "Rank grid that keeps the most lanes, then has least volume and surface per rank. LayoutError if "
        "none fits.");
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

    nb::class_<LocalLayout>(m, "Layout",
                            "One rank's part of a lattice: blocks, lanes, neighbour tables, ghost slabs.")
        .def(nb::init<Partition, int, int, Extents, std::shared_ptr<Gpu>, int>(), "partition"_a, "rank"_a,
             "lanes"_a, "tile"_a = Extents{}, "gpu"_a = nb::none(), "block_bits"_a = 0,
             "lanes: wanted vector lanes, a power of two; tile: block extents of the tiles of the storage "
             "order; gpu: the device where fields live; block_bits: at least so many, for tests.")
        .def_static(
            "c_ordered",
            [](Partition partition, int rank, std::shared_ptr<Gpu> gpu, bool checkerboard) {
                const SiteOrder sites = checkerboard ? SiteOrder::checkerboard : SiteOrder::c_order;
                return std::make_shared<LocalLayout>(std::move(partition), rank, std::move(gpu), sites);
            },
            "partition"_a, "rank"_a, "gpu"_a = nb::none(), "checkerboard"_a = false,
            "The layout of C-ordered arrays of a rank's box, on the host or a device; checkerboard: of its "
            "even sites and of its odd ones.")
        .def_prop_ro("c_order", &LocalLayout::c_order)
        .def_prop_ro("checkerboard", &LocalLayout::checkerboard)
        .def_prop_ro("first_ghost", &LocalLayout::first_ghost)
        .def_prop_ro("block_bits", &LocalLayout::block_bits, "Bits of a table's entry that hold the block.")
        .def_prop_ro("gpu", [](const LocalLayout& l) { return l.gpu(); })
        .def_prop_ro("partition", &LocalLayout::partition)
        .def_prop_ro("rank", &LocalLayout::rank)
        .def_prop_ro("ndim", &LocalLayout::ndim)
        .def_prop_ro("extents", [](const LocalLayout& l) { return tuple_of(l.extents()); })
        .def_prop_ro("origin", [](const LocalLayout& l) { return tuple_of(l.origin()); })
        .def_prop_ro("virtual_nodes", [](const LocalLayout& l) { return tuple_of(l.lane_grid().nodes); })
        .def(
            "tile_by_tile",
            [](const LocalLayout& l) {
                auto* order = new std::vector<std::int32_t>(l.tile_by_tile());
                return owned(order, {order->size()});
            },
            "All blocks, the even and then the odd ones of each tile.")
        .def_prop_ro("block_extents", [](const LocalLayout& l) { return tuple_of(l.block_extents()); })
        .def_prop_ro("lanes", &LocalLayout::lanes)
        .def_prop_ro("sites", &LocalLayout::sites)
        .def_prop_ro("nblocks", &LocalLayout::nblocks)
        .def_prop_ro("even_blocks", &LocalLayout::even_blocks,
                     "Blocks [0, even_blocks) are even, the others odd.")
        .def_prop_ro("ghost_blocks", &LocalLayout::ghost_blocks)
        .def(
            "site_coordinates",
            [](const LocalLayout& l, int d) {
                if (d < 0 || d >= l.ndim()) throw nb::index_error("a layout has no such direction");
                return coordinates_of(VisitedBlocks::of(l), d, l.ndim());
            },
            "direction"_a, "int32 [block][lane]: global coordinates in a direction.")
        .def_prop_ro(
            "box_sites",
            [](const LocalLayout& l) {
                auto* found = new std::vector<std::int64_t>;
                found->reserve(l.sites());
                for (std::int64_t block = 0; block < l.nblocks(); ++block)
                    for (int lane = 0; lane < l.lanes(); ++lane) found->push_back(l.box_site(block, lane));
                return owned(found,
                             {static_cast<std::size_t>(l.nblocks()), static_cast<std::size_t>(l.lanes())});
            },
            "int64 [block][lane]: indices in the local box, direction 0 fastest.")
        .def(
            "locate", [](const LocalLayout& l, const Extents& site) { return l.locate(site); }, "site"_a,
            "(block, lane) of local coordinates.")
        .def(
            "neighbours",
            [](LocalLayout& l, const Offset& offset, bool windings) {
                nb::gil_scoped_release released;
                return std::const_pointer_cast<NeighbourTable>(l.neighbours(offset, windings));
            },
            "offset"_a, "windings"_a = false,
            "Built once and kept; all ranks must ask alike. LayoutError if too wide.")
        .def(
            "on_device",
            [](LocalLayout& l, const NeighbourTable& table, int bits) { return l.on_device(table, bits); },
            "table"_a, "bits"_a = 32,
            nb::call_guard<nb::gil_scoped_release>(), // the device may be waited for
            "Address of one of its tables on its device: entries, or codes of 8 or 16 bits.")
        .def("code_bits", &LocalLayout::code_bits, "table"_a, nb::call_guard<nb::gil_scoped_release>(),
             "How many bits codes of a table need; 32: it has none.")
        .def("differences_on_device", &LocalLayout::differences_on_device, "table"_a,
             nb::call_guard<nb::gil_scoped_release>(),
             "Address of what the codes of a table stand for: entry - site, modulo 2^32.")
        .def("reach", &LocalLayout::reach, "parities"_a, "offset"_a,
             "Parities (mask) that can be read at the offset.")
        .def_prop_ro(
            "slabs",
            [](const LocalLayout& l) {
                nb::list slabs;
                for (const Slab& s : l.slabs()) {
                    slabs.append(nb::make_tuple(tuple_of(s.box.key), l.first_ghost() + s.first[0], s.count[0],
                                                s.count[1], s.box.from, s.box.to));
                }
                return slabs;
            },
            "[(key, first ghost block, even blocks, odd blocks, from rank, to rank)]")
        .def(
            "why_not_halo_policy",
            [](const std::shared_ptr<LocalLayout>& l, const std::shared_ptr<Communicator>& communicator,
               const std::string& name) -> std::string {
                const HaloPolicy& policy = halo_policy(name, l->vendor());
                nb::gil_scoped_release released;
                return why_no_halo_policy(policy, *l, *communicator);
            },
            "communicator"_a, "policy"_a,
            "Why these ranks cannot exchange halos in this way, empty if they can. Collective.")
        .def_prop_ro("halo_counters", [](const LocalLayout& l) { return dict_of(l.counters); })
        .def_prop_ro("positions", &LocalLayout::positions,
                     "Other numbers, on all ranks alike, when memory that halos come to has moved.");

    nb::class_<RowBlocks>(m, "RowBlocks",
                          "Pieces of the rows of C-ordered arrays of a rank's box, a site for each lane.")
        .def(
            "__init__",
            [](RowBlocks* self, const LocalLayout& layout, int lanes) {
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
            [](SiteTable* self, const VisitedObject& visited, LocalLayout& layout, Extents coarser,
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
