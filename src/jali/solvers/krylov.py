"""What Krylov solvers are made of: a step, a stop, a restart.

A solver states its `begin` and its `step`; here is all else. A step is written once, with numbers that stay where the vectors are, so it runs on
the host, as a graph of several steps, and for all members of a batch, for which every number is an array with one element per member. A member that
has converged takes steps of length zero, so its solution does not depend on the others. The host reads the numbers of a step after it, or of a graph
after some: it stops, or raises for what it sees.

An end is honest: where the recursion says that a member has converged, b - A x is computed; where that is larger than the tolerance, the
recursion starts again from it, as long as this helps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from jali.comm.validation import integer
from jali.errors import ParameterError, RecordingError, SolverError
from jali.files import value_shown
from jali.solvers.batches import BatchSolution
from jali.solvers.causes import not_finite, not_hermitian
from jali.solvers.operators import (
    into_of,
    is_operator,
    joins_members,
    refuse_batches_in_lists,
    started,
    widened,
)
from jali.solvers.recursion import Solution
from jali.solvers.scaling import bound, scaled, unscaled
from jali.solvers.solver import check_tolerances
from jali.vectors import check_alike, vectors_of

LEAST_GAIN = 0.5  # of the true residual, by which a restart has to lower it
TOGETHER = 8  # iterations of a graph, as long as a step has no more
PATIENCE = 200  # iterations in which the smallest residual falls by a tenth, or a solve has stagnated


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b: of numbers of the host or of a device."""
    return condition.where(a, b) if hasattr(condition, "where") else np.where(condition, a, b)


def sqrt(x: Any) -> Any:
    """The root, of numbers of the host or of a device."""
    return x.sqrt() if hasattr(x, "sqrt") else np.sqrt(x)


def going(rr: Any, size: Any, tolerance: Any) -> Any:
    """Whether |r| / |b| is above the tolerance."""
    return sqrt(rr) / size > tolerance


