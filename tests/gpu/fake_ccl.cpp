// A library of collectives on the memory of fake_gpu.cpp: for tests where there is no GPU. It has the
// functions of NCCL and RCCL that jali calls, for ranks that are threads or processes of one host.
//
// Ranks exchange files in a folder that is named by the group's id, one file for each pair of ranks and
// operation. Operations are as lazy as the streams of the fake driver, and as blocking as those of the
// real library: a send ends when it has been received, so ranks that send and receive in turn without a group
// hang. Ranks that call different collectives get an error. Where memory that can be registered meets memory
// that cannot (windows, in graphs all memory with handles), operations do not end.
//
// Operations of a communicator run in the order in which they were issued, whatever their streams. Windows
// are made together, of memory with a handle and the same size on all ranks, and go before the memory, and
// before the communicator. In the folder of folders `made-*` is there for each communicator,
// `symmetric-<rank>` has a line for each collective between windows, and `fault-*` says which rule was broken
// where nobody can be told.
//
// Built with -DJALI_OLD it lacks what came last (windows, all-to-all, gather, scatter). Read whenever they
// matter:
//   JALI_FAKE_CCL_FOLDER        where the folders are (/tmp)
//   JALI_FAKE_CCL_NO_WINDOWS=1  no window is made, which is no error: as where devices do not reach each
//   other JALI_FAKE_CCL_VERSION       what it says it is (22803, old: 22203) JALI_FAKE_CCL_ERROR_AFTER=n an
//   operation after n of a communicator meets an error while it runs JALI_FAKE_CCL_HANG_AFTER=n  ... does not
//   end JALI_FAKE_CCL_ONLY=r        these two on rank r only JALI_FAKE_CCL_STUCK=1       making, aborting and
//   destroying a communicator do not end JALI_FAKE_CCL_PROGRESS=1    calls say "in progress", as those of
//   communicators that do not block
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<char>;

enum Result {
    success = 0,
    system_error = 2,
    internal = 3,
    argument = 4,
    usage = 5,
    remote = 6,
    progress = 7
};

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atoi(text) : otherwise;
}
void nap(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// ---- the driver ----------------------------------------------------------------------------------------

struct Driver {
    int (*polled)(void* stream, const char* name, int (*work)(void*), void* it);
    int (*counted)(int (*call)(void* it, const char* bytes), void* it);
    void (*uncounted)(int on);
    int (*event_create)(void** event, unsigned flags);
    int (*event_record)(void* event, void* stream);
    int (*stream_wait)(void* stream, void* event, unsigned flags);
    int (*is_capturing)(void* stream, int* status);
    int (*retain)(std::uint64_t* handle, std::uintptr_t address);
    int (*release)(std::uint64_t handle);
    int (*address_range)(std::uintptr_t* begin, std::size_t* bytes, std::uintptr_t address);
};

const Driver& driver() {
    static const Driver* found = [] {
        const char* cuda = std::getenv("JALI_CUDA_DRIVER");
        const char* hip = std::getenv("JALI_HIP_DRIVER");
        const char* file = cuda && *cuda ? cuda : hip;
        void* handle = file ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : nullptr;
        if (!handle) {
            std::fprintf(stderr, "fake_ccl: JALI_CUDA_DRIVER names no driver that is loaded\n");
            std::abort();
        }
        auto* d = new Driver;
        const auto get = [&](auto& member, const char* name) {
            member = reinterpret_cast<std::decay_t<decltype(member)>>(dlsym(handle, name));
        };
        get(d->polled, "fakePolled");
        get(d->counted, "fakeCounted");
        get(d->uncounted, "fakeUncounted");
        get(d->event_create, "cuEventCreate");
        get(d->event_record, "cuEventRecord");
        get(d->stream_wait, "cuStreamWaitEvent");
        get(d->is_capturing, "cuStreamIsCapturing");
        get(d->retain, "cuMemRetainAllocationHandle");
        get(d->release, "cuMemRelease");
        get(d->address_range, "cuMemGetAddressRange_v2");
        return d;
    }();
    return *found;
}

// ---- elements ------------------------------------------------------------------------------------------

const std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

struct Half {
    _Float16 value;
    Half(float x = 0) : value(static_cast<_Float16>(x)) {}
    operator float() const { return static_cast<float>(value); }
};
struct Bfloat16 {
    std::uint16_t bits;
    Bfloat16(float x = 0) {
        std::uint32_t all;
        std::memcpy(&all, &x, 4);
        bits = static_cast<std::uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16);
    }
    operator float() const {
        const std::uint32_t all = std::uint32_t{bits} << 16;
        float x;
        std::memcpy(&x, &all, 4);
        return x;
    }
};

