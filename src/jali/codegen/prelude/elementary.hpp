// Elementary functions on lanes, in double or float.
//
// Straight-line code: every lane takes the same steps and special cases are selected at the end. Arguments
// are reduced with fused multiply-adds so that the reduction is exact or carries its rounding error along,
// and a polynomial does the rest. The coefficients are our own minimax fits: Remez exchange in 50-digit
// arithmetic on the reduced interval, weighted by the effect on the relative error of the result; from the
// lowest coefficient up, each is rounded to JALI_REAL and the others are fitted again (not for exp, whose
// interval has both signs). Errors, measured in both precisions (tests/codegen/test_prelude_elementary.py):
// below 1 ulp, but 1.1 for pow and 1.6 for sinh, cosh, tanh and rsqrt. sin, cos and tan keep their accuracy
// for every finite argument: pi is taken to as many bits as the argument needs.

#if JALI_IEEE
#if JALI_DOUBLE
constexpr int MANTISSA_BITS = 52;
constexpr lane_integer EXPONENT_BIAS = 1023;
constexpr JALI_REAL SMALLEST_NORMAL = 0x1p-1022;
constexpr JALI_REAL ROUNDING_OFFSET = 0x1.8p52; // x + this - this is x rounded to the nearest integer
constexpr JALI_REAL EXP_LOWEST = -750, EXP_HIGHEST = 720, TANH_ONE = 22;
constexpr JALI_REAL LOG2_E = 1.4426950408889634;
constexpr JALI_REAL LN2_HEAD = 0.6931471805599453, LN2_TAIL = 2.3190468138462996e-17;
constexpr JALI_REAL LN2_SHORT = 0.6931471803691238,
                    LN2_REST = 1.9082149292705877e-10; // 32 bits, and the rest
constexpr JALI_REAL TWO_OVER_PI = 0.6366197723675814;
constexpr JALI_REAL HALF_PI[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33};
constexpr JALI_REAL QUARTER_PI[] = {0.7853981633974483, 3.061616997868383e-17};
constexpr JALI_REAL THIRD[] = {0.3333333333333333, 1.850371707708594e-17};
constexpr JALI_REAL TRIG_LIMIT = 0x1p40; // beyond it the quadrant could be misjudged by the product with 2/pi
// exp(r) = 1 + r + r^2 P(r), |r| <= ln(2)/2
constexpr JALI_REAL EXP_P[] = {0.5000000000000006,     0.16666666666666685,    0.04166666666657295,
                               0.00833333333331441,    0.001388888893261566,   0.00019841269903448305,
                               2.4801504145091347e-05, 2.7557227559611793e-06, 2.7626451762494667e-07,
                               2.511460376896563e-08};
// log((1+s)/(1-s)) = 2 s + s z P(z), z = s^2, s <= 3 - 2 sqrt(2)
constexpr JALI_REAL LOG_P[] = {0.6666666666666735, 0.3999999999940933, 0.2857142874369644,
                               0.2222219842742047, 0.1818357246037946, 0.15313829683946764,
                               0.14798264737697459};
// atanh(s)/s = 1 + z/3 + z^2 P(z), on the same interval, to 70 bits
constexpr JALI_REAL ATANH_P[] = {0.2,
                                 0.14285714285710643,
                                 0.1111111111329541,
                                 0.09090908578563225,
                                 0.07692367899929979,
                                 0.0666275728139948,
                                 0.06025148060490686,
                                 0.025072511837318026,
                                 0.26813663529195475};
// sin(r) = r + r z P(z), cos(r) = 1 - z/2 + z^2 P(z), z = r^2, |r| <= 1.02 pi/4
constexpr JALI_REAL SIN_P[] = {-0.1666666666666662,    0.008333333333319587,   -0.00019841269827456469,
                               2.7557312854106797e-06, -2.505062437729294e-08, 1.588893233482623e-10};
constexpr JALI_REAL COS_P[] = {0.041666666666666574,  -0.0013888888888869614, 2.4801587286606182e-05,
                               -2.75573135081685e-07, 2.0875607156750474e-09, -1.1353583709857283e-11};
// atan(r) = r + r z P(z), |r| <= sqrt(2) - 1
constexpr JALI_REAL ATAN_P[] = {-0.33333333333333326, 0.19999999999997095,  -0.14285714285316392,
                                0.11111111083744653,  -0.09090907985798115, 0.07692279198887639,
                                -0.06666174638929323, 0.05876515913336437,  -0.05215176320945726,
                                0.044905316885626774, -0.03317360245006364, 0.014891410000811456};
