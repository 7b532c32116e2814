"""Operators of matrices, kernels and filters that are tensors of PyTorch give what those of NumPy give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.array_namespaces import NAMESPACES
from jali.arrays import DistributedArray, Partition
from jali.errors import ParameterError
from jali.linops import MDC, Fredholm1, MatrixMult, NonStationaryConvolve1D, NonStationaryConvolve2D
from jali.linops.local import LocalOperator

torch = pytest.importorskip("torch")


def numbers(shape: Any, seed: int, is_complex: bool = True) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=shape) + (1j * generator.normal(size=shape) if is_complex else 0)


def compare(tensors: Any, arrays: Any, x: np.ndarray, partition: Partition = Partition.SCATTER) -> None:
    x_of = [DistributedArray.to_dist(one, partition=partition) for one in (torch.asarray(x), x)]
    y_of = [op @ one for op, one in zip((tensors, arrays), x_of, strict=True)]
    z_of = [op.H @ one for op, one in zip((tensors, arrays), y_of, strict=True)]
    for found, right in (y_of, z_of):
        assert found.engine == "torch"
        assert found.layout is right.layout
        np.testing.assert_allclose(found.local.numpy(), right.local, rtol=1e-12, atol=1e-12)


def test_matrices() -> None:
    def run() -> None:
        A = numbers((3, 2), comm.current().rank)
        for M in (2, 8):
            for saved in (False, True):
                ops = [MatrixMult(one, M, saveAt=saved) for one in (torch.asarray(A), A)]
                compare(*ops, numbers(4 * M, 5))

    comm.virtual_ranks(4, run)


def test_kernels() -> None:
    def run() -> None:
        G = numbers((3, 4, 5), comm.current().rank)
        for named in ({}, {"saveGt": True}, {"usematmul": False}):
            ops = [Fredholm1(one, 2, **named) for one in (torch.asarray(G), G)]  # type: ignore[arg-type]
            compare(*ops, numbers(60, 1), Partition.BROADCAST)
            compare(*ops, numbers((6, 5, 2), 1))
        for is_complex in (False, True):
            ops = [MDC(one, 11, 1, 6) for one in (torch.asarray(G), G)]
            compare(*ops, numbers(55, 1, is_complex), Partition.BROADCAST)

    comm.virtual_ranks(2, run)


def test_filters() -> None:
    def run() -> None:
        one, two = numbers((3, 5), 1), numbers((3, 2, 5, 3), 2)
        ops: list[Any] = [
            NonStationaryConvolve1D((20, 3), hs, [2, 8, 14], axis=0) for hs in (torch.asarray(one), one)
        ]
        compare(*ops, numbers((20, 3), 3))
        ops = [NonStationaryConvolve2D((20, 9), hs, [2, 8, 14], [1, 5]) for hs in (torch.asarray(two), two)]
        compare(*ops, numbers((20, 9), 3, is_complex=False))

    comm.virtual_ranks(2, run)


def test_tensors_of_devices_need_cupy_for_local_operators() -> None:
    if NAMESPACES["cupy"].installed:
        pytest.skip("CuPy is installed")
    elsewhere = torch.empty(3, device="meta")  # not on the host, as far as this asks
    with pytest.raises(ParameterError, match=r"by way of CuPy: engine 'cupy' is not installed"):
        LocalOperator(np.eye(3)).forward(elsewhere, elsewhere)
