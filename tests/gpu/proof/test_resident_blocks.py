"""Blocks that wait keep their places on a device: what could hang for that is refused by the checker, and hangs.

Sizes of devices are seeded: how many blocks find a place at a time. The checker is told them beside the calls; the fake
devices have so many multiprocessors, and threads of each.
"""

from __future__ import annotations

import numpy as np
import pytest
import test_checked_launches as launches_of
import test_faults_do_harm as faults
from fake_driver import PATH, REAL
from programs import run_python
from seeded_faults import outcome, refused
from test_checked_launches import made
from test_halos_between_devices import WAIT_BESIDE_THE_BULK

import jali
from jali import _core

__all__ = ["made"]  # a fixture: four devices, and what is launched on them

pytestmark = pytest.mark.skipif(REAL, reason="the devices have the size that they have")
MULTIPROCESSORS = 4  # of a fake device as it is recorded


def packs(record: _core.RecordedCalls) -> list[int]:
    return [k for k, (_, name, _) in enumerate(record.calls) if name == "pack_halos"]


def launches(record: _core.RecordedCalls) -> list[int]:
    return [k for k, (kind, _, _) in enumerate(record.calls) if kind == "launch"]


def test_what_finds_a_place_is_recorded(made, use_settings):
    use_settings(halo_policy="remote-write-overlap")
    records = jali.virtual_ranks(2, faults.Halos(made, "pair").record)
    found = [record.occupancy(packs(record)[0]) for record in records]
    assert [of[:2] for of in found] == [(4, 2 * MULTIPROCESSORS)] * 2  # of 1024 threads, beside a bulk
    assert found[0][2] != found[1][2]


def as_on_one_device(record: _core.RecordedCalls, multiprocessors: int) -> _core.RecordedCalls:
    for k in launches(record):
        resident = record.occupancy(k)[1] * multiprocessors // MULTIPROCESSORS
        record = record.with_occupancy(k, resident, 1)
    return record


@pytest.mark.parametrize(
    "policy",
    [
        "remote-write-overlap",
        *(
            pytest.param(p, marks=pytest.mark.full)
            for p in ("buffered-write-overlap", "remote-write-directions")
        ),
    ],
)
def test_ranks_that_share_a_device_are_refused_where_one_can_keep_the_other_from_beginning(
    policy, made, monkeypatch, use_settings
):
    """Four blocks of 1024 threads pack on each rank, and wait for the first one of the other."""
    use_settings(halo_policy=policy)
    halos = faults.Halos(made, "pair")
    records = jali.virtual_ranks(2, halos.record)
    assert refused(records) == ""
    reported = {m: refused([as_on_one_device(r, m) for r in records]) for m in (1, 2, 3, 4)}
    monkeypatch.setenv("JALI_FAKE_ONE_DEVICE", "1")
    for multiprocessors, said in reported.items():
        monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", str(multiprocessors))
        for seed in (0, 1, 2) if said == "" else (0,):
            monkeypatch.setenv("JALI_FAKE_TIMEOUT", "20" if said == "" else "0.5")
            monkeypatch.setenv("JALI_FAKE_SEED", str(seed))
            found = outcome(lambda: all(jali.virtual_ranks(2, halos.body, None)))
            assert found == ("right" if said == "" else "stuck"), (multiprocessors, seed, said)
    if policy == "remote-write-overlap":
        assert [reported[m] == "" for m in (1, 2, 3, 4)] == [False, False, True, True]
        assert "blocks that wait may hold all places of a device ('pack_halos" in reported[2]
        assert "4 blocks, of which 4 find one), and then nothing can go on" in reported[2]


@pytest.mark.parametrize("policy", ["remote-write-overlap", "buffered-write-overlap", "copy-engine-overlap"])
def test_halos_need_one_place_where_every_rank_has_a_device(policy, made, monkeypatch, use_settings):
    use_settings(halo_policy=policy)
    halos = faults.Halos(made, "pair")
    records = jali.virtual_ranks(2, halos.record)
    few = []
    for record in records:
        small = record
        for k in launches(record):
            small = small.with_occupancy(k, 1, record.occupancy(k)[2])
        few.append(small)
    assert refused(few) == ""
    monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", "1")
    monkeypatch.setenv("JALI_FAKE_THREADS", "1024")
    for seed in range(3):
        monkeypatch.setenv("JALI_FAKE_SEED", str(seed))
        assert jali.virtual_ranks(2, halos.body, None) == [True, True]


