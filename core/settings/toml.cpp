#include "settings/toml.hpp"

#include "settings/utf8.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <set>

namespace jali {

TomlError::TomlError(int line, const std::string& text)
    : std::runtime_error("line " + std::to_string(line) + ": " + text) {
}

namespace {

bool is_bare(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}

class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    std::vector<TomlTable> tables() {
        std::vector<TomlTable> all(1);
        std::set<std::string> names; // of those that there may be one of, and of arrays with brackets
        for (skip_lines(); !at_end(); skip_lines()) {
            if (peek() == '[') {
                TomlTable table = header();
                const std::string other = table.of_array ? table.name : "[" + table.name + "]";
                if (names.count(other) || (!table.of_array && names.count(table.name)))
                    throw TomlError(table.line, "there is another table '" + table.name + "' above");
                names.insert(table.of_array ? "[" + table.name + "]" : table.name);
                all.push_back(std::move(table));
            } else {
                entry(all.back());
            }
            end_line();
        }
        return all;
    }

  private:
    bool at_end() const { return at_ == text_.size(); }
    char peek() const { return at_end() ? '\n' : text_[at_]; }
    char next() {
        const char c = peek();
        if (!at_end()) ++at_;
        if (c == '\n') ++line_;
        return c;
    }
    [[noreturn]] void fail(const std::string& text) const { throw TomlError(line_, text); }

    void skip_spaces() {
        while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) ++at_;
        if (peek() != '#') return;
        while (!at_end() && peek() != '\n') ++at_;
    }
    void skip_lines() {
        for (skip_spaces(); !at_end() && peek() == '\n'; skip_spaces()) next();
    }
    void end_line() {
        skip_spaces();
        if (peek() != '\n') fail("more than one thing on a line, or what is no TOML: '" + rest() + "'");
    }
    std::string rest() const {
        return shown(text_.substr(at_, std::min(text_.find('\n', at_), text_.size()) - at_), 40);
    }

    std::string key(const char* what) {
        std::string name;
        if (peek() == '"' || peek() == '\'') return string();
        while (!at_end() && is_bare(peek())) name += next();
        if (name.empty()) fail(std::string("expected ") + what + ", not '" + rest() + "'");
        return name;
    }
    TomlTable header() {
        TomlTable table;
        table.line = line_;
        next();
        table.of_array = peek() == '[';
        if (table.of_array) next();
        skip_spaces();
        table.name = key("the name of a table");
        skip_spaces();
        if (peek() == '.') fail("tables within tables are not read here");
        for (int k = 0; k < (table.of_array ? 2 : 1); ++k) {
            if (peek() != ']') fail("the name of a table ends with ']'");
            next();
        }
        return table;
    }
    void entry(TomlTable& table) {
        const int line = line_;
        const std::string name = key("a key");
        skip_spaces();
        if (peek() == '.') fail("dotted keys are not read here");
        if (peek() != '=') fail("'" + name + "' lacks its '='");
        next();
        skip_spaces();
        for (const auto& [other, value] : table.entries)
            if (other == name)
                throw TomlError(line,
                                "'" + name + "' was said in line " + std::to_string(value.line) + " already");
        table.entries.emplace_back(name, value());
    }

    TomlValue value() {
        TomlValue found;
        found.line = line_;
        if (peek() == '"' || peek() == '\'') {
            found.is = string();
        } else if (peek() == '[') {
            found.is = array();
        } else if (peek() == '{') {
            fail("inline tables are not read here");
        } else {
            found.is = word();
        }
        return found;
    }
    std::string string() {
        const char quote = next();
        if (text_.substr(at_, 2) == std::string(2, quote)) fail("strings of several lines are not read here");
        std::string found;
        for (;;) {
            if (peek() == '\n') fail("a string without an end");
            const char c = next();
            if (c == quote) return found;
            if (c != '\\' || quote == '\'') {
                found += c;
                continue;
            }
            const std::size_t of_escaped = at_;
            const char escaped = next();
            constexpr std::string_view from = "\"\\ntr", to = "\"\\\n\t\r";
            const auto which = from.find(escaped);
            if (which == std::string_view::npos) {
                while (!at_end() && (peek() & 0xc0) == 0x80) next(); // the rest of one character
                fail("'\\" + shown(text_.substr(of_escaped, at_ - of_escaped)) +
                     "' in a string; write such characters as they are");
            }
            found += to[which];
        }
    }
    std::vector<TomlValue> array() {
        std::vector<TomlValue> found;
        next();
        for (skip_lines(); peek() != ']'; skip_lines()) {
            if (at_end()) fail("an array without an end");
            found.push_back(value());
            skip_lines();
            if (peek() == ',') {
                next();
            } else if (peek() != ']' && !at_end()) {
                fail("items of an array are separated by ','");
            }
        }
        next();
        return found;
    }
    std::variant<bool, std::int64_t, double, std::string, std::vector<TomlValue>> word() {
        std::string text;
        while (!at_end() && (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':'))
            text += next();
        if (text == "true") return true;
        if (text == "false") return false;
        std::string digits;
        for (const char c : text)
            if (c != '_') digits += c;
        const char* first = digits.c_str() + (digits.starts_with('+') ? 1 : 0);
        const char* last = digits.c_str() + digits.size();
        std::int64_t whole = 0;
        if (const auto read = std::from_chars(first, last, whole);
            read.ec == std::errc() && read.ptr == last && first != last)
            return whole;
        double number = 0;
        if (const auto read = std::from_chars(first, last, number);
            read.ec == std::errc() && read.ptr == last && first != last)
            return number;
        if (text.empty()) text = rest();
        fail("'" + text + "' is neither a string in quotes, a number, true nor false");
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int line_ = 1;
};

} // namespace

std::string toml_text(const TomlValue& value) {
    if (const auto* flag = std::get_if<bool>(&value.is)) return *flag ? "true" : "false";
    if (const auto* whole = std::get_if<std::int64_t>(&value.is)) return std::to_string(*whole);
    if (const auto* number = std::get_if<double>(&value.is)) {
        char text[32];
        return {text, std::to_chars(text, std::end(text), *number).ptr};
    }
    std::string text;
    if (const auto* list = std::get_if<std::vector<TomlValue>>(&value.is)) {
        for (const TomlValue& one : *list) text += (text.empty() ? "" : ", ") + toml_text(one);
        return "[" + text + "]";
    }
    for (const char c : std::get<std::string>(value.is)) {
        constexpr std::string_view plain = "\n\t\r\"\\", escaped = "ntr\"\\";
        const auto at = plain.find(c);
        text += at == plain.npos ? std::string(1, c) : std::string("\\") + escaped[at];
    }
    return '"' + text + '"';
}

std::vector<TomlTable> read_toml(std::string_view text) {
    constexpr std::string_view mark = "\xef\xbb\xbf"; // of byte order, as editors may put it in front
    if (text.starts_with(mark)) text.remove_prefix(mark.size());
    if (const auto at = first_of_no_text(text); at != text.npos) {
        const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        throw TomlError(1 + static_cast<int>(lines),
                        "byte " + shown(text.substr(at, 1)) + " is no text; TOML is written in UTF-8");
    }
    return Reader(text).tables();
}

} // namespace jali
