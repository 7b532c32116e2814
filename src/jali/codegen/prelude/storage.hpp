// What storage means, wherever it is: boundary factors, rows of memory, and the reals of an element of a Lie
// algebra.

// One number per lane from memory of any alignment: boundary factors live in NumPy arrays.
JALI_INLINE real load_factor(const given_real* p) {
#if JALI_IEEE
    real r;
    copy_bits(&r, p, sizeof r);
    return r;
#else
    return JALI_REAL(*p);
#endif
}
// Multiplies N/2 complex numbers by a phase per lane. (1, 0) leaves the bits alone, (-1, 0) flips signs, and
// (0, 0) gives +0 whatever the value was: an open boundary has nothing behind it.
template <int N>
JALI_CALL void apply_phase(real* x, const given_real* phase) {
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
// Multiplies N real or whole numbers by a sign per lane: 1, -1, or 0 with the meaning of apply_phase.
template <int N>
JALI_CALL void apply_sign(real* x, const given_real* factor) {
    const real sign = load_factor(factor);
    const mask inside = sign != splat(0);
    for (int c = 0; c < N; ++c) x[c] = keep(inside, x[c] * sign);
}
template <int N>
JALI_CALL void apply_sign(integer* x, const given_real* factor) {
    const integer sign = to_integer(load_factor(factor));
    for (int c = 0; c < N; ++c) x[c] = x[c] * sign;
}

// The memory of a field whose format (jali.codegen.storage_formats) says how numbers become units and back: UNITS of
// FORMAT::unit for each site, in packets of PACKET on devices, and a norm in float32 behind them if
// FORMAT::norm. FORMAT::decode<N>(v, units, norm) makes N values of them, FORMAT::encode<N>(units, &norm, v)
// the inverse; it returns the lanes with a value that the format cannot hold. Both act lane by lane, like all
// arithmetic, so that stored bytes do not depend on the number of lanes.
template <class FORMAT, int UNITS, int PACKET>
struct coded {
    static const int site_bytes = UNITS * int(sizeof(typename FORMAT::unit)) + (FORMAT::norm ? 4 : 0);
};
// What reading the field gives after it was written.
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void as_stored(V* out, const coded<FORMAT, UNITS, PACKET>*, const V* v) {
    integer units[UNITS];
    real norm = splat(0);
    FORMAT::template encode<N>(units, &norm, v);
    FORMAT::template decode<N>(out, units, norm);
}

JALI_INLINE mask all_lanes(bool value) {
    return splat_integer(value ? -1 : 0);
}
// Sites with a value that the format of a field cannot hold.
JALI_INLINE void count_overflow(int64_t* counters, mask lost) {
    int64_t count = 0;
    for (int l = 0; l < JALI_LANES; ++l) count += lost[l] != 0;
#if defined(JALI_GPU)
    add_atomically(counters + 1, count);
#else
    counters[1] += count;
#endif
}
// The values of a site or of the lanes of a block. How units lie in memory, load_units and store_units know.
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE const V* block_at(V* tmp, const coded<FORMAT, UNITS, PACKET>* base, int64_t x) {
    integer units[UNITS];
    real norm = splat(0);
    load_units(units, &norm, base, x);
    FORMAT::template decode<N>(tmp, units, norm);
    return tmp;
}
template <int N, class V, class FORMAT, int UNITS, int PACKET>
JALI_INLINE void store_element(coded<FORMAT, UNITS, PACKET>* base, int64_t x, const V* v, int64_t* counters) {
    integer units[UNITS];
    real norm = splat(0);
    const mask lost = FORMAT::template encode<N>(units, &norm, v);
    if (!JALI_LIKELY(!any(lost))) count_overflow(counters, lost);
    store_units(base, x, units, norm);
}
#if JALI_WIDENS
// Lanes with a number that becomes infinite in float32: from halfway between the largest and the next power
// of two on.
template <int N>
JALI_INLINE mask beyond_float(const real* v) {
    mask lost = all_lanes(false);
    for (int c = 0; c < N; ++c) {
#if JALI_IEEE
        const real magnitude = vabs(v[c]);
        lost = lost | ((magnitude >= splat(0x1.ffffffp127)) & (magnitude <= splat(0x1.fffffffffffffp1023)));
#else
        const double value = double(v[c].value), magnitude = value < 0 ? -value : value;
        lost = lost | all_lanes(magnitude >= 0x1.ffffffp127 && magnitude <= 0x1.fffffffffffffp1023);
#endif
    }
    return lost;
}
#endif

#if JALI_IEEE
// IEEE numbers of so many bits of exponent and fraction in the low bits of an integer, rounded to nearest,
// ties to even; what becomes infinite is lost, infinities and NaNs are not.
#if JALI_DOUBLE
const int REAL_FRACTION = 52, REAL_BIAS = 1023;
#else
const int REAL_FRACTION = 23, REAL_BIAS = 127;
#endif
JALI_INLINE real two_to(int exponent) {
    return real_of_bits(splat_integer(lane_integer(REAL_BIAS + exponent) << REAL_FRACTION));
}
template <int EXPONENT, int FRACTION>
struct small_float {
    static const int SHIFT = REAL_FRACTION - FRACTION, BIAS = (1 << (EXPONENT - 1)) - 1;
    static const lane_integer SPECIAL = ((lane_integer(1) << EXPONENT) - 1) << FRACTION;
    static const bool OF_HALF = EXPONENT == 5 && FRACTION == 10;
    static const bool IS_BFLOAT16 = EXPONENT == 8 && FRACTION == 7 && sizeof(JALI_REAL) == 4;
    static JALI_MEMBER real largest() { // finite number of the arithmetic
        return real_of_bits(splat_integer((lane_integer(2 * REAL_BIAS + 1) << REAL_FRACTION) - 1));
    }
    static JALI_MEMBER real decode(integer bits) {
        if (BIAS == REAL_BIAS)
            return real_of_bits(bits << splat_integer(SHIFT)); // the upper bits of the arithmetic's numbers
#if defined(JALI_ROUNDS_16)
        if (OF_HALF) return JALI_REAL(of_half((unsigned short)bits.value));
#endif
        const integer magnitude = bits & splat_integer((lane_integer(1) << (EXPONENT + FRACTION)) - 1);
        const integer sign =
            (bits << splat_integer(8 * sizeof(JALI_REAL) - 1 - EXPONENT - FRACTION)) & sign_bits();
        const integer shifted = magnitude << splat_integer(SHIFT);
        // as a small number of the arithmetic, times a power of two: exact, subnormal or not
        const real value = real_of_bits(shifted) * two_to(REAL_BIAS - BIAS);
        const real special = real_of_bits(
            shifted |
            splat_integer(((lane_integer(1) << (8 * int(sizeof(JALI_REAL)) - 2 - REAL_FRACTION + 1)) - 1)
                          << REAL_FRACTION));
        const integer found = bits_of(select(magnitude >= splat_integer(SPECIAL), special, value));
        return real_of_bits(found | sign);
    }
#if defined(JALI_ROUNDS_16)
    static JALI_MEMBER integer encode(real x, mask* lost) {
        if (OF_HALF) return from_instruction(half_of(x.value), x, lost);
        if (IS_BFLOAT16) return from_instruction(bfloat16_of(float(x.value)), x, lost);
        return encode_by_integers(x, lost);
    }
    // What an instruction has made of x, with the NaNs of encode_by_integers.
    static JALI_MEMBER integer from_instruction(unsigned short bits, real x, mask* lost) {
        const mask infinite = splat_integer(-lane_integer((bits & 0x7fff) == SPECIAL));
        *lost = *lost | (infinite & (vabs(x) <= largest()));
        const lane_integer sign = bits_of(x).value < 0 ? lane_integer(1) << (EXPONENT + FRACTION) : 0;
        return select(x != x, splat_integer(SPECIAL | (lane_integer(1) << (FRACTION - 1)) | sign),
                      splat_integer(bits));
    }
    static JALI_MEMBER integer encode_by_integers(real x, mask* lost){
#else
    static JALI_MEMBER integer encode(real x, mask* lost) {
#endif
        const integer wide = bits_of(vabs(x));
    const integer odd = (wide >> splat_integer(SHIFT)) & splat_integer(1);
    const integer rounded = (wide + splat_integer((lane_integer(1) << (SHIFT - 1)) - 1) + odd) >>
                            splat_integer(SHIFT);
    const integer normal = rounded - splat_integer(lane_integer(REAL_BIAS - BIAS) << FRACTION);
    integer bits = normal;
    if (BIAS != REAL_BIAS) { // adding a power of two rounds subnormal numbers at their last bit
        const real power = two_to(REAL_FRACTION + 1 - BIAS - FRACTION);
        real sum = vabs(x) + power;
        bits = select(vabs(x) < two_to(1 - BIAS), bits_of(sum) - bits_of(power), normal);
    }
    const mask finite = vabs(x) <= largest();
    const mask beyond = finite & (bits >= splat_integer(SPECIAL));
    *lost = *lost | beyond;
    bits = select(beyond | ~finite, splat_integer(SPECIAL), bits);
    bits = select(x != x, splat_integer(SPECIAL | (lane_integer(1) << (FRACTION - 1))), bits);
    const integer sign = splat_integer(lane_integer(1) << (EXPONENT + FRACTION));
    return select((bits_of(x) & sign_bits()) != splat_integer(0), bits | sign, bits);
}
}
;
// To float32 and back, to nearest.
JALI_INLINE real as_float32(real x, mask* lost) {
#if JALI_DOUBLE
    return small_float<8, 23>::decode(small_float<8, 23>::encode(x, lost));
#else
    (void)lost;
    return x;
#endif
}
// The whole number next to x, ties to even, for magnitudes below 2^21.
JALI_INLINE integer nearest_integer(real x) {
    const real large = two_to(REAL_FRACTION) + two_to(REAL_FRACTION - 1);
    real sum = x + large;
    return bits_of(sum) - bits_of(large);
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

// The base pointer for a block of a field whose ghosts, from block `first_ghost` on, are `away` bytes from where they
// would follow: a field on one colour has no memory for sites of the other.
template <class T>
JALI_INLINE const T* sites_or_ghosts(const T* base, int64_t block, int64_t first_ghost, int64_t away) {
    return block < first_ghost ? base : (const T*)((const char*)base + away);
}
