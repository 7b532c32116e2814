// Hermitian matrices, on lanes: how they are stored, the Hermitian part of a matrix, Cholesky's factor and what it is for.
//
// The factor is that of Golub and Van Loan, Matrix Computations, 4.2: A = L L^dagger by columns, without exchanges, which
// positive definite matrices do not need. A pivot that is not positive becomes nan, and with it all that follows: the
// first nan of the diagonal says which leading block is not positive definite.

// The N*N reals of a Hermitian N x N matrix: re and im of H_ij for i < j, row by row, then H_ii.
template <int N>
JALI_INLINE void hermitian_decode(real* m, const real* a) {
    int next = 0;
    for (int i = 0; i < N; ++i)
        for (int j = i + 1; j < N; ++j, next += 2) {
            m[2 * (i * N + j)] = a[next];
            m[2 * (i * N + j) + 1] = a[next + 1];
            m[2 * (j * N + i)] = a[next];
            m[2 * (j * N + i) + 1] = -a[next + 1];
        }
    for (int i = 0; i < N; ++i) {
        m[2 * (i * N + i)] = a[next + i];
        m[2 * (i * N + i) + 1] = splat(0);
    }
}
template <int N>
JALI_INLINE void hermitian_encode(real* a, const real* m) {
    int next = 0;
    for (int i = 0; i < N; ++i)
        for (int j = i + 1; j < N; ++j) {
            a[next++] = m[2 * (i * N + j)];
            a[next++] = m[2 * (i * N + j) + 1];
        }
    for (int i = 0; i < N; ++i) a[next++] = m[2 * (i * N + i)];
}

// (A + A^dagger)/2
template <int N>
JALI_INLINE void hermitian_part(real* c, const real* a) {
    const real half = splat(JALI_REAL(0.5));
    for (int i = 0; i < N; ++i) {
        for (int j = i + 1; j < N; ++j) {
            const complex_lane z = half * (at(a, i * N + j) + conj(at(a, j * N + i)));
            put(c, i * N + j, z);
            put(c, j * N + i, conj(z));
        }
        put(c, i * N + i, {a[2 * (i * N + i)], splat(0)});
    }
}

// c - a conj(b)
JALI_INLINE complex_lane minus_adjoint(complex_lane a, complex_lane b, complex_lane c) {
    return {fnma(a.im, b.im, fnma(a.re, b.re, c.re)), fma(a.re, b.im, fnma(a.im, b.re, c.im))};
}
// The lower triangular factor, zeros above it; it reads the lower triangle of A, and of the diagonal the real parts.
template <int N>
JALI_CALL void cholesky(real* __restrict l, const real* __restrict a) {
    JALI_UNROLL
    for (int j = 0; j < N; ++j) {
        real pivot = a[2 * (j * N + j)];
        JALI_UNROLL
        for (int k = 0; k < j; ++k) {
            const complex_lane x = at(l, j * N + k);
            pivot = fnma(x.im, x.im, fnma(x.re, x.re, pivot));
        }
        const real root = vsqrt(select(pivot > splat(0), pivot, splat(JALI_REAL(nan_of_target()))));
        const real reciprocal = splat(1) / root;
        put(l, j * N + j, {root, splat(0)});
        JALI_UNROLL
        for (int i = j + 1; i < N; ++i) {
            complex_lane sum = at(a, i * N + j);
            JALI_UNROLL
            for (int k = 0; k < j; ++k) sum = minus_adjoint(at(l, i * N + k), at(l, j * N + k), sum);
            put(l, i * N + j, reciprocal * sum);
            put(l, j * N + i, {splat(0), splat(0)});
        }
    }
}
// x with L L^dagger x = b, for the M columns of b
template <int N, int M>
JALI_CALL void cholesky_solve(real* __restrict x, const real* __restrict l, const real* __restrict b) {
    real reciprocal[N];
    JALI_UNROLL
    for (int i = 0; i < N; ++i) reciprocal[i] = splat(1) / l[2 * (i * N + i)];
    JALI_UNROLL
    for (int i = 0; i < N; ++i) {
        JALI_UNROLL
        for (int c = 0; c < M; ++c) {
            complex_lane sum = at(b, i * M + c);
            JALI_UNROLL
            for (int k = 0; k < i; ++k) sum = fnma(at(l, i * N + k), at(x, k * M + c), sum);
            put(x, i * M + c, reciprocal[i] * sum);
        }
    }
    JALI_UNROLL
    for (int i = N - 1; i >= 0; --i) {
        JALI_UNROLL
        for (int c = 0; c < M; ++c) {
            complex_lane sum = at(x, i * M + c);
            JALI_UNROLL
            for (int k = i + 1; k < N; ++k) sum = minus_adjoint(at(x, k * M + c), at(l, k * N + i), sum);
            put(x, i * M + c, reciprocal[i] * sum);
        }
    }
}
#if JALI_IEEE
// log det(L L^dagger): the logarithms are added, since the determinant itself soon leaves the range.
template <int N>
JALI_CALL real log_det_of_cholesky(const real* l) {
    real sum = vlog(l[0]);
    for (int i = 1; i < N; ++i) sum = sum + vlog(l[2 * (i * N + i)]);
    return sum + sum;
}
#endif
