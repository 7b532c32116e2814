"""Tapes: calls in a row, what is overwritten, loops that are computed again, solves, transforms, graphs, and what is refused."""

from __future__ import annotations

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jali
from jali import EVEN, ODD, SU, Complex, Field, Lattice, Real, TraceError, Vector
from jali.errors import ParameterError
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField, ape_smear, hyp_smear, stout_smear, wilson_action


@jali.site_function
def step(X: Any, u: Any, old: Any, speed: Any) -> None:
    laplacian = sum(u[X + mu] + u[X - mu] for mu in X.directions()) - 2 * X.ndim * u[X]
    old[X] = 2 * u[X] - old[X] + speed[X] ** 2 * laplacian


@jali.site_function
def sine(X: Any, y: Any, x: Any) -> None:
    y[X] = jali.sin(x[X]) * x[X + X.directions()[0]]


@jali.site_function
def half_norm2(X: Any, u: Any, total: Any) -> None:
    total += 0.5 * u[X].norm2()


def filled(lattice: Lattice, element: Any = None, seed: int = 1, **options: Any) -> Field:
    field = Field(lattice, Real() if element is None else element, **options)
    numbers = np.random.default_rng(seed)
    values = numbers.normal(size=field.shape)
    if field.element.type.kind == "complex":
        values = values + 1j * numbers.normal(size=field.shape)
    field[...] = values
    return field


def misfit(speed: Field, steps: Any, seed: int = 2) -> Any:
    """A sum over the last state of a time evolution, and over each third one."""
    a, b = (filled(speed.lattice, seed=seed + k, boundary="open") for k in range(2))
    total: Any = 0.0
    for k in steps:
        step(a, b, speed)
        a, b = b, a
        if k % 3 == 0:
            total = total + speed.lattice.sum(half_norm2, a)
    return total + 0.5 * speed.lattice.sum(half_norm2, a)


def gradient_of_misfit(
    speed: Field, steps: int, memory: float | None = None, disk: Path | None = None
) -> tuple[np.ndarray, Any]:
    with jali.Tape(speed, memory=memory, disk=disk) as tape:
        total = misfit(speed, tape.steps(steps))
    (g,) = tape.gradient(total)
    return g[...], tape


def speed_on(lattice: Lattice) -> Field:
    speed = Field(lattice, Real())
    speed[...] = 0.4 + 0.1 * np.random.default_rng(5).uniform(size=lattice.extents)
    return speed


def test_a_gradient_through_time_steps_is_that_of_differences() -> None:
    speed = speed_on(Lattice(6, 5))
    g, _ = gradient_of_misfit(speed, 12)
    values = speed[...]
    for site in ((0, 0), (3, 2), (5, 4)):
        found = []
        for h in (1e-5, -1e-5):
            changed = values.copy()
            changed[site] += h
            speed[...] = changed
            found.append(misfit(speed, range(12)))
        assert (found[0] - found[1]) / 2e-5 == pytest.approx(g[site], rel=1e-6)


with_schedules = pytest.mark.skipif(
    find_spec("checkpoint_schedules") is None, reason="checkpoint-schedules is not installed"
)


@with_schedules
@pytest.mark.parametrize("parts", [3, 10])
def test_what_is_computed_again_gives_the_same_bits_in_less_memory(parts: int) -> None:
    speed = speed_on(Lattice(6, 5))
    kept, whole = gradient_of_misfit(speed, 100)
    again, tape = gradient_of_misfit(speed, 100, memory=whole.peak / parts)
    assert np.array_equal(kept, again)
    assert 0 < tape.peak <= whole.peak / parts


@with_schedules
def test_checkpoints_on_disk_give_the_same_bits_in_less_memory(tmp_path: Path) -> None:
    speed = speed_on(Lattice(6, 5))
    kept, whole = gradient_of_misfit(speed, 60)
    memory = 0.1 * whole.peak
    again, tape = gradient_of_misfit(speed, 60, memory, tmp_path)
    assert np.array_equal(kept, again)
    assert 0 < tape.peak <= memory
    with jali.Tape(speed, memory=memory, disk=tmp_path) as unused:
        misfit(speed, unused.steps(60))
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) > 40  # nearly all steps have one
    del unused
    gc.collect()
    assert not list(tmp_path.iterdir())


