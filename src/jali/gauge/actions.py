"""Actions of the gauge field: sums over closed loops of links, the named ones among them, and those of the clover field strength.

Everything else about an action (force, flow, staples, which links may be updated together) is derived from its formula.
"""

from __future__ import annotations

import functools
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jali
from jali.actions.formulas import SiteAction, finite_number
from jali.actions.protocol import Action
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.gauge.clover import CHARGE_OF_DUAL_PRODUCT, dual_product, field_strengths
from jali.gauge.open_edges import weighted, where_complete
from jali.single_instance import single_instance

Path = tuple[int, ...]
"""Steps along links: 1 to d forwards in the directions 0 to d - 1, -1 to -d backwards."""

PLAQUETTE: Path = (1, 2, -1, -2)
RECTANGLE: Path = (1, 1, 2, -1, -1, -2)
PARALLELOGRAM: Path = (1, 2, 3, -1, -2, -3)


@dataclass(frozen=True, eq=False)
class Loops:
    """Closed paths, made by `loops_of`: kernels know them by their identity. With `oriented`, in all distinct ways in which each lies on a hypercubic lattice; else as they are. With `by_time` those without and those
    with the last direction, time, are two kinds each."""

    paths: tuple[Path, ...]
    oriented: bool = True
    by_time: bool = False

    SITE_CONSTANT = True

    def of(self, ndim: int) -> list[list[Path]]:
        """The loops of each kind, each once for all starts and both senses. Raises LayoutError for directions that the lattice has not."""
        most = max(abs(step) for path in self.paths for step in path)
        if not self.oriented and most > ndim:
            raise LayoutError(f"a loop of the action goes in direction {most}, and the lattice has {ndim}")
        found = [_orientations(path, ndim) if self.oriented else [path] for path in self.paths]
        if not any(found):
            raise LayoutError(f"a lattice of {ndim} dimensions has no loops of this action")
        if not self.by_time:
            return found
        return [
            [loop for loop in some if (ndim in map(abs, loop)) == with_time]
            for some in found
            for with_time in (False, True)
        ]


@single_instance
def loops_of(paths: tuple[Path, ...], oriented: bool = True, by_time: bool = False) -> Loops:
    """These loops, the same object for equal arguments."""
    return Loops(paths, oriented, by_time)


@functools.cache
def _orientations(path: Path, ndim: int) -> list[Path]:
    """All loops of the shape of a path; of the turns of each the one that goes forwards first."""
    axes = max(map(abs, path))
    found: dict[Path, Path] = {}
    for along in itertools.permutations(range(1, ndim + 1), axes):
        for signs in itertools.product((1, -1), repeat=axes):
            loop = tuple(
                (1 if step > 0 else -1) * signs[abs(step) - 1] * along[abs(step) - 1] for step in path
            )
            backwards = tuple(-step for step in reversed(loop))
            turns = [one[k:] + one[:k] for one in (loop, backwards) for k in range(len(loop))]
            found.setdefault(min(turns), min(turns, key=_backwards_first_half))
    return list(found.values())


