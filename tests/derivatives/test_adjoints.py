"""<y, A x> = <A^dagger y, x> of random linear stencils, wherever their values come from and go to."""

from __future__ import annotations

import cmath
import random
from typing import Any

import numpy as np
import pytest
from spaces import inner, normal

import jali
from jali import (
    ALL,
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
    Real,
    Spinor,
    Vector,
)

BOUND = {"float64": 1e-13, "float32": 1e-5}


def random_field(lattice: Any, element: Any, seed: int, **options: Any) -> Field:
    field = Field(lattice, element, **options)
    shape = field[...].shape
    places = shape[: len(shape) - len(element.numpy_shape)]
    field[...] = normal(np.random.default_rng(seed), places, element)
    return field


def product(a: Field, b: Field, real: bool = False) -> complex:
    """sum conj(a) b, of Algebra fields -2 tr a b."""
    x, y = a[...].astype(complex), b[...].astype(complex)
    if a.element.codec == "algebra":
        return inner(y, x, a.element) / 2
    found = np.vdot(x, y)
    return found.real if real else found


def check(
    function: Any, adjoint: Any, x: Field, y: Field, *rest: Any, real: bool = False, over: Any = ALL
) -> None:
    """`function(out, x, *rest)` over a domain; `y` is like its result."""
    ax, aty = y.like(), x.like()
    ax[...] = np.zeros(ax[...].shape)
    on = function if over is ALL else function[over]
    back = adjoint if over is ALL else adjoint[over]
    on(ax, x, *rest)
    back(y, aty, *rest)
    left, right = product(y, ax, real), product(aty, x, real)
    bound = max(BOUND[f.precision] for f in (x, y))
    size = np.sqrt(abs(product(y, y)) * abs(product(ax, ax))) + np.sqrt(
        abs(product(aty, aty)) * abs(product(x, x))
    )
    assert abs(product(ax, ax)) > 0
    assert abs(left - right) <= bound * size, f"{left} is not {right}"


def offsets_of(chance: random.Random, ndim: int, count: int, reach: int = 3) -> list[tuple[int, ...]]:
    return [tuple(chance.randint(-reach, reach) for _ in range(ndim)) for _ in range(count)]


def shift(X: Any, offset: tuple[int, ...]) -> Any:
    here = X
    for mu, step in zip(X.directions(), offset, strict=True):
        here = here + step * mu
    return here


def numbers(chance: random.Random, count: int) -> list[complex]:
    return [complex(chance.uniform(-1, 1), chance.uniform(-1, 1)) for _ in range(count)]


def stencil(seed: int, ndim: int, kind: str = "complex", to: int = 0) -> Any:
    """A sum of neighbours with numbers in front, written `to` sites away."""
    chance = random.Random(seed)
    terms = list(zip(offsets_of(chance, ndim, 5), numbers(chance, 5), strict=True))
    if kind == "real":
        terms = [(offset, z.real) for offset, z in terms]
    target = tuple(chance.randint(-to, to) for _ in range(ndim))

    @jali.site_function
    def linear(X: Any, out: Any, x: Any) -> None:
        total = 0.5 * x[X]
        for offset, number in terms:
            total = total + number * x[shift(X, offset)]
        out[shift(X, target)] = total

    return linear


PHASE = cmath.exp(0.3j)
BOUNDARIES = [
    "periodic",
    "antiperiodic",
    "open",
    {0: "open", 1: "antiperiodic"},
    {0: PHASE, 1: -1},
    {0: PHASE, 1: "open"},
    PHASE,
]


@pytest.mark.short(6)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
@pytest.mark.parametrize("extents", [(5, 4), (4, 6)], ids=str)
def test_adjoints_of_stencils_of_any_boundary(extents: Any, boundary: Any, seed: int) -> None:
    lattice, function = Lattice(*extents), stencil(seed, 2)
    x, y = (random_field(lattice, Complex(), k, boundary=boundary) for k in (1, 2))
    check(function, jali.adjoint(function, "x"), x, y)


def is_open(boundary: Any, d: int) -> bool:
    return (boundary.get(d) if isinstance(boundary, dict) else boundary) == "open"


PAIRS_OF_BOUNDARIES = [
    (x, y)
    for x in BOUNDARIES
    for y in BOUNDARIES
    if x is not y and not any(is_open(y, d) and not is_open(x, d) for d in (0, 1))
]


