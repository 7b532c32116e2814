"""Schwarz preconditioners: operators cut between blocks, and solvers that take fewer iterations with them."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from operators import OPERATORS, operator
from properties import check_adjoints, check_even_odd, random_field

import jali
from jali import SU, Field, Lattice, LayoutError, ParameterError, Spinor
from jali.errors import SolverError
from jali.fermions import CloverDirac, CutDirac, SchwarzBlocks, WilsonDirac
from jali.gauge import GaugeField, stout_smear
from jali.solvers import bicgstab, fgmres, gcr
from jali.vectors import vectors_of

SHORT = ("clover", "fat and long links", "Moebius")
every_operator = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.full) for name in OPERATORS]
)
BLOCK = (2, 2, 2, 3)


@functools.cache
def setting(name):
    """An operator and a field."""
    D = operator(name, Lattice(4, 2, 4, 6))
    return D, random_field(D, 1)


def inside(lattice, block, corner):
    """Which sites are those of a block."""
    found = np.ones(lattice.extents, bool)
    for axis, (at, extent) in enumerate(zip(corner, block, strict=True)):
        x = np.arange(lattice.extents[axis]).reshape([-1 if k == axis else 1 for k in range(lattice.ndim)])
        found = found & (at <= x) & (x < at + extent)
    return found


def corners(lattice, block):
    return itertools.product(*(range(0, n, b) for n, b in zip(lattice.extents, block, strict=True)))


@every_operator
def test_the_cut_operator_is_the_operator_within_blocks(name):
    D, psi = setting(name)
    cut = CutDirac(D, BLOCK)
    found, expected = (cut @ psi)[...], np.zeros(psi.shape, complex)
    part = psi.like()
    for corner in corners(D.lattice, BLOCK):
        here = inside(D.lattice, BLOCK, corner)
        here = here.reshape(here.shape + (1,) * (psi[...].ndim - here.ndim))
        part[...] = np.where(here, psi[...], 0)
        expected += np.where(here, (D @ part)[...], 0)
    assert np.abs(found - expected).max() < 1e-13 * np.abs(expected).max()
    assert np.abs(found - (D @ psi)[...]).max() > 0.1
    assert CutDirac(D, D.lattice.extents).apply(psi)[...].tobytes() == (D @ psi)[...].tobytes()


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.short(1)
def test_a_cut_operator_has_an_adjoint_and_even_odd_forms(name):
    D, psi = setting(name)
    cut = CutDirac(D, BLOCK)
    check_adjoints(cut, psi, random_field(D, 2))
    if name == "clover":
        check_even_odd(cut)


def test_block_interiors_are_those_of_the_operator():
    D, psi = setting("clover")
    block = (4, 2, 4, 6)
    D, psi = operator("clover", Lattice(8, 2, 4, 6)), random_field(operator("clover", Lattice(8, 2, 4, 6)), 1)
    psi = random_field(D, 1)
    cut, full = (CutDirac(D, block) @ psi)[...], (D @ psi)[...]
    assert cut[[1, 2, 5, 6]].tobytes() == full[[1, 2, 5, 6]].tobytes()
    for x in (0, 3, 4, 7):
        assert not np.isclose(cut[x], full[x]).any()


def test_a_cut_operator_follows_links_and_numbers():
    lattice = Lattice(4, 2, 4, 6)
    U = GaugeField(lattice, SU(3)).hot_start(seed=2)
    D = CloverDirac(U, 0.5, 1.3)
    psi = random_field(D, 1)
    cut = CutDirac(D, BLOCK)
    before = (cut @ psi)[...]
    U.hot_start(seed=3)
    D.mass = 0.7
    new = CutDirac(CloverDirac(U, 0.7, 1.3), BLOCK) @ psi
    assert np.array_equal((cut @ psi)[...], new[...])
    assert not np.allclose(before, new[...])
    few = cut.in_format("float32", "float16")
    low = psi.like(precision="float32", storage="float16").assign(psi.astype("float32"))
    assert np.linalg.norm((few @ low)[...] - new[...]) < 3e-3 * np.linalg.norm(new[...])


def test_links_of_eight_numbers_are_cut_exactly():
    lattice = Lattice(4, 2, 4, 6)
    U = GaugeField(lattice, SU(3)).hot_start(seed=2)
    plain = CutDirac(WilsonDirac(U, 0.5), BLOCK)
    for storage in ("float64-8", "float64-12"):
        links = [u.like(storage=storage).assign(u) for u in U.fields]
        cut = CutDirac(WilsonDirac(links, 0.5), BLOCK)
        psi = random_field(cut, 1)
        assert np.allclose((cut @ psi)[...], (plain @ psi)[...], atol=1e-7)
        edge = cut.links[0][1][...]
        assert not np.asarray(edge).any()


# ---- preconditioners -------------------------------------------------------------------------------------


def quarks(extents=(4, 4, 4), steps=5):
    """An operator with low modes, and a source."""
    lattice = Lattice(*extents)
    U = GaugeField(lattice, SU(2)).hot_start(seed=2)
    D = WilsonDirac(stout_smear(U, rho=0.1, steps=steps) if steps else U, -0.2 if steps else 0.3)
    b = Field(lattice, Spinor(2))
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    return D, b


def true_residual(D, x, b):
    return np.linalg.norm(b[...] - (D @ x)[...]) / np.linalg.norm(b[...])


def test_solvers_with_schwarz_blocks_take_fewer_iterations():
    D, b = quarks()
    plain = gcr(D, b, rtol=1e-8)
    additive = gcr(D, b, M=SchwarzBlocks(D, 2, kind="additive"), rtol=1e-8)
    multiplicative = gcr(D, b, M=SchwarzBlocks(D, 2), rtol=1e-8)
    twice = fgmres(D, b, M=SchwarzBlocks(D, (2, 2, 2), sweeps=2, iterations=3), rtol=1e-8)
    assert additive.iterations < 0.6 * plain.iterations
    assert multiplicative.iterations < additive.iterations
    assert twice.iterations < multiplicative.iterations
    for found in (additive, multiplicative, twice):
        assert true_residual(D, found.x, b) <= 1e-8


def dense_blocks(D, block, like):
    """Solves with the cut operator exactly, by NumPy."""
    cut, size = CutDirac(D, block), like[...].size
    unit = like.like()
    matrix = np.zeros((size, size), complex)
    for k in range(size):
        values = np.zeros(size)
        values[k] = 1.0
        unit[...] = values.reshape(like.shape)
        matrix[:, k] = (cut @ unit)[...].reshape(-1)
    return np.linalg.inv(matrix)


def test_many_iterations_are_the_sweeps_of_schwarz_with_exact_solves():
    lattice = Lattice(4, 2)
    D = WilsonDirac(GaugeField(lattice, SU(2)).hot_start(seed=2), 0.5)
    r = Field(lattice, Spinor(2))
    r[...] = np.random.default_rng(1).normal(size=r.shape)
    z = r.like()
    block = (2, 2)
    inverse = dense_blocks(D, block, r)
    on = np.array([(x // 2) % 2 == 0 for x in range(4)])[:, None, None, None]

    def solved(rest):
        return (inverse @ rest.reshape(-1)).reshape(rest.shape)

    SchwarzBlocks(D, block, iterations=200, kind="additive")(r, z)
    assert np.allclose(z[...], solved(r[...]), atol=1e-10)
    expected = np.zeros(r.shape, complex)
    x = r.like()
    for _ in range(2):
        for colour in (on, ~on):
            x[...] = expected
            expected = expected + np.where(colour, solved(np.where(colour, r[...] - (D @ x)[...], 0)), 0)
    for options in (
        {"iterations": 200},
        {"solve": lambda A, rest: bicgstab(A, rest, rtol=1e-12).x},
    ):
        SchwarzBlocks(D, block, sweeps=2, **options)(r, z)
        assert np.allclose(z[...], expected, atol=1e-9)


def test_graphs_ranks_and_batches_have_the_same_bits():
    def run(check_interval, batch=None):
        D, b = quarks(extents=(8, 4), steps=0)
        M = SchwarzBlocks(D, (2, 2), iterations=3)
        if batch:
            many = b.like(batch=batch)
            for k in range(batch):
                many.members[k][...] = (1 + k) * b[...]
            b = many
        found = gcr(D, b, M=M, restart=4, rtol=1e-5, check_interval=check_interval)
        one = found if batch is None else found[0]
        return one.history, one.x[...].tobytes()

    alone = run(1)
    assert run(2) == alone
    assert run(1, 2) == alone
    for ranks in (2, 4):
        for one in jali.virtual_ranks(ranks, run, 1):
            assert one == alone


def test_blocks_of_few_bits_precondition_a_solve_in_many():
    D, b = quarks()
    E = D.in_format("float32", "fixed16")
    low = SchwarzBlocks(E, 2)
    r, z = (b.like(precision="float32", storage="fixed16") for _ in range(2))

    def M(rest, out):
        r.assign(rest.astype("float32"))
        low(r, z)
        out.assign(z.astype("float64"))

    found = gcr(D, b, M=M)
    assert found.iterations < 0.7 * gcr(D, b).iterations
    assert true_residual(D, found.x, b) <= 1e-10


def test_domain_walls_are_one_vector():
    D, _ = setting("Moebius")
    r = random_field(D, 1)
    z = r.like()
    SchwarzBlocks(D, BLOCK, iterations=8, kind="additive")(r, z)
    cut = CutDirac(D, BLOCK)
    left = r[...] - (cut @ z)[...]
    assert np.linalg.norm(left) < 0.9 * np.linalg.norm(r[...])


def test_nan_within_a_block_stops_the_solver():
    D, b = quarks()
    M = SchwarzBlocks(D, 2)
    damage = b.like()
    damage[0, 0, 3] = np.nan

    def broken(r, z):
        M(r, z)
        vectors_of("z", z).update([(z, 1, [(1, damage)])])

    with pytest.raises(SolverError, match="nan"):
        gcr(D, b, M=broken)


def test_blocks_and_arguments_are_checked():
    D, b = quarks(extents=(4, 6, 4))
    for block, match in (
        (3, r"blocks of 3 sites do not divide direction 0 of .*, which has 4: 2 do"),
        ((4, 6), "extents of blocks of sites in the 3 directions of the lattice"),
        ((4, 6, 0), "blocks of 0 sites do not divide"),
        ((4, 6, 2.0), "extents of blocks"),
        (True, "extents of blocks|blocks of"),
        ((2, 2, 2), "3 blocks of 2 sites in direction 1 .* no checkerboard"),
    ):
        with pytest.raises(LayoutError, match=match):
            SchwarzBlocks(D, block)
    assert SchwarzBlocks(D, 2, kind="additive").block == (2, 2, 2)
    for options, match in (
        ({"iterations": 0}, "iterations is a positive whole number, not 0"),
        ({"sweeps": 1.5}, "sweeps is a positive whole number, not 1.5"),
        ({"kind": "both"}, "kind is 'additive' or 'multiplicative', not 'both'"),
        ({"solve": 3}, "solve is a function of an operator and a residual, not 3"),
    ):
        with pytest.raises(ParameterError, match=match):
            SchwarzBlocks(D, (2, 3, 2), **options)
    with pytest.raises(LayoutError, match="links between blocks are those of a Dirac operator, not of"):
        SchwarzBlocks(D.even_odd(), 2)
    M = SchwarzBlocks(D, (2, 3, 2))
    half = b.on(jali.EVEN)
    with pytest.raises(LayoutError, match="reads and writes both colours"):
        M(half, half.like())


def test_a_class_with_an_apply_of_its_own_is_refused():
    D, _ = quarks()
    own = type("Own", (WilsonDirac,), {"apply": lambda self, psi, out=None: psi})(D.links, 0.5)
    with pytest.raises(LayoutError, match="Own has an apply or adjoint of its own"):
        SchwarzBlocks(own, 2)
