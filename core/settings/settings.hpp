// What users choose by environment variables: read once, into one immutable object.
//
// Every variable is an entry of one table: what it may be, what it is otherwise, what it means. A process
// reads its environment when it starts (Python: `import jali`; C++: the first settings()), and all that is
// wrong is one error. Nothing else in jali reads the environment; docs/reference/environment.md is made from
// the entries. Tests, benchmarks and experiments put another object in the place of the current one.
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
    int expected_ranks = 0; // 0: nobody said
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

// What a text may be, in words ("0 or 1") and as a question.
struct SettingValues {
    std::string words;
    std::function<bool(const std::string&)> allow;
    // What is wrong with a text that is not allowed, where the words do not say it; may be empty.
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
    std::string page; // of the documentation that says more, below docs/; may be empty
};

// The table, in the order of the documentation.
const std::vector<SettingSpec>& setting_specs();

// What an entry is in `settings`, as text that the entry would take; empty: as jali chooses.
std::string text_of(const SettingSpec& spec, const Settings& settings);

// What the setting of this name is now, likewise. Throws SettingsError where there is none.
std::string text_of_setting(const std::string& name);

// Devices that can be named besides the processor ("cuda"): the vendors'. Said before the settings are read.
void set_device_kinds(const std::vector<std::string>& kinds);
// The algorithms of collectives, and what has collectives itself between devices, likewise. `why_not`: what
// is wrong with the algorithm of a collective (empty: of any) as people write it ("ring by nccl"); empty if
// nothing is.
void set_algorithms(
    const std::vector<std::string>& names,
    std::function<std::string(const std::string& algorithm, const std::string& collective)> why_not);
// What is wrong with a file of rules of collectives, likewise.
void set_rules_check(std::function<std::string(const std::string& file)> why_not);
// What a setting may be that names entries of another table, likewise.
void set_names(const std::string& setting, const std::vector<std::string>& names);

// One or more settings have values that they cannot have; the text has a line for each.
struct SettingsError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

struct ReadSettings {
    Settings settings;
    std::vector<std::string> notes; // about variables that begin like jali's and are not read (any more)
};

// From variables by name; what is empty is as if it were not there. Throws SettingsError.
ReadSettings read_settings(const std::map<std::string, std::string>& environment);

// `settings` with other values by name of member; an empty text is the default. Throws SettingsError, also
// for unknown names.
Settings changed_settings(Settings settings, const std::map<std::string, std::string>& changes);

// Reads the environment now and returns the notes, if nobody has yet; else nothing happens.
std::vector<std::string> start_settings();

// Puts another object in the place of the current one, for the whole process: a copy, or one that was current
// before, which all stay where they are, so that references stay valid.
void replace_settings(const Settings& settings);

namespace detail {
extern std::atomic<const Settings*> current_settings;
const Settings& first_settings();
// Says what settings may name, before they are read: device_transports/setting_choices.cpp.
void set_setting_choices();
} // namespace detail

// The current object. A C++ program that has not called start_settings reads the environment here, and notes
// go to stderr. Throws SettingsError then.
inline const Settings& settings() {
    const Settings* now = detail::current_settings.load(std::memory_order_acquire);
    return now != nullptr ? *now : detail::first_settings();
}

} // namespace jali
