"""Derivatives of functions of fields that differ: in lattice, colour, batch and boundary, against differences and inner products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import EVEN, ODD, Complex, Field, Lattice, Real, Spinor
from jali.errors import TraceError
from jali.fermions import CloverDirac, WilsonDirac
from jali.gauge import SU, GaugeField
from jali.solvers import cgnr

COARSE = Lattice(2, 2)
FINE = COARSE.like(4, 4)


def filled(lattice: Any, element: Any = None, **options: Any) -> Field:
    field = Field(lattice, element or Real(), **options)
    chance = np.random.default_rng(field.serial)
    numbers = chance.normal(size=field.shape)
    field[...] = numbers + 1j * chance.normal(size=field.shape) if np.iscomplexobj(field[...]) else numbers
    return field


@jali.site_function
def coarse_beside_neighbour(X: Any, y: Any, f: Any, c: Any) -> None:
    y[X] = c[X.on(c)] * f[X + X.directions()[1]]


@jali.site_function
def fine_beside_neighbour(X: Any, y: Any, c: Any, f: Any) -> None:
    y[X] = c[X + X.directions()[0]] * f[X.on(f)]


@pytest.mark.parametrize("neighbours", ["", "keep", "compute"])
def test_an_adjoint_beside_a_field_of_a_coarser_lattice_keeps_what_has_no_site_there(neighbours: str) -> None:
    c, f, y = filled(COARSE), filled(FINE), filled(FINE)
    image, back = f.like(), f.like()
    coarse_beside_neighbour(image, f, c)
    jali.adjoint(coarse_beside_neighbour, "f", neighbours=neighbours)(y, back, c)
    assert np.vdot(y[...], image[...]) == pytest.approx(np.vdot(back[...], f[...]), rel=1e-13)
    small, image, back = filled(COARSE), c.like(), c.like()
    fine_beside_neighbour(image, c, f)
    jali.adjoint(fine_beside_neighbour, "c", neighbours=neighbours)(small, back, f)
    assert np.vdot(small[...], image[...]) == pytest.approx(np.vdot(back[...], c[...]), rel=1e-13)


@jali.site_function
def of_both(X: Any, f: Any, c: Any, total: Any) -> None:
    total += c[X.on(c)] * f[X] ** 2


def test_fields_of_two_lattices_have_their_gradients_at_once() -> None:
    f, c = filled(FINE), filled(COARSE)
    df, dc = f.like(), c.like()
    spread = np.kron(c[...], np.ones((2, 2)))
    jali.gradient(of_both, ("f", "c"))(df, dc, f, c)
    with jali.Tape(f, c) as tape:
        total = FINE.sum(of_both, f, c)
    for own in ((df, dc), tape.gradient(total)):
        np.testing.assert_allclose(own[0][...], 2 * spread * f[...], rtol=1e-13)
        np.testing.assert_allclose(own[1][...], (f[...] ** 2).reshape(2, 2, 2, 2).sum((1, 3)), rtol=1e-13)


def test_a_tape_refuses_a_sum_over_another_lattice_than_that_of_its_first_field() -> None:
    @jali.site_function
    def coarse_first(X: Any, c: Any, f: Any, total: Any) -> None:
        total += c[X.on(c)] * f[X]

    f, c = filled(FINE), filled(COARSE)
    with jali.Tape(f) as tape:
        total = FINE.sum(coarse_first, c, f)
    with pytest.raises(
        TraceError, match="of a sum that has a derivative the first field lives on the lattice"
    ):
        tape.gradient(total)


def test_the_tangent_of_an_interpolation_sets_all_its_sites() -> None:
    @jali.site_function
    def interpolate(X: Any, f: Any, c: Any) -> None:
        f[X] = c[X.on(c)]

    dc, df = filled(COARSE), Field(FINE, Real())
    jali.tangent(interpolate, "c")(dc, df, filled(COARSE))
    np.testing.assert_array_equal(df[...], np.kron(dc[...], np.ones((2, 2))))


def test_fields_of_two_colours_have_their_gradients_at_once() -> None:
    @jali.site_function
    def hop(X: Any, x: Any, w: Any, total: Any) -> None:
        total += w[X] * x[X + X.directions()[0]]

    lattice = Lattice(4, 2)
    x, w = filled(lattice, over=EVEN), filled(lattice, over=ODD)
    dx, dw = x.like(), w.like()
    jali.gradient(hop, ("x", "w"))(dx, dw, x, w)
    alone_x, alone_w = x.like(), w.like()
    jali.gradient(hop, "x")(alone_x, x, w)
    jali.gradient(hop, "w")(alone_w, x, w)
    np.testing.assert_array_equal(dx[...], alone_x[...])
    np.testing.assert_array_equal(dw[...], alone_w[...])


def test_the_tangent_of_a_gradient_of_fields_with_and_without_a_batch() -> None:
    @jali.site_function
    def f(X: Any, x: Any, w: Any, total: Any) -> None:
        total += w[X] * x[X] ** 2

    lattice = Lattice(3, 2)
    x, w, vx, vw = filled(lattice, batch=3), filled(lattice), filled(lattice, batch=3), filled(lattice)
    hx, hw = x.like(), w.like()
    jali.tangent(jali.gradient(f, ("x", "w")), ("x", "w"))(vx, vw, hx, hw, x, w)
    np.testing.assert_allclose(
        hx[...], 2 * w[...][..., None] * vx[...] + 2 * vw[...][..., None] * x[...], rtol=1e-13
    )
    np.testing.assert_allclose(hw[...], (2 * x[...] * vx[...]).sum(-1), rtol=1e-13)


def test_a_gradient_over_a_colour_is_not_derived_from_again_over_it() -> None:
    @jali.site_function
    def f(X: Any, x: Any, total: Any) -> None:
        total += x[X] ** 2 * x[X + X.directions()[0]]

    x = filled(Lattice(4, 2))
    with pytest.raises(
        TraceError, match=r"sets other sites than these\. Take the derivatives in the other order"
    ):
        jali.tangent(jali.gradient(f, "x"), "x")[EVEN](x, x.like(), x)


def test_the_gradient_of_a_sum_leaves_what_the_function_writes_out() -> None:
    @jali.site_function
    def f(X: Any, y: Any, x: Any, total: Any) -> None:
        y[X] = x[X]
        total += x[X] ** 2

    x = filled(Lattice(3))
    y = x.like()
    y[...] = 1.0
    g = x.like()
    jali.gradient(f, "x")(g, y, x)
    np.testing.assert_array_equal(g[...], 2 * x[...])


@pytest.mark.parametrize("phase", [np.exp(0.7j), "antiperiodic", "open"])
def test_a_conjugate_has_the_phase_of_the_edge_that_the_field_has(phase: Any) -> None:
    @jali.site_function
    def shift(X: Any, y: Any, x: Any) -> None:
        mu = X.directions()[0]
        y[X] = x[X + 2 * mu] + 0.5j * x[X - mu]

    x = filled(Lattice(3), Complex(), boundary=phase)
    y, found = (Field(x.lattice, Complex()) for _ in range(2))
    jali.conjugate(shift, "x")(found, x)
    x[...] = x[...].conj()
    shift(y, x)
    np.testing.assert_allclose(found[...], y[...].conj(), rtol=1e-13)


@pytest.mark.parametrize("boundary", ["antiperiodic", "open"])
def test_a_change_is_read_with_the_boundary_of_what_changes(boundary: str) -> None:
    @jali.site_function
    def shift(X: Any, y: Any, x: Any) -> None:
        y[X] = x[X + X.directions()[0]] ** 2

    x = filled(Lattice(3), boundary=boundary)
    dx, dy, up = filled(x.lattice), Field(x.lattice, Real()), Field(x.lattice, Real())
    jali.tangent(shift, "x")(dx, dy, x)
    own = x.like()
    own[...] = dx[...]
    jali.tangent(shift, "x")(own, up, x)
    np.testing.assert_array_equal(dy[...], up[...])
    if boundary == "antiperiodic":
        with pytest.raises(TraceError, match="is open there, and the field that it belongs to goes on"):
            jali.tangent(shift, "x")(filled(x.lattice, boundary="open"), dy, x)


def test_a_change_of_antiperiodic_links_is_an_omega_without_their_sign() -> None:
    @jali.site_function
    def f(X: Any, U: Any, total: Any) -> None:
        total += (U[X].dagger() * U[X + X.directions()[0]]).trace().real

    lattice = Lattice(3)
    links = GaugeField(lattice, SU(2)).hot_start(seed=1).fields[0]
    U = Field(lattice, SU(2), boundary="antiperiodic").assign(links)
    periodic = Field(lattice, jali.Algebra(2))
    omega = np.array([[[0.3j, 0.2 + 0.1j], [-0.2 + 0.1j, -0.3j]]] * 3) * np.array([1, -2, 0.5])[:, None, None]
    periodic[...] = omega
    antiperiodic = Field(lattice, jali.Algebra(2), boundary="antiperiodic").assign(periodic)
    found = [lattice.sum(jali.tangent(f, "U"), change, U) for change in (periodic, antiperiodic)]
    eps, values = 1e-5, []
    for sign in (1, -1):
        V = U.like()
        V[...] = U[...] + sign * eps * omega @ U[...]
        values.append(lattice.sum(f, V))
    assert found[0] == found[1] == pytest.approx((values[0] - values[1]) / (2 * eps), abs=1e-8)


@pytest.mark.parametrize("inner", ["real", "complex"])
def test_a_real_field_that_is_written_as_a_complex_one_is_linear(inner: str) -> None:
    @jali.site_function
    def f(X: Any, y: Any, x: Any) -> None:
        y[X] = x[X] + jali.complex(2.0 * x[X + X.directions()[0]], 0)

    x = filled(Lattice(3))
    c = Field(x.lattice, Complex())
    c[...] = np.array([1 + 2j, -0.5j, 0.25])
    y, back = c.like(), x.like()
    f(y, x)
    jali.adjoint(f, "x", inner=inner)(c, back)
    assert np.vdot(c[...], y[...]).real == pytest.approx(np.vdot(back[...], x[...]), rel=1e-13)


# ---- solves on tapes ------------------------------------------------------------------------------------


def _through_a_solve(first: bool) -> Any:
    U = GaugeField(Lattice(3, 3), SU(2)).hot_start(seed=4)
    phi = Field(U.lattice, Spinor(2), boundary={1: "antiperiodic"})
    phi[...] = 1.0
    with jali.Tape(U) as tape:
        D = CloverDirac(U, mass=1.0, csw=0.8)
        if first:
            D @ phi
        total = jali.solve(D, phi, tolerance=1e-13).x.norm2()
    (force,) = tape.gradient(total)
    return np.array([one[...] for one in force])


def test_clover_blocks_that_a_solve_makes_have_their_derivative() -> None:
    np.testing.assert_allclose(_through_a_solve(False), _through_a_solve(True), rtol=1e-9, atol=1e-12)


def test_a_mass_that_changes_after_a_solve_is_refused() -> None:
    U = GaugeField(Lattice(3, 3), SU(2)).hot_start(seed=4)
    phi = Field(U.lattice, Spinor(2))
    phi[...] = 1.0
    D = WilsonDirac(U, mass=1.0)
    for mass in (1.0, 3.0):
        with jali.Tape(phi) as tape:
            total = cgnr(D, phi, rtol=1e-13).x.norm2()
        D.mass = mass
        if mass == 1.0:
            assert np.isfinite(tape.gradient(total)[0][...]).all()
        else:
            with pytest.raises(TraceError, match="the operator of this solve is made of has changed since"):
                tape.gradient(total)


# ---- words ----------------------------------------------------------------------------------------------


def test_mistaken_derivatives_are_told_at_their_line() -> None:
    @jali.site_function
    def f(X: Any, x: Any, s: Any, total: Any) -> None:
        total += s[X] * x[X]

    @jali.site_function
    def writes(X: Any, y: Any, x: Any) -> None:
        y[X] = x[X]

    x = filled(Lattice(3))
    s = Field(x.lattice, jali.Integer())
    with pytest.raises(TraceError, match="s holds whole numbers, which have no derivative"):
        jali.gradient(f, "s")(x.like(), x, s)
    with pytest.raises(jali.ParameterError, match="of= names parameters of f"):
        jali.gradient(f, x)  # type: ignore[arg-type]
    with pytest.raises(jali.ParameterError, match="the last parameter of writes is its sum, and that is x"):
        jali.gradient(writes, "x")
    with jali.Tape(x) as tape:
        total = x.max() * x.norm2()
    with pytest.raises(TraceError, match=r"the max over sites has no derivative\n  at .*test_lattices"):
        tape.gradient(total)
    with pytest.raises(jali.ParameterError, match="needs the adjoint of the operator"), jali.Tape(x):
        jali.solvers.gcr(lambda p, q: q.assign(p), x)
