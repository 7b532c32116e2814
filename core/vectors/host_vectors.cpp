#include "vectors/host_vectors.hpp"
#include "vectors/vector_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace jali {

namespace {

bool runs_avx2() {
#if defined(__x86_64__) || defined(_M_X64)
    return vector_table_avx2.loops[0].add && __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

constexpr std::size_t block_bytes = 8192; // of a vector: several are in the first-level cache at once

// The parameters of loops over vectors of a type.
struct Kind {
    const VectorLoops& loops;
    bool is_complex;
    std::size_t element; // bytes

    explicit Kind(VectorType type)
        : loops(table().loops[is_double(type)]),
          is_complex(type == VectorType::complex64 || type == VectorType::complex128),
          element(size_of(type)) {}
    std::size_t block() const { return block_bytes / element; }
    double inverse(double number) const { // in the precision of the elements
        const bool is_single = element == (is_complex ? 8u : 4u);
        return is_single ? 1.0f / static_cast<float>(number) : 1.0 / number;
    }
    std::size_t reals(std::size_t elements) const { return is_complex ? 2 * elements : elements; }

  private:
    static bool is_double(VectorType type) {
        return type == VectorType::fp64 || type == VectorType::complex128;
    }
    static const VectorTable& table() {
        static const VectorTable& chosen = runs_avx2() ? vector_table_avx2 : vector_table_base;
        return chosen;
    }
};

// Of `n` elements that begin at this byte.
void assign_block(const Kind& kind, const VectorAssignment& assignment, std::size_t begin, std::size_t n) {
    const VectorLoops& loops = kind.loops;
    const std::size_t reals = kind.reals(n);
    const std::complex<double> own = assignment.own;
    std::byte* const y = static_cast<std::byte*>(assignment.y) + begin;
    const auto x_of = [&](const VectorTerm& term) { return static_cast<const std::byte*>(term.x) + begin; };
    auto terms = assignment.terms;
    const bool goes_together = own.imag() == 0 && own != 1.0 && !terms.empty() && terms[0].factor.imag() == 0;
    if (goes_together) {
        if (own == 0.0)
            loops.set(y, terms[0].factor.real(), x_of(terms[0]), reals);
        else
            loops.scale_add(y, own.real(), terms[0].factor.real(), x_of(terms[0]), reals);
        terms = terms.subspan(1);
    } else if (own == 0.0) {
        std::memset(y, 0, n * kind.element);
    } else if (own.imag() != 0) {
        loops.scale_complex(y, own.real(), own.imag(), n);
    } else if (own != 1.0) {
        loops.scale(y, own.real(), reals);
    }
    for (const VectorTerm& term : terms) {
        if (term.factor.imag() == 0)
            loops.add(y, term.factor.real(), x_of(term), reals);
        else
            loops.add_complex(y, term.factor.real(), term.factor.imag(), x_of(term), n);
    }
}

} // namespace

std::size_t size_of(VectorType type) {
    switch (type) {
    case VectorType::fp32:
        return 4;
    case VectorType::fp64:
    case VectorType::complex64:
        return 8;
    case VectorType::complex128:
        break;
    }
    return 16;
}

double assign_vectors(VectorType type, std::size_t count, std::span<const VectorAssignment> assignments,
                      bool norm) {
    const Kind kind(type);
    double sum = 0;
    for (std::size_t k = 0; k < count; k += kind.block()) {
        const std::size_t n = std::min(kind.block(), count - k), begin = k * kind.element;
        for (const VectorAssignment& assignment : assignments) assign_block(kind, assignment, begin, n);
        if (norm && !assignments.empty()) {
            const std::byte* last = static_cast<const std::byte*>(assignments.back().y) + begin;
            sum += kind.loops.product(last, last, kind.reals(n));
        }
    }
    return sum;
}

void combine_vectors(VectorType type, std::size_t count, void* y, std::span<const WeightedVector> terms,
                     double divisor, double factor) {
    const Kind kind(type);
    const VectorLoops& loops = kind.loops;
    const auto is_plain = [](const WeightedVector& term) { return term.over == 1; };
    const auto together = static_cast<std::size_t>(
        std::ranges::find_if_not(terms.first(std::min(terms.size(), most_terms)), is_plain) - terms.begin());
    // NumPy multiplies complex numbers by the inverse of the divisor.
    const bool by_inverse = kind.is_complex && divisor != 1;
    const bool all = together == terms.size() && together > 0 && !by_inverse;
    std::array<double, most_terms> times{};
    for (std::size_t t = 0; t < together; ++t) times[t] = terms[t].times;
    for (std::size_t k = 0; k < count; k += kind.block()) {
        const std::size_t n = std::min(kind.block(), count - k), begin = k * kind.element;
        const std::size_t reals = kind.reals(n);
        std::byte* const part = static_cast<std::byte*>(y) + begin;
        const auto x_of = [&](const WeightedVector& term) {
            return static_cast<const std::byte*>(term.x) + begin;
        };
        std::array<const void*, most_terms> x{};
        for (std::size_t t = 0; t < together; ++t) x[t] = x_of(terms[t]);
        if (together > 0)
            loops.combine[together - 1](part, times.data(), x.data(), all ? divisor : 1, all ? factor : 1,
                                        reals);
        else
            std::memset(part, 0, n * kind.element);
        for (const WeightedVector& term : terms.subspan(together)) {
            if (is_plain(term))
                loops.add(part, term.times, x_of(term), reals);
            else if (kind.is_complex)
                loops.add_product(part, term.times, kind.inverse(term.over), x_of(term), reals);
            else
                loops.add_over(part, term.times, term.over, x_of(term), reals);
        }
        if (all) continue;
        if (by_inverse) loops.scale(part, kind.inverse(divisor), reals);
        if (const double over = by_inverse ? 1 : divisor; over != 1 || factor != 1)
            loops.divide(part, over, factor, reals);
    }
}

std::complex<double> inner_product(VectorType type, std::size_t count, const void* x, const void* y) {
    const Kind kind(type);
    if (!kind.is_complex || x == y) return kind.loops.product(x, y, kind.reals(count));
    double parts[2];
    kind.loops.complex_product(x, y, count, parts);
    return {parts[0], parts[1]};
}

} // namespace jali
