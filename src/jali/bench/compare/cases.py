"""The measured cases: the cases of `jali bench compare`, and the work that scripts of `benchmarks/` time by the same
text.

A case sets up its fields and gives a call. Both sides of a comparison run this file, each with its own jali, so cases keep to functions that
have long been public; what one side has under another name is chosen by `first_of`. A side that does not have one of them does not have
the case. With `--device` the same cases run on a device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import jali

BETA = 5.7


def first_of(*choices: str | Callable[[], Any]) -> Any:
    """What the first of these finds that this side has, for what has been renamed: `first_of("jali.gauge:sweep", "jali.gauge:update")`,
    or `first_of(lambda: jali.new, lambda: jali.old)`. Choose while a case is set up, not in its call, which is timed.

    Raises AttributeError where this side has none of them.
    """
    missing = []
    for choice in choices:
        try:
            return resolve_name(choice) if isinstance(choice, str) else choice()
        except (ImportError, AttributeError) as error:
            missing.append(str(error))
    raise AttributeError("none of these is there: " + "; ".join(missing))


@dataclass
class Work:
    """A call, how many units of work it does, and what all ranks do before and after a number of calls."""

    call: Callable[[], Any]
    per: float = 1
    unit: str = "us"
    together: Callable[[], object] = lambda: None
    own_clock: bool = False
    """The call returns its seconds."""


@dataclass(frozen=True)
class BenchCase:
    """A case: what it is, its set-up for a precision, how many ranks it needs, whether devices have it, and turns if few are enough."""

    about: str
    make: Callable[[str], Work]
    ranks: int = 1
    on_devices: bool = True
    turns: int | None = None


@jali.site_function
def copy(X, y, x):
    y[X] = x[X]


@jali.site_function
def axpy(X, y, x, a):
    y[X] += a * x[X]


@jali.site_function
def norm2(X, x, total):
    total += x[X].norm2()


@jali.site_function
def laplacian(X, out, f):
    total = -2.0 * X.ndim * f[X]
    for mu in X.directions():
        total += f[X + mu] + f[X - mu]
    out[X] = total


@jali.site_function
def plaquette(X, U, total):
    for mu, nu in X.planes():
        total += (U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()).trace().real


@jali.site_function
def neighbours(X, y, x):
    """Reads both neighbours in the last of four directions, which is the split one."""
    mu = X.directions()[3]
    y[X] = x[X + mu] + x[X - mu]


def links(size: int, precision: str, ranks: int = 1) -> tuple[jali.Lattice, Any]:
    """A lattice of `size` sites in each direction on each rank, split in the last, and hot SU(3) links on it."""
    from jali.gauge import SU, GaugeField

    lattice = jali.Lattice(size, size, size, size * ranks, grid=(1, 1, 1, ranks))
    return lattice, GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)


def waiting(lattice: Any) -> Callable[[], object]:
    """What makes calls on a lattice begin and end together: its device is done, and all of its ranks are there."""
    gpu = lattice.gpu

    def together() -> None:
        if gpu is not None:
            gpu.synchronize()
        if lattice.communicator.size > 1:
            lattice.communicator.barrier()

    return together


def full_update(size: int, precision: str, ranks: int = 1) -> Work:
    """The mean over 4 overrelaxation sweeps and 1 heat-bath sweep, thermalised."""
    from jali.gauge.updates import sweep

    lattice, U = links(size, precision, ranks)
    rng = jali.Random(1)
    for _ in range(10):
        sweep(U, BETA, rng, overrelaxation=1)
    return Work(lambda: sweep(U, BETA, rng), 5 * 4 * size**4, "ns/link", waiting(lattice))


def heat_bath(size: int, precision: str) -> Work:
    """A sweep of the heat bath, thermalised."""
    from jali.gauge.updates import heat_bath_sweep

    lattice, U = links(size, precision)
    rng = jali.Random(1)
    for _ in range(10):
        heat_bath_sweep(U, BETA, rng)
    return Work(lambda: heat_bath_sweep(U, BETA, rng), 4 * size**4, "ns/link", waiting(lattice))


def overrelaxation(size: int, precision: str) -> Work:
    """A sweep of overrelaxation."""
    from jali.gauge.updates import overrelaxation_sweep

    lattice, U = links(size, precision)
    return Work(lambda: overrelaxation_sweep(U), 4 * size**4, "ns/link", waiting(lattice))


def staple_sum(size: int, precision: str, ranks: int = 1) -> Work:
    """Staple sums in all directions; between ranks the halos of the links are exchanged each time."""
    from jali.gauge.staples import staple_sum as kernel

    lattice, U = links(size, precision, ranks)
    out = jali.Field(lattice, jali.Matrix(3), precision=precision)

    def call() -> None:
        if ranks > 1:
            for field in U.fields:
                field.storage.mark_written(3)
        for mu in lattice.directions:
            kernel(U, out, mu)

    return Work(call, 4 * size**4, "ns/link", waiting(lattice))


def plaquette_sum(size: int, precision: str) -> Work:
    """The sum of all plaquettes."""
    lattice, U = links(size, precision)
    return Work(lambda: lattice.sum(plaquette, U), size**4, "ns/site", waiting(lattice))


def wilson(size: int, precision: str) -> Work:
    """The Wilson operator."""
    from jali.fermions import WilsonDirac

    lattice, U = links(size, precision)
    psi, out = (jali.Field(lattice, jali.Spinor(3), precision=precision) for _ in range(2))
    psi.set_local(1.0 + psi.local())
    operator = WilsonDirac(U, mass=0.1)
    return Work(lambda: operator.apply(psi, out), size**4, "ns/site", waiting(lattice))


def flow(size: int, precision: str) -> Work:
    """A step of the gradient flow."""
    from jali.gauge import Flow

    lattice, U = links(size, precision)
    return Work(Flow(U).advance, 4 * size**4, "ns/link", waiting(lattice))


def matrices(size: int, precision: str, ranks: int = 1) -> tuple[Any, Any, Any]:
    """A lattice, and two fields of 3x3 matrices that hold numbers."""
    lattice = jali.Lattice(size, size, size, size * ranks, grid=(1, 1, 1, ranks))
    x, y = (jali.Field(lattice, jali.Matrix(3), precision=precision) for _ in range(2))
    x.set_local(1e-3 * (1 + x.local().real))
    return lattice, x, y


def plain(name: str, size: int, precision: str) -> Work:
    """`copy`, `axpy`, `norm` (reproducible) or `fast norm` of 3x3 matrices."""
    lattice, x, y = matrices(size, precision)
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: copy(y, x),
        "axpy": lambda: axpy(y, x, 0.5),
        "norm": lambda: lattice.sum(norm2, x),
        "fast norm": lambda: lattice.sum(norm2, x, fast=True),
    }
    return Work(calls[name], size**4, "ns/site", waiting(lattice))


def small_call(bound: bool, precision: str) -> Work:
    """A kernel on 4x4 numbers, which takes no time beside Python and launch."""
    lattice = jali.Lattice(4, 4)
    x, y = (jali.Field(lattice, jali.Real(), precision=precision) for _ in range(2))
    call = axpy.bind(y, x, 0.5) if bound else lambda: axpy(y, x, 0.5)
    return Work(call, unit="us", together=waiting(lattice))


def exchange(size: int, precision: str) -> Work:
    """A field of matrices is written, exchanged with the other rank and read at both neighbours."""
    lattice, x, y = matrices(size, precision, 2)

    def call() -> None:
        x.storage.mark_written(3)
        neighbours(y, x)

    return Work(call, unit="us", together=waiting(lattice))


def collective(name: str, nbytes: int, precision: str) -> Work:
    """A collective of two ranks on `nbytes` of float32; on a device where one is in use."""
    from jali import comm
    from jali.bench.cases import Case
    from jali.bench.collectives import JaliSide

    world = comm.current()
    gpu = jali.Lattice(2, 2).gpu
    if gpu is None:
        case: Any = Case(name, nbytes, world.rank, world.size)
        case.fill(0)
    else:
        from jali.bench.device_collectives import DeviceCase

        case = DeviceCase(name, nbytes, world.rank, world.size, gpu)

    def together() -> None:
        if gpu is not None:
            gpu.synchronize()
        world.barrier()

    return Work(JaliSide(world).prepare(case), unit="us", together=together)


PROBE = """
import sys, time
from importlib.machinery import PathFinder
class OnlyFrom:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "jali":
            return PathFinder.find_spec(name, path or [sys.argv[1]])
