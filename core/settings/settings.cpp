// The only place that reads the environment.
#include "settings/settings.hpp"

#include "settings/utf8.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>

#include <unistd.h>

namespace jali {

namespace {

// Variables that jali read in the past, and their replacements. An entry may be removed one release after it
// was added.
struct Removed {
    const char *variable, *instead;
};

constexpr Removed removed[] = {
    {"JALI_LAUNCH", "jali.tune.experiment(launch=...)"},
    {"JALI_EARLY_LAUNCH", "jali.tune.experiment(early_launch=...)"},
    {"JALI_HALO_OFF", "jali.tune.experiment(halo_off=...) or `jali bench halo`"},
    {"JALI_GPU_TILE", "jali.tune.experiment(device_tile=...)"},
    {"JALI_DEVICE_QUEUES", "jali.tune.experiment(device_queues=...)"},
    {"JALI_DEVICE_CARRIER", "jali.tune.experiment(device_transport=...)"},
    {"JALI_PEER_PUT", "transport=... at the sender, or jali.tune.experiment(message_transport=...)"},
};

// Variables by which tests and benchmarks control the programs that they start.
constexpr const char* of_tests[] = {"JALI_TEST_", "JALI_FAKE_", "JALI_SHADOW", "JALI_BENCHMARK_"};

bool begins_with(std::string_view text, std::string_view beginning) {
    return text.substr(0, beginning.size()) == beginning;
}

// Letters to insert, delete or replace to get from one name to the other.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row[b.size()];
}

std::string note_on(const std::string& variable) {
    for (const Removed& r : removed)
        if (variable == r.variable) return variable + " is not read any more; use " + r.instead;
    const std::string name = shown(variable);
    std::string nearest;
    for (const SettingSpec& spec : setting_specs())
        if (begins_with(spec.variable, "JALI_") &&
            (nearest.empty() || distance(variable, spec.variable) < distance(variable, nearest)))
            nearest = spec.variable;
    return name + " is no setting of jali; did you mean " + nearest + "?";
}

void set(Settings& settings, const SettingSpec& spec, const std::string& text) {
    std::visit(
        [&](auto member) {
            using Value = std::remove_reference_t<decltype(settings.*member)>;
            if (text.empty())
                settings.*member = Settings().*member;
            else if constexpr (std::is_same_v<Value, std::string>)
                settings.*member = text;
            else if constexpr (std::is_same_v<Value, double>)
                std::from_chars(text.data(), text.data() + text.size(), settings.*member);
            else
                settings.*member = static_cast<Value>(std::stoi(text));
        },
        spec.member);
}

void say(std::string& lines, const std::string& line) {
    if (!lines.empty()) lines += '\n';
    lines += line;
}

// Sets a setting, or adds a line about why not.
void set_or_say(Settings& settings, const SettingSpec& spec, const std::string& name, const std::string& text,
                std::string& wrong) {
    const auto refuse = [&](const std::string& words, const std::string& why) {
        say(wrong,
            name + "=" + shown(text) + " should be " + words + (why.empty() ? "" : ": " + shown(why, 800)));
    };
    if (text.empty())
        set(settings, spec, text);
    else if (first_of_no_text(text) != std::string::npos)
        refuse(spec.values.words + ", written in UTF-8", "");
    else if (spec.values.allow(text))
        set(settings, spec, text);
    else
        refuse(spec.values.words, spec.values.why ? spec.values.why(text) : "");
}

std::map<std::string, std::string> environment() {
    std::map<std::string, std::string> found;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const auto equals = text.find('=');
        if (equals != std::string_view::npos) found.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    return found;
}

std::mutex changing;

void publish(const Settings& settings) { // with `changing` held
    // Never destroyed: threads may outlive static objects.
    static auto& all = *new std::deque<Settings>;
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const Settings& s) { return &s == &settings; });
    const Settings& now = known != all.end() ? *known : all.emplace_back(settings);
    detail::current_settings.store(&now, std::memory_order_release);
}

} // namespace

std::string text_of(const SettingSpec& spec, const Settings& settings) {
    return std::visit(
        [&](auto member) -> std::string {
            using Value = std::remove_cvref_t<decltype(settings.*member)>;
            if constexpr (std::is_same_v<Value, std::string>) {
                return settings.*member;
            } else if constexpr (std::is_same_v<Value, double>) {
                char text[32];
                std::snprintf(text, sizeof text, "%.15g", settings.*member);
                return text;
            } else if constexpr (std::is_same_v<Value, bool>) {
                return settings.*member ? "1" : "0";
            } else {
                return settings.*member == 0 ? "" : std::to_string(settings.*member);
            }
        },
        spec.member);
}

std::string text_of_setting(const std::string& name) {
    for (const SettingSpec& spec : setting_specs())
        if (spec.name == name) return text_of(spec, settings());
    throw SettingsError("there is no setting " + name);
}

ReadSettings read_settings(const std::map<std::string, std::string>& environment) {
    ReadSettings read;
    std::string wrong;
    for (const SettingSpec& spec : setting_specs()) {
        const auto found = spec.variable.empty() ? environment.end() : environment.find(spec.variable);
        if (found != environment.end()) set_or_say(read.settings, spec, spec.variable, found->second, wrong);
    }
    if (!wrong.empty()) throw SettingsError(wrong);
    for (const auto& [variable, value] : environment) {
        const auto is_of_variable = [&](const SettingSpec& spec) { return spec.variable == variable; };
        const auto is_beginning = [&](const char* beginning) { return begins_with(variable, beginning); };
        if (begins_with(variable, "JALI_") &&
            std::none_of(std::begin(of_tests), std::end(of_tests), is_beginning) &&
            std::none_of(setting_specs().begin(), setting_specs().end(), is_of_variable))
            read.notes.push_back(note_on(variable));
    }
    return read;
}

Settings changed_settings(Settings settings, const std::map<std::string, std::string>& changes) {
    std::string wrong;
    for (const auto& [name, text] : changes) {
        const auto spec = std::find_if(setting_specs().begin(), setting_specs().end(),
                                       [&](const SettingSpec& r) { return r.name == name; });
        if (spec == setting_specs().end())
            say(wrong, "there is no setting " + name);
        else
            set_or_say(settings, *spec, name, text, wrong);
    }
    if (!wrong.empty()) throw SettingsError(wrong);
    return settings;
}

std::vector<std::string> start_settings() {
    std::lock_guard lock(changing);
    if (detail::current_settings.load(std::memory_order_acquire) != nullptr) return {};
    detail::set_setting_choices();
    ReadSettings read = read_settings(environment());
    publish(read.settings);
    return read.notes;
}

void replace_settings(const Settings& settings) {
    std::lock_guard lock(changing);
    publish(settings);
}

namespace detail {

std::atomic<const Settings*> current_settings{nullptr};

const Settings& first_settings() {
    for (const std::string& note : start_settings()) std::fprintf(stderr, "jali: %s\n", note.c_str());
    return *current_settings.load(std::memory_order_acquire);
}

} // namespace detail

} // namespace jali
