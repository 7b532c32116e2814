// The target GPU: how functions and kernels are declared, numbers of fixed width, threads, atomics.
//
// One thread computes one site at a time, so JALI_LANES is 1. CUDA (NVRTC) and HIP (hipRTC) have the same
// words for nearly everything; JALI_ONE_THREAD is neither: a host compiler, and somebody who runs the blocks
// of a kernel, of one thread each, in turns, with which the tests exercise these paths where there is no GPU.
// Kernels take one structure and go through their work with a stride, so that any number of threads does all
// of it. AMD's side has never run on hardware.

#define JALI_GPU 1
#if defined(JALI_ONE_THREAD)
#define JALI_DEVICE
#define JALI_UNROLL _Pragma("GCC unroll 4")
#define JALI_MEMBER inline
#define JALI_ENTRY_FOR(threads, name, type)                                                                  \
    static void name##_thread(const type& a);                                                                \
    extern "C" __attribute__((visibility("default"))) const unsigned long name##_bytes = sizeof(type);       \
    extern "C" __attribute__((visibility("default"))) void name(void** p) {                                  \
        name##_thread(*(const type*)p[0]);                                                                   \
    }                                                                                                        \
    static void name##_thread(const type& a)
#define JALI_SHARED // a block is one thread
#elif defined(__HIPCC_RTC__) || defined(__HIP__)
#define JALI_DEVICE __device__
#define JALI_UNROLL _Pragma("unroll")
#define JALI_MEMBER __device__ inline __attribute__((always_inline))
#define JALI_ENTRY_FOR(threads, name, type)                                                                  \
    extern "C" __global__ void __launch_bounds__(threads) name(const type a)
#define JALI_SHARED __shared__
#else
#define JALI_DEVICE __device__
#define JALI_UNROLL _Pragma("unroll")
#define JALI_MEMBER __device__ __forceinline__
#define JALI_ENTRY_FOR(threads, name, type)                                                                  \
    extern "C" __global__ void __launch_bounds__(threads, JALI_BLOCKS) name(const __grid_constant__ type a)
