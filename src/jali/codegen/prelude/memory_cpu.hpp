// Fields in host memory: loading and storing the reals of a block of lanes.
//
// A field is [block][N][lane]; an entry of a neighbour table is class << JALI_BLOCK_BITS | block. Class 0 is a
// plain load. Other classes name a lane permutation, permutations[class][lane]: lane l of the result is lane
// permutations[l] of the block; and, for fields with boundary phases, a factor per lane,
// phases[class][2][lane] (real and imaginary part).
const uint32_t ENTRY_CLASS_SHIFT = JALI_BLOCK_BITS;
const uint32_t ENTRY_BLOCK = (uint32_t(1) << ENTRY_CLASS_SHIFT) - 1;

// Clang has no shuffle by a variable: where it is given no instruction, lanes go through memory one by one.
#if defined(__clang__) && JALI_DOUBLE && JALI_REAL_BITS == 512 && defined(__AVX512F__)
typedef long long lane_numbers __attribute__((vector_size(64)));
#define JALI_NATIVE_PERMUTE(x, order) __builtin_ia32_permvardf512(x, (lane_numbers)order)
#elif defined(__clang__) && JALI_DOUBLE && JALI_REAL_BITS == 256 && defined(__AVX512VL__)
typedef long long lane_numbers __attribute__((vector_size(32)));
#define JALI_NATIVE_PERMUTE(x, order) __builtin_ia32_permvardf256(x, (lane_numbers)order)
#elif defined(__clang__) && !JALI_DOUBLE && JALI_REAL_BITS == 512 && defined(__AVX512F__)
#define JALI_NATIVE_PERMUTE(x, order) __builtin_ia32_permvarsf512(x, order)
#elif defined(__clang__) && !JALI_DOUBLE && JALI_REAL_BITS == 256 && defined(__AVX2__)
#define JALI_NATIVE_PERMUTE(x, order) __builtin_ia32_permvarsf256(x, order)
#endif

#if JALI_LANES == 1
struct lane_order {};
JALI_INLINE lane_order load_order(const int32_t*) {
    return {};
}
JALI_INLINE real permute(real x, lane_order) {
    return x;
}
#elif defined(__clang__) && !defined(JALI_NATIVE_PERMUTE)
typedef const int32_t* lane_order;
JALI_INLINE lane_order load_order(const int32_t* permutation) {
    return permutation;
}
JALI_INLINE real permute(const real& x, lane_order order) {
    const JALI_REAL* source = (const JALI_REAL*)&x;
#define JALI_LANE(l) source[order[l]]
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}
#else
typedef integer lane_order;
JALI_INLINE lane_order load_order(const int32_t* permutation) {
#define JALI_LANE(l) permutation[l]
    return integer{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}
JALI_INLINE real permute(real x, lane_order order) {
#if defined(__clang__)
    return JALI_NATIVE_PERMUTE(x, order);
#else
    return __builtin_shuffle(x, order);
#endif
}
#endif

// The N reals that a neighbour entry names: their address in the field where nothing has to be done to them,
// else tmp.
template <int N>
JALI_INLINE const real* stage(real* tmp, const JALI_REAL* base, uint32_t entry, const int32_t* permutations) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const real* source = (const real*)base + int64_t(entry & ENTRY_BLOCK) * N;
    if (JALI_LIKELY(kind == 0)) return source;
    const lane_order order = load_order(permutations + kind * JALI_LANES);
    for (int c = 0; c < N; ++c) tmp[c] = permute(source[c], order);
    return tmp;
}
// The N reals of a block.
template <int N>
JALI_INLINE const real* block_at(const JALI_REAL* base, int64_t block) {
    return (const real*)base + block * N;
}

// Asks for the N reals that an entry names, which the next position reads, so that memory answers meanwhile.
template <int N, class T>
JALI_INLINE void fetch_ahead(const T* base, uint32_t entry) {
    constexpr int64_t bytes = N * JALI_LANES * sizeof(T), line = 64;
    const char* first = (const char*)base + int64_t(entry & ENTRY_BLOCK) * bytes;
    JALI_UNROLL
    for (int64_t byte = 0; byte < bytes; byte += line) __builtin_prefetch(first + byte);
}

template <int N>
JALI_INLINE void store_element(JALI_REAL* base, int64_t block, const real* v) {
    real* target = (real*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = v[c];
}
template <int N>
JALI_INLINE void store_element_masked(JALI_REAL* base, int64_t block, const real* v, mask m) {
    real* target = (real*)base + block * N;
    for (int c = 0; c < N; ++c) store_masked(target + c, v[c], m);
}

#if JALI_DOUBLE
// Single-precision storage under double-precision arithmetic. Loading is exact, storing rounds to nearest.
JALI_INLINE real widen(stored_f32 x) {
#if JALI_LANES == 1
    return double(x.value);
#else
    return __builtin_convertvector(x, real);
#endif
}
JALI_INLINE stored_f32 narrow(real x) {
#if JALI_LANES == 1
    return float(x.value);
#else
    return __builtin_convertvector(x, stored_f32);
#endif
}
template <int N>
JALI_INLINE const real* block_at(real* tmp, const float* base, int64_t block) {
    const stored_f32* source = (const stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) tmp[c] = widen(source[c]);
    return tmp;
}
template <int N>
JALI_INLINE const real* stage(real* tmp, const float* base, uint32_t entry, const int32_t* permutations) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    block_at<N>(tmp, base, entry & ENTRY_BLOCK);
    if (JALI_LIKELY(kind == 0)) return tmp;
    const lane_order order = load_order(permutations + kind * JALI_LANES);
    for (int c = 0; c < N; ++c) tmp[c] = permute(real(tmp[c]), order);
    return tmp;
}
template <int N>
JALI_INLINE void store_element(float* base, int64_t block, const real* v) {
    stored_f32* target = (stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = narrow(v[c]);
}
template <int N>
JALI_INLINE void store_element_masked(float* base, int64_t block, const real* v, mask m) {
    stored_f32* target = (stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = narrow(select(m, v[c], widen(target[c])));
}
#endif

// stage for complex fields with boundary phases, and for real fields with boundary signs
// (phases[class][lane]), stored as T.
template <int N, class T>
JALI_INLINE const real* stage_phased(real* tmp, const T* base, uint32_t entry, const int32_t* permutations,
                                     const JALI_REAL* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const real* source = stage<N>(tmp, base, entry, permutations);
    if (JALI_LIKELY(kind == 0)) return source;
    apply_phase<N>(tmp, phases + kind * 2 * JALI_LANES);
    return tmp;
}
template <int N, class T>
JALI_INLINE const real* stage_signed(real* tmp, const T* base, uint32_t entry, const int32_t* permutations,
                                     const JALI_REAL* signs) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const real* source = stage<N>(tmp, base, entry, permutations);
    if (JALI_LIKELY(kind == 0)) return source;
    apply_sign<N>(tmp, signs + kind * JALI_LANES);
    return tmp;
}
