"""Loops whose steps are undone on the way back: the bits of kept values where arithmetic is exact, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import jali
from jali import Field, Lattice, ParameterError, Real, TraceError
from jali.gauge import SU, GaugeField, plaquette, wilson_action


@jali.site_function
def wave(X: Any, u: Any, old: Any, speed: Any) -> None:
    """Its own inverse: the old value takes the place of the new one by the same formula."""
    laplacian = sum(u[X + mu] + u[X - mu] for mu in X.directions()) - 2 * X.ndim * u[X]
    old[X] = 2 * u[X] - old[X] + speed[X] * laplacian


@jali.site_function
def laplace(X: Any, t: Any, u: Any) -> None:
    t[X] = sum(u[X + mu] + u[X - mu] for mu in X.directions()) - 2 * X.ndim * u[X]


@jali.site_function
def leap(X: Any, old: Any, u: Any, t: Any, speed: Any) -> None:
    old[X] = 2 * u[X] - old[X] + speed[X] * t[X]


@jali.site_function
def damp(X: Any, u: Any, factor: Any) -> None:
    u[X] = factor * u[X]


def numbers(lattice: Lattice, seed: int, exact: bool) -> Field:
    chance = np.random.default_rng(seed)
    field = Field(lattice, Real(), boundary="open")
    field[...] = (
        chance.integers(-2, 3, size=lattice.extents) if exact else chance.normal(size=lattice.extents)
    )
    return field


def gradient(
    speed: Field, steps: int, exact: bool, how: str, memory: float | None = None, in_two: bool = False
) -> tuple[list[np.ndarray], Any]:
    """The gradient of the last state with respect to the speed, and the fields as they are left."""
    lattice = speed.lattice
    u, old = numbers(lattice, 1, exact), numbers(lattice, 2, exact)
    t = u.like()

    def one_step(k: int) -> None:
        a, b = (u, old) if k % 2 == 0 else (old, u)
        if in_two:
            laplace(t, a)
            leap(b, a, t, speed)
        else:
            wave(a, b, speed)

    with jali.Tape(speed, memory=memory) as tape:
        for k in tape.steps(steps, undo=one_step if how == "undone" else None):
            one_step(k)
        total = (u if steps % 2 == 0 else old).norm2()
    (g,) = tape.gradient(total)
    return [g[...], u[...], old[...]], tape


def speed_on(lattice: Lattice, exact: bool) -> Field:
    speed = Field(lattice, Real())
    chance = np.random.default_rng(5)
    speed[...] = 0.25 if exact else 0.2 + 0.05 * chance.uniform(size=lattice.extents)
    return speed


@pytest.mark.parametrize("in_two", [False, True])
def test_undone_kept_and_repeated_steps_give_the_same_bits(in_two: bool) -> None:
    """Numbers with few digits: undoing rounds nothing."""
    speed = speed_on(Lattice(6, 5), True)
    kept, whole = gradient(speed, 9, True, "kept", in_two=in_two)
    undone, tape = gradient(speed, 9, True, "undone", in_two=in_two)
    assert all(np.array_equal(a, b) for a, b in zip(kept, undone, strict=True))
    assert np.abs(kept[0]).max() > 1
    if find_spec("checkpoint_schedules") is not None and not in_two:
        again, _ = gradient(speed, 9, True, "again", memory=whole.peak * 0.9)
        assert all(np.array_equal(a, b) for a, b in zip(kept, again, strict=True))


@pytest.mark.parametrize("in_two", [False, True])
def test_undone_steps_need_the_memory_of_few_states(in_two: bool) -> None:
    speed = speed_on(Lattice(6, 5), False)
    kept, whole = gradient(speed, 120, False, "kept", in_two=in_two)
    undone, tape = gradient(speed, 120, False, "undone", in_two=in_two)
    assert np.allclose(kept[0], undone[0], rtol=1e-9, atol=1e-9 * np.abs(kept[0]).max())
    assert np.array_equal(kept[1], undone[1])
    assert np.array_equal(kept[2], undone[2])
    assert tape.peak <= whole.peak / 12
    again, _ = gradient(speed, 120, False, "undone", memory=tape.peak, in_two=in_two)
    assert np.array_equal(again[0], undone[0])
    with pytest.raises(ParameterError, match="the tape would keep"):
        gradient(speed, 120, False, "undone", memory=tape.peak / 2, in_two=in_two)


def test_ranks_give_the_same_bits() -> None:
    def run() -> np.ndarray:
        return gradient(speed_on(Lattice(8, 6), False), 20, False, "undone", in_two=True)[0][0]

    alone = run()
    for found in jali.virtual_ranks(3, run):
        assert np.array_equal(found, alone)


@jali.site_function
def kick(X: Any, P: Any, U: Any, length: Any) -> None:
    mu, nu = X.directions()
    above = U[nu][X + mu] * U[mu][X + nu].dagger() * U[nu][X].dagger()
    P[X] = P[X] - length * (U[mu][X] * above).traceless_antihermitian()


@jali.site_function
def drift(X: Any, U: Any, P: Any, length: Any, mu: Any) -> None:
    U[mu][X] = (length * P[X]).exp() * U[mu][X]


def test_links_of_molecular_dynamics_are_undone() -> None:
    """A leapfrog is its own inverse with the opposite length."""
    lattice = Lattice(4, 4)

    def run(undo: bool, memory: float | None = None) -> tuple[np.ndarray, np.ndarray, float]:
        U = GaugeField(lattice, SU(2)).hot_start(seed=3)
        start = Field(lattice, jali.Algebra(2))
        start[...] = wilson_action(2.0).force(U)[0][...]
        P, mu = start.like(), lattice.directions[0]

        def back(k: int) -> None:
            kick(P, U, -0.05)
            drift(U, P, -0.1, mu)
            kick(P, U, -0.05)

        with jali.Tape(start, memory=memory) as tape:
            P.assign(start)
            for _ in tape.steps(10, undo=back if undo else None):
                kick(P, U, 0.05)
                drift(U, P, 0.1, mu)
                kick(P, U, 0.05)
            total = wilson_action(2.0).value(U)
        return tape.gradient(total)[0][...], np.array(plaquette(U)), tape.peak

    kept, plaquettes, peak = run(False)
    undone, same, _ = run(True)
    assert np.allclose(kept, undone, rtol=0, atol=1e-11)
    assert plaquettes == same
    if find_spec("checkpoint_schedules") is not None:  # steps that are given links of which they use some
        again, same, _ = run(False, 0.8 * peak)
        assert np.array_equal(kept, again)


REFUSED: dict[str, tuple[Callable[[Field, Field, Field, int], None], str]] = {
    "no inverse": (lambda a, b, speed, k: damp(b, 1.01), "another value than it had"),
    "nothing": (lambda a, b, speed, k: None, r"undo\(4\) does not set"),
    "another field": (lambda a, b, speed, k: damp(speed, 1.0), "which no step sets"),
    "from Python": (lambda a, b, speed, k: b.__setitem__(..., 0.0), "sets .* from Python"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_inverse_is_refused(name: str) -> None:
    undo, message = REFUSED[name]
    speed = speed_on(Lattice(6, 5), False)
    u, old = numbers(speed.lattice, 1, False), numbers(speed.lattice, 2, False)
    pairs = [(u, old), (old, u)]
    with jali.Tape(speed) as tape:
        for k in tape.steps(6, undo=lambda k: undo(*pairs[k % 2], speed, k)):
            wave(*pairs[k % 2], speed)
        total = u.norm2()
    with pytest.raises(TraceError, match=message):
        tape.gradient(total)


def test_steps_that_damp_are_refused_when_rounding_has_grown() -> None:
    lattice = Lattice(6)
    factor, u = numbers(lattice, 1, False), numbers(lattice, 2, False)
    factor[...] = 1 / 3

    @jali.site_function
    def lose(X: Any, u: Any, factor: Any) -> None:
        u[X] = factor[X] * u[X] + 1.0

    @jali.site_function
    def regain(X: Any, u: Any, factor: Any) -> None:
        u[X] = (u[X] - 1.0) / factor[X]

    def run(n: int) -> np.ndarray:
        u[...] = np.arange(1.0, 7.0)
        with jali.Tape(factor) as tape:
            for _ in tape.steps(n, undo=lambda k: regain(u, factor)):
                lose(u, factor)
            total = u.norm2()
        return tape.gradient(total)[0][...]

    assert np.isfinite(run(5)).all()
    with pytest.raises(TraceError, match="makes rounding grow"):
        run(30)


def test_a_loop_that_ends_early_and_wrong_arguments_are_refused() -> None:
    speed = speed_on(Lattice(6, 5), False)
    u, old = numbers(speed.lattice, 1, False), numbers(speed.lattice, 2, False)
    with pytest.raises(ParameterError, match="undo= is a function"), jali.Tape(speed) as tape:
        tape.steps(3, undo=3)
    with pytest.raises(TraceError, match="ended after 1 step"), jali.Tape(speed) as tape:
        for _ in tape.steps(3, undo=lambda k: wave(u, old, speed)):
            wave(u, old, speed)
            break
    with pytest.raises(ParameterError, match="made inside"), jali.Tape(speed) as tape:
        for _ in tape.steps(3, undo=lambda k: wave(u, old, speed)):
            copy = u.copy()
            wave(copy, old, speed)
