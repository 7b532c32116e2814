"""LSQR (Paige and Saunders, ACM Trans. Math. Softw. 8 (1982) 43, sections 4 to 6) on any vectors of `jali.vectors`.

The bidiagonalization of Golub and Kahan is kept without its normalizations: u and v are stored times beta and alfa, and the
factors are part of the next update, which saves a pass over each vector. An iteration is A and A^H once each, and two sums over
ranks beside theirs:
|u|^2 with |w|^2, then |v|^2. Estimates and rules to stop are those of the paper; that for least squares compares |A^H r| with its first
value, as `pylops.lsqr` does.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.errors import SolverError
from jali.keywords import named
from jali.solvers.causes import gives_bad_numbers, not_adjoint, not_finite
from jali.solvers.operators import adjoint_of, forward_of, residual, started, widened
from jali.solvers.recursion import history_attached
from jali.solvers.solver import MAXITER, Callback, Itershow, Solver, check_tolerances
from jali.vectors import check_alike, each, summed, sums, vectors_of

REASONS = {
    0: "x0 is the solution",
    1: "x solves A x = b to the tolerances",
    2: "x solves the least squares problem to the tolerances",
    3: "the condition of A exceeds conlim",
    4: "x solves A x = b as well as numbers allow",
    5: "x solves the least squares problem as well as numbers allow",
    6: "the condition of A is too large for numbers",
    7: "the last iteration that is allowed",
    8: "a callback stopped",
}


class LsqrSolution(NamedTuple):
    """What `lsqr` found: x; why it stopped (a key of `REASONS`); iterations; |b - A x|; the same with damp |x - x0|; estimates of |A|
    (Frobenius), its condition, |A^H r|, |x - x0|; of the diagonal of (A^H A + damp^2)^-1, a vector like x, or None; and |b - A x| before
    the first and after each iteration."""

    x: Any
    istop: int
    iterations: int
    r1norm: float
    r2norm: float
    anorm: float
    acond: float
    arnorm: float
    xnorm: float
    var: Any
    cost: np.ndarray


class LSQR(Solver):
    """Minimizes |b - A x|^2 + damp^2 |x - x0|^2."""

    kept_vectors: ClassVar[tuple[str, ...]] = ("u", "v", "w", "var")
    kept_numbers: ClassVar[tuple[str, ...]] = (
        *("alfa", "beta", "rhobar", "phibar", "bnorm", "arnorm0", "istop", "damp", "atol", "btol", "conlim"),
        *("anorm", "acond", "arnorm", "xnorm", "rnorm", "r1norm", "r2norm"),
        *("ddnorm", "res2", "xxnorm", "z", "cs2", "sn2"),
    )

    @named
    def __init__(self, A: Any, *, callback: Callback = None) -> None:
        super().__init__(A, callback=callback)
        self.forward = forward_of("LSQR: A", A)
        self.adjoint = adjoint_of("LSQR: A", A)

    @named
    def setup(
        self,
        b: Any,
        x0: Any = None,
        *,
        atol: float = 1e-8,
        btol: float = 1e-8,
        conlim: float = 1e8,
        maxiter: int | None = None,
        damp: float = 0.0,
        calc_var: bool = False,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x.

        Raises ParameterError for an object that is not a vector, LayoutError for whole numbers and where x0 is not a
        vector of the operator's.
        """
        check_tolerances("LSQR", atol=atol, btol=btol, conlim=conlim)
        self._call("on_setup_begin", x0)
        self.maxiter, self.damp, self.iterations, self.istop = maxiter, damp, 0, 0
        self.atol, self.btol, self.conlim = atol, btol, conlim
        data = vectors_of("LSQR: b", b)
        data.epsilon(b)  # refuses whole numbers
        Ax = None
        if x0 is None:
            u = data.copy(widened(b, self.A))
        else:
            x0 = widened(x0, self.A, b)
            vectors_of("LSQR: x0", x0).epsilon(x0)
            Ax = self.forward(x0)
            u = residual(Ax, widened(b, self.A, x0))
        self.beta = self.bnorm = _norm(u)
        if not math.isfinite(self.beta):
            raise not_finite("LSQR", **{"b": b, "x0": x0, "A x0": Ax})
        v = self.adjoint(u)
        model = vectors_of("A^H b", v)
        if x0 is not None:
            check_alike("LSQR: x0", x0, "A^H b", v)
        x = model.like(v) if x0 is None else started(x0, v)
        v = model.copy(v)
        if self.beta > 0:
            model.update([(v, 1 / self.beta, [])])
        self.alfa = _norm(v)
        if not math.isfinite(self.alfa):
            raise not_finite("LSQR", **{"A^H b": v})
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
            self._show_setup("r1norm            r2norm", damp=damp, atol=atol, btol=btol, maxiter=maxiter)
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
        self.iterations += 1
        if show:
            self._show_step()
        return x

    def _bidiagonalize(self) -> float:
        """The next beta, u, alfa and v; returns |w|^2."""
        q = self.forward(self.v)
        first = self.iterations == 0
        # <u, A v> is |v|^2 of the first v, A^H u: known by the sum over ranks that has to be
        before = [self.data.partial_sums(self.u, q), self.data.partial_sums(q, q)] if first else []
        self.data.update([(self.u, -self.alfa / self.beta, [(1 / self.alfa, q)])])
        squares = [self.data.partial_sums(self.u, self.u), self.model.partial_sums(self.w, self.w)]
        found = summed([*squares, *before])
        uu, ww = found[0].real, found[1].real
        if not (math.isfinite(uu) and math.isfinite(ww)):
            raise SolverError(
                f"LSQR, iteration {self.iterations + 1}: |A v|^2 is {uu}, |w|^2 {ww}: {self._cause()}"
            )
        if first:
            expected, size = self.beta * self.alfa**2, self.beta * math.sqrt(found[3].real)
            rounding = 1e3 * max(self.data.epsilon(self.u), self.model.epsilon(self.v)) * (size + expected)
            if abs(found[2] - expected) > max(0.01 * expected, rounding) and (
                cause := not_adjoint(self.forward, self.adjoint, self.v)
            ):
                raise SolverError(f"LSQR, iteration 1: {cause}")
        self.beta = math.sqrt(uu)
        if self.beta > 0:
            self.anorm = math.hypot(self.anorm, self.alfa, self.beta, self.damp)
            g = self.adjoint(self.u)
            self.model.update([(self.v, -self.beta / self.alfa, [(1 / self.beta, g)])])
            self.alfa = _norm(self.v)
        return float(ww)

    def _cause(self) -> str:
        return (
            gives_bad_numbers("the operator", self.forward, self.v)
            or gives_bad_numbers("the adjoint", self.adjoint, self.u)
            or not_adjoint(self.forward, self.adjoint, self.v)
            or f"squares are too large for {self.data.precision(self.u)}; scale the problem down"
        )

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

    @named
    def solve(
        self,
        b: Any,
        x0: Any = None,
        *,
        atol: float = 1e-8,
        btol: float = 1e-8,
        conlim: float = 1e8,
        maxiter: int = MAXITER,
        damp: float = 0.0,
        calc_var: bool = False,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
    ) -> LsqrSolution:
        """All of it. Errors: see `setup` and `step`."""
        x = self.setup(
            b,
            x0,
            atol=atol,
            btol=btol,
            conlim=conlim,
            maxiter=maxiter,
            damp=damp,
            calc_var=calc_var,
            show=show,
        )
        with history_attached(
            lambda: [one / (self.cost[0] or 1.0) for one in self.cost]
        ):  # without a sum over ranks
            x = self.run(x, maxiter=maxiter, show=show, itershow=itershow)
        self.finalize(show)
        return LsqrSolution(
            x, self.istop, self.iterations, self.r1norm, self.r2norm, self.anorm, self.acond, self.arnorm,
            self.xnorm, self.var, np.array(self.cost),
        )  # fmt: skip


