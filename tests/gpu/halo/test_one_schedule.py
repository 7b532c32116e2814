"""Halos on hosts and between devices are steps of one kind of schedule, in order on each rank, and all ranks' steps meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_halos_between_devices as halos
from fake_driver import use_fake_ccl, use_fake_gpus

import jali
from jali import _core
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField
from jali.lattice import binding

POLICIES = [("cpu", name) for name, *_ in _core.halo_policies("cpu")] + [
    ("cuda", name) for name in halos.OF_THREADS
]


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Those that this rank has bound."""
    made: dict[int, list[Any]] = {}
    launch = _core.Launch

    def of_this_rank() -> list[Any]:
        return made.setdefault(jali.comm.current().rank, [])

    def make(*arguments: Any, **named: Any) -> Any:
        of_this_rank().append(launch(*arguments, **named))
        return of_this_rank()[-1]

    monkeypatch.setattr(binding._core, "Launch", make)
    return of_this_rank


def schedules(device: str, grid: Any, launches: list[Any]) -> list[Any]:
    """Those of a stencil with diagonals, of links, and of a Dirac operator, whose halos are items."""
    lattice = jali.Lattice(4, 6, 4, 8, grid=grid, device=device)
    x, out = (lattice.field(jali.Complex()) for _ in range(2))
    U = GaugeField(lattice, SU(3)).hot_start(seed=5)
    psi = lattice.field(jali.Spinor(3))
    first = len(launches)
    halos.diagonal(out, x)
    WilsonDirac(U, mass=0.1).apply(psi)
    halos.diagonal(x, out)
    return [launch.schedule() for launch in launches[first:]]


@pytest.mark.short(2)
@pytest.mark.parametrize(("device", "policy"), POLICIES)
@pytest.mark.parametrize(("ranks", "grid"), [(2, (1, 1, 1, 2)), (2, (1, 2, 1, 1)), (4, (1, 1, 2, 2))])
def test_steps_of_every_entry_are_in_order_and_meet_on_all_ranks(
    device, policy, ranks, grid, launches, use_settings
):
    if device == "cuda":
        halos.use(policy, use_settings, ranks)
    use_settings(halo_policy=policy)

    def program() -> list[Any]:
        return schedules(device, grid, launches())

    of_ranks = jali.virtual_ranks(ranks, program)
    assert any(schedule.steps > 1 for schedule in of_ranks[0])
    for together in zip(*of_ranks, strict=True):
        for schedule in together:
            schedule.check()
        _core.Schedule.check_messages(list(together))


@jali.site_function
def arriving(X, out, f, U):
    mu = X.directions()[0]
    out[X] = U[X - mu].dagger() * f[X - mu]


def test_halo_items_have_room_for_whole_groups_of_sites(launches, use_settings):
    """A producer stores the packets of its sites 32 sites apart, also where it has two sites only."""
    halos.use("remote-write-wait", use_settings)

    def program() -> list[tuple[str, int]]:
        lattice = jali.Lattice(6, 4, grid=(2, 1), device="cuda")
        out, f = (lattice.field(jali.Vector(3)) for _ in range(2))
        arriving(out, f, lattice.field(jali.Matrix(3)))
        return launches()[-1].schedule().buffers

    for buffers in jali.virtual_ranks(2, program):
        assert dict(buffers)["halo items"] == 2 * 32 * 48  # of two even and two odd sites of 48 bytes
