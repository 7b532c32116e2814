"""Improved actions: exact at weak coupling, and one answer from heat bath, overrelaxation and Metropolis."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chains import COLOURS, chain, check

from jali.gauge import Action, dbw2_action, iwasaki_action, plaquette, symanzik_action, wilson_loop
from jali.statistics import mean_error

IMPROVED = {
    "Symanzik": (symanzik_action, -1 / 12),
    "Iwasaki": (iwasaki_action, -0.331),
    "DBW2": (dbw2_action, -1.4088),
}


def loops(extents: tuple[int, ...], long: int) -> np.ndarray:
    """A row for each long x 1 loop, a column for each link: how often the loop goes along it, with its sense."""
    d, rows = len(extents), []
    for x, (mu, nu) in itertools.product(np.ndindex(*extents), itertools.permutations(range(d), 2)):
        if long == 1 and mu > nu:
            continue
        row = np.zeros((d, *extents))
        steps = [(mu, k, 0, 1) for k in range(long)] + [(mu, k, 1, -1) for k in range(long)]
        for direction, along, across, sense in [*steps, (nu, long, 0, 1), (nu, 0, 0, -1)]:
            at = list(x)
            at[mu] = (at[mu] + along) % extents[mu]
            at[nu] = (at[nu] + across) % extents[nu]
            row[(direction, *at)] += sense
        rows.append(row.ravel())
    return np.array(rows)


def gaussian_deficits(extents: tuple[int, ...], c1: float) -> tuple[float, float]:
    """beta (1 - W) / (n^2 - 1) of plaquettes and 2 x 1 loops, beta -> infinity, from the quadratic form of the links."""
    small, large = loops(extents, 1), loops(extents, 2)
    propagator = np.linalg.pinv(
        (1 - 8 * c1) * small.T @ small + c1 * large.T @ large, rcond=1e-10, hermitian=True
    )
    return tuple(0.5 * float(((W @ propagator) * W).sum(1).mean()) for W in (small, large))


@pytest.mark.short(1)
@pytest.mark.parametrize("group", ["U(1)", "SU(2)", pytest.param("SU(3)", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", IMPROVED)
def test_loops_at_weak_coupling_are_those_of_the_quadratic_action(name: str, group: str) -> None:
    extents, beta = (4, 8, 8), 2000.0  # 4 ranks can have halos of 2
    make, c1 = IMPROVED[name]
    exact = gaussian_deficits(extents, c1)
    modes = max(COLOURS[group] ** 2 - 1, 1)

    def observe(U):
        return [beta * (1 - plaquette(U)) / modes, beta * (1 - wilson_loop(U, 2, 1)) / modes]

    series = chain(group, make(beta), extents, 250, seed=5, thermalise=80, observe=observe)
    for column, value in zip(series.T, exact, strict=True):
        # the next order is 1 / beta; of SU(n) modes that wind around the lattice fluctuate beyond all Gaussians
        check(column, value, most=0.02 * value, exact_error=(0.003 if modes == 1 else 0.01) * value)


def agree(group: str, action: Action, extents: tuple[int, ...], sweeps: int, most: float) -> None:
    kinds = ("production", "heat bath", "many hits")
    found = [
        mean_error(
            chain(
                group,
                action,
                extents,
                sweeps * (3 if kind == "many hits" else 1),
                seed=seed,
                update=kind,
                thermalise=150,
            )
        )
        for seed, kind in enumerate(kinds)
    ]
    for one, other in itertools.combinations(found, 2):
        error = np.hypot(one.error, other.error)
        assert abs(one.mean - other.mean) < 3.5 * error < 3.5 * most, f"{one} and {other}"


@pytest.mark.full
@pytest.mark.parametrize(("name", "beta"), [("Symanzik", 4.2), ("Iwasaki", 2.3)])
def test_all_algorithms_have_one_su3_plaquette(name: str, beta: float) -> None:
    agree("SU(3)", IMPROVED[name][0](beta), (4, 4, 4, 4), 120, 6e-3)


@pytest.mark.full
@pytest.mark.parametrize(("name", "beta"), [("Symanzik", 4.2), ("Iwasaki", 2.3), ("DBW2", 0.5)])
def test_all_algorithms_have_one_su3_plaquette_to_three_digits(name: str, beta: float) -> None:
    agree("SU(3)", IMPROVED[name][0](beta), (6, 6, 6, 6), 600, 1e-3)
