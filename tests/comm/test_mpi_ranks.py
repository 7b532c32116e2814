"""MPI ranks: messages, collectives, launching, and every way in which one rank can stop the others.

Each test starts a small program on real MPI processes through jali's own launcher.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from programs import run_program, run_python

pytestmark = pytest.mark.mpi


def test_messages_and_collectives_carry_rank_dependent_data(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        assert world.transport == "mpi" and world.size == int(os.environ["JALI_EXPECTED_RANKS"])
        rank, size = world.rank, world.size

        def content(sender, receiver, tag, number):
            words = np.random.default_rng([sender, receiver, tag, number])
            return words.integers(0, 256, [0, 1, 24, 8192, 300_000][number % 5], dtype=np.uint8)

        pending, expected = [], []
        for peer in range(size):
            for tag in (0, 5, 32767):
                for number in range(10):
                    got = np.zeros_like(content(peer, rank, tag, number))
                    expected.append((got, content(peer, rank, tag, number)))
                    pending.append(world.receive(got, peer, tag))
        for number in range(10):
            for tag in (32767, 0, 5):
                for peer in range(size):
                    pending.append(world.send(content(rank, peer, tag, number), peer, tag))
        world.wait(pending, "many messages")
        for got, wanted in expected:
            np.testing.assert_array_equal(got, wanted)

        for turn in range(20):
            total = world.all_reduce_sum(np.arange(5) * (rank + 1) ** 3 - turn)
            np.testing.assert_array_equal(total, sum(np.arange(5) * (r + 1) ** 3 - turn for r in range(size)))
            told = world.gather_bytes(bytes([rank]) * (rank * turn))
            assert told == [bytes([r]) * (r * turn) for r in range(size)]
            root = turn % size
            assert world.broadcast_bytes(b"%d says %d" % (rank, turn), root) == b"%d says %d" % (root, turn)
            world.barrier()
        print(f"rank {rank} is content", flush=True)
        """)
    assert ended.status == 0, ended.err
    # the launcher may put the lines of two ranks on one
    assert sorted(re.findall(r"rank (\d) is content", ended.out)) == [
        str(rank) for rank in range(any_mpi.ranks)
    ]
    assert ended.err == ""