@with_schedules
def test_a_disk_helps_where_memory_has_room_for_no_checkpoint(tmp_path: Path) -> None:
    speed = speed_on(Lattice(6, 5))
    kept, whole = gradient_of_misfit(speed, 20)

    def refuses(memory: float) -> bool:
        try:
            gradient_of_misfit(speed, 20, memory)
        except ParameterError as error:
            return "a step needs" in str(error)
        return False

    few = whole.peak / 20
    memory = max(m for m in np.arange(0.5, 10, 0.5) * few if refuses(m))
    again, tape = gradient_of_misfit(speed, 20, memory, tmp_path)
    assert np.array_equal(kept, again)
    assert tape.peak <= memory
    with pytest.raises(ParameterError, match="memory= allows"):
        gradient_of_misfit(speed, 20, few / 2, tmp_path)


def test_a_disk_that_is_none_is_refused(tmp_path: Path) -> None:
    speed = speed_on(Lattice(6, 5))
    with pytest.raises(ParameterError, match="give that too"):
        jali.Tape(speed, disk=tmp_path)
    with pytest.raises(ParameterError, match="a folder that exists"):
        jali.Tape(speed, memory=1e6, disk=tmp_path / "none")
    with pytest.raises(ParameterError, match="disk= is a folder, not 3"):
        jali.Tape(speed, memory=1e6, disk=3)


@with_schedules
def test_ranks_give_the_same_bits(tmp_path: Path) -> None:
    def run() -> tuple[np.ndarray, np.ndarray]:
        speed = speed_on(Lattice(8, 6))
        kept, whole = gradient_of_misfit(speed, 30)
        again, _ = gradient_of_misfit(speed, 30, memory=whole.peak / 4)
        on_disk, _ = gradient_of_misfit(speed, 30, whole.peak / 4, tmp_path)
        assert np.array_equal(again, on_disk)
        return kept, again

    alone = run()
    for found in jali.virtual_ranks(3, run):
        assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))


def slope(function: Any, x: Field, direction: np.ndarray, h: float = 1e-5) -> float:
    values, found = x[...], []
    for sign in (1, -1):
        x[...] = values + sign * h * direction
        found.append(function())
    x[...] = values
    return float((found[0] - found[1]) / (2 * h))


def along(g: Field, direction: np.ndarray) -> float:
    return float(np.vdot(g[...], direction).real)


def check(function: Any, x: Field, rel: float = 1e-7) -> None:
    """The gradient of what a function of no arguments returns with respect to x, against differences."""
    with jali.Tape(x) as tape:
        S = function()
    (g,) = tape.gradient(S)
    numbers = np.random.default_rng(9)
    direction = numbers.normal(size=x.shape)
    if x.element.type.kind == "complex":
        direction = direction + 1j * numbers.normal(size=x.shape)
    assert along(g, direction) == pytest.approx(slope(function, x, direction), rel=rel, abs=1e-8)


def test_calls_expressions_copies_and_fields_that_are_overwritten() -> None:
    lattice = Lattice(4, 6)
    x, y, z = filled(lattice, seed=1), Field(lattice, Real()), Field(lattice, Real())

    def function() -> Any:
        sine(y, x)
        z.assign(y)
        sine(y, z)  # overwrites what the first call made
        z[...] = 2.0 * y + x * y
        sine[EVEN](y, z)
        w = y.copy()
        w += 0.5 * z
        return lattice.sum(half_norm2, w) + 0.3 * lattice.sum(half_norm2, x)

    check(function, x)


def test_calls_in_place_over_colours_and_colourings() -> None:
    lattice = Lattice(4, 6)
    x, y = filled(lattice, seed=1), Field(lattice, Real())
    stripes = jali.Colouring(3, lambda c: (c[0] + c[1]) % 3)

    @jali.site_function
    def relax(X: Any, f: Any) -> None:
        f[X] = f[X] * 0.5 + 0.1 * sum(f[X + mu] ** 2 for mu in X.directions())

    @jali.site_function
    def double(X: Any, f: Any) -> None:
        f[X] = f[X] * f[X] + f[X]

    def function() -> Any:
        y.assign(x)
        for over in (EVEN, ODD):
            relax[over](y)
        double[stripes[1]](y)
        return lattice.sum(half_norm2, y)

    check(function, x)


