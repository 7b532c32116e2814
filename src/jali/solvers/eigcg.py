"""EigCG: conjugate gradients that find low eigenvectors of their operator on the way (A. Stathopoulos and K. Orginos, SIAM J. Sci. Comput. 32 (2010) 439).

Residuals of conjugate gradients are Lanczos vectors, and the lengths of its steps the projected matrix. A window of them is kept; when it is full, it shrinks to the
lowest Ritz vectors and those of one step before, which is nearly as good as an unlimited window. The recursion is that of `cg`, and does not notice.

A `Harvest` collects the vectors of several right-hand sides (incremental eigCG): each solve begins with the solution within them. They are rough, so what
they stand for comes back into the residual. Where it is more than a part of it, the recursion ends, its Ritz vectors are taken, of eigenvectors
that are new as long as those known are absent, and another one begins from the residual, deflated again. That is our own addition: without it a
solve finds again what others have found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jali import tape_recorder
from jali.comm.validation import integer
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.conjugate_gradient import ConjugateGradients
from jali.solvers.eigenpairs import Eigenpairs, check_digest
from jali.solvers.operators import digest_of, has_batch, into_of, joins_members
from jali.solvers.recursion import Solution
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments, check_tolerances
from jali.solvers.subspaces import agreed, meeting, operations

LEAST_NEW = 0.05  # part of a vector outside of those that are known, below which it is none
LOW = 0.1  # of the largest Ritz value, above which eigenvalues slow no solve
MOST_RISE = 2.0  # of a Ritz value, where what is known is taken out of its vector
INDEPENDENT = 1e-8  # of Ritz vectors of two steps, relative
ROUNDING = 20  # of eigenvalues, relative to the largest
TOGETHER = 8  # vectors that are made at a time
EVERY = 20  # iterations after which it is looked at how much of the residual lies within the harvest
LEAST_GAIN = 1e-3  # of the residual between two deflations, or they become half as frequent: where eigenvalues are missing they disturb


class Harvest:
    """Approximate eigenvectors of small eigenvalues of one operator, from solves of `eigcg`: `vectors`, orthonormal, and the operator projected on them.

    `most` is how many it takes; `accept` the residual of a Ritz vector, relative to its value, above which it is left out. It deflates as `Eigenpairs` do: by
    `deflate` and `correct`, or as `deflation=` of any solver; the solution within its vectors is that of the projected operator, so they need not be eigenvectors.
    Raises ParameterError for impossible numbers.
    """

    def __init__(self, most: int = 128, accept: float = 0.1):
        if (found := integer(most)) is None or found < 1:
            raise ParameterError(
                f"a harvest takes a positive whole number of vectors, not {value_shown(most)}"
            )
        check_tolerances("harvest", accept=accept)
        self.most, self.accept = int(most), float(accept)
        self.vectors: list[Any] = []
        self._room: list[Any] = []
        self.H = np.zeros((0, 0))
        self.applications = 0
        self.digest: Any = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        values = np.linalg.eigvalsh(self.H) if len(self) else [math.nan]
        return f"<harvest of {len(self)} vectors, at most {self.most}, Ritz values from {values[0]:.6g} to {values[-1]:.6g}>"

    def check(self, A: Any) -> None:
        """Raises ParameterError where A has another digest than the operator of these vectors."""
        check_digest(self.digest, A)

    def deflate(self, b: Any) -> Any:
        """The solution of A x = b within these vectors, U (U^dagger A U)^-1 U^dagger b: an x0. Raises what `Eigenpairs.deflate` does."""
        x0 = operations(b).like(b)
        self.correct(b, x0)
        return x0

    def correct(self, r: Any, x: Any) -> None:
        """Adds to x the solution of A e = r within these vectors. Raises what `Eigenpairs.deflate` does."""
        if not self.vectors:
            return
        of_r = meeting("deflate: b", r, self.vectors[0])
        products = of_r.inner_products(self.vectors, r)
        of_r.add_several(x, agreed(of_r.ranks(r), np.linalg.solve(self.H, products)), self.vectors)

    def take(self, candidates: Sequence[tuple[float, Any]], of_A: Callable[[Any, Any], object]) -> None:
        """Adds what is new in these vectors, which have such Ritz values, where it is an approximate eigenvector of such a value, too. `of_A` writes A p
        into q, and is called once for each."""
        for value, y in candidates[: self.most - len(self)]:
            vectors = operations(y)
            for _ in range(2):
                if self.vectors:
                    vectors.add_several(y, -vectors.inner_products(self.vectors, y), self.vectors)
            left = math.sqrt(vectors.norm2(y))
            if left < LEAST_NEW:
                continue
            vectors.update([(y, 1 / left, [])])
            image = vectors.like(y)
            of_A(y, image)
            self.applications += 1
            column = vectors.inner_products([*self.vectors, y], image)
            outside = vectors.norm2(image) - float(np.sum(np.abs(column) ** 2))
            if outside > (self.accept * column[-1].real) ** 2 or column[-1].real > MOST_RISE * value:
                continue
            if len(self) == len(self._room):
                self._room += vectors.several(y, TOGETHER)
            kept = self._room[len(self)]
            vectors.update([(kept, 0, [(1, y)])])
            self.vectors.append(kept)
            H = np.zeros((len(self), len(self)), np.result_type(self.H, column))
            H[:-1, :-1], H[:, -1], H[-1, :] = self.H, column, column.conj()
            H[-1, -1] = column[-1].real
            self.H = H

    def eigenpairs(self, A: Any, count: int | None = None) -> Eigenpairs:
        """The lowest Ritz pairs, all of them if left out: orthonormal vectors, with residuals measured by A, which is applied once to each.

        They are `converged` to no tolerance: `bound` is the largest residual. `jali.solvers.lanczos(A, like, n, start=pairs)` goes on from them.
        Raises ParameterError for an empty harvest, a count that is not from 1 to its number of vectors, and an operator with another digest.
        """
        number = len(self) if count is None else integer(count)
        if number is None or not 1 <= number <= len(self):
            raise ParameterError(
                f"eigenpairs: a harvest of {len(self)} vectors has not {value_shown(count)} pairs"
            )
        self.check(A)
        vectors = operations(self.vectors[0])
        apply = into_of("eigenpairs: A", A, vectors)
        values, S = (agreed(vectors.ranks(self.vectors[0]), found) for found in np.linalg.eigh(self.H))
        found, residuals = vectors.several(self.vectors[0], number), []
        vectors.combine_several(found, S[:, :number], self.vectors)
        image = vectors.like(self.vectors[0])
        for value, y in zip(values[:number], found, strict=True):
            apply(y, image)
            residual = vectors.update([(image, 1, [(-float(value), y)])], norm=True)
            residuals.append(math.sqrt(residual))
        rounding = ROUNDING * vectors.epsilon(found[0]) * float(np.abs(values).max())
        return Eigenpairs(
            values[:number],
            found,
            np.array(residuals),
            self.applications + number,
            0,
            max(residuals),
            rounding,
            False,
            digest=self.digest,
        )


class Harvested(NamedTuple):
    """What `eigcg` found: the solution, and the harvest, to be given to the solve for the next right-hand side."""

    solution: Solution
    harvest: Harvest


@named
@sharing
def eigcg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    harvest: Harvest | None = None,
    pairs: int = 8,
    window: int = 64,
    restart: float = 0.2,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    **more: Any,
) -> Harvested:
    """Solves A x = b for a Hermitian positive definite A, and finds eigenvectors of its smallest eigenvalues on the way.

        harvest = None
        for b in sources:
            solution, harvest = eigcg(A, b, harvest=harvest)

    The iterations of the k-th solve fall, as long as the harvest has room, and are those of `cg` for the first. An iteration is one of `cg` and a copy; a
    full window, every window - 2 pairs iterations, is 2 pairs sums of all its vectors; a restart, and the end, are `pairs` applications of A and inner
    products with the harvest, those also every 20 iterations. Memory is that of window + 3 pairs vectors, and of the harvest. There are no graphs.

    Args:
        A: an operator with `matvec`, or a function that writes A p into q, as `jali.solvers.cg` takes it.
        b: right-hand side, one vector of any kind.
        x0: where to start; zero if left out.
        harvest: what earlier solves found, to which this one adds, in place. Left out a new one, `Harvest()`.
        pairs: Ritz vectors that a solve gives, at most, and each restart of it.
        window: Lanczos vectors that are kept, above 2 pairs + 1.
        restart: deflate again when more than this part of |r| lies within the harvest, which is looked at every 20 iterations.
        rtol, atol, maxiter, callback, must_converge: as of `cg`.

    Raises:
        SolverError: as `cg` does.
        ParameterError: impossible numbers, vectors of another kind, a harvest of an operator with another digest.
        LayoutError: a field with a batch whose members A does not join: solves are one after the other; a harvest of vectors of another form.
    """
    tape_recorder.refuse("jali.solvers.eigcg", "call it before the tape, or solve by jali.solve")
    check_arguments("eigcg", rtol, atol, maxiter=maxiter, pairs=pairs, window=window)
    check_tolerances("eigcg", restart=restart)
    if window < 2 * pairs + 2:
        raise ParameterError(
            f"eigcg: a window of {window} vectors has no room for {pairs} pairs: it has {2 * pairs + 2} at least"
        )
    if has_batch(b) and not joins_members(A):
        raise LayoutError(
            "eigcg: b has a batch, and one solve learns from another: give its members one after the other, b.members[k]"
        )
    harvest = Harvest() if harvest is None else harvest
    if not isinstance(harvest, Harvest):
        raise ParameterError(f"eigcg: harvest is a jali.solvers.Harvest, not {value_shown(harvest)}")
    if more.get("deflation") is not None:
        raise ParameterError("eigcg: its harvest deflates, so there is no other deflation")
    harvest.check(A)
    if harvest.vectors:
        meeting("eigcg: b", b, harvest.vectors[0])
    run = EigCG(A, b, x0, rtol, atol, harvest, int(pairs), int(window), float(restart))
    more["deflation"] = harvest if len(harvest) else None
    solution = solved(run, maxiter, must_converge, 1, callback, **more)
    assert isinstance(solution, Solution)
    run.reap()
    if harvest.digest is None:
        harvest.digest = digest_of(A)
    return Harvested(solution, harvest)


class EigCG(ConjugateGradients):
    """Conjugate gradients with a window of residuals: `V` has the first `filled` Lanczos vectors, and `T` the operator projected on them."""

    name = "eigcg"
    leaves = False

    def __init__(
        self,
        A: Any,
        b: Any,
        x0: Any,
        rtol: float,
        atol: float,
        harvest: Harvest,
        pairs: int,
        window: int,
        restart: float,
    ):
        self.harvest, self.pairs, self.window, self.restart = harvest, pairs, window, restart
        self.V: list[Any] = []
        self.aside: list[Any] = []
        self.T = np.zeros((0, 0))
        self.filled = 0
        self.collects = len(harvest) < harvest.most
        self.length, self.weight = 0.0, 0.0  # alpha and beta of the last step
        self.shrunk: Any = None  # A p of the step before, where the window has shrunk after that
        self.every = EVERY
        super().__init__(A, b, x0, rtol, atol)

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not len(self.T):
            self.T = np.zeros((self.window, self.window), complex if self.complex else float)
        self._clear()  # residuals are not orthogonal to those of before
        return super().begin(rr)

    def resumed(self) -> None:
        self.collects = False
        super().resumed()

    def _clear(self) -> None:
        self.T[...], self.filled = 0, 0
        self.length, self.weight, self.shrunk = 0.0, 0.0, None

    def step(self, rr: Any) -> tuple[list[Any], list[Any], list[Any]]:
        if self.collects:
            if self.filled == self.window:
                self._shrink()
            if self.filled == len(self.V):
                self.V += self.vectors.several(self.r, TOGETHER)
            self.vectors.update([(self.V[self.filled], 0, [(1 / math.sqrt(float(self.squares)), self.r)])])
        return super().step(rr)

    def note(self, found: list[Any], watched: list[Any], limit: list[Any]) -> None:
        before = float(self.squares)
        super().note(found, watched, limit)
        if self.collects:
            self._collect(before, float(np.real(watched[0])), float(found[0]))

    def iterate(self) -> None:
        super().iterate()
        done = self.iterations - self.since
        if self.harvest.vectors and done and done % self.every == 0 and not self.converged:
            products = self.vectors.inner_products(self.harvest.vectors, self.r)
            if np.linalg.norm(products) > self.restart * math.sqrt(float(self.squares)):
                self._deflate_again()

    def _deflate_again(self) -> None:
        """Takes the harvest out of the residual, from which the recursion begins again; what the window has found so far joins the harvest."""
        self.reap()
        residual = float(self.history[-1])
        self.every *= 1 if residual < LEAST_GAIN * float(self.history[self.since]) else 2
        squares = self.deflate(self.harvest)
        self.go_on(squares, np.sqrt(squares) / self.true_sizes > self.tolerances)

    def reap(self) -> None:
        """Gives the harvest what the window has."""
        self.harvest.take(self._ritz_vectors(), self.apply)
        self.collects = self.collects and len(self.harvest) < self.harvest.most

    def _collect(self, before: float, curvature: float, after: float) -> None:
        """The column of the projected matrix of the last vector, from the numbers of its step: |r|^2 before and after, p^dagger A p."""
        n, length = self.filled, before / curvature
        self.T[n, n] = 1 / length + (self.weight / self.length if self.length else 0.0)
        if self.shrunk is not None:  # A r = A p - beta times the last A p
            self.vectors.update([(self.shrunk, -self.weight, [(1, self.q)])])
            products = self.vectors.inner_products(self.V[:n], self.shrunk) / math.sqrt(before)
            self.T[:n, n], self.T[n, :n], self.shrunk = products, products.conj(), None
        elif n:
            self.T[n - 1, n] = self.T[n, n - 1] = -math.sqrt(self.weight) / self.length
        self.filled += 1
        self.length, self.weight = length, after / before

    def _lowest(self, n: int) -> np.ndarray:
        """Coefficients of the lowest Ritz vectors of the first n Lanczos vectors, as columns of the whole window."""
        _, S = np.linalg.eigh(self.T[:n, :n])
        found = np.zeros((self.filled, min(self.pairs, n)), self.T.dtype)
        found[:n] = S[:, : self.pairs]
        return found

    def _shrink(self) -> None:
        """The window becomes the lowest Ritz vectors, and those of one step before."""
        m = self.filled
        both = np.hstack([self._lowest(m), self._lowest(m - 1)])
        Q, sizes, _ = np.linalg.svd(both, full_matrices=False)
        Q = Q[:, sizes > INDEPENDENT * sizes[0]]
        values, Z = np.linalg.eigh(Q.conj().T @ self.T[:m, :m] @ Q)
        ranks = self.vectors.ranks(self.r)
        values, S = agreed(ranks, values), agreed(ranks, Q @ Z)
        k = len(values)
        while len(self.aside) < k:
            self.aside += self.vectors.several(self.r, TOGETHER)
        self.vectors.combine_several(self.aside[:k], S, self.V[:m])
        whole = -(-k // TOGETHER) * TOGETHER
        self.V[:whole], self.aside[:whole] = self.aside[:whole], self.V[:whole]
        self.T[...] = 0
        self.T[range(k), range(k)] = values
        self.filled = k
        self.shrunk = self.vectors.copy(self.q)

    def _ritz_vectors(self) -> list[tuple[float, Any]]:
        """The lowest Ritz pairs whose residual the harvest accepts; vectors have the norm 1 nearly."""
        n = self.filled
        if not n or not self.length or len(self.harvest) >= self.harvest.most:
            return []
        values, S = np.linalg.eigh(self.T[:n, :n])
        ranks = self.vectors.ranks(self.r)
        values, S = agreed(ranks, values), agreed(ranks, S)
        coupling, found = math.sqrt(self.weight) / self.length, []
        for value, column in zip(values[: self.pairs], S.T, strict=False):
            if value < LOW * values[-1] and coupling * abs(column[-1]) <= self.harvest.accept * value:
                y = self.vectors.like(self.r)
                self.vectors.add_several(y, column, self.V[:n], own=0)
                found.append((float(value), y))
        return found
