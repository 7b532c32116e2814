"""What iterative solvers have in common: setup, step, run, finalize, solve; callbacks; progress text; saved states.

A solver is used in one of two ways: `Solver(A).solve(b, ...)`, or step by step,

    x = solver.setup(b, ...)
    while ...:
        x = solver.step(x)
    solver.finalize()

`state()` is what has to be kept in order to continue later: a dictionary of numbers and of copies of vectors, which `restore`
takes. A solver is a subclass with `setup`, `step`, `_going_on`, and the names of what it keeps.

Words are those of SciPy, and alike in all solvers: `A`, `b`, `x0`, `rtol`, `atol`, `maxiter`, `callback`, `M`. Options have keywords only.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from jali import tape_recorder
from jali.comm.validation import integer
from jali.errors import ParameterError
from jali.files import value_shown
from jali.keywords import named
from jali.vectors import vectors_of

Itershow = tuple[int, int, int]
Callback = Any  # None, a function of x, an object with hooks, or a list of these
MAXITER = 1000  # of solvers that stop by a tolerance, unless maxiter is given
NEGLIGIBLE = 1 / 16  # of what rounding leaves of a residual: at this level a recursion makes no more progress


class Solver:
    """The base of all solvers.

    `callback` is a function of x that is called after each iteration, or an object with any of the methods `on_setup_begin`,
    `on_setup_end`, `on_run_begin`, `on_run_end`, `on_step_begin` and `on_step_end` of the solver and x, or a list of these; an
    object whose attribute `stop` is true ends the run. All ranks must agree.
    """

    kept_vectors: ClassVar[tuple[str, ...]] = ()  # beside x
    kept_numbers: ClassVar[tuple[str, ...]] = ()
    setup: Callable[..., Any]  # of b and options; begins, and returns x

    @named
    def __init__(self, A: Any, *, callback: Callback = None) -> None:
        tape_recorder.refuse(
            f"jali.solvers.{type(self).__name__}", "call it before the tape, or solve by jali.solve"
        )
        self.A = A
        self.callbacks = _callbacks(callback)
        self.maxiter: int | None = None
        self.iterations = 0
        self.cost: list[float] = []
        self.tstart, self.telapsed = time.time(), 0.0
        self._x: Any = None

    # --- to be defined by each -------------------------------------------------------------------------------

    def step(self, x: Any, show: bool = False) -> Any:
        """One iteration; returns x, the same vector with other values."""
        raise NotImplementedError

    def _going_on(self) -> bool:
        """Whether there is more to do, the number of iterations apart."""
        raise NotImplementedError

    def _line(self) -> str:
        """The output of an iteration."""
        return f"{self.cost[-1]:11.4e}"

    # --- the frame ----------------------------------------------------------------------------------------

    @named
    def run(
        self, x: Any, *, maxiter: int | None = None, show: bool = False, itershow: Itershow = (10, 10, 10)
    ) -> Any:
        """Iterate until the tolerance is reached, `maxiter` iterations are done in all, or a callback requests a
        stop. Returns x.

        Raises ParameterError where neither `setup` nor this call was given maxiter.
        """
        maxiter = self.maxiter if maxiter is None else maxiter
        if maxiter is None:
            raise ParameterError(
                f"{type(self).__name__}: say how many iterations, maxiter, in setup or in run"
            )
        check_maxiter(type(self).__name__, maxiter)
        if len(itershow) != 3 or any((number := integer(n)) is None or number < 0 for n in itershow):
            raise ParameterError(
                f"{type(self).__name__}: itershow is three whole numbers from 0, how many of the first and last iterations are shown "
                f"and every which between, not {value_shown(itershow)}"
            )
        if self._x is None:
            raise ParameterError(f"{type(self).__name__}: there is nothing to run before setup or restore")
        self._call("on_run_begin", x)
        while self.iterations < maxiter and self._going_on() and not self.stopped:
            x = self._counted_step(x, show and _is_shown(self.iterations, maxiter, itershow))
        self._call("on_run_end", x)
        return x

    def _counted_step(self, x: Any, show: bool) -> Any:
        self._call("on_step_begin", x)
        x = self.step(x, show)
        self._call("on_step_end", x)
        for callback in self.callbacks:
            if not _has_hooks(callback):
                callback(x)
        return x

    def finalize(self, show: bool = False) -> None:
        """End: the time is taken, and shown."""
        self.telapsed = time.time() - self.tstart
        if show:
            self.say(
                f"\nIterations = {self.iterations}        Total time (s) = {self.telapsed:.2f}\n{'-' * 55}\n"
            )

    @property
    def stopped(self) -> bool:
        """Whether a callback requested a stop. A method named `stop` is ignored."""
        said = [getattr(callback, "stop", False) for callback in self.callbacks]
        return any(isinstance(word, bool | np.bool_) and bool(word) for word in said)

    def _call(self, hook: str, x: Any) -> None:
        for callback in self.callbacks:
            if _has_hooks(callback) and (function := getattr(callback, hook, None)) is not None:
                function(self, x)

    def say(self, text: str) -> None:
        """Progress text: a line on the standard output of the first rank."""
        if rank_of(self._x) == 0:
            sys.stdout.write(text + "\n")

    def _show_step(self) -> None:
        self.say(f"{self.iterations:6d}        {self._line()}")

    def _show_setup(self, heads: str, **facts: Any) -> None:
        report = "    ".join(f"{name} = {value}" for name, value in facts.items())
        self.say(f"{type(self).__name__}\n{'-' * 55}\n{report}\n{'-' * 55}\n   Itn        {heads}")

    # --- going on later -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the next step depends on: numbers, and copies of vectors. Raises ParameterError before `setup`."""
        if self._x is None:
            raise ParameterError(f"{type(self).__name__}: there is no state before setup")
        vectors = {name: getattr(self, name) for name in self.kept_vectors} | {"x": self._x}
        return {
            "solver": type(self).__name__,
            # some are lists, which grow
            "numbers": {
                name: copy.copy(getattr(self, name)) for name in (*self.kept_numbers, "iterations", "maxiter")
            },
            "cost": list(self.cost),
            "vectors": {name: _copy(x) for name, x in vectors.items()},
        }

    def restore(self, state: dict[str, Any]) -> Any:
        """Continue from a state of a solver of the same kind and operator: returns x, for `step` and `run`. Raises
        ParameterError for that of another."""
        if not isinstance(state, dict) or state.get("solver") != type(self).__name__:
            raise ParameterError(f"{type(self).__name__}.restore takes what its state() returned")
        vectors = {name: _copy(x) for name, x in state["vectors"].items()}
        self._resume(vectors, state["numbers"])
        self._x = vectors.pop("x")
        for name, value in (state["numbers"] | vectors).items():
            setattr(self, name, list(value) if isinstance(value, list) else value)
        self.cost = list(state["cost"])
        return self._x

    def _resume(self, vectors: dict[str, Any], numbers: dict[str, Any]) -> None:
        """What is made of them before the rest is set."""


