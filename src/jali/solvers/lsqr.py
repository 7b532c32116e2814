"""LSQR (Paige and Saunders, ACM Trans. Math. Softw. 8 (1982) 43, sections 4 to 6) on any vectors of `jali.solvers.vectors`.

The bidiagonalization of Golub and Kahan is kept without its normalizations: u and v are stored times beta and alfa, and the factors go
into the next update, which saves a pass over each vector. An iteration is A and A^H once each, and two sums over ranks beside theirs:
|u|^2 with |w|^2, then |v|^2. Estimates and rules to stop are those of the paper; that for least squares compares |A^H r| with its first
value, as `pylops.lsqr` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.errors import SolverError
from jali.solvers.operators import adjoint_of, forward_of, residual, started, widened
from jali.solvers.solver import Itershow, Solver
from jali.solvers.vectors import check_alike, each, sums, vectors_of

REASONS = {
    0: "x0 is the solution",
    1: "x solves A x = y to the tolerances",
    2: "x solves the least squares problem to the tolerances",
    3: "the condition of A exceeds conlim",
    4: "x solves A x = y as well as numbers allow",
    5: "x solves the least squares problem as well as numbers allow",
    6: "the condition of A is too large for numbers",
    7: "the last iteration that is allowed",
    8: "a callback stopped",
}


class LsqrSolution(NamedTuple):
    """What `lsqr` found: x; why it stopped (a key of `REASONS`); iterations; |y - A x|; the same with damp |x - x0|; estimates of |A|
    (Frobenius), its condition, |A^H r|, |x - x0|; of the diagonal of (A^H A + damp^2)^-1, a vector like x, or None; and |y - A x| before
    the first and after each iteration."""

    x: Any
    istop: int
    iit: int
    r1norm: float
    r2norm: float
    anorm: float
    acond: float
    arnorm: float
    xnorm: float
    var: Any
    cost: np.ndarray


class LSQR(Solver):
    """Minimizes |y - A x|^2 + damp^2 |x - x0|^2."""

    kept_vectors: ClassVar[tuple[str, ...]] = ("u", "v", "w", "var")
    kept_numbers: ClassVar[tuple[str, ...]] = (
        *("alfa", "beta", "rhobar", "phibar", "bnorm", "arnorm0", "istop", "damp", "atol", "btol", "conlim"),
        *("anorm", "acond", "arnorm", "xnorm", "rnorm", "r1norm", "r2norm"),
        *("ddnorm", "res2", "xxnorm", "z", "cs2", "sn2"),
    )

    def __init__(self, Op: Any, callbacks: Any = None) -> None:
        super().__init__(Op, callbacks)
        self.forward = forward_of("LSQR: Op", Op)
        self.adjoint = adjoint_of("LSQR: Op", Op)

    def setup(
        self,
        y: Any,
        x0: Any = None,
        damp: float = 0.0,
        atol: float = 1e-8,
        btol: float = 1e-8,
        conlim: float = 1e8,
        niter: int | None = None,
        calc_var: bool = False,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x.

        Raises ParameterError for what is no vector, LayoutError for whole numbers and where x0 is no vector of the operator's.
        """
        self._call("on_setup_begin", x0)
        self.niter, self.damp, self.iiter, self.istop = niter, damp, 0, 0
        self.atol, self.btol, self.conlim = atol, btol, conlim
        data = vectors_of("LSQR: y", y)
        data.epsilon(y)  # refuses whole numbers
        if x0 is None:
            u = data.copy(widened(y, self.Op))
        else:
            x0 = widened(x0, self.Op, y)
            vectors_of("LSQR: x0", x0).epsilon(x0)
            u = residual(self.forward(x0), widened(y, self.Op, x0))
        self.beta = self.bnorm = _norm(u)
        if not math.isfinite(self.beta):
            raise SolverError("LSQR: y, x0, or what the operator makes of it, contains infinities or nan")
        v = self.adjoint(u)
        model = vectors_of("A^H y", v)
        if x0 is not None:
            check_alike("LSQR: x0", x0, "A^H y", v)
        x = model.like(v) if x0 is None else started(x0, v)
        v = model.copy(v)
        if self.beta > 0:
            model.update([(v, 1 / self.beta, [])])
        self.alfa = _norm(v)
        if not math.isfinite(self.alfa):
            raise SolverError("LSQR: A^H y contains infinities or nan")
        w = model.copy(v)
        if self.alfa > 0:
            model.update([(w, 1 / self.alfa, [])])
        self.u, self.v, self.w, self.model, self.data = u, v, w, model, data
        self.var = model.like(v) if calc_var else None
        self.rhobar, self.phibar = self.alfa, self.beta
        self.arnorm = self.arnorm0 = self.alfa * self.beta
        self.rnorm = self.r1norm = self.r2norm = self.beta
        self.anorm = self.acond = self.ddnorm = self.res2 = self.xnorm = self.xxnorm = self.z = self.sn2 = 0.0
        self.cs2 = -1.0
        self.cost = [self.rnorm]
        self._x = x
        if show:
            self._show_setup("r1norm            r2norm", damp=damp, atol=atol, btol=btol, niter=niter)
        self._call("on_setup_end", x)
        return x

    def _resume(self, vectors: dict[str, Any], numbers: dict[str, Any]) -> None:
        self.model, self.data = vectors_of("x", vectors["x"]), vectors_of("u", vectors["u"])

    def step(self, x: Any, show: bool = False) -> Any:
        """One iteration: x is changed and returned. Raises SolverError where the operator gives infinities or nan."""
        self._x = x
        ww = self._bidiagonalize()

        # plane rotations: of the damping, then of beta (equations 5.3 and 5.6)
        rhobar1 = math.hypot(self.rhobar, self.damp)
        psi = self.damp / rhobar1 * self.phibar
        phibar = self.rhobar / rhobar1 * self.phibar
        rho = math.hypot(rhobar1, self.beta)
        cs, sn = rhobar1 / rho, self.beta / rho
        theta = sn * self.alfa
        self.rhobar = -cs * self.alfa
        phi, self.phibar = cs * phibar, sn * phibar

        if self.var is not None:
            scale = 1 / rho**2
            self.var = each(lambda var, w: var + scale * abs(w) ** 2, self.var, self.w)
        v = [(1 / self.alfa, self.v)] if self.alfa > 0 else []
        self.model.update([(x, 1, [(phi / rho, self.w)]), (self.w, -theta / rho, v)])

        # |x|, from a rotation on the right (section 5.2)
        delta, gambar = self.sn2 * rho, -self.cs2 * rho
        rhs = phi - delta * self.z
        self.xnorm = math.sqrt(self.xxnorm + (rhs / gambar) ** 2)
        gamma = math.hypot(gambar, theta)
        self.cs2, self.sn2, self.z = gambar / gamma, theta / gamma, rhs / gamma
        self.xxnorm += self.z**2

        self.ddnorm += ww / rho**2
        self.acond = self.anorm * math.sqrt(self.ddnorm)
        self.res2 += psi**2
        self.rnorm = self.r2norm = math.sqrt(self.phibar**2 + self.res2)
        self.arnorm = self.alfa * abs(sn * phi)
        square = self.rnorm**2 - self.damp**2 * self.xxnorm
        self.cost.append(math.sqrt(abs(square)))
        self.r1norm = math.copysign(self.cost[-1], square)
        self.istop = self._reason()
        self.iiter += 1
        if show:
            self._show_step()
        return x

    def _bidiagonalize(self) -> float:
        """The next beta, u, alfa and v; returns |w|^2."""
        q = self.forward(self.v)
        self.data.update([(self.u, -self.alfa / self.beta, [(1 / self.alfa, q)])])
        uu, ww = (number.real for number in sums((self.u, self.u), (self.w, self.w)))
        if not (math.isfinite(uu) and math.isfinite(ww)):
            raise SolverError(f"LSQR, iteration {self.iiter + 1}: the operator produced infinities or nan")
        self.beta = math.sqrt(uu)
        if self.beta > 0:
            self.anorm = math.hypot(self.anorm, self.alfa, self.beta, self.damp)
            g = self.adjoint(self.u)
            self.model.update([(self.v, -self.beta / self.alfa, [(1 / self.beta, g)])])
            self.alfa = _norm(self.v)
        return float(ww)

    def _reason(self) -> int:
        """To stop; 0 where there is none (section 6)."""
        test1 = self.rnorm / self.bnorm
        test2 = self.arnorm / self.arnorm0
        test3 = 1 / self.acond if self.acond > 0 else math.inf
        size = self.anorm * self.xnorm / self.bnorm
        if test1 <= self.btol + self.atol * size:
            return 1
        if test2 <= self.atol:
            return 2
        if self.conlim > 0 and test3 <= 1 / self.conlim:
            return 3
        for reason, test in ((4, test1 / (1 + size)), (5, test2), (6, test3)):
            if 1 + test <= 1:
                return reason
        return 0

    def _going_on(self) -> bool:
        return self.istop == 0 and self.arnorm0 > 0

    def _line(self) -> str:
        return f"{self.r1norm:11.4e}      {self.r2norm:11.4e}"

    def finalize(self, show: bool = False) -> None:
        """End: why it did."""
        if self.istop == 0 and self.arnorm0 > 0:
            self.istop = 8 if self.stopped else 7
        if show:
            self.say(f"LSQR finished: {REASONS[self.istop]}")
        super().finalize(show)

    def solve(
        self,
        y: Any,
        x0: Any = None,
        damp: float = 0.0,
        atol: float = 1e-8,
        btol: float = 1e-8,
        conlim: float = 1e8,
        niter: int = 10,
        calc_var: bool = False,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
    ) -> LsqrSolution:
        """All of it. Errors: see `setup` and `step`."""
        x = self.setup(y, x0, damp, atol, btol, conlim, niter, calc_var, show)
        x = self.run(x, niter, show, itershow)
        self.finalize(show)
        return LsqrSolution(
            x, self.istop, self.iiter, self.r1norm, self.r2norm, self.anorm, self.acond, self.arnorm,
            self.xnorm, self.var, np.array(self.cost),
        )  # fmt: skip


