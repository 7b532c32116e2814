// core/settings in Python; jali.settings is what people use.
#include "settings/settings.hpp"
#include "bind/errors.hpp"
#include "device/ranges.hpp"
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

    nb::class_<SettingRow>(m, "SettingRow", "One setting: what it may be, and what it means.")
        .def_ro("name", &SettingRow::name)
        .def_ro("variable", &SettingRow::variable, "In the environment; empty: an experiment.")
        .def_ro("group", &SettingRow::group)
        .def_prop_ro(
            "values", [](const SettingRow& row) { return row.values.words; }, "What it may be, in words.")
        .def_ro("otherwise", &SettingRow::otherwise, "The default, in words.")
        .def_ro("meaning", &SettingRow::meaning)
        .def_ro("page", &SettingRow::page, "Of the documentation that says more; may be empty.");

    nb::class_<Settings> settings_class(m, "Settings", "All settings of a process; never changes.");
    for (const SettingRow& row : setting_rows())
        std::visit([&](auto member) { settings_class.def_ro(row.name.c_str(), member, row.meaning.c_str()); },
                   row.member);
    settings_class
        .def("changed", &changed_settings, "changes"_a,
             "The same with other values, as texts by name; an empty text is the default. Raises "
             "ParameterError.")
        .def(
            "differing",
            [](const Settings& settings) {
                std::vector<std::pair<std::string, std::string>> rows;
                for (const SettingRow& row : setting_rows())
                    if (const std::string text = text_of(row, settings); text != text_of(row, Settings()))
                        rows.emplace_back(row.variable.empty() ? row.name : row.variable, text);
                return rows;
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
    m.def("tell_once", &tell_once, "words"_a,
          "'jali: ' and these words on stderr, once in a process however often it is said.");
    m.def("setting_rows", [] {
        nb::list rows;
        for (const SettingRow& row : setting_rows()) rows.append(nb::cast(&row, nb::rv_policy::reference));
        return rows;
    });
}
