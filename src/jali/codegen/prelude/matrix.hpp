// Small tensors on lanes: products, traces and elementwise arithmetic.
//
// An n x m complex matrix is an array of 2*n*m reals: element (i, j) at [2*(i*m + j)] and [2*(i*m + j) + 1].
// A real matrix has one real per element. Outputs come first and never alias inputs, except the in-place ones
// (matmul_add, matmul_sub, add_scaled) and functions marked elementwise, whose output may be an input. Sums
// run in the written order, so that a result has one value. Products are calls: a 3 x 3 product is 108 vector
// instructions, and calling it costs less than the instruction cache that inlining it a dozen times would
// take.

template <bool ADJ>
JALI_INLINE const real* element(const real* a, int i, int k, int rows, int columns) {
    return a + 2 * (ADJ ? k * rows + i : i * columns + k);
}

enum product_kind { ASSIGN, ADD, SUBTRACT };

// sum + a b or, MINUS, sum - a b, rounded once; no sign is flipped for it.
template <bool MINUS>
JALI_INLINE real add_product(real sum, real a, real b) {
    return MINUS ? fnma(a, b, sum) : fma(a, b, sum);
}

// C (N x M) = op(A) op(B), added to or subtracted from C where KIND says so; op is the adjoint where ADJ_ is
// true.
template <int N, int K, int M, bool ADJ_A, bool ADJ_B, product_kind KIND>
JALI_CALL void product(real* __restrict c, const real* __restrict a, const real* __restrict b) {
    JALI_UNROLL
    for (int i = 0; i < N; ++i) {
        real re[M], im[M];
        JALI_UNROLL
        for (int j = 0; j < M; ++j) {
            re[j] = KIND == ASSIGN ? splat(0) : c[2 * (i * M + j)];
            im[j] = KIND == ASSIGN ? splat(0) : c[2 * (i * M + j) + 1];
        }
        JALI_UNROLL
        for (int k = 0; k < K; ++k) {
            const real* x = element<ADJ_A>(a, i, k, N, K);
            real ar = x[0], ai = x[1];
            JALI_HELD(ar);
            JALI_HELD(ai);
            constexpr bool minus_ar = KIND == SUBTRACT, minus_ai = (KIND == SUBTRACT) != ADJ_A;
            JALI_UNROLL
            for (int j = 0; j < M; ++j) {
                const real* y = element<ADJ_B>(b, k, j, K, M);
                const bool first = KIND == ASSIGN && k == 0;
                re[j] = first ? ar * y[0] : add_product<minus_ar>(re[j], ar, y[0]);
                im[j] = first ? (ADJ_A ? -ai : ai) * y[0] : add_product<minus_ai>(im[j], ai, y[0]);
                re[j] = add_product<minus_ai == ADJ_B>(re[j], ai, y[1]);
                im[j] = add_product<minus_ar != ADJ_B>(im[j], ar, y[1]);
            }
        }
        JALI_UNROLL
        for (int j = 0; j < M; ++j) {
            c[2 * (i * M + j)] = re[j];
            c[2 * (i * M + j) + 1] = im[j];
        }
    }
}
// C (N x M) = op(A) op(B); A is stored K x N where ADJ_A, B is stored M x K where ADJ_B.
template <int N, int K, int M, bool ADJ_A, bool ADJ_B>
JALI_INLINE void matmul(real* c, const real* a, const real* b) {
    product<N, K, M, ADJ_A, ADJ_B, ASSIGN>(c, a, b);
}
template <int N, int K, int M, bool ADJ_A, bool ADJ_B>
JALI_INLINE void matmul_add(real* c, const real* a, const real* b) {
    product<N, K, M, ADJ_A, ADJ_B, ADD>(c, a, b);
}
template <int N, int K, int M, bool ADJ_A, bool ADJ_B>
JALI_INLINE void matmul_sub(real* c, const real* a, const real* b) {
    product<N, K, M, ADJ_A, ADJ_B, SUBTRACT>(c, a, b);
}

// The same for real matrices; TR_ is the transpose.
template <int N, int K, int M, bool TR_A, bool TR_B, product_kind KIND>
JALI_CALL void product_real(real* __restrict c, const real* __restrict a, const real* __restrict b) {
    for (int i = 0; i < N; ++i) {
        real sum[M];
        JALI_UNROLL
        for (int j = 0; j < M; ++j) sum[j] = KIND == ASSIGN ? splat(0) : c[i * M + j];
        JALI_UNROLL
        for (int k = 0; k < K; ++k) {
            const real x = TR_A ? a[k * N + i] : a[i * K + k];
            JALI_UNROLL
            for (int j = 0; j < M; ++j) {
                const real y = TR_B ? b[j * K + k] : b[k * M + j];
                sum[j] = KIND == ASSIGN && k == 0 ? x * y
                         : KIND == SUBTRACT       ? fnma(x, y, sum[j])
                                                  : fma(x, y, sum[j]);
            }
        }
        JALI_UNROLL
        for (int j = 0; j < M; ++j) c[i * M + j] = sum[j];
    }
}
template <int N, int K, int M, bool TR_A, bool TR_B>
JALI_INLINE void matmul_real(real* c, const real* a, const real* b) {
    product_real<N, K, M, TR_A, TR_B, ASSIGN>(c, a, b);
}
template <int N, int K, int M, bool TR_A, bool TR_B>
JALI_INLINE void matmul_add_real(real* c, const real* a, const real* b) {
    product_real<N, K, M, TR_A, TR_B, ADD>(c, a, b);
}
template <int N, int K, int M, bool TR_A, bool TR_B>
JALI_INLINE void matmul_sub_real(real* c, const real* a, const real* b) {
    product_real<N, K, M, TR_A, TR_B, SUBTRACT>(c, a, b);
}

