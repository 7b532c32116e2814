"""Conjugate gradients for several shifts at once (B. Jegerlehner, hep-lat/9612014): (A + sigma_k) x_k = b from one Krylov space.

The space of A and b is that of A + sigma and b, so one application of A serves all shifts. The recursion is that of the smallest shift; the
residual of another one is zeta_k r with zeta_k < 1, so the largest shift converges first. A shift that has converged leaves: its vectors are no
longer updated. Residuals are computed from the solutions afterwards. Where rounding has lost one, `cg` goes on from there. There is no start
x0, since residuals would not be parallel, and no preconditioning, which would have to commute with shifts.

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

from jali.comm.validation import integer
from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.causes import not_finite
from jali.solvers.conjugate_gradient import cg
from jali.solvers.diagnosis import Diagnosis
from jali.solvers.operators import (
    Function,
    apply_inner_of,
    forward_of,
    function_of,
    has_batch,
    is_operator,
    joins_members,
    widened,
)
from jali.solvers.recursion import Recursion, Solution, iterate
from jali.solvers.scaling import scaled, unscaled
from jali.solvers.solver import MAXITER, check_tolerances
from jali.vectors import Vectors, vectors_of

TOGETHER = 2  # shifts of one update, which also bounds the number of kernels; on hosts more streams of memory are slower
MOST_NUMBERS = 64  # of one array of numbers in a graph
LEAST_GAIN = 0.5  # of the true residual, by which a refinement has to lower it to be followed by another


@dataclass(frozen=True, repr=False)
class MultiShiftSolution:
    """The solutions for several shifts: `found[k]` is the `Solution` of shift k, `len(found)` their number, `x` the list of all vectors.

    Each has its own iterations, those of a refinement included. `history` has |r| / |b| as the recursions know it, `residual` is
    |b - (A + sigma_k) x_k| / |b|, computed from x_k; `time` is that of all.
    """

    shifts: tuple[float, ...]
    solutions: tuple[Solution, ...]

    def __getitem__(self, k: int) -> Solution:
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
        worst = max(solution.residual for solution in self.solutions)
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
) -> MultiShiftSolution:
    """Solves (A + shift) x = b for all shifts at once, for a Hermitian A that is positive definite with the smallest of them.

    An iteration is one application of A, and for each shift that has not converged one pass over two vectors. It needs two vectors for each
    shift and two beside them. Of a field with a batch whose members A joins (`joins_members`), all of them are one vector.

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
            left out: 8 for fields on one device whose operator can be recorded, else 1, without graphs. The result does not depend on it.

    Raises:
        SolverError: |b - (A + shift) x| of a shift is above the bound, also after a refinement: the message names these shifts. Or
            A + shifts[0] is not positive definite or not Hermitian, or A produced infinities or nan. Its `history` has a list for each shift.
        ParameterError: shifts that are not ascending, not finite or none, or overflow or underflow in the precision of b; impossible tolerance or bound; vectors of an unsupported type; a
            field with a batch whose members A does not join; `check_interval` for vectors whose operations cannot be recorded.
        LayoutError: a vector of whole numbers.
        RecordingError: `check_interval` was given, and the operator cannot be recorded.
    """
    begun = time.perf_counter()
    vectors = vectors_of("multishift_cg: b", b)
    if not (callable(A) or is_operator(A)):
        raise ParameterError(
            "multishift_cg: the operator has a function matvec, or is a function A(p, q) that writes A p into q, not "
            f"{value_shown(A)}"
        )
    sigmas = _ascending(shifts)
    check_tolerances("multishift_cg", rtol=rtol, atol=atol)
    if rtol >= 1 or rtol == atol == 0:
        raise ParameterError(
            f"multishift_cg: rtol is below 1, and rtol or atol above 0, not {value_shown(rtol)} and {value_shown(atol)}"
        )
    for name, value in (("maxiter", maxiter), ("check_interval", check_interval)):
        if (value is not None or name == "maxiter") and ((number := integer(value)) is None or number < 1):
            raise ParameterError(
                f"multishift_cg: {name} is a positive whole number, not {value_shown(value)}"
            )
    if check_interval is not None and check_interval > 1 and not vectors.repeats(b):
        raise ParameterError(
            f"multishift_cg: check_interval={check_interval}, but operations on these vectors cannot be recorded"
        )
    if is_operator(A):
        b = widened(b, A)
    _refuse_lost(sigmas, vectors, b)
    if has_batch(b):
        if not joins_members(A) or isinstance(b, list | tuple):
            raise ParameterError(
                "multishift_cg: b is one vector, and this one has a batch whose members the operator does not join; solve member by "
                "member, for f.members[k]"
            )
        vectors = vectors.of_whole_batch()  # type: ignore[attr-defined]
    unit, _, size, factors = scaled(vectors, b, None)
    if not math.isfinite(size):
        if has_batch(b):
            raise SolverError("multishift_cg: b has infinities or nan, or numbers whose squares overflow")
        raise not_finite("multishift_cg", b=b)
    if size == 0:
        return MultiShiftSolution(
            sigmas, tuple(Solution(vectors.like(b), 0, [0.0], 0.0, True) for _ in sigmas)
        )
    tolerance = max(float(rtol), math.prod(factors, start=float(atol)) / size)
    run = _ShiftsRun(A, vectors, unit, size, tolerance, sigmas)
    turns = check_interval or vectors.check_interval(b)
    try:
        turns = iterate(run, _Repeated, turns, maxiter, check_interval is not None)
    except SolverError as error:
        raise SolverError(
            f"multishift_cg, A + {sigmas[0]:g}, of the smallest shift: {error}", run.histories
        ) from error
    solutions, histories = [], run.histories
    for k, sigma in enumerate(sigmas):
        residual, history = run.true_residual_of(k), histories[k]
        x = unscaled(vectors, run.x_of[k], factors)
        found = Solution(x, len(history) - 1, history, residual, residual <= tolerance, turns)
        if refine and not found.converged:
            operator = _Shifted(run.apply, vectors, sigma, joins_members(A))
            try:
                found = _refined(operator, b, found, tolerance, rtol, atol, maxiter, check_interval)
            except SolverError as error:
                raise SolverError(
                    f"multishift_cg, refinement of {_named(k, sigma)}: {error}", run.histories
                ) from error
        solutions.append(found)
    seconds = time.perf_counter() - begun
    all_found = MultiShiftSolution(sigmas, tuple(replace(one, time=seconds) for one in solutions))
    if must_converge and not all_found.converged:
        histories = [one.history for one in solutions]
        raise SolverError(_failure(run, all_found, maxiter, refine), histories)
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


def _refined(
    operator: _Shifted,
    b: Any,
    found: Solution,
    tolerance: float,
    rtol: float,
    atol: float,
    maxiter: int,
    check_interval: int | None,
) -> Solution:
    """What `cg` makes of a solution, which it begins with again as long as that lowers the true residual; the nearest one."""
    while not found.converged and found.iterations < maxiter:
        more: Any = cg(
            operator,
            b,
            found.x,
            rtol=rtol,
            atol=atol,
            maxiter=maxiter - found.iterations,
            must_converge=False,
            check_interval=check_interval,
        )
        better = more if more.residual < found.residual else found
        gained = more.residual < LEAST_GAIN * found.residual
        found = Solution(
            better.x,
            found.iterations + more.iterations,
            found.history + more.history[1:],
            better.residual,
            better.residual <= tolerance,
            found.check_interval,
        )
        if not gained:
            break
    return found


def _named(k: int, sigma: float) -> str:
    return f"shift {k} = {sigma:g}"


def _failure(run: _ShiftsRun, found: MultiShiftSolution, maxiter: int, refine: bool) -> str:
    """The message of a solve that gave up some shifts, with its likely cause."""
    missed = [k for k, solution in enumerate(found.solutions) if not solution.converged]
    each = ", ".join(
        f"{_named(k, found.shifts[k])} with |b - (A + shift) x|/|b| = {found[k].residual:.3g}" for k in missed
    )
    said = (
        f"multishift_cg: {len(missed)} of {len(found)} shifts miss the tolerance {run.tolerance:g}: {each}; "
    )
    if not run.converged:
        return (
            f"{said}of the smallest: no convergence in {run.iterations} iterations, |r|/|b| was {run.diagnosis.least:.3g} at best; "
            f"{run.diagnosis.slow(run.tolerance)}"
        )
    if not refine:
        return f"{said}rounding has moved the residuals away from those of the recursion; refine=True solves further by cg"
    if any(found[k].iterations >= maxiter for k in missed):
        return f"{said}refinement needs more iterations than maxiter={maxiter}"
    return f"{said}that is below what rounding in {run.vectors.precision(run.b)} allows for this operator"


class _Shifted:
    """A + sigma, of the function that gives A x, for refinements and for what measures operators."""

    def __init__(self, apply: Function, vectors: Vectors, sigma: float, joins_members: bool):
        self.apply = apply
        self.vectors = vectors
        self.sigma = sigma
        self.joins_members = joins_members
        self.out: Any = None  # made when it is first applied, which is never in a graph

    def matvec(self, x: Any) -> Any:
        """(A + sigma) x, always the same vector."""
        if self.out is None:
            self.out = self.vectors.like(x)
        self.vectors.update([(self.out, 0, [(1, self.apply(x)), (self.sigma, x)])])
        return self.out


def _next_excess(excess: Any, delta: Any, step: Any, step_before: Any, weight_before: Any) -> Any:
    """zeta / zeta' - 1, of numbers of the host or of Scalars."""
    return delta * step + step * (weight_before / step_before) * (excess / (1.0 + excess))


