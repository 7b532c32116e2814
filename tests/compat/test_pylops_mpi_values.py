"""Results have the last bits of pyproximal's functions where scripts of pylops-mpi ask for them with ==, and step lengths its defaults."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyproximal")

import pylops
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


@pytest.mark.parametrize("kind", ["ISTA", "FISTA"])
@pytest.mark.parametrize("options", [None, {"niter": 3}, {"tol": 1e-1}])
def test_step_lengths_are_those_of_a_power_iteration_with_its_defaults(
    kind: str, options: dict[str, float] | None
) -> None:
    A = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(np.random.default_rng(2).normal(size=(40, 30)))])
    x = pylops_mpi.DistributedArray(global_shape=30)
    largest = pylops_mpi.optimization.eigs.power_iteration(A.H @ A, x.copy(), **(options or {}))
    solver = getattr(pylops_mpi.optimization.cls_sparsity, kind)(A)
    solver.setup(A @ x, x, niter=5, eigsdict=options)
    assert solver.alpha == pytest.approx(1 / largest.eigenvalue, rel=1e-14)
    assert largest.iterations == (options or {}).get("niter", largest.iterations) <= 10
