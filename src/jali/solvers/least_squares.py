"""Least squares by conjugate gradients: CGLS (Hestenes and Stiefel 1952; Björck, Numerical Methods for Least Squares Problems, SIAM
1996, algorithm 7.4.1), on any vectors of `jali.solvers.vectors`.

Model x and data y may be vectors of different kinds. An iteration is A and A^H once each, and two sums over ranks beside theirs:
|A c|^2 (with |c|^2 where it is damped), and after the step |y - A x|^2, |A^H (y - A x) - damp^2 x|^2 and |x|^2 together. Costs and
stopping are those of `pylops.cgls`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.errors import SolverError
from jali.solvers.operators import Function, adjoint_of, forward_of, residual, started, widened
from jali.solvers.solver import NEGLIGIBLE, Itershow, Solver, check_tolerance
from jali.solvers.vectors import Vectors, check_alike, sums, vectors_of

NEARLY = 20  # times rounding


class LeastSquares(NamedTuple):
    """What `cgls` found.

    x; `istop`, 1 where the tolerance was reached or numbers allow no more, 2 after `niter` iterations, 3 where a callback stopped; `iit` iterations;
    `r1norm`, |A^H r - damp^2 x|^2 as the recursion knows it, of r = y - A x; `r2norm`, the square root of |r|^2 + damp^2 |x|^2; and
    `cost`, |r| before the first and after each iteration.
    """

    x: Any
    istop: int
    iit: int
    r1norm: float
    r2norm: float
    cost: np.ndarray


class CGLS(Solver):
    """Minimizes |y - A x|^2 + damp^2 |x|^2.

    `preconditioner` is an operator with `matvec`, Hermitian and positive, that comes near the inverse of A^H A + damp^2: gradients are
    measured by it, `kold` too.
    """

    kept_vectors: ClassVar[tuple[str, ...]] = ("s", "c")
    kept_numbers: ClassVar[tuple[str, ...]] = (
        "kold",
        "damp",
        "tol",
        "cost1",
        "epsilon",
        "anorm",
        "least",
        "lowest",
    )

    def __init__(self, Op: Any, callbacks: Any = None, preconditioner: Any = None) -> None:
        super().__init__(Op, callbacks)
        self.forward = forward_of("CGLS: Op", Op)
        self.adjoint = adjoint_of("CGLS: Op", Op)
        self.precondition: Function | None = (
            None if preconditioner is None else forward_of("CGLS: preconditioner", preconditioner)
        )
        self.istop = 0
        self.cost1: list[float] = []

    def setup(
        self,
        y: Any,
        x0: Any = None,
        niter: int | None = None,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x.

        Raises ParameterError for what is no vector, LayoutError for whole numbers and where x0 is no vector of the operator's.
        """
        check_tolerance("CGLS", tol)
        self._call("on_setup_begin", x0)
        self.niter, self.damp, self.tol, self.iiter, self.istop = niter, damp, tol, 0, 0
        data = vectors_of("CGLS: y", y)
        data.epsilon(y)  # refuses whole numbers
        if x0 is None:
            s = data.copy(widened(y, self.Op))
        else:
            x0 = widened(x0, self.Op, y)
            start = vectors_of("CGLS: x0", x0)
            start.epsilon(x0)
            s = residual(self.forward(x0), widened(y, self.Op, x0))
        self.s = s
        gradient = self.adjoint(s)
        if x0 is None:
            x = vectors_of("A^H y", gradient).like(gradient)
        else:
            check_alike("CGLS: x0", x0, "A^H y", gradient)
            x = started(x0, gradient)
        self.model: Vectors = vectors_of("x", x)
        self.data: Vectors = vectors_of("y", s)
        self._damped: Any = None
        if x0 is not None:
            gradient = self._with_damping(gradient, x)
        direction = gradient if self.precondition is None else self.precondition(gradient)
        self.c = self.model.copy(direction)
        self.cost, self.cost1 = [], []
        self.epsilon = max(self.data.epsilon(s), self.model.epsilon(x))
        self.anorm, self.least, self.lowest = 0.0, math.inf, math.inf
        self._take(x, gradient, direction)
        if not math.isfinite(self.kold):
            raise SolverError("CGLS: y, x0, or what the operator makes of them, contains infinities or nan")
        self._x = x
        if show:
            self._show_setup("r1norm            r2norm", damp=damp, tol=tol, niter=niter)
        self._call("on_setup_end", x)
        return x

    def _resume(self, vectors: dict[str, Any], numbers: dict[str, Any]) -> None:
        self.model, self.data = vectors_of("x", vectors["x"]), vectors_of("s", vectors["s"])
        self._damped = None

    def _with_damping(self, gradient: Any, x: Any) -> Any:
        """A^H s - damp^2 x. What the operator gave is its own, and stays."""
        if not self.damp:
            return gradient
        if self._damped is None:
            self._damped = self.model.like(x)
        self.model.update([(self._damped, 0, [(1, gradient), (-(self.damp**2), x)])])
        return self._damped

    def _take(self, x: Any, gradient: Any, direction: Any) -> None:
        """|s|^2, the gradient's square and |x|^2, by one sum over ranks."""
        terms = [(self.s, self.s), (gradient, direction)]
        if self.damp:
            terms.append((x, x))
        ss, kold, *xx = (number.real for number in sums(*terms))
        self.kold = kold
        self.cost.append(math.sqrt(ss))
        self.cost1.append(math.sqrt(ss + self.damp**2 * xx[0]) if xx else self.cost[-1])
        self.least, self.lowest = min(self.least, kold), min(self.lowest, self.cost1[-1])
        if self.cost1[-1] > 0:
            self.anorm = max(self.anorm, math.sqrt(abs(kold)) / self.cost1[-1])  # at most that of A

    def step(self, x: Any, show: bool = False) -> Any:
        """One iteration: x is changed and returned. Raises SolverError where the operator gives infinities or nan."""
        self._x = x
        q = self.forward(self.c)
        if self.damp:
            qq, cc = (number.real for number in sums((q, q), (self.c, self.c)))
            curvature = qq + self.damp**2 * cc
        else:
            curvature = sums((q, q))[0].real
        if not (math.isfinite(curvature) and curvature > 0):
            raise SolverError(
                f"CGLS, iteration {self.iiter + 1}: |A c|^2 = {curvature} in a direction c of |c|^2 = {self.kold:.3g}: "
                "the adjoint is none, or the operator produced infinities or nan"
            )
        a = self.kold / curvature
        self.model.update([(x, 1, [(a, self.c)])])
        self.data.update([(self.s, 1, [(-a, q)])])
        gradient = self._with_damping(self.adjoint(self.s), x)
        direction = gradient if self.precondition is None else self.precondition(gradient)
        before = self.kold
        self._take(x, gradient, direction)
        self.model.update([(self.c, self.kold / before, [(1, direction)])])
        self.iiter += 1
        if show:
            self._show_step()
        return x

    def _going_on(self) -> bool:
        return self.kold > self.tol and not self._exhausted()

    def _exhausted(self) -> bool:
        """Whether what is left is rounding, from which directions grow without bounds: the residual is nothing beside the first one, or
        the gradient nothing beside |A| |r| (Paige and Saunders, section 6), or it was nearly so and grows again, or the residual grows,
        which without rounding it never does."""
        rounding = self.epsilon * self.anorm * self.cost1[-1]
        return (
            self.cost1[-1] <= NEGLIGIBLE * self.epsilon * self.cost1[0]
            or self.kold <= (4 * rounding) ** 2
            or (self.least <= (NEARLY * rounding) ** 2 and self.kold > 1e4 * self.least)
            or self.cost1[-1] > (1 + 100 * self.epsilon) * self.lowest
        )

    def _line(self) -> str:
        return f"{self.cost[-1]:11.4e}      {self.cost1[-1]:11.4e}"

    def finalize(self, show: bool = False) -> None:
        """End: why it did."""
        self.istop = 3 if self.stopped else 1 if not self._going_on() else 2
        self.r1norm, self.r2norm = self.kold, self.cost1[-1]
        super().finalize(show)

    def solve(
        self,
        y: Any,
        x0: Any = None,
        niter: int = 10,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
    ) -> LeastSquares:
        """All of it. Errors: see `setup` and `step`."""
        x = self.setup(y, x0, niter, damp, tol, show)
        x = self.run(x, niter, show, itershow)
        self.finalize(show)
        return LeastSquares(x, self.istop, self.iiter, self.r1norm, self.r2norm, np.array(self.cost))


