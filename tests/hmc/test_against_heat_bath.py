"""Hybrid Monte Carlo and heat bath draw from one distribution: means in four dimensions, one chi-square over all, seeds written before the first run.

Where the literature has no number (DBW2) the heat bath is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import jali
from jali import Lattice
from jali.gauge import (
    SU,
    GaugeField,
    dbw2_action,
    heat_bath_sweep,
    iwasaki_action,
    metropolis_sweep,
    overrelaxation_sweep,
    plaquette,
    symanzik_action,
    wilson_action,
    wilson_loop,
)
from jali.hmc import HMC, Level
from jali.statistics import mean_error

EXTENTS = (4, 4, 4, 4)


def by_hmc(U: Any, action: Any, seed: int, trajectories: int, steps: int) -> list[list[float]]:
    hmc = HMC(
        {"U": U}, action, seed=seed, tau=1.5, spread=0.3, levels=[Level("4MN5", steps)], accept_always=50
    )
    return [[plaquette(U), wilson_loop(U, 1, 2)] for t in hmc.run(trajectories + 50) if not t.forced]


def by_heat_bath(U: Any, action: Any, seed: int, sweeps: int) -> list[list[float]]:
    rng = jali.Random(seed)
    found = []
    for k in range(sweeps + 50):
        heat_bath_sweep(U, action, rng)
        overrelaxation_sweep(U, action)
        overrelaxation_sweep(U, action)
        if k >= 50:
            found.append([plaquette(U), wilson_loop(U, 1, 2)])
    return found


def pulls(
    n: int, action: Any, seed: int, count: int, steps: int, other: Callable[..., Any] = by_heat_bath
) -> list[float]:
    """Differences of the means in units of their errors."""
    lattice = Lattice(*EXTENTS)
    start = GaugeField(lattice, SU(n)).hot_start(seed=seed)
    ways = (
        np.array(by_hmc(start.copy(), action, seed, count, steps)),
        np.array(other(start.copy(), action, seed, count)),
    )
    found = []
    for k in range(2):
        a, b = (mean_error(way[:, k]) for way in ways)
        found.append((a.mean - b.mean) / np.hypot(a.error, b.error))
    return found


def agree(all_pulls: list[float]) -> None:
    # plaquette and 1 x 2 loop of a run are correlated: only one of each counts
    used = np.array(all_pulls[::2])
    p = float(chi2.sf((used**2).sum(), len(used)))
    assert 1e-3 < p < 0.999, f"p = {p:.3g}: {np.round(all_pulls, 2)}"
    assert np.abs(all_pulls).max() < 4


def test_hmc_and_heat_bath_agree() -> None:
    agree(pulls(2, wilson_action(2.3), 201, 300, 4))


def by_metropolis(U: Any, action: Any, seed: int, sweeps: int) -> list[list[float]]:
    rng = jali.Random(seed)
    found = []
    for k in range(2 * sweeps + 200):
        metropolis_sweep(U, action, rng, width=0.5, hits=4)
        if k >= 200:
            found.append([plaquette(U), wilson_loop(U, 1, 2)])
    return found


@jali.action
def adjoint_plaquettes(X: Any, U: Any, *, beta: Any) -> Any:
    """(1 - |tr P|^2 / n^2), which is not linear in a link."""
    total: Any = 0.0
    for mu, nu in X.planes():
        loop = (U[mu][X] * U[nu][X + mu]) * (U[nu][X] * U[mu][X + nu]).dagger()
        total = total + 1.0 - loop.trace().norm2() * 0.25
    return beta * total


@pytest.mark.full
def test_hmc_and_heat_bath_agree_for_all_actions() -> None:
    found = []
    for seed, (n, action) in enumerate(
        [
            *((2, wilson_action(beta)) for beta in (1.8, 2.3, 2.6)),
            *((3, wilson_action(beta)) for beta in (5.2, 5.7, 6.2)),
            *((3, symanzik_action(beta)) for beta in (3.6, 4.3)),
            *((3, iwasaki_action(beta)) for beta in (2.0, 2.6)),
            (3, dbw2_action(0.8)),
        ],
        start=210,
    ):
        found += pulls(n, action, seed, 1500, 5)
    found += pulls(2, adjoint_plaquettes(beta=2.0) + wilson_action(1.5), 230, 1500, 6, by_metropolis)
    agree(found)