def test_fields_on_a_colour_and_members_of_batches() -> None:
    lattice = Lattice(4, 6)
    x = filled(lattice, Complex(), batch=3)

    @jali.site_function
    def product(X: Any, y: Any, x: Any) -> None:
        y[X] = x[X + X.directions()[1]] * x[X]

    def function() -> Any:
        one = x.members[1].copy()
        even, odd = one.split()
        y = jali.join(even, odd)
        product(y, one)
        many = x.like()
        product(many, x)
        return lattice.sum(half_norm2, y) + lattice.sum(half_norm2, many).sum()

    check(function, x)


def test_totals_have_the_arithmetic_of_numbers() -> None:
    lattice = Lattice(4, 6)
    x = filled(lattice)

    @jali.site_function
    def several(X: Any, x: Any, a: Any, b: Any) -> None:
        a += x[X] ** 2
        b += jali.complex(jali.cos(x[X]), x[X])

    def function() -> Any:
        a, b = lattice.sum(several, x)
        profile = lattice.sum(half_norm2, x, per=1)
        root = a.sqrt() if isinstance(a, jali.Total) else np.sqrt(a)
        return (
            (b.real * b.imag - 2.0) / (1.0 + a)
            + root**3
            - (profile * np.arange(6.0)).sum()
            + profile[2] * 0.25
        )

    check(function, x, rel=1e-6)


def test_sums_by_label() -> None:
    lattice = Lattice(4, 6)
    x = filled(lattice)

    @jali.site_function
    def by_entry(X: Any, x: Any, total: Any) -> None:
        total[X.coordinate(0)] += x[X] ** 3

    check(lambda: (lattice.sum(by_entry, x, bins=4) * np.array([1.0, -2.0, 0.5, 3.0])).sum(), x)


def test_solves_have_one_more_with_the_adjoint() -> None:
    U = GaugeField(Lattice(4, 4, 2, 2), SU(2)).hot_start(seed=3)
    b = filled(U.lattice, jali.Spinor(2))

    def by_solver(solve: Any) -> Any:
        with jali.Tape(U, b) as tape:
            S = U.lattice.sum(half_norm2, solve(WilsonDirac(U, 0.5), b))
        return S, tape.gradient(S)

    S, (F, g) = by_solver(lambda D, b: jali.solve(D, b, tolerance=1e-12).x)
    direction = np.random.default_rng(4).normal(size=b.shape)

    def value() -> float:
        return float(U.lattice.sum(half_norm2, jali.solve(WilsonDirac(U, 0.5), b, tolerance=1e-12).x))

    assert along(g, direction) == pytest.approx(slope(value, b, direction), rel=1e-6)
    other, (F2, g2) = by_solver(
        lambda D, b: jali.solvers.cg(D.normal, D.dagger @ b, rtol=1e-13).x
    )  # x = (D^dagger D)^-1 D^dagger b
    assert other.value == pytest.approx(S.value, rel=1e-10)
    np.testing.assert_allclose(g2[...], g[...], atol=1e-9)
    for one, two in zip(F, F2, strict=True):
        np.testing.assert_allclose(two[...], one[...], atol=1e-9)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_of_fields(norm: str) -> None:
    lattice = Lattice(4, 6)
    for x in (filled(lattice, Complex()), filled(lattice)):
        weight = filled(lattice, seed=7)

        def function(x: Field = x, weight: Field = weight) -> Any:
            k = jali.fft.fftn(x, norm=norm)
            k = (k * weight).field()
            return lattice.sum(half_norm2, jali.fft.ifftn(k, axes=0, norm=norm)) + lattice.sum(half_norm2, k)

        check(function, x)