@pytest.mark.short(8)
@pytest.mark.parametrize(("of_x", "of_y"), PAIRS_OF_BOUNDARIES, ids=str)
def test_what_is_written_may_have_another_boundary_than_what_is_read(of_x: Any, of_y: Any) -> None:
    lattice, function = Lattice(5, 4), stencil(3, 2)
    x, y = (random_field(lattice, Complex(), k, boundary=b) for k, b in ((1, of_x), (2, of_y)))
    check(function, jali.adjoint(function, "x"), x, y)


@pytest.mark.parametrize("over", [ALL, EVEN, Colouring(3, lambda x: sum(x) % 3)[1]], ids=str)
@pytest.mark.parametrize("to", [1, 2])
def test_writes_at_offsets(to: int, over: Any) -> None:
    lattice, function = Lattice(6, 4), stencil(4 + to, 2, to=to)
    x, y = random_field(lattice, Complex(), 1), random_field(lattice, Complex(), 2)
    check(function, jali.adjoint(function, "x"), x, y, over=over)


@pytest.mark.short(6)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    "element",
    [Real(), Complex(), Vector(3), Vector(2, kind="real"), Matrix(2), Matrix(2, 3), Spinor(2)],
    ids=str,
)
def test_elements(element: Any, precision: str) -> None:
    kind = element.type.kind
    function = stencil(6, 3, kind)
    lattice = Lattice(3, 4, 5)
    boundary = {0: "open", 2: -1 if kind == "real" else PHASE}
    x, y = (random_field(lattice, element, k, boundary=boundary, precision=precision) for k in (1, 2))
    check(function, jali.adjoint(function, "x"), x, y)


@pytest.mark.parametrize("element", [Algebra(1), Algebra(3), Hermitian(2)], ids=str)
def test_real_spaces_have_adjoints_under_the_real_product(element: Any) -> None:
    function = stencil(7, 2, "real")
    lattice = Lattice(5, 4)
    x, y = (random_field(lattice, element, k, boundary={1: -1}) for k in (1, 2))
    check(function, jali.adjoint(function, "x", inner="real"), x, y, real=True)


@jali.site_function
def of_real_numbers(X: Any, out: Any, x: Any) -> None:
    mu, nu = X.directions()
    out[X] = (1 + 2j) * x[X + mu].conj() + 3.0 * x[X - 2 * nu] + 1j * x[X].real


def test_what_is_linear_over_the_real_numbers_has_an_adjoint_under_the_real_product() -> None:
    lattice = Lattice(5, 4)
    for boundary in ("periodic", {0: "antiperiodic", 1: "open"}):
        x, y = (random_field(lattice, Complex(), k, boundary=boundary) for k in (1, 2))
        check(of_real_numbers, jali.adjoint(of_real_numbers, "x", inner="real"), x, y, real=True)


@jali.site_function
def hop(X: Any, out: Any, x: Any, U: Any, m: Any) -> None:
    total = m * x[X]
    for mu in X.directions():
        total = total + U[mu][X] * x[X + mu] - U[mu][X - mu].dagger() * x[X - mu]
    out[X] = total


@pytest.mark.parametrize("boundary", BOUNDARIES[:4], ids=str)
@pytest.mark.parametrize("element", [Vector(3), Spinor(3)], ids=str)
@pytest.mark.parametrize("over", [ALL, EVEN, ODD], ids=str)
def test_hops_with_links(over: Any, element: Any, boundary: Any) -> None:
    lattice = Lattice(4, 2, 6)
    U = [random_field(lattice, SU(3), k) for k in range(3)]
    x, y = (random_field(lattice, element, k, boundary=boundary) for k in (4, 5))
    check(hop, jali.adjoint(hop, "x"), x, y, U, 0.3 + 0.1j, over=over)


