"""Communicators made from others: message spaces of their own, failures shared, tags beyond 32767."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jali import _core, comm
from jali.errors import RankError


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_parts_are_ordered_by_key_then_rank_and_talk_among_themselves(ranks: int) -> None:
    def run() -> None:
        world = comm.current()
        color = None if world.rank == 3 else world.rank % 2
        part = world.split(color, key=-(world.rank // 4))
        mates = sorted(
            (r for r in range(ranks) if r != 3 and r % 2 == world.rank % 2), key=lambda r: (-(r // 4), r)
        )
        if color is None:
            assert part is None
            return
        assert part is not None
        assert (part.rank, part.size, part.transport) == (mates.index(world.rank), len(mates), "thread")
        assert part.gather_bytes(b"%d" % world.rank) == [b"%d" % mate for mate in mates]
        assert part.all_reduce_sum([world.rank**3])[0] == sum(mate**3 for mate in mates)
        half = part.split(part.rank // 2)
        assert half is not None
        assert half.gather_bytes(b"%d" % world.rank) == [
            b"%d" % mate for k, mate in enumerate(mates) if k // 2 == part.rank // 2
        ]

    comm.virtual_ranks(ranks, run)


def test_messages_of_a_duplicate_do_not_meet_those_of_the_original() -> None:
    def run() -> None:
        world = comm.current()
        other = world.duplicate()
        peer = 1 - world.rank
        inner, outer = np.zeros(3), np.zeros(3)
        other.wait([other.send(np.full(3, 10.0 + world.rank), peer, 4)])
        world.wait([world.send(np.full(3, 20.0 + world.rank), peer, 4)])
        world.wait([world.receive(outer, peer, 4)])
        other.wait([other.receive(inner, peer, 4)])
        assert (inner[0], outer[0]) == (10.0 + peer, 20.0 + peer)

    comm.virtual_ranks(2, run)


def test_tags_of_virtual_ranks_are_all_ints() -> None:
    def run() -> None:
        world = comm.current()
        assert world.largest_tag == 2**31 - 1
        got = np.zeros(2)
        peer = 1 - world.rank
        pending = [world.receive(got, peer, 2**31 - 1), world.send(np.ones(2) * world.rank, peer, 2**31 - 1)]
        world.wait(pending)
        assert got[0] == peer

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("where", ["parent", "child", "sibling"])
def test_failure_anywhere_reaches_those_who_wait_in_a_part(where: str) -> None:
    notified = []

    def run() -> None:
        world = comm.current()
        part = world.split(world.rank // 2)
        inner = world.duplicate()
        assert part is not None
        if world.rank == 3:
            time.sleep(0.1)
            {"parent": world, "child": part, "sibling": inner}[where].fail("out of ink")
            return
        with pytest.raises(RankError, match="rank 3 failed: out of ink"):
            part.wait([part.receive(np.zeros(2), 1 - part.rank, 7)])
        notified.append(world.rank)

    comm.virtual_ranks(4, run)
    assert sorted(notified) == [0, 1, 2]


def test_rank_that_has_left_is_not_waited_for_in_a_part() -> None:
    def run() -> None:
        world = comm.current()
        part = world.split(world.rank % 2)
        assert part is not None
        if world.rank == 2:
            return
        if world.rank == 0:
            with pytest.raises(
                RankError, match="rank 2 failed: its program ended while rank 0 waited"
            ) as reported:
                part.wait([part.receive(np.zeros(2), 1, 7)], "the rest")
            assert reported.value.rank == 2  # type: ignore[attr-defined]

    comm.virtual_ranks(4, run)


def test_self_splits_into_itself() -> None:
    world = comm.Communicator(_core.make_self_communicator(), threads=1)
    assert world.split(None) is None
    part = world.split(3)
    assert part is not None
    assert (part.rank, part.size, part.transport) == (0, 1, "self")


@pytest.mark.mpi
def test_mpi_ranks_split_duplicate_and_free(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        assert world.largest_tag > 32767, world.largest_tag
        rank, size = world.rank, world.size
        # Thousands of them, more than an MPI library has to give at one time: dropped ones are freed.
        for turn in range(2500):
            part = world.split((rank + turn) % 2, -rank)
            if turn % 500 == 0:
                mates = [r for r in reversed(range(size)) if r % 2 == rank % 2]
                assert (part.rank, part.size) == (mates.index(rank), len(mates))
                assert part.gather_bytes(b"%d" % rank) == [b"%d" % r for r in mates]
                assert part.all_reduce_sum([rank**3 + 1])[0] == sum(r**3 + 1 for r in mates)
                inner = part.duplicate()
                assert inner.gather_bytes(b"%d" % rank) == [b"%d" % r for r in mates]
                del inner
        assert (world.split(None if rank == 0 else 2) is None) == (rank == 0)

        copies = [world.duplicate() for _ in range(3)]
        got = [np.zeros(1000) for _ in range(4)]
        to, source = (rank + 1) % size, (rank - 1) % size
        pending = []
        for k, group in reversed(list(enumerate([world, *copies]))):
            pending.append((group, group.receive(got[k], source, world.largest_tag)))
        for k, group in enumerate([world, *copies]):
            pending.append((group, group.send(np.full(1000, 10.0 * k + rank), to, world.largest_tag)))
        for group, message in pending:
            group.wait([message])
        assert [one[0] for one in got] == [10.0 * k + source for k in range(4)]
        try:
            world.send(got[0], to, -1)
        except ValueError as error:
            assert "is not in 0.." in str(error)
        print(f"rank {rank} is content", flush=True)
        """)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("is content") == any_mpi.ranks


@pytest.mark.mpi
def test_failure_on_an_mpi_parent_reaches_those_who_wait_in_a_part(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        part = world.split(0 if world.rank > 0 else 1)
        inner = world.split(0, -world.rank)
        if world.rank == 0:
            time.sleep(0.2)
            raise ValueError("beta must be above 0")
        if world.rank == 1:
            inner.wait([inner.receive(np.zeros(4), inner.size - 1, 9)], "the halo of U")
        part.barrier()
        inner.barrier()
        """)
    assert ended.status != 0
    assert "jali: rank 1 stopped: rank 0 failed: ValueError: beta must be above 0" in ended.err


@pytest.mark.mpi
def test_standard_abi_splits(mpich) -> None:
    library = Path(sys.prefix) / "lib" / "libmpi_abi.so.1"
    if not library.exists():
        pytest.skip("the MPI library of this environment comes without the standard ABI (MPICH 5 has it)")
    ended = mpich.run(f"""
        import ctypes
        from jali import _core
        mpi = ctypes.CDLL({str(library)!r})
        mpi.MPI_Init(None, None)
        world = _core.make_mpi_communicator(0x101, {str(library)!r})
        assert _core.mpi_library("")[0] == "MPI-5 standard ABI"
        assert world.largest_tag > 32767
        part = world.split(0, -world.rank)
        assert part.rank == 1 - world.rank and part.gather_bytes(b"%d" % world.rank) == [b"1", b"0"]
        alone = world.split(world.rank - 1, 0)
        assert (alone is None) == (world.rank == 0)
        print("content", flush=True)
        mpi.MPI_Finalize()  # a rank that ends without it ends the others, whatever they have still to say
        os._exit(0)
        """)
    assert "Traceback" not in ended.err, ended.err
    assert ended.out.count("content") == 2
