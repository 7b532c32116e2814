"""Overrelaxation: the move that leaves the action unchanged and goes as far as possible.

In an SU(2) subgroup the part of the action is -(beta/n) K Re of the first component of r v; r = (v^dagger)^2
turns v into v^dagger, which has the same first component. M. Creutz, Phys. Rev. D 36 (1987) 515; F. Brown and
T. Woch, Phys. Rev. Lett. 58 (1987) 2394. For U(1) and SU(2) the move is its own inverse. It does not depend
on beta and draws no random numbers.
"""

from __future__ import annotations

from typing import Any

import jali
from jali.gauge.staples import staple
from jali.gauge.subgroups import (
    TINY,
    double_quaternion,
    length2,
    matrix_of,
    rotate_rows,
    rows_of,
    subgroups,
)


@jali.site_function
def overrelax(X: Any, U: Any, mu: Any) -> None:
    """Reflects the links of direction mu, SU(n) with n >= 2, in every SU(2) subgroup."""
    link = U[mu][X]
    rows = rows_of(link)
    W = rows_of(link * staple(X, U, mu).dagger())
    pairs = subgroups(link.shape[0])
    for number, (i, j) in enumerate(pairs):
        a = double_quaternion(W, i, j)
        K2 = length2(a)
        # (v^dagger)^2 = (2 v0^2 - 1, -2 v0 v_k). Where K is zero the action does not care, and r = -1 stays
        # in the group.
        f = jali.where(K2 < TINY, 0.0, 2.0 * a[0] / K2)
        r = (f * a[0] - 1.0, -f * a[1], -f * a[2], -f * a[3])
        rotate_rows(rows, i, j, r)
        if number + 1 < len(pairs):
            rotate_rows(W, i, j, r)
    U[mu][X] = matrix_of(rows)


@jali.site_function
def overrelax_u1(X: Any, U: Any, mu: Any) -> None:
    """Reflects the U(1) links of direction mu at their staples: U -> S^2 U^* / |S|^2."""
    link = U[mu][X][0, 0]
    S = staple(X, U, mu)[0, 0]
    size2 = S.norm2()
    alone = size2 < TINY
    turned = S * S * link.conj() * (1.0 / jali.where(alone, 1.0, size2))
    U[mu][X] = jali.matrix([[jali.where(alone, link, turned)]])
