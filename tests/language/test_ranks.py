"""The language on several virtual ranks: same results as NumPy, whatever the split, and the same bits as on one rank."""

from __future__ import annotations

import cmath
import hashlib

import numpy as np
import pytest
from support import compare, compare_sums, random_field, where_colour
from test_expressions import run_case

import jali
from jali import (
    EVEN,
    ODD,
    SU,
    Algebra,
    Colouring,
    Complex,
    Field,
    Hermitian,
    Lattice,
    Matrix,
    Random,
    Real,
    Spinor,
)

pytestmark = pytest.mark.lanes

SPLITS = [
    ((8, 6), (2, 1)),
    ((8, 6), (1, 2)),
    ((7, 5), (2, 2)),
    ((9,), (3,)),
    ((4, 4, 4), (2, 2, 1)),
    ((5, 4, 3), (1, 2, 3)),
    ((6, 4, 4, 4), (3, 1, 1, 2)),
    ((4, 4, 4, 8), (1, 1, 2, 2)),
    ((3, 2, 2, 4, 2), (1, 1, 1, 2, 2)),
]


def neighbours_within(reach):
    """Every step up to `reach` along each axis, and diagonals, each with its own weight."""

    def body(J, X, out, a):
        total = a[X]
        weight = 2.0
        for mu in X.directions():
            for step in range(1, reach[mu] + 1):
                total = total + weight * a[X + step * mu] + (weight + 1) * a[X - step * mu]
                weight += 2
        for mu, nu in X.planes():
            for offset in (
                mu + nu,
                mu - nu,
                nu - mu,
                -mu - nu,
                min(2, reach[mu]) * mu - nu,
                mu + reach[nu] * nu,
            ):
                total = total + weight * a[X + offset]
                weight += 1
        out[X] = total

    return body


def least_extents(lattice):
    """Extents of the smallest boxes: no halo can be wider."""
    ranks = range(lattice.communicator.size)
    return [min(lattice.partition.extents(r)[d] for r in ranks) for d in range(lattice.ndim)]


def compare_neighbours(lattice, out, a):
    reach = [min(3, n) for n in least_extents(lattice)]
    compare(neighbours_within(reach), out, a, scale=100)


def on_ranks(grid, function):
    """Runs `function(grid)` on as many virtual ranks as the grid has."""
    return jali.virtual_ranks(int(np.prod(grid)), function, grid)


@pytest.mark.short(7)
@pytest.mark.parametrize(("extents", "grid"), SPLITS, ids=str)
@pytest.mark.parametrize("condition", ["periodic", "antiperiodic", "open", cmath.exp(0.7j)], ids=str)
def test_neighbours_on_other_ranks(extents, grid, condition):
    def run(grid):
        lattice = Lattice(*extents, grid=grid)
        a = random_field(lattice, Complex(), 1, boundary=condition)
        compare_neighbours(lattice, Field(lattice, Complex()), a)

    on_ranks(grid, run)


@pytest.mark.short(2)
@pytest.mark.parametrize("element", [Real(), SU(3), Algebra(2), Hermitian(3), Spinor(2)], ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_elements_travel_between_ranks(element, precision):
    def run(grid):
        lattice = Lattice(6, 4, 3, grid=grid)
        a = random_field(lattice, element, 1, precision=precision)
        n = element.type.shape
        out = Field(lattice, Matrix(*n) if n else Real(), precision=precision)
        compare_neighbours(lattice, out, a)

    on_ranks((2, 1, 2), run)


def test_single_precision_storage_travels_between_ranks():
    def run(grid):
        lattice = Lattice(6, 4, grid=grid)
        a = random_field(lattice, Complex(), 1, storage="float32", boundary="antiperiodic")
        compare_neighbours(lattice, Field(lattice, Complex()), a)

    on_ranks((2, 2), run)


def test_writes_at_offsets_reach_other_ranks():
    def body(J, X, a, b):
        mu, nu = X.directions()
        a[X + mu - 2 * nu] = b[X + nu] + 2 * b[X]

    def run(grid):
        for extents in ((8, 6), (5, 7)):
            lattice = Lattice(*extents, grid=grid)
            a, b = (random_field(lattice, Complex(), k) for k in range(2))
            compare(body, a, b)
            compare(body, a, b, over=ODD, inside=where_colour(lattice, ODD))

    on_ranks((2, 2), run)


def test_scattered_writes_reach_other_ranks():
    def body(J, X, a, b):
        mu = X.directions()[0]
        a[X] = b[X] + b[X + mu]
        a[X + mu] = b[X] - b[X + mu]

    def run(grid):
        lattice = Lattice(8, 4, grid=grid)
        a, b = (random_field(lattice, Real(), k) for k in range(2))
        compare(body, a, b, over=EVEN, inside=where_colour(lattice, EVEN))

    on_ranks((4, 1), run)


@pytest.mark.short(2)
@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2), (3, 1)], ids=str)
def test_checkerboard_updates_see_what_the_other_colour_wrote(grid):
    """Ghosts are refreshed colour by colour: five updates in a row against NumPy."""

    def body(J, X, a):
        a[X] = 0.5 * a[X]
        for mu in X.directions():
            a[X] += 0.1 * (a[X + mu] + a[X - mu])

    def run(grid):
        lattice = Lattice(6, 4, grid=grid)
        a = random_field(lattice, Real(), 1)
        for domain in (EVEN, ODD, EVEN, ODD, ODD):
            compare(body, a, over=domain, inside=where_colour(lattice, domain))

    on_ranks(grid, run)


