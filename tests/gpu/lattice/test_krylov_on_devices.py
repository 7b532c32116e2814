"""Krylov solvers on devices: the history and the bits of the host, in graphs, which they take without being asked, and on batches."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from jali import SU, Field, Lattice, Spinor
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import bicgstab, bicgstabl, cg, cgnr, defect_correction, gcr, krylov, minres, mr
from jali.vectors import vectors_of


def halved(r, z):
    vectors_of("z", z).update([(z, 0, [(0.5, r)])])


SOLVERS = {
    "cgnr": cgnr,
    "bicgstab": bicgstab,
    "bicgstabl": functools.partial(bicgstabl, directions=3),
    "gcr": functools.partial(gcr, restart=5, M=halved),
    "mr": mr,
    "minres": minres,
    "cg": functools.partial(cg, M=halved),
}


def setting(kind, batch):
    """The Wilson operator of the same links on any device, and a source."""
    lattice = Lattice(4, 2, 4, device=kind)
    U = GaugeField(lattice, SU(2))
    for u, v in zip(
        U.fields, GaugeField(Lattice(4, 2, 4, device="cpu"), SU(2)).hot_start(seed=2).fields, strict=True
    ):
        u[...] = v[...]
    b = Field(lattice, Spinor(2), batch=batch)
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    if batch:
        b.members[1][...] = 0.0
    return WilsonDirac(U, 0.4), b


@pytest.mark.short(2)
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", SOLVERS)
def test_solves_have_the_history_of_the_host(name, batch, device):
    def found(kind, **options):
        D, b = setting(kind, batch)
        one = SOLVERS[name](D.normal if name in ("minres", "cg") else D, b, rtol=1e-9, **options)
        members = one.members if batch else [one]
        return (
            [(m.history, m.residual, m.iterations) for m in members],
            one.x[...].tobytes(),
            members[0].check_interval,
        )

    expected = found("cpu", check_interval=1)
    in_graphs = found(device)
    steps = {"gcr": 5, "minres": 2}.get(name, 1)
    assert in_graphs[2] == krylov.TOGETHER // steps
    assert in_graphs[:2] == expected[:2]
    assert found(device, check_interval=1)[:2] == expected[:2]


@pytest.mark.short(1)
def test_defect_correction_has_the_bits_of_the_host(device):
    def found(kind):
        D, b = setting(kind, None)
        E = WilsonDirac([u.like(precision="float32", storage="float16").assign(u) for u in D.links], 0.4)
        low = b.like(precision="float32", storage="fixed16")
        one = defect_correction(D, b, lambda r: cgnr(E, r, rtol=1e-2), like=low)
        return one.history, one.iterations, one.x[...].tobytes()

    assert found(device) == found("cpu")
