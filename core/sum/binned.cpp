#include "sum/binned.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

// Digits are cut by adding and subtracting 1.5 * 2^52 units; contraction or reassociation would break them.
#ifdef __FAST_MATH__
#error "compile the sums without -ffast-math"
#endif

namespace jali {

namespace {

constexpr int lowest = -1074;        // exponent of bin 0's unit: every double is a multiple of it
constexpr std::int64_t chunk = 4096; // values whose digits, 2^39 each, add exactly in double: 2^51 units

constexpr int unit_exponent(int bin) {
    return BinnedSum::bin_bits * bin + lowest;
}

// K(x) for finite x != 0.
int top_bin(double largest) {
    const int e = std::ilogb(largest); // largest < 2^(e + 1)
    return std::max(2, (e + 1 - (BinnedSum::bin_bits - 1) - lowest + BinnedSum::bin_bits - 1) /
                           BinnedSum::bin_bits);
}

// Portable fixed-width vectors: the compiler lowers them to whatever the target has.
typedef double Vector __attribute__((vector_size(32)));
typedef std::int64_t Integers __attribute__((vector_size(32)));

// Wide vectors are passed between these inline functions only, so the calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
#define JALI_INLINE static inline __attribute__((always_inline))

JALI_INLINE Vector load(const double* p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

JALI_INLINE Vector broadcast(double x) {
    return Vector{x, x, x, x};
}

JALI_INLINE double add_up(Vector v) {
    return v[0] + v[1] + v[2] + v[3];
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define JALI_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define JALI_CLONES
#endif

// The largest magnitude; `finite` becomes false if there is a nan or an inf. n is a multiple of 8.
JALI_CLONES void scan(const double* values, std::int64_t n, double* largest, bool* finite) {
    const Integers magnitude = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    Vector m0{}, m1{}, zero0{}, zero1{};
    for (std::int64_t i = 0; i < n; i += 8) {
        const Vector x0 = load(values + i), x1 = load(values + i + 4);
        const Vector a0 = (Vector)((Integers)x0 & magnitude), a1 = (Vector)((Integers)x1 & magnitude);
        m0 = a0 > m0 ? a0 : m0;
        m1 = a1 > m1 ? a1 : m1;
        zero0 += x0 - x0; // nan for nan and inf
        zero1 += x1 - x1;
    }
    m0 = m0 > m1 ? m0 : m1;
    *largest = std::max(std::max(m0[0], m0[1]), std::max(m0[2], m0[3]));
    *finite = add_up(zero0 + zero1) == 0;
}

// Sums of the digits in three bins, times their units, and the largest magnitude. The sums are exact, see
// `chunk`, if that is below 2^39 units of the top bin; if a value is nan or inf, sums[0] is not finite. n is
// a multiple of 8.
JALI_CLONES void cut(const double* values, std::int64_t n, const double* magic, double* sums,
                     double* largest) {
    const Integers magnitude = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    const Vector c0 = broadcast(magic[0]), c1 = broadcast(magic[1]), c2 = broadcast(magic[2]);
    Vector s0{}, s1{}, s2{}, t0{}, t1{}, t2{}, m0{}, m1{};
    for (std::int64_t i = 0; i < n; i += 8) {
        Vector x = load(values + i), y = load(values + i + 4), q;
        const Vector a0 = (Vector)((Integers)x & magnitude), a1 = (Vector)((Integers)y & magnitude);
        m0 = a0 > m0 ? a0 : m0;
        m1 = a1 > m1 ? a1 : m1;
        q = (x + c0) - c0, x -= q, s0 += q;
        q = (y + c0) - c0, y -= q, t0 += q;
        q = (x + c1) - c1, x -= q, s1 += q;
        q = (y + c1) - c1, y -= q, t1 += q;
        q = (x + c2) - c2, s2 += q;
        q = (y + c2) - c2, t2 += q;
    }
    sums[0] = add_up(s0 + t0);
    sums[1] = add_up(s1 + t1);
    sums[2] = add_up(s2 + t2);
    m0 = m0 > m1 ? m0 : m1;
    *largest = std::max(std::max(m0[0], m0[1]), std::max(m0[2], m0[3]));
}

// The same when the top bin is the highest of all, whose magic constant is not a double: that bin is cut from
// values scaled by 2^-100. Scaling loses bits only where the digit is 0.
void cut_highest(const double* values, std::int64_t n, double* sums) {
    const int top = BinnedSum::bins - 1;
    const double scaled_magic = std::ldexp(1.5, 52 + unit_exponent(top) - 100);
    const double magic[2] = {std::ldexp(1.5, 52 + unit_exponent(top - 1)),
                             std::ldexp(1.5, 52 + unit_exponent(top - 2))};
    sums[0] = sums[1] = sums[2] = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        double x = values[i];
        const double small = x * 0x1p-100;
        const double q = (small + scaled_magic) - scaled_magic;
        if (q != 0) x = (small - q) * 0x1p100;
        sums[0] += q; // scaled as well
        for (int k = 0; k < 2; ++k) {
            const double digit = (x + magic[k]) - magic[k];
            x -= digit;
            sums[k + 1] += digit;
        }
    }
}

} // namespace

void BinnedSum::raise_top(int top) {
    if (top <= top_) return;
    if (top_ >= 0) {
        const int shift = top - top_;
        for (int slot = kept - 1; slot >= 0; --slot) {
            low_[slot] = slot >= shift ? low_[slot - shift] : 0;
            high_[slot] = slot >= shift ? high_[slot - shift] : 0;
        }
    }
    top_ = top;
}

void BinnedSum::add_digits(int slot, std::int64_t digits) {
    const std::int64_t low = low_[slot] + digits; // |digits| <= 2^52
    high_[slot] += low >> 32;
    low_[slot] = low & 0xffffffff;
}

bool BinnedSum::count_special(const double* values, std::int64_t n) {
    bool any = false;
    for (std::int64_t i = 0; i < n; ++i) {
        if (std::isfinite(values[i])) continue;
        any = true;
        ++special_[std::isnan(values[i]) ? 0 : values[i] > 0 ? 1 : 2];
    }
    return any;
}

bool BinnedSum::deposit_below_top(const double* values, std::int64_t n) {
    if (top_ < 0 || top_ == bins - 1) return false;
    double magic[kept], sums[kept], largest;
    for (int slot = 0; slot < kept; ++slot) magic[slot] = std::ldexp(1.5, 52 + unit_exponent(top_ - slot));
    cut(values, n, magic, sums, &largest);
    if (!std::isfinite(sums[0]) || largest >= std::ldexp(1.0, bin_bits - 1 + unit_exponent(top_)))
        return false;
    for (int slot = 0; slot < kept; ++slot)
        add_digits(slot, static_cast<std::int64_t>(std::ldexp(sums[slot], -unit_exponent(top_ - slot))));
    return true;
}

void BinnedSum::deposit_chunk(const double* values, std::int64_t n) {
    if (deposit_below_top(values, n)) return;
    double largest;
    bool finite;
    scan(values, n, &largest, &finite);
    if (!finite && count_special(values, n)) return; // the finite rest no longer matters
    if (largest == 0) return;
    raise_top(top_bin(largest));
    if (deposit_below_top(values, n)) return;

    double sums[kept];
    cut_highest(values, n, sums);
    add_digits(0, static_cast<std::int64_t>(std::ldexp(sums[0], 100 - unit_exponent(top_))));
    for (int slot = 1; slot < kept; ++slot)
        add_digits(slot, static_cast<std::int64_t>(std::ldexp(sums[slot], -unit_exponent(top_ - slot))));
}

void BinnedSum::deposit(const double* values, std::int64_t n) {
    const std::int64_t whole = n & ~std::int64_t{7};
    for (std::int64_t i = 0; i < whole; i += chunk) deposit_chunk(values + i, std::min(chunk, whole - i));
    if (whole < n) {
        double rest[8] = {}; // zeros add nothing
        std::copy(values + whole, values + n, rest);
        deposit_chunk(rest, 8);
    }
}

void BinnedSum::merge(const BinnedSum& other) {
    for (int k = 0; k < 3; ++k) special_[k] += other.special_[k];
    if (other.top_ < 0) return;
    raise_top(other.top_);
    const int shift = top_ - other.top_;
    for (int slot = shift; slot < kept; ++slot) {
        add_digits(slot, other.low_[slot - shift]);
        high_[slot] += other.high_[slot - shift];
    }
}

void BinnedSum::write_words(std::span<std::int64_t> out) const {
    std::fill(out.begin(), out.end(), 0);
    if (top_ >= 0) {
        for (int slot = 0; slot < kept; ++slot) {
            out[2 * (top_ - slot)] = low_[slot];
            out[2 * (top_ - slot) + 1] = high_[slot];
        }
        out[2 * bins + top_ / 2] = std::int64_t{1} << (top_ % 2 ? 32 : 0);
    }
    std::copy(special_.begin(), special_.end(), out.end() - 3);
}

double BinnedSum::value_of_words(std::span<const std::int64_t> in) {
    const auto nan = in[words - 3], plus = in[words - 2], minus = in[words - 1];
    if (nan > 0 || (plus > 0 && minus > 0)) return std::numeric_limits<double>::quiet_NaN();
    if (plus > 0) return std::numeric_limits<double>::infinity();
    if (minus > 0) return -std::numeric_limits<double>::infinity();

    int top = bins - 1;
    while (top >= 0 && (in[2 * bins + top / 2] >> (top % 2 ? 32 : 0) & 0xffffffff) == 0) --top;
    if (top < 0) return 0;

    // The three bins as one integer of 256 bits, two's complement, in units of the lowest of them.
    std::array<std::uint64_t, 4> total{};
    for (int slot = 0; slot < kept; ++slot) {
        __extension__ __int128 digits = in[2 * (top - slot) + 1];
        digits = digits * (std::int64_t{1} << 32) + in[2 * (top - slot)];
        const std::uint64_t sign = digits < 0 ? ~std::uint64_t{0} : 0;
        const std::uint64_t limbs[3] = {static_cast<std::uint64_t>(digits),
                                        static_cast<std::uint64_t>(digits >> 64), sign};
        const int shift = bin_bits * (kept - 1 - slot), limb = shift / 64, bits = shift % 64;
        bool carry = false;
        for (int k = 0; k < 4; ++k) {
            const auto at = [&](int j) { return j < 0 ? 0 : limbs[std::min(j, 2)]; };
            const std::uint64_t part =
                bits == 0 ? at(k - limb) : at(k - limb) << bits | at(k - limb - 1) >> (64 - bits);
            const std::uint64_t sum = total[k] + part;
            const std::uint64_t with_carry = sum + carry;
            carry = sum < part || with_carry < sum;
            total[k] = with_carry;
        }
    }
    const bool negative = total[3] >> 63;
    if (negative) {
        bool carry = true;
        for (auto& limb : total) {
            limb = ~limb + carry;
            carry = carry && limb == 0;
        }
    }
    int length = 256;
    while (length > 0 && (total[(length - 1) / 64] >> ((length - 1) % 64) & 1) == 0) --length;
    if (length == 0) return 0;

    // Round to 53 bits, to nearest even. Shorter integers are exact, subnormal results included: all are
    // multiples of the smallest double.
    const int drop = std::max(0, length - 53);
    const auto bit = [&](int k) { return total[k / 64] >> (k % 64) & 1; };
    std::uint64_t mantissa = 0;
    for (int k = length - 1; k >= drop; --k) mantissa = mantissa << 1 | bit(k);
    if (drop > 0 && bit(drop - 1)) {
        bool above_half = false;
        for (int k = 0; k < drop - 1 && !above_half; ++k) above_half = bit(k);
        mantissa += above_half || (mantissa & 1);
    }
    const double magnitude = std::ldexp(static_cast<double>(mantissa), drop + unit_exponent(top - kept + 1));
    return negative ? -magnitude : magnitude;
}

double BinnedSum::value() const {
    std::array<std::int64_t, words> out;
    write_words(out);
    return value_of_words(out);
}

} // namespace jali