// asin(r) = r + r z P(z), r <= 1/2
constexpr JALI_REAL ASIN_P[] = {0.16666666666666763,  0.07499999999970129,  0.04464285717525469,
                                0.030381942676873077, 0.022372215858830643, 0.01735159638125966,
                                0.013981007573623189, 0.01139738530902516,  0.010788799938125503,
                                0.003674092761865348, 0.021786452199537492, -0.02111200068491617,
                                0.032700433256037706};
#else
constexpr int MANTISSA_BITS = 23;
constexpr lane_integer EXPONENT_BIAS = 127;
constexpr JALI_REAL SMALLEST_NORMAL = 0x1p-126f;
constexpr JALI_REAL ROUNDING_OFFSET = 0x1.8p23f;
constexpr JALI_REAL EXP_LOWEST = -110, EXP_HIGHEST = 95, TANH_ONE = 10;
constexpr JALI_REAL LOG2_E = 1.4426950216293335f;
constexpr JALI_REAL LN2_HEAD = 0.6931471824645996f, LN2_TAIL = -1.9046542121259336e-09f;
constexpr JALI_REAL LN2_SHORT = 0.693145751953125f, LN2_REST = 1.428606765e-06f; // 15 bits, and the rest
constexpr JALI_REAL TWO_OVER_PI = 0.6366197466850281f;
constexpr JALI_REAL HALF_PI[] = {1.5707963705062866f, -4.371138828673793e-08f, -1.7151245100058819e-15f};
constexpr JALI_REAL QUARTER_PI[] = {0.7853981852531433f, -2.1855694143368964e-08f};
constexpr JALI_REAL THIRD[] = {0.3333333432674408f, -9.934107758624577e-09f};
constexpr JALI_REAL TRIG_LIMIT = 0x1p17f;
constexpr JALI_REAL EXP_P[] = {5.000000000e-01f, 1.666654199e-01f, 4.166628048e-02f, 8.366645314e-03f,
                               1.394653809e-03f};
constexpr JALI_REAL LOG_P[] = {6.666666269e-01f, 4.000097215e-01f, 2.849879563e-01f, 2.427904755e-01f};
constexpr JALI_REAL ATANH_P[] = {2.000000030e-01f, 1.428570151e-01f, 1.110552251e-01f, 9.514892101e-02f};
constexpr JALI_REAL SIN_P[] = {-1.666666716e-01f, 8.333377540e-03f, -1.985201088e-04f, 2.819225074e-06f};
constexpr JALI_REAL COS_P[] = {4.166666791e-02f, -1.388897770e-03f, 2.482080708e-05f, -2.873609901e-07f};
constexpr JALI_REAL ATAN_P[] = {-3.333331645e-01f, 1.999852955e-01f, -1.424442381e-01f, 1.059938967e-01f,
                                -6.090505049e-02f};
constexpr JALI_REAL ASIN_P[] = {1.666665971e-01f, 7.500521094e-02f, 4.451363534e-02f,
                                3.183604777e-02f, 1.432925649e-02f, 3.767490387e-02f};
#endif
constexpr JALI_REAL LIFT = JALI_REAL(lane_integer(1) << (MANTISSA_BITS + 1)); // makes denormal numbers normal
#define INFINITE JALI_REAL(infinity_of_target())
#define NOT_A_NUMBER JALI_REAL(nan_of_target())

// c[0] + c[1] x + ...: even and odd powers in two chains
template <int N>
JALI_INLINE real polynomial(real x, const JALI_REAL (&c)[N]) {
    static_assert(N > 1, "a constant is no polynomial");
    const real x2 = x * x;
    real even = splat(c[(N - 1) / 2 * 2]), odd = splat(c[(N - 2) / 2 * 2 + 1]);
    JALI_UNROLL
    for (int k = (N - 1) / 2 * 2 - 2; k >= 0; k -= 2) even = fma(even, x2, splat(c[k]));
    JALI_UNROLL
    for (int k = (N - 2) / 2 * 2 - 1; k >= 0; k -= 2) odd = fma(odd, x2, splat(c[k]));
    return fma(odd, x, even);
}

