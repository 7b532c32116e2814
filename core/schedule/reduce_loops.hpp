// The loops of element.hpp, for one instruction set: included by reduce_base.cpp and by reduce_avx2.cpp,
// which are compiled with different flags. Everything here is in an unnamed namespace and calls nothing of
// the standard library, so that no function compiled for AVX2 can be linked into a program that runs without
// it.
//
// A reduction is done in blocks whose intermediate result stays in the first-level cache, so each source is
// read once and the result written once, whatever their number; two sources need no intermediate at all.
//
// `into` may be one of the sources, element for element: loops are JALI_INDEPENDENT.
#pragma once

#include "schedule/reduce_table.hpp"
#include "vectors/independent.hpp"

#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace jali {

namespace {

template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// IEEE binary16 to binary32: exact. A signalling NaN becomes quiet, as the hardware instruction does.
inline float widen_fp16(std::uint16_t half) {
    const std::uint32_t shifted = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    const std::uint32_t normal = shifted + (112u << 23);
    // Subnormals: put the digits under an exponent of -14 and subtract its leading one.
    const std::uint32_t small =
        bits_as<std::uint32_t>(bits_as<float>(shifted + (113u << 23)) - bits_as<float>(113u << 23));
    const std::uint32_t special = (shifted + (224u << 23)) | (shifted > (31u << 23) ? 1u << 22 : 0u);
    const std::uint32_t value = shifted < (1u << 23) ? small : shifted < (31u << 23) ? normal : special;
    return bits_as<float>(value | sign);
}

// binary32 to binary16, to nearest, ties to even; what exceeds 65504 by half a step or more is infinite.
inline std::uint16_t narrow_fp16(float wide) {
    const std::uint32_t bits = bits_as<std::uint32_t>(wide), magnitude = bits & 0x7fffffffu;
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    // The last digit of 0.5 + x is worth 2^-24, the smallest binary16: the addition rounds.
    const std::uint32_t small =
        bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<std::uint32_t>(0.5f);
    const std::uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    const std::uint32_t special = magnitude > 0x7f800000u ? nan : 0x7c00u;
    const std::uint32_t value = magnitude < (113u << 23)   ? small
                                : magnitude < (143u << 23) ? normal
                                                           : special;
    return static_cast<std::uint16_t>(value | sign);
}

inline float widen_bf16(std::uint16_t encoded) {
    return bits_as<float>(static_cast<std::uint32_t>(encoded) << 16);
}

// To nearest, ties to even; a NaN stays one.
inline std::uint16_t narrow_bf16(float wide) {
    const std::uint32_t bits = bits_as<std::uint32_t>(wide);
    const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t nan = bits >> 16 | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

template <class Real>
struct Complex {
    Real real, imaginary;
};

// How an element is stored and as what it is computed with.
template <class T>
struct Plain {
    using Stored = T;
    using Value = T;
    static Value widen(Stored x) { return x; }
    static Stored narrow(Value x) { return x; }
};

struct Half {
    using Stored = std::uint16_t;
    using Value = float;
    static Value widen(Stored x) { return widen_fp16(x); }
    static Stored narrow(Value x) { return narrow_fp16(x); }
};

struct Bfloat16 {
    using Stored = std::uint16_t;
    using Value = float;
    static Value widen(Stored x) { return widen_bf16(x); }
    static Stored narrow(Value x) { return narrow_bf16(x); }
};

template <class T>
constexpr bool is_float = static_cast<T>(0.5) != 0;

// Arithmetic of integers is modulo 2^bits: done without sign, in at least 32 bits.
template <class T>
using Unsigned = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

struct Sum {
    template <class T>
    static T of(T a, T b) {
        if constexpr (is_float<T>)
            return a + b;
        else
            return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
    }
    template <class R>
    static Complex<R> of(Complex<R> a, Complex<R> b) {
        return {a.real + b.real, a.imaginary + b.imaginary};
    }
};

struct Product {
    template <class T>
    static T of(T a, T b) {
        if constexpr (is_float<T>)
            return a * b;
        else
            return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
    }
    template <class R>
    static Complex<R> of(Complex<R> a, Complex<R> b) {
        return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
    }
};

// A NaN on either side is the result; of equal ones (also zeros of two signs) the earlier.
struct Minimum {
    template <class T>
    static T of(T a, T b) {
        return (b < a) | (b != b) ? b : a;
    }
};

struct Maximum {
    template <class T>
    static T of(T a, T b) {
        return (b > a) | (b != b) ? b : a;
    }
};

struct LogicalAnd {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>((a != 0) & (b != 0));
    }
};

struct LogicalOr {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>((a | b) != 0);
    }
};

