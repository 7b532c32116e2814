// CPU lanes: the vector types and the memory access of generated kernels.
//
// A `real` holds one number for each of JALI_LANES sites. Everything here acts lane by lane with IEEE
// arithmetic, so the result for a site does not depend on the number of lanes, on its neighbours in the
// vector, on the instruction set or on the compiler. Contraction is off; a fused multiply-add is written
// fma(a, b, c). Defined before this text: JALI_LANES (1, 2, 4, 8 or 16) and JALI_REAL (double or float). No
// header is included and nothing is allocated. Tuned for x86-64; other targets take the per-lane forms.

#define JALI_KIND_double 1
#define JALI_KIND_float 0
#define JALI_KIND_PASTE(type) JALI_KIND_##type
#define JALI_KIND_OF(type) JALI_KIND_PASTE(type)
#define JALI_DOUBLE JALI_KIND_OF(JALI_REAL)

#define JALI_INLINE static inline __attribute__((always_inline, unused))
#define JALI_CALL static __attribute__((noinline, unused))
#define JALI_LIKELY(condition) __builtin_expect(!!(condition), 1)
#if defined(__clang__)
#define JALI_UNROLL _Pragma("unroll")
#else
#define JALI_UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(__has_builtin)
#define JALI_HAS(builtin) __has_builtin(builtin)
#else
#define JALI_HAS(builtin) 0
#endif

typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

#if JALI_DOUBLE
typedef int64_t lane_integer;
typedef uint64_t lane_unsigned;
#else
typedef int32_t lane_integer;
typedef uint32_t lane_unsigned;
#endif

// JALI_EACH_LANE(f) is the initialiser list f(0), f(1), ...
#if JALI_LANES == 1
#define JALI_EACH_LANE(f) f(0)
#elif JALI_LANES == 2
#define JALI_EACH_LANE(f) f(0), f(1)
#elif JALI_LANES == 4
#define JALI_EACH_LANE(f) f(0), f(1), f(2), f(3)
#elif JALI_LANES == 8
#define JALI_EACH_LANE(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#elif JALI_LANES == 16
#define JALI_EACH_LANE(f)                                                                                    \
    f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#else
#error "JALI_LANES must be 1, 2, 4, 8 or 16"
#endif

#if JALI_LANES == 1
// One lane is a class, since GCC keeps vectors of one element in memory. The operators mean what they mean
// for vectors: comparisons give 0 or -1, scalars spread over the lane.
#define JALI_BINARY(op)                                                                                      \
    friend inline __attribute__((always_inline)) one_lane operator op(one_lane a, one_lane b) {              \
        return T(a.value op b.value);                                                                        \
    }                                                                                                        \
    inline __attribute__((always_inline)) one_lane& operator op## = (one_lane b) {                           \
        return *this = *this op b;                                                                           \
    }
#define JALI_COMPARE(op)                                                                                     \
    friend inline __attribute__((always_inline)) one_lane<lane_integer> operator op(one_lane a,              \
                                                                                    one_lane b) {            \
        return -lane_integer(a.value op b.value);                                                            \
    }
template <class T>
struct one_lane {
    T value;
    one_lane() = default;
    inline __attribute__((always_inline)) one_lane(T x) : value(x) {}
    T& operator[](int) { return value; }
    const T& operator[](int) const { return value; }
    inline __attribute__((always_inline)) one_lane operator-() const { return T(-value); }
    inline __attribute__((always_inline)) one_lane operator~() const { return T(~value); }
    JALI_BINARY(+)
    JALI_BINARY(-) JALI_BINARY(*) JALI_BINARY(/) JALI_BINARY(%) JALI_BINARY(&) JALI_BINARY(|) JALI_BINARY(^)
        JALI_BINARY(<<) JALI_BINARY(>>) JALI_COMPARE(<) JALI_COMPARE(>) JALI_COMPARE(<=) JALI_COMPARE(>=)
            JALI_COMPARE(==) JALI_COMPARE(!=)
};
#undef JALI_BINARY
#undef JALI_COMPARE
typedef one_lane<JALI_REAL> real;
typedef one_lane<lane_integer> integer;
typedef one_lane<lane_unsigned> unsigned_integer;
typedef one_lane<float> stored_f32;
#else
typedef JALI_REAL real __attribute__((vector_size(JALI_LANES * sizeof(JALI_REAL))));
typedef decltype(real{} < real{}) integer;
typedef lane_unsigned unsigned_integer __attribute__((vector_size(JALI_LANES * sizeof(JALI_REAL))));
typedef float stored_f32 __attribute__((vector_size(JALI_LANES * sizeof(float))));
#endif
typedef integer mask; // lanes are 0 (false) or -1 (true)

