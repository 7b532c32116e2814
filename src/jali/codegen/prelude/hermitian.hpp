// Hermitian matrices, on lanes: how they are stored, the Hermitian part of a matrix, Cholesky's factor and what it is for.
//
// The factor is that of Golub and Van Loan, Matrix Computations, 4.2: A = L L^dagger by columns, without exchanges, which
// positive definite matrices do not need. A pivot that is not positive becomes nan, and with it all that follows: the
// first nan of the diagonal says which leading block is not positive definite, and kernels count its site (kernel.hpp).

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
// Returns the first pivot that is not positive, where all are the last one.
template <int N>
JALI_CALL real cholesky(real* __restrict l, const real* __restrict a) {
    real decisive = splat(1);
    JALI_UNROLL
    for (int j = 0; j < N; ++j) {
        real pivot = a[2 * (j * N + j)];
        JALI_UNROLL
        for (int k = 0; k < j; ++k) {
            const complex_lane x = at(l, j * N + k);
            pivot = fnma(x.im, x.im, fnma(x.re, x.re, pivot));
        }
        decisive = select(decisive > splat(0), pivot, decisive);
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
    return decisive;
}
// The number, from 0, of the first pivot that was not positive.
template <int N>
JALI_INLINE integer failed_pivot(const real* l) {
    integer number = splat_integer(0);
    mask regular = all_lanes(true);
    JALI_UNROLL
    for (int j = 0; j < N; ++j) {
        regular = regular & (l[2 * (j * N + j)] > splat(0));
        number = select(regular, splat_integer(j + 1), number);
    }
    return number;
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
// Where the inverse c of A is not finite: the first pivot of the elimination that is 0 or no number, in `number` which
// of them; of what only leaves the range the last one.
template <int N>
JALI_OUT_OF_LINE real singular_pivot(const real* a, integer* number) {
    real work[2 * N * N], decisive = splat(1);
    copy<2 * N * N>(work, a);
    *number = splat_integer(0);
    for (int k = 0; k < N; ++k) {
        mask exchanged[N];
        pivot<N>(work, k, k, exchanged);
        const complex_lane largest = at(work, k * N + k);
        const mask regular = decisive > splat(0);
        decisive = select(regular, vabs(largest.re) + vabs(largest.im), decisive); // nan where one is
        *number = select(regular, splat_integer(k), *number);
        const complex_lane reciprocal = inverse(largest);
        for (int r = k + 1; r < N; ++r) {
            const complex_lane factor = at(work, r * N + k) * reciprocal;
            for (int j = k + 1; j < N; ++j)
                put(work, r * N + j, fnma(factor, at(work, k * N + j), at(work, r * N + j)));
        }
    }
    return decisive;
}
// Lanes in which the diagonal is finite: an inverse that is not finite is so nowhere.
template <int N>
JALI_INLINE mask finite_diagonal(const real* c) {
    mask finite = all_lanes(true);
    JALI_UNROLL
    for (int j = 0; j < N; ++j) finite = finite & (vabs(c[2 * (j * N + j)]) < splat(INFINITE));
    return finite;
}
// log det(L L^dagger): the logarithms are added, since the determinant itself soon leaves the range.
template <int N>
JALI_CALL real log_det_of_cholesky(const real* l) {
    real sum = vlog(l[0]);
    for (int i = 1; i < N; ++i) sum = sum + vlog(l[2 * (i * N + i)]);
    return sum + sum;
}
#endif
