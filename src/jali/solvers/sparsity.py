"""Sparse solutions: iterative shrinkage and thresholding (ISTA: Daubechies, Defrise and De Mol, Comm. Pure Appl. Math. 57 (2004) 1413)
and its accelerated form (FISTA: Beck and Teboulle, SIAM J. Imaging Sci. 2 (2009) 183, section 4), on any vectors of
`jali.vectors`.

They minimize |b - A x|^2 + eps |x|_p^p for p = 1, 1/2 or 0. An iteration is A and A^H once each, FISTA too, whose residual at the
extrapolated point is made of those of two iterates; beside theirs it is one sum over ranks, for the residual, |x|_1 and the change of
x together. Costs are those of `pylops`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.comm.validation import integer
from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.causes import gives_bad_numbers, not_adjoint, not_finite, step_too_long
from jali.solvers.eigs import largest
from jali.solvers.operators import adjoint_of, forward_of, residual, started, widened
from jali.solvers.solver import MAXITER, Callback, Itershow, Solver, check_tolerances, positive
from jali.solvers.thresholds import THRESHOLDS
from jali.vectors import check_alike, each, sums, vectors_of


class ThresholdError(ParameterError, ValueError):
    """There is no such threshold."""


class ResidualError(SolverError, ValueError):
    """The residual increases, with `monitorres`."""


class SparseSolution(NamedTuple):
    """What `ista` and `fista` found: x, the number of iterations, and the cost of each."""

    x: Any
    iterations: int
    cost: np.ndarray


def _modulus(part: Any) -> Any:
    return abs(part).sum()


class ISTA(Solver):
    """x <- T(x + alpha A^H (b - A x)), with T thresholding by eps alpha / 2.

    `cost` holds |b - A x|^2 / 2 of the x before the step and eps |x|_1 of that after it, as `pylops` has it.
    """

    kept_vectors: ClassVar[tuple[str, ...]] = ("b", "z", "res", "res_z")
    kept_numbers: ClassVar[tuple[str, ...]] = (
        *(
            "eps",
            "alpha",
            "rtol",
            "atol",
            "cost_rtol",
            "cost_btol",
            "threshkind",
            "decay",
            "monitorres",
            "backtracking",
            "beta",
        ),
        *("xupdate", "xnorm", "rr", "rz", "bnorm", "t", "transforms"),
    )
    accelerated = False

    @named
    def __init__(self, A: Any, *, SOp: Any = None, callback: Callback = None) -> None:
        super().__init__(A, callback=callback)
        name = type(self).__name__
        self.SOp = SOp
        self.forward, self.adjoint = forward_of(f"{name}: A", A), adjoint_of(f"{name}: A", A)
        self._set_transform(SOp)

    def _set_transform(self, SOp: Any) -> None:
        self.transforms = SOp is not None  # what is thresholded is SOp^H x
        self.analysis = None if SOp is None else adjoint_of(f"{type(self).__name__}: SOp", SOp)
        self.synthesis = None if SOp is None else forward_of(f"{type(self).__name__}: SOp", SOp)

    @named
    def setup(
        self,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 0.0,
        atol: float = 1e-10,
        maxiter: int | None = None,
        SOp: Any = None,
        eps: float = 0.1,
        alpha: float | None = None,
        eigs_options: dict[str, Any] | None = None,
        cost_rtol: float = 0.0,
        cost_btol: float = 0.0,
        threshkind: str = "soft",
        decay: Sequence[float] | None = None,
        monitorres: bool = False,
        backtracking: bool = False,
        beta: float = 0.5,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x. For arguments and errors see `ista`."""
        if threshkind not in THRESHOLDS:
            raise ThresholdError(f"threshkind must be {', '.join(THRESHOLDS)}, not {value_shown(threshkind)}")
        if not 0 < beta < 1:
            raise ParameterError(f"beta is between 0 and 1, not {value_shown(beta)}")
        name = type(self).__name__
        check_tolerances(name, rtol=rtol, atol=atol, cost_rtol=cost_rtol, cost_btol=cost_btol)
        self._call("on_setup_begin", x0)
        self._set_transform(self.SOp if SOp is None else SOp)
        data = vectors_of(f"{name}: b", b)
        data.epsilon(b)  # refuses whole numbers
        b = widened(b, self.A, x0)
        Ax = None
        if x0 is None:
            gradient = self.adjoint(b)
            model = vectors_of("A^H b", gradient)
            x, res = model.like(gradient), data.copy(b)
        else:
            x0 = widened(x0, self.A, b)
            model = vectors_of(f"{name}: x0", x0)
            model.epsilon(x0)
            x = model.copy(x0)
            Ax = self.forward(x)
            res = residual(Ax, b)
        self.maxiter, self.eps, self.rtol, self.atol = maxiter, eps, rtol, atol
        self.cost_rtol, self.cost_btol = cost_rtol, cost_btol
        self.threshkind, self.decay, self.monitorres = threshkind, decay, monitorres
        self.backtracking, self.beta = backtracking, beta
        self.data, self.model, self.b, self.iterations, self.cost = data, model, b, 0, []
        rr, bb = (number.real for number in sums((res, res), (b, b)))
        if not (math.isfinite(rr) and math.isfinite(bb)):
            raise not_finite(name, **{"b": b, "x0": x0, "A x0": Ax})
        self.alpha = self._step_length(x, eigs_options) if alpha is None else positive("alpha", alpha)
        self.z, self.res, self.t = x, res, 1.0
        self.res_z = res
        self.rr = self.rz = rr
        self.bnorm = math.sqrt(bb)
        self.xupdate, self.xnorm = math.inf, 0.0
        self._x = x
        if show:
            self._show_setup(
                "cost            xupdate",
                eps=eps,
                alpha=f"{self.alpha:.4e}",
                rtol=rtol,
                atol=atol,
                maxiter=maxiter,
            )
        self._call("on_setup_end", x)
        return x

    def _resume(self, vectors: dict[str, Any], numbers: dict[str, Any]) -> None:
        if numbers["transforms"] != self.transforms:
            raise ParameterError(
                f"{type(self).__name__}.restore: the state is of a solver {'with' if numbers['transforms'] else 'without'} SOp, "
                "which is said where a solver is made"
            )
        self.model, self.data = vectors_of("x", vectors["x"]), vectors_of("b", vectors["b"])

    def _step_length(self, x: Any, options: dict[str, Any] | None) -> float:
        """1 / the largest eigenvalue of A^H A, by power iteration."""
        power_options = {"maxiter": 100, "rtol": 1e-6} | (options or {})
        if set(power_options) != {"maxiter", "rtol"} or (integer(power_options["maxiter"]) or 0) < 1:
            raise ParameterError(
                f"{type(self).__name__}: eigs_options may have maxiter, a positive whole number, and rtol; it is {value_shown(options)}"
            )
        found = largest(
            lambda v: self.adjoint(self.forward(v)), x, power_options["maxiter"], power_options["rtol"]
        )
        size = abs(found.eigenvalue)
        if size == 0:
            raise SolverError(f"{type(self).__name__}: A^H A is zero, there is no step length; give alpha")
        return float(1 / size)

    def _threshold(self, x: Any, by: float) -> Any:
        function = THRESHOLDS[self.threshkind]
        if self.analysis is None or self.synthesis is None:
            return each(lambda part: function(part, by), x)
        coefficients = each(lambda part: function(part, by), self.analysis(x))
        # the operator may keep what it gives, or have been given it
        return self.model.copy(self.synthesis(coefficients))

    def step(self, x: Any, show: bool = False) -> Any:
        """One iteration: returns the next x. Raises ResidualError, which is a ValueError, where that is watched.

        x is what the last step, or setup, returned; from another vector it continues without the history of earlier steps.
        """
        if x is not self._x:
            self._begin_at(x)
        gradient = self.adjoint(self.res_z)
        if self.backtracking:  # the operator is applied again before the result is used up
            gradient = self.model.copy(gradient)
        if self.decay is not None and self.iterations >= len(self.decay):
            raise ParameterError(
                f"{type(self).__name__}: decay has {len(self.decay)} factors, and there are more iterations"
            )
        decay = 1.0 if self.decay is None else float(self.decay[self.iterations])
        while True:
            moved = started(self.z, gradient)
            self.model.update([(moved, 1, [(self.alpha, gradient)])])
            new = self._threshold(moved, 0.5 * self.eps * self.alpha * decay)
            res = self.data.copy(self.b)
            self.data.update([(res, 1, [(-1, self.forward(new))])])
            if not self.backtracking or self._is_short_enough(new, res):
                break
            self.alpha *= self.beta
        self._extrapolate(x, new, res)
        self.model.update([(moved, 0, [(1, new), (-1, x)])])
        terms = [(res, res), (new, _modulus), (moved, moved)]
        if self.rtol:
            terms.append((new, new))
        if self.monitorres and self.accelerated:
            terms.append((self.res_z, self.res_z))
        rr, modulus, change, *rz = (number.real for number in sums(*terms))
        self.xnorm = math.sqrt(rz.pop(0)) if self.rtol else 0.0
        self.xupdate = math.sqrt(change)
        self.cost.append(0.5 * (rr if self.accelerated else self.rr) + self.eps * modulus)
        if not math.isfinite(self.cost[-1]):
            self._diverged(x)
        before, self.rr, self.rz = self.rz, rr, rz[0] if rz else rr
        self.res, self._x = res, new
        self.iterations += 1
        if self.monitorres and self.rz > before:
            raise ResidualError(
                f"{type(self).__name__} stopped at iteration {self.iterations} due to residual increasing from "
                f"{math.sqrt(before):.6g} to {math.sqrt(self.rz):.6g}; take a smaller alpha ({self.alpha:.4g}) or eps ({self.eps:.4g})"
            )
        if show:
            self._show_step()
        return new

    def _begin_at(self, x: Any) -> None:
        check_alike(f"{type(self).__name__}: x", x, "the x before", self._x)
        self.z, self.t = x, 1.0
        self.res = self.res_z = residual(self.forward(x), self.b)
        self.rr = self.rz = sums((self.res, self.res))[0].real

    def _is_short_enough(self, new: Any, res: Any) -> bool:
        """Whether |A d|^2 <= |d|^2 / alpha for the step d from z (Beck and Teboulle, equation 2.6, for squares)."""
        d = self.model.copy(new)
        self.model.update([(d, 1, [(-1, self.z)])])
        Ad = self.data.copy(res)
        self.data.update([(Ad, 1, [(-1, self.res_z)])])
        size, length = (number.real for number in sums((Ad, Ad), (d, d)))
        rounding = 64 * self.data.epsilon(self.b) ** 2 * self.bnorm**2  # of a difference of residuals
        return not size > length / self.alpha * (1 + 1e-12) + rounding

    def _extrapolate(self, x: Any, new: Any, res: Any) -> None:
        """Where the next gradient is taken, and the residual there."""
        self.z, self.res_z = new, res

    def _going_on(self) -> bool:
        if self.xupdate <= max(self.rtol * self.xnorm, self.atol):
            return False
        if not self.cost:
            return True
        return not (
            self.cost[-1] < self.cost_rtol * self.cost[0] or self.cost[-1] < self.cost_btol * self.bnorm
        )

    def _diverged(self, x: Any) -> None:
        """What follows from a cost that is infinite or nan."""
        cause = (
            gives_bad_numbers("the operator", self.forward, x)
            or gives_bad_numbers("the adjoint", self.adjoint, self.b)
            or not_adjoint(self.forward, self.adjoint, x)
            or step_too_long(self.forward, self.adjoint, x, self.alpha)
            or f"squares are too large for {self.data.precision(self.b)}; scale the problem down"
        )
        raise SolverError(
            f"{type(self).__name__}, iteration {self.iterations + 1}: the cost is {self.cost[-1]}: {cause}"
        )

    def _line(self) -> str:
        return f"{self.cost[-1]:11.4e}      {self.xupdate:11.4e}"

    def solve(
        self,
        b: Any,
        x0: Any = None,
        *,
        maxiter: int = MAXITER,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
        **options: Any,
    ) -> SparseSolution:
        """All of it, with the options of `setup`."""
        x = self.setup(b, x0, maxiter=maxiter, show=show, **options)
        x = self.run(x, maxiter=maxiter, show=show, itershow=itershow)
        self.finalize(show)
        return SparseSolution(x, self.iterations, np.array(self.cost))


