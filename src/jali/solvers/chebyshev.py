"""Chebyshev iteration for Hermitian positive definite operators whose eigenvalues lie in a known window (G. H. Golub and R. S. Varga, Numer. Math. 3
(1961) 147; Y. Saad, Iterative Methods for Sparse Linear Systems, 2003, algorithm 12.1), and as a preconditioner.

The residual after k iterations is T_k((theta - A) / delta) r / T_k(theta / delta), with the centre theta and the half width delta of the window: smallest
among those that know nothing but the window. There are no inner products but |r|^2, so nothing is said of an operator that is not what it should be, but
by a residual that grows: of eigenvalues between zero and the window's upper end it never does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import tape_recorder
from jali.comm.validation import integer
from jali.errors import JaliError, ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.eigs import power_iteration
from jali.solvers.elementwise import computed, going, times, where
from jali.solvers.krylov import Krylov
from jali.solvers.operators import has_batch, into_of, is_operator, joins_members
from jali.solvers.recursion import NORMAL, Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments
from jali.vectors import check_alike, like, vectors_of

MARGIN = 1.1  # times the largest eigenvalue that power iteration finds, which is below the true one
RATIO = 30.0  # of the ends of a preconditioner's window
GROWTH = 4.0  # of |r|, beyond which an eigenvalue must lie outside of the window


def chebyshev_window(A: Any, like: Any, ratio: float = RATIO, *, maxiter: int = 100) -> tuple[float, float]:
    """A window (b / ratio, b) of a Hermitian positive definite operator: b is 1.1 times the largest eigenvalue as `power_iteration` finds it in at most
    `maxiter` iterations, which is one from below.

    The lower end is a choice, not an estimate: a preconditioner or smoother treats what is above, and the solver around it the rest. `like` is a vector
    of the operator without a batch, whose values do not matter. Raises ParameterError for a ratio of at most 1 and for a batch, SolverError where the
    eigenvalue is not positive or the operator gives infinities or nan.
    """
    name = "chebyshev_window"
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 < ratio < math.inf:
        raise ParameterError(f"{name}: ratio is a number above 1, not {value_shown(ratio)}")
    return (upper := _upper_end(name, A, like, maxiter)) / ratio, upper


def _upper_end(name: str, A: Any, x: Any, maxiter: int = 100) -> float:
    if has_batch(x):
        how = (
            'lanczos(A, f, 1, which="largest") finds it'
            if joins_members(A)
            else "chebyshev_window(A, f.members[0]) is that of one member"
        )
        raise ParameterError(
            f"{name}: the largest eigenvalue is not estimated of a field with a batch: {how}"
        )
    found = power_iteration(A if is_operator(A) else _Operator(A), x, rtol=1e-4, maxiter=maxiter).eigenvalue
    if abs(np.imag(found)) > 1e-3 * abs(found):
        raise SolverError(
            f"{name}: v^dagger A v is {found:.3g}, which is not real: the operator is not Hermitian; {NORMAL}"
        )
    if not np.real(found) > 0:
        raise SolverError(
            f"{name}: A has the eigenvalue {float(np.real(found)):.3g}, so it is not positive definite; {NORMAL}"
        )
    return MARGIN * float(np.real(found))


class _Operator:
    """A function that writes A p into q, as an operator."""

    def __init__(self, function: Callable[[Any, Any], object]):
        self.function = function

    def matvec(self, x: Any) -> Any:
        q = like(x)
        self.function(x, q)
        return q


def _given_ends(name: str, window: Any) -> tuple[float, float | None]:
    """The two ends of a window, whose upper one may be None. Raises ParameterError."""
    ends = list(window) if isinstance(window, tuple | list | np.ndarray) else []
    numbers = [
        x for x in ends if isinstance(x, int | float | np.number) and not isinstance(x, bool | complex)
    ]
    if len(ends) != 2 or len(numbers) != 2 - (ends[1] is None):
        raise ParameterError(
            f"{name} is (a, b) with the eigenvalues between a and b, or (a, None), for which b is estimated, not {value_shown(window)}"
        )
    low, high = float(numbers[0]), None if ends[1] is None else float(numbers[1])
    if not 0 < low < math.inf or (high is not None and not low < high < math.inf):
        raise ParameterError(
            f"{name} of a positive definite operator is (a, b) with 0 < a < b, not {value_shown(window)}"
        )
    return low, high


def _window_of(name: str, given: tuple[float, float | None], A: Any, like: Any) -> tuple[float, float]:
    """The window whose upper end is estimated where it was not given."""
    low, high = given
    if high is None:
        high = _upper_end(name, A, like)
        if low >= high:
            raise ParameterError(
                f"{name} begins at {low:g}, and the largest eigenvalue is at most about {high:.3g}: it is (a, None) with a below"
            )
    return low, high


def _one(rr: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), 1.0, 0.0)


def _next(rho: Any, sigma: Any) -> Any:
    return 1.0 / (sigma + sigma - rho)


class Chebyshev(Krylov):
    """The direction d, and q = A d. The number rho is T_k(sigma) / T_{k+1}(sigma), with sigma = theta / delta."""

    name = "chebyshev"

    def __init__(
        self, A: Any, b: Any, x0: Any, window: Any, rtol: float, atol: float, inner: Inner | None = None
    ):
        what = f"{self.name}: window"
        self.window = low, high = _window_of(what, _given_ends(what, window), A, b)
        self.theta, self.delta = (high + low) / 2, (high - low) / 2
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        sigma = np.full_like(rr, self.theta / self.delta)
        if not hasattr(self, "d"):
            self.d, self.q = self.vectors.like(self.b), self.vectors.like(self.b)
            self.sigma, self.along = self.kept(sigma), self.kept(np.full_like(rr, 2 / self.delta))
        self.vectors.update([(self.d, 0, [(1 / self.theta, self.r)])])
        self.at_first: np.ndarray = rr
        return [rr, 1 / sigma]

    def step(self, rr: Any, rho: Any) -> tuple[list[Any], list[Any], list[Any]]:
        one = computed(_one, rr, self.size, self.tolerance)
        self.apply(self.d, self.q)
        new = self.update((self.x, 1, [(one, self.d)]), (self.r, 1, [(-one, self.q)]), norm=True)
        after = computed(_next, rho, self.sigma)
        self.update((self.d, computed(times, after, rho), [(computed(times, after, self.along), self.r)]))
        return [new, after], [new], [new]

    def check(self, *watched: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            wrong = self.going & (watched[0] > GROWTH**2 * self.at_first)
        if np.any(wrong):
            low, high = self.window
            raise self.error(
                wrong,
                f"|r| grows, by which A has eigenvalues that are negative or above window=({low:g}, {high:g}), or is not Hermitian",
            )

    def quick(self, squares: np.ndarray, watched: np.ndarray) -> bool:
        return not np.any(squares > GROWTH**2 * self.at_first)

    def cause(self) -> str:
        """What r consists of, after the other parts have fallen: a quotient of Rayleigh."""
        with np.errstate(all="ignore"):
            self.apply(self.r, self.q)
            product = np.asarray(self.vectors.inner(self.r, self.q))
            quotient = (product / np.asarray(self.vectors.norm2(self.r)))[self.going]
        low, high = self.window
        if not quotient.size or not np.all(np.isfinite(quotient)):
            return ""
        if np.any(wrong := np.abs(np.imag(quotient)) > 1e-3 * np.abs(quotient)):
            return f"r^dagger A r / |r|^2 is {quotient[wrong][0]:.3g}, which is not real: the operator is not Hermitian; {NORMAL}"
        values = np.real(quotient)
        if np.any(wrong := (values < low) | (values > high)):
            value = float(values[wrong][0])
            return f"A has an eigenvalue near {value:.3g}, outside of window=({low:g}, {high:g})" + (
                f", and is not positive definite; {NORMAL}" if value <= 0 else ""
            )
        return ""


@named
@sharing
def chebyshev(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    window: Any,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for a Hermitian positive definite A by Chebyshev iteration, which needs no inner products but |r|^2.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose other arguments these are.

    Args:
        window: (a, b) with all eigenvalues between a and b, 0 < a. An iteration lowers |r| by (sqrt(b) - sqrt(a)) / (sqrt(b) + sqrt(a)) in the end.
            Eigenvalues between 0 and a converge more slowly; those above b or below 0 make r grow, which is an error. With (a, None) b is 1.1 times
            the largest eigenvalue that `power_iteration` finds. `lanczos` finds both ends.

    Raises:
        SolverError: as `gcr`; a residual that grows, since A is not positive definite or has eigenvalues above the window. Where it fails it says
            what eigenvalue r shows.
        ParameterError: a window that is none; else as `cg`, as LayoutError and RecordingError.
    """
    tape_recorder.refuse("jali.solvers.chebyshev", "call it before the tape, or solve by jali.solve")
    check_arguments("chebyshev", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    return solved(
        Chebyshev.of_workspace(more, A, b, x0, window, rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )


class ChebyshevPreconditioner:
    """A polynomial of A that is near 1 / A in a window of eigenvalues: `M(r, z)` writes p(A) r into z, by `degree` applications of A.

    It is what `degree` + 1 iterations of `chebyshev` from x = 0 give, the same linear operator each time, so `cg` may have it as well as `gcr` and
    `fgmres`. For a Hermitian A it is Hermitian, and positive wherever 0 < lambda < b. A graph may record it after a first call with vectors of the
    same form.

    Args:
        A: the operator, or a function `A(p, q)` that writes A p into q.
        window: (a, b), the eigenvalues that M treats; those between 0 and a are left to the solver. None is (b / 30, b), and b may be None: it is
            then estimated at the first call, as `chebyshev_window` does, of fields without a batch.
        degree: of the polynomial, from 0, which is a number.

    Raises ParameterError for impossible numbers and for what is no operator.
    """

    def __init__(self, A: Any, window: Any = None, degree: int = 4):
        name = "ChebyshevPreconditioner"
        if not is_operator(A) and not callable(A):
            raise ParameterError(
                f"{name}: A has a function matvec, or is a function A(p, q) that writes A p into q, not {value_shown(A)}"
            )
        if (count := integer(degree)) is None or count < 0:
            raise ParameterError(f"{name}: degree is a whole number from 0, not {value_shown(degree)}")
        self.A, self.degree = A, count
        self._given = None if window is None else _given_ends(f"{name}: window", window)
        self.window: tuple[float, float] | None = None  # known since the first call
        if self._given is not None and self._given[1] is not None:
            self.window = self._given[0], self._given[1]
        self._work: list[Any] = []

    def __repr__(self) -> str:
        window = "" if self.window is None else f", window=({self.window[0]:g}, {self.window[1]:g})"
        return f"<Chebyshev polynomial of degree {self.degree}{window}>"

    @property
    def joins_members(self) -> bool:
        """Whether A joins members of a batch."""
        return joins_members(self.A)

    def __call__(self, r: Any, z: Any) -> None:
        low, high = self._window_for(r)
        vectors = vectors_of("ChebyshevPreconditioner: r", r)
        d, rest, q = self._work_for(r)
        apply = into_of("ChebyshevPreconditioner: A", self.A, vectors)
        theta, delta = (high + low) / 2, (high - low) / 2
        sigma = theta / delta
        rho = 1 / sigma
        vectors.update([(z, 0, [(1 / theta, r)]), (d, 0, [(1 / theta, r)]), (rest, 0, [(1, r)])])
        for _ in range(self.degree):
            apply(d, q)
            before, rho = rho, 1 / (2 * sigma - rho)
            vectors.update(
                [(rest, 1, [(-1, q)]), (d, rho * before, [(2 * rho / delta, rest)]), (z, 1, [(1, d)])]
            )

    def _window_for(self, r: Any) -> tuple[float, float]:
        if self.window is None:
            if self._given is None:
                self.window = chebyshev_window(self.A, r)
            else:
                self.window = _window_of("ChebyshevPreconditioner: window", self._given, self.A, r)
        return self.window

    def _work_for(self, r: Any) -> list[Any]:
        """Three vectors like r, the same ones as long as r is of one form."""
        if not (self._work and _same_form(self._work[0], r)):
            self._work = [like(r) for _ in range(3)]
        return self._work


def _same_form(x: Any, y: Any) -> bool:
    if type(x) is type(y) and hasattr(
        x, "is_like"
    ):  # of fields it also says what storage and edges they have
        return bool(x.is_like(y))
    try:
        check_alike("x", x, "y", y)
    except JaliError:
        return False
    return getattr(x, "dtype", None) == getattr(y, "dtype", None)
