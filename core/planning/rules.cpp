#include "planning/rules.hpp"
#include "device/vendor.hpp"
#include "messaging/mpi_abi.hpp"
#include "planning/algorithms.hpp"
#include "settings/settings.hpp"
#include "settings/toml.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

namespace jali {

CollectiveFacts facts_of(const CollectiveCall& call, std::span<const int> ranks_of_hosts,
                         LibraryVersions versions, bool mpi_program) {
    CollectiveFacts facts;
    facts.mpi_program = mpi_program;
    facts.collective = call.collective;
    facts.type = call.type;
    facts.operation = call.operation;
    facts.ranks = 0;
    facts.hosts = static_cast<int>(ranks_of_hosts.size());
    for (const int ranks : ranks_of_hosts) {
        facts.ranks += ranks;
        facts.ranks_per_host = std::max(facts.ranks_per_host, ranks);
    }
    facts.bytes = payload(call, facts.ranks);
    facts.versions = std::move(versions);
    facts.in_place = call.in_place;
    facts.reproducible = call.reproducible;
    facts.even = std::ranges::adjacent_find(call.counts, std::not_equal_to<>()) == call.counts.end();
    facts.elements = call.counts.empty() ? 0 : call.counts[0];
    if (!facts.even)
        facts.elements = std::accumulate(call.counts.begin(), call.counts.end(), std::int64_t{0});
    return facts;
}

namespace {

std::string listed(const std::set<std::string, std::less<>>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
}

std::string written(const AlgorithmSpec& spec) {
    return spec.written.empty() ? text_of(spec) : spec.written;
}

bool is_nested(std::span<const int> ranks_of_hosts) {
    return ranks_of_hosts.size() > 1 && std::ranges::any_of(ranks_of_hosts, [](int n) { return n > 1; });
}

// The usual algorithm that ignores hosts.
std::string_view flat_algorithm(Collective collective) {
    return collective == Collective::all_reduce ? "two_step" : "direct";
}

} // namespace

std::string text_of(const AlgorithmSpec& spec) {
    return spec.name + (spec.transport.empty() ? "" : " by " + spec.transport) +
           (spec.between.empty() ? "" : " and " + spec.between);
}

AlgorithmSpec read_algorithm(std::string_view text, std::span<const Collective> collectives,
                             const AlgorithmNames& names) {
    constexpr std::string_view by = " by ", both = " and ";
    const std::string whole(text);
    const auto refuse = [&](const std::string& what) { throw CollectiveError(what); };
    const auto at = text.find(by);
    AlgorithmSpec spec;
    spec.name = text.substr(0, at);
    if (at != text.npos) {
        const std::string_view transports = text.substr(at + by.size());
        const auto next = transports.find(both);
        spec.transport = transports.substr(0, next);
        if (next != transports.npos) spec.between = transports.substr(next + both.size());
        if (spec.transport.empty() || (next != transports.npos && spec.between.empty()))
            refuse("'" + whole + "' does not say by which transport; there are " + listed(names.transports) +
                   ", on hosts " + listed(names.of_hosts));
    }
    for (const std::string& transport : {spec.transport, spec.between})
        if (!transport.empty() && !names.transports.contains(transport) &&
            !names.of_hosts.contains(transport))
            refuse("'" + transport + "' carries no messages; " + listed(names.transports) +
                   ", and on hosts " + listed(names.of_hosts) + " do");
    if (!spec.between.empty() &&
        names.transports.contains(spec.transport) != names.transports.contains(spec.between))
        refuse("of '" + spec.transport + "' and '" + spec.between +
               "' one carries messages between devices, and the other on hosts");
    if (spec.transport.empty() &&
        (names.itself.contains(spec.name) || names.itself_on_hosts.contains(spec.name)))
        return spec;
    std::set<std::string, std::less<>> all;
    if (spec.transport.empty()) {
        all = names.itself;
        all.insert(names.itself_on_hosts.begin(), names.itself_on_hosts.end());
    }
    bool known = false, serves = false, on_devices = false, of_hosts = false;
    for (const Algorithm& entry : algorithms()) {
        if (entry.on_devices || spec.transport.empty()) all.insert(std::string(entry.name));
        if (entry.name != spec.name) continue;
        known = true;
        on_devices = on_devices || entry.on_devices;
        of_hosts = of_hosts || entry.hierarchy == Algorithm::Shape::hosts;
        serves = serves || collectives.empty();
        for (const Collective collective : collectives) serves = serves || entry.has(collective);
    }
    for (const AlgorithmAlias& entry : algorithm_aliases()) {
        all.insert(std::string(entry.name));
        if (entry.name != spec.name) continue;
        known = on_devices = true;
        of_hosts = of_hosts || entry.algorithm == "two_level" || entry.algorithm == "slices";
        serves = serves || collectives.empty() ||
                 std::ranges::find(collectives, entry.collective) != collectives.end();
    }
    if (!known) refuse("there is no algorithm '" + spec.name + "'; there are " + listed(all));
    if (!serves) {
        std::string asked;
        for (const Collective collective : collectives)
            asked += (asked.empty() ? "" : ", ") + std::string(name_of(collective));
        refuse("'" + spec.name + "' is no algorithm of " + asked);
    }
    if (!on_devices && names.transports.contains(spec.transport))
        refuse("'" + spec.name + "' is for hosts; '" + spec.transport + "' carries messages between devices");
    if (!spec.between.empty() && !of_hosts)
        refuse("'" + spec.name +
               "' does not tell messages inside hosts from those between them, as two_level and "
               "slices do; it has one transport");
    return spec;
}

std::optional<AlgorithmSpec> spec_for(const AlgorithmSpec& spec, Collective collective, bool on_devices,
                                      const AlgorithmNames& names) {
    if (names.itself.contains(spec.name) || names.itself_on_hosts.contains(spec.name)) return spec;
    AlgorithmSpec found = spec;
    if (const AlgorithmAlias* alias = find_alias(spec.name, collective)) {
        found.one_host = alias->one_host;
        found.written = text_of(spec);
        found.name = alias->algorithm;
        if (found.name.empty() && names.itself.contains(spec.transport)) {
            found.name = std::exchange(found.transport, "");
            return found;
        }
        if (found.name.empty()) {
            if (!spec.between.empty()) return std::nullopt; // of another collective's letter
            found.name = flat_algorithm(collective);
        }
    }
    if (find_algorithm(found.name, collective, on_devices) == nullptr) return std::nullopt;
    return found;
}

std::string why_not_between(const AlgorithmSpec& spec, Collective collective,
                            std::span<const int> ranks_of_hosts) {
    const std::string hosts = std::to_string(ranks_of_hosts.size());
    if (spec.one_host && ranks_of_hosts.size() > 1)
        return "'" + written(spec) + "' is for the ranks of one host, and these are on " + hosts;
    const Algorithm* entry = find_algorithm(spec.name, collective, false);
    if (entry == nullptr || entry->hierarchy != Algorithm::Shape::hosts || is_nested(ranks_of_hosts))
        return "";
    return "'" + spec.name + "' is for several hosts with several ranks, and " +
           (ranks_of_hosts.size() > 1 ? "each of these has one" : "there is one host");
}

namespace {

// The numbers of "2.28.3"; none where it is anything else.
std::optional<std::vector<int>> version_numbers(std::string_view text) {
    std::vector<int> numbers;
    while (true) {
        int number = 0;
        const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
        if (read.ec != std::errc() || number < 0) return std::nullopt;
        numbers.push_back(number);
        text.remove_prefix(read.ptr - text.data());
        if (text.empty()) return numbers;
        if (!text.starts_with('.')) return std::nullopt;
        text.remove_prefix(1);
    }
}

} // namespace

// Of one file.
class RulesReader {
  public:
    RulesReader(ChoiceRules& into, const std::string& file, const AlgorithmNames& names)
        : into_(into), file_(file), names_(names) {}

