"""Halo exchange of a site function with neighbours: what every policy costs on these ranks, part by part.

A kernel is called again and again, the fields that it reads at neighbours marked as written before each call, so that
every call exchanges. A batch of calls begins with a barrier and, on a device, ends with the only wait of the host for it. Its time
is that of the slowest rank. Measured for each policy: the whole (kernel with exchange), the exchange alone (no site is
computed), the kernel alone (its halos are valid), the whole with one part left out (`halo_off` of `jali.tune.experiment`), and on devices the
first three recorded in a graph, where the policy can be.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import jali
from jali import _core, settings
from jali.amounts import counted
from jali.bench.collectives import Timing
from jali.bench.journal import Journal
from jali.bench.operators import FORMATS, OPERATORS, links_of, operator_case
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.errors import DeviceError, ParameterError
from jali.fermions.wilson import wilson_at
from jali.gauge import SU, GaugeField
from jali.gauge.staples import staple_sum
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice

if TYPE_CHECKING:
    from jali.lattice.bound_call import Call

PARTS = ("pack", "transport", "bulk", "boundary")  # that can be left out


# --- kernels ------------------------------------------------------------------------------------------------


@jali.site_function
def plaquette_field(X: Any, U: Any, out: Any) -> None:
    """The sum of Re tr of the plaquettes that begin at a site."""
    total = None
    for mu, nu in X.planes():
        P = (U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()).trace().real
        total = P if total is None else total + P
    out[X] = total


@jali.site_function
def wilson_hop(X: Any, out: Any, psi: Any, U: Any, mass: Any) -> None:
    """The Wilson operator."""
    out[X] = wilson_at(X, psi, U, mass)


@jali.site_function
def laplace(X: Any, out: Any, x: Any) -> None:
    """The discrete Laplacian."""
    total = -2.0 * X.ndim * x[X]
    for mu in X.directions():
        total = total + x[X + mu] + x[X - mu]
    out[X] = total


@dataclass
class Case:
    """A kernel on a lattice: `bind` makes its call under the settings of now, `changing` are the fields whose halos it needs each time,
    `fixed` those that it reads and whose halos stay."""

    name: str
    lattice: Lattice
    precision: str
    changing: Sequence[Field]
    bind: Callable[[], Call]
    out: Field
    fixed: Sequence[Field] = ()

    def mark(self) -> None:
        """From now on the halos of the changing fields are stale, as if a kernel had written them."""
        for changed in self.changing:
            changed.storage.mark_written(3)


def _staple(lattice: Lattice, precision: str) -> Case:
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    out = lattice.field(jali.Matrix(3), precision=precision)
    mu = lattice.directions[0]
    return Case("staple", lattice, precision, U.fields, lambda: staple_sum.bind(U, out, mu), out)


def _plaquette(lattice: Lattice, precision: str) -> Case:
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    out = lattice.field(jali.Real(), precision=precision)
    return Case("plaquette", lattice, precision, U.fields, lambda: plaquette_field.bind(U, out), out)


def _wilson(lattice: Lattice, precision: str) -> Case:
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    psi, out = (lattice.field(jali.Spinor(3), precision=precision) for _ in range(2))
    shape = psi.local().shape
    psi.set_local(np.random.default_rng(lattice.rank).normal(size=(*shape, 2)).view(complex)[..., 0])
    return Case(
        "wilson", lattice, precision, [psi], lambda: wilson_hop.bind(out, psi, U.fields, 0.1), out, U.fields
    )


def _laplace(lattice: Lattice, precision: str) -> Case:
    x, out = (lattice.field(jali.Real(), precision=precision) for _ in range(2))
    x.set_local(np.random.default_rng(lattice.rank).normal(size=x.local().shape))
    return Case("laplace", lattice, precision, [x], lambda: laplace.bind(out, x), out)


KERNELS: dict[str, Callable[[Lattice, str], Case]] = {
    "staple": _staple,
    "plaquette": _plaquette,
    "wilson": _wilson,
    "laplace": _laplace,
}


def _operator(name: str, lattice: Lattice, format: str) -> Case:
    """From even to odd sites, as even-odd forms hop."""
    case = operator_case(name, *links_of(lattice, format), format)
    return Case(
        f"{name} in {format}",
        lattice,
        FORMATS[format].precision,
        [case.even],
        lambda: case.kernel.bind(*case.arguments(case.odd, case.even)),
        case.odd,
        case.links,
    )


def make_case(
    kernel: str,
    local: Sequence[int],
    grid: Sequence[int],
    device: str,
    precision: str = "float64",
    wire: str = "",
) -> Case:
    """A kernel by name on a lattice of these local extents, or a Dirac operator of `jali.bench.operators`, for which `precision` may also be
    another of its formats. `wire`: the format of halo items, as `Lattice(halo_wire=)` takes it. Collective.

    Raises ParameterError: no such kernel, too few dimensions for it, a grid that splits nothing or does not fit the ranks.
    """
    ranks = jali.comm.current()
    if kernel not in KERNELS and kernel not in OPERATORS:
        raise ParameterError(
            f"no kernel {kernel!r} is measured here; there are {', '.join((*KERNELS, *OPERATORS))}"
        )
    if kernel in KERNELS and precision not in IEEE_PRECISIONS:
        raise ParameterError(f"{precision} is a format of operators, and {kernel!r} is none")
    if kernel in OPERATORS and len(local) != 4:
        raise ParameterError(f"the operator {kernel!r} is measured in 4 directions, not in {len(local)}")
    if len(local) != len(grid):
        raise ParameterError(
            f"local extents {tuple(local)} and grid {tuple(grid)} have different numbers of directions"
        )
    if kernel in ("staple", "plaquette", "wilson") and not (2 <= len(local) <= 4):
        raise ParameterError(f"the kernel {kernel!r} needs 2 to 4 directions, not {len(local)}")
    if int(np.prod(grid)) != ranks.size:
        raise ParameterError(
            f"the grid {tuple(grid)} is for {counted(int(np.prod(grid)), 'rank')}, {ranks.size} run"
        )
    if ranks.size == 1:
        raise ParameterError("one rank has no halos to exchange; start some, like -n 2")
    extents = [n * g for n, g in zip(local, grid, strict=True)]
    lattice = Lattice(extents, grid=grid, device=device, halo_wire=wire)
    if kernel in OPERATORS:
        return _operator(kernel, lattice, precision)
    return KERNELS[kernel](lattice, precision)


# --- time ---------------------------------------------------------------------------------------------------


class Clock:
    """Times work that all ranks do together; `gpu` is None on the host."""

    def __init__(self, ranks: Any, gpu: Any) -> None:
        self.ranks, self.gpu = ranks, gpu

    def time(self, work: Callable[[], Any], batches: int = 10, seconds: float = 0.02) -> Timing:
        """Seconds per call of `work`: as many batches, of about so many seconds each, the slowest rank of each."""
        self.batch(work, 1)
        once = self.slowest([self.batch(work, 2) / 2])[0]
        repeats = max(1, min(10_000, round(seconds / max(once, 1e-9))))
        if repeats > 20:  # what was measured were first calls
            once = self.slowest([self.batch(work, 10) / 10])[0]
            repeats = max(1, min(10_000, round(seconds / max(once, 1e-9))))
        return Timing(self.slowest([self.batch(work, repeats) / repeats for _ in range(batches)]))

    def batch(self, work: Callable[[], Any], repeats: int) -> float:
        """Seconds on this rank for `repeats` calls, between a barrier and the end of their work."""
        if self.gpu is not None:
            self.gpu.synchronize()
        self.ranks.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        if self.gpu is not None:
            self.gpu.synchronize()  # which listens to other ranks, unlike the driver's own waits
        return time.perf_counter() - start

    def slowest(self, values: Sequence[float]) -> list[float]:
        """Element by element the largest of all ranks, the same on each."""
        gathered = self.ranks.gather_bytes(np.asarray(values, float).tobytes())
        return [float(x) for x in np.max([np.frombuffer(one, float) for one in gathered], axis=0)]


class Choices:
    """Settings that all ranks change together, virtual ones too; `restore` at the end."""

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self._before = settings.current()
        ranks.barrier()

    def set(self, policy: str, off: str = "") -> None:
        """Kernels that are bound from now on use `policy`, exchanges leave out `off`."""
        self.ranks.barrier()
        settings.use(halo_policy=policy, halo_off=off)
        self.ranks.barrier()

    def restore(self) -> None:
        """As it was."""
        _core.replace_settings(self._before)


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass
class Measurement:
    """One policy. Times by name: whole, exchange, compute, `no <part>`, and `graph ...` of the first three.

    `sent` are bytes per exchange of the rank that sends most. `why_not` is why the policy cannot work here,
    `why_no_graph` why it cannot be recorded.
    """

    policy: str
    description: str
    why_not: str = ""
    why_no_graph: str = ""
    sent: int = 0
    messages: int = 0
    times: dict[str, Timing] = field(default_factory=dict)

    def median(self, name: str) -> float:
        """Median seconds; not a number where it was not measured."""
        return self.times[name].median if name in self.times else float("nan")

    @property
    def rate(self) -> float:
        """Bytes per second that a rank sends in an exchange alone."""
        return self.sent / self.median("exchange")

    def hidden(self, kind: str = "") -> float:
        """Fraction of the exchange's time that the whole does not show; kind "graph " for the recorded one."""
        shown = self.median(kind + "whole") - self.median(kind + "compute")
        return 1 - shown / self.median(kind + "exchange")

    def cost(self, part: str) -> float:
        """Seconds by which the whole gets shorter when this part is left out."""
        return self.median("whole") - self.median(f"no {part}")


