"""Maxima and minima on devices: the numbers of NumPy and the bits of the host, however the kernel gathers them."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import EVEN, ODD, Field, Integer, Lattice, Real, _core

NUMBERS = [0.0, -0.0, 1.5, -1.5, 5e-324, -5e-324, 1.7e308, -1.7e308, np.inf, -np.inf, np.nan]


@jali.site_function
def four(X, f, n, high, low, most, least):
    """Few enough to be gathered by the kernel itself."""
    high.max(f[X])
    low.min(f[X])
    most.max(n[X])
    least.min(n[X])


@jali.site_function
def between_sums(X, f, n, total, high, square, most, low):
    """Too many for that."""
    total += f[X]
    high.max(f[X])
    square += f[X] * f[X]
    most.max(n[X])
    low.min(f[X])


@jali.site_function
def mixed(X, f, n, total, square, high):
    total += f[X]
    square += f[X] * f[X]
    high.max(n[X])


@jali.site_function
def moved(X, out, f, high):
    out[X] = f[X + X.directions()[0]] - f[X]
    high.max(out[X])


def fields(lattice, precision="float64"):
    rng = np.random.default_rng(2)
    f = Field(lattice, Real(), precision=precision)
    n = Field(lattice, Integer(), precision=precision)
    f[...] = rng.normal(size=lattice.extents) - 4
    whole = np.iinfo("int64" if precision == "float64" else "int32")
    n[...] = rng.integers(whole.min, whole.max, size=lattice.extents, endpoint=True)
    return f, n


def results(kind, precision, extents=(5, 3, 4)):
    lattice = Lattice(*extents, device=kind)
    f, n = fields(lattice, precision)
    out = []
    for function in (four, between_sums, mixed):
        out += lattice.reduce(function, f, n)
        out += lattice.reduce(function, f, n, per=1)
        out += lattice.reduce(function, f, n, over=EVEN)
        out += lattice.reduce(function, f, n, over=jali.Colouring(3, lambda x: sum(x) % 3)[2], per=0)
    out.append(lattice.reduce(moved, f.like(), f))
    return [np.asarray(x).tobytes() for x in out]


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_extremes_have_the_bits_of_the_host(precision, device):
    assert results(device, precision) == results("cpu", precision)


@pytest.mark.short(1)
@pytest.mark.parametrize("launch", ["64,1,2", "128,2,1,2", "64,1,1,4"])
def test_extremes_of_several_sites_per_thread(launch, use_settings):
    expected = results("cpu", "float64")
    use_settings(launch=launch, tune="off")
    assert results("cuda", "float64") == expected


def test_every_pair_of_unusual_numbers(device):
    values = np.array([[v, w] for v in NUMBERS for w in NUMBERS])
    lattice = Lattice(*values.shape, device=device)
    f, n = fields(lattice)
    f[...] = values
    high, low, *_ = lattice.reduce(four, f, n, per=0)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(high, values.max(axis=1), equal_nan=True)
        assert np.array_equal(low, values.min(axis=1), equal_nan=True)
    zeros = (values == 0).all(axis=1)
    assert np.array_equal(np.signbit(high[zeros]), np.signbit(values[zeros]).all(axis=1))
    assert np.array_equal(np.signbit(low[zeros]), np.signbit(values[zeros]).any(axis=1))


def test_extremes_stay_on_the_device_and_graphs_repeat_them(device):
    lattice = Lattice(4, 6, device=device)
    f, n = fields(lattice)
    n[...] = np.arange(24).reshape(4, 6) - 30
    values = f[...]

    def step():
        total, square, most = lattice.reduce(mixed, f, n, wait=False)
        high, low, *_ = lattice.reduce(four, f, n, wait=False)
        double(f)
        return most + high, high - low, total

    graph = jali.graph(step, lattice)
    for k in range(3):
        graph.run()
        spread, most = 2.0**k * (values.max() - values.min()), -7 + 2.0**k * values.max()
        assert graph.read()[:2] == pytest.approx([most, spread], rel=1e-15)
    four_numbers = lattice.reduce(four, f, n, wait=False)
    assert [float(x) for x in four_numbers] == [8 * values.max(), 8 * values.min(), -7.0, -30.0]


@jali.site_function
def double(X, f):
    f[X] = 2.0 * f[X]


def _on_ranks(kind):
    lattice = Lattice(6, 5, device=kind)
    f, n = fields(lattice)
    out = [*lattice.reduce(between_sums, f, n), *lattice.reduce(four, f, n, over=ODD, per=0)]
    out += [float(x) for x in lattice.reduce(four, f, n, wait=False)]
    return [np.asarray(x).tobytes() for x in out]


def test_ranks_on_devices_have_the_extremes_of_all(device, monkeypatch):
    if REAL and device == "cuda" and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    use_fake_gpus(monkeypatch, 2)
    (alone,) = jali.virtual_ranks(1, _on_ranks, "cpu")
    for found in jali.virtual_ranks(2, _on_ranks, device):
        assert found == alone


@jali.site_function
def of_two(X, low, high, a, b):
    low[X] = jali.minimum(a[X], b[X])
    high[X] = jali.maximum(a[X], b[X])


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_nan_wins_in_minima_and_maxima_of_two(precision, device):
    values = [np.nan, -np.inf, -1.0, -0.0, 0.0, 2.5, np.inf]
    a, b = np.array([(x, y) for x in values for y in values], precision).T
    found = []
    for kind in ("cpu", device):
        lattice = Lattice(a.size, device=kind)
        fields = [Field(lattice, Real(), precision=precision) for _ in range(4)]
        fields[2][...], fields[3][...] = a, b
        of_two(*fields)
        found.append([field[...] for field in fields[:2]])
    for of_host, of_device, expected in zip(*found, (np.minimum(a, b), np.maximum(a, b)), strict=True):
        assert np.array_equal(of_device, expected, equal_nan=True)
        assert np.array_equal(np.signbit(of_host), np.signbit(of_device))
