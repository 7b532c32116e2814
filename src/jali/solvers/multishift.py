"""Conjugate gradients for several shifts at once (B. Jegerlehner, hep-lat/9612014): (A + sigma_k) x_k = b from one Krylov space.

The space of A and b is that of A + sigma and b, so one application of A serves all shifts. The recursion is that of the smallest shift; the
residual of another one is zeta_k r with zeta_k < 1, so the largest shift converges first. A shift that has converged leaves: its vectors are no
longer updated. Residuals are computed from the solutions afterwards. Where rounding has lost one, `cg` goes on from there. There is no start
x0, since residuals would not be parallel, and no preconditioning, which would have to commute with shifts.

Of a field with a batch, all members are solved at once, each with its own numbers. With an `Inner` the recursion has few bits, as far as these carry it, and
each shift is solved further by `cg` with the same few bits.

The recursion stands here in ratios of his numbers. With the steps alpha, the weights beta, and the distance delta = sigma_k - sigma_0,

    excess' = delta alpha + alpha beta_old / alpha_old excess / (1 + excess)        1 + excess' = zeta / zeta'
    x_k += alpha zeta' d_k        d_k = r + beta / (1 + excess') d_k                d_k = p_k / zeta

No number is a difference of nearly equal ones, and none is divided by what may vanish: a zeta that underflows only makes steps of length zero.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jali import tape_recorder
from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.conjugate_gradient import ConjugateGradients, cg
from jali.solvers.elementwise import computed, quotient, settle, sqrt, times, where
from jali.solvers.krylov import PATIENCE
from jali.solvers.operators import into_of, is_operator, joins_members, refuse_batches_in_lists, widened
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner, check_inner
from jali.solvers.repetitions import TOGETHER, Repetitions
from jali.solvers.scaling import bound, number, scaled, to_order_one, unscaled
from jali.solvers.shared import Shared
from jali.solvers.solver import MAXITER, check_arguments
from jali.vectors import Vectors, vectors_of

MOST_AT_ONCE = 2  # shifts of one update, which also bounds the number of kernels; on hosts more streams of memory are slower
MOST_NUMBERS = 64  # of one array of numbers in a graph
LEAST_GAIN = 0.5  # of the true residual, by which a refinement has to lower it to be followed by another
FEWER = 2 / 3  # of the shifts of a graph: so few go on, and another graph is recorded
ABOVE_ROUNDING = 10.0  # the tolerance of a recursion in few bits, in units of their rounding


@dataclass(frozen=True, repr=False)
class MultiShiftSolution:
    """The solutions for several shifts: `found[k]` is the `Solution` of shift k, of a batch its `BatchSolution`, `len(found)` their number, `x` the list of all vectors.

    Each has its own iterations, those of a refinement included. `history` has |r| / |b| as the recursions know it, `residual` is
    |b - (A + sigma_k) x_k| / |b|, computed from x_k; `time` is that of all.
    """

    shifts: tuple[float, ...]
    solutions: tuple[Any, ...]

    def __getitem__(self, k: int) -> Any:
        return self.solutions[k]

    def __len__(self) -> int:
        return len(self.solutions)

    @property
    def x(self) -> list[Any]:
        """The solutions, in the order of the shifts."""
        return [solution.x for solution in self.solutions]

    @property
    def iterations(self) -> int:
        """Of the shift that took longest."""
        return max(solution.iterations for solution in self.solutions)

    @property
    def converged(self) -> bool:
        """Whether all shifts have."""
        return all(solution.converged for solution in self.solutions)

    def __repr__(self) -> str:
        counts = ", ".join(str(solution.iterations) for solution in self.solutions)
        how = "converged" if self.converged else "not all converged"
        worst = max(one.residual for solution in self.solutions for one in _members(solution))
        return (
            f"<solutions of {len(self)} shifts, {how} in {counts} iterations, largest residual {worst:.2g}>"
        )


@named
def multishift_cg(
    A: Any,
    b: Any,
    shifts: Sequence[float],
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    refine: bool = True,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    workspace: Any = None,
) -> MultiShiftSolution:
    """Solves (A + shift) x = b for all shifts at once, for a Hermitian A that is positive definite with the smallest of them.

    An iteration is one application of A, and for each shift that has not converged one pass over two vectors. It needs two vectors for each
    shift and two beside them. Of a field with a batch all members are solved at once, each with the numbers that it has alone; where A joins them
    (`joins_members`), all of them are one vector.

    Args:
        A: an operator with `matvec`, or a function that writes A p into q, as `jali.solvers.cg` takes it.
        b: right-hand side: a field, an array of NumPy, CuPy or PyTorch, a distributed array or a stack, or a list of these.
        shifts: real numbers, each larger than the one before it.
        rtol: a shift stops when its |r| <= max(rtol |b|, atol).
        atol: the bound that does not depend on |b|.
        maxiter: give up a shift after so many iterations, those of its refinement included.
        refine: solve a shift further by `jali.solvers.cg` where |b - (A + shift) x|, computed from x, is above that bound, as long as
            this lowers it.
        must_converge: raise SolverError where a shift is above the bound in the end; otherwise return with its `converged` False.
        check_interval: so many iterations are recorded as a graph (`jali.graph`), as `jali.solvers.cg` does; shifts leave between graphs. If
            left out: 8 for fields whose operator can be recorded, else 1, without graphs. The result does not depend on it.
        inner: `Inner(few, like)`, the operator and a vector in few bits: the recursion has these until rounding stops it, and each shift is refined by `cg` with
            `few + shift` inside.
        workspace: a `jali.solvers.Workspace()`, which keeps vectors, kernels and graphs for the next solve with the same operator and shifts.

    Raises:
        SolverError: |b - (A + shift) x| of a shift is above the bound, also after a refinement: the message names these shifts. Or
            A + shifts[0] is not positive definite or not Hermitian, or A produced infinities or nan. Its `history` has a list for each shift.
        ParameterError: shifts that are not ascending, not finite or none, or overflow or underflow in the precision of b; impossible tolerance or bound; vectors of an unsupported type; `check_interval` for vectors whose operations cannot be recorded.
        LayoutError: a vector of whole numbers.
        RecordingError: `check_interval` was given, and the operator cannot be recorded.
    """
    tape_recorder.refuse("jali.solvers.multishift_cg", "call it before the tape, or solve by jali.solve")
    begun = time.perf_counter()
    name = "multishift_cg"
    vectors = vectors_of(f"{name}: b", b)
    if not (callable(A) or is_operator(A)):
        raise ParameterError(
            f"{name}: the operator has a function matvec, or is a function A(p, q) that writes A p into q, not {value_shown(A)}"
        )
    sigmas = _ascending(shifts)
    check_arguments(name, rtol, atol, maxiter=maxiter, check_interval=check_interval)
    if check_interval is not None and check_interval > 1 and not vectors.repeats(b):
        raise ParameterError(
            f"{name}: check_interval={check_interval}, but operations on these vectors cannot be recorded"
        )
    shared = {"workspace": workspace}
    Shared.checked(name, shared)
    if inner is not None:
        check_inner(name, inner, b)
    if is_operator(A):
        b = widened(b, A)
    _refuse_lost(sigmas, vectors, b if inner is None else inner.like)
    refuse_batches_in_lists(name, b)
    system = _System(A, vectors, b, rtol, atol)
    few = _FewBits(vectors, system.b, inner)
    run: Any = ShiftedGradients.of_workspace(
        shared,
        A if inner is None else inner.A,
        few.b,
        None,
        sigmas,
        np.maximum(system.tolerance, few.least),
        0.0,
        None,
    )
    turns = check_interval or (TOGETHER if run.stay else 1)
    run.patience, run.must_converge, run.maxiter = max(PATIENCE, maxiter // 5), False, int(maxiter)
    repeated = Repetitions(run, turns, turns > 1, check_interval is not None, ahead=True)
    try:
        while not run.converged and not run.stagnates and run.iterations < maxiter:
            repeated.iterate()
    except SolverError as error:
        reason = str(error).removeprefix(name)
        raise SolverError(
            f"{name}, A + {sigmas[0]:g}, of the smallest shift{reason}", run.histories()
        ) from error
    repeated.discard()
    further = _Refinement(system, inner, {"rtol": rtol, "atol": atol, "check_interval": check_interval})
    solutions: list[Any] = []
    for k, sigma in enumerate(sigmas):
        found = system.found(sigma, few.solution(run, k), run.history_of(k), repeated.turns)
        if refine and not found.converged:
            try:
                found = further.refined(sigma, found, int(maxiter))
            except SolverError as error:
                raise SolverError(
                    f"{name}, refinement of {_named(k, sigma)}: {error}", run.histories()
                ) from error
        solutions.append(found)
    seconds = time.perf_counter() - begun
    all_found = MultiShiftSolution(sigmas, tuple(_timed(one, seconds) for one in solutions))
    if must_converge and not all_found.converged:
        histories = [_history(one) for one in solutions]
        raise SolverError(_failure(run, all_found, system, maxiter, refine, inner), histories)
    return all_found


def _ascending(shifts: Any) -> tuple[float, ...]:
    """The shifts as numbers of Python. Raises ParameterError unless there are some, finite, each larger than the one before it."""
    what = "multishift_cg: shifts are real numbers in ascending order, [0.0, 0.1, 0.5]"
    if isinstance(shifts, str | bytes | numbers.Number) or not hasattr(shifts, "__iter__"):
        raise ParameterError(f"{what}, not {value_shown(shifts)}; for one shift give a list of one number")
    given = list(shifts)
    if not given:
        raise ParameterError(f"{what}; there are none, give one at least")
    found: list[float] = []
    for k, value in enumerate(given):
        if not isinstance(value, numbers.Real):
            raise ParameterError(f"{what}, and shifts[{k}] is {value_shown(value)}, no real number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ParameterError(f"{what}, and shifts[{k}] is {number}, which is not finite")
        if found and number <= found[-1]:
            remedy = (
                "leave out one of the two"
                if number == found[-1]
                else "sort them, the solutions come in their order"
            )
            raise ParameterError(f"{what}, and shifts[{k}] = {number:g} follows {found[-1]:g}; {remedy}")
        found.append(number)
    return tuple(found)


def _refuse_lost(sigmas: tuple[float, ...], vectors: Vectors, b: Any) -> None:
    """Raises ParameterError for shifts that overflow or underflow in the precision of b, LayoutError where b has whole numbers."""
    limits = np.finfo(np.float32 if vectors.epsilon(b) > 1e-12 else np.float64)
    least, most = float(limits.tiny), float(limits.max)
    for k, sigma in enumerate(sigmas):
        if sigma != 0 and not least <= abs(sigma) <= most:
            raise ParameterError(
                f"multishift_cg: shifts[{k}] = {sigma:g} {'overflows' if abs(sigma) > 1 else 'underflows'} in {vectors.precision(b)}: shifts are zero "
                f"or between {least:.2g} and {most:.2g}"
            )


class _System:
    """A x = b with b of order one, as `scaled` makes it, and the tolerance of each member."""

    def __init__(self, A: Any, vectors: Vectors, b: Any, rtol: float, atol: float):
        self.A, self.given = A, b
        self.joined = getattr(b, "batch", None) is not None and joins_members(A)
        self.vectors: Any = vectors.of_whole_batch() if self.joined else vectors  # type: ignore[attr-defined]
        self.b, _, size, self.factors = scaled(self.vectors, b, None)
        size = np.asarray(size)
        self.size = np.where(size > 0, size, 1.0)
        self.tolerance = np.maximum(rtol, bound(atol, size, self.factors) / self.size)
        self.into = into_of("the operator", A, vectors)
        self.r: Any = None

    def found(self, sigma: float, x: Any, history: list[list[float]], turns: int) -> Any:
        """The solution of the b that was given, of a vector x that is one of this b, with its true residual, and the histories of its members."""
        if self.r is None:
            self.r = self.vectors.like(self.b)
        self.into(x, self.r)
        square = self.vectors.update([(self.r, -1, [(1, self.b), (-sigma, x)])], norm=True)
        residual = np.sqrt(np.asarray(square, float)) / self.size
        x = unscaled(self.vectors, x, self.factors)
        converged = np.ravel(residual <= self.tolerance).tolist()
        members = [
            Solution(x.members[m] if residual.ndim else x, len(past) - 1, past, value, ends, turns)
            for m, (past, value, ends) in enumerate(
                zip(history, np.ravel(residual).tolist(), converged, strict=True)
            )
        ]
        return BatchSolution(x, tuple(members)) if residual.ndim else members[0]


class _FewBits:
    """b as the recursion has it: itself, or with `inner` a copy in few bits."""

    def __init__(self, vectors: Vectors, b: Any, inner: Inner | None):
        self.vectors, self.inner = vectors, inner
        self.b, self.of, self.least, self.scale = b, b, np.asarray(0.0), np.asarray(1.0)
        if inner is None:
            return
        squares = np.asarray(vectors.norm2(b), float)
        some = np.isfinite(squares) & (squares > 0)
        size = np.sqrt(np.where(some, squares, 1.0))
        self.scale = to_order_one(squares, vectors.count(b))
        low = vectors_of("inner: like", inner.like)
        self.b = low.like(inner.like)
        vectors.update([(self.b, 0, [(number(self.scale), b)])])
        lost = vectors.copy(b)
        found = vectors.update([(lost, number(self.scale), [(-1, self.b)])], norm=True)
        unit = np.sqrt(np.asarray(found, float)) / (size * self.scale)
        self.least = ABOVE_ROUNDING * np.where(some, unit, 0.0)

    def solution(self, run: ShiftedGradients, k: int) -> Any:
        """x of shift k, for the b of the system."""
        x = unscaled(run.vectors, run.x_of[k], run.factors)
        if self.inner is not None:
            found = self.vectors.like(self.of)
            self.vectors.update([(found, 0, [(number(1 / self.scale), x)])])
            return found
        return x if x is not run.x_of[k] or not run.kept_for_more else run.vectors.copy(x)


class _Refinement:
    """`cg` from the solution of a shift, with the same few bits, if there are some."""

    def __init__(self, system: _System, inner: Inner | None, options: dict[str, Any]):
        self.system, self.inner = system, inner
        self.options = options | {"must_converge": False}

    def refined(self, sigma: float, found: Any, maxiter: int) -> Any:
        """What `cg` makes of a solution, which it begins with again as long as that lowers the true residual; the nearest one."""
        system = self.system
        operator = _Shifted(system.into, system.vectors, sigma, system.joined)
        options = dict(self.options)
        if self.inner is not None:
            low = vectors_of("inner: like", self.inner.like)
            few = into_of("the inner operator", self.inner.A, low)
            options["inner"] = replace(self.inner, A=_Shifted(few, low, sigma, system.joined))
        while not found.converged and found.iterations < maxiter:
            more = cg(operator, system.given, found.x, maxiter=maxiter - found.iterations, **options)
            pairs = list(zip(_members(found), _members(more), strict=True))
            gained = any(new.residual < LEAST_GAIN * old.residual for old, new in pairs if not old.converged)
            better = all(new.residual <= old.residual or new.converged for old, new in pairs)
            members = [self._after(old, new, new if better else old) for old, new in pairs]
            x = more.x if better else found.x
            found = members[0] if isinstance(found, Solution) else BatchSolution(x, tuple(members))
            if not gained:
                break
        return found

    def _after(self, old: Solution, new: Solution, better: Solution) -> Solution:
        return replace(
            better,
            iterations=old.iterations + new.iterations,
            history=old.history + new.history[1:],
            check_interval=old.check_interval,
        )


def _members(found: Any) -> Sequence[Solution]:
    return found.members if isinstance(found, BatchSolution) else (found,)


def _timed(found: Any, seconds: float) -> Any:
    if isinstance(found, BatchSolution):
        return replace(found, members=tuple(replace(one, time=seconds) for one in found.members))
    return replace(found, time=seconds)


def _history(found: Any) -> Any:
    return [one.history for one in found.members] if isinstance(found, BatchSolution) else found.history


def _named(k: int, sigma: float) -> str:
    return f"shift {k} = {sigma:g}"


def _failure(
    run: ShiftedGradients,
    found: MultiShiftSolution,
    system: _System,
    maxiter: int,
    refine: bool,
    inner: Inner | None,
) -> str:
    """The message of a solve that gave up some shifts, with its likely cause."""
    missed = [k for k, solution in enumerate(found.solutions) if not solution.converged]
    worst = [max(one.residual for one in _members(found[k])) for k in missed]
    each = ", ".join(
        f"{_named(k, found.shifts[k])} with |b - (A + shift) x|/|b| = {residual:.3g}"
        for k, residual in zip(missed, worst, strict=True)
    )
    tolerance = float(np.max(system.tolerance))
    said = f"multishift_cg: {len(missed)} of {len(found)} shifts miss the tolerance {tolerance:g}: {each}; "
    if not run.converged:
        why = "stagnation" if run.stagnates else "no convergence"
        cause = run.cause()
        return (
            f"{said}of the smallest: {why} in {run.iterations} iterations, |r|/|b| was {float(np.max(run.best)):.3g} at best"
            f"{cause and '; '}{cause}"
        )
    if not refine:
        return f"{said}rounding has moved the residuals away from those of the recursion; refine=True solves further by cg"
    if any(found[k].iterations >= maxiter for k in missed):
        return f"{said}refinement needs more iterations than maxiter={maxiter}"
    if inner is not None:
        return f"{said}the inner operator is another one than A, or its format is too inaccurate for the condition of A"
    return f"{said}that is below what rounding in {run.vectors.precision(run.b)} allows for this operator"


class _Shifted:
    """A + sigma, of the function that writes A x, for refinements and for what measures operators."""

    def __init__(self, into: Any, vectors: Vectors, sigma: float, joins_members: bool):
        self.into, self.vectors, self.sigma, self.joins_members = into, vectors, sigma, joins_members
        self.out: Any = None  # made when it is first applied, which is never in a graph

    def matvec(self, x: Any) -> Any:
        """(A + sigma) x, always the same vector."""
        if self.out is None:
            self.out = self.vectors.like(x)
        self.matvec_into(x, self.out)
        return self.out

    def matvec_into(self, x: Any, out: Any) -> None:
        """(A + sigma) x into a vector."""
        self.into(x, out)
        self.vectors.update([(out, 1, [(self.sigma, x)])])


# ---- numbers of a step, of the host or where the vectors are; those of shifts are arrays, of a batch with a row for each shift -------------------------


def _descent(rr: Any, curvature: Any, size: Any, tolerance: Any) -> Any:
    """The negative of a step, which is what updates take."""
    return -quotient(rr, curvature, rr, size, tolerance)


def _with_shift(curvature: Any, pp: Any, lowest: Any) -> Any:
    return curvature + lowest * pp


def _next_excess(excess: Any, delta: Any, minus: Any, before: Any, weight: Any) -> Any:
    """zeta / zeta' - 1, of the negatives of this step and of the one before."""
    return delta * -minus + -minus * (weight / -before) * (excess / (1.0 + excess))