@pytest.mark.full
def test_messages_beyond_the_range_of_an_int_arrive_whole(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current()
        size = 2**31 + 12345
        if world.rank == 0:
            data = np.arange(size // 8 + 1).view(np.uint8)[:size]
            world.wait([world.send(data, 1, 1), world.send(data[:3], 1, 1)])
        else:
            data, tail = np.zeros(size, dtype=np.uint8), np.zeros(3, dtype=np.uint8)
            world.wait([world.receive(data, 0, 1), world.receive(tail, 0, 1)])
            wanted = np.arange(size // 8 + 1).view(np.uint8)[:size]
            assert np.array_equal(data, wanted) and np.array_equal(tail, wanted[:3])
        told = np.arange(2**27 + 1).tobytes()[: 2**30 + 5] if world.rank == 0 else b""
        told = world.broadcast_bytes(told, 0)
        assert len(told) == 2**30 + 5 and told[-5:] == np.arange(2**27 + 1)[-1:].tobytes()[:5]
        """,
        ranks=2,
    )
    assert ended.status == 0, ended.err


def test_message_of_another_size_is_an_error_at_the_receiver(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        for sent, expected in ((8, 16), (16, 8)):
            if world.rank == 1:
                world.wait([world.send(np.zeros(sent, dtype=np.uint8), 0, 3)])
            if world.rank == 0:
                try:
                    world.wait([world.receive(np.zeros(expected, dtype=np.uint8), 1, 3)])
                except RankError as error:
                    print(error, flush=True)
            world.barrier()
        """)
    assert ended.status == 0, ended.err
    short, long = ended.out.splitlines()[:2]
    assert short == "rank 0 expected 16 bytes from rank 1 with tag 3, but 8 came"
    assert long.startswith("MPI error in receiving 8 bytes from rank 1 with tag 3: ")


def test_exception_on_one_rank_stops_the_others_with_its_cause(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        world.barrier()
        if world.rank == world.size - 1:
            raise ValueError("beta must be above 0")
        world.wait([world.receive(np.zeros(4), world.size - 1, 9)], "the halo of U")
        """)
    assert ended.status != 0
    last = any_mpi.ranks - 1
    assert ended.err.count("Traceback") == 1, ended.err
    assert f"jali: rank {last} failed:" in ended.err
    for rank in range(last):
        line = f"jali: rank {rank} stopped: rank {last} failed: ValueError: beta must be above 0"
        assert ended.err.count(line) == 1, ended.err


def test_failure_is_raised_in_every_kind_of_wait(any_mpi) -> None:
    program = """
        from mpi4py import MPI

        def wait_in_test_loop(group):
            message = group.receive(np.zeros(4), group.size - 1, 9)
            while not group.test(message):
                pass

        def wait_in_check_loop(group):
            while True:
                group.check()

        waits = {
            "message": lambda group: group.wait([group.receive(np.zeros(4), group.size - 1, 9)]),
            "big send": lambda group: group.wait([group.send(np.zeros(10**6), group.size - 1, 9)]),
            "test": wait_in_test_loop,
            "check": wait_in_check_loop,
            "barrier": lambda group: group.barrier(),
            "sum": lambda group: group.all_reduce_sum([1]),
            "gather": lambda group: group.gather_bytes(b"x"),
            "broadcast": lambda group: group.broadcast_bytes(b"x", group.size - 1),
        }
        failing = MPI.COMM_WORLD.size - 1
        for name, wait in waits.items():
            group = comm.from_mpi4py(MPI.COMM_WORLD.Dup())
            group.barrier()
            if group.rank == failing:
                time.sleep(0.1)
                group.fail(f"out of ink in {name}")
                continue
            try:
                wait(group)
                print(name, "came back")
            except RankError as error:
                assert (error.rank, error.cause) == (failing, f"out of ink in {name}"), error
        # A send that was given up would keep MPI from ending in order, so the processes just end. Open MPI's
        # launcher kills the rest when the first does, with lines still on their way: files say who came here.
        open(os.path.join(os.environ["DONE"], f"done-{group.rank}"), "w").close()
        MPI.COMM_WORLD.Barrier()
        os._exit(0)
        """
    ended = any_mpi.run(program, DONE=str(any_mpi.folder))
    done = sorted(path.name for path in any_mpi.folder.glob("done-*"))
    assert done == [f"done-{rank}" for rank in range(any_mpi.ranks)], ended.err
    assert "came back" not in ended.out


@pytest.mark.parametrize("interrupted", [0, pytest.param(1, marks=pytest.mark.full)])
def test_rank_that_is_interrupted_while_others_may_speak_ends_the_job(any_mpi, interrupted: int) -> None:
    """Rank 1 fails, rank 0 hears of it: both are in the hook of their exception when Ctrl-C comes."""
    ended = any_mpi.run(f"""
        import signal, threading
        from jali.comm import stopping
        stopping.MOMENT = stopping.LONGEST = stopping.TIMEOUT = 600
        world = comm.current()
        world.barrier()
        if world.rank == {interrupted}:
            said = sys.stderr.write
            def interrupt_soon(text):
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                return said(text)
            sys.stderr.write = interrupt_soon
        if world.rank == 1:
            raise ArithmeticError("rank 1 has had enough")
        world.barrier()
        """)
    assert ended.status != 0
    assert "rank 1 has had enough" in ended.err
    assert "KeyboardInterrupt" not in ended.err


@pytest.mark.short(1)
def test_killed_rank_ends_the_job(mpi, wait_for) -> None:
    marker = mpi.folder / "pid"
    job = mpi.start(f"""
        world = comm.current()
        world.barrier()
        if world.rank == 1:
            open({str(marker)!r} + ".new", "w").write(str(os.getpid()))
            os.rename({str(marker)!r} + ".new", {str(marker)!r})
            time.sleep(1000)
        world.barrier()
        """)
    wait_for(marker.exists)
    os.kill(int(marker.read_text()), signal.SIGKILL)
    ended = job.end()
    assert ended.status != 0


@pytest.mark.short(1)
@pytest.mark.parametrize("group", ["comm.current()", "comm.current().sharing_memory()"])
@pytest.mark.parametrize(
    "wait",
    [
        "group.wait([group.receive(np.zeros(4), 1, 9)])",
        "group.all_reduce(numbers, algorithm='mpi')",
        pytest.param("group.check()", marks=pytest.mark.full),
    ],
)
def test_killed_rank_is_noticed_without_the_launcher(mpi, wait_for, wait: str, group: str) -> None:
    """The launcher is stopped meanwhile: nobody but the ranks themselves can know."""
    job = mpi.start(f"""
        import pathlib, signal
        folder = pathlib.Path({str(mpi.folder)!r})

        def write(name, text):
            (folder / "new").with_suffix(f".{{world.rank}}").write_text(text)
            (folder / "new").with_suffix(f".{{world.rank}}").rename(folder / name)

        world = comm.current()
        group = {group}
        numbers = np.ones(1000)
        assert (group.all_reduce(numbers, algorithm="mpi") == group.size).all()
        group.barrier()
        if world.rank == 1:
            time.sleep(0.5)  # the others wait by now
            write("launcher", str(os.getppid()))
            os.kill(os.getppid(), signal.SIGSTOP)
            write("killed", str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                {wait}
        except RankError as error:
            write(f"said-{{world.rank}}", f"{{time.time()}} {{error}}")
        time.sleep(1000)
        """)
    others = [mpi.folder / f"said-{rank}" for rank in range(mpi.ranks) if rank != 1]
    try:
        wait_for(lambda: job.process.poll() is not None or all(path.exists() for path in others))
    finally:
        if (mpi.folder / "launcher").exists():
            os.kill(int((mpi.folder / "launcher").read_text()), signal.SIGCONT)
        job.end()
    killed = float((mpi.folder / "killed").read_text())
    for path in others:
        when, _, text = path.read_text().partition(" ")
        assert text == "rank 1 failed: its process has died"
        assert killed < float(when) < killed + 10


def test_ranks_that_end_one_after_the_other_are_not_missed(any_mpi) -> None:
    """Those that have ended wait for the others; these go on working among themselves, and ask after all ranks."""
    ended = any_mpi.run("""
        world = comm.current()
        for second in range(2 * world.rank):
            until = time.monotonic() + 1
            while time.monotonic() < until:
                world.check()
        """)
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.full
def test_rank_that_leaves_early_is_not_waited_for(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        world.barrier()
        if world.rank == 1:
            sys.exit(0)
        world.wait([world.receive(np.zeros(4), 1, 9)], "the halo of U")
        """)
    assert ended.status != 0
    # The others also wait for rank 1, so each of them may be the first to notice.
    assert "rank 1 failed: its program ended while rank" in ended.err
    assert "waited for the halo of U (message from rank 1, tag 9, 32 bytes)" in ended.err


@pytest.mark.full
def test_message_that_was_overtaken_by_the_notice_of_its_rank_s_end_arrives(any_mpi) -> None:
    ended = any_mpi.run("""
        world, x = comm.current(), np.zeros(1)
        if world.rank == 0:
            world.wait([world.receive(x, 1, 9)], "the answer")
            assert x[0] == 3
        elif world.rank == 1:
            time.sleep(3.5)  # longer than what is given to late messages of ranks that have left before
            world.core.leave()
            time.sleep(0.5)
            world.core.wait([world.core.send(np.full(1, 3.0), 0, 9)], "")
        """)
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.full
def test_ranks_may_end_at_different_times(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        if world.rank != 1:
            time.sleep(4)  # longer than the others wait for a rank that has ended
        """)
    assert (ended.status, ended.err) == (0, "")


def test_status_that_all_ranks_return_is_the_status_of_the_job(any_mpi) -> None:
    ended = any_mpi.run("comm.current().barrier(); sys.exit(7)")
    assert ended.status == 7


def test_error_caught_by_the_program_ends_the_job_with_the_chosen_status(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        try:
            if world.rank == 0:
                raise OSError("disk full")
            world.barrier()
        except (OSError, RankError) as error:
            print(f"rank {world.rank}: {error}", file=sys.stderr, flush=True)
            comm.end_job(error, 5)
        """)
    assert ended.status == 5
    assert ended.err.count("rank 0: disk full") == 1
    for rank in range(1, any_mpi.ranks):
        assert ended.err.count(f"rank {rank}: rank 0 failed: OSError: disk full") == 1


def test_watchdog_ends_the_job_and_names_step_peer_and_transport(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current()
        world.barrier()
        if world.rank == 0:
            world.wait([world.receive(np.zeros(4), 1, 9)], "the halo of U")
        time.sleep(1000)
        """,
        JALI_WATCHDOG="1.5",
    )
    assert ended.status != 0
    assert (
        "rank 0 waited for the halo of U (message from rank 1, tag 9, 32 bytes) (transport mpi): "
        "nothing has moved for 1.5 s" in ended.err
    )


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)],
)
def test_signal_to_the_launcher_reaches_every_rank_once(mpi, wait_for, number: int, status: int) -> None:
    job = mpi.start(f"""
        import signal
        got = []
        signal.signal({int(number)}, lambda number, frame: got.append(number))
        world = comm.current()
        world.barrier()
        open(os.path.join({str(mpi.folder)!r}, f"ready{{world.rank}}"), "w")
        while not world.all_reduce_sum([len(got)])[0]:
            time.sleep(0.01)
        time.sleep(0.5)
        world.barrier()
        with open(os.path.join({str(mpi.folder)!r}, f"got{{world.rank}}"), "w") as file:
            file.write(str(len(got)))
        world.barrier()
        sys.exit({status})
        """)
    wait_for(lambda: all((mpi.folder / f"ready{rank}").exists() for rank in range(mpi.ranks)))
    os.kill(job.process.pid, number)
    ended = job.end()
    assert [(mpi.folder / f"got{rank}").read_text() for rank in range(mpi.ranks)] == ["1"] * mpi.ranks
    assert ended.status == status, ended.err


def test_wait_can_be_interrupted_from_the_keyboard(any_mpi, wait_for) -> None:
    ready = any_mpi.folder / "ready"
    job = any_mpi.start(f"""
        world = comm.current()
        world.barrier()
        if world.rank == 0:
            open({str(ready)!r}, "w")
            world.barrier()
        time.sleep(1000)
        """)
    wait_for(ready.exists)
    os.kill(job.process.pid, signal.SIGINT)
    ended = job.end()
    assert ended.status != 0


def test_ordinary_mpi4py_communicators_become_groups_of_their_own(any_mpi) -> None:
    ended = any_mpi.run("""
        from mpi4py import MPI
        world = comm.current()
        half = MPI.COMM_WORLD.Split(world.rank % 2, -world.rank)
        group = comm.from_mpi4py(half)
        assert comm.from_mpi4py(half) is group and comm.from_mpi4py(MPI.COMM_WORLD) is world
        assert (group.rank, group.size) == (half.rank, half.size)
        assert group.gather_bytes(b"%d" % world.rank) == [
            b"%d" % r for r in reversed(range(world.size)) if r % 2 == world.rank % 2
        ]
        # The group's messages do not meet the ones that the program sends on its own communicator.
        outer, inner = np.zeros(1), np.zeros(1)
        to, source = (half.rank + 1) % half.size, (half.rank - 1) % half.size
        theirs = half.Irecv(outer, source, 4)
        group.wait([group.receive(inner, source, 4), group.send(np.array([1.0]), to, 4)])
        half.Send(np.array([2.0]), to, 4)
        theirs.Wait()
        assert (inner[0], outer[0]) == (1.0, 2.0)
        """)
    assert (ended.status, ended.err) == (0, "")


def test_cores_are_shared_out_among_the_ranks_of_a_host(any_mpi) -> None:
    ended = any_mpi.run("""
        import json
        world = comm.current()
        mine = sorted(os.sched_getaffinity(0))
        all_of_them = [json.loads(text) for text in world.gather_bytes(json.dumps(mine).encode())]
        share = sum(1 / sum(core in theirs for theirs in all_of_them) for core in mine)
        assert world.threads == max(1, int(share + 1e-9)), (world.threads, share)
        """)
    assert (ended.status, ended.err) == (0, "")


def test_groups_of_one_where_ranks_were_requested_are_an_error(any_mpi) -> None:
    program = "from jali import comm; comm.current()"
    environment = dict(os.environ) | {"JALI_EXPECTED_RANKS": "3"}
    ended = run_python(program, python=any_mpi.python, env=environment, status=1)
    text = ended.stderr.splitlines()[-1]
    assert "3 ranks were started (JALI_EXPECTED_RANKS=3), but MPI's world has 1" in text
    assert "libmpi.so" in text


def test_launcher_of_another_library_is_found_out(mpich, openmpi) -> None:
    other = run_python(
        "from jali.comm.launcher import find_launcher; print(find_launcher().program)", python=mpich.python
    ).stdout.strip()
    program = "from jali import comm; comm.current()"
    ended = run_program([other, "-n", "2", openmpi.python, "-c", program], status=None)
    assert ended.returncode != 0
    assert "2 ranks were started (PMI_SIZE=2), but MPI's world has 1" in ended.stderr


def test_rank_cannot_start_ranks(any_mpi) -> None:
    ended = any_mpi.run("""
        from jali.comm.launcher import relaunch
        world = comm.current()
        try:
            relaunch(2, ["info"])
        except RankError as error:
            assert "is an MPI rank already" in str(error)
        else:
            raise SystemExit(1)
        """)
    assert (ended.status, ended.err) == (0, "")


def test_missing_mpi4py_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no mpi4py here')")
    for environment, program in (
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, "from jali import comm; comm.current()"),
        ({}, "from jali.comm import relaunch; relaunch(4, ['info'])"),
    ):
        ended = run_python(program, env=dict(os.environ) | environment, path=[tmp_path], status=1)
        assert "pip install jali[mpi]" in ended.stderr.splitlines()[-1]


def test_standard_abi_of_mpi_5_is_spoken(mpich) -> None:
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
        got = np.zeros(1000)
        peer = 1 - world.rank
        world.wait([world.receive(got, peer, 1), world.send(np.full(1000, world.rank + 1.0), peer, 1)], "halo")
        assert (got == peer + 1).all()
        assert world.gather_bytes(b"%d" % world.rank) == [b"0", b"1"]
        assert world.broadcast_bytes(b"%d" % world.rank, 1) == b"1"
        total = np.array([world.rank + 1, -5])
        world.all_reduce_sum(total)
        assert total.tolist() == [3, -10]
        world.barrier()
        if world.rank == 1:
            world.fail("enough")
        try:
            while True:
                world.check()
        except RankError as error:
            assert error.cause == "enough" and error.rank == 1
        os._exit(0)
        """)
    assert ended.status in (0, 1), ended.err  # a launcher may mind that MPI was not finalised
    assert "Traceback" not in ended.err, ended.err
