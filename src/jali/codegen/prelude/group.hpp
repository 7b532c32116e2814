// Complex scalars, determinants and inverses, exponentials and projections onto SU(N), on lanes.
//
// Complex scalars in and out are two reals (re, im). Pivots, squarings and degenerate cases are chosen per
// lane with select; loops that end early end when all lanes are done, and a lane that is done no longer
// changes. What few lanes need is computed where one of them does, and no other takes it.

struct complex_lane {
    real re, im;
};
JALI_INLINE complex_lane at(const real* a, int element) {
    return {a[2 * element], a[2 * element + 1]};
}
JALI_INLINE void put(real* a, int element, complex_lane z) {
    a[2 * element] = z.re;
    a[2 * element + 1] = z.im;
}
JALI_INLINE complex_lane operator+(complex_lane a, complex_lane b) {
    return {a.re + b.re, a.im + b.im};
}
JALI_INLINE complex_lane operator-(complex_lane a, complex_lane b) {
    return {a.re - b.re, a.im - b.im};
}
JALI_INLINE complex_lane operator*(complex_lane a, complex_lane b) {
    return {fms(a.re, b.re, a.im * b.im), fma(a.re, b.im, a.im * b.re)};
}
JALI_INLINE complex_lane operator*(real s, complex_lane a) {
    return {s * a.re, s * a.im};
}
// c + a b, c - a b and c - conj(a) b
JALI_INLINE complex_lane fma(complex_lane a, complex_lane b, complex_lane c) {
    return {fnma(a.im, b.im, fma(a.re, b.re, c.re)), fma(a.im, b.re, fma(a.re, b.im, c.im))};
}
JALI_INLINE complex_lane fnma(complex_lane a, complex_lane b, complex_lane c) {
    return {fma(a.im, b.im, fnma(a.re, b.re, c.re)), fnma(a.im, b.re, fnma(a.re, b.im, c.im))};
}
JALI_INLINE complex_lane conj(complex_lane a) {
    return {a.re, -a.im};
}
JALI_INLINE real norm2(complex_lane a) {
    return fma(a.re, a.re, a.im * a.im);
}
#if JALI_IEEE
// A power of two s that takes |re z| + |im z| to between 1/2 and 1, and for z near the ends of the range at least
// so far from them that |s z|^2 is right to the last bit.
JALI_INLINE real unit_scale(real re, real im) {
    constexpr lane_integer ONE = EXPONENT_BIAS << MANTISSA_BITS;
    constexpr lane_integer EXPONENT = -(lane_integer(1) << MANTISSA_BITS);
    const real size = vmin(vabs(re) + vabs(im), splat(1 / (2 * SMALLEST_NORMAL)));
    return real_of_bits((splat_integer(2 * ONE) - bits_of(size)) & splat_integer(EXPONENT));
}
// The same for N numbers
template <int N>
JALI_INLINE real unit_scale_of(const real* a) {
    real size = splat(0);
    for (int e = 0; e < N; ++e) size = vmax(vabs(a[e]), size);
    return unit_scale(size, size);
}
// Whether a sum of squares is so far within the range that it has lost nothing to its ends
JALI_INLINE mask is_safe(real square) {
    constexpr JALI_REAL MOST = JALI_REAL(JALI_DOUBLE ? 0x1p900 : 0x1p90);
    return (square < splat(MOST)) & (square > splat(1 / MOST));
}
// |z|. Where no square leaves the range, which one test of all lanes sees, scaled numbers would give the same bits.
JALI_INLINE real modulus(real re, real im) {
    const real square = norm2(complex_lane{re, im});
    if (JALI_LIKELY(!any(~is_safe(square)))) return vsqrt(square);
    const real s = unit_scale(re, im);
    const real inverse = real_of_bits(splat_integer(2 * EXPONENT_BIAS << MANTISSA_BITS) - bits_of(s));
    const mask infinite = (vabs(re) == splat(INFINITE)) | (vabs(im) == splat(INFINITE)); // beside nan, too
    return select(infinite, splat(INFINITE), inverse * vsqrt(norm2(s * complex_lane{re, im})));
}
#else
JALI_INLINE real unit_scale(real, real) {
    return splat(1);
}
JALI_INLINE real modulus(real re, real im) {
    return vsqrt(norm2(complex_lane{re, im}));
}
#endif
// Division by z: a / z = s a conj(w) / n with w = s z and n = |w|^2. No step leaves the range unless a / z does;
// where none does without s, the bits are those of s = 1.
struct complex_divisor {
    real s;
    complex_lane w;
    real n;
};
JALI_INLINE complex_divisor divisor(real re, real im) {
    const real s = unit_scale(re, im);
    const complex_lane w = {s * re, s * im};
    return {s, w, norm2(w)};
}
JALI_INLINE complex_lane divided(real re, real im, complex_divisor by) {
    const real x = by.s * re, y = by.s * im;
    return {fma(x, by.w.re, y * by.w.im) / by.n, fms(y, by.w.re, x * by.w.im) / by.n};
}
JALI_INLINE complex_lane inverse(complex_lane a) {
    const complex_divisor by = divisor(a.re, a.im);
    return {by.s * by.w.re / by.n, -(by.s * by.w.im) / by.n};
}
JALI_INLINE real largest_part(complex_lane z) {
    return vmax(vabs(z.re), vabs(z.im));
}
JALI_INLINE complex_lane select(mask m, complex_lane a, complex_lane b) {
    return {select(m, a.re, b.re), select(m, a.im, b.im)};
}

