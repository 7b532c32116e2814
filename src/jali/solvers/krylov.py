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
from typing import Any, ClassVar

import numpy as np

from jali.errors import RecordingError, SolverError
from jali.solvers.causes import not_finite, not_hermitian
from jali.solvers.elementwise import assign, computed, read, settle, sqrt, times
from jali.solvers.operators import (
    into_of,
    is_operator,
    joins_members,
    refuse_batches_in_lists,
    started,
    widened,
)
from jali.solvers.reliable import Inner, Outer, check_inner
from jali.solvers.repetitions import TOGETHER, Found, Workspace
from jali.solvers.scaling import bound, scaled
from jali.vectors import check_alike, vectors_of

PATIENCE = 200  # iterations in which the smallest residual falls by a tenth, or a solve has stagnated


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
    kept_for_more = False  # whether a workspace has it, for the next solve
    leaves = True  # whether members that have converged may leave
    arguments: tuple[Any, ...] = ()  # that it was made with
    resumes = False  # whether the recursion goes on after an update
    updates = 0  # so far, -1: cannot be recorded
    renewal: Any = None  # an update as a graph
    x: Any
    r: Any
    flops: float | None = None  # of an iteration, once one has been recorded

    def __init__(self, A: Any, b: Any, x0: Any, rtol: float, atol: float, inner: Inner | None = None):
        name = self.name
        vectors = vectors_of(f"{name}: b", b)
        if inner is not None:
            check_inner(name, inner, b)
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
        self.labels = list(range(batch or 0))  # of members, in messages
        self.rests: dict[tuple[int, ...], Any] = {}  # runs of some members (`leaving.py`)
        self.of, self.A, self.inner_operator = A, A, inner
        self.outer: Outer | None = None
        self.apply = into_of("the operator", A, vectors)
        self.stay = vectors.repeats(b)  # numbers are those of a device, or of the host as it keeps them
        self.graphs: dict[tuple[int, int], Any] = {}  # by the steps that they repeat, and the run's form then
        self.numbers: list[Any] = []
        self.solve(b, x0, rtol, atol)

    @classmethod
    def of_workspace(cls, more: dict[str, Any], A: Any, b: Any, x0: Any, *arguments: Any) -> Krylov:
        """A run with these arguments; that of the last solve where a workspace among the options `more` has one that fits."""
        workspace = more.get("workspace")
        if isinstance(workspace, Workspace):
            run = workspace.run_of(cls, A, b, x0, *arguments)
        else:
            run = cls(A, b, x0, *arguments)
        run.arguments, run.kept_for_more = arguments, isinstance(workspace, Workspace)
        return run

    def bring_up_to_date(self) -> None:
        """Called before another solve with the graphs of this one: operators make what they keep of links anew when they are applied, and a graph does not."""
        if self.graphs and self.outer is not None:
            self.outer.apply(self.outer.x, self.outer.r)
        if self.graphs:
            self.apply(self.x, self.r)

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
        rr = squares if x0 is None else self._first_squares()
        if not np.all(np.isfinite(rr)):
            raise self._not_finite(rr, x0=self.solution)
        self.history = [np.sqrt(rr) / self.sizes]
        self.took_part = [np.ones(np.shape(rr), bool)]  # which members each residual is a new one of
        self.tightened = np.ones(np.shape(rr))  # by what tolerances have been multiplied
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
                self.outer.size, self.outer.tolerance = self.kept(self.sizes), self.kept(self.tolerances)
        self.prepare(rr)
        if self.outer is not None:
            self.outer.begin(self, rr)
            self._look_at(squares=rr, handed_over=self._hand_over(self.kept(rr)))
            rr = self.squares
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

    @property
    def form(self) -> int:
        """Of a step now: one of another form has graphs of its own."""
        return 0

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

    def resume(self, rr: Any, ratio: Any) -> list[Any] | None:
        """The numbers of the next step, after r has been replaced, which has this |r|^2, and is that of before times `ratio`, but for rounding: all
        where the vectors are. None: the recursion starts again, with `begin`."""
        return None

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
        """The recursion of the members that miss the tolerance, from the true r with these |r|^2, which `true_squares` has computed."""
        residuals = np.sqrt(squares) / self.true_sizes
        self.going = missing
        if self.batch is None:
            self.history[-1] = residuals if missing else self.history[-1]
        else:
            self._correct_history(residuals, missing)
        self.best = np.where(missing, residuals, self.best)
        self.improved = self.since = self.iterations
        if self.outer is None:
            self.squares = squares
        if self.outer is None or not self.resumes:
            self.start(self.squares)

    def _correct_history(self, residuals: np.ndarray, missing: np.ndarray) -> None:
        """Gives the last residual of these members its true value, which is that of an earlier iteration where a member has waited for others."""
        own = np.array(self.took_part)
        for k in np.flatnonzero(missing):
            for row in range(int(np.flatnonzero(own[:, k])[-1]), len(self.history)):
                self.history[row] = self.history[row].copy()
                self.history[row][k] = residuals[k]

    def _hand_over(self, squares: Any, ratio: Any = None) -> list[Any]:
        """r of the outer solve, with this |r|^2, as that of the recursion, and what follows from it: sizes, the rule's numbers, and those of the next step
        where the recursion resumes. Returns |r|^2 of the recursion and its bound. Nothing waits."""
        outer = self.outer
        assert outer is not None
        rr = self.update((self.r, 0, [(outer.factor, outer.r)]), norm=True)
        size = computed(times, outer.size, outer.factor)
        rule = outer.rule.begin(self, computed(_part, squares, outer.size))
        settle(size, *rule)
        if self.stay:
            self.size.assign(size)
        else:
            self.size = size
        if outer.numbers:
            self._leave(outer.numbers, rule)
        else:
            self._keep(outer.numbers, [read(number) for number in rule])
        limit = outer.rule.bound(self, outer.numbers, rr)[1]
        self._set_limit(limit)
        if ratio is not None:
            numbers = self.resume(rr, ratio)
            self.resumes = numbers is not None
            if numbers is not None:
                self._leave(self.numbers, numbers)
        return [rr, limit]

    def _renewed(self) -> list[Any]:
        """An update: adds what the recursion has found to x, and gives it b - A x. Returns the |r|^2 and the scale of the outer solve, and what `_hand_over`
        does. Nothing waits."""
        outer = self.outer
        assert outer is not None
        self.release()
        squares = outer.residual(self)
        ratio = outer.rescale(self, squares)
        return [squares, outer.factor, *self._hand_over(squares, ratio)]

    def _look_at(self, squares: np.ndarray, handed_over: list[Any], scale: Any = None) -> None:
        """The host's numbers after an update."""
        outer = self.outer
        assert outer is not None
        if scale is not None:
            outer.scale = read(scale)
        assert outer.scale is not None
        self.sizes = self.true_sizes * outer.scale
        self.squares, self.limits = (read(number) for number in handed_over)
        self.squares = np.asarray(self.squares, float)

    def _renew(self) -> np.ndarray:
        """An update, from the second one on as a graph where steps are; |r|^2."""
        if self.graphs and self.updates > 0 and self.renewal is None:
            assert self.outer is not None
            try:
                self.outer.before_recording(self)
                self.renewal = self.vectors.graph(self.outer.b, self._renewed, kept=1)
            except RecordingError:
                self.updates = -1  # steps may be recorded all the same
        if self.renewal is not None:
            self.renewal.run()
            squares, scale, *handed_over = self.renewal.kept.next()
        else:
            squares, scale, *handed_over = self._renewed()
            self.updates += self.updates >= 0
        squares = np.asarray(read(squares), float)
        self._look_at(squares, handed_over, scale)
        return squares

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
        if (outer := self.outer) is not None and self.stay:
            outer.tolerance.assign(self.kept(self.tolerances))
            outer.size.assign(self.kept(self.true_sizes))
        elif outer is not None:
            outer.tolerance, outer.size = self.kept(self.tolerances), self.kept(self.true_sizes)

    def tighten(self, factors: np.ndarray) -> None:
        """Tolerances times these factors."""
        self.tolerances, self.tightened = self.tolerances * factors, self.tightened * factors
        self.limits = self.tolerances
        self.set_bounds()
        if (outer := self.outer) is not None:
            self._set_limit(outer.rule.bound(self, outer.numbers, self.kept(self.squares))[1])
            self.limits = read(self.tolerance)

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
        return self._left(self.going, self.limits, since)

    def left_of(self, members: np.ndarray) -> float:
        """In how many iterations these members are likely to converge, by how fast residuals fell."""
        return self._left(members, self.tolerances, 0)

    def _left(self, members: np.ndarray, bounds: np.ndarray, since: int) -> float:
        done = self.iterations - since
        if done < 4 or not members.any():
            return math.inf
        with np.errstate(all="ignore"):
            now, first = self.history[-1][members], self.history[since][members]
            rate = np.log(first / now) / done
            left = np.log(now / np.broadcast_to(bounds, members.shape)[members]) / rate
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
            self.took_part.append(np.array(going))
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
        return self._first_squares() if self.outer is None else self._renew()

    def _first_squares(self) -> np.ndarray:
        """The same, where few bits have found nothing yet."""
        if self.outer is not None:
            return np.asarray(read(self.outer.residual(self)), float)
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
            members = [self.labels[k] for k in np.flatnonzero(wrong).tolist()]
            of = f", member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))} of the batch"
        history = getattr(self, "history", [])
        cause = self.cause() if history and measured else ""
        return SolverError(
            f"{self.name}{of}: {what}{cause and '; '}{cause}", [one.tolist() for one in history]
        )


def _part(square: Any, size: Any) -> Any:
    return sqrt(square) / size