// Re tr(op(A) op(B)) for op(A) N x M: one sum per row, rows added in order.
template <int N, int M, bool ADJ_A, bool ADJ_B>
JALI_CALL real retrace_mul(const real* __restrict a, const real* __restrict b) {
    real total = splat(0);
    JALI_UNROLL
    for (int i = 0; i < N; ++i) {
        real re = splat(0);
        JALI_UNROLL
        for (int k = 0; k < M; ++k) {
            const real* x = element<ADJ_A>(a, i, k, N, M);
            const real* y = element<ADJ_B>(b, k, i, M, N);
            re = k == 0 ? x[0] * y[0] : fma(x[0], y[0], re);
            re = ADJ_A == ADJ_B ? fnma(x[1], y[1], re) : fma(x[1], y[1], re);
        }
        total = i == 0 ? re : total + re;
    }
    return total;
}
template <int N, int M, bool ADJ_A, bool ADJ_B>
JALI_CALL void trace_mul(real* __restrict out, const real* __restrict a, const real* __restrict b) {
    real total_re = splat(0), total_im = splat(0);
    JALI_UNROLL
    for (int i = 0; i < N; ++i) {
        real re = splat(0), im = splat(0);
        JALI_UNROLL
        for (int k = 0; k < M; ++k) {
            const real* x = element<ADJ_A>(a, i, k, N, M);
            const real* y = element<ADJ_B>(b, k, i, M, N);
            re = k == 0 ? x[0] * y[0] : fma(x[0], y[0], re);
            im = k == 0 ? (ADJ_A ? -x[1] : x[1]) * y[0] : add_product<ADJ_A>(im, x[1], y[0]);
            re = add_product<ADJ_A == ADJ_B>(re, x[1], y[1]);
            im = add_product<ADJ_B>(im, x[0], y[1]);
        }
        total_re = i == 0 ? re : total_re + re;
        total_im = i == 0 ? im : total_im + im;
    }
    out[0] = total_re;
    out[1] = total_im;
}
template <int N, int M, bool TR_A, bool TR_B>
JALI_CALL real trace_mul_real(const real* __restrict a, const real* __restrict b) {
    real total = splat(0);
    for (int i = 0; i < N; ++i) {
        real sum = splat(0);
        for (int k = 0; k < M; ++k) {
            const real x = TR_A ? a[k * N + i] : a[i * M + k], y = TR_B ? b[i * M + k] : b[k * N + i];
            sum = k == 0 ? x * y : fma(x, y, sum);
        }
        total = i == 0 ? sum : total + sum;
    }
    return total;
}

// Rearrangement: A is N x M, the result M x N.
template <int N, int M>
JALI_INLINE void adjoint(real* __restrict c, const real* __restrict a) {
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) {
            c[2 * (j * N + i)] = a[2 * (i * M + j)];
            c[2 * (j * N + i) + 1] = -a[2 * (i * M + j) + 1];
        }
}
template <int N, int M>
JALI_INLINE void transpose(real* __restrict c, const real* __restrict a) {
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) {
            c[2 * (j * N + i)] = a[2 * (i * M + j)];
            c[2 * (j * N + i) + 1] = a[2 * (i * M + j) + 1];
        }
}
template <int N, int M>
JALI_INLINE void transpose_real(real* __restrict c, const real* __restrict a) {
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) c[j * N + i] = a[i * M + j];
}
template <int N>
JALI_INLINE void trace(real* out, const real* a) {
    real re = a[0], im = a[1];
    for (int i = 1; i < N; ++i) {
        re = re + a[2 * (i * N + i)];
        im = im + a[2 * (i * N + i) + 1];
    }
    out[0] = re;
    out[1] = im;
}
template <int N>
JALI_INLINE real retrace(const real* a) {
    real re = a[0];
    for (int i = 1; i < N; ++i) re = re + a[2 * (i * N + i)];
    return re;
}
template <int N>
JALI_INLINE real trace_real(const real* a) {
    real sum = a[0];
    for (int i = 1; i < N; ++i) sum = sum + a[i * N + i];
    return sum;
}
template <int N>
JALI_INLINE void identity(real* c) {
    for (int e = 0; e < 2 * N * N; ++e) c[e] = splat(0);
    for (int i = 0; i < N; ++i) c[2 * (i * N + i)] = splat(1);
}

