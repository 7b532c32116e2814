"""The gradient flow of an action: dV/dt = Z(V) V with Z = -(2 n / beta) F, F the gradient of the action (`Action.force`).

For the Wilson action, the default, Z = -TA(V S^dagger) with the staple sum S and TA the traceless anti-Hermitian part. Flow time is in lattice units; fields are smooth over the
distance sqrt(8 t). M. Luscher, JHEP 08 (2010) 071, arXiv:1006.4518; integrated by his third-order Runge-Kutta scheme
(appendix C) with fixed steps. Does not adapt the step: its error is of order step^3 and easily checked by halving.

On open boundaries S has the weights of the action, and on links within boundary slices Z is doubled: M. Luscher and
S. Schaefer, arXiv:1206.2809, appendix B.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import jali
from jali.actions.formulas import SiteAction
from jali.actions.protocol import Action
from jali.codegen.types import Algebra
from jali.errors import ParameterError
from jali.files import value_shown
from jali.gauge.actions import wilson_action
from jali.gauge.clover import measure_field_strength
from jali.gauge.field import GaugeField
from jali.gauge.link_terms import LinkTerms
from jali.gauge.open_edges import mirrored
from jali.lattice.checked import checked

# (a, b, c) of the three stages: A <- a step Z(V) + b A, V <- exp(c A) V, with A = 0 at first.
_STAGES = ((1.0, 0.0, 1 / 4), (8 / 9, -17 / 36, 1.0), (3 / 4, -1.0, 1.0))


@jali.site_function
def _first_stage(X: Any, new: Any, V: Any, A: Any, a: Any, c: Any, mu: Any, force: Any, given: Any) -> None:
    z = a * mirrored(X, V, mu, force(X, V, mu, *given))
    A[mu][X] = z
    new[mu][X] = (c * z).exp() * V[mu][X]


@jali.site_function
def _later_stage(
    X: Any, new: Any, V: Any, A: Any, a: Any, b: Any, c: Any, mu: Any, force: Any, given: Any
) -> None:
    z = b * A[mu][X] + a * mirrored(X, V, mu, force(X, V, mu, *given))
    A[mu][X] = z
    new[mu][X] = (c * z).exp() * V[mu][X]


@jali.site_function
def _stage_of_force(X: Any, new: Any, V: Any, A: Any, F: Any, a: Any, b: Any, c: Any) -> None:
    for mu in X.directions():
        z = b * A[mu][X] + a * mirrored(X, V, mu, F[mu][X])
        A[mu][X] = z
        new[mu][X] = (c * z).exp() * V[mu][X]


class Flow:
    """A gauge field flowing from `U`, which stays as it is. `field` is V at flow time `time`.

    `action` is the one whose flow it is, by default the Wilson action. It is divided by its coupling `beta`, so that flow times of all actions with
    c0 + 8 c1 = 1 agree on smooth fields; that of an action without one is the flow at beta = 1.
    """

    @checked
    def __init__(self, U: GaugeField, step: float = 0.02, action: Action | None = None):
        if not (math.isfinite(step) and step > 0):
            raise ParameterError(f"the step of the flow is a positive number, not {step}")
        self.field = U.copy()
        self.step = float(step)
        self._action = wilson_action(1.0) if action is None else action
        beta = getattr(self._action, "beta", 1.0)
        if not beta:
            raise ParameterError(f"the flow of {self._action!r} is divided by beta, which is 0")
        self._scale = -2.0 * U.n / beta
        self.time = 0.0
        self._steps = 0
        self._spare = U.like()
        self._algebra = [jali.Field(U.lattice, Algebra(U.n), precision=U.precision) for _ in U.fields]

    @checked
    def advance(self, steps: int = 1) -> GaugeField:
        """Integrates over `steps` steps; returns `field`, whose links move on with the next call. Raises ParameterError for fewer than 0."""
        if steps < 0:
            raise ParameterError(f"the flow goes forward: steps is 0 or more, not {value_shown(steps)}")
        for _ in range(steps):
            self._integrate(self.step)
        self._steps += steps
        self.time = self._steps * self.step
        return self.field

    def _integrate(self, step: float) -> None:
        for stage, (a, b, c) in enumerate(_STAGES):
            old, new, A, a = self.field, self._spare, self._algebra, a * step * self._scale
            if not isinstance(self._action, SiteAction):
                _stage_of_force(new, old, A, self._action.force(old), a, b, c)
            else:
                terms = LinkTerms.of_links(self._action, old)
                for mu in old.lattice.directions:
                    if stage == 0:
                        _first_stage(new, old, A, a, c, mu, terms.force, terms.given)
                    else:
                        _later_stage(new, old, A, a, b, c, mu, terms.force, terms.given)
            self.field, self._spare = new, old


@dataclass(frozen=True)
class FlowPoint:
    """Measured at one flow time: energy densities (clover and plaquette) and topological charge; see
    `FieldStrength`.
    """

    time: float
    energy: float
    energy_plaquette: float
    charge: float

    @property
    def t2_energy(self) -> float:
        """t^2 E, the dimensionless combination that defines t0, with the clover E."""
        return self.time**2 * self.energy


@checked
def wilson_flow(
    U: GaugeField, until: float, step: float = 0.02, every: int = 1, action: Action | None = None
) -> Iterator[FlowPoint]:
    """Flows a copy of U and yields a `FlowPoint` at time 0, after every `every` steps, and at the time `until`.

    The last step is shorter where `until` is no multiple of `step`, and the last point nearer where the number of steps
    is none of `every`. `action` is the one whose flow it is, by default Wilson's (see `Flow`). Raises ParameterError
    for steps and times that are not positive.
    """
    if not (math.isfinite(until) and until >= 0) or every < 1:
        raise ParameterError(f"the flow needs a final time from 0 and every >= 1, not {until} and {every}")
    flow = Flow(U, step, action)
    yield _measured(flow, 0.0)
    small = 1e-12 * until  # what rounding leaves between `until` and a multiple of the step
    while flow.time < until - small:
        whole = math.floor(min(every, (until + small - flow.time) / flow.step))
        flow.advance(whole)
        rest = until - flow.time
        if whole < every and rest > small:
            flow._integrate(rest)
            yield _measured(flow, until)
            return
        yield _measured(flow, flow.time)


def _measured(flow: Flow, time: float) -> FlowPoint:
    found = measure_field_strength(flow.field)
    return FlowPoint(time, found.energy, found.energy_plaquette, found.charge)


@checked
def reference_time(points: Sequence[FlowPoint], level: float = 0.3) -> float:
    """t0: where t^2 E reaches `level`, by cubic interpolation. Raises ParameterError if it is not reached.

    `points` are in order of time; E may be averaged over configurations before (`FlowPoint`s of the means).
    """
    points = _as_points(points, "reference_time")
    return _crossing([p.time for p in points], [p.t2_energy for p in points], level, "t^2 E")


@checked
def reference_width(points: Sequence[FlowPoint], level: float = 0.3) -> float:
    """w0: the root of the time where t d(t^2 E)/dt reaches `level`. Raises ParameterError if it is not
    reached.

    S. Borsanyi et al., JHEP 09 (2012) 010, arXiv:1203.4469. The derivative is a second-order difference, so
    the points should be dense (a spacing of a few percent of w0^2).
    """
    points = _as_points(points, "reference_width")
    t = np.array([p.time for p in points])
    if len(t) < 3:
        raise ParameterError(f"w0 needs at least three flow times, not {len(t)}")
    slope = t * np.gradient(np.array([p.t2_energy for p in points]), t)
    return math.sqrt(_crossing(list(t[1:-1]), list(slope[1:-1]), level, "t d(t^2 E)/dt"))


def _as_points(points: Any, name: str) -> list[FlowPoint]:
    """The points as a list. Raises ParameterError for anything else."""
    found = list(points) if isinstance(points, Iterable) else [points]
    if not isinstance(points, Iterable) or not all(isinstance(p, FlowPoint) for p in found):
        raise ParameterError(f"{name} takes the FlowPoints of wilson_flow, not {value_shown(points)}")
    for p in found:
        if not all(isinstance(x, numbers.Real) for x in (p.time, p.energy)):
            raise ParameterError(
                f"{name}: time and energy of a flow point are real numbers, not {value_shown(p)}"
            )
    return found


def _crossing(t: Sequence[float], y: Sequence[float], level: float, what: str) -> float:
    """First time at which y passes `level` upwards: Lagrange's polynomial through up to four points,
    bisected.
    """
    for k in range(len(t) - 1):
        if y[k] < level <= y[k + 1]:
            first = max(0, min(k - 1, len(t) - 4))
            nodes = np.array(t[first : first + 4])
            values = np.array(y[first : first + 4]) - level

            def polynomial(x: float, nodes: Any = nodes, values: Any = values) -> float:
                total = 0.0
                for i, node in enumerate(nodes):
                    others = np.delete(nodes, i)
                    total += values[i] * float(np.prod((x - others) / (node - others)))
                return total

            low, high = t[k], t[k + 1]
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if polynomial(middle) < 0 else (low, middle)
            return (low + high) / 2
    reached = f"{max(y):.4g}" if len(y) else "nothing"
    raise ParameterError(
        f"{what} does not reach {level} between the times of the flow; it reaches {reached}. Flow longer"
    )