@pytest.mark.short(1)
@pytest.mark.parametrize(
    "smear", [lambda U: ape_smear(U, 0.5, 2), lambda U: hyp_smear(U), lambda U: stout_smear(U, 0.15)]
)
def test_smearing_before_an_action(smear: Any) -> None:
    U = GaugeField(Lattice(4, 2, 4), SU(2)).hot_start(seed=2)
    action = wilson_action(2.3)
    with jali.Tape(U) as tape:
        S = action.value(smear(smear(U)))
    (F,) = tape.gradient(S)
    omega = [f.like() for f in F]

    @jali.site_function
    def draw(X: Any, P: Any, rng: Any) -> None:
        for mu in X.directions():
            P[mu][X] = jali.gauge.gaussian_algebra(X, rng, 2)

    @jali.site_function
    def turn(X: Any, V: Any, U: Any, P: Any, h: Any) -> None:
        for mu in X.directions():
            V[mu][X] = (h * P[mu][X]).exp() * U[mu][X]

    draw(omega, jali.Random(1))
    V, found = U.like(), []
    for h in (1e-4, -1e-4):
        turn(V, U, omega, h)
        found.append(action.value(smear(smear(V))))
    exact = sum(-2 * (np.swapaxes(p[...], -1, -2) * f[...]).sum().real for p, f in zip(omega, F, strict=True))
    assert (found[0] - found[1]) / 2e-4 == pytest.approx(exact, rel=1e-6)


def test_a_tape_is_recorded_in_a_graph() -> None:
    lattice = Lattice(4, 6)
    x, y, z, out = filled(lattice), *(Field(lattice, Real()) for _ in range(3))

    def body() -> None:
        with jali.Tape(x) as tape:
            sine(y, x)
            sine(z, y)
            S = lattice.sum(half_norm2, z, wait=False)
        (g,) = tape.gradient(S)
        out.assign(g)

    body()
    expected = out[...]
    out[...] = 0.0
    graph = jali.graph(body, lattice)
    graph.run(2)
    assert np.array_equal(out[...], expected)
    x[...] = 2 * x[...]
    graph.run()
    assert not np.array_equal(out[...], expected)


def refused(what: Any, match: str) -> None:
    with pytest.raises((TraceError, jali.ParameterError), match=match) as caught:
        what()
    assert "test_tapes.py" in str(caught.value) or isinstance(caught.value, jali.ParameterError)


def test_refusals() -> None:
    lattice = Lattice(4, 6)
    x, y, z = filled(lattice), Field(lattice, Real()), Field(lattice, Real())

    def recorded(change: Any = None, run: Any = None) -> Any:
        with jali.Tape(x) as tape:
            sine(y, x)
            sine(z, y)
            S = lattice.sum(half_norm2, z) if run is None else run()
        if change is not None:
            change()
        return tape, tape.gradient(S)

    tape, _ = recorded()
    refused(lambda: tape.gradient(jali.Total(tape, 1.0)), "has run backwards already")
    refused(
        lambda: recorded(change=lambda: x.__setitem__(Ellipsis, 0.0)),
        "has been changed since this call was recorded",
    )
    refused(lambda: recorded(change=lambda: sine(y, x)), "has been changed since this call was recorded")
    refused(lambda: recorded(run=lambda: 3.0), "does not depend on what the tape is for")
    refused(
        lambda: recorded(run=lambda: lattice.sum(half_norm2, z, per=0)),
        "a gradient is that of one real number",
    )
    refused(lambda: recorded(run=lambda: float(lattice.sum(half_norm2, z))), "a float has no derivative")
    refused(
        lambda: recorded(run=lambda: jali.solvers.lanczos(lambda p, q: q.assign(p), 1, z)),
        "lanczos has no derivative",
    )
    refused(lambda: jali.Tape(), "takes the fields that derivatives are with respect to")
    refused(lambda: jali.Tape(x, memory=-1), "memory= is a positive number of bytes")
    factor = [2.0]

    @jali.site_function
    def times(X: Any, y: Any, x: Any) -> None:
        y[X] = factor[0] * x[X] ** 2

    def change() -> None:
        factor[0] = 3.0

    def with_factor() -> None:
        with jali.Tape(x) as tape:
            times(y, x)
            S = lattice.sum(half_norm2, y)
        change()
        tape.gradient(S)

    refused(with_factor, "would be another formula now than when it was recorded")


