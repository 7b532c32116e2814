"""Least squares by conjugate gradients: CGLS (Hestenes and Stiefel 1952; Björck, Numerical Methods for Least Squares Problems, SIAM
1996, algorithm 7.4.1), on any vectors of `jali.vectors`.

Model x and data b may be vectors of different kinds. An iteration is A and A^H once each, and two sums over ranks beside theirs:
|A c|^2 (with |c|^2 where it is damped), and after the step |b - A x|^2, |A^H (b - A x) - damp^2 x|^2 and |x|^2 together. Costs are
those of `pylops.cgls`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.errors import SolverError
from jali.keywords import named
from jali.solvers.causes import gives_bad_numbers, not_adjoint, not_finite
from jali.solvers.operators import (
    Function,
    adjoint_of,
    apply_sum_of,
    forward_of,
    residual,
    started,
    widened,
)
from jali.solvers.recursion import history_attached
from jali.solvers.solver import MAXITER, NEGLIGIBLE, Callback, Itershow, Solver, check_tolerances
from jali.vectors import Vectors, check_alike, sums, vectors_of

NEARLY = 20  # times rounding
GROWTH = 100  # likewise, of a residual that without rounding never grows


class LeastSquares(NamedTuple):
    """What `cgls` found.

    x; `istop`, 1 where the tolerance was reached or numbers allow no more, 2 after `maxiter` iterations, 3 where a callback
    stopped; `iterations`; `r1norm`, |A^H r - damp^2 x|^2 by the recursion, of r = b - A x; `r2norm`, the square root of |r|^2 +
    damp^2 |x|^2; and `cost`, |r| before the first and after each iteration.
    """

    x: Any
    istop: int
    iterations: int
    r1norm: float
    r2norm: float
    cost: np.ndarray


class CGLS(Solver):
    """Minimizes |b - A x|^2 + damp^2 |x|^2.

    `M` is an operator with `matvec`, Hermitian and positive, that approximates the inverse of A^H A + damp^2: gradients
    are measured by it, `kold` too.
    """

    kept_vectors: ClassVar[tuple[str, ...]] = ("s", "c")
    kept_numbers: ClassVar[tuple[str, ...]] = (
        "kold",
        "damp",
        "target",
        "cost1",
        "epsilon",
        "anorm",
        "least",
        "lowest",
    )

    @named
    def __init__(self, A: Any, *, M: Any = None, callback: Callback = None) -> None:
        super().__init__(A, callback=callback)
        self.forward = forward_of("CGLS: A", A)
        self.apply_norm2 = apply_sum_of("CGLS: A", A, "norm2")
        self.adjoint = adjoint_of("CGLS: A", A)
        self.precondition: Function | None = None if M is None else forward_of("CGLS: M", M)
        self.istop = 0
        self.cost1: list[float] = []

    @named
    def setup(
        self,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-10,
        atol: float = 0.0,
        maxiter: int | None = None,
        damp: float = 0.0,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x.

        Raises ParameterError for an object that is not a vector, LayoutError for whole numbers and where x0 is not a
        vector of the operator's.
        """
        check_tolerances("CGLS", rtol=rtol, atol=atol)
        self._call("on_setup_begin", x0)
        self.maxiter, self.damp, self.iterations, self.istop = maxiter, damp, 0, 0
        data = vectors_of("CGLS: b", b)
        data.epsilon(b)  # refuses whole numbers
        Ax = None
        if x0 is None:
            s = data.copy(widened(b, self.A))
        else:
            x0 = widened(x0, self.A, b)
            start = vectors_of("CGLS: x0", x0)
            start.epsilon(x0)
            Ax = self.forward(x0)
            s = residual(Ax, widened(b, self.A, x0))
        self.s = s
        gradient = self.adjoint(s)
        if x0 is None:
            x = vectors_of("A^H b", gradient).like(gradient)
        else:
            check_alike("CGLS: x0", x0, "A^H b", gradient)
            x = started(x0, gradient)
        self.model: Vectors = vectors_of("x", x)
        self.data: Vectors = vectors_of("b", s)
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
            raise not_finite("CGLS", **{"b": b, "x0": x0, "A x0": Ax, "A^H (b - A x0)": gradient})
        self.target = max(atol, rtol * self._first(b, x0) if rtol else 0.0)
        self._x = x
        if show:
            self._show_setup("r1norm            r2norm", damp=damp, rtol=rtol, atol=atol, maxiter=maxiter)
        self._call("on_setup_end", x)
        return x

    def _first(self, b: Any, x0: Any) -> float:
        """The norm of the gradient at x = 0, by which tolerances are relative."""
        if x0 is None:
            return math.sqrt(abs(self.kold))
        gradient = self.model.copy(self.adjoint(widened(b, self.A, x0)))
        direction = gradient if self.precondition is None else self.precondition(gradient)
        return math.sqrt(abs(sums((gradient, direction))[0]))

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
        q, square = self.apply_norm2(self.c)
        terms = [(q, q)] if square is None else []
        if self.damp:
            terms.append((self.c, self.c))
        first = self.iterations == 0
        if first:  # <s, A c> is <A^H s, c>, which costs no more to know
            terms += [(self.s, q), (x, self.c)]
        more = sums(*terms)
        qq = more.pop(0) if square is None else square
        curvature = qq.real + (self.damp**2 * more[0].real if self.damp else 0.0)
        if not (math.isfinite(curvature) and curvature > 0):
            raise SolverError(
                f"CGLS, iteration {self.iterations + 1}: |A c|^2 = {curvature} in a direction c of |c|^2 = {self.kold:.3g}: {self._cause()}"
            )
        if first:
            gap = more[-2] - self.damp**2 * more[-1] - self.kold
            rounding = 1e3 * self.epsilon * (self.cost[0] * math.sqrt(qq.real) + self.kold)
            if abs(gap) > max(0.01 * self.kold, rounding):
                self._check_adjoint()
        a = self.kold / curvature
        self.model.update([(x, 1, [(a, self.c)])])
        self.data.update([(self.s, 1, [(-a, q)])])
        gradient = self._with_damping(self.adjoint(self.s), x)
        direction = gradient if self.precondition is None else self.precondition(gradient)
        before = self.kold
        self._take(x, gradient, direction)
        self.model.update([(self.c, self.kold / before, [(1, direction)])])
        self.iterations += 1
        if self.cost1[-1] > (1 + GROWTH * self.epsilon) * self.lowest:
            self._check_adjoint()
        if show:
            self._show_step()
        return x

    def _check_adjoint(self) -> None:
        """Raises SolverError where `rmatvec` is another function than the adjoint of `matvec`."""
        if cause := not_adjoint(self.forward, self.adjoint, self.c):
            raise SolverError(f"CGLS, iteration {self.iterations + 1}: {cause}")

    def _cause(self) -> str:
        """Why |A c| is zero, infinite or nan although the gradient is not."""
        return (
            gives_bad_numbers("the operator", self.forward, self.c)
            or gives_bad_numbers("the adjoint", self.adjoint, self.s)
            or not_adjoint(self.forward, self.adjoint, self.c)
            or f"squares are too large or too small for {self.data.precision(self.s)}; scale the problem"
        )

    def _going_on(self) -> bool:
        return math.sqrt(abs(self.kold)) > self.target and not self._exhausted()

    def _exhausted(self) -> bool:
        """Whether what is left is rounding, from which directions grow without bounds: the residual is nothing beside the first one, or
        the gradient nothing beside |A| |r| (Paige and Saunders, section 6), or it was nearly so and grows again, or the residual grows,
        which without rounding it never does."""
        rounding = self.epsilon * self.anorm * self.cost1[-1]
        return (
            self.cost1[-1] <= NEGLIGIBLE * self.epsilon * self.cost1[0]
            or self.kold <= (4 * rounding) ** 2
            or (self.least <= (NEARLY * rounding) ** 2 and self.kold > 1e4 * self.least)
            or self.cost1[-1] > (1 + GROWTH * self.epsilon) * self.lowest
        )

    def _line(self) -> str:
        return f"{self.cost[-1]:11.4e}      {self.cost1[-1]:11.4e}"

    def finalize(self, show: bool = False) -> None:
        """End: why it did."""
        self.istop = 3 if self.stopped else 1 if not self._going_on() else 2
        self.r1norm, self.r2norm = self.kold, self.cost1[-1]
        super().finalize(show)

    @named
    def solve(
        self,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-10,
        atol: float = 0.0,
        maxiter: int = MAXITER,
        damp: float = 0.0,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
    ) -> LeastSquares:
        """All of it. Errors: see `setup` and `step`."""
        x = self.setup(b, x0, rtol=rtol, atol=atol, maxiter=maxiter, damp=damp, show=show)
        with history_attached(
            lambda: [one / (self.cost[0] or 1.0) for one in self.cost]
        ):  # without a sum over ranks
            x = self.run(x, maxiter=maxiter, show=show, itershow=itershow)
        self.finalize(show)
        return LeastSquares(x, self.istop, self.iterations, self.r1norm, self.r2norm, np.array(self.cost))


