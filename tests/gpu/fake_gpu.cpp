// A GPU driver and its run-time compiler, made of host memory and the host's compiler: for tests where there
// is no GPU. It has the functions that jali calls, under CUDA's names and under HIP's.
//
// Streams are as lazy as they may be: what is put on one runs when somebody waits for it, not before, and
// only as much of other streams runs as events ask for. So a missing wait shows. (A device does go on while
// its host waits for something else: what has been left alone for a while runs, too.) Copies must stay inside
// one allocation. Kernels run as one thread. Numbers of devices: JALI_FAKE_GPUS (1); memory of each:
// JALI_FAKE_GPU_BYTES (1 GiB); of the largest
// allocation that other processes may map: JALI_FAKE_EXPORT_BYTES. With JALI_FAKE_COMPILER=idle kernels are
// compiled to nothing and do nothing, for tests that want the texts only.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using Address = std::uint64_t;
std::recursive_mutex big_lock;
#define GUARD std::lock_guard<std::recursive_mutex> guard(big_lock)

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atoi(text) : otherwise;
}

struct Stream;
struct Event {
    Stream* stream = nullptr; // where it was recorded last, and after how many of its operations
    std::uint64_t position = 0;
    bool timed = false;
    std::shared_ptr<double> time; // when the stream came to it
};
struct Stream {
    std::deque<std::function<void()>> waiting;
    std::uint64_t done = 0;
    bool lively = false;                       // a thread looks after it
    bool busy = false;                         // some thread is running an operation of this stream
    const int bell = eventfd(0, EFD_NONBLOCK); // somebody asks how far it is
    void ring() const {
        const std::uint64_t once = 1;
        if (write(bell, &once, sizeof once) < 0) return; // rung often enough
    }
    bool listen(int milliseconds) const {
        pollfd wait{bell, POLLIN, 0};
        std::uint64_t times;
        return poll(&wait, 1, milliseconds) > 0 && read(bell, &times, sizeof times) > 0;
    }
    std::uint64_t last() const { return done + waiting.size() + busy; }
    // Without the lock while an operation runs: it may wait for another device, and that one for our host.
    void run_to(std::uint64_t position) {
        std::unique_lock<std::recursive_mutex> lock(big_lock);
        while (done < position && (busy || !waiting.empty())) {
            if (busy) {
                lock.unlock();
                sched_yield();
                lock.lock();
                continue;
            }
            auto work = std::move(waiting.front());
            waiting.pop_front();
            busy = true;
            lock.unlock();
            work();
            lock.lock();
            busy = false;
            ++done;
        }
    }
};
struct Graph {
    std::vector<std::function<void()>> work;
};
struct Function {
    void (*entry)(void**);
    std::size_t bytes;
};

Stream default_stream;
std::vector<Stream*> streams{&default_stream};
thread_local Graph* capturing = nullptr; // ranks may be threads, and each records for itself
long timed_events = 0;                   // recorded so far
struct Block {
    std::size_t bytes;
    int file; // other processes map it through /proc
    int device;
};
thread_local int current = 0; // the device that this thread uses
std::map<Address, Block> blocks;
struct Mapped {
    std::size_t bytes;
    std::pair<dev_t, ino_t> file;
    int times; // opened and not closed
};
std::map<Address, Mapped> mapped; // memory of other processes
std::size_t in_use = 0;
int sticky = 0; // an error that every later call returns, as after a fault in a kernel

