"""Same seed, same bits on another device: histories, and checkpoints that one device writes and the other continues."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import jali
from jali.gauge import SU, Flow, GaugeField

sys.path.insert(0, str(Path(__file__).parents[2] / "identity"))

import history

# Small, with an odd extent, so that links are updated in three colours; the real thing is in tests/identity.
SMALL = (3, 2, 4, 4)


@pytest.fixture(params=[SMALL, pytest.param((4, 4, 6, 6), marks=pytest.mark.full)], ids=str)
def extents(request, monkeypatch):
    monkeypatch.setattr(history, "EXTENTS", request.param)
    return request.param


@pytest.fixture(scope="module")
def reference():
    """(extents, precision) -> the history on the host, computed once."""
    known = {}

    def find(precision):
        key = history.EXTENTS, precision
        if key not in known:
            known[key] = history.history(precision, device="cpu")
        return known[key]

    return find


# the kinds share all code but a table of names, so one precision each is enough
@pytest.mark.short(1)
@pytest.mark.parametrize(("kind", "precision"), [("cuda", "float64"), ("hip", "float32")])
def test_history_is_that_of_the_host(reference, extents, kind, precision):
    assert history.history(precision, device=kind) == reference(precision)


@pytest.mark.full
def test_history_is_that_of_the_host_in_the_other_precision(reference, extents):
    assert history.history("float32", device="cuda") == reference("float32")
    assert history.history("float64", device="hip") == reference("float64")


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_checkpoint_of_one_device_is_continued_by_the_other(reference, extents, first, second, tmp_path):
    assert history.history("float64", directory=tmp_path, device=first) == {}
    assert history.history("float64", directory=tmp_path, device=second) == reference("float64")


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_share_a_device_give_the_history_of_the_host(reference, extents, ranks):
    results = jali.virtual_ranks(ranks, history.history, "float64", device="cuda")
    assert all(result == reference("float64") for result in results)


def flowed(kind):
    """Links after two steps of the flow, whose fields and halos go while the device has yet to use them."""
    U = GaugeField(jali.Lattice(8, 12, device=kind), SU(1)).hot_start(11)
    V = Flow(U, 0.05).advance(2)
    return [field[...].tobytes() for field in V.fields]


def test_memory_that_is_given_back_while_work_is_under_way_is_not_used_early():
    expected = flowed("cpu")
    assert all(result == expected for result in jali.virtual_ranks(2, flowed, "cuda"))


def test_lattice_takes_the_device_of_the_program_and_of_the_process(monkeypatch, use_settings):
    def kind(**options):
        gpu = jali.Lattice(2, 2, **options).gpu
        return "cpu" if gpu is None else gpu.kind

    use_settings(device=None)
    monkeypatch.setattr(jali.devices, "_default", None)
    assert kind() == "cpu"
    use_settings(device="hip")
    assert kind() == "hip"
    jali.use_device("cuda")  # what the program says counts more than its surroundings
    assert (kind(), kind(device="cpu"), kind(device="hip:0")) == ("cuda", "cpu", "hip")
    jali.use_device("cpu")
    assert (kind(), jali.devices.default_device()) == ("cpu", "cpu")
