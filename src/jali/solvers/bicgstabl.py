"""BiCGStab(l) of G. L. G. Sleijpen and D. R. Fokkema, ETNA 1 (1993) 11, algorithm 3.1: l steps of BiCG, then the residual that is smallest along l directions
at once. For spectra far off the real axis, where BiCGStab stagnates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.elementwise import computed, going, if_going, kept, part, ratio, where
from jali.solvers.krylov import Krylov
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments

MOST = 8  # directions at once; more lose the digits of their inner products


def _beta(alpha: Any, new: Any, old: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance) & (abs(old) > 0), alpha * new / old, 0.0)


def _minus_product(a: Any, b: Any) -> Any:
    return -a * b


def _less(value: Any, a: Any, b: Any) -> Any:
    return value - a * b


def _more(value: Any, a: Any, b: Any) -> Any:
    return value + a * b


class BiCGStabL(Krylov):
    """The residual and its images under A, r[0] to r[l], those of the direction, u[0] to u[l], and the shadow of the first residual."""

    name = "bicgstabl"
    scratch = ("rs",)

    def __init__(
        self, A: Any, b: Any, x0: Any, directions: int, rtol: float, atol: float, inner: Inner | None = None
    ):
        self.directions = directions
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        like, update = self.vectors.like, self.vectors.update
        if not hasattr(self, "u"):
            self.rs = [self.r, *(like(self.b) for _ in range(self.directions))]
            self.u = [like(self.b) for _ in range(self.directions + 1)]
            self.shadow = like(self.b)
        update([(self.shadow, 0, [(1, self.r)]), (self.u[0], 0, [(0.0, self.r)])])
        one = np.ones_like(rr, dtype=complex if self.complex else float)
        return [rr, one, 0 * one, one]

    def step(self, rr: Any, rho: Any, alpha: Any, omega: Any) -> tuple[list[Any], list[Any], list[Any]]:
        mask = whole = rr, self.size, self.tolerance
        r, u, watched = self.rs, self.u, []
        rho_before, alpha_before = rho, alpha
        rho = computed(_minus_product, omega, rho)
        for j in range(self.directions):
            new = self.inner(self.shadow, r[j])
            beta = computed(_beta, alpha, new, rho, *mask)
            rho = new
            self.update(*((u[i], -beta, [(1, r[i])]) for i in range(j + 1)))
            self.apply(u[j], u[j + 1])
            gamma = self.inner(self.shadow, u[j + 1])
            alpha = computed(ratio, rho, gamma, *mask)
            square = self.update(
                (self.x, 1, [(alpha, u[0])]),
                *((r[i], 1, [(-alpha, u[i + 1])]) for i in range(j, -1, -1)),
                norm=True,
            )
            mask = square, self.size, self.tolerance  # a solution may come before the end of the step
            self.apply(r[j], r[j + 1])
            watched += [new, gamma]
        lengths = self._orthogonal()
        own, last = lengths["own"], lengths["last"]
        own, last, between = (
            [computed(if_going, value, *mask) for value in part] for part in (own, last, lengths["between"])
        )
        count = self.directions
        self.update((u[0], 1, [(-last[j - 1], u[j]) for j in range(1, count + 1)]))
        self.update((self.x, 1, [(last[0], r[0]), *((between[j - 1], r[j]) for j in range(1, count))]))
        new = self.update((r[0], 1, [(-own[j - 1], r[j]) for j in range(1, count + 1)]), norm=True)
        left = [
            new,
            *(
                computed(kept, value, old, *whole)
                for value, old in ((rho, rho_before), (alpha, alpha_before), (last[-1], omega))
            ),
        ]
        return left, [new], watched

    def _orthogonal(self) -> dict[str, list[Any]]:
        """Makes r[1] to r[l] orthogonal. Returns gamma' ("own"), gamma ("last") and gamma'' ("between") of the paper."""
        count, r = self.directions, self.rs
        tau: dict[tuple[int, int], Any] = {}
        squares: list[Any] = []
        own: list[Any] = []
        for j in range(1, count + 1):
            for i in range(1, j):
                tau[i, j] = computed(part, self.inner(r[i], r[j]), squares[i - 1])
                self.update((r[j], 1, [(-tau[i, j], r[i])]))
            squares.append(self.vectors.norm2(r[j], wait=self.waits))
            own.append(computed(part, self.inner(r[j], r[0]), squares[-1]))
        last = list(own)
        for j in range(count - 1, 0, -1):
            for i in range(j + 1, count + 1):
                last[j - 1] = computed(_less, last[j - 1], tau[j, i], last[i - 1])
        between = []
        for j in range(1, count):
            value = last[j]
            for i in range(j + 1, count):
                value = computed(_more, value, tau[j, i], last[i])
            between.append(value)
        return {"own": own, "last": last, "between": between}

    def check(self, *watched: np.ndarray) -> None:
        for k, value in enumerate(watched):
            self.refuse_breakdown(("<r0, r>", "<r0, A p>")[k % 2], value)


@recorded(hermitian=False)
@named
@sharing
def bicgstabl(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    directions: int = 2,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any regular A by BiCGStab(l).

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose other arguments these are.

    Args:
        directions: l, along so many the residual is made smallest at once; from 1, which is BiCGStab, to 8. An iteration is 2 l applications.

    Raises:
        SolverError: as `gcr`; breakdown, where a product that the recursion divides by is zero.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments(
        "bicgstabl", rtol, atol, maxiter=maxiter, check_interval=check_interval, directions=directions
    )
    if directions > MOST:
        raise ParameterError(
            f"bicgstabl: directions is a whole number from 1 to {MOST}, not {value_shown(directions)}"
        )
    return solved(
        BiCGStabL.of_workspace(more, A, b, x0, int(directions), rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
