// A library of Fourier transforms on the memory of fake_gpu.cpp: for tests where there is no GPU. It has the
// functions of cuFFT and hipFFT that jali calls, under both names, and transforms by definition.
//
// Transforms are as lazy as the streams of the fake driver. A plan is of the device whose context was
// current; it gets no memory of its own, and what it was given as work area, as large as the complex numbers
// that it transforms, is overwritten, as is the input of transforms back to real numbers. Arrays must lie in
// one allocation of that device and begin where complex numbers may.
//
// Plans of several devices (cufftXt, of cuFFT alone) are lazy, too: what they do is done when the last of
// their devices has come so far. Parts are of the first axis, after a transform of the second, and so on in
// turn; extents are 32 and more, as in the library.
//
// Built with -DJALI_OLD it lacks SetWorkArea and plans of several devices. Read whenever they matter:
//   JALI_FAKE_FFT_FAIL=name:code  this function fails with this code
//   JALI_FAKE_FFT_LOG=file        every call gets a line there
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace {

using Long = long long;
using Number = std::complex<double>;

enum Result {
    success = 0,
    invalid_plan = 1,
    invalid_value = 4,
    setup_failed = 7,
    invalid_size = 8,
    unaligned = 9,
    invalid_device = 11,
    no_workspace = 13
};
enum Kind { r2c = 0x2a, c2r = 0x2c, c2c = 0x29, d2z = 0x6a, z2d = 0x6c, z2z = 0x69 };

struct Driver {
    int (*polled)(void* stream, const char* name, int (*work)(void*), void* it);
    int (*context)(void** context);
    int (*address_range)(std::uintptr_t* begin, std::size_t* bytes, std::uintptr_t address);
    int (*attribute)(void* value, int which, std::uintptr_t address);
    int (*set)(void* context);
    int (*synchronize)();
    int (*make_stream)(void** stream, unsigned flags, int priority);
    int (*allocate)(std::uintptr_t* address, std::size_t bytes);
    int (*release)(std::uintptr_t address);
    int (*count)(int* devices);
};

const Driver& driver() {
    static const Driver* found = [] {
        const char* cuda = std::getenv("JALI_CUDA_DRIVER");
        const char* hip = std::getenv("JALI_HIP_DRIVER");
        const char* file = cuda && *cuda ? cuda : hip;
        void* handle = file ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : nullptr;
        if (!handle) {
            std::fprintf(stderr, "fake_fft: JALI_CUDA_DRIVER names no driver that is loaded\n");
            std::abort();
        }
        auto* d = new Driver;
        const auto get = [&](auto& member, const char* name) {
            member = reinterpret_cast<std::decay_t<decltype(member)>>(dlsym(handle, name));
        };
        get(d->polled, "fakePolled");
        get(d->context, "cuCtxGetCurrent");
        get(d->address_range, "cuMemGetAddressRange_v2");
        get(d->attribute, "cuPointerGetAttribute");
        get(d->set, "cuCtxSetCurrent");
        get(d->synchronize, "cuCtxSynchronize");
        get(d->make_stream, "cuStreamCreateWithPriority");
        get(d->allocate, "cuMemAlloc_v2");
        get(d->release, "cuMemFree_v2");
        get(d->count, "cuDeviceGetCount");
        return d;
    }();
    return *found;
}

struct Side {
    std::vector<Long> storage;
    Long stride = 1, distance = 0;
};

struct Plan {
    void* context = nullptr;
    std::vector<Long> n;
    Side in, out;
    int kind = 0;
    Long batch = 0;
    std::size_t work = 0;
    void *stream = nullptr, *area = nullptr;
    bool automatic = true;
    std::vector<int> gpus; // of several devices
};

std::mutex guard;
std::map<std::intptr_t, Plan> plans;
std::intptr_t last = 0;

// What a test wants this function to say, and its line in the log.
int reported(const std::string& name, const std::string& more = "") {
    static std::mutex one; // streams tell, too, while others have the plans
    const char* file = std::getenv("JALI_FAKE_FFT_LOG");
    const std::lock_guard lock(one);
    if (file && *file) std::ofstream(file, std::ios::app) << name << more << '\n';
    const char* text = std::getenv("JALI_FAKE_FFT_FAIL");
    const std::string wanted = text ? text : "";
    return wanted.rfind(name + ":", 0) == 0 ? std::atoi(wanted.c_str() + name.size() + 1) : 0;
}

bool single(int kind) {
    return kind < 0x60;
}
bool real(int kind, bool input) {
    return input ? kind == r2c || kind == d2z : kind == c2r || kind == z2d;
}

// The place of an element among those of its side: dimensions, then the array of the batch.
Long place(const Side& side, const std::vector<Long>& index, Long array) {
    Long at = 0;
    for (std::size_t k = 0; k < index.size(); ++k) at = (k ? at * side.storage[k] : 0) + index[k];
    return array * side.distance + at * side.stride;
}

std::vector<Long> extents(const Plan& p, bool input) {
    auto n = p.n;
    if (real(p.kind, !input)) n.back() = n.back() / 2 + 1;
    return n;
}

template <class F>
void each(const std::vector<Long>& n, F f) {
    std::vector<Long> index(n.size(), 0);
    while (true) {
        f(index);
        std::size_t k = n.size();
        while (k > 0 && ++index[k - 1] == n[k - 1]) index[--k] = 0;
        if (k == 0) return;
    }
}

Number load(const char* data, Long at, bool is_real, bool is_single) {
    if (is_real)
        return is_single ? double(reinterpret_cast<const float*>(data)[at])
                         : reinterpret_cast<const double*>(data)[at];
    if (is_single) return Number(reinterpret_cast<const std::complex<float>*>(data)[at]);
    return reinterpret_cast<const Number*>(data)[at];
}
void store(char* data, Long at, Number x, bool is_real, bool is_single) {
    if (is_real && is_single)
        reinterpret_cast<float*>(data)[at] = float(x.real());
    else if (is_real)
        reinterpret_cast<double*>(data)[at] = x.real();
    else if (is_single)
        reinterpret_cast<std::complex<float>*>(data)[at] = std::complex<float>(x);
    else
        reinterpret_cast<Number*>(data)[at] = x;
}

void transform(std::vector<Number>& x, const std::vector<Long>& n, int direction) {
    Long inner = 1;
    for (std::size_t axis = n.size(); axis-- > 0; inner *= n[axis]) {
        const Long m = n[axis], all = Long(x.size());
        std::vector<Number> roots(m), line(m);
        for (Long k = 0; k < m; ++k) roots[k] = std::polar(1.0, direction * 2 * M_PI * double(k) / double(m));
        for (Long begin = 0; begin < all; begin += m * inner)
            for (Long j = 0; j < inner; ++j) {
                for (Long k = 0; k < m; ++k) {
                    line[k] = 0;
                    for (Long l = 0; l < m; ++l) line[k] += roots[k * l % m] * x[begin + l * inner + j];
                }
                for (Long k = 0; k < m; ++k) x[begin + k * inner + j] = line[k];
            }
    }
}

struct Run {
    Plan p;
    char *in, *out;
    int direction;

    void go() {
        const bool s = single(p.kind), real_in = real(p.kind, true), real_out = real(p.kind, false);
        if (p.area) std::memset(p.area, 0x7f, p.work);
        std::vector<std::vector<Number>> all;
        for (Long array = 0; array < p.batch; ++array) {
            std::vector<Number> x;
            each(p.n, [&](const std::vector<Long>& index) {
                if (!real_out || index.back() <= p.n.back() / 2) {
                    x.push_back(load(in, place(p.in, index, array), real_in, s));
                    return;
                }
                auto mirror = index;
                for (std::size_t k = 0; k < mirror.size(); ++k) mirror[k] = (p.n[k] - mirror[k]) % p.n[k];
                x.push_back(std::conj(load(in, place(p.in, mirror, array), false, s)));
            });
            transform(x, p.n, direction);
            all.push_back(std::move(x));
        }
        if (real_out) // is lost
            for (Long array = 0; array < p.batch; ++array)
                each(extents(p, true), [&](const std::vector<Long>& index) {
                    store(in, place(p.in, index, array), NAN, false, s);
                });
        for (Long array = 0; array < p.batch; ++array) {
            std::size_t k = 0;
            each(p.n, [&](const std::vector<Long>& index) {
                const Number x = all[array][k++];
                if (!real_in || index.back() <= p.n.back() / 2)
                    store(out, place(p.out, index, array), x, real_out, s);
            });
        }
    }
};

// Whether these bytes lie in one allocation of the plan's device.
bool there(const Plan& p, const void* data, std::size_t bytes) {
    std::uintptr_t begin = 0;
    std::size_t held = 0;
    int ordinal = -1;
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (driver().address_range(&begin, &held, address) || address + bytes > begin + held) return false;
    driver().attribute(&ordinal, 9, address);
    return reinterpret_cast<std::intptr_t>(p.context) == 1000 + ordinal;
}

std::size_t reach(const Plan& p, bool input) {
    const Side& side = input ? p.in : p.out;
    auto index = extents(p, input);
    for (auto& k : index) --k;
    const std::size_t size = (single(p.kind) ? 4 : 8) * (real(p.kind, input) ? 1 : 2);
    return size * std::size_t(place(side, index, p.batch - 1) + 1);
}

Plan* plan_of(std::intptr_t handle) {
    const auto found = plans.find(handle);
    return found == plans.end() ? nullptr : &found->second;
}

int execute(const std::string& name, std::intptr_t handle, int kind, void* in, void* out, int direction) {
    if (const int code = reported(name)) return code;
    const std::lock_guard lock(guard);
    Plan* p = plan_of(handle);
    void* context = nullptr;
    driver().context(&context);
    if (!p || p->kind != kind) return invalid_plan;
    if (context != p->context) return invalid_device;
    if (p->work && !p->area) return no_workspace;
    if (direction != 1 && direction != -1) return invalid_value;
    const std::uintptr_t aligned = single(kind) ? 8 : 16;
    if (reinterpret_cast<std::uintptr_t>(in) % aligned || reinterpret_cast<std::uintptr_t>(out) % aligned)
        return unaligned;
    if (!there(*p, in, reach(*p, true)) || !there(*p, out, reach(*p, false))) return invalid_value;
    if (p->area && !there(*p, p->area, p->work)) return invalid_value;
    auto* run = new Run{*p, static_cast<char*>(in), static_cast<char*>(out), direction}; // graphs repeat it
    const auto work = [](void* it) { return static_cast<Run*>(it)->go(), 1; };
    return driver().polled(p->stream, "a Fourier transform", work, run) ? 6 : success;
}

int create(const std::string& name, std::intptr_t* handle) {
    if (const int code = reported(name)) return code;
    void* context = nullptr;
    driver().context(&context);
    if (!context) return setup_failed;
    const std::lock_guard lock(guard);
    plans[++last].context = context;
    *handle = last;
    return success;
}

int make(const std::string& name, std::intptr_t handle, int rank, const Long* n, const Long* inembed,
         Long istride, Long idist, const Long* onembed, Long ostride, Long odist, int kind, Long batch,
         std::size_t* work) {
    std::string said = " " + std::to_string(batch) + " of";
    for (int k = 0; k < rank; ++k) said += " " + std::to_string(n[k]);
    if (const int code = reported(name, said)) return code;
    const std::lock_guard lock(guard);
    Plan* p = plan_of(handle);
    void* context = nullptr;
    driver().context(&context);
    if (!p || !p->n.empty() || p->automatic) return invalid_plan;
    if (context != p->context) return invalid_device;
    if (rank < 1 || rank > 3 || batch < 1 || !inembed || !onembed || istride < 1 || ostride < 1)
        return invalid_size;
    p->n.assign(n, n + rank);
    p->in = {{inembed, inembed + rank}, istride, idist};
    p->out = {{onembed, onembed + rank}, ostride, odist};
    p->kind = kind;
    p->batch = batch;
    p->work = std::size_t(batch) * (single(kind) ? 8 : 16);
    for (const Long k : p->n) {
        if (k < 1) return invalid_size;
        p->work *= std::size_t(k);
    }
    *work = p->work;
    return success;
}

// What an array library's own kernels do: strided numbers go to others, or are multiplied with them, in order
// of the stream.
struct Elementwise {
    std::vector<Long> n, to_steps, from_steps; // steps in bytes
    char *to, *from;
    int to_type, from_type; // 4, 8: real; 80, 160: complex
    bool multiply;
    double number;

    static Number get(const char* at, int type) { return load(at, 0, type < 80, type == 4 || type == 80); }
    static Long at(const std::vector<Long>& steps, const std::vector<Long>& index) {
        Long offset = 0;
        for (std::size_t k = 0; k < index.size(); ++k) offset += steps[k] * index[k];
        return offset;
    }
    void go() {
        for (const Long k : n)
            if (k == 0) return;
        std::vector<Number> values; // all are read before any is written
        each(n, [&](const std::vector<Long>& index) {
            const Number x = from ? get(from + at(from_steps, index), from_type) : number;
            values.push_back(multiply ? x * get(to + at(to_steps, index), to_type) : x);
        });
        std::size_t k = 0;
        each(n, [&](const std::vector<Long>& index) {
            store(to + at(to_steps, index), 0, values[k++], to_type < 80, to_type == 4 || to_type == 80);
        });
    }
};

#ifndef JALI_OLD
// --- several devices of one process -----------------------------------------------------------------------

void* context_of(int gpu) {
    return reinterpret_cast<void*>(std::intptr_t{1000} + gpu);
}

template <class F>
int on(int gpu, F f) {
    void* before = nullptr;
    driver().context(&before);
    driver().set(context_of(gpu));
    const int code = f();
    driver().set(before);
    return code;
}

struct Parts {
    std::vector<int> gpus;
    std::vector<Long> n;
    bool is_single = true, shuffled = false; // the second axis is split
    std::vector<std::uintptr_t> data;
    void* stream = nullptr; // of the last device

    std::size_t size() const { return is_single ? 8 : 16; }
    template <class F>
    void each_number(F f) { // its place in natural order, and its address
        const Long count = Long(gpus.size()), axis = shuffled ? 1 : 0;
        Long at = 0;
        each(n, [&](const std::vector<Long>& index) {
            Long gpu = 0;
            while (index[axis] >= n[axis] * (gpu + 1) / count) ++gpu;
            const Long row = index[axis] - n[axis] * gpu / count, other = 1 - axis;
            Long place = row * n[other] + index[other]; // parts have the axis that is split first
            for (std::size_t k = 2; k < n.size(); ++k) place = place * n[k] + index[k];
            f(at++, reinterpret_cast<char*>(data[gpu]) + size() * std::size_t(place));
        });
    }
    std::vector<Number> numbers() {
        std::vector<Number> found(n[0] * n[1] * (n.size() == 3 ? n[2] : 1));
        each_number([&](Long at, char* from) { found[at] = load(from, 0, false, is_single); });
        return found;
    }
    void put(const std::vector<Number>& x) {
        each_number([&](Long at, char* to) { store(to, 0, x[at], false, is_single); });
    }
};

// What is put on the stream of the last device.
template <class F>
int later(Parts* parts, const char* what, F f) {
    auto* kept = new F(std::move(f));
    const auto work = [](void* it) { return (*static_cast<F*>(it))(), delete static_cast<F*>(it), 1; };
    return on(parts->gpus.back(), [&] { return driver().polled(parts->stream, what, work, kept); }) ? 6 : 0;
}

int xt_set_gpus(Plan& p, int count, const int* gpus) {
    int there = 0;
    driver().count(&there);
    if (count < 2 || count > 16) return invalid_value;
    for (int k = 0; k < count; ++k)
        if (gpus[k] < 0 || gpus[k] >= there) return invalid_device;
    return p.gpus.assign(gpus, gpus + count), 0;
}

int xt_make(Plan& p, std::vector<Long> n, int kind, std::size_t* work) {
    if (p.gpus.empty() || !p.n.empty()) return invalid_plan;
    for (const Long k : n)
        if (k < 32) return invalid_size;
    p.n = std::move(n), p.kind = kind;
    for (std::size_t k = 0; k < p.gpus.size(); ++k) work[k] = 64; // one for each device
    return 0;
}

int xt_malloc(Plan& p, Parts** made, int format) {
    if (p.n.empty() || format != 2) return invalid_value;
    auto* parts = new Parts{p.gpus, p.n, single(p.kind), false, {}, nullptr};
    std::size_t all = parts->size();
    for (const Long k : p.n) all *= std::size_t(k);
    for (const int gpu : p.gpus) { // a part of either axis fits
        std::uintptr_t address = 0;
        if (on(gpu, [&] { return driver().allocate(&address, 2 * all / p.gpus.size() + all / 32); }))
            return 2;
        parts->data.push_back(address);
    }
    on(p.gpus.back(), [&] { return driver().make_stream(&parts->stream, 1, 0); });
    return *made = parts, 0;
}

int xt_memcpy(void* to, void* from, int way) {
    const auto all_done = [](Parts* parts) {
        for (const int gpu : parts->gpus) on(gpu, [] { return driver().synchronize(); });
    };
    if (way == 0 || way == 1) {
        auto* parts = static_cast<Parts*>(way == 0 ? to : from);
        all_done(parts);
        if (way == 0) parts->shuffled = false;
        parts->each_number([&](Long at, char* place) {
            char* host = static_cast<char*>(way == 0 ? from : to) + std::size_t(at) * parts->size();
            std::memcpy(way == 0 ? place : host, way == 0 ? host : place, parts->size());
        });
        return 0;
    }
    auto *out = static_cast<Parts*>(to), *in = static_cast<Parts*>(from);
    if (way != 2 || out == in) return invalid_value;
    return later(in, "a copy to natural order", [=] { out->shuffled = false, out->put(in->numbers()); });
}

int xt_execute(Plan& p, int kind, Parts* in, Parts* out, int direction) {
    if (p.kind != kind) return invalid_plan;
    if (in != out || (direction != 1 && direction != -1)) return invalid_value;
    return later(in, "a transform on several devices", [in, direction] {
        auto x = in->numbers();
        transform(x, in->n, direction);
        in->shuffled = !in->shuffled;
        in->put(x);
        reported("cufftXtRan");
    });
}
#endif

template <class F>
int with(const std::string& name, std::intptr_t handle, F f) {
    if (const int code = reported(name)) return code;
    const std::lock_guard lock(guard);
    Plan* p = plan_of(handle);
    return p ? f(*p) : int{invalid_plan};
}

} // namespace

