"""Halo policies chosen by the tuner, on the host: same bits, same choice on all ranks, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented_times import forget_in_memory, invent_times

import jali
from jali import _core, comm
from jali.gauge import SU, GaugeField, plaquette, sweep
from jali.tune import stores

pytestmark = pytest.mark.lanes


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, use_settings: Callable[..., None]) -> None:
    use_settings(cache_dir=str(tmp_path / "cache"))
    use_settings(tune="now")
    use_settings(halo_policy="auto")
    forget_in_memory()


@jali.site_function
def average(X, y, x):
    mu, nu = X.directions()
    y[X] = 0.25 * (x[X + mu] + x[X - mu] + x[X + nu] + 2 * x[X - nu])


@jali.site_function
def accumulate(X, x, y):
    x[X] += 0.5 * y[X + X.directions()[1]]


@jali.site_function
def weighted(X, x, total):
    total += x[X] * x[X + X.directions()[1]]


def results() -> tuple[bytes, float, dict[str, int]]:
    """Fields, a sum and the halos that were exchanged."""
    lattice = jali.Lattice(8, 16)
    x, y = (lattice.field(jali.Real()) for _ in range(2))
    x[:, :] = np.arange(128.0).reshape(8, 16) ** 1.5
    for _ in range(3):
        average(y, x)
        accumulate(x, y)
    total = lattice.sum(weighted, x)
    return x[:, :].tobytes(), total, x.storage.halo_counters


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.short(5)
def test_tuning_changes_no_bit_and_counts_nothing(ranks, use_settings):
    use_settings(tune="off")
    alone = results()
    before = _core.halo_counters()
    untuned = jali.virtual_ranks(ranks, results)
    exchanged = {k: v - before[k] for k, v in _core.halo_counters().items()}
    for mode in ("now", "cached", "again", "on"):
        use_settings(tune=mode)
        before = _core.halo_counters()
        tuned = jali.virtual_ranks(ranks, results)
        assert tuned == untuned, mode
        assert [found[:2] for found in tuned] == [alone[:2]] * ranks
        assert {k: v - before[k] for k, v in _core.halo_counters().items()} == exchanged, mode
    kinds = {q.kind for store in stores() for q in store.read()}
    assert kinds == ({"halo"} if ranks > 1 else set())


@pytest.mark.short(2)
def test_gauge_history_is_the_same_with_halos_tuned(use_settings):
    def history() -> list[float]:
        lattice = jali.Lattice(4, 4, 4, 8)
        U = GaugeField(lattice, SU(2)).hot_start(seed=5)
        rng = jali.Random(3)
        return [(sweep(U, 2.3, rng), plaquette(U))[1] for _ in range(2)]

    tuned = jali.virtual_ranks(2, history)
    use_settings(tune="off")
    assert tuned == [history()] * 2


def policies() -> list[tuple[str, str]]:
    """Policy and reason of a launch on this rank, after it ran."""
    lattice = jali.Lattice(8, 16)
    x, y = (lattice.field(jali.Real()) for _ in range(2))
    x[:, :] = 1.0
    shift = jali.site_function(average.function)
    shift(y, x)
    kernels = [kernel for bound in shift._bound.values() for kernel in bound.kernels]
    return [(kernel.launch.policy, kernel.chosen.halo) for kernel in kernels]


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_take_the_row_with_the_least_maximum(ranks, monkeypatch):
    last = ranks - 1
    times = {
        "remote-write-overlap": lambda rank: 9e-4 if rank == last else 1e-4,
        "remote-write-wait": lambda rank: 5e-4,
    }
    invent_times(monkeypatch, lambda name, rank: times.get(name, lambda rank: 1e-3)(rank))
    found = jali.virtual_ranks(ranks, policies)
    assert [policy for ((policy, _),) in found] == ["remote-write-wait"] * ranks
    assert all(
        "remote-write-wait: 1.80 times as fast as remote-write-overlap, of 4, measured " in why
        for ((_, why),) in found
    )
    ((entry,),) = [store.read().values() for store in stores()]
    assert {c.name: c.seconds for c in entry.candidates} == {
        "remote-write-overlap": 9e-4,
        "remote-write-wait": 5e-4,
        "messages-overlap": 1e-3,
        "messages-wait": 1e-3,
    }


def test_what_all_ranks_remember_is_not_measured_again(monkeypatch):
    ran = invent_times(
        monkeypatch,
        lambda name, rank: {"remote-write-overlap": 2e-4, "remote-write-wait": 1e-4}.get(name, 3e-4),
    )
    jali.virtual_ranks(2, policies)
    assert {(0, "remote-write-wait"), (1, "remote-write-wait")} <= set(ran)
    forget_in_memory()
    ran.clear()
    assert [policy for ((policy, _),) in jali.virtual_ranks(2, policies)] == [
        "remote-write-wait",
        "remote-write-wait",
    ]
    assert ran == []


def test_ranks_that_remember_differently_measure_again(monkeypatch, use_settings):
    ran = invent_times(
        monkeypatch,
        lambda name, rank: {"remote-write-overlap": 2e-4, "remote-write-wait": 1e-4}.get(name, 3e-4),
    )
    jali.virtual_ranks(2, policies)
    ran.clear()
    from jali.lattice.tuning import Tuner

    recall = Tuner.recall

    def of_rank(self: Any, question: Any) -> Any:
        return None if comm.current().rank == 1 else recall(self, question)

    monkeypatch.setattr(Tuner, "recall", of_rank)
    assert [policy for ((policy, _),) in jali.virtual_ranks(2, policies)] == [
        "remote-write-wait",
        "remote-write-wait",
    ]
    assert {rank for rank, _ in ran} == {0, 1}
    use_settings(tune="cached")  # which must not measure
    ran.clear()
    found = jali.virtual_ranks(2, policies)
    assert [policy for ((policy, _),) in found] == ["remote-write-overlap", "remote-write-overlap"]
    assert "not remembered by all ranks" in found[0][0][1]
    assert ran == []


def test_a_row_in_the_file_that_does_not_exist_is_not_taken(monkeypatch):
    invent_times(
        monkeypatch,
        lambda name, rank: {"remote-write-overlap": 2e-4, "remote-write-wait": 1e-4}.get(name, 3e-4),
    )
    jali.virtual_ranks(2, policies)
    (store,) = stores()
    document = json.loads(store.path.read_text())
    document["entries"][0]["chosen"] = "by-pigeon"
    store.path.write_text(json.dumps(document))
    forget_in_memory()
    assert [policy for ((policy, _),) in jali.virtual_ranks(2, policies)] == [
        "remote-write-wait",
        "remote-write-wait",
    ]


def interrupted() -> bool:
    """Whether all is as before after a measurement that failed."""
    lattice = jali.Lattice(
        8, 16, grid=(1, comm.current().size)
    )  # the second direction has halos, however wide vectors are
    x, y = (lattice.field(jali.Real()) for _ in range(2))
    x[:, :] = np.arange(128.0).reshape(8, 16)
    y[:, :] = np.arange(128.0).reshape(8, 16) ** 2
    before = x[:, :].tobytes(), x.storage.versions(), y.storage.halo_counters
    with pytest.raises(ArithmeticError, match="no clock"):
        accumulate(x, y)
    after = x[:, :].tobytes(), x.storage.versions(), y.storage.halo_counters
    return before == after


def test_what_is_written_is_put_back_when_a_candidate_raises(monkeypatch):
    def times(name: str, rank: int) -> float:
        if name == "remote-write-wait":
            raise ArithmeticError("no clock")
        return 1e-4

    invent_times(monkeypatch, times)
    assert jali.virtual_ranks(2, interrupted) == [True, True]


def test_a_named_row_is_not_tuned(monkeypatch, use_settings):
    use_settings(halo_policy="remote-write-overlap")
    ran = invent_times(monkeypatch, lambda name, rank: 1e-4)
    found = jali.virtual_ranks(2, policies)
    assert found == [[("remote-write-overlap", "remote-write-overlap: JALI_HALO_POLICY")]] * 2
    use_settings(halo_policy="auto")
    use_settings(tune="off")
    assert (
        jali.virtual_ranks(2, policies)
        == [[("remote-write-overlap", "remote-write-overlap: the default")]] * 2
    )
    use_settings(tune="now")
    use_settings(halo_off="bulk")  # what is left out has no meaningful time
    assert (
        jali.virtual_ranks(2, policies)
        == [[("remote-write-overlap", "remote-write-overlap: the default")]] * 2
    )
    use_settings(halo_policy=None)
    assert (
        jali.virtual_ranks(2, policies)
        == [[("remote-write-overlap", "remote-write-overlap: the default")]] * 2
    )
    assert ran == []
