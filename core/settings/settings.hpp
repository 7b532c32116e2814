// Settings from environment variables: read once, into one immutable object.
//
// Every variable is an entry of one table: its values, its default, its meaning. A process reads its
// environment when it starts (Python: `import jali`; C++: the first settings()), and one error reports all
// faults. Nothing else in jali reads the environment; docs/reference/environment.md is made from the entries.
// Tests, benchmarks and experiments replace the current object.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace jali {

constexpr int max_threads = 4096; // of a rank

struct Settings {
    // everywhere
    int threads = 0;      // 0: the cores of the process, shared among the ranks on it
    int vector_bytes = 0; // 0: as wide as the processor has them
    std::string cache_dir;
    std::string prefetch = "auto";
    std::string device = "cpu";
    std::string tune = "on";
    bool nvtx = false;
    // ranks
    std::string transport;       // empty: MPI under a launcher, else one rank
    double watchdog = 600;       // seconds
    double device_watchdog = 60; // seconds
    double wait_warning = 10;    // seconds; 0: never
    std::string shm = "auto";    // or "0", "1"
    std::string shm_copy = "auto";
    std::string halo_policy;      // empty: the first entry of the table of policies
    std::string collective;       // empty: by rules
    std::string collective_rules; // a file of rules before jali's own; empty: none
    bool checked = false;
    int expected_ranks = 0; // 0: not set
    bool mpi_counters = false;
    std::string mpi_serve = "auto"; // or "0"
    int mpi_ask_from = 4096;        // bytes
    // GPUs; empty: the usual files
    std::string cuda_driver, nvrtc, hip_driver, hiprtc, nccl, rccl, nvtx_library, roctx_library;
    std::string gpu_aware_mpi = "auto"; // or "0", "1"
    std::string peer_handles = "auto";
    // variables of other programs
    std::string cxx, xdg_cache_home, home, nvtx_injection64_path, mpich_gpu_support_enabled, mv2_use_cuda,
        mv2_use_rocm;
    // experiments, which no variable sets; empty: as jali chooses
    std::string launch;        // of kernels on GPUs: "threads,blocks,sites,width"
    bool early_launch = true;  // kernels on GPUs are launched before those in front of them have ended
    std::string halo_off;      // parts of an exchange that are left out: "bulk,boundary"
    std::string device_tile;   // in which sites of GPUs are stored: "8,4,4,2"
    std::string device_tables; // of neighbours on GPUs: "codes" or "entries"
    std::string device_queues;
    std::string device_transport;
    std::string message_transport;
    bool prove_launches = false; // before their first run, without comparing calls of ranks
};

// The allowed texts, in words ("0 or 1") and as a predicate.
struct SettingValues {
    std::string words;
    std::function<bool(const std::string&)> allow;
    // The fault of a text that is not allowed, if the words do not name it; may be empty.
    std::function<std::string(const std::string&)> why = nullptr;
};

struct SettingSpec {
    std::string name;     // of the member
    std::string variable; // in the environment; empty: an experiment
    std::string group;
    std::variant<int Settings::*, double Settings::*, bool Settings::*, std::string Settings::*> member;
    SettingValues values;
    std::string otherwise; // the default, in words
    std::string meaning;
    std::string page; // of the documentation, below docs/; may be empty
};

// The table, in the order of the documentation.
const std::vector<SettingSpec>& setting_specs();

// The value of an entry in `settings`, as text that the entry accepts; empty: jali chooses.
std::string text_of(const SettingSpec& spec, const Settings& settings);

// The current value of the setting of this name, likewise. Throws SettingsError where there is none.
std::string text_of_setting(const std::string& name);

// Devices that can be named besides the processor ("cuda"): the vendors'. To be called before the settings
// are read.
void set_device_kinds(const std::vector<std::string>& kinds);
// The algorithms of collectives, and libraries with collectives of their own between devices, likewise.
// `why_not`: the fault of the written algorithm ("ring by nccl") of a collective (empty: of any); empty if
// valid.
void set_algorithms(
    const std::vector<std::string>& names,
    std::function<std::string(const std::string& algorithm, const std::string& collective)> why_not);
// `why_not`: the faults of a file of rules of collectives, likewise.
void set_rules_check(std::function<std::string(const std::string& file)> why_not);
// The values of a setting that names entries of another table, likewise.
void set_names(const std::string& setting, const std::vector<std::string>& names);

// One or more settings have values that they cannot have; the text has a line for each.
struct SettingsError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

struct ReadSettings {
    Settings settings;
    std::vector<std::string> notes; // about variables that begin like jali's and are not read (any more)
};

// From variables by name; an empty variable counts as missing. Throws SettingsError.
ReadSettings read_settings(const std::map<std::string, std::string>& environment);

// `settings` with other values by name of member; an empty text is the default. Throws SettingsError, also
// for unknown names.
Settings changed_settings(Settings settings, const std::map<std::string, std::string>& changes);

// Reads the environment now and returns the notes, unless it was read already; then does nothing.
std::vector<std::string> start_settings();

// Puts another object in the place of the current one, for the whole process: a copy, or a former one; all
// keep their addresses, so that references stay valid.
void replace_settings(const Settings& settings);

namespace detail {
extern std::atomic<const Settings*> current_settings;
const Settings& first_settings();
// Registers the names for settings, before these are read: device_transports/setting_choices.cpp.
void set_setting_choices();
} // namespace detail

// The current object. A C++ program that has not called start_settings reads the environment here, and notes
// go to stderr. Throws SettingsError then.
inline const Settings& settings() {
    const Settings* now = detail::current_settings.load(std::memory_order_acquire);
    return now != nullptr ? *now : detail::first_settings();
}

} // namespace jali
