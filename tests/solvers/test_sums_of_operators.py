"""Operators that give inner products with what they compute: solvers use them, and the bits stay."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Real, Spinor, Vector
from jali.arrays import DistributedArray, from_field
from jali.errors import LayoutError
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField
from jali.lattice.algebra import inner
from jali.linops import SiteOperator
from jali.solvers import CG, CGLS, cg, cgls, power_iteration, vectors_of
from jali.solvers.operators import apply_inner_of


@jali.site_function
def helmholtz(X, out, phi, m2):
    total = (m2 + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


@jali.site_function
def slopes(X, out, u):
    out[X] = jali.vector([u[X + mu] - u[X] for mu in X.directions()])


@jali.site_function
def slopes_adjoint(X, out, v):
    total = 0.0 * v[X][0]
    for k, mu in enumerate(X.directions()):
        total += v[X - mu][k] - v[X][k]
    out[X] = total


def random_field(lattice, element, **options):
    field, rng = Field(lattice, element, **options), np.random.default_rng(1)
    values = rng.normal(size=lattice.extents + element.numpy_shape)
    field[...] = values if element.type.kind == "real" else values + 1j * rng.normal(size=values.shape)
    return field


class Plain:
    """An operator without what it offers beside its two functions."""

    def __init__(self, A):
        self.A, self.dtype = A, A.dtype

    def matvec(self, x):
        return self.A.matvec(x)

    def rmatvec(self, x):
        return self.A.rmatvec(x)


class Counted(SiteOperator):
    """Counts what is called."""

    calls: list[str]

    def matvec_inner(self, x, wait=True):
        self.calls.append("inner")
        return super().matvec_inner(x, wait)

    def matvec_norm2(self, x, wait=True):
        self.calls.append("norm2")
        return super().matvec_norm2(x, wait)


def laplacian(kind=SiteOperator):
    return kind(helmholtz, (6, 4), adjoint=helmholtz, arguments=(0.5,))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("element", [Real(), Complex()], ids=str)
def test_residual_histories_are_those_without(ranks, element):
    def run():
        b = random_field(Lattice(6, 4), element)
        A = laplacian()
        one, two = cg(A, b), cg(Plain(A), b)
        assert one.history == two.history
        assert np.array_equal(one.x[...], two.x[...])
        assert np.array_equal(CG(A).solve(b).cost, CG(Plain(A)).solve(b).cost)
        assert np.array_equal(CG(A).solve(b, damp=0.5).cost, CG(Plain(A)).solve(b, damp=0.5).cost)
        of_fields = from_field(b)
        assert np.array_equal(CG(A).solve(of_fields).cost, CG(Plain(A)).solve(of_fields).cost)
        vector, again = (power_iteration(Op, b, rtol=1e-6) for Op in (A, Plain(A)))
        assert vector.eigenvalue == again.eigenvalue
        return one.history

    assert jali.virtual_ranks(ranks, run) == jali.virtual_ranks(1, run) * ranks


@pytest.mark.parametrize("damp", [0.0, 0.1])
def test_least_squares_take_the_square_from_the_operator(damp):
    A = SiteOperator(slopes, (6, 4), adjoint=slopes_adjoint, element_out=Vector(2, kind="real"))
    b = random_field(Lattice(6, 4), Vector(2, kind="real"))
    one, two = (cgls(Op, b, maxiter=20, damp=damp) for Op in (A, Plain(A)))
    assert np.array_equal(one.cost, two.cost)
    assert np.array_equal(one.x[...], two.x[...])


def test_solvers_call_what_is_there():
    A, b = laplacian(Counted), random_field(Lattice(6, 4), Real())
    for solver, name in ((cg, "inner"), (CG, "inner"), (CGLS, "norm2")):
        A.calls = []
        found = solver(A, b) if solver is cg else solver(A).solve(b)
        assert A.calls == [name] * found.iterations


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_normal_wilson_operator_gives_the_number_of_its_fields(precision):
    def run():
        lattice = Lattice(4, 4, 2, 2)
        D = WilsonDirac(GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1), 0.5)
        psi = random_field(lattice, Spinor(3), precision=precision, boundary={3: "antiperiodic"})
        out, number = D.normal_inner(psi)
        assert number == inner(psi, out).real
        assert np.array_equal(out[...], D.normal(psi)[...])
        given = psi.like()
        assert D.normal_inner(psi, given)[0] is given
        scalar = D.normal_inner(psi, given, wait=False)[1]
        assert float(scalar) == number
        one, two = cg(D.normal, psi, rtol=1e-4), cg(lambda p, q: D.normal(p, q), psi, rtol=1e-4)
        assert one.history == two.history
        return number, one.history

    assert jali.virtual_ranks(2, run) == jali.virtual_ranks(1, run) * 2


def test_links_of_a_wider_arithmetic_leave_the_number_as_it_is():
    lattice = Lattice(4, 2, 2, 2)
    D = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.5)
    psi = random_field(lattice, Spinor(3), precision="float32")
    out, number = D.normal_inner(psi)
    assert number == inner(psi, out).real


def test_normal_inner_refuses_what_normal_refuses():
    lattice = Lattice(4, 2, 2, 2)
    D = WilsonDirac(GaugeField(lattice, SU(3)).hot_start(seed=1), 0.5)
    psi = random_field(lattice, Spinor(3))
    for wrong, match in (
        (3.0, "writes into a field, not into 3.0"),
        (random_field(lattice, Real()), "its element is .* is Real"),
    ):
        with pytest.raises(LayoutError, match=match):
            D.normal_inner(psi, wrong)
    with pytest.raises(LayoutError, match=r"acts on fields of Spinor\(3\)"):
        D.normal_inner(random_field(lattice, Real()))


def test_an_operator_that_saves_nothing_says_none():
    x = DistributedArray.to_dist(np.random.default_rng(1).normal(size=(6, 4)))
    A = laplacian()
    Ax, number = A.matvec_inner(x)
    assert number is None
    assert np.array_equal(Ax.asarray(), (A @ x).asarray())
    vectors = vectors_of("x", x)
    Ax, number = apply_inner_of("A", A, vectors)(x)
    assert number == vectors.inner(x, Ax)


def test_a_rectangular_operator_has_no_inner_product_with_what_it_gives():
    A = SiteOperator(slopes, (6, 4), adjoint=slopes_adjoint, element_out=Vector(2, kind="real"))
    u = random_field(Lattice(6, 4), Real(), name="u")
    with pytest.raises(LayoutError, match="u holds Real.*which slopes writes, holds Vector"):
        A.matvec_inner(u)


def test_a_class_of_ones_own_offers_it_by_its_name():
    class Doubling:
        def __init__(self):
            self.calls = 0

        def apply(self, p, q):
            q[...] = 2.0 * p

        def apply_inner(self, p, q, wait=True):
            self.calls += 1
            self.apply(p, q)
            return q, 2.0 * float(np.vdot(p, p))

    D = Doubling()
    found = cg(D.apply, np.ones(3))
    assert np.allclose(found.x, 0.5)
    assert D.calls == found.iterations == 1
