// Lanes: the vector types of generated kernels and their arithmetic.
//
// A `real` holds one number for each of JALI_LANES sites. Everything here acts lane by lane with IEEE
// arithmetic, so the result for a site does not depend on the number of lanes, on its neighbours in the
// vector, on the instruction set, on the compiler or on the kind of processor. Contraction is off; a fused
// multiply-add is written fma(a, b, c). Defined before this text: JALI_LANES (1, 2, 4, 8 or 16) and JALI_REAL
// (double or float), and what target_cpu.hpp or target_gpu.hpp says of the target.
//
// An arithmetic of several machine words (jali.codegen.arithmetics) defines JALI_NUMBER, the text of a class, which
// JALI_REAL names. Kernels in it have one lane. What needs the bits of a number is there where JALI_IEEE is 1.

#ifndef JALI_BLOCK_BITS
#define JALI_BLOCK_BITS 26 // of an entry of a neighbour table; kernels of large layouts define more
#endif

#define JALI_KIND_double 1
#define JALI_KIND_float 0
#define JALI_KIND_PASTE(type) JALI_KIND_##type
#define JALI_KIND_OF(type) JALI_KIND_PASTE(type)
#define JALI_DOUBLE JALI_KIND_OF(JALI_REAL)

#if defined(JALI_NUMBER)
JALI_NUMBER
#define JALI_IEEE 0
typedef double given_real; // what the host gives in arrays
#else
#define JALI_IEEE 1
typedef JALI_REAL given_real;
#endif
// Whether floats in memory are narrower than the arithmetic
#define JALI_WIDENS (JALI_DOUBLE || !JALI_IEEE)

#if JALI_WIDENS
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
    friend JALI_MEMBER one_lane operator op(one_lane a, one_lane b) {              \
        return T(a.value op b.value);                                                                        \
    }                                                                                                        \
    JALI_MEMBER one_lane& operator op## = (one_lane b) {                           \
        return *this = *this op b;                                                                           \
    }
#define JALI_COMPARE(op)                                                                                     \
    friend JALI_MEMBER one_lane<lane_integer> operator op(one_lane a,              \
                                                                                    one_lane b) {            \
        return -lane_integer(a.value op b.value);                                                            \
    }
