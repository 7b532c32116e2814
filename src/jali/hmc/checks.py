"""Checks of a simulation before it runs: are its actions gauge-invariant, are its forces their gradients, do its trajectories go back.

All are made near the fields as they are, which stay so: a short random move away, since nothing is seen where forces vanish, as at a cold start. A check that fails raises what is wrong and what would be right, on all ranks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jali
from jali.actions.protocol import listed
from jali.codegen.arithmetics import ARITHMETICS
from jali.errors import ParameterError
from jali.files import value_shown
from jali.gauge.field import GaugeField
from jali.hmc.monomials import Kicks
from jali.hmc.simulation import HMC, IRREVERSIBLE
from jali.lattice.field import Field

AWAY = 0.3
"""Along momenta of unit size."""


NEUTRAL, FUNDAMENTAL, ADJOINT = "neutral", "fundamental", "adjoint"
"""Representations of the gauge group."""


@dataclass(frozen=True)
class Check:
    """Something that was checked: what, the deviation that was found, and that from which it would be an error."""

    what: str
    deviation: float
    limit: float

    def __str__(self) -> str:
        return f"{self.what}: {self.deviation:.2g} (at most {self.limit:.2g})"


@dataclass(frozen=True)
class _Limits:
    """By the bits of the arithmetic: of differences of an action, relative to its size; of forces, relative to theirs; and the length of a difference."""

    invariance: float
    force: float
    length: float


_LIMITS = {64: _Limits(1e-10, 1e-6, 1e-3), 32: _Limits(1e-4, 1e-2, 3e-2)}


def check_simulation(
    hmc: HMC,
    *,
    seed: int = 0,
    reversibility: bool = True,
    representations: Mapping[str, str] | None = None,
) -> list[Check]:
    """Checks every action of a simulation, and one trajectory; returns what was checked.

    Raises ParameterError for an action that a random gauge transformation changes (with fields of n complex numbers in the fundamental and such of `Algebra(n)` and `Hermitian(n)` in
    the adjoint representation; an action of other matrices is left out), for a force that is not the gradient, by a difference along random momenta, and for a trajectory that does not go back.
    `representations` says of fields by their names that they are "neutral", "fundamental" or "adjoint" where that is not so, or is not known, as for charged fields of U(1).
    """
    known = dict(representations or {})
    for name in known:
        if name not in hmc.fields:
            raise ParameterError(
                f"representations= names {value_shown(name)}, and the fields are {', '.join(hmc.fields)}"
            )
    limits = _LIMITS[min(64, ARITHMETICS[hmc.precision].bits)]
    found = []
    with _moved_away(hmc):
        for kicks in hmc._kicks:
            found += _check_invariance(hmc, kicks, known, seed, limits)
        for kicks in hmc._kicks:
            found += [_check_force(hmc, kicks, name, limits) for name in kicks.moving]
        if reversibility:
            back = hmc.reversibility()
            found.append(Check("a trajectory and back, difference of the fields", back, IRREVERSIBLE))
    return found


@contextlib.contextmanager
def _moved_away(hmc: HMC) -> Iterator[None]:
    """Inside, the fields are a short move along random momenta from where they were."""
    start = {name: [_copy(one) for one in listed(hmc.fields[name])] for name in hmc.moving}
    hmc.draw_momenta()
    for name in hmc.moving:
        hmc._kinetic[name].move(hmc.fields[name], hmc.momenta[name], 1.0, AWAY, 1.0)
    try:
        yield
    finally:
        for name, kept in start.items():
            for one, before in zip(listed(hmc.fields[name]), kept, strict=True):
                one.assign(before)


@jali.site_function
def _rotate_vector(X: Any, phi: Any, g: Any) -> None:
    phi[X] = g[X] * phi[X]


@jali.site_function
def _rotate_algebra(X: Any, phi: Any, g: Any) -> None:
    phi[X] = (g[X] * phi[X] * g[X].dagger()).traceless_antihermitian()


@jali.site_function
def _rotate_hermitian(X: Any, phi: Any, g: Any) -> None:
    phi[X] = (g[X] * phi[X] * g[X].dagger()).hermitian()


def _check_invariance(
    hmc: HMC, kicks: Kicks, representations: Mapping[str, str], seed: int, limits: _Limits
) -> list[Check]:
    action = kicks.monomial.action
    fields = {name: hmc.fields[name] for name in action.fields}
    links = [one for one in hmc.fields.values() if isinstance(one, GaugeField)]
    charged = _seen_with_links(hmc) | representations.keys()
    rotations = {
        name: _rotation(name, one, links[0].n, representations)
        for name, one in fields.items()
        if links and not isinstance(one, GaugeField) and name in charged
    }
    own = [one for one in fields.values() if isinstance(one, GaugeField)]
    if len(links) != 1 or _unknown in rotations.values() or not (own or rotations):
        return []
    (U,) = links
    g = GaugeField(U.lattice, U.group, precision=U.precision).hot_start(seed)[0]
    turned = []
    for name, one in fields.items():
        copy = one.copy() if isinstance(one, GaugeField) else _copy(one)
        if isinstance(copy, GaugeField):
            copy.gauge_transform(g)
        elif name in rotations:
            rotations[name](copy, g)
        turned.append(copy)
    before, after = float(action.value(*fields.values())), float(action.value(*turned))
    size = max(abs(before), abs(after), float(U.lattice.volume))
    change = abs(after - before) / size
    if not change <= limits.invariance:
        raise ParameterError(
            f"{kicks.monomial.name} is not gauge-invariant: a random gauge transformation changes it from {before:.10g} to {after:.10g}, by {change:.2g} of its size, and rounding in {hmc.precision} is below "
            f"{limits.invariance:g}. Links of every term have to form closed paths, or end at fields that turn with them"
        )
    return [
        Check(
            f"{kicks.monomial.name} after a random gauge transformation, relative change",
            change,
            limits.invariance,
        )
    ]


def _seen_with_links(hmc: HMC) -> set[str]:
    """The fields of actions that have links, which turn with them; those of other actions alone may be neutral."""
    found: set[str] = set()
    for kicks in hmc._kicks:
        names = kicks.monomial.action.fields
        if any(isinstance(hmc.fields[name], GaugeField) for name in names):
            found |= set(names)
    return found


def _unknown(phi: Any, g: Any) -> None:
    """Stands for a representation that cannot be told from the element."""


def _neutral(phi: Any, g: Any) -> None:
    """A field that does not turn."""


def _rotation(name: str, field: Any, n: int, representations: Mapping[str, str]) -> Callable[..., Any]:
    """How a field turns under a gauge transformation of SU(n)."""
    if not isinstance(field, Field):
        return _unknown
    element = field.element
    shape, kind = element.type.shape, element.type.kind
    matrices = {"algebra": _rotate_algebra, "hermitian": _rotate_hermitian}
    possible = {NEUTRAL: _neutral}
    if kind == "complex" and shape == (n,):
        possible[FUNDAMENTAL] = _rotate_vector
    if shape == (n, n) and element.codec in matrices:
        possible[ADJOINT] = matrices[element.codec]
    if name in representations:
        wanted = representations[name]
        if wanted not in possible:
            raise ParameterError(
                f"{name} holds {element}, which is {' or '.join(possible)} under SU({n}), not {value_shown(wanted)}"
            )
        return possible[wanted]
    if kind == "real" and len(shape) < 2:
        return _neutral
    if n == 1 and FUNDAMENTAL in possible:  # of any charge
        return _unknown
    return possible.get(ADJOINT, possible.get(FUNDAMENTAL, _unknown))


def _copy(field: Field) -> Field:
    copy = field.like()
    copy.assign(field)
    return copy


def _check_force(hmc: HMC, kicks: Kicks, name: str, limits: _Limits) -> Check:
    """dS along momenta by a difference of fourth order, and by the force."""
    kinetic, t = hmc._kinetic[name], limits.length

    def action_at(length: float) -> float:
        hmc.draw_momenta()
        kinetic.move(hmc.fields[name], hmc.momenta[name], 1.0, length, 1.0)
        value = float(kicks.value())
        hmc._restore()
        return value

    def energy_after_kick(length: float) -> float:
        hmc.draw_momenta()
        if length:
            kicks.kick(hmc.momenta, length, 1.0)
        return float(hmc.lattice.sum(kinetic.energy, hmc.momenta[name], 1.0))

    hmc._save()
    difference = (8 * (action_at(t) - action_at(-t)) - (action_at(2 * t) - action_at(-2 * t))) / (12 * t)
    # The kinetic energy is half the square of the momenta, so that differences of it are products with the force.
    at, plus, minus = energy_after_kick(0.0), energy_after_kick(-1.0), energy_after_kick(1.0)
    by_force, size = (plus - minus) / 2, math.sqrt(max(plus + minus - 2 * at, 0.0))
    hmc.draw_momenta()
    off = abs(difference - by_force) / size if size > 0 else abs(difference)
    what = f"the force of {kicks.monomial.name} on {name}"
    if not off <= limits.force:
        raise ParameterError(
            f"{what} is not the gradient of the action: along random momenta the action grows by {difference:.8g}, and by the force {by_force:.8g}, which differ by {off:.2g} of the size of "
            f"the force; {limits.force:g} is the most in {hmc.precision}. A force of your own has to be the gradient as Action.force has it; links have to be in the group, and the action smooth"
        )
    return Check(f"{what} against a difference of the action, relative", off, limits.force)