template <class T, class Wide = T>
void combine(int operation, const std::vector<const char*>& sources, char* into, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) {
        const auto at = [&](std::size_t rank) {
            T x;
            std::memcpy(&x, sources[rank] + k * sizeof(T), sizeof(T));
            return static_cast<Wide>(x);
        };
        Wide all = at(0);
        for (std::size_t rank = 1; rank < sources.size(); ++rank) {
            const Wide x = at(rank);
            all = operation == 1   ? Wide(all * x)
                  : operation == 2 ? std::max(all, x)
                  : operation == 3 ? std::min(all, x)
                                   : Wide(all + x);
        }
        if (operation == 4) all = Wide(all / Wide(sources.size()));
        const T result(all);
        std::memcpy(into + k * sizeof(T), &result, sizeof(T));
    }
}

void combine(int type, int operation, const std::vector<const char*>& sources, char* into,
             std::size_t count) {
    switch (type) {
    case 0:
        return combine<std::int8_t>(operation, sources, into, count);
    case 1:
        return combine<std::uint8_t>(operation, sources, into, count);
    case 2:
        return combine<std::int32_t>(operation, sources, into, count);
    case 3:
        return combine<std::uint32_t>(operation, sources, into, count);
    case 4:
        return combine<std::int64_t>(operation, sources, into, count);
    case 5:
        return combine<std::uint64_t>(operation, sources, into, count);
    case 6:
        return combine<Half, float>(operation, sources, into, count);
    case 7:
        return combine<float>(operation, sources, into, count);
    case 8:
        return combine<double>(operation, sources, into, count);
    default:
        return combine<Bfloat16, float>(operation, sources, into, count);
    }
}

// ---- operations ----------------------------------------------------------------------------------------

struct Group;

struct Window {
    long number; // among the windows of its communicator
    std::uintptr_t address;
    std::size_t bytes;
    std::uintptr_t begin; // of the memory that it lies in
    std::size_t held;
};

struct Comm {
    std::string folder;
    int rank, ranks;
    std::atomic<int> error{success};
    std::atomic<bool> aborted{false};
    std::atomic<int> asked{0}; // how often it has been asked for its state, for PROGRESS
    long operations = 0, collectives = 0;
    std::map<int, long> sent, received;    // messages by peer
    std::string words;                     // of the last error
    std::vector<Group*> groups;            // all that were launched
    void *last = nullptr, *done = nullptr; // the stream of the last operation, an event behind it
    std::map<Window*, std::unique_ptr<Window>> windows;
    std::string history; // of windows, the same on all ranks

    std::string above() const { return fs::path(folder).parent_path().string(); }
    void note_window(const std::string& text) {
        history += text;
        std::ofstream(above() + "/windows-" + std::to_string(rank), std::ios::app) << text << '\n';
    }
    void fault(const std::string& text) const {
        std::ofstream(above() + "/fault-" + std::to_string(rank), std::ios::app) << text << '\n';
    }
    bool in_window(const void* data, std::size_t bytes) const {
        const auto address = reinterpret_cast<std::uintptr_t>(data);
        for (const auto& [key, window] : windows)
            if (address >= window->address && address + bytes <= window->address + window->bytes) return true;
        return false;
    }
};

enum Kind {
    send,
    receive,
    all_reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    reduce,
    all_to_all,
    gather,
    scatter
};

