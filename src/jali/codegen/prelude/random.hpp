// Counter-based random numbers on lanes: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11).
//
// A draw is a function of the seed and of what it is for, never of what was drawn before:
//   counter = (site low, site high, call low, (call bits 32..47) << 16 | draw),   key = (key low, key high).
// So a call is a number of 48 bits, of which Python's Random gives 4 to what is drawn for, and draws within a
// call number up to 2^16. One draw gives two numbers. A uniform is (k + 1/2) 2^-52 with 52 random bits k in
// double, (k + 1/2) 2^-23 with the leading 23 of the same bits in float: strictly between 0 and 1.

#if JALI_IEEE
// Site numbers have 64 bits in either precision; every lane of the two words holds 32 of them.
struct site_vector {
    unsigned_integer low, high;
};

// Site number per lane: x_0 + L_0 (x_1 + L_1 (x_2 + ...))
JALI_INLINE void site_index(site_vector* site, int ndim, const integer* coordinates, const int64_t* extents) {
    unsigned_integer low = {}, high = {};
    JALI_UNROLL
    for (int l = 0; l < JALI_LANES; ++l) {
        uint64_t index = 0;
        for (int d = ndim - 1; d >= 0; --d)
            index = index * uint64_t(extents[d]) + uint64_t(coordinates[d][l]);
        low[l] = lane_unsigned(index & 0xffffffffu);
        high[l] = lane_unsigned(index >> 32);
    }
    site->low = low;
    site->high = high;
}
// The same for the sites of a block themselves: the number of its lane 0, and what each lane adds to it, of which
// there are two sets.
template <int ndim>
struct site_numbering {
    const int32_t* coordinates;
    const int64_t* extents;
    int64_t blocks;
#if JALI_LANES > 1
    uint64_t lanes[2][JALI_LANES];
#endif

    JALI_MEMBER site_numbering(const int32_t* coordinates, const int32_t* lane_offsets, const int64_t* extents,
                               int64_t blocks)
        : coordinates(coordinates), extents(extents), blocks(blocks) {
#if JALI_LANES > 1
        for (int set = 0; set < 2; ++set)
            for (int l = 0; l < JALI_LANES; ++l) {
                uint64_t index = 0; // modulo 2^64, since a lane may be in front of lane 0
                for (int d = ndim - 1; d >= 0; --d)
                    index = index * uint64_t(extents[d]) + uint64_t(int64_t(lane_offsets[(set * ndim + d) * JALI_LANES + l]));
                lanes[set][l] = index;
            }
#else
        (void)lane_offsets;
#endif
    }
    JALI_MEMBER site_vector of_block(int64_t x) const {
        uint64_t first = 0;
        for (int d = ndim - 1; d >= 0; --d) first = first * uint64_t(extents[d]) + uint64_t(coordinates[d * blocks + x]);
        site_vector site;
#if JALI_LANES == 1
        site.low[0] = lane_unsigned(first & 0xffffffffu);
        site.high[0] = lane_unsigned(first >> 32);
#else
        const uint64_t* more = lanes[coordinates[ndim * blocks + x] != 0];
#if JALI_DOUBLE
        unsigned_integer number;
        copy_bits(&number, more, sizeof number);
        number += first;
        site.low = number & 0xffffffffu;
        site.high = number >> 32;
#else
        JALI_UNROLL
        for (int l = 0; l < JALI_LANES; ++l) {
            site.low[l] = lane_unsigned((first + more[l]) & 0xffffffffu);
            site.high[l] = lane_unsigned((first + more[l]) >> 32);
        }
#endif
#endif
        return site;
    }
};
// Site numbers given one by one
JALI_INLINE site_vector make_site(const int64_t* index) {
    site_vector site;
    JALI_UNROLL
    for (int l = 0; l < JALI_LANES; ++l) {
        site.low[l] = lane_unsigned(uint64_t(index[l]) & 0xffffffffu);
        site.high[l] = lane_unsigned(uint64_t(index[l]) >> 32);
    }
    return site;
}

JALI_INLINE unsigned_integer splat_word(uint32_t x) {
#define JALI_LANE(l) lane_unsigned(x)
    return unsigned_integer{JALI_EACH_LANE(JALI_LANE)};
#undef JALI_LANE
}

