"""Actions of any fields: formulas and their couplings, sums of actions, actions of several calls; values and forces by NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, LayoutError, ParameterError, Real, TraceError
from jali.codegen.stage_cache import COUNTS


@jali.action
def phi4(X: Any, phi: Any, *, kappa: Any, lam: Any = 1.0) -> Any:
    near = sum(phi[X + mu] for mu in X.directions())
    return -2 * kappa * phi[X] * near + phi[X] ** 2 + lam * (phi[X] ** 2 - 1) ** 2


@jali.action
def charged(X: Any, z: Any, phi: Any, *, charge: Any) -> Any:
    """Neighbours of a complex field, each with the square of the real one between them."""
    return -charge * sum((z[X].conj() * z[X + mu]).real * phi[X] ** 2 for mu in X.directions())


def real_field(extents: tuple[int, ...] = (4, 5), seed: int = 1) -> Field:
    return Field(Lattice(*extents), Real()).set_local(np.random.default_rng(seed).normal(size=extents))


def complex_field(lattice: Lattice) -> Field:
    rng = np.random.default_rng(2)
    re, im = rng.normal(size=lattice.extents), rng.normal(size=lattice.extents)
    return Field(lattice, Complex()).set_local(re + 1j * im)


def test_value_and_force_of_phi4_are_those_of_numpy() -> None:
    phi, S = real_field(), phi4(kappa=0.18, lam=0.7)
    p = phi.local()
    ahead = sum(np.roll(p, -1, axis) for axis in (0, 1))
    near = ahead + sum(np.roll(p, 1, axis) for axis in (0, 1))
    assert S.value(phi) == pytest.approx(np.sum(-0.36 * p * ahead + p**2 + 0.7 * (p**2 - 1) ** 2), rel=1e-13)
    force = -0.36 * near + 2 * p + 2.8 * p * (p**2 - 1)
    out = phi.like()
    assert S.force(phi, out=out) is out
    for found in (out, S.force(phi), S.force(phi, of="phi")):
        np.testing.assert_allclose(found.local(), force, atol=1e-13)


def test_a_force_is_of_the_field_that_is_named() -> None:
    phi = real_field()
    z, S = complex_field(phi.lattice), charged(1.3)
    p, c = phi.local(), z.local()
    ahead = sum(np.roll(c, -1, axis) for axis in (0, 1))
    behind = sum(np.roll(c * p**2, 1, axis) for axis in (0, 1))
    assert S.value(z, phi) == pytest.approx(-1.3 * np.sum((c.conj() * ahead).real * p**2), rel=1e-13)
    # of complex numbers dS / d Re z + i dS / d Im z
    np.testing.assert_allclose(S.force(z, phi).local(), -1.3 * (ahead * p**2 + behind), atol=1e-13)
    np.testing.assert_allclose(
        S.force(z, phi, of="phi").local(), -2.6 * p * (c.conj() * ahead).real, atol=1e-13
    )


def test_couplings_are_given_by_place_or_by_name() -> None:
    assert phi4.fields == ("phi",)
    assert phi4.couplings == ("kappa", "lam")
    S = phi4(0.18, lam=2)
    assert (S.kappa, S.lam) == (0.18, 2.0)
    assert phi4(kappa=0.18).lam == 1.0
    assert S == phi4(0.18, 2.0) == phi4(0.5, 2.0).with_couplings(kappa=0.18)
    assert hash(S) == hash(phi4(0.18, 2.0))
    assert S != phi4(0.18) != charged(0.18)
    assert repr(S) == "phi4(kappa=0.18, lam=2.0)"
    assert not hasattr(S, "beta")


@pytest.mark.parametrize(
    "call",
    [
        lambda: phi4(),
        lambda: phi4(0.1, 0.2, 0.3),
        lambda: phi4(0.1, kappa=0.1),
        lambda: phi4(0.1, mass=1.0),
        lambda: phi4(0.1).with_couplings(mass=1.0),
    ],
)
def test_other_couplings_than_the_formula_has_are_refused(call: Any) -> None:
    with pytest.raises(
        ParameterError, match="phi4 is an action of phi with the couplings kappa, lam, each given once"
    ):
        call()


@pytest.mark.parametrize("number", [math.nan, math.inf, 1j])
def test_couplings_are_finite_real_numbers(number: Any) -> None:
    with pytest.raises(ParameterError, match="phi4: kappa is a finite number, not"):
        phi4(number)


def test_other_numbers_compile_nothing() -> None:
    phi = real_field()
    out = phi.like()

    def use(S: jali.Action) -> int:
        assert math.isfinite(S.value(phi))
        S.force(phi, out=out)
        return COUNTS["bound"].made

    made = use(phi4(0.1, 0.2))
    assert use(phi4(0.3)) == use(phi4(0.1).with_couplings(kappa=2)) == made


def test_objects_are_couplings_that_are_fixed_while_tracing() -> None:
    @jali.action
    def powers(X: Any, phi: Any, *, exponents: Any, weights: Any) -> Any:
        return sum(w * phi[X] ** k for k, w in zip(exponents, weights, strict=True))

    phi = real_field()
    p = phi.local()
    for exponents, weights in (((2, 4), (0.5, 0.25)), ((2, 4), (1.0, 2.0)), ((3,), (1.5,))):
        expected = sum(w * np.sum(p**k) for k, w in zip(exponents, weights, strict=True))
        assert powers(exponents, weights).value(phi) == pytest.approx(expected, rel=1e-12)


def test_sums_and_multiples_have_the_sums_of_values_and_forces() -> None:
    phi = real_field()
    z = complex_field(phi.lattice)
    A, B = phi4(0.2), charged(0.7)
    for S, a, b in (
        (A + B, 1, 1),
        (A - B, 1, -1),
        (2 * A + B * 0.5, 2, 0.5),
        (-(A + B), -1, -1),
        (sum([A, np.float64(3) * B]), 1, 3),
        (0.5 * (A + 2 * B), 0.5, 1),
    ):
        assert S.fields == ("phi", "z")
        assert S.value(phi, z) == pytest.approx(a * A.value(phi) + b * B.value(z, phi), rel=1e-13)
        of_phi = a * A.force(phi).local() + b * B.force(z, phi, of="phi").local()
        np.testing.assert_allclose(S.force(phi, z).local(), of_phi, atol=1e-13)
        np.testing.assert_allclose(S.force(phi, z, of="z").local(), b * B.force(z, phi).local(), atol=1e-13)
    assert repr(A - 2 * B) == "phi4(kappa=0.2, lam=1.0) + -2 * charged(charge=0.7)"
    for other in (3, None, "S"):
        with pytest.raises(TypeError):
            A + other
        with pytest.raises(TypeError):
            A - other
    for factor in (True, 1j, A):
        with pytest.raises(TypeError):
            factor * B


class OfSteps(jali.Action):
    """phi4 after a step of diffusion, by two calls."""

    fields = ("phi", "z")

    def value(self, phi: Any, z: Any) -> Any:
        smooth = phi.like()
        diffuse(smooth, phi)
        return phi4(0.2).value(smooth) + charged(0.7).value(z, smooth)


@jali.site_function
def diffuse(X: Any, out: Any, phi: Any) -> None:
    out[X] = phi[X] + 0.1 * sum(phi[X + mu] + phi[X - mu] - 2 * phi[X] for mu in X.directions())


def test_the_force_of_an_action_of_several_calls_is_its_derivative() -> None:
    phi = real_field()
    z, S = complex_field(phi.lattice), OfSteps()
    out = phi.like()
    assert S.force(phi, z, out=out) is out
    for total in (S, S + phi4(0.4)):
        force, of_z = total.force(phi, z), total.force(phi, z, of="z")
        assert total is not S or np.array_equal(force.local(), out.local())
        for field, by, site, step in (
            (phi, force[1, 2], (1, 2), 1e-4),
            (z, of_z[3, 0].real, (3, 0), 1e-4),
            (z, of_z[3, 0].imag, (3, 0), 1e-4j),
        ):
            value, values = field[site], []
            for sign in (1, -1):
                field[site] = value + sign * step
                values.append(float(total.value(phi, z)))
            field[site] = value
            assert (values[0] - values[1]) / 2e-4 == pytest.approx(by, rel=1e-6)
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (jali.Action,), {})()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda S, phi, z: S.value(phi), ParameterError, "depends on z, phi: 2 are needed, 1 were given"),
        (lambda S, phi, z: S.force(z, phi, phi), ParameterError, "2 are needed, 3 were given"),
        (lambda S, phi, z: S.force(z, phi, of="U"), ParameterError, "depends on z, phi, not on 'U'"),
        (lambda S, phi, z: S.value(z, 5), LayoutError, "an action is of fields, .* not of 5"),
        (lambda S, phi, z: S.force(5, phi), LayoutError, "an action is of fields, .* not of 5"),
        (lambda S, phi, z: S.force(z, phi, out=5), LayoutError, "out is a field, not 5"),
        (lambda S, phi, z: S.force(z, phi, out=[z]), LayoutError, "out is a field, not"),
        (lambda S, phi, z: (S + 1.0 * S).force(z, phi, out=5), LayoutError, "out is a field, not 5"),
        (lambda S, phi, z: S.on(0.1), ParameterError, "a function that smears links, .* not 0.1"),
    ],
)
def test_calls_that_do_not_fit_the_action_are_refused(call: Any, error: Any, message: str) -> None:
    phi = real_field()
    with pytest.raises(error, match=message):
        call(charged(0.7), phi, complex_field(phi.lattice))


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1.0,
        lambda X: 1.0,
        lambda X, phi=None: 1.0,
        lambda X, *fields: 1.0,
        lambda X, phi, **couplings: 1.0,
        lambda X, phi, /: 1.0,
    ],
)
def test_what_is_no_formula_is_refused_at_the_users_line(function: Any) -> None:
    with pytest.raises(
        TraceError, match=r"a function of a site, fields and couplings, def S\(X, U, [^$]*test_formulas\.py"
    ):
        jali.action(function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda X, phi: None, "returns nothing: an action returns what a site adds to it"),
        (lambda X, phi: jali.complex(phi[X], 1.0), "returns a complex, and an action is a real one"),
        (lambda X, phi: jali.vector([phi[X], 1.0]), "returns a .*Vector.*, and an action is a real one"),
    ],
)
def test_what_a_site_adds_is_a_real_number(function: Any, message: str) -> None:
    S = jali.action(function)()
    for use in (S.value, S.force):
        with pytest.raises(TraceError, match=message):
            use(real_field())


def test_names_of_a_sum_are_kept_apart() -> None:
    @jali.action
    def other(X: Any, factor_0_: Any, *, factor: Any, factor_0: Any) -> Any:
        return factor * factor_0_[X] ** 2 + factor_0

    from jali.actions.formulas import site_action

    phi = real_field()
    S = 2.0 * other(3.0, 1.0) + 0.5 * other(1.0, factor_0=2.0)
    p2 = np.sum(phi.local() ** 2)
    assert S.value(phi) == pytest.approx(6.5 * p2 + 3.0 * 20, rel=1e-13)
    assert site_action(S).value(phi) == pytest.approx(6.5 * p2 + 3.0 * 20, rel=1e-13)
