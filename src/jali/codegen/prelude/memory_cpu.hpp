// Fields in host memory: loading and storing the reals of a block of lanes.
//
// A field is [block][N][lane]; an entry of a neighbour table is class << JALI_BLOCK_BITS | block. Class 0 is
// a plain load. Other classes name a lane permutation, permutations[class][lane]: lane l of the result is
// lane permutations[l] of the block; and, for fields with boundary phases, a factor per lane,
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

// A field of a batch keeps its members one behind the other in each block: the base for a plain load of a block of one.
template <int N, class T>
JALI_INLINE T* member_of(T* base, int64_t block, int64_t members, int64_t member) {
    return base + (block * (members - 1) + member) * (N * JALI_LANES);
}

// Asks for the N reals that an entry names, which the next position reads, so that memory answers meanwhile.
template <int N, class T>
JALI_INLINE void prefetch(const T* base, uint32_t entry) {
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

#if JALI_WIDENS
// Single-precision storage under double-precision arithmetic. Loading is exact, storing rounds to nearest.
JALI_INLINE real widen(stored_f32 x) {
#if JALI_LANES == 1
    return JALI_REAL(x.value);
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
JALI_INLINE void store_element(float* base, int64_t block, const real* v, int64_t* counters) {
    const mask lost = beyond_float<N>(v);
    if (!JALI_LIKELY(!any(lost))) count_overflow(counters, lost);
    stored_f32* target = (stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = narrow(v[c]);
}
template <int N>
JALI_INLINE void store_element_masked(float* base, int64_t block, const real* v, mask m, int64_t* counters) {
    const mask lost = beyond_float<N>(v) & m;
    if (!JALI_LIKELY(!any(lost))) count_overflow(counters, lost);
    stored_f32* target = (stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = narrow(select(m, v[c], widen(target[c])));
}
template <int N>
JALI_INLINE void as_stored(real* out, const float*, const real* v) {
    for (int c = 0; c < N; ++c) out[c] = widen(narrow(v[c]));
}
#endif

// Units of a coded field: [unit][lane], and the norms of the lanes behind them.
template <class UNIT>
JALI_INLINE integer load_unit(const char* from) {
#if JALI_LANES == 1
    UNIT unit;
    copy_bits(&unit, from, sizeof unit);
    return lane_integer(unit);
#else
    typedef UNIT lanes_of_units __attribute__((vector_size(JALI_LANES * sizeof(UNIT))));
    lanes_of_units unit;
    copy_bits(&unit, from, sizeof unit);
    return __builtin_convertvector(unit, integer);
#endif
}
template <class UNIT>
JALI_INLINE void store_unit(char* to, integer x) {
#if JALI_LANES == 1
    const UNIT unit = UNIT(x.value);
#else
    typedef UNIT lanes_of_units __attribute__((vector_size(JALI_LANES * sizeof(UNIT))));
    const lanes_of_units unit = __builtin_convertvector(x, lanes_of_units);
#endif
    copy_bits(to, &unit, sizeof unit);
}
template <class FORMAT, int UNITS, int PACKET>
JALI_INLINE void load_units(integer* units, real* norm, const coded<FORMAT, UNITS, PACKET>* base,
                            int64_t block) {
    constexpr int64_t step = JALI_LANES * sizeof(typename FORMAT::unit);
    const char* from = (const char*)base + block * (JALI_LANES * coded<FORMAT, UNITS, PACKET>::site_bytes);
    for (int c = 0; c < UNITS; ++c) units[c] = load_unit<typename FORMAT::unit>(from + c * step);
    if (FORMAT::norm) {
        stored_f32 norms;
        copy_bits(&norms, from + UNITS * step, sizeof norms);
#if JALI_LANES == 1
        *norm = JALI_REAL(norms.value);
#else
        *norm = __builtin_convertvector(norms, real);
#endif
    }
}
template <class FORMAT, int UNITS, int PACKET>
JALI_INLINE void store_units(coded<FORMAT, UNITS, PACKET>* base, int64_t block, const integer* units,
                             real norm) {
    constexpr int64_t step = JALI_LANES * sizeof(typename FORMAT::unit);
    char* to = (char*)base + block * (JALI_LANES * coded<FORMAT, UNITS, PACKET>::site_bytes);
    for (int c = 0; c < UNITS; ++c) store_unit<typename FORMAT::unit>(to + c * step, units[c]);
    if (FORMAT::norm) {
#if JALI_LANES == 1
        const stored_f32 norms = float(norm.value);
#else
        const stored_f32 norms = __builtin_convertvector(norm, stored_f32);
#endif
        copy_bits(to + UNITS * step, &norms, sizeof norms);
    }
}
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void store_element_masked(coded<FORMAT, UNITS, PACKET>* base, int64_t block, const V* v, mask m,
                                      int64_t* counters) {
    integer units[UNITS], before[UNITS];
    real norm = splat(0), norm_before = splat(0);
    const mask lost = FORMAT::template encode<N>(units, &norm, v) & m;
    if (!JALI_LIKELY(!any(lost))) count_overflow(counters, lost);
    load_units(before, &norm_before, base, block);
    for (int c = 0; c < UNITS; ++c) units[c] = select(m, units[c], before[c]);
    store_units(base, block, units, select(m, norm, norm_before));
}
#if JALI_LANES == 1
JALI_INLINE integer permute(integer x, lane_order) {
    return x;
}
#else
JALI_INLINE integer permute(const integer& x, lane_order order) {
    return bits_of(permute(real_of_bits(x), order));
}
#endif
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const V* stage(V* tmp, const coded<FORMAT, UNITS, PACKET>* base, uint32_t entry,
                           const int32_t* permutations) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    block_at<N>(tmp, base, entry & ENTRY_BLOCK);
    if (JALI_LIKELY(kind == 0)) return tmp;
    const lane_order order = load_order(permutations + kind * JALI_LANES);
    for (int c = 0; c < N; ++c) tmp[c] = permute(tmp[c], order);
    return tmp;
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE coded<FORMAT, UNITS, PACKET>* member_of(coded<FORMAT, UNITS, PACKET>* base, int64_t block, int64_t members,
                                                    int64_t member) {
    const int64_t bytes = coded<FORMAT, UNITS, PACKET>::site_bytes * JALI_LANES;
    return (coded<FORMAT, UNITS, PACKET>*)((char*)base + (block * (members - 1) + member) * bytes);
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const coded<FORMAT, UNITS, PACKET>* member_of(const coded<FORMAT, UNITS, PACKET>* base, int64_t block,
                                                          int64_t members, int64_t member) {
    return member_of<N>((coded<FORMAT, UNITS, PACKET>*)base, block, members, member);
}
template <int N, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void prefetch(const coded<FORMAT, UNITS, PACKET>* base, uint32_t entry) {
    prefetch<coded<FORMAT, UNITS, PACKET>::site_bytes>((const char*)base, entry);
}
// The boundary factor of what an entry names.
template <int N>
JALI_INLINE void phase_across(real* x, uint32_t entry, const int32_t*, const given_real* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    if (!JALI_LIKELY(kind == 0)) apply_phase<N>(x, phases + kind * 2 * JALI_LANES);
}

// stage for complex fields with boundary phases, and for real and whole numbers with boundary signs
// (phases[class][lane]), stored as T.
template <int N, class T>
JALI_INLINE const real* stage_phased(real* tmp, const T* base, uint32_t entry, const int32_t* permutations,
                                     const given_real* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const real* source = stage<N>(tmp, base, entry, permutations);
    if (JALI_LIKELY(kind == 0)) return source;
    apply_phase<N>(tmp, phases + kind * 2 * JALI_LANES);
    return tmp;
}
template <int N, class V, class T>
JALI_INLINE const V* stage_signed(V* tmp, const T* base, uint32_t entry, const int32_t* permutations,
                                  const given_real* signs) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const V* source = stage<N>(tmp, base, entry, permutations);
    if (JALI_LIKELY(kind == 0)) return source;
    apply_sign<N>(tmp, signs + kind * JALI_LANES);
    return tmp;
}