    void read(std::string_view text) {
        const std::vector<TomlTable> tables = [&] {
            try {
                return read_toml(text);
            } catch (const TomlError& error) {
                throw RulesError(file_ + ", " + error.what());
            }
        }();
        version(tables[0]);
        for (std::size_t k = 1; k < tables.size(); ++k) rule(tables[k]);
    }

  private:
    using Rule = ChoiceRules::Rule;
    using Range = std::pair<std::int64_t, std::int64_t>;

    [[noreturn]] void fail(int line, const std::string& text) const {
        throw RulesError(file_ + ", line " + std::to_string(line) + ": " + text);
    }

    void version(const TomlTable& top) {
        bool said = false;
        for (const auto& [key, value] : top.entries) {
            if (key != "version")
                fail(value.line, "'" + key + "' stands in no rule; those begin with [[rule]]");
            const auto* number = std::get_if<std::int64_t>(&value.is);
            if (number == nullptr || *number != 1)
                fail(value.line, "version = 1 is the only one that this jali reads");
            said = true;
        }
        if (!said) fail(1, "rules begin with version = 1");
    }

    void rule(const TomlTable& table) {
        if (table.name != "rule" || !table.of_array)
            fail(table.line, "a table '" + table.name + "'; there are only rules, which begin with [[rule]]");
        Rule found{file_, "", table.line, {}, {}};
        const TomlValue* specs = nullptr;
        std::vector<Collective> collectives;
        for (const auto& [key, value] : table.entries) {
            if (key == "algorithms") {
                specs = &value;
            } else if (key == "ways") { // its former name
                fail(value.line, "'ways' is called 'algorithms': algorithms = " + toml_text(value));
            } else if (key == "why") {
                found.reason = text_of(key, value);
            } else {
                found.conditions.push_back(condition(key, value));
                if (key == "collective")
                    for (const std::string& word : words_of(key, value))
                        collectives.push_back(collective_of(word));
                found.conditions.back().text = key + " = " + toml_text(value);
                into_.ask_for_devices_library_ = into_.ask_for_devices_library_ || is_devices_library(key);
            }
        }
        if (specs == nullptr) fail(table.line, "a rule without algorithms, such as algorithms = [\"ring\"]");
        for (const std::string& spec : words_of("algorithms", *specs))
            found.specs.push_back(algorithm_of(spec, *specs, collectives));
        into_.rules_.push_back(std::move(found));
    }