#define API extern "C" __attribute__((visibility("default"))) int

#ifdef JALI_OLD
#define WORK_AREA(prefix, Handle)
#else
#define WORK_AREA(prefix, Handle)                                                                            \
    API prefix##SetWorkArea(Handle plan, void* area) {                                                       \
        return with(#prefix "SetWorkArea", std::intptr_t(plan), [&](Plan& p) { return p.area = area, 0; });  \
    }
#endif

#define LIBRARY(prefix, Handle)                                                                              \
    API prefix##GetVersion(int* version) {                                                                   \
        return *version = 11206, reported(#prefix "GetVersion");                                             \
    }                                                                                                        \
    API prefix##Create(Handle* plan) {                                                                       \
        std::intptr_t made = 0;                                                                              \
        const int code = create(#prefix "Create", &made);                                                    \
        *plan = (Handle)made;                                                                                \
        return code;                                                                                         \
    }                                                                                                        \
    API prefix##SetAutoAllocation(Handle plan, int on) {                                                     \
        return with(#prefix "SetAutoAllocation", std::intptr_t(plan),                                        \
                    [&](Plan& p) { return p.automatic = on != 0, 0; });                                      \
    }                                                                                                        \
    API prefix##MakePlanMany64(Handle plan, int rank, Long* n, Long* inembed, Long istride, Long idist,      \
                               Long* onembed, Long ostride, Long odist, int kind, Long batch,                \
                               std::size_t* work) {                                                          \
        return make(#prefix "MakePlanMany64", std::intptr_t(plan), rank, n, inembed, istride, idist,         \
                    onembed, ostride, odist, kind, batch, work);                                             \
    }                                                                                                        \
    API prefix##SetStream(Handle plan, void* stream) {                                                       \
        return with(#prefix "SetStream", std::intptr_t(plan),                                                \
                    [&](Plan& p) { return p.stream = stream, 0; });                                          \
    }                                                                                                        \
    WORK_AREA(prefix, Handle)                                                                                \
    API prefix##Destroy(Handle plan) {                                                                       \
        return with(#prefix "Destroy", std::intptr_t(plan),                                                  \
                    [&](Plan&) { return plans.erase(std::intptr_t(plan)), 0; });                             \
    }                                                                                                        \
    API prefix##ExecC2C(Handle plan, void* in, void* out, int direction) {                                   \
        return execute(#prefix "ExecC2C", std::intptr_t(plan), c2c, in, out, direction);                     \
    }                                                                                                        \
    API prefix##ExecZ2Z(Handle plan, void* in, void* out, int direction) {                                   \
        return execute(#prefix "ExecZ2Z", std::intptr_t(plan), z2z, in, out, direction);                     \
    }                                                                                                        \
    API prefix##ExecR2C(Handle plan, void* in, void* out) {                                                  \
        return execute(#prefix "ExecR2C", std::intptr_t(plan), r2c, in, out, -1);                            \
    }                                                                                                        \
    API prefix##ExecD2Z(Handle plan, void* in, void* out) {                                                  \
        return execute(#prefix "ExecD2Z", std::intptr_t(plan), d2z, in, out, -1);                            \
    }                                                                                                        \
    API prefix##ExecC2R(Handle plan, void* in, void* out) {                                                  \
        return execute(#prefix "ExecC2R", std::intptr_t(plan), c2r, in, out, 1);                             \
    }                                                                                                        \
    API prefix##ExecZ2D(Handle plan, void* in, void* out) {                                                  \
        return execute(#prefix "ExecZ2D", std::intptr_t(plan), z2d, in, out, 1);                             \
    }