// What travels from rank to rank, and how the results are made: all collectives hand bytes to each rank,
// which combines or stacks them.
struct Operation {
    Comm* comm;
    Kind kind;
    const char* from;
    char* to;
    std::size_t count;
    int type, operation, root;
    void* stream;

    std::string registered; // see register_buffers
    long number_of = 0;     // among the operations of this communicator
    std::string name;
    bool started = false, over = false, mixed = false;
    std::map<int, Bytes> came;
    std::set<std::string> sent;
    std::error_code gone; // an aborted group's folder may be, at any time

    std::size_t bytes() const { return count * sizes[type]; }
    int repeats = 0; // by a graph, all ranks alike
    std::string file(int source, int target) const {
        return comm->folder + "/" + name + "-" + std::to_string(repeats) + "-" + std::to_string(source) +
               "-" + std::to_string(target);
    }
    void again() {
        if (!started) return;
        ++repeats;
        started = over = false;
        came.clear();
        sent.clear();
    }
    // What a collective is, for its peers to compare.
    std::string signature() const {
        return kind <= receive
                   ? "message " + std::to_string(bytes())
                   : std::to_string(kind) + " " + std::to_string(count) + " " + std::to_string(type) + " " +
                         std::to_string(operation) + " " + std::to_string(root);
    }
    bool gives(int target) const {
        switch (kind) {
        case send:
            return target == root;
        case receive:
            return false;
        case broadcast:
        case scatter:
            return comm->rank == root;
        case reduce:
        case gather:
            return target == root;
        default:
            return true;
        }
    }
    bool takes(int source) const {
        switch (kind) {
        case send:
            return false;
        case receive:
            return source == root;
        case broadcast:
        case scatter:
            return source == root;
        case reduce:
        case gather:
            return comm->rank == root;
        default:
            return true;
        }
    }
    // Whether all that this rank gives and takes lies in windows.
    bool symmetric() const {
        if (kind <= receive) return false;
        return (bytes_from() == 0 || comm->in_window(from, bytes_from())) &&
               (bytes_to() == 0 || comm->in_window(to, bytes_to()));
    }
    // Whether this rank writes, or reads, all that belongs to these addresses.
    std::size_t bytes_from() const {
        const bool whole = kind == reduce_scatter || kind == all_to_all || kind == scatter;
        const bool none = kind == receive || ((kind == broadcast || kind == scatter) && comm->rank != root);
        return none ? 0 : whole ? bytes() * comm->ranks : bytes();
    }
    std::size_t bytes_to() const {
        const bool whole = kind == all_gather || kind == all_to_all || kind == gather;
        const bool none = kind == send || ((kind == reduce || kind == gather) && comm->rank != root);
        return none ? 0 : whole ? bytes() * comm->ranks : bytes();
    }
    // As the real library does, this one reaches into peers' memory where that lies in windows or, in a
    // graph, has handles. Each rank looks at what it reads and writes, and ranks that differ in it wait for
    // ever, as do the two ends of a message.
    void register_buffers(bool captured) {
        const auto kind_of = [&](const void* data, std::size_t used) {
            if (used == 0) return '-'; // nobody looks
            if (comm->in_window(data, used)) return '1';
            std::uintptr_t begin = 0;
            std::size_t held = 0;
            std::uint64_t handle = 0;
            if (!captured || driver().address_range(&begin, &held, reinterpret_cast<std::uintptr_t>(data)) ||
                driver().retain(&handle, begin))
                return '0';
            driver().release(handle);
            return '1';
        };
        const char of_from = kind_of(from, bytes_from()), of_to = kind_of(to, bytes_to());
        registered =
            kind > receive ? std::string{of_from, of_to} : std::string{kind == send ? of_from : of_to};
    }
    bool meets(const std::string& theirs) const {
        for (std::size_t k = 0; k < registered.size(); ++k)
            if (registered[k] != '-' && theirs[k] != '-' && registered[k] != theirs[k]) return false;
        return true;
    }
    // The bytes for a rank.
    const char* part(int target) const {
        return kind == reduce_scatter || kind == all_to_all || kind == scatter ? from + target * bytes()
                                                                               : from;
    }

