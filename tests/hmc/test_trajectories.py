"""Trajectories: reversibility, histories that do not depend on ranks, fields of all kinds, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Real, Vector
from jali.errors import LayoutError, ParameterError
from jali.gauge import SU, GaugeField, plaquette, stout_smear, wilson_action
from jali.hmc import HMC, Level, Monomial


@jali.action
def scalar(X: Any, phi: Any, *, mass2: Any, coupling: Any) -> Any:
    """A real or complex scalar."""
    near = sum((phi[X + mu] - phi[X]).norm2() for mu in X.directions())
    return 0.5 * near + 0.5 * mass2 * phi[X].norm2() + coupling * phi[X].norm2() ** 2


@jali.action
def heisenberg(X: Any, n: Any, *, beta: Any) -> Any:
    """The O(n) model."""
    return -1.0 * beta * sum(n[X].dot(n[X + mu]) for mu in X.directions())


@jali.action
def higgs(X: Any, U: Any, phi: Any, *, kappa: Any, lam: Any) -> Any:
    """A fundamental Higgs field of SU(2)."""
    hop = sum(phi[X].dot(U[mu][X] * phi[X + mu]).real for mu in X.directions())
    size = phi[X].norm2()
    return size + lam * (size - 1.0) ** 2 - 2.0 * kappa * hop


def filled(field: Field, seed: int = 1) -> Field:
    chance = np.random.default_rng(seed)
    numbers = chance.normal(size=field.shape)
    field[...] = numbers + 1j * chance.normal(size=field.shape) if np.iscomplexobj(field[...]) else numbers
    return field


def unit(field: Field) -> Field:
    filled(field)
    field[...] = field[...] / np.linalg.norm(field[...], axis=-1, keepdims=True)
    return field


def simulation(kind: str, lattice: Any, **options: Any) -> HMC:
    if kind == "gauge":
        U = GaugeField(lattice, SU(3)).hot_start(seed=4)
        return HMC({"U": U}, wilson_action(5.5), seed=7, **options)
    if kind == "smeared":
        U = GaugeField(lattice, SU(2)).hot_start(seed=4)
        smeared = wilson_action(1.0).on(lambda V: stout_smear(V, 0.1))
        monomials = [Monomial(smeared, 0, "smeared"), Monomial(wilson_action(1.5), 1)]
        return HMC(
            {"U": U}, monomials, seed=7, **{"levels": [Level("2MN", 3), Level("leapfrog", 2)], **options}
        )
    if kind == "higgs":
        U, phi = GaugeField(lattice, SU(2)).hot_start(seed=4), filled(Field(lattice, Vector(2)))
        both = [wilson_action(2.3), higgs(kappa=0.3, lam=0.5)]
        return HMC({"U": U, "phi": phi}, both, seed=7, masses={"phi": 2.0}, **options)
    if kind == "sphere":
        return HMC(
            {"n": unit(Field(lattice, Vector(3, "real")))},
            heisenberg(beta=1.1),
            seed=7,
            on_sphere=["n"],
            **options,
        )
    element = {
        "real": Real(),
        "complex": Complex(),
        "algebra": jali.Algebra(2),
        "hermitian": jali.Hermitian(2),
    }[kind]
    phi = Field(lattice, element, boundary="antiperiodic" if kind == "complex" else "periodic")
    if kind in ("real", "complex"):
        filled(phi)
    return HMC({"phi": phi}, scalar(mass2=0.3, coupling=0.1), seed=7, **options)


KINDS = ("gauge", "smeared", "higgs", "sphere", "real", "complex", "algebra", "hermitian")


def small(kind: str) -> Lattice:
    return Lattice(4, 4) if kind != "gauge" else Lattice(4, 4, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_conserve_energy_and_go_back(kind: str) -> None:
    hmc = simulation(kind, small(kind), check_reversibility=2, accept_always=100)
    trajectories = list(hmc.run(4))
    assert [t.reversibility is None for t in trajectories] == [True, False, True, False]
    assert max(t.reversibility for t in trajectories if t.reversibility is not None) < 1e-12
    assert all(abs(t.dH) < 2.0 for t in trajectories)
    levels = [Level("4MN5", 10), Level("4MN5", 1)] if kind == "smeared" else [Level("4MN5", 10)]
    fine = simulation(kind, small(kind), levels=levels, accept_always=100)
    assert all(abs(t.dH) < 0.02 for t in fine.run(3))


@pytest.mark.full
def test_reversibility_on_a_larger_lattice() -> None:
    lattice = Lattice(8, 8, 8, 8)
    for precision, least in (("float64", 1e-11), ("float32", 1e-3)):
        U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=4)
        hmc = HMC({"U": U}, wilson_action(5.5), seed=7, tau=2.0, levels=[Level("2MN", 20)])
        assert hmc.reversibility() < least


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", ["gauge", "smeared", "higgs", "sphere"])
def test_one_history_on_any_ranks(kind: str) -> None:
    def history(_: int = 0) -> Any:
        extents = (4, 4) if kind != "gauge" else (4, 4, 2)
        hmc = simulation(kind, Lattice(*extents), spread=0.3)
        found = [(t.dH, t.tau, t.accepted) for t in hmc.run(3)]
        fields = hmc.fields["U"].fields if "U" in hmc.fields else [hmc.fields["n"]]
        return found, [one[...].tobytes() for one in fields]

    alone = history()
    for ranks in (2, 4):
        for one in jali.virtual_ranks(ranks, history, 0):
            assert one == alone


def test_a_simulation_goes_on_where_it_was() -> None:
    whole = simulation("higgs", Lattice(4, 4), spread=0.2)
    first = [t.dH for t in whole.run(4)]
    part = simulation("higgs", Lattice(4, 4), spread=0.2)
    again = [t.dH for t in part.run(2)]
    fields = {"U": part.fields["U"].copy(), "phi": part.fields["phi"].copy()}
    rest = HMC(
        fields, [wilson_action(2.3), higgs(kappa=0.3, lam=0.5)], seed=7, masses={"phi": 2.0}, spread=0.2
    )
    rest.number = part.number
    assert first == again + [t.dH for t in rest.run(2)]


def test_a_rejected_trajectory_leaves_the_fields_as_they_were() -> None:
    U = GaugeField(Lattice(4, 4), SU(2)).hot_start(seed=4)
    before = [u[...] for u in U.fields]
    hmc = HMC({"U": U}, wilson_action(300.0), seed=1, levels=[Level("leapfrog", 1)])
    t = hmc.trajectory()
    assert not t.accepted
    assert t.dH > 20
    for one, kept in zip(U.fields, before, strict=True):
        np.testing.assert_array_equal(one[...], kept)


def test_dH_is_the_sum_of_its_parts_and_links_are_made_unitary() -> None:
    hmc = simulation("smeared", Lattice(4, 4), reunitarise=1, accept_always=9)
    t = hmc.trajectory()
    assert t.dH == pytest.approx(t.kinetic + sum(t.actions.values()), abs=1e-12)
    assert set(t.actions) == {one.name for one in hmc.monomials}
    assert t.unitarity is not None
    assert t.unitarity < 1e-13


def test_the_sizes_of_forces_are_those_of_the_gradient() -> None:
    hmc = simulation("higgs", Lattice(4, 4))
    sizes = {(f.monomial, f.field): f for f in hmc.forces()}
    F = hmc.monomials[0].action.force(hmc.fields["U"])
    squares = np.array([-2 * np.trace(f[...] @ f[...], axis1=-2, axis2=-1).real for f in F])
    own = sizes[hmc.monomials[0].name, "U"]
    assert own.rms == pytest.approx(math.sqrt(squares.mean()), rel=1e-12)
    assert own.largest == pytest.approx(math.sqrt(squares.max()), rel=1e-12)
    assert own.kick == own.largest * own.step
    assert len(sizes) == 3


def test_the_mean_of_a_force_is_over_the_sites_that_its_field_has() -> None:
    @jali.action
    def well(X: Any, phi: Any, *, mass2: Any) -> Any:
        return 0.5 * mass2 * phi[X] ** 2

    phi = Field(Lattice(4, 4), Real(), over=jali.EVEN)
    phi[...] = 2.0
    (force,) = HMC({"phi": phi}, well(mass2=3.0), seed=1).forces()
    assert force.rms == force.largest == 6.0


def test_momenta_have_unit_variance() -> None:
    lattice = Lattice(16, 16)
    for kind, components in (
        ("gauge", 3),
        ("real", 1),
        ("complex", 2),
        ("algebra", 3),
        ("hermitian", 4),
        ("sphere", 2),
    ):
        if kind == "gauge":
            hmc = HMC({"U": GaugeField(lattice, SU(2)).cold_start()}, wilson_action(1.0), seed=2)
            components *= 2
        else:
            hmc = simulation(kind, lattice)
        hmc.draw_momenta()
        degrees = components * lattice.volume
        assert abs(2 * float(hmc.kinetic_energy()) - degrees) < 4 * math.sqrt(2 * degrees)


def test_what_does_not_fit_together_is_refused_before_anything_moves() -> None:
    lattice = Lattice(4, 4)
    U, phi = GaugeField(lattice, SU(2)).hot_start(seed=1), filled(Field(lattice, Vector(2)))
    wilson, coupled = wilson_action(2.0), higgs(kappa=0.1, lam=0.1)
    for fields, monomials, options, error, message in (
        ({}, wilson, {}, ParameterError, "a simulation has fields by the names"),
        ({"U": 3}, wilson, {}, ParameterError, "U' is a field or a gauge field, not 3"),
        ({"V": U}, wilson, {}, ParameterError, "depends on U, which is no field of this simulation"),
        ({"U": U, "phi": phi}, wilson, {}, ParameterError, "no action depends on phi"),
        ({"U": U}, wilson, {"fixed": ["U"]}, ParameterError, "of which none moves"),
        (
            {"U": U, "phi": filled(Field(Lattice(4, 4), Vector(2)))},
            coupled,
            {},
            LayoutError,
            "phi lives on another lattice",
        ),
        (
            {"U": U},
            [Monomial(wilson, 1)],
            {},
            ParameterError,
            "a Monomial is on level 1, and there are 1 levels",
        ),
        ({"U": U}, wilson, {"levels": [Level(), Level()]}, ParameterError, "level 1 has no Monomial"),
        ({"U": U}, wilson, {"levels": []}, ParameterError, "levels= is a list of Levels"),
        ({"U": U}, [], {}, ParameterError, "needs a Monomial"),
        ({"U": U}, wilson, {"tau": 0}, ParameterError, "tau is a positive number"),
        ({"U": U}, wilson, {"spread": 1.0}, ParameterError, "spread is from 0 to below 1"),
        ({"U": U}, wilson, {"masses": {"phi": 1.0}}, ParameterError, "'phi' is no field of this simulation"),
        ({"U": U}, wilson, {"on_sphere": ["U"]}, ParameterError, "on_sphere= names fields of real vectors"),
        ({"U": U}, "wilson", {}, ParameterError, "a Monomial is of an action, not of 'w'"),
    ):
        with pytest.raises(error, match=message):
            HMC(fields, monomials, seed=1, **options)
    with pytest.raises(ParameterError, match="an action, not of 5.7"):
        Monomial(5.7)  # type: ignore[arg-type]


def test_a_force_that_is_too_large_is_told_with_its_site() -> None:
    lattice = Lattice(4, 4)
    phi = Field(lattice, Real())
    phi[...] = 0.1
    phi[2, 3] = 1e3
    hmc = HMC({"phi": phi}, Monomial(scalar(mass2=1.0, coupling=1.0), name="phi^4"), seed=1)
    with pytest.raises(
        ParameterError, match=r"the force of phi\^4 on phi is 4e\+09 at site \(2, 3\), beyond 1000"
    ):
        hmc.trajectory()


def test_trajectories_that_are_rejected_from_the_start_bring_a_hint_once() -> None:
    hmc = HMC(
        {"U": GaugeField(Lattice(4, 4), SU(2)).hot_start(seed=4)},
        wilson_action(90.0),
        seed=1,
        levels=[Level("leapfrog", 1)],
    )
    with pytest.warns(
        RuntimeWarning,
        match=r"tau = 1 is 1 here of Chroma, openQCD, 1\.414 here of QUDA, Grid, MILC, 2 here of tmLQCD",
    ) as caught:
        list(hmc.run(20))
    assert len(caught) == 1


def test_a_trajectory_that_does_not_go_back_is_refused() -> None:
    U = GaugeField(Lattice(4, 4, 4), SU(3), precision="float32").hot_start(seed=4)
    hmc = HMC({"U": U}, wilson_action(6.0), seed=1, tau=40.0, levels=[Level("leapfrog", 60)])
    with pytest.raises(
        ParameterError, match=r"and back changes the fields by .* in float32: .* smaller steps, float64"
    ):
        hmc.reversibility()


def test_a_captured_number_that_changes_is_seen_by_the_next_trajectory() -> None:
    coupling = [1.0]

    @jali.action
    def square(X: Any, phi: Any) -> Any:
        return coupling[0] * phi[X] ** 2

    phi = filled(Field(Lattice(4, 4), Real()))
    smeared = GaugeField(Lattice(4, 4), SU(2)).hot_start(seed=1)
    for fields, action in (({"phi": phi}, square()), ({"U": smeared}, _Scaled(coupling))):
        coupling[0] = 1.0
        hmc = HMC(fields, action, seed=1, levels=[Level("4MN5", 6)], accept_always=99)
        before = [hmc.trajectory().dH for _ in range(2)]
        coupling[0] = 3.0
        assert max(map(abs, [*before, *(t.dH for t in hmc.run(2))])) < 0.05


def test_an_action_made_of_several_sums_is_a_graph_with_the_bits_of_its_calls() -> None:
    class Several(jali.Action):
        def value(self, U: Any) -> Any:
            V = stout_smear(U, 0.1)
            return wilson_action(1.0).value(V) + 3.0 * (plaquette(V) - 0.5) ** 2

    found = []
    for recorded in (True, False):
        U = GaugeField(Lattice(4, 4), SU(2)).hot_start(seed=1)
        hmc = HMC({"U": U}, Several(), seed=1, levels=[Level("2MN", 3)], accept_always=9)
        (kicks,) = hmc._kicks
        if not recorded:
            kicks._graph, kicks.renew = False, lambda: None  # type: ignore[method-assign]
        found.append([t.dH for t in hmc.run(2)])
        assert bool(kicks._graph) == recorded
    assert found[0] == found[1]


class _Scaled(jali.Action):
    """The Wilson action of smeared links times a number of a list."""

    def __init__(self, coupling: list[float]):
        self.coupling = coupling

    def value(self, U: Any) -> Any:
        return self.coupling[0] * wilson_action(1.0).value(stout_smear(U, 0.1))


def test_a_start_that_is_no_number_is_refused() -> None:
    phi = filled(Field(Lattice(4, 4), Real()))
    hmc = HMC({"phi": phi}, scalar(mass2=0.3, coupling=0.1), seed=7)
    hmc.trajectory()
    phi[1, 1] = np.nan
    with pytest.raises(ParameterError, match="H was not finite before trajectory 2"):
        hmc.trajectory()


def test_monomials_of_one_name_are_told_apart() -> None:
    hmc = HMC(
        {"U": GaugeField(Lattice(4, 4), SU(2)).cold_start()}, [wilson_action(1.0), wilson_action(1.0)], seed=1
    )
    assert len(hmc.trajectory().actions) == 2


def test_gauge_fields_stay_where_an_action_orders_them() -> None:
    U = GaugeField(Lattice(4, 4, 4), SU(2)).hot_start(seed=1)
    hmc = HMC({"U": U}, wilson_action(8.0), seed=3, accept_always=20)
    for _ in hmc.run(20):
        pass
    assert plaquette(U) > 0.75