// a + b and its rounding error; the quick form needs |a| >= |b| or a = 0
struct two_words {
    real high, low;
};
JALI_INLINE two_words two_sum(real a, real b) {
    const real sum = a + b, part = sum - a;
    return {sum, (a - (sum - part)) + (b - part)};
}
JALI_INLINE two_words quick_sum(real a, real b) {
    const real sum = a + b;
    return {sum, b - (sum - a)};
}
// a / b in two words
JALI_INLINE two_words quotient(two_words a, two_words b) {
    const real high = a.high / b.high;
    return {high, (fnma(high, b.high, a.high) + fnma(high, b.low, a.low)) / b.high};
}

// 2^n for an n that ROUNDING_OFFSET + n carries in its low bits
JALI_INLINE real power_of_two(real offset_plus_n) {
    return real_of_bits((bits_of(offset_plus_n) << MANTISSA_BITS) +
                        splat_integer(EXPONENT_BIAS << MANTISSA_BITS));
}

// x + low = n ln 2 + r with |r| <= ln(2)/2; exp(r) - 1 is the (unrounded) sum of r and the second word
template <bool LOW>
JALI_INLINE two_words exp_reduced(real x, real low, real* n) {
    *n = fma(x, splat(LOG2_E), splat(ROUNDING_OFFSET)) - splat(ROUNDING_OFFSET);
    real r = fnma(*n, splat(LN2_TAIL), fnma(*n, splat(LN2_HEAD), x));
    if (LOW) r = r + low;
    return {r, r * r * polynomial(r, EXP_P)};
}
// exp(x + low) / 2^n, |low| far below one ulp of x; of x no more than EXP_LOWEST and `highest` is taken
template <bool LOW>
JALI_INLINE real exp_mantissa(real x, real low, JALI_REAL highest, real* n) {
    const real inside = vmin(vmax(x, splat(EXP_LOWEST)), splat(highest));
    const two_words p = exp_reduced<LOW>(inside, low, n), sum = quick_sum(splat(1), p.high);
    return sum.high + (sum.low + p.low);
}
// 2^SHIFT exp(x + low); 2^n is applied in two steps so that denormal results are reached
template <bool LOW, int SHIFT>
JALI_INLINE real exp_shifted(real x, real low) {
    real n;
    const real mantissa = exp_mantissa<LOW>(x, low, EXP_HIGHEST, &n);
    const real half = fma(n, splat(JALI_REAL(0.5)), splat(ROUNDING_OFFSET));
    const real rest = n - (half - splat(ROUNDING_OFFSET)) + splat(ROUNDING_OFFSET + SHIFT);
    return select(x == x, mantissa * power_of_two(half) * power_of_two(rest), x);
}
// exp(x) - 1 for |x| <= 2 TANH_ONE
JALI_INLINE two_words expm1_bounded(real x) {
    real n;
    const two_words p = exp_reduced<false>(x, x, &n), whole = quick_sum(p.high, p.low);
    const real power = power_of_two(n + splat(ROUNDING_OFFSET));
    const two_words sum = two_sum(power - splat(1), power * whole.high);
    return quick_sum(sum.high, fma(power, whole.low, sum.low));
}

JALI_CALL real vexp(real x) {
    return exp_shifted<false, 0>(x, x);
}

// x = 2^k m, sqrt(1/2) <= m < sqrt(2), for positive finite x, denormal or not
JALI_INLINE real split_power(real x, real* k) {
    constexpr lane_integer ROOT_HALF =
        sizeof(JALI_REAL) == 8 ? lane_integer(0x3fe6a09e667f3bcd) : lane_integer(0x3f3504f3);
    constexpr lane_integer ONE = EXPONENT_BIAS << MANTISSA_BITS;
    constexpr lane_integer FRACTION = (lane_integer(1) << MANTISSA_BITS) - 1;
    constexpr lane_integer WHOLE = (EXPONENT_BIAS + MANTISSA_BITS)
                                   << MANTISSA_BITS; // bits of 2^MANTISSA_BITS
    const mask denormal = x < splat(SMALLEST_NORMAL);
    const integer bits = bits_of(select(denormal, x * splat(LIFT), x)) + splat_integer(ONE - ROOT_HALF);
    const integer biased = as_signed(as_unsigned(bits) >> MANTISSA_BITS);
    const JALI_REAL offset = JALI_REAL(lane_integer(1) << MANTISSA_BITS) + EXPONENT_BIAS;
    *k = real_of_bits(biased | splat_integer(WHOLE)) - splat(offset) -
         keep(denormal, splat(MANTISSA_BITS + 1));
    return real_of_bits((bits & splat_integer(FRACTION)) + splat_integer(ROOT_HALF));
}