JALI_INLINE void complex_mul(real* out, const real* a, const real* b) {
    put(out, 0, at(a, 0) * at(b, 0));
}
JALI_INLINE void complex_div(real* out, const real* a, const real* b) {
    put(out, 0, divided(a[0], a[1], divisor(b[0], b[1])));
}
#if JALI_IEEE
// Where exp(re) alone is beyond the range a small sine or cosine, down to the smallest number, may take the product
// back: the power of two is applied in three steps, the first to the sine.
JALI_CALL void complex_exp(real* out, const real* a) {
    constexpr JALI_REAL HIGHEST = 2 * EXP_HIGHEST + MANTISSA_BITS;
    real s, c, n;
    vsincos(&s, &c, a[1]);
    const real size = exp_mantissa<false>(a[0], a[0], HIGHEST, &n);
    const real third = fma(n, splat(THIRD[0]), splat(ROUNDING_OFFSET)), part = power_of_two(third);
    const real rest = power_of_two(n - splat(2) * (third - splat(ROUNDING_OFFSET)) + splat(ROUNDING_OFFSET));
    const mask number = a[0] == a[0], on_axis = a[1] == splat(0); // inf times 0 would be nan
    const mask none = ~(vabs(a[1]) < splat(INFINITE)), low = a[0] == splat(-INFINITE); // no angle: size decides
    c = select(none & (vabs(a[0]) == splat(INFINITE)), splat(1), c);
    s = select(none & low, splat(1), s);
    put(out, 0,
        {select(number, part * c * size * part * rest, a[0]),
         select(on_axis, a[1], select(number, part * s * size * part * rest, a[0]))});
}

// A power of two by which z is multiplied so that |z|^2 neither overflows nor loses bits, and its inverse.
// Squares between those of 1 / BIG and BIG do neither; UNIT takes what is beyond, to the ends of the range,
// between these.
JALI_INLINE real square_unit(complex_lane z, real* inverse_unit) {
#if JALI_DOUBLE
    constexpr JALI_REAL BIG = 0x1p500, UNIT = 0x1p600;
#else
    constexpr JALI_REAL BIG = 0x1p60f, UNIT = 0x1p100f;
#endif
    const real size = largest_part(z);
    const mask huge = size > splat(BIG), tiny = size < splat(1 / BIG);
    *inverse_unit = select(huge, splat(UNIT), select(tiny, splat(1 / UNIT), splat(1)));
    return select(huge, splat(1 / UNIT), select(tiny, splat(UNIT), splat(1)));
}
// log|z| + i arg z. Near |z| = 1 the logarithm is taken of 1 + (|z|^2 - 1).
JALI_CALL void complex_log(real* out, const real* a) {
    real inverse_unit;
    const real unit = square_unit(at(a, 0), &inverse_unit), half = splat(JALI_REAL(0.5)), one = splat(1);
    const complex_lane z = unit * at(a, 0);
    const real far = fma(half, vlog(norm2(z)), vlog(inverse_unit));
    const real x = vmax(vabs(z.re), vabs(z.im)), y = vmin(vabs(z.re), vabs(z.im));
    const real excess = fma(y, y, (x - one) * (x + one)), rounded = one + excess;
    const real near = half * (vlog(rounded) + (excess - (rounded - one)) / rounded);
    const mask is_near = (vabs(excess) < half) & (unit == one);
    const mask infinite = (vabs(a[0]) == splat(INFINITE)) | (vabs(a[1]) == splat(INFINITE));
    const real angle = vatan2(a[1], a[0]);
    put(out, 0, {select(infinite, splat(INFINITE), select(is_near, near, far)), angle});
}
// The root with re >= 0; below the cut on the negative axis (im = -0) it is -i times a positive number.
JALI_CALL void complex_sqrt(real* out, const real* a) {
    real inverse_unit;
    const real unit = square_unit(at(a, 0), &inverse_unit), half = splat(JALI_REAL(0.5));
    const complex_lane z = unit * at(a, 0);
    const mask infinite = vabs(z.im) == splat(INFINITE);
    const real root2 = vsqrt(half * (vabs(z.re) + vsqrt(norm2(z))));
    const real size = select(vabs(z.re) == splat(INFINITE), splat(INFINITE), root2);
    const real large = select(infinite, splat(INFINITE), size);
    const real small = select(infinite, splat(INFINITE), keep(~(size == splat(0)), half * z.im / size));
    const real root = vsqrt(inverse_unit); // an even power of two: exact
    const mask right = z.re >= splat(0);
    put(out, 0,
        {root * select(right, large, vabs(small)),
         root * select(right, copy_sign(small, a[1]), copy_sign(large, a[1]))});
}