    void fail(int error, const std::string& words) {
        if (comm->error == success) comm->words = words;
        comm->error = error;
    }

    void give() {
        for (int target = 0; target < comm->ranks; ++target) {
            if (!gives(target)) continue;
            if (target == comm->rank && kind > receive) {
                came[target] = Bytes(part(target), part(target) + bytes());
                continue;
            }
            const std::string path = file(comm->rank, target);
            {
                std::ofstream out(path + ".new", std::ios::binary);
                out << signature() << '\n' << registered << '\n';
                out.write(part(target), static_cast<std::streamsize>(bytes()));
            }
            fs::rename(path + ".new", path, gone);
            if (kind == send) sent.insert(path);
        }
    }

    bool take() {
        bool all = true;
        for (int source = 0; source < comm->ranks; ++source) {
            if (!takes(source) || came.count(source)) continue;
            const std::string path = file(source, comm->rank);
            std::ifstream in(path, std::ios::binary);
            if (!in) {
                all = false;
                continue;
            }
            std::string theirs;
            std::getline(in, theirs);
            if (theirs != signature()) {
                fail(usage, "rank " + std::to_string(source) + " is at " + theirs + ", rank " +
                                std::to_string(comm->rank) + " at " + signature());
                return false;
            }
            std::string known;
            std::getline(in, known);
            if (!meets(known)) {
                comm->fault("registered memory meets other memory in " + name);
                mixed = true;
                return false;
            }
            Bytes data(bytes());
            in.read(data.data(), static_cast<std::streamsize>(data.size()));
            came[source] = std::move(data);
            fs::remove(path, gone);
        }
        return all;
    }

    void finish() {
        if (kind == all_reduce || kind == reduce_scatter || (kind == reduce && comm->rank == root)) {
            std::vector<const char*> sources;
            for (const auto& [rank, data] : came) sources.push_back(data.data());
            combine(type, operation, sources, to, count);
        } else if (kind == all_gather || kind == all_to_all || kind == gather) {
            for (const auto& [rank, data] : came) std::memcpy(to + rank * bytes(), data.data(), bytes());
        } else {
            for (const auto& [rank, data] : came) std::memcpy(to, data.data(), bytes());
        }
    }

    bool step() {
        if (over || comm->aborted) return true;
        if (comm->error || mixed) return false; // what has failed does not end
        const int only = number("JALI_FAKE_CCL_ONLY", comm->rank);
        if (only == comm->rank) {
            const int most = number("JALI_FAKE_CCL_ERROR_AFTER", -1);
            if (most >= 0 && number_of >= most) return fail(remote, "the fake cable is unplugged"), false;
            const int last = number("JALI_FAKE_CCL_HANG_AFTER", -1);
            if (last >= 0 && number_of >= last) return false;
        }
        if (!started) give();
        started = true;
        if (!take()) return false;
        for (const auto& path : sent)
            if (fs::exists(path, gone)) return false;
        finish();
        return over = true;
    }
};

// All go on at once, and the stream waits for all. Its memory stays, since a device may still hold it at the
// end.
struct Group {
    std::vector<std::unique_ptr<Operation>> operations;
    bool begun = false;
    std::atomic<bool> over{false};

    bool step() {
        if (!begun) {
            over = false;
            for (auto& operation : operations) operation->again();
        }
        begun = true;
        bool all = true;
        for (auto& operation : operations) all = operation->step() && all;
        begun = !all;
        return over = all;
    }
};

thread_local int depth = 0;
thread_local std::vector<std::unique_ptr<Operation>> open_group;

void order(void* first, void* second) { // what comes on `second` waits for `first`
    void* event = nullptr;
    driver().event_create(&event, 2);
    driver().event_record(event, first);
    driver().stream_wait(second, event, 0);
}

struct OwnCalls { // of the driver
    OwnCalls() { driver().uncounted(1); }
    ~OwnCalls() { driver().uncounted(0); }
};

