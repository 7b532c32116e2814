"""Assignment: sequential meaning, accumulation, swaps, writes at offsets, domains and colourings."""

from __future__ import annotations

import numpy as np
import pytest
from support import compare, random_field, where_colour

import jali
from jali import ALL, EVEN, ODD, Algebra, Colouring, Complex, Field, Lattice, Matrix, Real, TraceError

pytestmark = pytest.mark.lanes

LATTICE = Lattice(4, 6, 2)


@pytest.fixture
def fields():
    return [random_field(LATTICE, Matrix(2), k) for k in range(4)]


def test_reading_after_writing_gives_the_new_value(fields):
    def body(J, X, a, b):
        a[X] = b[X] * b[X]
        b[X] = a[X] + b[X]
        a[X] = a[X] * b[X]

    compare(body, *fields[:2])


def test_accumulation_adds_to_what_is_there(fields):
    def body(J, X, a, b):
        for mu in X.directions():
            a[X] += b[X + mu]
            a[X] -= 0.5 * b[X - mu]
        a[X] *= 2

    compare(body, *fields[:2])


def test_swap_exchanges_two_fields(fields):
    a, b = fields[:2]
    before = a[...], b[...]

    @jali.site_function
    def swap(X, a, b):
        a[X], b[X] = b[X], a[X]

    swap(a, b)
    assert np.array_equal(a[...], before[1])
    assert np.array_equal(b[...], before[0])


def test_rotation_of_four_fields(fields):
    def body(J, X, a, b, c, d):
        a[X], b[X], c[X], d[X] = b[X], c[X].dagger(), d[X], a[X]

    compare(body, *fields)


def test_swap_of_two_fields_over_one_colour_leaves_the_other(fields):
    def body(J, X, a, b):
        a[X], b[X] = b[X], a[X]

    compare(body, *fields[:2], over=ODD, inside=where_colour(LATTICE, ODD))


def test_last_of_several_assignments_counts(fields):
    def body(J, X, a, b):
        a[X] = b[X]
        a[X] = 2 * b[X]
        a[X] = 3 * b[X]

    compare(body, *fields[:2])


def test_field_may_be_updated_from_itself_at_the_same_site(fields):
    def body(J, X, a):
        a[X] = a[X] * a[X].dagger() - a[X]

    compare(body, fields[0])


def test_one_field_passed_twice_is_one_field(fields):
    a, b = fields[:2]
    expected = 2 * a[...] + a[...]

    @jali.site_function
    def f(X, out, x, y):
        out[X] = x[X] + 2 * y[X]

    f(b, a, a)
    assert np.allclose(b[...], expected, rtol=1e-14)
    f(a, a, a)  # the result is one of the operands too
    assert np.allclose(a[...], expected, rtol=1e-14)


def test_write_at_an_offset_reaches_the_shifted_site(fields):
    def body(J, X, a, b):
        mu, nu, rho = X.directions()
        a[X + mu - 2 * nu] = b[X + rho] + b[X]

    compare(body, *fields[:2])


@pytest.mark.parametrize("domain", [EVEN, ODD])
@pytest.mark.parametrize("extents", [(4, 6, 2), (3, 4, 5)], ids=str)
def test_write_at_an_offset_from_one_colour(domain, extents):
    lattice = Lattice(*extents)
    a, b = (random_field(lattice, Complex(), k) for k in range(2))

    def body(J, X, a, b):
        mu = X.directions()[1]
        a[X + mu] = b[X] * X.coordinate(1) + b[X + mu] * X.coordinate(0)

    compare(body, a, b, over=domain, inside=where_colour(lattice, domain))


def test_writes_at_several_offsets_scatter(fields):
    def body(J, X, a, b, c):
        mu, nu, rho = X.directions()
        a[X] = c[X]
        a[X + mu] = 2 * c[X + nu]
        b[X - nu] = c[X] * c[X]

    # The same field at two offsets over all sites: the later assignment wins, as in the source.
    compare(body, *fields[:3])


def test_writes_at_several_offsets_from_one_colour_fill_both_colours(fields):
    def body(J, X, a, b):
        mu = X.directions()[0]
        a[X] = b[X] + b[X + mu]
        a[X + mu] = b[X] - b[X + mu]

    inside = where_colour(LATTICE, EVEN)
    compare(body, *fields[:2], over=EVEN, inside=inside)


@pytest.mark.parametrize("domain", [ALL, EVEN, ODD], ids=str)
@pytest.mark.parametrize(
    "extents", [(8,), (5,), (4, 4), (3, 5), (1, 1, 3), (4, 3, 2, 2), (2, 2, 2, 2, 4)], ids=str
)
def test_domain_touches_exactly_its_sites(domain, extents):
    lattice = Lattice(*extents)
    a = random_field(lattice, Real(), 1)

    def body(J, X, a):
        a[X] = 100 + X.coordinate(0)

    compare(body, a, over=domain, inside=where_colour(lattice, domain))


FOUR = Colouring(4, lambda x: (x[0] + 2 * x[1]) % 4, "rectangle colour")
FIVE = Colouring(5, lambda x: (x[0] + 2 * x[1]) % 5, "cross colour")


