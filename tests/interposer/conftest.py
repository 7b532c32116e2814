"""The MPI libraries that there are."""

from pathlib import Path

import pytest
from mpi_programs import REAL, MpiPrograms, programs_of

# What depends on the library's ABI, its types and statuses; and where libraries begin, end and lock in their own ways.
OF_EVERY_ABI = {
    "test_collectives_of_any_memory_are_those_of_mpi",
    "test_messages_of_any_memory",
}
OF_EVERY_LIBRARY = OF_EVERY_ABI | {
    "test_other_settings_on_one_rank_end_the_job_at_its_begin",
    "test_arrays_of_devices_in_mpi4py",
    "test_a_killed_rank_ends_the_job",
    "test_a_device_without_room_for_plans",
}


@pytest.fixture(scope="session", params=["mpich", "openmpi", "abi"])
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MpiPrograms:
    """The programs of every MPI library."""
    return programs_of(request.param, tmp_path_factory.mktemp(request.param))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The short run has everything with MPICH, and with the others what may differ there."""
    if REAL:
        return
    for item in items:
        here = item.path.parent == Path(__file__).parent and hasattr(item, "callspec")
        parameters = item.callspec.params if here else {}
        library = parameters.get("mpi", "mpich")
        if library == "mpich":
            continue
        kept = OF_EVERY_ABI if library == "abi" else OF_EVERY_LIBRARY
        shared = library == "openmpi" and parameters.get("what") == "shared"
        if item.originalname not in kept and not shared:
            item.add_marker(pytest.mark.full)
