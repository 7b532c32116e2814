// Operations of solvers on vectors in the host's memory: linear combinations and inner products, in one pass
// over memory for related ones. NumPy makes a pass, a temporary array and a call for each operation.
//
// Results have NumPy's roundings: a factor is rounded to the type of the elements, each product and each sum
// is rounded once. Inner products are added in double precision.
#pragma once

#include <complex>
#include <cstddef>
#include <span>

namespace jali {

enum class VectorType { fp32, fp64, complex64, complex128 };
std::size_t size_of(VectorType type); // bytes of an element

struct VectorTerm {
    std::complex<double> factor;
    const void* x;
};

// y becomes own y + the terms, one after the other.
struct VectorAssignment {
    void* y;
    std::complex<double> own;
    std::span<const VectorTerm> terms;
};

// Assignments one after the other, of vectors of `count` elements: block by block, so that the values written
// by one are still in cache when the next reads them. Vectors are the same memory or have none in common, and
// no x of an assignment is its y; factors of real vectors are real. Returns the sum of |y|^2 of the last one
// if `norm`, else 0.
double assign_vectors(VectorType type, std::size_t count, std::span<const VectorAssignment> assignments,
                      bool norm);

// A vector in a combination: times x / over.
struct WeightedVector {
    double times, over;
    const void* x;
};

// y becomes the sum of the terms, added from left to right, over `divisor`, times `factor`: each operation is
// rounded, as NumPy does it; those with 1 are none. y has no memory in common with any x.
void combine_vectors(VectorType type, std::size_t count, void* y, std::span<const WeightedVector> terms,
                     double divisor, double factor);

// The sum of conj(x) y.
std::complex<double> inner_product(VectorType type, std::size_t count, const void* x, const void* y);

} // namespace jali