    AlgorithmSpec algorithm_of(const std::string& text, const TomlValue& value,
                               std::span<const Collective> collectives) const {
        try {
            return read_algorithm(text, collectives, names_);
        } catch (const CollectiveError& error) {
            fail(value.line, std::string("algorithms: ") + error.what());
        }
    }

    ChoiceRules::Condition condition(const std::string& key, const TomlValue& value) const {
        const auto words = [&](auto named) -> ChoiceRules::Condition {
            std::set<std::string> wanted;
            for (const std::string& word : words_of(key, value)) wanted.insert(word);
            return {key, [=](const CollectiveFacts& f) { return wanted.contains(std::string(named(f))); }};
        };
        const auto checked = [&](auto parse) {
            for (const std::string& word : words_of(key, value)) try {
                    parse(word);
                } catch (const std::exception& error) {
                    fail(value.line, key + ": " + error.what());
                }
        };
        const auto range = [&](auto number) -> ChoiceRules::Condition {
            const auto [least, most] = range_of(key, value);
            return {key, [=](const CollectiveFacts& f) {
                        const std::int64_t n = number(f);
                        return least <= n && n <= most;
                    }};
        };
        const auto fact = [&](auto is) -> ChoiceRules::Condition {
            const bool* wanted = std::get_if<bool>(&value.is);
            if (wanted == nullptr) fail(value.line, key + " is true or false");
            return {key, [=, want = *wanted](const CollectiveFacts& f) { return is(f) == want; }};
        };
        const auto flag = [&](auto member) {
            return fact([=](const CollectiveFacts& f) { return f.*member; });
        };
        using F = CollectiveFacts;
        if (key == "collective") {
            checked([](const std::string& word) { collective_of(word); });
            return words([](const F& f) { return name_of(f.collective); });
        }
        if (key == "type") {
            checked([](const std::string& word) { data_type_of(word); });
            return words([](const F& f) { return name_of(f.type); });
        }
        if (key == "operation") {
            checked([](const std::string& word) { operation_of(word); });
            return words([](const F& f) { return name_of(f.operation); });
        }
        if (key == "memory") {
            std::set<std::string> wanted;
            std::set<std::string, std::less<>> known = {"host", "device"};
            for (const std::string& kind : vendor_names()) known.insert(kind);
            for (const std::string& word : words_of(key, value)) {
                if (!known.contains(word))
                    fail(value.line, "memory: there is no memory '" + word + "'; there is " + listed(known));
                wanted.insert(word);
            }
            return {key, [=](const F& f) {
                        return wanted.contains(f.memory) || (f.on_devices() && wanted.contains("device"));
                    }};
        }
        if (key == "bytes") return range([](const F& f) { return f.bytes; });
        if (key == "total") return range([](const F& f) { return f.bytes * f.ranks; });
        if (key == "part") return range([](const F& f) { return f.bytes / f.ranks; });
        if (key == "elements") return range([](const F& f) { return f.elements; });
        if (key == "ranks") return range([](const F& f) { return f.ranks; });
        if (key == "hosts") return range([](const F& f) { return f.hosts; });
        if (key == "ranks_per_host") return range([](const F& f) { return f.ranks_per_host; });
        if (key == "in_place") return flag(&F::in_place);
        if (key == "reproducible") return flag(&F::reproducible);
        if (key == "even") return flag(&F::even);
        if (key == "persistent") return flag(&F::persistent);
        if (key == "mpi_program") return flag(&F::mpi_program);
        const auto power = [](int ranks) { return std::bit_floor(static_cast<unsigned>(ranks)); };
        if (key == "power_of_two")
            return fact([=](const F& f) { return power(f.ranks) == static_cast<unsigned>(f.ranks); });
        if (key == "few_elements")
            return fact([=](const F& f) { return f.elements < static_cast<std::int64_t>(power(f.ranks)); });
        if (is_devices_library(key) || is_mpi(key)) return version(key, value);
        fail(value.line,
             "no condition '" + key +
                 "'; there are collective, type, operation, memory, bytes, total, part, "
                 "elements, few_elements, ranks, "
                 "power_of_two, hosts, ranks_per_host, in_place, reproducible, even, persistent, mpi_program "
                 "and versions of "
                 "libraries (" +
                 libraries() + "), beside algorithms and why");
    }

