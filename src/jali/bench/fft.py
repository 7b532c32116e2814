"""Fourier transforms of distributed arrays by every provider, beside their own parts and beside other libraries.

A side is a provider of local transforms (`jali.fft.providers`) or another library; a row is a whole transform, its exchanges, or its
local transforms without them. So a table says what a transform costs, what it is made of, what the overlap of both gains, and what
others take. Sides take turns; inverses are compared with what went in before anything is timed; a time is that of the slowest rank.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, Layout, layout_of
from jali.arrays.libraries import LIBRARIES, library_by_name, library_of
from jali.bench.collectives import Timing, conditions
from jali.bench.device_collectives import mpi_of
from jali.errors import ParameterError, RankError
from jali.fft import Plan
from jali.fft.providers import PROVIDERS, Means, provider_for
from jali.fft.steps import Move, Run, Step

WHOLE, NATURAL = "transposed", "natural"
BOTH_WAYS = "transposed, there and back"
LOCAL, EXCHANGES = "local transforms", "exchanges"
ROWS = (WHOLE, BOTH_WAYS, NATURAL, LOCAL, EXCHANGES)
OTHERS = {"mpi4py-fft": "pip install mpi4py-fft pyfftw"}
MOST_ROUNDS = 200
CLOSE = {"complex64": 1e-4, "complex128": 1e-10}

Call = Callable[[], Any]


@dataclass
class Cell:
    """Times of a row by side: seconds."""

    row: str
    timings: dict[str, Timing]

    def times_as_fast(self, side: str, other: str) -> float:
        """The other side's median over that of `side`."""
        return self.timings[other].median / self.timings[side].median


@dataclass
class Report:
    """All cells and their conditions; `providers` are the sides that are jali's, `pieces` in how many they overlap."""

    conditions: Mapping[str, Any]
    dims: tuple[int, ...]
    providers: list[str]
    pieces: int
    against: str
    on_device: bool
    cells: list[Cell] = field(default_factory=list)

    def cell(self, row: str) -> Cell | None:
        """Of this row, if it was measured."""
        return next((cell for cell in self.cells if cell.row == row), None)

    @property
    def operations(self) -> float:
        """Of a complex transform, as they are usually counted: 5 N log2 N."""
        n = math.prod(self.dims)
        return 5.0 * n * math.log2(max(n, 2))


def overlapped(provider: str, pieces: int) -> str:
    """The side of a provider whose parts are transformed and sent in pieces."""
    return f"{provider} in {pieces} pieces"


def plain(name: str) -> str:
    """The side of an array's own library, of one rank."""
    return f"{name}.fft itself"


def make_array(
    ranks: Any, dims: Sequence[int], dtype: str, grid: Sequence[int] | None, gpu: Any, engine: str | None
) -> DistributedArray:
    """Random numbers, on the ranks' devices if `gpu` is one. Raises ParameterError for engines that are not installed."""
    if dtype not in CLOSE:
        raise ParameterError(f"transforms of {' and '.join(CLOSE)} are measured, not of {dtype}")
    if any(n < 1 for n in dims):
        raise ParameterError(f"dimensions are positive numbers, not {tuple(dims)}")
    grid = list(grid or [ranks.size])
    if len(grid) > len(dims):
        raise ParameterError(
            f"a grid of {len(grid)} numbers is for as many dimensions, there are {len(dims)}"
        )
    layout = layout_of(ranks, tuple(dims), axis=tuple(range(len(grid))), grid=tuple(grid))
    random = np.random.default_rng((1, ranks.rank))
    numbers = random.normal(size=layout.local_shape) + 1j * random.normal(size=layout.local_shape)
    local: Any = numbers.astype(dtype)
    if gpu is not None:
        library = _engine(engine)
        like = library.empty_on(gpu.ordinal, (1,), dtype)
        with library.where(like):
            local = library.from_host(local, like)
    elif engine not in (None, "numpy"):
        local = library_by_name(str(engine)).from_host(local, local)
    return DistributedArray.of(layout, local)


def _engine(name: str | None) -> Any:
    if name is not None:
        return library_by_name(name)
    for engine in ("cupy", "torch"):
        if LIBRARIES[engine].installed:
            return LIBRARIES[engine]
    raise ParameterError("arrays on devices are of CuPy or PyTorch; neither is installed")