class FISTA(ISTA):
    """ISTA from extrapolated points (Beck and Teboulle, equations 4.1 to 4.3). `cost` is that of the x after the step."""

    accelerated = True

    def _extrapolate(self, x: Any, new: Any, res: Any) -> None:
        before, self.t = self.t, (1 + math.sqrt(1 + 4 * self.t * self.t)) / 2
        m = (before - 1) / self.t
        self.z = self.model.copy(new)
        self.model.update([(self.z, 1 + m, [(-m, x)])])
        self.res_z = self.data.copy(res)
        self.data.update([(self.res_z, 1 + m, [(-m, self.res)])])


@named
def ista(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 0.0,
    atol: float = 1e-10,
    maxiter: int = MAXITER,
    callback: Callback = None,
    SOp: Any = None,
    eps: float = 0.1,
    alpha: float | None = None,
    eigs_options: dict[str, Any] | None = None,
    cost_rtol: float = 0.0,
    cost_btol: float = 0.0,
    threshkind: str = "soft",
    decay: Sequence[float] | None = None,
    monitorres: bool = False,
    backtracking: bool = False,
    beta: float = 0.5,
    show: bool = False,
    itershow: Itershow = (10, 10, 10),
) -> SparseSolution:
    """Minimizes |b - A x|^2 + eps |x|_p^p over x by shrinkage and thresholding.

    Args:
        A: an operator with `matvec` and `rmatvec`.
        b: data, a vector as `A.matvec` gives it.
        x0: where to start; zero if left out. It is not changed.
        rtol: stop when x changes by no more than max(rtol |x|, atol).
        atol: the bound that does not depend on |x|.
        maxiter: no more iterations than this.
        callback: called with x after each iteration, or objects: see `Solver`.
        SOp: thresholds SOp^H x instead of x, and goes back by SOp.
        eps: weight of the sparse term; thresholds are eps alpha / 2.
        alpha: step length, no longer than 1 / the largest eigenvalue of A^H A, which is what it is if left out.
        eigs_options: `maxiter` and `rtol` of the power iteration that finds it (100 and 1e-6).
        cost_rtol: stop when the cost is below this part of that of the first iteration.
        cost_btol: stop when the cost is below this part of |b|.
        threshkind: "soft" (p = 1), "half" (p = 1/2) or "hard" (p = 0).
        decay: a factor of the threshold for each iteration.
        monitorres: raise ResidualError where the residual increases.
        backtracking: shorten the step by factors `beta` until it is short enough (Beck and Teboulle, section 3).
        show: write a line for the first, the last, and some of the other iterations.
        itershow: how many of the first and of the last, and every which of the others.

    Raises:
        ParameterError: no operator, no vector, an unknown threshold (also a ValueError).
        LayoutError: vectors that do not fit together, or hold whole numbers.
        SolverError: the cost is infinite or nan; the message gives the cause: too long a step, or the source of such numbers.
        ResidualError: see `monitorres`; also a ValueError.
    """
    return ISTA(A, SOp=SOp, callback=callback).solve(
        b, x0, rtol=rtol, atol=atol, maxiter=maxiter, eps=eps, alpha=alpha, eigs_options=eigs_options, cost_rtol=cost_rtol,
        cost_btol=cost_btol, threshkind=threshkind, decay=decay, monitorres=monitorres, backtracking=backtracking, beta=beta, show=show,
        itershow=itershow,
    )  # fmt: skip


@named
def fista(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 0.0,
    atol: float = 1e-10,
    maxiter: int = MAXITER,
    callback: Callback = None,
    SOp: Any = None,
    eps: float = 0.1,
    alpha: float | None = None,
    eigs_options: dict[str, Any] | None = None,
    cost_rtol: float = 0.0,
    cost_btol: float = 0.0,
    threshkind: str = "soft",
    decay: Sequence[float] | None = None,
    monitorres: bool = False,
    backtracking: bool = False,
    beta: float = 0.5,
    show: bool = False,
    itershow: Itershow = (10, 10, 10),
) -> SparseSolution:
    """As `ista`, accelerated."""
    return FISTA(A, SOp=SOp, callback=callback).solve(
        b, x0, rtol=rtol, atol=atol, maxiter=maxiter, eps=eps, alpha=alpha, eigs_options=eigs_options, cost_rtol=cost_rtol,
        cost_btol=cost_btol, threshkind=threshkind, decay=decay, monitorres=monitorres, backtracking=backtracking, beta=beta, show=show,
        itershow=itershow,
    )  # fmt: skip
