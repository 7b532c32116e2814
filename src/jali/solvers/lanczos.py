"""Eigenvectors of Hermitian operators by thick-restart Lanczos (K. Wu and H. Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602).

The basis ends with a queue of vectors whose images are not known yet: one, a block of several, or vectors from elsewhere. A step takes the first one, makes its
image orthogonal to all others, twice, and puts what is left at the end of the queue, or nothing where nothing is left (A. Ruhe, Math. Comp. 33 (1979) 680:
band Lanczos). The projected matrix consists of measured inner products, so any vector may join: a random one, or one of an earlier search. A block of p
start vectors sees p copies of an eigenvalue; a search is followed by others, each from random vectors orthogonal to what was found, until one finds
nothing new.

The host drives it; there are no graphs. `eigenpairs.py` has what becomes of the vectors, `spectral_filter.py` the polynomial of the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jali.comm.validation import integer
from jali.errors import LayoutError, ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.causes import LEAST_DEFECT, not_hermitian
from jali.solvers.eigenpairs import Eigenpairs
from jali.solvers.eigs import random_like
from jali.solvers.operators import digest_of, has_batch, into_of, is_operator, joins_members, widened
from jali.solvers.solver import check_tolerances
from jali.solvers.spectral_filter import LEAST_OVER, ChebyshevFilter
from jali.solvers.subspaces import agreed, operations
from jali.vectors import Vectors, check_alike, random, sums, vectors_of

MAXITER = 10_000  # Lanczos steps
LEAST_ACTIVE = 3  # vectors of the space beyond those that are wanted
ROUNDING = 20  # roundings of the largest eigenvalue, to which a residual can be lowered
INVARIANT = 100  # roundings of the largest number of the recursion, below which the next vector is none
SURELY = 0.01  # part of the weight that a random vector has in an eigenvector, see `_Search._nothing_below`
STRICTNESS = 0.5  # the part of the tolerance that estimates have to reach
REFINED = 0.1  # and that in refinements
REFINEMENTS = 8  # searches that begin with residuals above the tolerance
LOCKED = 0.1  # part of what estimates have to reach, below which a vector stays as it is
MOST_TOGETHER = 64  # vectors of a block
TOGETHER = 8  # vectors that are made at a time


@named
def lanczos(
    A: Any,
    like: Any,
    count: int,
    *,
    which: str = "smallest",
    rtol: float = 1e-8,
    space: int | None = None,
    maxiter: int = MAXITER,
    degree: int | None = None,
    window: tuple[float, float] | None = None,
    block: int = 1,
    start: Any = None,
    storage: str | None = None,
    seed: int = 0,
    must_converge: bool = True,
) -> Eigenpairs:
    """The `count` smallest or largest eigenvalues of a Hermitian operator, and their eigenvectors; the operator may be indefinite.

    Eigenvalues come with their multiplicities: a run costs one search, and one more for each further copy of the most degenerate one, and one
    that finds nothing new. A search from a block of p vectors finds p copies, and is the last one where it finds fewer. Memory is that of up to 2 space vectors. A
    step is A once (with `degree` so often), and inner products with all vectors of the space, twice. Start vectors are random, the same on any number
    of ranks; of fields, so are the results.

    With `degree` and `window` the recursion runs on a Chebyshev polynomial of A, which is between -1 and 1 where eigenvalues are in the
    window, and grows fast beyond (Y. Zhou, Y. Saad, M. L. Tiago and J. R. Chelikowsky, J. Comput. Phys. 219 (2006) 172). The window [a, b] begins above
    the wanted eigenvalues, and b is not below the largest one; for the largest: it ends below the wanted ones, and a is not above the smallest one. This takes fewer
    steps, with fewer inner products, and often more applications. Values and residuals are those of A.

    Args:
        A: an operator with `matvec`, or a function that writes A p into q, as `jali.solvers.cg` takes it.
        like: a vector of the operator, of any kind that solvers know; its values do not matter, and stay. Of a field with a batch whose
            members A joins (`joins_members`), all of them are one vector. Where it is stored in few bits, so are the eigenvectors, and the
            search has the numbers of its arithmetic.
        count: how many.
        which: "smallest" or "largest", by value, not by modulus.
        rtol: stop when all |A v - lambda v| are at most this part of the largest |lambda| among the wanted ones. Where that is less than rounding
            allows, since all are about zero, the bound is 20 roundings of the largest eigenvalue that was seen.
        space: so many Lanczos vectors, count + 3 at least, of a block count + 3 block; if left out max(2 count, count + 20), with 4 for each vector of a block
            if that is more.
        maxiter: no more steps than this, each of which applies A, or the polynomial.
        degree: of the polynomial.
        window: its interval, (a, b).
        block: so many start vectors at once. A is applied to as many together where vectors are fields without a batch: to fields with a batch of so many.
        start: vectors to begin with, `Eigenpairs` or a list: those of a search that was saved, of another mass, or with a larger rtol. Eigenpairs of another
            configuration are refused; `pairs.vectors` are any vectors.
        storage: how eigenvectors are kept in the end, see `Eigenpairs.stored`.
        seed: of random vectors.
        must_converge: raise SolverError where a pair is above the tolerance in the end; otherwise return with `converged` False.

    Raises:
        SolverError: no convergence: with the number of pairs that converged, all residuals, and the largest one of each restart in `history`.
            Or A is not Hermitian, or produced infinities or nan, or eigenvalues are such that the window is wrong.
        ParameterError: impossible arguments, also a count above the number of eigenvectors that there are; vectors of an unsupported type.
        LayoutError: whole numbers; a field with a batch whose members A does not join; an operator that takes no batch; start vectors of another form.
    """
    number = _checked(count, which, rtol, space, maxiter, degree, window, block, seed)
    vectors_of("lanczos: like", like)
    if is_operator(A):
        like = widened(like, A)
    if has_batch(like) and (not joins_members(A) or isinstance(like, list | tuple)):
        raise LayoutError(
            "lanczos: like has a batch whose members the operator does not join, so that each has eigenvectors of its own: give one member, "
            "f.members[k]"
        )
    vectors = operations(like)
    epsilon = vectors.epsilon(like)  # refuses whole numbers
    if rtol < 4 * epsilon:
        raise ParameterError(
            f"lanczos: rtol={rtol:g} is below what rounding in {vectors.precision(like)} allows, {4 * epsilon:.2g}"
        )
    begin = _start_vectors(start, like, A)
    if storage is not None:
        vectors.stored(like, storage)  # refuses formats that there are not
    operator = _Operator(A, vectors, vectors.stored(like), int(block))
    if not has_batch(like):
        operator.check_hermitian()
    wanted = -1 if which == "largest" else 1
    polynomial = None if degree is None or window is None else ChebyshevFilter(degree, *window, wanted)
    room = max(2 * number, number + 20, number + 4 * block) if space is None else int(space)
    room = max(room, len(begin) + LEAST_ACTIVE * operator.block)
    room += -room % operator.block
    digest = digest_of(A)
    search = _Search(operator, polynomial, wanted, number, room, float(rtol), int(maxiter), int(seed))
    found = replace(search.run(begin, must_converge), digest=digest)
    if storage is None and vectors.storage(like) == vectors.storage(operator.like):
        return found
    zeros = vectors.like(like) if storage is None else vectors.stored(like, storage)
    found = found.stored_by(zeros, operator)
    return replace(found, applications=operator.applications)


def _checked(
    count: Any,
    which: Any,
    rtol: Any,
    space: Any,
    maxiter: Any,
    degree: Any,
    window: Any,
    block: Any,
    seed: Any,
) -> int:
    """The count. Raises ParameterError for arguments that are impossible for any operator."""
    check_tolerances("lanczos", rtol=rtol)
    if not 0 < rtol < 1:
        raise ParameterError(f"lanczos: rtol is between 0 and 1, not {value_shown(rtol)}")
    for name, value in (("count", count), ("maxiter", maxiter), ("degree", degree), ("block", block)):
        if (value is not None or name != "degree") and ((found := integer(value)) is None or found < 1):
            raise ParameterError(f"lanczos: {name} is a positive whole number, not {value_shown(value)}")
    if block > MOST_TOGETHER:
        raise ParameterError(f"lanczos: block is at most {MOST_TOGETHER}, not {value_shown(block)}")
    if (found := integer(seed)) is None or found < 0:
        raise ParameterError(f"lanczos: seed is a whole number from 0, not {value_shown(seed)}")
    if which not in ("smallest", "largest"):
        raise ParameterError(f'lanczos: which is "smallest" or "largest", not {value_shown(which)}')
    number = int(count)
    least = number + LEAST_ACTIVE * int(block)
    if space is not None and ((found := integer(space)) is None or found < least):
        raise ParameterError(
            f"lanczos: space is a whole number above count, {least} at least for {number} eigenvectors, not {value_shown(space)}"
        )
    if (degree is None) != (window is None):
        given, missing = ("degree", "window=(a, b)") if window is None else ("window", "degree")
        raise ParameterError(f"lanczos: {given} is given without {missing}: a polynomial needs both")
    if window is not None:
        try:
            a, b = (float(x) for x in window)
        except (TypeError, ValueError):
            a, b = math.nan, math.nan
        if not (a < b and math.isfinite(a) and math.isfinite(b)):
            raise ParameterError(
                f"lanczos: window is two finite numbers, (a, b) with a below b, not {value_shown(window)}"
            )
    return number


def _start_vectors(start: Any, like: Any, A: Any) -> list[Any]:
    """The vectors to begin with. Raises ParameterError, LayoutError for those that are not like `like`, in any precision and storage, and for eigenpairs of
    other data."""
    if start is None:
        return []
    if isinstance(start, Eigenpairs):
        start.check(A)
    found = start.vectors if isinstance(start, Eigenpairs) else start
    if not isinstance(found, list | tuple) or not found:
        raise ParameterError(
            f"lanczos: start is Eigenpairs, or a list of vectors like `like`, not {value_shown(start)}"
        )
    for k, x in enumerate(found):
        precise = vectors_of(f"lanczos: start[{k}]", x)
        wanted = precise.precision(like) if type(precise) is type(vectors_of("like", like)) else ""
        other = precise.like(x, wanted) if wanted in ("float32", "float64") else x
        check_alike(f"lanczos: start[{k}]", other, "like", like)
    return list(found)


# ---- the operator --------------------------------------------------------------------------------------


class _Operator:
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


class _Search:
    """An orthonormal basis, and A projected on it.

    The first `done` of `slots` are vectors of the basis whose images are known; those after them, up to `filled`, are the queue. `H` is the projected matrix, of A or of the
    polynomial; its rows of the queue are what images have of it. sign H has the wanted eigenvalues at its lower end; numbers `theta` are its Ritz values.
    `lost` are the lengths of what images have outside of all this: residuals of vectors that were kept from an earlier search. `locked` are Ritz vectors
    that have converged: they stay as they are, and others orthogonal to them.
    """

    def __init__(
        self,
        operator: _Operator,
        polynomial: ChebyshevFilter | None,
        wanted: int,
        count: int,
        space: int,
        rtol: float,
        maxiter: int,
        seed: int,
    ):
        self.operator, self.polynomial, self.wanted = operator, polynomial, wanted
        self.vectors, self.like = operator.vectors, operator.like
        self.sign = wanted if polynomial is None else polynomial.sign
        self.count, self.space, self.rtol, self.maxiter = count, space, rtol, maxiter
        self.seed, self.starts = seed, 0
        self.epsilon = self.vectors.epsilon(self.like)
        is_complex = np.iscomplexobj(self.vectors.inner(self.like, self.like))
        self.ranks = self.vectors.ranks(self.like)
        self.H = np.zeros((2 * space, 2 * space), complex if is_complex else float)
        self.slots: list[
            Any
        ] = []  # always the same ones, and those aside: for others a kernel is prepared anew
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
            before = found.residuals.max()
            self.strictness = min(self.strictness, REFINED)
            self._begin_again()
            settled = self._search(None)
            self._keep(self.count)
            found = self._measured(settled)
            if found.residuals.max() > 0.5 * before:
                break
        if must_converge and not found.converged:
            raise SolverError(self._failure(found, settled), self.history)
        return found

    def _searches(self, begin: Sequence[Any]) -> bool:
        """Whether the searches came to an end within `maxiter` steps."""
        for x in begin:
            self._join(x)
        self.given = self.filled
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

    def _search(self, and_then: Callable[[], bool] | None) -> bool:
        """Steps and restarts until all wanted pairs have converged by their estimates, and what is asked for then holds, or nothing is left of the Krylov space.

        False where `maxiter` was reached.
        """
        while True:
            while self.filled > self.done and self.done < self.space and self.steps < self.maxiter:
                self._step()
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
        """Whether no wanted eigenvalue has as many copies as a block of random vectors sees of it."""
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
        products[:j][self.locked] = 0  # which is up to what they have lost
        self.H[:n, j], self.H[j, :n] = products, products.conj()
        self.H[j, j] = products[j].real
        self.done += 1
        self.lost, self.locked = np.append(self.lost, 0.0), np.append(self.locked, False)
        nothing = self._negligible() if j < self.given else INVARIANT * self.epsilon * self.scale
        if left <= nothing:
            self.lost[j] = left
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
        slack = 2 * float(np.linalg.norm(self.lost))
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
        theta, S = (agreed(self.ranks, found) for found in np.linalg.eigh(T[np.ix_(active, active)]))
        self.S = np.zeros((n, n), T.dtype)
        self.S[active, : len(active)] = S
        self.S[locked, np.arange(len(active), n)] = 1
        theta = np.concatenate([theta, T[locked, locked].real])
        order = np.argsort(theta, kind="stable")
        self.theta, self.S = theta[order], np.ascontiguousarray(self.S[:, order])
        self.estimates = np.sqrt(np.sum(np.abs(self._couplings()) ** 2, axis=0))
        self.outside = np.sqrt(self.lost**2 @ np.abs(self.S) ** 2)

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
