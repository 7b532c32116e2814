"""Results have the last bits of pylops' and pyproximal's functions where scripts of pylops-mpi ask for them with ==."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyproximal")

import pyproximal

import jali.compat.pylops_mpi as pylops_mpi
from jali import comm


@pytest.mark.parametrize("sigma", [2.0, 0.7, 0.0])
@pytest.mark.parametrize("kind", ["float32", "float64", "complex128"])
def test_the_dual_proximal_operator_of_l21_is_that_of_pyproximal_to_the_last_bit(
    sigma: float, kind: str
) -> None:
    x = np.random.default_rng(4).normal(size=(2, 2, 63))
    x = (x[0] + 1j * x[1] if kind == "complex128" else x[0]).astype(kind)
    expected = pyproximal.L21(ndim=2, sigma=sigma).proxdual(x.ravel(), 0.1) if sigma else np.zeros(126)

    def program() -> None:
        parts = [pylops_mpi.DistributedArray.to_dist(row) for row in x]
        found = pylops_mpi.proximal.MPIL21(ndim=2, sigma=sigma).proxdual(
            pylops_mpi.StackedDistributedArray(parts), 0.1
        )
        assert np.array_equal(found.asarray(), expected)
        assert found[0].dtype == kind

    comm.virtual_ranks(2, program)