sys.meta_path.insert(0, OnlyFrom)
start = time.perf_counter()
import jali
imported = time.perf_counter() - start
if sys.argv[2] == "import":
    print(imported)
else:
    from jali.gauge import SU, GaugeField, heat_bath_sweep
    from jali.gauge.observables import plaquettes
    lattice = jali.Lattice(4, 4, 4, 4)
    U = GaugeField(lattice, SU(3)).cold_start()
    rng = jali.Random(1)
    start = time.perf_counter()
    plaquettes(U) if sys.argv[2] == "plaquette" else heat_bath_sweep(U, 6.0, rng)
    print(time.perf_counter() - start)
"""


def probe(what: str, cache: str | None = None) -> float:
    """Seconds in a fresh process of this jali: `import`, or the first call of the `plaquette` or `heat bath` kernel."""
    where = {} if cache is None else {"JALI_CACHE_DIR": cache}
    usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # else it times compiling
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(Path(jali.__file__).parents[1]), what],
        env={**usual, **where},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def importing(precision: str) -> Work:
    """`import jali`, NumPy included, in a fresh process."""
    return Work(lambda: probe("import"), unit="ms", own_clock=True)


def loading(what: str, warm: bool, precision: str) -> Work:
    """The first call of a kernel in a fresh process: compiled (cold), or found in the kernel cache (warm)."""
    kept = tempfile.TemporaryDirectory()

    def call() -> float:
        if warm:
            return probe(what, kept.name)
        with tempfile.TemporaryDirectory() as empty:
            return probe(what, empty)

    return Work(call, unit="ms", own_clock=True)


def _cases() -> dict[str, BenchCase]:
    cases = {
        "call": BenchCase("a kernel that does next to nothing", partial(small_call, False)),
        "bound call": BenchCase("the same, bound to its arguments before", partial(small_call, True)),
    }
    for size in (8, 16):
        cases |= {
            f"update {size}": BenchCase(
                "4 overrelaxation sweeps and 1 heat bath", partial(full_update, size)
            ),
            f"heat bath {size}": BenchCase("1 sweep", partial(heat_bath, size)),
            f"overrelaxation {size}": BenchCase("1 sweep", partial(overrelaxation, size)),
            f"staple {size}": BenchCase("staple sums in all directions", partial(staple_sum, size)),
            f"plaquette {size}": BenchCase("sum over all", partial(plaquette_sum, size)),
            f"wilson {size}": BenchCase("the Wilson operator", partial(wilson, size)),
            f"flow {size}": BenchCase("a step of the gradient flow", partial(flow, size)),
        }
    for name in ("copy", "axpy", "norm", "fast norm"):
        for size in (8, 24):
            cases[f"{name} {size}"] = BenchCase("3x3 matrices", partial(plain, name, size))
    cases |= {
        "halo 8": BenchCase("exchange of a field of matrices, 8^4 per rank", partial(exchange, 8), ranks=2),
        "halo 16": BenchCase("the same, 16^4 per rank", partial(exchange, 16), ranks=2),
        "staple halo 8": BenchCase(
            "staple sums and their halos, 8^4 per rank", partial(staple_sum, 8, ranks=2), ranks=2
        ),
        "update halo 8": BenchCase("a full update, 8^4 per rank", partial(full_update, 8, ranks=2), ranks=2),
    }
    for collective_name in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_to_all",
    ):
        for shown, nbytes in (("64 B", 64), ("64 KiB", 64 << 10), ("4 MiB", 4 << 20)):
            if collective_name == "all_reduce" or nbytes == 64 << 10:
                cases[f"{collective_name} {shown}"] = BenchCase(
                    "a collective of two ranks", partial(collective, collective_name, nbytes), ranks=2
                )
    cases["import"] = BenchCase("import jali, NumPy included", importing, on_devices=False)
    for what in ("plaquette", "heat bath"):
        cases[f"warm load {what}"] = BenchCase(
            "first call, kernel in the cache", partial(loading, what, True), on_devices=False
        )
        cases[f"cold load {what}"] = BenchCase(
            "first call, kernel compiled", partial(loading, what, False), on_devices=False, turns=1
        )
    return cases


CASES = _cases()


def chosen(patterns: list[str], device: str) -> list[str]:
    """The cases whose names fit one of the patterns (`*` and `?` as in a shell; none: all), in the order of the table."""
    usable = [name for name, case in CASES.items() if case.on_devices or device == "cpu"]
    return [name for name in usable if not patterns or any(fnmatchcase(name, p) for p in patterns)]


def set_up(name: str, precision: str, device: str) -> Work:
    """The work of a case."""
    jali.use_device(device)
    return CASES[name].make(precision)
