"""Packings: which numbers of a value a storage format keeps, since the others follow from them.

Text in the kernel dialect; a format of `storage_formats.py` defines the layout of the kept numbers in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jali.codegen.types import SU, Element


@dataclass(frozen=True)
class Packing:
    """Which numbers of a value are kept. `encode` and `decode` are functions of the dialect on arrays of reals; `text`
    defines them where the prelude does not."""

    name: str
    reals: Callable[[Element], int]  # that are kept
    holds: Callable[[Element], bool]
    encode: str = ""  # template over the n of n x n; "": all numbers, as they come
    decode: str = ""
    text: str = ""
    exact: bool = False  # all numbers come back as they were
    of_bits: bool = False  # its functions need the bits of IEEE numbers
    version: int = 1


def is_group(element: Element, *orders: int) -> bool:
    """Whether it holds SU(n) matrices, of one of these orders."""
    shape = element.type.shape
    if len(shape) != 2 or shape[0] != shape[1] or (orders and shape[0] not in orders):
        return False
    return element == SU(shape[0])


PLAIN = Packing("plain", lambda e: e.type.reals, lambda e: e.codec == "plain", exact=True)
ALGEBRA = Packing(
    "algebra",
    lambda e: e.stored_reals,
    lambda e: e.codec == "algebra",
    "algebra_encode",
    "algebra_decode",
    exact=True,
)
HERMITIAN = Packing(
    "hermitian",
    lambda e: e.stored_reals,
    lambda e: e.codec == "hermitian",
    "hermitian_encode",
    "hermitian_decode",
    exact=True,
)
SPIN_FIRST = Packing(
    "spin-first",
    lambda e: e.type.reals,
    lambda e: e.spinor,
    "spin_first_encode",
    "spin_first_decode",
    """// Spinors of N colours as NumPy has them, spin by spin.
