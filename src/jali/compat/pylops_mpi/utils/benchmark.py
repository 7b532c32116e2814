"""Times of functions and of their parts, under the names of pylops_mpi.utils.benchmark.

BENCH_PYLOPS_MPI=0 switches them off, as there. Ranks do not wait for each other.
"""

from jali.profile.marks import benchmark, mark

__all__ = ["benchmark", "mark"]