    // Libraries of devices' vendors carry messages, and have collectives of their own.
    bool is_devices_library(const std::string& name) const {
        return names_.itself.contains(name) && names_.transports.contains(name);
    }
    static bool is_mpi(const std::string& name) {
        return std::ranges::find(mpi_libraries(), name) != mpi_libraries().end();
    }
    std::string libraries() const {
        std::set<std::string, std::less<>> names(mpi_libraries().begin(), mpi_libraries().end());
        for (const std::string& name : names_.itself)
            if (is_devices_library(name)) names.insert(name);
        return listed(names);
    }

    // "2.27..", "..2.29", "2.27..2.29" or "2.28"; an end means all versions that begin so.
    ChoiceRules::Condition version(const std::string& key, const TomlValue& value) const {
        const std::string wrong =
            key + " is a version or a range of them such as \"2.27..\", \"..2.29\" or \"2.28\"";
        const auto* text = std::get_if<std::string>(&value.is);
        if (text == nullptr) fail(value.line, wrong);
        const auto end = [&](std::string_view part) {
            while (part.starts_with(' ')) part.remove_prefix(1);
            while (part.ends_with(' ')) part.remove_suffix(1);
            const auto numbers = part.empty() ? std::vector<int>() : version_numbers(part);
            if (!numbers) fail(value.line, wrong + ", not \"" + *text + "\"");
            return *numbers;
        };
        const auto dots = text->find("..");
        const std::vector<int> least = end(std::string_view(*text).substr(0, dots));
        const std::vector<int> most =
            dots == std::string::npos ? least : end(std::string_view(*text).substr(dots + 2));
        if (least.empty() && most.empty()) fail(value.line, wrong + ", not \"" + *text + "\"");
        const auto begins = [](std::vector<int> numbers, const std::vector<int>& of) {
            numbers.resize(std::min(numbers.size(), of.size()));
            return numbers;
        };
        if (!most.empty() && begins(least, most) > most)
            fail(value.line, key + ": nothing is in \"" + *text + "\"");
        return {key, [=](const CollectiveFacts& f) {
                    const auto found = f.versions.find(key);
                    const auto here =
                        found != f.versions.end() ? version_numbers(found->second) : std::nullopt;
                    return here && least <= *here && (most.empty() || begins(*here, most) <= most);
                }};
    }

    std::string text_of(const std::string& key, const TomlValue& value) const {
        const auto* text = std::get_if<std::string>(&value.is);
        if (text == nullptr || text->empty()) fail(value.line, key + " is a text in quotes");
        return *text;
    }
    std::vector<std::string> words_of(const std::string& key, const TomlValue& value) const {
        const auto* list = std::get_if<std::vector<TomlValue>>(&value.is);
        if (list == nullptr) return {text_of(key, value)};
        if (list->empty()) fail(value.line, key + " is an empty list");
        std::vector<std::string> words;
        for (const TomlValue& one : *list) {
            words.push_back(text_of(key, one));
            if (std::ranges::count(words, words.back()) > 1)
                fail(one.line, key + ": '" + words.back() + "' twice");
        }
        return words;
    }

