// core/proof/checker in Python, and schedules as plain data: tests edit them to verify that the checker
// detects errors.
#include "proof/checker.hpp"
#include "bind/errors.hpp"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

using RegionTuple = std::tuple<int, std::size_t, std::size_t>;

RegionTuple tuple_of(const Region& region) {
    return {region.buffer, region.offset, region.bytes};
}

Region region_of(const RegionTuple& region) {
    return {std::get<0>(region), std::get<1>(region), std::get<2>(region)};
}

nb::dict message(const char* kind, const Region& region, int peer, int tag, int library) {
    nb::dict result;
    result["kind"] = kind;
    result["region"] = tuple_of(region);
    result["peer"] = peer;
    result["tag"] = tag;
    result["library"] = library;
    return result;
}

nb::dict dict_of(const Step& step) {
    nb::dict result;
    if (const auto* a = std::get_if<Receive>(&step.action)) {
        result = message("receive", a->into, a->from, a->tag, a->library);
    } else if (const auto* a = std::get_if<Send>(&step.action)) {
        result = message("send", a->from, a->to, a->tag, a->library);
    } else if (const auto* a = std::get_if<Copy>(&step.action)) {
        result["kind"] = "copy";
        nb::list specs;
        for (const CopySpec& spec : a->specs) {
            nb::list gathered;
            if (spec.rows) {
                const std::size_t count = spec.row_bytes ? spec.to.bytes / spec.row_bytes : 0;
                for (std::size_t k = 0; k < count; ++k) gathered.append(spec.rows->at(spec.first_row + k));
            }
            nb::dict entry;
            entry["from"] = tuple_of(spec.from);
            entry["to"] = tuple_of(spec.to);
            entry["row_bytes"] = spec.row_bytes;
            entry["rows"] = spec.rows ? nb::object(gathered) : nb::none();
            specs.append(entry);
        }
        result["specs"] = specs;
    } else if (const auto* a = std::get_if<Reduce>(&step.action)) {
        if (a->how.user)
            throw ScheduleError("step '" + step.name + "' has a user's operation: no plain data");
        result["kind"] = "reduce";
        result["type"] = std::string(name_of(a->how.type));
        result["operation"] = std::string(name_of(a->how.operation));
        result["divide_by"] = a->how.divide_by;
        nb::list specs;
        for (const ReduceSpec& spec : a->specs) {
            nb::list from;
            for (const Region& source : spec.from) from.append(tuple_of(source));
            nb::dict entry;
            entry["into"] = tuple_of(spec.into);
            entry["from"] = from;
            specs.append(entry);
        }
        result["specs"] = specs;
    } else {
        throw ScheduleError("step '" + step.name + "' is a kernel: no plain data");
    }
    result["name"] = step.name;
    nb::list needs;
    for (const Port& need : step.parts.at(0).needs) needs.append(need.step);
    result["needs"] = needs;
    result["mark"] = nb::make_tuple(step.mark.stage, step.mark.chunk, step.mark.level);
    return result;
}

nb::dict schedule_to_dict(const Schedule& schedule) {
    nb::list buffers, steps;
    for (const Buffer& buffer : schedule.buffers())
        buffers.append(nb::make_tuple(buffer.name, buffer.bytes, buffer.holds_data));
    for (const Step& step : schedule.steps()) steps.append(dict_of(step));
    nb::dict result;
    result["buffers"] = buffers;
    result["libraries"] = nb::cast(schedule.libraries());
    result["steps"] = steps;
    return result;
}

template <class T>
T get(const nb::dict& dict, const char* key) {
    return nb::cast<T>(dict[key]);
}

