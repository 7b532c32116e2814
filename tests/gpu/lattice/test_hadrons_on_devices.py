"""Sources, smearing and correlators of hadrons have the bits of the host on devices."""

from __future__ import annotations

import sys
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL, TWO_DEVICES, use_fake_gpus

import jali
from jali import SU, Field, Lattice, ParameterError, Spinor
from jali.fermions import WilsonDirac, gamma
from jali.gauge import GaugeField
from jali.hadrons import contract, mesons, nucleon, point_source

sys.path.insert(0, str(Path(__file__).parents[2] / "hadrons"))

from hadron_bytes import correlators, everything, sources
from quarks import filled


@pytest.mark.short(1)
def test_sources_and_correlators_have_the_bits_of_the_host(device):
    extents = (2, 2, 4, 4)
    host, there = Lattice(*extents), Lattice(*extents, device=device)
    for make in (sources, correlators):
        assert [a == b for a, b in zip(make(there), make(host), strict=True)] == [True] * 9


@pytest.mark.short(1)
def test_hadrons_of_solves_have_the_bits_of_the_host(device):
    found = []
    for kind in ("cpu", device):
        D = WilsonDirac(GaugeField(Lattice(2, 2, 2, 4, device=kind), SU(3)).hot_start(seed=1), 0.8)
        S = D.propagator(point_source(D, (0, 1, 0, 3)), 1e-6, method="cgnr", inner="none")
        options = {"origin": (0, 1, 0, 3), "momenta": [(0, 0, 0), (0, 0, 1)]}
        found.append([make(S, **options).values for make in (mesons, nucleon)])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.fixture
def cupy(fake_driver, monkeypatch):
    """A CuPy of NumPy's products."""
    with fake_cupy.installed(fake_driver) as module:
        module.moveaxis = lambda x, *axes: fake_cupy.ndarray(np.moveaxis(x.plain, *axes), x.memory)
        for name in ("einsum", "tensordot", "transpose"):
            setattr(module, name, products_on_device(getattr(np, name)))
        monkeypatch.setattr(fake_cupy.ndarray, "get", fake_cupy.asnumpy, raising=False)
        yield module


def products_on_device(function):
    def call(*operands, **named):
        fake_cupy.wait()
        plain = [x.plain if isinstance(x, fake_cupy.ndarray) else x for x in operands]
        gpus = {x.memory.gpu.ordinal for x in operands if isinstance(x, fake_cupy.ndarray)}
        assert gpus == {fake_cupy.chosen_device()}, "CuPy computes on the current device alone"
        return fake_cupy.there(function(*plain, **named))

    return call


@pytest.mark.skipif(REAL, reason="the CuPy of this test is one of fake devices")
@pytest.mark.parametrize("ordinal", [0, 2])
def test_contractions_are_those_of_the_host(ordinal, device, cupy, monkeypatch):
    """On the device of the fields, wherever the library works; of several products, of constants and conjugates."""
    pytest.importorskip("opt_einsum")
    use_fake_gpus(monkeypatch, 4)
    fake_cupy.use(device, 1)
    found = []
    for kind in ("cpu", f"{device}:{ordinal}"):
        lattice = Lattice(2, 3, 4, 2, device=kind)
        S, other = (filled(Field(lattice, Spinor(3), batch=4), seed) for seed in (1, 2))
        found.append(
            [
                contract("xksc,xksc->t", S, S, conjugate=[0]),
                contract("xksc,su,xluc->tkl", S, gamma[2].dense(), other, conjugate=[0, 1]),
                contract("xksc->c", S),
            ]
        )
    assert all(np.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*found, strict=True))
    assert fake_cupy.chosen_device() == 1


@pytest.mark.skipif(REAL, reason="needs a machine whose libraries are missing")
def test_contractions_on_devices_without_a_library_say_so(device, monkeypatch):
    for name in ("cupy", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    psi = Field(Lattice(2, 2, 2, 2, device=device), Spinor(3))
    with pytest.raises(ParameterError, match="contract of fields on a GPU takes CuPy or PyTorch"):
        contract("xsc->t", psi)


@TWO_DEVICES
@pytest.mark.full
@pytest.mark.ranks(2)
def test_ranks_of_devices_have_them_too(monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    assert jali.virtual_ranks(2, lambda: everything(device="cuda")) == [everything()] * 2