    // "64 KiB..", "..8", "2..4", or a number; ends included.
    Range range_of(const std::string& key, const TomlValue& value) const {
        const bool of_bytes = key == "bytes" || key == "total" || key == "part";
        constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();
        if (const auto* number = std::get_if<std::int64_t>(&value.is); number != nullptr && *number >= 0)
            return {*number, *number};
        const std::string wrong =
            key + " is a number or a range such as " +
            (of_bytes ? "\"64 KiB..\", \"..8\" or \"2..4\"" : "\"3..\", \"..8\" or \"2..4\"");
        const auto* text = std::get_if<std::string>(&value.is);
        if (text == nullptr) fail(value.line, wrong);
        if (!of_bytes && text->find('B') != std::string::npos) // units are of bytes
            fail(value.line, wrong + ", not \"" + *text + "\"");
        const auto dots = text->find("..");
        const auto first = number_of(text->substr(0, dots));
        if (dots == std::string::npos) {
            if (!first || *first < 0) fail(value.line, wrong + ", not \"" + *text + "\"");
            return {*first, *first};
        }
        const auto last = number_of(text->substr(dots + 2));
        if (!first || !last || (*first < 0 && *last < 0)) fail(value.line, wrong + ", not \"" + *text + "\"");
        const Range range{std::max<std::int64_t>(0, *first), *last < 0 ? endless : *last};
        if (range.first > range.second) fail(value.line, key + ": nothing is in \"" + *text + "\"");
        return range;
    }
    // -1: empty; none: not a number.
    static std::optional<std::int64_t> number_of(std::string text) {
        const auto blank = [](char c) { return c == ' '; };
        text.erase(text.begin(), std::ranges::find_if_not(text, blank));
        while (!text.empty() && text.back() == ' ') text.pop_back();
        if (text.empty()) return -1;
        std::int64_t number = 0;
        const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
        if (read.ec != std::errc() || number < 0) return std::nullopt;
        std::string_view unit(read.ptr, text.data() + text.size() - read.ptr);
        while (unit.starts_with(' ')) unit.remove_prefix(1);
        constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB"};
        if (unit.empty()) return number;
        for (int k = 0; k < 4; ++k)
            if (unit == units[k] && number < std::int64_t{1} << (62 - 10 * k)) return number << 10 * k;
        return std::nullopt;
    }

