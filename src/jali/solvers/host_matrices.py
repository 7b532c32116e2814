"""Small matrices of numbers of the host, with the functions that arrays of numbers on a device have, and the same bits on all ranks.

Products and factors are made of operations on elements, in a written order; eigenvectors are LAPACK's, which differ from processor to processor, so all
ranks take those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.solvers.subspaces import agreed


class HostMatrix(np.ndarray):
    """An array of real or complex numbers; of several, `ranks` are the groups that have it alike."""

    ranks: Sequence[Any] = ()

    def __array_finalize__(self, other: Any) -> None:
        self.ranks = getattr(other, "ranks", ())

    def elementwise(self, function: Callable[..., Any], *operands: Any) -> Any:
        """The function of numbers, element by element."""
        with np.errstate(all="ignore"):
            return host_matrix(function(*operands), self.ranks)

    def __matmul__(self, other: Any) -> Any:
        total = 0.0
        with np.errstate(all="ignore"):
            for k in range(self.shape[1]):
                total = total + self[:, k : k + 1] * other[k]
        return total

    def dagger(self) -> HostMatrix:
        """The adjoint."""
        return self.conj().T

    def cholesky(self) -> HostMatrix:
        """The lower triangular factor of a positive definite Hermitian matrix; nan from a pivot on that is not positive."""
        left, factor = self.copy(), np.zeros_like(self)
        with np.errstate(all="ignore"):
            for k in range(len(self)):
                pivot = np.real(left[k, k])
                root = np.sqrt(pivot) if pivot > 0 else np.nan
                factor[k, k], factor[k + 1 :, k] = root, left[k + 1 :, k] / root
                left[k + 1 :, k + 1 :] -= factor[k + 1 :, k, None] * factor[None, k + 1 :, k].conj()
        return factor

    def inverse(self) -> HostMatrix:
        """The inverse of a triangular matrix, lower or upper."""
        if np.any(np.tril(self, -1)):
            return self.T.inverse().T
        found = np.zeros_like(self)
        with np.errstate(all="ignore"):
            for k in range(len(self) - 1, -1, -1):
                found[k, k] = 1.0
                for j in range(k + 1, len(self)):
                    found[k] -= self[k, j] * found[j]
                found[k] /= self[k, k]
        return found

    def eigh(self) -> tuple[HostMatrix, HostMatrix]:
        """Eigenvalues in ascending order and the columns of eigenvectors of a Hermitian matrix; nan of one with infinities or nan."""
        n = len(self)
        values, vectors = np.full(n, np.nan), np.full((n, n), np.nan, self.dtype)
        if np.all(np.isfinite(self)):
            values, vectors = np.linalg.eigh(np.asarray(self))
        if self.ranks:
            both = agreed(self.ranks, np.concatenate([values[None].astype(self.dtype), vectors]))
            values, vectors = np.real(both[0]), both[1:]
        return host_matrix(values, self.ranks), host_matrix(vectors, self.ranks)


def host_matrix(values: Any, ranks: Sequence[Any]) -> HostMatrix:
    """These numbers, which all ranks of the groups have alike."""
    found = np.array(values).view(HostMatrix)
    found.ranks = ranks
    return found
