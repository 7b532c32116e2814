// The loops of host_vectors.hpp, for one instruction set: included by vector_loops_base.cpp and by
// vector_loops_avx2.cpp, which are compiled with different flags. As in schedule/reduce_loops.hpp everything
// is in an unnamed namespace and calls nothing of the standard library.
//
// A complex vector is a real one of twice the length wherever the factor is real.
#pragma once

#include "vectors/independent.hpp"
#include "vectors/vector_table.hpp"

#include <cstddef>

namespace jali {

namespace {

// Neighbours change places in a vector of four: GCC before 12 has only the second of these.
#if defined(__clang__) || __GNUC__ >= 12
#define JALI_SWAPPED(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#else
typedef long long Indices __attribute__((vector_size(32)));
#define JALI_SWAPPED(v) __builtin_shuffle(v, Indices{1, 0, 3, 2})
#endif

// y = a y
template <class Real>
void scale(void* into, double factor, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real a = static_cast<Real>(factor);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] *= a;
}

// y = a x
template <class Real>
void set(void* into, double factor, const void* from, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x = static_cast<const Real*>(from);
    const Real a = static_cast<Real>(factor);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] = a * x[k];
}

// y = y + a x
template <class Real>
void add(void* into, double factor, const void* from, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x = static_cast<const Real*>(from);
    const Real a = static_cast<Real>(factor);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] += a * x[k];
}

// y = own y + a x
template <class Real>
void scale_add(void* into, double own, double factor, const void* from, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x = static_cast<const Real*>(from);
    const Real c = static_cast<Real>(own), a = static_cast<Real>(factor);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] = c * y[k] + a * x[k];
}

// y = y / divisor * factor
template <class Real>
void divide(void* into, double divisor, double factor, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real d = static_cast<Real>(divisor), f = static_cast<Real>(factor);
    if (d == Real(1)) {
        JALI_INDEPENDENT
        for (std::size_t k = 0; k < n; ++k) y[k] *= f;
        return;
    }
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] = y[k] / d * f;
}

// y = y + times x / over
template <class Real>
void add_over(void* into, double times, double over, const void* from, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x = static_cast<const Real*>(from);
    const Real a = static_cast<Real>(times), b = static_cast<Real>(over);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] += a * x[k] / b;
}

// y = y + times x again
template <class Real>
void add_product(void* into, double times, double again, const void* from, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x = static_cast<const Real*>(from);
    const Real a = static_cast<Real>(times), b = static_cast<Real>(again);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] += a * x[k] * b;
}

template <class Real, std::size_t terms>
void combine(void* into, const double* times, const void* const* from, double divisor, double factor,
             std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x[terms];
    Real a[terms];
    for (std::size_t t = 0; t < terms; ++t) {
        x[t] = static_cast<const Real*>(from[t]);
        a[t] = static_cast<Real>(times[t]);
    }
    const auto sum = [&](std::size_t k) {
        Real found = a[0] * x[0][k];
        for (std::size_t t = 1; t < terms; ++t) found += a[t] * x[t][k];
        return found;
    };
    const Real d = static_cast<Real>(divisor), f = static_cast<Real>(factor);
    if (d == Real(1)) {
        JALI_INDEPENDENT
        for (std::size_t k = 0; k < n; ++k) y[k] = sum(k) * f;
        return;
    }
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) y[k] = sum(k) / d * f;
}

// The same of complex elements, as pairs of numbers; n counts elements.
template <class Real>
void scale_complex(void* into, double re, double im, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real a = static_cast<Real>(re), b = static_cast<Real>(im);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) {
        const Real u = y[2 * k], v = y[2 * k + 1];
        y[2 * k] = u * a - v * b;
        y[2 * k + 1] = u * b + v * a;
    }
}

