// Dense matrices of numbers, by the threads of one block: sums, products, factors and eigenvectors. For the kernels of
// jali.codegen.number_array_kernels only.
//
// An element is computed by one thread in a written order, and is read by others after meet(): any number of threads, and a
// processor, which has one, give the same bits. Sites have functions of their own (hermitian.hpp, group.hpp), whose extents are known and
// whose matrices lie in registers. T is `real` or `complex_lane`. Algorithms are those of Golub and Van Loan, Matrix Computations, 4th
// edition.

#if !defined(JALI_GPU)
#define JALI_SHARED
JALI_INLINE int64_t thread_in_block() {
    return 0;
}
JALI_INLINE int64_t threads_in_block() {
    return 1;
}
JALI_INLINE void meet() {
}
#endif
#define JALI_FOR_THREADS(e, count)                                                                           \
    for (int64_t e = thread_in_block(); e < (count); e += threads_in_block())

const int64_t MOST_ORDER = 16, MOST_EXTENT = 64; // of what is factorised, and of other arrays
const int SWEEPS = 30;                           // of Jacobi rotations at most; order 16 takes five to thirteen

// Doubles somewhere in memory; no `im`: of real numbers; no `re`: the unit matrix. Steps count doubles.
struct given_matrix {
    const double *re, *im;
    int64_t rows, columns, row_step, column_step;
};
JALI_INLINE given_matrix given_at(const uint64_t* w) {
    return {(const double*)w[0], (const double*)w[1], (int64_t)w[2], (int64_t)w[3], (int64_t)w[4], (int64_t)w[5]};
}
JALI_INLINE void get(real& x, const given_matrix& m, int64_t i, int64_t j) {
    x = splat(m.re ? m.re[i * m.row_step + j * m.column_step] : double(i == j));
}
JALI_INLINE void get(complex_lane& z, const given_matrix& m, int64_t i, int64_t j) {
    get(z.re, m, i, j);
    z.im = splat(m.im ? m.im[i * m.row_step + j * m.column_step] : 0.0);
}

// Results, row by row: on a device a second time in memory of the host.
struct kept_matrix {
    uint64_t address, mirror;
};
JALI_INLINE kept_matrix kept_at(const uint64_t* w) {
    return {w[0], w[1]};
}
JALI_INLINE void keep(kept_matrix out, int64_t element, real x) {
    const uint64_t at = uint64_t(element) * sizeof(double);
    *(double*)(out.address + at) = x.value;
    if (out.mirror != out.address) *(volatile double*)(out.mirror + at) = x.value;
}
JALI_INLINE void keep(kept_matrix out, int64_t element, complex_lane z) {
    keep(out, 2 * element, z.re);
    keep(out, 2 * element + 1, z.im);
}

// What complex numbers have, of real ones, and both alike.
JALI_INLINE real conj(real a) {
    return a;
}
JALI_INLINE real norm2(real a) {
    return a * a;
}
JALI_INLINE real minus_adjoint(real a, real b, real c) {
    return fnma(a, b, c);
}
JALI_INLINE real real_part(real a) {
    return a;
}
JALI_INLINE real real_part(complex_lane a) {
    return a.re;
}
JALI_INLINE void set_real(real& a, real x) {
    a = x;
}
JALI_INLINE void set_real(complex_lane& a, real x) {
    a = {x, splat(0)};
}
JALI_INLINE real quotient(real a, real b) {
    return a / b;
}
JALI_INLINE complex_lane quotient(complex_lane a, complex_lane b) {
    return divided(a.re, a.im, divisor(b.re, b.im));
}
JALI_INLINE real size_of(real a) { // of a pivot
    return vabs(a);
}
JALI_INLINE real size_of(complex_lane a) {
    return vabs(a.re) + vabs(a.im);
}
JALI_INLINE real modulus(real a) {
    return vabs(a);
}
JALI_INLINE real largest_part(real a) {
    return vabs(a);
}
JALI_INLINE real modulus(complex_lane a) {
    return modulus(a.re, a.im);
}
JALI_INLINE real over(real a, real size) {
    return a / size;
}
JALI_INLINE complex_lane over(complex_lane a, real size) {
    return {a.re / size, a.im / size};
}