#define JALI_SHARED __shared__
#endif
// On CUDA's devices since 9.0 a kernel is launched while the one in front of it on its stream may still run
// (Gpu::launch). after_previous() returns when that one has ended and what it stored is there; the next one
// is let in when all threads have come to let_next_begin() or ended, which no kernel may say that still waits
// for another device: a large kernel behind it would take all places, and what the other device waits for
// might find none.
#if defined(JALI_ONE_THREAD)
// Which block runs now, and what it says to who runs it: that it waits, until a word has come to a value (or,
// of null, until something has changed); that another may run instead; and what the two functions below are
// for.
struct jali_block_here {
    __INT64_TYPE__ block, blocks;
    void (*pause)(const __INT64_TYPE__* word, __INT64_TYPE__ value);
    void (*turn)();
    void (*after_previous)();
    void (*let_next_begin)();
};
extern "C" __attribute__((visibility("default"))) const jali_block_here* jali_here;
const jali_block_here* jali_here; // set when the kernels are loaded
static JALI_MEMBER void after_previous() {
    jali_here->after_previous();
}
static JALI_MEMBER void let_next_begin() {
    jali_here->let_next_begin();
}
#elif defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
static JALI_MEMBER void after_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
static JALI_MEMBER void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
static JALI_MEMBER void after_previous() {
}
static JALI_MEMBER void let_next_begin() {
}
#endif
// Where 16-bit floats are rounded by an instruction: from float, and to it.
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
#define JALI_ROUNDS_16
static JALI_MEMBER unsigned short half_of(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
static JALI_MEMBER unsigned short half_of(double x) {
    unsigned short h;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h) : "d"(x));
    return h;
}
static JALI_MEMBER float of_half(unsigned short h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
static JALI_MEMBER unsigned short bfloat16_of(float x) {
    unsigned short b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
    return b;
}
#endif
// A kernel whose body begins after the one in front has ended. It says nothing to the next one, which is let
// in as its blocks end: those of a kernel that is let in sooner wait where others could work (measured,
// docs/notes/gpu-kernels.md).
#define JALI_KERNEL(name, type) JALI_KERNEL_FOR(JALI_THREADS, name, type)
// Of so many threads in a block at most.
#define JALI_KERNEL_FOR(threads, name, type)                                                                 \
    static JALI_MEMBER void name##_body(const type& a);                                                      \
    JALI_ENTRY_FOR(threads, name, type) {                                                                    \
        after_previous();                                                                                    \
        name##_body(a);                                                                                      \
    }                                                                                                        \
    static JALI_MEMBER void name##_body(const type& a)
// One that calls after_previous() itself, before it reads what others store.
#define JALI_EARLY_KERNEL(name, type) JALI_ENTRY_FOR(JALI_THREADS, name, type)
#define JALI_INLINE static JALI_MEMBER
#define JALI_CALL static JALI_MEMBER
#if defined(JALI_ONE_THREAD)
#define JALI_OUT_OF_LINE static
#else
#define JALI_OUT_OF_LINE static __device__ __attribute__((noinline)) // rare: not worth its code at every use
#endif
#define JALI_LIKELY(condition) (condition)
#define JALI_HAS(builtin) 0

#if defined(__HIPCC_RTC__) || defined(__HIP__)
// Some hipRTCs know these names already, as other types of the same width, and some do not.
typedef __INT32_TYPE__ jali_int32_t;
typedef __UINT32_TYPE__ jali_uint32_t;
typedef __INT64_TYPE__ jali_int64_t;
typedef __UINT64_TYPE__ jali_uint64_t;
#define int32_t jali_int32_t
#define uint32_t jali_uint32_t
#define int64_t jali_int64_t
#define uint64_t jali_uint64_t
#elif defined(JALI_ONE_THREAD)
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
#else
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#endif

#if defined(JALI_ONE_THREAD) || defined(__HIPCC_RTC__) || defined(__HIP__)
#define copy_bits __builtin_memcpy
JALI_INLINE double fma_one(double a, double b, double c) {
    double r = __builtin_fma(a, b, c);
    JALI_ROUNDED(r);
    return r;
}
JALI_INLINE float fma_one(float a, float b, float c) {
    float r = __builtin_fmaf(a, b, c);
    JALI_ROUNDED(r);
    return r;
}
JALI_INLINE double sqrt_one(double a) {
    return __builtin_sqrt(a);
}
JALI_INLINE float sqrt_one(float a) {
    return __builtin_sqrtf(a);
}
JALI_INLINE double floor_one(double a) {
    return __builtin_floor(a);
}
JALI_INLINE float floor_one(float a) {
    return __builtin_floorf(a);
}
JALI_INLINE double infinity_of_target() {
    return __builtin_inf();
}
JALI_INLINE double nan_of_target() {
    return __builtin_nan("");
}
#else
#define copy_bits memcpy
JALI_INLINE double fma_one(double a, double b, double c) {
    return __fma_rn(a, b, c);
}
JALI_INLINE float fma_one(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
JALI_INLINE double sqrt_one(double a) {
    return __dsqrt_rn(a);
}
JALI_INLINE float sqrt_one(float a) {
    return __fsqrt_rn(a);
}
JALI_INLINE double floor_one(double a) {
    return floor(a);
}
JALI_INLINE float floor_one(float a) {
    return floorf(a);
}
JALI_INLINE double infinity_of_target() {
    return __longlong_as_double(0x7ff0000000000000);
}
JALI_INLINE double nan_of_target() {
    return __longlong_as_double(0x7ff8000000000000);
}
#endif

#if defined(JALI_ONE_THREAD)
JALI_INLINE int64_t thread_in_block() {
    return 0;
}
JALI_INLINE int64_t threads_in_block() {
    return 1;
}
JALI_INLINE int64_t block_in_grid() {
    return jali_here->block;
}
JALI_INLINE int64_t blocks_in_grid() {
    return jali_here->blocks;
}
JALI_INLINE void meet() {
}
JALI_INLINE void add_atomically(int64_t* target, int64_t value) {
    *target += value;
}
JALI_INLINE int64_t count_atomically(int64_t* target) {
    return (*target)++;
}
JALI_INLINE void raise_atomically(int64_t* target, uint64_t value) {
    if (value > (uint64_t)*target) *target = (int64_t)value;
}
JALI_INLINE int lanes_of_warp() {
    return 1;
}
JALI_INLINE bool first_of_warp() {
    return true;
}
JALI_INLINE int64_t sum_of_warp(int64_t x) {
    return x;
}
JALI_INLINE int most_of_warp(int x) {
    return x;
}
JALI_INLINE void fence_device() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    jali_here->turn();
}
JALI_INLINE void fence_system() {
    fence_device();
}
JALI_INLINE void pause(const int64_t* word = nullptr, int64_t value = 0) {
    jali_here->pause(word, value);
}
#else
JALI_INLINE int64_t thread_in_block() {
    return threadIdx.x;
}
JALI_INLINE int64_t threads_in_block() {
    return blockDim.x;
}
JALI_INLINE int64_t block_in_grid() {
    return blockIdx.x;
}
JALI_INLINE int64_t blocks_in_grid() {
    return gridDim.x;
}
JALI_INLINE void meet() {
    __syncthreads();
} // of all threads of a block
JALI_INLINE void add_atomically(int64_t* target, int64_t value) {
    atomicAdd((unsigned long long*)target, (unsigned long long)value);
}
JALI_INLINE int64_t count_atomically(int64_t* target) { // returns what was there before
    return (int64_t)atomicAdd((unsigned long long*)target, 1ull);
}
JALI_INLINE void raise_atomically(int64_t* target, uint64_t value) { // to the larger, without signs
    atomicMax((unsigned long long*)target, (unsigned long long)value);
}
#if defined(__HIPCC_RTC__) || defined(__HIP__)
template <class T>
JALI_INLINE T of_other_lane(T x, int distance) {
    return __shfl_xor(x, distance);
}
JALI_INLINE int lanes_of_warp() {
    return warpSize;
}
#else
template <class T>
JALI_INLINE T of_other_lane(T x, int distance) {
    return __shfl_xor_sync(0xffffffff, x, distance);
}
JALI_INLINE int lanes_of_warp() {
    return 32;
}
#endif
// All threads of a warp call these together; blocks are whole warps.
JALI_INLINE bool first_of_warp() {
    return threadIdx.x % lanes_of_warp() == 0;
}
JALI_INLINE int64_t sum_of_warp(int64_t x) {
    for (int d = lanes_of_warp() / 2; d > 0; d /= 2) x += (int64_t)of_other_lane((long long)x, d);
    return x;
}
JALI_INLINE int most_of_warp(int x) {
    for (int d = lanes_of_warp() / 2; d > 0; d /= 2) {
        const int other = of_other_lane(x, d);
        x = other > x ? other : x;
    }
    return x;
}
JALI_INLINE void fence_device() {
    __threadfence();
}
JALI_INLINE void fence_system() {
    __threadfence_system();
}
JALI_INLINE void pause(const int64_t* = nullptr, int64_t = 0) {
}
#endif
// Who waits asks the host, whose memory is far away, once in so many looks whether it has given up; where
// blocks take turns a look is rare.
#if defined(JALI_ONE_THREAD)
const uint32_t HOST_CHECK_INTERVAL = 16;
#else
const uint32_t HOST_CHECK_INTERVAL = 4096;
#endif
// All threads of a block meet, and know whether all of them say yes.
JALI_INLINE bool meet_all(bool yes) {
#if defined(__CUDACC_RTC__)
    return __syncthreads_and(yes);
#else
    JALI_SHARED bool all;
    if (thread_in_block() == 0) all = true;
    meet();
    if (!yes) all = false;
    meet();
    yes = all;
    meet(); // before they ask again
    return yes;
#endif
}

JALI_INLINE int64_t thread_in_grid() {
    return block_in_grid() * threads_in_block() + thread_in_block();
}
JALI_INLINE int64_t threads_in_grid() {
    return blocks_in_grid() * threads_in_block();
}

// Blocks of a grid that share work: all, or those of a role (halos.hpp).
struct grid_part {
    int64_t block, blocks; // which of how many
    bool late;
    JALI_MEMBER int64_t thread() const { return block * threads_in_block() + thread_in_block(); }
    JALI_MEMBER int64_t threads() const { return blocks * threads_in_block(); }
};
JALI_INLINE grid_part whole_grid() {
    return grid_part{block_in_grid(), blocks_in_grid(), false};
}

// All numbers begin..end-1, each visited by one thread of a part of the grid, or of all of it.
#define JALI_FOR_EACH_OF(part, i, begin, end)                                                                \
    for (int64_t i = (begin) + (part).thread(); i < (end); i += (part).threads())
// The same for each turn of members of a batch. The sites of a group share neighbours, and their members share what has no batch; so turns
// that follow each other are those of a group, and find most of it in their cache.
struct member_turns {
    int64_t first, end;
};
JALI_INLINE member_turns turns_of_members(grid_part part, int64_t begin, int64_t end, int turns) {
    const int64_t groups = (end - begin / 32 * 32 + 31) / 32, all = groups * 32 * turns;
    const int64_t each = (all + part.threads() - 1) / part.threads() * threads_in_block(), first = part.block * each;
    return member_turns{first + thread_in_block(), first + each < all ? first + each : all};
}
#define JALI_FOR_EACH_TURN(turn, turns) for (int64_t turn = (turns).first; turn < (turns).end; turn += threads_in_block())
#define JALI_FOR_EACH(i, begin, end) JALI_FOR_EACH_OF(whole_grid(), i, begin, end)
