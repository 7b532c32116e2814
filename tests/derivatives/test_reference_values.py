"""Gradients of the known configuration: values and sums of F_a^2 that another program has computed, by NumPy and automatic differentiation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from known_configuration import EXTENTS, known_links

import jali
from jali import SU, Algebra, Field, Lattice, Spinor, Vector
from jali.fermions import (
    HISQ,
    Asqtad,
    CloverDirac,
    Staggered,
    TwistedCloverDirac,
    TwistedMassDirac,
    WilsonDirac,
)
from jali.fermions.fat_links import FAT7, asqtad_links, fatten, unitary_links
from jali.gauge import (
    GaugeField,
    LoopAction,
    dbw2_action,
    iwasaki_action,
    stout_smear,
    symanzik_action,
    tadpole_symanzik_action,
    wilson_action,
)


def known_field() -> GaugeField:
    U = GaugeField(Lattice(*EXTENTS), SU(3))
    for field, links in zip(U.fields, known_links(), strict=True):
        field[...] = links
    return U


def square(F: Sequence[Field]) -> float:
    """The sum of F_a^2 over links and a, -2 tr F^2."""
    return float(sum(-2 * (np.swapaxes(f[...], -1, -2) * f[...]).sum().real for f in F))


def loop(X: Any, U: Any, steps: Sequence[int]) -> Any:
    """The product of links along a path, of steps 1 to 4 forth and -1 to -4 back."""
    found = None
    for step in steps:
        mu = X.directions()[abs(step) - 1]
        if step < 0:
            X = X - mu
        link = U[mu][X] if step > 0 else U[mu][X].dagger()
        X = X + mu if step > 0 else X
        found = link if found is None else found * link
    return found


def rectangles(c1: float) -> Callable[[Any, Any], Any]:
    def traces(X: Any, U: Any) -> Any:
        plaquettes = others = 0.0
        for m, n in itertools.combinations(range(1, 5), 2):
            plaquettes += loop(X, U, [m, n, -m, -n]).trace().real
            others += loop(X, U, [m, m, n, -m, -m, -n]).trace().real
            others += loop(X, U, [m, n, n, -m, -n, -n]).trace().real
        return -2.0 * ((1 - 8 * c1) * plaquettes + c1 * others)

    return traces


def parallelograms(X: Any, U: Any) -> Any:
    signs = itertools.product((1, -1), repeat=2)
    paths = [(a, s * b, t * c) for s, t in signs for a, b, c in itertools.combinations(range(1, 5), 3)]
    return sum(-2.0 * loop(X, U, [*path, *(-step for step in path)]).trace().real for path in paths)


def field_strength(X: Any, U: Any, m: int, n: int) -> Any:
    Q = sum(
        (loop(X, U, path) for path in ([n, -m, -n, m], [-m, -n, m, n], [-n, m, n, -m])),
        loop(X, U, [m, n, -m, -n]),
    )
    return (Q - Q.dagger()) * 0.125


def energy(X: Any, U: Any) -> Any:
    F = [field_strength(X, U, m, n) for m, n in itertools.combinations(range(1, 5), 2)]
    return sum(-(one * one).trace().real for one in F)


def energy_without_trace(X: Any, U: Any) -> Any:
    F = [
        field_strength(X, U, m, n).traceless_antihermitian()
        for m, n in itertools.combinations(range(1, 5), 2)
    ]
    return sum(-(one * one).trace().real for one in F)


def charge(X: Any, U: Any) -> Any:
    def F(m: int, n: int) -> Any:
        return field_strength(X, U, m, n)

    return (F(1, 2) * F(3, 4) - F(1, 3) * F(2, 4) + F(1, 4) * F(2, 3)).trace().real * (-1 / (4 * np.pi**2))


def polyakov(X: Any, U: Any) -> Any:
    return jali.where(X.coordinate(3) == 0, loop(X, U, [4] * 8).trace().real / (3 * 64), 0.0)


@jali.site_function
def summed(X: Any, U: Any, term: Any, total: Any) -> None:
    total += term(X, U)


gradient = jali.gradient(summed, "U")

FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], float, float]] = {
    "Wilson": (rectangles(0.0), -9730.734171593, 80905.0613696),
    "Symanzik": (rectangles(-1 / 12), -14987.990974724, 189193.2189596),
    "Iwasaki": (rectangles(-0.331), -30612.558193629, 787541.4852937),
    "DBW2, -1.4067": (rectangles(-1.4067), -98475.331911167, 8188079.354661),
    "DBW2, -1.4069": (rectangles(-1.4069), -98487.949327495, 8190181.118719),
    "DBW2, -1.4088": (rectangles(-1.4088), -98607.814782606, 8210161.335788),
    "parallelograms": (parallelograms, -19458.411515113, 672177.1918086),
    "-tr F^2": (energy, 840.644219443, 1433.52336663),
    "-tr F^2, F traceless": (energy_without_trace, 829.440832921, 1410.97239859),
    "charge": (charge, 0.205696850842, 0.103399449625),
    "Polyakov loop": (polyakov, 0.254068456170, 0.0125272726139),
}


@pytest.mark.short(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_sums_over_loops(name: str) -> None:
    term, value, force2 = FUNCTIONS[name]
    U = known_field()
    F = [Field(U.lattice, Algebra(3)) for _ in U.fields]
    gradient(F, U, term)
    assert U.lattice.sum(summed, U, term) == pytest.approx(value, rel=2e-11)
    assert square(F) == pytest.approx(force2, rel=2e-11)


def test_components_of_the_wilson_force() -> None:
    (f, *_) = wilson_action(6.0).force(known_field())
    from known_configuration import gell_mann

    # F = sum_a F_a i lambda_a / 2
    found = [np.trace(f[0, 0, 0, 0] @ one).imag for one in gell_mann()]
    expected = [-3.13572821, -2.48363958, -4.12297925, -1.82593744]
    expected += [-0.55595595, -1.76497769, 2.57474270, -1.13149179]
    np.testing.assert_allclose(found, expected, atol=5e-9)


def without_constant(action: Any, value: float) -> float:
    """The reference has no constant: S = -(beta / 3) sum over loops w Re tr."""
    per_site = zip(action.weights, (6, 12, 16), strict=False)
    return value - action.beta * 512 * sum(weight * count for weight, count in per_site)


ACTIONS = {
    "Wilson": (wilson_action(6.0), -9730.734171593, 80905.0613696),
    "tree Symanzik": (symanzik_action(6.0), -14987.990974724, 189193.2189596),
    "Iwasaki": (iwasaki_action(6.0), -30612.558193629, 787541.4852937),
    "DBW2, Grid": (dbw2_action(6.0, -1.4067), -98475.331911167, 8188079.354661),
    "DBW2, paper": (dbw2_action(6.0, -1.4069), -98487.949327495, 8190181.118719),
    "DBW2, tmLQCD": (dbw2_action(6.0), -98607.814782606, 8210161.335788),
    "parallelograms": (
        LoopAction(6.0, (0.0, 0.0, 1.0), tadpole_symanzik_action(6.0, 0.9).loops),
        -19458.411515113,
        672177.1918086,
    ),
}


@pytest.mark.short(3)
@pytest.mark.parametrize("name", ACTIONS)
def test_values_and_forces_of_actions(name: str) -> None:
    action, value, force2 = ACTIONS[name]
    U = known_field()
    assert without_constant(action, action.value(U)) == pytest.approx(value, rel=2e-11)
    assert square(action.force(U)) == pytest.approx(force2, rel=2e-11)


SMEARED = {
    "Wilson, 1": (wilson_action(6.0), 1, -16048.032346963, 29188.5622683),
    "Wilson, 2": (wilson_action(6.0), 2, -17863.594166658, 3644.71703238),
    "Wilson, 3": (wilson_action(6.0), 3, -18272.555599069, 419.058727728),
    "Iwasaki, 1": (iwasaki_action(6.0), 1, -49251.858388014, 196249.585973771),
}


@pytest.mark.short(2)
@pytest.mark.parametrize("name", SMEARED)
def test_actions_of_stout_links(name: str) -> None:
    action, levels, value, force2 = SMEARED[name]
    U = known_field()
    smeared = action.on(lambda U: stout_smear(U, 0.1, levels))
    assert without_constant(action, smeared.value(U)) == pytest.approx(value, rel=2e-11)
    assert square(smeared.force(U)) == pytest.approx(force2, rel=2e-11)


FAT_LINKS = {
    "U(3) part of Fat7": (lambda U: unitary_links(fatten(U, FAT7)), -17096.943971734, 9243.48679368),
    "asqtad": (lambda U: asqtad_links(U)[0], -9270.243195576, 195275.114076),
}


@pytest.mark.short(1)
@pytest.mark.parametrize("name", FAT_LINKS)
def test_the_wilson_action_of_fat_links(name: str) -> None:
    fat, value, force2 = FAT_LINKS[name]
    U = known_field()
    with jali.Tape(U) as tape:
        S = U.lattice.sum(summed, fat(U), FUNCTIONS["Wilson"][0])
    (F,) = tape.gradient(S)
    assert S.value == pytest.approx(value, rel=2e-11)
    assert square(F) == pytest.approx(force2, rel=2e-10)


@jali.site_function
def minus_norm2(X: Any, a: Any, total: Any) -> None:
    total -= a[X].norm2()


def known_vector(element: Any, components: int) -> Field:
    """Of the reference, on the known lattice; of staggered fermions on even sites."""
    field = Field(Lattice(*EXTENTS), element, boundary={3: "antiperiodic"})
    n = np.arange(512).reshape(EXTENTS[::-1]).T
    k = 1 + np.arange(components) + components * n[..., None]
    values = 2 * ((k * k + 3 * k) % 103) / 103 - 1 + 1j * (2 * ((k * k + 5 * k) % 107) / 107 - 1)
    if components == 3:
        values = np.where((sum(np.indices(EXTENTS)) % 2 == 0)[..., None], values, 0)
    field[...] = values.reshape(field.shape)
    return field


OPERATORS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "Wilson": (lambda U: WilsonDirac(U, 0.1), 410.856654024, 93.4435244436),
    "clover": (lambda U: CloverDirac(U, 0.1, csw=1.2), 444.696782629, 263.206034436),
    "twisted mass": (lambda U: TwistedMassDirac(U, 0.1, mu=0.2), 405.703213968, 82.7700923288),
    "twisted clover": (
        lambda U: TwistedCloverDirac(U, 0.1, mu=0.2, csw=1.2),
        436.621068834,
        221.084505621,
    ),
    "clover, 1 stout level": (
        lambda U: CloverDirac(stout_smear(U, 0.1), 0.1, csw=1.2),
        497.826984230,
        617.746692524,
    ),
    "clover, 3 stout levels": (
        lambda U: CloverDirac(stout_smear(U, 0.1, 3), 0.1, csw=1.2),
        510.845653639,
        478.594834992,
    ),
    "staggered": (lambda U: Staggered(U, 0.1), 1222.713624179, 165043.838691),
    "asqtad, u0 = 1": (lambda U: Asqtad(U, 0.1), 845.839274145, 16610.3702854),
    "asqtad, u0 = 0.9": (lambda U: Asqtad(U, 0.1, u0=0.9), 691.382697885, 12788.7018397),
    "HISQ": (lambda U: HISQ(U, 0.1, epsilon=0.0), 408.203876261, 1069.32585699),
    "HISQ, epsilon = -0.1": (lambda U: HISQ(U, 0.1, epsilon=-0.1), 416.123449995, 1092.14191350),
}


@pytest.mark.short(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_pseudofermion_forces(name: str) -> None:
    """S = phi^dagger (D D^dagger)^-1 phi: the force is the gradient of -|D^dagger(U) X|^2 with X = (D D^dagger)^-1 phi held."""
    make, value, force2 = OPERATORS[name]
    U = known_field()
    staggered = name.startswith(("staggered", "asqtad", "HISQ"))
    phi = known_vector(Vector(3) if staggered else Spinor(3), 3 if staggered else 12)
    phi = jali.Field(U.lattice, phi.element, boundary=phi.boundary).set_local(phi.local())
    D = make(U)
    X = jali.solvers.cg(lambda p, q: q.assign(D @ (D.dagger @ p)), phi, rtol=1e-13).x
    assert np.vdot(phi[...], X[...]).real == pytest.approx(value, rel=5e-12)
    with jali.Tape(U) as tape:
        S = U.lattice.sum(minus_norm2, make(U).dagger @ X)
    (F,) = tape.gradient(S)
    assert square(F) == pytest.approx(force2, rel=2e-11)