// With s = f/(2+f): log(1+f) = f - f^2/2 + s (f^2/2 + z P(z)), so that the leading term is exact.
JALI_CALL real vlog(real x) {
    real k;
    const real f = split_power(x, &k) - splat(1);
    const real s = f / (splat(2) + f), z = s * s, half_square = splat(JALI_REAL(0.5)) * f * f;
    const real correction = fma(s, fma(z, polynomial(z, LOG_P), half_square), k * splat(LN2_REST));
    real result = fma(k, splat(LN2_SHORT), f - (half_square - correction));
    result = select(x == splat(INFINITE), x, result);
    result = select(x == splat(0), splat(-INFINITE), result);
    return select(x >= splat(0), result, splat(NOT_A_NUMBER));
}

// 2/pi in binary, after one word of zeros
constexpr uint64_t TWO_OVER_PI_BITS[] = {0,
                                         0xa2f9836e4e441529,
                                         0xfc2757d1f534ddc0,
                                         0xdb6295993c439041,
                                         0xfe5163abdebbc561,
                                         0xb7246e3a424dd2e0,
                                         0x06492eea09d1921c,
                                         0xfe1deb1cb129a73e,
                                         0xe88235f52ebb4484,
                                         0xe99c7026b45f7e41,
                                         0x3991d639835339f4,
                                         0x9c845f8bbdf9283b,
                                         0x1ff897ffde05980f,
                                         0xef2f118b5a0a6d1f,
                                         0x6d367ecf27cb09b7,
                                         0x4f463f669e5fea2d,
                                         0x7527bac7ebe5f17b,
                                         0x3d0739f78a5292ea,
                                         0x6bfb5fb11f8d5d08,
                                         0x56033046fc7b6bab,
                                         0xf0cfbc209af4361d};

// x = quadrant pi/2 + head + tail for one finite |x| >= 2^17, after Payne and Hanek: the product of the
// integer mantissa of x with those 192 bits of 2/pi that matter modulo 4.
JALI_CALL int reduce_large(double x, double* head, double* tail) {
    uint64_t bits;
    copy_bits(&bits, &x, sizeof bits);
    const int exponent = int(bits >> 52 & 0x7ff) - 1075;
    const uint64_t mantissa = (bits & ((uint64_t(1) << 52) - 1)) | uint64_t(1) << 52;
    const int first = 62 + exponent, word = first / 64, shift = first % 64;
    uint64_t window[3];
    for (int i = 0; i < 3; ++i)
        window[i] = TWO_OVER_PI_BITS[word + i] << shift |
                    (shift ? TWO_OVER_PI_BITS[word + i + 1] >> (64 - shift) : 0);
    const unsigned __int128 low = (unsigned __int128)mantissa * window[2];
    const unsigned __int128 middle = (unsigned __int128)mantissa * window[1] + uint64_t(low >> 64);
    const uint64_t high = mantissa * window[0] + uint64_t(middle >> 64);
    // high : middle : low is x 2/pi modulo 4 with two bits before the point; what follows them is taken as
    // signed
    unsigned __int128 fraction =
        (unsigned __int128)high << 66 | (unsigned __int128)uint64_t(middle) << 2 | uint64_t(low) >> 62;
    int quadrant = int(high >> 62);
    const bool negative = fraction >> 127 != 0;
    if (negative) {
        fraction = -fraction;
        ++quadrant;
    }
    int zeros = 0;
    while (!(fraction >> 127) && zeros < 127) {
        fraction <<= 1;
        ++zeros;
    }
    const uint64_t unit_bits = uint64_t(1023 - 53 - zeros)
                               << 52; // 2^(-53 - zeros), the weight of the leading 53 bits
    double unit;
    copy_bits(&unit, &unit_bits, sizeof unit);
    const double a = double(int64_t(fraction >> 75)) * unit;
    const double b = double(int64_t(fraction >> 22 & ((uint64_t(1) << 53) - 1))) * unit * 0x1p-53;
    const double c0 = 1.5707963267948966, c1 = 6.123233995736766e-17;
    const double product = a * c0;
    const double rest = fma_one(a, c0, -product) + (a * c1 + b * c0);
    const double sum = product + rest;
    const double sign = negative != (x < 0) ? -1 : 1;
    *head = sign * sum;
    *tail = sign * (rest - (sum - product));
    return x < 0 ? -quadrant : quadrant;
}
JALI_CALL void reduce_large_lanes(real x, mask wanted, real* r, real* tail, integer* quadrant) {
    for (int l = 0; l < JALI_LANES; ++l) {
        if (!wanted[l]) continue;
        if (!(x[l] - x[l] == 0)) {
            (*r)[l] = x[l] - x[l];
            (*tail)[l] = 0;
            continue;
        }
        double head, rest;
        (*quadrant)[l] = reduce_large(x[l], &head, &rest);
        (*r)[l] = JALI_REAL(head);
        (*tail)[l] = JALI_REAL(head - double((*r)[l]) + rest);
    }
}

