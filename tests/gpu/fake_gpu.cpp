// A GPU driver and its run-time compiler, made of host memory and the host's compiler: for tests where there
// is no GPU. It has the functions that jali calls, under CUDA's names and under HIP's.
//
// Streams are as lazy as they may be: what is put on one runs when somebody waits for it, not before, and
// only as much of other streams runs as events ask for. So a missing wait shows. (A device does go on while
// its host waits for something else: what has been left alone for a while runs, too.) With JALI_FAKE_SEED=n
// the order of all that is not ordered is chosen as nobody would. A kernel has the blocks that were asked
// for, each of one thread. Copies must stay inside one allocation. Who loads a kernel or makes a graph ready
// waits until its device is idle, and no copy into the device's memory can be put on any stream meanwhile,
// which is what real drivers do. Numbers of devices: JALI_FAKE_GPUS (1); multiprocessors of each:
// JALI_FAKE_MULTIPROCESSORS (4), for JALI_FAKE_THREADS (2048) each, with JALI_FAKE_ONE_DEVICE=1 of all
// together; memory: JALI_FAKE_GPU_BYTES (1 GiB); of the largest allocation that other processes may map:
// JALI_FAKE_EXPORT_BYTES. With JALI_FAKE_NO_IPC=1 the driver exports no IPC handles, with
// JALI_FAKE_NO_IPC_OPEN=1 it opens none; JALI_FAKE_NO_VIRTUAL=1 and JALI_FAKE_NO_VIRTUAL_IMPORT=1 say the
// same of memory with handles. With JALI_FAKE_QUEUE=n a stream that holds n operations is full, and who puts
// one more on it waits. With JALI_FAKE_COMPILER=idle kernels are compiled to nothing and do nothing, for
// tests that want the texts only. With JALI_FAKE_ISLANDS=n the devices of a process reach those of their own
// n neighbours only, as on hosts of n devices. With JALI_FAKE_FREE_INTERPRETER=1 a program ends that calls
// what may wait with Python's interpreter held.
//
// Here are the driver's functions; what it remembers is in fake_gpu_state.hpp, what runs in
// fake_gpu_scheduler.hpp, memory with handles in fake_gpu_virtual.hpp, the compiler in
// fake_gpu_compiler.hpp. One file is compiled, this one.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_gpu_compiler.hpp"
#include "fake_gpu_state.hpp"
#include "fake_gpu_virtual.hpp"

