// The loops of vector_loops.hpp as a table, once per instruction set. Inside the core; host_vectors.cpp
// chooses.
#pragma once

#include <cstddef>

namespace jali {

// y[k] = (times[0] x[0][k] + times[1] x[1][k] + ...) / divisor * factor: so many terms, without the division
// where the divisor is 1.
constexpr std::size_t most_terms = 5;
using CombineLoop = void (*)(void* y, const double* times, const void* const* x, double divisor,
                             double factor, std::size_t n);

struct VectorLoops {
    void (*scale)(void* y, double own, std::size_t n);
    void (*set)(void* y, double a, const void* x, std::size_t n);
    void (*add)(void* y, double a, const void* x, std::size_t n);
    void (*scale_add)(void* y, double own, double a, const void* x, std::size_t n);
    void (*scale_complex)(void* y, double re, double im, std::size_t n);
    void (*add_complex)(void* y, double re, double im, const void* x, std::size_t n);
    void (*divide)(void* y, double divisor, double factor, std::size_t n);
    void (*add_over)(void* y, double times, double over, const void* x, std::size_t n);
    void (*add_product)(void* y, double times, double again, const void* x, std::size_t n);
    CombineLoop combine[most_terms]; // of one term, of two, ...
    double (*product)(const void* x, const void* y, std::size_t n);
    void (*complex_product)(const void* x, const void* y, std::size_t n, double* real_and_imaginary);
};

struct VectorTable {
    VectorLoops loops[2]; // of float, of double
};
extern const VectorTable vector_table_base;
extern const VectorTable vector_table_avx2; // all null where this build has none

} // namespace jali
