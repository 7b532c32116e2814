"""The largest eigenvalue, under the name of pylops_mpi.optimization.eigs."""

from __future__ import annotations

from typing import Any

from jali import solvers
from jali.solvers import Eigenpair, vectors_of
from jali.solvers.operators import is_complex

__all__ = ["power_iteration"]


def power_iteration(
    Op: Any, b_k: Any, niter: int = 10, tol: float = 1e-5, dtype: Any = "float64", backend: str = "numpy"
) -> Eigenpair:
    """`jali.solvers.power_iteration`; where it can hold it, `b_k` becomes the eigenvector. `backend` changes nothing: vectors know
    their library."""
    found = solvers.power_iteration(Op, b_k, maxiter=niter, rtol=tol, dtype=dtype)
    if is_complex(found.eigenvector) and not is_complex(b_k):
        return found
    vectors_of("b_k", b_k).update([(b_k, 0, [(1, found.eigenvector)])])
    return found._replace(eigenvector=b_k)
