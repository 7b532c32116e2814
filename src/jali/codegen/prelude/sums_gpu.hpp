// Sums on a device: every contribution is cut into digits of 40 bits on a fixed grid, which add exactly as integers
// (core/sum/binned.hpp says why that does not depend on any order). A thread keeps three bins; what it has is
// added to its block's and then to the device's words, which hold for every bin the low 32 bits and the rest
// of a sum of digits, then how often a bin was the highest, then nan, +inf and -inf.
const int BIN_BITS = 40, LOWEST = -1074, BINS = 53, TOP_WORDS = (BINS + 1) / 2;
const int SUM_WORDS = 2 * BINS + TOP_WORDS + 3;
const int DIGITS_BEFORE_CARRY = 2048; // of 2^39 units, exact in double

JALI_INLINE double power_of_two(int exponent) { // a normal number
    return double_of_bits(uint64_t(exponent + 1023) << 52);
}
JALI_INLINE int unit_exponent(int bin) { return BIN_BITS * bin + LOWEST; }
JALI_INLINE double magic_of(int bin) { // 1.5 times a power of two
    return double_of_bits(uint64_t(52 + unit_exponent(bin) + 1023) << 52 | uint64_t(1) << 51);
}
JALI_INLINE double limit_of(int bin) { return power_of_two(BIN_BITS - 1 + unit_exponent(bin)); } // of values whose top it is
JALI_INLINE uint64_t bits_of_double(double x) {
    uint64_t bits;
    copy_bits(&bits, &x, sizeof bits);
    return bits;
}
// The bin in which the highest digit of 0 < |x| < infinity stands, at least 2.
JALI_INLINE int top_bin(double x) {
    const uint64_t bits = bits_of_double(x) & 0x7fffffffffffffff;
    int e = int(bits >> 52) - 1023;
    if (e == -1023) e = -1023 + 1; // denormal: below the bins that could be asked for
    const int top = (e + 1 - (BIN_BITS - 1) - LOWEST + BIN_BITS - 1) / BIN_BITS;
    return top < 2 ? 2 : top;
}

// As few numbers as can be, since an operator in the same kernel needs the registers: what follows from `top` is computed again.
struct digit_sums {
    double sum[3];
    int top, count; // the bin of sum[0], -1 before the first value; values since the last carry
};
JALI_INLINE void begin_sums(digit_sums& s) {
    s.sum[0] = s.sum[1] = s.sum[2] = 0;
    s.top = -1;
    s.count = 0;
}
JALI_INLINE void add_digits(int64_t* words, int bin, int64_t digits) {
    add_atomically(words + 2 * bin, digits & 0xffffffff);
    add_atomically(words + 2 * bin + 1, digits >> 32);
}
JALI_INLINE void mark_top(int64_t* words, int bin) {
    add_atomically(words + 2 * BINS + bin / 2, int64_t(1) << (bin % 2 ? 32 : 0));
}
// A sum of digits times their unit, as an integer; in two steps, since the inverse of a unit may be too large.
JALI_INLINE int64_t integer_digits(double sum, int bin) {
    const int half = -unit_exponent(bin) / 2, rest = -unit_exponent(bin) - half;
    return int64_t(sum * power_of_two(half) * power_of_two(rest));
}
JALI_INLINE void flush_sums(digit_sums& s, int64_t* words) {
    if (s.top < 0) return;
    for (int k = 0; k < 3; ++k) {
        if (s.sum[k] != 0) add_digits(words, s.top - k, integer_digits(s.sum[k], s.top - k));
        s.sum[k] = 0;
    }
    s.count = 0;
}
// A value that is not below the limit: zero, special, or one that raises the top.
JALI_INLINE bool add_unusual(digit_sums& s, double x, int64_t* words) {
    if (x == 0) return true;
    if (!(x - x == 0)) {
        add_atomically(words + SUM_WORDS - 3 + (x != x ? 0 : x > 0 ? 1 : 2), 1);
        return true;
    }
    const int top = top_bin(x);
    if (top == BINS - 1) { // its magic constant is not a double: cut from scaled values
        const double scaled = 1.5 * power_of_two(52 + unit_exponent(top) - 100);
        const double small = x * power_of_two(-100);
        const double q = (small + scaled) - scaled;
        if (q != 0) x = (small - q) * power_of_two(100);
        add_digits(words, top, int64_t(q * power_of_two(100 - unit_exponent(top))));
        mark_top(words, top);
        for (int k = 1; k < 3; ++k) {
            const double magic = magic_of(top - k), digit = (x + magic) - magic;
            x -= digit;
            add_digits(words, top - k, integer_digits(digit, top - k));
        }
        return true;
    }
    flush_sums(s, words);
    s.top = top; // marked at the end, when it is known for good
    return false;
}
JALI_INLINE void add_usual(digit_sums& s, double x) {
    JALI_UNROLL
    for (int k = 0; k < 3; ++k) {
        const double magic = magic_of(s.top - k), q = (x + magic) - magic;
        x -= q;
        s.sum[k] += q;
    }
    ++s.count;
}
// What hardly ever happens to a thread is code of its own, and takes and returns copies, so that bins stay in registers: with it
// in place, kernels of operators were two and a half times as long as without a sum. The first value happens to all.
JALI_OUT_OF_LINE digit_sums with_unusual(digit_sums s, double x, int64_t* words) {
    if (!add_unusual(s, x, words)) add_usual(s, x);
    return s;
}
JALI_OUT_OF_LINE digit_sums flushed(digit_sums s, int64_t* words) {
    flush_sums(s, words);
    return s;
}
JALI_INLINE void add_to_sums(digit_sums& s, double x, int64_t* words) {
    const double size = x < 0 ? -x : x;
    if (s.top < 0 && size > 0 && size < limit_of(BINS - 2)) s.top = top_bin(x);
    if (s.top >= 0 && size < limit_of(s.top))
        add_usual(s, x);
    else if (x != 0)
        s = with_unusual(s, x, words);
    if (s.count == DIGITS_BEFORE_CARRY) s = flushed(s, words);
}

