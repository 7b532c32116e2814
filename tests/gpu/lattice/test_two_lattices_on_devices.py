"""Kernels over fields of two lattices on devices: what NumPy says, and the bytes of the host."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import Complex, Field, Lattice, LayoutError, Spinor, Vector, _core

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))
from test_two_lattices import PAIRS, check, coarse_slope, numbers


@pytest.mark.short(2)
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


@jali.site_function
def moments(X, f, total, square):
    total += f[X]
    square += f[X] * f[X]


def _block_sums(kind, big, small, grid, precision):
    fine, coarse = (jali.Lattice(*extents, grid=grid, device=kind) for extents in (big, small))
    f, total = (jali.Field(lattice, jali.Complex(), precision=precision) for lattice in (fine, coarse))
    square = total.like()
    f[...] = np.random.default_rng(9).normal(size=(*big, 2)).view(complex)[..., 0]
    out = []
    for domain in (jali.ALL, jali.ODD):
        jali.block_sums(moments, f, onto=(total, square), over=domain)
        out += [total[...].tobytes(), square[...].tobytes()]
    return out


@pytest.mark.short(2)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    ("big", "small", "grid"),
    [((6, 9), (2, 3), (1, 1)), ((8, 34), (2, 2), (1, 2)), ((8, 8, 4), (2, 1, 1), (2, 1, 1))],
)
def test_sums_over_blocks_have_the_bits_of_the_host(big, small, grid, precision, device, monkeypatch):
    if REAL and device == "cuda" and _core.Gpu.count("cuda") < np.prod(grid):
        pytest.skip("needs two GPUs")
    use_fake_gpus(monkeypatch, 2)
    (expected,) = jali.virtual_ranks(1, _block_sums, "cpu", big, small, (1,) * len(big), precision)
    for found in jali.virtual_ranks(int(np.prod(grid)), _block_sums, device, big, small, grid, precision):
        assert found == expected
