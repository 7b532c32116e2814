"""Pictures, under the names of pylops_mpi.plotting.plotting; the caller shows or writes the figure, which is returned."""

from jali.arrays.plotting import plot_distributed_array, plot_local_arrays

__all__ = ["plot_distributed_array", "plot_local_arrays"]