def _next_zeta(zeta: Any, excess: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """0 once the residual zeta |r| has reached the tolerance, which it then keeps."""
    return where(zeta * sqrt(rr) / size > tolerance, zeta / (1.0 + excess), 0.0)


def _step(zeta: Any, minus: Any) -> Any:
    return -minus * zeta


def _weight_of_shift(excess: Any, zeta: Any, weight: Any) -> Any:
    return where(zeta > 0.0, weight / (1.0 + excess), 0.0)


class ShiftedGradients(ConjugateGradients):
    """Conjugate gradients for A + shifts[0], and for each shift its x, direction d, excess and zeta.

    The first `active` shifts go on. The x and p of the recursion are those of shift 0, whose zeta is 1.
    """

    name = "multishift_cg"
    active: int
    recorded: int

    def __init__(
        self,
        A: Any,
        b: Any,
        x0: Any,
        shifts: tuple[float, ...],
        rtol: float,
        atol: float,
        inner: Inner | None,
    ):
        self.shifts, self.lowest = shifts, shifts[0]
        super().__init__(A, b, x0, rtol, atol, inner)

    @property
    def form(self) -> int:
        """Of how many shifts a graph has the vectors."""
        if self.active <= FEWER * self.recorded or self.active == 1 < self.recorded:
            self.recorded = self.active
        self.moved = self.recorded
        return self.recorded

    def iterate(self) -> None:
        self.moved = self.active
        super().iterate()

    def prepare(self, rr: np.ndarray) -> None:
        super().prepare(rr)
        count = len(self.shifts)
        self.active = self.recorded = self.moved = count
        shape = (count, *np.shape(rr))
        self.zetas, self.excesses, self.found = np.ones(shape), np.zeros(shape), list[np.ndarray]()
        self.last = -np.ones(np.shape(rr)), np.zeros(np.shape(rr))  # the last step's negative, and weight
        self._note_residuals(rr)

    def forward_function(self) -> Any:
        """(A + shifts[0]) p."""
        return _Shifted(self.apply, self.vectors, self.lowest, joins_members(self.A)).matvec

    def begin(self, rr: np.ndarray) -> list[Any]:
        vectors, count = self.vectors, len(self.shifts)
        if not hasattr(self, "p"):
            # sums of steps: where b has few bits they have the numbers of its arithmetic
            new = [vectors.stored(self.b) for _ in self.shifts]
            self.x, self.others = new[0], new[1:]
            self.directions = [vectors.like(self.b) for _ in self.shifts[1:]]
            deltas = np.array(self.shifts) - self.lowest
            of_rows = np.broadcast_to(deltas.reshape(count, *[1] * np.ndim(rr)), (count, *np.shape(rr)))
            self.blocks = [slice(k, k + MOST_NUMBERS) for k in range(0, count, MOST_NUMBERS)]
            self.deltas, self.on_host = [self.kept(of_rows[block]) for block in self.blocks], of_rows
        numbers = super().begin(rr)
        for x in (self.x, *self.others):
            vectors.update([(x, 0, [(0.0, x)])])
        for d in self.directions:
            vectors.update([(d, 0, [(1, self.r)])])
        minus, weight = self.last
        blocks = [part[block] for part in (self.excesses, self.zetas) for block in self.blocks]
        return [*numbers, rr, minus, weight, *blocks]

    @property
    def x_of(self) -> list[Any]:
        """The solutions, in the order of the shifts."""
        return [self.x, *self.others]

    def step(self, rr: Any, *more: Any) -> tuple[list[Any], list[Any], list[Any]]:
        pp, before, weight, *blocks = more
        size, tolerance, half = self.size, self.tolerance, len(blocks) // 2
        self.q, curvature = self.apply_inner(self.p, self.waits)
        if self.lowest:
            curvature = computed(_with_shift, curvature, pp, self.lowest)
        minus = computed(_descent, rr, curvature.real, size, tolerance)
        terms = [(minus, self.q)]
        if self.lowest:
            terms.append((computed(times, minus, self.lowest), self.p))
        new = self.update((self.r, 1, terms), norm=True)
        excesses = [
            computed(_next_excess, excess, delta, minus, before, weight)
            for excess, delta in zip(blocks[:half], self.deltas, strict=True)
        ]
        zetas = [
            computed(_next_zeta, zeta, excess, rr, size, tolerance)
            for zeta, excess in zip(blocks[half:], excesses, strict=True)
        ]
        weight = computed(quotient, new, rr, rr, size, tolerance)
        settle(minus, weight)
        steps = [one for zeta in zetas for one in _rows(computed(_step, zeta, minus))]
        weights = [
            one
            for excess, zeta in zip(excesses, zetas, strict=True)
            for one in _rows(computed(_weight_of_shift, excess, zeta, weight))
        ]
        found = self._move(steps, weights)
        return [new, found if self.lowest else new, minus, weight, *excesses, *zetas], [new], [curvature]

    def _move(self, steps: Sequence[Any], weights: Sequence[Any]) -> Any:
        """x += step d, then d = r + weight d, of the shifts that a step has; returns |d|^2 of shift 0 where it is needed."""
        pp, x_of, d_of = None, self.x_of, [self.p, *self.directions]
        for first in range(0, self.moved, MOST_AT_ONCE):
            assignments: list[Any] = []
            # the norm is that of the last one
            for k in reversed(range(first, min(first + MOST_AT_ONCE, self.moved))):
                assignments += [
                    (x_of[k], 1, [(steps[k], d_of[k])]),
                    (d_of[k], weights[k], [(1, self.r)]),
                ]
            norm = first == 0 and self.lowest != 0.0
            found = self.update(*assignments, norm=norm)
            pp = found if norm else pp
        return pp

    # ---- what the host knows of shifts -------------------------------------------------------------------

    def quick(self, squares: np.ndarray, watched: np.ndarray) -> bool:
        if not super().quick(squares, watched):
            return False
        before = self.squares
        for rr, curvature in zip(squares, watched[:, 0].real, strict=True):
            self._follow(before, curvature, rr)
            before = rr
        return True

    def check(self, *watched: np.ndarray) -> None:
        super().check(*watched)
        self.curvature = np.real(watched[0])

    def count(self, rr: np.ndarray) -> None:
        before = self.squares
        super().count(rr)
        self._follow(before, self.curvature, rr)

    def _follow(self, before: np.ndarray, curvature: np.ndarray, rr: np.ndarray) -> None:
        """Computes the numbers of a step of all shifts again, for their residuals."""
        size, tolerance = self.sizes, self.limits
        minus = computed(_descent, before, curvature, size, tolerance)
        self.excesses = computed(_next_excess, self.excesses, self.on_host, minus, *self.last)
        self.zetas = computed(_next_zeta, self.zetas, self.excesses, before, size, tolerance)
        self.last = minus, computed(quotient, rr, before, before, size, tolerance)
        self._note_residuals(rr)

    def _note_residuals(self, rr: np.ndarray) -> None:
        """|r| / |b| of the shifts that go on, nan of the others; those that have converged leave, the largest first."""
        residuals = self.zetas * np.sqrt(rr) / self.sizes
        if self.found:
            residuals = np.where(self.found[-1] > self.limits, residuals, np.nan)
        self.found.append(residuals)
        while self.active and not np.any(residuals[self.active - 1] > self.limits):
            self.active -= 1

    def history_of(self, k: int) -> list[list[float]]:
        """|r| / |b| of shift k by iteration: a list for each member, or one for a single vector."""
        rows = np.array([row[k] for row in self.found]).reshape(len(self.found), -1)
        return [column[~np.isnan(column)].tolist() for column in rows.T]

    def histories(self) -> list[Any]:
        """Those of all shifts."""
        all_of_them = [self.history_of(k) for k in range(len(self.shifts))]
        return all_of_them if self.batch is not None else [one for (one,) in all_of_them]


def _rows(numbers: Any) -> list[Any]:
    return [numbers[k] for k in range(len(numbers))]
