"""What compilers say of a kernel's reads and writes is true: the rest of memory is poisoned, and no bit of a result changes.

Everything that is proved of launches (test_checked_launches.py) believes these footprints. A launch runs twice from the same bytes, the
second time with NaNs wherever it declares no read: sites, ghosts, and what lies between and behind them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_ccl, use_fake_gpus

import jali
from jali import _core
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField, heat_bath_sweep, overrelaxation_sweep
from jali.lattice import binding
from jali.tune import experiment

pytestmark = pytest.mark.skipif(REAL, reason="memory of real devices is not poisoned from here")
EXTENTS = (4, 4, 4, 8)
POISON = 0xFF  # every format of reals reads a NaN, whole numbers a -1


class Made(threading.local):
    """The launches that a thread, which may be a virtual rank, has made, and the arguments of each."""

    def __init__(self) -> None:
        self.launches: list[tuple[_core.Launch, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def made(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path
) -> Iterator[Made]:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)
    made, launch = Made(), _core.Launch

    def make(**named: Any) -> _core.Launch:
        made.launches.append((launch(**named), named))
        return made.launches[-1][0]

    monkeypatch.setattr(binding._core, "Launch", make)
    return made


class Region:
    """The memory of a field on this rank: owned sites, ghosts, and what is neither. Of ghosts that senders compute: these alone."""

    def __init__(self, storage: Any, shift: int) -> None:
        """`shift`: the field's sites are moved so far first, so that results are not there already."""
        self.storage, self.shift = storage, shift
        self.of_items = storage.label.startswith("halo item")
        self.sites = np.empty(0, np.int64) if self.of_items else self._sites()

    def _sites(self) -> np.ndarray:
        """The number in the rank's box of the site that each byte is of; -1: of none."""
        storage = self.storage
        kept = storage.export_box()
        numbers = np.arange(kept.size // storage.site_bytes)
        assert len(numbers) <= 1 << 16

        def seen(of_sites: np.ndarray) -> np.ndarray:
            """The memory where every byte of a site is this."""
            self.memory[:] = 0
            storage.import_box(np.repeat(of_sites.astype(np.uint8), storage.site_bytes).reshape(kept.shape))
            storage.export_box()  # waits
            return self.memory.astype(np.int64)

        sites = seen(numbers & 255) | seen(numbers >> 8) << 8
        sites[seen(np.full_like(numbers, 255)) == 0] = -1
        assert np.array_equal(np.bincount(sites[sites >= 0]), np.full(len(numbers), storage.site_bytes))
        storage.import_box(np.roll(kept, self.shift, axis=0))
        return sites

    @property
    def address(self) -> int:
        before = self.storage.layout.first_ghost * self.storage.site_bytes if self.of_items else 0
        return int(self.storage.address) + int(before)

    @property
    def memory(self) -> np.ndarray:
        return np.frombuffer((ctypes.c_uint8 * self.storage.nbytes).from_address(self.address), np.uint8)

    def of_sites(self, numbers: Any) -> np.ndarray:
        """Which bytes are those of sites."""
        found = np.zeros(self.storage.nbytes, bool)
        found[: len(self.sites)] = np.isin(self.sites, numbers)
        return found

    def of_ghosts(self, ghosts: list[tuple[int, int]]) -> np.ndarray:
        """Which bytes are among these."""
        found = np.zeros(self.storage.nbytes, bool)
        for address, count in ghosts:
            if 0 <= address - self.address < len(found):
                found[address - self.address :][:count] = True
        return found


def surface(lattice: jali.Lattice) -> np.ndarray:
    """Sites of this rank's box that may be packed for others."""
    near = np.zeros(lattice.local_extents, bool)
    for axis, parts in enumerate(lattice.grid):
        if parts > 1:
            there = np.moveaxis(near, axis, 0)
            there[:2] = there[-2:] = True
    return np.flatnonzero(near.ravel(order="F"))


def undeclared(lattice: jali.Lattice, launch: _core.Launch, named: dict[str, Any], stale: bool) -> list[str]:
    """What a run does that its declaration does not say; `stale`: its halos are exchanged in it. Collective."""
    storages = [s for _, s in named["patches"]]
    storages += [s for s, *_ in (*named["reads"], *named["writes"], *named["indirect"])]
    regions = [Region(storage, k) for k, storage in enumerate({id(s): s for s in storages}.values())]

    def meet() -> None:
        lattice.gpu.synchronize()
        lattice.communicator.barrier()

    def run() -> tuple[bytes, list[np.ndarray]]:
        for region in regions:
            if stale and not region.of_items:
                region.storage.mark_written(3)
        meet()
        sums = launch.run()
        meet()
        return np.asarray(sums).tobytes(), [region.memory.copy() for region in regions]

    first = [region.memory[: len(region.sites)].copy() for region in regions]
    run()  # makes room for ghosts, and fills them
    assert stale or not launch.halos_stale
    for region, owned in zip(regions, first, strict=True):
        region.memory[: len(owned)] = np.where(region.sites < 0, region.memory[: len(owned)], owned)
    sites, ghosts = launch.footprint()
    starts, reads, writes = [], [], []
    for region in regions:
        read, written = (region.of_sites(s) for s in sites.get(region.storage.address, ([], [])))
        came = region.of_ghosts(ghosts)
        starts.append(region.memory.copy())
        reads.append(read | region.of_sites(surface(lattice)) if stale else read | came)
        writes.append(written | came if stale else written)
    sums, after = run()
    for region, start, read in zip(regions, starts, reads, strict=True):
        region.memory[:] = np.where(read, start, POISON)
    sums_of_poison, after_poison = run()
    found = [] if sums == sums_of_poison else ["sums depend on more than is read"]
    for region, start, read, written, one, other in zip(
        regions, starts, reads, writes, after, after_poison, strict=True
    ):
        if np.any((one != other) & written):
            found.append(f"{region.storage.label} depends on more than is read")
        if np.any((one != start) & ~written) or np.any((other != np.where(read, start, POISON)) & ~written):
            found.append(f"{region.storage.label} is written where nothing says so")
        region.memory[:] = start
    meet()
    return found


@jali.site_function
def diagonal(X, out, x):
    nu, rho, sigma = X.directions()[1:]
    out[X] = x[X + sigma - rho] - 2 * x[X - sigma + nu] + x[X + 2 * sigma]


@jali.site_function
def next_site(X, out, x):
    out[X] = x[X] - 3 * x[X + X.directions()[3]]


@jali.site_function
def slices(X, x, total, squares):
    total += x[X + X.directions()[3]].real
    squares += x[X].norm2()


@jali.site_function
def on_two_lattices(X, y, x, coarse):
    rho, sigma = X.directions()[2:]
    y[X] = x[X + sigma] - x[X - sigma] + coarse[X.on(coarse) + rho]


def filled(lattice: jali.Lattice, element: Any, **options: Any) -> jali.Field:
    field = jali.Field(lattice, element, **options)
    shape = (*lattice.local_extents, *element.numpy_shape)
    return field.set_local(np.random.default_rng(lattice.communicator.rank).normal(size=shape))


def stencils(lattice: jali.Lattice) -> None:
    x = filled(lattice, jali.Complex())
    for domain in (jali.ALL, jali.EVEN, jali.Colouring(3, lambda c: (c[0] + c[1]) % 3)[1]):
        diagonal[domain](x.like(), x)
        next_site[domain](x.like(), x)


def narrow_formats(lattice: jali.Lattice) -> None:
    for options in ({"precision": "float32"}, {"precision": "float32", "storage": "float16"}):
        x = filled(lattice, jali.Vector(3), **options)
        next_site[jali.ODD](x.like(), x)


def checkerboard(lattice: jali.Lattice) -> None:
    U = GaugeField(lattice, SU(3)).hot_start(seed=5)
    overrelaxation_sweep(U)
    heat_bath_sweep(U, 5.7, jali.Random(3))


def wilson(lattice: jali.Lattice) -> None:
    dirac = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=5), mass=0.1)
    dirac.apply(filled(lattice, jali.Spinor(3)))


