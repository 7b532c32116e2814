// A GPU driver and its run-time compiler, made of host memory and the host's compiler: for tests where there is
// no GPU. It has the functions that jali calls, under CUDA's names and under HIP's.
//
// Streams are as lazy as they may be: what is put on one runs when somebody waits for it, not before, and only
// as much of other streams runs as events ask for. So a missing wait shows. Work of libraries (fake_ccl.cpp) may
// have to wait for other ranks; it holds up its stream, and no thread that only asks. Kernels run as one thread.
// Numbers of devices: JALI_FAKE_GPUS (1); memory of each: JALI_FAKE_GPU_BYTES (1 GiB).
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
#include <vector>

#include <dlfcn.h>
#include <sys/mman.h>
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
    double time = 0;
};
using Work = std::function<bool()>; // false: not yet, ask again
struct Stream {
    std::deque<Work> waiting;
    std::uint64_t done = 0;
    std::uint64_t last() const { return done + waiting.size(); }
    bool run_to(std::uint64_t position) {
        while (done < position && !waiting.empty()) {
            if (!waiting.front()()) return false;
            waiting.pop_front();
            ++done;
        }
        return true;
    }
};
struct Graph {
    std::vector<Work> work;
};
struct Function {
    void (*entry)(void**);
    std::size_t bytes;
};

Stream default_stream;
std::vector<Stream*> streams{&default_stream};
Graph* capturing = nullptr;
std::map<Address, std::size_t> blocks;
std::map<Address, int> homes; // the device of a block
thread_local int current = 0; // the device that this thread uses
std::size_t in_use = 0;
int sticky = 0; // an error that every later call returns, as after a fault in a kernel

Stream* stream_of(void* handle) {
    // 1 and 2 are the drivers' names for the default streams
    return reinterpret_cast<std::uintptr_t>(handle) > 2 ? static_cast<Stream*>(handle) : &default_stream;
}
int put_steps(void* handle, Work work) {
    GUARD;
    if (sticky) return sticky;
    if (capturing) {
        capturing->work.push_back(std::move(work));
    } else {
        stream_of(handle)->waiting.push_back(std::move(work));
    }
    return 0;
}
int put(void* handle, std::function<void()> work) {
    return put_steps(handle, [work = std::move(work)] { return work(), true; });
}
// Waits, as the host does: other threads may go on meanwhile.
int finish(Stream* stream, std::uint64_t position = 0) { // 0: all that is on it now
    for (bool first = true;; first = false) {
        {
            GUARD;
            if (first && position == 0) position = stream->last();
            if (stream->run_to(position)) return sticky;
        }
        usleep(50);
    }
}
void finish_all() {
    std::vector<Stream*> all;
    {
        GUARD;
        all = streams;
    }
    for (Stream* stream : all) finish(stream);
}
std::size_t device_bytes() {
    const char* text = std::getenv("JALI_FAKE_GPU_BYTES");
    return text && *text ? std::strtoull(text, nullptr, 10) : std::size_t{1} << 30;
}

struct Program {
    std::string source, log, code;
};

} // namespace

#define API extern "C" __attribute__((visibility("default"))) int
// The same function under both names.
#define BOTH(cuda, hip, parameters, arguments)                                                                \
    API hip parameters;                                                                                       \
    API cuda parameters { return hip arguments; }                                                             \
    API hip parameters

