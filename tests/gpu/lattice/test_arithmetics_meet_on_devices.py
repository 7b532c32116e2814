"""Fields of several arithmetics and storage formats in one kernel of a device: the bits of the host, halos too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_driver import TWO_DEVICES, use_fake_gpus

import jali
from jali.comm.virtual import virtual_ranks

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
