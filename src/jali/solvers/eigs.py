"""The eigenvalue of largest modulus, by power iteration, on any vectors of `jali.vectors`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jali import tape_recorder
from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.operators import ApplyInner, Function, apply_sum_of, forward_of, widened
from jali.solvers.solver import MAXITER, check_tolerances
from jali.vectors import random, sums, vectors_of

SEED = 20  # of starts; the same everywhere, so that runs repeat themselves


class Eigenpair(NamedTuple):
    """The eigenvalue, its eigenvector of norm 1, and the number of iterations."""

    eigenvalue: Any
    eigenvector: Any
    iterations: int


@named
def power_iteration(
    A: Any,
    like: Any,
    *,
    rtol: float = 1e-5,
    maxiter: int = MAXITER,
    dtype: Any = "float64",
) -> Eigenpair:
    """The eigenvalue of largest modulus of a square operator, and its vector.

    Begins with random numbers, the same on any number of ranks; the estimate is v^dagger A v for |v| = 1. An iteration is A once
    and one sum over ranks beside its own.

    Args:
        A: the operator, with `matvec`.
        like: a vector of the operator; its values do not matter, and stay.
        rtol: stop when the estimate changes by less than this part of it.
        maxiter: no more iterations than this.
        dtype: a complex one makes the start complex where `like` is not.

    Raises:
        ParameterError: no operator, no vector, maxiter below 1.
        SolverError: infinities or nan.
    """
    tape_recorder.refuse("jali.solvers.power_iteration", "call it before the tape, or solve by jali.solve")
    forward_of("power_iteration: A", A)
    if isinstance(maxiter, bool) or not isinstance(maxiter, int | np.integer) or maxiter < 1:
        raise ParameterError(
            f"power_iteration: maxiter is a positive whole number, not {value_shown(maxiter)}"
        )
    check_tolerances("power_iteration", rtol=rtol)
    start = like if np.dtype(dtype).kind != "c" else widened(like, _Of(dtype))
    return _largest(apply_sum_of("power_iteration: A", A, "inner"), widened(start, A), int(maxiter), rtol)


class _Of:
    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)


def largest(forward: Function, like: Any, maxiter: int, rtol: float) -> Eigenpair:
    """As `power_iteration`, of a function."""
    return _largest(lambda v: (forward(v), None), like, maxiter, rtol)


def _largest(apply_inner: ApplyInner, like: Any, maxiter: int, rtol: float) -> Eigenpair:
    vectors = vectors_of("power_iteration: like", like)
    vectors.epsilon(like)  # refuses whole numbers
    v = random_like(like)
    size = sums((v, v))[0].real
    if size == 0:
        raise ParameterError("power_iteration: like has no elements")
    vectors.update([(v, 1 / math.sqrt(size), [])])
    found: Any = 0.0
    iteration = 0
    for iteration in range(1, maxiter + 1):
        before = found
        w, product = apply_inner(v)
        if product is None:
            found, square = sums((v, w), (w, w))
        else:
            found, (square,) = product, sums((w, w))
        if not math.isfinite(square.real):
            count = bad_numbers(w)
            raise SolverError(
                f"power_iteration, iteration {iteration}: the operator produced "
                + (f"infinities or nan ({count} numbers)" if count else "numbers whose squares overflow")
                + " of a vector of norm 1"
            )
        if square.real == 0:
            break
        vectors.update([(v, 0, [(1 / math.sqrt(square.real), w)])])
        if abs(found - before) < rtol * abs(before):
            break
    return Eigenpair(found, v, iteration)


def bad_numbers(x: Any) -> int:
    """How many infinities and nan there are in a vector, over all ranks."""
    return int(sums((x, lambda part: float((~(abs(part) < math.inf)).sum())))[0].real)


def random_like(x: Any, seed: int = SEED) -> Any:
    """A vector like x of random numbers, the same in every run."""
    return random(x, seed)
