// The table of settings.
#include "settings/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <sys/stat.h>

namespace jali {

namespace {

using Names = std::vector<std::string>;

std::string listed(const Names& names) {
    std::string text;
    for (std::size_t k = 0; k < names.size(); ++k)
        text += (k == 0 ? "" : k + 1 == names.size() ? " or " : ", ") + names[k];
    return text;
}

bool is_in(const Names& names, const std::string& text) {
    return std::find(names.begin(), names.end(), text) != names.end();
}

Names words_of(const std::string& list) {
    Names words;
    for (std::size_t at = 0; at <= list.size();) {
        const auto comma = std::min(list.find(',', at), list.size());
        const std::string word = list.substr(at, comma - at);
        const auto first = word.find_first_not_of(' ');
        words.push_back(
            first == std::string::npos ? "" : word.substr(first, word.find_last_not_of(' ') - first + 1));
        at = comma + 1;
    }
    return words;
}

SettingValues anything(std::string words) {
    return {std::move(words), [](const std::string&) { return true; }};
}

SettingValues one_of(const Names& names) {
    return {listed(names), [names](const std::string& text) { return is_in(names, text); }};
}

SettingValues any_of(const Names& names) {
    return {"a list of " + listed(names), [names](const std::string& text) {
                const Names words = words_of(text);
                return std::all_of(words.begin(), words.end(),
                                   [&](const std::string& word) { return is_in(names, word); });
            }};
}

bool is_whole(const std::string& text) {
    return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
}

SettingValues whole(int least, int most) {
    return {"a whole number from " + std::to_string(least) + " to " + std::to_string(most),
            [least, most](const std::string& text) {
                return is_whole(text) && std::stoi(text) >= least && std::stoi(text) <= most;
            }};
}

// Thirty years: clocks count in nanoseconds, of which 64 bits hold ten times as many.
constexpr double most_seconds = 1e9;

SettingValues seconds(bool or_never) {
    return {std::string("a number of seconds above 0, at most 1e9") + (or_never ? ", or 0 for never" : ""),
            [or_never](const std::string& text) {
                double value = 0;
                const char* end = text.data() + text.size();
                const auto read = std::from_chars(text.data(), end, value);
                return read.ec == std::errc() && read.ptr == end && value <= most_seconds &&
                       (value > 0 || (or_never && value == 0));
            }};
}

// Whole numbers above 0, with commas between them.
SettingValues numbers(std::string words, std::size_t least, std::size_t most) {
    return {std::move(words), [least, most](const std::string& text) {
                const Names parts = words_of(text);
                return parts.size() >= least && parts.size() <= most &&
                       std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
                           return is_whole(part) && std::stoi(part) > 0;
                       });
            }};
}

SettingValues a_directory() {
    return {"a directory, or where one can be made", [](const std::string& text) {
                struct stat found{};
                return stat(text.c_str(), &found) != 0 || S_ISDIR(found.st_mode);
            }};
}

// The fault of a program with its arguments, as a shell reads them, or nothing.
std::string why_no_command(const std::string& text) {
    char quote = 0;
    bool word = false;
    for (std::size_t k = 0; k < text.size(); ++k) {
        const char c = text[k];
        if (c == '\\' && quote != '\'') {
            if (++k == text.size()) return "a \\ stands at its end";
            word = true;
        } else if (quote != 0) {
            if (c == quote) quote = 0;
        } else if (c == '\'' || c == '"') {
            quote = c;
            word = true;
        } else {
            word = word || (c != ' ' && c != '\t' && c != '\n' && c != '\r');
        }
    }
    if (quote != 0) return std::string("a ") + quote + " is opened and not closed";
    return word ? "" : "it names no program";
}

SettingValues a_command() {
    return {"a command, as a shell reads it",
            [](const std::string& text) { return why_no_command(text).empty(); }, why_no_command};
}

SettingValues on_or_off() {
    return one_of({"0", "1"});
}

SettingValues a_device(const Names& kinds) {
    std::string words = "cpu";
    for (const std::string& kind : kinds) words += ", " + kind;
    return {words + ", or one of several like cuda:1", [kinds](const std::string& text) {
                const auto colon = text.find(':');
                const std::string kind = text.substr(0, colon);
                if (colon == std::string::npos) return kind == "cpu" || is_in(kinds, kind);
                return is_in(kinds, kind) && is_whole(text.substr(colon + 1));
            }};
}