@pytest.mark.parametrize("colouring", [FOUR, FIVE], ids=["4 colours", "5 colours"])
@pytest.mark.parametrize("extents", [(8, 8), (5, 10), (4, 4, 3)], ids=str)
def test_colouring_touches_exactly_its_sites(colouring, extents):
    lattice = Lattice(*extents)
    visits = np.zeros(extents)
    for domain in colouring:
        a = random_field(lattice, Complex(), 1)

        def body(J, X, a):
            a[X] = 2 * a[X] + 1

        compare(body, a, over=domain, inside=where_colour(lattice, domain))
        visits += where_colour(lattice, domain)
    assert np.all(visits == 1)


def test_checkerboard_update_reads_the_other_colour_of_the_same_field():
    lattice = Lattice(4, 4, 4)
    a = random_field(lattice, Real(), 2)

    def body(J, X, a):
        a[X] = 0.5 * a[X]
        for mu in X.directions():
            a[X] += 0.1 * (a[X + mu] + a[X - mu])

    for domain in (EVEN, ODD):
        compare(body, a, over=domain, inside=where_colour(lattice, domain))


def test_update_of_one_of_five_colours_may_read_next_neighbours():
    """(x + 2y) mod 5 differs at all four neighbours, so an update over one colour races with nobody."""
    lattice = Lattice(5, 10)
    a = random_field(lattice, Real(), 3)

    def body(J, X, a):
        for mu in X.directions():
            a[X] += 0.1 * (a[X + mu] + a[X - mu])

    for domain in FIVE:
        compare(body, a, over=domain, inside=where_colour(lattice, domain))


def test_colours_of_a_colouring_are_domains_by_number():
    assert len(FOUR) == 4
    assert FOUR[3].colour == 3
    with pytest.raises(IndexError, match="colour 4 does not exist; there are 4"):
        FOUR[4]


def test_colouring_must_return_its_colours():
    lattice = Lattice(4, 4)
    a = Field(lattice, Real())

    @jali.site_function
    def f(X, a):
        a[X] = 1

    with pytest.raises(jali.LayoutError, match="colours 0 to 3; it has 3"):
        f[Colouring(3, lambda x: x[0] % 4)[0]](a)
    with pytest.raises(jali.LayoutError, match="whole numbers"):
        f[Colouring(3, lambda x: x[0] * 0.5)[0]](a)


def test_opposite_of_even_is_odd():
    assert EVEN.opposite is ODD
    assert ODD.opposite is EVEN
    with pytest.raises(jali.LayoutError, match="ALL has no opposite"):
        _ = ALL.opposite


def test_momentum_times_step_stays_in_the_algebra():
    lattice = Lattice(4, 4)
    p, f = (random_field(lattice, Algebra(3), k) for k in range(2))

    def body(J, X, p, f, step):
        p[X] = p[X] - step * f[X]

    compare(body, p, f, 0.125)


def test_user_functions_are_inlined_by_calling_them(fields):
    def square(J, X, a):
        return a[X] * a[X]

    def body(J, X, a, b):
        for mu in X.directions():
            a[X] += square(J, X + mu, b)

    compare(body, *fields[:2])


def test_site_functions_are_inlined_when_called_with_a_site(fields):
    a, b = fields[:2]
    expected = 2 * b[...] + 1j * np.eye(2)

    @jali.site_function
    def double(X, a, b):
        a[X] = 2 * b[X]

    @jali.site_function
    def outer(X, a, b):
        double(X, a, b)
        a[X] += 1j * jali.identity(2)

    outer(a, b)
    assert np.allclose(a[...], expected, rtol=1e-14)


def test_several_lattices_live_side_by_side():
    small, large = Lattice(2, 2), Lattice(6, 4, 4)

    @jali.site_function
    def count(X, total):
        total += 1

    @jali.site_function
    def fill(X, a):
        a[X] = X.extent(0)

    assert small.sum(count) == 4
    assert large.sum(count) == 96
    a, b = Field(small, Real()), Field(large, Real())
    fill(a)
    fill(b)
    assert np.all(a[...] == 2)
    assert np.all(b[...] == 6)


@pytest.mark.parametrize("condition", ["open", "antiperiodic"])
@pytest.mark.parametrize("of", ["read", "written"])
def test_writing_at_an_offset_across_a_boundary_is_an_error(condition, of):
    """The kernel runs over the sites that are written, where reads of a site itself would meet the boundary."""
    lattice = Lattice(4, 4)
    other = {0: condition}
    f = Field(lattice, Real(), boundary=other if of == "read" else None)
    o = Field(lattice, Real(), boundary=other if of == "written" else None)
    f[...] = np.arange(16.0).reshape(4, 4)

    @jali.site_function
    def push(X, o, f, mu, total):
        o[X + mu] = 0.5 * f[X]
        total += f[X]

    x, y = lattice.directions
    with pytest.raises(
        TraceError,
        match=rf"writes at offset \(1, 0\), and . has the boundary {condition} in direction 0[\s\S]*test_writes",
    ):
        lattice.sum(push, o, f, x)
    assert lattice.sum(push, o, f, y) == 120  # along another direction
    assert np.array_equal(o[...], 0.5 * np.roll(f[...], 1, 1))