// Exchanges rows k and r of an N x N matrix, or its columns, from element `first` on where the mask is true.
template <int N, bool ROWS>
JALI_INLINE void exchange(mask where, real* a, int k, int r, int first) {
    for (int j = first; j < N; ++j) {
        const int one = ROWS ? k * N + j : j * N + k, other = ROWS ? r * N + j : j * N + r;
        const complex_lane x = at(a, one), y = at(a, other);
        put(a, one, select(where, y, x));
        put(a, other, select(where, x, y));
    }
}
// Brings the row with the largest number in column k to row k, by exchanges with the rows r below, of which
// exchanged[r] tells; from column `first` on.
template <int N>
JALI_INLINE void pivot(real* a, int k, int first, mask* exchanged) {
    for (int r = k + 1; r < N; ++r) {
        exchanged[r] = largest_part(at(a, r * N + k)) > largest_part(at(a, k * N + k));
        exchange<N, true>(exchanged[r], a, k, r, first);
    }
}
JALI_INLINE complex_lane minor2(const real* a, int columns, int i, int j, int k, int l) {
    return fnma(at(a, i * columns + l), at(a, j * columns + k),
                at(a, i * columns + k) * at(a, j * columns + l));
}
// Whether formulas of cofactors serve for a matrix A of 3 x 3, given |A|^2 and a lower bound of |adjugate|^2. Their
// rounding errors are epsilon times powers of |A|. That is what the condition number allows, unless the second
// singular value is far below the first, which makes |adjugate| far smaller than |A|^2.
JALI_INLINE mask cofactors_serve(real size2, real adjugate2) {
    constexpr JALI_REAL MOST = JALI_REAL(JALI_DOUBLE ? 0x1p100 : 0x1p16); // so that |determinant|^2 is safe
    return (size2 < splat(MOST)) & (size2 > splat(1 / MOST)) & (size2 * size2 < splat(256) * adjugate2);
}
JALI_INLINE integer exponent_field(real positive) {
    return as_signed(as_unsigned(bits_of(positive)) >> MANTISSA_BITS);
}
// 2^e z for |z| of order one, in two steps neither of which rounds a normal result
JALI_INLINE complex_lane times_power_of_two(complex_lane z, integer e) {
    constexpr lane_integer MOST = 2 * EXPONENT_BIAS - MANTISSA_BITS; // beyond it the result is 0 or infinite
    e = select(mask(e < splat_integer(MOST)), e, splat_integer(MOST));
    e = select(mask(e > splat_integer(-MOST)), e, splat_integer(-MOST));
    const integer biased = e + splat_integer(2 * EXPONENT_BIAS), half = as_signed(as_unsigned(biased) >> 1);
    return real_of_bits((biased - half) << MANTISSA_BITS) * (real_of_bits(half << MANTISSA_BITS) * z);
}
// Determinant by elimination with partial pivoting, in place. The exponents of the pivots are added apart, so that
// their product leaves the range only with the result.
template <int N>
JALI_OUT_OF_LINE void det_by_elimination(real* out, real* a) {
    complex_lane product = {splat(1), splat(0)};
    integer exponent = splat_integer(N * EXPONENT_BIAS);
    mask odd = splat_integer(0);
    for (int k = 0; k < N; ++k) {
        mask exchanged[N];
        pivot<N>(a, k, k, exchanged);
        const complex_lane largest = at(a, k * N + k);
        const real unit = unit_scale(largest.re, largest.im);
        product = product * (unit * largest);
        exponent = exponent - exponent_field(unit);
        if (k == N - 1) break;
        const complex_lane reciprocal = inverse(largest);
        const mask regular = largest_part(largest) > splat(0);
        for (int r = k + 1; r < N; ++r) {
            odd = odd ^ exchanged[r];
            const complex_lane ratio = at(a, r * N + k) * reciprocal;
            const complex_lane factor = {keep(regular, ratio.re), keep(regular, ratio.im)};
            for (int j = k + 1; j < N; ++j)
                put(a, r * N + j, fnma(factor, at(a, k * N + j), at(a, r * N + j)));
        }
    }
    put(out, 0, times_power_of_two(select(odd, {-product.re, -product.im}, product), exponent));
}
template <int N>
JALI_CALL void det_where(mask wanted, real* out, const real* a) {
    real work[2 * N * N], found[2];
    copy<2 * N * N>(work, a);
    det_by_elimination<N>(found, work);
    choose<2>(out, wanted, found, out);
}
// Determinant: by cofactors up to N = 3 where they serve, else by elimination.
template <int N>
JALI_CALL void det(real* out, const real* a) {
    if constexpr (N == 1) {
        put(out, 0, at(a, 0));
    } else if constexpr (N == 2) {
        put(out, 0, minor2(a, 2, 0, 1, 0, 1));
    } else if constexpr (N == 3) {
        const complex_lane x = minor2(a, 3, 1, 2, 1, 2), y = minor2(a, 3, 1, 2, 0, 2), z = minor2(a, 3, 1, 2, 0, 1);
        put(out, 0, fma(at(a, 2), z, fnma(at(a, 1), y, at(a, 0) * x)));
        const real size2 = norm2<18>(a), cofactors2 = norm2(x) + norm2(y) + norm2(z);
        const mask good = cofactors_serve(size2, cofactors2);
        if (!all(good)) det_where<N>(~good, out, a);
    } else {
        det_where<N>(all_lanes(true), out, a);
    }
}
// Inverse by Gauss and Jordan's elimination with partial pivoting, in place.
template <int N>
JALI_OUT_OF_LINE void inverse_by_elimination(real* a) {
    mask exchanged[N][N] = {};
    for (int k = 0; k < N; ++k) {
        pivot<N>(a, k, 0, exchanged[k]);
        const complex_lane reciprocal = inverse(at(a, k * N + k));
        put(a, k * N + k, {splat(1), splat(0)});
        for (int j = 0; j < N; ++j) put(a, k * N + j, reciprocal * at(a, k * N + j));
        for (int r = 0; r < N; ++r) {
            if (r == k) continue;
            const complex_lane factor = at(a, r * N + k);
            put(a, r * N + k, {splat(0), splat(0)});
            for (int j = 0; j < N; ++j)
                put(a, r * N + j, fnma(factor, at(a, k * N + j), at(a, r * N + j)));
        }
    }
    for (int k = N - 2; k >= 0; --k)
        for (int r = N - 1; r > k; --r) exchange<N, false>(exchanged[k][r], a, k, r, 0);
}
template <int N>
JALI_CALL void inverse_where(mask wanted, real* c, const real* a) {
    real work[2 * N * N];
    copy<2 * N * N>(work, a);
    inverse_by_elimination<N>(work);
    choose<2 * N * N>(c, wanted, work, c);
}
// Inverse: the adjugate over the determinant up to N = 3 where that serves, else by elimination. Lanes with a singular
// matrix get infinities or nan.
template <int N>
JALI_CALL void inverse(real* c, const real* a) {
    if constexpr (N == 1) {
        put(c, 0, inverse(at(a, 0)));
    } else if constexpr (N <= 3) {
        real adjugate[2 * N * N];
        complex_lane determinant;
        if constexpr (N == 2) {
            JALI_UNROLL
            for (int e = 0; e < 4; ++e) put(adjugate, e, at(a, e % 3 == 0 ? 3 - e : e));
            determinant = minor2(a, 2, 0, 1, 0, 1);
        } else {
            JALI_UNROLL
            for (int e = 0; e < 9; ++e) { // cyclic rows and columns carry the sign of the cofactor
                const int i = e / 3, j = e % 3;
                put(adjugate, e, minor2(a, 3, (j + 1) % 3, (j + 2) % 3, (i + 1) % 3, (i + 2) % 3));
            }
            determinant = fma(at(a, 2), at(adjugate, 6),
                              fnma(at(a, 1), minor2(a, 3, 1, 2, 0, 2), at(a, 0) * at(adjugate, 0)));
        }
        const real n = norm2(determinant);
        const complex_lane plus = {determinant.re / n, -determinant.im / n}, minus = {-plus.re, -plus.im};
        JALI_UNROLL
        for (int e = 0; e < N * N; ++e) put(c, e, (N == 2 && e % 3 != 0 ? minus : plus) * at(adjugate, e));
        mask good = is_safe(n);
        if constexpr (N == 3) good = cofactors_serve(norm2<18>(a), norm2<18>(adjugate));
        if (!all(good)) inverse_where<N>(~good, c, a);
    } else {
        inverse_where<N>(all_lanes(true), c, a);
    }
}

