// core/composition in Python: compositions, the standard collectives, direct evaluation, and the elements'
// operations by name. Sets of ranks are "all", "others" (all but the root), one rank or a list of ranks.
#include "bind/user_operation.hpp"
#include "composition/composition.hpp"
#include "composition/standard_collectives.hpp"
#include "schedule/reduce_table.hpp"
#include "settings/counted.hpp"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
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
using Source = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using PieceTuple = std::pair<int, std::int64_t>;

DataType element_type(const std::string& name) {
    try {
        return data_type_of(name);
    } catch (const std::invalid_argument& error) {
        throw PlanError(error.what());
    }
}

Operation operation(const std::string& name) {
    try {
        return operation_of(name);
    } catch (const std::invalid_argument& error) {
        throw PlanError(error.what());
    }
}

RankSet rank_set(int ranks, const nb::object& set, int root) {
    if (nb::isinstance<nb::str>(set)) {
        const auto name = nb::cast<std::string>(set);
        if (name == "all") return RankSet::all(ranks);
        if (name == "others") return RankSet::others(ranks, root);
        throw PlanError("'" + name + "' is no set of ranks; use 'all', 'others', a rank or a list of ranks");
    }
    if (int rank = 0; nb::try_cast(set, rank)) return RankSet::one(ranks, rank);
    if (std::vector<int> list; nb::try_cast(set, list)) return RankSet::list(ranks, std::move(list));
    throw PlanError("a set of ranks is 'all', 'others', a rank or a list of ranks, not " +
                    std::string(nb::repr(set).c_str()));
}

nb::object python_set(const RankSet& set, int root) {
    if (set.kind() == RankSet::Kind::all) return nb::str("all");
    if (set.kind() == RankSet::Kind::others && set.which() == root) return nb::str("others");
    return nb::cast(set.members());
}

nb::dict primitive_dict(const Composition& composition, const Primitive& primitive) {
    const bool multicast = primitive.kind == Primitive::Kind::multicast;
    nb::dict result;
    result["kind"] = multicast ? "multicast" : "reduce";
    result["root"] = primitive.root;
    result["ranks"] = python_set(primitive.ranks, primitive.root);
    result["source"] = nb::make_tuple(primitive.from.buffer, primitive.from.offset);
    result["target"] = nb::make_tuple(primitive.to.buffer, primitive.to.offset);
    result["count"] = primitive.count;
    if (!multicast) {
        result["operation"] = std::string(name_of(composition.reductions()[primitive.reduction].operation));
    }
    return result;
}

void evaluate(const Composition& composition, const std::vector<std::vector<Array>>& arrays) {
    if (arrays.size() != static_cast<std::size_t>(composition.ranks())) {
        throw PlanError("arrays of " + counted(arrays.size(), "rank") + " for a composition of " +
                        std::to_string(composition.ranks()));
    }
    const auto& buffers = composition.buffers();
    std::vector<std::vector<std::byte*>> memory(arrays.size());
    for (std::size_t rank = 0; rank < arrays.size(); ++rank) {
        if (arrays[rank].size() != buffers.size()) {
            throw PlanError("rank " + std::to_string(rank) + " has " + std::to_string(arrays[rank].size()) +
                            " arrays for " + counted(buffers.size(), "buffer"));
        }
        for (std::size_t b = 0; b < buffers.size(); ++b) {
            const auto bytes = static_cast<std::size_t>(buffers[b].count(static_cast<int>(rank))) *
                               size_of(composition.type());
            if (arrays[rank][b].nbytes() != bytes) {
                throw PlanError("buffer '" + buffers[b].name + "' has " + std::to_string(bytes) +
                                " bytes on rank " + std::to_string(rank) + ", its array " +
                                std::to_string(arrays[rank][b].nbytes()));
            }
            memory[rank].push_back(static_cast<std::byte*>(arrays[rank][b].data()));
        }
    }
    nb::gil_scoped_release released;
    composition.evaluate(memory);
}

void reduce_arrays(const std::string& type, const std::string& operation, const Array& into,
                   const std::vector<Source>& sources, int divide_by, const nb::object& user, bool portable) {
    Reduction how{data_type_of(type), operation_of(operation), divide_by, nullptr};
    how.user = user_operation(user, how.type);
    check_reduction(how);
    std::vector<const void*> addresses;
    for (const auto& source : sources) {
        if (source.nbytes() != into.nbytes()) {
            throw PlanError("a source of " + std::to_string(source.nbytes()) + " bytes for a result of " +
                            std::to_string(into.nbytes()));
        }
        addresses.push_back(source.data());
    }
    const std::size_t count = into.nbytes() / size_of(how.type);
    nb::gil_scoped_release released;
    if (portable)
        reduce_table_base.of(how)(into.data(), addresses.data(), addresses.size(), count, divide_by);
    else
        reduce(how, into.data(), addresses, count);
}