// Who asks in a loop would keep the lock from those who work.
void give_way() {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

Stream* stream_of(void* handle) {
    // 1 and 2 are the drivers' names for the default streams
    return reinterpret_cast<std::uintptr_t>(handle) > 2 ? static_cast<Stream*>(handle) : &default_stream;
}
// Runs what nobody waits for, late, or when somebody asks for it; each stream by itself, as on a device.
void go_on(Stream* stream) {
    for (;;) {
        const bool asked = stream->listen(20);
        std::uint64_t old;
        {
            GUARD;
            old = stream->last();
        }
        if (!asked) stream->listen(20);
        stream->run_to(old);
    }
}
void run_all() {
    std::vector<std::pair<Stream*, std::uint64_t>> all;
    {
        GUARD;
        for (Stream* stream : streams) all.push_back({stream, stream->last()});
    }
    for (auto [stream, position] : all) stream->run_to(position);
}

int put(void* handle, std::function<void()> work) {
    GUARD;
    if (!stream_of(handle)->lively) std::thread(go_on, stream_of(handle)).detach();
    stream_of(handle)->lively = true;
    if (sticky) return sticky;
    if (capturing) {
        capturing->work.push_back(std::move(work));
    } else {
        stream_of(handle)->waiting.push_back(std::move(work));
    }
    return 0;
}
// Whether bytes lie inside one allocation, of this process or of another, as everything must that a copy
// touches.
bool allocated(Address address, std::size_t bytes) {
    GUARD;
    auto ours = blocks.upper_bound(address);
    if (ours != blocks.begin() && (--ours, address + bytes <= ours->first + ours->second.bytes)) return true;
    auto theirs = mapped.upper_bound(address);
    return theirs != mapped.begin() && (--theirs, address + bytes <= theirs->first + theirs->second.bytes);
}
std::uint64_t position_of(void* handle) {
    GUARD;
    return stream_of(handle)->last();
}
std::size_t device_bytes() {
    const char* text = std::getenv("JALI_FAKE_GPU_BYTES");
    return text && *text ? std::strtoull(text, nullptr, 10) : std::size_t{1} << 30;
}

struct Program {
    std::string name, source, log, code;
};
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

BOTH(cuInit, hipInit, (unsigned flags), (flags)) {
    return flags == 0 ? number("JALI_FAKE_INIT_ERROR", 0) : 1;
}
API cuDriverGetVersion(int* version) {
    *version = number("JALI_FAKE_DRIVER_VERSION", 13000);
    return 0;
}
API hipDriverGetVersion(int* version) {
    *version = 60342131; // 6.3, patch 42131
    return 0;
}
BOTH(cuDeviceGetCount, hipGetDeviceCount, (int* count), (count)) {
    *count = number("JALI_FAKE_GPUS", 1);
    return 0;
}
BOTH(cuDeviceGet, hipDeviceGet, (int* device, int ordinal), (device, ordinal)) {
    *device = ordinal;
    return 0;
}
BOTH(cuDeviceGetName, hipDeviceGetName, (char* name, int length, int device), (name, length, device)) {
    std::snprintf(name, length, "imaginary GPU %d", device);
    return 0;
}
API cuDeviceGetAttribute(int* value, int which, int) {
    static const std::map<int, int> values{{10, 32}, {16, 4}, {38, 1 << 20}, {39, 2048},
                                           {75, 9},  {76, 0}, {13, 1000000}, {8, 49152},
                                           {50, 0},  {33, 1}, {34, 0}};
    if (!values.count(which)) return 1;
    *value = values.at(which);
    return 0;
}
API hipDeviceGetAttribute(int* value, int which, int) {
    static const std::map<int, int> values{{87, 64}, {63, 4}, {19, 1 << 20}, {57, 2048},
                                           {23, 9},  {61, 0}, {5, 1000000},  {74, 65536},
                                           {69, 0},  {67, 1}, {68, 0}};
    if (!values.count(which)) return 1;
    *value = values.at(which);
    return 0;
}
BOTH(cuDeviceTotalMem_v2, hipDeviceTotalMem, (std::size_t* bytes, int device), (bytes, device)) {
    (void)device;
    *bytes = device_bytes();
    return 0;
}
BOTH(cuDeviceGetUuid, hipDeviceGetUuid, (void* bytes, int device), (bytes, device)) {
    std::memset(bytes, 0, 16);
    static_cast<char*>(bytes)[0] = static_cast<char>(device + 1);
    return 0;
}
BOTH(cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain, (void** context, int device), (context, device)) {
    *context = reinterpret_cast<void*>(std::intptr_t{1000} + device);
    return 0;
}
BOTH(cuCtxSetCurrent, hipCtxSetCurrent, (void* context), (context)) {
    if (!context) return 201;
    current = static_cast<int>(reinterpret_cast<std::intptr_t>(context) - 1000);
    return 0;
}
BOTH(cuCtxSynchronize, hipDeviceSynchronize, (), ()) {
    run_all();
    return sticky;
}
BOTH(cuMemGetInfo_v2, hipMemGetInfo, (std::size_t* free, std::size_t* total), (free, total)) {
    GUARD;
    *total = device_bytes();
    *free = *total - in_use;
    return 0;
}
BOTH(cuMemAlloc_v2, hipMalloc, (Address * address, std::size_t bytes), (address, bytes)) {
    GUARD;
    if (in_use + bytes > device_bytes()) return 2;
    const int file = memfd_create("device memory", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return 2;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return 2;
    std::memset(memory, 0xcb, bytes); // nobody may count on zeros
    *address = reinterpret_cast<Address>(memory);
    blocks[*address] = {bytes, file, current};
    in_use += bytes;
    return 0;
}
BOTH(cuMemFree_v2, hipFree, (Address address), (address)) {
    run_all();
    GUARD;
    const auto found = blocks.find(address);
    if (found == blocks.end()) return 1;
    in_use -= found->second.bytes;
    munmap(reinterpret_cast<void*>(address), found->second.bytes);
    close(found->second.file);
    blocks.erase(found);
    return 0;
}
BOTH(cuMemHostAlloc, hipHostMalloc, (void** address, std::size_t bytes, unsigned flags),
     (address, bytes, flags)) {
    (void)flags;
    return posix_memalign(address, 4096, bytes) ? 2 : 0;
}
BOTH(cuMemFreeHost, hipHostFree, (void* address), (address)) {
    std::free(address);
    return 0;
}
BOTH(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync,
     (Address to, const void* from, std::size_t bytes, void* stream), (to, from, bytes, stream)) {
    if (!allocated(to, bytes)) return 1;
    return put(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}
BOTH(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void* to, Address from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    if (!allocated(from, bytes)) return 1;
    return put(stream, [=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
}
BOTH(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (Address to, Address from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    if (!allocated(to, bytes) || !allocated(from, bytes)) return 1;
    return put(stream,
               [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
}
BOTH(cuMemsetD8Async, hipMemsetD8Async, (Address to, unsigned char value, std::size_t bytes, void* stream),
     (to, value, bytes, stream)) {
    if (!allocated(to, bytes)) return 1;
    return put(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
}
BOTH(cuStreamCreateWithPriority, hipStreamCreateWithPriority, (void** stream, unsigned flags, int priority),
     (stream, flags, priority)) {
    GUARD;
    (void)flags;
    (void)priority;
    streams.push_back(new Stream);
    *stream = streams.back();
    return 0;
}
BOTH(cuStreamDestroy_v2, hipStreamDestroy, (void* stream), (stream)) {
    stream_of(stream)->run_to(position_of(stream)); // events may still name it, so it stays
    return 0;
}
BOTH(cuStreamSynchronize, hipStreamSynchronize, (void* stream), (stream)) {
    if (capturing) return 900;
    stream_of(stream)->run_to(position_of(stream));
    return sticky;
}
BOTH(cuStreamQuery, hipStreamQuery, (void* stream), (stream)) {
    {
        GUARD;
        Stream* s = stream_of(stream);
        if (sticky || (s->waiting.empty() && !s->busy)) return sticky;
        s->ring();
    }
    give_way();
    return 600;
}
BOTH(cuStreamWaitEvent, hipStreamWaitEvent, (void* stream, void* event, unsigned flags),
     (stream, event, flags)) {
    GUARD;
    (void)flags;
    const Event at = *static_cast<Event*>(event);
    if (!at.stream) return 0;
    return put(stream, [at] { at.stream->run_to(at.position); });
}
BOTH(cuCtxGetStreamPriorityRange, hipDeviceGetStreamPriorityRange, (int* least, int* greatest),
     (least, greatest)) {
    *least = 0;
    *greatest = -5;
    return 0;
}
BOTH(cuLaunchHostFunc, hipLaunchHostFunc, (void* stream, void (*function)(void*), void* argument),
     (stream, function, argument)) {
    return put(stream, [=] { function(argument); });
}
BOTH(cuEventCreate, hipEventCreateWithFlags, (void** event, unsigned flags), (event, flags)) {
    Event* made = new Event;
    made->timed = flags == 0;
    *event = made;
    return 0;
}
BOTH(cuEventDestroy_v2, hipEventDestroy, (void* event), (event)) {
    delete static_cast<Event*>(event);
    return 0;
}
BOTH(cuEventRecord, hipEventRecord, (void* event, void* stream), (event, stream)) {
    GUARD;
    if (capturing) return 0; // a recorded graph runs in the order it was made
    Event* e = static_cast<Event*>(event);
    e->stream = stream_of(stream);
    if (e->timed) {
        ++timed_events;
        const auto time = std::make_shared<double>(0);
        e->time = time;
        put(stream, [time] {
            *time =
                std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
        });
    }
    e->position = e->stream->last();
    return sticky;
}
extern "C" __attribute__((visibility("default"))) long fakeTimedEvents() {
    GUARD;
    return timed_events;
}
BOTH(cuEventQuery, hipEventQuery, (void* event), (event)) {
    {
        GUARD;
        Event* e = static_cast<Event*>(event);
        if (sticky || !e->stream || e->stream->done >= e->position) return sticky;
        e->stream->ring();
    }
    give_way();
    return 600;
}
BOTH(cuEventSynchronize, hipEventSynchronize, (void* event), (event)) {
    Event e;
    {
        GUARD;
        e = *static_cast<Event*>(event);
    }
    if (e.stream) e.stream->run_to(e.position);
    return sticky;
}
BOTH(cuEventElapsedTime, hipEventElapsedTime, (float* ms, void* from, void* to), (ms, from, to)) {
    GUARD;
    const auto &first = static_cast<Event*>(from)->time, &last = static_cast<Event*>(to)->time;
    if (!first || !last) return 400; // not made for times, or never recorded
    if (*first == 0 || *last == 0) return 600;
    *ms = float(1e3 * (*last - *first));
    return 0;
}
BOTH(cuModuleLoadData, hipModuleLoadData, (void** module, const void* image), (module, image)) {
    // an image of the compiler below: a word that says so, its length, then a shared object
    Image head;
    std::memcpy(&head, image, sizeof head);
    if (head.magic != image_magic) return 200;
    const std::uint64_t bytes = head.bytes;
    if (bytes == 0) { // of the idle compiler
        *module = nullptr;
        return 0;
    }
    const int file = memfd_create("kernel", 0);
    if (file < 0 || write(file, static_cast<const char*>(image) + sizeof head, bytes) != ssize_t(bytes))
        return 200;
    *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!*module) std::fprintf(stderr, "%s\n", dlerror());
    return *module ? 0 : 200; // the file stays open, so that no other gets its name
}
BOTH(cuModuleGetFunction, hipModuleGetFunction, (void** function, void* module, const char* name),
     (function, module, name)) {
    if (module == nullptr) {
        *function = new Function{[](void**) {}, 0};
        return 0;
    }
    void* entry = dlsym(module, name);
    const auto* bytes =
        static_cast<const unsigned long*>(dlsym(module, (std::string(name) + "_bytes").c_str()));
    if (!entry || !bytes) return 500;
    *function = new Function{reinterpret_cast<void (*)(void**)>(entry), *bytes};
    return 0;
}
BOTH(cuFuncGetAttribute, hipFuncGetAttribute, (int* value, int which, void* function),
     (value, which, function)) {
    (void)function;
    *value = which == 0 ? 1024 : which == 4 ? 32 : 0;
    return 0;
}
BOTH(cuOccupancyMaxActiveBlocksPerMultiprocessor, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
     (int* count, void* function, int threads, std::size_t shared), (count, function, threads, shared)) {
    (void)function;
    (void)shared;
    *count = 2048 / threads;
    return 0;
}
BOTH(cuLaunchKernel, hipModuleLaunchKernel,
     (void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
      unsigned shared, void* stream, void** parameters, void** extra),
     (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)) {
    (void)shared;
    (void)extra;
    if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || bx > 1024 || by != 1 || bz != 1) return 1;
    const Function* f = static_cast<Function*>(function);
    const auto* bytes = static_cast<const char*>(parameters[0]);
    std::vector<char> copy(bytes, bytes + f->bytes);
    return put(stream, [entry = f->entry, copy]() mutable {
        void* argument = copy.data();
        entry(&argument);
    });
}
BOTH(cuStreamBeginCapture_v2, hipStreamBeginCapture, (void* stream, int mode), (stream, mode)) {
    GUARD;
    (void)stream;
    (void)mode;
    if (capturing) return 901;
    capturing = new Graph;
    return 0;
}
BOTH(cuStreamIsCapturing, hipStreamIsCapturing, (void* stream, int* status), (stream, status)) {
    GUARD;
    (void)stream;
    *status = capturing != nullptr;
    return 0;
}
BOTH(cuStreamEndCapture, hipStreamEndCapture, (void* stream, void** graph), (stream, graph)) {
    GUARD;
    (void)stream;
    if (!capturing) return 401;
    *graph = capturing;
    capturing = nullptr;
    return 0;
}
BOTH(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags,
     (void** instance, void* graph, unsigned long long flags), (instance, graph, flags)) {
    (void)flags;
    *instance = new Graph(*static_cast<Graph*>(graph));
    return 0;
}
BOTH(cuGraphLaunch, hipGraphLaunch, (void* instance, void* stream), (instance, stream)) {
    for (const auto& work : static_cast<Graph*>(instance)->work)
        if (int error = put(stream, work)) return error;
    return 0;
}
BOTH(cuGraphExecDestroy, hipGraphExecDestroy, (void* instance), (instance)) {
    delete static_cast<Graph*>(instance);
    return 0;
}
BOTH(cuGraphDestroy, hipGraphDestroy, (void* graph), (graph)) {
    delete static_cast<Graph*>(graph);
    return 0;
}
BOTH(cuDeviceCanAccessPeer, hipDeviceCanAccessPeer, (int* can, int device, int peer), (can, device, peer)) {
    *can = device != peer && !number("JALI_FAKE_NO_PEERS", 0);
    return 0;
}
BOTH(cuCtxEnablePeerAccess, hipCtxEnablePeerAccess, (void* context, unsigned flags), (context, flags)) {
    (void)context;
    (void)flags;
    return 0;
}
struct Handle {
    char bytes[64];
};
BOTH(cuIpcGetMemHandle, hipIpcGetMemHandle, (Handle * handle, Address address), (handle, address)) {
    GUARD;
    const auto found = blocks.find(address);
    if (found == blocks.end() || number("JALI_FAKE_NO_PEERS", 0)) return 801;
    if (found->second.bytes > static_cast<std::size_t>(number("JALI_FAKE_EXPORT_BYTES", 1 << 30))) return 801;
    // as memory of the driver's own pools, which cannot be exported
    if (found->second.bytes == static_cast<std::size_t>(number("JALI_FAKE_NOT_EXPORTED", 0))) return 801;
    const long words[] = {getpid(), found->second.file, static_cast<long>(found->second.bytes)};
    std::memcpy(handle->bytes, words, sizeof words);
    return 0;
}
BOTH(cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle, (Address * address, Handle handle, unsigned flags),
     (address, handle, flags)) {
    GUARD;
    (void)flags;
    long words[3];
    std::memcpy(words, handle.bytes, sizeof words);
    if (words[0] == getpid()) return 201; // as the real one, which maps nothing twice
    const int file =
        open(("/proc/" + std::to_string(words[0]) + "/fd/" + std::to_string(words[1])).c_str(), O_RDWR);
    if (file < 0) return 801;
    struct stat status;
    fstat(file, &status);
    const std::pair<dev_t, ino_t> identity{status.st_dev, status.st_ino};
    for (auto& [known, mapping] : mapped) { // once more the same memory: as the real one, at the same place
        if (mapping.file != identity) continue;
        close(file);
        ++mapping.times;
        *address = known;
        return 0;
    }
    void* memory = mmap(nullptr, words[2], PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return 801;
    *address = reinterpret_cast<Address>(memory);
    mapped[*address] = {static_cast<std::size_t>(words[2]), identity, 1};
    return 0;
}
BOTH(cuIpcCloseMemHandle, hipIpcCloseMemHandle, (Address address), (address)) {
    GUARD;
    if (!mapped.count(address)) return 1;
    if (--mapped[address].times > 0) return 0;
    munmap(reinterpret_cast<void*>(address), mapped[address].bytes);
    mapped.erase(address);
    return 0;
}
BOTH(cuPointerGetAttribute, hipPointerGetAttribute, (void* value, int which, Address address),
     (value, which, address)) {
    if (!allocated(address, 1)) return 1;
    if (which == 2) *static_cast<unsigned*>(value) = 2;
    if (which == 11) { // where its allocation begins
        GUARD;
        auto ours = blocks.upper_bound(address);
        if (ours == blocks.begin()) return 1;
        *static_cast<Address*>(value) = (--ours)->first;
    }
    if (which == 9) {
        GUARD;
        auto ours = blocks.upper_bound(address);
        const bool inside = ours != blocks.begin() && (--ours, address < ours->first + ours->second.bytes);
        *static_cast<int*>(value) = inside ? ours->second.device : 0;
    }
    return 0;
}
BOTH(cuGetErrorName, hipDrvGetErrorName, (int error, const char** text), (error, text)) {
    static const std::map<int, const char*> names{{1, "INVALID_VALUE"}, {2, "OUT_OF_MEMORY"},
                                                  {100, "NO_DEVICE"},   {200, "INVALID_IMAGE"},
                                                  {500, "NOT_FOUND"},   {600, "NOT_READY"}};
    *text = names.count(error) ? names.at(error) : "SOME_ERROR";
    return 0;
}
BOTH(cuGetErrorString, hipDrvGetErrorString, (int error, const char** text), (error, text)) {
    (void)error;
    *text = "as the imaginary driver says";
    return 0;
}

// ---- the compiler --------------------------------------------------------------------------------------

BOTH(nvrtcVersion, hiprtcVersion, (int* major, int* minor), (major, minor)) {
    *major = 0;
    *minor = 1;
    return 0;
}
BOTH(nvrtcCreateProgram, hiprtcCreateProgram,
     (void** program, const char* source, const char* name, int headers, const char** texts,
      const char** names),
     (program, source, name, headers, texts, names)) {
    (void)headers;
    (void)texts;
    (void)names;
    *program = new Program{name, source, "", ""};
    return 0;
}
BOTH(nvrtcCompileProgram, hiprtcCompileProgram, (void* program, int count, const char** options),
     (program, count, options)) {
    (void)count;
    (void)options;
    auto* p = static_cast<Program*>(program);
    const char* compiler = std::getenv("JALI_FAKE_COMPILER");
    if (compiler && !std::strcmp(compiler, "idle")) {
        p->code = image_of("");
        return 0;
    }
    char folder[] = "/tmp/fake-gpu-XXXXXX";
    if (!mkdtemp(folder)) return 11;
    const std::string base = folder, source = base + "/" + p->name, object = base + "/kernel.so";
    std::ofstream(source) << "#define JALI_ONE_THREAD 1\n#line 1\n" << p->source;
    const char* cxx = std::getenv("CXX");
    const std::string command =
        std::string(cxx && *cxx ? cxx : "c++") +
        " -std=c++17 -O1 -march=native -ffp-contract=off -fno-math-errno -fPIC -shared -w -o " + object +
        " -x c++ " + source + " 2> " + base + "/log";
    const int status = std::system(command.c_str());
    auto read = [](const std::string& path) {
        std::stringstream text;
        text << std::ifstream(path, std::ios::binary).rdbuf();
        return text.str();
    };
    p->log = read(base + "/log");
    p->code = image_of(status == 0 ? read(object) : "");
    if (!std::getenv("JALI_FAKE_KEEP") && std::system(("rm -r " + base).c_str()) != 0) return 6;
    return status == 0 ? 0 : 6;
}
BOTH(nvrtcGetProgramLogSize, hiprtcGetProgramLogSize, (void* program, std::size_t* size), (program, size)) {
    *size = static_cast<Program*>(program)->log.size() + 1;
    return 0;
}
BOTH(nvrtcGetProgramLog, hiprtcGetProgramLog, (void* program, char* log), (program, log)) {
    std::strcpy(log, static_cast<Program*>(program)->log.c_str());
    return 0;
}
BOTH(nvrtcGetCUBINSize, hiprtcGetCodeSize, (void* program, std::size_t* size), (program, size)) {
    *size = static_cast<Program*>(program)->code.size();
    return 0;
}
BOTH(nvrtcGetCUBIN, hiprtcGetCode, (void* program, char* code), (program, code)) {
    const std::string& made = static_cast<Program*>(program)->code;
    std::memcpy(code, made.data(), made.size());
    return 0;
}
BOTH(nvrtcDestroyProgram, hiprtcDestroyProgram, (void** program), (program)) {
    delete static_cast<Program*>(*program);
    *program = nullptr;
    return 0;
}
