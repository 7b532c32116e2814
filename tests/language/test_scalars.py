"""Run-time numbers do not compile again; captured numbers are never stale; caches hold what they should."""

from __future__ import annotations

import cmath
import functools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Matrix, Real, Vector


@pytest.fixture
def cache(tmp_path, use_settings):
    """A private kernel cache."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    use_settings(cache_dir=str(folder))
    return folder


def compiled(cache: Path) -> int:
    """Kernels in the cache for where lattices are: jali's own for devices do not count, nor what is repeated elsewhere (tests/gpu)."""
    found = cache.rglob("*.so" if Lattice(2).gpu is None else "*.bin")
    return sum(not path.name.startswith("builtin-") for path in found)


@pytest.fixture
def pair():
    lattice = Lattice(4, 4)
    a, out = Field(lattice, Real()), Field(lattice, Real())
    a[...] = np.arange(16.0).reshape(4, 4)
    return a, out


def test_changing_a_real_argument_does_not_compile_again(cache, pair):
    a, out = pair

    @jali.site_function
    def f(X, out, a, x):
        out[X] = x * a[X] + 1.125

    for x in (0.5, -2.0, np.float64(3.5), np.float32(0.25), 1e300):
        f(out, a, x)
        assert np.allclose(out[...], float(x) * a[...] + 1.125, rtol=1e-15)
    assert compiled(cache) == 1


def test_changing_a_whole_argument_does_not_compile_again(cache, pair):
    a, out = pair

    @jali.site_function
    def f(X, out, a, n):
        out[X] = n * a[X] + n * n + jali.where(X.coordinate(0) == n, 1, 0)

    for n in (0, 1, -7, 2, np.int64(3), 40000):
        f(out, a, n)
        here = np.zeros((4, 4))
        if 0 <= n < 4:
            here[n] = 1
        assert np.array_equal(out[...], n * a[...] + n * n + here)
    assert compiled(cache) == 1


def test_changing_a_complex_argument_does_not_compile_again(cache):
    lattice = Lattice(4, 4)
    out = Field(lattice, Complex())

    @jali.site_function
    def f(X, out, z):
        out[X] = z * z.conj() + 1j * z

    for z in (1j, 2 - 1j, cmath.exp(0.3j), np.complex128(3), np.complex64(1 + 1j)):
        f(out, z)
        z = complex(z)
        assert np.allclose(out[...], z * z.conjugate() + 1j * z, rtol=1e-14)
    assert compiled(cache) == 1


def test_small_arrays_are_run_time_vectors_and_matrices(cache):
    lattice = Lattice(3, 3)
    out, v = Field(lattice, Vector(2)), Field(lattice, Vector(2))
    v[...] = np.array([1, 2j])

    @jali.site_function
    def f(X, out, v, m, w):
        out[X] = m * v[X] + w

    rng = np.random.default_rng(1)
    for _ in range(3):
        m, w = rng.normal(size=(2, 2)) + 1j * rng.normal(size=(2, 2)), rng.normal(size=2)
        f(out, v, m, w)
        assert np.allclose(out[...], m @ np.array([1, 2j]) + w, rtol=1e-14)
    assert compiled(cache) == 1


def test_lists_of_numbers_and_nested_fields_are_arguments(cache, pair):
    a, out = pair

    @jali.site_function
    def f(X, out, inputs, weights):
        for field, weight in zip(inputs, weights, strict=True):
            out[X] += weight * field[X]

    f(out, [a, a], [2.0, 0.5])
    assert np.array_equal(out[...], 2.5 * a[...])
    f(out, [a, a], [1.0, -1.0])
    assert np.array_equal(out[...], 2.5 * a[...])
    assert compiled(cache) == 1


def test_other_fields_of_the_same_kind_share_the_kernel(cache):
    lattice = Lattice(4, 4)
    fields = [Field(lattice, Real()) for _ in range(4)]

    @jali.site_function
    def shift(X, out, a, mu):
        out[X] = a[X + mu] + 1

    for out, a in ((0, 1), (2, 3), (1, 2)):
        shift(fields[out], fields[a], lattice.directions[0])
    assert compiled(cache) == 1
    other = Lattice(8, 2, 4)
    shift(Field(other, Real()), Field(other, Real()), other.directions[2])
    assert compiled(cache) <= 2  # the number of lanes may differ


def test_every_direction_shares_one_kernel(cache):
    lattice = Lattice(4, 4, 4, 4)
    U = [Field(lattice, Matrix(2)) for _ in lattice.directions]
    out = Field(lattice, Matrix(2))

    @jali.site_function
    def transport(X, out, U, mu):
        out[X] = U[mu][X] * U[mu][X + mu]

    for mu in lattice.directions:
        transport(out, U, mu)
    assert compiled(cache) == 1


def test_second_process_of_the_same_function_finds_the_kernel(cache, pair):
    a, out = pair

    def make():
        @jali.site_function
        def f(X, out, a):
            out[X] = 7 * a[X]

        return f

    make()(out, a)
    make()(out, a)
    assert compiled(cache) == 1


