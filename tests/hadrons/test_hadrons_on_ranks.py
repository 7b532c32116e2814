"""Sources, smearing, sinks and correlators have the same bits on any number of ranks."""

from __future__ import annotations

import pytest
from hadron_bytes import EXTENTS, ORIGIN, everything

import jali
from jali import SU, Lattice
from jali.fermions import DomainWallDirac, WilsonDirac
from jali.gauge import GaugeField
from jali.hadrons import point_source

pytestmark = pytest.mark.lanes


@pytest.fixture(scope="module")
def alone():
    return everything()


@pytest.mark.short(3)
@pytest.mark.parametrize(
    ("ranks", "grid"),
    [
        (4, (2, 1, 1, 2)),
        (1, None),
        (3, (1, 1, 3, 1)),
        (2, (1, 1, 1, 2)),
        (2, (2, 1, 1, 1)),
        (3, (1, 1, 1, 3)),
    ],
)
def test_all_bits_are_those_of_one_rank(alone, ranks, grid):
    for found in jali.virtual_ranks(ranks, lambda: everything(grid=grid)):
        assert [a == b for a, b in zip(found, alone, strict=True)] == [True] * len(alone)


@pytest.mark.full
def test_propagators_have_the_bits_of_one_rank_too():
    def run(grid=None):
        U = GaugeField(Lattice(*EXTENTS, grid=grid), SU(3)).hot_start(seed=1)
        found = []
        for D in (WilsonDirac(U, 0.5), DomainWallDirac.shamir(U, 0.3, 1.6, Ls=4)):
            source = point_source(D, ORIGIN).members[5:7].copy()
            found.append(D.propagator(source, 1e-8)[...].tobytes())
        return found

    assert jali.virtual_ranks(2, lambda: run((1, 1, 1, 2))) == [run()] * 2