template <int N>
JALI_INLINE void spin_first_encode(real* p, const real* u) {
    for (int i = 0; i < N; ++i)
        for (int k = 0; k < 8; ++k) p[k / 2 * 2 * N + 2 * i + k % 2] = u[8 * i + k];
}
template <int N>
JALI_INLINE void spin_first_decode(real* u, const real* p) {
    for (int i = 0; i < N; ++i)
        for (int k = 0; k < 8; ++k) u[8 * i + k] = p[k / 2 * 2 * N + 2 * i + k % 2];
}
""",
    exact=True,
)

_ROWS = """// All rows but the last of a special unitary matrix; the last is the conjugate of their cross product.
template <int N>
JALI_INLINE void rows_encode(real* p, const real* u) {
    for (int c = 0; c < 2 * N * (N - 1); ++c) p[c] = u[c];
}
template <int N>
JALI_INLINE void rows_decode(real* u, const real* p) {
    for (int c = 0; c < 2 * N * (N - 1); ++c) u[c] = p[c];
    if (N == 2) {
        u[4] = -p[2];
        u[5] = p[3];
        u[6] = p[0];
        u[7] = -p[1];
        return;
    }
    JALI_UNROLL
    for (int j = 0; j < 3; ++j) {
        const int k = (j + 1) % 3, l = (j + 2) % 3;
        const real ar = p[2 * k], ai = p[2 * k + 1], br = p[2 * l], bi = p[2 * l + 1];
        const real cr = p[6 + 2 * k], ci = p[7 + 2 * k], dr = p[6 + 2 * l], di = p[7 + 2 * l];
        u[12 + 2 * j] = fma(bi, ci, fnma(br, cr, fnma(ai, di, ar * dr)));
        u[13 + 2 * j] = fma(bi, cr, fma(br, ci, fnma(ai, dr, -(ar * di))));
    }
}
"""
_EIGHT = """// Eight reals of an SU(3) matrix of rows a, b, c: Bunk and Sommer, Comput. Phys. Commun. 40 (1986) 229, in the order of rows of
// Clark et al., arXiv:0911.3191, {b, a, -c}, which has no singularity at the unit matrix. Of these rows A, B, C: A2, A3, B1, and the
// phases of A1 and C1 over pi. Where A1 or C1 is small its modulus loses digits: up to half of them. Since |A1| = 1 would be
// singular, the rows are {a, b, c} where |b1|^2 is above 1/2; that they are is seen by A2 and A3, which are halved then:
// |A2|^2 + |A3|^2 is at most 1/4 instead of at least 1/2.
const real_constant PI = 3.14159265358979323846;
template <int N>
JALI_INLINE void eight_encode(real* p, const real* u) {
    const mask in_order = fma(u[6], u[6], u[7] * u[7]) > splat(0.5);
    const real scale = select(in_order, splat(0.5), splat(1)), sign = select(in_order, splat(1), splat(-1));
    for (int c = 0; c < 4; ++c) p[c] = scale * select(in_order, u[2 + c], u[8 + c]);
    for (int c = 0; c < 2; ++c) p[4 + c] = select(in_order, u[6 + c], u[c]);
    p[6] = vatan2(select(in_order, u[1], u[7]), select(in_order, u[0], u[6])) / splat(PI);
    p[7] = vatan2(sign * u[13], sign * u[12]) / splat(PI);
}
JALI_INLINE real norm_left(real x) { // root of what is left, or 0
    return vsqrt(vmax(x, splat(0)));
}
template <int N>
JALI_INLINE void eight_decode(real* u, const real* p) {
    const mask in_order = fma(p[0], p[0], fma(p[1], p[1], fma(p[2], p[2], p[3] * p[3]))) < splat(0.375);
    const real scale = select(in_order, splat(2), splat(1)), sign = select(in_order, splat(1), splat(-1));
    const real a2r = scale * p[0], a2i = scale * p[1], a3r = scale * p[2], a3i = scale * p[3], b1r = p[4], b1i = p[5];
    const real n = fma(a2r, a2r, fma(a2i, a2i, fma(a3r, a3r, a3i * a3i)));
    const real a1 = norm_left(splat(1) - n), c1 = norm_left(n - fma(b1r, b1r, b1i * b1i));
    real s, c;
    vsincos(&s, &c, p[6] * splat(PI));
    const real a1r = a1 * c, a1i = a1 * s;
    vsincos(&s, &c, p[7] * splat(PI));
    const real c1r = c1 * c, c1i = c1 * s;
    const real inverse = splat(1) / vmax(n, splat(0.25)); // of what is no matrix of the group, too
    // conj(A1) B1 and conj(A1) C1
    const real er = fma(a1r, b1r, a1i * b1i), ei = fnma(a1i, b1r, a1r * b1i);
    const real fr = fma(a1r, c1r, a1i * c1i), fi = fnma(a1i, c1r, a1r * c1i);
    const real b2r = -(fma(a2r, er, fnma(a2i, ei, fnma(a3i, c1i, a3r * c1r)))) * inverse;
    const real b2i = -(fma(a2r, ei, fma(a2i, er, fnma(a3i, c1r, -(a3r * c1i))))) * inverse;
    const real b3r = (fnma(a3r, er, fma(a3i, ei, fnma(a2i, c1i, a2r * c1r)))) * inverse;
    const real b3i = (fnma(a3r, ei, fnma(a3i, er, fnma(a2i, c1r, -(a2r * c1i))))) * inverse;
    const real c2r = (fnma(a2r, fr, fma(a2i, fi, fnma(a3i, b1i, a3r * b1r)))) * inverse;
    const real c2i = (fnma(a2r, fi, fnma(a2i, fr, fnma(a3i, b1r, -(a3r * b1i))))) * inverse;
    const real c3r = -(fma(a3r, fr, fnma(a3i, fi, fnma(a2i, b1i, a2r * b1r)))) * inverse;
    const real c3i = -(fma(a3r, fi, fma(a3i, fr, fnma(a2i, b1r, -(a2r * b1i))))) * inverse;
    const real a[6] = {a1r, a1i, a2r, a2i, a3r, a3i}, b[6] = {b1r, b1i, b2r, b2i, b3r, b3i};
    const real third[6] = {c1r, c1i, c2r, c2i, c3r, c3i};
    for (int k = 0; k < 6; ++k) {
        u[k] = select(in_order, a[k], b[k]);
        u[6 + k] = select(in_order, b[k], a[k]);
        u[12 + k] = sign * third[k];
    }
}
""".replace("const real_constant PI", "const JALI_REAL PI")


def _most_rows(element: Element) -> int:
    n = element.type.shape[0]
    return 2 * n * (n - 1)


ROWS_OF_SU3 = Packing("12", _most_rows, lambda e: is_group(e, 3), "rows_encode", "rows_decode", _ROWS)
ROWS_OF_SU2 = Packing("4", _most_rows, lambda e: is_group(e, 2), "rows_encode", "rows_decode", _ROWS)
EIGHT_OF_SU3 = Packing(
    "8",
    lambda e: 8,
    lambda e: is_group(e, 3),
    "eight_encode",
    "eight_decode",
    _EIGHT,
    of_bits=True,
    version=2,
)
