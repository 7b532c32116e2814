"""Fields of several arithmetics and storage formats in one kernel of a device: the bits of the host, halos too."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_gpus

import jali
from jali import Field, Lattice, Vector
from jali.comm.virtual import virtual_ranks
from jali.solvers import vectors_of
from jali.vectors import like

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))
from test_arithmetics_meet import run_blend, run_hop, same_bits


@pytest.mark.short(2)
@pytest.mark.parametrize("shape", [None, "64,1,2"])
@pytest.mark.parametrize("run", [run_hop, run_blend])
def test_a_kernel_of_several_arithmetics_has_the_bits_of_the_host(run, shape, device):
    with jali.tune.experiment(launch=shape):
        assert same_bits(run(), run(device=device))


@TWO_DEVICES
@pytest.mark.ranks(2)
@pytest.mark.parametrize("run", [run_hop, run_blend])
def test_halos_of_all_formats_travel_between_devices(run, device, monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    assert same_bits(run(), *virtual_ranks(2, lambda: run(grid=(1, 1, 2), device=device)))


@pytest.mark.short(1)
def test_updates_between_precisions_have_the_bits_of_the_host(device):
    def run(kind):
        x = Field(Lattice(6, 4, device=kind), Vector(3))
        x[...] = np.random.default_rng(1).normal(size=x.shape) * (1 + 0.5j)
        r = like(x, precision="float32")
        vectors = vectors_of("x", x)
        norms = [vectors.update([(r, 0, [(1, x), (-0.999, x)])], norm=True)]
        norms.append(vectors.update([(x, 1, [(0.1, r)])], norm=True))
        scalar = vectors.update([(r, 0.5, [(x.lattice.scalar(0.3), x)])], norm=True, wait=False)
        return x[...], r[...], norms, float(scalar)

    assert same_bits(run("cpu"), run(device))
