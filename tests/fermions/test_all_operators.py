"""What all Dirac operators have in common: adjoints, parts, even-odd forms, batches, ranks and storage. `operators.py` has the table."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from operators import (
    IMPROVED,
    OPERATORS,
    VARIANTS,
    WALLS,
    WILSON,
    operator,
    storage_beside,
    stored_links,
    stored_operator,
)
from properties import FORMS, check_adjoints, check_batches, check_colours, check_even_odd, random_field
from test_wilson import random_links, random_spinor, unit_links

import jali
from jali import EVEN, ODD, Field, Lattice, LayoutError
from jali.fermions import (
    Asqtad,
    CloverDirac,
    ImprovedStaggered,
    Staggered,
    TwistedCloverDirac,
    TwistedMassDirac,
    WilsonDirac,
    gamma,
)
from jali.lattice.algebra import inner

# Whose kernels differ most; the others have tests of their own in the short run.
SHORT = ("anisotropic Wilson", "twisted clover", "staggered", "fat and long links", "Moebius", "Laplace")
every_operator = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.full) for name in OPERATORS]
)


@functools.cache
def setting(name):
    """An operator and two fields."""
    D = operator(name, Lattice(4, 2, 4, 6))
    return D, random_field(D, 1), random_field(D, 2)


def relative(found, expected):
    """The relative difference of two arrays."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


# ---- algebra -------------------------------------------------------------------------------------------------


@every_operator
def test_adjoints_move_to_the_other_side_of_inner_products(name):
    check_adjoints(*setting(name))


@every_operator
def test_the_dagger_of_the_dagger_is_the_operator_and_normal_is_one_after_the_other(name):
    D, psi, _ = setting(name)
    assert D.dagger.dagger is D
    applied, adjoint = D.apply(psi), D.adjoint(psi)
    for found, expected in (
        (D @ psi, applied),
        (D.matvec(psi), applied),
        (D.dagger @ psi, adjoint),
        (D.dagger.matvec(psi), adjoint),
        (D.rmatvec(psi), adjoint),
        (D.dagger.rmatvec(psi), applied),
        (D.dagger.adjoint(psi), applied),
        (D.normal(psi), D.adjoint(applied)),
    ):
        assert np.array_equal(found[...], expected[...])


@every_operator
def test_an_operator_is_its_diagonal_and_its_hop(name):
    """Also scaled, added to another field, of half of the sites."""
    D, psi, chi = setting(name)
    for dagger in (False, True):
        hop, diagonal = D.hop(psi, dagger=dagger)[...], D.diagonal(psi, dagger=dagger)
        whole = (D.dagger if dagger else D) @ psi
        assert relative(diagonal[...] + hop, whole[...]) < 1e-15
        assert relative(D.diagonal_inverse(diagonal, dagger=dagger)[...], psi[...]) < 1e-14
        assert relative(D.hop(psi, dagger=dagger, scale=0.3 - 0.2j)[...], (0.3 - 0.2j) * hop) < 1e-15
        expected = -1.5j * chi[...] + 0.7 * hop
        found = D.hop(psi, dagger=dagger, scale=0.7, plus=chi, times=-1.5j)
        assert relative(found[...], expected) < 1e-15
        for over in (EVEN, ODD):
            other = over.opposite
            half = D.hop(psi.on(over), dagger=dagger, scale=0.7, plus=chi.on(other), times=-1.5j)
            assert half.over is other
            assert np.array_equal(half[...], found.on(other)[...])


@every_operator
def test_even_odd_forms_have_a_known_solution(name):
    """Of b = D x the Schur complement of x is the prepared b, and x follows from its half: no solver is needed."""
    D, x, _ = setting(name)
    b = D @ x
    for over, form in FORMS:
        E, half = D.even_odd(over, form), x.on(over)
        assert relative(E.apply(half)[...], E.prepare(b)[...]) < 1e-14, (over, form)
        assert relative(E.reconstruct(half, b)[...], x[...]) < 1e-14, (over, form)
        normal, number = E.normal_inner(half)
        assert np.array_equal(E.normal(half)[...], E.adjoint(E.apply(half))[...])
        assert np.array_equal(E.normal(half)[...], normal[...])
        assert number == D.of_one_vector(inner(half, normal).real)


@pytest.mark.full
@every_operator
def test_even_odd_forms_give_the_solution_of_all_sites(name):
    check_even_odd(setting(name)[0], error=2e-12)


# ---- bits ----------------------------------------------------------------------------------------------------


@every_operator
def test_fields_on_one_colour_have_the_bits_of_whole_ones(name):
    D, psi, _ = setting(name)
    check_colours(D, psi)


