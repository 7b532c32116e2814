"""Fields on a colour on devices: the bits of the host, half the memory, and every way that halos travel."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_gpus

from jali import EVEN, ODD, SU, Field, Lattice, Spinor, _core
from jali.comm.virtual import virtual_ranks
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import cg

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))

from test_fields_on_colours import filled, run_program, same


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("precision", "storage"), [("float64", None), ("float32", None), ("float64", "fixed16")]
)
def test_random_programs_have_the_bits_of_the_host(seed, precision, storage, device):
    extents = [(4, 6), (6, 6), (4, 2, 6), (2, 4, 2, 4)][seed]  # groups of sites hold both colours
    found = run_program(seed, extents, device, precision, storage)
    assert found == run_program(seed, extents, "cpu", precision, storage)


@TWO_DEVICES
@pytest.mark.short(2)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", range(4))
def test_ranks_of_devices_too(seed, monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    extents = [(4, 12), (8, 6), (4, 2, 8), (2, 4, 2, 8)][seed]
    found = virtual_ranks(2, lambda: run_program(seed, extents, "cuda"))
    assert found == [run_program(seed, extents)] * 2


@TWO_DEVICES
@pytest.mark.ranks(2)
@pytest.mark.short(1)
@pytest.mark.parametrize("policy", [name for name, *_ in _core.halo_policies("cuda") if "mpi" not in name])
def test_every_halo_policy_carries_them(policy, monkeypatch, use_settings):
    use_fake_gpus(monkeypatch, 2)
    use_settings(halo_policy=policy)

    def run():
        lattice = Lattice(4, 2, 2, 8, device="cuda")
        trouble = lattice.layout("float64").why_not_halo_policy(lattice.communicator.core, policy)
        if trouble:
            return trouble
        psi = filled(lattice, Spinor(2), boundary={3: "antiperiodic"})
        U = GaugeField(lattice, SU(2)).hot_start(seed=3)
        D = WilsonDirac(U, 0.2)
        even, odd = psi.split()
        for _ in range(2):
            for over, source in ((ODD, odd), (EVEN, even)):
                found = D.even_odd(over).apply(source)
                full, hopped = psi.like(), psi.like()
                full[...] = source[...]
                D.hop(full, hopped)
                D.hop(hopped, full)
                rest = found * (D.mass + 4) - (D.mass + 4) ** 2 * source + full.on(over)
                assert float(rest.norm2()) < 1e-20 * float(found.norm2())
            even += -2.0 * D.hop(odd)
            odd += -2.0 * D.hop(even)
        return ""

    found = virtual_ranks(2, run)
    if found[0]:
        pytest.skip(found[0])


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_even_odd_solves_have_the_history_of_the_host(precision, device):
    histories = []
    for kind in ("cpu", device):
        lattice = Lattice(4, 4, 2, 4, device=kind)
        E = WilsonDirac(GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1), 0.4).even_odd()
        b = filled(lattice, Spinor(3), precision=precision, boundary={3: "antiperiodic"})
        found = cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-8 if precision == "float64" else 1e-4)
        histories.append((found.history, E.reconstruct(found.x, b)[...].tobytes()))
    assert histories[0] == histories[1]


def test_memory_is_that_of_half_the_sites(device):
    lattice = Lattice(8, 8, 8, 8, device=device)
    full = Field(lattice, Spinor(3))
    assert 2 * full.like(over=EVEN).storage.nbytes == full.storage.nbytes
    assert 2 * full.like(over=ODD).storage.nbytes == full.storage.nbytes
    small = Lattice(2, 2, 2, device=device)  # a group of sites holds both colours
    f = filled(small, Spinor(2))
    assert all(same(part, f) for part in f.split())
    e, o = f.split()
    g = f.like()
    g[...] = 3.0
    import jali

    assert np.array_equal(jali.join(e, o, out=g)[...], f[...])
