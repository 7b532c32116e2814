"""Which of its host's ranks a rank is: the same in every communicator that it is in."""

from __future__ import annotations

import json

import pytest

from jali import comm
from jali.comm import LauncherEnvironment, find_launcher_environment


@pytest.mark.parametrize(
    ("environment", "launcher_rank"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, LauncherEnvironment(1, 4, "PMI_SIZE")),
        (
            {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "SLURM_LOCALID": "0"},
            LauncherEnvironment(5, 8, "PMI_SIZE", 1),
        ),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "2"}, LauncherEnvironment(5, 8, "PMI_SIZE", 2)),
        *(
            ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": nonsense}, LauncherEnvironment(1, 2, "PMI_SIZE"))
            for nonsense in ("-1", "\u00b2", "9" * 5000, "one", "")
        ),
        ({"MPI_LOCALRANKID": "\u00b2"}, None),
        (
            {
                "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0",
                "OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
            },
            LauncherEnvironment(6, 8, "OMPI_COMM_WORLD_SIZE", 2),
        ),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"},
            LauncherEnvironment(3, 4, "SLURM_STEP_NUM_TASKS", 1),
        ),
    ],
)  # fmt: skip
def test_what_launchers_say(environment: dict[str, str], launcher_rank: LauncherEnvironment | None) -> None:
    assert find_launcher_environment(environment) == launcher_rank


def test_virtual_ranks_have_one_host() -> None:
    def ranks_on_host() -> list[int]:
        world = comm.current()
        part = world.split(world.rank % 2, -world.rank)
        assert part is not None
        return [one.rank_on_host for one in (world, part, part.duplicate(), part.sharing_memory())]

    assert comm.virtual_ranks(5, ranks_on_host) == [[rank] * 4 for rank in range(5)]


PLACES = """
import json
from mpi4py import MPI
world = MPI.COMM_WORLD
alone = comm.from_mpi4py(world.Split(world.rank))
reversed_ = comm.from_mpi4py(world.Split(0, -world.rank))
ours = comm.current()
part = ours.split(ours.rank)
found = [one.rank_on_host for one in (alone, reversed_, ours, part, part.sharing_memory(), ours.duplicate())]
told = world.gather(found)
if told:
    print(json.dumps(told))
"""


@pytest.mark.mpi
def test_a_process_has_one_local_rank(mpi) -> None:
    ended = mpi.run(PLACES)
    assert ended.status == 0, ended.err
    ranks_on_host = json.loads(ended.out)
    assert all(len(set(of_rank)) == 1 for of_rank in ranks_on_host)
    assert sorted(of_rank[0] for of_rank in ranks_on_host) == list(range(mpi.ranks))


@pytest.mark.mpi
@pytest.mark.parametrize("said", ["", "0", "7"])
def test_what_cannot_be_true_is_not_believed(said: str, mpich) -> None:
    """Places that several ranks have, of a launcher around this one, or none: the world's ranks are counted, and parts go by that."""
    ended = mpich.run(
        f"""
import jali
from mpi4py import MPI
os.environ["MPI_LOCALRANKID"] = "{said}"
ours = comm.current()
part, of_mpi4py = ours.split(ours.rank), comm.from_mpi4py(MPI.COMM_SELF)
(inner,) = jali.virtual_ranks(1, lambda: comm.current().rank_on_host)
print(ours.rank, ours.rank_on_host, part.rank_on_host, of_mpi4py.rank_on_host, inner)
"""
    )
    assert ended.status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["0 0 0 0 0", "1 1 1 1 1"]


@pytest.mark.mpi
def test_parts_have_the_threads_that_the_world_leaves_them(mpich) -> None:
    ended = mpich.run(
        """
import jali
from mpi4py import MPI
threads = comm.current().threads
part = comm.from_mpi4py(MPI.COMM_SELF)
(inner,) = jali.virtual_ranks(1, lambda: comm.current().threads)
((nested,),) = jali.virtual_ranks(1, lambda: jali.virtual_ranks(1, lambda: comm.current().threads))
assert part.threads == inner == nested == threads, (part.threads, inner, nested, threads)
print("fine")
""",
        JALI_THREADS="",
    )
    assert ended.status == 0, ended.err
    assert ended.out.splitlines() == ["fine", "fine"]


@pytest.mark.mpi
def test_ranks_that_are_each_a_group_of_one_keep_their_local_ranks(mpich) -> None:
    ended = mpich.run(
        """
import jali
from mpi4py import MPI
jali.settings.use(transport="self", expected_ranks=None)
print(MPI.COMM_WORLD.rank, comm.current().size, comm.current().rank_on_host)
"""
    )
    assert ended.status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["0 1 0", "1 1 1"]
