"""Sums over blocks onto a coarser lattice, held against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import jali
from jali import (
    EVEN,
    ODD,
    Algebra,
    Complex,
    Field,
    Integer,
    Lattice,
    LayoutError,
    Matrix,
    Real,
    Spinor,
    TraceError,
    Vector,
)
from jali.lattice.block_sums import MOST_TOGETHER, blocks_of

pytestmark = pytest.mark.lanes

PAIRS = [
    ((8,), (4,)),
    ((9, 15), (3, 5)),
    ((12, 10, 6), (2, 5, 3)),
    ((34, 6), (2, 3)),  # 17 sites in a direction
    ((8, 8, 4), (1, 1, 1)),
    ((5, 3), (5, 1)),
    ((4, 4, 6, 8), (2, 4, 2, 2)),
]


def blocked(values, small):
    """NumPy's sums over blocks; trailing indices are components."""
    ndim = len(small)
    split = [n for s, b in zip(small, values.shape, strict=False) for n in (s, b // s)]
    return values.reshape(*split, *values.shape[ndim:]).sum(axis=tuple(range(1, 2 * ndim, 2)))


def random_field(lattice, element, seed=1, precision="float64"):
    field = Field(lattice, element, precision=precision)
    shape, rng = field[...].shape, np.random.default_rng(seed)
    values = rng.normal(size=shape)
    field[...] = values if field[...].dtype.kind == "f" else values + 1j * rng.normal(size=shape)
    return field


@jali.site_function
def add(X, f, total):
    total += f[X]


@jali.site_function
def two(X, f, a, linear, square):
    linear += a * f[X] * X.coordinate(0)
    linear -= f[X + X.directions()[-1]]
    square += f[X] * f[X]


@pytest.mark.short(4)
@pytest.mark.parametrize(("big", "small"), PAIRS, ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_sums_over_blocks_are_those_of_numpy(big, small, precision):
    f = random_field(Lattice(*big), Real(), precision=precision)
    linear = Field(Lattice(*small), Real(), precision=precision)
    square = Field(linear.lattice, Real(), precision=precision)
    values, x = f[...].astype(float), np.indices(big)[0]
    terms = 0.5 * values * x - np.roll(values, -1, axis=-1)
    relative = 1e-13 if precision == "float64" else 1e-5
    for domain, inside in (
        (jali.ALL, 1),
        (EVEN, np.indices(big).sum(0) % 2 == 0),
        (ODD, np.indices(big).sum(0) % 2),
    ):
        jali.block_sums(two, f, 0.5, onto=(linear, square), over=domain)
        scale = abs(terms).max() * math.prod(big)
        assert np.allclose(linear[...], blocked(terms * inside, small), rtol=0, atol=relative * scale)
        assert np.allclose(square[...], blocked(values**2 * inside, small), rtol=100 * relative)


@pytest.mark.short(2)
@pytest.mark.parametrize(
    "element", [Complex(), Vector(3), Matrix(2, 3), Matrix(3, kind="real"), Spinor(2), Algebra(3)], ids=str
)
def test_every_element_is_summed(element):
    fine, coarse = Lattice(6, 4), Lattice(3, 2)
    f, c = Field(fine, element), Field(coarse, element)
    if element.codec == "algebra":
        momenta(f, jali.Random(1))
    else:
        f = random_field(fine, element)
    jali.block_sums(add, f, onto=c)
    assert np.allclose(c[...], blocked(f[...], (3, 2)), rtol=1e-13, atol=1e-13)


@jali.site_function
def counted(X, s, total, evens):
    total += s[X]
    total += 1
    evens += jali.where(s[X] % 2 == 0, 1, 0)


@pytest.mark.parametrize(("precision", "large"), [("float64", 2**53), ("float32", 2**25)])
def test_sums_of_whole_numbers_are_whole(precision, large):
    fine, coarse = Lattice(10, 9), Lattice(2, 3)
    s, total = Field(fine, Integer(), precision), Field(coarse, Integer(), precision)
    evens = Field(coarse, Real())
    values = np.random.default_rng(1).integers(-9, 9, (10, 9))
    values[0, 0] += large  # what it is added to would be rounded
    s[...] = values
    jali.block_sums(counted, s, onto=(total, evens))
    assert np.array_equal(total[...], blocked(values + 1, (2, 3)))
    assert np.array_equal(evens[...], blocked(1 - values % 2, (2, 3)))


@jali.site_function
def momenta(X, p, rng):
    rows = [[jali.complex(rng.gaussian(X), rng.gaussian(X)) for _ in range(3)] for _ in range(3)]
    p[X] = jali.matrix(rows).traceless_antihermitian()


def _on_ranks(grid):
    fine, coarse = Lattice(8, 24, 4, grid=grid), Lattice(4, 4, 2, grid=grid)
    f = random_field(fine, Complex())
    c = Field(coarse, Complex())
    jali.block_sums(add, f, onto=c)
    first = c[...].tobytes()
    jali.block_sums(add, f, onto=c, over=ODD)
    return first, c[...].tobytes()


def test_sums_have_the_same_bits_on_any_ranks():
    (alone,) = jali.virtual_ranks(1, _on_ranks, (1, 1, 1))
    for grid in ((2, 1, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2)):
        ranks = math.prod(grid)
        assert jali.virtual_ranks(ranks, _on_ranks, grid) == [alone] * ranks


def test_a_call_is_repeated_on_other_values_and_other_fields():
    fine, coarse = Lattice(8, 12), Lattice(2, 3)
    f, g, c = random_field(fine, Real(), 1), random_field(fine, Real(), 2), Field(coarse, Real())
    other = Field(Lattice(4, 12), Real())
    for field in (f, g, f):
        jali.block_sums(add, field, onto=c)
        assert np.allclose(c[...], blocked(field[...], (2, 3)), rtol=1e-13)
        jali.block_sums(add, field, onto=other)
        assert np.allclose(other[...], blocked(field[...], (4, 12)), rtol=1e-13)
    h = random_field(Lattice(4, 6), Real(), 3)
    jali.block_sums(add, h, onto=c)  # from another lattice onto the same field
    assert np.allclose(c[...], blocked(h[...], (2, 3)), rtol=1e-13)


def test_terms_of_an_earlier_call_are_forgotten():
    """Sites outside the domain add nothing, also where they were NaN before."""
    f, c = random_field(Lattice(4, 6), Real()), Field(Lattice(2, 3), Real())
    values = f[...]
    f[0, 1] = np.nan  # odd
    jali.block_sums(add, f, onto=c)
    assert np.isnan(c[0, 0])
    jali.block_sums(add, f, onto=c, over=EVEN)
    assert np.allclose(c[...], blocked(values * (np.indices((4, 6)).sum(0) % 2 == 0), (2, 3)), rtol=1e-13)


def test_functions_may_write_read_the_coarse_lattice_and_draw_random_numbers():
    @jali.site_function
    def fluctuation(X, f, c, rng, square):
        f[X] += rng.uniform(X)
        square += (f[X] - c[X.on(c)]) * (f[X] - c[X.on(c)])

    fine, coarse = Lattice(6, 9), Lattice(2, 3)
    f, mean, out = random_field(fine, Real()), random_field(coarse, Real(), 2), Field(coarse, Real())
    jali.block_sums(fluctuation, f, mean, jali.Random(5), onto=out)
    centre = np.kron(mean[...], np.ones((3, 3)))
    assert np.allclose(out[...], blocked((f[...] - centre) ** 2, (2, 3)), rtol=1e-13)


def test_attempts_that_gave_up_are_counted_by_the_function():
    @jali.site_function
    def hopeless(X, f, rng, total):
        total += X.repeat_until(lambda: (rng.uniform(X) > 2, f[X]), 2, f[X] + 1)

    f, c = random_field(Lattice(4, 4), Real()), Field(Lattice(2, 2), Real())
    jali.block_sums(hopeless, f, jali.Random(1), onto=c)
    assert np.allclose(c[...], blocked(f[...] + 1, (2, 2)))
    assert hopeless.exhausted == 16


def test_graphs_repeat_sums_over_blocks():
    f, c = random_field(Lattice(8, 8), Real()), Field(Lattice(2, 2), Real())

    @jali.site_function
    def double(X, f):
        f[X] = 2 * f[X]

    def step():
        double(f)
        jali.block_sums(add, f, onto=c)

    before = f[...]
    graph = jali.graph(step, f.lattice)
    graph.run(3)
    assert np.allclose(c[...], blocked(8 * before, (2, 2)), rtol=1e-13)


@pytest.mark.parametrize(
    "ratio", [(2, 2), (4, 4, 4, 4), (3, 5, 7), (17, 2), (1, 1), (6, 10, 15), (97,), (16,)]
)
def test_blocks_multiply_to_the_ratio_and_are_small_or_prime(ratio):
    blocks = blocks_of(ratio)
    assert tuple(math.prod(b[axis] for b in blocks) for axis in range(len(ratio))) == ratio
    for block in blocks:
        sites = math.prod(block)
        assert 1 < sites <= MOST_TOGETHER or all(sites % p for p in range(2, sites))


# ---- mistakes ------------------------------------------------------------------------------------------


@jali.site_function
def largest(X, f, high):
    high.max(f[X])


@jali.site_function
def labelled(X, f, counts):
    counts[0] += f[X]


@jali.site_function
def nothing(X, f, total):
    f[X] = 0.0


F, C = Field(Lattice(4, 6), Real(), name="F"), Field(Lattice(2, 3), Real(), name="C")
C2, Z = Field(C.lattice, Real()), Field(F.lattice, Complex())

MISTAKES = [
    (
        lambda: jali.block_sums(largest, F, onto=C),
        TraceError,
        r"block_sums adds up high \+= value, and nothing else",
    ),
    (
        lambda: jali.block_sums(add, F, onto=Field(C.lattice, Integer())),
        TraceError,
        "add adds real values to its sum total, which goes to a field of whole numbers; give onto= a field of real",
    ),
    (lambda: jali.block_sums(labelled, F, onto=C), TraceError, r"block_sums adds up counts \+= value"),
    (lambda: jali.block_sums(nothing, F, onto=C), TraceError, "never adds to its sum total"),
    (
        lambda: jali.block_sums(add, Z, onto=C),
        TraceError,
        "a complex value cannot be stored in the real field",
    ),
    (
        lambda: jali.block_sums(add, F, onto=(C, C2)),
        TraceError,
        "takes 2 arguments .* 1 are given, and fields for 2",
    ),
    (lambda: jali.block_sums(two, F, 1.0, onto=(C, C)), LayoutError, "give each its own"),
    (
        lambda: jali.block_sums(add, F, onto=3.0),
        LayoutError,
        "onto= is a field, or one for each sum of add, not 3.0",
    ),
    (
        lambda: jali.block_sums(add, C, onto=F),
        LayoutError,
        "is none of blocks of it: extents of the finer one",
    ),
    (lambda: jali.block_sums(add, F, onto=Field(F.lattice, Real())), LayoutError, "is none of blocks of it"),
    (lambda: jali.block_sums(add, F, onto=Field(Lattice(2, 2, 2), Real())), LayoutError, "is none of blocks"),
    (lambda: jali.block_sums(two, F, 1.0, onto=(C, F)), LayoutError, "fields of one lattice"),
    (lambda: jali.block_sums(add, onto=C), TraceError, "takes 2 arguments"),
    (lambda: jali.block_sums(abs, F, onto=C), TraceError, "jali.block_sums takes a site function"),
]


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES)
def test_mistakes_say_what_would_be_right(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_ranks_that_own_different_parts_refuse_alike():
    def of_ranks():
        f, c = Field(Lattice(4, 6, grid=(2, 1)), Real()), Field(Lattice(2, 2, grid=(1, 2)), Real())
        with pytest.raises(LayoutError, match="ranks must own the same part of both"):
            jali.block_sums(add, f, onto=c)
        return True

    assert all(jali.virtual_ranks(2, of_ranks))
