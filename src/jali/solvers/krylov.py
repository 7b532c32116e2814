"""What Krylov solvers are made of: a step, a stop, a restart.

A solver states its `begin` and its `step`; here is all else. A step is written once, with numbers that stay where the vectors are, so it runs on
the host, as a graph of several steps, and for all members of a batch, for which every number is an array with one element per member. A member that
has converged takes steps of length zero, so its solution does not depend on the others. The host reads the numbers of a step after it, or of a graph
after some: it stops, or raises for what it sees.

An end is honest: where the recursion says that a member has converged, b - A x is computed; where that is larger than the tolerance, the
recursion starts again from it, as long as this helps. With an `Inner` the recursion has few bits, and b - A x is computed in many, whenever a rule
says so (`reliable.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.comm.validation import integer
from jali.errors import ParameterError, RecordingError, SolverError, StorageError
from jali.files import value_shown
from jali.solvers import saved_solves
from jali.solvers.batches import BatchSolution
from jali.solvers.causes import not_finite, not_hermitian
from jali.solvers.elementwise import assign, read, settle
from jali.solvers.operators import (
    into_of,
    is_operator,
    joins_members,
    refuse_batches_in_lists,
    started,
    widened,
)
from jali.solvers.recursion import Solution
from jali.solvers.reliable import STRIKES, Inner, Outer
from jali.solvers.scaling import bound, scaled, unscaled
from jali.solvers.shared import Shared
from jali.solvers.solver import check_tolerances
from jali.vectors import check_alike, vectors_of

LEAST_GAIN = 0.5  # of the true residual, by which a restart has to lower it
TOGETHER = (
    8  # iterations of a graph, as long as a step has no more: recording them takes as long as some tens
)
PATIENCE = 200  # iterations in which the smallest residual falls by a tenth, or a solve has stagnated


class Found(NamedTuple):
    """Numbers of a step: |r|^2 of each iteration, what `check` looks at, and the bound of a rule, if there is one."""

    squares: list[Any]
    watched: list[Any]
    limit: list[Any]


class Krylov:
    """A solve under way: x, the residual r, and for each member of a batch the numbers that one step leaves for the next.

    `name` is that of the function; `steps` are the iterations of one `step`, each with its residual. `b` is a vector of the format that the
    recursion has, `of` the operator that the user named, `A` that of the recursion, and `apply` the function that writes A p into q. Where it has few bits, `outer` has the rest.
    """

    name: ClassVar[str]
    steps = 1
    scratch: ClassVar[tuple[str, ...]] = ("q",)  # vectors that a step writes before it reads them
    watches_positive: ClassVar[bool] = (
        False  # whether what `check` looks at is positive, not only other than zero
    )
    patience, stagnates, must_converge, maxiter = PATIENCE, False, True, 0
    x: Any
    r: Any
    flops: float | None = None  # of an iteration, once one has been recorded

    def __init__(self, A: Any, b: Any, x0: Any, rtol: float, atol: float, inner: Inner | None = None):
        name = self.name
        if inner is not None and not isinstance(inner, Inner):
            raise ParameterError(f"{name}: inner is a jali.solvers.Inner(A, like), not {value_shown(inner)}")
        vectors = vectors_of(f"{name}: b", b)
        if is_operator(A):
            b, x0 = widened(b, A, x0), None if x0 is None else widened(x0, A, b)
        if x0 is not None:
            check_alike(f"{name}: x0", x0, "b", b)
        vectors.epsilon(b)  # refuses whole numbers
        refuse_batches_in_lists(name, b)
        batch = getattr(b, "batch", None)
        if batch is not None and joins_members(A):
            vectors, batch = vectors.of_whole_batch(), None  # type: ignore[attr-defined]
        self.vectors, self.batch = vectors, batch
        self.of, self.A, self.inner_operator = A, A, inner
        self.outer: Outer | None = None
        self.apply = into_of("the operator", A, vectors)
        self.stay = vectors.repeats(b)  # numbers are those of a device, or of the host as it keeps them
        self.graphs: dict[int, Any] = {}  # by the steps that they repeat
        self.numbers: list[Any] = []
        self.solve(b, x0, rtol, atol)

    @classmethod
    def of_workspace(cls, more: dict[str, Any], A: Any, b: Any, x0: Any, *arguments: Any) -> Krylov:
        """A run with these arguments; that of the last solve where a workspace among the options `more` has one that fits."""
        workspace = more.get("workspace")
        if not isinstance(workspace, Workspace):
            return cls(A, b, x0, *arguments)
        return workspace.run_of(cls, A, b, x0, *arguments)

    def solve(self, b: Any, x0: Any, rtol: float, atol: float) -> None:
        """Begins to solve for b, with the vectors that there are from a solve before."""
        self.time_of_start, self.history = time.perf_counter(), []
        vectors, self.b = self.vectors, b
        b, x0, size, self.factors = scaled(vectors, b, x0)
        if not np.all(np.isfinite(size)):
            raise self._not_finite(np.asarray(size), b=b)
        squares, zero = np.square(np.asarray(size)), np.square(np.asarray(size)) == 0
        self.sizes = np.sqrt(np.where(zero, 1.0, squares))
        self.true_sizes = self.sizes  # of b; `sizes` are those of b in the recursion's scale
        self.tolerances = np.maximum(rtol, bound(atol, size, self.factors) / self.sizes)
        self.limits = self.tolerances  # below which the recursion waits
        self.complex = bool(np.iscomplexobj(vectors.inner(b, b)))
        self._take(b, x0)
        rr = squares if x0 is None else self.true_squares()
        if not np.all(np.isfinite(rr)):
            raise self._not_finite(rr, x0=self.solution)
        self.history = [np.sqrt(rr) / self.sizes]
        self.going = self.history[0] > self.tolerances
        self.went = self.going  # before the step that is looked at
        self.counts = np.zeros(np.shape(rr), int)  # iterations of each member
        self.squares = rr  # |r|^2 of the recursion
        self.iterations, self.since = 0, 0  # of all, and when the recursion began
        self.best, self.improved, self.stagnates = self.history[0], 0, False
        if self.graphs:
            self.set_bounds()
        else:
            self.size, self.tolerance = self.kept(self.sizes), self.kept(self.tolerances)
            if self.outer is not None:
                self.outer.tolerance = self.kept(self.tolerances)
        self.prepare(rr)
        if self.outer is not None:
            rr, _ = self._handed_over(rr)
        self.start(rr)

    def _take(self, b: Any, x0: Any) -> None:
        """x, and r = b, of vectors that there are, or new ones."""
        vectors = self.vectors
        if self.inner_operator is not None:
            if self.outer is None:
                self.outer = Outer(self, self.of, b, x0, self.inner_operator)
                self.A = self.inner_operator.A
                self.apply = into_of("the inner operator", self.A, vectors)
            else:
                self.outer.take(self, b, x0)
            self.b = self.r
            return
        self.b = b
        if not hasattr(self, "r"):
            self.x = vectors.like(b) if x0 is None else started(x0, b)
            self.r = vectors.copy(b)
        else:
            vectors.update([(self.x, 0, [(0.0, b) if x0 is None else (1, x0)]), (self.r, 0, [(1, b)])])

    # ---- what a solver states ----------------------------------------------------------------------------

    def begin(self, rr: np.ndarray) -> list[Any]:
        """Sets the vectors of the recursion, from r with these |r|^2. Returns the numbers that the first step takes, as arrays of the host."""
        raise NotImplementedError

    def step(self, *numbers: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """One step with the numbers that the last one left. Returns those for the next, |r|^2 of each iteration, and what `check` looks at.

        Nothing waits: sums are asked for with `wait=self.waits`.
        """
        raise NotImplementedError

    def check(self, *watched: np.ndarray) -> None:
        """Raises SolverError for numbers of a step with which the recursion cannot go on."""

    def prepare(self, rr: np.ndarray) -> None:
        """Called before the recursion of a solve begins, with |r|^2."""

    def cause(self) -> str:
        """Why a solve may have failed, measured after it has; empty where nothing is found."""
        return ""

    def resumed(self) -> None:
        """Called after a run has got the vectors and numbers of a file."""

    def release(self) -> None:
        """Called before r is replaced by an update."""

    def resume(self, rr: np.ndarray, ratio: np.ndarray) -> None:
        """Goes on after r has been replaced, which has these |r|^2, and is that of before times `ratio`, but for rounding."""
        self.start(rr)

    def refuse_bad(self, what: str, value: np.ndarray, of: str = "the operator") -> None:
        """Raises SolverError where this number of a step, which comes of `of`, is infinite or nan, for a member that goes on."""
        if np.any(wrong := self.going & ~np.isfinite(value)):
            raise self.error(wrong, f"{what} is infinite or nan: {of} gave such numbers, or they overflow")

    def refuse_breakdown(self, what: str, value: np.ndarray) -> None:
        """The same, and where it is zero, of a number that the recursion divides by."""
        self.refuse_bad(what, value)
        if np.any(wrong := self.going & (value == 0)):
            raise self.error(wrong, f"breakdown: {what} is zero; start from another x0, or use gcr or cgnr")

    def solved_by(self, squares: list[Any]) -> bool:
        """Whether all members have converged with these |r|^2. For numbers of the host."""
        return bool(np.all(np.sqrt(np.asarray(squares[-1], float)) / self.sizes <= self.limits))

    def ends(self, squares: list[Any]) -> bool:
        """Whether a step may stop after these |r|^2: all members have converged, or `maxiter` is reached. For numbers of the host."""
        return self.solved_by(squares) or self.iterations + len(squares) >= self.maxiter

    def cause_of_hermitian(self) -> str:
        """That the operator is not Hermitian, for the `cause` of a solver that needs one."""
        if self.batch is not None:
            return ""
        q = self.vectors.like(self.b)

        def forward(x: Any) -> Any:
            self.apply(x, q)
            return q

        return not_hermitian(forward, self.b)

    # ---- pieces ------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether sums are numbers of the host."""
        return not self.stay

    def kept(self, value: Any) -> Any:
        """A number, or an array of them, where the vectors are."""
        value = np.asarray(value)
        if not self.stay:
            return value
        return self.vectors.number(self.b, value.item() if value.ndim == 0 else value)

    def inner(self, x: Any, y: Any) -> Any:
        return self.vectors.inner(x, y, wait=self.waits)

    def update(self, *assignments: Any, norm: bool = False) -> Any:
        return self.vectors.update([*assignments], norm=norm, wait=self.waits)

    def start(self, rr: np.ndarray) -> None:
        """The recursion from r with these |r|^2, and from no numbers of before."""
        self.set_numbers(self.begin(rr))

    def set_numbers(self, values: list[Any]) -> None:
        """The numbers that the next step takes, where graphs find them."""
        self._keep(self.numbers, values)

    def go_on(self, squares: np.ndarray, missing: np.ndarray) -> None:
        """The recursion of the members that miss the tolerance, from the true r with these |r|^2."""
        residuals = np.sqrt(squares) / self.true_sizes
        self.going = missing
        self.history[-1] = np.where(missing, residuals, self.history[-1])
        self.best = np.where(missing, residuals, self.best)
        self.improved = self.since = self.iterations
        if self.outer is None:
            self.squares = squares
            self.start(squares)
        else:
            self.release()
            self.resume(*self._handed_over(squares))

    def _handed_over(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """r of the outer solve as that of the recursion, with the bounds for it."""
        outer = self.outer
        assert outer is not None
        rr, ratio = outer.hand_over(self, squares)
        scale = outer.scale
        assert scale is not None
        self.sizes, self.squares = self.true_sizes * scale, rr
        numbers = outer.rule.begin(self, np.sqrt(squares) / self.true_sizes)
        if self.stay:
            self.size.assign(self.kept(self.sizes))
        else:
            self.size = self.kept(self.sizes)
        self._keep(outer.numbers, numbers)
        self._set_limit(outer.rule.bound(self, outer.numbers, self.kept(rr))[1])
        self.limits = read(self.tolerance)
        return rr, ratio

    def keep_rule(self, values: list[Any]) -> None:
        """The numbers of the rule of updates."""
        assert self.outer is not None
        self._keep(self.outer.numbers, values)

    def set_bounds(self) -> None:
        """Sizes, tolerances and limits as the host has them, where the vectors are."""
        if self.stay:
            self.size.assign(self.kept(self.sizes))
        else:
            self.size = self.kept(self.sizes)
        self._set_limit(self.kept(self.limits))
        if self.outer is not None and self.stay:
            self.outer.tolerance.assign(self.kept(self.tolerances))
        elif self.outer is not None:
            self.outer.tolerance = self.kept(self.tolerances)

    def tighten(self, factors: np.ndarray) -> None:
        """Tolerances times these factors."""
        self.tolerances = self.tolerances * factors
        self.limits = self.tolerances
        self.set_bounds()

    def deflate(self, pairs: Any) -> np.ndarray:
        """Adds to x the solution within eigenvectors of what r = b - A x has there, and computes r again; returns |r|^2."""
        outer = self.outer
        self.correct(pairs, *((self.r, self.x) if outer is None else (outer.r, outer.x)))
        return self.true_squares()

    def correct(self, pairs: Any, r: Any, x: Any) -> None:
        """Adds to x the solution of A e = r within these eigenvectors of A."""
        pairs.correct(r, x)

    def heavy_quark(self) -> np.ndarray:
        """The root of the mean over sites of |r|^2 / |x|^2, after b - A x has been computed."""
        outer = self.outer
        r, x = (self.r, self.x) if outer is None else (outer.r, outer.x)
        return np.sqrt(np.asarray(self.vectors.mean_ratio(r, x), float))

    def _set_limit(self, limit: Any) -> None:
        if self.stay:
            self.tolerance.assign(limit)
        else:
            self.tolerance = np.asarray(limit)

    def run(self, turns: int = 1) -> list[Found]:
        """So many steps; the numbers are then those that the last one left. Returns what each found."""
        numbers, found = self.numbers, []
        outer, tolerance = self.outer, self.tolerance
        if outer is None:
            for _ in range(turns):
                numbers, squares, watched = self.step(*numbers)
                found.append(Found(squares, watched, []))
            self._leave(self.numbers, numbers)
            return found
        outer.after = list(outer.numbers)
        for _ in range(turns):
            outer.limit = None
            numbers, squares, watched = self.step(*numbers)
            if outer.limit is None:
                settle(*self.bounded(squares[-1]))
            self.tolerance = outer.limit
            found.append(Found(squares, watched, [outer.limit]))
        self.tolerance = tolerance
        self._leave(self.numbers, numbers)
        self._leave(outer.numbers, outer.after)
        self._set_limit(outer.limit)
        return found

    def bounded(self, rr: Any) -> list[Any]:
        """The numbers of the rule of updates after a step that left this |r|^2, and its bound: a step that computes others asks for them, to `settle` all."""
        outer = self.outer
        assert outer is not None
        outer.after, outer.limit = outer.rule.bound(self, outer.after, rr)
        return [*outer.after, outer.limit]

    def _keep(self, numbers: list[Any], values: list[Any]) -> None:
        """Gives these numbers values of the host; makes them where there are none."""
        found = [self.kept(value) for value in values]
        if self.stay and numbers:
            assign(numbers, found)
        else:
            numbers[:] = found

    def _leave(self, numbers: list[Any], values: list[Any]) -> None:
        if self.stay:
            assign(numbers, values)
        else:
            numbers[:] = values

    def iterate(self) -> None:
        """A step, and what the host makes of it."""
        for found in self.run():
            self.note(*([read(number) for number in part] for part in found))

    def note_all(self, steps: list[Found]) -> None:
        """Counts the iterations of several steps. Where nothing is wrong with them this is done for all at once: a device waits meanwhile."""
        squares = np.array([rr for found in steps for rr in found.squares]).real
        limits = [self.limits] * len(squares)
        for k, found in enumerate(steps):
            if found.limit:
                limits[(k + 1) * self.steps - 1 : (k + 2) * self.steps - 1] = found.limit * self.steps
        limits = limits[: len(squares)]
        alike = all(np.shape(number) == squares.shape[1:] for number in steps[0].watched)
        watched = np.array([found.watched if alike else [] for found in steps])
        if alike and np.isfinite(squares).all() and np.isfinite(watched).all():
            residuals = np.sqrt(np.abs(squares)) / self.sizes
            after = np.logical_and.accumulate(residuals > np.array(limits), axis=0) & self.going
            each = after.reshape(len(squares), -1).any(axis=1)
            count = len(squares) if each[-1] else int(np.argmin(each)) + 1
            used = -(-count // self.steps)
            before = np.concatenate([self.going[np.newaxis], after[:-1]])
            masks = before[:: self.steps] if self.watches_positive else after[self.steps - 1 :: self.steps]
            masks = masks[:used]
            bad = watched[:used].real <= 0 if self.watches_positive else watched[:used] == 0
            wrong = bool(watched.size) and bool(np.any(bad & masks[:, np.newaxis]))
            if not wrong and self.quick(squares[:count], watched[:used]):
                self._add_all(residuals[:count], squares[:count], before[:count])
                self.going, self.limits = after[count - 1], np.asarray(limits[count - 1])
                self._stop_where_it_stagnates()
                return
        for found in steps:
            if self.converged:
                return
            self.note(*([np.asarray(number) for number in part] for part in found))

    def quick(self, squares: np.ndarray, watched: np.ndarray) -> bool:
        """Whether `check` finds nothing wrong with several steps, of which these are the numbers; notes what it wants of them."""
        return True

    def note(self, found: list[Any], watched: list[Any], limit: list[Any]) -> None:
        """Counts the iterations of a step, up to the last one that is needed, and raises for what is wrong."""
        limits = limit[0] if limit else self.limits
        going = self.went = self.going
        with np.errstate(invalid="ignore"):  # a step that ended in a solution may have divided by nothing
            self.going = going & ~(np.sqrt(np.abs(found[-1])) / self.sizes <= limits)
        self.check(*watched)
        self.going = going
        for rr in found:
            if self.converged:
                return
            if rr is found[-1]:
                self.limits = limits
            self.count(rr)

    def remaining(self) -> float:
        """In how many iterations the recursion is likely to wait, by how fast residuals fell since its last update, or where that was just now in all."""
        since = self.since if self.iterations - self.since >= 2 * TOGETHER else 0
        done = self.iterations - since
        if done < 4 or not self.going.any():
            return math.inf
        with np.errstate(all="ignore"):
            now, first = self.history[-1][self.going], self.history[since][self.going]
            rate = np.log(first / now) / done
            left = np.log(now / np.broadcast_to(self.limits, self.going.shape)[self.going]) / rate
        return float(np.max(np.where(rate > 0, left, math.inf)))

    def count(self, rr: np.ndarray) -> None:
        """Notes an iteration that gave these |r|^2."""
        if np.any(wrong := self.going & ~np.isfinite(rr)):
            raise self.error(
                wrong,
                f"|r|^2 is {rr[wrong].flat[0]}: the operator gave infinities or nan, or numbers overflow",
            )
        self._add(np.sqrt(np.abs(rr)) / self.sizes, rr, self.going)
        self.going = self.going & (self.history[-1] > self.limits)
        self._stop_where_it_stagnates()

    def _add(self, residuals: np.ndarray, rr: np.ndarray, going: np.ndarray) -> None:
        """An iteration of the members that were going, with these |r| / |b| and |r|^2."""
        if self.batch is not None:
            residuals = np.where(going, residuals, self.history[-1])
            rr = np.where(going, rr, self.squares)
        self.squares = rr
        self.history.append(residuals)
        self.iterations += 1
        self.counts += going
        if np.any(better := residuals < 0.9 * self.best):
            self.improved = self.iterations
            self.best = np.where(better, residuals, self.best)

    def _add_all(self, residuals: np.ndarray, squares: np.ndarray, going: np.ndarray) -> None:
        """Several iterations; of one vector by numbers of Python, which are faster."""
        if self.batch is not None:
            for one in zip(residuals, squares, going, strict=True):
                self._add(*one)
            return
        best, first = float(self.best), self.iterations
        for k, residual in enumerate(residuals.tolist()):
            if residual < 0.9 * best:
                best, self.improved = residual, first + k + 1
        self.best = np.asarray(best)
        self.history += list(residuals)
        self.squares = squares[-1]
        self.iterations += len(residuals)
        self.counts = self.counts + len(residuals)

    def _stop_where_it_stagnates(self) -> None:
        self.stagnates = bool(self.going.any()) and self.iterations - self.improved > self.patience
        if self.stagnates and self.must_converge:
            raise self.error(
                self.going,
                f"stagnation: no residual fell by a tenth in {self.patience} iterations; |r|/|b| is {self.history[-1][self.going].max():.3g}",
            )

    @property
    def converged(self) -> bool:
        """Whether all members have, by the recursion."""
        return not self.going.any()

    def true_squares(self) -> np.ndarray:
        """|b - A x|^2 of what has been found, with r = b - A x, in the precision of b."""
        if self.outer is not None:
            return self.outer.squares(self)
        self.apply(self.x, self.r)
        found = self.vectors.update([(self.r, -1, [(1, self.b)])], norm=True)
        return np.asarray(found, float)

    @property
    def solution(self) -> Any:
        """x in the precision of b, of the scaled b."""
        return self.x if self.outer is None else self.outer.solution(self)

    # ---- ends --------------------------------------------------------------------------------------------

    def lost(self, residual: float, missing: np.ndarray) -> str:
        """That this true residual is not lowered by restarts, and why."""
        epsilon = self.vectors.epsilon(self.b if self.outer is None else self.outer.b)
        precision = self.vectors.precision(self.b if self.outer is None else self.outer.b)
        below = (
            f"the tolerance {np.max(self.tolerances[missing]):.3g} is below what rounding in {precision} allows for this operator, or "
            f"the storage of its vectors; ask for {2 * residual:.1g} or more"
        )
        lost = (
            "the operator or the preconditioner is not linear, or changes its argument, or the solver is not for it"
            if self.outer is None
            else "the inner operator is another one than A, or its format is too inaccurate for the condition of A"
        )
        why = below if residual < math.sqrt(math.sqrt(epsilon)) else f"the recursion has lost it: {lost}"
        if self.outer is not None and residual > 1e4 * epsilon:
            why = f"the recursion has lost it: {lost}"
        return f"|b - A x|/|b| is {residual:.3g} and restarts no longer lower it, after {self.iterations} iterations: {why}"

    def _not_finite(self, squares: np.ndarray, **vectors: Any) -> SolverError:
        if self.batch is None and getattr(self.b, "batch", None) is None:
            return not_finite(self.name, **vectors)
        return self.error(
            ~np.isfinite(squares),
            f"{' or '.join(vectors)} has infinities or nan, or numbers whose squares overflow",
        )

    def error(self, wrong: np.ndarray, what: str, measured: bool = True) -> SolverError:
        """The error of these members, with the residuals so far, and with a cause where it is `measured`."""
        of = ""
        if self.batch is not None:
            members = np.flatnonzero(wrong).tolist()
            of = f", member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))} of the batch"
        history = getattr(self, "history", [])
        cause = self.cause() if history and measured else ""
        return SolverError(
            f"{self.name}{of}: {what}{cause and '; '}{cause}", [one.tolist() for one in history]
        )


class _Repeated:
    """So many steps of a run as a graph."""

    def __init__(self, run: Krylov, turns: int):
        self.run = run
        self.turns = turns
        self.graph = run.vectors.graph(run.b, self._steps)
        run.flops = self.graph.flops / (turns * run.steps)

    def _steps(self) -> list[Any]:
        """|r|^2 of the iterations, what is looked at, and the bound of a rule, step by step."""
        found = self.run.run(self.turns)
        self.counts = [len(part) for part in found[0]]
        return [number for step in found for part in step for number in part]

    def read(self) -> list[Found]:
        """What the last repetition found; waits for it."""
        numbers = iter(self.graph.read())
        return [
            Found(*([next(numbers) for _ in range(count)] for count in self.counts))
            for _ in range(self.turns)
        ]


def check_arguments(name: str, rtol: Any, atol: Any, **counts: Any) -> None:
    """Raises ParameterError for tolerances that nothing reaches, or everything, and for counts that are no positive whole numbers."""
    check_tolerances(name, rtol=rtol, atol=atol)
    if rtol >= 1 or rtol == atol == 0:
        raise ParameterError(
            f"{name}: rtol is below 1, and rtol or atol above 0, not {value_shown(rtol)} and {value_shown(atol)}"
        )
    for word, value in counts.items():
        if (value is not None or word != "check_interval") and (
            (count := integer(value)) is None or count < 1
        ):
            raise ParameterError(f"{name}: {word} is a positive whole number, not {value_shown(value)}")


def solved(
    run: Krylov,
    maxiter: int,
    must_converge: bool,
    check_interval: int | None,
    callback: Callable[[Any], None] | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Iterates a run to its end (`_to_its_end`). An error of a format that cannot hold the numbers has the history, too."""
    try:
        return _to_its_end(run, maxiter, must_converge, check_interval, callback, more)
    except StorageError as error:
        error.history = [one.tolist() for one in run.history]  # type: ignore[attr-defined]
        raise


def _to_its_end(
    run: Krylov,
    maxiter: int,
    must_converge: bool,
    check_interval: int | None,
    callback: Callable[[Any], None] | None,
    more: dict[str, Any],
) -> Solution | BatchSolution:
    """Iterates a run, and restarts it from b - A x where that is larger than the recursion said. `more` are the options of `Shared`. Raises what
    solvers raise."""
    shared = Shared.checked(run.name, more)
    run.patience, run.must_converge, run.maxiter = max(PATIENCE, maxiter // 5), must_converge, int(maxiter)
    name = run.name
    if callback is not None and not callable(callback):
        raise ParameterError(f"{name}: a callback is a function of x, not {value_shown(callback)}")
    if check_interval is not None and check_interval > 1 and not run.stay:
        raise ParameterError(
            f"{name}: check_interval={check_interval}, but operations on these vectors cannot be recorded"
        )
    if shared.resume is not None:
        saved_solves.resume(run, shared.resume)
    elif shared.deflation is not None and not run.converged:
        shared.deflation.check(run.of)
        squares = run.deflate(shared.deflation)
        run.go_on(squares, np.sqrt(squares) / run.true_sizes > run.tolerances)
        run.history = [np.sqrt(squares) / run.true_sizes]
    # of graphs on hosts, too: they save what Python does between the kernels of a step
    turns = check_interval or (max(1, TOGETHER // run.steps) if run.stay and callback is None else 1)
    ahead = callback is None and shared.save_to is None
    records = turns > 1 or (check_interval is None and run.steps > 1 and run.stay and callback is None)
    repeated = _Repetitions(run, turns, records, check_interval is not None, ahead)
    progress = _Progress(run) if shared.progress else None
    last = np.full(np.shape(run.sizes), math.inf)
    strikes, heavy_quark = 0, None
    while True:
        while not run.converged and not run.stagnates and run.iterations < maxiter:
            repeated.iterate()
            if progress is not None:
                progress.show()
            if callback is not None:
                _call(callback, run, shared.save_to)
        if not run.converged and shared.save_to is not None:
            saved_solves.save(run, shared.save_to)
        if not run.iterations and shared.heavy_quark is None:
            residuals = run.history[0]
            break
        squares = run.true_squares()
        residuals = np.sqrt(squares) / run.true_sizes
        if np.any(wrong := ~np.isfinite(residuals)):
            raise run.error(
                wrong, "b - A x has infinities or nan: the operator gave such numbers, or x was changed"
            )
        missing = residuals > run.tolerances
        if shared.heavy_quark is not None:
            heavy_quark = run.heavy_quark()
            too_large = ~missing & (heavy_quark > shared.heavy_quark) & (residuals > 0)
            run.tighten(np.where(too_large, np.maximum(0.1, 0.5 * shared.heavy_quark / heavy_quark), 1.0))
            missing = missing | too_large
        if not run.converged or not missing.any():
            break
        least = LEAST_GAIN if run.outer is None else max(LEAST_GAIN, 0.5 + 0.5 * run.outer.delta)
        strikes = 0 if np.any(missing & (residuals < least * last)) else strikes + 1
        if strikes >= (1 if run.outer is None else STRIKES):
            if must_converge:
                raise run.error(missing, run.lost(residuals[missing].max(), missing))
            break
        last = np.where(missing, residuals, last)
        if shared.deflation is not None:
            squares = run.deflate(shared.deflation)
        run.go_on(squares, missing)
    converged = residuals <= run.tolerances
    if heavy_quark is not None:
        converged = converged & ((heavy_quark <= shared.heavy_quark) | (residuals == 0))
    if must_converge and not converged.all():
        beside = (
            "" if heavy_quark is None else f", the heavy-quark residual {heavy_quark[~converged].max():.3g}"
        )
        raise run.error(
            ~converged,
            f"no convergence to {np.max(run.tolerances):g} in {run.iterations} iterations: |b - A x|/|b| is {residuals[~converged].max():.3g}{beside}",
        )
    return _solution(run, residuals, converged, heavy_quark, repeated.turns, shared.workspace is not None)


def _call(callback: Callable[[Any], None], run: Krylov, save_to: Any) -> None:
    """The callback. Where it raises on one rank, and the solve is to be saved, all save it, and stop."""
    x = unscaled(run.vectors, run.solution, run.factors)
    if save_to is None:
        callback(x)
        return
    raised: BaseException | None = None
    try:
        callback(x)
    except BaseException as error:  # control-C, too
        raised = error
    stopped = np.array([raised is not None], float)
    for ranks in run.vectors.ranks(run.b):
        ranks.all_reduce(stopped, stopped)
    if stopped[0]:
        saved_solves.save(run, save_to)
        raise raised or run.error(run.going, "a callback of another rank raised an exception", measured=False)


class Workspace:
    """Vectors, kernels and graphs of a solve of fields, for the next ones with the same operator: `cg(A, b, workspace=workspace)`.

    A solve that follows with the same solver, operator, options and form of b begins at once, with the same bits; another one makes its own. It keeps the
    vectors of the last solve in memory until it is deleted.
    """

    def __init__(self) -> None:
        self._run: Krylov | None = None
        self._arguments: tuple[Any, ...] = ()
        self._form: Any = None

    def run_of(self, kind: type[Krylov], A: Any, b: Any, x0: Any, *arguments: Any) -> Krylov:
        """The run of the last solve, begun again, where it fits; else a new one."""
        *fixed, rtol, atol, inner = arguments
        run, self._run = self._run, None  # a solve that fails leaves nothing
        if (
            type(run) is kind
            and run.of == A
            and run.inner_operator is inner
            and all(one is other or one == other for one, other in zip(fixed, self._arguments, strict=True))
            and callable(getattr(b, "is_like", None))
            and b.is_like(self._form)
            and (x0 is None or x0.is_like(self._form))
        ):
            run.solve(b, x0, rtol, atol)
        else:
            run = kind(A, b, x0, *arguments)
            self._arguments, self._form = tuple(fixed), b
        self._run = run
        return run


class _Repetitions:
    """The steps of a run: one by one, or as graphs of `turns` of them, and of fewer towards the end.

    While the host looks at what a graph found, a device already repeats it where that is not near the end, if `ahead`.
    """

    def __init__(self, run: Krylov, turns: int, records: bool, exactly: bool, ahead: bool):
        self.run, self.turns, self.records, self.exactly, self.ahead = run, turns, records, exactly, ahead
        self.graphs: dict[int, _Repeated] = run.graphs
        self.started: _Repeated | None = None
        self.first = not run.graphs

    def iterate(self) -> None:
        """As many steps as there is a graph for. Raises RecordingError where `exactly` so many were to be recorded, and cannot be."""
        run, turns = self.run, self.turns
        left = min(run.remaining(), run.maxiter - run.iterations)
        if self.started is not None:
            self._read(self.started, left)
            return
        # what a graph does after the last iteration is lost
        if not self.exactly and turns > 2 and left < turns * run.steps:
            turns = 2
        if self.records and not self.first and run.iterations + turns * run.steps <= run.maxiter:
            try:
                if turns not in self.graphs:
                    self.graphs[turns] = _Repeated(run, turns)
            except RecordingError:
                if self.exactly:
                    raise
                self.turns, self.records = 1, False
            else:
                self.graphs[turns].graph.run()
                self._read(self.graphs[turns], left)
                return
        run.iterate()  # the first one makes the kernels
        self.first = False

    def _read(self, repeated: _Repeated, left: float) -> None:
        run, self.started = self.run, None
        steps = repeated.read()
        last, limit = steps[-1].squares[-1], steps[-1].limit
        if self.ahead and left >= 2 * repeated.turns * run.steps:
            with np.errstate(all="ignore"):
                now = np.sqrt(np.asarray(last).real) / run.sizes
            if np.any(run.going & (now > (limit[0] if limit else run.limits)) & np.isfinite(now)):
                repeated.graph.run()
                self.started = repeated
        run.note_all(steps)


class _Progress:
    """A line each second, on the first rank."""

    def __init__(self, run: Krylov):
        self.run, self.last = run, time.perf_counter()
        self.speaks = all(ranks.rank == 0 for ranks in run.vectors.ranks(run.b))

    def show(self) -> None:
        """Prints where the solve is, if a second has passed."""
        now = time.perf_counter()
        if self.speaks and now > self.last + 1:
            self.last, run = now, self.run
            print(
                f"{run.name}: iteration {run.iterations}, |r|/|b| {np.max(run.history[-1]):.3g}, tolerance {np.max(run.tolerances):.3g}",
                flush=True,
            )


def _solution(
    run: Krylov,
    residuals: np.ndarray,
    converged: np.ndarray,
    heavy_quark: np.ndarray | None,
    turns: int,
    keeps: bool,
) -> Solution | BatchSolution:
    x = run.x if run.outer is None else run.outer.x
    x = unscaled(run.vectors, run.vectors.copy(x) if keeps and not run.factors else x, run.factors)
    history = np.array(run.history)

    def one(x: Any, member: Any, count: int) -> Solution:
        return Solution(
            x,
            count,
            history[(slice(count + 1), *member)].tolist(),
            float(residuals[member]),
            bool(converged[member]),
            turns,
            time.perf_counter() - run.time_of_start,
            None if run.flops is None else round(run.flops * run.iterations),
            None if heavy_quark is None else float(heavy_quark[member]),
        )

    if run.batch is None:
        return one(x, (), run.iterations)
    return BatchSolution(x, tuple(one(x.members[k], (k,), int(run.counts[k])) for k in range(run.batch)))
