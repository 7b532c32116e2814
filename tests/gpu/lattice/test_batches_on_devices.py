"""Batches on devices: the bits of the host, of any number of members, formats and ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_gpus

import jali
from jali import SU, Field, Lattice, Random, Spinor, Vector
from jali.comm.virtual import virtual_ranks
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import cg

sys.path.insert(0, str(Path(__file__).parents[2] / "lattice"))

from test_batches import batch_of, filled, run_batch
from test_views_of_batches import run_views


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("precision", "storage"), [("float64", None), ("float32", None), ("float64", "fixed16")]
)
def test_members_have_the_bits_of_the_host(seed, precision, storage, device):
    extents, members = [((4, 6), 1), ((6, 6), 3), ((4, 2, 6), 8), ((2, 4, 2, 4), 2)][seed]
    found = run_batch(seed, extents, members, device, precision, storage)
    assert found == run_batch(seed, extents, members, "cpu", precision, storage)


@pytest.mark.parametrize(
    ("precision", "storage"), [("float64", None), ("float32", None), ("float64", "fixed16")]
)
@pytest.mark.short(1)
def test_views_of_one_memory_have_the_bits_of_the_host(precision, storage, device):
    assert run_views(device, precision, storage) == run_views("cpu", precision, storage)


@TWO_DEVICES
@pytest.mark.short(2)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("seed", range(4))
def test_ranks_of_devices_too(seed, monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    extents = [(4, 12), (8, 6), (4, 2, 8), (2, 4, 2, 8)][seed]
    found = virtual_ranks(2, lambda: run_batch(seed, extents, 1 + seed, "cuda"))
    assert found == [run_batch(seed, extents, 1 + seed)] * 2


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_solves_of_a_batch_are_graphs_with_the_bits_of_the_host(precision, device):
    found = []
    for kind, check_interval in (("cpu", 1), (device, 8), (device, 1)):
        lattice = Lattice(4, 2, 2, 4, device=kind)
        U = GaugeField(lattice, SU(2), precision=precision).hot_start(seed=1)
        E = WilsonDirac(U, 0.4).even_odd()
        b = batch_of([filled(lattice, Spinor(2), k, precision=precision) for k in range(2)])
        solved = cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-4, check_interval=check_interval)
        assert solved[0].check_interval == check_interval
        found.append([(one.history, one.x[...].tobytes()) for one in solved.members])
    assert found[0] == found[1] == found[2]


@TWO_DEVICES
@pytest.mark.ranks(2)
def test_views_on_ranks_of_devices_too(monkeypatch):
    use_fake_gpus(monkeypatch, 2)
    assert virtual_ranks(2, lambda: run_views("cuda")) == [run_views()] * 2


@jali.site_function
def carried(X, out, psi, link, factors, rng, total):
    mu = X.directions()[0]
    ahead = link[X] * psi[X + mu] + factors[X.member] * (link[X - mu].dagger() * psi[X - mu])
    out[X] = rng.gaussian(X) * ahead + psi[X + mu, X.member + 1]
    total += ahead.norm2()


@jali.site_function
def doubled(X, out, psi):
    out[X] = 2.0 * psi[X]


def test_a_thread_computes_two_members_that_share_fields_with_the_bits_of_the_host(device):
    def run(kind, batch):
        lattice = Lattice(4, 2, 6, device=kind)
        link = GaugeField(lattice, SU(2)).hot_start(seed=1).fields[0]
        psi = batch_of([filled(lattice, Vector(2, "complex"), k) for k in range(batch)])
        arguments = psi.like(), psi, link, np.arange(1.0, batch + 1)
        sums = lattice.sum(carried, *arguments, Random(seed=3))
        return arguments[0][...].tobytes(), sums.tobytes()

    for batch in (1, 3, 4):
        assert run(device, batch) == run("cpu", batch)


def test_two_members_are_in_a_thread_where_that_saves_loads(device):
    lattice = Lattice(4, 2, 6, device=device)
    link = GaugeField(lattice, SU(2)).hot_start(seed=1).fields[0]
    for batch, together in ((4, 2), (3, 1)):
        psi = Field(lattice, Vector(2, "complex"), batch=batch)
        (kernel,) = moved.kernels(psi.like(), psi, link)
        assert kernel.lowering.together == together
        assert kernel.cost.bytes_moved == kernel.cost.bytes_least + 32 * 2 * (batch // together - 1)
        (kernel,) = doubled.kernels(psi.like(), psi)  # they share nothing
        assert kernel.lowering.together == 1


@jali.site_function
def moved(X, out, psi, link):
    mu = X.directions()[0]
    out[X] = link[X] * psi[X + mu]