def run(f, pair):
    a, out = pair
    f(out, a)
    return float(out[1, 1] / a[1, 1])


COUPLING = 2.0
TABLE = [1.0, 2.0]
SETTINGS = SimpleNamespace(coupling=1.0, inner=SimpleNamespace(depth=3.0))


def helper(x):
    return COUPLING * x


def test_changed_global_is_noticed(pair, monkeypatch):
    @jali.site_function
    def f(X, out, a):
        out[X] = COUPLING * a[X]

    assert run(f, pair) == 2
    monkeypatch.setitem(globals(), "COUPLING", 5.0)
    assert run(f, pair) == 5


def test_changed_global_of_a_called_function_is_noticed(pair, monkeypatch):
    @jali.site_function
    def f(X, out, a):
        out[X] = helper(a[X])

    assert run(f, pair) == 2
    monkeypatch.setitem(globals(), "COUPLING", 7.0)
    assert run(f, pair) == 7


def test_changed_closure_is_noticed(pair):
    x = 2.0

    @jali.site_function
    def f(X, out, a):
        out[X] = x * a[X]

    assert run(f, pair) == 2
    x = 3.0
    assert run(f, pair) == 3
    x = 2.0
    assert run(f, pair) == 2


def test_changed_whole_number_and_flag_in_a_closure_are_noticed(pair):
    n, flag = 2, False

    @jali.site_function
    def f(X, out, a):
        out[X] = n * a[X]
        if flag:
            out[X] += a[X]

    assert run(f, pair) == 2
    n = 4
    assert run(f, pair) == 4
    flag = True
    assert run(f, pair) == 5
    flag, n = False, True  # a boolean equal to a number is another value
    with pytest.raises(jali.TraceError):
        run(f, pair)


def test_changed_attribute_of_a_captured_object_is_noticed(pair, monkeypatch):
    @jali.site_function
    def f(X, out, a):
        out[X] = SETTINGS.coupling * a[X]

    assert run(f, pair) == 1
    monkeypatch.setattr(SETTINGS, "coupling", 6.0)
    assert run(f, pair) == 6


def test_changed_attribute_behind_another_attribute_is_noticed(pair, monkeypatch):
    @jali.site_function
    def f(X, out, a):
        out[X] = SETTINGS.inner.depth * a[X]

    assert run(f, pair) == 3
    monkeypatch.setattr(SETTINGS.inner, "depth", 8.0)
    assert run(f, pair) == 8


def test_changed_element_of_a_captured_list_and_array_is_noticed(pair):
    weights = np.array([1.0, 4.0])

    @jali.site_function
    def f(X, out, a):
        out[X] = (TABLE[1] + weights[1]) * a[X]

    assert run(f, pair) == 6
    TABLE[1] = 3.0
    try:
        assert run(f, pair) == 7
        weights[1] = 10.0
        assert run(f, pair) == 13
    finally:
        TABLE[1] = 2.0


def test_changed_attribute_of_a_method_owner_is_noticed(pair):
    class Action:
        def __init__(self):
            self.beta = 2.0

        def weight(self, x):
            return self.beta * x

    action = Action()

    @jali.site_function
    def f(X, out, a):
        out[X] = action.weight(a[X])

    assert run(f, pair) == 2
    action.beta = 9.0
    assert run(f, pair) == 9


def test_changed_default_of_a_called_function_is_noticed(pair):
    def scaled(x, factor=2.0):
        return factor * x

    @jali.site_function
    def f(X, out, a):
        out[X] = scaled(a[X])

    assert run(f, pair) == 2
    scaled.__defaults__ = (3.0,)
    assert run(f, pair) == 3


def test_numbers_and_functions_defined_below_the_site_function_are_noticed(pair, monkeypatch):
    @jali.site_function
    def f(X, out, a):
        out[X] = defined_below(a[X])

    assert run(f, pair) == 2.5
    monkeypatch.setitem(globals(), "BELOW", 4.5)
    assert run(f, pair) == 4.5


def test_attributes_of_one_object_used_in_two_functions_are_all_noticed(pair):
    settings = SimpleNamespace(mass=1.0, coupling=2.0)

    def kinetic(x):
        return settings.mass * x

    @jali.site_function
    def f(X, out, a):
        out[X] = settings.coupling * a[X] + kinetic(a[X])

    assert run(f, pair) == 3
    settings.mass = 5.0
    assert run(f, pair) == 7
    settings.coupling = 0.5
    assert run(f, pair) == 5.5


def test_changed_attribute_of_a_replaced_object_is_noticed(pair):
    settings = SimpleNamespace(coupling=1.0)

    @jali.site_function
    def f(X, out, a):
        out[X] = settings.coupling * a[X]

    assert run(f, pair) == 1
    settings = SimpleNamespace(coupling=2.0)
    assert run(f, pair) == 2
    settings.coupling = 3.0
    assert run(f, pair) == 3