@pytest.mark.lanes
@pytest.mark.short(2)
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in WALLS])
def test_members_of_a_batch_have_the_bits_of_single_fields(name):
    check_batches(setting(name)[0], 3)


def random_shape(rng, reach):
    """Extents and a grid of 2 to 4 ranks, parts of which are as wide as a hop goes, and may differ."""
    grid = [1, 1, 1, 1]
    for factor in ((2,), (3,), (4,), (2, 2))[rng.integers(4)]:
        grid[rng.integers(4)] *= factor
    extents = [2 * int(rng.integers(1, 3)) if n == 1 else n * reach + int(rng.integers(4)) for n in grid]
    return tuple(n + n % 2 for n in extents), tuple(grid)


@pytest.mark.lanes
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=[] if seed == k and name in SHORT else pytest.mark.full)
        for k, name in enumerate(OPERATORS)
        for seed in (k, k + 20, k + 40)
    ],
)
@pytest.mark.short(8)
def test_bits_are_the_same_on_any_ranks_and_shapes(name, seed):
    extents, grid = random_shape(np.random.default_rng(seed), 3 if name in IMPROVED else 2)

    def run(grid=None):
        D = operator(name, Lattice(*extents, grid=grid), seed)
        psi, E = random_field(D, seed), D.even_odd(form="symmetric")
        fields = D.apply(psi), D.normal(psi), E.normal(psi.on(ODD)), D.hop(psi.on(ODD), dagger=True)
        return [f[...] for f in fields] + [np.array(D.normal_inner(psi)[1])]

    alone = run()
    for found in jali.virtual_ranks(int(np.prod(grid)), run, grid):
        assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True)), (extents, grid)


# ---- anisotropy ------------------------------------------------------------------------------------------------


def hop_numpy(U, psi, mu, factor):
    """(1 - gamma) U psi(x+mu) + (1 + gamma) U^dagger psi(x-mu) of arrays, with the factor at the edge."""
    ahead, behind = np.roll(psi, -1, mu), np.roll(np.einsum("...ji,...sj->...si", U.conj(), psi), 1, mu)
    np.moveaxis(ahead, mu, 0)[-1] *= factor
    np.moveaxis(behind, mu, 0)[0] *= factor
    minus, plus = (np.eye(4) + sign * gamma[mu].dense() for sign in (-1, 1))
    return np.einsum("st,...ij,...tj->...si", minus, U, ahead) + np.einsum("st,...ti->...si", plus, behind)


@pytest.mark.parametrize(("xi", "nu"), [(2.5, 0.9), (0.5, 1.0), (1.0, 1.2)])
@pytest.mark.parametrize("extents", [(4, 2, 4, 6), (4, 2, 6), (4, 6)], ids=str)
def test_anisotropic_operators_agree_with_numpy(extents, xi, nu):
    """D = m + 1 + (d - 1) nu / xi - (H_t + (nu / xi) H_s) / 2, and kappa is the inverse of twice its diagonal."""
    lattice, d, kappa, mu = Lattice(*extents), len(extents), 0.11, 0.3
    U = random_links(lattice, 3, 1)
    psi = random_spinor(lattice, 3, 2, boundary={d - 1: "antiperiodic"})
    space = sum(hop_numpy(U[k][...], psi[...], k, 1) for k in range(d - 1))
    hops = hop_numpy(U[d - 1][...], psi[...], d - 1, -1) + nu / xi * space
    of_mass = (0.2 + 1 + (d - 1) * nu / xi) * psi[...] - hops / 2
    of_kappa = psi[...] / (2 * kappa) - hops / 2
    twist = 1j * mu * np.diag([1, 1, -1, -1]) @ psi[...]
    numbers = {"anisotropy": xi, "nu": nu}
    for by, expected in (({"mass": 0.2}, of_mass), ({"kappa": kappa}, of_kappa)):
        for D, term in (
            (WilsonDirac(U, **by, **numbers), 0),
            (TwistedMassDirac(U, mu=mu, **by, **numbers), twist),
            (CloverDirac(U, csw=0, **by, **numbers), 0),
            (TwistedCloverDirac(U, mu=mu, csw=0, **by, **numbers), twist),
        ):
            assert relative((D @ psi)[...], expected + term) < 1e-15
            assert D.kappa == pytest.approx(kappa if "kappa" in by else 0.5 / (1.2 + (d - 1) * nu / xi))


# ---- storage -----------------------------------------------------------------------------------------------------

