"""Kernels over fields of two lattices on devices: what NumPy says, and the bytes of the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import Complex, Field, Lattice, LayoutError, Spinor, Vector, _core

sys.path.insert(0, str(Path(__file__).parents[1] / "lattice"))
from test_two_lattices import PAIRS, check, coarse_slope, numbers


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_devices_sum_over_blocks_and_inject_as_numpy_does(pair, device):
    check(*pair, device=device)


@pytest.mark.parametrize("element", [Vector(3), Spinor(3)], ids=str)
@pytest.mark.parametrize("boundary", ["antiperiodic", "open", 0.6 + 0.8j])
def test_devices_give_the_bytes_of_the_host(element, boundary, device):
    small, large = (3, 4, 2), (6, 8, 6)

    def run(on):
        coarse = Field(Lattice(*small, device=on), element, boundary=boundary)
        fine = Field(Lattice(*large, device=on), element, "float32", "float16")
        coarse[...] = numbers(small + element.numpy_shape)
        coarse_slope(fine, coarse)
        return fine.stored_bytes().tobytes()

    assert run(device) == run("cpu")


@pytest.mark.parametrize("grid", [(2, 1), (1, 2)])
def test_ranks_on_devices_give_the_bytes_of_one(grid, device, monkeypatch):
    if REAL and device == "cuda" and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    use_fake_gpus(monkeypatch, 2)
    small, large = (8, 6), (16, 12)

    def run(grid, **options):
        _, coarse, fine = check(small, large, grid=grid, **options)
        return coarse[...].tobytes(), fine[...].tobytes()

    alone = run((1, 1))
    found = jali.virtual_ranks(2, lambda: run(grid, device=f"{device}:{jali.comm.current().rank}"))
    assert all(each == alone for each in found)


def test_lattices_of_the_host_and_of_a_device_do_not_meet(device):
    fine = Field(Lattice(8, device=device), Complex())
    with pytest.raises(LayoutError, match="not on the same ranks and devices"):
        coarse_slope(fine, Field(Lattice(4), Complex()))
