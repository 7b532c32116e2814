"""Distributed arrays of CuPy's on another device than the current one: CuPy would work there, on streams that wait for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL
from test_fft_on_devices import numbers, spread

import jali
from jali import fft, linops, solvers
from jali.arrays import DistributedArray, Partition, layout_of
from jali.comm import current

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        yield module


def scaled(x: Any, y: Any) -> Any:
    x *= 2
    x += y
    return [x, x.dot(x)]


def assigned(x: Any, y: Any) -> Any:
    x[...] = y
    x.global_index[1:3] = 7
    return [x, x.global_index[1:4]]


def conjugate_gradients(x: Any, y: Any) -> Any:
    weights = abs(x) + 1

    def apply(p: Any, q: Any) -> None:
        q[...] = weights * p

    return [solvers.cg(apply, y, rtol=1e-10).x]


def real_transform(x: Any, y: Any) -> Any:
    plan = fft.FftPlan(x.layout, (0, 1), "rfft")
    return [plan(x), plan.adjoint(plan(y))]


OPERATIONS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "x + 2 y": lambda x, y: [x + 2 * y, 1 - x, np.multiply(x, y)],
    "x *= 2": scaled,
    "x[...] =": assigned,
    "sums": lambda x, y: [x.sum(), x.max(), x.norm(), x.norm(1), x.dot(y), x.mean()],
    "copies": lambda x, y: [x.copy(), x.zeros_like(), x.astype("float32"), x.ravel(), x.imag, x.conj()],
    "ghost cells": lambda x, y: [x.add_ghost_cells(1, 2), *x.ghost_cells(2, 1)],
    "redistribute": lambda x, y: [x.redistribute(1), y.redistribute(partition=Partition.BROADCAST)],
    "asarray": lambda x, y: [x.asarray()],
    "derivative": lambda x, y: [
        A @ x for A in (linops.FirstDerivative((8, 6)), linops.FirstDerivative((8, 6)).H)
    ],
    "halo": lambda x, y: [linops.Halo((8, 6), (1, 0), (2, 1)) @ x.ravel()],
    "transforms": lambda x, y: [fft.fftn(x), fft.ifftn(x + 1j * y, s=(9, 4)), fft.fftshift_nd(x)],
    "real transforms": real_transform,
    "cg": conjugate_gradients,
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_they_are_right_and_stay_where_they_are(what: str) -> None:
    def body() -> None:
        here = current().rank
        fake_cupy.use("cuda", here)
        a, b = numbers((8, 6), "float64"), numbers((8, 6), "float64", 1)
        layout = layout_of(current(), a.shape)
        own = tuple(slice(begin, end) for begin, end in layout.box)
        right = OPERATIONS[what](*(DistributedArray.of(layout, v[own].copy()) for v in (a, b)))
        x, y = spread(a), spread(b)
        with fake_cupy.Device(3 - here):
            found = OPERATIONS[what](x, y)
            for one, wanted in zip(found, right, strict=True):
                if isinstance(one, DistributedArray):
                    one, wanted = one.local, wanted.local
                if isinstance(one, fake_cupy.ndarray):
                    assert one.device.id == here
                    with one.device:
                        one = fake_cupy.asnumpy(one)
                np.testing.assert_allclose(one, wanted, rtol=1e-6, atol=1e-9)

    jali.virtual_ranks(2, body)
