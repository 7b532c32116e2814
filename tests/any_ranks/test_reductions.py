"""Sums, maxima and minima on the ranks and devices that this process is one of: the bits of one processor, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import ODD, Field, Integer, Lattice, ParameterError, Real, _core
from jali.comm.communicator import Communicator

pytestmark = pytest.mark.lanes


@jali.site_function
def gathered(X: Any, f: Any, n: Any, total: Any, high: Any, low: Any, most: Any) -> None:
    total += f[X + X.directions()[0]]
    high.max(f[X])
    low.min(f[X])
    most.max(n[X])


@jali.site_function
def by_label(X: Any, f: Any, n: Any, total: Any, counts: Any, energy: Any) -> None:
    total += f[X]
    counts[n[X]] += 1
    energy[n[X]] += f[X] * f[X]


@jali.site_function
def total_of(X: Any, f: Any, total: Any) -> None:
    total += f[X]


def fields(lattice: Lattice, precision: str) -> tuple[Field, Field]:
    rng = np.random.default_rng(4)
    f, n = Field(lattice, Real(), precision=precision), Field(lattice, Integer(), precision=precision)
    f[...] = rng.normal(size=lattice.extents)
    n[...] = rng.integers(0, 5, size=lattice.extents)
    return f, n


def reduced(precision: str, **options: Any) -> list[bytes]:
    f, n = fields(Lattice(12, 5, 8, **options), precision)
    lattice = f.lattice
    found: list[Any] = [*lattice.reduce(gathered, f, n), *lattice.reduce(gathered, f, n, per=(2, 0))]
    found += [*lattice.reduce(gathered, f, n, over=ODD, per=1), *lattice.sum(by_label, f, n, bins=5)]
    found += [float(x) for x in lattice.reduce(gathered, f, n, wait=False)]
    return [np.asarray(x).tobytes() for x in found]


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_reductions_are_those_of_one_processor(precision: str) -> None:
    alone = Communicator(_core.make_self_communicator(), 1)
    assert reduced(precision) == reduced(precision, communicator=alone, device="cpu")


def test_labels_that_are_of_no_entry_are_counted_on_all_ranks() -> None:
    f, n = fields(Lattice(12, 5, 8), "float64")
    n[0, 0, 0] = n[11, 4, 7] = -1
    with pytest.raises(ParameterError, match="2 labels of counts are not among its entries, 0 to 4"):
        f.lattice.sum(by_label, f, n, bins=5)


def test_sums_over_blocks_are_those_of_one_processor() -> None:
    def sums(**options: Any) -> bytes:
        fine = Lattice(24, 10, 8, **options)
        grid = fine.grid
        f = fields(fine, "float64")[0]
        c = Field(Lattice(12, 2, 8, **{**options, "grid": grid}), Real())
        jali.block_sums(total_of, f, onto=c)
        return bytes(c[...].tobytes())

    ranks = jali.comm.current().size
    alone = Communicator(_core.make_self_communicator(), 1)
    if 12 % ranks == 0:
        assert sums(grid=(ranks, 1, 1)) == sums(communicator=alone, device="cpu")