template <class T>
struct one_lane {
    T value;
    one_lane() = default;
    JALI_MEMBER one_lane(T x) : value(x) {}
    JALI_MEMBER T& operator[](int) { return value; }
    JALI_MEMBER const T& operator[](int) const { return value; }
    JALI_MEMBER one_lane operator-() const { return T(-value); }
    JALI_MEMBER one_lane operator~() const { return T(~value); }
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
// Doubles under single-precision arithmetic, for terms of sums that a real would round.
#if JALI_LANES == 1
typedef one_lane<double> wide;
#else
typedef double wide __attribute__((vector_size(JALI_LANES * sizeof(double))));
#endif

JALI_INLINE real splat(JALI_REAL x) {
#define JALI_LANE(l) x
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}
JALI_INLINE int64_t first_lane(integer x) {
#if JALI_LANES == 1
    return int64_t(x.value);
#else
    return int64_t(x[0]);
#endif
}
JALI_INLINE integer splat_integer(lane_integer x) {
#define JALI_LANE(l) x
    return integer{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}

// The same bits seen as another type.
#if JALI_IEEE
JALI_INLINE integer bits_of(real x) {
    integer r;
    copy_bits(&r, &x, sizeof r);
    return r;
}
JALI_INLINE real real_of_bits(integer x) {
    real r;
    copy_bits(&r, &x, sizeof r);
    return r;
}
#endif
JALI_INLINE unsigned_integer as_unsigned(integer x) {
    unsigned_integer r;
    copy_bits(&r, &x, sizeof r);
    return r;
}
JALI_INLINE integer as_signed(unsigned_integer x) {
    integer r;
    copy_bits(&r, &x, sizeof r);
    return r;
}

// `native` is the widest vector whose fused multiply-add, root and floor are one instruction; wider reals are
// taken piece by piece.
#if defined(__AVX512F__)
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
#define JALI_NATIVE_FNMA(a, b, c) __builtin_ia32_vfnmaddpd512_mask(a, b, c, -1, 4)
#define JALI_NATIVE_FMS(a, b, c) __builtin_ia32_vfmsubpd512_mask(a, b, c, -1, 4)
#if defined(__clang__)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd512(a, 4)
#else
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd512_mask(a, a, -1, 4)
#endif
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_rndscalepd_mask(a, 9, a, -1, 4)
#else
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4)
#define JALI_NATIVE_FNMA(a, b, c) __builtin_ia32_vfnmaddps512_mask(a, b, c, -1, 4)
#define JALI_NATIVE_FMS(a, b, c) __builtin_ia32_vfmsubps512_mask(a, b, c, -1, 4)
#if defined(__clang__)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtps512(a, 4)
#else
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtps512_mask(a, a, -1, 4)
#endif
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_rndscaleps_mask(a, 9, a, -1, 4)
#endif
#elif JALI_LANES > 1 && JALI_NATIVE_BITS >= 256 && JALI_REAL_BITS >= 256
typedef JALI_REAL native __attribute__((vector_size(32)));
#if JALI_DOUBLE
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddpd256(a, b, c)
#define JALI_NATIVE_FNMA(a, b, c) __builtin_ia32_vfnmaddpd256(a, b, c)
#define JALI_NATIVE_FMS(a, b, c) __builtin_ia32_vfmsubpd256(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd256(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundpd256(a, 9)
#else
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
#define JALI_NATIVE_FNMA(a, b, c) __builtin_ia32_vfnmaddps256(a, b, c)
#define JALI_NATIVE_FMS(a, b, c) __builtin_ia32_vfmsubps256(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtps256(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundps256(a, 9)
#endif
#elif JALI_LANES > 1 && JALI_NATIVE_BITS >= 128 && JALI_REAL_BITS >= 128
typedef JALI_REAL native __attribute__((vector_size(16)));
#if JALI_DOUBLE
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddpd(a, b, c)
#define JALI_NATIVE_FNMA(a, b, c) __builtin_ia32_vfnmaddpd(a, b, c)
#define JALI_NATIVE_FMS(a, b, c) __builtin_ia32_vfmsubpd(a, b, c)
#define JALI_NATIVE_SQRT(a) __builtin_ia32_sqrtpd(a)
#define JALI_NATIVE_FLOOR(a) __builtin_ia32_roundpd(a, 9)
#else
#define JALI_NATIVE_FMA(a, b, c) __builtin_ia32_vfmaddps(a, b, c)
#define JALI_NATIVE_FNMA(a, b, c) __builtin_ia32_vfnmaddps(a, b, c)
#define JALI_NATIVE_FMS(a, b, c) __builtin_ia32_vfmsubps(a, b, c)
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

// GCC may read a value from memory again for each of its uses; JALI_HELD(x) has it read once.
#if defined(JALI_NATIVE_FMA) && !defined(__clang__) && JALI_REAL_BITS <= JALI_NATIVE_BITS
#define JALI_HELD(x) asm("" : "+v"(x))
#else
#define JALI_HELD(x) (void)x
#endif

#if defined(JALI_NATIVE_FMA)
// One of the multiply-adds, piece by piece.
#define JALI_IN_PIECES(operation, a, b, c)                                                                   \
    native_pieces x = {a}, y = {b}, z = {c};                                                                 \
    JALI_UNROLL                                                                                              \
    for (unsigned p = 0; p < sizeof(real) / sizeof(native); ++p)                                             \
        z.piece[p] = operation(x.piece[p], y.piece[p], z.piece[p]);                                          \
    return z.whole
#endif

// a * b + c, rounded once
JALI_INLINE real fma(real a, real b, real c) {
#if JALI_LANES > 1 && JALI_HAS(__builtin_elementwise_fma)
    return __builtin_elementwise_fma(a, b, c);
#elif defined(JALI_NATIVE_FMA)
    JALI_IN_PIECES(JALI_NATIVE_FMA, a, b, c);
#else
#define JALI_LANE(l) fma_one(a[l], b[l], c[l])
    return real{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
#endif
}
// c - a * b, rounded once: an instruction of its own where the compiler would flip a sign first
JALI_INLINE real fnma(real a, real b, real c) {
#if defined(JALI_NATIVE_FMA) && !defined(__clang__)
    JALI_IN_PIECES(JALI_NATIVE_FNMA, a, b, c);
#else
    return fma(-a, b, c);
#endif
}
// a * b - c, rounded once
JALI_INLINE real fms(real a, real b, real c) {
#if defined(JALI_NATIVE_FMA) && !defined(__clang__)
    JALI_IN_PIECES(JALI_NATIVE_FMS, a, b, c);
#else
    return fma(a, b, -c);
#endif
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
#if JALI_IEEE
    return real_of_bits(m & bits_of(x));
#else
    return select(m, x, splat(0));
#endif
}

JALI_INLINE bool any(mask m) {
#if JALI_LANES > 1 && defined(JALI_NATIVE_SQRT) && JALI_NATIVE_BITS == 256 && JALI_REAL_BITS == 256
    typedef long long quads __attribute__((vector_size(32)));
    return !__builtin_ia32_ptestz256((quads)m, (quads)m);
#elif JALI_LANES > 1 && defined(JALI_NATIVE_SQRT) && JALI_NATIVE_BITS == 512 && JALI_REAL_BITS == 512 && !defined(__clang__)
    typedef long long quads __attribute__((vector_size(64)));
    return __builtin_ia32_ptestmq512((quads)m, (quads)m, -1) != 0;
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
    return splat_integer(lane_integer(lane_unsigned(1) << (8 * sizeof(lane_integer) - 1)));
}
JALI_INLINE real vabs(real a) {
#if JALI_IEEE
    return real_of_bits(bits_of(a) & ~sign_bits());
#else
    return select(a < splat(0), -a, a);
#endif
}
#if JALI_IEEE
// the magnitude of a with the sign of b
JALI_INLINE real copy_sign(real a, real b) {
    return real_of_bits((bits_of(a) & ~sign_bits()) | (bits_of(b) & sign_bits()));
}
#endif
JALI_INLINE real vceil(real a) {
    return -vfloor(-a);
}
#if JALI_IEEE
// The nearest whole number, of two the even one, with the sign of a: what is added has no bits behind the point.
JALI_INLINE real vround(real a) {
    const real whole = splat(JALI_REAL(JALI_DOUBLE ? 4503599627370496.0 : 8388608.0)), size = vabs(a);
    return select(size < whole, copy_sign((size + whole) - whole, a), a);
}
#endif
// -1, 0 or 1, and nan of nan
JALI_INLINE real vsign(real a) {
    const real zero = splat(0);
    return select(a > zero, splat(1), select(a < zero, splat(-1), select(a == zero, zero, a)));
}
// a < b ? a : b and a > b ? a : b: where a comparison with nan fails, the second argument is the result
JALI_INLINE real vmin(real a, real b) {
    return select(a < b, a, b);
}
JALI_INLINE real vmax(real a, real b) {
    return select(a > b, a, b);
}
// The same of the language, where nan wins as in NumPy: a nan in front is the result, too.
JALI_INLINE real vminimum(real a, real b) {
    return select((a < b) | (a != a), a, b);
}
JALI_INLINE real vmaximum(real a, real b) {
    return select((a > b) | (a != a), a, b);
}

JALI_INLINE real to_real(integer a) {
#if JALI_LANES == 1
    return JALI_REAL(a.value);
#else
    return __builtin_convertvector(a, real);
#endif
}
// Of whole numbers of 16 bits, the same. Devices convert an eighth as many numbers as they add: with its sign bit turned, such a number
// is put below 2^23 as the last bits of a float, from which 2^23 + 2^15 is taken.
JALI_INLINE real small_to_real(integer a) {
#if defined(JALI_GPU) && JALI_IEEE && !JALI_DOUBLE
    return real_of_bits(integer((a.value & 0xffff) ^ 0x4b008000)) - splat(8421376);
#else
    return to_real(a);
#endif
}
#if !JALI_WIDENS
JALI_INLINE wide splat_wide(double x) {
#define JALI_LANE(l) x
    return wide{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}
// Of reals and of whole numbers; exact.
template <class V>
JALI_INLINE wide widened(V a) {
#if JALI_LANES == 1
    return double(a.value);
#else
    return __builtin_convertvector(a, wide);
#endif
}
JALI_INLINE wide select(mask m, wide a, wide b) {
    for (int l = 0; l < JALI_LANES; ++l) b[l] = m[l] ? a[l] : b[l];
    return b;
}
#endif
// The largest integer that is not above a (floor). Undefined where it does not fit.
JALI_INLINE integer to_integer(real a) {
#if JALI_LANES == 1
    return lane_integer(floor_one(a.value));
#else
    return __builtin_convertvector(vfloor(a), integer);
#endif
}

// Tables: row `at` of N numbers, for each lane. Lanes beyond the end of a row have no coordinates, so indices are kept inside.
JALI_INLINE integer clamped(integer at, integer extent) {
    const integer zero = splat_integer(0), last = extent - splat_integer(1);
    const integer below = select((mask)(at < last), at, last);
    return select((mask)(below < zero), zero, below);
}
template <int N, class V, class T>
JALI_INLINE void look_up(V* v, const T* table, integer at) {
    for (int l = 0; l < JALI_LANES; ++l)
        for (int c = 0; c < N; ++c) v[c][l] = table[int64_t(at[l]) * N + c];
}
JALI_INLINE integer looked_up(const lane_integer* table, integer at) {
    integer v;
    look_up<1>(&v, table, at);
    return v;
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