// The two halves of a times b in 32-bit words
#if JALI_DOUBLE || JALI_LANES == 1
JALI_INLINE void multiply_words(unsigned_integer* high, unsigned_integer* low, unsigned_integer a,
                                uint32_t b) {
#if JALI_LANES == 1
    const uint64_t product = uint64_t(a.value) * b;
    *high = lane_unsigned(product >> 32);
    *low = lane_unsigned(uint32_t(product));
#else
#if JALI_LANES == 8 && defined(__AVX512F__) && JALI_HAS(__builtin_ia32_pmuludq512_mask)
    typedef int words __attribute__((vector_size(64)));
    typedef long long pairs __attribute__((vector_size(64)));
    const unsigned_integer product = (unsigned_integer)__builtin_ia32_pmuludq512_mask(
        (words)a, (words)splat_word(b), pairs{}, (unsigned char)-1);
#elif JALI_LANES == 4 && defined(__AVX2__) && JALI_HAS(__builtin_ia32_pmuludq256)
    typedef int words __attribute__((vector_size(32)));
    const unsigned_integer product =
        (unsigned_integer)__builtin_ia32_pmuludq256((words)a, (words)splat_word(b));
#else
    const unsigned_integer product = (a & splat_word(0xffffffffu)) * splat_word(b);
#endif
    *high = product >> 32;
    *low = product; // the upper half is cut off at the end: only lower halves are multiplied
#endif
}
#else
JALI_INLINE void multiply_words(unsigned_integer* high, unsigned_integer* low, unsigned_integer a,
                                uint32_t b) {
    // even and odd lanes as 64-bit numbers; little-endian
    typedef uint64_t pairs __attribute__((vector_size(4 * JALI_LANES)));
    const pairs pair = (pairs)a, lower = pair & 0xffffffffu, factor = (pairs)splat_word(b) & 0xffffffffu;
#if JALI_LANES == 8 && defined(__AVX2__) && JALI_HAS(__builtin_ia32_pmuludq256)
    typedef int words __attribute__((vector_size(32)));
    const pairs even = (pairs)__builtin_ia32_pmuludq256((words)pair, (words)factor);
    const pairs odd = (pairs)__builtin_ia32_pmuludq256((words)(pair >> 32), (words)factor);
#else
    const pairs even = lower * factor, odd = (pair >> 32) * factor;
#endif
    (void)lower;
    *low = (unsigned_integer)((even & 0xffffffffu) | (odd << 32));
    *high = (unsigned_integer)((even >> 32) | (odd & 0xffffffff00000000u));
}
#endif

// The keys of the ten rounds, splatted: a kernel makes them once
struct philox_keys {
    unsigned_integer key0[10], key1[10];
};
JALI_INLINE philox_keys philox_schedule(uint64_t key) {
    philox_keys keys;
    uint32_t key0 = uint32_t(key), key1 = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        keys.key0[round] = splat_word(key0);
        keys.key1[round] = splat_word(key1);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return keys;
}

// The ten rounds, on four words per lane in place, for COUNTERS counters at once
template <int COUNTERS>
JALI_CALL void philox_rounds(unsigned_integer* c, const philox_keys& keys) {
    unsigned_integer x[COUNTERS][4];
    for (int n = 0; n < COUNTERS; ++n)
        for (int w = 0; w < 4; ++w) x[n][w] = c[4 * n + w];
    JALI_UNROLL
    for (int round = 0; round < 10; ++round) {
        JALI_UNROLL
        for (int n = 0; n < COUNTERS; ++n) {
            unsigned_integer high0, low0, high1, low1;
            multiply_words(&high0, &low0, x[n][0], 0xd2511f53u);
            multiply_words(&high1, &low1, x[n][2], 0xcd9e8d57u);
            x[n][0] = high1 ^ x[n][1] ^ keys.key0[round];
            x[n][2] = high0 ^ x[n][3] ^ keys.key1[round];
            x[n][1] = low1;
            x[n][3] = low0;
        }
    }
    const unsigned_integer lower = splat_word(0xffffffffu);
    for (int n = 0; n < COUNTERS; ++n)
        for (int w = 0; w < 4; ++w) c[4 * n + w] = x[n][w] & lower;
}

// A number in (0, 1) from 64 random bits: the fraction of a number in [1, 2), less 1 - half a step. Exact.
JALI_INLINE real unit_interval(unsigned_integer high, unsigned_integer low) {
#if JALI_DOUBLE
    const integer fraction = as_signed((high << 20) | (low >> 12));
    const JALI_REAL offset = 1 - 0x1p-53;
#else
    (void)low;
    const integer fraction = as_signed(high >> 9);
    const JALI_REAL offset = 1 - 0x1p-24f;
#endif
    return real_of_bits(fraction | splat_integer(EXPONENT_BIAS << MANTISSA_BITS)) - splat(offset);
}

