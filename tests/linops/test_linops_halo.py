"""Halos on grids of 1 to 4 virtual ranks against slices of the whole array, their adjoint against the matrix, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, layout_of
from jali.errors import ShapeError
from jali.linops import Halo, halo_block_split

GRIDS = [
    ((7,), (1,)), ((9,), (3,)), ((5, 7), (2, 1)), ((5, 7), (1, 3)), ((5, 7), (2, 2)), ((3, 4, 5), (2, 1, 2)),
    ((4, 3, 2), (1, 4, 1)),
]  # fmt: skip
HALOS = {
    1: [1, 2, (1,), (2, 0), 9],
    2: [1, 3, (1, 2), (0, 1, 2, 3), 8],
    3: [1, (1, 0, 2), (1, 0, 0, 2, 1, 1), 5],
}


def expected(x: np.ndarray, box: Any, halo: Any) -> np.ndarray:
    """A block with its halo: one number is trimmed where the array ends, several are not."""
    ndim = x.ndim
    one = isinstance(halo, int)
    widths = (
        (halo,) * (2 * ndim) if one else halo if len(halo) == 2 * ndim else [h for h in halo for _ in (0, 1)]
    )
    pairs = [(widths[2 * axis], widths[2 * axis + 1]) for axis in range(ndim)]
    padded = np.pad(x, pairs)
    where = [slice(begin, end + a + b) for (begin, end), (a, b) in zip(box, pairs, strict=True)]
    found = padded[tuple(where)]
    if one:
        keep = [
            slice(max(0, halo - begin), (end - begin) + halo + min(halo, n - end))
            for (begin, end), n in zip(box, x.shape, strict=True)
        ]
        found = found[tuple(keep)]
    return found


def vectors(x: np.ndarray, operator: Halo) -> Any:
    """Of the grid, and flat."""
    array = DistributedArray.to_dist(x, axis=tuple(range(x.ndim)), grid=operator.grid)
    return array, array.ravel()


@pytest.mark.parametrize(("dims", "grid"), GRIDS)
def test_halos_are_what_lies_around(dims: tuple[int, ...], grid: tuple[int, ...]) -> None:
    def run() -> None:
        for halo, dtype in itertools.product(HALOS[len(dims)], ("float64", "complex64")):
            x = np.random.default_rng(1).normal(size=dims).astype(dtype)
            operator = Halo(dims, halo, grid, dtype=dtype)
            array, flat = vectors(x, operator)
            block = expected(x, array.layout.box, halo)
            found = operator.matvec(array)
            np.testing.assert_array_equal(found.local, block)
            assert found.local.dtype == x.dtype
            np.testing.assert_array_equal(operator.matvec(flat).local, block.ravel())
            assert operator.matvec(flat).global_shape == (operator.shape[0],)
            np.testing.assert_array_equal(operator.crop(found).local, array.local)
            np.testing.assert_array_equal(operator.crop(operator.matvec(flat)).local, flat.local)
            slices = halo_block_split(dims, None, grid)
            np.testing.assert_array_equal(x[slices], array.local)

    comm.virtual_ranks(math.prod(grid), run)


@pytest.mark.parametrize(("dims", "grid"), GRIDS)
def test_the_adjoint_adds_up(dims: tuple[int, ...], grid: tuple[int, ...]) -> None:
    """Each element of the whole gets what all blocks have of it: the number of blocks, for ones; and the scalar products agree."""

    def run() -> None:
        for halo in HALOS[len(dims)]:
            operator = Halo(dims, halo, grid)
            array, flat = vectors(np.random.default_rng(1).normal(size=dims), operator)
            ones = operator.matvec(array)
            ones[...] = 1.0
            right = np.zeros(dims)
            numbered = np.arange(1.0, array.layout.shape[0] * math.prod(dims[1:]) + 1).reshape(dims)
            for box in array.layout.boxes:
                for number in expected(numbered, box, halo).ravel():
                    if number:
                        right[np.unravel_index(int(number) - 1, dims)] += 1
            np.testing.assert_array_equal(operator.rmatvec(ones).asarray(), right)
            for x in (array, flat):
                y = operator.matvec(x)
                y[...] = np.random.default_rng((2, x.rank)).normal(size=y.local_shape)
                one, other = operator.matvec(x).dot(y), x.dot(operator.rmatvec(y))
                assert abs(one - other) < 1e-12 * x.norm() * y.norm()

    comm.virtual_ranks(math.prod(grid), run)


def test_blocks_of_uneven_parts_and_default_grid() -> None:
    def run() -> None:
        x = np.arange(30.0).reshape(3, 10)
        operator = Halo((3, 10), 1)
        assert operator.grid == (1, 4)
        flat = DistributedArray.to_dist(x, axis=1).ravel()
        found = operator.matvec(flat)
        box = layout_of(comm.current(), (3, 10), Partition.SCATTER, 1).box
        np.testing.assert_array_equal(found.local.reshape(3, -1), expected(x, box, 1))

    comm.virtual_ranks(4, run)


def test_ranks_may_give_halos_of_their_own() -> None:
    def run() -> None:
        me, x = comm.current().rank, np.arange(20.0).reshape(10, 2)
        operator = Halo((10, 2), [(0, 2, 0, 0), (1, 1, 0, 0), (3, 0, 0, 0)][me], (3, 1))
        found = operator.matvec(DistributedArray.to_dist(x, axis=(0, 1), grid=(3, 1)))
        np.testing.assert_array_equal(found.local, [x[:6], x[3:8], x[4:]][me])
        with pytest.raises(ShapeError, match="non-negative"):  # of rank 1, told by all
            Halo((10, 2), -1 if me == 1 else 1, (3, 1))
        with pytest.raises(ShapeError, match="does not match neighbor"):
            Halo((2, 10), (me, 0), (1, 3))

    comm.virtual_ranks(3, run)


def test_what_is_refused() -> None:
    def run() -> None:
        with pytest.raises(ValueError, match="does not match comm size"):
            Halo((16,), 1, (3,))
        with pytest.raises(ShapeError, match="for each of 1 axes"):
            Halo((16,), 1, (1, 2))
        with pytest.raises(ShapeError, match="for each of 2 axes"):
            Halo((16, 2), 1, 2)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="a grid of ranks is a whole number or several"):
            Halo((16,), 1, (2.5,))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Invalid halo length"):
            Halo((16,), (1, 2, 3), (2,))
        with pytest.raises(ValueError, match="Invalid halo length"):
            Halo((16,), 1.5, (2,))  # type: ignore[arg-type]
        for halo in (-1, (-1,), (1, -1)):
            with pytest.raises(ValueError, match="non-negative"):
                Halo((16,), halo, (2,))
        operator = Halo((16,), 1, (2,))
        x = DistributedArray((16,), partition=Partition.BROADCAST)
        with pytest.raises(ValueError, match=f"{Partition.SCATTER}"):
            operator @ x
        y = DistributedArray((18,), partition=Partition.BROADCAST)
        with pytest.raises(ValueError, match=f"{Partition.SCATTER}"):
            operator.H @ y
        with pytest.raises(ShapeError, match="blocks of the grid"):
            operator @ DistributedArray((16,), local_shapes=[(3,), (13,)])

    comm.virtual_ranks(2, run)
