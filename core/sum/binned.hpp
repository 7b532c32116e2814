// Sums of doubles that do not depend on order, lanes, threads or ranks (after Ahrens, Demmel and Nguyen).
//
// The number line is cut on a fixed grid: bin i holds integer multiples of 2^(40 i - 1074). A value x starts
// in its top bin K(x), the smallest K >= 2 with |x| < 2^39 units of bin K, and is cut into digits by rounding
// to nearest (even): q_K = rint(x / unit_K), the rest goes to bin K-1, and so on; digits are integers of
// magnitude at most 2^39. Sums of digits are exact, so their order is free. The result is made of the bins T,
// T-1, T-2 where T is the top bin of the largest value of all.
//
// Why a value's digits do not depend on the other summands: a chunk is cut with the top bin K of its largest
// value, so x may meet bins above K(x). There |x| < 2^39 unit_K(x) = unit_(K(x)+1) / 2, which rounds to digit
// 0 and leaves x unchanged; from K(x) downward the cut is the one above. An accumulator keeps the three bins
// below its own top; these include every bin that counts at the end, because T is at least that top, and bins
// above it hold zeros.
//
// Each value is rounded to a multiple of unit_(T-2), and max|x| >= 2^79 unit_(T-2), so the error of a sum of
// N values is at most N 2^-80 max|x|, before the one rounding of the result to a double. nan and inf are
// counted and decide the result as in IEEE arithmetic; intermediate sums cannot overflow.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace jali {

class BinnedSum {
  public:
    static constexpr int bin_bits = 40;
    static constexpr int bins = 53; // bin 0 has unit 2^-1074, bin 52 holds the largest doubles
    static constexpr int kept = 3;
    // Words for merging over ranks: low and high half of each bin's sum, how many accumulators have each top
    // bin (two per word), nan, +inf and -inf counts.
    static constexpr int words = 2 * bins + (bins + 1) / 2 + 3;

    void clear() { *this = BinnedSum(); }
    void deposit(const double* values, std::int64_t n);
    void merge(const BinnedSum& other);

    // Adds nothing twice: the integer sum of the words of up to 2^31 accumulators (2^40 values in all) holds
    // their merged sum.
    void write_words(std::span<std::int64_t> out) const;
    static double value_of_words(std::span<const std::int64_t> words);
    double value() const;

  private:
    void raise_top(int top);
    void add_digits(int slot, std::int64_t digits);
    bool count_special(const double* values, std::int64_t n);
    // One pass, with the top bin of earlier values; false, and nothing done, if a value needs a higher one.
    bool deposit_below_top(const double* values, std::int64_t n);
    void deposit_chunk(const double* values, std::int64_t n);

    int top_ = -1; // -1: nothing but zeros so far
    // Sum of digits in bin top_ - slot is high * 2^32 + low, 0 <= low < 2^32.
    std::array<std::int64_t, kept> low_{}, high_{};
    std::array<std::int64_t, 3> special_{}; // nan, +inf, -inf
};

} // namespace jali
