"""Hybrid Monte Carlo against exact values: one chi-square over all of them, with seeds that were written down before the first run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.special import erfc
from scipy.stats import chi2

import jali
from jali import Field, Lattice, Real, Vector
from jali.gauge import SU, GaugeField, plaquette, wilson_action
from jali.gauge.literature import torus_plaquette
from jali.hmc import HMC, Level
from jali.statistics import mean_error


@dataclass
class Case:
    """A simulation, what is measured after each trajectory, and the exact values of the means."""

    make: Callable[[], HMC]
    measure: Callable[[HMC], list[float]]
    exact: list[float]
    trajectories: int


@jali.site_function
def charge(X: Any, U: Any, total: Any) -> None:
    mu, nu = X.directions()
    loop = U[mu][X] * U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()
    total += jali.arg(loop[0, 0]) / (2 * math.pi)


def torus(
    n: int, beta: float, extents: tuple[int, int], seed: int, trajectories: int, q2: float | None = None
) -> Case:
    """Links on a torus of two dimensions; the charge of U(1) by dirac-hmc-derivatives.md, section 10."""
    group = "U(1)" if n == 1 else f"SU({n})"
    exact = [torus_plaquette(group, beta, math.prod(extents))]

    def make() -> HMC:
        U = GaugeField(Lattice(*extents), SU(n)).hot_start(seed=seed)
        return HMC(
            {"U": U},
            wilson_action(beta),
            seed=seed,
            tau=1.5,
            spread=0.3,
            levels=[Level("2MN", 6)],
            accept_always=20,
        )

    def measure(hmc: HMC) -> list[float]:
        U = hmc.fields["U"]
        own = [plaquette(U)]
        return own if q2 is None else [*own, round(hmc.lattice.sum(charge, U)) ** 2]

    return Case(make, measure, exact if q2 is None else [*exact, q2], trajectories)


@jali.action
def free(X: Any, phi: Any, *, mass2: Any, anisotropy: Any) -> Any:
    """A free scalar field; differences in the last direction count `anisotropy` times."""
    *space, time = X.directions()
    near = sum((phi[X + mu] - phi[X]) ** 2 for mu in space) + anisotropy * (phi[X + time] - phi[X]) ** 2
    return 0.5 * near + 0.5 * mass2 * phi[X] ** 2


def free_field(
    extents: tuple[int, ...], mass2: float, anisotropy: float, seed: int, trajectories: int
) -> Case:
    """<|phi(k)|^2> / V = 1 / (m^2 + sum_mu a_mu 4 sin^2(k_mu / 2)), averaged over modes of one size."""
    k2 = mass2 + sum(
        (anisotropy if mu == len(extents) - 1 else 1.0) * (4 * np.sin(np.pi * n / extents[mu]) ** 2)
        for mu, n in enumerate(np.indices(extents))
    )
    sizes, which = np.unique(np.round(k2, 12), return_inverse=True)
    which = which.reshape(k2.shape)

    def make() -> HMC:
        phi = Field(Lattice(*extents), Real())
        phi[...] = 0.0
        hmc = HMC(
            {"phi": phi},
            free(mass2=mass2, anisotropy=anisotropy),
            seed=seed,
            tau=1.5,
            spread=0.5,
            levels=[Level("4MN5", 3)],
            accept_always=20,
        )
        return hmc

    def measure(hmc: HMC) -> list[float]:
        power = np.abs(np.fft.fftn(hmc.fields["phi"][...])) ** 2 / k2.size
        return [float(power[which == k].mean()) for k in range(len(sizes))]

    return Case(make, measure, list(1 / sizes), trajectories)


@jali.action
def chain(X: Any, n: Any, *, beta: Any) -> Any:
    """Unit vectors on a chain."""
    return -1.0 * beta * n[X].dot(n[X + X.directions()[0]])


@jali.site_function
def neighbours(X: Any, n: Any, total: Any) -> None:
    total += n[X].dot(n[X + X.directions()[0]])


def heisenberg_chain(length: int, beta: float, seed: int, trajectories: int) -> Case:
    """The O(3) chain around a ring: the transfer matrix has the eigenvalues i_l(beta), modified spherical Bessel functions, 2 l + 1 times."""
    x = beta + np.linspace(-2, 2, 5) * 1e-3

    def log_z(b: float) -> float:
        values = np.array([_spherical_bessel(order, b) for order in range(12)])
        return float(
            np.log(np.sum((2 * np.arange(12) + 1) * (values / values[0]) ** length))
            + length * np.log(values[0])
        )

    weights = np.array([1, -8, 0, 8, -1]) / (12 * 1e-3)
    exact = float(sum(w * log_z(b) for w, b in zip(weights, x, strict=True))) / length

    def make() -> HMC:
        n = Field(Lattice(length), Vector(3, "real"))
        n[...] = np.array([0.0, 0.6, 0.8])
        return HMC(
            {"n": n},
            chain(beta=beta),
            seed=seed,
            tau=1.5,
            spread=0.3,
            levels=[Level("2MN", 8)],
            on_sphere=["n"],
            accept_always=20,
        )

    return Case(
        make, lambda hmc: [hmc.lattice.sum(neighbours, hmc.fields["n"]) / length], [exact], trajectories
    )


def _spherical_bessel(order: int, x: float) -> float:
    from scipy.special import spherical_in

    return float(spherical_in(order, x))


# Seeds were written before the first run and stay.
CASES = {
    "U(1), beta 2, 4 x 4": torus(1, 2.0, (4, 4), 101, 600, 0.290636112758),
    "SU(3), beta 6, 4 x 4": torus(3, 6.0, (4, 4), 104, 300),
    "anisotropic free scalar": free_field((2, 2, 4), 0.8, 2.5, 106, 600),
    "O(3) chain": heisenberg_chain(6, 1.3, 107, 600),
}
LONG = {
    "U(1), beta 2, 2 x 2": torus(1, 2.0, (2, 2), 102, 1200, 0.00529457757),
    "U(1), beta 2, 8 x 8": torus(1, 2.0, (8, 8), 111, 6000, 1.23929891072),
    "U(1), beta 4, 4 x 4": torus(1, 4.0, (4, 4), 112, 20000, 0.0318906960),
    "SU(2), beta 2.5, 4 x 4": torus(2, 2.5, (4, 4), 103, 800),
    "SU(2), beta 4, 6 x 4": torus(2, 4.0, (6, 4), 113, 4000),
    "SU(3), beta 9, 4 x 4": torus(3, 9.0, (4, 4), 114, 3000),
    "free scalar": free_field((4, 6), 0.5, 1.0, 105, 800),
    "O(3) chain, beta 3": heisenberg_chain(9, 3.0, 115, 6000),
}


def compare(cases: dict[str, Case]) -> None:
    """One chi-square over all values, <exp(-dH)> = 1 and the acceptance among them."""
    pulls: dict[str, float] = {}
    for name, case in cases.items():
        hmc = case.make()
        found, dH, accepted = [], [], []
        for t in hmc.run(case.trajectories + 20):
            if not t.forced:
                found.append(case.measure(hmc))
                dH.append(t.dH)
                accepted.append(float(t.accepted))
        for k, exact in enumerate(case.exact):
            estimate = mean_error(np.array(found)[:, k])
            pulls[f"{name}, value {k}"] = (estimate.mean - exact) / estimate.error
        weight = np.exp(-np.array(dH))
        estimate = mean_error(weight)
        pulls[f"{name}, <exp(-dH)>"] = (estimate.mean - 1) / estimate.error
        # given the violations, accept steps are independent, with the probabilities min(1, exp(-dH))
        chance = np.minimum(1, weight)
        variance = float(np.sum(chance * (1 - chance)))
        if variance > 2:  # of fewer rejections the number is not Gaussian
            pulls[f"{name}, acceptance"] = float(np.sum(accepted - chance)) / math.sqrt(variance)
        assert abs(np.mean(accepted) - erfc(math.sqrt(max(np.mean(dH), 0.0)) / 2)) < 0.05
    total = sum(one**2 for one in pulls.values())
    p = float(chi2.sf(total, len(pulls)))
    assert 1e-3 < p < 0.999, f"p = {p:.3g}: " + ", ".join(
        f"{name} {pull:+.1f}" for name, pull in pulls.items()
    )


def test_means_are_exact() -> None:
    compare(CASES)


@pytest.mark.full
def test_means_of_long_runs_are_exact() -> None:
    compare(LONG)