// C = A B of large matrices, whose unrolled product would take long to compile; the same bits.
template <int N>
JALI_CALL void large_product(real* __restrict c, const real* __restrict a, const real* __restrict b) {
    for (int i = 0; i < N; ++i) {
        real* row = c + 2 * N * i;
        for (int e = 0; e < 2 * N; ++e) row[e] = splat(0);
        for (int k = 0; k < N; ++k) {
            const complex_lane x = at(a, i * N + k);
            for (int j = 0; j < N; ++j) { // in the order of `product`
                const complex_lane y = at(b, k * N + j), sum = at(row, j);
                put(row, j, {fnma(x.im, y.im, fma(x.re, y.re, sum.re)), fma(x.re, y.im, fma(x.im, y.re, sum.im))});
            }
        }
    }
}

// Matrix exponential by scaling and squaring: a lane is halved until its Frobenius norm is at most 1/2, where
// the Taylor polynomial leaves out less than rounding, and the result is squared as often. For UNITARY
// results the identity is kept apart, T = exp - 1 and T -> 2 T + T^2, which loses less; for results much
// smaller than 1 that would cancel. Norms beyond 2^60 give nan.
template <int N, bool UNITARY>
JALI_CALL void exp_scaled(real* c, const real* a) {
    constexpr int REALS = 2 * N * N, DEGREE = sizeof(JALI_REAL) == 8 ? 14 : 8, HALVINGS = 62;
    const auto multiply = [](real* to, const real* x, const real* y) {
        if constexpr (N > 5)
            large_product<N>(to, x, y);
        else
            product<N, N, N, false, false, ASSIGN>(to, x, y);
    };
    const real half = splat(JALI_REAL(0.5)), one = splat(1);
    real norm = vsqrt(norm2<REALS>(a)), factor = one;
    for (int s = 0; s < HALVINGS; ++s) {
        const mask large = norm > half;
        if (!any(large)) break;
        norm = select(large, half * norm, norm);
        factor = select(large, half * factor, factor);
    }
    factor = select(norm <= half, factor, splat(NOT_A_NUMBER));
    real x[REALS], next[REALS];
    scale<REALS>(x, factor, a);
    // Horner: the sum starts as 1 + x/DEGREE and becomes 1 + x sum / n
    scale<REALS>(c, splat(JALI_REAL(1) / DEGREE), x);
    for (int n = DEGREE - 1; n > 0; --n) {
        const real weight = splat(JALI_REAL(1) / n);
        multiply(next, x, c);
        for (int e = 0; e < REALS; ++e) c[e] = weight * (x[e] + next[e]);
    }
    auto add_identity = [&] {
        for (int i = 0; i < N; ++i) c[2 * (i * N + i)] = c[2 * (i * N + i)] + one;
    };
    if (!UNITARY) add_identity();
    for (int s = 0; s < HALVINGS; ++s) {
        const mask pending = factor < one;
        if (!any(pending)) break;
        multiply(next, c, c);
        if (UNITARY) add_scaled<REALS>(next, splat(2), c);
        choose<REALS>(c, pending, next, c);
        factor = select(pending, factor + factor, factor);
    }
    if (UNITARY) add_identity();
}
template <int N>
JALI_INLINE void exp_matrix(real* c, const real* a) {
    if constexpr (N == 1) {
        complex_exp(c, a);
    } else {
        exp_scaled<N, false>(c, a);
    }
}