struct LogicalXor {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>((a != 0) ^ (b != 0));
    }
};

struct BitAnd {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>(a & b);
    }
};

struct BitOr {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>(a | b);
    }
};

struct BitXor {
    template <class T>
    static T of(T a, T b) {
        return static_cast<T>(a ^ b);
    }
};

template <class T>
inline T divided(T x, T by) {
    return x / by;
}
template <class R>
inline Complex<R> divided(Complex<R> x, R by) {
    return {x.real / by, x.imaginary / by};
}

template <class Value>
struct DivisorOf {
    using Type = Value;
};
template <class R>
struct DivisorOf<Complex<R>> {
    using Type = R;
};

template <class Value>
struct Finish { // nothing to divide by
    Value operator()(Value x) const { return x; }
};
template <class Value>
struct Divide {
    typename DivisorOf<Value>::Type by;
    Value operator()(Value x) const { return divided(x, by); }
};

template <class Element>
inline void widen_block(const typename Element::Stored* from, typename Element::Value* to,
                        std::size_t count) {
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < count; ++k) to[k] = Element::widen(from[k]);
}

template <class Element>
inline void narrow_block(const typename Element::Value* from, typename Element::Stored* to,
                         std::size_t count) {
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < count; ++k) to[k] = Element::narrow(from[k]);
}

#if defined(__F16C__)
template <>
inline void widen_block<Half>(const std::uint16_t* from, float* to, std::size_t count) {
    std::size_t k = 0;
    for (; k + 8 <= count; k += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k));
        _mm256_storeu_ps(to + k, _mm256_cvtph_ps(halves));
    }
    for (; k < count; ++k) to[k] = widen_fp16(from[k]);
}

template <>
inline void narrow_block<Half>(const float* from, std::uint16_t* to, std::size_t count) {
    std::size_t k = 0;
    for (; k + 8 <= count; k += 8) {
        const __m128i halves =
            _mm256_cvtps_ph(_mm256_loadu_ps(from + k), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), halves);
    }
    for (; k < count; ++k) to[k] = narrow_fp16(from[k]);
}
#endif

// A function of its own: inlined into the loop over sources it is interchanged with it, and slow.
template <class Element, class Op>
[[gnu::noinline]] void accumulate_block(typename Element::Value* __restrict total,
                                        const typename Element::Stored* __restrict source,
                                        std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) total[k] = Op::of(total[k], Element::widen(source[k]));
}

constexpr std::size_t block_bytes = 8192; // of intermediate results

template <class Element, class Op, class Last>
inline void reduce_blocks(void* into_address, const void* const* sources, std::size_t n, std::size_t count,
                          const Last& last) {
    using Stored = typename Element::Stored;
    using Value = typename Element::Value;
    // 16-bit conversions that exist as an instruction for eight are done block by block; other elements are
    // converted where they are used.
#if defined(__F16C__)
    constexpr bool converted_by_block = std::is_same_v<Element, Half>;
#else
    constexpr bool converted_by_block = false;
#endif
    // Small blocks there, so that loads of the next one overlap with the arithmetic of this one.
    constexpr std::size_t block = converted_by_block ? 64 : block_bytes / sizeof(Value);
    alignas(64) Value total[block];
    alignas(64) Value next[converted_by_block ? block : 1];
    Stored* into = static_cast<Stored*>(into_address);

    for (std::size_t begin = 0; begin < count; begin += block, into += block) {
        const std::size_t size = count - begin < block ? count - begin : block;
        const auto source = [&](std::size_t k) { return static_cast<const Stored*>(sources[k]) + begin; };
        if constexpr (converted_by_block) {
            widen_block<Element>(source(0), total, size);
            if (n == 1) {
                for (std::size_t k = 0; k < size; ++k) total[k] = last(total[k]);
            }
            for (std::size_t s = 1; s < n; ++s) {
                widen_block<Element>(source(s), next, size);
                if (s + 1 < n) {
                    for (std::size_t k = 0; k < size; ++k) total[k] = Op::of(total[k], next[k]);
                } else {
                    for (std::size_t k = 0; k < size; ++k) total[k] = last(Op::of(total[k], next[k]));
                }
            }
            narrow_block<Element>(total, into, size);
        } else if (n == 1) {
            const Stored* a = source(0);
            JALI_INDEPENDENT
            for (std::size_t k = 0; k < size; ++k) into[k] = Element::narrow(last(Element::widen(a[k])));
        } else if (n == 2) {
            const Stored *a = source(0), *b = source(1);
            JALI_INDEPENDENT
            for (std::size_t k = 0; k < size; ++k) {
                into[k] = Element::narrow(last(Op::of(Element::widen(a[k]), Element::widen(b[k]))));
            }
        } else {
            const Stored *a = source(0), *b = source(1);
            JALI_INDEPENDENT
            for (std::size_t k = 0; k < size; ++k) {
                total[k] = Op::of(Element::widen(a[k]), Element::widen(b[k]));
            }
            for (std::size_t s = 2; s + 1 < n; ++s) {
                accumulate_block<Element, Op>(total, source(s), size);
            }
            const Stored* c = source(n - 1);
            JALI_INDEPENDENT
            for (std::size_t k = 0; k < size; ++k) {
                into[k] = Element::narrow(last(Op::of(total[k], Element::widen(c[k]))));
            }
        }
    }
}