def sums(lattice: jali.Lattice) -> None:
    x = filled(lattice, jali.Complex())
    for per in (None, lattice.directions[3], lattice.directions[1]):
        lattice.sum(slices, x, per=per)
        lattice.sum(slices, x, per=per, over=jali.EVEN)


def two_lattices(lattice: jali.Lattice) -> None:
    coarse = jali.Lattice(4, 2, 4, 4, grid=lattice.grid, device="cuda")
    x = filled(lattice, jali.Real())
    on_two_lattices(x.like(), x, filled(coarse, jali.Real()))


def found_by(
    made: Made, program: Callable[[jali.Lattice], None], grid: tuple[int, ...], stale: bool = False
) -> tuple[int, list[str]]:
    """The launches of a program, and what is wrong with them."""
    lattice = jali.Lattice(*EXTENTS, grid=grid, device="cuda")
    made.launches.clear()
    program(lattice)
    launches = list(made.launches)
    return len(launches), [
        f"{named['name']}: {what}"
        for launch, named in launches
        for what in undeclared(lattice, launch, named, stale)
    ]


GRIDS = [(1, 1, 1, 1), (1, 1, 1, 2)]


@pytest.mark.short(2)
@pytest.mark.parametrize("grid", GRIDS, ids=["alone", "two ranks"])
@pytest.mark.parametrize("program", [stencils, narrow_formats, checkerboard, wilson, sums, two_lattices])
def test_nothing_is_touched_but_what_is_declared(program, grid, made):
    for launches, found in jali.virtual_ranks(int(np.prod(grid)), found_by, made, program, grid):
        assert launches > 0
        assert found == []


@pytest.mark.parametrize("launch", ["64,1,2", "64,1,2,2"])
def test_threads_with_several_sites_touch_no_more(launch, made):
    with experiment(launch=launch):
        for program in (stencils, narrow_formats, sums):
            assert found_by(made, program, GRIDS[0])[1] == []


@pytest.mark.parametrize(
    "policy", ["remote-write-one-launch", "remote-write-pack-in-bulk", "copy-engine-overlap"]
)
@pytest.mark.parametrize("program", [stencils, wilson])
def test_launches_that_exchange_touch_no_more(program, policy, made, use_settings):
    """Ghosts hold NaNs until they arrive, as do sites that are neither read here nor near enough to be sent."""
    use_settings(halo_policy=policy)
    for launches, found in jali.virtual_ranks(2, found_by, made, program, GRIDS[1], True):
        assert launches > 0
        assert found == []


def next_of_even(lattice: jali.Lattice) -> None:
    x = filled(lattice, jali.Complex())
    next_site[jali.EVEN](x.like(), x)


@pytest.mark.unproved("what is declared of these kernels is wrong on purpose")
@pytest.mark.parametrize("grid", GRIDS, ids=["alone", "two ranks"])
@pytest.mark.parametrize(
    ("left_out", "said"),
    [("reads", "depends on more than is read"), ("writes", "is written where nothing says so")],
)
def test_what_a_declaration_leaves_out_is_found(left_out, said, grid, made, monkeypatch):
    make = binding._core.Launch
    monkeypatch.setattr(
        binding._core, "Launch", lambda **named: make(**named | {left_out: named[left_out][:-1]})
    )
    for _, found in jali.virtual_ranks(int(np.prod(grid)), found_by, made, next_of_even, grid):
        assert len(found) == 1
        assert said in found[0]