template <class Real>
void add_complex(void* into, double re, double im, const void* from, std::size_t n) {
    Real* y = static_cast<Real*>(into);
    const Real* x = static_cast<const Real*>(from);
    const Real a = static_cast<Real>(re), b = static_cast<Real>(im);
    JALI_INDEPENDENT
    for (std::size_t k = 0; k < n; ++k) {
        const Real u = x[2 * k], v = x[2 * k + 1];
        y[2 * k] += a * u - b * v;
        y[2 * k + 1] += a * v + b * u;
    }
}

// Sums in so many lanes, since each addition would wait for the one before.
constexpr std::size_t lanes = 16;

inline double total(const double (&sums)[lanes]) {
    double found = 0;
    for (std::size_t k = 0; k < lanes; ++k) found += sums[k];
    return found;
}

// Sum of x y.
template <class Real>
double product(const void* left, const void* right, std::size_t n) {
    const Real* x = static_cast<const Real*>(left);
    const Real* y = static_cast<const Real*>(right);
    double sums[lanes] = {};
    std::size_t k = 0;
    for (; k + lanes <= n; k += lanes) {
        for (std::size_t j = 0; j < lanes; ++j)
            sums[j] += static_cast<double>(x[k + j]) * static_cast<double>(y[k + j]);
    }
    for (std::size_t j = 0; k < n; ++k, ++j) sums[j] += static_cast<double>(x[k]) * static_cast<double>(y[k]);
    return total(sums);
}

// The sum of conj(x) y, real and imaginary part. Vectors in the language, since compilers do not detect the
// exchange of numbers: each is multiplied with its partner and with the other part of its partner, whose
// products of imaginary with real parts, in odd places, are subtracted.
template <class Real>
void complex_product(const void* left, const void* right, std::size_t n, double* real_and_imaginary) {
    const Real* x = static_cast<const Real*>(left);
    const Real* y = static_cast<const Real*>(right);
    constexpr std::size_t width = 4, several = 4;
    typedef Real Reals __attribute__((vector_size(width * sizeof(Real))));
    typedef double Doubles __attribute__((vector_size(width * sizeof(double))));
    Doubles same[several] = {}, other[several] = {};
    const std::size_t reals = 2 * n;
    std::size_t k = 0;
    for (; k + width * several <= reals; k += width * several) {
        for (std::size_t j = 0; j < several; ++j) {
            Reals of_x, of_y;
            __builtin_memcpy(&of_x, x + k + width * j, sizeof of_x);
            __builtin_memcpy(&of_y, y + k + width * j, sizeof of_y);
            const Doubles a = __builtin_convertvector(of_x, Doubles);
            const Doubles b = __builtin_convertvector(of_y, Doubles);
            same[j] += a * b;
            other[j] += a * JALI_SWAPPED(b);
        }
    }
    double real = 0, imaginary = 0;
    for (std::size_t j = 0; j < several; ++j) {
        real += same[j][0] + same[j][1] + same[j][2] + same[j][3];
        imaginary += other[j][0] - other[j][1] + other[j][2] - other[j][3];
    }
    for (; k < reals; k += 2) {
        const double a = x[k], b = x[k + 1], c = y[k], d = y[k + 1];
        real += a * c + b * d;
        imaginary += a * d - b * c;
    }
    real_and_imaginary[0] = real;
    real_and_imaginary[1] = imaginary;
}

template <class Real>
constexpr VectorLoops vector_loops_of() {
    return {scale<Real>,
            set<Real>,
            add<Real>,
            scale_add<Real>,
            scale_complex<Real>,
            add_complex<Real>,
            divide<Real>,
            add_over<Real>,
            add_product<Real>,
            {combine<Real, 1>, combine<Real, 2>, combine<Real, 3>, combine<Real, 4>, combine<Real, 5>},
            product<Real>,
            complex_product<Real>};
}

constexpr VectorTable make_vector_table() {
    return {{vector_loops_of<float>(), vector_loops_of<double>()}};
}

} // namespace

} // namespace jali
