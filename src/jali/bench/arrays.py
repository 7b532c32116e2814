"""Distributed arrays, operators and solvers beside another library with the same interface, and beside plain NumPy with MPI's buffers.

A case is written once against a module: jali's compatibility module and the other library run the same lines. Some cases have a
roof as well: a program written for its problem with NumPy and MPI. Sides take turns; results are compared before they are
timed; a time is that of the slowest rank.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.bench.collectives import Timing, conditions
from jali.bench.journal import Journal
from jali.errors import ParameterError, RankError

JALI, ROOF = "jali", "numpy"
OURS = "jali.compat.pylops_mpi"
OTHERS = {"pylops-mpi": "pip install pylops-mpi==0.8.0"}  # libraries with that interface
MOST_ROUNDS = 200

Call = Callable[[], Any]


@dataclass(frozen=True)
class Problem:
    """What cases are about: `dims` of the whole array, the type of its elements, the ranks (mpi4py's world)."""

    dims: tuple[int, ...]
    dtype: str
    comm: Any
    engine: str = "numpy"  # whose arrays the parts are: "cupy" on devices, where messages go by NCCL

    def given(self, module: Any) -> dict[str, Any]:
        """Arguments of a distributed array with that engine."""
        if self.engine == "numpy":
            return {}
        return {"engine": self.engine, "base_comm_nccl": _nccl(module)}

    def array(self, module: Any, seed: int = 1, shape: tuple[int, ...] | None = None) -> Any:
        """A distributed array of random numbers, the same for all modules."""
        x = module.DistributedArray(
            global_shape=self.dims if shape is None else shape, dtype=self.dtype, **self.given(module)
        )
        x[:] = self.here(self.local(x.local_shape, seed))
        return x

    def here(self, numbers: np.ndarray) -> Any:
        """Where this rank's parts are."""
        return numbers if self.engine == "numpy" else importlib.import_module(self.engine).asarray(numbers)

    def wait(self) -> None:
        """For all that was started on the device."""
        if self.engine != "numpy":
            importlib.import_module(self.engine).cuda.get_current_stream().synchronize()

    def flat(self, module: Any, seed: int = 1) -> Any:
        """The same, as operators of old scripts want it: whole rows, flat."""
        return self.array(module, seed).ravel()

    def local(self, shape: Sequence[int], seed: int = 1) -> np.ndarray:
        """This rank's numbers."""
        return np.random.default_rng((seed, self.comm.rank)).normal(size=shape).astype(self.dtype)

    def even(self) -> tuple[int, ...]:
        """The shape of this rank's part."""
        least, more = divmod(self.dims[0], self.comm.size)
        return (least + (self.comm.rank < more), *self.dims[1:])


@functools.cache
def _nccl(module: Any) -> Any:
    """The communicator of NCCL as scripts make it, of a module. Collective at first."""
    return importlib.import_module(f"{module.__name__}.utils._nccl").initialize_nccl_comm()


@dataclass(frozen=True)
class ArrayCase:
    """One thing to do: `prepare(module, problem)` gives the call; `roof(problem)` that of plain NumPy."""

    name: str
    prepare: Callable[[Any, Problem], Call]
    roof: Callable[[Problem], Call] | None = None
    goal: float = 0.0  # times as fast as the other library
    steps: int = 1  # of a call
    rtol: float = 1e-4


def _dot(m: Any, p: Problem) -> Call:
    x, y = p.array(m), p.array(m, 2)
    return lambda: x.dot(y)


def _dot_roof(p: Problem) -> Call:
    from mpi4py import MPI

    x, y = p.local(p.even()).ravel(), p.local(p.even(), 2).ravel()
    total = np.empty(1)

    def call() -> float:
        p.comm.Allreduce(np.array([np.dot(x, y)], float), total, MPI.SUM)
        return float(total[0])

    return call


def _norm(m: Any, p: Problem) -> Call:
    x = p.array(m)
    return lambda: x.norm()


def _norm_roof(p: Problem) -> Call:
    from mpi4py import MPI

    x = p.local(p.even()).ravel()
    total = np.empty(1)

    def call() -> float:
        p.comm.Allreduce(np.array([np.dot(x, x)], float), total, MPI.SUM)
        return float(np.sqrt(total[0]))

    return call


def _add(m: Any, p: Problem) -> Call:
    x, y = p.array(m), p.array(m, 2)
    if m.__name__ != OURS:
        return lambda: x + y
    out = x.empty_like()
    return lambda: np.add(x, y, out=out)


def _add_roof(p: Problem) -> Call:
    x, y = p.local(p.even()), p.local(p.even(), 2)
    out = np.empty_like(x)
    return lambda: np.add(x, y, out=out)


def _axpy(m: Any, p: Problem) -> Call:
    x, y = p.array(m), p.array(m, 2)

    def call() -> Any:
        nonlocal x
        x += 1e-6 * y
        return None

    return call


def _ghosts(m: Any, p: Problem) -> Call:
    x = p.array(m)
    return lambda: x.add_ghost_cells(cells_front=1, cells_back=1)


def _ghosts_roof(p: Problem) -> Call:
    x = p.local(p.even())
    me, last = p.comm.rank, p.comm.size - 1
    front, back = np.empty_like(x[:1]), np.empty_like(x[:1])
    out = np.empty((len(x) + (me > 0) + (me < last), *x.shape[1:]), x.dtype)

    def call() -> np.ndarray:
        requests = []
        if me > 0:
            requests += [p.comm.Irecv(front, me - 1), p.comm.Isend(np.ascontiguousarray(x[:1]), me - 1)]
        if me < last:
            requests += [p.comm.Irecv(back, me + 1), p.comm.Isend(np.ascontiguousarray(x[-1:]), me + 1)]
        out[(me > 0) : len(out) - (me < last)] = x
        for request in requests:
            request.Wait()
        if me > 0:
            out[:1] = front
        if me < last:
            out[-1:] = back
        return out

    return call


def _asarray(m: Any, p: Problem) -> Call:
    x = p.array(m)
    return lambda: x.asarray()


def _redistribute(m: Any, p: Problem) -> Call:
    x = p.array(m)
    return lambda: x.redistribute(axis=1).local_array


def _derivative(adjoint: bool) -> Callable[[Any, Problem], Call]:
    def prepare(m: Any, p: Problem) -> Call:
        op = m.MPIFirstDerivative(p.dims, dtype=p.dtype)
        x = p.flat(m)
        return lambda: (op.rmatvec(x) if adjoint else op.matvec(x)).local_array

    return prepare


def _block(p: Problem) -> np.ndarray:
    a = np.random.default_rng(3 + p.comm.rank).normal(size=(500, 500)).astype(p.dtype)
    return np.asarray(a @ a.T / 500 + np.eye(500, dtype=p.dtype))


def _solver(name: str, steps: int) -> Callable[[Any, Problem], Call]:
    def prepare(m: Any, p: Problem) -> Call:
        import pylops

        op = m.MPIBlockDiag([pylops.MatrixMult(p.here(_block(p)), dtype=p.dtype)])
        y = p.array(m, shape=(500 * p.comm.size,))
        x0 = y.zeros_like()
        solve = getattr(m, name)
        return lambda: solve(op, y, x0=x0.copy(), niter=steps, tol=0)[0].local_array

    return prepare


def _solver_roof(steps: int) -> Callable[[Problem], Call]:
    def prepare(p: Problem) -> Call:
        from mpi4py import MPI

        a, b = _block(p), p.local((500,))

        def dot(u: np.ndarray, v: np.ndarray) -> float:
            total = np.empty(1)
            p.comm.Allreduce(np.array([u @ v], float), total, MPI.SUM)
            return float(total[0])

        def call() -> np.ndarray:
            x, r = np.zeros_like(b), b.copy()
            d = r.copy()
            old = dot(r, r)
            for _ in range(steps):
                q = a @ d
                alpha = np.float32(old / dot(d, q))
                x += alpha * d
                r -= alpha * q
                new = dot(r, r)
                d = r + np.float32(new / old) * d
                old = new
            return x

        return call

    return prepare


STEPS = 20
CASES = (
    ArrayCase("dot", _dot, _dot_roof, 6.0),
    ArrayCase("norm", _norm, _norm_roof, 60.0),
    ArrayCase("x + y", _add, _add_roof),
    ArrayCase("x += a y", _axpy),
    ArrayCase("ghost cells", _ghosts, _ghosts_roof, 60.0),
    ArrayCase("asarray", _asarray),
    ArrayCase("redistribute", _redistribute),
    ArrayCase("FirstDerivative", _derivative(False), None, 15.0),
    ArrayCase("FirstDerivative^H", _derivative(True), None, 15.0),
    ArrayCase("CG step", _solver("cg", STEPS), _solver_roof(STEPS), 10.0, STEPS, 1e-2),
    ArrayCase("CGLS step", _solver("cgls", STEPS), None, 10.0, STEPS, 1e-2),
)


@dataclass
class Cell:
    """Times of a case by side: seconds of a call, or of a step."""

    case: ArrayCase
    timings: dict[str, Timing]

    def times_as_fast(self, other: str) -> float:
        """The other side's median over that of jali."""
        return self.timings[other].median / self.timings[JALI].median


@dataclass
class Report:
    """All cells and their conditions."""

    conditions: Mapping[str, Any]
    against: str
    cells: list[Cell] = field(default_factory=list)


def other_library(name: str) -> Any:
    """The module of a library, by the name by which it is installed. ParameterError where it is not, and for others."""
    if name not in OTHERS:
        raise ParameterError(f"--against {name}: libraries with the same interface are {', '.join(OTHERS)}")
    try:
        return importlib.import_module(name.replace("-", "_"))
    except ImportError as error:
        raise ParameterError(f"--against {name}: it is not installed ({error}); {OTHERS[name]}") from None


def measure(
    comm: Any,
    against: str,
    names: Sequence[str] = (),
    *,
    dims: tuple[int, ...] = (256, 256, 256),
    dtype: str = "float32",
    engine: str = "numpy",
    rounds: int = 10,
    seconds: float = 1.0,
    progress: Callable[[Cell], object] | None = None,
    journal: Journal | None = None,
) -> Report:
    """Times the cases of these names (all). Collective over mpi4py's `comm`. Raises ParameterError for unknown cases and libraries,
    RankError where results differ."""
    known = {case.name: case for case in CASES}
    if unknown := [name for name in names if name not in known]:
        raise ParameterError(f"no case {', '.join(unknown)}; there are {', '.join(known)}")
    modules = {JALI: importlib.import_module(OURS)}
    if against:
        modules[against] = other_library(against)
    problem = Problem(dims, dtype, comm, engine)
    facts = {**conditions(comm, 2, rounds, dtype), "array": dims, "engine": engine}
    if against:
        facts[against] = getattr(modules[against], "__version__", "unknown")
    report = Report(facts, against)
    journal = journal or Journal(rank=comm.rank)

    def measured(case: ArrayCase) -> dict[str, Timing]:
        calls = {side: case.prepare(module, problem) for side, module in modules.items()}
        if case.roof is not None and engine == "numpy":
            calls[ROOF] = case.roof(problem)
        _compare(comm, case, {side: call() for side, call in calls.items()})
        return _timed(problem, calls, case.steps, rounds, seconds)

    def report_progress(case: ArrayCase, timings: dict[str, Timing]) -> None:
        if progress is not None:
            progress(Cell(case, timings))

    for name in names or known:
        case = known[name]
        timings = journal.case(
            name, functools.partial(measured, case), functools.partial(report_progress, case)
        )
        if timings is not None:
            report.cells.append(Cell(case, timings))
    return report


def _compare(comm: Any, case: ArrayCase, results: Mapping[str, Any]) -> None:
    ours = results[JALI]
    problem = ""
    for side, theirs in results.items():
        if ours is None or theirs is None:
            continue
        a, b = (getattr(x, "local_array", x) for x in (ours, theirs))
        a, b = (x if np.isscalar(x) else namespace_of(x).to_host(x) for x in (a, b))
        scale = float(np.max(np.abs(b))) if np.size(b) else 1.0
        if np.shape(a) != np.shape(b) or not np.allclose(a, b, rtol=case.rtol, atol=case.rtol * scale):
            problem = f"{case.name}: jali and {side} give different results on rank {comm.rank}"
    if found := [text for text in comm.allgather(problem) if text]:
        raise RankError(found[0])


def _timed(
    problem: Problem, calls: Mapping[str, Call], steps: int, rounds: int, seconds: float
) -> dict[str, Timing]:
    from mpi4py import MPI

    comm, names = problem.comm, list(calls)

    def go(count: int) -> np.ndarray:
        times = np.zeros((len(names), count))
        for number in range(count):
            order = range(len(names)) if number % 2 == 0 else reversed(range(len(names)))
            for side in order:
                calls[names[side]]()  # what others left in the caches is no part of it
                problem.wait()
                comm.Barrier()
                start = time.perf_counter()
                calls[names[side]]()
                problem.wait()
                times[side, number] = time.perf_counter() - start
        slowest = np.zeros_like(times)
        comm.Allreduce(times, slowest, MPI.MAX)
        return slowest

    each = float(np.median(go(2), axis=1).sum())
    times = go(max(rounds, min(MOST_ROUNDS, int(seconds / each))))
    return {
        name: Timing([float(t) / steps for t in of_side]) for name, of_side in zip(names, times, strict=True)
    }
