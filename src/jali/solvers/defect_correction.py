"""Defect correction (iterative refinement; J. H. Wilkinson, Rounding Errors in Algebraic Processes, 1963): a solver of low accuracy, in numbers of few bits,
corrects a solution that is kept in many.

A cycle computes r = b - A x in the precision of b, hands r / |r| to the inner solve, in the format of `like`, and adds |r| times what it found to x. So
inner numbers are of order one, and the residual that is reported is that of A. For three formats the inner solve is a defect correction itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.krylov import Krylov
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.scaling import number, unscaled
from jali.solvers.solved import LEAST_GAIN
from jali.solvers.solver import check_arguments
from jali.vectors import vectors_of

CYCLES = 50


class _Outer(Krylov):
    """x and b - A x; nothing is recorded."""

    name = "defect_correction"

    def begin(self, rr: np.ndarray) -> list[Any]:
        return []


@recorded(hermitian=False)
@named
def defect_correction(
    A: Any,
    b: Any,
    inner: Callable[[Any], Any],
    x0: Any = None,
    *,
    like: Any,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = CYCLES,
    must_converge: bool = True,
) -> Solution | BatchSolution:
    """Solves A x = b by an inner solve of less accuracy: `inner(r)` returns a solution of about A e = r, or the `Solution` that has it.

    The residual |b - A x| / |b| of the precise A is computed in each cycle; it is what stops, and the history of the solution. Its iterations are
    those of the inner solves together, of an inner function that returns a vector the cycles. Of a field with a batch all members are
    solved at once; one that has converged gets a zero right-hand side.

    Args:
        inner: a function of a right-hand side of order one in the format of `like`, such as
            `lambda r: cgnr(D32, r, rtol=1e-3)` with an operator of float32 links.
        like: a vector of the format of inner right-hand sides, `b.like(precision="float32", storage="float16")`.
        maxiter: cycles, 50 if left out.

    Raises:
        SolverError: a cycle in which no residual halves, or no convergence in `maxiter` cycles, with the `history`; what the inner solve raises.
        ParameterError, LayoutError: wrong arguments; vectors that do not fit together.
    """
    begun = time.perf_counter()
    check_arguments("defect_correction", rtol, atol, maxiter=maxiter)
    if not callable(inner):
        raise ParameterError(
            f"defect_correction: inner is a function of a right-hand side, not {value_shown(inner)}"
        )
    run = _Outer(A, b, x0, rtol, atol)
    vectors = run.vectors
    low = vectors_of("defect_correction: like", like).like(like)
    iterations = np.zeros(np.shape(run.sizes), int)
    while not run.converged and run.iterations < maxiter:
        norms = run.history[-1] * run.sizes
        scale = np.where(run.going, 1 / np.where(run.going, norms, 1.0), 0.0)
        run.vectors.update([(low, 0, [(number(scale), run.r)])])
        found = inner(low)
        e = getattr(found, "x", found)
        iterations += run.going * _iterations(found, run.batch)
        try:
            vectors.update([(run.x, 1, [(number(norms * run.going), e)])])
        except (LayoutError, ParameterError) as error:
            raise type(error)(
                f"defect_correction: inner returns a vector like its argument: {error}"
            ) from None
        before = run.history[-1]
        run.count(run.true_squares())
        still = run.going & (run.history[-1] > LEAST_GAIN * before)
        if must_converge and np.any(still):
            raise run.error(
                still,
                f"cycle {run.iterations} lowered |b - A x|/|b| from {before[still].max():.3g} to {run.history[-1][still].max():.3g} only: the inner solve is too "
                f"inaccurate, of another operator, or the tolerance is below what rounding in {vectors.precision(b)} allows",
            )
        if np.any(still):
            break
    if must_converge and not run.converged:
        raise run.error(
            run.going,
            f"no convergence to {np.max(run.tolerances):g} in {maxiter} cycles: |b - A x|/|b| is {run.history[-1][run.going].max():.3g}",
        )
    x = unscaled(vectors, run.x, run.factors)
    seconds, history = time.perf_counter() - begun, np.array(run.history)
    if run.batch is None:
        return Solution(
            x,
            int(iterations),
            [float(one) for one in history],
            float(history[-1]),
            run.converged,
            1,
            seconds,
        )
    return BatchSolution(
        x,
        tuple(
            Solution(
                x.members[k],
                int(iterations[k]),
                history[: int(run.counts[k]) + 1, k].tolist(),
                float(history[-1, k]),
                not run.going[k],
                1,
                seconds,
            )
            for k in range(run.batch)
        ),
    )


def _iterations(found: Any, batch: int | None) -> Any:
    """Of an inner solve, for each member; of a vector without a count one."""
    if batch is not None and isinstance(found, BatchSolution):
        return np.array([member.iterations for member in found.members])
    return getattr(found, "iterations", 1)