def _norm(x: Any) -> float:
    return math.sqrt(sums((x, x))[0].real)


def lsqr(
    Op: Any,
    y: Any,
    x0: Any = None,
    damp: float = 0.0,
    atol: float = 1e-8,
    btol: float = 1e-8,
    conlim: float = 1e8,
    niter: int = 10,
    calc_var: bool = False,
    show: bool = False,
    itershow: Itershow = (10, 10, 10),
    callback: Callable[[Any], None] | None = None,
) -> LsqrSolution:
    """Minimizes |y - A x|^2 + damp^2 |x - x0|^2 over x by LSQR: as CGLS in exact arithmetic, better where A is ill-conditioned.

    Args:
        Op: A, with `matvec` and `rmatvec`.
        y: data, a vector as `Op.matvec` gives it.
        x0: where to start; zero if left out. It is not changed.
        damp: weight of the distance to x0.
        atol, btol: relative errors of A and y; stop when x solves a system so near.
        conlim: stop when the condition of A exceeds it; 0: never.
        niter: no more iterations than this.
        calc_var: estimate the diagonal of (A^H A + damp^2)^-1.
        show: write a line for the first, the last, and some of the other iterations.
        itershow: how many of the first and of the last, and every which of the others.
        callback: called with x after each iteration.

    Raises:
        ParameterError: no operator, no vector.
        LayoutError: vectors that do not fit together, or hold whole numbers.
        SolverError: infinities or nan.
    """
    solver = LSQR(Op)
    solver.callback = callback
    return solver.solve(y, x0, damp, atol, btol, conlim, niter, calc_var, show, itershow)
