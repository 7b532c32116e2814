"""Environment variables of launchers, read before MPI is used: the rank of a process, the number of ranks, its local rank.

Each entry of `LAUNCHERS` has the variables for rank and number of ranks, and those that may hold the local rank. A
process may inherit several entries (mpiexec inside a Slurm job); the first that names more than one rank counts, in the
order of the entries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from jali import settings
from jali.errors import ParameterError
from jali.files import value_shown


@dataclass(frozen=True)
class LauncherEnvironment:
    """The rank of this process, the number of ranks and the variable that gives it, and the local rank on its host."""

    rank: int
    size: int
    variable: str
    rank_on_host: int | None = None


LAUNCHERS = (
    # Hydra (MPICH, Intel MPI, MVAPICH), PALS, srun with PMI-2
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    # srun with any plugin; a batch script has no step of its own
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def threads_of_mpi() -> str:
    """The thread level of MPI, as mpi4py names it: a single thread, unless mpi4py's own variable sets another."""
    return os.environ.get("MPI4PY_RC_THREAD_LEVEL", "funneled")


def find_launcher_environment(environment: Mapping[str, str] | None = None) -> LauncherEnvironment | None:
    """Rank and number of ranks according to the launcher that started this process; None without a launcher."""
    if not isinstance(environment, Mapping | None):
        raise ParameterError(f"an environment is a mapping of texts, not {value_shown(environment)}")
    environment = os.environ if environment is None else environment
    found = []
    for variables in LAUNCHERS:
        rank, size, *of_host = (_number(environment.get(name, "")) for name in variables)
        if rank is not None and size is not None:
            local_rank = next((number for number in of_host if number is not None), None)
            found.append(LauncherEnvironment(rank, size, variables[1], local_rank))
    return next(
        (under_launcher for under_launcher in found if under_launcher.size > 1), found[0] if found else None
    )


def _number(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number >= 0 else None


def expected_ranks() -> int | None:
    """How many ranks `jali -n N` started this process as one of; None if it did not."""
    return settings.current().expected_ranks or None


def in_batch_job() -> bool:
    """Whether a batch system decides the placement of ranks."""
    return in_slurm_job() or any(name in os.environ for name in ("PBS_JOBID", "LSB_JOBID"))


def in_slurm_job() -> bool:
    """Whether `srun` may start ranks."""
    return "SLURM_JOB_ID" in os.environ
