"""A search for eigenvectors by thick-restart Lanczos (K. Wu and H. Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602), which `jali.solvers.lanczos` starts.

The basis ends with a queue of vectors whose images are not known yet: one, a block of several, or vectors from elsewhere. A step takes the first one, makes its
image orthogonal to all others, twice, and puts what is left at the end of the queue, or nothing where nothing is left (A. Ruhe, Math. Comp. 33 (1979) 680:
band Lanczos). The projected matrix consists of measured inner products, so any vector may join: a random one, or one of an earlier search. A block of p
start vectors sees p copies of an eigenvalue; a search is followed by others, each from random vectors orthogonal to what was found, until one finds
nothing new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError, SolverError
from jali.solvers.causes import LEAST_DEFECT, not_hermitian
from jali.solvers.eigenpairs import Eigenpairs
from jali.solvers.eigs import random_like
from jali.solvers.operators import has_batch, into_of
from jali.solvers.spectral_filter import LEAST_OVER, ChebyshevFilter
from jali.solvers.subspaces import agreed
from jali.vectors import Vectors, random, sums

ROUNDING = 20  # roundings of the largest eigenvalue, to which a residual can be lowered
INVARIANT = 100  # roundings of the largest number of the recursion, below which the next vector is none
SURELY = 0.01  # part of the weight that a random vector has in an eigenvector, see `Search._nothing_below`
STRICTNESS = 0.5  # the part of the tolerance that estimates have to reach
REFINED = 0.1  # and that in refinements
REFINEMENTS = 4  # searches that begin with residuals above the tolerance
SLACK = 4  # times what vectors have lost may products with them differ from zero
LOCKED = 0.1  # part of what estimates have to reach, below which a vector stays as it is
TOGETHER = 8  # vectors that are made at a time


# ---- the operator --------------------------------------------------------------------------------------


class CountedOperator:
    """A as a function that writes, with its applications counted; `images` are those of several vectors, of fields together."""

    def __init__(self, A: Any, vectors: Vectors, like: Any, block: int):
        self.vectors, self.like, self.block = vectors, like, block
        self.function = into_of("lanczos: the operator", A, vectors)
        self.applications = 0
        self.source, self.image = (vectors.batch_of(like, block) if block > 1 else None for _ in range(2))
        self.sources, self.results = (
            [] if batch is None else list(batch.members) for batch in (self.source, self.image)
        )

    def __call__(self, p: Any, q: Any) -> None:
        self.function(p, q)
        self.applications += 1 if has_batch(self.like) else getattr(p, "batch", None) or 1

    def images(self, ps: Sequence[Any], q: Any, polynomial: ChebyshevFilter | None) -> Iterator[None]:
        """Writes the images of vectors p, under the polynomial if there is one, into the vector q one after the other."""
        if len(ps) < self.block or self.block == 1 or self.source is None:
            for p in ps:
                self._image(p, q, polynomial)
                yield
            return
        for p, member in zip(ps, self.sources, strict=True):
            self.vectors.update([(member, 0, [(1, p)])])
        try:
            self._image(self.source, self.image, polynomial)
        except LayoutError as error:
            raise LayoutError(
                f"lanczos: block={self.block} applies the operator to fields with a batch of {self.block}: {error}"
            ) from None
        for member in self.results:
            self.vectors.update([(q, 0, [(1, member)])])
            yield

    def _image(self, p: Any, q: Any, polynomial: ChebyshevFilter | None) -> None:
        if polynomial is None:
            self(p, q)
        else:
            polynomial.apply(self.vectors, self, p, q)

    def check_hermitian(self) -> None:
        """Raises SolverError, with numbers, where it is not. Three applications."""
        if wrong := self.not_hermitian():
            q = self.vectors.like(self.like)
            u = random_like(self.like)
            self(u, q)
            before, after = sums((u, _absolute), (q, _absolute))
            if 0 < after < before * self.least:
                raise self.too_small(after / before)
            raise SolverError(f"lanczos: {wrong}")

    def not_hermitian(self) -> str:
        """That it is not, with numbers; empty where it is."""
        q = self.vectors.like(self.like)

        def forward(x: Any) -> Any:
            self(x, q)
            return q

        return not_hermitian(forward, self.like)

    @property
    def least(self) -> float:
        """The size of an operator below which squares of what rounding leaves are no numbers any more."""
        epsilon = self.vectors.epsilon(self.like)
        return math.sqrt(float(np.finfo(np.float64 if epsilon < 1e-10 else np.float32).tiny)) / epsilon

    def too_small(self, size: float) -> SolverError:
        """The error of an operator of this size."""
        return SolverError(
            f"lanczos: the squares of numbers about {size:.2g}, which the operator gives of vectors of norm 1, are too small for "
            f"{self.vectors.precision(self.like)}; scale the operator up"
        )


def _absolute(part: Any) -> Any:
    return abs(part).sum()


# ---- the search ----------------------------------------------------------------------------------------


class Search:
    """An orthonormal basis, and A projected on it.

    The first `done` of `slots` are vectors of the basis whose images are known; those after them, up to `filled`, are the queue. `H` is the projected matrix, of A or of the
    polynomial; its rows of the queue are what images have of it. sign H has the wanted eigenvalues at its lower end; numbers `theta` are its Ritz values.
    `lost` are the lengths of what images have outside of all this: residuals of vectors that were kept from an earlier search. `locked` are Ritz vectors
    that have converged: they stay as they are, and others orthogonal to them.
    """

    def __init__(
        self,
        operator: CountedOperator,
        polynomial: ChebyshevFilter | None,
        wanted: int,
        count: int,
        space: int,
        most: int,
        rtol: float,
        maxiter: int,
        seed: int,
    ):
        self.operator, self.polynomial, self.wanted = operator, polynomial, wanted
        self.vectors, self.like = operator.vectors, operator.like
        self.sign = wanted if polynomial is None else polynomial.sign
        self.count, self.rtol, self.maxiter = count, rtol, maxiter
        self.space, self.most = space, most  # that of now, and for a longer queue
        self.seed, self.starts = seed, 0
        self.epsilon = self.vectors.epsilon(self.like)
        is_complex = np.iscomplexobj(self.vectors.inner(self.like, self.like))
        self.ranks = self.vectors.ranks(self.like)
        self.H = np.zeros((2 * most, 2 * most), complex if is_complex else float)
        # always the same vectors, which change places: for others a kernel is prepared anew
        self.slots: list[Any] = []
        self.aside: list[Any] = []
        self.work = self.vectors.like(self.like)
        self.done, self.filled, self.steps = 0, 0, 0
        self.given = 0  # vectors that began the search
        self.lost, self.locked = np.zeros(0), np.zeros(0, bool)
        self.theta, self.estimates, self.outside = np.zeros(0), np.zeros(0), np.zeros(0)
        self.S = np.zeros((0, 0))
        self.scale, self.size = 0.0, 0.0
        self.strictness = STRICTNESS
        self.history: list[float] = []

    # ---- all of it ---------------------------------------------------------------------------------------

    def run(self, begin: Sequence[Any], must_converge: bool) -> Eigenpairs:
        """Searches until one finds nothing new, then measures residuals with A, and lowers those that are above the tolerance. Raises what `lanczos` does."""
        settled = self._searches(begin)
        found = self._measured(settled)
        for _ in range(REFINEMENTS):
            if not settled or found.converged:
                break
            self.strictness = min(self.strictness, REFINED)
            self._begin_again()
            settled = self._search(None)
            self._keep(self.count)
            found = self._measured(settled)
        if must_converge and not found.converged:
            raise SolverError(self._failure(found, settled), self.history)
        return found

    def _searches(self, begin: Sequence[Any]) -> bool:
        """Whether the searches came to an end within `maxiter` steps."""
        for x in begin:
            self._join(x)
        self.given = self.filled
        if begin:
            self._measure_scale()
        found, before = 0, np.zeros(0)
        while self.filled > self.done or self._join_random():
            ended = self._search(self._nothing_below if found else None)
            certain = self.operator.block > 1 and not (found or begin) and self._fewer_copies()
            self._keep(self.count)
            if not ended:
                return False
            new = len(before) < self.count or np.any(
                np.abs(self.theta - before) > 2 * self._bounds(self.theta)
            )
            if certain or (found and not new):
                return True
            found, before = found + 1, self.theta
        if self.done < self.count:
            raise ParameterError(
                f"lanczos: {self.count} eigenvectors are wanted, and such vectors have {self.done}"
            )
        return True  # all of the space is searched

    def _measure_scale(self) -> None:
        """The size of an image, which given vectors, of small eigenvalues maybe, do not show: rounding is relative to it."""
        self.vectors.update([(self.work, 0, [(1, random(self.like, self.seed << 20))])])
        self.vectors.update([(self.work, 1 / math.sqrt(self.vectors.norm2(self.work)), [])])
        image = self.vectors.like(self.like)
        for _ in self.operator.images([self.work], image, self.polynomial):
            self.scale = math.sqrt(self.vectors.norm2(image))

    def _search(self, and_then: Callable[[], bool] | None) -> bool:
        """Steps and restarts until all wanted pairs have converged by their estimates, and what is asked for then holds, or nothing is left of the Krylov space.

        False where `maxiter` was reached.
        """
        while True:
            while self.filled > self.done and self.done < self.space and self.steps < self.maxiter:
                self._step()
            self.space = max(self.space, min(self.most, self.count + 4 * (self.filled - self.done)))
            self._diagonalise()
            if self.polynomial is not None and self.theta[-1] > 1 + LEAST_OVER:
                raise self.polynomial.too_short("")
            estimates = self.estimates[: self.count]
            self.history.append(float((estimates / self._slopes(self.theta[: self.count])).max()))
            if self.filled == self.done:
                return True
            converged = self.done >= self.count and np.all(
                estimates <= self._bounds(self.theta[: self.count])
            )
            if converged and (and_then is None or and_then()):
                return True
            if self.steps >= self.maxiter:
                return False
            self._restart()

    def _nothing_below(self) -> bool:
        """Whether what a search from a new random vector u sees behind the wanted eigenvalues is no missed copy of one of them.

        An eigenvector has the weight <v, u>, about 1/sqrt(size). The search does not lower it, since it amplifies wanted ones most. So the lowest Ritz vector has a residual
        of at least this weight times the distance of its value from a missed one: where it is much smaller, none is missed.
        """
        k = self.count
        if self.done <= k:
            return False
        distance = self.theta[k] - self.theta[k - 1]
        bound = max(float(self._bounds(self.theta[: k + 1])[k]), SURELY / math.sqrt(self.size) * distance)
        return bool(self.estimates[k] <= bound)

    def _fewer_copies(self) -> bool:
        """Whether there are the wanted eigenvalues, and none has as many copies as a block of random vectors sees of it."""
        if self.done < self.count:
            return False
        theta = self.theta[: self.count]
        ends = np.diff(theta) > 2 * self._bounds(theta)[1:]
        at = np.concatenate([[0], np.flatnonzero(ends) + 1, [len(theta)]])
        return bool(np.diff(at).max() < self.operator.block)

    # ---- vectors that join -------------------------------------------------------------------------------

    def _put(self, k: int, factor: Any, x: Any) -> None:
        """Vector k of the basis becomes so much of x."""
        if k == len(self.slots):
            self.slots += self.vectors.several(self.like, TOGETHER)
        self.vectors.update([(self.slots[k], 0, [(factor, x)])])

    def _join_random(self) -> bool:
        """Puts a block of random vectors into the queue; False where the basis has all of the space."""
        for _ in range(self.operator.block):
            self.starts += 1
            self._join(random(self.like, (self.seed << 20) + self.starts), weighed=True)
        return self.filled > self.done

    def _join(self, u: Any, weighed: bool = False) -> None:
        """Makes u orthonormal to all vectors and puts it into the queue, unless nothing is left of it."""
        self.vectors.update([(self.work, 0, [(1, u)])])
        norm = math.sqrt(self.vectors.norm2(self.work))
        if weighed:
            self.size = max(self.size, 3 * norm * norm)  # numbers of a mean square of 1/3 or more
        _, left = self._orthogonalised()
        if left > INVARIANT * self.epsilon * norm:
            self._append(1 / left)

    def _append(self, factor: float) -> None:
        """Puts so much of `work`, which is orthogonal to all others, into the queue."""
        n = self.filled
        self._put(n, factor, self.work)
        self.H[n] = self.H[:, n] = 0
        self.filled += 1

    def _begin_again(self) -> None:
        """A search whose queue are the vectors of the basis: their images and residuals are measured anew."""
        self.filled, self.given, self.done = self.done, self.done, 0
        self.lost, self.locked = np.zeros(0), np.zeros(0, bool)
        self.H[...] = 0

    # ---- steps -------------------------------------------------------------------------------------------

    def _orthogonalised(self) -> tuple[np.ndarray, float]:
        """Takes from `work` what the basis and the queue have of it; the inner products, and the norm of what is left.

        Twice is enough (L. Giraud, J. Langou and M. Rozloznik, Comput. Math. Appl. 50 (2005) 1069) unless nearly nothing is left.
        """
        n, work, left = self.filled, self.work, math.inf
        total, basis = np.zeros(n, self.H.dtype), self.slots[:n]
        for turn in range(4):
            before = left
            if n:
                products = self.vectors.inner_products(basis, work)
                if not np.all(np.isfinite(products)):
                    return products, math.nan
                self.vectors.add_several(work, -products, basis)
                total += products
            left = math.sqrt(self.vectors.norm2(work))
            if not math.isfinite(left) or not n or (turn and left >= 0.5 * before):
                break
        return total, left

    def _step(self) -> None:
        """The images of the first vectors of the queue, which join the basis."""
        number = min(
            self.operator.block, self.filled - self.done, self.space - self.done, self.maxiter - self.steps
        )
        sources = self.slots[self.done : self.done + number]
        for _ in self.operator.images(sources, self.work, self.polynomial):
            self._note()

    def _note(self) -> None:
        """Takes in the image of the first vector of the queue, which is `work`, and puts what is left of it at the end."""
        j, n = self.done, self.filled
        self.steps += 1
        products, left = self._orthogonalised()
        if not math.isfinite(left):
            raise self._bad_numbers()
        self.scale = max(self.scale, float(np.abs(products).max()), left)
        if 0 < self.scale < self.operator.least:
            raise self.operator.too_small(self.scale)
        self._check_hermitian(products)
        neglected = float(np.linalg.norm(products[:j][self.locked]))  # up to what these have lost
        products[:j][self.locked] = 0
        self.H[:n, j], self.H[j, :n] = products, products.conj()
        self.H[j, j] = products[j].real
        self.done += 1
        self.lost, self.locked = np.append(self.lost, neglected), np.append(self.locked, False)
        nothing = self._negligible() if j < self.given else INVARIANT * self.epsilon * self.scale
        if left <= nothing:
            self.lost[j] = math.hypot(left, neglected)
            return
        self._append(1 / left)
        self.H[n, j] = left

    def _negligible(self) -> float:
        """The residual of the last of the vectors that began the search, below which it is none."""
        theta = self.sign * self.H[: self.done, : self.done].diagonal().real
        return (
            LOCKED
            * self.strictness
            * self._tolerance(self._eigenvalues(theta))
            * float(self._slopes(theta)[-1])
        )

    def _check_hermitian(self, products: np.ndarray) -> None:
        """Raises SolverError unless <v_i, A v> is the conjugate of <v, A v_i>, which is known."""
        j = self.done
        defects = np.abs(products[: j + 1] - self.H[j, : j + 1].conj())
        defects[j] = abs(products[j].imag)
        degree = 1 if self.polynomial is None else self.polynomial.degree
        slack = SLACK * float(np.linalg.norm(self.lost))
        if defects.max() > LEAST_DEFECT * degree * self.epsilon * self.scale + slack:
            k = int(defects.argmax())
            measured = "" if has_batch(self.like) else self.operator.not_hermitian()
            raise SolverError(
                f"lanczos, step {self.steps}: "
                + (
                    measured
                    or f"the operator is not Hermitian: <u, A v> = {products[k]:.6g} and <A u, v> = "
                    f"{self.H[j, k].conj() if k < j else products[j].conj():.6g} of two Lanczos vectors"
                )
            )

    def _bad_numbers(self) -> SolverError:
        if self.polynomial is not None:
            return SolverError(
                f"lanczos, step {self.steps}: the operator gave infinities or nan, or the polynomial of degree {self.polynomial.degree} overflows beyond "
                "its window, which must reach to the other end of the spectrum"
            )
        return SolverError(
            f"lanczos, step {self.steps}: the operator gave infinities or nan, or numbers whose squares overflow, of a vector of norm 1"
        )

    # ---- Ritz pairs --------------------------------------------------------------------------------------

    def _diagonalise(self) -> None:
        """Ritz values, ascending, coefficients of their vectors, and |A v - theta v| of each, as far as it may fall, and what has been lost."""
        n = self.done
        T = self.sign * self.H[:n, :n]
        T = (T + T.conj().T) / 2
        active, locked = np.flatnonzero(~self.locked), np.flatnonzero(self.locked)
        theta, S = np.linalg.eigh(T[np.ix_(active, active)])
        theta, S = (agreed(self.ranks, found) for found in self._parted(theta, S, active))
        self.S = np.zeros((n, n), T.dtype)
        self.S[active, : len(active)] = S
        self.S[locked, np.arange(len(active), n)] = 1
        theta = np.concatenate([theta, T[locked, locked].real])
        order = np.argsort(theta, kind="stable")
        self.theta, self.S = theta[order], np.ascontiguousarray(self.S[:, order])
        self.estimates = np.sqrt(np.sum(np.abs(self._couplings()) ** 2, axis=0))
        self.outside = np.sqrt(self.lost**2 @ np.abs(self.S) ** 2)

    def _parted(self, theta: np.ndarray, S: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of Ritz values that are equal up to rounding other vectors, first those that have converged: copies that appear late would be in all of them, and
        none would end."""
        B, near = self.H[self.done : self.filled, active], INVARIANT * self.epsilon * self.scale
        first = 0
        while first < len(theta):
            last = first + 1
            while last < len(theta) and theta[last] - theta[first] <= near:
                last += 1
            if last - first > 1 and len(B):
                *_, V = np.linalg.svd(B @ S[:, first:last])
                V = V[::-1].conj().T  # the smallest couplings first
                S[:, first:last] = S[:, first:last] @ V
                theta[first:last] = theta[first:last] @ np.abs(V) ** 2
            first = last
        return theta, S

    def _couplings(self) -> np.ndarray:
        """What images of Ritz vectors have of the vectors of the queue."""
        return self.H[self.done : self.filled, : self.done] @ self.S

    def _restart(self) -> None:
        """Goes on with the wanted Ritz vectors, some of the next ones, and the queue. Of those that have converged the rest is lost."""
        done, queue = self.done, self.filled - self.done
        k = self.count + max(1, (self.space - self.count) // 2)
        k = min(k + (self.space - k) % self.operator.block, done)  # what follows are whole blocks
        couplings, lost = self._couplings()[:, :k], self.outside[:k].copy()
        locked = self.estimates[: self.count] <= LOCKED * self._bounds(self.theta[: self.count])
        locked = np.append(locked, np.zeros(max(0, k - self.count), bool))[:k]
        lost[locked] = np.hypot(lost, self.estimates[:k])[locked]
        couplings[:, locked] = 0
        self._keep(k)
        self.lost, self.locked = lost, locked
        for at in range(queue):
            self._put(k + at, 1, self.aside[done + at])
        self.filled = k + queue
        self.H[k : k + queue, :k], self.H[:k, k : k + queue] = couplings, couplings.conj().T

    def _keep(self, k: int) -> None:
        """The first Ritz vectors become the basis, without a queue."""
        n, k = self.done, min(k, self.done)
        while len(self.aside) < len(self.slots):
            self.aside += self.vectors.several(self.like, TOGETHER)
        self.vectors.combine_several(self.aside[:k], self.S[:, :k], self.slots[:n])
        self.slots, self.aside = self.aside, self.slots
        self.done = self.filled = k
        self.given = 0
        self.theta = self.theta[:k]
        self.H[...] = 0
        self.H[range(k), range(k)] = self.sign * self.theta
        self.lost, self.locked = np.hypot(self.estimates, self.outside)[:k], np.zeros(k, bool)

    # ---- what is asked of them ---------------------------------------------------------------------------

    def _eigenvalues(self, theta: np.ndarray) -> np.ndarray:
        return self.sign * theta if self.polynomial is None else self.polynomial.eigenvalues(theta)

    def _slopes(self, theta: np.ndarray) -> np.ndarray:
        return np.ones_like(theta) if self.polynomial is None else self.polynomial.slopes(theta)

    def _tolerance(self, values: np.ndarray) -> float:
        """Of residuals of A."""
        return max(self.rtol * float(np.abs(values).max(initial=0.0)), self._rounding(values))

    def _rounding(self, values: np.ndarray) -> float:
        """To how much of a residual rounding leaves."""
        largest = float(np.abs(values).max(initial=0.0))
        if self.polynomial is None:
            largest = max(largest, self.scale)
        else:
            largest = max(largest, abs(self.polynomial.a), abs(self.polynomial.b))
        return ROUNDING * self.epsilon * largest

    def _bounds(self, theta: np.ndarray) -> np.ndarray:
        """The tolerance of estimates of such Ritz pairs."""
        tolerance = self._tolerance(self._eigenvalues(theta[: self.count]))
        return self.strictness * tolerance * self._slopes(theta)

    # ---- ends --------------------------------------------------------------------------------------------

    def _measured(self, settled: bool) -> Eigenpairs:
        """Eigenvalues and residuals, by A. Raises SolverError where the window is wrong."""
        values, residuals = np.zeros(self.done), np.zeros(self.done)
        q, basis = self.work, self.slots[: self.done]
        for k, x in enumerate(basis):
            self.operator(x, q)
            values[k] = np.real(self.vectors.inner(x, q))
            residuals[k] = math.sqrt(self.vectors.update([(q, 1, [(-float(values[k]), x)])], norm=True))
        if self.polynomial is not None:
            self.polynomial.check(values, settled)
        order = np.argsort(values, kind="stable")
        tolerance = self._tolerance(values)
        return Eigenpairs(
            values[order],
            [basis[k] for k in order],
            residuals[order],
            self.operator.applications,
            self.steps,
            tolerance,
            self._rounding(values),
            bool(settled and np.all(residuals <= tolerance)),
        )

    def _failure(self, found: Eigenpairs, settled: bool) -> str:
        """The message of a search that gave up."""
        converged = int(np.sum(found.residuals <= found.bound))
        said = (
            f"lanczos: {converged} of {self.count} eigenpairs have converged to |A v - lambda v| <= {found.bound:.3g} in {found.iterations} steps, "
            f"{found.applications} applications"
        )
        if settled:
            said += f"; further searches lower them no more, as rounding in {self.vectors.precision(self.like)} does"
            if self.polynomial is not None:
                said += (
                    ", which grows with the polynomial: a smaller degree or a window that ends nearer helps"
                )
        elif self.polynomial is not None and np.any(self.theta > -1 - LEAST_OVER):
            said += f"; only {int(np.sum(self.theta < -1 - LEAST_OVER))} of them are {self.polynomial.side}, with {self.polynomial}"
        elif converged == self.count:
            said += "; whether there are more copies of them is not settled, which takes a larger maxiter"
        else:
            said += "; a larger maxiter or space helps, or a polynomial (degree, window)"
        return f"{said}; residuals: {', '.join(f'{one:.3g}' for one in found.residuals)}"