// The same for a logarithm, whose digits near 0 count: in float the next 23 bits r are added,
// k 2^-23 + (r + 1/2) 2^-46, rounded once. So tails reach to 2^-47 instead of ending at 2^-24; 1 can occur.
JALI_INLINE real fine_unit_interval(unsigned_integer high, unsigned_integer low) {
#if JALI_DOUBLE
    return unit_interval(high, low);
#else
    const integer exponent = splat_integer(EXPONENT_BIAS << MANTISSA_BITS);
    const unsigned_integer rest = ((high & splat_word(0x1ff)) << 14) | (low >> 18);
    const real coarse = real_of_bits(as_signed(high >> 9) | exponent) - splat(1);
    return fma(real_of_bits(as_signed(rest) | exponent) - splat(1 - 0x1p-24f), splat(0x1p-23f), coarse);
#endif
}

JALI_INLINE void philox_counter(unsigned_integer* c, site_vector site, uint64_t call, uint32_t draw) {
    c[0] = site.low;
    c[1] = site.high;
    c[2] = splat_word(uint32_t(call));
    c[3] = splat_word(uint32_t(call >> 32) << 16 | (draw & 0xffffu));
}
JALI_INLINE void philox_uniform(real* u0, real* u1, site_vector site, uint64_t call, uint32_t draw,
                                const philox_keys& keys) {
    unsigned_integer c[4];
    philox_counter(c, site, call, draw);
    philox_rounds<1>(c, keys);
    *u0 = unit_interval(c[0], c[1]);
    *u1 = unit_interval(c[2], c[3]);
}
// Two draws, each giving two numbers
JALI_INLINE void philox_uniform_two(real* u, real* v, site_vector site, uint64_t call, uint32_t draw_u,
                                    uint32_t draw_v, const philox_keys& keys) {
    unsigned_integer c[8];
    philox_counter(c, site, call, draw_u);
    philox_counter(c + 4, site, call, draw_v);
    philox_rounds<2>(c, keys);
    u[0] = unit_interval(c[0], c[1]);
    u[1] = unit_interval(c[2], c[3]);
    v[0] = unit_interval(c[4], c[5]);
    v[1] = unit_interval(c[6], c[7]);
}
// A whole number from 0 to n - 1: n times a fraction of 128 random bits, the last word the leading one, rounded down.
// Each has its probability up to 2^-128.
JALI_INLINE integer philox_integer(integer n, site_vector site, uint64_t call, uint32_t draw, const philox_keys& keys) {
    unsigned_integer c[4];
    philox_counter(c, site, call, draw);
    philox_rounds<1>(c, keys);
    integer v;
    JALI_UNROLL
    for (int l = 0; l < JALI_LANES; ++l) {
        uint64_t carry = 0;
#if JALI_DOUBLE // of more than 32 bits: in two halves, whose products fit
        const uint64_t high = uint64_t(n[l]) >> 32, low = uint32_t(n[l]);
        for (int w = 0; w < 4; ++w)
            carry = c[w][l] * high + (carry >> 32) + ((c[w][l] * low + uint32_t(carry)) >> 32);
#else
        for (int w = 0; w < 4; ++w) carry = (uint64_t(c[w][l]) * uint64_t(n[l]) + carry) >> 32;
#endif
        v[l] = lane_integer(carry);
    }
    return v;
}
// Two independent normal numbers of variance 1 (Box and Muller). The angle is reduced in units of pi/2,
// without error.
JALI_CALL void gaussian_pair(real* g0, real* g1, real u0, real u1) {
    const real radius = vsqrt(splat(-2) * vlog(u0));
    const real turns = splat(4) * u1;
    const real shifted = turns + splat(ROUNDING_OFFSET);
    const real rest = turns - (shifted - splat(ROUNDING_OFFSET));
    const real angle = rest * splat(HALF_PI[0]);
    const real tail = fma(rest, splat(HALF_PI[1]), fms(rest, splat(HALF_PI[0]), angle));
    real s, c;
    sincos_reduced(&s, &c, angle, tail, bits_of(shifted));
    *g0 = radius * c;
    *g1 = radius * s;
}
JALI_INLINE void philox_gaussian(real* g0, real* g1, site_vector site, uint64_t call, uint32_t draw,
                                 const philox_keys& keys) {
    unsigned_integer c[4];
    philox_counter(c, site, call, draw);
    philox_rounds<1>(c, keys);
    gaussian_pair(g0, g1, fine_unit_interval(c[0], c[1]), unit_interval(c[2], c[3]));
}
#endif
