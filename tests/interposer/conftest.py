"""The MPI libraries that there are."""

import pytest
from mpi_programs import MpiPrograms, programs_of


@pytest.fixture(scope="session", params=["mpich", "openmpi", "abi"])
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MpiPrograms:
    """The programs of every MPI library."""
    return programs_of(request.param, tmp_path_factory.mktemp(request.param))