def _backwards_first_half(loop: Path) -> Any:
    half = loop[: len(loop) // 2]
    return sum(step < 0 for step in half), loop


def loop_trace(X: Any, U: Any, loop: Path) -> Any:
    """Re tr of the product of links along a closed loop from X, inside a site function: that of its first half times the inverse of the other."""
    half = (len(loop) + 1) // 2
    there = _along(X, U, loop[:half])
    back = _along(X, U, tuple(-step for step in reversed(loop[half:])))
    return (there * back.dagger()).trace().real


def _along(X: Any, U: Any, path: Path) -> Any:
    """The product of links along a path from X, from the left: with rectangles it shares more products with plaquettes than other orders."""
    here, product = X, None
    for step in path:
        mu = X.directions()[abs(step) - 1]
        here = here if step > 0 else here - mu
        link = U[mu][here] if step > 0 else U[mu][here].dagger()
        here = here + mu if step > 0 else here
        product = link if product is None else product * link
    return product


def _spans(loop: Path) -> dict[int, tuple[int, int]]:
    """How far a loop goes from its start, backwards and forwards, by direction."""
    at: dict[int, int] = {}
    spans: dict[int, tuple[int, int]] = {}
    for step in loop:
        axis = abs(step) - 1
        at[axis] = at.get(axis, 0) + (1 if step > 0 else -1)
        low, high = spans.get(axis, (0, 0))
        spans[axis] = min(low, at[axis]), max(high, at[axis])
    return spans


@jali.action
def _sum_of_loops(X: Any, U: Any, *, beta: Any, weights: Any, loops: Any) -> Any:
    """beta times the weights times 1 - (1/n) Re tr of the loops at a site; in the boundary slices of open directions as in `open_edges`."""
    n = U[0][X].shape[0]
    total: Any = None
    for k, some in enumerate(loops.of(len(X.directions()))):
        own: Any = jali.zero(jali.Real())
        for loop in some:
            spans = _spans(loop)
            along = tuple(X.directions()[axis] for axis in spans)
            # n - Re tr, which is exactly zero for ordered links; 1 / n times the trace is rounded
            there = where_complete(X, U, spans, float(n))
            own = own + weighted(X, U, along, there - loop_trace(X, U, loop))
        own = weights[k] * own
        total = own if total is None else total + own
    return (1.0 / n) * beta * total


class LoopAction(SiteAction):
    """S = beta sum_i w_i sum over loops of kind i of (1 - Re tr / n); see `loop_action`."""

    def __init__(self, beta: float, weights: Sequence[float], loops: Loops):
        super().__init__(_sum_of_loops, (float(beta), tuple(map(float, weights)), loops))

    def __repr__(self) -> str:
        paths = ", ".join(str(list(path)) for path in self.loops.paths)
        how = ", by time" if self.loops.by_time else ", oriented" if self.loops.oriented else ""
        return f"<action of loops {paths}, beta {self.beta:g}, weights {', '.join(f'{w:g}' for w in self.weights)}{how}>"


def loop_action(
    beta: float,
    loops: Sequence[Sequence[int]],
    weights: Sequence[float] | None = None,
    *,
    oriented: bool = False,
) -> LoopAction:
    """The action S = beta sum_i w_i sum_x (1 - (1/n) Re tr L_i(x)) of closed loops.

    A loop is a list of steps: 1 to d forwards in the directions 0 to d - 1, negative ones backwards: [1, 2, -1, -2] is a plaquette. With `oriented` a loop stands for
    its shape, and all distinct ways in which that lies on the lattice are summed, each with one sense: `loop_action(6.0, [[1, 2, -1, -2]], oriented=True)` is
    the Wilson action. `weights` are 1 by default. On open boundaries loops in boundary slices count half (`docs/gauge-theory.md`). Raises ParameterError for paths that are
    not closed and numbers that are not finite.
    """
    paths = tuple(_checked_loop(loop) for loop in _checked_list("loops", loops))
    given = [1.0] * len(paths) if weights is None else _checked_list("weights", weights)
    if not paths or len(given) != len(paths):
        raise ParameterError(
            f"loop_action takes one weight for each loop: {len(paths)} loops, {len(given)} weights"
        )
    for number in (beta, *given):
        finite_number("a coupling of loop_action", number)
    return LoopAction(beta, given, loops_of(paths, oriented))


def _checked_list(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable):
        raise ParameterError(f"loop_action: {name} is a list, not {value_shown(given)}")
    return list(given)


def _checked_loop(loop: Any) -> Path:
    path = tuple(loop) if isinstance(loop, Iterable) else ()
    good = len(path) > 3 and all(isinstance(s, int) and not isinstance(s, bool) and s for s in path)
    if not good or any(path.count(s) != path.count(-s) for s in path):
        raise ParameterError(
            f"a loop is a closed path of steps from 1, negative ones backwards, such as [1, 2, -1, -2], not {value_shown(loop)}"
        )
    return path


_PLAQUETTES = loops_of((PLAQUETTE,))
_WITH_RECTANGLES = loops_of((PLAQUETTE, RECTANGLE))
_BY_TIME = loops_of((PLAQUETTE, RECTANGLE), True, True)
_PLAQUETTES_BY_TIME = loops_of((PLAQUETTE,), True, True)
_ONE_LOOP = loops_of((PLAQUETTE, RECTANGLE, PARALLELOGRAM))


def wilson_action(beta: float) -> LoopAction:
    """The Wilson plaquette action S = beta sum_p (1 - (1/n) Re tr U_p). K. Wilson, Phys. Rev. D 10 (1974)
    2445.
    """
    finite_number("beta", beta)
    return LoopAction(beta, (1.0,), _PLAQUETTES)


def rectangle_action(beta: float, c1: float) -> LoopAction:
    """Plaquettes P and 1 x 2 rectangles R: S = beta sum [c0 (1 - Re tr P / n) + c1 (1 - Re tr R / n)], c0 = 1 - 8 c1.

    P. Weisz, Nucl. Phys. B 212 (1983) 1. `symanzik_action`, `iwasaki_action` and `dbw2_action` name a c1.
    """
    finite_number("beta", beta)
    finite_number("c1", c1)
    return LoopAction(beta, (1.0 - 8.0 * c1, c1), _WITH_RECTANGLES)


def symanzik_action(beta: float) -> LoopAction:
    """Improved at tree level, c1 = -1/12. M. Luscher and P. Weisz, Commun. Math. Phys. 97 (1985) 59."""
    return rectangle_action(beta, -1 / 12)


def iwasaki_action(beta: float) -> LoopAction:
    """Renormalisation group improved, c1 = -0.331. Y. Iwasaki, Nucl. Phys. B 258 (1985) 141; arXiv:1111.7054."""
    return rectangle_action(beta, -0.331)


def dbw2_action(beta: float, c1: float = -1.4088) -> LoopAction:
    """Doubly blocked from Wilson, c0 = 1 - 8 c1. P. de Forcrand et al. (QCD-TARO), Nucl. Phys. B 577 (2000) 263, hep-lat/9911033.

    By default c1 = -1.4088, as in tmLQCD; Grid has -1.4067, GPT -1.40686.
    """
    return rectangle_action(beta, c1)


def tadpole_symanzik_action(beta: float, u0: float, n_f: int = 0, quarks: str = "quenched") -> LoopAction:
    """The tadpole-improved Symanzik action with its one-loop coefficients.

    Relative to the plaquette, with alpha = -4 ln u0 / 3.06839, rectangles have -(1 + (0.4805 - a n_f) alpha) / (20 u0^2) and parallelograms -(0.03325 - b n_f) alpha /
    u0^2; `quarks` is "quenched" (a = b = 0), "asqtad" (a = 0.3637, b = 0.009) or "hisq" (a = 0.899, b = 0.0121). M. Alford et al., Phys. Lett. B 361 (1995) 87,
    hep-lat/9507010; Z. Hao et al., Phys. Rev. D 76 (2007) 034507, arXiv:0705.4660; A. Hart et al., Phys. Rev. D 79 (2009) 074008, arXiv:0812.0503. Raises ParameterError for a
    u0 outside 0 .. 1 and unknown quarks.
    """
    finite_number("beta", beta)
    if quarks not in _ONE_LOOP_OF_QUARKS or isinstance(n_f, bool) or not isinstance(n_f, int) or n_f < 0:
        raise ParameterError(
            f"n_f is a number of flavours from 0, and quarks one of {', '.join(_ONE_LOOP_OF_QUARKS)}; not {value_shown(n_f)} and {value_shown(quarks)}"
        )
    if not (isinstance(u0, numbers.Real) and 0 < u0 <= 1):
        raise ParameterError(
            f"u0, the fourth root of the plaquette, is above 0 and at most 1, not {value_shown(u0)}"
        )
    a, b = _ONE_LOOP_OF_QUARKS[quarks]
    alpha = -4.0 * math.log(u0) / 3.06839
    rectangles = -(1.0 + (0.4805 - a * n_f) * alpha) / (20.0 * u0**2)
    parallelograms = -(0.03325 - b * n_f) * alpha / u0**2
    return LoopAction(beta, (1.0, rectangles, parallelograms), _ONE_LOOP)


_ONE_LOOP_OF_QUARKS = {"quenched": (0.0, 0.0), "asqtad": (0.3637, 0.009), "hisq": (0.899, 0.0121)}


def anisotropic_action(beta: float, xi: float, c1: float = 0.0) -> LoopAction:
    """The Wilson action with loops in planes of space times 1 / xi and those with time, the last direction, times xi, the bare anisotropy; with `c1` rectangles as
    in `rectangle_action`. G. Burgers, F. Karsch, A. Nakamura and I. Stamatescu, Nucl. Phys. B 304 (1988) 587. Raises ParameterError for an xi that is not positive.
    """
    for name, number in (("beta", beta), ("xi", xi), ("c1", c1)):
        finite_number(name, number)
    if not xi > 0:
        raise ParameterError(f"the anisotropy xi is positive, not {value_shown(xi)}")
    by_time = (1.0 / xi, xi)
    if c1 == 0:
        return LoopAction(beta, by_time, _PLAQUETTES_BY_TIME)
    return LoopAction(beta, [c * one for c in (1.0 - 8.0 * c1, c1) for one in by_time], _BY_TIME)


@jali.action
def clover_energy(X: Any, U: Any, *, coupling: Any) -> Any:
    """The formula of `clover_energy_action`."""
    return coupling * sum(G.norm2() for G in field_strengths(X, U).values())


@jali.action
def clover_charge(X: Any, U: Any, *, theta: Any) -> Any:
    """The formula of `charge_action`."""
    if X.ndim != 4:
        raise LayoutError(f"the clover charge is of four dimensions, not of {X.ndim}")
    return theta * CHARGE_OF_DUAL_PRODUCT * dual_product(field_strengths(X, U))


def clover_energy_action(coupling: float) -> SiteAction:
    """S = coupling sum_x E(x), E = -sum_{mu<nu} tr G_mu,nu^2 = (1/4) sum_{mu,nu} G^a_mu,nu G^a_mu,nu with the clover field strength G: coupling times the sites times `energy_density(U)`.

    E is the energy density of M. Luscher, JHEP 08 (2010) 071, arXiv:1006.4518, in its symmetric definition on the lattice (section 3); for SU(n) coupling = beta / (2 n) has the continuum limit of
    `wilson_action(beta)`. Fields of the shortest wavelengths are nearly free of it. On open boundaries the slices at the ends add nothing. It is quadratic in a link: for HMC and
    Metropolis, in two and more dimensions. Raises ParameterError for a coupling that is not finite.
    """
    finite_number("coupling", coupling)
    return clover_energy(coupling)


def charge_action(theta: float) -> SiteAction:
    """S = theta Q, Q = -(1 / 32 pi^2) sum_x epsilon_{mu nu rho sigma} tr(G_mu,nu G_rho,sigma) with the clover field strength G: theta times the `charge` of `measure_field_strength(U)`.

    Q has the form of P. Di Vecchia, K. Fabricius, G. Rossi and G. Veneziano, Nucl. Phys. B 192 (1981) 392. exp(-theta Q) is the weight of an imaginary vacuum angle: H. Panagopoulos and E. Vicari, JHEP 11 (2011)
    119, arXiv:1109.6815. Of rough links Q is renormalised; smearing reduces that, `charge_action(theta).on(lambda U: stout_smear(U, 0.1, 4))`, for HMC. As it stands it is linear in every link, so heat bath
    and overrelaxation take it. On open boundaries the slices at the ends add nothing. Raises ParameterError for a theta that is not finite and, where it is used, LayoutError for other than four dimensions.
    """
    finite_number("theta", theta)
    return clover_charge(theta)


def as_action(action: Action | float) -> Action:
    """The action that is given, or the Wilson action of a beta. Raises ParameterError for numbers that are not finite."""
    return action if isinstance(action, Action) else wilson_action(action)


@dataclass(frozen=True)
class NamedAction:
    """An entry of `ACTIONS`: an action that parameter files and commands know by name."""

    title: str
    """In sentences: "Wilson action"."""
    make: Callable[[float], Action]
    """The action of a beta."""


ACTIONS = {
    "wilson": NamedAction("Wilson action", wilson_action),
    "symanzik": NamedAction("tree-level Symanzik action", symanzik_action),
    "iwasaki": NamedAction("Iwasaki action", iwasaki_action),
    "dbw2": NamedAction("DBW2 action", dbw2_action),
}