    ChoiceRules& into_;
    const std::string& file_;
    const AlgorithmNames& names_;
};

namespace {

// FNV-1a; detects accidental differences.
std::string digest_of(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    char words[17] = {};
    std::to_chars(words, words + 16, hash, 16);
    return words;
}

} // namespace

ChoiceRules::ChoiceRules(std::string_view text, const std::string& file, const AlgorithmNames& names)
    : names_(names), digest_(digest_of(text)) {
    RulesReader(*this, file, names).read(text);
}

void ChoiceRules::append(const ChoiceRules& others) {
    rules_.insert(rules_.end(), others.rules_.begin(), others.rules_.end());
    digest_ += "-" + others.digest_;
    ask_for_devices_library_ = ask_for_devices_library_ || others.ask_for_devices_library_;
}

void ChoiceRules::for_each_spec(
    const CollectiveFacts& facts,
    const std::function<bool(const Rule& rule, const AlgorithmSpec& spec)>& visit) const {
    for (const Rule& rule : rules_) {
        if (!std::ranges::all_of(rule.conditions, [&](const Condition& c) { return c.holds(facts); }))
            continue;
        for (const AlgorithmSpec& spec : rule.specs) {
            const auto here = spec_for(spec, facts.collective, facts.on_devices(), names_);
            if (here && visit(rule, *here)) return;
        }
    }
}

std::vector<MatchedRule> ChoiceRules::specs(const CollectiveFacts& facts) const {
    std::vector<MatchedRule> found;
    for_each_spec(facts, [&](const Rule& rule, const AlgorithmSpec& spec) {
        MatchedRule& one = found.emplace_back(spec, rule.file, rule.reason, rule.line);
        for (const Condition& condition : rule.conditions) one.conditions.push_back(condition.text);
        return false;
    });
    return found;
}

CollectiveChoice ChoiceRules::choose(const CollectiveFacts& facts, const WhyNot& why_not) const {
    std::vector<std::string> reasons; // each once
    std::string skipped;
    std::optional<CollectiveChoice> choice;
    for_each_spec(facts, [&](const Rule& rule, const AlgorithmSpec& spec) {
        const std::string reason = why_not(spec);
        if (reason.empty()) {
            choice = {spec, "line " + std::to_string(rule.line) + " of " + rule.file +
                                (rule.reason.empty() ? "" : ": " + rule.reason) + skipped};
        } else if (std::ranges::find(reasons, reason) == reasons.end()) {
            reasons.push_back(reason);
            skipped += "; not " + written(spec) + ": " + reason;
        }
        return choice.has_value();
    });
    if (choice) return *choice;
    std::string text = std::string(name_of(facts.collective)) + " of these arguments cannot be done in " +
                       facts.memory + " memory";
    for (const std::string& reason : reasons) text += (&reason == reasons.data() ? ": " : "; ") + reason;
    throw RulesError(text);
}

namespace {

AlgorithmNames& known_names() {
    static AlgorithmNames names;
    return names;
}

bool is_among(const std::vector<std::string>& names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
}

// Whether it names an algorithm of this collective there, with any carrier of messages.
bool is_algorithm(std::string_view text, Collective collective, bool on_devices) {
    const std::string_view name = text.substr(0, text.find(" by "));
    return is_among(names_of_algorithms(collective, on_devices), name) ||
           find_alias(name, collective) != nullptr;
}

// Also whether its transports are those there.
bool has_algorithm(std::string_view text, Collective collective, bool on_devices) {
    if (!is_algorithm(text, collective, on_devices)) return false;
    const auto at = text.find(" by ");
    if (at == text.npos) return true;
    const AlgorithmNames& names = algorithm_names();
    const std::string_view transport = text.substr(at + 4, text.find(" and ", at) - at - 4);
    return !(on_devices ? names.of_hosts : names.transports).contains(transport);
}

AlgorithmSpec checked_algorithm(std::string_view text, Collective collective, bool on_devices) {
    if (is_algorithm(text, collective, on_devices)) {
        const AlgorithmSpec spec = read_algorithm(text, std::span(&collective, 1), algorithm_names());
        const auto of_wrong = [&](const std::string& transport) {
            return !transport.empty() &&
                   !(on_devices ? algorithm_names().transports : algorithm_names().of_hosts)
                        .contains(transport);
        };
        for (const std::string& transport : {spec.transport, spec.between})
            if (of_wrong(transport))
                throw CollectiveError("algorithm '" + std::string(text) + "': '" + transport +
                                      "' carries no messages " +
                                      (on_devices ? "between devices; " + listed(algorithm_names().transports)
                                                  : "on hosts; " + listed(algorithm_names().of_hosts)) +
                                      " do");
        if (const auto here = spec_for(spec, collective, on_devices, algorithm_names())) return *here;
    }
    std::string all, others;
    for (const std::string& one : names_of_algorithms(collective, on_devices))
        all += (all.empty() ? "" : ", ") + one;
    for (const AlgorithmAlias& entry : algorithm_aliases())
        if (entry.collective == collective) others += (others.empty() ? "" : ", ") + std::string(entry.name);
    throw CollectiveError("there is no algorithm '" + std::string(text) + "' for " +
                          std::string(name_of(collective)) + (on_devices ? " on devices" : "") +
                          "; choose one of " + all + ", or of the compositions " + others);
}

// Of the setting: names for all collectives or for one, with commas between them.
std::optional<AlgorithmSpec> algorithm_by_setting(Collective collective, bool on_devices) {
    const std::string_view setting = settings().collective;
    for (std::size_t begin = 0; begin < setting.size();) {
        const std::size_t end = std::min(setting.find(',', begin), setting.size());
        std::string_view part = setting.substr(begin, end - begin);
        begin = end + 1;
        while (part.starts_with(' ')) part.remove_prefix(1);
        while (part.ends_with(' ')) part.remove_suffix(1);
        const std::size_t equals = part.rfind('=');
        const std::string_view name = equals == part.npos ? part : part.substr(equals + 1);
        const bool here = has_algorithm(name, collective, on_devices);
        if (equals == part.npos) {
            if (here) return checked_algorithm(name, collective, on_devices);
        } else if (part.substr(0, equals) == name_of(collective) &&
                   (here || !has_algorithm(name, collective, !on_devices))) {
            return checked_algorithm(name, collective, on_devices);
        }
    }
    return std::nullopt;
}

} // namespace

std::vector<std::string> names_of_algorithms(Collective collective, bool on_devices) {
    std::vector<std::string> names;
    for (const Algorithm& entry : algorithms())
        if (entry.has(collective) && (entry.on_devices || !on_devices)) names.emplace_back(entry.name);
    const auto& itself = on_devices ? algorithm_names().itself : algorithm_names().itself_on_hosts;
    names.insert(names.end(), itself.begin(), itself.end());
    return names;
}

CollectiveChoice requested_algorithm(const CollectiveCall& call, bool on_devices) {
    if (!call.algorithm.empty())
        return {checked_algorithm(call.algorithm, call.collective, on_devices), "asked for"};
    return {algorithm_by_setting(call.collective, on_devices).value_or(AlgorithmSpec()), "JALI_COLLECTIVE"};
}

CollectiveChoice choose_on_host(const CollectiveCall& call, std::span<const int> ranks_of_hosts,
                                const HostAlgorithms& have) {
    const CollectiveFacts facts = facts_of(call, ranks_of_hosts, have.versions, have.mpi_program);
    const auto why_no_transport = [&](const AlgorithmSpec& spec) -> std::string {
        std::string all;
        for (const std::string& name : have.transports) all += (all.empty() ? "" : ", ") + name;
        for (const std::string& transport : {spec.transport, spec.between})
            if (!transport.empty() && !have.transports.empty() && !is_among(have.transports, transport))
                return "'" + transport + "' carries no messages between these ranks; " + all +
                       (have.transports.size() > 1 ? " do" : " does");
        return "";
    };
    const auto why_not_itself = [&]() -> std::string {
        if (have.hands_over) return "";
        return have.why_not_mpi.empty() ? why_mpi_has_not(call, facts.ranks) : have.why_not_mpi;
    };
    if (CollectiveChoice asked = requested_algorithm(call, false); !asked.spec.name.empty()) {
        std::string why = asked.spec.name == by_mpi ? why_not_itself() : why_no_transport(asked.spec);
        if (why.empty() && asked.spec.one_host)
            why = why_not_between(asked.spec, call.collective, ranks_of_hosts);
        if (why.empty()) return asked;
        throw CollectiveError(std::string(name_of(call.collective)) + ", " + asked.why + " as '" +
                              written(asked.spec) + "': " + why);
    }
    return collective_rules()->choose(facts, [&](const AlgorithmSpec& spec) -> std::string {
        if (spec.name == by_mpi) return why_not_itself();
        if (find_algorithm(spec.name, call.collective, false) == nullptr)
            return "'" + spec.name + "' is for devices";
        for (const std::string& transport : {spec.transport, spec.between})
            if (algorithm_names().transports.contains(transport))
                return "'" + transport + "' carries messages between devices";
        if (const std::string why = why_not_between(spec, call.collective, ranks_of_hosts); !why.empty())
            return why;
        return why_no_transport(spec);
    });
}

void set_algorithm_names(AlgorithmNames names) {
    known_names() = std::move(names);
}
const AlgorithmNames& algorithm_names() {
    return known_names();
}

ChoiceRules read_rules(const std::string& file) {
    std::error_code unknown;
    if (!std::filesystem::is_regular_file(file, unknown)) // a pipe would be waited for
        throw RulesError("the rules of collectives, " + file + ", cannot be read: it is no file");
    std::ifstream stream(file, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    if (!stream) throw RulesError("the rules of collectives, " + file + ", cannot be read");
    return ChoiceRules(text, file, algorithm_names());
}

std::shared_ptr<const ChoiceRules> collective_rules() {
    static std::mutex mutex;
    static std::string file;
    static std::shared_ptr<const ChoiceRules> held;
    const std::lock_guard lock(mutex);
    const AlgorithmNames& names = algorithm_names();
    const std::string& wanted = settings().collective_rules;
    if (held != nullptr && file == wanted) return held;
    const ChoiceRules shipped(shipped_rules(), "jali's own rules", names);
    auto rules = std::make_shared<ChoiceRules>(shipped);
    if (!wanted.empty()) {
        *rules = read_rules(wanted);
        rules->append(shipped);
    }
    held = std::move(rules);
    file = wanted;
    return held;
}

} // namespace jali
