"""Blocks that wait keep their places on a device: what could hang for that is refused by the checker, and hangs.

Sizes of devices are seeded: how many blocks find a place at a time. The checker is told them beside the calls; the fake
devices have so many multiprocessors, and threads of each.
"""

from __future__ import annotations

import pytest
import test_faults_do_harm as faults
from fake_driver import REAL
from seeded_faults import outcome
from test_checked_launches import made

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


def refused(records: list[_core.RecordedCalls]) -> str:
    try:
        _core.check_recorded(records)
    except RuntimeError as error:
        return str(error)
    return ""


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
    told = {m: refused([as_on_one_device(r, m) for r in records]) for m in (1, 2, 3, 4)}
    monkeypatch.setenv("JALI_FAKE_ONE_DEVICE", "1")
    for multiprocessors, said in told.items():
        monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", str(multiprocessors))
        for seed in (0, 1, 2) if said == "" else (0,):
            monkeypatch.setenv("JALI_FAKE_PATIENCE", "20" if said == "" else "0.5")
            monkeypatch.setenv("JALI_FAKE_SEED", str(seed))
            found = outcome(lambda: all(jali.virtual_ranks(2, halos.body, None)))
            assert found == ("right" if said == "" else "stuck"), (multiprocessors, seed, said)
    if policy == "remote-write-overlap":
        assert [told[m] == "" for m in (1, 2, 3, 4)] == [False, False, True, True]
        assert "blocks that wait may hold all places of a device ('pack_halos" in told[2]
        assert "4 blocks, of which 4 find one), and then nothing can go on" in told[2]


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


@pytest.mark.parametrize("places", [1, 2])
def test_messages_need_a_second_place_where_the_first_block_waits(places, made, monkeypatch):
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
            small = small.with_occupancy(k, places, record.occupancy(k)[2])
        few.append(small)
    said = refused(few)
    assert ("holds 1 of the 1 places of its device while it waits" in said) == (places == 1)
    assert (said == "") == (places > 1)
    monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", "1")
    monkeypatch.setenv("JALI_FAKE_THREADS", str(places * threads.pop()))
    monkeypatch.setenv("JALI_FAKE_PATIENCE", "0.5" if said else "20")
    assert outcome(lambda: all(jali.virtual_ranks(2, ring.body, None))) == ("stuck" if said else "right")
