"""Named actions of scalar fields, their means and other names of their fields: values by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, LayoutError, Real, Vector
from jali.actions import phi4_action, portal_action, scalar_means, sigma_action
from jali.errors import ParameterError
from jali.gauge import SU, Algebra, GaugeField, adjoint_higgs_action, higgs_action, higgs_means, wilson_action
from jali.hmc import HMC, Monomial
from jali.hmc.checks import check_simulation

EXTENTS = (3, 4)


def random(element: Any, seed: int, lattice: Lattice | None = None) -> Field:
    phi = Field(lattice or Lattice(*EXTENTS), element)
    rng = np.random.default_rng(seed)
    shape = (*EXTENTS, *element.numpy_shape)
    values = rng.normal(size=shape)
    if element.type.kind == "complex":
        values = values + 1j * rng.normal(size=shape)
    if element.codec == "algebra":
        values = values - values.conj().swapaxes(-1, -2)
        values -= (
            np.eye(element.type.shape[0])
            * np.einsum("...ii->...", values)[..., None, None]
            / element.type.shape[0]
        )
    phi[...] = values
    return phi


def components(phi: Field) -> np.ndarray:
    """Complex numbers at each site, in one row."""
    return phi.local().reshape(*EXTENTS, -1)


def moments(z: np.ndarray, ahead: list[np.ndarray]) -> tuple[float, float, float]:
    """Sums of |phi|^2, |phi|^4 and of the hopping term."""
    size = np.sum(abs(z) ** 2, axis=-1)
    return float(size.sum()), float((size**2).sum()), float(sum(np.sum(z.conj() * one).real for one in ahead))


def quartic_and_hopping(sums: tuple[float, float, float], kappa: float, lam: float) -> float:
    phi2, phi4, hopping = sums
    return phi2 + lam * (phi4 - 2 * phi2 + np.prod(EXTENTS)) - 2 * kappa * hopping


@pytest.mark.parametrize("element", [Real(), Complex(), Vector(3, "real")], ids=str)
def test_phi4_and_means_are_those_of_numpy(element: Any) -> None:
    phi = random(element, 1)
    z = components(phi)
    sums = moments(z, [np.roll(z, -1, mu) for mu in (0, 1)])
    assert phi4_action(0.13, 0.7).value(phi) == pytest.approx(quartic_and_hopping(sums, 0.13, 0.7), rel=1e-13)
    volume = z[..., 0].size
    assert scalar_means(phi) == pytest.approx(
        (sums[0] / volume, sums[1] / volume, sums[2] / (2 * volume)), rel=1e-13
    )


def test_sigma_and_portal_are_those_of_numpy() -> None:
    n = random(Vector(3, "real"), 2)
    v = n.local()
    bonds = sum(np.sum(v * np.roll(v, -1, mu)) for mu in (0, 1))
    assert sigma_action(1.4).value(n) == pytest.approx(-1.4 * bonds, rel=1e-13)
    chi = random(Complex(), 3, n.lattice)
    product = np.sum((v**2).sum(-1) * abs(chi.local()) ** 2)
    assert portal_action(0.3).value(n, chi) == pytest.approx(0.3 * product, rel=1e-13)


@pytest.mark.parametrize("adjoint", [False, True], ids=["fundamental", "adjoint"])
def test_higgs_actions_and_means_are_those_of_numpy_and_gauge_invariant(adjoint: bool) -> None:
    lattice = Lattice(*EXTENTS)
    U = GaugeField(lattice, SU(2)).hot_start(seed=4)
    links = [field.local() for field in U.fields]
    phi = random(Algebra(2) if adjoint else Vector(2), 5, lattice)
    p = phi.local()
    ahead = [np.roll(p, -1, mu) for mu in (0, 1)]
    if adjoint:
        moved = [u @ one @ u.conj().swapaxes(-1, -2) for u, one in zip(links, ahead, strict=True)]
        sigmas = np.array([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]])

        def reals(matrices: np.ndarray) -> np.ndarray:  # phi^a = -2 tr(phi T^a), T^a = -i sigma_a / 2
            return np.einsum("...ij,aji->...a", matrices, 1j * sigmas).real

        z, moved = reals(p), [reals(one) for one in moved]
        S = adjoint_higgs_action(0.2, 0.6)
    else:
        z, moved = p, [np.einsum("...ij,...j->...i", u, one) for u, one in zip(links, ahead, strict=True)]
        S = higgs_action(0.2, 0.6)
    sums = moments(z, moved)
    assert S.value(U, phi) == pytest.approx(quartic_and_hopping(sums, 0.2, 0.6), rel=1e-13)
    volume = np.prod(EXTENTS)
    assert higgs_means(U, phi) == pytest.approx(
        (sums[0] / volume, sums[1] / volume, sums[2] / (2 * volume)), rel=1e-13
    )
    invariant, *forces = check_simulation(HMC({"U": U, "phi": phi}, S, seed=1), reversibility=False)
    assert len(forces) == 2
    assert invariant.what.startswith(str(S))
    assert invariant.deviation < 1e-13


def test_means_of_other_fields_are_refused() -> None:
    U = GaugeField(Lattice(*EXTENTS), SU(2)).cold_start()
    with pytest.raises(
        LayoutError,
        match=r"a Higgs field of SU\(2\) is of Vector\(2\) or Algebra\(2\), and .* of Vector\(3\)",
    ):
        higgs_means(U, random(Vector(3), 1, U.lattice))
    with pytest.raises(LayoutError, match="scalar_means takes a field"):
        scalar_means(U)  # type: ignore[arg-type]


def test_fields_of_an_action_have_other_names() -> None:
    phi = random(Real(), 6)
    chi = random(Real(), 7, phi.lattice)
    S = phi4_action(0.1, 0.5)
    T = S.renamed(phi="chi")
    assert (T.fields, T.kappa, repr(T)) == (("chi",), 0.1, repr(S))
    assert T == S.renamed(phi="chi") != S == S.renamed()
    assert T.value(chi) == S.value(chi)
    np.testing.assert_array_equal(T.force(chi, of="chi").local(), S.force(chi).local())
    both = portal_action(0.3).renamed(phi="chi", chi="phi")
    assert both.fields == ("chi", "phi")
    assert both.value(chi, phi) == portal_action(0.3).value(chi, phi)
    higgs = higgs_action(0.1, 0.5).renamed(phi="h")
    assert higgs.fields == ("U", "h")
    assert (wilson_action(2.0) + higgs).fields == ("U", "h")


@pytest.mark.parametrize("name", ["kappa", "X", "lambda", "a b", ""])
def test_names_that_no_field_can_have_are_refused(name: str) -> None:
    with pytest.raises(jali.ParameterError, match="phi4 cannot have a field called"):
        phi4_action(0.1, 0.5).renamed(phi=name)
    with pytest.raises(jali.ParameterError, match="depends on phi, not on 'psi'"):
        phi4_action(0.1, 0.5).renamed(psi=name)


def test_charged_fields_of_u1_are_checked_where_their_representation_is_given() -> None:
    U = GaugeField(Lattice(*EXTENTS), SU(1)).hot_start(seed=1)
    phi = random(Vector(1), 8, U.lattice)
    hmc = HMC({"U": U, "phi": phi}, Monomial(higgs_action(0.2, 0.5), name="higgs"), seed=1)
    quiet = {"reversibility": False}
    assert len(check_simulation(hmc, **quiet)) == 2
    first, *rest = check_simulation(hmc, **quiet, representations={"phi": "fundamental"})
    assert first.what.startswith("higgs after a random gauge transformation")
    assert len(rest) == 2
    with pytest.raises(jali.ParameterError, match="higgs is not gauge-invariant"):
        check_simulation(hmc, **quiet, representations={"phi": "neutral"})
    with pytest.raises(jali.ParameterError, match=r"phi holds Vector\(1\), which is neutral or fundamental"):
        check_simulation(hmc, **quiet, representations={"phi": "adjoint"})
    with pytest.raises(jali.ParameterError, match="representations= names 'chi'"):
        check_simulation(hmc, **quiet, representations={"chi": "neutral"})


@pytest.mark.parametrize("wrong", ["x", None, [1.0], np.array([0.1, 0.2]), True, 10**400, float("nan"), 1j])
def test_couplings_that_are_no_numbers_are_refused(wrong: Any) -> None:
    for make in (
        lambda: phi4_action(wrong, 1.0),
        lambda: higgs_action(0.1, wrong),
        lambda: adjoint_higgs_action(wrong, 1.0),
        lambda: portal_action(wrong),
        lambda: sigma_action(wrong),
        lambda: wilson_action(wrong),
    ):
        with pytest.raises(ParameterError, match="is a finite number, not"):
            make()


def test_what_is_not_bounded_below_is_refused() -> None:
    for make in (phi4_action, higgs_action, adjoint_higgs_action):
        with pytest.raises(ParameterError, match="not bounded below"):
            make(0.1, -1e-3)


def test_an_action_without_links_of_a_charged_field_is_found() -> None:
    U = GaugeField(Lattice(*EXTENTS), SU(2)).hot_start(seed=1)
    phi = random(Vector(2), 3, U.lattice)
    hopping = phi4_action(0.1, 0.0)
    charged = HMC({"U": U, "phi": phi}, [wilson_action(1.0), higgs_action(0.1, 1.0), hopping], seed=1)
    with pytest.raises(ParameterError, match="not gauge-invariant"):
        check_simulation(charged, reversibility=False)
    neutral = HMC({"U": U, "phi": phi}, [wilson_action(1.0), hopping], seed=1)
    assert len(check_simulation(neutral, reversibility=False)) == 3
    with pytest.raises(ParameterError, match="not gauge-invariant"):
        check_simulation(neutral, reversibility=False, representations={"phi": "fundamental"})
