"""What drivers are given for collectives is proved to do what their composition says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, run_on_devices, use_fake_ccl, use_fake_gpus

from jali import _core, comm, planner
from jali._core import CollectiveCall
from jali.comm import DeviceArray, algorithms
from jali.devices import open_device

REDUCES = ("all_reduce", "reduce", "reduce_scatter")
UNEVEN = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
# small queues: a few KiB take several channels and iterations, and a few runs go round
QUEUES = (
    "channels=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,flagged_below_combining=2048,"
    "bytes_per_channel=256"
)


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path) -> None:
    if REAL and _core.Gpu.count("cuda") < 4:
        pytest.skip("needs four GPUs")
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)
    use_settings(device_queues=QUEUES)


def call_of(
    name: str,
    spec: str,
    count: int,
    dtype: str = "fp32",
    *,
    op: str = "sum",
    in_place: bool = False,
    reproducible: bool = False,
    uneven: bool = False,
) -> CollectiveCall:
    """A call on the ranks of this thread's communicator; `count` elements per rank, other numbers on each if uneven."""
    ranks = comm.current().size
    elements: int | tuple[int, ...] = count
    if uneven and name == "all_to_all":
        elements = tuple((count + i + 2 * j) % (count + 1) for i in range(ranks) for j in range(ranks))
    elif uneven:
        elements = tuple((count + 3 * r) % (count + 2) for r in range(ranks))
    return CollectiveCall(name, dtype, elements, ranks - 1, op, in_place, spec, reproducible)


def there() -> _core.DeviceCollectives:
    c = comm.current()
    return c.collectives.on_device(open_device("cuda", c))


def arrays_for(plan: _core.GpuPlan) -> tuple[Any, ...]:
    """An array of the right size for every buffer of a plan, of small numbers."""
    sizes = [plan.bytes_of(k) for k in range(plan.user_buffers)]
    return tuple(
        DeviceArray.from_host(np.arange(n, dtype=np.uint8) % 60, plan.gpu) if n else None for n in sizes
    )


def recorded(*arguments: Any, **named: Any) -> _core.RecordedCalls:
    """What this rank's driver is given for a call (as `call_of`)."""
    call = call_of(*arguments, **named)
    plan = there().plan_of(call)
    return there().recorded(call, plan, arrays_for(plan))


def checked(*arguments: Any, **named: Any) -> None:
    recorded(*arguments, **named).check_together(comm.current().core)


def specs_of(name: str) -> list[str]:
    return [spec for spec in algorithms.names(name, on_device=True) if spec not in algorithms.ON_DEVICES]


def form_of(name: str, spec: str) -> str:
    return next(
        entry.form for entry in algorithms.ALGORITHMS if entry.name == spec and name in entry.collectives
    )


def all_algorithms(name: str, counts: list[int], dtypes: list[str]) -> set[str]:
    """Proves every way of a collective; the wires that they took."""
    wires = set()
    for spec in specs_of(name):
        for count in counts:
            for dtype in dtypes:
                checked(name, spec, count, dtype)
                if name in UNEVEN:
                    checked(name, spec, count, dtype, uneven=True)
                call = call_of(name, spec, count, dtype)
                wires.add(there().plan_of(call).program().wire)
    return wires


@pytest.mark.short(3)
@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_every_way_of_a_collective_is_proved(name, ranks):
    """Both wires; one element, odd numbers, several channels, several iterations."""
    counts = [1, 7, 333, 5003]
    for wires in comm.virtual_ranks(ranks, all_algorithms, name, counts, ["fp32"]):
        assert wires == {"flagged", "slotted"}


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_every_way_of_a_collective_is_proved_for_other_types(name, ranks):
    comm.virtual_ranks(
        ranks, all_algorithms, name, [5, 100, 1023, 12345], ["fp64", "uint8", "fp16", "complex128"]
    )


def further_calls() -> None:
    for spec in specs_of("all_reduce"):
        checked("all_reduce", spec, 777, "fp64", reproducible=True)
        checked("all_reduce", spec, 4000, "fp16", reproducible=True)
        checked("all_reduce", spec, 100, op="avg")
        checked("all_reduce", spec, 3333, op="max", in_place=True)
    for name in ("broadcast", "reduce", "all_gather", "reduce_scatter"):
        for spec in specs_of(name):
            checked(name, spec, 500, in_place=True)
            checked(name, spec, 5000, in_place=True)


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.full)])
def test_averages_orders_and_calls_in_place_are_proved(ranks):
    comm.virtual_ranks(ranks, further_calls)


def test_one_rank_is_proved():
    comm.virtual_ranks(1, all_algorithms, "all_reduce", [333], ["fp32"])


def after_messages_of_some() -> None:
    """Few channels of few ranks have passed messages before: channels begin in other ways, others on other ranks."""
    c = comm.current()
    for count, root, leaf in ((90, 0, 1), (250, 2, 0), (90, 2, 3), (700, 3, 1), (2000, 1, 2), (1500, 3, 0)):
        composition = planner.Composition(c.size, "float32")
        data = composition.buffer("data", count)
        composition.multicast(data[0:count], data[0:count], root=root, leaves=[leaf])
        plan = composition.plan().on(c)
        x = DeviceArray.from_host(np.full(count, c.rank, np.float32), there().gpu)
        plan.check(x)
        plan.run(x)
        assert x.to_host()[-1] == (root if c.rank == leaf else c.rank)
    for count in (50, 333, 5003):
        checked("all_reduce", "two_step", count)
        checked("all_to_all", "direct", count)


def test_channels_that_begin_in_different_ways_are_proved():
    comm.virtual_ranks(4, after_messages_of_some)


# ---- what users have --------------------------------------------------------------------------------------


