"""Fourier transforms of distributed arrays by every provider, beside their own parts and beside other libraries.

A side is a provider of local transforms (`jali.fft.providers`) or another library; a case is a whole transform, its exchanges,
or its local transforms without them. So a table has the time of a transform, of its parts, the gain by their overlap, and the
times of other libraries. On several CUDA devices of a host there is cuFFT in one process that has them all, too
(`fft_one_process`).

Sides are visited in turn, there and back; what a side needs is allocated when it is visited and released before the next one
is, so that memory is that of one of them; a case reports where a device has too little. Inverses are compared with the input
before anything is timed; a time is that of the slowest rank.
"""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jali.array_namespaces import NAMESPACES, bytes_of, namespace_by_name, namespace_of
from jali.arrays import DistributedArray, Layout, layout_of
from jali.bench.collectives import Timing, conditions
from jali.bench.device_collectives import mpi_of
from jali.bench.fft_one_process import CLOSE, MOST_ROUNDS, ONE_PROCESS, measure_one_process, no_room
from jali.bench.journal import Journal
from jali.comm.device_of_array import device_of, gpu_of
from jali.errors import ParameterError, RankError
from jali.fft import FftPlan, vendors
from jali.fft.providers import PROVIDERS, Resources, provider_for
from jali.fft.steps import Redistribute, Run

WHOLE, NATURAL = "transposed", "natural"
THERE_AND_BACK = "transposed, there and back"
LOCAL, EXCHANGES = "local transforms", "exchanges"
CASES = (WHOLE, THERE_AND_BACK, NATURAL, LOCAL, EXCHANGES)
UNSCALED = {WHOLE: "transposed, not scaled", NATURAL: "natural, not scaled"}  # as cuFFT does it
OTHERS = {"mpi4py-fft": "pip install mpi4py-fft pyfftw"}
VISITS = 2  # of a side, for one case
WORK = 3  # arrays of the size of a part in which a library of local transforms works, at most

Call = Callable[[], Any]


@dataclass
class Side:
    """How its calls are made, by case; whether to compare results first is the argument. `needs` bytes on a device meanwhile."""

    needs: int = 0
    makes: dict[str, Callable[[bool], Call]] = field(default_factory=dict)


@dataclass
class Cell:
    """Times of a case by side: seconds; and of sides without, why."""

    case: str
    timings: dict[str, Timing]
    missing: dict[str, str] = field(default_factory=dict)

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

    def cell(self, case: str) -> Cell | None:
        """Of this case, if it was measured."""
        return next((cell for cell in self.cells if cell.case == case), None)

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
        namespace = _engine(engine)
        like = namespace.empty_on(gpu.ordinal, (1,), dtype)
        with namespace.where(like):
            local = namespace.from_host(local, like)
    elif engine not in (None, "numpy"):
        local = namespace_by_name(str(engine)).from_host(local, local)
    return DistributedArray.of(layout, local)


def _engine(name: str | None) -> Any:
    if name is not None:
        return namespace_by_name(name)
    for engine in ("cupy", "torch"):
        if NAMESPACES[engine].installed:
            return NAMESPACES[engine]
    raise ParameterError("arrays on devices are of CuPy or PyTorch; neither is installed")