using AlgorithmCheck =
    std::function<std::string(const std::string& algorithm, const std::string& collective)>;

SettingValues algorithms(const Names& names, const AlgorithmCheck& why_not) {
    const Names collectives = {"broadcast",  "reduce",  "all_gather", "reduce_scatter",
                               "all_reduce", "scatter", "gather",     "all_to_all"};
    const auto why = [collectives, why_not](const std::string& text) -> std::string {
        for (const std::string& word : words_of(text)) {
            const auto equals = word.find('=');
            const std::string collective = equals == std::string::npos ? "" : word.substr(0, equals);
            if (equals != std::string::npos && !is_in(collectives, collective))
                return "there is no collective '" + collective + "'";
            const std::string wrong =
                why_not(word.substr(equals == std::string::npos ? 0 : equals + 1), collective);
            if (!wrong.empty()) return wrong;
        }
        return "";
    };
    return {"a list of " + listed(names) + ", each for all collectives or for one, like all_reduce=ring (" +
                listed(collectives) + ")",
            [why](const std::string& text) { return why(text).empty(); }, why};
}

std::vector<SettingSpec> table() {
    using S = Settings;
    std::vector<SettingSpec> specs;
    std::string group;
    const auto add = [&](auto member, const char* name, const char* variable, SettingValues values,
                         const char* otherwise, const char* meaning, const char* page = "") {
        specs.push_back({name, variable, group, member, std::move(values), otherwise, meaning, page});
    };
    const auto file = [&](std::string S::* member, const char* name, const char* variable,
                          const char* otherwise, const char* meaning, const char* page = "") {
        add(member, name, variable, anything("a file"), otherwise, meaning, page);
    };

    group = "Everywhere";
    add(&S::threads, "threads", "JALI_THREADS", whole(1, max_threads),
        "the cores of the process, shared among the ranks on it", "threads of each rank");
    add(&S::vector_bytes, "vector_bytes", "JALI_VECTOR_BYTES", one_of({"8", "16", "32", "64"}),
        "what the processor has",
        "width of vectors on the processor; wider ones than it has are computed in pieces, to the same bits");
    add(&S::cache_dir, "cache_dir", "JALI_CACHE_DIR", a_directory(), "`jali` in the user's cache directory",
        "where compiled kernels and what tuning found are kept. Yours alone, and not mounted `noexec`");
    add(&S::prefetch, "prefetch", "JALI_PREFETCH", one_of({"auto", "off", "leading", "all"}), "auto",
        "whether kernels of the processor ask ahead for what the next position reads", "tuning.md");
    add(&S::device, "device", "JALI_DEVICE", a_device({}), "cpu", "the device of lattices that name none",
        "gpus.md");
    add(&S::tune, "tune", "JALI_TUNE", one_of({"on", "now", "cached", "again", "off"}), "on",
        "when launches are measured", "tuning.md");
    add(&S::nvtx, "nvtx", "JALI_NVTX", on_or_off(), "0", "ranges for Nsight and its like", "profiling.md");

    group = "Ranks";
    add(&S::transport, "transport", "JALI_TRANSPORT", one_of({"mpi", "self", "thread"}),
        "`mpi` under a launcher, else one rank",
        "how ranks reach each other; `self` and `thread` make each process a group of one, whatever started "
        "it");
    add(&S::watchdog, "watchdog", "JALI_WATCHDOG", seconds(false), "600",
        "seconds without any movement after which a wait for other ranks is an error");
    add(&S::device_watchdog, "device_watchdog", "JALI_DEVICE_WATCHDOG", seconds(false), "60",
        "seconds after which it is an error that all ranks of a group wait for their devices and none of "
        "these moves",
        "device-diagnosis.md");
    add(&S::wait_warning, "wait_warning", "JALI_WAIT_WARNING", seconds(true), "10",
        "seconds without any movement after which a rank says on stderr, once, what it waits for");
    add(&S::shm, "shm", "JALI_SHM", one_of({"auto", "0", "1"}), "auto",
        "whether ranks of one host share memory; `1`: it is an error if they cannot", "shared-memory.md");
    add(&S::shm_copy, "shm_copy", "JALI_SHM_COPY", one_of({"auto", "cma", "slots"}), "auto",
        "how long messages through shared memory are copied: once by the kernel, or twice in pieces",
        "shared-memory.md");
    add(&S::halo_policy, "halo_policy", "JALI_HALO_POLICY", one_of({"auto", "auto-graph"}),
        "the first of the table",
        "how halos are exchanged; a policy of devices says nothing about lattices on the host, and the other "
        "algorithm "
        "round",
        "tuning.md");
    add(&S::collective, "collective", "JALI_COLLECTIVE", algorithms({}, {}), "by rules",
        "the algorithm of collectives", "collective-algorithms.md");
    add(&S::collective_rules, "collective_rules", "JALI_COLLECTIVE_RULES", anything("a file of rules"),
        "jali's own rules alone",
        "rules by which collectives choose their algorithms, before jali's own; the same on all ranks",
        "collective-algorithms.md");
    add(&S::checked, "checked", "JALI_CHECKED", on_or_off(), "0",
        "ranks compare what they call before anything moves: collectives, barriers, splits, launches that "
        "communicate, files; what a launch with halos, or a collective, gives to devices is proved before "
        "its "
        "first run",
        "collectives.md");
    add(&S::expected_ranks, "expected_ranks", "JALI_EXPECTED_RANKS", whole(1, 999999999), "nobody said",
        "how many ranks were started, so that groups of one by mistake are an error; set by `-n`");

    group = "MPI programs";
    add(&S::mpi_counters, "mpi_counters", "JALI_MPI_COUNTERS", on_or_off(), "0",
        "at the end rank 0 says how many calls of MPI there were, how much they moved, and who did them",
        "mpi-programs.md");
    add(&S::mpi_serve, "mpi_serve", "JALI_MPI_SERVE", one_of({"auto", "0"}), "auto",
        "whether plans do collectives of MPI programs where rules say so; `0`: the MPI library does all, and "
        "device memory is staged for it",
        "mpi-programs.md");
    add(&S::mpi_ask_from, "mpi_ask_from", "JALI_MPI_ASK_FROM", whole(0, 999999999), "4096",
        "bytes from which ranks of MPI programs ask each other whether all arguments of a collective are on "
        "devices",
        "mpi-programs.md");

    group = "GPUs";
    file(&S::cuda_driver, "cuda_driver", "JALI_CUDA_DRIVER", "the usual file", "NVIDIA's driver", "gpus.md");
    file(&S::nvrtc, "nvrtc", "JALI_NVRTC", "that of the driver's CUDA version", "NVIDIA's run-time compiler",
         "gpus.md");
    file(&S::hip_driver, "hip_driver", "JALI_HIP_DRIVER", "the usual file", "AMD's HIP runtime", "gpus.md");
    file(&S::hiprtc, "hiprtc", "JALI_HIPRTC", "the usual file", "AMD's run-time compiler", "gpus.md");
    file(&S::nccl, "nccl", "JALI_NCCL", "the installed one", "NVIDIA's library of collectives", "nccl.md");
    file(&S::rccl, "rccl", "JALI_RCCL", "the installed one", "AMD's library of collectives", "nccl.md");
    file(&S::nvtx_library, "nvtx_library", "JALI_NVTX_LIBRARY", "the usual file",
         "the library that takes ranges of NVTX, if no tool is attached", "profiling.md");
    file(&S::roctx_library, "roctx_library", "JALI_ROCTX_LIBRARY", "the usual file",
         "the library that takes ranges of roctx", "profiling.md");
    add(&S::gpu_aware_mpi, "gpu_aware_mpi", "JALI_GPU_AWARE_MPI", one_of({"auto", "0", "1"}), "auto",
        "whether the MPI library takes addresses of device memory; `auto`: it is asked", "gpu-halos.md");
    add(&S::peer_handles, "peer_handles", "JALI_PEER_HANDLES", one_of({"auto", "ipc", "virtual"}), "auto",
        "how processes map each other's device memory", "device-diagnosis.md");

    group = "Of other programs";
    add(&S::cxx, "cxx", "CXX", a_command(), "`c++`, `g++` or `clang++` on the `PATH`",
        "the C++ compiler of kernels");
    add(&S::xdg_cache_home, "xdg_cache_home", "XDG_CACHE_HOME", anything("a directory"), "`~/.cache`",
        "the user's cache directory");
    add(&S::home, "home", "HOME", anything("a directory"), "as the system has it", "the user's directory");
    file(&S::nvtx_injection64_path, "nvtx_injection64_path", "NVTX_INJECTION64_PATH", "no tool",
         "the tool that takes ranges of NVTX, as Nsight names it", "profiling.md");
    add(&S::mpich_gpu_support_enabled, "mpich_gpu_support_enabled", "MPICH_GPU_SUPPORT_ENABLED",
        anything("1: it does"), "it is asked", "whether Cray's MPI takes addresses of device memory",
        "gpu-halos.md");
    add(&S::mv2_use_cuda, "mv2_use_cuda", "MV2_USE_CUDA", anything("1: it does"), "it is asked",
        "whether MVAPICH takes addresses of CUDA's memory", "gpu-halos.md");
    add(&S::mv2_use_rocm, "mv2_use_rocm", "MV2_USE_ROCM", anything("1: it does"), "it is asked",
        "whether MVAPICH takes addresses of ROCm's memory", "gpu-halos.md");

    group = "Experiments";
    add(&S::launch, "launch", "",
        numbers("threads,blocks,sites,width, the last one or two left out if wanted", 2, 4),
        "the tuner's choice", "how kernels on GPUs are compiled and started", "tuning.md");
    add(&S::early_launch, "early_launch", "", on_or_off(), "1",
        "kernels are launched before those in front of them have ended (CUDA, since compute capability 9.0)",
        "tuning.md");
    add(&S::halo_off, "halo_off", "", any_of({"pack", "transport", "bulk", "boundary"}), "nothing",
        "parts of an exchange that are left out, so that the cost of the rest is seen; results are wrong "
        "then",
        "tuning.md");
    add(&S::device_tile, "device_tile", "", numbers("extents of at least 1, such as 8,4,4,2", 1, 16),
        "8,4,4,2", "tiles in which sites of lattices on GPUs are stored", "tuning.md");
    add(&S::device_tables, "device_tables", "", one_of({"codes", "entries"}),
        "`codes` where neighbours are small", "how tables of neighbours are kept on GPUs", "tuning.md");
    add(&S::device_queues, "device_queues", "", anything("sizes like channels=32,slot_bytes=65536"),
        "by ranks", "sizes of the queues of collectives between GPUs, the same on all ranks", "tuning.md");
    add(&S::device_transport, "device_transport", "", one_of({}),
        "`remote-write` where devices reach each other's memory",
        "who carries the messages of collectives between GPUs", "tuning.md");
    add(&S::message_transport, "message_transport", "", one_of({}), "by size",
        "the transport of messages between GPUs, the same on all ranks", "tuning.md");
    add(&S::prove_launches, "prove_launches", "", on_or_off(), "0",
        "what launches with halos, collectives and starts of messages give to devices is proved before their "
        "first run, as in checked mode, though ranks compare no calls",
        "tuning.md");
    return specs;
}

} // namespace

namespace {

std::vector<SettingSpec>& specs() {
    static std::vector<SettingSpec> all = table();
    return all;
}

} // namespace

void set_device_kinds(const std::vector<std::string>& kinds) {
    for (SettingSpec& spec : specs())
        if (spec.name == "device") spec.values = a_device(kinds);
}

void set_algorithms(const std::vector<std::string>& names, AlgorithmCheck why_not) {
    for (SettingSpec& spec : specs())
        if (spec.name == "collective") spec.values = algorithms(names, why_not);
}

void set_rules_check(std::function<std::string(const std::string& file)> why_not) {
    for (SettingSpec& spec : specs())
        if (spec.name == "collective_rules")
            spec.values = {"a file of rules",
                           [why_not](const std::string& file) { return why_not(file).empty(); }, why_not};
}

void set_names(const std::string& setting, const std::vector<std::string>& names) {
    for (SettingSpec& spec : specs())
        if (spec.name == setting) spec.values = one_of(names);
}

const std::vector<SettingSpec>& setting_specs() {
    return specs();
}

} // namespace jali
