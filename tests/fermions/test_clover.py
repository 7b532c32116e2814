"""The clover operator: a configuration whose numbers are known, dense matrices, symmetries, and blocks that follow the links."""

from __future__ import annotations

import numpy as np
import pytest
from properties import (
    FORMS,
    check_batches_and_colours,
    check_bits_on_ranks,
    check_even_odd,
    check_gauge_covariance,
    check_symmetries,
    check_value,
    correlator,
    dense,
    log_det_by_colours,
    random_field,
    shared_configuration,
)
from test_even_odd import known_system
from test_fat_links import along
from test_wilson import random_links, random_spinor, unit_links, wilson_numpy

import jali
from jali import EVEN, ODD, SU, Field, Hermitian, Lattice, LayoutError, ParameterError, Spinor
from jali.fermions import WilsonDirac, gamma
from jali.fermions.clover import CloverDirac
from jali.gauge import GaugeField
from jali.lattice.algebra import norm2
from jali.solvers import cg

WRONG_C4 = {0.001070912: "the sign of c_sw", 0.002010372: "F was made traceless"}
C = [0.943313129170, 0.057410595793, 0.010584954176, 0.003367675653, 0.002032754327]


def field_strength_numpy(U, mu, nu):
    """(Q - Q^dagger) / 8 from products along paths."""
    a, b = 1 + mu, 1 + nu
    paths = [(a, b, -a, -b), (b, -a, -b, a), (-a, -b, a, b), (-b, a, b, -a)]
    Q = sum(along(U, path) for path in paths)
    return (Q - Q.conj().swapaxes(-1, -2)) / 8


def clover_numpy(links, psi, planes):
    """(i / 4) sum over all mu, nu of c sigma_mu,nu F_mu,nu psi, where `planes` has c of each plane mu < nu."""
    U, out = np.stack([u[...] for u in links]), 0
    for (mu, nu), c in planes.items():
        for a, b in ((mu, nu), (nu, mu)):
            sigma = 0.5j * (gamma[a].dense() @ gamma[b].dense() - gamma[b].dense() @ gamma[a].dense())
            F = field_strength_numpy(U, a, b)
            out = out + 0.25j * c * np.einsum("st,...ij,...tj->...si", sigma, F, psi)
    return out


def planes_of(ndim, c, c_time=None):
    last = ndim - 1
    return {
        (mu, nu): c_time if nu == last and c_time is not None else c
        for mu in range(ndim)
        for nu in range(mu + 1, ndim)
    }


@pytest.mark.lanes
@pytest.mark.short(3)
@pytest.mark.parametrize(
    ("extents", "n"),
    [((4, 2, 2, 4), 3), ((2, 3, 2, 4), 4), ((4, 6), 1), ((4, 3, 2), 3), ((4, 2, 6), 2), ((6,), 2)],
    ids=str,
)
def test_operator_agrees_with_numpy(extents, n):
    lattice, ndim = Lattice(*extents), len(extents)
    U, psi = random_links(lattice, n, 1), random_spinor(lattice, n, 2)
    D = CloverDirac(U, 0.3, 1.7)
    expected = wilson_numpy([u[...] for u in U], psi[...], 0.3, ["periodic"] * ndim)
    expected = expected + clover_numpy(U, psi[...], planes_of(ndim, 1.7))
    assert np.allclose(D.apply(psi)[...], expected, rtol=1e-13, atol=1e-13)
    assert D.blocks[0].element == Hermitian(2 * n)
    assert np.allclose(D.diagonal(D.diagonal_inverse(psi))[...], psi[...], rtol=0, atol=1e-13)


def test_planes_of_time_have_their_own_coefficient():
    lattice = Lattice(4, 2, 2, 4)
    U, psi = random_links(lattice, 3, 1), random_spinor(lattice, 3, 2)
    numbers = {"anisotropy": 2.5, "nu": 0.9}
    D = CloverDirac(U, 0.3, 1.5, csw_time=0.7, **numbers)
    expected = WilsonDirac(U, 0.3, **numbers).apply(psi)[...]
    expected = expected + clover_numpy(U, psi[...], planes_of(4, 1.5 / 2.5, 0.7))
    assert np.allclose(D.apply(psi)[...], expected, rtol=1e-13, atol=1e-13)


