"""Eigenvectors of Hermitian operators by thick-restart Lanczos: what is asked for, checked, and handed to a search (`band_lanczos.py`).

The host drives it; there are no graphs. `eigenpairs.py` has what becomes of the vectors, `spectral_filter.py` the polynomial of the operator.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from jali import tape_recorder
from jali.comm.validation import integer
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.band_lanczos import CountedOperator, Search
from jali.solvers.eigenpairs import Eigenpairs
from jali.solvers.operators import digest_of, has_batch, is_operator, joins_members, widened
from jali.solvers.solver import check_tolerances
from jali.solvers.spectral_filter import ChebyshevFilter
from jali.solvers.subspaces import operations
from jali.vectors import check_alike, vectors_of

MAXITER = 10_000  # Lanczos steps
LEAST_ACTIVE = 3  # vectors of the space beyond those that are wanted
MOST_TOGETHER = 64  # vectors of a block


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
        space: so many Lanczos vectors, count + 3 at least, of a block count + 3 block; if left out max(2 count, count + 20), with 8 for each vector of a block
            if that is more, and where vectors of `start` have not converged with 4 for each of these.
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
    tape_recorder.refuse("jali.solvers.lanczos", "call it before the tape, or solve by jali.solve")
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
    operator = CountedOperator(A, vectors, vectors.stored(like), int(block))
    if not has_batch(like):
        operator.check_hermitian()
    wanted = -1 if which == "largest" else 1
    polynomial = None if degree is None or window is None else ChebyshevFilter(degree, *window, wanted)
    room = max(2 * number, number + 20, number + 8 * block) if space is None else int(space)
    room = max(room, len(begin) + LEAST_ACTIVE * operator.block)
    room += -room % operator.block
    digest = digest_of(A)
    most = max(room, number + 4 * len(begin)) if space is None else room
    search = Search(operator, polynomial, wanted, number, room, most, float(rtol), int(maxiter), int(seed))
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