@with_schedules
def test_a_limit_that_is_too_small_is_refused() -> None:
    speed = speed_on(Lattice(6, 5))
    refused(
        lambda: gradient_of_misfit(speed, 30, memory=500.0),
        "memory= allows 500 B, and a step needs|the tape would keep",
    )

    def without_steps() -> None:
        with jali.Tape(speed, memory=500.0):
            misfit(speed, range(30))

    refused(without_steps, r"for k in tape.steps\(n\)")


def test_vectors_of_links_are_held_by_name() -> None:
    """Fields that are not named are constants."""
    lattice = Lattice(4, 6)
    a, b = filled(lattice, Vector(2), 1), filled(lattice, Vector(2), 2)

    @jali.site_function
    def overlap(X: Any, a: Any, b: Any, total: Any) -> None:
        total += a[X].dot(b[X]).real

    with jali.Tape(a) as tape:
        S = lattice.sum(overlap, a, b)
    (g,) = tape.gradient(S)
    assert np.array_equal(g[...], b[...])


def test_what_is_constant_beside_a_part_that_is_written_gets_nothing() -> None:
    lattice = Lattice(4, 6)
    x, y = filled(lattice), Field(lattice, Real())

    @jali.site_function
    def fill(X: Any, y: Any) -> None:
        y[X] = 0.7

    def function() -> Any:
        sine(y, x)
        first = lattice.sum(half_norm2, y)
        fill(y)  # nothing of the first values is left
        sine[EVEN](y, x)
        return first + lattice.sum(half_norm2, y)

    check(function, x)


def test_a_part_that_is_set_from_python_is_refused() -> None:
    lattice = Lattice(4, 6)
    x, y = filled(lattice), Field(lattice, Real())

    def part() -> None:
        with jali.Tape(x):
            sine(y, x)
            y[1, 2] = 3.0

    refused(part, "a part of it is set from Python: do it in a site function")
    with jali.Tape(x) as tape:
        sine(y, x)
        S = lattice.sum(half_norm2, y)
        y[...] = 3.0  # all of it: a constant
        S = S + lattice.sum(half_norm2, y)
    (g,) = tape.gradient(S)
    with jali.Tape(x) as tape:
        sine(y, x)
        S = lattice.sum(half_norm2, y)
    assert np.array_equal(g[...], tape.gradient(S)[0][...])


def test_ranks_run_the_parts_of_several_batches_in_one_order() -> None:
    def run() -> np.ndarray:
        lattice = Lattice(4, 6)
        x, w = filled(lattice, batch=3), filled(lattice, seed=2)

        @jali.site_function
        def product(X: Any, x: Any, w: Any, total: Any) -> None:
            total += x[X] * w[X + X.directions()[0]] * x[X + X.directions()[1]]

        dx, dw = x.like(), w.like()
        jali.gradient(product, ("x", "w"))(dx, dw, x, w)
        return np.concatenate([dx[...].ravel(), dw[...].ravel()])

    alone = run()
    assert all(np.array_equal(one, alone) for one in jali.virtual_ranks(2, run))


def test_observables_of_gauge_fields_are_totals() -> None:
    """Of the trace of links: dS = Re tr(omega U) / (n links), so that F = -(1/2) TA(U) / (n links), TA the traceless anti-Hermitian part."""
    from jali.gauge import energy_density, link_trace, plaquette, polyakov_loop, topological_charge

    U = GaugeField(Lattice(4, 2, 2, 2), SU(2)).hot_start(seed=3)
    with jali.Tape(U) as tape:
        traces = link_trace(U)
        others = [plaquette(U), polyakov_loop(U).real, energy_density(U), topological_charge(U)]
    assert all(isinstance(one, jali.Total) for one in others)
    (force,) = tape.gradient(traces)
    for f, u in zip(force, U.fields, strict=True):
        u = u[...]
        wanted = (u - np.conj(np.swapaxes(u, -1, -2))) / 2  # of SU(2) without trace
        np.testing.assert_allclose(f[...], -0.5 * wanted / (2 * U.links), atol=1e-15)