API fakeElementwise(void* stream, int multiply, int ndim, const Long* n, void* to, int to_type,
                    const Long* to_steps, void* from, int from_type, const Long* from_steps, double number) {
    auto* one = new Elementwise{{n, n + ndim},
                                {to_steps, to_steps + ndim},
                                {from_steps, from_steps + ndim},
                                static_cast<char*>(to),
                                static_cast<char*>(from),
                                to_type,
                                from_type,
                                multiply != 0,
                                number}; // graphs repeat it
    const auto work = [](void* it) { return static_cast<Elementwise*>(it)->go(), 1; };
    return driver().polled(stream, "a kernel of an array library", work, one);
}

LIBRARY(cufft, int)

#ifndef JALI_OLD
API cufftXtSetGPUs(int plan, int count, int* gpus) {
    return with("cufftXtSetGPUs", plan, [&](Plan& p) { return xt_set_gpus(p, count, gpus); });
}
API cufftMakePlan2d(int plan, int a, int b, int kind, std::size_t* work) {
    return with("cufftMakePlan2d", plan, [&](Plan& p) { return xt_make(p, {a, b}, kind, work); });
}
API cufftMakePlan3d(int plan, int a, int b, int c, int kind, std::size_t* work) {
    return with("cufftMakePlan3d", plan, [&](Plan& p) { return xt_make(p, {a, b, c}, kind, work); });
}
API cufftXtMalloc(int plan, Parts** parts, int format) {
    return with("cufftXtMalloc", plan, [&](Plan& p) { return xt_malloc(p, parts, format); });
}
API cufftXtFree(Parts* parts) {
    if (const int code = reported("cufftXtFree")) return code;
    for (std::size_t k = 0; k < parts->gpus.size(); ++k)
        on(parts->gpus[k], [&] { return driver().synchronize(), driver().release(parts->data[k]); });
    return delete parts, 0;
}
API cufftXtMemcpy(int plan, void* to, void* from, int way) {
    const int code = with("cufftXtMemcpy", plan, [](Plan&) { return 0; });
    return code ? code : xt_memcpy(to, from, way);
}
API cufftXtExecDescriptorC2C(int plan, Parts* in, Parts* out, int direction) {
    return with("cufftXtExecDescriptorC2C", plan,
                [&](Plan& p) { return xt_execute(p, c2c, in, out, direction); });
}
API cufftXtExecDescriptorZ2Z(int plan, Parts* in, Parts* out, int direction) {
    return with("cufftXtExecDescriptorZ2Z", plan,
                [&](Plan& p) { return xt_execute(p, z2z, in, out, direction); });
}
#endif
LIBRARY(hipfft, void*)
