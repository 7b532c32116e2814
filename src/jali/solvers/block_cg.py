"""Block conjugate gradients with orthonormal residuals, for several right-hand sides in one Krylov space: BCGrQ of A. A. Dubrulle, ETNA 12 (2001) 216.

The residuals are R = Q C, with orthonormal columns of Q and a matrix C of numbers, and D are the directions. An iteration is

    Z = A D,  M = (D^dagger Z)^-1,  X += D M C,  Q S = Q - Z M,  D = Q + D S^dagger,  C = S C

A new Q is made in two passes: of the eigenvectors of the Gram matrix, and of Cholesky's factor of what this leaves. Where the columns depend on
each other, eigenvalues are zero, to rounding: such directions are left out, and Q and D have columns of zeros in their place. What is lost with them is
found by b - A x at the end, from which the recursion then starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.columns import Columns, of_each
from jali.solvers.eigs import SEED
from jali.solvers.elementwise import going, sqrt, times, where
from jali.solvers.host_matrices import host_matrix
from jali.solvers.krylov import Krylov
from jali.solvers.operators import has_batch, into_of, is_operator, joins_members, widened
from jali.solvers.recorded import recorded
from jali.solvers.recursion import NORMAL
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments
from jali.vectors import check_alike, is_list, vectors_of

MOST_MEMBERS = 16  # that share a space: matrices of numbers on a device are factorised up to this order
DEPENDENT = 8.0  # roundings of each member, below which an eigenvalue beside the largest one is zero
SOLVED = 16.0  # roundings, below which a new residual is zero beside the last one


def _alive(value: Any, largest: Any, relative: Any, least: Any) -> Any:
    return where((value > relative * largest) & (value > least), 1.0, 0.0)


def _root(value: Any, alive: Any) -> Any:
    return where(alive > 0, sqrt(value), 0.0)


def _inverse_root(value: Any, alive: Any) -> Any:
    return where(alive > 0, 1.0 / sqrt(value), 0.0)


def _padded(entry: Any, unit: Any, alive: Any, size: Any) -> Any:
    """A multiple of the unit matrix in place of rows and columns that are zero."""
    return entry + unit * (1.0 - alive) * where(size > 0, size, 1.0)


def _if_going(value: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), value, 0.0)


def _square(value: Any) -> Any:
    return abs(value) * abs(value)


def _kept(new: Any, old: Any, size: Any, tolerance: Any) -> Any:
    return where(going(old, size, tolerance), new, old)


class BlockCG(Krylov):
    """Q, which is r between iterations, the directions d, and z = A d. Matrices are arrays of numbers where the vectors are, else of the host."""

    name = "block_cg"
    leaves = False  # members share a space
    scratch = ("z", "w")
    watches_positive = True
    largest = 0.0  # root of a pivot of D^dagger A D
    steps = 2  # after which vectors lie as before: what is combined is none of what is written

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "d"):
            self.d, self.z, self.w = (self.vectors.like(self.b) for _ in range(3))
            assert self.batch is not None
            self.ranks = () if self.stay else self.vectors.ranks(self.b)
            self.unit = self._numbers(self.kept(np.eye(self.batch)))
        norms = np.sqrt(rr)
        inverse = np.where(norms > 0, 1 / np.where(norms > 0, norms, 1.0), 0.0)
        self._combine((self.w, 0, [(np.diag(inverse), self.r)]))
        T, S, alive = self._orthonormal(self.w, self.z)
        self._combine((self.r, 0, [(T, self.z)]), (self.d, 0, [(T, self.z)]))
        C = np.asarray(S) * norms
        return [C.astype(complex) if self.complex else C, np.asarray(alive), rr]

    def step(self, C: Any, alive: Any, rr: Any) -> tuple[list[Any], list[Any], list[Any]]:
        C, alive, rr = map(self._numbers, (C, alive, rr))
        sizes, tolerance = self._numbers(self.size), self._numbers(self.tolerance)
        q, w, d, z = self.r, self.w, self.d, self.z
        found: list[Any] = []
        watched: list[Any] = []
        for _ in range(self.steps):
            self.apply(d, z)
            product = self._gram(d, z)
            size = product.diagonal().real.sum()  # for rows that are zero
            factor = product.elementwise(_padded, product, self.unit, alive, size).cholesky()
            watched.append(factor.diagonal().real)
            inverse = factor.inverse()
            M = inverse.dagger() @ inverse
            along = rr.elementwise(_if_going, M @ C, rr, sizes, tolerance)
            self._combine((self.x, 1, [(along, d)]), (w, 0, [(None, q), (-M, z)]))
            T, S, alive = self._orthonormal(w, q)
            self._combine((w, 0, [(T, q)]), (z, 0, [(T, q), (S.dagger(), d)]))
            C = S @ C
            rr = rr.elementwise(_kept, C.elementwise(_square, C).sum(0), rr, sizes, tolerance)
            found.append(rr)
            q, w, d, z = w, q, z, d
            if not self.stay and self.ends(found):
                break
        return [C, alive, rr], found, watched

    def _orthonormal(self, w: Any, q: Any) -> tuple[Any, Any, Any]:
        """Writes vectors near to orthonormal ones into q, made of those in w. Returns T, S and 1 for each vector that is not zero: q T is
        orthonormal, and q T S = w."""
        assert self.batch is not None
        epsilon = self.vectors.epsilon(self.b)
        first = self._gram(w, w)
        values, vectors = first.eigh()
        relative, least = DEPENDENT * self.batch * epsilon, (SOLVED * epsilon) ** 2
        alive = values.elementwise(_alive, values, values[-1], relative, least)
        self._combine(
            (
                q,
                0,
                [(vectors.elementwise(times, vectors, values.elementwise(_inverse_root, values, alive)), w)],
            )
        )
        S = vectors.elementwise(times, vectors, values.elementwise(_root, values, alive)).dagger()
        second = self._gram(q, q)
        factor = second.elementwise(_padded, second, self.unit, alive, 1.0).cholesky().dagger()
        return factor.inverse(), factor @ S, alive

    # ---- matrices ----------------------------------------------------------------------------------------

    def _gram(self, x: Any, y: Any) -> Any:
        return self._numbers(self.vectors.gram(x, y, wait=self.waits))  # type: ignore[attr-defined]

    def _combine(self, *combinations: Any) -> None:
        if not self.stay:
            combinations = tuple(
                (y, own, [(None if C is None else np.asarray(C), x) for C, x in terms])
                for y, own, terms in combinations
            )
        self.vectors.combine(combinations)  # type: ignore[attr-defined]

    def _numbers(self, values: Any) -> Any:
        """An array of numbers that has `cholesky` and its like, where the vectors are, or of the host."""
        return values if hasattr(values, "elementwise") else host_matrix(values, self.ranks)

    # ---- what may be wrong -------------------------------------------------------------------------------

    def check(self, *watched: np.ndarray) -> None:
        for pivots in watched:
            if not self.going.any():
                return
            if np.all(np.isfinite(pivots)) and not self._singular(pivots):
                continue
            if np.all(np.isfinite(self._product_of_random())):
                what = f"not positive definite: the operator is singular, not positive definite or not Hermitian; {NORMAL}"
            else:
                what = "infinite or nan: the operator gave such numbers, or they overflow"
            raise self.error(self.going, f"D^dagger A D is {what}")

    def quick(self, squares: np.ndarray, watched: np.ndarray) -> bool:
        return not any(self._singular(pivots) for pivots in watched.reshape(-1, watched.shape[-1]))

    def _singular(self, pivots: np.ndarray) -> bool:
        """Whether one of these roots of pivots is only a rounding beside the largest one that there was."""
        self.largest = max(self.largest, float(np.max(pivots)))
        return bool(np.min(pivots) ** 2 <= len(pivots) * 2.0**-52 * self.largest**2)

    def cause(self) -> str:
        """That the operator is not Hermitian, or not one for all members."""
        product = self._product_of_random()
        size, skew = np.linalg.norm(product), np.linalg.norm(product - product.conj().T)
        if np.isfinite(skew) and skew > np.sqrt(self.vectors.epsilon(self.b)) * size:
            return "the operator is not Hermitian, or is another one for each member: X^dagger A X is not Hermitian for a random X"
        return ""

    def _product_of_random(self) -> np.ndarray:
        """X^dagger A X."""
        x, y = self.vectors.random(self.b, SEED), self.vectors.like(self.b)
        self.apply(x, y)
        return np.asarray(self.vectors.gram(x, y))  # type: ignore[attr-defined]


@recorded(hermitian=True)
@named
@sharing
def block_cg(
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
) -> BatchSolution:
    """Solves A X = B for a Hermitian positive definite A and several right-hand sides that share one Krylov space, by block conjugate gradients.

    Each x is the best one, in the norm of A, of a space that grows by as many directions an iteration as there are members. So there are fewer
    iterations than of `cg` where few eigenvalues are small: about as many as without so many of the smallest. Beside the applications an iteration costs three Gram matrices and
    as many combinations of all members. The operator is one for all members: one that has numbers of its own for each need not converge. Members stop one by one: x of one that has converged no longer changes. Right-hand sides may depend on each other, or be zero.

    Args:
        b: a field with a batch of at most 16 members, or a list of vectors, each of which A acts on: x is such a list then.
        x0: where to start, as b.
        maxiter: at most so many iterations, of fields rounded up to a multiple of 2.
        callback: called after two iterations.

    Others are those of `cg`.

    Raises:
        SolverError: as `cg`; D^dagger A D is not positive definite. Where it fails it says whether the operator is Hermitian.
        ParameterError: one right-hand side, too many, or an operator that joins members of a batch; else as `cg`, as LayoutError and RecordingError.
    """
    check_arguments("block_cg", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    columns = isinstance(b, list | tuple) and is_list(b)
    count = len(b) if columns else getattr(b, "batch", None)
    if count is None:
        vectors_of("block_cg: b", b)
        raise ParameterError(
            "block_cg: b is one right-hand side, and several share a space: a field with a batch or a list of vectors; cg solves for one"
        )
    if count > MOST_MEMBERS:
        raise ParameterError(
            f"block_cg: b has {count} members, and at most {MOST_MEMBERS} share a space: {'b' if columns else 'b.members'}[:{MOST_MEMBERS}] are some of them"
        )
    if joins_members(A):
        raise ParameterError(
            "block_cg: the operator joins the members of a batch, which are one vector: cg solves for it"
        )
    if columns:
        A, b, x0 = _in_columns(A, b, x0)
    found = solved(
        BlockCG.of_workspace(more, A, b, x0, rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
    assert isinstance(found, BatchSolution)
    return BatchSolution(list(found.x), found.members) if columns else found


def _in_columns(A: Any, b: Any, x0: Any) -> tuple[Any, Columns, Columns | None]:
    """The operator, right-hand sides and start of a list. Raises ParameterError, LayoutError for vectors of several forms."""
    if has_batch(b):
        raise ParameterError(
            "block_cg: b is a list in which there is a field with a batch: take f.members[k] of each, or the field itself"
        )
    for k, one in enumerate(b):
        check_alike(f"block_cg: b[{k}]", one, "b[0]", b[0])
    if x0 is not None and (not isinstance(x0, list | tuple) or len(x0) != len(b)):
        raise LayoutError(f"block_cg: x0 is a list of {len(b)} vectors, as b is, not {value_shown(x0)}")
    if is_operator(A):
        b = widened(list(b), A, x0)
        x0 = None if x0 is None else widened(list(x0), A, b)
    apply = of_each(into_of("the operator", A, vectors_of("block_cg: b[0]", b[0])))
    return apply, Columns(b), None if x0 is None else Columns(x0)