@pytest.mark.parametrize("slots", [1, 2])
def test_messages_need_a_second_place_where_the_first_block_waits(slots, made, monkeypatch):
    """It waits for what arrives, while others have not yet sent."""
    ring = faults.Messages("remote-write", 2)
    records = jali.virtual_ranks(2, ring.record)
    threads = {2048 * MULTIPROCESSORS // r.occupancy(k)[1] for r in records for k in launches(r)}
    assert len(threads) == 1
    few = []
    for record in records:
        small = record
        for k in launches(record):
            assert record.occupancy(k)[0] > 1
            small = small.with_occupancy(k, slots, record.occupancy(k)[2])
        few.append(small)
    said = refused(few)
    assert ("whose blocks hold 1 of the 1 places of its device while they wait" in said) == (slots == 1)
    assert (said == "") == (slots > 1)
    monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", "1")
    monkeypatch.setenv("JALI_FAKE_THREADS", str(slots * threads.pop()))
    monkeypatch.setenv("JALI_FAKE_TIMEOUT", "0.5" if said else "20")
    assert outcome(lambda: all(jali.virtual_ranks(2, ring.body, None))) == ("stuck" if said else "right")


# ---- blocks that wait beside the bulk of their own launch ------------------------------------------------

LONG = (2, (4, 4, 8, 16), (1, 1, 1, 2), None)  # so that several blocks compute the bulk
THREADS = 256  # of such a block


@pytest.fixture
def long_halos(made, monkeypatch):
    monkeypatch.setitem(launches_of.SHAPES, "long", LONG)
    return faults.Halos(made, "long")


def roles(record: _core.RecordedCalls, call: int) -> dict[str, int]:
    """What the blocks of a launch do."""
    words = launches_of.ROLES.split()
    return dict(
        zip(words, np.frombuffer(record.arguments(call), np.int64)[-len(words) :].tolist(), strict=True)
    )


def with_roles(record: _core.RecordedCalls, call: int, **changed: int) -> _core.RecordedCalls:
    words = launches_of.ROLES.split()
    numbers = np.frombuffer(record.arguments(call), np.int64).copy()
    for word, value in changed.items():
        numbers[len(numbers) - len(words) + words.index(word)] = value
    return record.with_arguments(call, numbers.tobytes())


def computing(record: _core.RecordedCalls) -> list[int]:
    return [k for k in launches(record) if record.calls[k][1].startswith("kernel")]


@pytest.mark.parametrize("policy", WAIT_BESIDE_THE_BULK)
def test_a_launch_whose_waiting_blocks_may_take_all_places_is_refused_and_no_other_hangs(
    policy, long_halos, monkeypatch, use_settings
):
    """On devices of one to three multiprocessors with places for one to three blocks each."""
    use_settings(halo_policy=policy)
    accepted = go_on = 0
    for each in (1, 2, 3):
        monkeypatch.setenv("JALI_FAKE_THREADS", str(each * THREADS))
        monkeypatch.delenv("JALI_FAKE_MULTIPROCESSORS", raising=False)
        monkeypatch.setenv("JALI_FAKE_SEED", "0")
        records = jali.virtual_ranks(2, long_halos.record)
        for multiprocessors in (1, 2, 3):
            slots = each * multiprocessors
            fits = True
            few = []
            for record in records:
                small = record
                for k in computing(record):
                    of = roles(record, k)
                    assert record.occupancy(k)[1] == each * MULTIPROCESSORS
                    small = small.with_occupancy(k, slots, record.occupancy(k)[2])
                    waiting = of["pack_blocks"] + of["late_blocks"]
                    go_on += of["first_bulk"] < of["pack_blocks"]
                    fits = fits and (waiting < slots or record.occupancy(k)[0] <= slots)
                few.append(small)
            said = refused(few)
            assert (said == "") == fits, (each, multiprocessors, said)
            if not fits:
                assert f"of the {slots} places of its device while they wait" in said
                continue
            accepted += 1
            monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", str(multiprocessors))
            for seed in range(3):
                monkeypatch.setenv("JALI_FAKE_SEED", str(seed))
                assert jali.virtual_ranks(2, long_halos.body, None) == [True, True]
    assert 3 <= accepted < 9
    assert go_on > 0


@pytest.mark.parametrize("policy", WAIT_BESIDE_THE_BULK)
@pytest.mark.parametrize("role", ["pack_blocks", "late_blocks"])
def test_blocks_of_a_role_that_take_the_places_of_the_bulk_are_found(policy, role, long_halos, use_settings):
    use_settings(halo_policy=policy)
    records = jali.virtual_ranks(2, long_halos.record)
    found = 0
    for k in computing(records[0]):
        of = roles(records[0], k)
        if min(of["bulk_blocks"], of[role]) == 0:
            continue
        more = of["bulk_blocks"] - 1  # of which one is left
        assert more > 0
        waiting = of["pack_blocks"] + of["late_blocks"]
        counted = of["counted"] + (more if of["counted"] > 0 else 0)
        few = records[0].with_occupancy(k, waiting + more, records[0].occupancy(k)[2])
        changed = {role: of[role] + more, "bulk_blocks": 1, "counted": counted}
        if role == "pack_blocks":
            changed["first_bulk"] = of["first_bulk"] + more
        mutant = with_roles(few, k, **changed)
        assert refused([few, records[1]]) == ""
        assert f"hold {waiting + more} of the {waiting + more} places" in refused([mutant, records[1]])
        found += 1
    assert found == (3 if policy.endswith("one-launch") or role == "pack_blocks" else 0)  # in as many runs


PROGRAM = """
import numpy as np
import jali
from jali import comm
from jali.tune import experiment

@jali.site_function
def both_ways(X, y, x):
    rho, sigma = X.directions()[2:]
    y[X] = 0.25 * (x[X + sigma] - x[X - sigma] + x[X + rho] + 0.5 * x[X - rho])

def body(device):
    lattice = jali.Lattice(8, 16, 8, 16, grid=(1, 1, 1, comm.current().size), device=device)
    x, y = (lattice.field(jali.Complex()) for _ in range(2))
    x[...] = np.random.default_rng(7).normal(size=lattice.extents) + 1j
    try:
        for _ in range(3):
            both_ways(y, x)
            both_ways(x, y)
    except jali.DeviceError as error:
        return str(error)
    return x[...].tobytes()

with experiment(launch="1024,1"):
    for found in jali.virtual_ranks(2, body, "cuda"):
        print("right" if found == body("cpu") else found)
"""


@pytest.mark.short(1)
@pytest.mark.parametrize(
    "multiprocessors", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    "policy", [WAIT_BESIDE_THE_BULK[0], pytest.param(WAIT_BESIDE_THE_BULK[1], marks=pytest.mark.full), "auto"]
)
def test_entries_whose_blocks_wait_beside_the_bulk_need_a_place_for_it(
    policy, multiprocessors, fake_environment, tmp_path
):
    """Each multiprocessor has one; where the tuner takes another policy nothing is said, since none was asked for."""
    wanted = {"remote-write-one-launch": 3, "remote-write-pack-in-bulk": 2, "auto": 1}[policy]
    environment = {
        **fake_environment,
        "JALI_HALO_POLICY": policy,
        "JALI_TUNE": "now",
        "JALI_CACHE_DIR": str(tmp_path),
        "JALI_CHECKED": "1",  # what runs is accepted by the checker
        "JALI_FAKE_GPUS": "2",
        "JALI_FAKE_THREADS": "1024",
        "JALI_FAKE_MULTIPROCESSORS": str(multiprocessors),
    }
    for seed in range(3 if multiprocessors >= wanted else 1):
        done = run_python(PROGRAM, env={**environment, "JALI_FAKE_SEED": str(seed)}, path=PATH)
        lines = done.stdout.splitlines()
        if multiprocessors >= wanted:
            assert lines == ["right", "right"], done.stderr
            continue
        assert lines[0] == lines[1]
        assert lines[0].startswith(
            f"halo policy {policy} is not possible here: on rank 0 fake GPU 0 has places for"
        )
        assert f"this policy wants them for {wanted} blocks" in lines[0]


@pytest.mark.full
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.full)])
def test_faults_in_launches_whose_packing_blocks_go_on_do_harm(every, made, monkeypatch, use_settings):
    """On devices where the bulk leaves no places for blocks that pack alone."""
    policy = "remote-write-one-launch"
    use_settings(halo_policy=policy)
    monkeypatch.setitem(launches_of.SHAPES, "long", LONG)
    monkeypatch.setenv("JALI_FAKE_THREADS", str(THREADS))
    halos = faults.Halos(made, "long", policy)
    for record in jali.virtual_ranks(2, halos.record):
        for k in computing(record)[::2]:  # with halos, in turn with such as have none
            assert roles(record, k)["first_bulk"] < roles(record, k)["pack_blocks"]
    rare = (
        "message .: (none credit|-1 ahead|-1 jobs)",
        "places are so few that blocks wait for ghosts only when others have packed, and no rank is a launch ahead",
    )
    faults.hold(halos, every, [*faults.ONLY_REPORTED, rare], monkeypatch)
