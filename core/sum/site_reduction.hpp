// Reductions of the contributions of sites: sums (binned.hpp), maxima and minima.
//
// An extreme is kept as a key, an unsigned integer that orders as the numbers do: the larger key is the more
// extreme number, so that accumulators, threads and ranks combine by a maximum and their order has no effect.
// Zero is below every number. NaN is above all of them, as in NumPy, and -0 is below +0. A contribution is 8
// bytes: a double, or a whole number of 64 bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "geometry/box.hpp"

namespace jali {

enum class SiteReduction { sum, max, min, max_whole, min_whole };

// Of "sum", "max", "min", "max_whole", "min_whole". Throws LayoutError.
inline SiteReduction site_reduction_of(const std::string& name) {
    if (name == "sum") return SiteReduction::sum;
    if (name == "max") return SiteReduction::max;
    if (name == "min") return SiteReduction::min;
    if (name == "max_whole") return SiteReduction::max_whole;
    if (name == "min_whole") return SiteReduction::min_whole;
    throw LayoutError("no reduction is called '" + name + "'");
}

class Extreme {
  public:
    static constexpr std::uint64_t none = 0, nan = ~std::uint64_t{0};

    // Raises `key` to the most extreme of n contributions.
    static void raise(std::uint64_t& key, SiteReduction how, const double* values, std::int64_t n) {
        switch (how) {
        case SiteReduction::max:
            return raise(key, values, n, [](double x) { return of(x); });
        case SiteReduction::min:
            return raise(key, values, n, [](double x) { return of(-x); });
        case SiteReduction::max_whole:
            return raise(key, values, n, [](double x) { return bits(x) ^ sign; });
        case SiteReduction::min_whole:
            return raise(key, values, n, [](double x) { return ~(bits(x) ^ sign); });
        case SiteReduction::sum:
            return;
        }
    }

    // The number of a key, as 8 bytes.
    static double number(std::uint64_t key, SiteReduction how) {
        switch (how) {
        case SiteReduction::max:
            return real(key);
        case SiteReduction::min:
            return -real(key);
        case SiteReduction::max_whole:
            return std::bit_cast<double>(key ^ sign);
        case SiteReduction::min_whole:
            return std::bit_cast<double>(~key ^ sign);
        case SiteReduction::sum:
            break;
        }
        return 0;
    }

    // A contribution that changes nothing.
    static double neutral(SiteReduction how) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        switch (how) {
        case SiteReduction::max:
            return -infinity;
        case SiteReduction::min:
            return infinity;
        case SiteReduction::max_whole:
            return std::bit_cast<double>(sign);
        case SiteReduction::min_whole:
            return std::bit_cast<double>(~sign);
        case SiteReduction::sum:
            break;
        }
        return 0;
    }

    static bool whole(SiteReduction how) {
        return how == SiteReduction::max_whole || how == SiteReduction::min_whole;
    }

  private:
    static constexpr std::uint64_t sign = std::uint64_t{1} << 63;
    static std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }
    static std::uint64_t of(double x) {
        const std::uint64_t b = bits(x);
        return x != x ? nan : b ^ (b >> 63 ? ~std::uint64_t{0} : sign);
    }
    static double real(std::uint64_t key) {
        if (key == nan) return std::numeric_limits<double>::quiet_NaN();
        return std::bit_cast<double>(key >> 63 ? key ^ sign : ~key);
    }
    // Four at a time, since each comparison would wait for the one before.
    template <class Key>
    static void raise(std::uint64_t& key, const double* values, std::int64_t n, Key key_of) {
        std::uint64_t found[4] = {key, key, key, key};
        std::int64_t i = 0;
        for (; i + 4 <= n; i += 4) {
            for (int k = 0; k < 4; ++k) found[k] = std::max(found[k], key_of(values[i + k]));
        }
        for (; i < n; ++i) found[0] = std::max(found[0], key_of(values[i]));
        key = std::max(std::max(found[0], found[1]), std::max(found[2], found[3]));
    }
};

} // namespace jali
