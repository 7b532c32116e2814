"""The Metropolis algorithm for a field of any element: propose a random change of a value, accept it by its change of the action.

N. Metropolis et al., J. Chem. Phys. 21 (1953) 1087. All is derived from the formula of the action: what it changes by, and which values share no term of it, so that they are updated
together. A proposal belongs to a kind of element (`proposal_of`); each proposes the way back as often as the way there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jali
from jali.actions.gaussian import gaussian_algebra, gaussian_numbers
from jali.actions.protocol import Action
from jali.actions.terms import Terms
from jali.derivatives.functions import is_group
from jali.errors import LayoutError, ParameterError
from jali.lattice import ALL, Field, Random
from jali.lattice.checked import checked

MOST_HITS = 1000
OFF_SPHERE = 1e-3
"""A length of a vector differs from 1 by more than rounding."""

Proposal = Callable[[Any, Any, Any, Any], Any]
"""A function (X, rng, old, width) for site functions that gives a new value, with a density q(new | old) = q(old | new)."""


def gaussian_step(X: Any, rng: Any, old: Any, width: Any) -> Any:
    """All real parts by Gaussians."""
    return old + width * gaussian_numbers(X, rng, old)


def hermitian_step(X: Any, rng: Any, old: Any, width: Any) -> Any:
    """By a Hermitian H with the density exp(-tr H^2 / (2 width^2))."""
    return old + width * gaussian_numbers(X, rng, old).hermitian()


def algebra_step(X: Any, rng: Any, old: Any, width: Any) -> Any:
    """All components by Gaussians."""
    return old + width * gaussian_algebra(X, rng, old.shape[0])


def group_step(X: Any, rng: Any, old: Any, width: Any) -> Any:
    """exp(width A) times the old one, A a Gaussian element of the algebra."""
    rows = old.shape[0] if old.shape else 1
    turn = (width * gaussian_algebra(X, rng, rows)).exp()
    return turn * old if old.shape else turn[0, 0] * old


def rotation_in_a_cap(X: Any, rng: Any, old: Any, width: Any) -> Any:
    """A unit vector n turned by an angle of at most `width` in a direction of which none is preferred.

    s = sin(angle / 2) is sin(width / 2) u^(1 / (N - 1)), u uniform. This is the uniform distribution in a cap of the sphere for N = 3, and nearly so for others: there its density is (1 - s^2)^((3 - N) / 2)
    times a constant. As it depends on the angle alone, the proposal is symmetric.
    """
    n, edge = old.shape[0], jali.sin(0.5 * width)
    squared = (edge * edge) * jali.power(rng.uniform(X), 2.0 / (n - 1))  # s^2
    drawn = gaussian_numbers(X, rng, old)
    across = drawn - old.dot(drawn) * old
    length = jali.sqrt(across.norm2())
    lost = length < 1e-30  # of no direction, and practically never
    sine = 2.0 * jali.sqrt(squared * (1.0 - squared))
    new = (1.0 - 2.0 * squared) * old + jali.where(lost, 0.0, sine / jali.where(lost, 1.0, length)) * across
    return (1.0 / jali.sqrt(new.norm2())) * new


OF_NUMBERS, OF_GROUP, OF_SPHERE = gaussian_step, group_step, rotation_in_a_cap
BY_CODEC: dict[str, Proposal] = {"algebra": algebra_step, "hermitian": hermitian_step}
"""Of elements that are stored by fewer numbers than they have."""


def proposal_of(phi: Field, on_sphere: bool) -> Proposal:
    """The entry for a field. Raises ParameterError for one without proposals."""
    element = phi.element
    if element.type.kind not in ("real", "complex"):
        raise ParameterError(
            f"{phi.name} holds {element}, for which there is no proposal; write a site function that updates it"
        )
    if on_sphere:
        if element.type.kind != "real" or len(element.type.shape) != 1 or element.type.size < 2:
            raise ParameterError(
                f'on_sphere= is for real vectors, Vector(n, "real") with n from 2, of length 1; {phi.name} holds {element}'
            )
        return OF_SPHERE
    return OF_GROUP if is_group(element) else BY_CODEC.get(element.codec, OF_NUMBERS)


def metropolis_step(
    X: Any, old: Any, change: Callable[[Any], Any], propose: Proposal, rng: Any, width: Any
) -> tuple[Any, Any]:
    """A value after one proposal, and 1 or 0 for whether it was accepted, inside a site function; `change(new)` is what the action changes by."""
    new = propose(X, rng, old, width)
    accept = rng.uniform(X) < jali.exp(-1.0 * change(new))
    return jali.where(accept, new, old), jali.where(accept, 1.0, 0.0)


@jali.site_function
def _update(
    X: Any, phi: Any, rng: Any, width: Any, propose: Any, change: Any, given: Any, accepted: Any
) -> None:
    old = phi[X]
    new, found = metropolis_step(X, old, lambda to: change(X, phi, None, to, *given), propose, rng, width)
    phi[X] = new
    accepted += found


@jali.site_function
def off_sphere(X: Any, n: Any, high: Any) -> None:
    """The largest difference of a length from 1."""
    high.max(abs(jali.sqrt(n[X].norm2()) - 1.0))


def check_proposals(width: float, hits: int) -> None:
    """Raises ParameterError for a width that is not positive, and for numbers of proposals that are no sweep."""
    if not (math.isfinite(width) and width > 0) or hits < 1:
        raise ParameterError(
            f"Metropolis needs a positive width and at least one hit, not {width} and {hits}"
        )
    check_hits(hits)


def check_hits(hits: int) -> None:
    """Raises ParameterError for numbers of proposals that are no kernel."""
    if not 1 <= hits <= MOST_HITS:
        raise ParameterError(f"Metropolis proposes 1 to {MOST_HITS} times per value, not {hits} times")


@checked
def metropolis_sweep(
    phi: Field,
    action: Action,
    rng: Random,
    width: float = 0.3,
    hits: int = 4,
    fields: Mapping[str, Any] | None = None,
    on_sphere: bool = False,
) -> float:
    """Proposes `hits` changes of every value of a field; returns the acceptance. The weight is exp(-action), of `phi` and of `fields`, the other fields of the action by their names.

    Numbers, vectors, matrices and spinors move by Gaussians of the standard deviation `width`, of complex numbers both parts; matrices of an algebra by Gaussian components, Hermitian
    ones by H with the density exp(-tr H^2 / (2 width^2)), those of SU(n) by a factor exp(width A), A a Gaussian element of the algebra. With `on_sphere` the values are real vectors of length 1, and
    turn by angles of at most `width`, at most pi; for three components the new one is uniform in that cap. Links have `jali.gauge.metropolis_sweep`.

    The action is a formula over sites. The same bits on any number of ranks. Raises ParameterError for actions that need several calls, other fields than it depends on, a width that is
    not positive and less than one hit; LayoutError for a field with a batch or on a colour, and a lattice so small that a term has a value twice.
    """
    check_proposals(width, hits)
    if phi.batch is not None or phi.over is not ALL:
        has = f"has a batch of {phi.batch}" if phi.batch is not None else f"lives on {phi.over}"
        raise LayoutError(f"metropolis_sweep: {phi.name} {has}; it takes one value at each of all sites")
    propose = proposal_of(phi, on_sphere)
    if on_sphere:
        _check_sphere(phi, width)
    terms = Terms.of_updated(action, phi, fields)
    change, given, accepted = terms.change, terms.given, 0.0
    for _, colour in terms.parts(phi):
        for _ in range(hits):
            accepted += phi.lattice.sum(_update, phi, rng, float(width), propose, change, given, over=colour)
    return accepted / (phi.lattice.volume * hits)


def _check_sphere(n: Field, width: float) -> None:
    if width > math.pi:
        raise ParameterError(f"width is the largest angle of a turn on the sphere, at most pi, not {width:g}")
    off = n.lattice.reduce(off_sphere, n)
    if not off < OFF_SPHERE:
        raise ParameterError(
            f"on_sphere= is for vectors of length 1, and a length of {n.name} differs from 1 by {off:.3g}: divide by the lengths first"
        )
