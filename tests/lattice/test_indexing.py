"""`f[...]` against the same index of an array of NumPy: numbers, slices, lists, masks, components; read and written, on ranks."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import jali
from jali import Field, Lattice, LayoutError

pytestmark = pytest.mark.lanes

ELEMENTS = [jali.Real(), jali.Complex(), jali.Vector(3), jali.Matrix(2), jali.Spinor(2), jali.Integer()]


def random_index(draw: random.Random, shape: tuple[int, ...], directions: int) -> object:
    """An index of an array of this shape; lists and masks of directions only."""
    length, lists = draw.randint(0, 4), draw.random() < 0.5
    items: list[object] = []
    for axis in range(draw.randint(0, len(shape)) if draw.random() < 0.7 else directions):
        n, kind = shape[axis], draw.random()
        if kind < 0.35:
            items.append(draw.randint(-n, n - 1))
        elif lists and kind < 0.6 and axis < directions:
            numbers = [draw.randint(-n, n - 1) for _ in range(length)]
            items.append(numbers if draw.random() < 0.6 else np.array([numbers] * 2, int).reshape(2, length))
        elif lists and kind < 0.65 and axis < directions:
            items.append(np.array([draw.random() < 0.5 for _ in range(n)]))
        else:
            ends = [draw.choice([None, *range(-n - 1, n + 2)]) for _ in range(2)]
            items.append(slice(*ends, draw.choice([None, 1, 2, 3, -1, -2])))
    if draw.random() < 0.4:
        items.insert(draw.randint(0, len(items)), Ellipsis)
    return tuple(items) if len(items) != 1 or draw.random() < 0.5 else items[0]


def compare_random_indices(seed: int, cases: int, least: int = 1) -> int:
    """Reads and writes by random indices; returns how many were no mistakes."""
    draw, done = random.Random(seed), 0
    for case in range(cases):
        extents = [draw.randint(1, 6) for _ in range(draw.randint(1, 4))]
        extents[0] = max(least, extents[0])
        element = draw.choice(ELEMENTS)
        f = Field(Lattice(*extents), element, precision=draw.choice(["float64", "float32"]))
        numbers = np.random.default_rng((seed, case))
        a = numbers.integers(-9, 9, f.shape).astype(f.dtype)
        if a.dtype.kind == "c":
            a += 1j * numbers.integers(-9, 9, f.shape)
        f[...] = a
        for _ in range(4):
            index = random_index(draw, f.shape, len(extents))
            try:
                wanted = a[index]
            except (IndexError, ValueError):  # coordinates that do not fit together
                with pytest.raises((IndexError, LayoutError)):
                    f[index]
                continue
            got = f[index]
            assert np.shape(got) == np.shape(wanted), (f.shape, index)
            assert np.array_equal(got, wanted), (f.shape, index)
            new = numbers.integers(-9, 9, np.shape(wanted)).astype(a.dtype)
            a[index] = f[index] = new
            assert np.array_equal(f[...], a), (f.shape, index)
            done += 1
    return done


@pytest.mark.parametrize("seed", range(3))
def test_random_indices_are_those_of_numpy(seed):
    assert compare_random_indices(seed, 100) > 200


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_random_indices_on_ranks(ranks):
    assert min(jali.virtual_ranks(ranks, compare_random_indices, 7, 40, 4)) > 80


@pytest.fixture
def field():
    f = Field(Lattice(5, 6), jali.Vector(3))
    f[...] = np.arange(90).reshape(5, 6, 3)
    return f


def test_receivers_components_and_masks(field):
    a = field[...]
    assert np.array_equal(field[[1, 2], [4, 5]], a[[1, 2], [4, 5]])
    assert np.array_equal(field[[1, 2], [4, 5], 0], a[[1, 2], [4, 5], 0])
    assert np.array_equal(field[..., 1], a[..., 1])
    assert np.array_equal(field[3], a[3])
    assert len(field[3]) == 6
    mask = a[..., 0].real > 30
    assert np.array_equal(field[mask], a[mask])
    assert np.array_equal(field[:, None, 2:4], a[:, None, 2:4])
    assert np.array_equal(field[..., [0, 2]], a[..., [0, 2]])


def test_components_are_set_alone(field):
    a = field[...]
    field[2, :, 1] = a[2, :, 1] = 7j
    field[[0, 4], 3, ::2] = a[[0, 4], 3, ::2] = -1
    field[..., [0, 2]] = a[..., [0, 2]] = 5
    field[a.real > 40] = a[a.real > 40] = 2
    field[:, None, 2] = a[:, None, 2] = 8
    real = Field(field.lattice, jali.Real())
    real[...] = a[..., 1].real
    field[..., 0] = real
    a[..., 0] = a[..., 1].real
    assert np.array_equal(field[...], a)


@pytest.mark.parametrize("storage", ["float16", "bfloat16", "fixed16"])
def test_components_of_a_lossy_storage(storage):
    f = Field(Lattice(4, 3), jali.Vector(2), storage=storage)
    f[..., 0] = 0.5
    f[1, 2, 1] = 0.25
    assert np.allclose(f[1, 2], [0.5, 0.25], atol=1e-5)
    assert np.allclose(f[0, 0], [0.5, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("index", "value", "says"),
    [
        ((..., ...), 1, "one '...' at most"),
        (([True, False],), 1, "a mask of axis 0"),
        ((1.5,), 1, "whole numbers and slices"),
        ((0, 0, 0, 0), 1, r"has shape \(5, 6, 3\); 4 indices were given"),
        ((0, slice(None), 1), np.zeros(5), r"takes values of shape \(6,\), not \(5,\)"),
    ],
)
def test_what_names_no_sites_is_refused(field, index, value, says):
    with pytest.raises(LayoutError, match=says):
        field[index] = value
    assert not np.array_equal(field[...], np.zeros_like(field[...]))


def test_what_is_outside_is_an_index_error(field):
    for index in [(5,), (0, -7), (0, 0, 3), ([0, 5], 0)]:
        with pytest.raises(IndexError, match="outside 0"):
            field[index]
    with pytest.raises(IndexError, match="do not fit together"):
        field[[0, 1], [0, 1, 2]]


def test_components_of_what_is_kept_as_a_whole_are_not_set():
    lattice = Lattice(4, 4)
    for f in (Field(lattice, jali.Algebra(3)), Field(lattice, jali.SU(3), storage="float32-12")):
        with pytest.raises(LayoutError, match="set whole elements, not components"):
            f[0, 0, 0, 1] = 1.0
    with pytest.raises(LayoutError, match="real, the array is complex"):
        Field(lattice, jali.Real())[0] = 1j


def ranks_that_lose() -> str:
    f = Field(Lattice(8), jali.Real(), storage="float16")
    try:
        f[6:] = 1e6  # one rank has these sites
    except jali.StorageError as error:
        return str(error)
    return "nothing"


def test_what_one_rank_cannot_store_every_rank_hears_of():
    assert all("2 sites" in said for said in jali.virtual_ranks(4, ranks_that_lose))


def test_all_values_come_as_fast_as_the_local_ones():
    f = Field(Lattice(32, 32, 16, 16), jali.Real())

    def least(read) -> float:
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            read()
            times.append(time.perf_counter() - begun)
        return min(times)

    assert least(lambda: f[...]) < 3 * least(f.local)  # the same work; it was 160 times slower
