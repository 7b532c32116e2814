"""Which values a tape keeps: those that the way back needs, and no others. Fields are overwritten by values that are no numbers behind each call, so
that a value which is not kept and yet needed is seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import jali
from jali import SU, Algebra, Field, Integer, Lattice, Matrix, Real, TraceError
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

with_schedules = pytest.mark.skipif(
    find_spec("checkpoint_schedules") is None, reason="checkpoint-schedules is not installed"
)


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


@with_schedules
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


@jali.site_function
def first_member(X: Any, y: Any, many: Any) -> None:
    y[X] = many[X, 0] ** 2 * many[X, 2]


def test_members_that_are_named_are_kept() -> None:
    lattice = Lattice(4, 2)
    many = filled(lattice, Real(), 1, batch=3)
    with jali.Tape(many) as tape:
        own, y = many.copy(), Field(lattice, Real())
        first_member(y, own)
        own[...] = np.full(own.shape, NAN)
        S = y.sum()
    (g,) = tape.gradient(S)
    v = many[...]
    assert np.allclose(g[...], np.stack([2 * v[..., 0] * v[..., 2], 0 * v[..., 1], v[..., 0] ** 2], -1))


power = 2


@jali.site_function
def by_power(X: Any, y: Any, x: Any) -> None:
    y[X] = x[X] * x[X] if power == 2 else 3.0 * x[X]


def test_numbers_that_a_call_sees_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change, and come back, before what the way back needs is looked for."""

    def sees(value: int) -> None:
        monkeypatch.setattr(sys.modules[__name__], "power", value)

    x = filled(Lattice(4, 2), Real(), 1)
    y, z = x.like(), x.like()
    with jali.Tape(x) as tape:
        own = x.copy()
        by_power(y, own)
        sees(1)
        own.assign(y)
        sees(2)
        S = y.sum()
    assert np.array_equal(tape.gradient(S)[0][...], 2 * x[...])
    with jali.Tape(x) as tape:
        own = x.copy()
        sees(1)
        by_power(z, own)
        own.assign(z)
        own.assign(x)
        sees(2)
        by_power(y, own)
        own.assign(z)
        S = y.sum()
    assert np.array_equal(tape.gradient(S)[0][...], 2 * x[...])


factor = 2.0


@jali.site_function
def times_factor(X: Any, w: Any, c: Any) -> None:
    w[X] = factor * c[X]


@jali.site_function
def grow(X: Any, u: Any, w: Any, x: Any) -> None:
    u[X] = 0.2 * u[X] * w[X] * x[X] + 0.1 * u[X] * u[X]


@jali.site_function
def half(X: Any, w: Any) -> None:
    w[X] = 0.5 * w[X]


@with_schedules
def test_steps_are_not_repeated_with_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    lattice = Lattice(4, 2)
    x, c = (filled(lattice, Real(), k) for k in range(2))

    def recorded(memory: float | None, set_inside: bool = False) -> tuple[Any, Any]:
        with jali.Tape(x, memory=memory) as tape:
            u, w = x.copy(), x.like()
            for k in tape.steps(30):
                if set_inside:
                    w[...] = 1 + 0.1 * k
                    half(w)
                else:
                    times_factor(w, c)
                grow(u, w, x)
            S = u.norm2()
        return tape, S

    tape, S = recorded(None)
    kept = tape.gradient(S)[0][...]
    again, T = recorded(0.5 * tape.peak)
    assert np.array_equal(again.gradient(T)[0][...], kept)
    again, T = recorded(0.5 * tape.peak)
    with monkeypatch.context() as changed:
        changed.setattr(sys.modules[__name__], "factor", 3.0)
        with pytest.raises(TraceError, match="times_factor would be another formula now"):
            again.gradient(T)
    again, T = recorded(0.5 * tape.peak, set_inside=True)
    with pytest.raises(TraceError, match="values that are set from Python"):
        again.gradient(T)


@jali.site_function
def plus(X: Any, o: Any, w: Any, a: Any) -> None:
    o[X] = w[X] + a[X]


@jali.site_function
def sine_of(X: Any, u: Any, o: Any, x: Any) -> None:
    u[X] = jali.sin(u[X] * o[X]) + 0.3 * x[X]


@with_schedules
@pytest.mark.parametrize("part", [0.95, 0.5])
def test_what_repeated_steps_read_is_kept_behind_the_loop(part: float) -> None:
    x = filled(Lattice(4, 2), Real(), 1)

    def gradient(memory: float | None) -> tuple[np.ndarray, Any]:
        with jali.Tape(x, memory=memory) as tape:
            u, o, w = (x.copy() for _ in range(3))
            for _ in tape.steps(40):
                plus(o, w, x)
                sine_of(u, o, x)
            w.assign(u)
            S = u.norm2()
        return tape.gradient(S)[0][...], tape

    kept, whole = gradient(None)
    again, tape = gradient(part * whole.peak)
    assert np.array_equal(kept, again)
    assert tape.peak <= part * whole.peak


def flat(found: Any) -> list[np.ndarray]:
    return [found[...]] if isinstance(found, Field) else [one for part in found for one in flat(part)]