// The coefficients of exp(iQ) = f0 + f1 Q + f2 Q^2 for a traceless Hermitian 3 x 3 matrix with c0 = det Q and
// c1 = tr Q^2 / 2 (Morningstar and Peardon, hep-lat/0311018, eqs. 19-34). c0 < 0 is mapped to c0 > 0, where
// the denominator is at least 2 c1. For c1 < 1/4 the exponential series is summed with Q^3 = c0 + c1 Q.
JALI_CALL void su3_coefficients(complex_lane* f, real c0, real c1) {
    const real zero = splat(0), one = splat(1);
    const real limit = splat(JALI_REAL(0.25));
    constexpr int TERMS = sizeof(JALI_REAL) == 8 ? 17 : 10;
    complex_lane g[3] = {{zero, zero}, {zero, zero}, {zero, zero}};
    // Horner: S <- 1 + (iQ/n) S, with S = g0 + g1 Q + g2 Q^2
    g[0].re = one;
    for (int n = TERMS; n > 0; --n) {
        const real weight = splat(JALI_REAL(1) / n);
        const complex_lane s0 = weight * (c0 * g[2]), s1 = weight * (g[0] + c1 * g[2]), s2 = weight * g[1];
        g[0] = {one - s0.im, s0.re};
        g[1] = {-s1.im, s1.re};
        g[2] = {-s2.im, s2.re};
    }
    for (int k = 0; k < 3; ++k) f[k] = g[k];
    const mask general = ~(c1 < limit);
    if (!any(general)) return;

    const real safe = select(general, c1, one);
    const real third = safe * splat(JALI_REAL(1) / 3), root = vsqrt(third);
    const real ratio = vmin(vabs(c0) / (splat(2) * third * root), one);
    const real angle = vacos(ratio) * splat(JALI_REAL(1) / 3);
    real sine, cosine, sin_w, cos_w, sin_u, cos_u;
    vsincos(&sine, &cosine, angle);
    const real u = root * cosine, w = vsqrt(safe) * sine;
    vsincos(&sin_u, &cos_u, u);
    vsincos(&sin_w, &cos_w, w);
    const real sinc = select(w == zero, one, sin_w / w);
    const real u2 = u * u, w2 = w * w;
    const complex_lane turn = {cos_u, -sin_u};                                               // exp(-iu)
    const complex_lane twice = {fms(cos_u, cos_u, sin_u * sin_u), splat(2) * sin_u * cos_u}; // exp(2iu)
    const real three_u2_w2 = fma(splat(3), u2, w2);
    const complex_lane h0 =
        (u2 - w2) * twice + turn * complex_lane{splat(8) * u2 * cos_w, splat(2) * u * three_u2_w2 * sinc};
    const complex_lane h1 =
        (u + u) * twice - turn * complex_lane{(u + u) * cos_w, -(fma(splat(3), u2, -w2) * sinc)};
    const complex_lane h2 = twice - turn * complex_lane{cos_w, splat(3) * u * sinc};
    const real scale = one / fma(splat(9), u2, -w2);
    const real flip = select(c0 < zero, splat(-1), one);
    // f_j(-c0) = (-1)^j conj(f_j(c0))
    f[0] = select(general, {scale * h0.re, flip * scale * h0.im}, f[0]);
    f[1] = select(general, {flip * scale * h1.re, scale * h1.im}, f[1]);
    f[2] = select(general, {scale * h2.re, flip * scale * h2.im}, f[2]);
}

// exp of an anti-Hermitian matrix, traceless for N > 1: an element of SU(N), of U(1) for N = 1.
template <int N>
JALI_CALL void exp_antihermitian(real* c, const real* a) {
    if constexpr (N == 1) {
        vsincos(c + 1, c, a[1]);
    } else if constexpr (N == 2) {
        // a = i n.sigma: exp a = cos|n| + a sin|n|/|n|
        const real angle = vsqrt(fma(a[1], a[1], fma(a[2], a[2], a[3] * a[3])));
        real s, cosine;
        vsincos(&s, &cosine, angle);
        const real sinc = select(angle == splat(0), splat(1), s / angle);
        const complex_lane upper = {cosine, sinc * a[1]}, right = {sinc * a[2], sinc * a[3]};
        put(c, 0, upper);
        put(c, 1, right);
        put(c, 2, {-right.re, right.im});
        put(c, 3, conj(upper));
    } else if constexpr (N == 3) {
        real square[18], cube[2];
        product<3, 3, 3, false, false, ASSIGN>(square, a, a);
        trace_mul<3, 3, false, false>(cube, square, a);
        // a = iQ: Q = -i a, Q^2 = -a^2, tr Q^3 = i tr a^3
        const real c1 = splat(JALI_REAL(-0.5)) * retrace<3>(square), c0 = cube[1] * splat(JALI_REAL(-1) / 3);
        complex_lane f[3];
        su3_coefficients(f, c0, c1);
        const complex_lane first = {f[1].im, -f[1].re}, second = {-f[2].re, -f[2].im};
        for (int e = 0; e < 9; ++e) {
            const complex_lane start = e % 4 == 0 ? f[0] : complex_lane{splat(0), splat(0)};
            put(c, e, fma(second, at(square, e), fma(first, at(a, e), start)));
        }
    } else {
        exp_scaled<N, true>(c, a);
    }
}

