"""Properties of an operator as a whole: its matrix, eigenvalues, condition number and trace.

All are collective, with the same result on all ranks. The matrix costs one application for each column; computations from it
are limited in size. A few eigenvalues are found by ARPACK (SciPy's), which runs on rank 0 and sends the others each vector:
so their number of steps cannot differ. Where several ranks have copies of a part (`A.copies`), A is tried on vectors whose
copies are equal, and is as a whole what takes each copy to the same copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from jali.errors import ParameterError, ShapeError, SolverError
from jali.linops import spaces
from jali.linops.validation import positive

MOST_ELEMENTS = 1 << 27  # of a matrix, 1 GiB of float64, that every rank is to hold


def space(A: Any, like: Any, what: str) -> Any:
    """The layout of A's arguments."""
    found = A.domain() if like is None else spaces.space_of(like)
    if found is None:
        raise ParameterError(
            f"{what}: {A!r} does not say which layout its vectors have; give one of them, like=x, whose layout it takes"
        )
    if spaces.size_of(found) != A.shape[1]:
        raise ShapeError(
            f"{what}: {A!r} takes {A.shape[1]} elements, the layout given has {spaces.size_of(found)}"
        )
    return found


def _near(like: Any) -> Any:
    """A local part, which determines where numbers are allocated."""
    while hasattr(like, "distarrays"):
        like = like.distarrays[0]
    return None if like is None else like.local


