"""Smearing: links replaced by gauge-covariant averages of their surroundings.

All kinds replace all links at once, from the old ones. `directions` names the links that change, and the
staples are taken among these directions only: `lattice.directions[:-1]` is spatial smearing, which leaves the
transfer matrix alone. At an open edge the staples are those of the mirror image (`jali.gauge.open_edges`), so that every
link has 2 (d - 1).
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import jali
from jali import graph_recorder
from jali.codegen.directions import Direction
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.gauge.field import GaugeField
from jali.gauge.groups import project
from jali.gauge.open_edges import mirrored, weighted, where_linked
from jali.gauge.staples import staple
from jali.lattice.checked import checked
from jali.single_instance import single_instance

HYP_ALPHA = (0.75, 0.6, 0.3)  # Hasenfratz and Knechtli, section II


@single_instance
def _ape(axes: tuple[int, ...]) -> jali.SiteFunction:
    @jali.site_function
    def ape_kernel(X: Any, V: Any, U: Any, keep: Any, add: Any, mu: Any) -> None:
        across = [X.directions()[axis] for axis in axes]
        link, total = U[mu][X], mirrored(X, U, mu, staple(X, U, mu, across))
        V[mu][X] = where_linked(X, U, mu, project(keep * link + add * total), link)

    return ape_kernel


@single_instance
def _stout(axes: tuple[int, ...]) -> jali.SiteFunction:
    @jali.site_function
    def stout_kernel(X: Any, V: Any, U: Any, rho: Any, mu: Any) -> None:
        across = [X.directions()[axis] for axis in axes]
        link = U[mu][X]
        W = link * mirrored(X, U, mu, staple(X, U, mu, across)).dagger()
        V[mu][X] = (-rho * W.traceless_antihermitian()).exp() * link

    return stout_kernel


@checked
def ape_smear(
    U: GaugeField, alpha: float = 0.5, steps: int = 1, directions: Iterable[Any] | None = None
) -> GaugeField:
    """APE smearing: (1 - alpha) U + alpha S / (2 (d - 1)), projected to SU(n); a new gauge field.

    S is the staple sum, d the number of `directions` (default: all). M. Albanese et al., Phys. Lett. B 192
    (1987) 163. The projection is `jali.gauge.groups.project`. Raises ParameterError for an alpha outside 0 ..
    1.
    """
    axes = _axes(U, directions, steps)
    if not 0 <= alpha <= 1:
        raise ParameterError(f"APE smearing needs 0 <= alpha <= 1, not {alpha}")
    add = alpha / (2 * (len(axes) - 1))
    return _repeat(U, axes, steps, _ape(axes), 1.0 - alpha, add)


@checked
def stout_smear(
    U: GaugeField, rho: float = 0.1, steps: int = 1, directions: Iterable[Any] | None = None
) -> GaugeField:
    """Stout smearing exp(-rho TA(U S^dagger)) U, TA the traceless anti-Hermitian part; a new gauge field.

    C. Morningstar and M. Peardon, Phys. Rev. D 69 (2004) 054501, hep-lat/0311018, with rho_mu,nu = rho among
    `directions` (default: all) and 0 otherwise. One step is Euler's step of the gradient flow over the time
    rho.
    """
    axes = _axes(U, directions, steps)
    if not math.isfinite(rho):
        raise ParameterError(f"rho is a finite number, not {rho}")
    return _repeat(U, axes, steps, _stout(axes), float(rho))


@jali.site_function
def _decorate(
    X: Any, out: Any, link: Any, sides: Any, tops: Any, keep: Any, add: Any, mu: Any, across: Any
) -> None:
    """Links of direction mu with staples of decorated links: `sides` along the directions `across`, `tops` along mu."""
    total = keep * link[X]
    for side, top, nu in zip(sides, tops, across, strict=True):
        for one in (
            side[X] * top[X + nu] * side[X + mu].dagger(),
            side[X - nu].dagger() * top[X - nu] * side[X + mu - nu],
        ):
            total += add * mirrored(X, link, mu, weighted(X, link, (mu, nu), one))
    out[X] = where_linked(X, link, mu, project(total), link[X])


@checked
def hyp_smear(
    U: GaugeField,
    alpha: Sequence[float] | None = None,
    steps: int = 1,
    directions: Iterable[Any] | None = None,
) -> GaugeField:
    """HYP smearing: APE smearing in steps that stay within the hypercubes around a link; a new gauge field.

    A. Hasenfratz and F. Knechtli, Phys. Rev. D 64 (2001) 034504, hep-lat/0103029. `alpha` has a weight for each level,
    (alpha_1, alpha_2, alpha_3) in four `directions` (default: all), one less in three; by default the last of 0.75,
    0.6, 0.3, the paper's choice. The projection is `jali.gauge.project`. It takes memory for 24 fields of links in four
    dimensions. Raises ParameterError for weights outside 0 .. 1 and LayoutError for more than four directions.
    """
    axes = _axes(U, directions, steps)
    if len(axes) > len(HYP_ALPHA) + 1:
        raise LayoutError(f"HYP smearing goes up to four directions, not {len(axes)}: choose some of them")
    given = HYP_ALPHA[-(len(axes) - 1) :] if alpha is None else alpha
    try:
        weights = tuple(given)
    except TypeError:  # one number
        weights = ()
    if len(weights) != len(axes) - 1 or not all(isinstance(a, numbers.Real) and 0 <= a <= 1 for a in weights):
        raise ParameterError(
            f"HYP smearing in {len(axes)} directions needs {len(axes) - 1} weights from 0 to 1, not {value_shown(alpha)}"
        )
    out = U.copy()
    for _ in range(steps):
        out = _hyp_step(out, [float(a) for a in weights], axes)
    return out


def _hyp_step(U: GaugeField, weights: Sequence[float], axes: tuple[int, ...]) -> GaugeField:
    """All links once. A decorated link is known by its direction and those that its staples keep out of."""
    out = U.copy()
    links: dict[tuple[int, frozenset[int]], jali.Field] = {}
    for level in reversed(range(len(weights))):  # number of directions that are kept out of: most first
        decorated = {}
        for mu in axes:
            others = [nu for nu in axes if nu != mu]
            for kept_out in map(frozenset, itertools.combinations(others, level)):
                across = [nu for nu in others if nu not in kept_out]
                with graph_recorder.suspended():  # all of it is written below
                    target = out[mu] if level == 0 else U[mu].like(name=f"HYP link {mu}")
                _decorate(
                    target,
                    U[mu],
                    [links.get((nu, kept_out | {mu}), U[nu]) for nu in across],
                    [links.get((mu, kept_out | {nu}), U[mu]) for nu in across],
                    1.0 - weights[level],
                    weights[level] / (2 * len(across)),
                    U.lattice.directions[mu],
                    [U.lattice.directions[nu] for nu in across],
                )
                decorated[mu, kept_out] = target
        links = decorated
    return out


def _axes(U: GaugeField, directions: Iterable[Any] | None, steps: int) -> tuple[int, ...]:
    given = list(directions) if isinstance(directions, Iterable) else []
    if directions is not None and (
        not isinstance(directions, Iterable) or not all(isinstance(mu, int | Direction) for mu in given)
    ):
        raise LayoutError(
            f"smearing takes a list of directions or their numbers, not {value_shown(directions)}"
        )
    axes = tuple(range(U.lattice.ndim)) if directions is None else tuple(sorted({int(mu) for mu in given}))
    if len(axes) < 2 or axes[0] < 0 or axes[-1] >= U.lattice.ndim:
        raise LayoutError(f"smearing needs at least two of the {U.lattice.ndim} directions, not {axes}")
    if steps < 0:
        raise ParameterError(f"the number of smearing steps is not negative, {steps} is")
    return axes


def _repeat(U: GaugeField, axes: tuple[int, ...], steps: int, kernel: Any, *parameters: float) -> GaugeField:
    out = U.copy()
    old = U.copy() if steps > 1 else U
    for step in range(steps):
        if step:
            out, old = old, out
        for axis in axes:
            kernel(out, old, *parameters, U.lattice.directions[axis])
    return out
