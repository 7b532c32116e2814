"""What a new user gives by mistake is refused with what would be right; logarithms and the like of whole sums are actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Real, Vector
from jali.actions import phi4_action, portal_action
from jali.errors import ParameterError
from jali.hmc import HMC, Level, Monomial


@jali.action
def quadratic(X: Any, phi: Any, *, mass2: Any) -> Any:
    """A free scalar."""
    return mass2 * phi[X].norm2() + sum((phi[X + mu] - phi[X]).norm2() for mu in X.directions())


class Logarithm(jali.Action):
    """A logarithm, a root and an exponential of a whole sum."""

    fields = ("phi",)

    def value(self, phi: Any) -> Any:
        """S."""
        S = 1.0 + quadratic(mass2=0.5).value(phi)
        return 20.0 * jali.log(S) + jali.sqrt(S) + jali.exp(-0.1 * S)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"monomials": quadratic},
            r"quadratic is the formula of an action: quadratic\(mass2=...\) is an action",
        ),
        ({"monomials": [quadratic]}, "quadratic is the formula of an action"),
        ({"monomials": lambda phi: phi.norm2()}, "a Monomial is of an action, not of <function"),
        ({"fixed": "phi"}, r"fixed= is a list of names, \['phi'\], not 'phi'"),
        ({"on_sphere": "phi"}, r"on_sphere= is a list of names, \['phi'\], not 'phi'"),
        ({"levels": "2MN"}, "levels= is a list of Levels"),
        ({"levels": 7}, "levels= is a list of Levels"),
    ],
)
def test_arguments_of_another_form_are_told_what_is_right(change: Any, message: str) -> None:
    given = {"monomials": quadratic(mass2=1.0), **change}
    with pytest.raises(ParameterError, match=message):
        HMC({"phi": Field(Lattice(4, 4), Real())}, given.pop("monomials"), seed=1, **given)


def test_an_integrator_that_is_no_name_is_refused() -> None:
    with pytest.raises(ParameterError, match="integrators are leapfrog"):
        Level(["2MN"])  # type: ignore[arg-type]


def test_one_level_and_one_monomial_need_no_list() -> None:
    phi = Field(Lattice(4, 4), Real())
    hmc = HMC({"phi": phi}, Monomial(quadratic(mass2=1.0)), seed=1, levels=Level("4MN5", 2))  # type: ignore[arg-type]
    assert abs(hmc.trajectory().dH) < 0.1


def test_batches_and_lists_of_other_fields_than_links_are_refused() -> None:
    lattice = Lattice(4, 4)
    with pytest.raises(ParameterError, match="has a batch, and a Hamiltonian is one number"):
        HMC({"phi": Field(lattice, Real(), batch=3)}, quadratic(mass2=1.0), seed=1)

    @jali.action
    def two(X: Any, phi: Any) -> Any:
        return phi[0][X] ** 2 + phi[1][X] ** 2

    with pytest.raises(ParameterError, match="is one of 2 fields in a list, as links are"):
        HMC({"phi": [Field(lattice, Real()), Field(lattice, Real())]}, two(), seed=1)


def test_vectors_that_are_not_of_length_one_are_refused_on_a_sphere() -> None:
    n = Field(Lattice(4, 4), Vector(3, "real"))
    n[...] = [0.0, 0.6, 0.8]
    hmc = HMC({"n": n}, quadratic_of_n(mass2=1.0), seed=1, on_sphere=["n"])
    assert abs(hmc.trajectory().dH) < 1.0
    n[1, 2] = [0.0, 3.0, 4.0]
    hmc = HMC({"n": n}, quadratic_of_n(mass2=1.0), seed=1, on_sphere=["n"])
    with pytest.raises(
        ParameterError, match="a length of n differs from 1 by 4: divide by the lengths first"
    ):
        hmc.trajectory()


@jali.action
def quadratic_of_n(X: Any, n: Any, *, mass2: Any) -> Any:
    """A free vector."""
    return mass2 * sum((n[X + mu] - n[X]).norm2() for mu in X.directions())


def test_functions_of_a_sum_are_actions_whose_force_is_the_gradient() -> None:
    lattice = Lattice(4, 4)
    phi, S = Field(lattice, Real()), Logarithm()
    phi[...] = np.random.default_rng(2).normal(size=(4, 4))
    start, direction = phi[...].copy(), np.random.default_rng(3).normal(size=(4, 4))
    expected = np.vdot(direction, S.force(phi)[...])
    values = []
    for sign in (1, -1):
        phi[...] = start + sign * 1e-4 * direction
        values.append(S.value(phi))
    assert (values[0] - values[1]) / 2e-4 == pytest.approx(expected, rel=1e-6)
    assert abs(HMC({"phi": phi}, S, seed=1, levels=[Level("4MN5", 32)]).trajectory().dH) < 1e-2


def test_a_trajectory_that_overflows_is_rejected() -> None:
    @jali.action
    def quartic(X: Any, phi: Any) -> Any:
        return phi[X] ** 4

    phi = Field(Lattice(4, 4), Real())
    phi[...] = 6.0
    hmc = HMC({"phi": phi}, quartic(), seed=1, tau=3.0, accept_always=9, levels=[Level("leapfrog", 12)])
    t = hmc.trajectory()
    assert not np.isfinite(t.dH)
    assert not t.accepted
    assert np.all(phi[...] == 6.0)


def test_one_field_under_two_names_is_refused() -> None:
    phi = Field(Lattice(4, 4), Real())
    phi[...] = 1.0
    with pytest.raises(ParameterError, match="phi and chi are the same field"):
        HMC({"phi": phi, "chi": phi}, [phi4_action(0.1, 1.0), portal_action(0.1)], seed=1)


def test_a_simulation_that_runs_away_ends() -> None:
    @jali.action
    def hill(X: Any, phi: Any, *, height: Any) -> Any:
        return phi[X] ** 2 - height * phi[X] ** 4

    phi = Field(Lattice(4, 4), Real())
    phi[...] = 2.0
    hmc = HMC({"phi": phi}, hill(height=1.0), seed=1, tau=2.0, accept_always=20)
    with pytest.raises(ParameterError, match="the last 8 trajectories is no number"):
        list(hmc.run(30))
    assert np.isfinite(phi[...]).all()
