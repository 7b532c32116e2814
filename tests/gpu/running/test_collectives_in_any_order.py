"""No order of algorithms, transports, streams and graphs within one program hangs or is wrong: on fake devices, and on those there are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ccl_ranks import FAKE
from collectives_in_any_order import any_order
from fake_driver import REAL
from programs import need_mpi, on_ranks, run_program

from jali import _core
from jali.comm import virtual_ranks

PROGRAM = Path(__file__).parents[1] / "collectives_in_any_order.py"
SIZES = (1 << 10, 4 << 20, 64 << 20, 512 << 20)  # bytes
SEED = 46
MOST = 4  # ranks


@FAKE[0]
@FAKE[1]
def test_collectives_of_fake_devices_in_any_order(tmp_path: Path) -> None:
    first, second = virtual_ranks(2, any_order, 30, SEED, (1 << 10, 300 << 10))
    assert first == second
    assert first.total() > 15
    assert not list(tmp_path.glob("fault-*"))


@pytest.mark.gpu
@pytest.mark.skipif(not REAL, reason="on real devices, by make test-gpu")
def test_a_hundred_collectives_of_devices_in_any_order() -> None:
    devices = min(_core.Gpu.count("cuda"), MOST)
    if devices < 2:
        pytest.skip("there is one GPU")
    need_mpi()
    done = run_program(
        on_ranks(devices, sys.executable, PROGRAM, 100, SEED, *SIZES), path=[Path(__file__).parents[1]]
    )
    assert "collectives ran" in done.stdout