std::shared_ptr<Schedule> schedule_from_dict(const nb::dict& dict) {
    auto schedule = std::make_shared<Schedule>();
    for (const auto& entry : dict["buffers"]) {
        const auto [name, bytes, holds] = nb::cast<std::tuple<std::string, std::size_t, bool>>(entry);
        schedule->add_buffer(name, bytes, holds);
    }
    schedule->set_libraries(get<std::vector<std::string>>(dict, "libraries"));
    for (const auto& item : dict["steps"]) {
        const auto step = nb::cast<nb::dict>(item);
        const auto kind = get<std::string>(step, "kind");
        const auto name = get<std::string>(step, "name");
        std::vector<Port> needs;
        for (int need : get<std::vector<int>>(step, "needs")) needs.push_back({need, 0});
        const auto [stage, chunk, level] = get<std::tuple<int, int, int>>(step, "mark");
        const Mark mark{stage, chunk, level};
        if (kind == "receive" || kind == "send") {
            const Region region = region_of(get<RegionTuple>(step, "region"));
            const int peer = get<int>(step, "peer"), tag = get<int>(step, "tag");
            const int library = get<int>(step, "library");
            if (kind == "send")
                schedule->add(name, Send{region, peer, tag, library}, needs, mark);
            else
                schedule->add(name, Receive{region, peer, tag, library}, needs, mark);
        } else if (kind == "copy") {
            Copy copy;
            for (const auto& entry : step["specs"]) {
                const auto spec = nb::cast<nb::dict>(entry);
                const auto rows = get<std::optional<std::vector<std::int32_t>>>(spec, "rows");
                copy.specs.push_back(
                    {region_of(get<RegionTuple>(spec, "from")), region_of(get<RegionTuple>(spec, "to")),
                     get<std::size_t>(spec, "row_bytes"),
                     rows ? std::make_shared<const std::vector<std::int32_t>>(*rows) : nullptr, 0});
            }
            schedule->add(name, std::move(copy), needs, mark);
        } else if (kind == "reduce") {
            Reduce reduce;
            reduce.how = {data_type_of(get<std::string>(step, "type")),
                          operation_of(get<std::string>(step, "operation")), get<int>(step, "divide_by"),
                          nullptr};
            for (const auto& entry : step["specs"]) {
                const auto spec = nb::cast<nb::dict>(entry);
                ReduceSpec result{region_of(get<RegionTuple>(spec, "into")), {}};
                for (const auto& source : get<std::vector<RegionTuple>>(spec, "from"))
                    result.from.push_back(region_of(source));
                reduce.specs.push_back(std::move(result));
            }
            schedule->add(name, std::move(reduce), needs, mark);
        } else {
            throw ScheduleError("a step of kind '" + kind + "'; there are receive, send, copy and reduce");
        }
    }
    return schedule;
}

} // namespace

void bind_checker(nb::module_& m) {
    nb::register_exception_translator(
        [](const std::exception_ptr& pointer, void*) {
            try {
                std::rethrow_exception(pointer);
            } catch (const CheckError& error) {
                const nb::object type = nb::module_::import_("jali.errors").attr("CheckError");
                const nb::object raised =
                    type(error.what(), std::string(name_of(error.kind)), error.rank, error.step);
                PyErr_SetObject(type.ptr(), raised.ptr());
            }
        },
        nullptr);
    m.def(
        "check_plan",
        [](const Composition& composition, const std::vector<std::shared_ptr<Schedule>>& schedules,
           std::optional<std::size_t> scratch_limit, bool reproducible, const Hierarchy* hierarchy) {
            std::vector<const Schedule*> of_ranks;
            for (const auto& schedule : schedules) of_ranks.push_back(schedule.get());
            CheckOptions options;
            if (scratch_limit) options.scratch_limit = *scratch_limit;
            options.reproducible = reproducible;
            options.hierarchy = hierarchy;
            nb::gil_scoped_release released;
            check_plan(composition, of_ranks, options);
        },
        "composition"_a, "schedules"_a, "scratch_limit"_a = nb::none(), "reproducible"_a = false,
        "hierarchy"_a = nb::none(),
        "Proves that the schedules, one per rank, do what the composition says, in any order that they "
        "allow,\n"
        "without races or deadlock. `scratch_limit` in bytes per rank; `reproducible`: floating-point "
        "elements\n"
        "are combined in the order of ranks; `hierarchy`: messages cross the level they are marked with.\n"
        "Raises CheckError (`kind`, `rank`, `step`).");
    m.def("schedule_to_dict", &schedule_to_dict, "schedule"_a,
          "A schedule without kernels as plain data: buffers, libraries, steps.");
    m.def("schedule_from_dict", &schedule_from_dict, "data"_a, "The inverse of schedule_to_dict.");
}
