// What storage means, wherever it is: boundary factors, and the reals of an element of a Lie algebra.

// One number per lane from memory of any alignment: boundary factors live in NumPy arrays.
JALI_INLINE real load_factor(const JALI_REAL* p) {
    real r;
    copy_bits(&r, p, sizeof r);
    return r;
}
// Multiplies N/2 complex numbers by a phase per lane. (1, 0) leaves the bits alone, (-1, 0) flips signs, and
// (0, 0) gives +0 whatever the value was: an open boundary has nothing behind it.
template <int N>
JALI_CALL void apply_phase(real* x, const JALI_REAL* phase) {
    const real re = load_factor(phase), im = load_factor(phase + JALI_LANES);
    const real zero = splat(0);
    const mask is_real = im == zero, inside = ~(is_real & (re == zero));
    if (all(is_real)) {
        for (int c = 0; c < N; ++c) x[c] = keep(inside, x[c] * re);
    } else {
        for (int c = 0; c < N; c += 2) {
            const real a = x[c], b = x[c + 1];
            x[c] = keep(inside, select(is_real, a * re, fnma(b, im, a * re)));
            x[c + 1] = keep(inside, select(is_real, b * re, fma(a, im, b * re)));
        }
    }
}
// Multiplies N reals by a sign per lane: 1, -1, or 0 with the meaning of apply_phase.
template <int N>
JALI_CALL void apply_sign(real* x, const JALI_REAL* factor) {
    const real sign = load_factor(factor);
    const mask inside = sign != splat(0);
    for (int c = 0; c < N; ++c) x[c] = keep(inside, x[c] * sign);
}

// Algebra storage: the N*N-1 reals of a traceless anti-Hermitian N x N matrix Z. First re and im of Z_ij for
// i < j, row by row, then Im Z_ii for i < N-1; Z_NN is minus the sum of the others. N = 1 is u(1): one real
// a, Z = i a.
template <int N>
JALI_INLINE void algebra_decode(real* m, const real* a) {
    int next = 0;
    for (int i = 0; i < N; ++i)
        for (int j = i + 1; j < N; ++j, next += 2) {
            m[2 * (i * N + j)] = a[next];
            m[2 * (i * N + j) + 1] = a[next + 1];
            m[2 * (j * N + i)] = -a[next];
            m[2 * (j * N + i) + 1] = a[next + 1];
        }
    real last = splat(0);
    for (int i = 0; i < N; ++i) {
        m[2 * (i * N + i)] = splat(0);
        const real diagonal = N == 1 ? a[0] : i < N - 1 ? a[next + i] : -last;
        m[2 * (i * N + i) + 1] = diagonal;
        last = last + diagonal;
    }
}
template <int N>
JALI_INLINE void algebra_encode(real* a, const real* m) {
    int next = 0;
    for (int i = 0; i < N; ++i)
        for (int j = i + 1; j < N; ++j) {
            a[next++] = m[2 * (i * N + j)];
            a[next++] = m[2 * (i * N + j) + 1];
        }
    for (int i = 0; i < (N == 1 ? 1 : N - 1); ++i) a[next++] = m[2 * (i * N + i) + 1];
}
