"""SU(2) subgroups of SU(n), at the level of rows and real components.

A link update changes U to R U with R in the SU(2) subgroup of rows i and j, and W = U S^dagger to R W. Only
these two rows change, so U and W are kept as rows of (re, im) symbols and no matrix product is needed;
unused components of W are never computed. N. Cabibbo and E. Marinari, Phys. Lett. B 119 (1982) 387.

A quaternion (a0, a1, a2, a3) stands for the matrix a0 + i a.sigma = [[a0 + i a3, a2 + i a1], [-a2 + i a1, a0
- i a3]].
"""

from __future__ import annotations

import itertools
from typing import Any

import jali

Quaternion = tuple[Any, Any, Any, Any]
Rows = list[list[tuple[Any, Any]]]

# Below this squared length a quaternion counts as zero: the link then does not feel the rest (or by rounding
# only). Well inside the range of float32, and far below the rounding of sums of matrices of order one in
# float64.
TINY = 1e-20


def subgroups(n: int) -> list[tuple[int, int]]:
    """The pairs of rows i < j; together they generate SU(n)."""
    return list(itertools.combinations(range(n), 2))


def rows_of(M: Any) -> Rows:
    """A matrix as rows of (re, im)."""
    rows, columns = M.shape
    return [[(M[i, j].real, M[i, j].imag) for j in range(columns)] for i in range(rows)]


def matrix_of(rows: Rows) -> Any:
    """Inverse of `rows_of`."""
    return jali.matrix([[jali.complex(re, im) for re, im in row] for row in rows])


def double_quaternion(W: Rows, i: int, j: int) -> Quaternion:
    """Twice the quaternion part q of the block of rows and columns i, j: Re tr(r W_block) = Re tr(r q) for r
    in SU(2).
    """
    (ar, ai), (br, bi) = W[i][i], W[i][j]
    (cr, ci), (dr, di) = W[j][i], W[j][j]
    return ar + dr, bi + ci, br - cr, ai - di


def length2(a: Quaternion) -> Any:
    """Squared length, the determinant of the matrix."""
    return a[0] * a[0] + a[1] * a[1] + a[2] * a[2] + a[3] * a[3]


def times_conjugate(h: Quaternion, v: Quaternion) -> Quaternion:
    """The product h v^dagger. In these conventions (i sigma_k)(i sigma_l) = -delta_kl - epsilon_klm i
    sigma_m.
    """
    return (
        h[0] * v[0] + h[1] * v[1] + h[2] * v[2] + h[3] * v[3],
        h[1] * v[0] - h[0] * v[1] + h[2] * v[3] - h[3] * v[2],
        h[2] * v[0] - h[0] * v[2] + h[3] * v[1] - h[1] * v[3],
        h[3] * v[0] - h[0] * v[3] + h[1] * v[2] - h[2] * v[1],
    )


def rotate_rows(M: Rows, i: int, j: int, r: Quaternion) -> None:
    """Replaces rows i and j of M by those of r M."""
    r0, r1, r2, r3 = r
    upper, lower = [], []
    for (xr, xi), (yr, yi) in zip(M[i], M[j], strict=True):
        upper.append((r0 * xr - r3 * xi + r2 * yr - r1 * yi, r0 * xi + r3 * xr + r2 * yi + r1 * yr))
        lower.append((r0 * yr + r3 * yi - r2 * xr - r1 * xi, r0 * yi - r3 * yr - r2 * xi + r1 * xr))
    M[i], M[j] = upper, lower
