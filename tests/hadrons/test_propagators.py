"""`D.propagator`: many members in parts, lattices without colours."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Lattice, Random
from jali.fermions import Staggered, WilsonDirac, dirac
from jali.gauge import SU, GaugeField, stout_smear
from jali.hadrons import noise_source, point_source


def smooth_links(*extents: int) -> GaugeField:
    return stout_smear(GaugeField(Lattice(*extents), SU(2)).hot_start(seed=5), rho=0.1, steps=4)


def test_more_members_than_a_solve_takes_are_solved_in_parts(monkeypatch):
    monkeypatch.setattr(dirac, "MOST_AT_ONCE", 4)
    D = Staggered(smooth_links(2, 2, 2, 4), 0.5)
    b = noise_source(D, Random(seed=6), "Z2", dilution=("colour", "time")).members[:6].copy()
    found = []
    S = D.propagator(b, 1e-11, on_solution=found.append)
    assert [len(one) for one in found] == [4, 2]
    assert np.all((D @ S - b).norm2() <= 1e-22 * b.norm2())
    alone = D.propagator(b.members[5:6].copy(), 1e-11)
    assert np.allclose(S.members[5][...], alone[..., 0, :], rtol=0, atol=1e-10)


def test_a_lattice_of_odd_extents_has_no_colours_and_is_solved_as_a_whole():
    D = WilsonDirac(smooth_links(3, 3, 3, 4), mass=1.0)
    b = point_source(D)
    assert not b.has_colours
    found = []
    S = D.propagator(b, 1e-11, on_solution=found.append)
    assert np.all((D @ S - b).norm2() <= 1e-22)
    assert "even-odd" not in found[0].explain().partition(".")[0]
    with pytest.raises(jali.ParameterError, match="no even-odd forms, or an extent of the lattice is odd"):
        jali.solve(D, b, 1e-8, form="even-odd")
