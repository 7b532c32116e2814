"""A solve from its first step to its end, which is honest: b - A x is computed, and what it misses is an error or another start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError, SolverError, StorageError
from jali.files import value_shown
from jali.solvers import saved_solves
from jali.solvers.batches import BatchSolution
from jali.solvers.krylov import PATIENCE, Krylov
from jali.solvers.leaving import rest_of, unfinished
from jali.solvers.recursion import Solution
from jali.solvers.reliable import STRIKES
from jali.solvers.repetitions import TOGETHER, Repetitions
from jali.solvers.scaling import unscaled
from jali.solvers.shared import Shared

LEAST_GAIN = 0.5  # of the true residual, by which a restart has to lower it


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
    if shared.leave is not None and not run.leaves:
        raise ParameterError(f"{name}: no member leaves, since all share one space; leave out leave=")
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
    repeated = Repetitions(run, turns, records, check_interval is not None, ahead)
    progress = _Progress(run) if shared.progress else None
    last = np.full(np.shape(run.sizes), math.inf)
    strikes, heavy_quark = 0, None
    while True:
        _until_it_waits(repeated, shared, callback, progress)
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


def _until_it_waits(
    repeated: Repetitions,
    shared: Shared,
    callback: Callable[[Any], None] | None,
    progress: _Progress | None,
) -> None:
    """Iterates until all members have converged by the recursion, or wait for an update, or no more is to be done."""
    run = repeated.run
    while not run.converged and not run.stagnates and run.iterations < run.maxiter:
        repeated.iterate()
        if progress is not None:
            progress.show(run)
        if callback is not None:
            _call(callback, run, shared.save_to)
        elif shared.leave is not None and unfinished(run, shared.leave):
            repeated.finish()
            if ids := unfinished(run, shared.leave):
                rest = rest_of(run, ids)
                try:
                    _until_it_waits(repeated.of(rest.run), shared, None, progress)
                except (SolverError, StorageError) as error:
                    rest.give_back()
                    error.history = [one.tolist() for one in run.history]  # type: ignore[union-attr]
                    raise
                rest.give_back()
    repeated.discard()


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


class _Progress:
    """A line each second, on the first rank."""

    def __init__(self, run: Krylov):
        self.last = time.perf_counter()
        self.speaks = all(ranks.rank == 0 for ranks in run.vectors.ranks(run.b))

    def show(self, run: Krylov) -> None:
        """Prints where the solve is, if a second has passed."""
        now = time.perf_counter()
        if self.speaks and now > self.last + 1:
            self.last = now
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
        own = np.array(run.took_part)[:, member[0]] if member else slice(None)
        return Solution(
            x,
            count,
            history[(own, *member)].tolist(),
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