BOTH(cuInit, hipInit, (unsigned flags), (flags)) {
    return flags == 0 ? number("JALI_FAKE_INIT_ERROR", 0) : 1;
}
BOTH(cuDriverGetVersion, hipDriverGetVersion, (int* version), (version)) {
    *version = number("JALI_FAKE_DRIVER_VERSION", 13000);
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
    static const std::map<int, int> values{{10, 32}, {16, 4}, {38, 1 << 20}, {39, 2048}, {75, 9}, {76, 0},
                                           {13, 1000000}, {8, 49152}, {50, 0}, {33, 1}, {34, 0}};
    if (!values.count(which)) return 1;
    *value = values.at(which);
    return 0;
}
API hipDeviceGetAttribute(int* value, int which, int) {
    static const std::map<int, int> values{{87, 64}, {63, 4}, {19, 1 << 20}, {57, 2048}, {23, 9}, {61, 0},
                                           {5, 1000000}, {74, 65536}, {69, 0}, {67, 1}, {68, 0}};
    if (!values.count(which)) return 1;
    *value = values.at(which);
    return 0;
}
BOTH(cuDeviceTotalMem_v2, hipDeviceTotalMem, (std::size_t * bytes, int device), (bytes, device)) {
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
    finish_all();
    return sticky;
}
BOTH(cuMemGetInfo_v2, hipMemGetInfo, (std::size_t * free, std::size_t* total), (free, total)) {
    GUARD;
    *total = device_bytes();
    *free = *total - in_use;
    return 0;
}
BOTH(cuMemAlloc_v2, hipMalloc, (Address * address, std::size_t bytes), (address, bytes)) {
    GUARD;
    if (in_use + bytes > device_bytes()) return 2;
    void* memory = nullptr;
    if (posix_memalign(&memory, 512, bytes)) return 2;
    std::memset(memory, 0xcb, bytes); // nobody may count on zeros
    *address = reinterpret_cast<Address>(memory);
    blocks[*address] = bytes;
    homes[*address] = current;
    in_use += bytes;
    return 0;
}
BOTH(cuMemFree_v2, hipFree, (Address address), (address)) {
    finish_all();
    GUARD;
    const auto found = blocks.find(address);
    if (found == blocks.end()) return 1;
    in_use -= found->second;
    blocks.erase(found);
    std::free(reinterpret_cast<void*>(address));
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
BOTH(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, (Address to, const void* from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    return put(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}
BOTH(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void* to, Address from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    return put(stream, [=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
}
BOTH(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (Address to, Address from, std::size_t bytes, void* stream),
     (to, from, bytes, stream)) {
    return put(stream, [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
}
BOTH(cuMemsetD8Async, hipMemsetD8Async, (Address to, unsigned char value, std::size_t bytes, void* stream),
     (to, value, bytes, stream)) {
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
    finish(stream_of(stream)); // events may still name it, so it stays
    return 0;
}
BOTH(cuStreamSynchronize, hipStreamSynchronize, (void* stream), (stream)) {
    if (capturing) return 900;
    return finish(stream_of(stream));
}
BOTH(cuStreamQuery, hipStreamQuery, (void* stream), (stream)) {
    GUARD;
    Stream* s = stream_of(stream);
    s->run_to(s->done + 1); // a little at a time
    return sticky ? sticky : s->waiting.empty() ? 0 : 600;
}
BOTH(cuStreamWaitEvent, hipStreamWaitEvent, (void* stream, void* event, unsigned flags),
     (stream, event, flags)) {
    GUARD;
    (void)flags;
    const Event at = *static_cast<Event*>(event);
    if (!at.stream) return 0;
    return put_steps(stream, [at] { return at.stream->run_to(at.position); });
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
// Not the driver's: for other libraries made for tests. The stream goes on when step(argument) says 1; it is asked
// whenever somebody looks at the stream.
API jali_fake_steps(void* stream, int (*step)(void*), void* argument) {
    return put_steps(stream, [=] { return step(argument) != 0; });
}
BOTH(cuEventCreate, hipEventCreateWithFlags, (void** event, unsigned flags), (event, flags)) {
    (void)flags;
    *event = new Event;
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
    e->position = e->stream->last();
    e->time = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    return sticky;
}
BOTH(cuEventQuery, hipEventQuery, (void* event), (event)) {
    GUARD;
    Event* e = static_cast<Event*>(event);
    if (!e->stream || e->stream->done >= e->position) return sticky;
    e->stream->run_to(e->stream->done + 1);
    return sticky ? sticky : e->stream->done >= e->position ? 0 : 600;
}
BOTH(cuEventSynchronize, hipEventSynchronize, (void* event), (event)) {
    Event* e = static_cast<Event*>(event);
    return e->stream && e->position ? finish(e->stream, e->position) : sticky;
}
BOTH(cuEventElapsedTime, hipEventElapsedTime, (float* ms, void* from, void* to), (ms, from, to)) {
    *ms = float(1e3 * (static_cast<Event*>(to)->time - static_cast<Event*>(from)->time)) + 1e-3f;
    return 0;
}
BOTH(cuModuleLoadData, hipModuleLoadData, (void** module, const void* image), (module, image)) {
    // an image of the compiler below: its length, then a shared object
    std::uint64_t bytes;
    std::memcpy(&bytes, image, sizeof bytes);
    const int file = memfd_create("kernel", 0);
    if (file < 0 || write(file, static_cast<const char*>(image) + sizeof bytes, bytes) != ssize_t(bytes))
        return 200;
    *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!*module) std::fprintf(stderr, "%s\n", dlerror());
    return *module ? 0 : 200; // the file stays open, so that no other gets its name
}
BOTH(cuModuleGetFunction, hipModuleGetFunction, (void** function, void* module, const char* name),
     (function, module, name)) {
    void* entry = dlsym(module, name);
    const auto* bytes = static_cast<const unsigned long*>(dlsym(module, (std::string(name) + "_bytes").c_str()));
    if (!entry || !bytes) return 500;
    *function = new Function{reinterpret_cast<void (*)(void**)>(entry), *bytes};
    return 0;
}
BOTH(cuFuncGetAttribute, hipFuncGetAttribute, (int* value, int which, void* function), (value, which, function)) {
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
        if (int error = put_steps(stream, work)) return error;
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
    (void)handle;
    (void)address;
    return 801;
}
BOTH(cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle, (Address * address, Handle handle, unsigned flags),
     (address, handle, flags)) {
    (void)address;
    (void)handle;
    (void)flags;
    return 801;
}
BOTH(cuIpcCloseMemHandle, hipIpcCloseMemHandle, (Address address), (address)) {
    (void)address;
    return 801;
}
BOTH(cuPointerGetAttribute, hipPointerGetAttribute, (void* value, int which, Address address),
     (value, which, address)) {
    GUARD;
    auto found = blocks.upper_bound(address);
    const bool inside = found != blocks.begin() && (--found, address < found->first + found->second);
    if (!inside) return 1;
    if (which == 2) *static_cast<unsigned*>(value) = 2;
    if (which == 9) *static_cast<int*>(value) = homes[found->first];
    return 0;
}
BOTH(cuGetErrorName, hipDrvGetErrorName, (int error, const char** text), (error, text)) {
    static const std::map<int, const char*> names{{1, "INVALID_VALUE"}, {2, "OUT_OF_MEMORY"}, {100, "NO_DEVICE"},
                                                  {200, "INVALID_IMAGE"}, {500, "NOT_FOUND"}, {600, "NOT_READY"}};
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
     (void** program, const char* source, const char* name, int headers, const char** texts, const char** names),
     (program, source, name, headers, texts, names)) {
    (void)name;
    (void)headers;
    (void)texts;
    (void)names;
    *program = new Program{source, "", ""};
    return 0;
}
BOTH(nvrtcCompileProgram, hiprtcCompileProgram, (void* program, int count, const char** options),
     (program, count, options)) {
    (void)count;
    (void)options;
    auto* p = static_cast<Program*>(program);
    char folder[] = "/tmp/fake-gpu-XXXXXX";
    if (!mkdtemp(folder)) return 11;
    const std::string base = folder, source = base + "/kernel.cpp", object = base + "/kernel.so";
    std::ofstream(source) << "#define JALI_ONE_THREAD 1\n" << p->source;
    const char* cxx = std::getenv("CXX");
    const std::string command = std::string(cxx && *cxx ? cxx : "c++") +
                                " -std=c++17 -O1 -march=native -ffp-contract=off -fno-math-errno -fPIC -shared -w -o " +
                                object + " " + source + " 2> " + base + "/log";
    const int status = std::system(command.c_str());
    auto read = [](const std::string& path) {
        std::stringstream text;
        text << std::ifstream(path, std::ios::binary).rdbuf();
        return text.str();
    };
    p->log = read(base + "/log");
    const std::string code = status == 0 ? read(object) : "";
    const std::uint64_t bytes = code.size();
    p->code = std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + code;
    if (!std::getenv("JALI_FAKE_KEEP")) std::system(("rm -r " + base).c_str());
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