// Derivatives of the coefficients: f as above, slope[0] and slope[1] with respect to c1 and c0 (eqs. 57-71).
JALI_CALL void su3_slopes(complex_lane* f, complex_lane (*slope)[3], real c0, real c1) {
    const real zero = splat(0), one = splat(1);
    constexpr int TERMS = sizeof(JALI_REAL) == 8 ? 20 : 12;
    const complex_lane none = {zero, zero};
    complex_lane g[3] = {{one, zero}, none, none}, by1[3] = {none, none, none}, by0[3] = {none, none, none};
    auto times_i = [](complex_lane z) { return complex_lane{-z.im, z.re}; };
    for (int n = TERMS; n > 0; --n) { // the series and what its terms change by
        const real weight = splat(JALI_REAL(1) / n);
        const complex_lane x0 = weight * (g[2] + c0 * by0[2]), x1 = weight * (by0[0] + c1 * by0[2]);
        const complex_lane y0 = weight * (c0 * by1[2]), y1 = weight * (by1[0] + (g[2] + c1 * by1[2]));
        const complex_lane s0 = weight * (c0 * g[2]), s1 = weight * (g[0] + c1 * g[2]);
        by0[2] = times_i(weight * by0[1]);
        by0[0] = times_i(x0);
        by0[1] = times_i(x1);
        by1[2] = times_i(weight * by1[1]);
        by1[0] = times_i(y0);
        by1[1] = times_i(y1);
        g[2] = times_i(weight * g[1]);
        g[0] = times_i(s0) + complex_lane{one, zero};
        g[1] = times_i(s1);
    }
    for (int k = 0; k < 3; ++k) {
        f[k] = g[k];
        slope[0][k] = by1[k];
        slope[1][k] = by0[k];
    }
    const mask general = ~(c1 < splat(JALI_REAL(0.25)));
    if (!any(general)) return;

    const real safe = select(general, c1, one);
    const real third = safe * splat(JALI_REAL(1) / 3), root = vsqrt(third);
    const real ratio = vmin(vabs(c0) / (splat(2) * third * root), one);
    const real angle = vacos(ratio) * splat(JALI_REAL(1) / 3);
    real sine, cosine, sin_w, cos_w, sin_u, cos_u;
    vsincos(&sine, &cosine, angle);
    const real u = root * cosine, w = vsqrt(safe) * sine;
    vsincos(&sin_u, &cos_u, u);
    vsincos(&sin_w, &cos_w, w);
    const real u2 = u * u, w2 = w * w;
    const mask small = w2 < splat(JALI_REAL(0.0025));
    const real divisor = select(small, one, w);
    // sin w / w and (cos w - sin w / w) / w^2, near w = 0 by their series
    const auto series = [&](real first, real second, real third_, real fourth) {
        return fma(w2, fma(w2, fma(w2, fourth, third_), second), first);
    };
    const real xi0 = select(small,
                            series(one, splat(JALI_REAL(-1) / 6), splat(JALI_REAL(1) / 120), splat(JALI_REAL(-1) / 5040)),
                            sin_w / divisor);
    const real xi1 = select(small,
                            series(splat(JALI_REAL(-1) / 3), splat(JALI_REAL(1) / 30), splat(JALI_REAL(-1) / 840),
                                   splat(JALI_REAL(1) / 45360)),
                            (cos_w - xi0) / (divisor * divisor));
    const complex_lane turn = {cos_u, -sin_u};                                               // exp(-iu)
    const complex_lane twice = {fms(cos_u, cos_u, sin_u * sin_u), splat(2) * sin_u * cos_u}; // exp(2iu)
    const real two = splat(2), three = splat(3), four = splat(4);
    const real three_u2 = three * u2, three_u2_w2 = three_u2 + w2;
    const real scale = one / fma(splat(9), u2, -w2);
    complex_lane h[3];
    h[0] = (u2 - w2) * twice + turn * complex_lane{splat(8) * u2 * cos_w, two * u * three_u2_w2 * xi0};
    h[1] = (two * u) * twice - turn * complex_lane{two * u * cos_w, -((three_u2 - w2) * xi0)};
    h[2] = twice - turn * complex_lane{cos_w, three * u * xi0};
    for (int k = 0; k < 3; ++k) h[k] = scale * h[k];
    complex_lane first[3], second[3];
    first[0] = complex_lane{two * u, two * (u2 - w2)} * twice +
               turn * complex_lane{two * (splat(8) * u * cos_w + u * three_u2_w2 * xi0),
                                   two * ((splat(9) * u2 + w2) * xi0 - four * u2 * cos_w)};
    first[1] = complex_lane{two, four * u} * twice +
               turn * complex_lane{(three_u2 - w2) * xi0 - two * cos_w, two * u * cos_w + splat(6) * u * xi0};
    first[2] = complex_lane{zero, two} * twice + turn * complex_lane{-(three * u * xi0), cos_w - three * xi0};
    second[0] = complex_lane{splat(-2), zero} * twice +
                turn * complex_lane{-(splat(8) * u2 * xi0), two * u * (cos_w + xi0 + three_u2 * xi1)};
    second[1] = turn * complex_lane{two * u * xi0, -(cos_w + xi0 - three_u2 * xi1)};
    second[2] = turn * complex_lane{xi0, -(three * u * xi1)};
    const real half_square = splat(JALI_REAL(0.5)) * scale * scale, flip = select(c0 < zero, splat(-1), one);
    for (int k = 0; k < 3; ++k) {
        const complex_lane by_c1 = (two * u) * first[k] + (three_u2 - w2) * second[k] -
                                   (two * fma(splat(15), u2, w2)) * h[k];
        const complex_lane by_c0 = first[k] - (three * u) * second[k] - (splat(24) * u) * h[k];
        // odd under c0 -> -c0 are the imaginary parts for k even, the real ones for k odd; the other way round by c0
        const auto turned = [&](complex_lane z, bool odd) {
            return odd ? complex_lane{flip * z.re, z.im} : complex_lane{z.re, flip * z.im};
        };
        f[k] = select(general, turned(h[k], k == 1), f[k]);
        slope[0][k] = select(general, turned(half_square * by_c1, k == 1), slope[0][k]);
        slope[1][k] = select(general, turned(half_square * by_c0, k != 1), slope[1][k]);
    }
}