BOTH(cuInit, hipInit, (unsigned flags), (flags)) {
    return flags == 0 ? number("JALI_FAKE_INIT_ERROR", 0) : 1;
}
API cuDriverGetVersion(int* version) {
    *version = number("JALI_FAKE_DRIVER_VERSION", 13000);
    return 0;
}
API hipDriverGetVersion(int* version) {
    *version = number("JALI_FAKE_HIP_VERSION", 60342131); // 6.3, patch 42131
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
    std::snprintf(name, length, "fake GPU %d", device);
    return 0;
}
API cuDeviceGetAttribute(int* value, int which, int) {
    const std::map<int, int> values{{10, 32},      {16, number("JALI_FAKE_MULTIPROCESSORS", 4)},
                                    {38, 1 << 20}, {39, 2048},
                                    {75, 9},       {76, 0},
                                    {13, 1000000}, {8, 49152},
                                    {50, 0},       {33, 1},
                                    {34, 0}};
    if (!values.count(which)) return 1;
    *value = values.at(which);
    return 0;
}
API hipDeviceGetAttribute(int* value, int which, int) {
    const std::map<int, int> values{{87, 64},      {63, number("JALI_FAKE_MULTIPROCESSORS", 4)},
                                    {19, 1 << 20}, {57, 2048},
                                    {23, 9},       {61, 0},
                                    {5, 1000000},  {74, 65536},
                                    {69, 0},       {67, 1},
                                    {68, 0}};
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
    may_wait("cuDevicePrimaryCtxRetain");
    *context = reinterpret_cast<void*>(std::intptr_t{1000} + device);
    return 0;
}
BOTH(cuCtxSetCurrent, hipCtxSetCurrent, (void* context), (context)) {
    has_current = context != nullptr;
    if (has_current) current = static_cast<int>(reinterpret_cast<std::intptr_t>(context) - 1000);
    return 0;
}
BOTH(cuCtxGetCurrent, hipCtxGetCurrent, (void** context), (context)) {
    *context = has_current ? reinterpret_cast<void*>(std::intptr_t{1000} + current) : nullptr;
    return 0;
}
BOTH(cuCtxSynchronize, hipDeviceSynchronize, (), ()) {
    may_wait("cuCtxSynchronize");
    Scheduler::get().run_all(current);
    return sticky;
}
BOTH(cuMemGetInfo_v2, hipMemGetInfo, (std::size_t* free, std::size_t* total), (free, total)) {
    GUARD;
    *total = device_bytes();
    *free = *total - in_use;
    return 0;
}
BOTH(cuMemAlloc_v2, hipMalloc, (Address * address, std::size_t bytes), (address, bytes)) {
    may_wait("cuMemAlloc_v2");
    if (!has_current) return 201;
    GUARD;
    if (in_use + bytes > device_bytes()) return 2;
    const int file = memfd_create("device memory", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return 2;
    void* memory = map_file(bytes, file);
    if (memory == nullptr) return 2;
    // Nobody may count on zeros. In what is larger than anything that tests compute with, such as queues of
    // collectives, they stand in every 64 KiB: to fill it all took longer than all else that tests do.
    const std::size_t step = bytes > std::size_t{16} << 20 ? 16 * page : page;
    for (std::size_t at = 0; at < bytes; at += step)
        std::memset(static_cast<char*>(memory) + at, 0xcb, std::min(page, bytes - at));
    *address = reinterpret_cast<Address>(memory);
    blocks[*address] = {bytes, file, current};
    in_use += bytes;
    return 0;
}
// HIP's alone: memory that kernels see others write while they run. JALI_FAKE_NO_FINE=1: there is none.
API hipExtMallocWithFlags(Address* address, std::size_t bytes, unsigned flags) {
    return flags != 1 || number("JALI_FAKE_NO_FINE", 0) ? 801 : hipMalloc(address, bytes);
}
BOTH(cuMemFree_v2, hipFree, (Address address), (address)) {
    may_wait("cuMemFree_v2");
    Scheduler::get().run_all(
        current); // not what other devices do: their work may wait for what this thread does next
    GUARD;
    const auto found = blocks.find(address);
    if (found == blocks.end()) return 1;
    in_use -= found->second.bytes;
    leave_range(reinterpret_cast<void*>(address), found->second.bytes);
    close(found->second.file);
    blocks.erase(found);
    return 0;
}
BOTH(cuMemHostAlloc, hipHostMalloc, (void** address, std::size_t bytes, unsigned flags),
     (address, bytes, flags)) {
    may_wait("cuMemHostAlloc");
    if (!has_current) return 201;
    (void)flags;
    return posix_memalign(address, 4096, bytes) ? 2 : 0;
}
BOTH(cuMemFreeHost, hipHostFree, (void* address), (address)) {
    may_wait("cuMemFreeHost");
    std::free(address);
    return 0;
}
namespace {
// What is wrong where the stream is not one of the thread's device: stricter than drivers are, some of which
// take the stream's, so that whoever calls them says which device is meant.
int elsewhere(void* stream) {
    return !has_current ? 201 : stream_of(stream)->device != current ? 400 : 0;
}
} // namespace
BOTH(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync,
     (Address to, const void* from, std::size_t bytes, void* stream), (to, from, bytes, stream)) {
    if (const int error = elsewhere(stream)) return error;
    if (!allocated(to, bytes)) return 1;
    return copy(stream, to, reinterpret_cast<Address>(from), bytes);
}
BOTH(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void* to, Address from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    if (const int error = elsewhere(stream)) return error;
    if (!allocated(from, bytes)) return 1;
    return copy(stream, reinterpret_cast<Address>(to), from, bytes);
}
BOTH(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (Address to, Address from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    if (const int error = elsewhere(stream)) return error;
    if (!allocated(to, bytes) || !allocated(from, bytes)) return 1;
    wait_for_room(stream);
    std::lock_guard lock(loading_beside(to));
    return copy(stream, to, from, bytes);
}
namespace {
// Zeros in much memory: its pages are given back to the system, and read as zeros.
void fill(Address to, unsigned char value, std::size_t bytes) {
    const std::size_t page = 4096, much = std::size_t{1} << 20;
    auto* const begin = reinterpret_cast<char*>(to);
    auto* const first = reinterpret_cast<char*>((to + page - 1) / page * page);
    const std::size_t pages =
        bytes < page ? 0 : (to + bytes) / page * page - reinterpret_cast<Address>(first);
    if (value != 0 || bytes < much || madvise(first, pages, MADV_REMOVE) != 0) {
        std::memset(begin, value, bytes);
        return;
    }
    std::memset(begin, 0, static_cast<std::size_t>(first - begin));
    std::memset(first + pages, 0, static_cast<std::size_t>(begin + bytes - first) - pages);
}
} // namespace
BOTH(cuMemsetD8Async, hipMemsetD8Async, (Address to, unsigned char value, std::size_t bytes, void* stream),
     (to, value, bytes, stream)) {
    if (const int error = elsewhere(stream)) return error;
    if (!allocated(to, bytes)) return 1;
    wait_for_room(stream);
    return counted([=](const std::vector<char>*) {
        return put(stream, {"a fill", whole([=] { fill(to, value, bytes); })});
    });
}
BOTH(cuStreamCreateWithPriority, hipStreamCreateWithPriority, (void** stream, unsigned flags, int priority),
     (stream, flags, priority)) {
    may_wait("cuStreamCreateWithPriority");
    if (!has_current) return 201;
    (void)flags;
    *stream = Scheduler::get().make_stream(current, priority);
    return 0;
}
BOTH(cuStreamSynchronize, hipStreamSynchronize, (void* stream), (stream)) {
    may_wait("cuStreamSynchronize");
    if (capturing) return 900;
    Scheduler::get().run_to(stream_of(stream), position_of(stream));
    return sticky;
}
BOTH(cuStreamQuery, hipStreamQuery, (void* stream), (stream)) {
    return Scheduler::get().is_at(stream_of(stream), position_of(stream)) ? sticky : 600;
}
namespace {
int let_wait(void* stream, void* event) {
    GUARD;
    if (capturing && capturing->events.count(event)) {
        auto& after = capturing->streams[stream_of(stream)];
        const auto& more = capturing->events[event];
        after.insert(after.end(), more.begin(), more.end());
        return 0;
    }
    const Event at = *static_cast<Event*>(event);
    if (!at.stream) return 0;
    return put(stream, {.name = "a wait for an event", .other = at.stream, .position = at.position});
}
int record(Event* event, void* stream) {
    GUARD;
    event->captured = capturing != nullptr;
    if (capturing) {
        capturing->events[event] = capturing->streams[stream_of(stream)];
        return 0;
    }
    event->stream = stream_of(stream);
    if (event->timed) {
        ++timed_events;
        const auto time = std::make_shared<double>(0);
        event->time = time;
        const auto look = [time] {
            *time = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
        };
        put(stream, {"a look at the clock", whole(look)});
    }
    event->position = event->stream->last();
    return sticky;
}
} // namespace
BOTH(cuStreamWaitEvent, hipStreamWaitEvent, (void* stream, void* event, unsigned flags),
     (stream, event, flags)) {
    (void)flags;
    wait_for_room(stream);
    return counted([=](const std::vector<char>*) { return let_wait(stream, event); });
}
BOTH(cuCtxGetStreamPriorityRange, hipDeviceGetStreamPriorityRange, (int* least, int* greatest),
     (least, greatest)) {
    *least = 0;
    *greatest = -5;
    return 0;
}
BOTH(cuLaunchHostFunc, hipLaunchHostFunc, (void* stream, void (*function)(void*), void* argument),
     (stream, function, argument)) {
    wait_for_room(stream);
    return put(stream, {"a function of the host's", whole([=] { function(argument); }), true});
}
BOTH(cuEventCreate, hipEventCreateWithFlags, (void** event, unsigned flags), (event, flags)) {
    if (!has_current) return 201;
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
    if (const int error = elsewhere(stream)) return error;
    wait_for_room(stream);
    return counted([=](const std::vector<char>*) { return record(static_cast<Event*>(event), stream); });
}
// From now on calls of this thread are counted: launches, copies, fills, events recorded and waited for.
// Number `call` of them becomes something else (Change); a negative one takes back all that was said before,
// as does counting anew.
extern "C" __attribute__((visibility("default"))) void fakeChange(long call, int action, const char* bytes,
                                                                  long size) {
    if (call < 0) {
        changes.clear();
        counted_calls = 0;
        held_back = nullptr;
        return;
    }
    changes[call] = {static_cast<Change::Action>(action), {bytes, bytes + size}};
}
// For a library on top of the driver: its own calls are not counted; one of its caller's, which is made with
// other bytes or none (null); and work on a stream that is asked now and then whether it has ended.
extern "C" __attribute__((visibility("default"))) void fakeUncounted(int on) {
    uncounted = on != 0;
}
extern "C" __attribute__((visibility("default"))) int fakeCounted(int (*call)(void* it, const char* bytes),
                                                                  void* it) {
    return counted(
        [=](const std::vector<char>* other) { return call(it, other != nullptr ? other->data() : nullptr); });
}
extern "C" __attribute__((visibility("default"))) int fakePolled(void* stream, const char* name,
                                                                 int (*work)(void*), void* it) {
    wait_for_room(stream);
    Operation operation{name, [=] { return work(it) != 0; }};
    operation.polled = true;
    return put(stream, std::move(operation));
}
// Whether a kernel has met a fault, or nothing moved: every call is an error since.
extern "C" __attribute__((visibility("default"))) int fakeIsLost() {
    GUARD;
    return sticky;
}
// Devices are as new after that.
extern "C" __attribute__((visibility("default"))) void fakeRecover() {
    Scheduler::get().recover();
}
extern "C" __attribute__((visibility("default"))) long fakeTimedEvents() {
    GUARD;
    return timed_events;
}
BOTH(cuEventQuery, hipEventQuery, (void* event), (event)) {
    Event e;
    {
        GUARD;
        e = *static_cast<Event*>(event);
    }
    if (e.captured) return 907;
    return !e.stream || Scheduler::get().is_at(e.stream, e.position) ? sticky : 600;
}
BOTH(cuEventSynchronize, hipEventSynchronize, (void* event), (event)) {
    may_wait("cuEventSynchronize");
    Event e;
    {
        GUARD;
        e = *static_cast<Event*>(event);
    }
    if (e.captured) return 907;
    if (e.stream) Scheduler::get().run_to(e.stream, e.position);
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
    may_wait("cuModuleLoadData");
    if (!has_current) return 201;
    std::mutex* one = nullptr;
    {
        GUARD;
        one = &loading[current];
    }
    std::lock_guard lock(*one);
    if (!capturing) Scheduler::get().run_all(current);
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
    if (!*module) return 200; // the file stays open, so that no other gets its name
    *static_cast<BlockHere**>(dlsym(*module, "jali_here")) = Scheduler::get().here();
    return 0;
}
BOTH(cuModuleGetFunction, hipModuleGetFunction, (void** function, void* module, const char* name),
     (function, module, name)) {
    if (module == nullptr) {
        *function = new Function{name, [](void**) {}, 0};
        return 0;
    }
    void* entry = dlsym(module, name);
    const auto* bytes =
        static_cast<const unsigned long*>(dlsym(module, (std::string(name) + "_bytes").c_str()));
    if (!entry || !bytes) return 500;
    *function = new Function{name, reinterpret_cast<void (*)(void**)>(entry), *bytes};
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
    if (!has_current) return 201;
    *count = number("JALI_FAKE_THREADS", 2048) / threads;
    return 0;
}
namespace {
int launch(void* function, const unsigned* g, const unsigned* b, void* stream, void** parameters,
           int stream_priority, bool early) {
    if (const int error = elsewhere(stream)) return error;
    if (g[0] == 0 || g[1] != 1 || g[2] != 1 || b[0] == 0 || b[0] > 1024 || b[1] != 1 || b[2] != 1) return 1;
    const auto* f = static_cast<const Function*>(function);
    const auto* bytes = static_cast<const char*>(parameters[0]);
    // any number of blocks does the work; so many make a difference
    const auto grid = std::min(g[0], static_cast<unsigned>(number("JALI_FAKE_BLOCKS", 256)));
    wait_for_room(stream);
    KernelCall kernel{f, grid, b[0], {bytes, bytes + f->bytes}, stream_priority, early};
    return counted([=](const std::vector<char>* other) mutable {
        if (other != nullptr) kernel.arguments = *other;
        return put(stream,
                   {.name = "'" + f->name + "'", .kernel = std::make_shared<const KernelCall>(kernel)});
    });
}
} // namespace
BOTH(cuLaunchKernel, hipModuleLaunchKernel,
     (void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
      unsigned shared, void* stream, void** parameters, void** extra),
     (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)) {
    (void)shared;
    (void)extra;
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return launch(function, grid, block, stream, parameters, stream_of(stream)->priority, false);
}
struct Launch {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    const int* attributes;
    unsigned count;
};
extern "C" int cuLaunchKernelEx(const Launch* asked, void* function, void** parameters, void**) {
    int stream_priority = stream_of(asked->stream)->priority;
    bool early = false;
    const int words = 18; // of an attribute: its number, 4 bytes of nothing, its value
    for (unsigned k = 0; k < asked->count; ++k) {
        const int* attribute = asked->attributes + words * k;
        if (attribute[0] == 6 && attribute[2] == 1) {
            early = true;
        } else if (attribute[0] == 8 && attribute[2] >= -5 && attribute[2] <= 0) {
            stream_priority = attribute[2];
        } else {
            return 1;
        }
    }
    return launch(function, asked->grid, asked->block, asked->stream, parameters, stream_priority, early);
}
BOTH(cuStreamBeginCapture_v2, hipStreamBeginCapture, (void* stream, int mode), (stream, mode)) {
    if (const int error = elsewhere(stream)) return error;
    GUARD;
    (void)mode;
    if (capturing) return 901;
    capturing = std::make_shared<Graph>();
    return 0;
}
BOTH(cuStreamIsCapturing, hipStreamIsCapturing, (void* stream, int* status), (stream, status)) {
    if (!has_current) return 201;
    GUARD;
    (void)stream;
    *status = capturing != nullptr;
    return 0;
}
BOTH(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode, (int* mode), (mode)) {
    thread_local int kept = 0; // global
    std::swap(*mode, kept);
    return 0;
}
BOTH(cuStreamEndCapture, hipStreamEndCapture, (void* stream, void** graph), (stream, graph)) {
    GUARD;
    (void)stream;
    if (!capturing) return 401;
    *graph = new std::shared_ptr<const Graph>(std::move(capturing));
    return 0;
}
BOTH(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags,
     (void** instance, void* graph, unsigned long long flags), (instance, graph, flags)) {
    may_wait("cuGraphInstantiateWithFlags");
    (void)flags;
    if (!capturing) Scheduler::get().run_all(current);
    *instance = new std::shared_ptr<const Graph>(*static_cast<std::shared_ptr<const Graph>*>(graph));
    return 0;
}
BOTH(cuGraphLaunch, hipGraphLaunch, (void* instance, void* stream), (instance, stream)) {
    if (const int error = elsewhere(stream)) return error;
    wait_for_room(stream);
    return put(stream, {.name = "a graph", .graph = *static_cast<std::shared_ptr<const Graph>*>(instance)});
}
BOTH(cuGraphExecDestroy, hipGraphExecDestroy, (void* instance), (instance)) {
    delete static_cast<std::shared_ptr<const Graph>*>(instance);
    return 0;
}
BOTH(cuGraphDestroy, hipGraphDestroy, (void* graph), (graph)) {
    delete static_cast<std::shared_ptr<const Graph>*>(graph);
    return 0;
}
BOTH(cuDeviceCanAccessPeer, hipDeviceCanAccessPeer, (int* can, int device, int peer), (can, device, peer)) {
    const auto island = number("JALI_FAKE_ISLANDS", 0);
    *can = device != peer && !number("JALI_FAKE_NO_PEERS", 0) &&
           (island == 0 || device / island == peer / island);
    return 0;
}
// Attributes 0 and on: the rank of the link's speed, access, atomic operations; CUDA numbers them from 1.
// With JALI_FAKE_PCIE=1 links have no atomic operations.
API hipDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
    if (device == peer || attribute < 0 || attribute > 2) return 1;
    const bool slow = number("JALI_FAKE_PCIE", 0) != 0;
    const int error = hipDeviceCanAccessPeer(value, device, peer);
    if (attribute == 0) *value = slow ? 1 : 0;
    if (attribute == 2) *value = *value != 0 && !slow;
    return error;
}
API cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
    return hipDeviceGetP2PAttribute(value, attribute - 1, device, peer);
}
BOTH(cuCtxEnablePeerAccess, hipCtxEnablePeerAccess, (void* context, unsigned flags), (context, flags)) {
    may_wait("cuCtxEnablePeerAccess");
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
    if (found == blocks.end()) return 1; // such as memory with a handle
    if (number("JALI_FAKE_NO_PEERS", 0) || number("JALI_FAKE_NO_IPC", 0)) return 801;
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
    if (number("JALI_FAKE_NO_IPC_OPEN", 0)) return 801;
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
    void* memory = map_file(words[2], file);
    close(file);
    if (memory == nullptr) return 801;
    *address = reinterpret_cast<Address>(memory);
    mapped[*address] = {static_cast<std::size_t>(words[2]), identity, 1};
    return 0;
}
BOTH(cuIpcCloseMemHandle, hipIpcCloseMemHandle, (Address address), (address)) {
    GUARD;
    if (!mapped.count(address)) return 1;
    if (--mapped[address].times > 0) return 0;
    leave_range(reinterpret_cast<void*>(address), mapped[address].bytes);
    mapped.erase(address);
    return 0;
}
BOTH(cuPointerGetAttribute, hipPointerGetAttribute, (void* value, int which, Address address),
     (value, which, address)) {
    {
        GUARD; // whose memory it is everybody may ask
        if (!allocated(address, 1) && virtual_at(address) == virtuals.end()) return 1;
    }
    if (which == 1) *static_cast<void**>(value) = nullptr; // the device's own
    if (which == 2) *static_cast<unsigned*>(value) = 2;
    if (which == 8) *static_cast<unsigned*>(value) = 0; // not managed
    if (which == 11) { // where its allocation begins, or the range of addresses that it is mapped in
        GUARD;
        if (virtual_at(address) != virtuals.end()) {
            *static_cast<Address*>(value) = (--reserved.upper_bound(address))->first;
            return 0;
        }
        auto ours = blocks.upper_bound(address);
        if (ours == blocks.begin()) return 1;
        *static_cast<Address*>(value) = (--ours)->first;
    }
    if (which == 9) {
        GUARD;
        auto ours = blocks.upper_bound(address);
        const bool inside = ours != blocks.begin() && (--ours, address < ours->first + ours->second.bytes);
        const auto handled = virtual_at(address);
        *static_cast<int*>(value) = inside                      ? ours->second.device
                                    : handled != virtuals.end() ? handled->second.memory->device
                                                                : 0;
    }
    return 0;
}
BOTH(cuGetErrorName, hipDrvGetErrorName, (int error, const char** text), (error, text)) {
    static const std::map<int, const char*> names{
        {1, "INVALID_VALUE"},    {2, "OUT_OF_MEMORY"},   {100, "NO_DEVICE"},
        {200, "INVALID_IMAGE"},  {500, "NOT_FOUND"},     {600, "NOT_READY"},
        {702, "LAUNCH_TIMEOUT"}, {719, "LAUNCH_FAILED"}, {801, "NOT_SUPPORTED"}};
    *text = names.count(error) ? names.at(error) : "SOME_ERROR";
    return 0;
}
BOTH(cuGetErrorString, hipDrvGetErrorString, (int error, const char** text), (error, text)) {
    *text = error == sticky && !trouble.empty() ? trouble.c_str() : "as the fake driver says";
    return 0;
}
