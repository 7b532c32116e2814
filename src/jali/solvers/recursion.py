"""The recursion of conjugate gradients, and what a solve returns: for one vector, and for all members of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jali.amounts import time_text
from jali.errors import SolverError
from jali.notebook import facts
from jali.solvers.operators import ApplyInner, Function
from jali.vectors import Vectors

NORMAL = "solve A^dagger A x = A^dagger b instead"


@dataclass(frozen=True, repr=False)
class Solution:
    """The result of a solver.

    `x` is the solution. `history` holds |r| / |b| before the first and after each iteration, by the recursion; `residual` is
    |b - A x| / |b| computed from x. In exact arithmetic the last of `history` equals `residual`. `check_interval` is after
    how many iterations the host checked: 1 where they were not recorded. `time` is that of the solve, in seconds, and `flops` the floating-point operations of its
    iterations on all ranks, as kernels count them, of a batch those of all members; None where nothing was recorded. `heavy_quark` is that
    residual, where it was asked for (`Shared`).
    """

    x: Any
    iterations: int
    history: list[float]
    residual: float
    converged: bool
    check_interval: int = 1
    time: float = 0.0
    flops: int | None = None
    heavy_quark: float | None = None

    def plot(self, axes: Any = None) -> Any:
        """Draws the residuals by iteration, logarithmically, into axes of matplotlib, or new ones. Returns the axes."""
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.figure().add_subplot()
        axes.semilogy(range(len(self.history)), self.history)
        axes.set(xlabel="iteration", ylabel="|r| / |b|")
        return axes

    def __repr__(self) -> str:
        how = "converged" if self.converged else "not converged"
        return f"<solution, {how} in {self.iterations} iterations, residual {self.residual:.2g}: {_shown(self.x)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows, with every tenth residual."""
        history = [
            f"{k:6}  {r:.3e}" for k, r in enumerate(self.history) if k % 10 == 0 or k == len(self.history) - 1
        ]
        rows = {
            "solution": _shown(self.x),
            "converged": "yes" if self.converged else "no",
            "iterations": self.iterations,
            "residual |b - A x| / |b|": f"{self.residual:.3e}",
            "time": time_text(self.time),
        }
        return facts("Solution", rows, {"residuals by iteration": "\n".join(history)})


def _shown(vector: Any) -> str:
    """A short description of a solution: a field's own, or an array's shape."""
    if isinstance(vector, list | tuple):
        return f"[{', '.join(map(_shown, vector))}]"
    if hasattr(vector, "shape"):
        return f"array {tuple(vector.shape)} of {vector.dtype}"
    return repr(vector)


class Recursion:
    """The recursion: x, the residual r, the direction p, q = A p, and |r|^2."""

    def __init__(self, forward: Function, apply_inner: ApplyInner, vectors: Vectors, x: Any, r: Any):
        self.forward = forward
        self.apply_inner = apply_inner
        self.vectors = vectors
        self.x = x
        self.r = r
        self.p: Any = None
        self.q: Any = None
        self.rr: Any = 0.0  # a number; of a batch, an array of them

    def residual(self, b: Any) -> float:
        """r = b - A x; returns |r|^2."""
        self.q = self.forward(self.x)
        return float(self.vectors.update([(self.r, 0, [(1, b), (-1, self.q)])], norm=True))

    def begin(self, b: Any, rr: float | None = None) -> None:
        """The first direction, from x and b; `rr` is |b|^2 where x is zero and r is b."""
        self.rr = self.residual(b) if rr is None else rr
        self.p = self.vectors.copy(self.r)

    def curvature(self, wait: bool = True) -> Any:
        """q = A p; returns p^dagger A p."""
        self.q, curvature = self.apply_inner(self.p, wait)
        return curvature

    def descend(self, step: Any, wait: bool = True) -> Any:
        """r -= step A p; returns |r|^2."""
        return self.vectors.update([(self.r, 1, [(-step, self.q)])], norm=True, wait=wait)

    def turn(self, step: Any, weight: Any) -> None:
        """x += step p, then p = r + weight p."""
        self.vectors.update([(self.x, 1, [(step, self.p)]), (self.p, weight, [(1, self.r)])])

    def advance(self, step: float) -> None:
        """An iteration with a step whose length is known."""
        before, self.rr = self.rr, self.descend(step)
        self.turn(step, self.rr / before)


@contextlib.contextmanager
def history_attached(history: Callable[[], list[Any]]) -> Iterator[None]:
    """An error of a solver that has no history gets this one."""
    try:
        yield
    except SolverError as error:
        error.history = error.history or history()
        raise
