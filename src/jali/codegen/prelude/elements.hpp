// Elements of arrays and how they are combined: what core/schedule/reduce_loops.hpp does on the host, with
// the same bits.
//
// JALI_STORED is how an element is stored, JALI_VALUE as what it is combined, widened() and narrowed() go
// between them, combined() is the operation and divided() ends an average. 16-bit floats are combined in fp32
// and rounded once.

template <class To, class From>
JALI_INLINE To bits_as(From from) {
    To to;
    copy_bits(&to, &from, sizeof to);
    return to;
}

struct half_bits {
    unsigned short bits;
};
struct bfloat16_bits {
    unsigned short bits;
};
template <class R>
struct complex_pair {
    R re, im;
};

// IEEE binary16 to binary32: exact. A signalling NaN becomes quiet.
JALI_INLINE float widened(half_bits half) {
    const uint32_t shifted = (half.bits & 0x7fffu) << 13, sign = (half.bits & 0x8000u) << 16;
    const uint32_t normal = shifted + (112u << 23);
    const uint32_t small =
        bits_as<uint32_t>(bits_as<float>(shifted + (113u << 23)) - bits_as<float>(113u << 23));
    const uint32_t special = (shifted + (224u << 23)) | (shifted > (31u << 23) ? 1u << 22 : 0u);
    return bits_as<float>((shifted < (1u << 23) ? small : shifted < (31u << 23) ? normal : special) | sign);
}
JALI_INLINE float widened(bfloat16_bits narrowed) {
    return bits_as<float>(uint32_t(narrowed.bits) << 16);
}
template <class T>
JALI_INLINE T widened(T x) {
    return x;
}

// To nearest, ties to even.
JALI_INLINE void narrow(float wide, half_bits& half) {
    const uint32_t bits = bits_as<uint32_t>(wide), magnitude = bits & 0x7fffffffu;
    const uint32_t odd = (magnitude >> 13) & 1u, normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    const uint32_t small = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
    const uint32_t special = magnitude > 0x7f800000u ? (0x7e00u | (magnitude >> 13 & 0x3ffu)) : 0x7c00u;
    const uint32_t value = magnitude < (113u << 23) ? small : magnitude < (143u << 23) ? normal : special;
    half.bits = (unsigned short)(value | ((bits >> 16) & 0x8000u));
}
JALI_INLINE void narrow(float wide, bfloat16_bits& narrowed) {
    const uint32_t bits = bits_as<uint32_t>(wide);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    narrowed.bits = (unsigned short)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded);
}
template <class T>
JALI_INLINE void narrow(T wide, T& stored) {
    stored = wide;
}

template <class T>
struct unsigned_of { // arithmetic of integers is modulo 2^bits: without sign, in at least 32 bits
    typedef uint32_t type;
};
template <>
struct unsigned_of<int64_t> {
    typedef uint64_t type;
};
template <>
struct unsigned_of<uint64_t> {
    typedef uint64_t type;
};

// One entry for each operation, whose name JALI_OPERATION is.
struct operation_sum {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        typedef typename unsigned_of<T>::type U;
        return T(U(a) + U(b));
    }
    static JALI_MEMBER float of(float a, float b) { return a + b; }
    static JALI_MEMBER double of(double a, double b) { return a + b; }
    template <class R>
    static JALI_MEMBER complex_pair<R> of(complex_pair<R> a, complex_pair<R> b) {
        return {a.re + b.re, a.im + b.im};
    }
};
typedef operation_sum operation_avg;
struct operation_prod {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        typedef typename unsigned_of<T>::type U;
        return T(U(a) * U(b));
    }
    static JALI_MEMBER float of(float a, float b) { return a * b; }
    static JALI_MEMBER double of(double a, double b) { return a * b; }
    template <class R>
    static JALI_MEMBER complex_pair<R> of(complex_pair<R> a, complex_pair<R> b) {
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    }
};
// A NaN on either side is the result; of equal ones (also zeros of two signs) the earlier.
struct operation_min {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return b < a || b != b ? b : a;
    }
};
struct operation_max {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return b > a || b != b ? b : a;
    }
};
struct operation_logical_and {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return T(a != 0 && b != 0);
    }
};
struct operation_logical_or {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return T(a != 0 || b != 0);
    }
};
struct operation_logical_xor {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return T((a != 0) != (b != 0));
    }
};
struct operation_bit_and {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return T(a & b);
    }
};
struct operation_bit_or {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return T(a | b);
    }
};
struct operation_bit_xor {
    template <class T>
    static JALI_MEMBER T of(T a, T b) {
        return T(a ^ b);
    }
};
struct operation_none {
    template <class T>
    static JALI_MEMBER T of(T a, T) {
        return a;
    }
};

template <class T>
JALI_INLINE T divided(T x, int by) { // integers have no average
    return by == 1 ? x : T(x / T(by));
}
template <class R>
JALI_INLINE complex_pair<R> divided(complex_pair<R> x, int by) {
    return by == 1 ? x : complex_pair<R>{x.re / R(by), x.im / R(by)};
}

// Whether a finite number has become infinite by being narrowed.
JALI_INLINE bool saturated(float wide, half_bits half) {
    return (bits_as<uint32_t>(wide) & 0x7fffffffu) < 0x7f800000u && (half.bits & 0x7fffu) == 0x7c00u;
}
JALI_INLINE bool saturated(float wide, bfloat16_bits narrowed) {
    return (bits_as<uint32_t>(wide) & 0x7fffffffu) < 0x7f800000u && (narrowed.bits & 0x7fffu) == 0x7f80u;
}
template <class T>
JALI_INLINE bool saturated(T, T) {
    return false;
}
