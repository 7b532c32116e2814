"""The sum of norms of vectors, under the name of pylops_mpi.proximal.proximal.L21."""

from __future__ import annotations

from typing import Any

from jali import solvers

__all__ = ["MPIL21"]


class MPIL21(solvers.L21):
    """`jali.solvers.L21`, whose dual is that of `pyproximal.L21` to the last bit, as scripts may require."""

    def proxdual(self, x: Any, tau: float, **options: Any) -> Any:
        """sigma x_j / max(|x_j|, sigma), in this order."""
        if self.sigma == 0:
            return super().proxdual(x, tau, **options)
        return self._each(lambda part, size: self.sigma * part / size.clip(self.sigma), x)
