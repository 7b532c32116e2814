"""Which values a tape keeps: those that the way back needs, and no others. Fields are overwritten by values that are no numbers behind each call, so
that a value which is not kept and yet needed is seen."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import jali
from jali import SU, Algebra, Field, Integer, Lattice, Matrix, Real
from jali.gauge import GaugeField, staple


@jali.site_function
def product(X: Any, y: Any, a: Any, b: Any) -> None:
    y[X] = a[X + X.directions()[0]] * b[X]


@jali.site_function
def total_of(X: Any, a: Any, b: Any) -> None:
    b[X] = 2 * a[X] + 3 * b[X]


@jali.site_function
def curved(X: Any, y: Any, a: Any, b: Any) -> None:
    y[X] = jali.where(b[X] > 0, jali.exp(a[X]), 0.5 * b[X]) + jali.minimum(a[X], b[X])


@jali.site_function
def in_place(X: Any, a: Any, b: Any) -> None:
    a[X] = a[X] * a[X] + b[X]


@jali.site_function
def of_next_member(X: Any, y: Any, a: Any, many: Any) -> None:
    y[X] = a[X] * many[X, X.member + 1]


@jali.site_function
def weighted(X: Any, a: Any, b: Any, total: Any) -> None:
    total += a[X] ** 2 * b[X]


@jali.site_function
def labelled(X: Any, a: Any, k: Any, total: Any) -> None:
    total[k[X]] += a[X]


@jali.site_function
def rotated(X: Any, V: Any, U: Any, A: Any) -> None:
    for mu in X.directions():
        V[mu][X] = A[X].exp() * U[mu][X]


@jali.site_function
def smeared(X: Any, W: Any, U: Any) -> None:
    for mu in X.directions():
        W[mu][X] = U[mu][X] * staple(X, U, mu).dagger()


@jali.site_function
def size(X: Any, W: Any, total: Any) -> None:
    total += W[X].norm2() * (1 + W[X].norm2())


NAN = float("nan")


def filled(lattice: Lattice, element: Any, seed: int, **options: Any) -> Field:
    field = Field(lattice, element, **options)
    numbers = np.random.default_rng(seed)
    field[...] = numbers.normal(size=field.shape)
    return field


def products(lattice: Lattice, done: Callable[..., None]) -> Any:
    a, b, y = (filled(lattice, Real(), k) for k in range(3))
    with jali.Tape(a, b) as tape:
        product(y, a, b)
        done(a, b)
        S = y.norm2()
        done(y)
    return tape.gradient(S)


def linear_in_place(lattice: Lattice, done: Callable[..., None]) -> Any:
    a, b = (filled(lattice, Real(), k) for k in range(2))
    with jali.Tape(a, b) as tape:
        total_of(a, b)
        done(a)
        S = b.norm2()
        done(b)
    return tape.gradient(S)


def branches(lattice: Lattice, done: Callable[..., None]) -> Any:
    a, b, y = (filled(lattice, Real(), k) for k in range(3))
    with jali.Tape(a, b) as tape:
        curved(y, a, b)
        done(a, b)
        in_place(y, y)  # one field in two places
        S = y.norm2()
        done(y)
    return tape.gradient(S)


def squares(lattice: Lattice, done: Callable[..., None]) -> Any:
    a, b = (filled(lattice, Real(), k) for k in range(2))
    with jali.Tape(a, b) as tape:
        in_place(a, b)
        in_place(a, a)
        S = lattice.sum(weighted, a, a) + 0.5 * lattice.sum(weighted, a, b)
        done(a, b)
    return tape.gradient(S)


def labels(lattice: Lattice, done: Callable[..., None]) -> Any:
    a = filled(lattice, Real(), 1)
    many, y = (filled(lattice, Real(), k, batch=3) for k in range(2))
    k = Field(lattice, Integer())
    k[...] = np.arange(lattice.volume).reshape(lattice.extents) % 3
    with jali.Tape(a, many) as tape:
        of_next_member(y, a, many)
        found = lattice.sum(labelled, a, k, bins=3)
        done(a, many, k)
        S = y.norm2().sum() + (found * np.array([1.0, 2.0, -3.0])).sum()
        done(y)
    return tape.gradient(S)


def links(lattice: Lattice, done: Callable[..., None]) -> Any:
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    A = Field(lattice, Algebra(3))
    A[...] = 0.3 * GaugeField(lattice, SU(3)).hot_start(seed=2).fields[0][...]
    V = U.like()
    W = [Field(lattice, Matrix(3)) for _ in V.fields]
    with jali.Tape(U, A) as tape:
        rotated(V, U, A)
        done(*U.fields, A)
        smeared(W, V)
        done(*V.fields)
        S = sum(lattice.sum(size, one) for one in W)
        done(*W)
    return tape.gradient(S)


CASES = [products, linear_in_place, branches, squares, labels, links]


@pytest.mark.parametrize("case", CASES)
def test_values_that_are_not_kept_are_not_needed(case: Any) -> None:
    lattice = Lattice(4, 2)

    def spoil(*fields: Field) -> None:
        for one in fields:
            one[...] = np.full(one.shape, 0 if one.element == Integer() else NAN)

    alone = flat(case(lattice, lambda *_: None))
    spoiled = flat(case(lattice, spoil))
    assert len(alone) == len(spoiled) > 0
    for a, b in zip(alone, spoiled, strict=True):
        assert np.abs(a).max() > 0
        assert np.array_equal(a, b)


@jali.site_function
def advance(X: Any, v: Any, p: Any, density: Any, mu: Any) -> None:
    v[X] = v[X] + density[X] * (p[X + mu] - p[X])


@jali.site_function
def compress(X: Any, p: Any, v: Any, w: Any, modulus: Any) -> None:
    first, second = X.directions()
    p[X] = p[X] + modulus[X] * (v[X] - v[X - first] + w[X] - w[X - second])


def waves(steps: Any, *material: Field) -> Any:
    """Pressure and velocities of waves after some steps."""
    density, modulus = material
    p, v, w = (filled(density.lattice, Real(), k, boundary="open") for k in range(3))
    for _ in steps:
        for one, mu in zip((v, w), density.lattice.directions, strict=True):
            advance(one, p, density, mu)
        compress(p, v, w, modulus)
    return p.norm2() + v.norm2()


def material(lattice: Lattice) -> list[Field]:
    found = [filled(lattice, Real(), k) for k in (5, 6)]
    for one in found:
        one[...] = 0.3 + 0.05 * one[...]
    return found


def test_steps_keep_what_is_not_linear() -> None:
    """Of the pressure and two velocities with respect to a material that multiplies the pressure alone, the pressure."""
    density, modulus = material(Lattice(4, 6))
    size = density[...].nbytes
    steps = 20
    with jali.Tape(density) as tape:
        S = waves(tape.steps(steps), density, modulus)
    (alone,) = tape.gradient(S)
    assert tape.peak <= (steps + 2) * size
    with jali.Tape(density, modulus) as tape:
        S = waves(tape.steps(steps), density, modulus)
    both, _ = tape.gradient(S)
    assert (steps + 2) * size < tape.peak <= (3 * steps + 4) * size
    assert np.array_equal(alone[...], both[...])


def test_what_is_linear_keeps_nothing() -> None:
    lattice = Lattice(4, 6)
    density, modulus = material(lattice)
    source = filled(lattice, Real(), 8)
    with jali.Tape(source) as tape:
        p, v = source.copy(), source.like()
        for _ in tape.steps(10):
            advance(v, p, density, lattice.directions[0])
            total_of(v, p)
        S = lattice.sum(weighted, density, p)
    tape.gradient(S)
    assert tape.peak == 0


@pytest.mark.skipif(find_spec("checkpoint_schedules") is None, reason="checkpoint-schedules is not installed")
@pytest.mark.parametrize("parts", [2, 5, 9])
def test_repeated_steps_give_the_same_bits(parts: int) -> None:
    density, modulus = material(Lattice(4, 6))

    def gradient(memory: float | None = None) -> tuple[list[np.ndarray], Any]:
        with jali.Tape(density, modulus, memory=memory) as tape:
            S = waves(tape.steps(60), density, modulus)
        return flat(tape.gradient(S)), tape

    kept, whole = gradient()
    again, tape = gradient(whole.peak / parts)
    assert 0 < tape.peak <= whole.peak / parts
    assert all(np.array_equal(a, b) for a, b in zip(kept, again, strict=True))


def flat(found: Any) -> list[np.ndarray]:
    return [found[...]] if isinstance(found, Field) else [one for part in found for one in flat(part)]