@named
def cgls(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    M: Any = None,
    callback: Callback = None,
    damp: float = 0.0,
    show: bool = False,
    itershow: Itershow = (10, 10, 10),
) -> LeastSquares:
    """Minimizes |b - A x|^2 + damp^2 |x|^2 over x by conjugate gradients.

    Args:
        A: an operator with `matvec` and `rmatvec`.
        b: data, a vector as `A.matvec` gives it.
        x0: where to start, as `A.rmatvec` gives it; zero if left out. It is not changed.
        rtol: stop when the gradient g = A^H (b - A x) - damp^2 x is as small as |g| <= max(rtol |A^H b|, atol); also where
            rounding allows no smaller one, so that 0 and 0 request the best.
        atol: the bound that does not depend on b.
        maxiter: no more iterations than this.
        M: an operator near the inverse of A^H A + damp^2; with it norms of g are sqrt(<g, M g>).
        callback: called with x after each iteration, or objects: see `Solver`.
        damp: weight of |x|.
        show: write a line for the first, the last, and some of the other iterations.
        itershow: how many of the first and of the last, and every which of the others.

    Raises:
        ParameterError: no operator, no vector.
        LayoutError: vectors that do not fit together, or hold whole numbers.
        SolverError: infinities or nan, and where they come from; `rmatvec` is not the adjoint of `matvec`. Its `history` is that of |b - A x|, beside the first.
    """
    return CGLS(A, M=M, callback=callback).solve(
        b, x0, rtol=rtol, atol=atol, maxiter=maxiter, damp=damp, show=show, itershow=itershow
    )