def chosen(x: DistributedArray, names: Sequence[str]) -> list[str]:
    """Providers that are measured: those named, or all that there are for such an array. Raises ParameterError."""
    if names:
        return [provider_for(x.local, name).name for name in names]
    found = [name for name, entry in PROVIDERS.items() if entry.takes(x.local) and entry.installed]
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
    journal: Journal | None = None,
) -> Report:
    """Times all cases of an array. Collective. Raises ParameterError for unknown libraries, RankError where results are wrong."""
    dtype, dims = str(x.dtype).removeprefix("torch."), x.global_shape
    device = device_of(x.local)
    spread = device is not None and device[0] == "cuda" and ranks.size > 1
    sides: dict[str, Side] = {}
    for name in providers:
        sides[name] = _ours(x, name, 1, spread)
        if pieces > 1 and ranks.size > 1:
            sides[overlapped(name, pieces)] = _ours(x, name, pieces, spread)
    namespace = namespace_of(x.local)
    if ranks.size == 1:
        sides[plain(namespace.name)] = Side((1 + WORK) * bytes_of(x.local), {NATURAL: partial(_plain, x)})
    if against:
        sides[against] = _theirs(x, against)
    facts = {**conditions(mpi_of(ranks), 1, rounds, dtype), "array": dims, "split": repr(x.layout)}
    facts["plan"] = repr(FftPlan(x.layout, result="transposed"))
    if against:
        facts[against] = getattr(importlib.import_module(against.replace("-", "_")), "__version__", "unknown")
    xp = getattr(namespace, "xp", None)
    if xp is not None and namespace.name != "numpy":
        facts[namespace.name] = getattr(xp, "__version__", "unknown")
    report = Report(facts, dims, list(providers), pieces, against, device is not None)

    journal = journal or Journal(ranks)

    def add(name: str, measured: Callable[[], list[Cell]]) -> None:
        def report_progress(cells: list[Cell]) -> None:
            for cell in cells:
                if progress is not None:
                    progress(cell, report)

        found = journal.case(name, measured, report_progress)
        report.cells += found or []

    def one_case(case: str) -> list[Cell]:
        return [_timed(ranks, x, case, sides, rounds, seconds)]

    def in_one_process() -> list[Cell]:
        cells = [_timed(ranks, x, case, sides, rounds, seconds) for case in UNSCALED.values()]
        found, why = measure_one_process(ranks, x, rounds, seconds)
        for cell, name in zip(cells, UNSCALED, strict=True):
            if why:
                cell.missing[ONE_PROCESS] = why
            else:
                cell.timings[ONE_PROCESS] = Timing(found[name])
        return cells

    for case in CASES:
        if any(case in side.makes for side in sides.values()):
            add(case, partial(one_case, case))
    if spread:
        add(ONE_PROCESS, in_one_process)
    return report


def _empty(layout: Layout, x: DistributedArray) -> DistributedArray:
    return DistributedArray.of(layout, namespace_of(x.local).empty_beside(x.local, layout.local_shape))


def _ours(x: DistributedArray, provider: str, pieces: int, unscaled: bool) -> Side:
    """Whole transforms, and in one piece their parts. They are unitary, so that numbers stay of their size however often they are
    transformed."""
    side = Side(_needs(x))
    for result in (WHOLE, NATURAL):
        whole = partial(_whole, x, provider, pieces, result)
        side.makes[result] = whole
        if unscaled:
            side.makes[UNSCALED[result]] = partial(whole, norm="backward")
    side.makes[THERE_AND_BACK] = partial(_whole, x, provider, pieces, WHOLE, back=True)
    if pieces == 1:
        side.makes[LOCAL] = partial(_parts, x, provider, False)
        if any(isinstance(step, Redistribute) for step in FftPlan(x.layout, result=WHOLE).steps):
            side.makes[EXCHANGES] = partial(_parts, x, provider, True)
    return side


def _needs(x: DistributedArray) -> int:
    """Bytes beside x that no case exceeds: results, what is between the steps, buffers of exchanges both ways, what jali keeps for them,
    and work areas."""
    plan = FftPlan(x.layout, result=NATURAL)
    redistributions = [step for step in plan.steps if isinstance(step, Redistribute)]
    shapes = [x.layout.local_shape, *(step.after.local_shape for step in redistributions)]
    arrays = len(plan.steps) + 3 + 5 * len(redistributions) + WORK
    return arrays * max(math.prod(shape) for shape in shapes) * int(x.dtype.itemsize)


def _whole(
    x: DistributedArray,
    provider: str,
    pieces: int,
    result: str,
    compare: bool,
    *,
    norm: str = "ortho",
    back: bool = False,
) -> Call:
    plan = FftPlan(x.layout, result=result, norm=norm, provider=provider, pieces=pieces)
    y = _empty(plan.result_layout, x)
    if compare:
        _check(x, plan.inverse(plan(x, y)), f"{provider}, {result}")
    if not back:
        return partial(plan, x, y)
    z = _empty(x.layout, x)
    return lambda: plan.inverse(plan(x, y), z)