# |D' psi - D psi| / |D psi| for Gaussian psi, where links and psi are stored so. With 8 reals it is 1.5 times as much, of staggered
# operators 3 times; slices of time differ.
BOUNDS = {"float32": 3e-8, "fixed16": 2.2e-5, "float16": 2.2e-4, "bfloat16": 1.8e-3, "fixed8": 5.7e-3}
FORMATS = ["fixed16-12", "float16-8", "float32-12", "fixed16-8", "float16-12", "float32-8"]
FORMATS += [*BOUNDS, "bfloat16-12", "bfloat16-8", "fixed8-12", "fixed8-8", "float16-scaled"]


def formats_of(name):
    """Storage of links that an operator takes: fat and long ones are no elements of a group, of which "-12" and "-8" keep less."""
    return [f for f in FORMATS if name != "fat and long links" or f == storage_beside(f)]


def test_the_formats_of_these_tests_are_those_of_links():
    U = unit_links(Lattice(2, 2), 3)
    with pytest.raises(LayoutError, match="SU.3. can be stored as (.*)") as refused:
        U[0].like(storage="float33")
    named = str(refused.value).partition(" can be stored as ")[2].split(", ")
    assert {*FORMATS, "float64", "float64-12", "float64-8"} == {*named}


def bound_of(storage):
    bound = BOUNDS["float16" if storage == "float16-scaled" else storage_beside(storage)]
    return 3 * bound * (1.6 if storage.endswith("-8") else 1)


def stored(name, storage):
    """The exact operator and field, and those in a storage; those of 32 bits compute in float64.

    Operators that smear are compared with those of the links as they are stored: sums of products of random links are small, and make errors of
    links larger.
    """
    D, psi, _ = setting(name)
    U, precision = random_links(D.lattice, 3, 3), "float64" if storage.startswith("float32") else "float32"
    if name in ("asqtad", "HISQ"):
        D = OPERATORS[name]([u.assign(stored_links([u], storage, precision)[0]) for u in U])
    few = Field(psi.lattice, psi.element, precision, storage_beside(storage), psi.boundary, batch=psi.batch)
    return D, psi, stored_operator(name, U, storage, precision), few.assign(psi)


def by_time(found, expected):
    """The largest relative difference of a slice of the last direction: signs at its ends are those of the boundary."""
    return max(relative(found[:, :, :, t], expected[:, :, :, t]) for t in range(found.shape[3]))


@pytest.mark.short(5)
@pytest.mark.parametrize(
    ("name", "storage"),
    [
        pytest.param(
            name, storage, marks=[] if storage in short and name not in VARIANTS else pytest.mark.full
        )
        for k, name in enumerate(OPERATORS)
        for short in [(formats_of(name)[k % 4], formats_of(name)[(k + 2) % 4])]
        for storage in formats_of(name)
    ],
)
def test_fields_stored_in_less_are_as_close_as_their_format(name, storage):
    D, psi, F, few = stored(name, storage)
    whole = few.like(storage=None)
    for act in ("apply", "adjoint"):
        expected = getattr(D, act)(psi)[...]
        error = by_time(getattr(F, act)(few, whole)[...], expected)
        assert 0 < error < bound_of(storage), act


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "storage"),
    [(name, f) for name in OPERATORS for f in formats_of(name)[: None if name in SHORT else 4]],
)
def test_even_odd_forms_stored_in_less_are_as_close_as_their_format(name, storage):
    """Each kernel rounds its result, as the last one does not."""
    D, psi, F, few = stored(name, storage)
    for form in ("asymmetric", "symmetric"):
        exact, found = D.even_odd(form=form), F.even_odd(form=form)
        half, few_half = psi.on(ODD), few.on(ODD)
        whole = few_half.like(storage=None)
        for act in ("apply", "adjoint"):
            error = relative(getattr(found, act)(few_half, whole)[...], getattr(exact, act)(half)[...])
            assert 0 < error < 1.4 * bound_of(storage), (form, act)
        for dagger in (False, True):
            error = relative(F.hop(few_half, dagger=dagger)[...], D.hop(half, dagger=dagger)[...])
            assert 0 < error < 1.4 * bound_of(storage)
        x = found.reconstruct(few_half, few, few.like(storage=None))
        assert relative(x[...], exact.reconstruct(half, psi)[...]) < 1.4 * bound_of(storage), form


@pytest.mark.parametrize("storage", ["float32-12", "float64-8"])
@pytest.mark.parametrize("name", ["Wilson", "staggered", "Laplace"])
def test_unit_links_lose_nothing_in_few_numbers(name, storage):
    """Where the first column of a matrix is that of the unit matrix."""
    D, psi, _ = setting(name)
    U = unit_links(D.lattice, 3)
    expected = OPERATORS[name](U) @ psi
    F = stored_operator(name, U, storage, "float64")
    assert relative((F @ psi)[...], expected[...]) < 1e-15


