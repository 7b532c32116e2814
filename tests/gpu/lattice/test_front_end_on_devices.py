"""What the language has beside fields and numbers gives on devices what it gives on the host, and compiles for real ones."""

from __future__ import annotations

import numpy as np
import pytest
from cubin import resources_of

import jali
from jali import Complex, Field, Integer, Lattice, Matrix, Random, Real, Vector
from jali._core import with_gpu_prelude

EXTENTS = (3, 5, 4)


@jali.site_function
def look_up(X, real, number, whole, vector, matrix, r, c, i, v, m):
    mu, nu, rho = X.directions()
    real[X] = r[X.coordinate(rho)] * r[(X + mu - 2 * rho).coordinate(rho)]
    number[X] = c[X.coordinate(mu), X.coordinate(nu)]
    whole[X] = i[X.coordinate(nu)] + 1
    vector[X] = v[X.coordinate(nu)] * v[X.coordinate(nu), 1]
    matrix[X] = m[X.coordinate(mu), X.coordinate(mu)]
    matrix[X][0, 1] += c[X.coordinate(mu), X.coordinate(nu)]


@jali.site_function
def rounded(X, real, number, whole, vector, matrix):
    x = 7 * real[X]
    vector[X] = jali.vector([jali.round(x), jali.ceil(x), jali.sign(x)])
    real[X] = jali.arg(number[X])
    whole[X] = jali.sign(whole[X]) + abs(whole[X]) + jali.minimum(whole[X], 3)


@jali.site_function
def draw(X, whole, rng, n):
    whole[X] = rng.integers(X, n) + 100 * rng.integers(X, 5)


@jali.site_function
def summed(X, s, f, z, several, mixed, phase, constant, high, counts):
    several += s[X] + 2**23
    several += s[X + X.directions()[0]]
    mixed += f[X]
    mixed += s[X]
    phase += s[X]
    phase += z[X]
    constant += 2**24 + 1
    high.max(s[X])
    counts[s[X] % 3] += s[X]
    counts[0] += f[X]


def whole_sums(device, precision):
    """Sums of whole numbers that have more bits than float32; of labels, slices and colours too."""
    lattice = Lattice(*EXTENTS, device=device)
    real, number, whole, *_ = outputs(lattice, precision)
    whole[...] = np.random.default_rng(6).integers(-(2**31) + 2**24, 2**31 - 2**24, EXTENTS)
    found = [
        x
        for over in (jali.ALL, jali.ODD)
        for x in lattice.reduce(summed, whole, real, number, over=over, bins=3)
    ]
    return [np.asarray(x).tobytes() for x in [*found, lattice.sum(plain, whole, per=1), whole.sum(fast=True)]]


@jali.site_function
def plain(X, s, total):
    total += s[X]


@jali.site_function
def whole_constants(X, out, s, k, n, rng, large):
    out[X] = (
        s[X]
        + large
        + k[1] * n
        + k[0]
        + rng.integers(X, large)
        + jali.where(s[X] < large, -2 * large, 2 * large - 1)
    )


def whole_results(device, precision):
    """With the largest numbers that fit: fixed while tracing, of an array, and numbers of the call."""
    bits = 62 if precision == "float64" else 30
    large, k = 2**bits, np.array([7, -(2 ** (bits - 3))])
    s = outputs(Lattice(*EXTENTS, device=device), precision)[2]
    out, given = s.like(), s.like()

    @jali.site_function
    def fixed(X, out, s, k, rng):
        whole_constants(X, out, s, k, 3, rng, large)

    fixed(out, s, k, Random(3))
    whole_constants(given, s, k, 3, Random(3), large)
    return out[...], given[...], (fixed, (out, s, k, Random(3)))


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_whole_numbers_of_all_bits_are_those_of_the_host(device, precision):
    *host, _ = whole_results("cpu", precision)
    *found, _ = whole_results(device, precision)
    assert np.array_equal(host[0], host[1])
    assert np.array_equal(host, found)


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_sums_of_whole_numbers_are_those_of_the_host(device, precision):
    assert whole_sums(device, precision) == whole_sums("cpu", precision)


@pytest.mark.parametrize("launch", ["64,1,2", "64,1,1,4"])
def test_sums_of_whole_numbers_of_several_sites_per_thread(launch, use_settings):
    expected = whole_sums("cpu", "float32")
    use_settings(launch=launch, tune="off")
    assert whole_sums("cuda", "float32") == expected


@pytest.mark.parametrize("launch", ["64,1,1", "64,1,2"])
def test_a_loop_beside_writes_at_several_offsets_is_counted_once(launch, use_settings):
    @jali.site_function
    def scatter(X, out, other, rng):
        def attempt():
            u = rng.uniform(X)
            return u < 0.3, u

        u = X.repeat_until(attempt, limit=2, otherwise=-1.0)
        out[X] = u
        other[X + X.directions()[0]] = u

    use_settings(launch=launch, tune="off")
    lattice = Lattice(*EXTENTS, device="cuda")
    out, other = Field(lattice, Real()), Field(lattice, Real())
    scatter(out, other, Random(4))
    assert scatter.exhausted == np.sum(out[...] == -1) == np.sum(other[...] == -1) > 0


def outputs(lattice, precision):
    elements = (Real(), Complex(), Integer(), Vector(3, kind="real"), Matrix(2))
    fields = [Field(lattice, element, precision=precision) for element in elements]
    rng = np.random.default_rng(5)
    for field in fields:
        shape = lattice.extents + field.element.numpy_shape
        field[...] = rng.integers(-9, 9, shape) if field.element == Integer() else rng.normal(size=shape)
    return fields


def tables(seed):
    rng = np.random.default_rng(seed)
    n0, n1, n2 = EXTENTS
    c = rng.normal(size=(n0, n1)) + 1j * rng.normal(size=(n0, n1))
    i, v = rng.integers(-1000, 1000, n1), rng.normal(size=(n1 + 300, 3))
    return rng.normal(size=n2), c, i, v, rng.normal(size=(n0, n0, 2, 2)) * (1 + 0.5j)


def run(device, precision):
    lattice = Lattice(*EXTENTS, device=device)
    out = outputs(lattice, precision)
    found = []
    for seed in (1, 2):
        look_up(*out, *tables(seed))
        found += [field[...] for field in out]
        rounded(*out)
        draw(out[2], Random(seed), 17 * seed)
        found += [field[...] for field in out]
    return found


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_tables_components_and_rounding_are_those_of_the_host(device, precision):
    for got, expected in zip(run(device, precision), run("cpu", precision), strict=True):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_their_kernels_compile_for_a_real_device(nvrtc, precision):
    lattice = Lattice(*EXTENTS, device="cuda")
    out = outputs(lattice, precision)
    calls = [(look_up, (*out, *tables(1))), (rounded, out), (draw, (out[2], Random(1), 9))]
    for function, arguments in calls:
        report = jali.inspect(function, *arguments)
        kernels = resources_of(nvrtc.compile(with_gpu_prelude(report.path.read_text()), report.name, "sm_90"))
        assert "kernel" in kernels


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_kernels_of_whole_numbers_compile_for_a_real_device(nvrtc, precision):
    real, number, whole, *_ = outputs(Lattice(*EXTENTS, device="cuda"), precision)
    function, arguments = whole_results("cuda", precision)[-1]
    for report in (jali.inspect(plain, whole), jali.inspect(function, *arguments)):
        kernels = resources_of(nvrtc.compile(with_gpu_prelude(report.path.read_text()), report.name, "sm_90"))
        assert "kernel" in kernels
