"""The eigenvalue of largest modulus, by power iteration, on any vectors of `jali.solvers.vectors`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jali.arrays.libraries import numpy_dtype
from jali.errors import ParameterError, SolverError
from jali.solvers.operators import Function, forward_of, widened
from jali.solvers.vectors import each, sums, vectors_of

SEED = 20  # of starts; the same everywhere, so that runs repeat themselves


class Eigenpair(NamedTuple):
    """The eigenvalue, its eigenvector of norm 1, and the number of iterations."""

    eigenvalue: Any
    eigenvector: Any
    iit: int


def power_iteration(
    Op: Any,
    b_k: Any,
    niter: int = 10,
    tol: float = 1e-5,
    dtype: Any = "float64",
    backend: str = "numpy",
) -> Eigenpair:
    """The eigenvalue of largest modulus of a square operator, and its vector.

    Begins with random numbers, the same in each run on as many ranks; the estimate is b^dagger A b for |b| = 1. An iteration is A once
    and one sum over ranks beside its own.

    Args:
        Op: A, with `matvec`.
        b_k: a vector of the operator; its values do not matter, and are overwritten with the eigenvector.
        niter: no more iterations than this.
        tol: stop when the estimate changes by less than this, relatively.
        dtype: a complex one makes the start complex where `b_k` is not; then the vector is a new one.
        backend: for scripts of others; the vector knows its library.

    Raises:
        ParameterError: no operator, no vector, niter below 1.
        SolverError: infinities or nan.
    """
    forward = forward_of("power_iteration: Op", Op)
    if isinstance(niter, bool) or not isinstance(niter, int | np.integer) or niter < 1:
        raise ParameterError(f"power_iteration: niter is a positive whole number, not {niter!r}")
    start = b_k if np.dtype(dtype).kind != "c" else widened(b_k, _Of(dtype))
    return largest(forward, widened(start, Op), niter, tol)


class _Of:
    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)


def largest(forward: Function, b: Any, niter: int, tol: float) -> Eigenpair:
    """As `power_iteration`, of a function."""
    vectors = vectors_of("power_iteration: b_k", b)
    vectors.epsilon(b)  # refuses whole numbers
    v = random_like(b)
    size = sums((v, v))[0].real
    if size == 0:
        raise ParameterError("power_iteration: b_k has no elements")
    vectors.update([(v, 1 / math.sqrt(size), [])])
    found: Any = 0.0
    iteration = 0
    for iteration in range(1, niter + 1):
        w = forward(v)
        before = found
        found, square = sums((v, w), (w, w))
        if not math.isfinite(square.real):
            raise SolverError(
                f"power_iteration, iteration {iteration}: the operator produced infinities or nan"
            )
        if square.real == 0:
            break
        vectors.update([(v, 0, [(1 / math.sqrt(square.real), w)])])
        if abs(found - before) < tol * abs(before):
            break
    vectors.update([(b, 0, [(1, v)])])
    return Eigenpair(found, b, iteration)


def random_like(x: Any) -> Any:
    """A vector like x of normal random numbers, which depend on the ranks only through how it is split."""
    ranks = [group for _, group in vectors_of("x", x).partial_sums(x, lambda part: 0.0)]
    places = iter([(k, 0 if group is None else group.rank) for k, group in enumerate(ranks)])

    def fill(part: Any) -> Any:
        generator = np.random.default_rng((SEED, *next(places)))
        dtype = numpy_dtype(part)
        values = generator.normal(size=tuple(part.shape))
        if dtype.kind == "c":
            values = values + 1j * generator.normal(size=tuple(part.shape))
        values = values.astype(dtype)
        if isinstance(part, np.ndarray):
            return values
        from jali.arrays.libraries import library_of

        return library_of(part).from_host(values, part)

    return each(fill, x)