def matrix(A: Any, like: Any = None, most_elements: int = MOST_ELEMENTS) -> np.ndarray:
    """A as an array of NumPy, on every rank. Elements are in the order of `asarray()`.

    `like` is a vector with the layout of A's argument, where A does not define it. Raises ShapeError where A has more
    than `most_elements`.
    """
    where = space(A, like, "todense")
    if math.prod(A.shape) > most_elements:
        raise ShapeError(
            f"{A!r} has {math.prod(A.shape)} elements as a matrix, which every rank would hold; {most_elements} are permitted: give "
            "most_elements for more, or ask for a few eigenvalues (neigs) or an estimate of the trace (neval)"
        )
    if A.shape[1] == 0:
        return np.zeros(A.shape, A.dtype)
    near = _near(like)
    if times(A) == 1:
        return spaces.columns(
            [
                spaces.owned(A, A.matvec(spaces.unit(where, number, A.dtype, near)))
                for number in range(A.shape[1])
            ]
        )
    copy, numbers = spaces.copies(where, times(A))
    images = [
        spaces.owned(A, A.matvec(spaces.from_flat(where, (numbers == number).astype(A.dtype), near)))
        for number in range(A.shape[1] // times(A))
    ]
    copy_of_row, _ = spaces.copies(spaces.space_of(images[0]), times(A))
    found = spaces.columns(images)[:, numbers]
    found[copy_of_row[:, None] != copy] = 0
    return found


def times(A: Any) -> int:
    """On how many ranks the same part of a vector is."""
    return max(1, A.copies)


def eigenvalues(
    A: Any, count: int | None, symmetric: bool = False, iterations: int | None = None, like: Any = None
) -> np.ndarray:
    """The `count` eigenvalues of largest modulus, or all; of an A that is not square its singular values. They are sorted by value, not
    by modulus, the largest first; complex ones by their real parts.

    `symmetric`: A is Hermitian. All are computed from the matrix, a few by ARPACK, with at most so many `iterations` of its
    own. Raises ShapeError for matrices too large, SolverError where ARPACK does not converge.
    """
    if count is not None:
        positive("neigs", count)
    if iterations is not None:
        positive("maxiter", iterations)
    square = A.shape[0] == A.shape[1]
    size = A.shape[1] if square else min(A.shape)
    least = 1 if count is None else -(-count // times(A))  # of an A that has each so often
    if count is None or least >= size // times(A) - 1:
        dense = matrix(A, like)
        if not square:
            values = np.linalg.svd(dense, compute_uv=False)
        else:
            values = np.linalg.eigvalsh(dense) if symmetric else np.linalg.eigvals(dense)
        return _largest(values, count)
    if find_spec("scipy") is None:  # raised by all ranks, since only one calls ARPACK
        raise ParameterError(
            f'eigs: {count} of {size} eigenvalues need SciPy, which is not installed: pip install "jali[arrays]", or ask for all (neigs=None)'
        )
    where, near = space(A, like, "eigs"), _near(like)
    copy, numbers = spaces.copies(where, times(A))
    distinct = A.shape[1] // times(A)
    kind = np.complex128 if A.dtype.kind == "c" else np.float64

    def apply(values: np.ndarray) -> np.ndarray:
        y = A.matvec(spaces.from_flat(where, values[numbers].astype(A.dtype), near))
        return spaces.flat(y if square else A.rmatvec(y))[copy == 0].astype(kind)

    def solve(operator: Any) -> np.ndarray:
        from scipy.sparse import linalg

        start = np.random.default_rng(0).normal(size=distinct)
        find = linalg.eigsh if symmetric or not square else linalg.eigs
        found: np.ndarray = find(
            operator, k=least, maxiter=iterations, v0=start, return_eigenvectors=False, which="LM"
        )
        return found if square else np.sqrt(np.maximum(found, 0))

    values = _from_rank_0(spaces.communicator_of(where), apply, solve, distinct, kind)
    return _largest(np.repeat(values, times(A)), count)


def _largest(values: np.ndarray, count: int | None) -> np.ndarray:
    """So many of largest modulus, sorted by value."""
    return -np.sort(-values[np.argsort(-np.abs(values), kind="stable")[:count]])


def _from_rank_0(
    ranks: Any, apply: Callable[[np.ndarray], np.ndarray], solve: Callable[[Any], np.ndarray], size: int, kind: Any
) -> np.ndarray:  # fmt: skip
    """The result of `solve` on rank 0 with an operator of this size that all ranks apply together."""
    message = np.zeros(size + 1, kind)  # a vector, and whether it is to be applied
    if ranks.rank > 0:
        while ranks.broadcast(message, 0)[size] != 0:
            apply(message[:size])
        answer = ranks.broadcast_bytes(b"", 0)
    else:
        from scipy.sparse.linalg import ArpackError, LinearOperator

        def together(x: np.ndarray) -> np.ndarray:
            message[:size], message[size] = x.reshape(-1), 1
            ranks.broadcast(message, 0)
            return apply(message[:size])

        try:
            found = solve(LinearOperator((size, size), matvec=together, dtype=kind))
            answer = (b"c" if np.iscomplexobj(found) else b"r") + found.astype(np.complex128).tobytes()
        except ArpackError as error:
            answer = b"!" + str(error).encode()
        message[size] = 0
        ranks.broadcast(message, 0)
        ranks.broadcast_bytes(answer, 0)
    if answer[:1] == b"!":
        raise SolverError(
            f"eigs: {answer[1:].decode()}: permit more iterations (maxiter), or ask for all (neigs=None)"
        )
    values = np.frombuffer(answer[1:], np.complex128)
    return values if answer[:1] == b"c" else values.real


def condition(A: Any, like: Any = None) -> float:
    """The largest singular value of the matrix over its smallest: 2-norm condition number; infinite where it is singular."""
    if 0 in A.shape:
        raise ShapeError(f"{A!r} without elements has no condition number")
    values = np.linalg.svd(matrix(A, like), compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf


def trace(A: Any, evaluations: int | None = None, like: Any = None, seed: int = 0) -> Any:
    """Sum of the diagonal: exactly, from the matrix, or as the mean of z^T A z over so many random vectors z of +1 and -1
    (Hutchinson, Commun. Stat. Simul. Comput. 18 (1989) 1059). Raises ShapeError for an operator that is not square."""
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"only square operators have a trace, not {A!r}")
    if evaluations is not None:
        positive("neval", evaluations)
    if evaluations is None:
        return np.trace(matrix(A, like))
    where, near = space(A, like, "trace"), _near(like)
    signs, (_, numbers) = np.random.default_rng(seed), spaces.copies(where, times(A))
    total: Any = 0
    for _ in range(evaluations):
        values = signs.choice([-1, 1], size=A.shape[1] // times(A))[numbers].astype(A.dtype)
        z = spaces.from_flat(where, values, near)
        y = A.matvec(z)
        total += z.dot(y) if times(A) == 1 else values @ spaces.flat(y)  # a dot product may count copies once
    return total / evaluations