// x = quadrant pi/2 + r + tail, |r| a little above pi/4 at most. n HALF_PI[0] is subtracted without error,
// since the difference is a multiple of the last bit of HALF_PI[0] (or of x); the rest is subtracted in two
// words.
JALI_INLINE void reduce_angle(real x, real* r, real* tail, integer* quadrant) {
    const real shifted = fma(x, splat(TWO_OVER_PI), splat(ROUNDING_OFFSET));
    const real n = shifted - splat(ROUNDING_OFFSET);
    *quadrant = bits_of(shifted);
    const real exact = fnma(n, splat(HALF_PI[0]), x);
    const real second = n * splat(HALF_PI[1]), second_low = fms(n, splat(HALF_PI[1]), second);
    const two_words difference = two_sum(exact, -second);
    const two_words reduced =
        quick_sum(difference.high, fnma(n, splat(HALF_PI[2]), difference.low - second_low));
    *r = reduced.high;
    *tail = reduced.low;
    const mask large = ~(vabs(x) < splat(TRIG_LIMIT));
    if (any(large)) reduce_large_lanes(x, large, r, tail, quadrant);
}
JALI_INLINE two_words sin_reduced(real r, real tail) {
    const real z = r * r;
    const real low = fnma(splat(JALI_REAL(0.5)) * z, tail, tail);
    return {r, fma(r * z, polynomial(z, SIN_P), low)};
}
JALI_INLINE two_words cos_reduced(real r, real tail) {
    const real z = r * r, half = splat(JALI_REAL(0.5)) * z, leading = splat(1) - half;
    return {leading, (splat(1) - leading - half) + fma(z * z, polynomial(z, COS_P), -(r * tail))};
}
// The sign bit that bit 1 of the quadrant asks for
JALI_INLINE integer quadrant_sign(integer quadrant) {
    return (quadrant << (8 * sizeof(JALI_REAL) - 2)) & sign_bits();
}
// sine and cosine of quadrant pi/2 + r + tail
JALI_INLINE void sincos_reduced(real* s, real* c, real r, real tail, integer quadrant) {
    const two_words a = sin_reduced(r, tail), b = cos_reduced(r, tail);
    const real sine = a.high + a.low, cosine = b.high + b.low;
    const mask odd = (quadrant & splat_integer(1)) != splat_integer(0);
    *s = real_of_bits(bits_of(select(odd, cosine, sine)) ^ quadrant_sign(quadrant));
    *c = real_of_bits(bits_of(select(odd, sine, cosine)) ^ quadrant_sign(quadrant + splat_integer(1)));
}
JALI_CALL void vsincos(real* s, real* c, real x) {
    real r, tail;
    integer quadrant;
    reduce_angle(x, &r, &tail, &quadrant);
    sincos_reduced(s, c, r, tail, quadrant);
    *s = select(x == splat(0), x, *s);
}
JALI_CALL real vsin(real x) {
    real r, tail, s, c;
    integer quadrant;
    reduce_angle(x, &r, &tail, &quadrant);
    sincos_reduced(&s, &c, r, tail, quadrant);
    return select(x == splat(0), x, s);
}
JALI_CALL real vcos(real x) {
    real r, tail, s, c;
    integer quadrant;
    reduce_angle(x, &r, &tail, &quadrant);
    sincos_reduced(&s, &c, r, tail, quadrant);
    return c;
}
JALI_CALL real vtan(real x) {
    real r, tail;
    integer quadrant;
    reduce_angle(x, &r, &tail, &quadrant);
    const two_words a = sin_reduced(r, tail), b = cos_reduced(r, tail);
    const two_words sine = quick_sum(a.high, a.low), cosine = quick_sum(b.high, b.low);
    const mask odd = (quadrant & splat_integer(1)) != splat_integer(0);
    const two_words over = {select(odd, -cosine.high, sine.high), select(odd, -cosine.low, sine.low)};
    const two_words under = {select(odd, sine.high, cosine.high), select(odd, sine.low, cosine.low)};
    const two_words t = quotient(over, under);
    return select(x == splat(0), x, t.high + t.low);
}