def ratio(above: Any, below: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """above / below, zero where a member has converged, or there is nothing to divide by."""
    return where(going(rr, size, tolerance) & (abs(below) > 0), above / below, 0.0)


def part(product: Any, square: Any) -> Any:
    """product / square, zero where the square is."""
    return where(square > 0, product / square, 0.0)


def length(product: Any, square: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """product / square, zero where the square is, or a member has converged."""
    return where(going(rr, size, tolerance) & (square > 0), product / square, 0.0)


def if_going(value: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """The value, zero where a member has converged."""
    return where(going(rr, size, tolerance), value, 0.0)


def kept(new: Any, old: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """The new number; where a member has converged the old one, by which something may divide."""
    return where(going(rr, size, tolerance), new, old)


def _read(value: Any) -> np.ndarray:
    """A number, or an array of them, on the host."""
    if hasattr(value, "is_complex"):
        value = complex(value) if value.is_complex else float(value)
    return np.asarray(value)


def computed(function: Callable[..., Any], *numbers: Any) -> Any:
    """The function of numbers; of arrays on a device by one kernel."""
    if hasattr(numbers[0], "elementwise"):
        return numbers[0].elementwise(function, *numbers)
    with np.errstate(all="ignore"):  # what is not finite is found when it is read
        return function(*(np.asarray(x) if isinstance(x, int | float | complex) else x for x in numbers))


class Krylov:
    """A solve under way: x, the residual r, and for each member of a batch the numbers that one step leaves for the next.

    `name` is that of the function; `steps` are the iterations of one `step`, each with its residual.
    """

    name: ClassVar[str]
    steps = 1
    patience, stagnates, must_converge, maxiter = PATIENCE, False, True, 0

    def __init__(self, A: Any, b: Any, x0: Any, rtol: float, atol: float):
        name = self.name
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
        self.vectors, self.batch, self.b = vectors, batch, b  # the recursion's b is scaled below
        self.apply = into_of("the operator", A, vectors)
        b, x0, size, self.factors = scaled(vectors, b, x0)
        if not np.all(np.isfinite(size)):
            raise self._not_finite(np.asarray(size), b=b)
        self.b, squares = b, np.square(np.asarray(size))
        self.stay = vectors.repeats(b)  # numbers are those of a device, or of the host as it keeps them
        zero = squares == 0
        self.sizes = np.sqrt(np.where(zero, 1.0, squares))
        self.tolerances = np.maximum(rtol, bound(atol, size, self.factors) / self.sizes)
        self.x = vectors.like(b) if x0 is None else started(x0, b)
        self.r = vectors.copy(b)
        rr = squares if x0 is None else self.true_squares()
        if not np.all(np.isfinite(rr)):
            raise self._not_finite(rr, x0=self.x)
        self.complex = bool(np.iscomplexobj(vectors.inner(b, b)))
        self.size, self.tolerance = self.kept(self.sizes), self.kept(self.tolerances)
        self.history = [np.sqrt(rr) / self.sizes]
        self.going = self.history[0] > self.tolerances
        self.counts = np.zeros(np.shape(rr), int)  # iterations of each member
        self.iterations = 0
        self.best, self.improved = self.history[0], 0
        self.numbers: list[Any] = []
        self.start(rr)

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

    def cause(self) -> str:
        """Why a solve may have failed, measured after it has; empty where nothing is found."""
        return ""

    def refuse_bad(self, what: str, value: np.ndarray, of: str = "the operator") -> None:
        """Raises SolverError where this number of a step, which comes of `of`, is infinite or nan, for a member that goes on."""
        if np.any(wrong := self.going & ~np.isfinite(value)):
            raise self.error(wrong, f"{what} is infinite or nan: {of} gave such numbers, or they overflow")

    def refuse_breakdown(self, what: str, value: np.ndarray) -> None:
        """The same, and where it is zero, of a number that the recursion divides by."""
        self.refuse_bad(what, value)
        if np.any(wrong := self.going & (value == 0)):
            raise self.error(wrong, f"breakdown: {what} is zero; start from another x0, or use gcr or cgnr")

    def ends(self, squares: list[Any]) -> bool:
        """Whether a step may stop after these |r|^2: all members have converged, or `maxiter` is reached. For numbers of the host."""
        residuals = np.sqrt(np.asarray(squares[-1], float)) / self.sizes
        return bool(np.all(residuals <= self.tolerances)) or self.iterations + len(squares) >= self.maxiter

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
        self.numbers = [self.kept(value) for value in self.begin(rr)]

    def run(self) -> tuple[list[Any], list[Any]]:
        """A step; the numbers are then those that it left."""
        new, squares, watched = self.step(*self.numbers)
        if self.stay:
            for number, value in zip(self.numbers, new, strict=True):
                number.assign(value)
        else:
            self.numbers = new
        return squares, watched

    def iterate(self) -> None:
        """A step, and what the host makes of it."""
        self.note(*self.run())

    def note(self, squares: list[Any], watched: list[Any]) -> None:
        """Reads what a step gave, counts its iterations up to the last one that is needed, and raises for what is wrong."""
        found = [_read(rr) for rr in squares]
        going = self.going
        with np.errstate(invalid="ignore"):  # a step that ended in a solution may have divided by nothing
            self.going = going & ~(np.sqrt(np.abs(found[-1])) / self.sizes <= self.tolerances)
        self.check(*map(_read, watched))
        self.going = going
        for rr in found:
            if self.converged:
                return
            self.count(rr)

    def count(self, rr: np.ndarray) -> None:
        """Notes an iteration that gave these |r|^2."""
        if np.any(wrong := self.going & ~np.isfinite(rr)):
            raise self.error(
                wrong,
                f"|r|^2 is {rr[wrong].flat[0]}: the operator gave infinities or nan, or numbers overflow",
            )
        now = np.where(self.going, np.sqrt(np.abs(rr)) / self.sizes, self.history[-1])
        self.history.append(now)
        self.iterations += 1
        self.counts += self.going
        if np.any(now < 0.9 * self.best):
            self.improved = self.iterations
            self.best = np.minimum(self.best, now)
        self.going = self.going & (now > self.tolerances)
        self.stagnates = bool(self.going.any()) and self.iterations - self.improved > self.patience
        if self.stagnates and self.must_converge:
            raise self.error(
                self.going,
                f"stagnation: no residual fell by a tenth in {self.patience} iterations; |r|/|b| is {now[self.going].max():.3g}",
            )

    @property
    def converged(self) -> bool:
        """Whether all members have, by the recursion."""
        return not self.going.any()

    def true_squares(self) -> np.ndarray:
        """|b - A x|^2, with r = b - A x."""
        self.apply(self.x, self.r)
        found = self.vectors.update([(self.r, -1, [(1, self.b)])], norm=True)
        return np.asarray(found, float)

    # ---- ends --------------------------------------------------------------------------------------------

    def _not_finite(self, squares: np.ndarray, **vectors: Any) -> SolverError:
        if self.batch is None and getattr(self.b, "batch", None) is None:
            return not_finite(self.name, **vectors)
        return self.error(
            ~np.isfinite(squares),
            f"{' or '.join(vectors)} has infinities or nan, or numbers whose squares overflow",
        )

    def error(self, wrong: np.ndarray, what: str) -> SolverError:
        """The error of these members, with the residuals so far."""
        of = ""
        if self.batch is not None:
            members = np.flatnonzero(wrong).tolist()
            of = f", member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))} of the batch"
        history = getattr(self, "history", [])
        cause = self.cause() if history else ""
        return SolverError(
            f"{self.name}{of}: {what}{cause and '; '}{cause}", [one.tolist() for one in history]
        )


class _Repeated:
    """So many steps of a run as a graph."""

    def __init__(self, run: Krylov, turns: int):
        self.run = run
        self.turns = turns
        self.graph = run.vectors.graph(run.b, self._steps)

    def _steps(self) -> list[Any]:
        """|r|^2 of the iterations and what is looked at, step by step."""
        found = [self.run.run() for _ in range(self.turns)]
        return [number for squares, watched in found for number in (*squares, *watched)]

    def iterate(self) -> None:
        """As many steps of the run, up to the last one that is needed."""
        self.graph.run()
        numbers = list(self.graph.read())
        each = len(numbers) // self.turns
        for k in range(self.turns):
            if self.run.converged:
                return
            found = numbers[k * each : (k + 1) * each]
            self.run.note(found[: self.run.steps], found[self.run.steps :])


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
) -> Solution | BatchSolution:
    """Iterates a run to its end, and restarts it from b - A x where that is larger than the recursion said. Raises what solvers raise."""
    begun = time.perf_counter()
    run.patience, run.must_converge, run.maxiter = max(PATIENCE, maxiter // 5), must_converge, int(maxiter)
    name, vectors = run.name, run.vectors
    if callback is not None and not callable(callback):
        raise ParameterError(f"{name}: a callback is a function of x, not {value_shown(callback)}")
    if check_interval is not None and check_interval > 1 and not run.stay:
        raise ParameterError(
            f"{name}: check_interval={check_interval}, but operations on these vectors cannot be recorded"
        )
    # of graphs on hosts, too: they save what Python does between the kernels of a step
    turns = check_interval or (max(1, TOGETHER // run.steps) if run.stay and callback is None else 1)
    last = np.full(np.shape(run.sizes), math.inf)
    graph: _Repeated | None = None
    while True:
        first = True
        while not run.converged and not run.stagnates and run.iterations < maxiter:
            if turns > 1 and not first and run.iterations + turns * run.steps <= maxiter:
                try:
                    graph = graph or _Repeated(run, turns)
                except RecordingError:
                    if check_interval is not None:
                        raise
                    turns = 1
                    continue
                graph.iterate()
            else:
                run.iterate()  # it makes the kernels
            first = False
            if callback is not None:
                callback(unscaled(vectors, run.x, run.factors))
        if not run.iterations:
            residuals = run.history[0]
            break
        squares = run.true_squares()
        residuals = np.sqrt(squares) / run.sizes
        if np.any(wrong := ~np.isfinite(residuals)):
            raise run.error(
                wrong, "b - A x has infinities or nan: the operator gave such numbers, or x was changed"
            )
        missing = residuals > run.tolerances
        if not run.converged or not missing.any():
            break
        if not np.any(missing & (residuals < LEAST_GAIN * last)):
            if must_converge:
                largest, epsilon = residuals[missing].max(), vectors.epsilon(run.b)
                why = (
                    f"the tolerance {np.max(run.tolerances[missing]):.3g} is below what rounding in {vectors.precision(run.b)} allows for this operator, or "
                    "the storage of its vectors"
                    if largest < math.sqrt(math.sqrt(epsilon))
                    else "the recursion has lost it: the operator or the preconditioner is not linear, or changes its argument, or the solver is not for it"
                )
                raise run.error(
                    missing,
                    f"|b - A x|/|b| is {largest:.3g} and restarts no longer lower it, after {run.iterations} iterations: {why}",
                )
            break
        last, run.going = np.where(missing, residuals, last), missing
        run.history[-1] = np.where(missing, residuals, run.history[-1])
        run.best = np.where(missing, residuals, run.best)
        run.improved = run.iterations
        run.start(squares)
        graph = None
    converged = residuals <= run.tolerances
    if must_converge and not converged.all():
        raise run.error(
            ~converged,
            f"no convergence to {np.max(run.tolerances):g} in {run.iterations} iterations: |b - A x|/|b| is {residuals[~converged].max():.3g}",
        )
    x = unscaled(vectors, run.x, run.factors)
    seconds = time.perf_counter() - begun
    history = np.array(run.history)
    if run.batch is None:
        return Solution(
            x,
            run.iterations,
            [float(one) for one in history],
            float(residuals),
            bool(converged),
            turns,
            seconds,
        )
    members = []
    for k in range(run.batch):
        count = int(run.counts[k])
        found = history[: count + 1, k].tolist()
        members.append(
            Solution(x.members[k], count, found, float(residuals[k]), bool(converged[k]), turns, seconds)
        )
    return BatchSolution(x, tuple(members))
