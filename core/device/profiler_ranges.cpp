#include "device/profiler_ranges.hpp"
#include "device/timeline.hpp"
#include "settings/settings.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>

#include <dlfcn.h>

namespace jali {

namespace {

using Push = int (*)(const char*);
using Pop = int (*)();

// A library that exports push and pop functions by these names.
struct RangeLibrary {
    const char* name;
    std::string Settings::* named; // another file than the usual ones
    std::vector<const char*> files;
    const char *push, *pop;
};

const std::vector<RangeLibrary>& libraries() {
    static const std::vector<RangeLibrary> table = {
        {"NVTX",
         &Settings::nvtx_library,
         {"libnvToolsExt.so.1", "libnvToolsExt.so"},
         "nvtxRangePushA",
         "nvtxRangePop"},
        {"roctx",
         &Settings::roctx_library,
         {"libroctx64.so.4", "libroctx64.so", "/opt/rocm/lib/libroctx64.so"},
         "roctxRangePushA",
         "roctxRangePop"},
    };
    return table;
}

struct Ranges {
    RangesFound found;
    Push push = nullptr;
    Pop pop = nullptr;
};

// ---- a tool that announces itself ----------------------------------------------------------------------
// NVTX 3 has no library. A tool's library has one entry, which is given a function that returns tables by
// number; table 1 leads to the places of the core functions, into which the tool writes its own.

constexpr unsigned callbacks_table = 1, version_table = 3, core_module = 1;
constexpr unsigned range_push = 9, range_pop = 11, core_functions = 16;
using AnyFunction = void (*)();
AnyFunction core_slots[core_functions];
AnyFunction* core_table[core_functions + 1]; // ends with a null

int module_table(std::uint32_t module, AnyFunction*** table, unsigned* size) {
    if (module != core_module) return 0;
    for (unsigned k = 1; k < core_functions; ++k) core_table[k] = &core_slots[k];
    if (size != nullptr) *size = core_functions;
    if (table != nullptr) *table = core_table;
    return 1;
}

struct CallbacksTable {
    std::size_t bytes = sizeof(CallbacksTable);
    int (*module_table)(std::uint32_t, AnyFunction***, unsigned*) = jali::module_table;
};

struct VersionTable {
    std::size_t bytes = sizeof(VersionTable);
    std::uint32_t version = 3, reserved = 0;
    void (*report_version)(std::uint32_t) = [](std::uint32_t) {};
};

const void* table_of(std::uint32_t number) {
    static const CallbacksTable callbacks;
    static const VersionTable version;
    if (number == callbacks_table) return &callbacks;
    return number == version_table ? static_cast<const void*>(&version) : nullptr;
}

void* open(const char* file, std::string& why) {
    void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* words = dlerror();
        why += (why.empty() ? "" : "; ") + std::string(words != nullptr ? words : file);
    }
    return handle;
}

bool ask_tool(const char* file, Ranges& ranges, std::string& why) {
    void* handle = open(file, why);
    if (handle == nullptr) return false;
    using Initialize = int (*)(const void* (*)(std::uint32_t));
    const auto initialize = reinterpret_cast<Initialize>(dlsym(handle, "InitializeInjectionNvtx2"));
    if (initialize == nullptr || initialize(table_of) == 0 || core_slots[range_push] == nullptr ||
        core_slots[range_pop] == nullptr) {
        why += (why.empty() ? "" : "; ") + std::string(file) + " (NVTX_INJECTION64_PATH) takes no ranges";
        return false;
    }
    ranges.push = reinterpret_cast<Push>(core_slots[range_push]);
    ranges.pop = reinterpret_cast<Pop>(core_slots[range_pop]);
    ranges.found = {"NVTX", file, ""};
    return true;
}

Ranges load_ranges() {
    Ranges ranges;
    std::string why;
    const std::string& tool = settings().nvtx_injection64_path;
    if (!tool.empty() && ask_tool(tool.c_str(), ranges, why)) return ranges;
    for (const RangeLibrary& library : libraries()) {
        const std::string& named = settings().*library.named;
        const std::vector<const char*> one{named.c_str()};
        for (const char* file : named.empty() ? library.files : one) {
            void* handle = open(file, why);
            if (handle == nullptr) continue;
            ranges.push = reinterpret_cast<Push>(dlsym(handle, library.push));
            ranges.pop = reinterpret_cast<Pop>(dlsym(handle, library.pop));
            if (ranges.push != nullptr && ranges.pop != nullptr) {
                ranges.found = {library.name, file, ""};
                return ranges;
            }
            why += (why.empty() ? "" : "; ") + std::string(file) + " lacks " + library.push + " or " +
                   library.pop;
        }
    }
    ranges.push = nullptr;
    ranges.found.why_not =
        "no profiler's tool is attached (NVTX_INJECTION64_PATH) and no library was found: " + why;
    return ranges;
}

const Ranges& ranges() {
    static const Ranges found = load_ranges();
    return found;
}

bool on = false;

} // namespace

const RangesFound& find_ranges() {
    return ranges().found;
}

void turn_ranges_on() {
    static std::once_flag once;
    std::call_once(once, [] {
        on = ranges().push != nullptr;
        if (on) {
            watchers.fetch_add(1);
        } else {
            std::fprintf(stderr, "jali: JALI_NVTX=1, but %s\n", find_ranges().why_not.c_str());
        }
    });
}

bool push_range(std::string_view name) {
    if (!on) return false;
    ranges().push(std::string(name).c_str());
    return true;
}

void pop_range() {
    ranges().pop();
}

} // namespace jali