// Elementwise, on N reals (N/2 complex numbers).
template <int N>
JALI_INLINE void zero(real* c) {
    for (int e = 0; e < N; ++e) c[e] = splat(0);
}
template <int N, class V>
JALI_INLINE void copy(V* c, const V* a) {
    for (int e = 0; e < N; ++e) c[e] = a[e];
}
template <int N>
JALI_INLINE void conj(real* c, const real* a) {
    for (int e = 0; e < N; e += 2) {
        c[e] = a[e];
        c[e + 1] = -a[e + 1];
    }
}
template <int N>
JALI_INLINE void add(real* c, const real* a, const real* b) {
    for (int e = 0; e < N; ++e) c[e] = a[e] + b[e];
}
template <int N>
JALI_INLINE void sub(real* c, const real* a, const real* b) {
    for (int e = 0; e < N; ++e) c[e] = a[e] - b[e];
}
template <int N>
JALI_INLINE void neg(real* c, const real* a) {
    for (int e = 0; e < N; ++e) c[e] = -a[e];
}
template <int N>
JALI_INLINE void choose(real* c, mask m, const real* a, const real* b) {
    for (int e = 0; e < N; ++e) c[e] = select(m, a[e], b[e]);
}
template <int N>
JALI_INLINE void scale(real* c, real s, const real* a) {
    for (int e = 0; e < N; ++e) c[e] = s * a[e];
}
template <int N>
JALI_INLINE void scale_complex(real* c, const real* s, const real* a) {
    const real sr = s[0], si = s[1];
    for (int e = 0; e < N; e += 2) {
        const real re = a[e], im = a[e + 1];
        c[e] = fnma(si, im, sr * re);
        c[e + 1] = fma(sr, im, si * re);
    }
}
// c += s a
template <int N>
JALI_INLINE void add_scaled(real* c, real s, const real* a) {
    for (int e = 0; e < N; ++e) c[e] = fma(s, a[e], c[e]);
}
template <int N>
JALI_INLINE void add_scaled_complex(real* c, const real* s, const real* a) {
    const real sr = s[0], si = s[1];
    for (int e = 0; e < N; e += 2) {
        const real re = a[e], im = a[e + 1];
        c[e] = fnma(si, im, fma(sr, re, c[e]));
        c[e + 1] = fma(sr, im, fma(si, re, c[e + 1]));
    }
}

// The sum of N terms in four interleaved chains, which are added as (0 + 1) + (2 + 3). The chains have names,
// since compilers keep an array that is indexed in a loop in memory.
template <int N>
JALI_INLINE real dot_real(const real* a, const real* b) {
    constexpr int whole = N / 4 * 4;
    real chain0 = splat(0), chain1 = splat(0), chain2 = splat(0), chain3 = splat(0);
    JALI_UNROLL
    for (int e = 0; e < whole; e += 4) {
        chain0 = fma(a[e], b[e], chain0);
        chain1 = fma(a[e + 1], b[e + 1], chain1);
        chain2 = fma(a[e + 2], b[e + 2], chain2);
        chain3 = fma(a[e + 3], b[e + 3], chain3);
    }
    if constexpr (N - whole > 0) chain0 = fma(a[whole], b[whole], chain0);
    if constexpr (N - whole > 1) chain1 = fma(a[whole + 1], b[whole + 1], chain1);
    if constexpr (N - whole > 2) chain2 = fma(a[whole + 2], b[whole + 2], chain2);
    return (chain0 + chain1) + (chain2 + chain3);
}
template <int N>
JALI_INLINE real norm2(const real* a) {
    return dot_real<N>(a, a);
}
// conj(a) . b
template <int N>
JALI_INLINE void dot(real* out, const real* a, const real* b) {
    real re = splat(0), im = splat(0);
    for (int e = 0; e < N; e += 2) {
        re = fma(a[e + 1], b[e + 1], fma(a[e], b[e], re));
        im = fnma(a[e + 1], b[e], fma(a[e], b[e + 1], im));
    }
    out[0] = re;
    out[1] = im;
}
// c (N x M) = a b^dagger, c_ij = a_i conj(b_j)
template <int N, int M>
JALI_INLINE void outer(real* __restrict c, const real* __restrict a, const real* __restrict b) {
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) {
            const real ar = a[2 * i], ai = a[2 * i + 1], br = b[2 * j], bi = b[2 * j + 1];
            c[2 * (i * M + j)] = fma(ai, bi, ar * br);
            c[2 * (i * M + j) + 1] = fnma(ar, bi, ai * br);
        }
}
template <int N, int M>
JALI_INLINE void outer_real(real* __restrict c, const real* __restrict a, const real* __restrict b) {
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < M; ++j) c[i * M + j] = a[i] * b[j];
}
