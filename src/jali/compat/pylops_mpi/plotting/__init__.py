"""Pictures, under the names of pylops_mpi.plotting."""

from jali.compat.pylops_mpi.plotting import plotting

__all__ = ["plotting"]