// The sum of `terms`, and of those that begin at the other rows of `first`.
template <class T>
JALI_INLINE void sums(kept_matrix out, given_matrix terms, given_matrix first) {
    JALI_FOR_THREADS(e, first.rows) {
        given_matrix from = terms;
        from.re += e * first.row_step;
        if (terms.im) from.im += e * first.row_step;
        T total = {}, term;
        for (int64_t i = 0; i < terms.rows; ++i)
            for (int64_t j = 0; j < terms.columns; ++j) {
                get(term, from, i, j);
                total = total + term;
            }
        keep(out, e, total);
    }
}

template <class T>
JALI_INLINE void multiply(kept_matrix out, given_matrix a, given_matrix b) {
    JALI_FOR_THREADS(e, a.rows * b.columns) {
        T total = {}, x, y;
        for (int64_t k = 0; k < a.columns; ++k) {
            get(x, a, e / b.columns, k);
            get(y, b, k, e % b.columns);
            total = fma(x, y, total);
        }
        keep(out, e, total);
    }
}

// Cholesky's factor of a Hermitian matrix whose lower triangle is given (4.2.5, outer products): the bits of that of sites. A pivot that is
// not positive becomes nan, and with it all that follows.
template <class T>
JALI_INLINE void factorise(T* l, const given_matrix& a) {
    const int64_t n = a.rows;
    JALI_FOR_THREADS(e, n * n) {
        const int64_t i = e / n, j = e % n;
        l[e] = {};
        if (i >= j) get(l[e], a, i, j);
    }
    meet();
    for (int64_t k = 0; k < n; ++k) {
        const real pivot = real_part(l[k * n + k]);
        const real root = vsqrt(select(pivot > splat(0), pivot, splat(nan_of_target())));
        const real reciprocal = splat(1) / root;
        meet();
        JALI_FOR_THREADS(e, n - k) {
            T& x = l[(k + e) * n + k];
            if (e == 0) set_real(x, root);
            else x = reciprocal * x;
        }
        meet();
        const int64_t left = n - k - 1;
        JALI_FOR_THREADS(e, left * left) {
            const int64_t i = k + 1 + e / left, j = k + 1 + e % left;
            if (i >= j) l[i * n + j] = minus_adjoint(l[i * n + k], l[j * n + k], l[i * n + j]);
        }
        meet();
    }
}
template <class T>
JALI_INLINE void cholesky(kept_matrix out, given_matrix a) {
    JALI_SHARED T l[MOST_ORDER * MOST_ORDER];
    factorise(l, a);
    JALI_FOR_THREADS(e, a.rows * a.rows) keep(out, e, l[e]);
}
template <class T>
JALI_INLINE void log_det(kept_matrix out, given_matrix a) {
    JALI_SHARED T l[MOST_ORDER * MOST_ORDER];
    factorise(l, a);
    JALI_FOR_THREADS(e, 1) {
        real total = splat(0);
        for (int64_t k = 0; k < a.rows; ++k) total = total + vlog(real_part(l[k * a.rows + k]));
        keep(out, 0, total + total);
    }
}

// x with a x = b, by Gaussian elimination with partial pivoting (3.4.4) of a and b side by side.
template <class T>
JALI_INLINE void solve(kept_matrix out, given_matrix a, given_matrix b) {
    JALI_SHARED T m[MOST_ORDER * (MOST_ORDER + MOST_EXTENT)];
    const int64_t n = a.rows, width = n + b.columns;
    JALI_FOR_THREADS(e, n * width) {
        const int64_t i = e / width, j = e % width;
        if (j < n) get(m[e], a, i, j);
        else get(m[e], b, i, j - n);
    }
    meet();
    for (int64_t k = 0; k < n; ++k) {
        int64_t row = k;
        for (int64_t i = k + 1; i < n; ++i)
            if (size_of(m[i * width + k]).value > size_of(m[row * width + k]).value) row = i;
        meet();
        JALI_FOR_THREADS(j, width) {
            const T x = m[k * width + j];
            m[k * width + j] = m[row * width + j];
            m[row * width + j] = x;
        }
        meet();
        JALI_FOR_THREADS(e, n - k - 1) {
            T& x = m[(k + 1 + e) * width + k];
            x = quotient(x, m[k * width + k]);
        }
        meet();
        const int64_t left = width - k - 1;
        JALI_FOR_THREADS(e, (n - k - 1) * left) {
            const int64_t i = k + 1 + e / left, j = k + 1 + e % left;
            m[i * width + j] = fnma(m[i * width + k], m[k * width + j], m[i * width + j]);
        }
        meet();
    }
    for (int64_t k = n - 1; k >= 0; --k) {
        JALI_FOR_THREADS(j, b.columns) {
            T& x = m[k * width + n + j];
            x = quotient(x, m[k * width + k]);
        }
        meet();
        JALI_FOR_THREADS(e, k * b.columns) {
            const int64_t i = e / b.columns, j = n + e % b.columns;
            m[i * width + j] = fnma(m[i * width + k], m[k * width + j], m[i * width + j]);
        }
        meet();
    }
    JALI_FOR_THREADS(e, n * b.columns) keep(out, e, m[e / b.columns * width + n + e % b.columns]);
}

