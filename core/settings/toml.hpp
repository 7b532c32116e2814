// The part of TOML that jali's files are written in: tables, arrays of tables, and keys with strings of one
// line, numbers, true, false, and arrays of these. Other parts of TOML (dates, dotted keys, inline tables,
// strings of several lines) are rejected by name: a file that this parser accepts means the same to every
// reader of TOML.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace jali {

struct TomlError : std::runtime_error { // "line 3: ..."
    TomlError(int line, const std::string& text);
};

struct TomlValue {
    std::variant<bool, std::int64_t, double, std::string, std::vector<TomlValue>> is;
    int line = 0;
};

struct TomlTable {
    std::string name; // empty: the part before the first one
    int line = 1;
    std::vector<std::pair<std::string, TomlValue>> entries;
    bool of_array = false; // [[name]]
};

// A value as a file may have it, on one line.
std::string toml_text(const TomlValue& value);

// All tables in their order, the one without a name first. Throws TomlError.
std::vector<TomlTable> read_toml(std::string_view text);

} // namespace jali
