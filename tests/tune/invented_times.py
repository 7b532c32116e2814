"""An autotuner whose clock is the test's: candidates really run, but their times are invented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jali import comm
from jali.lattice import tuning
from jali.tune import Autotuner, alone, tuner

Times = Callable[[str, int], float]  # seconds of a candidate on a rank


def invent_times(monkeypatch: pytest.MonkeyPatch, times: Times) -> list[tuple[int, str]]:
    """From now on all kernels are worth tuning and take so long; returns the (rank, candidate)s that are run."""
    ran: list[tuple[int, str]] = []

    class Timed(Autotuner):
        def __init__(self, default: str, measure: Any, agree: Any = alone):
            def timed(name: str, repetitions: int) -> list[float]:
                rank = comm.current().rank
                ran.append((rank, name))
                measure(name, repetitions)
                return [times(name, rank)] * repetitions

            super().__init__(default, timed, agree)

    monkeypatch.setattr(tuning, "Autotuner", Timed)
    monkeypatch.setattr(tuning, "SHORTEST", 0.0)
    monkeypatch.setattr(tuning, "FEWEST_POSITIONS", 1)
    monkeypatch.setattr(tuning, "sites_at_once", lambda gpu, function, threads: 1)
    return ran


def forget_in_memory() -> None:
    """What a new process knows: the files."""
    tuner._tuners.clear()
