"""Several threads of a rank that use communicators of their own at once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from jali import comm

WORK = """
import sys, threading
def work(group, thread, rounds, errors):
    try:
        ranks, rank = group.size, group.rank
        for n in range(rounds):
            count = 1 + (n * 977 + thread * 131) % 5000
            total = group.all_reduce(np.full(count, float(rank + thread + n)))
            assert (total == sum(r + thread + n for r in range(ranks))).all(), ("sum", thread, n)
            rows = group.all_gather(np.full(1 + n % 7, rank * 100 + thread))
            assert (rows.reshape(ranks, -1) == np.arange(ranks)[:, None] * 100 + thread).all(), ("rows", thread, n)
            to, source = (rank + 1) % ranks, (rank - 1) % ranks
            got = np.zeros(20000)
            group.wait([group.send(np.full(20000, float(rank)), to, thread), group.receive(got, source, thread)])
            assert (got == source).all(), ("message", thread, n)
            if n % 20 == 0:
                part = group.split(rank % 2, -rank)
                assert part.all_reduce(np.ones(3))[0] == part.size
    except BaseException as error:
        errors.append(repr(error))
def in_threads(groups, rounds=100):
    errors = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=work, args=(group, k, rounds, errors)) for k, group in enumerate(groups)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    sys.setswitchinterval(interval)
    assert not errors, errors
"""


@pytest.mark.mpi
@pytest.mark.parametrize("shm", ["auto", pytest.param("0", marks=pytest.mark.full)])
def test_threads_of_mpi_ranks_use_communicators_of_their_own(any_mpi: Any, shm: str) -> None:
    ended = any_mpi.run(
        WORK
        + """
world = comm.current()
assert world.core.takes_threads
in_threads([world.duplicate() for _ in range(3)])
sharing = world.sharing_memory()
in_threads([sharing.duplicate(), world, sharing.split(0, -sharing.rank)])  # made from one another
print(f"rank {world.rank} is through", flush=True)
""",
        MPI4PY_RC_THREAD_LEVEL="multiple",
        JALI_SHM=shm,
    )
    assert ended.status == 0, ended.err
    for rank in range(2):
        assert f"rank {rank} is through" in ended.out


@pytest.mark.mpi
def test_another_thread_than_that_of_mpi_is_refused(mpi: Any) -> None:
    ended = mpi.run("""
        import threading
        from jali.errors import RankError
        world = comm.current()
        assert not world.core.takes_threads
        world.all_reduce(np.ones(3))
        said = []
        def other():
            for call in (lambda: world.all_reduce(np.ones(3)), world.duplicate, world.barrier,
                         lambda: world.send(np.ones(3), 0), world.sharing_memory().barrier):
                try:
                    call()
                except RankError as error:
                    said.append(str(error))
        world.sharing_memory()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(said) == 5, said
        assert all("MPI was started for one thread" in text and "MPI4PY_RC_THREAD_LEVEL=multiple" in text for text in said), said
        assert (world.all_reduce(np.ones(3)) == world.size).all()  # the first one goes on
        print(f"rank {world.rank} is through", flush=True)
        """)
    assert ended.status == 0, ended.err
    for rank in range(2):
        assert f"rank {rank} is through" in ended.out


def test_threads_of_virtual_ranks_use_communicators_of_their_own() -> None:
    scope: dict[str, Any] = {"np": np, "threading": threading}
    exec(WORK, scope)

    def run() -> None:
        world = comm.current()
        assert world.core.takes_threads
        scope["in_threads"]([world.duplicate() for _ in range(3)], 40)

    comm.virtual_ranks(3, run)