template <class Element, class Op, bool divides>
void reduce_loop(void* into, const void* const* sources, std::size_t n, std::size_t count, int divide_by) {
    using Value = typename Element::Value;
    if constexpr (divides) {
        using Divisor = typename DivisorOf<Value>::Type;
        if (divide_by != 1) {
            const Divide<Value> last{static_cast<Divisor>(divide_by)};
            return reduce_blocks<Element, Op>(into, sources, n, count, last);
        }
    }
    reduce_blocks<Element, Op>(into, sources, n, count, Finish<Value>{});
}

constexpr void set(ReduceTable& table, DataType type, Operation operation, ReduceLoop loop) {
    table.loops[static_cast<int>(type)][static_cast<int>(operation)] = loop;
}

template <class T>
constexpr void set_integer(ReduceTable& table, DataType type) {
    using E = Plain<T>;
    set(table, type, Operation::sum, reduce_loop<E, Sum, false>);
    set(table, type, Operation::prod, reduce_loop<E, Product, false>);
    set(table, type, Operation::min, reduce_loop<E, Minimum, false>);
    set(table, type, Operation::max, reduce_loop<E, Maximum, false>);
    set(table, type, Operation::logical_and, reduce_loop<E, LogicalAnd, false>);
    set(table, type, Operation::logical_or, reduce_loop<E, LogicalOr, false>);
    set(table, type, Operation::logical_xor, reduce_loop<E, LogicalXor, false>);
    set(table, type, Operation::bit_and, reduce_loop<E, BitAnd, false>);
    set(table, type, Operation::bit_or, reduce_loop<E, BitOr, false>);
    set(table, type, Operation::bit_xor, reduce_loop<E, BitXor, false>);
}

template <class E>
constexpr void set_complex(ReduceTable& table, DataType type) {
    set(table, type, Operation::sum, reduce_loop<E, Sum, true>);
    set(table, type, Operation::avg, reduce_loop<E, Sum, true>);
    set(table, type, Operation::prod, reduce_loop<E, Product, false>);
}

template <class E>
constexpr void set_float(ReduceTable& table, DataType type) {
    set_complex<E>(table, type);
    set(table, type, Operation::min, reduce_loop<E, Minimum, false>);
    set(table, type, Operation::max, reduce_loop<E, Maximum, false>);
}

constexpr ReduceTable make_reduce_table() {
    ReduceTable table{};
    set_integer<std::int8_t>(table, DataType::int8);
    set_integer<std::int16_t>(table, DataType::int16);
    set_integer<std::int32_t>(table, DataType::int32);
    set_integer<std::int64_t>(table, DataType::int64);
    set_integer<std::uint8_t>(table, DataType::uint8);
    set_integer<std::uint16_t>(table, DataType::uint16);
    set_integer<std::uint32_t>(table, DataType::uint32);
    set_integer<std::uint64_t>(table, DataType::uint64);
    set_float<Half>(table, DataType::fp16);
    set_float<Bfloat16>(table, DataType::bf16);
    set_float<Plain<float>>(table, DataType::fp32);
    set_float<Plain<double>>(table, DataType::fp64);
    set_complex<Plain<Complex<float>>>(table, DataType::complex64);
    set_complex<Plain<Complex<double>>>(table, DataType::complex128);
    return table;
}

} // namespace
} // namespace jali
