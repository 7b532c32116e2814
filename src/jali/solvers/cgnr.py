"""Conjugate gradients of the normal equations A^H A x = A^H b, for any regular A, with the residual of A itself (M. R. Hestenes and E. Stiefel,
J. Res. NBS 49 (1952) 409, section 10; Å. Björck, Numerical Methods for Least Squares Problems, 1996, algorithm 7.4.1).

What stops is |b - A x|, not the residual of the normal equations, which the condition of A separates from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.causes import not_adjoint
from jali.solvers.elementwise import computed, kept, length
from jali.solvers.krylov import Krylov
from jali.solvers.operators import adjoint_into_of, adjoint_of, forward_of
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments


class CGNR(Krylov):
    """The direction p, q = A p, and s = A^H r."""

    name = "cgnr"
    scratch = ("q", "s")

    def __init__(self, A: Any, b: Any, x0: Any, rtol: float, atol: float, inner: Inner | None = None):
        adjoint_of("the operator", A)
        if isinstance(inner, Inner):
            adjoint_of("the inner operator", inner.A)
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "p"):
            self.adjoint = adjoint_into_of("the operator", self.A, self.vectors)
            self.p, self.q, self.s = (self.vectors.like(self.b) for _ in range(3))
        try:
            self.adjoint(self.r, self.s)
        except NotImplementedError as error:  # SciPy's, of an operator that has only matvec
            raise ParameterError(f"the operator has no adjoint, a function rmatvec: {error}") from None
        gamma = self.vectors.update([(self.p, 0, [(1, self.s)])], norm=True)
        return [rr, np.asarray(gamma, float)]

    def step(self, rr: Any, gamma: Any) -> tuple[list[Any], list[Any], list[Any]]:
        size, tolerance = self.size, self.tolerance
        self.apply(self.p, self.q)
        qq = self.vectors.norm2(self.q, wait=self.waits)
        alpha = computed(length, gamma, qq, rr, size, tolerance)
        new = self.update((self.x, 1, [(alpha, self.p)]), (self.r, 1, [(-alpha, self.q)]), norm=True)
        self.adjoint(self.r, self.s)
        again = self.vectors.norm2(self.s, wait=self.waits)
        beta = computed(length, again, gamma, rr, size, tolerance)
        self.update((self.p, beta, [(1, self.s)]))
        return [new, computed(kept, again, gamma, rr, size, tolerance)], [new], [qq]

    def check(self, *watched: np.ndarray) -> None:
        (qq,) = watched
        if self.iterations == 0:
            self._refuse_other_adjoint(qq)
        self.refuse_bad("|A p|^2", qq)
        if np.any(wrong := self.going & (qq == 0)):
            raise self.error(
                wrong,
                "A p is zero for the direction p = A^H r: b has a part that A does not reach, or A is singular",
            )

    def _refuse_other_adjoint(self, qq: np.ndarray) -> None:
        """After the first step: alpha = |A^H r|^2 / |A p|^2 makes r orthogonal to A p if A^H is the adjoint of A."""
        allowed = 0.05 if self.outer is not None else np.sqrt(self.vectors.epsilon(self.b))
        product = np.abs(np.asarray(self.vectors.inner(self.q, self.r)))
        with np.errstate(all="ignore"):
            cosine = product / (np.sqrt(qq) * self.history[0] * self.sizes)
            wrong = self.went & (cosine > allowed) & np.isfinite(cosine)
        if np.any(wrong):
            part = float(np.max(cosine[wrong]))
            raise self.error(
                wrong,
                f"rmatvec is not the adjoint of matvec: after a step of length |A^H r|^2 / |A p|^2 the cosine between r and A p is {part:.2g}, not zero",
            )

    def correct(self, pairs: Any, r: Any, x: Any) -> None:
        """Of eigenvectors of A^H A."""
        image = self.vectors.like(r)
        adjoint_into_of("the operator", self.of, self.vectors)(r, image)
        pairs.correct(image, x)

    def cause(self) -> str:
        if self.batch is not None:
            return ""
        return not_adjoint(forward_of("the operator", self.A), adjoint_of("the operator", self.A), self.b)


@recorded(hermitian=False)
@named
@sharing
def cgnr(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any regular A that has an adjoint, by conjugate gradients of A^H A x = A^H b.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose other arguments these are. `A` is an operator
    with `matvec` and `rmatvec`. The tolerance is that of |b - A x|.

    Raises:
        SolverError: as `gcr`; where it fails it says whether `rmatvec` is the adjoint of `matvec`.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments("cgnr", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    return solved(
        CGNR.of_workspace(more, A, b, x0, rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