def calls_in_checked_mode() -> list[bytes]:
    c = comm.current()
    results = []
    for count in (50, 4001):
        x = np.random.default_rng(c.rank).integers(0, 9, count * c.size).astype(np.float32)
        for name in algorithms.COLLECTIVES:
            if name == "scatter":
                out = DeviceArray.from_host(np.zeros(count, np.float32), open_device("cuda", c))
                host = np.zeros(count, np.float32)
                whole = DeviceArray.from_host(x, out.gpu) if c.rank == 0 else None
                for _ in range(2):
                    c.scatter(whole, out)
                c.scatter(x if c.rank == 0 else None, host)
                assert out.to_host().tobytes() == host.tobytes()
                continue
            there_x = DeviceArray.from_host(x, open_device("cuda", c))
            for _ in range(2):
                got = getattr(c, name)(there_x)
            wanted = getattr(c, name)(x.copy())
            assert (got is None) == (wanted is None)
            if got is not None:
                assert got.to_host().tobytes() == wanted.tobytes(), name
            results.append(there_x.to_host().tobytes())
    return results


@pytest.mark.unproved("counts proofs")
def test_checked_mode_proves_every_collective_once_and_changes_nothing(use_settings):
    """Each is called twice, on three ranks with two numbers of elements."""
    before, _ = _core.first_runs()
    use_settings(checked=True)
    comm.virtual_ranks(3, calls_in_checked_mode)
    proved, _ = _core.first_runs()
    assert proved - before == 3 * 2 * len(algorithms.COLLECTIVES)
    use_settings(checked=False)
    comm.virtual_ranks(3, calls_in_checked_mode)
    assert _core.first_runs()[0] == proved


@pytest.mark.mpi
def test_collectives_of_processes_are_proved(fake_environment):
    """Ranks see each other's memory under other addresses."""
    text = "import test_checked_collectives as t; t.calls_in_checked_mode(); print('proved')"
    experiments = "import jali; jali.settings.use(device_queues='" + QUEUES + "'); "
    done = run_on_devices(2, experiments + text, fake_environment | {"JALI_CHECKED": "1"})
    assert done.stdout.split() == ["proved"] * 2, done.stderr


def composition_of_the_user(libraries: list[str] | None) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    composition = planner.Composition.standard(
        "all_reduce", ranks=4, count=401, dtype="float64", form="composed"
    )
    plan = composition.plan(hierarchy=(2, 2), libraries=libraries or ["", ""])
    x = np.arange(401.0) + c.rank
    here, out = DeviceArray.from_host(x, gpu), DeviceArray.from_host(np.full(401, 7.0), gpu)
    plan.on(c).check(here, out)
    assert np.array_equal(here.to_host(), x)
    assert np.array_equal(out.to_host(), np.full(401, 7.0))
    plan.on(c).run(here, out)
    assert np.array_equal(out.to_host(), 4 * np.arange(401.0) + 6)
    if libraries is None:
        plan.on(c).check(x, np.zeros(401))


@pytest.mark.skipif(REAL, reason="the library's own tests run it on hardware")
@pytest.mark.parametrize(
    "libraries",
    [
        None,
        ["remote-write", "nccl"],
        ["nccl", "remote-write"],
        ["nccl", "nccl"],
        ["copy-engine", "remote-write"],
        ["nccl", "copy-engine"],
    ],
)
def test_plans_of_the_user_are_checked_as_they_run(libraries):
    comm.virtual_ranks(4, composition_of_the_user, libraries)


@pytest.mark.skipif(REAL, reason="the library's own tests run it on hardware")
@pytest.mark.parametrize("name", ["all_reduce", "all_to_all"])
@pytest.mark.parametrize("transport", ["nccl", "copy-engine"])
def test_messages_between_launches_are_proved(name, transport, use_settings):
    use_settings(device_transport=transport)
    comm.virtual_ranks(4, all_algorithms, name, [7, 333], ["fp32"])


def against(name: str, plan: dict[str, Any], meaning: dict[str, Any]) -> str:
    """What is found when a call's plan is held against the meaning of another."""
    spec = specs_of(name)[0]
    mine = call_of(name, spec, 400, **plan)
    other = call_of(name, spec, 400, **meaning)
    c, of = comm.current(), there()
    made = of.plan_of(mine)
    composition = other.composition(c.size, form_of(name, spec))
    record = made.recorded(arrays_for(made), composition, other.reproducible, c.core)
    try:
        record.check_together(c.core)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "plan", "meaning", "says"),
    [
        ("all_reduce", {"op": "sum"}, {"op": "max"}, "the sum of byte .* instead of the max of"),
        ("all_reduce", {"op": "avg"}, {"op": "sum"}, "divided by 3 instead of"),
        ("all_gather", {}, {"dtype": "fp32"}, ""),
    ],
)
def test_what_a_plan_does_is_held_against_its_composition(name, plan, meaning, says):
    reported = comm.virtual_ranks(
        3, against, name, plan, {k: v for k, v in meaning.items() if k != "op"} | meaning
    )
    assert len(set(reported)) == 1
    if says:
        assert re.search(says, reported[0]), reported[0]
    else:
        assert reported[0] == ""


def test_a_plan_that_is_not_reproducible_is_distinguished_from_one_that_is():
    def run() -> str:
        name, spec = "all_reduce", "recursive_doubling"
        of, c = there(), comm.current()
        made = of.plan_of(call_of(name, spec, 100))
        call = call_of(name, spec, 100, reproducible=True)
        composition = call.composition(c.size, form_of(name, spec))
        try:
            made.recorded(arrays_for(made), composition, True, c.core).check_together(c.core)
        except RuntimeError as error:
            return str(error)
        return ""

    assert "instead of the sum of" in comm.virtual_ranks(4, run)[0]
