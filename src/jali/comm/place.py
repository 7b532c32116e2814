"""What launchers tell a process about its place, by environment variables, before MPI is touched.

Each row of `LAUNCHERS` is a pair of variables for rank and number of ranks. A process may inherit several
pairs (mpiexec inside a Slurm job); the first that names more than one rank counts, in the order of the
rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from jali import settings


@dataclass(frozen=True)
class Place:
    """The rank of this process, how many its launcher says it started, and who said so."""

    rank: int
    size: int
    variable: str


LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),  # Hydra (MPICH, Intel MPI, MVAPICH), PALS, srun with PMI-2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun with any plugin; a batch script has no step of its own
)


def threads_of_mpi() -> str:
    """For how many threads MPI is to be started, as mpi4py names it: for one, unless its own variable says otherwise."""
    return os.environ.get("MPI4PY_RC_THREAD_LEVEL", "funneled")


def place_under_launcher(environment: Mapping[str, str] | None = None) -> Place | None:
    """This process's place according to the launcher that started it; None without a launcher."""
    environment = os.environ if environment is None else environment
    found = []
    for rank, size in LAUNCHERS:
        try:
            found.append(Place(int(environment[rank]), int(environment[size]), size))
        except (KeyError, ValueError):
            continue
    return next((place for place in found if place.size > 1), found[0] if found else None)


def expected_ranks() -> int | None:
    """How many ranks `jali -n N` started this process as one of; None if it did not."""
    return settings.current().expected_ranks or None


def in_batch_job() -> bool:
    """Whether a batch system decides how many ranks go where."""
    return in_slurm_job() or any(name in os.environ for name in ("PBS_JOBID", "LSB_JOBID"))


def in_slurm_job() -> bool:
    """Whether `srun` may start ranks."""
    return "SLURM_JOB_ID" in os.environ