JALI_INLINE real splat(JALI_REAL x) {
#define JALI_LANE(l) x
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}
JALI_INLINE integer splat_integer(lane_integer x) {
#define JALI_LANE(l) x
    return integer{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}

// The same bits seen as another type.
JALI_INLINE integer bits_of(real x) {
    integer r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
JALI_INLINE real real_of_bits(integer x) {
    real r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
JALI_INLINE unsigned_integer as_unsigned(integer x) {
    unsigned_integer r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
JALI_INLINE integer as_signed(unsigned_integer x) {
    integer r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}

// `native` is the widest vector whose fused multiply-add, root and floor are one instruction; wider reals are
// taken piece by piece.
#if defined(__AVX512F__) && !defined(__clang__)
#define JALI_NATIVE_BITS 512
#elif defined(__AVX__)
#define JALI_NATIVE_BITS 256
#elif defined(__SSE4_1__)
#define JALI_NATIVE_BITS 128
#else
#define JALI_NATIVE_BITS 0
#endif
#if JALI_DOUBLE
#define JALI_REAL_BITS (64 * JALI_LANES)
#else
#define JALI_REAL_BITS (32 * JALI_LANES)
#endif
#if JALI_LANES > 1 && JALI_NATIVE_BITS == 512 && JALI_REAL_BITS >= 512
typedef JALI_REAL native __attribute__((vector_size(64)));
#if JALI_DOUBLE
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd512_mask(a, a, -1, 4)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_rndscalepd_mask(a, 9, a, -1, 4)
#else
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtps512_mask(a, a, -1, 4)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_rndscaleps_mask(a, 9, a, -1, 4)
#endif
#elif JALI_LANES > 1 && JALI_NATIVE_BITS >= 256 && JALI_REAL_BITS >= 256
typedef JALI_REAL native __attribute__((vector_size(32)));
#if JALI_DOUBLE
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddpd256(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd256(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundpd256(a, 9)
#else
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtps256(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundps256(a, 9)
#endif
#elif JALI_LANES > 1 && JALI_NATIVE_BITS >= 128 && JALI_REAL_BITS >= 128
typedef JALI_REAL native __attribute__((vector_size(16)));
#if JALI_DOUBLE
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddpd(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundpd(a, 9)
#else
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddps(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtps(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundps(a, 9)
#endif
#endif
#if defined(JALI_NATIVE_FMA)
union native_pieces {
    real whole;
    native piece[sizeof(real) / sizeof(native)];
};
#if !defined(__FMA__)
#undef JALI_NATIVE_FMA
#endif
#endif

JALI_INLINE double fma_one(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
JALI_INLINE float fma_one(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
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

// a * b + c, rounded once
JALI_INLINE real fma(real a, real b, real c) {
#if JALI_LANES > 1 && JALI_HAS(__builtin_elementwise_fma)
    return __builtin_elementwise_fma(a, b, c);
#elif defined(JALI_NATIVE_FMA)
    native_pieces x = {a}, y = {b}, z = {c};
    JALI_UNROLL
    for (unsigned p = 0; p < sizeof(real) / sizeof(native); ++p)
        z.piece[p] = JALI_NATIVE_FMA(x.piece[p], y.piece[p], z.piece[p]);
    return z.whole;
#else
#define JALI_LANE(l) fma_one(a[l], b[l], c[l])
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
#endif
}
// c - a * b, rounded once
JALI_INLINE real fnma(real a, real b, real c) {
    return fma(-a, b, c);
}
// a * b - c, rounded once
JALI_INLINE real fms(real a, real b, real c) {
    return fma(a, b, -c);
}

JALI_INLINE real vsqrt(real a) {
#if JALI_LANES > 1 && JALI_HAS(__builtin_elementwise_sqrt)
    return __builtin_elementwise_sqrt(a);
#elif defined(JALI_NATIVE_SQRT)
    native_pieces x = {a};
    JALI_UNROLL
    for (unsigned p = 0; p < sizeof(real) / sizeof(native); ++p) x.piece[p] = JALI_NATIVE_SQRT(x.piece[p]);
    return x.whole;
#else
#define JALI_LANE(l) sqrt_one(a[l])
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
#endif
}
JALI_INLINE real vfloor(real a) {
#if JALI_LANES > 1 && JALI_HAS(__builtin_elementwise_floor)
    return __builtin_elementwise_floor(a);
#elif defined(JALI_NATIVE_FLOOR)
    native_pieces x = {a};
    JALI_UNROLL
    for (unsigned p = 0; p < sizeof(real) / sizeof(native); ++p) x.piece[p] = JALI_NATIVE_FLOOR(x.piece[p]);
    return x.whole;
#else
#define JALI_LANE(l) floor_one(a[l])
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
#endif
}

// a where the mask is true, b elsewhere
JALI_INLINE real select(mask m, real a, real b) {
#if JALI_LANES == 1
    return m.value ? a : b;
#else
    return m ? a : b;
#endif
}
JALI_INLINE integer select(mask m, integer a, integer b) {
#if JALI_LANES == 1
    return m.value ? a : b;
#else
    return m ? a : b;
#endif
}
// x where the mask is true, exactly +0 elsewhere (also where x is inf or nan)
JALI_INLINE real keep(mask m, real x) {
    return real_of_bits(m & bits_of(x));
}

JALI_INLINE bool any(mask m) {
#if JALI_LANES > 1 && defined(JALI_NATIVE_SQRT) && JALI_NATIVE_BITS == 256 && JALI_REAL_BITS == 256
    typedef long long quads __attribute__((vector_size(32)));
    return !__builtin_ia32_ptestz256((quads)m, (quads)m);
#else
    lane_integer found = 0;
    JALI_UNROLL
    for (int l = 0; l < JALI_LANES; ++l) found |= m[l];
    return found != 0;
#endif
}
JALI_INLINE bool all(mask m) {
    return !any(~m);
}

JALI_INLINE integer sign_bits() {
    return splat_integer(lane_integer(lane_unsigned(1) << (8 * sizeof(JALI_REAL) - 1)));
}
JALI_INLINE real vabs(real a) {
    return real_of_bits(bits_of(a) & ~sign_bits());
}
// the magnitude of a with the sign of b
JALI_INLINE real copy_sign(real a, real b) {
    return real_of_bits((bits_of(a) & ~sign_bits()) | (bits_of(b) & sign_bits()));
}
// a < b ? a : b and a > b ? a : b: where a comparison with nan fails, the second argument is the result
JALI_INLINE real vmin(real a, real b) {
    return select(a < b, a, b);
}
JALI_INLINE real vmax(real a, real b) {
    return select(a > b, a, b);
}

JALI_INLINE real to_real(integer a) {
#if JALI_LANES == 1
    return JALI_REAL(a.value);
#else
    return __builtin_convertvector(a, real);
#endif
}
// The largest integer that is not above a (floor). Undefined where it does not fit.
JALI_INLINE integer to_integer(real a) {
#if JALI_LANES == 1
    return lane_integer(floor_one(a.value));
#else
    return __builtin_convertvector(vfloor(a), integer);
#endif
}

// Lane l is true where bit l is set.
JALI_INLINE mask lanes_from_bits(uint32_t bits) {
#define JALI_LANE(l) lane_integer(1) << l
    const integer bit = {JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
    return (splat_integer(lane_integer(bits)) & bit) != splat_integer(0);
}

JALI_INLINE void store_masked(real* target, real v, mask m) {
    *target = select(m, v, *target);
}

// Memory. A field is [block][N][lane]; an entry of a neighbour table is class << 26 | block. Class 0 is a
// plain load. Other classes name a lane permutation, permutations[class][lane]: lane l of the result is lane
// permutations[l] of the block; and, for fields with boundary phases, a factor per lane,
// phases[class][2][lane] (real and imaginary part).
const uint32_t ENTRY_CLASS_SHIFT = 26;
const uint32_t ENTRY_BLOCK = (uint32_t(1) << ENTRY_CLASS_SHIFT) - 1;

#if JALI_LANES == 1
struct lane_order {};
JALI_INLINE lane_order load_order(const int32_t*) {
    return {};
}
JALI_INLINE real permute(real x, lane_order) {
    return x;
}
JALI_INLINE stored_f32 permute_f32(stored_f32 x, const int32_t*) {
    return x;
}
#elif defined(__clang__)
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
    return __builtin_shuffle(x, order);
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

// One number per lane from memory of any alignment: boundary factors live in NumPy arrays.
JALI_INLINE real load_factor(const JALI_REAL* p) {
    real r;
    __builtin_memcpy(&r, p, sizeof r);
    return r;
}
// Multiplies N/2 complex numbers by a phase per lane. (1, 0) leaves the bits alone, (-1, 0) flips signs, and
// (0, 0) gives +0 whatever the value was: an open boundary has nothing behind it.
template <int N>
JALI_CALL void apply_phase(real* x, const JALI_REAL* phase) {
    const real re = load_factor(phase), im = load_factor(phase + JALI_LANES);
    const real zero = splat(0);
    const mask is_real = im == zero, inside = ~(is_real & (re == zero));
    if (all(is_real)) {
        for (int c = 0; c < N; ++c) x[c] = keep(inside, x[c] * re);
    } else {
        for (int c = 0; c < N; c += 2) {
            const real a = x[c], b = x[c + 1];
            x[c] = keep(inside, select(is_real, a * re, fnma(b, im, a * re)));
            x[c + 1] = keep(inside, select(is_real, b * re, fma(a, im, b * re)));
        }
    }
}
// Multiplies N reals by a sign per lane: 1, -1, or 0 with the meaning of apply_phase.
template <int N>
JALI_CALL void apply_sign(real* x, const JALI_REAL* factor) {
    const real sign = load_factor(factor);
    const mask inside = sign != splat(0);
    for (int c = 0; c < N; ++c) x[c] = keep(inside, x[c] * sign);
}

// stage for complex fields with boundary phases, and for real fields with boundary signs
// (phases[class][lane]).
template <int N>
JALI_INLINE const real* stage_phased(real* tmp, const JALI_REAL* base, uint32_t entry,
                                     const int32_t* permutations, const JALI_REAL* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const real* source = stage<N>(tmp, base, entry, permutations);
    if (JALI_LIKELY(kind == 0)) return source;
    apply_phase<N>(tmp, phases + kind * 2 * JALI_LANES);
    return tmp;
}
template <int N>
JALI_INLINE const real* stage_signed(real* tmp, const JALI_REAL* base, uint32_t entry,
                                     const int32_t* permutations, const JALI_REAL* signs) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    const real* source = stage<N>(tmp, base, entry, permutations);
    if (JALI_LIKELY(kind == 0)) return source;
    apply_sign<N>(tmp, signs + kind * JALI_LANES);
    return tmp;
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
JALI_INLINE const real* block_at_f32(real* tmp, const float* base, int64_t block) {
    const stored_f32* source = (const stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) tmp[c] = widen(source[c]);
    return tmp;
}
template <int N>
JALI_INLINE const real* stage_f32(real* tmp, const float* base, uint32_t entry, const int32_t* permutations) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    block_at_f32<N>(tmp, base, entry & ENTRY_BLOCK);
    if (JALI_LIKELY(kind == 0)) return tmp;
    const lane_order order = load_order(permutations + kind * JALI_LANES);
    for (int c = 0; c < N; ++c) tmp[c] = permute(real(tmp[c]), order);
    return tmp;
}
template <int N>
JALI_INLINE const real* stage_phased_f32(real* tmp, const float* base, uint32_t entry,
                                         const int32_t* permutations, const JALI_REAL* phases) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    stage_f32<N>(tmp, base, entry, permutations);
    if (!JALI_LIKELY(kind == 0)) apply_phase<N>(tmp, phases + kind * 2 * JALI_LANES);
    return tmp;
}
template <int N>
JALI_INLINE const real* stage_signed_f32(real* tmp, const float* base, uint32_t entry,
                                         const int32_t* permutations, const JALI_REAL* signs) {
    const uint32_t kind = entry >> ENTRY_CLASS_SHIFT;
    stage_f32<N>(tmp, base, entry, permutations);
    if (!JALI_LIKELY(kind == 0)) apply_sign<N>(tmp, signs + kind * JALI_LANES);
    return tmp;
}
template <int N>
JALI_INLINE void store_f32(float* base, int64_t block, const real* v) {
    stored_f32* target = (stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = narrow(v[c]);
}
template <int N>
JALI_INLINE void store_f32_masked(float* base, int64_t block, const real* v, mask m) {
    stored_f32* target = (stored_f32*)base + block * N;
    for (int c = 0; c < N; ++c) target[c] = narrow(select(m, v[c], widen(target[c])));
}
#endif

// Algebra storage: the N*N-1 reals of a traceless anti-Hermitian N x N matrix Z. First re and im of Z_ij for
// i < j, row by row, then Im Z_ii for i < N-1; Z_NN is minus the sum of the others. N = 1 is u(1): one real
// a, Z = i a.
template <int N>
JALI_INLINE void algebra_decode(real* m, const real* a) {
    int next = 0;
    for (int i = 0; i < N; ++i)
        for (int j = i + 1; j < N; ++j, next += 2) {
            m[2 * (i * N + j)] = a[next];
            m[2 * (i * N + j) + 1] = a[next + 1];
            m[2 * (j * N + i)] = -a[next];
            m[2 * (j * N + i) + 1] = a[next + 1];
        }
    real last = splat(0);
    for (int i = 0; i < N; ++i) {
        m[2 * (i * N + i)] = splat(0);
        const real diagonal = N == 1 ? a[0] : i < N - 1 ? a[next + i] : -last;
        m[2 * (i * N + i) + 1] = diagonal;
        last = last + diagonal;
    }
}
template <int N>
JALI_INLINE void algebra_encode(real* a, const real* m) {
    int next = 0;
    for (int i = 0; i < N; ++i)
        for (int j = i + 1; j < N; ++j) {
            a[next++] = m[2 * (i * N + j)];
            a[next++] = m[2 * (i * N + j) + 1];
        }
    for (int i = 0; i < (N == 1 ? 1 : N - 1); ++i) a[next++] = m[2 * (i * N + i) + 1];
}