def _norm(x: Any) -> float:
    return math.sqrt(sums((x, x))[0].real)


@named
def lsqr(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    atol: float = 1e-8,
    btol: float = 1e-8,
    conlim: float = 1e8,
    maxiter: int = MAXITER,
    callback: Callback = None,
    damp: float = 0.0,
    calc_var: bool = False,
    show: bool = False,
    itershow: Itershow = (10, 10, 10),
) -> LsqrSolution:
    """Minimizes |b - A x|^2 + damp^2 |x - x0|^2 over x by LSQR: as CGLS in exact arithmetic, better where A is ill-conditioned.

    Args:
        A: an operator with `matvec` and `rmatvec`.
        b: data, a vector as `A.matvec` gives it.
        x0: where to start; zero if left out. It is not changed.
        atol, btol: as those of `scipy.sparse.linalg.lsqr`, relative errors of A and b; stop when x solves a system so near.
        conlim: stop when the condition of A exceeds it; 0: never.
        maxiter: no more iterations than this.
        callback: called with x after each iteration, or objects: see `Solver`.
        damp: weight of the distance to x0.
        calc_var: estimate the diagonal of (A^H A + damp^2)^-1.
        show: write a line for the first, the last, and some of the other iterations.
        itershow: how many of the first and of the last, and every which of the others.

    Raises:
        ParameterError: no operator, no vector.
        LayoutError: vectors that do not fit together, or hold whole numbers.
        SolverError: infinities or nan, and where they come from; `rmatvec` is not the adjoint of `matvec`. Its `history` is that of |b - A x|, beside the first.
    """
    return LSQR(A, callback=callback).solve(
        b, x0, atol=atol, btol=btol, conlim=conlim, maxiter=maxiter, damp=damp, calc_var=calc_var, show=show,
        itershow=itershow,
    )  # fmt: skip
