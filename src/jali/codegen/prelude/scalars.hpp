// The value of a sum from its words, on the device: what BinnedSum::value_of_words computes (core/sum), to the
// last bit. For the kernels of jali.codegen.number_kernels only.

// Three bins of digits as one integer of 256 bits, two's complement, in units of the lowest of them.
struct wide_integer {
    uint64_t limb[4];
};
JALI_INLINE void add_wide(wide_integer& total, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const uint64_t part[4] = {a, b, c, d};
    uint64_t carry = 0;
    JALI_UNROLL
    for (int k = 0; k < 4; ++k) {
        const uint64_t sum = total.limb[k] + part[k], with_carry = sum + carry;
        carry = (sum < part[k] ? 1 : 0) | (with_carry < sum ? 1 : 0);
        total.limb[k] = with_carry;
    }
}

JALI_INLINE double value_of_words(const int64_t* in) {
    const bool nan = in[SUM_WORDS - 3] > 0, plus = in[SUM_WORDS - 2] > 0, minus = in[SUM_WORDS - 1] > 0;
    if (nan || (plus && minus)) return nan_of_target();
    if (plus) return infinity_of_target();
    if (minus) return -infinity_of_target();

    int marks = TOP_WORDS - 1;
    while (marks >= 0 && in[2 * BINS + marks] == 0) --marks;
    if (marks < 0) return 0;
    const int top = 2 * marks + (uint64_t(in[2 * BINS + marks]) >> 32 != 0 ? 1 : 0);

    wide_integer total = {{0, 0, 0, 0}};
    for (int slot = 0; slot < 3; ++slot) {
        const int64_t low = in[2 * (top - slot)], high = in[2 * (top - slot) + 1]; // high 2^32 + low
        const uint64_t a = (uint64_t(high) << 32) + uint64_t(low);
        const uint64_t b = uint64_t(high >> 32) + (a < uint64_t(low) ? 1 : 0);
        const uint64_t sign = int64_t(b) < 0 ? ~uint64_t(0) : 0;
        if (slot == 0) add_wide(total, 0, a << 16, b << 16 | a >> 48, sign << 16 | b >> 48);
        if (slot == 1) add_wide(total, a << 40, b << 40 | a >> 24, sign << 40 | b >> 24, sign);
        if (slot == 2) add_wide(total, a, b, sign, sign);
    }
    const bool negative = total.limb[3] >> 63;
    if (negative) {
        JALI_UNROLL
        for (int k = 0; k < 4; ++k) total.limb[k] = ~total.limb[k];
        add_wide(total, 1, 0, 0, 0);
    }
    // its leading bits to the front, then to 53 of them, to nearest even
    uint64_t first = total.limb[3], second = total.limb[2], third = total.limb[1], rest = total.limb[0];
    int length = 256;
    JALI_UNROLL
    for (int k = 0; k < 3; ++k) {
        if (first != 0) continue;
        first = second;
        second = third;
        third = rest;
        rest = 0;
        length -= 64;
    }
    if (first == 0) return 0;
    JALI_UNROLL
    for (int step = 32; step > 0; step /= 2) {
        if (first >> (64 - step) != 0) continue;
        first = first << step | second >> (64 - step);
        second <<= step;
        length -= step;
    }
    const bool below = second != 0 || third != 0 || rest != 0;
    uint64_t mantissa = first >> 11;
    const uint64_t dropped = first & 0x7ff;
    if (dropped > 0x400 || (dropped == 0x400 && (below || (mantissa & 1)))) ++mantissa;
    // in two steps, neither of which rounds: the value is a multiple of the smallest double
    const int exponent = length - 53 + unit_exponent(top - 2), half = exponent / 2;
    const double magnitude = double(mantissa) * power_of_two(half) * power_of_two(exponent - half);
    return negative ? -magnitude : magnitude;
}

JALI_INLINE void keep_number(uint64_t address, uint64_t mirror, double value) {
    *(double*)address = value;
    *(volatile double*)mirror = value;
}

// By all threads of a block: the words of sums, which are zero from now on, and the values of so many sums.
JALI_INLINE void take_words(int64_t* here, int64_t* words, int64_t count) {
    for (int64_t k = thread_in_block(); k < count; k += threads_in_block()) {
        here[k] = words[k];
        words[k] = 0;
    }
}
JALI_INLINE void values_of_words(double* values, const int64_t* words, int64_t count) {
    meet();
    for (int64_t k = thread_in_block(); k < count; k += threads_in_block())
        values[k] = value_of_words(words + k * SUM_WORDS);
    meet();
}
