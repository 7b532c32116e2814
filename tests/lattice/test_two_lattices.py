"""Kernels over fields of two lattices, held against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import EVEN, SU, Complex, Field, Lattice, LayoutError, Matrix, Real, TraceError, Vector

pytestmark = pytest.mark.lanes

PAIRS = [
    ((4,), (8,)),
    ((3, 5), (6, 10)),
    ((4, 4), (8, 12)),
    ((2, 3, 5), (6, 6, 5)),
    ((2, 2, 2, 4), (4, 4, 4, 8)),
]


@jali.site_function
def block_sum(X, coarse, fine):
    total = 0.0 * fine[X.on(fine)]
    for Y in X.block(fine):
        total += fine[Y]
    coarse[X] = total


@jali.site_function
def inject(X, fine, coarse):
    fine[X] = coarse[X.on(coarse)]


@jali.site_function
def coarse_slope(X, fine, coarse):
    mu = X.directions()[-1]
    fine[X] = coarse[X.on(coarse) + mu] - coarse[X.on(coarse) - mu]


@jali.site_function
def around_the_block(X, coarse, fine):
    mu, nu = X.directions()[0], X.directions()[-1]
    coarse[X] = fine[X.on(fine) - mu] + 2 * fine[X.on(fine) + 3 * nu] - fine[(X + nu).on(fine)] + coarse[X]


@jali.site_function
def overlap(X, coarse, fine, total):
    for Y in X.block(fine):
        total += (coarse[X].conj() * fine[Y]).real


def ratio_of(small, large):
    return tuple(m // n for n, m in zip(small, large, strict=True))


def summed(values, small, large):
    """Block sums in the order of the kernel, so that bits agree."""
    r = ratio_of(small, large)
    total = 0.0 * values[tuple(slice(None, None, n) for n in r)]
    for by in np.ndindex(*r):
        total = total + values[tuple(slice(k, None, n) for k, n in zip(by, r, strict=True))]
    return total


def repeated(values, small, large):
    for axis, n in enumerate(ratio_of(small, large)):
        values = np.repeat(values, n, axis)
    return values


def numbers(shape, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def check(small, large, element=None, precision="float64", boundary=None, **options):
    element = element or Complex()
    coarse_lattice, fine_lattice = Lattice(*small, **options), Lattice(*large, **options)
    coarse = Field(coarse_lattice, element, precision, boundary=boundary)
    fine = Field(fine_lattice, element, precision, boundary=boundary)
    kind = element.numpy_dtype(precision)
    f = numbers(large + element.numpy_shape).astype(kind)
    c = numbers(small + element.numpy_shape, 2).astype(kind)
    fine[...], coarse[...] = f, c
    block_sum(coarse, fine)
    assert np.array_equal(coarse[...], summed(f, small, large))
    coarse[...] = c
    block_sum[EVEN](coarse, fine)
    even = np.indices(small).sum(0) % 2 == 0
    assert np.array_equal(coarse[...][even], summed(f, small, large)[even])
    assert np.array_equal(coarse[...][~even], c[~even])
    coarse[...] = c
    inject(fine, coarse)
    assert np.array_equal(fine[...], repeated(c, small, large))
    if boundary is None:
        coarse_slope(fine, coarse)
        slope = np.roll(c, -1, len(small) - 1) - np.roll(c, 1, len(small) - 1)
        assert np.array_equal(fine[...], repeated(slope, small, large))
        fine[...] = f
        around_the_block(coarse, fine)
        r = ratio_of(small, large)
        first = tuple(slice(None, None, n) for n in r)
        last = len(small) - 1
        expected = (
            np.roll(f, 1, 0)[first] + 2 * np.roll(f, -3, last)[first] - np.roll(f, -r[-1], last)[first] + c
        )
        np.testing.assert_allclose(coarse[...], expected, rtol=1e-5 if precision == "float32" else 1e-13)
    return coarse_lattice, coarse, fine


@pytest.mark.short(3)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_sums_over_blocks_and_values_of_blocks(pair, precision):
    check(*pair, precision=precision)


@pytest.mark.short(1)
@pytest.mark.parametrize("element", [Vector(3), Matrix(2), SU(3)], ids=str)
def test_elements_of_any_shape(element):
    check((3, 2), (6, 8), element)


def test_boundary_factors_are_those_of_the_lattice_that_is_left():
    small, large = (3, 4), (6, 8)
    coarse_lattice, fine_lattice = Lattice(*small), Lattice(*large)
    coarse = Field(coarse_lattice, Complex(), boundary="antiperiodic")
    fine = Field(fine_lattice, Complex())
    c = numbers(small)
    coarse[...] = c
    coarse_slope(fine, coarse)
    forward, backward = np.roll(c, -1, 1), np.roll(c, 1, 1)
    forward[:, -1] *= -1
    backward[:, 0] *= -1
    assert np.array_equal(fine[...], repeated(forward - backward, small, large))
    check(small, large, boundary="antiperiodic")


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_ranks_give_the_bytes_of_one(grid):
    small, large = (8, 6), (16, 12)

    def run(grid):
        lattice, coarse, fine = check(small, large, grid=grid)
        return coarse[...].tobytes(), fine[...].tobytes(), lattice.sum(overlap, coarse, fine)

    alone = run((1, 1))
    assert all(found == alone for found in jali.virtual_ranks(int(np.prod(grid)), run, grid))


def test_storage_precision_and_arrays_differ_as_they_like():
    coarse_lattice, fine_lattice = Lattice(3, 5), Lattice(6, 10)
    f = numbers((6, 10)).astype(np.complex64)
    fine, coarse = Field(fine_lattice, Complex(), "float32", "float16"), Field(coarse_lattice, Complex())
    fine[...] = f
    block_sum(coarse, fine)
    assert np.array_equal(coarse[...], summed(fine[...].astype(complex), (3, 5), (6, 10)))
    array = np.zeros((3, 5), complex)
    coarse_lattice, fine_lattice = Lattice(3, 5, device="cpu"), Lattice(6, 10, device="cpu")
    block_sum(coarse_lattice.wrap(array), fine_lattice.wrap(f))
    assert np.array_equal(array, summed(f.astype(complex), (3, 5), (6, 10)))


def test_block_sums_and_injection_are_adjoint():
    coarse_lattice, fine_lattice = Lattice(4, 3), Lattice(8, 9)

    @jali.site_function
    def inner(X, f, g, total):
        total += f[X].conj() * g[X]

    f, g = Field(fine_lattice, Complex()), Field(fine_lattice, Complex())
    c, d = Field(coarse_lattice, Complex()), Field(coarse_lattice, Complex())
    f[...], c[...] = numbers((8, 9)), numbers((4, 3), 2)
    block_sum(d, f)
    inject(g, c)
    assert coarse_lattice.sum(inner, c, d) == pytest.approx(fine_lattice.sum(inner, g, f), rel=1e-13)


def test_mistakes_are_reported():
    coarse = Field(Lattice(4, 4), Real(), name="coarse")
    fine = Field(Lattice(8, 8), Real(), name="fine")

    @jali.site_function
    def plain(X, out, f):
        out[X] = f[X]

    @jali.site_function
    def second(X, out, f):
        f[X.on(f)] = out[X]

    @jali.site_function
    def half_step(X, out, f):
        out[X] = f[(X + X.directions()[0]).on(f)]

    @jali.site_function
    def elsewhere(X, out, f):
        out[X] = X.on(f).coordinate(0) + f[X.on(f)]

    @jali.site_function
    def moved(X, out, f):
        out[X + X.directions()[0]] = f[X.on(f)]

    @jali.site_function
    def blocks(X, out, f):
        out[X] = sum(f[Y] for Y in X.block(f))

    for function, arguments, match in (
        (plain, (coarse, fine), r"f lives on a lattice 2x2 times finer; its value there is f\[X.on\(f\)\]"),
        (second, (coarse, fine), "runs over the lattice of its first field.*put f in front"),
        (half_step, (fine, coarse), "ends in no definite site.*2x2 times coarser"),
        (elsewhere, (coarse, fine), "ask X, not X.on"),
        (moved, (coarse, fine), "write at the loop's own site"),
        (blocks, (fine, coarse), "field of a finer lattice"),
    ):
        with pytest.raises(TraceError, match=match):
            function(*arguments)
    for other in (Lattice(6, 8), Lattice(8, 8, 8), Lattice(4, 4)):
        with pytest.raises(LayoutError, match="extents are multiples"):
            inject(Field(other, Real()), coarse)


def test_a_lattice_like_another_meets_it_on_any_ranks_that_can_share_them():
    def run(extents, others, grid=None):
        lattice = Lattice(*extents, grid=grid)
        made = lattice.like(*others)
        f, g = Field(lattice, Real()), Field(made, Real())
        f[...] = np.arange(lattice.volume).reshape(extents)
        inject(g, f) if made.volume > lattice.volume else inject(f, g)
        assert made.extents == others
        return lattice.grid, made.grid

    for ranks, extents, others in [
        (1, (5, 4), (10, 4)),
        (2, (2, 2), (8, 8)),
        (2, (8, 2), (4, 2)),
        (3, (3, 2), (9, 4)),
        (4, (2, 2), (6, 8)),
    ]:
        for grid, other in jali.virtual_ranks(ranks, run, extents, others):
            assert grid == other


def test_like_gives_one_lattice_for_the_same_extents():
    def run():
        fine = Lattice(8, 4, grid=(2, 1))
        assert all(fine.like(extents) is fine for extents in [(8, 4), [8, 4], np.array([8, 4])])
        coarse = fine.like(4, 4)
        assert coarse is not fine
        assert all(one is coarse for one in (fine.like(4, 4), fine.like(2, 4).like(4, 4)))
        assert coarse.like(8, 4) is fine
        f, g = Field(fine, Real()), Field(coarse.like(fine.extents), Real())
        f[...] = g[...] = 1.5
        assert (f + g).sum() == 3.0 * fine.volume
        assert Lattice(8, 4, grid=(2, 1)).like(4, 4) is not coarse

    jali.virtual_ranks(2, run)


@pytest.mark.parametrize(
    ("grid", "extents", "others", "advice"),
    [
        ((1, 2), (8, 16), (4, 1), r"give Lattice\(8, 16\) grid=\(2, 1\), which divides"),
        ((1, 6, 1), (8, 6, 4), (2, 3, 4), r"grid=\(2, 3, 1\)"),
        ((3, 1), (8, 8), (4, 2), "no grid of 3 ranks does that.*; use another number of ranks"),
        ((1, 4, 1), (9, 9, 9), (3, 3, 9), r"grid=\(1, 1, 4\)"),  # where both are alike any cut is the same
    ],
)
def test_a_lattice_that_ranks_cannot_share_says_which_grid_they_can(grid, extents, others, advice):
    def run():
        with pytest.raises(LayoutError, match=f"ranks cannot own the same part of .*{advice}"):
            Lattice(*extents, grid=grid).like(*others)

    jali.virtual_ranks(int(np.prod(grid)), run)
    with pytest.raises(LayoutError, match="multiples of its own or divide them, not "):
        Lattice(*extents).like(*[n + 2 for n in others])


def test_lattices_that_are_split_otherwise_are_refused_on_every_rank():
    def run():
        coarse, fine = Field(Lattice(5, 4, grid=(2, 1)), Real()), Field(Lattice(10, 4, grid=(2, 1)), Real())
        with pytest.raises(
            LayoutError, match=r"ranks must own the same part of both.*grid=\(1, 2\).*lattice.like\("
        ):
            inject(fine, coarse)

    jali.virtual_ranks(2, run)