// Of a traceless anti-Hermitian a = i n.sigma: cos|n|, sin|n|/|n| and (cos|n| - sin|n|/|n|) / |n|^2
JALI_INLINE void su2_coefficients(real* f, const real* a) {
    const real square = fma(a[1], a[1], fma(a[2], a[2], a[3] * a[3])), angle = vsqrt(square), one = splat(1);
    const mask small = square < splat(JALI_REAL(0.0025));
    const real divisor = select(small, one, angle);
    real s;
    vsincos(&s, &f[0], angle);
    const auto series = [&](JALI_REAL first, JALI_REAL second, JALI_REAL third, JALI_REAL fourth) {
        return fma(square, fma(square, fma(square, splat(fourth), splat(third)), splat(second)), splat(first));
    };
    constexpr JALI_REAL ONE = 1;
    f[1] = select(small, series(ONE, -ONE / 6, ONE / 120, -ONE / 5040), s / divisor);
    f[2] = select(small, series(-ONE / 3, ONE / 30, -ONE / 840, ONE / 45360), (f[0] - f[1]) / (divisor * divisor));
}

// The change of exp(a) for a change b, both traceless and anti-Hermitian, N = 2 or 3.
template <int N>
JALI_CALL void exp_changed(real* c, const real* a, const real* b) {
    if constexpr (N == 2) {
        real f[3];
        su2_coefficients(f, a);
        const real along = splat(JALI_REAL(0.5)) * dot_real<8>(a, b), g = along * f[2];
        for (int e = 0; e < 8; ++e) c[e] = fma(g, a[e], f[1] * b[e]);
        c[0] = fnma(along, f[1], c[0]);
        c[6] = fnma(along, f[1], c[6]);
    } else {
        real square[18], cube[2], both[18];
        product<3, 3, 3, false, false, ASSIGN>(square, a, a);
        trace_mul<3, 3, false, false>(cube, square, a);
        const real c1 = splat(JALI_REAL(-0.5)) * retrace<3>(square), c0 = cube[1] * splat(JALI_REAL(-1) / 3);
        complex_lane f[3], slope[2][3];
        su3_slopes(f, slope, c0, c1);
        // Q = -i a, dQ = -i b: dc1 = tr(Q dQ) = -tr(a b), dc0 = tr(Q^2 dQ) = i tr(a^2 b)
        real ab[2], aab[2];
        trace_mul<3, 3, false, false>(ab, a, b);
        trace_mul<3, 3, false, false>(aab, square, b);
        const real d1 = -ab[0], d0 = -aab[1];
        product<3, 3, 3, false, false, ASSIGN>(both, a, b);
        product<3, 3, 3, false, false, ADD>(both, b, a);
        complex_lane d[3];
        for (int k = 0; k < 3; ++k) d[k] = d1 * slope[0][k] + d0 * slope[1][k];
        const complex_lane first = {f[1].im, -f[1].re}, second = {-f[2].re, -f[2].im};
        const complex_lane of_a = {d[1].im, -d[1].re}, of_square = {-d[2].re, -d[2].im};
        for (int e = 0; e < 9; ++e) {
            complex_lane sum = fma(of_square, at(square, e), of_a * at(a, e));
            sum = fma(second, at(both, e), fma(first, at(b, e), sum));
            put(c, e, e % 4 == 0 ? sum + d[0] : sum);
        }
    }
}
// The adjoint of that map of b, of any matrix g; right but for what is not traceless and anti-Hermitian.
template <int N>
JALI_CALL void exp_pulled_back(real* c, const real* a, const real* g) {
    if constexpr (N == 2) {
        real f[3];
        su2_coefficients(f, a);
        const real along = splat(JALI_REAL(0.5)) * fms(f[2], dot_real<8>(a, g), f[1] * (g[0] + g[6]));
        for (int e = 0; e < 8; ++e) c[e] = fma(along, a[e], f[1] * g[e]);
    } else {
        real square[18], cube[2], both[18];
        product<3, 3, 3, false, false, ASSIGN>(square, a, a);
        trace_mul<3, 3, false, false>(cube, square, a);
        const real c1 = splat(JALI_REAL(-0.5)) * retrace<3>(square), c0 = cube[1] * splat(JALI_REAL(-1) / 3);
        complex_lane f[3], slope[2][3];
        su3_slopes(f, slope, c0, c1);
        // t1, t0: what c1 and c0 get, Re tr(g^dagger (d0 + d1 Q + d2 Q^2)), with the traces of g, g^dagger a and g^dagger a^2
        real of_a[2], of_square[2];
        trace_mul<3, 3, true, false>(of_a, g, a);
        trace_mul<3, 3, true, false>(of_square, g, square);
        const complex_lane traces[3] = {{g[0] + g[8] + g[16], -(g[1] + g[9] + g[17])},
                                        {of_a[1], -of_a[0]},
                                        {-of_square[0], -of_square[1]}};
        real t[2];
        for (int i = 0; i < 2; ++i) {
            t[i] = splat(0);
            for (int k = 0; k < 3; ++k)
                t[i] = fma(slope[i][k].re, traces[k].re, fnma(slope[i][k].im, traces[k].im, t[i]));
        }
        product<3, 3, 3, false, false, ASSIGN>(both, a, g);
        product<3, 3, 3, false, false, ADD>(both, g, a);
        // -i f1 b and -f2 (a b + b a), whose adjoints have the conjugate factors and a^dagger = -a
        const complex_lane first = {f[1].im, f[1].re}, second = {f[2].re, -f[2].im};
        for (int e = 0; e < 9; ++e) {
            complex_lane sum = fma(second, at(both, e), first * at(g, e));
            // t1 (-tr(a b)) = t1 <a, b>; t0 Re(i tr(a^2 b)) = t0 <-i a^2, b>, of the Hermitian a^2
            const complex_lane s = at(square, e);
            put(c, e, {fma(t[0], a[2 * e], fma(t[1], s.im, sum.re)), fma(t[0], a[2 * e + 1], fnma(t[1], s.re, sum.im))});
        }
    }
}