int launch() {
    if (open_group.empty()) return success;
    const OwnCalls own;
    auto* group = new Group;
    group->operations = std::move(open_group);
    open_group.clear();
    std::set<void*> streams;
    for (auto& operation : group->operations) {
        Comm& comm = *operation->comm;
        operation->number_of = comm.operations++;
        if (operation->kind == send) {
            operation->name = "message-" + std::to_string(comm.sent[operation->root]++);
        } else if (operation->kind == receive) {
            operation->name = "message-" + std::to_string(comm.received[operation->root]++);
        } else {
            operation->name = "collective-" + std::to_string(comm.collectives++);
        }
        streams.insert(operation->stream);
    }
    void* stream = group->operations.front()->stream;
    Comm* comm = group->operations.front()->comm;
    for (void* other : streams)
        if (other != stream) order(other, stream);
    int capturing = 0;
    driver().is_capturing(stream, &capturing);
    if (!capturing && comm->done && comm->last != stream) driver().stream_wait(stream, comm->done, 0);
    for (auto& operation : group->operations) operation->register_buffers(capturing != 0);
    const auto work = [](void* it) { return static_cast<int>(static_cast<Group*>(it)->step()); };
    if (driver().polled(stream, "messages of NCCL", work, group)) return 1;
    if (!capturing) {
        if (!comm->done) driver().event_create(&comm->done, 2);
        driver().event_record(comm->done, stream);
        comm->last = stream;
    }
    for (auto& operation : group->operations)
        if (operation->symmetric())
            std::ofstream(comm->above() + "/symmetric-" + std::to_string(comm->rank), std::ios::app)
                << operation->signature() << '\n';
    for (void* other : streams)
        if (other != stream) order(stream, other);
    comm->groups.push_back(group);
    if (number("JALI_FAKE_CCL_PROGRESS", 0)) {
        comm->asked = 0;
        return progress;
    }
    return success;
}

int put(Comm* comm, Kind kind, const void* from, void* to, std::size_t count, int type, int operation,
        int root, void* stream) {
    if (!comm || type < 0 || type > 9 || operation < 0 || operation > 4) return argument;
    if (root < 0 || root >= comm->ranks) return argument;
    if (comm->error) return comm->error;
    auto made = std::make_unique<Operation>();
    made->comm = comm;
    made->kind = kind;
    made->from = static_cast<const char*>(from);
    made->to = static_cast<char*>(to);
    made->count = count;
    made->type = type;
    made->operation = operation;
    made->root = root;
    made->stream = stream;
    if (kind > receive) {
        open_group.push_back(std::move(made));
        return depth == 0 ? launch() : success;
    }
    // A test may have made another message of it: to, from and bytes.
    const auto call = [](void* it, const char* bytes) {
        auto message = std::make_unique<Operation>(*static_cast<Operation*>(it));
        if (bytes) {
            std::uintptr_t addresses[3];
            std::memcpy(addresses, bytes, sizeof addresses);
            message->to = reinterpret_cast<char*>(addresses[0]);
            message->from = reinterpret_cast<const char*>(addresses[1]);
            message->count = addresses[2] / sizes[message->type];
        }
        open_group.push_back(std::move(message));
        return depth == 0 ? launch() : int{success};
    };
    return driver().counted(call, made.release()); // which may do it later, or never
}

} // namespace

#define API extern "C" __attribute__((visibility("default")))

struct Id {
    char bytes[128];
};