def _parts(x: DistributedArray, provider: str, redistributions: bool, compare: bool) -> Call:
    """Only the exchanges of a transform, or only what is between them, each step on memory of its own."""
    namespace, resources = namespace_of(x.local), Resources(x.communicator.threads)
    entry, parts = provider_for(x.local, provider), []
    local = namespace.copy(x.local)
    for step in FftPlan(x.layout, result=WHOLE, norm="ortho", provider=provider).steps:
        run = Run(entry, namespace, resources, "ortho", {}, None, False)
        run.last = True
        if isinstance(step, Redistribute) == redistributions:
            parts.append((step, local))
        local = step.forward(local, run)
    namespace.wait(x.local)
    kept: list[dict[Any, Any]] = [{} for _ in parts]
    runs = [Run(entry, namespace, resources, "ortho", own, None, True) for own in kept]

    def call() -> None:
        for (step, data), run in zip(parts, runs, strict=True):
            run.owned = True  # transforms are in place, as they mostly are within a plan
            step.forward(data, run)

    return call


def _plain(x: DistributedArray, compare: bool) -> Call:
    """The array's own library without jali, all of it new memory as it wants."""
    transform = importlib.import_module(f"{namespace_of(x.local).name}.fft").fftn
    named = {"norm": "ortho"}
    return lambda: transform(x.local, **named)


def _theirs(x: DistributedArray, name: str) -> Side:
    """mpi4py-fft on the same shape, split likewise. Raises ParameterError."""
    if name not in OTHERS:
        raise ParameterError(f"--against {name}: libraries of distributed transforms are {', '.join(OTHERS)}")
    if namespace_of(x.local).name != "numpy":
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
    # Written: what is read of a new array of zeros is one page, which stays in caches.
    a, b = np.ones(before.subshape, dtype), np.zeros(after.subshape, dtype)
    calls: dict[str, Call] = {
        WHOLE: lambda: fft.forward(u, v, normalize=True),
        THERE_AND_BACK: lambda: fft.backward(fft.forward(u, v, normalize=True), w),
        EXCHANGES: lambda: transfer.forward(a, b),
    }
    return Side(0, {case: lambda compare, call=call: call for case, call in calls.items()})  # type: ignore[misc]


def _check(x: DistributedArray, back: DistributedArray, what: str) -> None:
    """All ranks raise RankError if the inverse does not reproduce the input."""
    off = float((back - x).norm() / max(float(x.norm()), 1e-300))
    if not off < CLOSE[str(x.dtype).removeprefix("torch.")]:
        raise RankError(f"{what}: the inverse of the transform is off by {off:.1e} of the whole")


def _timed(
    ranks: Any, x: DistributedArray, case: str, sides: Mapping[str, Side], rounds: int, seconds: float
) -> Cell:
    """Of all sides that have this case."""
    namespace = namespace_of(x.local)
    names = [name for name, side in sides.items() if case in side.makes]
    times: dict[str, list[float]] = {name: [] for name in names}
    cell = Cell(case, {})

    def go(call: Call, count: int) -> list[float]:
        found = np.zeros(count)
        for number in range(count):
            namespace.wait(x.local)
            ranks.all_reduce(np.zeros(1))
            start = time.perf_counter()
            with namespace.where(x.local):
                call()
            namespace.wait(x.local)
            found[number] = time.perf_counter() - start
        return [float(t) for t in ranks.all_reduce(found, op="max")]

    for visit in range(VISITS):
        for name in names if visit % 2 == 0 else reversed(names):
            if name not in cell.missing and (why := _no_room(ranks, x, sides[name].needs)):
                cell.missing[name] = why
            if name in cell.missing:
                continue
            call = sides[name].makes[case](visit == 0)
            each = float(np.median(go(call, 2)))
            count = max(rounds, min(MOST_ROUNDS, int(seconds / len(names) / each)))
            times[name] += go(call, -(-count // VISITS))
            del call
            _free(x)
    cell.timings.update({name: Timing(times[name]) for name in names if name not in cell.missing})
    return cell


def _no_room(ranks: Any, x: DistributedArray, needs: int) -> str:
    """Why so much more does not go onto the ranks' devices; empty if it does, or if x is on the host. Collective."""
    if device_of(x.local) is None:
        return ""
    needed, free = ranks.all_reduce(np.array([needs, -gpu_of(x.local).free_memory], float), op="max")
    return no_room(needed, -free)


def _free(x: DistributedArray) -> None:
    """Frees unused memory, for other libraries."""
    gc.collect()
    for name in PROVIDERS:
        if name in vendors.FFT_LIBRARIES and PROVIDERS[name].takes(x.local) and not vendors.why_not(name):
            vendors.find(name).forget()
    namespace_of(x.local).trim(x.local)
    if device_of(x.local) is not None:
        gpu_of(x.local).trim()
