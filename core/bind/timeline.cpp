// core/device/timeline and ranges in Python; users call jali.profile.
#include "device/timeline.hpp"
#include "bind/errors.hpp"
#include "device/profiler_ranges.hpp"
#include "messaging/clock_offset.hpp"

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void bind_timeline(nb::module_& m) {
    nb::class_<Timeline>(m, "Timeline", "What this thread's rank did when.")
        .def(nb::init<std::size_t>(), "capacity"_a, "Keeps the last `capacity` spans.")
        .def("start", &Timeline::start, "From now on, of this thread.")
        .def("stop", &Timeline::stop)
        .def_prop_ro("recording", &Timeline::recording)
        .def(
            "bytes",
            [](Timeline& timeline) {
                std::vector<std::byte> bytes;
                {
                    nb::gil_scoped_release released;
                    bytes = timeline.bytes();
                }
                return nb::bytes(bytes.data(), bytes.size());
            },
            "The spans as jali.profile.spans.SPAN describes them; waits for devices.")
        .def_prop_ro("names", &Timeline::names)
        .def_prop_ro("tracks", &Timeline::tracks)
        .def_prop_ro("dropped", &Timeline::dropped)
        .def_prop_ro("device_accuracy", &Timeline::device_accuracy, "Seconds.")
        .def(
            "add_region",
            [](Timeline& timeline, const std::string& name, std::int64_t begin, std::int64_t end) {
                timeline.add(Phase::region, Timeline::host_track, timeline.number_of(name), begin, end);
            },
            "name"_a, "begin"_a, "end"_a, "A span of the program's own; times as now() gives them.")
        .def_static("now", &Timeline::now, "Nanoseconds of the steady clock.");
    m.def("phases", &phase_names, "Names of the phases of spans, by number.");
    m.def(
        "push_range", [](const std::string& name) { return push_range(name); }, "name"_a,
        "A range for a vendor's profiler begins; False when they are off (JALI_NVTX).");
    m.def("pop_range", &pop_range);
    m.def(
        "ranges",
        [] {
            const RangesFound& found = find_ranges();
            return nb::make_tuple(found.name, found.library, found.why_not);
        },
        "(name, file, why not) of what takes ranges.");
    m.def(
        "clock_offsets",
        [](Communicator& communicator) {
            std::vector<ClockOffset> offsets;
            {
                nb::gil_scoped_release released;
                offsets = clock_offsets(communicator);
            }
            nb::list entries;
            for (const ClockOffset& one : offsets)
                entries.append(nb::make_tuple(one.nanoseconds, one.uncertainty));
            return entries;
        },
        "communicator"_a,
        "[(ns that a rank's clock is ahead of rank 0's, ns by which that may be wrong)]; collective, the "
        "same "
        "on all ranks.");
}