def chosen(x: DistributedArray, names: Sequence[str]) -> list[str]:
    """Providers that are measured: those named, or all that there are for such an array. Raises ParameterError."""
    if names:
        return [provider_for(x.local, name).name for name in names]
    found = [name for name, row in PROVIDERS.items() if row.takes(x.local) and row.installed]
    return [name for name in found if name != "numpy"] or found


def measure(
    ranks: Any,
    x: DistributedArray,
    providers: Sequence[str],
    against: str = "",
    *,
    pieces: int = 4,
    rounds: int = 10,
    seconds: float = 1.0,
    progress: Callable[[Cell, Report], object] | None = None,
) -> Report:
    """Times all rows of an array. Collective. Raises ParameterError for unknown libraries, RankError where results are wrong."""
    dtype, dims = str(x.dtype).removeprefix("torch."), x.global_shape
    sides: dict[str, dict[str, Call]] = {}
    for name in providers:
        sides[name] = _ours(x, name)
        if pieces > 1 and ranks.size > 1:
            sides[overlapped(name, pieces)] = _whole(x, name, pieces)
    library = library_of(x.local)
    if ranks.size == 1:
        sides[plain(library.name)] = _plain(x)
    if against:
        sides[against] = _theirs(x, against)
    told = {**conditions(mpi_of(ranks), 1, rounds, dtype), "array": dims, "split": repr(x.layout)}
    told["plan"] = repr(Plan(x.layout, result="transposed"))
    if against:
        told[against] = getattr(importlib.import_module(against.replace("-", "_")), "__version__", "unknown")
    place = getattr(library, "xp", None)
    on_device = library.name == "cupy" or (library.name == "torch" and x.local.device.type != "cpu")
    if place is not None and library.name != "numpy":
        told[library.name] = getattr(place, "__version__", "unknown")
    report = Report(told, dims, list(providers), pieces, against, on_device)
    for row in ROWS:
        calls = {side: own[row] for side, own in sides.items() if row in own}
        if calls:
            report.cells.append(Cell(row, _timed(ranks, library, x.local, calls, rounds, seconds)))
            if progress is not None and ranks.rank == 0:
                progress(report.cells[-1], report)
    return report


def _empty(layout: Layout, x: DistributedArray) -> DistributedArray:
    return DistributedArray.of(layout, library_of(x.local).empty_beside(x.local, layout.local_shape))


def _whole(x: DistributedArray, provider: str, pieces: int = 1) -> dict[str, Call]:
    """Whole transforms; unitary, so that numbers stay of their size however often they are transformed."""
    found: dict[str, Call] = {}
    for result in (WHOLE, NATURAL):
        plan = Plan(x.layout, result=result, norm="ortho", provider=provider, pieces=pieces)
        y, z = _empty(plan.result_layout, x), _empty(x.layout, x)
        _check(x, plan.inverse(plan(x)), f"{provider}, {result}")
        found[result] = partial(plan, x, y)
        if result == WHOLE:
            found[BOTH_WAYS] = partial(_there_and_back, plan, x, y, z)
    return found


def _there_and_back(plan: Plan, x: DistributedArray, y: DistributedArray, z: DistributedArray) -> None:
    plan.inverse(plan(x, y), z)


def _ours(x: DistributedArray, provider: str) -> dict[str, Call]:
    """Whole transforms and their parts."""
    plan = Plan(x.layout, result=WHOLE, norm="ortho", provider=provider)
    library = library_of(x.local)
    local, parts = library.copy(x.local), []
    for step in plan.steps:  # what each is given, in memory of its own
        run = Run(
            provider_for(local, provider), library, Means(x.communicator.threads), "ortho", {}, None, False
        )
        run.last = True
        parts.append((step, local))
        local = step.forward(local, run)
    library.wait(x.local)
    found = _whole(x, provider)
    moves = [part for part in parts if isinstance(part[0], Move)]
    found[LOCAL] = _parts(x, provider, [part for part in parts if not isinstance(part[0], Move)])
    if moves:
        found[EXCHANGES] = _parts(x, provider, moves)
    return found