def _next_excess_of_descents(
    excess: Any, delta: Any, minus: Any, minus_before: Any, weight_before: Any
) -> Any:
    """The same of the negatives of steps, which are what a graph keeps."""
    return _next_excess(excess, delta, -minus, -minus_before, weight_before)


def _next_zeta(zeta: Any, excess: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """Of Scalars: 0 once the residual zeta |r| has reached the tolerance, which it then keeps."""
    return (zeta * rr.sqrt() / size > tolerance).where(zeta / (1.0 + excess), 0.0)


def _step(minus: Any, zeta: Any) -> Any:
    return -minus * zeta


def _weight(weight: Any, excess: Any, zeta: Any) -> Any:
    return (zeta > 0.0).where(weight / (1.0 + excess), 0.0)


class _ShiftsRun(Recursion):
    """A solve under way: conjugate gradients for A + shifts[0], and for each shift its x, direction d, excess and zeta.

    The first `active` shifts go on. The x and p of the recursion are those of shift 0, whose zeta is 1.
    """

    def __init__(
        self,
        A: Any,
        vectors: Vectors,
        b: Any,
        size: float,
        tolerance: float,
        shifts: tuple[float, ...],
    ):
        q = None if is_operator(A) else vectors.like(b)
        self.apply = function_of("the operator", A, q)
        self.shifts = shifts
        self.lowest = shifts[0]
        super().__init__(
            forward_of("the operator", _Shifted(self.apply, vectors, self.lowest, joins_members(A))),
            apply_inner_of("the operator", A, vectors, q),
            vectors,
            vectors.like(b),
            vectors.copy(b),
        )
        self.b, self.size, self.tolerance, self.iterations = b, size, tolerance, 0
        self.begin(b, size * size)
        self.diagnosis = Diagnosis(self.forward, vectors, b, self.rr, size)
        self.pp: Any = self.rr  # |p|^2 of shift 0
        self.step, self.weight = 1.0, 0.0  # of the last iteration
        self.deltas = np.array(shifts) - self.lowest
        self.zetas, self.excesses = np.ones(len(shifts)), np.zeros(len(shifts))
        self.x_of = [self.x, *(vectors.like(b) for _ in shifts[1:])]
        self.d_of = [self.p, *(vectors.copy(b) for _ in shifts[1:])]
        self.found: list[np.ndarray] = []  # |r| / |b| of the shifts that went on, by iteration
        self.active = len(shifts)
        self._note_residuals()

    @property
    def converged(self) -> bool:
        """Whether shift 0 has, which is the last one."""
        return math.sqrt(self.rr) / self.size <= self.tolerance

    def iterate(self) -> None:
        """One iteration, with numbers of the host."""
        pq = self.curvature()
        self.check(pq.real, self.rr)
        # Rounding leaves an imaginary part of order epsilon |p| |q|; later iterations would compare noise with noise.
        if self.iterations == 0 and isinstance(pq, complex):
            allowed = math.sqrt(self.vectors.epsilon(self.b) * self.rr * self.vectors.norm2(self.q))
            if abs(pq.imag) > allowed:
                raise SolverError(f"p^dagger A p = {pq:.6g} is not real: the operator is not Hermitian")
        self.advance(self.rr / pq.real)  # a positive finite number
        self.count()

    def check(self, curvature: float, rr: float) -> None:
        """Raises SolverError unless p^dagger A p is positive and finite."""
        if wrong := self.diagnosis.wrong(curvature, rr):
            raise SolverError(wrong)

    @property
    def histories(self) -> list[list[float]]:
        """|r| / |b| by shift and iteration."""
        return [[float(row[k]) for row in self.found if k < len(row)] for k in range(len(self.shifts))]

    def true_residual_of(self, k: int) -> float:
        """|b - (A + shift) x| / |b| of shift k; overwrites r."""
        terms = [(1, self.b), (-1, self.apply(self.x_of[k])), (-self.shifts[k], self.x_of[k])]
        return math.sqrt(self.vectors.update([(self.r, 0, terms)], norm=True)) / self.size

    def curvature(self, wait: bool = True, pp: Any = None) -> Any:
        """q = A p; returns p^dagger (A + shifts[0]) p, of the |p|^2 that is given or that of the last iteration."""
        self.q, curvature = self.apply_inner(self.p, wait)
        return curvature + self.lowest * (self.pp if pp is None else pp) if self.lowest else curvature

    def descend(self, step: Any, wait: bool = True) -> Any:
        """r -= step (A + shifts[0]) p; returns |r|^2."""
        return self.add(-step, wait)

    def add(self, minus: Any, wait: bool = True) -> Any:
        """r += minus (A + shifts[0]) p, with the negative of a step; returns |r|^2."""
        terms = [(minus, self.q)]
        if self.lowest:
            terms.append((minus * self.lowest, self.p))
        return self.vectors.update([(self.r, 1, terms)], norm=True, wait=wait)

    def turn(self, step: float, weight: float) -> None:
        """The steps of all shifts, with numbers of the host."""
        self.pp = self.move(*self.follow(step, weight))

    def follow(self, step: float, weight: float) -> tuple[list[float], list[float]]:
        """The next numbers of the shifts that go on: lengths of steps, and weights of directions."""
        going = slice(self.active)
        with np.errstate(over="ignore", invalid="ignore"):  # a residual of such a shift is refused
            excesses = _next_excess(self.excesses[going], self.deltas[going], step, self.step, self.weight)
        self.excesses[going], zetas = excesses, self.zetas[going]
        zetas /= 1.0 + excesses
        self.step, self.weight = step, weight
        return (step * zetas).tolist(), (weight / (1.0 + excesses)).tolist()

    def move(self, steps: Sequence[Any], weights: Sequence[Any], wait: bool = True) -> Any:
        """x += step d, then d = r + weight d, of so many shifts; returns |d|^2 of shift 0 where it is needed."""
        pp: Any = self.pp
        for first in range(0, len(steps), TOGETHER):
            assignments: list[Any] = []
            for k in reversed(
                range(first, min(first + TOGETHER, len(steps)))
            ):  # the norm is that of the last one
                assignments += [
                    (self.x_of[k], 1, [(steps[k], self.d_of[k])]),
                    (self.d_of[k], weights[k], [(1, self.r)]),
                ]
            norm = first == 0 and self.lowest != 0.0
            found = self.vectors.update(assignments, norm=norm, wait=wait)
            pp = found if norm else pp
        return pp

    def count(self) -> None:
        """Notes an iteration."""
        self.iterations += 1
        if cause := self.diagnosis.grown(self.rr):
            raise SolverError(cause)
        self._note_residuals()

    def _note_residuals(self) -> None:
        """Residuals of the shifts that go on; those that have converged leave, the largest first."""
        residuals = self.zetas[: self.active] * math.sqrt(self.rr) / self.size
        self.found.append(residuals)
        while self.active and residuals[self.active - 1] <= self.tolerance:
            self.active -= 1
            self.d_of[self.active] = None  # frees its memory

    def note(self, curvature: float, rr: float, pp: float) -> None:
        """An iteration that gave these numbers, computed again by the host."""
        self.follow(self.rr / curvature, rr / self.rr)
        self.rr, self.pp = rr, pp
        self.count()


class _Repeated:
    """So many iterations of a run as a graph, for the shifts that go on; recorded anew when two have left, or all but one: recording takes as long as
    some iterations."""

    def __init__(self, run: _ShiftsRun, turns: int):
        self.run = run
        self.turns = turns
        self._record()

    def _record(self) -> None:
        run = self.run

        def number(value: Any) -> Any:
            return run.vectors.number(run.b, value)

        self.active = run.active
        self.rr, self.pp, self.minus, self.weight = map(number, (run.rr, run.pp, -run.step, run.weight))
        blocks = [slice(k, min(k + MOST_NUMBERS, self.active)) for k in range(0, self.active, MOST_NUMBERS)]
        self.deltas, self.excesses, self.zetas = (
            [number(np.array(values[block])) for block in blocks]
            for values in (run.deltas, run.excesses, run.zetas)
        )
        self.graph = run.vectors.graph(run.b, self._step)

    def _step(self) -> list[Any]:
        """p^dagger (A + shifts[0]) p, |r|^2 and |p|^2 of each iteration."""
        run, history = self.run, []
        rr, pp, minus, weight = self.rr, self.pp, self.minus, self.weight
        excesses, zetas = self.excesses, self.zetas
        for _ in range(self.turns):
            curvature = run.curvature(wait=False, pp=pp).real
            goes_on = rr.sqrt() / run.size > run.tolerance  # else a step of length zero
            before, minus = minus, -goes_on.where(rr / curvature, 0.0)
            found = run.add(minus, wait=False)
            excesses = [
                excess.elementwise(_next_excess_of_descents, excess, delta, minus, before, weight)
                for delta, excess in zip(self.deltas, excesses, strict=True)
            ]
            zetas = [
                zeta.elementwise(_next_zeta, zeta, excess, rr, run.size, run.tolerance)
                for zeta, excess in zip(zetas, excesses, strict=True)
            ]
            weight = goes_on.where(found / rr, 0.0)
            steps = [zeta.elementwise(_step, minus, zeta) for zeta in zetas]
            weights = [
                zeta.elementwise(_weight, weight, excess, zeta)
                for zeta, excess in zip(zetas, excesses, strict=True)
            ]
            pp = run.move(
                [one for block in steps for one in block],
                [one for block in weights for one in block],
                wait=False,
            )
            pp = pp if run.lowest else found
            history += [curvature, found, pp]
            rr = found
        if run.lowest:
            self.pp.assign(pp)
        for kept, value in ((self.rr, rr), (self.minus, minus), (self.weight, weight)):
            kept.assign(value)
        for block, new in zip((*self.excesses, *self.zetas), (*excesses, *zetas), strict=True):
            block.assign(new)
        return history

    def iterate(self) -> None:
        """As many iterations of the run, up to the last one that is needed."""
        run = self.run
        if run.active <= self.active - TOGETHER or run.active == 1 < self.active:
            self._record()
        self.graph.run()
        numbers = self.graph.read()
        for curvature, rr, pp in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            run.check(curvature, run.rr)
            run.note(curvature, rr, pp)
            if run.converged:
                return
