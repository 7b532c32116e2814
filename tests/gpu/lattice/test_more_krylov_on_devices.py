"""Flexible GMRES, Chebyshev iteration, block conjugate gradients and Schwarz blocks on devices: the history and the bits of the host, in graphs and without."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from jali import SU, Field, Lattice, Spinor
from jali.fermions import SchwarzBlocks, WilsonDirac
from jali.gauge import GaugeField
from jali.solvers import ChebyshevPreconditioner, block_cg, chebyshev, fgmres, gcr

SOLVERS = {
    "fgmres": functools.partial(fgmres, restart=4),
    "chebyshev": functools.partial(chebyshev, window=(0.15, 40.0)),
    "block_cg": block_cg,
    "schwarz": functools.partial(gcr, restart=4),
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
        b.members[1][...] = 2.0 * b.members[0][...]
    return WilsonDirac(U, 0.4), b


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("name", "batch"),
    [("block_cg", 3), ("schwarz", None), ("chebyshev", 3), ("fgmres", 3), ("fgmres", None), ("schwarz", 3)],
)
def test_solves_have_the_history_of_the_host(name, batch, device):
    def found(kind, **options):
        D, b = setting(kind, batch)
        M = {}
        if name == "fgmres":
            M = {"M": ChebyshevPreconditioner(D.normal, (2.0, 40.0), 1)}
        if name == "schwarz":
            M = {"M": SchwarzBlocks(D, (2, 2, 2), iterations=2)}
        one = SOLVERS[name](D if name == "schwarz" else D.normal, b, rtol=1e-6, **M, **options)
        members = one.members if batch else [one]
        return (
            [(m.history, m.residual, m.iterations) for m in members],
            one.x[...].tobytes(),
            members[0].check_interval,
        )

    expected = found("cpu", check_interval=1)
    in_graphs = found(device)
    assert in_graphs[2] > 1 or name == "fgmres"  # whose graph is one cycle
    assert in_graphs[:2] == expected[:2]
    assert found(device, check_interval=1)[:2] == expected[:2]