HOOKS = [f"on_{what}_{when}" for what in ("setup", "step", "run") for when in ("begin", "end")]


def check_tolerances(name: str, **tolerances: Any) -> None:
    """Raise ParameterError for an invalid tolerance: nan, which nothing reaches, negative numbers, and values that
    are not real."""
    for word, value in tolerances.items():
        if not isinstance(value, int | float | np.integer | np.floating) or not value >= 0:
            raise ParameterError(f"{name}: {word} is a real number from 0, not {value_shown(value)}")


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


def check_maxiter(name: str, given: Any) -> None:
    """Raise ParameterError for an invalid number of iterations."""
    if (number := integer(given)) is None or number < 0:
        raise ParameterError(f"{name}: maxiter is a whole number from 0, not {value_shown(given)}")


def positive(name: str, value: Any) -> float:
    """A number, or a NumPy array of one."""
    number = float(np.real(np.asarray(value).reshape(-1)[0])) if np.size(value) == 1 else math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ParameterError(f"{name} is a positive number, not {value_shown(value)}")
    return number


def _copy(x: Any) -> Any:
    return None if x is None else vectors_of("a vector", x).copy(x)


def _callbacks(given: Any) -> list[Any]:
    """Those of a solver. Raises ParameterError for what is none."""
    found = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for callback in found:
        if not (callable(callback) or _has_hooks(callback)):
            raise ParameterError(
                f"a callback is a function of x, or has methods as on_step_end, not {value_shown(callback)}"
            )
    return found


def _has_hooks(callback: Any) -> bool:
    return any(hasattr(callback, name) for name in HOOKS)


def _is_shown(iteration: int, maxiter: int, itershow: Itershow) -> bool:
    """The first ones, the last ones, and every n-th."""
    first, last, every = itershow
    return iteration < first or maxiter - iteration < last or (every > 0 and iteration % every == 0)


def rank_of(x: Any) -> int:
    """Of what holds the vector; alone it is 0."""
    if isinstance(x, list | tuple):
        return rank_of(x[0])
    if (lattice := getattr(x, "lattice", None)) is not None:
        return int(lattice.communicator.rank)
    return int(getattr(x, "rank", 0))
