// core/settings in Python; users call jali.settings.
#include "settings/settings.hpp"
#include "bind/errors.hpp"
#include "device/profiler_ranges.hpp"
#include "settings/notice.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

void bind_settings(nb::module_& m) {
    translate_error<SettingsError>("ParameterError");

    nb::class_<SettingSpec>(m, "SettingSpec", "One setting: what it may be, and what it means.")
        .def_ro("name", &SettingSpec::name)
        .def_ro("variable", &SettingSpec::variable, "In the environment; empty: an experiment.")
        .def_ro("group", &SettingSpec::group)
        .def_prop_ro(
            "values", [](const SettingSpec& spec) { return spec.values.words; }, "What it may be, in words.")
        .def_ro("otherwise", &SettingSpec::otherwise, "The default, in words.")
        .def_ro("meaning", &SettingSpec::meaning)
        .def_ro("page", &SettingSpec::page, "Of the documentation that says more; may be empty.");

    nb::class_<Settings> settings_class(m, "Settings", "All settings of a process; never changes.");
    for (const SettingSpec& spec : setting_specs())
        std::visit(
            [&](auto member) { settings_class.def_ro(spec.name.c_str(), member, spec.meaning.c_str()); },
            spec.member);
    settings_class
        .def("changed", &changed_settings, "changes"_a,
             "The same with other values, as texts by name; an empty text is the default. Raises "
             "ParameterError.")
        .def(
            "differing",
            [](const Settings& settings) {
                std::vector<std::pair<std::string, std::string>> entries;
                for (const SettingSpec& spec : setting_specs())
                    if (const std::string text = text_of(spec, settings); text != text_of(spec, Settings()))
                        entries.emplace_back(spec.variable.empty() ? spec.name : spec.variable, text);
                return entries;
            },
            "[(variable, or name of an experiment, and text)] of what is not the default.");

    m.def(
        "start_settings",
        [] {
            std::vector<std::string> notes = start_settings();
            if (settings().nvtx) turn_ranges_on();
            return notes;
        },
        "Reads the environment, once; returns notes on variables that are not read. Raises ParameterError.");
    m.def("settings", &settings, nb::rv_policy::reference, "The current settings.");
    m.def("replace_settings", &replace_settings, "settings"_a,
          "Makes these the current ones of the process.");
    m.def(
        "read_settings",
        [](const std::map<std::string, std::string>& environment) {
            ReadSettings read = read_settings(environment);
            return std::make_pair(std::move(read.settings), std::move(read.notes));
        },
        "environment"_a, "Settings from variables by name, and notes. Raises ParameterError.");
    m.def("report_once", &report_once, "words"_a,
          "'jali: ' and these words on stderr, once in a process however often it is said.");
    m.def("setting_specs", [] {
        nb::list entries;
        for (const SettingSpec& spec : setting_specs())
            entries.append(nb::cast(&spec, nb::rv_policy::reference));
        return entries;
    });
}