JALI_CALL real vsinh(real x) {
    const real a = vabs(x);
    const two_words t = expm1_bounded(vmin(a, splat(1)));
    const two_words above = two_sum(splat(1), t.high), q = quotient(t, {above.high, above.low + t.low});
    const two_words sum = quick_sum(t.high, q.high);
    const real small = splat(JALI_REAL(0.5)) * (sum.high + (sum.low + (t.low + q.low)));
    const real large = exp_shifted<false, -1>(a, a) - exp_shifted<false, -1>(-a, a);
    return select(x == x, copy_sign(select(a < splat(1), small, large), x), x);
}
JALI_CALL real vcosh(real x) {
    const real a = vabs(x);
    return exp_shifted<false, -1>(a, a) + exp_shifted<false, -1>(-a, a);
}
JALI_CALL real vtanh(real x) {
    const real a = vmin(vabs(x), splat(TANH_ONE));
    const two_words t = expm1_bounded(a + a), above = two_sum(splat(2), t.high);
    const two_words q = quotient(t, {above.high, above.low + t.low});
    return select(x == x, copy_sign(q.high + q.low, x), x);
}

// The angle of (x, y). The smaller over the larger coordinate is at most 1; above tan(pi/8) it is turned by
// pi/4, and the multiple of pi/4 that is left is added with its low part.
JALI_CALL real vatan2(real y, real x) {
    real a = vmin(vabs(x), vabs(y)), b = vmax(vabs(x), vabs(y));
    const mask both_infinite = a == splat(INFINITE);
    const mask huge = b > splat(1 / (4 * SMALLEST_NORMAL)), tiny = b < splat(SMALLEST_NORMAL * LIFT);
    const real unit = select(huge, splat(JALI_REAL(0.25)), select(tiny, splat(LIFT), splat(1)));
    a = select(both_infinite, splat(1), a * unit);
    b = select(both_infinite, splat(1), b * unit);
    const mask turned = a > splat(JALI_REAL(0.41421356237309503)) * b;
    const two_words less = quick_sum(-b, a), more = quick_sum(b, a);
    const two_words over = {select(turned, less.high, a), keep(turned, less.low)};
    const two_words under = {select(turned, more.high, b), keep(turned, more.low)};
    const two_words ratio = quotient(over, under);
    const real r = keep(b != splat(0), ratio.high);
    const real r_low = keep((b != splat(0)) & (b < splat(INFINITE)), ratio.low);
    const mask steep = vabs(y) > vabs(x), left = bits_of(x) < splat_integer(0);
    // angle = eighths pi/4 + sign (r + r^3 P)
    const real eighth = select(turned, splat(1), splat(0));
    const real steep_eighths = select(left, splat(2) + eighth, splat(2) - eighth);
    const real flat_eighths = select(left, splat(4) - eighth, eighth);
    const real eighths = select(steep, steep_eighths, flat_eighths);
    const integer turn = sign_bits() & (steep ^ left);
    const real signed_r = real_of_bits(bits_of(r) ^ turn), signed_low = real_of_bits(bits_of(r_low) ^ turn);
    const real z = r * r, head = eighths * splat(QUARTER_PI[0]);
    const real low =
        signed_low + fma(eighths, splat(QUARTER_PI[1]), fms(eighths, splat(QUARTER_PI[0]), head));
    const real small = fma(signed_r * z, polynomial(z, ATAN_P), low);
    // |head| > |signed_r| unless head is 0
    const two_words sum = quick_sum(head, signed_r);
    const real result = copy_sign(sum.high + (sum.low + small), y);
    return select((x == x) & (y == y), result, x + y);
}
JALI_CALL real vatan(real x) {
    return vatan2(x, splat(1));
}