void bind_elements(nb::module_& m) {
    m.def(
        "element_types",
        [] {
            std::vector<std::pair<std::string, std::size_t>> all;
            for (int k = 0; k < data_types; ++k) {
                const auto type = static_cast<DataType>(k);
                all.emplace_back(name_of(type), size_of(type));
            }
            return all;
        },
        "(name, bytes) of each element type.");
    m.def(
        "operations_of",
        [](const std::string& type) {
            std::vector<std::string> all;
            for (int k = 0; k < operations; ++k) {
                const Reduction how{data_type_of(type), static_cast<Operation>(k), 1, nullptr};
                if (reduce_table_base.of(how)) all.emplace_back(name_of(how.operation));
            }
            return all;
        },
        "type"_a, "Operations that are defined for an element type, 'user' aside.");
    m.def(
        "reduce", &reduce_arrays, "type"_a, "operation"_a, "into"_a.noconvert(), "sources"_a.noconvert(),
        "divide_by"_a = 1, "user"_a = nb::none(), "portable"_a = false,
        "into = sources[0] op sources[1] op ..., from left to right; `into` may be a source. `portable`: by "
        "the\nloops for any processor. ValueError: not defined for the type.");
}

} // namespace

void bind_collective(nb::module_& m) {
    bind_elements(m);

    nb::class_<Composition>(
        m, "Composition",
        "Multicasts, reductions and fences over named buffers; pieces are (buffer, offset in elements).")
        .def(
            "__init__",
            [](Composition* self, int ranks, const std::string& type) {
                new (self) Composition(ranks, element_type(type));
            },
            "ranks"_a, "type"_a)
        .def("add_buffer", &Composition::add_buffer, "name"_a, "counts"_a, "input"_a = true,
             "`counts`: one number of elements, or one per rank. Returns the buffer's number.")
        .def(
            "multicast",
            [](Composition& self, const PieceTuple& source, const PieceTuple& target, std::int64_t count,
               int root, const nb::object& leaves) {
                self.multicast({source.first, source.second}, {target.first, target.second}, count, root,
                               rank_set(self.ranks(), leaves, root));
            },
            "source"_a, "target"_a, "count"_a, "root"_a, "leaves"_a)
        .def(
            "reduce",
            [](Composition& self, const PieceTuple& source, const PieceTuple& target, std::int64_t count,
               const nb::object& sources, int root, const std::string& operation_name,
               const nb::object& user) {
                std::shared_ptr<const UserOperation> function = user_operation(user, self.type());
                for (const Reduction& known : self.reductions())
                    if (function && known.user && known.user->is_same(*function)) function = known.user;
                self.reduce({source.first, source.second}, {target.first, target.second}, count,
                            rank_set(self.ranks(), sources, root), root, operation(operation_name), function);
            },
            "source"_a, "target"_a, "count"_a, "sources"_a, "root"_a, "operation"_a = "sum",
            "user"_a = nb::none(),
            "`operation` 'user' is user(a, b): it returns the result, or None and has updated b in place.")
        .def("fence", &Composition::fence)
        .def_prop_ro("ranks", &Composition::ranks)
        .def_prop_ro("type", [](const Composition& self) { return std::string(name_of(self.type())); })
        .def_prop_ro("element_bytes", [](const Composition& self) { return size_of(self.type()); })
        .def_prop_ro(
            "buffers",
            [](const Composition& self) {
                std::vector<std::tuple<std::string, std::vector<std::int64_t>, bool>> all;
                for (const auto& buffer : self.buffers())
                    all.emplace_back(buffer.name, buffer.counts, buffer.input);
                return all;
            },
            "(name, counts, input) of each; one count: the same on all ranks.")
        .def_prop_ro(
            "steps",
            [](const Composition& self) {
                nb::list steps;
                for (const auto& step : self.steps()) {
                    nb::list primitives;
                    for (const auto& primitive : step) primitives.append(primitive_dict(self, primitive));
                    steps.append(primitives);
                }
                return steps;
            },
            "Primitives between fences, each as a dict.")
        .def_prop_ro("primitives",
                     [](const Composition& self) {
                         std::size_t count = 0;
                         for (const auto& step : self.steps()) count += step.size();
                         return count;
                     })
        .def("check", &Composition::check, nb::call_guard<nb::gil_scoped_release>(),
             "PlanError: primitives of one step touch what one of them writes, or undefined data is read.")
        .def("evaluate", &evaluate, "arrays"_a.noconvert(),
             "Does it directly: arrays[rank][buffer], contiguous, of exactly the buffer's size.")
        .def("describe", &Composition::describe);

    m.def(
        "standard_composition",
        [](int ranks, const std::string& collective, const std::string& form, const std::string& type,
           std::vector<std::int64_t> counts, int root, const std::string& operation_name,
           const nb::object& user, bool in_place) {
            CollectiveCall call;
            call.collective = collective_of(collective);
            call.type = element_type(type);
            call.counts = std::move(counts);
            call.root = root;
            call.operation = operation(operation_name);
            call.user = user_operation(user, call.type);
            call.in_place = in_place;
            return make_composition(ranks, call, form_of(form));
        },
        "ranks"_a, "collective"_a, "form"_a, "type"_a, "counts"_a, "root"_a = 0, "operation"_a = "sum",
        "user"_a = nb::none(), "in_place"_a = false,
        "One of the eight standard collectives; buffers are 'send' and 'recv', in place 'data'.");
    m.def(
        "forms_of",
        [](const std::string& collective) {
            std::vector<std::string> names;
            for (const Form form : forms_of(collective_of(collective))) names.emplace_back(name_of(form));
            return names;
        },
        "collective"_a, "Forms in which a standard collective can be composed.");
    m.def("near_equal_offsets", &near_equal_offsets, "count"_a, "ranks"_a,
          "Where each of `ranks` near-equal parts of `count` elements begins, and the end.");
}
