"""Cases of `jali bench compare` on a device."""

from __future__ import annotations

import time

import pytest
from fake_driver import REAL
from programs import TIMEOUT, need_mpi, package_of_jali

from jali.bench.compare import pairs


@pytest.mark.skipif(REAL, reason="on fake devices")
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("call", 1),
        pytest.param("halo 8", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
        pytest.param("all_reduce 64 B", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    ],
)
def test_a_row_runs_on_devices(name, ranks, fake_environment, monkeypatch, tmp_path):
    if ranks > 1:
        need_mpi()
    for key, value in {**fake_environment, "JALI_FAKE_GPUS": str(ranks)}.items():
        monkeypatch.setenv(key, value)
    package = package_of_jali(tmp_path)
    settings = pairs.Settings(starts=1, turns=1, seconds=1e-4, device="cuda")
    until = time.monotonic() + TIMEOUT
    ((a, b),), about = pairs.measure_pair(name, [package, package], settings, until, ranks=ranks)
    assert about["unit"] == "us"
    assert a > 0 < b