@dataclass
class Report:
    """All measurements, and under what conditions they were measured."""

    conditions: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)

    def measurement(self, policy: str) -> Measurement | None:
        """Of a policy, if it was measured."""
        return next((r for r in self.measurements if r.policy == policy and r.times), None)


def policies(device: str, only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Names and descriptions of the policies for a kind of device, all or the requested ones. Raises ParameterError
    for unknown names."""
    known = [(name, description) for name, description, *_ in _core.halo_policies(device)]
    unknown = sorted(set(only) - {name for name, _ in known})
    if unknown:
        raise ParameterError(
            f"no halo policy {', '.join(unknown)} {'on the host' if device == 'cpu' else 'between devices'}; "
            f"there are {', '.join(name for name, _ in known)}"
        )
    return [one for one in known if not only or one[0] in only]


def measure(
    case: Case,
    only: Sequence[str] = (),
    rounds: int = 10,
    seconds: float = 0.02,
    parts: Sequence[str] = PARTS,
    graphs: bool = True,
    progress: Callable[[Measurement], None] | None = None,
    journal: Journal | None = None,
) -> Report:
    """Every policy (or `only` these) that works here; the others are listed with the reason. Collective."""
    ranks, lattice = case.lattice.communicator, case.lattice
    clock = Clock(ranks, lattice.gpu)
    choices = Choices(ranks)
    report = Report(conditions(case, rounds, seconds))
    layout = lattice.layout(case.precision)
    journal = journal or Journal(ranks)

    def measured(name: str, description: str) -> Measurement:
        measurement = Measurement(name, description, layout.why_not_halo_policy(ranks.core, name))
        if not measurement.why_not:
            _measure_policy(case, measurement, clock, choices, rounds, seconds, parts, graphs)
        return measurement

    try:
        for name, description in policies(lattice.gpu.kind if lattice.gpu is not None else "cpu", only):
            found = journal.case(name, functools.partial(measured, name, description), progress)
            if found is not None:
                report.measurements.append(found)
    finally:
        choices.restore()
    return report


def _measure_policy(
    case: Case,
    measurement: Measurement,
    clock: Clock,
    choices: Choices,
    rounds: int,
    seconds: float,
    parts: Sequence[str],
    graphs: bool,
) -> None:
    gpu = clock.gpu
    choices.set(measurement.policy)
    run = case.bind()

    def whole() -> None:
        case.mark()
        run()

    layout = case.lattice.layout(case.precision)
    whole()
    before = layout.halo_counters
    whole()
    after = layout.halo_counters
    measurement.sent, measurement.messages = (
        int(n) for n in clock.slowest([after[k] - before[k] for k in ("bytes", "messages")])
    )

    def timed(name: str, work: Callable[[], Any], off: str = "", calls: int = 1) -> None:
        choices.set(measurement.policy, off)
        timing = clock.time(work, rounds, seconds)
        measurement.times[name] = Timing([s / calls for s in timing.seconds])

    timed("whole", whole)
    timed("compute", run)
    timed("exchange", whole, "bulk,boundary")
    for part in parts:
        if _is_there(part, measurement.policy, gpu):
            timed(f"no {part}", whole, part)
    if gpu is None or not graphs:
        return
    for name, work, off in (
        ("whole", whole, ""),
        ("compute", run, ""),
        ("exchange", whole, "bulk,boundary"),
    ):
        choices.set(measurement.policy, off)
        calls = 4

        def several(work: Callable[[], Any] = work, calls: int = calls) -> None:
            for _ in range(calls):
                work()

        several()
        gpu.synchronize()
        try:
            graph = _core.GpuGraph(gpu, several)
            graph.make_ready()
        except DeviceError as error:  # decided by the policy, so on all ranks alike
            measurement.why_no_graph = str(error)
            break
        timed("graph " + name, functools.partial(gpu.launch_graph, graph), off, calls)
        gpu.synchronize()
        del graph
    choices.set(measurement.policy)


def _is_there(part: str, policy: str, gpu: Any) -> bool:
    """Whether a policy has this part as something of its own."""
    if part == "bulk":
        policies = _core.halo_policies("cpu" if gpu is None else gpu.kind)
        return any(overlap for name, _, _, _, overlap, *_ in policies if name == policy)
    return part != "pack" or gpu is not None  # on the host packing is a part of the transport


def conditions(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """What a reader needs to judge the numbers. Collective."""
    lattice, ranks = case.lattice, case.lattice.communicator
    hosts = ranks.gather_bytes(platform.node().encode())
    gpu = lattice.gpu
    names = sorted({one.decode() for one in ranks.gather_bytes((gpu.name if gpu else "host").encode())})
    chosen = settings.of_others("NCCL_", "RCCL_", "UCX_", "OMPI_MCA_opal")
    chosen |= {
        k: v for k, v in settings.current().differing() if k not in ("JALI_CACHE_DIR", "JALI_EXPECTED_RANKS")
    }
    return {
        "kernel": case.name,
        "local": "x".join(map(str, lattice.local_extents)),
        "grid": "x".join(map(str, lattice.grid)),
        "precision": case.precision,
        "device": ", ".join(names),
        "ranks": ranks.size,
        "hosts": len(set(hosts)),
        "transport": ranks.transport,
        "jali": jali.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "batches": rounds,
        "seconds_per_batch": seconds,
        "settings": chosen or "all defaults",
    }