@pytest.mark.short(6)
@pytest.mark.parametrize("boundary", ["periodic", {0: "open"}, {0: -1, 1: PHASE}], ids=str)
@pytest.mark.parametrize("extents", [(4, 6), (5, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("over", ["EVEN", "ODD", "columns"])
def test_adjoints_over_domains(over: str, extents: Any, boundary: Any) -> None:
    if over != "columns" and any(n % 2 for n in extents) and boundary == "periodic":
        boundary = {0: "open", 1: "open"}
    lattice, function = Lattice(*extents), stencil(8, 2)
    columns = Colouring(3, lambda x: sum(x) % 3)
    domain = {"EVEN": EVEN, "ODD": ODD, "columns": columns[1]}[over]
    x, y = (random_field(lattice, Complex(), k, boundary=boundary) for k in (1, 2))
    check(function, jali.adjoint(function, "x"), x, y, over=domain)


@jali.site_function
def to_other_colour(X: Any, out: Any, x: Any) -> None:
    total = 0.0 * x[X + X.directions()[0]]
    for k, mu in enumerate(X.directions()):
        total = total + (k + 1j) * x[X + mu] - 2.0 * x[X - mu] + x[X + 3 * mu]
    out[X] = total


@pytest.mark.parametrize("over", [EVEN, ODD], ids=str)
@pytest.mark.parametrize("boundary", ["periodic", {0: "open", 1: "antiperiodic"}, {1: PHASE}], ids=str)
def test_fields_on_a_colour(over: Any, boundary: Any) -> None:
    lattice, other = Lattice(4, 6), ODD if over is EVEN else EVEN
    adjoint = jali.adjoint(to_other_colour, "x")
    x = random_field(lattice, Complex(), 1, over=other, boundary=boundary)
    y = random_field(lattice, Complex(), 2, over=over, boundary=boundary)
    check(to_other_colour, adjoint, x, y)
    x = random_field(lattice, Complex(), 1, boundary=boundary)
    check(to_other_colour, adjoint, x, y)
    x, y = random_field(lattice, Complex(), 1, over=other), random_field(lattice, Complex(), 2)
    check(to_other_colour, adjoint, x, y, over=over)


def members(shift_by: int, first: int) -> Any:
    @jali.site_function
    def between(X: Any, out: Any, x: Any, single: Any) -> None:
        mu, nu = X.directions()
        total = 2j * x[X + mu] + single[X] * x[X - nu]
        out[X] = total + 3.0 * x[X + mu, (X.member + shift_by) % 3] - x[X - nu, first]

    return between


@pytest.mark.parametrize(("shift_by", "first"), [(1, 0), (2, 2), (-1, 1)])
def test_batches(shift_by: int, first: int) -> None:
    lattice, function = Lattice(4, 5), members(shift_by, first)
    x, y = (random_field(lattice, Complex(), k, batch=3, boundary={0: "open", 1: -1}) for k in (1, 2))
    check(function, jali.adjoint(function, "x"), x, y, random_field(lattice, Complex(), 3))


@jali.site_function
def spread(X: Any, out: Any, x: Any, by: Any) -> None:
    mu, nu = X.directions()
    out[X] = by[X] * x[X + mu] + x[X - nu]


def test_fields_without_a_batch_beside_ones_with_it() -> None:
    lattice = Lattice(4, 5)
    x = random_field(lattice, Complex(), 1, boundary={0: -1})
    y, by = (random_field(lattice, Complex(), k, batch=3, boundary={0: -1}) for k in (2, 3))
    check(spread, jali.adjoint(spread, "x"), x, y, by)


@jali.site_function
def picked(X: Any, out: Any, x: Any) -> None:
    mu, nu = X.directions()
    out[X] = x[X + mu, 2] - 1j * x[X - nu, 0]


def test_members_that_are_named_go_to_a_field_without_a_batch() -> None:
    lattice = Lattice(4, 5)
    x = random_field(lattice, Complex(), 1, batch=3)
    check(picked, jali.adjoint(picked, "x"), x, random_field(lattice, Complex(), 2))


@jali.site_function
def restricted(X: Any, coarse: Any, fine: Any) -> None:
    total = jali.zero(Complex())
    for site in X.block(fine):
        total = total + fine[site]
    coarse[X] = total


@jali.site_function
def prolonged(X: Any, fine: Any, coarse: Any) -> None:
    fine[X] = coarse[X.on(coarse)]


@jali.site_function
def interpolated(X: Any, fine: Any, coarse: Any) -> None:
    Y = X.on(coarse)
    total = 2.0 * coarse[Y]
    for mu in X.directions():
        total = total + jali.where(X.coordinate(mu) % 2 == 0, 1j, 0.5) * coarse[Y + mu] - coarse[Y - mu]
    fine[X] = total


@jali.site_function
def averaged(X: Any, coarse: Any, fine: Any) -> None:
    total = jali.zero(Complex())
    mu, nu = X.directions()
    for k, site in enumerate(X.block(fine)):
        total = total + (k + 1.0) * fine[site + mu] - 1j * fine[site - 2 * nu]
    coarse[X] = total


PAIRS = [((8, 6), (4, 3)), ((4, 6), (4, 2)), ((4, 9), (2, 3))]


@pytest.mark.short(2)
@pytest.mark.parametrize("boundary", ["periodic", {0: "open", 1: -1}], ids=str)
@pytest.mark.parametrize(("fine", "coarse"), PAIRS, ids=str)
def test_maps_between_lattices(fine: Any, coarse: Any, boundary: Any) -> None:
    big, small = Lattice(*fine), Lattice(*coarse)
    f = random_field(big, Complex(), 1, boundary=boundary)
    c = random_field(small, Complex(), 2, boundary=boundary)
    for function in (prolonged, interpolated):
        check(function, jali.adjoint(function, "coarse"), c, f)
    for function in (restricted, averaged):
        check(function, jali.adjoint(function, "fine"), f, c)


def test_restriction_is_the_adjoint_of_prolongation() -> None:
    big, small = Lattice(8, 6), Lattice(4, 3)
    f, c = random_field(big, Complex(), 1), random_field(small, Complex(), 2)
    found, wanted = c.like(), c.like()
    jali.adjoint(prolonged, "coarse")(f, found)
    restricted(wanted, f)
    assert np.allclose(found[...], wanted[...], rtol=1e-14, atol=1e-14)
    found, wanted = f.like(), f.like()
    jali.adjoint(restricted, "fine")(c, found)
    prolonged(wanted, c)
    assert np.array_equal(found[...], wanted[...])


@pytest.mark.parametrize(
    ("of_x", "of_y"),
    [
        ({"storage": "float32"}, {}),
        ({}, {"storage": "float32"}),
        ({"precision": "float32"}, {}),
        ({"precision": "float32", "storage": "float16"}, {"precision": "float32"}),
    ],
    ids=str,
)
def test_formats_and_precisions(of_x: Any, of_y: Any) -> None:
    lattice, function = Lattice(5, 4), stencil(9, 2)
    x, y = random_field(lattice, Vector(3), 1, **of_x), random_field(lattice, Vector(3), 2, **of_y)
    ax, aty = Field(lattice, Vector(3)), Field(lattice, Vector(3))
    function(ax, x)
    jali.adjoint(function, "x")(y, aty)
    size = np.linalg.norm(x[...]) * np.linalg.norm(ax[...])
    single = "float32" in (x.precision, y.precision)
    assert abs(product(y, ax) - product(aty, x)) <= (1e-5 if single else 1e-13) * size


def two_inputs() -> Any:
    @jali.site_function
    def mixed(X: Any, out: Any, more: Any, x: Any, pair: Any) -> None:
        mu, nu = X.directions()
        out[X] = x[X + mu] * pair[0][X] + x[X]
        more[X + nu] = jali.vector([x[X - nu], 2j * x[X + 2 * mu]])

    return mixed


def test_several_outputs() -> None:
    lattice, function = Lattice(5, 4), two_inputs()
    x, y, other = (random_field(lattice, Complex(), k, boundary={0: -1}) for k in (1, 2, 3))
    z = random_field(lattice, Vector(2), 4, boundary={0: -1})
    ax, az, back = y.like(), z.like(), x.like()
    function(ax, az, x, [other])
    jali.adjoint(function, "x")(y, z, back, [other])
    assert abs(product(y, ax) + product(z, az) - product(back, x)) < 1e-12


@jali.site_function
def of_both(X: Any, out: Any, x: Any, pair: Any) -> None:
    mu, nu = X.directions()
    out[X] = 2.0 * x[X + mu] + 1j * pair[0][X - nu] - pair[1][X + 2 * nu]


def test_several_inputs_together() -> None:
    lattice = Lattice(5, 4)
    x, a, b, y = (random_field(lattice, Complex(), k, boundary={1: "open"}) for k in (1, 2, 3, 4))
    ax, found = y.like(), [x.like(), a.like(), b.like()]
    of_both(ax, x, [a, b])
    jali.adjoint(of_both, ("x", "pair"))(y, found[0], found[1:])
    right = sum(product(f, g) for f, g in zip(found, (x, a, b), strict=True))
    assert abs(product(y, ax) - right) < 1e-12


@pytest.mark.parametrize("boundary", ["periodic", {0: "open", 1: -1}], ids=str)
def test_transposes_and_conjugates(boundary: Any) -> None:
    lattice, function = Lattice(5, 4), stencil(10, 2)
    x, y, bar = (random_field(lattice, Complex(), k, boundary=boundary) for k in (1, 2, 3))
    ax, back, found = y.like(), x.like(), y.like()
    function(ax, x)
    jali.transpose(function, "x")(y, back)
    assert abs(np.sum(y[...] * ax[...]) - np.sum(back[...] * x[...])) < 1e-12
    bar[...] = x[...].conj()
    jali.conjugate(function, "x")(found, bar)
    assert np.allclose(found[...], ax[...].conj(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("boundary", ["periodic", {0: "open", 1: -1}, {0: PHASE}], ids=str)
def test_the_adjoint_of_the_adjoint_is_the_function(boundary: Any) -> None:
    lattice, function = Lattice(5, 4), stencil(11, 2, to=1)
    if isinstance(boundary, dict):
        function = stencil(11, 2)
    x = random_field(lattice, Complex(), 1, boundary=boundary)
    ax, again = x.like(), x.like()
    function(ax, x)
    twice = jali.adjoint(jali.adjoint(function, "x"), "out")
    twice(again, x)
    assert np.allclose(again[...], ax[...], rtol=0, atol=1e-14)


GRIDS = [(1, 1), (2, 1), (1, 3), (2, 2)]


@jali.site_function
def noisy(X: Any, out: Any, x: Any, rng: Any) -> None:
    out[X] = rng.gaussian(X) * x[X + X.directions()[0]]


@pytest.mark.parametrize("over", [ALL, EVEN], ids=str)
def test_random_numbers_are_those_that_the_function_drew(over: Any) -> None:
    lattice = Lattice(4, 6)
    x, y = random_field(lattice, Complex(), 1), random_field(lattice, Complex(), 2)
    ax, aty = x.like(), x.like()
    ax[...] = np.zeros(ax[...].shape)
    adjoint = jali.adjoint(noisy, "x")
    (noisy if over is ALL else noisy[over])(ax, x, jali.Random(7))
    (adjoint if over is ALL else adjoint[over])(y, aty, jali.Random(7))
    assert abs(product(y, ax) - product(aty, x)) < 1e-12


@pytest.mark.parametrize("boundary", ["periodic", {0: "open", 1: -1}, {0: PHASE}], ids=str)
def test_ranks_find_the_same_bytes(boundary: Any) -> None:
    function = stencil(12, 2, to=1) if boundary == "periodic" else stencil(12, 2)
    adjoint = jali.adjoint(function, "x")

    def run(grid: Any) -> list[bytes]:
        lattice = Lattice(8, 12, grid=grid)
        y = random_field(lattice, Complex(), 2, boundary=boundary)
        found = []
        for on in (adjoint, adjoint[EVEN], adjoint[ODD]):
            back = y.like()
            on(y, back)
            found.append(back[...].tobytes())
        return found

    wanted = run((1, 1))
    for grid in GRIDS[1:]:
        assert jali.virtual_ranks(int(np.prod(grid)), run, grid)[0] == wanted


def test_maps_between_lattices_on_ranks() -> None:
    def run(grid: Any) -> list[bytes]:
        big, small = Lattice(8, 12, grid=grid), Lattice(4, 6, grid=grid)
        f, c = random_field(big, Complex(), 1), random_field(small, Complex(), 2)
        found = [c.like(), f.like()]
        jali.adjoint(interpolated, "coarse")(f, found[0])
        jali.adjoint(averaged, "fine")(c, found[1])
        return [one[...].tobytes() for one in found]

    wanted = run((1, 1))
    for grid in ((2, 1), (1, 3), (2, 2)):
        assert jali.virtual_ranks(int(np.prod(grid)), run, grid)[0] == wanted
