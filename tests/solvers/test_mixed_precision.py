"""Recursions in few bits with reliable updates: the solution has the bits of A, iterations are those of many bits."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Spinor
from jali.errors import SolverError
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField, stout_smear
from jali.solvers import (
    Inner,
    bicgstab,
    bicgstabl,
    block_cg,
    cg,
    cgnr,
    chebyshev,
    defect_correction,
    fgmres,
    gcr,
    minres,
    mr,
)

FORMATS = {"float32": "float32", "float16": "float16-12", "bfloat16": "bfloat16-12", "fixed16": "fixed16-12"}
SOLVERS = {"cgnr": cgnr, "bicgstab": bicgstab, "bicgstabl": bicgstabl, "gcr": gcr, "mr": mr}


@functools.cache
def case():
    return made()


def made():
    """An even-odd operator on rough links, light enough for some fifty iterations, and a point source."""
    lattice = Lattice(4, 4, 4, 8)
    U = stout_smear(GaugeField(lattice, SU(3)).hot_start(seed=1), rho=0.1, steps=4)
    D = WilsonDirac(U, mass=-0.5)
    b = Field(lattice, Spinor(3), boundary={3: "antiperiodic"})
    b[0, 0, 0, 0, 0, 0] = 1
    return U, D.even_odd(), D.even_odd().prepare(b)


def few(format, mass=-0.5, of=None):
    U, _, b = of or case()
    links = [u.like(precision="float32", storage=FORMATS[format]).assign(u) for u in U.fields]
    return WilsonDirac(links, mass).even_odd(), b.like(precision="float32", storage=format)


def true_residual(E, b, x):
    r = b[...] - (E @ x)[...]
    return np.linalg.norm(r) / np.linalg.norm(b[...])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("update", ["residual", "estimate"])
@pytest.mark.short(3)
def test_cg_takes_the_iterations_of_many_bits(format, update):
    _, E, b = case()
    F, like = few(format)
    right = E.adjoint(b)
    plain = cg(E.normal, right, rtol=1e-11)
    mixed = cg(E.normal, right, rtol=1e-11, inner=Inner(F.normal, like, update))
    assert plain.iterations <= mixed.iterations <= 1.1 * plain.iterations
    assert mixed.converged
    assert mixed.residual <= 1e-11
    assert np.linalg.norm(mixed.x[...] - plain.x[...]) <= 1e-9 * np.linalg.norm(plain.x[...])
    r = right[...] - E.normal(mixed.x)[...]
    assert mixed.residual == pytest.approx(np.linalg.norm(r) / np.linalg.norm(right[...]), rel=1e-3)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_reaches_the_bits_of_A(name):
    _, E, b = case()
    F, like = few("float16")
    found = SOLVERS[name](E, b, inner=Inner(F, like))
    assert found.converged
    assert found.residual <= 1e-10
    assert true_residual(E, b, found.x) == pytest.approx(found.residual, rel=1e-3)


def test_hermitian_solvers_too():
    _, E, b = case()
    F, like = few("fixed16")
    right = E.adjoint(b)
    for found in (
        minres(E.normal, right, inner=Inner(F.normal, like, delta=0.01)),
        chebyshev(E.normal, right, window=(0.1, 30.0), inner=Inner(F.normal, like, delta=0.01)),
        fgmres(E, b, inner=Inner(F, like)),
        cg(E.normal, right, M=lambda r, z: z.assign(r), inner=Inner(F.normal, like, delta=0.01)),
    ):
        assert found.converged
        assert found.residual <= 1e-10


def test_graphs_and_ranks_have_the_same_bits():
    def run(check_interval):
        of = made()
        F, like = few("float16", of=of)
        found = cg(
            of[1].normal,
            of[1].adjoint(of[2]),
            inner=Inner(F.normal, like),
            check_interval=check_interval,
        )
        return found.history, found.x[...].tobytes()

    alone = run(1)
    assert run(None) == run(16) == alone
    assert jali.virtual_ranks(2, run, None) == [alone] * 2


def test_members_of_a_batch_have_the_bits_that_they_have_alone():
    _, E, b = case()
    F, like = few("float16")
    many = b.like(batch=3)
    for k in range(3):
        many.members[k].assign(b)
        many.members[k][k + 1, k % 2, 0, 0, 1, k] = 2.0
    right = E.normal(many)
    found = cg(E.normal, right, inner=Inner(F.normal, like.like(batch=3)))
    for k in range(3):
        alone = cg(E.normal, right.members[k].copy(), inner=Inner(F.normal, like))
        assert abs(found[k].iterations - alone.iterations) <= 1
        assert found[k].residual <= 1e-10
        assert np.linalg.norm(found[k].x[...] - alone.x[...]) <= 1e-8 * np.linalg.norm(alone.x[...])


def test_blocks_share_a_space_in_few_bits():
    _, E, b = case()
    F, like = few("float32")
    many = b.like(batch=3)
    for k in range(3):
        many.members[k].assign(b)
        many.members[k][k + 1, k % 2, 0, 0, 1, k] = 2.0
    found = block_cg(E.normal, E.normal(many), inner=Inner(F.normal, like.like(batch=3)))
    assert found.converged
    assert np.linalg.norm(found.x[...] - many[...]) <= 1e-7 * np.linalg.norm(many[...])


def test_a_start_and_arrays():
    rng = np.random.default_rng(1)
    a = rng.normal(size=(40, 40))
    a = a @ a.T / 40 + 0.1 * np.eye(40)
    b = rng.normal(size=40)

    class Matrix:
        def __init__(self, matrix):
            self.matrix = matrix

        def matvec(self, x):
            return self.matrix @ x

        def rmatvec(self, x):
            return self.matrix.T @ x

    inner = Inner(Matrix(a.astype(np.float32)), b.astype(np.float32))
    exact = np.linalg.solve(a, b)
    for solver in (cg, cgnr, gcr, minres):
        found = solver(Matrix(a), b, exact + 0.1, rtol=1e-12, inner=inner)
        assert np.allclose(found.x, exact, rtol=0, atol=1e-9)


def test_three_formats():
    _, E, b = case()
    F, like = few("float16")
    links = [u.astype("float32") for u in case()[0].fields]
    middle = WilsonDirac(links, mass=-0.5).even_odd()
    right = E.adjoint(b)
    found = defect_correction(
        E.normal,
        right,
        lambda r: cg(middle.normal, r, rtol=1e-4, inner=Inner(F.normal, like)),
        like=right.like(precision="float32"),
    )
    assert found.residual <= 1e-10


def test_an_inner_operator_of_another_system_is_an_error():
    _, E, b = case()
    other, like = few("float32", mass=0.8)
    with pytest.raises(SolverError, match="the inner operator is another one than A") as raised:
        cg(E.normal, E.adjoint(b), inner=Inner(other.normal, like))
    assert len(raised.value.history) > 1


def test_mistakes_are_named():
    _, E, b = case()
    F, like = few("float32")
    with pytest.raises(ParameterError, match=r"the rule of updates is 'residual' or 'estimate'"):
        Inner(F, like, "never")
    with pytest.raises(ParameterError, match="delta is between 0 and 1"):
        Inner(F, like, delta=1.0)
    with pytest.raises(ParameterError, match="inner is a jali.solvers.Inner"):
        cg(E.normal, b, inner=F)
    with pytest.raises(LayoutError, match="inner: like is a vector of the form of b"):
        cg(E.normal, b, inner=Inner(F.normal, like.like(batch=2)))