def _parts(x: DistributedArray, provider: str, parts: list[tuple[Step, Any]]) -> Call:
    library, kept = library_of(x.local), {}  # type: ignore[var-annotated]
    row, means = provider_for(x.local, provider), Means(x.communicator.threads)
    runs = [Run(row, library, means, "ortho", kept.setdefault(k, {}), None, True) for k in range(len(parts))]

    def call() -> None:
        for (step, local), run in zip(parts, runs, strict=True):
            run.owned = True  # transforms are in place, as they mostly are within a plan
            step.forward(local, run)

    return call


def _plain(x: DistributedArray) -> dict[str, Call]:
    """The array's own library without jali, all of it new memory as it wants."""
    library = library_of(x.local)
    named = {"norm": "ortho"}
    transform = importlib.import_module(f"{library.name}.fft").fftn
    return {NATURAL: lambda: transform(x.local, **named)}


def _theirs(x: DistributedArray, name: str) -> dict[str, Call]:
    """mpi4py-fft on the same shape, split likewise. Raises ParameterError."""
    if name not in OTHERS:
        raise ParameterError(f"--against {name}: libraries of distributed transforms are {', '.join(OTHERS)}")
    if library_of(x.local).name != "numpy":
        raise ParameterError(f"--against {name}: it transforms arrays of NumPy, not on devices")
    if x.communicator.transport != "mpi":
        raise ParameterError(f"--against {name}: it needs MPI ranks; say how many, like -n 2")
    try:
        from mpi4py import MPI
        from mpi4py_fft import PFFT, newDistArray
        from mpi4py_fft.pencil import Pencil, Subcomm
    except ImportError as error:
        raise ParameterError(f"--against {name}: it is not installed ({error}); {OTHERS[name]}") from None
    dims, dtype = x.global_shape, np.dtype(str(x.dtype))
    if len(dims) < 2:
        raise ParameterError(f"--against {name}: it splits arrays of 2 dimensions and more")
    fft = PFFT(MPI.COMM_WORLD, dims, dtype=dtype, grid=(-1,))
    u, v, w = newDistArray(fft, False), newDistArray(fft, True), newDistArray(fft, False)
    random = np.random.default_rng((1, MPI.COMM_WORLD.rank))
    u[:] = random.normal(size=u.shape) + 1j * random.normal(size=u.shape)
    fft.forward(u, v, normalize=True)
    fft.backward(v, w)
    if not np.allclose(u, w, atol=CLOSE[str(dtype)]):
        raise RankError(f"{name} does not give back what it transformed")
    cut = Subcomm(MPI.COMM_WORLD, [0, 1] + [1] * (len(dims) - 2))
    before = Pencil(cut, dims, axis=1)
    after = before.pencil(0)
    transfer = before.transfer(after, dtype)
    a, b = np.zeros(before.subshape, dtype), np.zeros(after.subshape, dtype)
    return {
        WHOLE: lambda: fft.forward(u, v, normalize=True),
        BOTH_WAYS: lambda: fft.backward(fft.forward(u, v, normalize=True), w),
        EXCHANGES: lambda: transfer.forward(a, b),
    }


def _check(x: DistributedArray, back: DistributedArray, what: str) -> None:
    """All ranks raise RankError if what came back is not what went in."""
    off = float((back - x).norm() / max(float(x.norm()), 1e-300))
    if not off < CLOSE[str(x.dtype).removeprefix("torch.")]:
        raise RankError(f"{what}: the inverse of the transform is off by {off:.1e} of the whole")


def _timed(
    ranks: Any, library: Any, x: Any, calls: Mapping[str, Call], rounds: int, seconds: float
) -> dict[str, Timing]:
    names = list(calls)

    def go(count: int) -> np.ndarray:
        times = np.zeros((len(names), count))
        for number in range(count):
            for side in range(len(names)) if number % 2 == 0 else reversed(range(len(names))):
                library.wait(x)
                ranks.all_reduce(np.zeros(1))
                start = time.perf_counter()
                with library.where(x):
                    calls[names[side]]()
                library.wait(x)
                times[side, number] = time.perf_counter() - start
        return np.asarray(ranks.all_reduce(times, op="max"))

    each = float(np.median(go(2), axis=1).sum())
    times = go(max(rounds, min(MOST_ROUNDS, int(seconds / each))))
    return {name: Timing([float(t) for t in row]) for name, row in zip(names, times, strict=True)}
