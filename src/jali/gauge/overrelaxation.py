"""Overrelaxation: the move that leaves the action unchanged and is as large as possible.

In an SU(2) subgroup the part of the action is -(beta/n) K Re of the first component of r v; r = (v^dagger)^2
turns v into v^dagger, which has the same first component. M. Creutz, Phys. Rev. D 36 (1987) 515; F. Brown and
T. Woch, Phys. Rev. Lett. 58 (1987) 2394. For U(1) and SU(2) the move is its own inverse. It does not depend
on beta and draws no random numbers.
"""

from __future__ import annotations

from typing import Any

import jali
from jali.gauge.groups import link_and_staple, link_with_staple
from jali.gauge.open_edges import where_linked
from jali.gauge.subgroups import (
    TINY,
    double_quaternion,
    length2,
    matrix_of,
    rotate_rows,
    rows_of,
    subgroups,
)


def overrelax_link(link: Any, staple: Any) -> Any:
    """The link that overrelaxation makes of `link`, inside a site function: Re tr(U staple^dagger) stays as it is.

    `staple` is any matrix that does not depend on the link, or for U(1) a number: all that multiplies it in the action.
    """
    link, staple = link_and_staple("overrelax_link", link, staple)
    return _reflect_u1(link, staple) if link.shape[0] == 1 else _reflect_rows(link, staple)


@jali.site_function
def overrelax(X: Any, U: Any, mu: Any, staple: Any, given: Any = ()) -> None:
    """Reflects the links of direction mu."""
    link, total = link_with_staple("overrelaxation_sweep", X, U, mu, staple, given)
    U[mu][X] = where_linked(X, U, mu, overrelax_link(link, total), link)


def _reflect_rows(link: Any, staple: Any) -> Any:
    """SU(n), n >= 2: a reflection in every SU(2) subgroup."""
    rows = rows_of(link)
    W = rows_of(link * staple.dagger())
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
    return matrix_of(rows)


def _reflect_u1(link: Any, staple: Any) -> Any:
    """U -> S^2 U^* / |S|^2."""
    old, S = link[0, 0], staple[0, 0]
    size2 = S.norm2()
    alone = size2 < TINY
    turned = S * S * old.conj() * (1.0 / jali.where(alone, 1.0, size2))
    return jali.matrix([[jali.where(alone, old, turned)]])
