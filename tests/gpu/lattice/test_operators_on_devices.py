"""Dirac operators on devices: all of them have the bits of the host, in each precision and in few bits, with every way that halos travel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_driver import TWO_DEVICES, use_fake_ccl, use_fake_gpus

from jali import EVEN, ODD, Field, Lattice, _core
from jali.comm.virtual import virtual_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "fermions"))

from operators import OPERATORS, WALLS, storage_beside, stored_operator
from properties import random_field
from test_wilson import random_links

# (precision, storage of links)
FORMATS = [("float64", "float64"), ("float32", "fixed16-12"), ("float32", "float32")]


def results(name, device, precision, links):
    """Bytes of D psi and D^dagger psi, of a hop and a normal operator on half of the sites, and of D on a batch of four."""
    lattice = Lattice(4, 2, 2, 4, device=device)
    few = storage_beside(links) if name == "fat and long links" else links
    D = stored_operator(name, random_links(lattice, 3, 3), few, precision)

    def stored(**options):
        psi = random_field(D, 1, **options)
        boundary, batch = psi.boundary, psi.batch
        return Field(lattice, D.element, precision, storage_beside(links), boundary, batch=batch).assign(psi)

    psi, E = stored(), D.even_odd(form="symmetric")
    half = psi.on(ODD)
    found = [D @ psi, D.dagger @ psi, D.hop(half, plus=psi.on(EVEN), scale=-0.5), E.normal(half)]
    if name not in WALLS:
        found.append(D @ stored(batch=4))
    return [field[...].tobytes() for field in found]


SHORT = {"anisotropic Wilson": 0, "twisted clover": 1, "fat and long links": 2, "Moebius": 1}


@pytest.mark.parametrize(
    ("name", "precision", "links"),
    [
        pytest.param(name, *chosen, marks=[] if SHORT.get(name) == k else pytest.mark.full)
        for name in OPERATORS
        for k, chosen in enumerate(FORMATS)
    ],
)
@pytest.mark.short(2)
def test_operators_have_the_bits_of_the_host(name, precision, links, device):
    assert results(name, device, precision, links) == results(name, "cpu", precision, links)


POLICIES = [name for name, *_ in _core.halo_policies("cuda") if "mpi" not in name]


@TWO_DEVICES
@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("policy", "name"),
    [
        pytest.param(policy, name, marks=[] if k % 4 == n else pytest.mark.full)
        for k, policy in enumerate(POLICIES)
        for n, name in enumerate(["fat and long links", "Moebius", "twisted clover"])
    ],
)
@pytest.mark.short(4)
def test_every_halo_policy_carries_them(policy, name, monkeypatch, use_settings, tmp_path):
    def run(device):
        lattice = Lattice(4, 2, 2, 8, device=device)
        if device == "cuda":
            why = lattice.layout("float64").why_not_halo_policy(lattice.communicator.core, policy)
            if why:
                return why
        D = OPERATORS[name](random_links(lattice, 3, 3))
        psi, E = random_field(D, 1), D.even_odd()
        found = []
        for _ in range(2):  # halos that have been used before
            psi = D.normal(psi)
            found += [psi[...].tobytes(), E.apply(psi.on(ODD))[...].tobytes()]
        return found

    alone = run("cpu")
    use_fake_gpus(monkeypatch, 2, folder=tmp_path)
    use_fake_ccl(use_settings)
    use_settings(halo_policy=policy)
    found = virtual_ranks(2, run, "cuda")
    if isinstance(found[0], str):
        pytest.skip(found[0])
    assert found == [alone, alone]