// a = q r by the Gram-Schmidt process, every column twice (5.2.7 to 5.2.9): q is then orthonormal to rounding, whatever the condition of
// a (L. Giraud, J. Langou, M. Rozloznik, Numer. Math. 101 (2005) 87). A column of which only rounding is left depends on those before.
// Columns are scaled by powers of two, so that no square leaves the range; the bits are those without, where none does.
template <class T>
JALI_INLINE real column_norm(const T* v, int64_t rows, int64_t columns, int64_t j) {
    real total = splat(0);
    for (int64_t i = 0; i < rows; ++i) total = total + norm2(v[i * columns + j]);
    return vsqrt(total);
}
template <class T>
JALI_INLINE real column_scale(const T* v, int64_t rows, int64_t columns, int64_t j) {
    real largest = splat(0);
    for (int64_t i = 0; i < rows; ++i) largest = vmax(largest, largest_part(v[i * columns + j]));
    return select(largest < splat(INFINITE), unit_scale(largest, splat(0)), splat(nan_of_target()));
}
template <class T>
JALI_INLINE void qr(kept_matrix q, kept_matrix r, given_matrix a) {
    JALI_SHARED T v[MOST_ORDER * MOST_ORDER], factor[MOST_ORDER * MOST_ORDER], overlap[MOST_ORDER];
    JALI_SHARED real scale[MOST_ORDER];
    const int64_t rows = a.rows, columns = a.columns;
    const real rounding = splat(double(4 * rows) * 0x1p-52);
    JALI_FOR_THREADS(e, rows * columns) get(v[e], a, e / columns, e % columns);
    JALI_FOR_THREADS(e, columns * columns) factor[e] = {};
    meet();
    JALI_FOR_THREADS(j, columns) scale[j] = column_scale(v, rows, columns, j);
    meet();
    JALI_FOR_THREADS(e, rows * columns) v[e] = scale[e % columns] * v[e];
    meet();
    for (int64_t j = 0; j < columns; ++j) {
        const real given = column_norm(v, rows, columns, j);
        for (int pass = 0; pass < 2; ++pass) {
            meet();
            JALI_FOR_THREADS(k, j) {
                T total = {};
                for (int64_t i = 0; i < rows; ++i)
                    total = fma(conj(v[i * columns + k]), v[i * columns + j], total);
                overlap[k] = total;
                factor[k * columns + j] = factor[k * columns + j] + total;
            }
            meet();
            JALI_FOR_THREADS(i, rows)
                for (int64_t k = 0; k < j; ++k)
                    v[i * columns + j] = fnma(v[i * columns + k], overlap[k], v[i * columns + j]);
        }
        meet();
        const real left = column_norm(v, rows, columns, j);
        const bool depends = left.value <= (rounding * given).value; // not where it is nan
        const real reciprocal = splat(1) / left;
        meet();
        JALI_FOR_THREADS(i, rows) v[i * columns + j] = depends ? T{} : reciprocal * v[i * columns + j];
        JALI_FOR_THREADS(e, 1) set_real(factor[j * columns + j], depends ? splat(0) : left);
        meet();
    }
    JALI_FOR_THREADS(e, rows * columns) keep(q, e, v[e]);
    JALI_FOR_THREADS(e, columns * columns)
        keep(r, e, e / columns > e % columns ? T{} : over(factor[e], scale[e % columns]));
}

