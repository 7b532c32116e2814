"""Gradients of sums over sites: against differences, second derivatives, under gauge transformations, and the same on any ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from spaces import change_of, exp_of, fields, in_algebra, inner, normal, stepped, values_of

import jali
from jali import (
    ALL,
    EVEN,
    ODD,
    SU,
    Algebra,
    Complex,
    Field,
    Hermitian,
    Integer,
    Lattice,
    Matrix,
    Real,
    Vector,
)
from jali.derivatives.functions import derived

STEP = 2.0**-8


def made(lattice: Any, elements: Any, seed: int = 1, **options: Any) -> list[Field]:
    rng = np.random.default_rng(seed)
    return fields(
        lattice, elements, [normal(rng, lattice.extents, element) for element in elements], **options
    )


def slope(value: Any, given: list[Field], changes: list[Any]) -> Any:
    """d/dt value(fields moved by t) at 0, by differences of sixth order."""
    at, total = values_of(given), 0.0
    for k, weight in ((1, 45.0), (2, -9.0), (3, 1.0)):
        for sign in (1, -1):
            for field, x, d in zip(given, at, changes, strict=True):
                field[...] = stepped(x, field.element, d, sign * k * STEP)
            total = total + sign * weight / (60 * STEP) * np.asarray(value())
    for field, x in zip(given, at, strict=True):
        field[...] = x
    return total


def changes_of(given: list[Field], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [normal(rng, f.lattice.extents, change_of(f.element)) for f in given]


def along(changes: list[Any], gradients: list[Field]) -> float:
    return sum(inner(d, g[...], g.element) for d, g in zip(changes, gradients, strict=True))


def gradients_like(given: list[Field]) -> list[Field]:
    return [Field(f.lattice, change_of(f.element), boundary=f.boundary) for f in given]


def is_near(found: Any, wanted: Any, bound: float = 1e-9) -> bool:
    return bool(np.max(abs(np.asarray(found) - wanted)) <= bound * max(1.0, np.max(abs(np.asarray(wanted)))))


# ---- links ---------------------------------------------------------------------------------------------


@jali.site_function
def wilson(X: Any, U: Any, total: Any) -> None:
    for mu, nu in X.planes():
        loop = U[mu][X] * U[nu][X + mu] * (U[nu][X] * U[mu][X + nu]).dagger()
        total += 1.5 * loop.trace().real


@jali.site_function
def smeared(X: Any, U: Any, total: Any) -> None:
    """Of stout links of one step, at this site and at a neighbour."""
    mu, nu = X.directions()

    def thick(Y: Any) -> Any:
        staple = U[nu][Y] * U[mu][Y + nu] * U[nu][Y + mu].dagger()
        return (0.2 * (staple * U[mu][Y].dagger()).traceless_antihermitian()).exp() * U[mu][Y]

    total += (thick(X) * thick(X + mu)).trace().real


@pytest.mark.short(4)
@pytest.mark.parametrize("n", [3, 1, 2, 4])
@pytest.mark.parametrize("action", [wilson, smeared], ids=["wilson", "smeared"])
def test_gradients_of_links(action: Any, n: int) -> None:
    lattice = Lattice(4, 3)
    U = made(lattice, [SU(n)] * 2)
    F = gradients_like(U)
    jali.gradient(action, "U")(F, U)
    changes = changes_of(U, 2)
    wanted = slope(lambda: lattice.sum(action, U), U, changes)
    assert is_near(along(changes, F), wanted)
    omega = fields(lattice, [Algebra(n)] * 2, changes)
    assert is_near(lattice.sum(jali.tangent(action, "U"), omega, U), wanted)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_of_links_transform_as_links_do(n: int) -> None:
    lattice = Lattice(4, 3)
    U = made(lattice, [SU(n)] * 2)
    g = normal(np.random.default_rng(3), lattice.extents, SU(n))
    F, moved, of_moved = gradients_like(U), [f.like() for f in U], gradients_like(U)
    for d, (u, v) in enumerate(zip(U, moved, strict=True)):
        v[...] = g @ u[...] @ np.swapaxes(np.roll(g, -1, axis=d), -1, -2).conj()
    gradient = jali.gradient(wilson, "U")
    gradient(F, U)
    gradient(of_moved, moved)
    for f, h in zip(F, of_moved, strict=True):
        assert is_near(h[...], g @ f[...] @ np.swapaxes(g, -1, -2).conj(), 1e-13)


def test_the_gradient_of_links_is_the_projection_of_that_of_their_numbers() -> None:
    lattice = Lattice(4, 3)
    U = made(lattice, [SU(3)] * 2)
    F, G = gradients_like(U), fields(lattice, [Matrix(3)] * 2)
    jali.gradient(smeared, "U")(F, U)
    jali.gradient(smeared, "U")(G, U)
    for u, f, m in zip(U, F, G, strict=True):
        product = m[...] @ np.swapaxes(u[...], -1, -2).conj()
        assert is_near(f[...], in_algebra(product) / 2, 1e-13)


def test_hybrid_monte_carlo_conserves_energy_to_the_order_of_its_step() -> None:
    lattice = Lattice(4, 4)
    gradient = jali.gradient(wilson, "U")

    def error(steps: int) -> float:
        U, P = made(lattice, [SU(3)] * 2), made(lattice, [Algebra(3)] * 2, 5)
        F = gradients_like(U)

        def energy() -> float:
            return float(lattice.sum(wilson, U)) + sum(inner(p[...], p[...], p.element) / 2 for p in P)

        before, h = energy(), 0.5 / steps
        for _ in range(steps):
            for part in (0, 1):
                gradient(F, U)
                for p, f in zip(P, F, strict=True):
                    p[...] = p[...] - 0.5 * h * f[...]
                if part == 0:
                    for u, p in zip(U, P, strict=True):
                        u[...] = exp_of(h * p[...]) @ u[...]
        return abs(energy() - before)

    assert 3.3 < error(8) / error(16) < 4.7


# ---- other fields --------------------------------------------------------------------------------------


@jali.site_function
def mixed(X: Any, r: Any, z: Any, v: Any, A: Any, H: Any, total: Any) -> None:
    """Of every kind of field, with neighbours."""
    mu, nu = X.directions()
    product = A[X] * H[X + mu]
    total += r[X] * r[X + mu] * z[X].norm2() + (z[X] * z[X - nu]).real
    total += (v[X].dot(product * v[X + nu])).imag + (H[X] * H[X + nu]).trace().real
    total += (A[X].exp() * H[X - mu]).trace().real + jali.sin(r[X]) * z[X + 2 * mu].imag


ELEMENTS = [Real(), Complex(), Vector(3), Algebra(3), Hermitian(3)]
NAMES = ("r", "z", "v", "A", "H")
TURNING = {1: "open"}, {0: -1, 1: "open"}, {0: -1, 1: "open"}, {1: "open"}, {0: -1, 1: "open"}
CLOSED = {}, {0: -1}, {0: 1j, 1: -1}, {1: -1}, {}


def mixed_fields(lattice: Any, boundaries: Any = TURNING, seed: int = 1) -> list[Field]:
    rng, found = np.random.default_rng(seed), []
    for element, boundary in zip(ELEMENTS, boundaries, strict=True):
        found += fields(lattice, [element], [normal(rng, lattice.extents, element)], boundary=boundary)
    return found


@pytest.mark.parametrize("over", [ALL, EVEN, ODD], ids=str)
def test_gradients_of_all_fields_at_once(over: Any) -> None:
    lattice = Lattice(4, 6)
    given = mixed_fields(lattice)
    G = gradients_like(given)
    gradient = jali.gradient(mixed, NAMES)
    (gradient if over is ALL else gradient[over])(*G, *given)
    for k in range(len(given)):  # each, and all together
        changes = [d if j == k else 0 * d for j, d in enumerate(changes_of(given, 3))]
        wanted = slope(lambda: lattice.sum(mixed, *given, over=over), given, changes)
        assert is_near(along(changes, G), wanted), NAMES[k]


@jali.site_function
def sine(X: Any, r: Any, z: Any, total: Any) -> None:
    total += jali.exp(r[X]) * z[X + X.directions()[0]].imag


def test_functions_of_fields_that_change_sign_at_an_edge() -> None:
    lattice = Lattice(4, 6)
    given = made(lattice, [Real(), Complex()], boundary={0: "antiperiodic"})
    G = gradients_like(given)
    jali.gradient(sine, ("r", "z"))(*G, *given)
    changes = changes_of(given, 3)
    assert is_near(along(changes, G), slope(lambda: lattice.sum(sine, *given), given, changes))


def test_the_gradients_of_both_colours_add_up() -> None:
    lattice = Lattice(4, 6)
    given = mixed_fields(lattice, CLOSED)
    both, even, odd = (gradients_like(given) for _ in range(3))
    gradient = jali.gradient(mixed, NAMES)
    gradient(*both, *given)
    gradient[EVEN](*even, *given)
    gradient[ODD](*odd, *given)
    for b, e, o in zip(both, even, odd, strict=True):
        assert is_near(e[...] + o[...], b[...], 1e-13)


def test_second_derivatives_are_symmetric_and_those_of_differences() -> None:
    lattice = Lattice(4, 6)
    given = mixed_fields(lattice, CLOSED)
    gradient = jali.gradient(mixed, NAMES)
    hessian = jali.tangent(gradient, NAMES)
    one, two = changes_of(given, 3), changes_of(given, 4)
    moved = []
    for changes in (one, two):
        found = gradients_like(given)
        d = [f.like() for f in given]
        for field, change in zip(d, changes, strict=True):
            field[...] = change
        hessian(*d, *found, *given)
        moved.append(found)
    assert is_near(along(one, moved[1]), along(two, moved[0]), 1e-12)
    for k in range(len(given)):

        def of_field(k: int = k) -> Any:
            G = gradients_like(given)
            gradient(*G, *given)
            return G[k][...]

        assert is_near(moved[0][k][...], slope(of_field, given, one)), NAMES[k]


def test_second_derivatives_by_links() -> None:
    lattice = Lattice(4, 3)
    for action in (wilson, smeared):
        U = made(lattice, [SU(3)] * 2)
        gradient = jali.gradient(action, "U")
        changes = changes_of(U, 2)
        found = gradients_like(U)
        jali.tangent(gradient, "U")(fields(lattice, [Algebra(3)] * 2, changes), found, U)

        def of_links(gradient: Any = gradient, U: Any = U) -> Any:
            G = gradients_like(U)
            gradient(G, U)
            return np.stack(values_of(G))

        assert is_near(np.stack(values_of(found)), slope(of_links, U, changes))


def test_the_gradient_of_a_gradient_is_that_of_its_square() -> None:
    """A sum that is made of a gradient: reverse mode twice."""
    lattice = Lattice(4, 6)
    x = made(lattice, [Real()])

    @jali.site_function
    def quartic(X: Any, x: Any, total: Any) -> None:
        for mu in X.directions():
            total += x[X] ** 2 * x[X + mu] ** 2 + jali.cos(x[X])

    gradient = jali.gradient(quartic, "x")
    pulled = jali.pullback(gradient, "x")
    g, found = x[0].like(), x[0].like()
    gradient(g, *x)
    changes = changes_of(x, 3)

    def half_square() -> float:
        G = x[0].like()
        gradient(G, *x)
        return float(np.sum(G[...] ** 2) / 2)

    pulled(found, g, *x)
    assert is_near(along(changes, [found]), slope(half_square, x, changes))


# ---- sums ----------------------------------------------------------------------------------------------


@jali.site_function
def by_label(X: Any, z: Any, energy: Any) -> None:
    energy[X.coordinate(0)] += z[X].norm2() * (z[X + X.directions()[1]] * z[X]).real
    energy[X.coordinate(1)] += z[X].imag


@pytest.mark.parametrize("over", [ALL, EVEN], ids=str)
def test_sums_by_label_with_a_weight_for_each(over: Any) -> None:
    lattice = Lattice(4, 6)
    z = made(lattice, [Complex()])
    weights = np.random.default_rng(2).normal(size=6)
    g = z[0].like()
    gradient = jali.gradient(by_label, "z", weighted=True)
    (gradient if over is ALL else gradient[over])(g, *z, weights)
    changes = changes_of(z, 3)
    wanted = slope(lambda: weights @ lattice.sum(by_label, *z, bins=6, over=over), z, changes)
    assert is_near(along(changes, [g]), wanted)


@jali.site_function
def counted(X: Any, z: Any, n: Any, total: Any) -> None:
    total += n[X]
    total += z[X].norm2() * (n[X] + 0.5)
    total += 3


def test_a_weight_multiplies_a_sum_with_whole_numbers_in_it() -> None:
    lattice = Lattice(4, 6)
    z, n = made(lattice, [Complex()])[0], Field(lattice, Integer())
    n[...] = np.arange(24).reshape(4, 6)
    g = z.like()
    jali.gradient(counted, "z")(g, z, n)
    assert np.allclose(g[...], 2 * z[...] * (n[...] + 0.5), rtol=1e-14)
    jali.gradient(counted, "z", weighted=True)(g, z, n, -2.0)
    assert np.allclose(g[...], -4 * z[...] * (n[...] + 0.5), rtol=1e-14)
    d = made(lattice, [Complex()], 5)[0]
    found = lattice.sum(jali.tangent(counted, "z", total="total"), d, z, n)
    assert is_near(found, inner(d[...], 2 * z[...] * (n[...] + 0.5), z.element), 1e-13)


@jali.site_function
def two_sums(X: Any, z: Any, first: Any, second: Any) -> None:
    first += z[X].real ** 3
    second += z[X].imag ** 2


def test_one_of_two_sums() -> None:
    lattice = Lattice(4, 6)
    z = made(lattice, [Complex()])[0]
    g = z.like()

    @jali.site_function
    def only_first(X: Any, z: Any, first: Any) -> None:
        first += z[X].real ** 3

    jali.gradient(only_first, "z", total="first")(g, z)
    assert np.allclose(g[...], 3 * z[...].real ** 2, rtol=1e-14)


# ---- batches, formats ----------------------------------------------------------------------------------


@jali.site_function
def of_members(X: Any, z: Any, w: Any, total: Any) -> None:
    mu, nu = X.directions()
    total += (z[X].conj() * z[X + mu, (X.member + 1) % 3]).real * w[X].norm2() + z[X, 2].imag * z[X + nu].real


def test_batches() -> None:
    lattice = Lattice(4, 3)
    rng = np.random.default_rng(1)
    z = Field(lattice, Complex(), batch=3, boundary={0: -1})
    z[...] = normal(rng, z[...].shape, Complex())
    (w,) = made(lattice, [Complex()])
    g, h = z.like(), w.like()
    jali.gradient(of_members, ("z", "w"))(g, h, z, w)
    changes = [normal(rng, z[...].shape, Complex()), normal(rng, w[...].shape, Complex())]
    wanted = slope(lambda: np.sum(lattice.sum(of_members, z, w)), [z, w], changes)
    assert is_near(along(changes, [g, h]), wanted)


@jali.site_function
def rounded(X: Any, kept: Any, out: Any, x: Any) -> None:
    kept[X] = x[X] * x[X]
    out[X] = kept[X] * x[X]


def test_the_derivative_of_rounding_is_that_of_the_identity() -> None:
    lattice = Lattice(4, 6)
    x, c = made(lattice, [Complex()] * 2)
    kept, out = Field(lattice, Complex(), storage="float32"), x.like()
    none, found = Field(lattice, Complex(), storage="float32"), x.like()
    none[...] = np.zeros(lattice.extents)
    rounded(kept, out, x)
    jali.pullback(rounded, "x")(found, none, c, x)
    wanted = c[...] * (2 * x[...] * x[...]).conj() + c[...] * kept[...].conj()
    assert np.allclose(found[...], wanted, rtol=1e-12)


# ---- random numbers -------------------------------------------------------------------------------------


@jali.site_function
def noisy(X: Any, x: Any, rng: Any, total: Any) -> None:
    mu, nu = X.directions()
    total += rng.gaussian(X) * x[X + mu].norm2()


def test_random_numbers_are_those_that_the_function_drew() -> None:
    lattice = Lattice(4, 6)
    (x,) = made(lattice, [Complex()])
    g = x.like()
    jali.gradient(noisy, "x")(g, x, jali.Random(5))
    changes = changes_of([x], 3)
    wanted = slope(lambda: lattice.sum(noisy, x, jali.Random(5)), [x], changes)
    assert is_near(along(changes, [g]), wanted)


# ---- values that are kept ------------------------------------------------------------------------------


def with_neighbours(gradient: Any, neighbours: str) -> Any:
    return derived(gradient.base, dataclasses.replace(gradient.derivation, neighbours=neighbours))


CASES = {
    "smeared": (smeared, lambda lattice: made(lattice, [SU(3)] * 2)),
    "mixed, closed": (mixed, lambda lattice: mixed_fields(lattice, CLOSED)),
    "mixed, open": (mixed, mixed_fields),
}


def run_case(
    name: str, neighbours: str, over: Any = ALL, grid: Any = None, extents: Any = (4, 6)
) -> list[Any]:
    function, fields_of = CASES[name]
    lattice = Lattice(*extents) if grid is None else Lattice(*extents, grid=grid)
    given, as_list = fields_of(lattice), function is smeared
    gradient = jali.gradient(function, "U" if as_list else NAMES)
    if neighbours != "default":
        gradient = with_neighbours(gradient, neighbours)
    G = gradients_like(given)
    on = gradient if over is ALL else gradient[over]
    on(*([G, given] if as_list else [*G, *given]))
    return values_of(G)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("over", [ALL, EVEN], ids=str)
def test_values_that_are_kept_are_those_that_are_computed_again(name: str, over: Any) -> None:
    computed, kept = (run_case(name, how, over) for how in ("compute", "keep"))
    for a, b in zip(computed, kept, strict=True):
        assert is_near(a, b, 1e-13)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("neighbours", ["compute", "keep", "default"])
def test_ranks_find_the_same_bytes(name: str, neighbours: str) -> None:
    def run(grid: Any) -> list[bytes]:
        return [one.tobytes() for one in run_case(name, neighbours, grid=grid, extents=(8, 12))]

    wanted = run((1, 1))
    for grid in ((2, 1), (1, 3), (2, 2)):
        assert jali.virtual_ranks(int(np.prod(grid)), run, grid)[0] == wanted