// What threads have at their end. All threads of a block call it together: threads of one warp first add among
// themselves, since hundreds of additions to one word would wait for each other.
JALI_INLINE void end_sums(digit_sums& s, int64_t* words) {
    for (int top = s.top;;) {
        const int highest = most_of_warp(top);
        if (highest < 0) return;
        const bool mine = top == highest;
        for (int k = 0; k < 3; ++k) {
            const bool some = mine && s.sum[k] != 0;
            const int64_t digits = sum_of_warp(some ? integer_digits(s.sum[k], highest - k) : 0);
            if (first_of_warp() && digits != 0) add_digits(words, highest - k, digits);
        }
        if (first_of_warp()) mark_top(words, highest);
        if (mine) top = -1;
    }
}

// A block's words, to be added to the device's when all its threads have flushed theirs.
JALI_INLINE void begin_words(int64_t* words, int count) {
    for (int64_t k = thread_in_block(); k < count; k += threads_in_block()) words[k] = 0;
    meet();
}
JALI_INLINE void add_words(int64_t* total, const int64_t* words, int count) {
    meet();
    for (int64_t k = thread_in_block(); k < count; k += threads_in_block())
        if (words[k] != 0) add_atomically(total + k, words[k]);
    meet();
}

// A single value, straight into the device's words. A bin is marked as the highest of some value once, or a few times: as
// often as there are values would need more than the 32 bits of a mark.
JALI_INLINE void add_alone(double x, int64_t* words) {
    digit_sums s;
    begin_sums(s);
    add_to_sums(s, x, words);
    flush_sums(s, words);
    if (s.top < 0) return;
    const uint64_t marks = uint64_t(*(volatile int64_t*)(words + 2 * BINS + s.top / 2));
    if (uint32_t(marks >> (s.top % 2 ? 32 : 0)) == 0) mark_top(words, s.top);
}

// Maxima and minima: the largest of keys, unsigned integers that order as the numbers do (core/sum/site_reduction.hpp), in the
// first word of a sum. Zero, which a word is before anything came, is below every number.
const uint64_t SIGN_BIT = uint64_t(1) << 63;
JALI_INLINE uint64_t key_of_max(double x) {
    const uint64_t bits = bits_of_double(x);
    return x != x ? ~uint64_t(0) : bits ^ (bits >> 63 ? ~uint64_t(0) : SIGN_BIT);
}
JALI_INLINE uint64_t key_of_min(double x) { return key_of_max(-x); }
JALI_INLINE uint64_t key_of_max_whole(int64_t x) { return uint64_t(x) ^ SIGN_BIT; }
JALI_INLINE uint64_t key_of_min_whole(int64_t x) { return ~(uint64_t(x) ^ SIGN_BIT); }
JALI_INLINE uint64_t key_of_bits(int64_t how, uint64_t bits) {
    if (how == 1) return key_of_max(double_of_bits(bits));
    if (how == 2) return key_of_min(double_of_bits(bits));
    return how == 3 ? key_of_max_whole(int64_t(bits)) : key_of_min_whole(int64_t(bits));
}
JALI_INLINE double max_of_word(int64_t word) {
    const uint64_t key = uint64_t(word);
    if (key == ~uint64_t(0)) return nan_of_target();
    return double_of_bits(key >> 63 ? key ^ SIGN_BIT : ~key);
}
JALI_INLINE double min_of_word(int64_t word) { return -max_of_word(word); }
JALI_INLINE double max_whole_of_word(int64_t word) { return double(int64_t(uint64_t(word) ^ SIGN_BIT)); }
JALI_INLINE double min_whole_of_word(int64_t word) { return double(int64_t(~uint64_t(word) ^ SIGN_BIT)); }
JALI_INLINE void raise_key(uint64_t& key, uint64_t other) {
    if (other > key) key = other;
}
// What a thread has found, into its block's word.
JALI_INLINE void end_key(uint64_t key, int64_t* word) { raise_atomically(word, key); }
// A block's word into the device's, when all its threads have ended theirs.
JALI_INLINE void take_key(int64_t* total, const int64_t* word) {
    meet();
    if (thread_in_block() == 0 && *word != 0) raise_atomically(total, uint64_t(*word));
    meet();
}
