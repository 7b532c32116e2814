"""The minimal residual iteration (Y. Saad, Iterative Methods for Sparse Linear Systems, 2003, algorithm 5.3): x moves along the residual, so far
that the new one is smallest. Slow alone, and a good smoother and preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.elementwise import computed, length
from jali.solvers.krylov import Krylov
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments


class MR(Krylov):
    """The residual r, and t = A r."""

    name = "mr"
    scratch = ("t",)

    def __init__(
        self, A: Any, b: Any, x0: Any, omega: float, rtol: float, atol: float, inner: Inner | None = None
    ):
        self.omega = omega
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "t"):
            self.t = self.vectors.like(self.b)
        return [rr]

    def step(self, rr: Any) -> tuple[list[Any], list[Any], list[Any]]:
        self.apply(self.r, self.t)
        square = self.vectors.norm2(self.t, wait=self.waits)
        along = (
            computed(length, self.inner(self.t, self.r), square, rr, self.size, self.tolerance) * self.omega
        )
        new = self.update((self.x, 1, [(along, self.r)]), (self.r, 1, [(-along, self.t)]), norm=True)
        return [new], [new], []


@recorded(hermitian=False)
@named
@sharing
def mr(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    omega: float = 1.0,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any A whose Hermitian part is definite, by minimal residuals.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose other arguments these are.

    Args:
        omega: relaxation, between 0 and 2: so many times the step that makes the residual smallest.

    Raises:
        SolverError, ParameterError, LayoutError, RecordingError: as `gcr`.
    """
    check_arguments("mr", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    if isinstance(omega, bool) or not isinstance(omega, int | float) or not 0 < omega < 2:
        raise ParameterError(f"mr: omega is a number between 0 and 2, not {value_shown(omega)}")
    return solved(
        MR.of_workspace(more, A, b, x0, float(omega), rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
