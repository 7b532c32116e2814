"""Actions of the gauge field, and their derivatives with respect to the links.

An action defines its value, the staple that multiplies a link, and the reach of its terms. Heat bath,
overrelaxation and Metropolis use nothing else; force and flow are derived from the value, or from the loops that it sums.
"""

from __future__ import annotations

import itertools
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jali
from jali.codegen.types import Algebra, Real
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.gauge.field import GaugeField
from jali.gauge.link_colours import PLAQUETTES, RECTANGLES, Reach, checked_reach
from jali.gauge.open_edges import number_of_loops, weighted
from jali.gauge.plaquettes import plaquette_sums, plaquette_trace
from jali.gauge.staples import rectangle_staple, staple
from jali.lattice.base import no_field
from jali.lattice.checked import checked
from jali.single_instance import single_instance


@jali.site_function
def _sum_of_loops(X: Any, U: Any, loops: Any, total: Any) -> None:
    total += loops(X, U)


gradient_of_loops = jali.gradient(_sum_of_loops, "U")
"""The site function `(X, dU, U, loops)`: the gradient of the sum of `loops(X, U)` over all sites, as `Action.loops_at` gives them."""


@jali.site_function
def _force(X: Any, F: Any, U: Any, minus_coupling: Any, loops: Any, mu: Any) -> None:
    """Of one direction: the links of all at once need more registers than a GPU has."""
    gradient_of_loops(X, [F[nu] if nu == mu else None for nu in X.directions()], U, loops)
    F[mu][X] = minus_coupling * F[mu][X]


def _members(out: Any, U: GaugeField) -> list[jali.Field]:
    found = list(out) if isinstance(out, Iterable) else []
    if len(found) != len(U.fields) or not all(isinstance(f, jali.Field) for f in found):
        raise LayoutError(f"out is a list of {len(U.fields)} fields, one per direction, not {no_field(out)}")
    return found


def plaquettes_at(X: Any, U: Any) -> Any:
    """The sum of Re tr over the plaquettes at X, inside a site function."""
    return sum(
        (weighted(X, U, (mu, nu), plaquette_trace(X, U, mu, nu)) for mu, nu in X.planes()), jali.zero(Real())
    )


def rectangles_at(X: Any, U: Any) -> Any:
    """The sum of Re tr over the 2 x 1 rectangles at X, the long side along either direction of a plane, inside a site function."""
    total = jali.zero(Real())
    for mu in X.directions():
        for nu in X.directions():
            if mu == nu:
                continue
            there = U[mu][X] * U[mu][X + mu] * U[nu][X + 2 * mu]
            back = U[nu][X] * (U[mu][X + nu] * U[mu][X + mu + nu])
            total += weighted(X, U, (mu, nu), (there * back.dagger()).trace().real)
    return total


class Action(ABC):
    """An action that is linear in every link: S = -(beta / n) Re tr(U_mu(x) S_mu(x)^dagger) + what U_mu(x) is not in.

    An action of one's own derives from this class and has the four members `beta`, `reach`, `value` and `staple`, and perhaps `loops_at`; see
    `docs/gauge-updates.md` for one. `beta` and `reach` belong to the class or to the object. A staple that reads its own link
    is refused: the action would not be linear. Keep the object: kernels know it by its identity. Where `reach` is too small,
    updates are refused as races.
    """

    beta: float
    """The factor in front; heat bath, Metropolis and force need it."""
    reach: Reach
    """Boxes that its terms fit in, by their sides, along any directions.

    ((1, 1),) are plaquettes, ((1, 2),) rectangles and plaquettes, ((1, 1, 1),) loops on a cube.
    """
    stiffness: float = 1.0
    """Length of the staple sum of random links, in units of that of plaquettes; it chooses the faster heat bath."""

    loops_at: Callable[[Any, Any], Any] | None = None
    """The function (X, U) that gives the real traces at X inside a site function, such that S = -(beta / n) times their sum over all sites, and
    a constant. Force and flow are the gradient of this sum; where an action has none, that of what `value` sums."""

    @abstractmethod
    def value(self, U: GaugeField) -> float:
        """S of the whole lattice, of sums by `lattice.sum`."""

    @property
    @abstractmethod
    def staple(self) -> Callable[[Any, Any, Any], Any]:
        """The function (X, U, mu) that gives S_mu(x) inside a site function; a method will do."""

    def density(self, U: GaugeField) -> float:
        """S per unit of volume: per site, on a periodic lattice."""
        return self.value(U) / U.volume

    @checked
    def force(self, U: GaugeField, out: Sequence[jali.Field] | None = None) -> list[jali.Field]:
        """The derivative F_mu(x) of S, one field of `Algebra(n)` per direction.

        For a change U -> (1 + omega) U of one link with omega in the algebra, dS = -2 tr(omega F) = sum_a
        omega^a F^a; with momenta of kinetic energy -tr p^2 the equations of motion are dU/dt = p U, dp/dt =
        -F. It is the gradient of the action, derived from its formula (`jali.gradient`, or of `value` by a `jali.Tape`). Raises
        ParameterError and LayoutError for an action without a beta or a reach that makes sense.
        """
        as_action(self)
        beta = _member(self, "beta")
        _check("beta", beta)
        given = None if out is None else _members(out, U)
        if self.loops_at is None:
            with jali.Tape(U) as tape:
                S: Any = self.value(U)
            (found,) = tape.gradient(S)
            if given is None:
                return list(found)
            for field, one in zip(given, found, strict=True):
                field.assign(one)
            return given
        fields = given or [jali.Field(U.lattice, Algebra(U.n), precision=U.precision) for _ in U.fields]
        for mu in U.lattice.directions:
            _force(fields, U, -beta / U.n, self.loops_at, mu)
        return fields