API int ncclGetVersion(int* version) {
#ifdef JALI_OLD
    const int mine = 22203;
#else
    const int mine = 22803;
#endif
    *version = number("JALI_FAKE_CCL_VERSION", mine);
    return success;
}
API const char* ncclGetErrorString(int error) {
    static const char* texts[] = {"no error",
                                  "unhandled cuda error",
                                  "unhandled system error",
                                  "internal error",
                                  "invalid argument",
                                  "invalid usage",
                                  "remote process exited or there was a network error",
                                  "in progress"};
    return error >= 0 && error < 8 ? texts[error] : "unknown result code";
}
API const char* ncclGetLastError(void* comm) {
    return comm ? static_cast<Comm*>(comm)->words.c_str() : "";
}
API int ncclGetUniqueId(Id* id) {
    const char* folder = std::getenv("JALI_FAKE_CCL_FOLDER");
    std::random_device random;
    std::string path = folder && *folder ? folder : "/tmp";
    path += "/fake-ccl-" + std::to_string(getpid()) + "-" + std::to_string(random());
    if (path.size() >= sizeof id->bytes) return system_error;
    std::memset(id->bytes, 0, sizeof id->bytes);
    std::memcpy(id->bytes, path.data(), path.size());
    if (!fs::create_directories(path)) return system_error;
    std::ofstream(fs::path(path).parent_path() / ("made-" + fs::path(path).filename().string().substr(9)));
    return success;
}
API int ncclCommInitRank(void** made, int ranks, Id id, int rank) {
    while (number("JALI_FAKE_CCL_STUCK", 0)) nap(0.01);
    auto* comm = new Comm;
    comm->folder = id.bytes;
    comm->rank = rank;
    comm->ranks = ranks;
    std::ofstream(comm->folder + "/here-" + std::to_string(rank));
    for (int other = 0; other < ranks; ++other)
        while (!fs::exists(comm->folder + "/here-" + std::to_string(other))) nap(0.001);
    *made = comm;
    return number("JALI_FAKE_CCL_PROGRESS", 0) ? progress : success;
}
// The memory of a communicator stays: streams may still hold its operations.
static int leave(Comm* comm) {
    while (number("JALI_FAKE_CCL_STUCK", 0)) nap(0.01);
    std::ofstream(comm->folder + "/left-" + std::to_string(comm->rank));
    for (int other = 0; other < comm->ranks; ++other)
        if (!fs::exists(comm->folder + "/left-" + std::to_string(other))) return success;
    std::error_code ignored;
    fs::remove_all(comm->folder, ignored);
    return success;
}
API int ncclCommDestroy(void* handle) {
    if (!handle) return argument;
    auto* comm = static_cast<Comm*>(handle);
    for (const Group* group : comm->groups)
        while (!group->over && !comm->error) nap(1e-4);
    for (const auto& [key, window] : comm->windows)
        comm->fault("window " + std::to_string(window->number) + " outlives its communicator");
    return leave(comm);
}
API int ncclCommAbort(void* comm) {
    if (!comm) return argument;
    static_cast<Comm*>(comm)->aborted = true;
    return leave(static_cast<Comm*>(comm));
}
API int ncclCommGetAsyncError(void* handle, int* error) {
    auto* comm = static_cast<Comm*>(handle);
    *error = comm->error;
    if (*error == success && number("JALI_FAKE_CCL_PROGRESS", 0) && ++comm->asked < 4) *error = progress;
    return success;
}
API int ncclGroupStart() {
    ++depth;
    return success;
}
API int ncclGroupEnd() {
    if (depth == 0) return usage;
    return --depth == 0 ? launch() : success;
}
API int ncclSend(const void* from, std::size_t count, int type, int peer, void* comm, void* stream) {
    return put(static_cast<Comm*>(comm), send, from, nullptr, count, type, 0, peer, stream);
}
API int ncclRecv(void* to, std::size_t count, int type, int peer, void* comm, void* stream) {
    return put(static_cast<Comm*>(comm), receive, nullptr, to, count, type, 0, peer, stream);
}
API int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation, void* comm,
                      void* stream) {
    return put(static_cast<Comm*>(comm), all_reduce, from, to, count, type, operation, 0, stream);
}
API int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int operation, void* comm,
                          void* stream) {
    return put(static_cast<Comm*>(comm), reduce_scatter, from, to, count, type, operation, 0, stream);
}
API int ncclAllGather(const void* from, void* to, std::size_t count, int type, void* comm, void* stream) {
    return put(static_cast<Comm*>(comm), all_gather, from, to, count, type, 0, 0, stream);
}
API int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, void* comm,
                      void* stream) {
    return put(static_cast<Comm*>(comm), broadcast, from, to, count, type, 0, root, stream);
}
API int ncclReduce(const void* from, void* to, std::size_t count, int type, int operation, int root,
                   void* comm, void* stream) {
    return put(static_cast<Comm*>(comm), reduce, from, to, count, type, operation, root, stream);
}
#ifndef JALI_OLD
API int ncclCommWindowRegister(void* handle, void* memory, std::size_t bytes, void** made, int flags) {
    auto* comm = static_cast<Comm*>(handle);
    const auto refuse = [&](const std::string& words) {
        comm->words = words;
        return argument;
    };
    if (!comm || !memory || bytes == 0 || flags != 1) return argument;
    if (comm->error) return comm->error;
    if (number("JALI_FAKE_CCL_NO_WINDOWS", 0)) return success;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    auto window = std::make_unique<Window>();
    std::uint64_t its_handle = 0;
    if (driver().retain(&its_handle, address)) return refuse("memory of a window without a handle");
    driver().release(its_handle);
    driver().address_range(&window->begin, &window->held, address);
    if ((address - window->begin) % 4096) return refuse("a window that begins within a page");
    if (address + bytes > window->begin + window->held) return refuse("a window beyond its memory");
    window->number = std::count(comm->history.begin(), comm->history.end(), '+');
    window->address = address;
    window->bytes = bytes;
    const std::string mine = std::to_string(bytes) + " bytes at " + std::to_string(address - window->begin) +
                             " of " + std::to_string(window->held) + " after '" + comm->history + "'";
    const std::string name = comm->folder + "/window-" + std::to_string(window->number) + "-";
    std::ofstream(name + std::to_string(comm->rank) + ".new") << mine;
    std::error_code gone;
    fs::rename(name + std::to_string(comm->rank) + ".new", name + std::to_string(comm->rank), gone);
    for (int other = 0; other < comm->ranks; ++other) {
        while (!fs::exists(name + std::to_string(other), gone)) {
            if (comm->aborted) return internal;
            nap(0.001);
        }
        std::ifstream in(name + std::to_string(other));
        const std::string theirs{std::istreambuf_iterator<char>(in), {}};
        if (theirs != mine) {
            comm->words = "windows differ: " + theirs + " on rank " + std::to_string(other) + ", " + mine;
            return usage;
        }
    }
    comm->note_window("+" + std::to_string(window->number));
    *made = window.get();
    comm->windows[window.get()] = std::move(window);
    return success;
}
API int ncclCommWindowDeregister(void* handle, void* made) {
    auto* comm = static_cast<Comm*>(handle);
    if (!comm) return argument;
    const auto found = comm->windows.find(static_cast<Window*>(made));
    if (found == comm->windows.end()) return argument;
    const Window& window = *found->second;
    std::uintptr_t begin = 0;
    std::size_t held = 0;
    if (driver().address_range(&begin, &held, window.address) || begin != window.begin || held != window.held)
        comm->fault("the memory of window " + std::to_string(window.number) + " went before it");
    for (const Group* group : comm->groups)
        if (!group->over) comm->fault("window " + std::to_string(window.number) + " went while in use");
    comm->note_window("-" + std::to_string(window.number));
    comm->windows.erase(found);
    return success;
}
API int ncclAlltoAll(const void* from, void* to, std::size_t count, int type, void* comm, void* stream) {
    return put(static_cast<Comm*>(comm), all_to_all, from, to, count, type, 0, 0, stream);
}
API int ncclAllToAll(const void* from, void* to, std::size_t count, int type, void* comm, void* stream) {
    return ncclAlltoAll(from, to, count, type, comm, stream);
}
API int ncclGather(const void* from, void* to, std::size_t count, int type, int root, void* comm,
                   void* stream) {
    return put(static_cast<Comm*>(comm), gather, from, to, count, type, 0, root, stream);
}
API int ncclScatter(const void* from, void* to, std::size_t count, int type, int root, void* comm,
                    void* stream) {
    return put(static_cast<Comm*>(comm), scatter, from, to, count, type, 0, root, stream);
}
#endif