def test_closure_of_a_replaced_function_is_noticed(pair):
    def scaling(x):
        factor = [x]

        def scale(y):
            return factor[0] * y

        return scale, factor

    action, _ = scaling(2.0)

    @jali.site_function
    def f(X, out, a):
        out[X] = action(a[X])

    assert run(f, pair) == 2
    action, factor = scaling(3.0)
    assert run(f, pair) == 3
    factor[0] = 4.0
    assert run(f, pair) == 4


def test_changed_attribute_of_a_callable_object_is_noticed(pair):
    class Potential:
        def __init__(self, strength):
            self.strength = strength

        def __call__(self, x):
            return self.strength * x

    potential = Potential(2.0)

    @jali.site_function
    def f(X, out, a):
        out[X] = potential(a[X])

    assert run(f, pair) == 2
    potential.strength = 3.0
    assert run(f, pair) == 3


def test_changed_class_attribute_and_partial_are_noticed(pair):
    class Settings:
        coupling = 2.0

    def scale(factor, x):
        return factor * x

    action = functools.partial(scale, 3.0)

    @jali.site_function
    def f(X, out, a):
        out[X] = Settings.coupling * action(a[X])

    assert run(f, pair) == 6
    Settings.coupling = 4.0
    assert run(f, pair) == 12
    action = functools.partial(scale, 0.5)
    assert run(f, pair) == 2


def test_unchanged_surroundings_are_not_traced_again(pair):
    """What a property makes anew at every look is compared by its numbers."""

    class Box:
        @property
        def settings(self):
            return SimpleNamespace(coupling=2.0)

    box = Box()

    @jali.site_function
    def f(X, out, a):
        out[X] = box.settings.coupling * a[X] * len(pair[0].lattice.directions)

    for _ in range(5):
        assert run(f, pair) == 4
    assert len(f._programs) == 1
    assert len(f._bound) == 1


def test_replaced_function_is_noticed(pair):
    def double(x):
        return 2 * x

    def triple(x):
        return 3 * x

    action = double

    @jali.site_function
    def f(X, out, a):
        out[X] = action(a[X])

    assert run(f, pair) == 2
    action = triple
    assert run(f, pair) == 3


def test_function_passed_as_argument_is_part_of_the_kernel(pair):
    a, out = pair

    @jali.site_function
    def f(X, out, a, potential):
        out[X] = potential(a[X])

    f(out, a, lambda x: 2 * x)
    assert out[1, 1] == 2 * a[1, 1]
    f(out, a, lambda x: x * x)
    assert out[1, 1] == a[1, 1] ** 2


def test_flags_and_names_are_fixed_while_tracing(pair):
    a, out = pair

    @jali.site_function
    def f(X, out, a, name, double):
        out[X] = {"plain": a[X], "square": a[X] * a[X]}[name]
        if double:
            out[X] *= 2

    f(out, a, "plain", False)
    assert out[1, 1] == a[1, 1]
    f(out, a, "square", True)
    assert out[1, 1] == 2 * a[1, 1] ** 2


BELOW = 2.5


def defined_below(x):
    return BELOW * x


def test_launches_forget_fields_that_are_gone(pair):
    @jali.site_function
    def f(X, out, a):
        out[X] = a[X]

    lattice = Lattice(4, 4)
    for _ in range(20):
        f(Field(lattice, Real()), Field(lattice, Real()))
    assert len(f._bound) <= 2


def test_inspect_reports_what_the_kernel_does(pair):
    lattice = Lattice(4, 4, 4)
    a, out = Field(lattice, Matrix(3)), Field(lattice, Matrix(3))

    @jali.site_function
    def f(X, out, a):
        mu = X.directions()[1]
        out[X] = a[X] * a[X + mu] * a[X - 2 * mu].dagger()

    report = jali.inspect(f, out, a)
    assert report.flops == 2 * 198
    assert report.bytes_moved == 4 * 144
    assert report.bytes_least == 2 * 144
    assert report.reads == {"a": [(0, 0, 0), (0, 1, 0), (0, -2, 0)]}
    assert report.writes == {"out": [(0, 0, 0)]}
    assert report.path.is_file()
    assert report.source in report.path.read_text()
    assert "396 flops" in str(report)


def test_unused_values_cost_nothing():
    lattice = Lattice(4, 4)
    a, out = Field(lattice, Matrix(3)), Field(lattice, Real())

    @jali.site_function
    def f(X, out, a):
        unused = a[X + X.directions()[0]] * a[X]
        out[X] = a[X].trace().real
        _ = unused.det()

    report = jali.inspect(f, out, a)
    assert report.reads == {"a": [(0, 0)]}
    assert report.flops == 2


def test_common_subexpressions_are_computed_once():
    lattice = Lattice(4, 4)
    a, out = Field(lattice, Matrix(3)), Field(lattice, Matrix(3))

    @jali.site_function
    def f(X, out, a):
        out[X] = a[X] * a[X] + (a[X] * a[X]).dagger()

    assert jali.inspect(f, out, a).flops == 198 + 18
