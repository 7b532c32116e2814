"""Sums by label on devices: the bits of the host, of numbers that are hard to sum too."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import EVEN, Complex, Field, Integer, Lattice, ParameterError, Real, _core


@jali.site_function
def gathered(X, f, z, n, total, high, counts, energy, phases):
    total += f[X]
    high.max(f[X])
    counts[n[X]] += 1
    energy[n[X]] += f[X]
    phases[X.coordinate(0)] += z[X]
    energy[(n[X] + 1) % 4] -= 0.5 * f[X]


@jali.site_function
def shifted(X, out, f, n, energy):
    out[X] = f[X + X.directions()[0]]
    energy[jali.floor(abs(out[X]))] += out[X]


@jali.site_function
def entries_of(X, f, n, entries):
    entries[n[X]] += f[X]


def fields(lattice, precision="float64"):
    rng = np.random.default_rng(7)
    f, z, n = (Field(lattice, element, precision=precision) for element in (Real(), Complex(), Integer()))
    f[...] = rng.normal(size=lattice.extents)
    z[...] = rng.normal(size=lattice.extents) + 1j * rng.normal(size=lattice.extents)
    n[...] = rng.integers(0, 4, size=lattice.extents)
    return f, z, n


def results(kind, precision="float64", extents=(6, 3, 5)):
    lattice = Lattice(*extents, device=kind)
    f, z, n = fields(lattice, precision)
    three = jali.Colouring(3, lambda x: sum(x) % 3)
    out = []
    for domain in (jali.ALL, EVEN, three[1]):
        bins = {"counts": 4, "energy": 5, "phases": 6}
        out += lattice.reduce(gathered, f, z, n, over=domain, bins=bins)
    out.append(lattice.sum(shifted, f.like(), f, n, bins=6))
    return [np.asarray(x).tobytes() for x in out]


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_entries_have_the_bits_of_the_host(precision, device):
    assert results(device, precision) == results("cpu", precision)


@pytest.mark.parametrize("launch", ["64,1,2", "64,1,1,4"])
def test_entries_of_several_sites_per_thread(launch, use_settings):
    expected = results("cpu")
    use_settings(launch=launch, tune="off")
    assert results("cuda") == expected


def test_ranks_on_devices_have_the_entries_of_all(device, monkeypatch):
    if REAL and device == "cuda" and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    use_fake_gpus(monkeypatch, 2)
    (alone,) = jali.virtual_ranks(1, results, "cpu")
    for found in jali.virtual_ranks(2, results, device):
        assert found == alone


@pytest.mark.parametrize("seed", range(3))
def test_numbers_of_all_sizes_and_special_ones(seed, device):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 64, size=(17, 23), dtype=np.uint64)
    values = bits.view(np.float64)  # of all exponents, NaN and infinities among them
    values[0] = rng.choice([np.inf, 5e-324, 1.7e308, -1.7e308, 0.0], size=23)
    labels = rng.integers(0, 40, size=values.shape)
    labels[np.isnan(values)] = 3
    found = []
    for kind in ("cpu", device):
        lattice = Lattice(*values.shape, device=kind)
        f, n = Field(lattice, Real()), Field(lattice, Integer())
        f[...], n[...] = values, labels
        found.append(lattice.sum(entries_of, f, n, bins=40))
    assert np.array_equal(*found, equal_nan=True)


def test_labels_out_of_range_are_counted(device):
    def of_ranks():
        lattice = Lattice(6, 4, device=device)
        f, _, n = fields(lattice)
        n[0, 0], n[5, 3] = -1, 4
        for _ in range(2):  # what was counted once is not counted again
            with pytest.raises(
                ParameterError, match="entries_of: 2 labels of entries are not among its entries, 0 to 3"
            ):
                lattice.sum(entries_of, f, n, bins=4)
        n[...] = 1
        return np.isclose(lattice.sum(entries_of, f, n, bins=4)[1], f[...].sum())

    for ranks in (1,) if REAL else (1, 2):
        assert all(jali.virtual_ranks(ranks, of_ranks))