def test_numbers_of_the_known_configuration():
    wilson, eta = known_system()
    D = CloverDirac(wilson.links, 0.1, 1.2)
    check_value(
        norm2(D.apply(eta)),
        92163.026737213,
        {92069.157444: "conjugated links", 91464.746105: "the sign of gamma", 91378.211798817: "c_sw is 0"},
        "|D eta|^2",
        abs=1e-9,
    )
    for over, expected in ((EVEN, 4316.54248243), (ODD, 4316.16452779)):
        assert D.log_det(over) == pytest.approx(expected, abs=1e-8)
    assert D.log_det() == pytest.approx(4316.54248243 + 4316.16452779, abs=2e-8)
    full = cg(D.normal, D.adjoint(eta), rtol=1e-10)
    assert full.iterations == 128
    assert norm2(full.x) == pytest.approx(444.696782629, abs=1e-7)  # S = phi^dagger (D D^dagger)^-1 phi
    by_cholesky = CloverDirac(wilson.links, 0.1, 1.2, inverse="cholesky")
    for operator, over, form in (*((D, *case) for case in FORMS), (by_cholesky, ODD, "symmetric")):
        E = operator.even_odd(over, form)
        found = cg(E.normal, E.adjoint(E.prepare(eta)), rtol=1e-10)
        assert found.iterations == (51 if form == "asymmetric" else 47), E
        assert np.allclose(E.reconstruct(found.x, eta)[...], full.x[...], rtol=0, atol=1e-8)


def test_correlator_of_the_known_configuration():
    D = known_system()[0]
    found = correlator(CloverDirac(D.links, 0.1, 1.2))
    check_value(found[4], C[4], WRONG_C4, "C(4)", abs=2e-12)
    assert found[:5] == pytest.approx(C, abs=2e-12)
    assert found[5:] == pytest.approx(found[3:0:-1], rel=1)


@pytest.mark.full
def test_the_other_sign_of_csw_is_known_by_its_correlator():
    D = known_system()[0]
    assert correlator(CloverDirac(D.links, 0.1, -1.2))[4] == pytest.approx(0.001070912, abs=1e-9)


@pytest.mark.full
def test_determinant_of_the_known_configuration():
    D = CloverDirac(known_system()[0].links, 0.1, 1.2)
    schur, phase = log_det_by_colours(D)
    assert D.log_det(EVEN) + schur == pytest.approx(8640.54955116, abs=1e-7)
    assert phase == pytest.approx(0, abs=1e-9)  # gamma_5 D is Hermitian


def test_correlator_of_a_file():
    """kappa 0.13, c_sw 1.5, antiperiodic time."""
    U = shared_configuration()
    found = correlator(CloverDirac(U, kappa=0.13, csw=1.5))
    assert found[:3] == pytest.approx([1.195380901, 0.087272888, 0.024305806], abs=1e-9)


@pytest.fixture(scope="module")
def setting():
    return CloverDirac(random_links(Lattice(4, 2, 4, 6), 3, 3), 0.2, 1.3)


def test_adjoints_are_those_of_gamma5_and_of_inner_products(setting):
    check_symmetries(setting, setting)


def test_moved_links_move_the_operator():
    check_gauge_covariance(lambda U: CloverDirac(U, 0.2, 1.3), Lattice(4, 2, 4, 6), 3)


@pytest.mark.parametrize("inverse", ["stored", "cholesky"])
def test_even_odd_forms_give_the_full_solution(setting, inverse):
    check_even_odd(CloverDirac(setting.links, 0.5, 1.3, inverse=inverse))


def test_batches_and_colours_have_the_bits_of_single_whole_fields(setting):
    check_batches_and_colours(setting)


@pytest.mark.lanes
@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [4, 3, 2])
def test_bits_are_those_of_one_rank(ranks):
    check_bits_on_ranks(lambda lattice: CloverDirac(random_links(lattice, 3, 1), 0.2, 1.3), ranks)


