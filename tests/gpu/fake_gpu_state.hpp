// What the fake driver of fake_gpu.cpp remembers: events, memory, what is being captured.
// Part of fake_gpu.cpp and included nowhere else.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "fake_gpu_scheduler.hpp"

namespace {

using Address = std::uint64_t;

struct Event {
    Stream* stream = nullptr; // where it was recorded last, and after how many of its operations
    std::uint64_t position = 0;
    bool timed = false;
    bool captured = false;        // recorded last in a graph, of which nobody can be asked
    std::shared_ptr<double> time; // when the stream came to it
};

thread_local std::shared_ptr<Graph> capturing; // ranks may be threads, and each records for itself
long timed_events = 0;                         // recorded so far
struct Block {
    std::size_t bytes;
    int file; // other processes map it through /proc
    int device;
};
thread_local int current = 0;          // the device that this thread uses
thread_local bool has_current = false; // it has said which
Stream* default_stream() {             // of that device
    static auto& of_devices = *new std::map<int, Stream*>;
    GUARD;
    Stream*& stream = of_devices[current];
    if (stream == nullptr) stream = Scheduler::get().make_stream(current, 0);
    return stream;
}
std::map<int, std::mutex> loading; // held while a kernel is loaded on a device
std::map<Address, Block> blocks;
struct Mapped {
    std::size_t bytes;
    std::pair<dev_t, ino_t> file;
    int times; // opened and not closed
};
std::map<Address, Mapped> mapped; // memory of other processes

// Where devices have memory nothing else comes to lie, also when it is freed, and a page on either side is
// nobody's: a kernel that strays, or goes on in what was freed, changes nothing of the process. What is freed
// last is given again first, as by real drivers.
constexpr std::size_t page = 4096;
std::map<std::size_t, std::vector<char*>> left; // places that were freed, by size
void* take_range(std::size_t bytes) { // where nothing can be read or written yet; null if there is none
    bytes = (bytes + page - 1) / page * page;
    if (auto& ranges = left[bytes]; !ranges.empty()) {
        void* range = ranges.back();
        ranges.pop_back();
        return range;
    }
    void* range =
        mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? nullptr : static_cast<char*>(range) + page;
}
void clear_range(void* range, std::size_t bytes) {
    mmap(range, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
void leave_range(void* range, std::size_t bytes) {
    clear_range(range, bytes);
    left[(bytes + page - 1) / page * page].push_back(static_cast<char*>(range));
}
void* map_file(std::size_t bytes, int file) { // null if there is no place
    void* range = take_range(bytes);
    if (range == nullptr) return nullptr;
    void* memory = mmap(range, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}
// Memory with handles: it is there while somebody holds its handle or has it mapped.
struct Physical {
    std::size_t bytes;
    int file, device; // device -1: of another process, which has been charged for it
    std::size_t charged;
    ~Physical();
};
std::map<std::uint64_t, std::pair<std::shared_ptr<Physical>, int>> handles; // with the number of holders
std::uint64_t last_handle = 0;
std::map<Address, std::size_t> reserved;
struct Virtual {
    std::size_t bytes;
    std::shared_ptr<Physical> memory;
    std::uint64_t handle;
    std::uint64_t devices = 0; // that may use it, a bit each
};
std::map<Address, Virtual> virtuals;
constexpr std::size_t virtual_unit = std::size_t{2} << 20;
std::size_t in_use = 0;

Stream* stream_of(void* handle) {
    // 1 and 2 are the drivers' names for the default streams
    return reinterpret_cast<std::uintptr_t>(handle) > 2 ? static_cast<Stream*>(handle) : default_stream();
}
int put(void* handle, Operation operation) {
    GUARD;
    if (sticky) return sticky;
    if (capturing) {
        capturing->add(stream_of(handle), std::move(operation));
    } else {
        Scheduler::get().put(stream_of(handle), std::move(operation));
    }
    return 0;
}
// For functions in which real drivers wait for a device as they like. Whoever keeps Python's interpreter then
// may wait for ever: the device may wait for a rank that is a thread, which needs it.
void may_wait(const char* function) {
    static const auto held = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    if (held == nullptr || !held() || !number("JALI_FAKE_FREE_INTERPRETER", 0)) return;
    std::fprintf(stderr, "fake driver: %s with Python's interpreter held\n", function);
    std::abort();
}
// A stream holds so many operations (JALI_FAKE_QUEUE; 0: any number). Whoever puts one more waits until the
// first of them has been done, as with real drivers.
void wait_for_room(void* handle) {
    may_wait("work for a stream");
    const auto most = static_cast<std::uint64_t>(number("JALI_FAKE_QUEUE", 0));
    if (most == 0 || capturing) return;
    Stream* stream = stream_of(handle);
    std::uint64_t last = 0;
    {
        GUARD;
        last = stream->last();
    }
    if (last >= most) Scheduler::get().run_to(stream, last - most + 1);
}
// What is done at once.
std::function<bool()> whole(std::function<void()> work) {
    return [work = std::move(work)] {
        work();
        return true;
    };
}
// Of bytes that lie where both sides can be reached; where turns are chosen, perhaps in two pieces.
Operation copying(void* to, const void* from, std::size_t bytes) {
    auto *target = static_cast<char*>(to), *end = target + bytes;
    const auto* source = static_cast<const char*>(from);
    const bool apart = end <= source || source + bytes <= target;
    return {"a copy", [=, at = std::size_t{0}]() mutable {
                const std::size_t now =
                    at == 0 && apart && Scheduler::get().once_in(2) ? bytes / 2 : bytes - at;
                std::memmove(target + at, source + at, now);
                at += now;
                return at == bytes;
            }};
}
// What a test makes of calls of its thread (fakeChange): the kinds that are recorded as well, counted from
// when it said so.
struct Change {
    // hold_back: it is made behind the next one; refuse: it is an error
    enum Action { drop, hold_back, repeat, other_bytes, refuse } action;
    std::vector<char> bytes; // of a kernel's argument, or: to, from and size of a copy
};
thread_local std::map<long, Change> changes;
thread_local long counted_calls = 0;
thread_local bool uncounted = false; // what a library on top of the driver does for itself
thread_local std::function<int()> held_back;
int counted(const std::function<int(const std::vector<char>* other)>& call) {
    const auto found = changes.empty() || uncounted ? changes.end() : changes.find(counted_calls++);
    const auto before = std::exchange(held_back, nullptr);
    int error = 0;
    if (found == changes.end()) {
        error = call(nullptr);
    } else if (found->second.action == Change::refuse) {
        error = 1;
    } else if (found->second.action == Change::other_bytes) {
        error = call(&found->second.bytes);
    } else if (found->second.action == Change::repeat) {
        error = call(nullptr);
        if (error == 0) error = call(nullptr);
    } else if (found->second.action == Change::hold_back) {
        held_back = [call] { return call(nullptr); };
    }
    return error == 0 && before ? before() : error;
}
// A copy of bytes between these places, perhaps other ones.
int copy(void* stream, Address to, Address from, std::size_t bytes) {
    wait_for_room(stream);
    return counted([=](const std::vector<char>* other) {
        Address ranges[] = {to, from, bytes};
        if (other != nullptr) std::memcpy(ranges, other->data(), sizeof ranges);
        return put(stream, copying(reinterpret_cast<void*>(ranges[0]), reinterpret_cast<void*>(ranges[1]),
                                   ranges[2]));
    });
}
Physical::~Physical() {
    in_use -= charged;
    close(file);
}
std::map<Address, Virtual>::iterator virtual_at(Address address) {
    auto found = virtuals.upper_bound(address);
    if (found == virtuals.begin() || address >= (--found)->first + found->second.bytes) return virtuals.end();
    return found;
}
// Whether the current device may touch these bytes of memory with handles, which may be several mappings.
bool usable_virtual(Address address, std::size_t bytes) {
    for (Address at = address, end = address + std::max<std::size_t>(bytes, 1); at < end;) {
        const auto found = virtual_at(at);
        if (found == virtuals.end() || !(found->second.devices >> current & 1)) return false;
        at = found->first + found->second.bytes;
    }
    return true;
}
// Whether bytes lie inside one allocation, of this process or of another, as everything must that a copy
// touches.
bool allocated(Address address, std::size_t bytes) {
    GUARD;
    auto ours = blocks.upper_bound(address);
    if (ours != blocks.begin() && (--ours, address + bytes <= ours->first + ours->second.bytes)) return true;
    if (usable_virtual(address, bytes)) return true;
    auto theirs = mapped.upper_bound(address);
    return theirs != mapped.begin() && (--theirs, address + bytes <= theirs->first + theirs->second.bytes);
}
// The lock that loading kernels takes, of the device that this address belongs to.
std::mutex& loading_beside(Address address) {
    GUARD;
    auto block = blocks.upper_bound(address);
    const bool ours = block != blocks.begin() && (--block, address < block->first + block->second.bytes);
    return loading[ours ? block->second.device : current];
}
std::uint64_t position_of(void* handle) {
    GUARD;
    return stream_of(handle)->last();
}
std::size_t device_bytes() {
    const char* text = std::getenv("JALI_FAKE_GPU_BYTES");
    return text && *text ? std::strtoull(text, nullptr, 10) : std::size_t{1} << 30;
}

// What an image begins with.
struct Image {
    std::uint64_t magic, bytes;
};
constexpr std::uint64_t image_magic = 0x696c616a656b6166;
std::string image_of(const std::string& object) {
    const Image head{image_magic, object.size()};
    return std::string(reinterpret_cast<const char*>(&head), sizeof head) + object;
}

} // namespace

#define API extern "C" __attribute__((visibility("default"))) int
// The same function under both names.
#define BOTH(cuda, hip, parameters, arguments)                                                               \
    API hip parameters;                                                                                      \
    API cuda parameters {                                                                                    \
        return hip arguments;                                                                                \
    }                                                                                                        \
    API hip parameters
