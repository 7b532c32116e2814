"""Ranks have the parts that scripts written for pylops-mpi 0.8.0 expect: its documented formulas, on virtual ranks.

tools/pylops_mpi_scripts.py compares the same with the library itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pylops")

import pylops

import jali.compat.pylops_mpi as pylops_mpi
from jali import comm, linops
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.compat.pylops_mpi.basicoperators.Halo import MPIHalo, halo_block_split
from jali.compat.pylops_mpi.basicoperators.MatrixMult import active_grid_comm
from jali.compat.pylops_mpi.signalprocessing import MPIFFT2D, MPIFFTND

Sizes = list[tuple[int, ...]]


def by_rows(dims: tuple[int, ...], ranks: int) -> Sizes:
    """Of flat vectors: the first dims[0] % ranks ranks have one row more."""
    rows = [dims[0] // ranks + (rank < dims[0] % ranks) for rank in range(ranks)]
    return [(n * math.prod(dims[1:]),) for n in rows]


def lopsided(n: int, ranks: int) -> list[tuple[int]]:
    """Most of it on the last rank."""
    return [(1,)] * (ranks - 1) + [(n - ranks + 1,)]


def vectors(n: int, ranks: int) -> list[DistributedArray]:
    """The same numbers split evenly, unevenly, and on all ranks."""
    x = np.random.default_rng(n).normal(size=n)
    return [
        DistributedArray.to_dist(x),
        DistributedArray.to_dist(x, local_shapes=lopsided(n, ranks)),
        DistributedArray.to_dist(x, partition=Partition.BROADCAST),
    ]


def sizes(x: Any) -> Any:
    return [sizes(part) for part in x] if isinstance(x, StackedDistributedArray) else x.local_shapes


def test_derivatives_of_eleven_rows_have_six_rows_and_five() -> None:
    def program() -> None:
        x = DistributedArray.to_dist(np.arange(231.0))
        assert sizes(x) == [(116,), (115,)]
        for Op in (pylops_mpi.MPIFirstDerivative((11, 21)), pylops_mpi.MPISecondDerivative((11, 21))):
            assert sizes(Op @ x) == sizes(Op.H @ x) == [(126,), (105,)]
        assert sizes(linops.FirstDerivative((11, 21)) @ x) == [(116,), (115,)]

    comm.virtual_ranks(2, program)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dims", [(11, 5), (14,), (5, 2, 3), (2, 4)])
def test_operators_of_arrays_give_whole_rows(dims: tuple[int, ...], ranks: int) -> None:
    n, several = math.prod(dims), len(dims) > 1
    pairs = [
        (
            pylops_mpi.MPIFirstDerivative(dims, kind="forward"),
            pylops.FirstDerivative(dims, axis=0, kind="forward"),
        ),
        (pylops_mpi.MPISecondDerivative(dims), pylops.SecondDerivative(dims, axis=0)),
        (pylops_mpi.MPIGradient(dims), pylops.Gradient(dims, edge=False)),
    ]
    if several:
        pairs.append((pylops_mpi.MPILaplacian(dims, axes=(1, 0)), pylops.Laplacian(dims, axes=(1, 0))))

    def program() -> None:
        rows = by_rows(dims, ranks)
        for x in vectors(n, ranks):
            for Op, serial in pairs:
                y, whole = Op @ x, x.asarray()
                expected = serial @ whole
                found = y.asarray()
                assert sizes(y) == ([rows] * len(dims) if isinstance(y, StackedDistributedArray) else rows)
                assert np.allclose(found, expected.ravel(), rtol=0, atol=1e-12)
                back = Op.H @ y
                assert sizes(back) == rows
                assert np.allclose(back.asarray(), serial.H @ expected, rtol=0, atol=1e-12)

    comm.virtual_ranks(ranks, program)


@pytest.mark.parametrize("ranks", [2, 3])
def test_algebra_of_operators_keeps_rows(ranks: int) -> None:
    dims = (7, 3)
    rows = by_rows(dims, ranks)

    def program() -> None:
        F, S = pylops_mpi.MPIFirstDerivative(dims), pylops_mpi.MPISecondDerivative(dims)
        mine = rows[comm.current().rank][0]
        D = pylops_mpi.MPIBlockDiag([pylops.Diagonal(np.arange(1.0, 1 + mine))])
        x = DistributedArray.to_dist(np.arange(21.0))
        f, s = (of((7, 3), axis=0) for of in (pylops.FirstDerivative, pylops.SecondDerivative))
        d = pylops.Diagonal(np.concatenate([np.arange(1.0, 1 + n) for (n,) in rows]))
        for Op, serial in (
            (F + D, f + d), (D - 2 * F, d - 2 * f), (F @ D @ S, f @ d @ s), (F.H @ F, f.H @ f), (F**2, f**2),
            (F.T, f.T), (F.conj(), f),
        ):  # fmt: skip
            assert sizes(Op @ x) == sizes(Op.H @ x) == rows
            assert np.allclose((Op @ x).asarray(), serial @ np.arange(21.0))
            assert np.allclose((Op.H @ x).asarray(), serial.H @ np.arange(21.0))
        stacked = pylops_mpi.MPIStackedVStack([F, D])
        assert sizes(stacked @ x) == [rows, rows]
        assert sizes(stacked.H @ (stacked @ x)) == rows

    comm.virtual_ranks(ranks, program)


@pytest.mark.parametrize("ranks", [2, 3])
def test_blocks_take_vectors_split_anyhow_and_give_what_they_have(ranks: int) -> None:
    matrices = [np.random.default_rng(rank).normal(size=(3 + rank, 4 + 2 * rank)) for rank in range(ranks)]
    rows, columns = ([(m.shape[k],) for m in matrices] for k in (0, 1))
    diagonal = np.zeros((sum(n for (n,) in rows), sum(n for (n,) in columns)))
    for k, m in enumerate(matrices):
        at = sum(len(one) for one in matrices[:k]), sum(one.shape[1] for one in matrices[:k])
        diagonal[at[0] : at[0] + m.shape[0], at[1] : at[1] + m.shape[1]] = m
    column = np.concatenate([m[:, :4] for m in matrices])

    def program() -> None:
        mine = matrices[comm.current().rank]
        D = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(mine)])
        V = pylops_mpi.MPIVStack([pylops.MatrixMult(mine[:, :4])])
        H = pylops_mpi.MPIHStack([pylops.MatrixMult(mine[:, :4].T)])
        for x in vectors(diagonal.shape[1], ranks)[:2]:
            assert sizes(D @ x) == rows
            assert np.allclose((D @ x).asarray(), diagonal @ x.asarray())
        for y in vectors(len(diagonal), ranks)[:2]:
            assert sizes(D.H @ y) == columns
            assert np.allclose((D.H @ y).asarray(), diagonal.T @ y.asarray())
            for found in (V.H @ y, H @ y):
                assert found.partition is Partition.BROADCAST
                assert np.allclose(found.asarray(), column.T @ y.asarray())
        z = DistributedArray.to_dist(np.arange(4.0), partition=Partition.BROADCAST)
        assert sizes(V @ z) == sizes(H.H @ z) == rows
        with pytest.raises(ValueError, match="has 99 elements"):
            D @ DistributedArray.to_dist(np.zeros(99))
        with pytest.raises(ValueError, match="takes a scattered vector"):
            D @ vectors(diagonal.shape[1], ranks)[2]

    comm.virtual_ranks(ranks, program)


@pytest.mark.parametrize(
    ("dims", "axes"), [((5, 4), (0, 1)), ((7, 6), (1, 0)), ((6, 3), (1, 0)), ((4, 3, 5), (0, 2))]
)
@pytest.mark.parametrize("real", [False, True])
def test_transforms_give_whole_rows(dims: tuple[int, ...], axes: tuple[int, ...], real: bool) -> None:
    dtype = np.float64 if real else np.complex128

    def program() -> None:
        ranks = comm.current().size
        for kind in (MPIFFTND, MPIFFT2D):
            Op = kind(dims, axes, real=real, dtype=dtype)
            serial = pylops.signalprocessing.FFTND(dims, axes, real=real, dtype=dtype, norm="none")
            for x in vectors(math.prod(dims), ranks)[:2]:
                y = Op @ x.astype(dtype)
                assert sizes(y) == by_rows(serial.dimsd, ranks)
                assert np.allclose(y.asarray(), serial @ x.asarray())
                for back in (Op.H @ y, Op / y):
                    assert sizes(back) == by_rows(dims, ranks)
                assert np.allclose((Op / y).asarray(), x.asarray())

    comm.virtual_ranks(3, program)


@pytest.mark.parametrize(
    ("dims", "grid"), [((10,), (4,)), ((7, 9), (2, 2)), ((5, 7), None), ((3, 2, 10), (1, 1, 4))]
)
def test_blocks_of_halos_are_equal_but_for_the_last_whose_slices_have_no_end(
    dims: tuple[int, ...], grid: tuple[int, ...] | None
) -> None:
    whole = np.arange(float(math.prod(dims))).reshape(dims)
    parts = (1,) * (len(dims) - 1) + (4,) if grid is None else grid

    def program() -> tuple[slice, ...]:
        ranks = comm.current()
        positions = np.unravel_index(ranks.rank, parts)
        found = halo_block_split(dims, ranks, grid)
        for part, position, count, n in zip(found, positions, parts, dims, strict=True):
            block = math.ceil(n / count)
            assert part == slice(
                position * block, None if position == count - 1 else min(n, (position + 1) * block)
            )
        local = whole[found]
        Op = MPIHalo(dims, 1, grid, ranks)
        assert Op.local_dims == local.shape
        before = [int(position > 0) for position in positions]
        after = [int(position < count - 1) for position, count in zip(positions, parts, strict=True)]
        assert Op.halo == tuple(n for pair in zip(before, after, strict=True) for n in pair)
        assert Op.local_extent == tuple(n + b + a for n, b, a in zip(local.shape, before, after, strict=True))
        counts = [(int(n),) for n in ranks.all_gather(np.array([local.size]))]
        x = DistributedArray.of(DistributedArray(whole.size, local_shapes=counts).layout, local.ravel())
        around = tuple(
            slice((part.start or 0) - b, None if part.stop is None else part.stop + a)
            for part, b, a in zip(found, before, after, strict=True)
        )
        y = Op @ x
        assert Op.dims == dims
        assert Op.dimsd == (Op.shape[0],) == y.global_shape
        assert np.array_equal(y.local, whole[around].ravel())
        back = Op.H @ y
        assert back.local_shapes == counts
        assert np.array_equal(back.local, local.ravel())
        return found

    covered = np.zeros(dims, int)
    for found in comm.virtual_ranks(4, program):
        covered[found] += 1
    assert (covered == 1).all()


def test_functions_of_users_that_split_another_axis_give_elements_in_order() -> None:
    class Twice(pylops_mpi.MPILinearOperator):
        def __init__(self) -> None:
            super().__init__(shape=(35, 35), dims=(5, 7), dimsd=(7, 5))

        @pylops_mpi.utils.decorators.reshaped
        def _matvec(self, x: Any) -> Any:
            assert x.global_shape == (5, 7)
            return (2 * x).redistribute(1)

        @pylops_mpi.utils.decorators.reshaped
        def _rmatvec_of_another_name(self, x: Any) -> Any:
            assert x.global_shape == (7, 5)
            return 2 * x

        def _rmatvec(self, x: Any) -> Any:
            return self._rmatvec_of_another_name(x)

    def program() -> None:
        x = DistributedArray.to_dist(np.arange(35.0))
        A = Twice()
        assert sizes(A @ x) == by_rows((5, 7), 3)
        assert sizes(A.H @ x) == by_rows((7, 5), 3)
        for y in (A @ x, A.H @ x):
            assert np.array_equal(y.asarray(), 2 * np.arange(35.0))

    comm.virtual_ranks(3, program)


def test_shapes_of_operators_are_those_of_the_library() -> None:
    def program() -> None:
        ranks = comm.current()
        assert pylops_mpi.MPIGradient((4, 6)).dimsd == (48,)
        assert pylops_mpi.MPILaplacian((4, 6), axes=(0, 1)).dimsd == (4, 6)
        assert pylops_mpi.MPILaplacian((4, 6), axes=(1, 0)).dimsd == (24,)
        kernel = np.ones((2, 3, 4), np.complex128)
        convolution = pylops_mpi.waveeqprocessing.MPIMDC(kernel, nt=19, nv=1, nfreq=8)
        assert (convolution.dims, convolution.dimsd) == ((19, 4, 1), (19, 3, 1))
        x = DistributedArray.to_dist(np.arange(76.0), partition=Partition.BROADCAST)
        assert (convolution @ x).global_shape == (57,)
        product = pylops_mpi.MPIMatrixMult(np.ones((3, 5)), 6, base_comm=ranks, kind="block")
        assert (product.dims, product.dimsd) == ((5, 12), (6, 12))
        row, column = divmod(ranks.rank, 2)
        comm_of_one, *where = active_grid_comm(ranks, 1, 1)
        assert where == ([0, 0, 0, True] if ranks.rank == 0 else [ranks.rank, row, column, False])
        assert (comm_of_one is None) == (ranks.rank > 0)

    comm.virtual_ranks(4, program)