def cgls(
    Op: Any,
    y: Any,
    x0: Any = None,
    niter: int = 10,
    damp: float = 0.0,
    tol: float = 1e-4,
    show: bool = False,
    itershow: Itershow = (10, 10, 10),
    callback: Callable[[Any], None] | None = None,
    preconditioner: Any = None,
) -> LeastSquares:
    """Minimizes |y - A x|^2 + damp^2 |x|^2 over x by conjugate gradients.

    Args:
        Op: A, with `matvec` and `rmatvec`.
        y: data, a vector as `Op.matvec` gives it.
        x0: where to start, as `Op.rmatvec` gives it; zero if left out. It is not changed.
        niter: no more iterations than this.
        damp: weight of |x|.
        tol: stop when the square of the gradient, |A^H (y - A x) - damp^2 x|^2, is not above it; also where numbers allow no
            smaller one, so that 0 asks for the best.
        show: write a line for the first, the last, and some of the other iterations.
        itershow: how many of the first and of the last, and every which of the others.
        callback: called with x after each iteration.
        preconditioner: an operator near the inverse of A^H A + damp^2.

    Raises:
        ParameterError: no operator, no vector.
        LayoutError: vectors that do not fit together, or hold whole numbers.
        SolverError: infinities or nan.
    """
    solver = CGLS(Op, preconditioner=preconditioner)
    solver.callback = callback
    return solver.solve(y, x0, niter, damp, tol, show, itershow)