// Eigenvalues in ascending order, and eigenvectors, of a Hermitian matrix whose lower triangle is given: Jacobi's method (8.5), in rounds of
// rotations that share no row, in the order of a tournament (8.5.6), until a sweep rotates nothing. With a_pq = g w, |w| = 1, a rotation
// is that of (8.5.1) for a_pq = g, between diag(1, conj(w)) and its inverse.
template <class T>
JALI_INLINE void eigh(kept_matrix values, kept_matrix vectors, given_matrix given) {
    JALI_SHARED T a[MOST_ORDER * MOST_ORDER], v[MOST_ORDER * MOST_ORDER], sine[MOST_ORDER / 2];
    JALI_SHARED real cosine[MOST_ORDER / 2], first[MOST_ORDER / 2], second[MOST_ORDER / 2];
    JALI_SHARED bool rotated[MOST_ORDER / 2];
    const int64_t n = given.rows, pairs = (n + 1) / 2, others = 2 * pairs - 1;
    const auto pair = [&](int64_t round, int64_t k, int64_t& p, int64_t& q) { // false: one of them has nobody to meet
        const int64_t x = k == 0 ? others : (round + k) % others, y = (round + others - k) % others;
        p = x < y ? x : y;
        q = x < y ? y : x;
        return q < n;
    };
    JALI_FOR_THREADS(e, n * n) {
        const int64_t i = e / n, j = e % n;
        get(a[e], given, i < j ? j : i, i < j ? i : j);
        if (i < j) a[e] = conj(a[e]);
        if (i == j) set_real(a[e], real_part(a[e]));
        set_real(v[e], splat(double(i == j)));
    }
    meet();
    for (int sweep = 0; sweep < SWEEPS; ++sweep) {
        JALI_FOR_THREADS(k, pairs) rotated[k] = false;
        for (int64_t round = 0; round < others; ++round) {
            JALI_FOR_THREADS(k, pairs) {
                int64_t p, q;
                if (!pair(round, k, p, q)) continue;
                const real x = real_part(a[p * n + p]), y = real_part(a[q * n + q]), g = modulus(a[p * n + q]);
                cosine[k] = splat(1);
                sine[k] = {};
                first[k] = x;
                second[k] = y;
                if ((vabs(x) + g).value == vabs(x).value && (vabs(y) + g).value == vabs(y).value) continue;
                const real tau = (y - x) / (g + g);
                const real size = splat(1) / (vabs(tau) + vsqrt(splat(1) + tau * tau));
                const real tangent = select(tau < splat(0), -size, size);
                cosine[k] = splat(1) / vsqrt(splat(1) + tangent * tangent);
                sine[k] = (tangent * cosine[k]) * over(a[p * n + q], g);
                first[k] = fnma(tangent, g, x);
                second[k] = fma(tangent, g, y);
                rotated[k] = true;
            }
            meet();
            JALI_FOR_THREADS(e, 2 * n * pairs) { // the columns of a and of v
                const int64_t k = e % pairs, i = e / pairs % n;
                T* const row = (e < n * pairs ? a : v) + i * n;
                int64_t p, q;
                if (!pair(round, k, p, q)) continue;
                const T x = row[p], y = row[q];
                row[p] = fnma(conj(sine[k]), y, cosine[k] * x);
                row[q] = fma(sine[k], x, cosine[k] * y);
            }
            meet();
            JALI_FOR_THREADS(e, n * pairs) { // the rows of a
                const int64_t k = e % pairs, j = e / pairs;
                int64_t p, q;
                if (!pair(round, k, p, q)) continue;
                T &x = a[p * n + j], &y = a[q * n + j];
                const T one = fnma(sine[k], y, cosine[k] * x), other = fma(conj(sine[k]), x, cosine[k] * y);
                x = one;
                y = other;
                if (j == p || j == q) {
                    set_real(x, j == p ? first[k] : splat(0));
                    set_real(y, j == q ? second[k] : splat(0));
                }
            }
            meet();
        }
        bool any = false;
        for (int64_t k = 0; k < pairs; ++k) any = any || rotated[k];
        meet();
        if (!any) break;
    }
    JALI_FOR_THREADS(j, n) {
        const double mine = real_part(a[j * n + j]).value;
        int64_t rank = 0;
        for (int64_t i = 0; i < n; ++i) {
            const double its = real_part(a[i * n + i]).value;
            const bool equal = its == mine || (its != its && mine != mine); // nan is the largest
            rank += its < mine || (mine != mine && its == its) || (equal && i < j);
        }
        keep(values, rank, splat(mine));
        for (int64_t i = 0; i < n; ++i) keep(vectors, i * n + rank, v[i * n + j]);
    }
}