@pytest.mark.parametrize("storage", ["float32-4", pytest.param("fixed16-4", marks=pytest.mark.full)])
@pytest.mark.parametrize("make", [lambda U: WilsonDirac(U, 0.5), lambda U: Staggered(U, 0.5)])
def test_rows_of_su2_hold_its_links(make, storage):
    U = random_links(Lattice(4, 2, 4, 6), 2, 3)
    D, few = make(U), make([u.like(storage=storage).assign(u) for u in U])
    psi = random_field(D, 1)
    error = relative((few @ psi)[...], (D @ psi)[...])
    assert 0 < error < 3 * BOUNDS[storage.removesuffix("-4")]


@pytest.mark.parametrize("name", ["clover", pytest.param("Moebius", marks=pytest.mark.full)])
def test_spinors_stored_spin_by_spin_have_the_same_bits(name):
    D, psi, _ = setting(name)
    first = psi.like(storage="float64-spin-first").assign(psi)
    assert np.array_equal((D @ first)[...], (D @ psi)[...])
    assert np.array_equal(D.even_odd().apply(first.on(ODD))[...], D.even_odd().apply(psi.on(ODD))[...])


def test_storage_that_an_operator_does_not_take_is_named():
    lattice = Lattice(4, 2, 4, 4)
    U = random_links(lattice, 3, 1)
    single, few = [u.astype("float32") for u in U], stored_links(U, "fixed16-12", "float32")
    signs = [*U[:3], U[3].like(boundary={3: "antiperiodic"})]
    fat = Asqtad(few, 0.1).links
    assert {str(f.stored) for f in fat} == {"float32"}  # no matter how those of U are kept
    psi = lattice.field(jali.Spinor(3))
    for act, match in (
        (lambda: U[0].like(storage="fixed16-13"), "storage 'fixed16-13' is unknown; SU.3. can be stored as"),
        (
            lambda: fat[0].like(storage="float32-12"),
            "float32-12 does not hold Matrix.3, 3.; .* can be stored as",
        ),
        (lambda: ImprovedStaggered(few, U, 0.1), "fat links are .* not unitary: fixed16-12 keeps too few"),
        (lambda: ImprovedStaggered(U, few, 0.1), "long links are .* not unitary: fixed16-12 keeps too few"),
        (lambda: psi.like(storage="float32-12"), "float32-12 does not hold Spinor.3.; .* can be stored as"),
        (lambda: CloverDirac(U, 0.1, storage="fixed16-12"), "fixed16-12 does not hold Hermitian.6."),
        (lambda: CloverDirac(single, 0.1, storage="float64"), "float32 arithmetic is not stored as float64"),
        (lambda: Staggered(signs, 0.1) @ lattice.field(jali.Vector(3)), "signs and phases belong to"),
        (lambda: WilsonDirac(signs, 0.1) @ psi, "signs and phases belong to the spinor's boundary"),
    ):
        with pytest.raises(LayoutError, match=match):
            act()
    with pytest.raises(jali.StorageError, match="values that the storage of their field cannot hold"):
        U[0].like(storage="fixed16")[...] = 1.5 * U[0][...]


WIRES = ["fixed16", "float16", "bfloat16", "float32", "fixed8", "float16-scaled"]


@pytest.mark.lanes
@pytest.mark.parametrize(
    ("name", "wire"),
    [
        pytest.param(name, wire, marks=[] if wire == WIRES[k % 6] and k % 6 == 1 else pytest.mark.full)
        for k, name in enumerate(OPERATORS)
        for wire in WIRES
    ],
)
def test_halos_in_another_format_are_as_close_as_it_is(name, wire):
    """Of spinors two spins travel, as halo items; of vectors of three colours, which no item has less of, most travel as they are."""

    def run(ranks, wire):
        D = operator(name, Lattice(4, 2, 2, 12, grid=(1, 1, 1, ranks), halo_wire=wire))
        psi = random_field(D, 1)
        return (D @ psi)[...], (D.dagger @ psi)[...]

    alone, parts = run(1, ""), jali.virtual_ranks(2, run, 2, wire)
    for k, expected in enumerate(alone):
        assert parts[0][k].tobytes() == parts[1][k].tobytes()
        error = relative(parts[0][k], expected)
        assert error < bound_of(wire)
        assert error > 0 or name not in WILSON + WALLS