@pytest.mark.short(1)
@pytest.mark.parametrize("n", [3, 2])
def test_dense_matrices_have_the_determinant_and_the_inverse(n):
    """det D = det A_ee det S, and A^-1 is that of the dense A, stored or by Cholesky's factors."""
    lattice = Lattice(2, 2, 2, 2)
    U, psi = random_links(lattice, n, 1), random_spinor(lattice, n, 2)
    D = CloverDirac(U, 0.3, 1.3)
    E, matrix, A = D.even_odd(), dense(D.apply, psi), dense(D.diagonal, psi)
    odd = np.repeat((np.indices(lattice.extents).sum(0) % 2 == 1).ravel(), 4 * n)
    schur = dense(lambda units: E.apply(units.on(ODD)), psi)[odd][:, odd]
    size, found = np.linalg.slogdet(matrix)[1], np.linalg.slogdet(schur)[1]
    assert D.log_det(EVEN) + found == pytest.approx(size, rel=1e-13)
    assert D.log_det() == pytest.approx(np.linalg.slogdet(A)[1], rel=1e-13)
    expected = np.linalg.solve(A, psi[...].ravel())
    for inverse in ("stored", "cholesky"):
        x = CloverDirac(U, 0.3, 1.3, inverse=inverse).diagonal_inverse(psi)
        assert np.allclose(x[...].ravel(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("inverse", ["stored", "cholesky"])
def test_a_compressed_operator_keeps_three_quarters_of_the_numbers_and_is_the_same(setting, inverse):
    D = setting
    spinors = [random_spinor(D.lattice, 3, 7, boundary={3: "antiperiodic"})]
    C = CloverDirac(D.links, D.mass, D.csw, compressed=True, inverse=inverse)
    one = CloverDirac(D.links, D.mass, D.csw, inverse=inverse)
    assert sum(f.storage.site_bytes for f in C._blocks) == 0.75 * sum(
        f.storage.site_bytes for f in one.blocks
    )
    for act in (
        lambda A: A @ spinors[0],
        lambda A: A.dagger @ spinors[0],
        lambda A: A.diagonal_inverse(spinors[0]),
        lambda A: A.even_odd(form="symmetric").apply(spinors[0].on(ODD)),
        *(lambda A, k=k: A.blocks[k] for k in range(2)),
    ):
        found, known = act(C)[...], act(one)[...]
        assert np.abs(found - known).max() < 1e-14 * np.abs(known).max()
    assert C.log_det(EVEN) == pytest.approx(one.log_det(EVEN), rel=1e-14)
    C.mass = one.mass = 0.7
    assert np.allclose((C @ spinors[0])[...], (one @ spinors[0])[...], rtol=0, atol=1e-12)


def test_blocks_follow_links_and_numbers():
    lattice = Lattice(4, 2, 2, 4)
    U = GaugeField(lattice, SU(2)).hot_start(seed=1)
    D, psi = CloverDirac(U, 0.3, 1.3), random_spinor(lattice, 2, 2)
    D.even_odd()

    def check():
        fresh = CloverDirac(U, D.mass, D.csw, csw_time=D.csw_time)
        for act in ("apply", "diagonal_inverse"):
            assert np.array_equal(getattr(D, act)(psi)[...], getattr(fresh, act)(psi)[...])
        assert D.log_det() == fresh.log_det()

    check()
    U.hot_start(seed=2)
    check()
    U[1][3, 0, 1, 2] = U[0][0, 0, 0, 0]
    check()
    D.mass, D.csw = 0.4, 0.9
    check()
    D.csw_time = 1.1
    check()


def test_links_of_an_array_are_followed_by_an_update():
    lattice = Lattice(4, 2, 2, 4, device="cpu")  # arrays of the host
    arrays = [np.ascontiguousarray(u[...]) for u in random_links(lattice, 2, 1)]
    U = [lattice.wrap(array, element=SU(2)) for array in arrays]
    D, psi = CloverDirac(U, 0.3, 1.3), random_spinor(lattice, 2, 2)
    D.diagonal_inverse(psi)
    for array, other in zip(arrays, random_links(lattice, 2, 3), strict=True):
        array[...] = other[...]
    D.update()
    fresh = CloverDirac(U, 0.3, 1.3)
    assert np.array_equal(D.apply(psi)[...], fresh.apply(psi)[...])
    assert np.array_equal(D.diagonal_inverse(psi)[...], fresh.diagonal_inverse(psi)[...])


def test_numbers_that_did_not_fit_a_field_that_is_gone_are_not_those_of_blocks():
    lattice = Lattice(4, 2, 2, 4)
    D = CloverDirac(unit_links(lattice, 3), 0.3, 1.3, storage="float16")
    psi, large = Field(lattice, Spinor(3), storage="float16"), Field(lattice, Spinor(3))
    large[...] = 1e6
    psi.assign(large)
    del psi
    with pytest.raises(jali.StorageError, match="^64 sites were given values"):
        D.check_inverse()
    D.check_inverse()


def test_a_block_that_is_not_positive_is_told_with_site_and_pivot():
    lattice = Lattice(4, 2, 2, 4)
    U = unit_links(lattice, 3)
    D = CloverDirac(U, -4.5, 1.0, inverse="cholesky")
    match = r"A of chirality 1 at site \(0, 0, 0, 0\) .* pivot 0 of 0 to 5 is -0.5"
    with pytest.raises(jali.SingularError, match=match):
        D.log_det()
    psi = random_spinor(lattice, 3, 2)
    with pytest.raises(jali.SingularError, match=match):
        norm2(D.diagonal_inverse(psi))
    D = CloverDirac(U, -4.5, 1.0)
    for _ in range(2):
        with pytest.raises(jali.SingularError, match=match):
            D.even_odd()
    D.mass = 0.1
    E = D.even_odd()
    D.mass = -4.5
    assert np.isfinite(norm2(D.apply(psi)))  # D needs no inverse
    for _ in range(2):
        with pytest.raises(jali.SingularError, match=match):
            E.apply(psi.on(ODD))
    with pytest.raises(jali.SingularError, match=match):
        CloverDirac(U, -4.5, 1.0, inverse="cholesky").even_odd()


def test_a_graph_that_changes_links_makes_the_blocks_anew():
    lattice = Lattice(4, 2, 2, 4)
    U, other = (random_links(lattice, 2, k) for k in (1, 3))
    D, psi = CloverDirac(U, 0.3, 1.3), random_spinor(lattice, 2, 2)
    found = D.diagonal_inverse(psi)

    def step():
        for mine, new in zip(U, other, strict=True):
            mine.assign(new)
        D.update()
        D.diagonal_inverse(psi, found)

    jali.graph(step, lattice).run(1)
    fresh = CloverDirac(other, 0.3, 1.3)
    assert np.array_equal(found[...], fresh.diagonal_inverse(psi)[...])
    assert np.array_equal(D.apply(psi)[...], fresh.apply(psi)[...])


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("storage", "bound"),
    [
        ("fixed16", 2.2e-5),
        ("float16-scaled", 2.2e-4),
        ("float32", 3e-8),
        ("bfloat16", 1.8e-3),
        ("fixed8", 5.7e-3),
    ],
)
def test_blocks_stored_in_less_are_as_close_as_their_format(setting, storage, bound):
    psi = random_field(setting, 1)
    D = CloverDirac(setting.links, 0.2, 1.3, storage=storage)
    assert D.blocks[0].format[0] == storage
    for act in ("apply", "diagonal_inverse"):
        exact, found = (getattr(operator, act)(psi)[...] for operator in (setting, D))
        assert 0 < np.linalg.norm(found - exact) < 3 * bound * np.linalg.norm(exact), act
    assert D.log_det() == pytest.approx(setting.log_det(), rel=3 * bound)


@pytest.mark.full
@pytest.mark.parametrize(
    ("storage", "bound"),
    [("fixed16", 2.2e-5), ("float16", 2.2e-4), ("float32", 3e-8), ("bfloat16", 1.8e-3), ("fixed8", 5.7e-3)],
)
def test_links_spinors_and_blocks_stored_in_less_are_as_close_as_their_format(setting, storage, bound):
    psi = random_field(setting, 1)
    expected = setting.apply(psi)[...]
    U = [Field(setting.lattice, SU(3), storage=storage).assign(u) for u in setting.links]
    found = CloverDirac(U, 0.2, 1.3, storage=storage).apply(psi.like(storage=storage).assign(psi), psi.like())
    assert 0 < np.linalg.norm(found[...] - expected) < 3 * bound * np.linalg.norm(expected)


def test_blocks_that_their_storage_cannot_hold_are_an_error():
    """Above 65504 in binary16, of the blocks or of the inverse; one with a norm at each site has them."""
    lattice = Lattice(4, 2, 2, 4)
    U, psi = random_links(lattice, 2, 1), random_spinor(lattice, 2, 2)
    for mass, csw, compressed in ((1e5, 1.3, False), (0.3, 5e6, True)):  # of three terms the mass is apart
        D = CloverDirac(U, mass, csw, storage="float16", compressed=compressed)
        match = rf'CloverDirac\(.*, mass {mass:g}, .*\) with storage="float16" of its blocks \(.*\): \d+ sites .* cannot hold'
        for _ in range(2):
            with pytest.raises(jali.StorageError, match=match):
                D.apply(psi)
        D.mass = D.csw = 0.3
        D.apply(psi)
    D = CloverDirac(unit_links(lattice, 2), 1e-6 - 4, 0.0, storage="float16")
    D.apply(psi)
    with pytest.raises(jali.StorageError, match=r"float16.*inverse of A of chirality 1"):
        D.even_odd()
    expected = CloverDirac(U, 1e5, 1.3).apply(psi)[...]
    found = CloverDirac(U, 1e5, 1.3, storage="float16-scaled").apply(psi)[...]
    assert np.linalg.norm(found - expected) < 3 * 2.2e-4 * np.linalg.norm(expected)


def test_links_of_single_precision_have_blocks_of_single_precision():
    lattice = Lattice(4, 2, 2, 4)
    U = random_links(lattice, 3, 1)
    single, psi = CloverDirac([u.astype("float32") for u in U], 0.2, 1.3), random_spinor(lattice, 3, 2)
    assert single.blocks[0].precision == "float32"
    found = single.apply(psi.astype("float32"))[...]
    assert np.allclose(found, CloverDirac(U, 0.2, 1.3).apply(psi)[...], rtol=0, atol=2e-5)


def test_open_directions_have_no_clover_term_at_their_ends():
    lattice = Lattice(5, 4, 2, 4)
    U = GaugeField(lattice, SU(2), boundary={0: "open"}).hot_start(seed=1)
    D = CloverDirac(U, 0.3, 1.3)
    psi = random_spinor(lattice, 2, 2, boundary={0: "open"})
    term = clover_numpy(U.fields, psi[...], planes_of(4, 1.3))
    term[[0, -1]] = 0
    assert np.allclose(D.diagonal(psi)[...], 4.3 * psi[...] + term, rtol=1e-13, atol=1e-13)
    expected = WilsonDirac(U, 0.3).apply(psi)[...] + term
    assert np.allclose(D.apply(psi)[...], expected, rtol=1e-13, atol=1e-13)


def test_mistakes_are_reported():
    lattice = Lattice(4, 4)
    U = unit_links(lattice, 2)
    for error, act, match in (
        (ParameterError, lambda: CloverDirac(U), "CloverDirac takes mass= or kappa=, and neither"),
        (ParameterError, lambda: CloverDirac(U, 0.1, "1"), "csw is a finite real number, not '1'"),
        (ParameterError, lambda: CloverDirac(U, 0.1, csw_time=1j), "csw_time is a finite real number"),
        (ParameterError, lambda: CloverDirac(U, 0.1, inverse="lu"), '"stored" or "cholesky", not \'lu\''),
        (LayoutError, lambda: CloverDirac(U[:1], 0.1), "1 link fields on a lattice of 2 dimensions"),
        (LayoutError, lambda: CloverDirac(U, 0.1, storage="float33"), "float33"),
    ):
        with pytest.raises(error, match=match):
            act()
    assert repr(CloverDirac(U, 0.1, 1.5)).endswith("mass 0.1, csw 1.5)")
