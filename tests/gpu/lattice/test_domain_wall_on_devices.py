"""Domain wall operators on devices: solves, whose members are one vector, have the history of the host, in graphs as well."""

from __future__ import annotations

import numpy as np
import pytest

from jali import SU, Field, Lattice, Spinor
from jali.fermions import DomainWallDirac
from jali.gauge import GaugeField
from jali.solvers import cg


@pytest.mark.short(1)
@pytest.mark.parametrize("form", ["whole", "asymmetric", "symmetric"])
@pytest.mark.parametrize(("b", "c"), [(1.5, 0.5), (1.0, 0.0)])
def test_solves_have_the_history_of_the_host(b, c, form, device):
    histories = []
    for kind in ("cpu", device):
        lattice = Lattice(4, 2, 2, 4, device=kind)
        D = DomainWallDirac(GaugeField(lattice, SU(2)).hot_start(seed=1), 0.4, 1.4, Ls=3, b=b, c=c)
        eta = Field(lattice, Spinor(2), boundary={3: "antiperiodic"})
        eta[...] = np.random.default_rng(1).normal(size=eta.shape)
        for interval in (1, 4):
            rhs = D.source(eta)
            if form == "whole":
                found = cg(D.normal, D.adjoint(rhs), rtol=1e-8, check_interval=interval)
                x = found.x
            else:
                E = D.even_odd(form=form)
                found = cg(E.normal, E.adjoint(E.prepare(rhs)), rtol=1e-8, check_interval=interval)
                x = E.reconstruct(found.x, rhs)
            histories.append((found.history, x[...].tobytes(), D.physical(x)[...].tobytes()))
    assert histories[1:] == histories[:1] * 3
