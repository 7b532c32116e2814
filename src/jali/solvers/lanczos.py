"""Eigenvectors of Hermitian operators by thick-restart Lanczos (K. Wu and H. Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602).

Each new vector is made orthogonal to all others, twice, and the projected matrix consists of measured inner products. So any vector may join the basis:
the one of the recursion, or a random one. One start vector sees one vector of each eigenspace, so a search is followed by others, each from
another random vector orthogonal to what was found, until one finds nothing new. A Chebyshev polynomial of the operator is an option.

The host drives it; there are no graphs, and no blocks of start vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.comm.validation import integer
from jali.errors import LayoutError, ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.causes import LEAST_DEFECT, not_hermitian
from jali.solvers.eigs import Eigenpair, random_like
from jali.solvers.operators import has_batch, into_of, is_operator, joins_members, widened
from jali.solvers.solver import check_tolerances
from jali.vectors import Vectors, check_alike, random, sums, vectors_of

TOGETHER = 8  # vectors that one update adds; fewer go by powers of two, since each number of them is a kernel
MAXITER = 10_000  # Lanczos steps
LEAST_ACTIVE = 3  # vectors of the space beyond those that are wanted
ROUNDING = 20  # roundings of the largest eigenvalue, to which a residual can be lowered
INVARIANT = 100  # roundings of the largest number of the recursion, below which the next vector is none
SURELY = 0.01  # part of the weight that a random vector has in an eigenvector, see `_Search._nothing_below`
LEAST_OVER = (
    1e-3  # of a value of the polynomial above 1, which says that the spectrum does not end with the window
)
STRICTNESS = 0.5  # the part of the tolerance that estimates have to reach
REFINED = 0.1  # and that in refinements
REFINEMENTS = 8  # searches that begin with residuals above the tolerance


@dataclass(frozen=True, repr=False)
class Eigenpairs:
    """Eigenvalues, ascending, and their vectors, orthonormal; `pairs[k]` is an `Eigenpair`.

    `residuals` are |A v - lambda v|, computed with A, and `bound` what they are compared with; `applications` are those of A, of
    all purposes; `iterations` the steps of the recursion. `converged`: all residuals are within the bound, and a search from another
    random vector found no further eigenvalue. `rounding` is the eigenvalue that is zero up to rounding.
    """

    values: np.ndarray
    vectors: list[Any]
    residuals: np.ndarray
    applications: int
    iterations: int
    bound: float
    rounding: float
    converged: bool

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, k: int) -> Eigenpair:
        return Eigenpair(float(self.values[k]), self.vectors[k], self.iterations)

    def __repr__(self) -> str:
        how = "converged" if self.converged else "not all converged"
        return (
            f"<{len(self)} eigenpairs, {how}, from {self.values[0]:.6g} to {self.values[-1]:.6g}, "
            f"largest residual {self.residuals.max():.2g}, {self.applications} applications>"
        )

    def deflate(self, b: Any) -> Any:
        """The solution of A x = b within these vectors, sum_k v_k <v_k, b> / lambda_k: the x0 with which a solver begins.

        `cg(A, b, x0=pairs.deflate(b))`; the solver is left with the part of b outside of them. b is not changed.

        Raises:
            ParameterError: an eigenvalue is zero up to rounding, or within its residual; b is a vector of another kind.
            LayoutError: b has another form than the vectors.
        """
        for k, (value, residual) in enumerate(zip(self.values, self.residuals, strict=True)):
            if abs(value) <= max(self.rounding, residual):
                why = (
                    "rounding, which divides nothing"
                    if abs(value) <= self.rounding
                    else f"its residual {residual:.3g}; a smaller rtol tells it from zero"
                )
                raise ParameterError(f"deflate: the eigenvalue {k}, {value:.3g}, is zero within {why}")
        check_alike("deflate: b", b, "an eigenvector", self.vectors[0])
        of_b = _operations(b)
        x0 = of_b.like(b)
        products = _inner_products(of_b, self.vectors, b)
        _add(of_b, x0, products / self.values, self.vectors)
        return x0


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
    seed: int = 0,
    must_converge: bool = True,
) -> Eigenpairs:
    """The `count` smallest or largest eigenvalues of a Hermitian operator, and their eigenvectors; the operator may be indefinite.

    Eigenvalues come with their multiplicities: a run costs one search, and one more for each further copy of the most degenerate one, and one
    that finds nothing new. Memory is that of up to 2 space vectors. A step is A once (with `degree` so often), and inner products with all vectors of
    the space, twice. Start vectors are random; of fields they are the same on any number of ranks, and so are the results.

    With `degree` and `window` the recursion runs on a Chebyshev polynomial of A, which is between -1 and 1 where eigenvalues are in the
    window, and grows fast beyond (Y. Zhou, Y. Saad, M. L. Tiago and J. R. Chelikowsky, J. Comput. Phys. 219 (2006) 172). The window [a, b] begins above
    the wanted eigenvalues, and b is not below the largest one; for the largest: it ends below the wanted ones, and a is not above the smallest one. This takes fewer
    steps, with fewer inner products, and often more applications. Values and residuals are those of A.

    Args:
        A: an operator with `matvec`, or a function that writes A p into q, as `jali.solvers.cg` takes it.
        like: a vector of the operator, of any kind that solvers know; its values do not matter, and stay. Of a field with a batch whose
            members A joins (`joins_members`), all of them are one vector.
        count: how many.
        which: "smallest" or "largest", by value, not by modulus.
        rtol: stop when all |A v - lambda v| are at most this part of the largest |lambda| among the wanted ones. Where that is less than rounding
            allows, since all are about zero, the bound is 20 roundings of the largest eigenvalue that was seen.
        space: so many Lanczos vectors, count + 3 at least; if left out max(2 count, count + 20).
        maxiter: no more steps than this, each of which applies A, or the polynomial.
        degree: of the polynomial.
        window: its interval, (a, b).
        seed: of random vectors.
        must_converge: raise SolverError where a pair is above the tolerance in the end; otherwise return with `converged` False.

    Raises:
        SolverError: no convergence: with the number of pairs that converged, all residuals, and the largest one of each restart in `history`.
            Or A is not Hermitian, or produced infinities or nan, or eigenvalues are such that the window is wrong.
        ParameterError: impossible arguments, also a count above the number of eigenvectors that there are; vectors of an unsupported type.
        LayoutError: whole numbers; a field with a batch whose members A does not join.
    """
    number = _checked(count, which, rtol, space, maxiter, degree, window, seed)
    vectors_of("lanczos: like", like)
    if is_operator(A):
        like = widened(like, A)
    if has_batch(like) and (not joins_members(A) or isinstance(like, list | tuple)):
        raise LayoutError(
            "lanczos: like has a batch whose members the operator does not join, so that each has eigenvectors of its own: give one member, "
            "f.members[k]"
        )
    vectors = _operations(like)
    epsilon = vectors.epsilon(like)  # refuses whole numbers
    if rtol < 4 * epsilon:
        raise ParameterError(
            f"lanczos: rtol={rtol:g} is below what rounding in {vectors.precision(like)} allows, {4 * epsilon:.2g}"
        )
    operator = _Operator(A, vectors, like)
    if not has_batch(like):
        operator.check_hermitian()
    wanted = -1 if which == "largest" else 1
    polynomial = None if degree is None or window is None else _Chebyshev(degree, *window, wanted)
    room = max(2 * number, number + 20) if space is None else int(space)
    return _Search(operator, polynomial, wanted, number, room, float(rtol), int(maxiter), int(seed)).run(
        must_converge
    )


def _checked(
    count: Any, which: Any, rtol: Any, space: Any, maxiter: Any, degree: Any, window: Any, seed: Any
) -> int:
    """The count. Raises ParameterError for arguments that are impossible for any operator."""
    check_tolerances("lanczos", rtol=rtol)
    if not 0 < rtol < 1:
        raise ParameterError(f"lanczos: rtol is between 0 and 1, not {value_shown(rtol)}")
    for name, value in (("count", count), ("maxiter", maxiter), ("degree", degree)):
        if (value is not None or name != "degree") and ((found := integer(value)) is None or found < 1):
            raise ParameterError(f"lanczos: {name} is a positive whole number, not {value_shown(value)}")
    if (found := integer(seed)) is None or found < 0:
        raise ParameterError(f"lanczos: seed is a whole number from 0, not {value_shown(seed)}")
    if which not in ("smallest", "largest"):
        raise ParameterError(f'lanczos: which is "smallest" or "largest", not {value_shown(which)}')
    number = int(count)
    if space is not None and ((found := integer(space)) is None or found < number + LEAST_ACTIVE):
        raise ParameterError(
            f"lanczos: space is a whole number above count, {number + LEAST_ACTIVE} at least for {number} eigenvectors, not {value_shown(space)}"
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


# ---- vectors -------------------------------------------------------------------------------------------


def _operations(x: Any) -> Vectors:
    """The operations of a vector; of a field with a batch those for which all members are one."""
    vectors = vectors_of("a vector", x)
    if getattr(x, "batch", None) is not None:
        return vectors.of_whole_batch()  # type: ignore[attr-defined]
    return vectors


def _inner_products(vectors: Vectors, xs: Sequence[Any], y: Any) -> np.ndarray:
    """<x, y> of each x."""
    if vectors.check_interval(y) > 1:  # waiting costs: nothing waits before all have begun
        found = [vectors.inner(x, y, wait=False) for x in xs]
        return np.array([_number(value) for value in found])
    if has_batch(y):
        return np.array([vectors.inner(x, y) for x in xs])
    return np.array(sums(*((x, y) for x in xs)))


def _number(value: Any) -> float | complex:
    if hasattr(value, "is_complex"):
        return complex(value) if value.is_complex else float(value)
    return complex(value) if np.iscomplexobj(value) else float(value)


def _add(vectors: Vectors, y: Any, factors: np.ndarray, xs: Sequence[Any], own: int = 1) -> None:
    """y = own y + the sum of factors times xs, with few kernels, and few kinds of kernels."""
    values, first = factors.tolist(), 0
    while first < len(xs):
        size = min(TOGETHER, 1 << (len(xs) - first).bit_length() - 1)
        terms = list(zip(values[first : first + size], xs[first : first + size], strict=True))
        vectors.update([(y, own if first == 0 else 1, terms)])
        first += size


# ---- the operator --------------------------------------------------------------------------------------


class _Operator:
    """A as a function that writes, with its applications counted."""

    def __init__(self, A: Any, vectors: Vectors, like: Any):
        self.vectors, self.like = vectors, vectors.like(like)
        self.function = into_of("lanczos: the operator", A, vectors)
        self.applications = 0

    def __call__(self, p: Any, q: Any) -> None:
        self.function(p, q)
        self.applications += 1

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


class _Chebyshev:
    """T_n((2 A - a - b) / (b - a)), with which wanted eigenvalues are those of largest modulus.

    `sign` makes them the smallest ones: T_n(-t) = (-1)^n T_n(t).
    """

    def __init__(self, degree: int, a: float, b: float, wanted: int):
        self.degree, self.a, self.b, self.wanted = int(degree), float(a), float(b), wanted
        self.centre, self.half = (self.a + self.b) / 2, (self.b - self.a) / 2
        self.sign = -1 if wanted < 0 or degree % 2 == 0 else 1
        self.kept: list[Any] = []

    def apply(self, operator: _Operator, p: Any, q: Any) -> None:
        """q = T_n p, by T_{k+1} = 2 t T_k - T_{k-1}."""
        update = operator.vectors.update
        if not self.kept:
            self.kept = [operator.vectors.like(p) for _ in range(3)]
        before, now, image = self.kept
        update([(before, 0, [(1, p)])])
        operator(before, image)
        update([(now, 0, [(1 / self.half, image), (-self.centre / self.half, before)])])
        for _ in range(self.degree - 1):
            operator(now, image)
            update([(before, -1, [(2 / self.half, image), (-2 * self.centre / self.half, now)])])
            before, now = now, before
        update([(q, 0, [(1, now)])])

    def _angles(self, theta: np.ndarray) -> np.ndarray:
        """arcosh(|t|) where the polynomial, with its sign, has these values; zero inside the window."""
        return np.arccosh(np.maximum(-theta, 1.0)) / self.degree

    def eigenvalues(self, theta: np.ndarray) -> np.ndarray:
        """Those of A; of what is inside the window its end."""
        return self.centre - self.wanted * self.half * np.cosh(self._angles(theta))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """By how much residuals of the polynomial are at least larger than those of A: the least of |theta' - theta| / |lambda' - lambda|.

        Outside of the window the polynomial is convex, so that is where lambda' is the far end. Inside, its order of magnitude.
        """
        outside = (np.maximum(-theta, 1.0) - 1) / (1 + np.cosh(self._angles(theta)))
        return np.where(theta > -1, self.degree, np.maximum(outside, 1e-15)) / self.half

    def check(self, values: np.ndarray, settled: bool) -> None:
        """Raises SolverError for eigenvalues beyond the other end of the window, and if settled for wanted ones inside of it."""
        end = (self.b if self.wanted > 0 else -self.a) + LEAST_OVER * self.half
        if np.any(self.wanted * values > end):
            raise self.too_short(f"{values[np.argmax(self.wanted * values)]:.6g}")
        begin = self.a if self.wanted > 0 else -self.b
        beyond = int(np.sum(self.wanted * values < begin))
        if settled and beyond < len(values):
            raise SolverError(
                f"lanczos: {self}, and only {beyond} of {len(values)} eigenvalues were found {self.side}: all wanted ones lie outside of the window"
            )

    def too_short(self, value: str) -> SolverError:
        """The error of a window that leaves out the end of the spectrum that nobody wants."""
        over, last = ("above b", "largest") if self.wanted > 0 else ("below a", "smallest")
        return SolverError(
            f"lanczos: {self}, and there is an eigenvalue {value}{' ' if value else ''}{over}, where the polynomial grows as well: the window reaches to the {last} "
            "eigenvalue"
        )

    @property
    def side(self) -> str:
        """Where wanted eigenvalues are."""
        return "below a" if self.wanted > 0 else "above b"

    def __str__(self) -> str:
        return f"window=({self.a:g}, {self.b:g})"


# ---- the search ----------------------------------------------------------------------------------------


class _Search:
    """An orthonormal basis, and A projected on it.

    The first `done` of `slots` are vectors of the basis whose images are known, and after them comes the one that is next. `H` is the projected matrix, of A or of the polynomial;
    sign H has the wanted eigenvalues at its lower end; numbers `theta` are its Ritz values. `lost` are the lengths of what images have
    outside of the basis beside `beta` times the next vector: residuals of vectors that were kept from an earlier search.
    """

    def __init__(
        self,
        operator: _Operator,
        polynomial: _Chebyshev | None,
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
        self.complex = bool(np.iscomplexobj(self.vectors.inner(self.like, self.like)))
        self.groups = self.vectors.ranks(self.like)
        self.H = np.zeros((space + 1, space + 1), complex if self.complex else float)
        self.slots: list[Any] = []  # the same all the time: for other vectors a kernel is prepared anew
        self.aside: list[Any] = []
        self.work = self.vectors.like(self.like)
        self.done, self.steps, self.beta = 0, 0, 0.0
        self.lost = np.zeros(0)
        self.theta, self.estimates = np.zeros(0), np.zeros(0)
        self.S = np.zeros((0, 0))
        self.scale, self.size = 0.0, 0.0
        self.slack = 0.0  # by how much products with what was kept may differ from zero
        self.strictness = STRICTNESS
        self.history: list[float] = []

    # ---- all of it ---------------------------------------------------------------------------------------

    def run(self, must_converge: bool) -> Eigenpairs:
        """Searches until one finds nothing new, then measures residuals with A, and lowers those that are above the tolerance. Raises what `lanczos` does."""
        settled = self._searches()
        found = self._measured(settled)
        for _ in range(REFINEMENTS):
            if not settled or found.converged:
                break
            self.strictness = min(self.strictness, REFINED)
            if not self._join(self._largest_residual(found)):
                break
            settled = self._search(None)
            self._keep(self.count)
            found = self._measured(settled)
        if must_converge and not found.converged:
            raise SolverError(self._failure(found, settled), self.history)
        return found

    def _searches(self) -> bool:
        """Whether the searches came to an end within `maxiter` steps."""
        first, before = True, np.zeros(0)
        while self._join(self._start()):
            found = self._search(None if first else self._nothing_below)
            self._keep(self.count)
            self.slack = 2 * float(np.linalg.norm(self.lost))
            if not found:
                return False
            new = len(before) < self.count or np.any(
                np.abs(self.theta - before) > 2 * self._bounds(self.theta)
            )
            if not first and not new:
                return True
            first, before = False, self.theta
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
            goes_on = True
            while goes_on and self.done < self.space and self.steps < self.maxiter:
                goes_on = self._step()
            self._diagonalise()
            if self.polynomial is not None and self.theta[-1] > 1 + LEAST_OVER:
                raise self.polynomial.too_short("")
            estimates = self.estimates[: self.count]
            self.history.append(float((estimates / self._slopes(self.theta[: self.count])).max()))
            if not goes_on:
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

    # ---- steps -------------------------------------------------------------------------------------------

    def _put(self, k: int, factor: Any, x: Any) -> None:
        """Vector k of the basis becomes so much of x."""
        if k == len(self.slots):
            self.slots.append(self.vectors.like(self.like))
        self.vectors.update([(self.slots[k], 0, [(factor, x)])])

    def _start(self) -> Any:
        """A new random vector."""
        self.starts += 1
        return random(self.like, (self.seed << 20) + self.starts)

    def _largest_residual(self, found: Eigenpairs) -> Any:
        """A v - lambda v of the pair where it is longest; those of one search have one direction, so one serves many."""
        k = int(found.residuals.argmax())
        r, x = self.vectors.like(self.like), found.vectors[k]
        self.operator(x, r)
        self.vectors.update([(r, 1, [(-float(found.values[k]), x)])])
        self.lost = np.zeros(self.done)  # the next vector is the part outside of the basis
        self.slack = math.inf  # and has products with it that are not known
        return r

    def _join(self, u: Any) -> bool:
        """Makes u orthonormal to the basis, and the next vector; False where nothing is left of it."""
        self.vectors.update([(self.work, 0, [(1, u)])])
        norm = math.sqrt(self.vectors.norm2(self.work))
        self.size = max(self.size, 3 * norm * norm)  # numbers of a mean square of 1/3 or more
        _, left = self._orthogonalised(self.done)
        if left <= INVARIANT * self.epsilon * norm:
            return False
        self._put(self.done, 1 / left, self.work)
        self.H[self.done] = self.H[:, self.done] = 0
        self.beta = 0.0
        return True

    def _orthogonalised(self, n: int) -> tuple[np.ndarray, float]:
        """Takes from `work` what the first n vectors of the basis have of it; the inner products, and the norm of what is left.

        Twice is enough (L. Giraud, J. Langou and M. Rozloznik, Comput. Math. Appl. 50 (2005) 1069) unless nearly nothing is left.
        """
        total, basis = np.zeros(n, self.H.dtype), self.slots[:n]
        left = math.inf
        for turn in range(4):
            before = left
            if n:
                products = _inner_products(self.vectors, basis, self.work)
                if not np.all(np.isfinite(products)):
                    return products, math.nan
                _add(self.vectors, self.work, -products, basis)
                total += products
            left = math.sqrt(self.vectors.norm2(self.work))
            if not math.isfinite(left) or not n or (turn and left >= 0.5 * before):
                break
        return total, left

    def _step(self) -> bool:
        """The image of the next vector, which joins the basis; False where that is invariant now."""
        j = self.done
        if self.polynomial is None:
            self.operator(self.slots[j], self.work)
        else:
            self.polynomial.apply(self.operator, self.slots[j], self.work)
        self.steps += 1
        products, left = self._orthogonalised(j + 1)
        if not math.isfinite(left):
            raise self._bad_numbers()
        self.scale = max(self.scale, float(np.abs(products).max()), left)
        if 0 < self.scale < self.operator.least:
            raise self.operator.too_small(self.scale)
        self._check_hermitian(products)
        self.H[: j + 1, j], self.H[j, : j + 1] = products, products.conj()
        self.H[j, j] = products[j].real
        self.done = j + 1
        self.lost = np.append(self.lost, np.zeros(self.done - len(self.lost)))
        if left <= INVARIANT * self.epsilon * self.scale:
            self.beta = 0.0
            return False
        self.beta = left
        self._put(self.done, 1 / left, self.work)
        self.H[self.done] = self.H[:, self.done] = 0
        self.H[self.done, j] = left
        return True

    def _check_hermitian(self, products: np.ndarray) -> None:
        """Raises SolverError unless <v_i, A v> is the conjugate of <v, A v_i>, which is known."""
        j = self.done
        defects = np.abs(products - self.H[j, : j + 1].conj())
        defects[j] = abs(products[j].imag)
        degree = 1 if self.polynomial is None else self.polynomial.degree
        allowed = LEAST_DEFECT * degree * self.epsilon * self.scale + self.slack
        if defects.max() > allowed:
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
        """Ritz values, ascending, coefficients of their vectors, and |A v - theta v| of each."""
        n = self.done
        T = self.sign * self.H[:n, :n]
        theta, S = np.linalg.eigh((T + T.conj().T) / 2)
        self.theta, self.S = self._agreed(theta), self._agreed(S)
        weights = np.abs(self.S) ** 2
        self.estimates = np.sqrt(self.beta**2 * weights[n - 1] + self.lost[:n] ** 2 @ weights)

    def _agreed(self, values: np.ndarray) -> np.ndarray:
        """Those of the first rank, on all: LAPACK of other processors has other bits, and ranks would part."""
        values = np.ascontiguousarray(values) + 0.0
        for ranks in self.groups:
            numbers = values.view(float)
            if ranks.rank:
                numbers[...] = 0.0
            ranks.all_reduce(numbers, numbers)
        return values

    def _restart(self) -> None:
        """Goes on with the wanted Ritz vectors, some of the next ones, and the next vector of the recursion."""
        k = min(self.count + max(1, (self.space - self.count) // 2), self.done)
        done, couplings = self.done, self.beta * self.S[self.done - 1, :k]
        lost = np.sqrt(self.lost[:done] ** 2 @ np.abs(self.S[:, :k]) ** 2)
        self._keep(k)
        self.lost = lost
        if k < done:
            self._put(k, 1, self.slots[done])
        self.H[k, :k] = couplings

    def _keep(self, k: int) -> None:
        """The first Ritz vectors become the basis, without a next vector."""
        n, update = self.done, self.vectors.update
        k = min(k, n)
        self.aside += [self.vectors.like(self.like) for _ in range(k - len(self.aside))]
        for y, column in zip(self.aside, self.S.T[:k], strict=False):
            _add(self.vectors, y, column, self.slots[:n], own=0)
        for x, y in zip(self.slots, self.aside[:k], strict=False):
            update([(x, 0, [(1, y)])])
        self.done, self.beta = k, 0.0
        self.theta = self.theta[:k]
        self.H[...] = 0
        self.H[range(k), range(k)] = self.sign * self.theta
        self.lost = self.estimates[:k]

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