def as_action(action: Action | float) -> Action:
    """The action that is given, or the Wilson action of a beta.

    Raises ParameterError for numbers that are not finite and an action without a reach, LayoutError for an invalid reach.
    """
    if not isinstance(action, Action):
        return WilsonAction(action)
    checked_reach(_member(action, "reach"))
    return action


def weight_of(action: Action) -> float:
    """The beta of an action whose exp(-S) is drawn from. Raises ParameterError where it has none or it is not from 0."""
    beta = _member(action, "beta")
    _check("beta", beta)
    if not beta >= 0:
        raise ParameterError(f"updates need a beta from 0, not {value_shown(beta)}")
    return float(beta)


_MEMBERS = {
    "beta": "the factor in front, a number",
    "reach": "boxes that its terms fit in, such as ((1, 1),) for plaquettes",
}


def _member(action: Action, name: str) -> Any:
    try:
        return getattr(action, name)
    except AttributeError as error:
        raise ParameterError(
            f"{type(action).__name__} has no {name}, {_MEMBERS[name]}: an Action has the members beta, reach, value and "
            f"staple, of its class or set in __init__ ({error})"
        ) from error


def _check(name: str, value: Any) -> None:
    if not (isinstance(value, numbers.Real) and math.isfinite(value)):
        raise ParameterError(f"{name} is a finite number, not {value_shown(value)}")


@dataclass(frozen=True)
class WilsonAction(Action):
    """The Wilson plaquette action S = beta sum_p (1 - (1/n) Re tr U_p). K. Wilson, Phys. Rev. D 10 (1974)
    2445.
    """

    beta: float

    reach = PLAQUETTES
    staple = staticmethod(staple)
    loops_at = staticmethod(plaquettes_at)

    def __post_init__(self) -> None:
        _check("beta", self.beta)

    @checked
    def value(self, U: GaugeField) -> float:
        """S of the whole lattice."""
        d = U.lattice.ndim
        spatial, temporal = U.lattice.sum(plaquette_sums, U)
        return self.beta * (U.volume * d * (d - 1) / 2 - (spatial + temporal) / U.n)


@jali.site_function
def _rectangles(X: Any, U: Any, total: Any) -> None:
    total += rectangles_at(X, U)


@single_instance
def _plaquettes_and_rectangles(c1: float) -> Callable[[Any, Any], Any]:
    def loops(X: Any, U: Any) -> Any:
        return (1.0 - 8.0 * c1) * plaquettes_at(X, U) + c1 * rectangles_at(X, U)

    return loops


@dataclass(frozen=True)
class RectangleAction(Action):
    """Plaquettes P and 1 x 2 rectangles R: S = beta sum [c0 (1 - Re tr P / n) + c1 (1 - Re tr R / n)], c0 = 1 - 8 c1.

    P. Weisz, Nucl. Phys. B 212 (1983) 1. `symanzik_action`, `iwasaki_action` and `dbw2_action` name a c1.
    """

    beta: float
    c1: float

    reach = RECTANGLES

    def __post_init__(self) -> None:
        _check("beta", self.beta)
        _check("c1", self.c1)

    @property
    def c0(self) -> float:
        """The weight of plaquettes, so that the continuum limit is that of the Wilson action."""
        return 1.0 - 8.0 * self.c1

    @property
    def stiffness(self) -> float:  # type: ignore[override]
        """Of random links the staples add up as a random walk; there are three rectangles for a plaquette."""
        return math.sqrt(self.c0**2 + 3 * self.c1**2)

    @property
    def staple(self) -> Callable[[Any, Any, Any], Any]:
        """The staples of plaquettes and rectangles with their weights."""
        return rectangle_staple(float(self.c1))

    @property
    def loops_at(self) -> Callable[[Any, Any], Any]:  # type: ignore[override]
        """Plaquettes and rectangles with their weights."""
        return _plaquettes_and_rectangles(float(self.c1))

    @checked
    def value(self, U: GaugeField) -> float:
        """S of the whole lattice."""
        planes = itertools.permutations(range(U.lattice.ndim), 2)
        rectangles = sum(number_of_loops(U, {long: 2, short: 1}) for long, short in planes)
        deficit = rectangles - U.lattice.sum(_rectangles, U) / U.n
        return self.c0 * WilsonAction(self.beta).value(U) + self.c1 * self.beta * deficit


def symanzik_action(beta: float) -> RectangleAction:
    """Improved at tree level, c1 = -1/12. M. Luscher and P. Weisz, Commun. Math. Phys. 97 (1985) 59."""
    return RectangleAction(beta, -1 / 12)


def iwasaki_action(beta: float) -> RectangleAction:
    """Renormalisation group improved, c1 = -0.331. Y. Iwasaki, Nucl. Phys. B 258 (1985) 141; arXiv:1111.7054."""
    return RectangleAction(beta, -0.331)


def dbw2_action(beta: float) -> RectangleAction:
    """Doubly blocked from Wilson, c1 = -1.4088, c0 = 12.2704. P. de Forcrand et al. (QCD-TARO), Nucl. Phys. B 577
    (2000) 263, hep-lat/9911033. Others have -1.4069.
    """
    return RectangleAction(beta, -1.4088)


@dataclass(frozen=True)
class NamedAction:
    """An entry of `ACTIONS`: an action that parameter files and commands know by name."""

    title: str
    """In sentences: "Wilson action"."""
    make: Callable[[float], Action]
    """The action of a beta."""


ACTIONS = {
    "wilson": NamedAction("Wilson action", WilsonAction),
    "symanzik": NamedAction("tree-level Symanzik action", symanzik_action),
    "iwasaki": NamedAction("Iwasaki action", iwasaki_action),
    "dbw2": NamedAction("DBW2 action", dbw2_action),
}
