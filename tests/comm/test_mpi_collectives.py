"""Collectives on MPI ranks: all eight against NumPy, plans of several libraries in flight, mismatches, dying peers."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.mpi


def test_all_eight_collectives_agree_with_numpy(mpi) -> None:
    ended = mpi.run("""
        world = comm.current()
        p, me = world.size, world.rank

        def data(rank, count, salt):
            return np.random.default_rng([rank, count, salt]).integers(1, 99, count).astype(np.float64)

        for count in (1, 3, 1021, 70_000):
            for root in {0, p - 1}:
                chunks = [data(r, count, 0) for r in range(p)]
                wholes = [data(r, p * count, 1) for r in range(p)]
                mine = slice(me * count, (me + 1) * count)
                for name in ("one_shot", "two_step", "recursive_doubling", "ring", None):
                    x = chunks[me].copy()
                    np.testing.assert_array_equal(world.all_reduce(x, algorithm=name), sum(chunks))
                    world.all_reduce(x, out=x, algorithm=name)
                    np.testing.assert_array_equal(x, sum(chunks))
                x = chunks[root].copy() if me == root else np.full(count, np.nan)
                np.testing.assert_array_equal(world.broadcast(x, root), chunks[root])
                np.testing.assert_array_equal(world.all_gather(chunks[me]), np.concatenate(chunks))
                np.testing.assert_array_equal(world.reduce_scatter(wholes[me]), sum(wholes)[mine])
                np.testing.assert_array_equal(
                    world.all_to_all(wholes[me]), np.concatenate([w[mine] for w in wholes])
                )
                x = np.full(count, np.nan)
                world.scatter(wholes[root] if me == root else None, x, root)
                np.testing.assert_array_equal(x, wholes[root][mine])
                gathered, reduced = world.gather(chunks[me], root=root), world.reduce(chunks[me], root=root)
                if me == root:
                    np.testing.assert_array_equal(gathered, np.concatenate(chunks))
                    np.testing.assert_array_equal(reduced, sum(chunks))
        uneven = world.all_gather(np.full((2 * me + 1, 3), me), counts="exchange")
        np.testing.assert_array_equal(uneven[:, 0], np.repeat(np.arange(p), 2 * np.arange(p) + 1))

        part = world.split(me % 2)
        requests = [world.all_reduce(np.full(30_000 + k, me + k), blocking=False) for k in range(12)]
        inner = part.all_reduce(np.array([me]), blocking=False)
        for k in np.random.default_rng(me).permutation(12):
            assert (requests[k].wait() == sum(r + k for r in range(p))).all()
        assert inner.wait().item() == sum(range(me % 2, p, 2))
        print(f"rank {me} is content", flush=True)
        """)
    assert ended.status == 0, ended.err
    assert sorted(re.findall(r"rank (\d) is content", ended.out)) == [str(rank) for rank in range(mpi.ranks)]


def test_composed_plan_runs_over_each_library_and_with_mpi4py_communicators(any_mpi) -> None:
    ended = any_mpi.run("""
        from mpi4py import MPI

        from jali import planner

        world = comm.from_mpi4py(MPI.COMM_WORLD.Dup())
        p, me, n = world.size, world.rank, 40_000
        c = planner.Composition(ranks=p, dtype="float64")
        x, out = c.buffer("x", n), c.buffer("out", n, input=False)
        for root in range(p):
            c.reduce(x, out, root=root)
        for library in ("", "mpi", *(["shm"] if "shm" in world.libraries else [])):
            plan = c.plan(libraries=library, depth=3)
            a, b = np.arange(float(n)) + me, np.full(n, np.nan)
            for _ in range(3):
                plan.start(x=a, out=b, communicator=world).wait()
                np.testing.assert_array_equal(b, sum(np.arange(float(n)) + r for r in range(p)))
                a, b = a.copy(), np.full(n, np.nan)  # bound anew at every start
        try:
            c.plan(libraries="pigeon").on(world)
        except Exception as error:
            assert "no library 'pigeon' connects these ranks; there is" in str(error), error
        else:
            raise AssertionError("an unknown library was accepted")
        """)
    assert ended.status == 0, ended.err


def test_mismatch_in_checked_mode_raises_on_every_rank(any_mpi) -> None:
    ended = any_mpi.run(
        """
        from jali.errors import ParameterError

        world = comm.current()
        try:
            world.all_reduce(np.zeros(4 + world.rank))
        except ParameterError as error:
            print(f"rank {world.rank}: {error}", flush=True)
        """,
        ranks=2,
        JALI_CHECKED="1",
    )
    assert ended.status == 0, ended.err
    for rank in range(2):
        assert f"rank {rank}: ranks do not make the same call; count: 4 on rank 0, 5 on rank 1" in ended.out


@pytest.mark.parametrize("late", [0, pytest.param(1.5, marks=pytest.mark.full)])
def test_peer_that_dies_in_a_collective_ends_the_others(any_mpi, late: float) -> None:
    """Also a rank that comes when its neighbour has given up already, and the memory that is to be read."""
    ended = any_mpi.run(f"""
        import time
        world = comm.current()
        world.all_reduce(np.ones(1000))
        if world.rank == world.size - 1:
            raise ValueError("out of paper")
        if world.rank == 0:
            time.sleep({late})
        world.all_reduce(np.ones(1_000_000), algorithm="ring")
        """)
    assert ended.status != 0
    last = any_mpi.ranks - 1
    assert f"jali: rank 0 stopped: rank {last} failed: ValueError: out of paper" in ended.err, ended.err


def test_rules_ask_for_the_version_of_the_mpi_library(any_mpi, tmp_path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(
        "version = 1\n[[rule]]\nmpich = '0..1'\nopenmpi = '0..'\nalgorithms = ['chain']\n"
        "[[rule]]\nmpich = '99..'\nalgorithms = ['chain']\n[[rule]]\nopenmpi = '..0'\nalgorithms = ['chain']\n"
    )
    ended = any_mpi.run(
        f"""
        import re
        from mpi4py import MPI
        import jali

        world = comm.current()
        with jali.settings.using(collective_rules={str(other)!r}):
            print("of others", world.duplicate().explain("reduce", np.ones(8)), flush=True)
        text = MPI.Get_library_version()
        name, numbers = ("openmpi", r"v([0-9.]+)") if "Open MPI" in text else ("mpich", r"Version:\\s+([0-9.]+)")
        version = re.search(numbers, text)[1]
        major, minor = version.split(".")[:2]
        for k, own in enumerate((version, f"{{major}}..", f"{{major}}.{{minor}}")):
            file = {str(tmp_path)!r} + f"/own{{k}}.toml"
            if world.rank == 0:
                with open(file, "w") as stream:
                    stream.write(f"version = 1\\n[[rule]]\\n{{name}} = '{{own}}'\\nalgorithms = ['chain']\\n")
            world.barrier()
            with jali.settings.using(collective_rules=file):
                print("own", world.duplicate().explain("reduce", np.ones(8)), flush=True)
        """
    )
    assert ended.status == 0, ended.err
    lines = ended.out.splitlines()
    assert sum(line.startswith("own chain (line 2 of ") for line in lines) == 3 * any_mpi.ranks
    assert sum(line.startswith("of others direct (") for line in lines) == any_mpi.ranks


def test_each_level_of_hosts_has_its_transport(mpi) -> None:
    """Processes that pretend to be on two hosts: shared memory inside them, MPI between them, and the other way round."""
    ended = mpi.run(
        """
        world = comm.current()
        there = world.collectives
        transports = [name for name, _ in there.transports]
        there.override_hosts([[0, 2], [1]])
        for count in (1, 5000, 100_000):
            x = np.arange(count) + 1000.0 * world.rank
            for way in ("two_level by shm and mpi", "slices by mpi and shm", "alpha", "flat by mpi", "delta by mpi"):
                assert np.array_equal(world.all_reduce(x, algorithm=way), 3 * np.arange(count) + 3000), way
            for way in ("two_level by mpi and shm", "slices by shm and mpi", "gamma by shm"):
                assert np.array_equal(world.broadcast(x.copy(), 1, algorithm=way), np.arange(count) + 1000), way
        print(world.rank, *transports, world.explain("all_reduce", x, algorithm="two_level by shm and mpi"), flush=True)
        """,
        ranks=3,
    )
    assert ended.status == 0, ended.err
    for rank in range(3):
        assert f"{rank} shm mpi two_level by shm and mpi (asked for)" in ended.out
