"""Flexible GMRES of Y. Saad, SIAM J. Sci. Comput. 14 (1993) 461, for any regular operator, with a preconditioner that may be another in each iteration.

A cycle makes orthonormal vectors v with A Z = V H, by the modified Gram-Schmidt process, where column j of Z is M v_j. Rotations make H a triangular
matrix, row by row, and leave |r| of the smallest residual in the space of Z. At the end of a cycle x moves there, and r by another application of A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.elementwise import computed, going, kept, part, sqrt, where
from jali.solvers.krylov import Krylov
from jali.solvers.operators import into_of
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments


def _inverse_root(square: Any) -> Any:
    return where(square > 0, 1.0 / sqrt(square), 0.0)


def _root(square: Any) -> Any:
    return sqrt(square)


def _hypotenuse(a: Any, b: Any) -> Any:
    return sqrt(abs(a) * abs(a) + b * b)


def _sine(b: Any, hypotenuse: Any) -> Any:
    """b over the hypotenuse; of nothing 1, so that |r| stays what it is."""
    return where(hypotenuse > 0, b / hypotenuse, 1.0)


def _upper(cs: Any, sn: Any, a: Any, b: Any) -> Any:
    """The first component of (a, b), rotated so that it has all of the length of the pair from which the rotation is made."""
    return cs.conj() * a + sn * b


def _lower(cs: Any, sn: Any, a: Any, b: Any) -> Any:
    return cs * b - sn * a


def _along(cs: Any, g: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), cs.conj() * g, 0.0)


def _left(sn: Any, g: Any) -> Any:
    return -sn * g


def _fallen(rr: Any, sn: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), rr * sn * sn, rr)


def _less(value: Any, a: Any, b: Any) -> Any:
    return value - a * b


def _now(function: Callable[..., Any], *numbers: Any) -> Any:
    """The function of numbers, computed here: what a cycle makes of its numbers would else become one kernel for each of its iterations."""
    value = computed(function, *numbers)
    return value.computed() if hasattr(value, "computed") else value


MOST_TERMS = 10  # of one kernel


class FGMRES(Krylov):
    """A cycle is one step: its vectors v, and z = M v, the first of which becomes what x moves by. Without a preconditioner z is v."""

    name = "fgmres"
    scratch = ("v", "z")

    def __init__(
        self,
        A: Any,
        b: Any,
        x0: Any,
        M: Any,
        restart: int,
        rtol: float,
        atol: float,
        inner: Inner | None = None,
    ):
        self.steps = restart
        self.M = M
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "v"):
            like = self.vectors.like
            self.v = [like(self.b) for _ in range(self.steps + 1)]
            self.z, self.precondition = self.v, None
            if self.M is not None:
                self.z = [like(self.b) for _ in range(self.steps)]
                self.precondition = into_of("the preconditioner M", self.M, self.vectors)
        return [rr]

    def step(self, rr: Any) -> tuple[list[Any], list[Any], list[Any]]:
        size, tolerance = self.size, self.tolerance
        g = _now(_root, rr)  # what is left of |r| e_0, rotated
        self.update((self.v[0], 0, [(_now(_inverse_root, rr), self.r)]))
        found: list[Any] = []
        rotations: list[tuple[Any, Any]] = []
        upper: list[list[Any]] = []  # the columns of the triangular matrix
        right: list[Any] = []
        for k in range(self.steps):
            v, z, w = self.v[k], self.z[k], self.v[k + 1]
            if self.precondition is not None:
                self.precondition(v, z)
            self.apply(z, w)
            column: list[Any] = []
            for before in self.v[: k + 1]:
                column.append(self.inner(before, w))
                square = self.update((w, 1, [(-column[-1], before)]), norm=before is v)
            if k + 1 < self.steps:
                self.update((w, _now(_inverse_root, square), []))
            for i, (cs, sn) in enumerate(rotations):
                a, b = column[i], column[i + 1]
                column[i], column[i + 1] = computed(_upper, cs, sn, a, b), _now(_lower, cs, sn, a, b)
            below = _now(_root, square)
            hypotenuse = _now(_hypotenuse, column[k], below)
            cs, sn = _now(part, column[k], hypotenuse), _now(_sine, below, hypotenuse)
            rotations.append((cs, sn))
            upper.append([*column[:k], hypotenuse])
            right.append(_now(_along, cs, g, rr, size, tolerance))
            g = _now(_left, sn, g)
            rr = _now(_fallen, rr, sn, size, tolerance)
            found.append(rr)
            if not self.stay and self.ends(found):  # a graph has whole cycles
                break
        y = self._solved(upper, right)
        moves, own = self.z[0], y[0]
        for k in range(1, len(y), MOST_TERMS):
            self.update((moves, own, [(y[j], self.z[j]) for j in range(k, min(k + MOST_TERMS, len(y)))]))
            own = 1
        self.update((moves, own, []), (self.x, 1, [(1, moves)]))
        if not self.stay and self.solved_by(found):  # nothing follows but b - A x
            return [rr], found, []
        self.apply(moves, self.v[-1])
        true = self.update((self.r, 1, [(-1, self.v[-1])]), norm=True)
        return [computed(kept, true, rr, rr, size, tolerance)], found, []

    def _solved(self, upper: list[list[Any]], right: list[Any]) -> list[Any]:
        """The solution of the triangular system, whose matrix has these columns."""
        y = list(right)
        for j in range(len(y) - 1, -1, -1):
            y[j] = _now(part, y[j], upper[j][j])
            for i in range(j):
                y[i] = _now(_less, y[i], upper[j][i], y[j])
        return y


@recorded(hermitian=False)
@named
@sharing
def fgmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    restart: int = 10,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any regular A, by flexible generalised minimal residuals.

    The residual never grows, and where the Hermitian part of A is not definite it still falls, which that of `gcr` need not. Of a field with a batch all
    members are solved at once and stop one by one; see `cg`, whose other arguments these are.

    Args:
        M: a preconditioner, an operator or a function `M(r, z)` that writes an approximation of A^-1 r into z. It may be another one in each
            iteration, such as a solve to a low accuracy. It gets vectors of norm 1.
        restart: after so many iterations the space is forgotten; a vector is kept for each, with M two. A graph repeats whole cycles. A cycle has
            one application of A more than iterations.
        maxiter: at most so many iterations, of fields rounded up to whole cycles.
        callback: called after each cycle, in which x does not change.

    Raises:
        SolverError: as `gcr`.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments("fgmres", rtol, atol, maxiter=maxiter, check_interval=check_interval, restart=restart)
    return solved(
        FGMRES.of_workspace(more, A, b, x0, M, min(int(restart), int(maxiter)), rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