// The first rows of an N x N matrix are made orthonormal (Gram-Schmidt, projected twice, which keeps them
// orthogonal to rounding for any regular matrix). Rows whose squares might leave the range are scaled before.
template <int N>
JALI_INLINE void orthonormal_rows(real* c, int rows) {
    for (int i = 0; i < rows; ++i) {
        real* row = c + 2 * N * i;
        real square = norm2<2 * N>(row);
        const mask good = is_safe(square);
        if (!all(good)) {
            scale<2 * N>(row, select(good, splat(1), unit_scale_of<2 * N>(row)), row);
            square = norm2<2 * N>(row);
        }
        for (int pass = 0; pass < (i == 0 ? 0 : 2); ++pass)
            for (int k = 0; k < i; ++k) {
                real overlap[2];
                dot<2 * N>(overlap, c + 2 * N * k, row);
                const real minus[2] = {-overlap[0], -overlap[1]};
                add_scaled_complex<2 * N>(row, minus, c + 2 * N * k);
            }
        if (i > 0) square = norm2<2 * N>(row);
        scale<2 * N>(row, splat(1) / vsqrt(square), row);
    }
}
// The nearest-by-rows element of SU(N), of U(1) for N = 1: division by the modulus (N = 1), projection of the
// quaternion (N = 2), orthonormal rows with the last one fixed by det = 1 (N > 2). A unitary matrix changes
// by rounding only.
template <int N>
JALI_CALL void reunitarise(real* c, const real* a) {
    if constexpr (N == 1) {
        const complex_lane z = unit_scale(a[0], a[1]) * at(a, 0);
        put(c, 0, splat(1) / vsqrt(norm2(z)) * z);
    } else if constexpr (N == 2) {
        complex_lane x = at(a, 0) + conj(at(a, 3)), y = at(a, 1) - conj(at(a, 2));
        real square = norm2(x) + norm2(y);
        const mask good = is_safe(square);
        if (!all(good)) {
            const real unit = select(good, splat(1), unit_scale_of<8>(a));
            x = unit * at(a, 0) + conj(unit * at(a, 3));
            y = unit * at(a, 1) - conj(unit * at(a, 2));
            square = norm2(x) + norm2(y);
        }
        const real r = splat(1) / vsqrt(square);
        put(c, 0, r * x);
        put(c, 1, r * y);
        put(c, 2, {-r * y.re, r * y.im});
        put(c, 3, conj(r * x));
    } else if constexpr (N == 3) {
        copy<18>(c, a);
        orthonormal_rows<3>(c, 2);
        for (int j = 0; j < 3; ++j) put(c, 6 + j, conj(minor2(c, 3, 0, 1, (j + 1) % 3, (j + 2) % 3)));
    } else {
        copy<2 * N * N>(c, a);
        orthonormal_rows<N>(c, N);
        real phase[2];
        det<N>(phase, c);
        const real r = splat(1) / vsqrt(norm2(at(phase, 0)));
        for (int j = 0; j < N; ++j) put(c, N * (N - 1) + j, r * conj(at(phase, 0)) * at(c, N * (N - 1) + j));
    }
}

#endif

// (A - A^dagger)/2 less its trace over N; for N = 1 the imaginary part, since U(1) is not traceless.
template <int N>
JALI_INLINE void traceless_antihermitian(real* c, const real* a) {
    const real half = splat(JALI_REAL(0.5));
    real trace = splat(0);
    for (int i = 0; i < N; ++i) {
        for (int j = i + 1; j < N; ++j) {
            const complex_lane z = half * (at(a, i * N + j) - conj(at(a, j * N + i)));
            put(c, i * N + j, z);
            put(c, j * N + i, {-z.re, z.im});
        }
        put(c, i * N + i, {splat(0), a[2 * (i * N + i) + 1]});
        trace = trace + a[2 * (i * N + i) + 1];
    }
    if (N == 1) return;
    const real mean = trace * splat(JALI_REAL(1) / N);
    for (int i = 0; i < N; ++i) c[2 * (i * N + i) + 1] = c[2 * (i * N + i) + 1] - mean;
}