def test_colouring_of_the_whole_lattice_on_several_ranks():
    five = Colouring(5, lambda x: (x[0] + 2 * x[1]) % 5)

    def body(J, X, a):
        for mu in X.directions():
            a[X] += 0.1 * (a[X + mu] + a[X - mu])

    def run(grid):
        lattice = Lattice(5, 10, grid=grid)
        a = random_field(lattice, Real(), 1)
        for domain in five:
            compare(body, a, over=domain, inside=where_colour(lattice, domain))

    on_ranks((1, 3), run)


def test_field_changed_from_python_is_seen_by_other_ranks():
    def run(grid):
        lattice = Lattice(4, 4, grid=grid)
        a, out = Field(lattice, Real()), Field(lattice, Real())

        @jali.site_function
        def ahead(X, out, a):
            out[X] = a[X + X.directions()[0]]

        for value in (1.0, 2.0):
            a[2, 1] = value
            ahead(out, a)
            assert out[1, 1] == value
        a.set_local(a.local() + 1)
        ahead(out, a)
        assert out[1, 1] == 3.0
        a.assign(out)
        ahead(out, a)
        assert out[0, 1] == 3.0

    on_ranks((2, 2), run)


@pytest.mark.short(2)
@pytest.mark.parametrize(("extents", "grid"), SPLITS, ids=str)
def test_sums_over_all_ranks(extents, grid):
    def body(J, X, a, m, total, square, matrix):
        total += a[X]
        square += a[X + X.directions()[0]].norm2()
        matrix += m[X]

    def run(grid):
        lattice = Lattice(*extents, grid=grid)
        a, m = random_field(lattice, Complex(), 1), random_field(lattice, Matrix(2), 2)
        compare_sums(body, 3, a, m)
        compare_sums(body, 3, a, m, per=lattice.ndim - 1)
        compare_sums(body, 3, a, m, over=ODD, inside=where_colour(lattice, ODD))

    on_ranks(grid, run)


def test_halo_wider_than_a_box_is_an_error_that_says_how_many_ranks_are_possible():
    def run(grid):
        lattice = Lattice(8, 4, grid=grid)
        a = random_field(lattice, Real(), 1)

        @jali.site_function
        def far(X, out, a):
            out[X] = a[X + 3 * X.directions()[1]]

        with pytest.raises(
            jali.LayoutError, match=r"local extent 2 in direction 1 cannot carry a halo of width 3.*lattice 4"
        ):
            far(a.like(), a)

    on_ranks((1, 2), run)


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", range(20, 26))
def test_random_program_on_several_ranks(seed):
    jali.virtual_ranks(2 + seed % 3, run_case, seed, 12)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2000, 2060))
def test_many_random_programs_on_several_ranks(seed):
    jali.virtual_ranks(2 + seed % 5, run_case, seed, 12)


def evolution(grid, precision="float64"):
    """Random numbers, rejection, neighbours, sums and functions in one; a digest of every bit."""
    lattice = Lattice(6, 4, 4, 6, grid=grid)
    rng = Random(5)
    U = [Field(lattice, SU(2), precision=precision) for _ in lattice.directions]
    phi = Field(lattice, Complex(), precision=precision, boundary={3: "antiperiodic"})

    @jali.site_function
    def start(X, u, rng):
        g = [rng.gaussian(X) for _ in range(4)]
        a, b = jali.complex(g[0], g[1]), jali.complex(g[2], g[3])
        u[X] = jali.matrix([[a, b], [-b.conj(), a.conj()]]).reunitarise()

    @jali.site_function
    def update(X, phi, U, rng, kappa):
        h = jali.zero(Complex())
        for mu in X.directions():
            h += U[mu][X].trace() * phi[X + mu] + U[mu][X - mu].trace().conj() * phi[X - mu]

        def attempt():
            z = jali.complex(rng.gaussian(X), rng.gaussian(X)) + kappa * h
            return rng.uniform(X) < jali.exp(-z.norm2() / 8), z

        phi[X] = X.repeat_until(attempt, limit=20, otherwise=phi[X])

    @jali.site_function
    def measure(X, phi, U, energy, charge):
        energy += phi[X].norm2()
        for mu in X.directions():
            charge += phi[X].conj() * U[mu][X].det() * phi[X + mu]

    for u in U:
        start(u, rng)
    digest, history = hashlib.sha256(), []
    for _ in range(4):
        for colour in (EVEN, ODD):
            update[colour](phi, U, rng, 0.11)
        history.append(lattice.sum(measure, phi, U))
    for field in (*U, phi):
        digest.update(field[...].tobytes())
    return digest.hexdigest(), history, rng.state


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_every_bit_is_the_same_on_any_rank_grid(precision):
    reference = evolution(None, precision)
    for grid in (
        (2, 1, 1, 1),
        (1, 1, 1, 2),
        (1, 1, 1, 3),
        (2, 1, 1, 2),
        (1, 2, 2, 1),
        (3, 1, 1, 2),
        (3, 2, 1, 1),
    ):
        for result in jali.virtual_ranks(int(np.prod(grid)), evolution, grid, precision):
            assert result == reference


def test_value_that_is_stored_and_also_part_of_what_travels():
    """det A of a neighbour is stored, and a function of it too: both are wanted on this side of the halo."""

    def body(J, X, a, b, m):
        mu = X.directions()[0]
        d = m[X + mu].det() / 6
        a[X] = d
        b[X] = d / (1 + d.norm2())

    def run(grid):
        lattice = Lattice(8, 6, grid=grid)
        a, b, m = (random_field(lattice, e, k) for k, e in enumerate((Complex(), Complex(), Matrix(3))))
        compare(body, a, b, m)

    on_ranks((2, 1), run)