// asin(a) = pi/2 - 2 asin(sqrt((1 - a)/2)) for a > 1/2; the root carries its rounding error.
struct arc_parts {
    mask outer;
    real root, low, small; // asin(root + low) = root + small
};
JALI_INLINE arc_parts arc_split(real a) {
    arc_parts p;
    p.outer = a > splat(JALI_REAL(0.5));
    const real square = (splat(1) - a) * splat(JALI_REAL(0.5));
    p.root = select(p.outer, vsqrt(square), a);
    const real z = select(p.outer, square, a * a);
    p.low = keep(p.outer & (square > splat(0)), fnma(p.root, p.root, square) / (p.root + p.root));
    p.small = fma(p.root * z, polynomial(z, ASIN_P), p.low);
    return p;
}
JALI_CALL real vasin(real x) {
    const arc_parts p = arc_split(vabs(x));
    const real twice = p.root + p.root;
    const two_words sum = quick_sum(splat(HALF_PI[0]), -twice);
    const real outer = sum.high + (sum.low + fnma(splat(2), p.small, splat(HALF_PI[1])));
    return copy_sign(select(p.outer, outer, p.root + p.small), x);
}
JALI_CALL real vacos(real x) {
    const arc_parts p = arc_split(vabs(x));
    const mask negative = x < splat(0);
    const real arc = p.root + p.small;
    const real root = copy_sign(p.root, x),
               small = real_of_bits(bits_of(p.small) ^ (bits_of(x) & sign_bits()));
    const two_words near = quick_sum(splat(HALF_PI[0]), -root);
    const real inner = near.high + (near.low + (splat(HALF_PI[1]) - small));
    const two_words far = quick_sum(splat(2 * HALF_PI[0]), -(p.root + p.root));
    const real beyond = far.high + (far.low + fnma(splat(2), p.small, splat(2 * HALF_PI[1])));
    const real outer = select(negative, beyond, arc + arc);
    return select(p.outer, outer, select(x == x, inner, x));
}

// x^y = exp(y log|x|) with the logarithm in two words: log(x) = 2 s (1 + z/3 + z^2 P(z)), where s and z/3
// carry their rounding errors. Special cases as in C.
JALI_CALL real vpow(real x, real y) {
    const real a = vabs(x), zero = splat(0), one = splat(1);
    real k;
    const real m = split_power(a, &k);
    const real f = m - one, d = m + one, d_low = m - (d - one);
    const real s = f / d;
    const real s_low = fnma(s, d_low, fnma(s, d, f)) / d;
    const real z = s * s, z_low = fma(s + s, s_low, fms(s, s, z));
    const real t = z * splat(THIRD[0]);
    const real t_low = fma(z_low, splat(THIRD[0]), fma(z, splat(THIRD[1]), fms(z, splat(THIRD[0]), t)));
    const real q = z * z * polynomial(z, ATANH_P);
    const two_words u = quick_sum(t, q);
    const real s2 = s + s, s2_low = s_low + s_low;
    const real v = s2 * u.high, v_low = fma(s2_low, u.high, fma(s2, u.low + t_low, fms(s2, u.high, v)));
    const two_words w = quick_sum(s2, v);
    // k ln 2 is 0 or larger than w
    const two_words sum = quick_sum(k * splat(LN2_SHORT), w.high);
    const two_words log = quick_sum(sum.high, sum.low + fma(k, splat(LN2_REST), w.low + (s2_low + v_low)));
    const real lost = keep((a > zero) & (a < splat(INFINITE)), log.low);
    const real logarithm = select(a == zero, splat(-INFINITE), select(a == splat(INFINITE), a, log.high));
    const real power = keep(a != one, y * logarithm);
    const mask moderate = (power > splat(EXP_LOWEST)) & (power < splat(EXP_HIGHEST)) & (a != one);
    const real low = keep(moderate, fma(y, lost, fms(y, logarithm, power)));
    real result = exp_shifted<true, 0>(power, low);
    const real half = y * splat(JALI_REAL(0.5));
    const mask whole = vfloor(y) == y, odd = whole & (vfloor(half) != half);
    result = real_of_bits(bits_of(result) | (bits_of(x) & sign_bits() & odd));
    result = select((x < zero) & ~whole & (a < splat(INFINITE)), splat(NOT_A_NUMBER), result);
    result = select((x == x) & (y == y), result, x + y);
    return select((y == zero) | (x == one), one, result);
}
#endif

JALI_INLINE real rsqrt(real x) {
    return splat(1) / vsqrt(x);
}
