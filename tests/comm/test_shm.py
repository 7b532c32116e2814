"""Messages through memory that the processes of a host share: the same promises as every other transport."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jali import comm

pytestmark = pytest.mark.mpi

COPIES = ["cma", "slots"]


@pytest.mark.short(1)
@pytest.mark.parametrize("copying", COPIES)
def test_messages_of_all_sizes_arrive_whole_in_any_order_of_tags(any_mpi, copying: str) -> None:
    ended = any_mpi.run(
        """
        world = comm.current().sharing_memory()
        assert world.transport == "shm" and world is comm.current().sharing_memory()
        rank, size = world.rank, world.size
        sizes = [0, 1, 40, 41, 4095, 4096, 8192, 8193, 100_000, 2**20 + 3]

        def content(sender, receiver, tag, number, bytes):
            words = np.random.default_rng([sender, receiver, tag, number])
            return words.integers(0, 256, bytes, dtype=np.uint8)

        # Everybody to everybody (and to itself): receives are posted before and after, in another order of tags.
        pending, expected = [], []
        def receive_from(peer, tags):
            for tag in tags:
                for number, bytes in enumerate(sizes):
                    got = np.full(bytes, 0xEE, dtype=np.uint8)
                    expected.append((got, content(peer, rank, tag, number, bytes)))
                    pending.append(world.receive(got, peer, tag))
        for peer in range(size):
            receive_from(peer, [7])
        for tag in (world.largest_tag, 0, 7):
            for peer in range(size):
                for number, bytes in enumerate(sizes):
                    pending.append(world.send(content(rank, peer, tag, number, bytes), peer, tag))
        world.barrier()  # what is under way moves on meanwhile
        for peer in range(size):
            receive_from(peer, [0, world.largest_tag])
        world.wait(pending, "many messages")
        for got, wanted in expected:
            np.testing.assert_array_equal(got, wanted)

        # More than the rings hold, before anything is taken.
        many = 3000
        data = np.arange(many * size, dtype=np.int64).reshape(many, size) * 1000 + rank
        pending = [world.send(data[k, p : p + 1], p, 3) for k in range(many) for p in range(size)]
        got = np.zeros((many, size), dtype=np.int64)
        pending += [world.receive(got[k, p : p + 1], p, 3) for k in range(many) for p in range(size)]
        world.wait(pending)
        base = np.arange(many * size).reshape(many, size)[:, rank]
        np.testing.assert_array_equal(got, base[:, None] * 1000 + np.arange(size))
        print(f"rank {rank} is content", flush=True)
        """,
        JALI_SHM_COPY=copying,
    )
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("is content") == any_mpi.ranks
    assert any_mpi.left_behind() == []


@pytest.mark.parametrize("copying", [COPIES[0], pytest.param(COPIES[1], marks=pytest.mark.full)])
def test_long_messages_cross(any_mpi, copying: str) -> None:
    ended = any_mpi.run(
        """
        world = comm.current().sharing_memory()
        peer = 1 - world.rank
        if world.rank < 2:
            mine = np.arange(2**26 // 8 + 1, dtype=np.int64) * (world.rank + 3)
            got = np.zeros_like(mine)
            world.wait([world.send(mine, peer, 1), world.receive(got, peer, 1)])
            assert np.array_equal(got, np.arange(2**26 // 8 + 1) * (peer + 3))
        """,
        JALI_SHM_COPY=copying,
    )
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_both_ends_may_give_up_a_long_message_that_they_copy_together(any_mpi, first: str) -> None:
    """The second one knows that the first copies no more, also of what neither of them had begun."""
    ended = any_mpi.run(f"""
        world = comm.current().sharing_memory()
        sends = world.rank == 0
        numbers, in_part = np.full(2**26 // 8, float(sends)), np.zeros(1)
        for round in range(40 if world.rank < 2 else 0):
            if round >= 4 and in_part[0] > 0:  # on a busy machine a whole message may come first
                break
            message = world.send(numbers, 1, 1) if sends else world.receive(numbers, 0, 1)
            world.wait([world.send(np.ones(1), 1 - world.rank, 2), world.receive(np.zeros(1), 1 - world.rank, 2)])
            if sends == ({first!r} == "sender"):
                for _ in range(3):
                    world.test(message)
                del message
                world.wait([world.send(np.ones(1), 1 - world.rank, 3)])
                world.wait([world.receive(in_part, 1 - world.rank, 4)])
            else:
                world.wait([world.receive(np.zeros(1), 1 - world.rank, 3)])
                in_part += not world.test(message)
                del message
                world.wait([world.send(in_part, 1 - world.rank, 4)])
        if in_part[0] > 0:
            print("in part")
        world.barrier()
        """)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("in part") == 2


def test_collectives_and_splits_agree_with_plain_python(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current().sharing_memory()

        def check(group, mates):
            rank, size = group.rank, group.size
            assert [int(x) for x in group.gather_bytes(b"%d" % world.rank)] == mates
            for turn in range(8):
                total = group.all_reduce_sum(np.arange(5) * (rank + 1) ** 3 - turn)
                wanted = sum(np.arange(5) * (r + 1) ** 3 - turn for r in range(size))
                np.testing.assert_array_equal(total, wanted)
                told = group.gather_bytes(bytes([rank]) * (rank * turn * 5000))
                assert told == [bytes([r]) * (r * turn * 5000) for r in range(size)]
                root = turn % size
                assert group.broadcast_bytes(b"%d says %d" % (rank, turn), root) == b"%d says %d" % (root, turn)
                group.barrier()

        ranks = list(range(world.size))
        check(world, ranks)
        part = world.split(world.rank % 2, -world.rank)
        assert part.transport == "shm"
        check(part, [r for r in reversed(ranks) if r % 2 == world.rank % 2])
        few = world.split(None if world.rank == 0 else 1)
        if world.rank:
            check(few, ranks[1:])
        for _ in range(300):
            copy = world.duplicate()
        check(copy, ranks)

        # Their messages do not meet, and what is left of a dropped group harms nobody.
        to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        got = [np.zeros(2000) for _ in range(3)]
        groups = [world, copy, comm.current()]
        pending = [(g, g.receive(got[k], source, 5)) for k, g in reversed(list(enumerate(groups)))]
        pending += [(g, g.send(np.full(2000, 10.0 * k + world.rank), to, 5)) for k, g in enumerate(groups)]
        for group, message in pending:
            while not group.test(message):
                pass
        assert [one[0] for one in got] == [10.0 * k + source for k in range(3)]
        """)
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize("copying", [COPIES[0], pytest.param(COPIES[1], marks=pytest.mark.full)])
def test_message_of_another_size_is_an_error_at_the_receiver(any_mpi, copying: str) -> None:
    ended = any_mpi.run(
        """
        world = comm.current().sharing_memory()
        for sent, expected in ((8, 16), (16, 8), (50_000, 49_999), (8, 10_000), (10_000, 8)):
            if world.rank == 1:
                world.wait([world.send(np.zeros(sent, dtype=np.uint8), 0, 3)])
            if world.rank == 0:
                try:
                    world.wait([world.receive(np.zeros(expected, dtype=np.uint8), 1, 3)])
                except RankError as error:
                    print(error, flush=True)
            world.barrier()
        """,
        JALI_SHM_COPY=copying,
    )
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"rank 0 expected {expected} bytes from rank 1 with tag 3, but {sent} came"
        for sent, expected in ((8, 16), (16, 8), (50_000, 49_999), (8, 10_000), (10_000, 8))
    ]


def test_failure_is_raised_in_every_kind_of_wait(any_mpi) -> None:
    program = """
        def wait_in_test_loop(group):
            message = group.receive(np.zeros(4), group.size - 1, 9)
            while not group.test(message):
                pass

        waits = {
            "message": lambda group: group.wait([group.receive(np.zeros(4), group.size - 1, 9)]),
            "big send": lambda group: group.wait([group.send(np.zeros(10**6), group.size - 1, 9)]),
            "test": wait_in_test_loop,
            "barrier": lambda group: group.barrier(),
            "sum": lambda group: group.all_reduce_sum([1]),
        }
        from mpi4py import MPI
        failing = MPI.COMM_WORLD.size - 1
        for name, wait in waits.items():
            group = comm.from_mpi4py(MPI.COMM_WORLD.Dup()).sharing_memory().duplicate()
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
        open(os.path.join(os.environ["DONE"], f"done-{group.rank}"), "w").close()
        MPI.COMM_WORLD.Barrier()
        os._exit(0)
        """
    ended = any_mpi.run(program, DONE=str(any_mpi.folder))
    done = sorted(path.name for path in any_mpi.folder.glob("done-*"))
    assert done == [f"done-{rank}" for rank in range(any_mpi.ranks)], ended.err
    assert "came back" not in ended.out
    assert any_mpi.left_behind() == []


def test_killed_rank_is_noticed_and_leaves_nothing_behind(any_mpi, wait_for) -> None:
    marker = any_mpi.folder / "pid"
    job = any_mpi.start(f"""
        world = comm.current().sharing_memory()
        world.barrier()
        if world.rank == 1:
            open({str(marker)!r} + ".new", "w").write(str(os.getpid()))
            os.rename({str(marker)!r} + ".new", {str(marker)!r})
            time.sleep(1000)
        world.barrier()
        """)
    wait_for(marker.exists)
    assert any_mpi.left_behind() == []
    os.kill(int(marker.read_text()), signal.SIGKILL)
    ended = job.end()
    assert ended.status != 0
    assert any_mpi.left_behind() == []


def test_process_that_dies_is_noticed_without_the_launcher(mpich) -> None:
    ended = mpich.run(
        """
        import signal
        world = comm.current().sharing_memory()
        world.barrier()
        # The launcher would end the job: it sees only this child, which both ranks leave.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if world.rank == 0:
            other = int(world.gather_bytes(b"%d" % os.getpid())[1])
            os.kill(other, signal.SIGSTOP)
            message = world.receive(np.zeros(4), 1, 9)
            for _ in range(100):
                assert not world.test(message)  # stopped is not dead
                time.sleep(0.01)
            os.kill(other, signal.SIGKILL)
            try:
                world.wait([message], "the halo of U")
            except RankError as error:
                with open(os.environ["HEARD"], "w") as file:
                    file.write(str(error))
        else:
            world.gather_bytes(b"%d" % os.getpid())
            time.sleep(1000)
        """,
        HEARD=str(mpich.folder / "heard"),
    )
    assert ended.status != 0
    report = mpich.folder / "heard"
    if report.exists():  # unless the launcher was faster
        assert report.read_text() == "rank 1 failed: its process has died"


@pytest.mark.full
def test_watchdog_names_step_peer_and_transport(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current().sharing_memory()
        world.barrier()
        if world.rank == 0:
            world.wait([world.receive(np.zeros(4), 1, 9)], "the halo of U")
        while True:
            world.check()  # ends when rank 0 has: it need not wait for a rank that says nothing
            time.sleep(0.02)
        """,
        JALI_WATCHDOG="1.5",
    )
    assert ended.status != 0
    assert (
        "rank 0 waited for the halo of U (message from rank 1, tag 9, 32 bytes) (transport shm): "
        "nothing has moved for 1.5 s" in ended.err
    )


@pytest.mark.full
def test_rank_that_leaves_early_is_not_waited_for(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current().sharing_memory()
        world.barrier()
        if world.rank == 1:
            world.wait([world.send(np.ones(4), 0, 9)])
            sys.exit(0)
        if world.rank == 0:
            time.sleep(1)
            got = np.zeros(4)
            world.wait([world.receive(got, 1, 9)])  # what it sent before arrives
            assert got[0] == 1
        world.wait([world.receive(np.zeros(4), 1, 9)], "the halo of U")
        """)
    assert ended.status != 0
    assert "rank 1 failed: its program ended while rank" in ended.err
    assert "waited for the halo of U (message from rank 1, tag 9, 32 bytes)" in ended.err


def test_shared_memory_can_be_switched_off_on_some_ranks(any_mpi) -> None:
    ended = any_mpi.run("""
        from mpi4py import MPI
        from jali import settings
        if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            settings.use(shm=0)
        world = comm.current()
        group = world.sharing_memory()
        # Four ranks: three share memory, all talk to the fourth by MPI. Two ranks: nobody shares any.
        assert group.transport == ("shm" if world.size > 2 else "mpi")
        rank, size = group.rank, group.size
        for turn in range(20):
            sizes = [0, 8, 300_000]
            got = [np.zeros(n) for n in sizes for peer in range(size)]
            pending = [group.receive(g, k % size, k // size) for k, g in enumerate(got)]
            pending += [
                group.send(np.full(n, 10.0 * rank + p + t), p, t) for t, n in enumerate(sizes) for p in range(size)
            ]
            if turn % 2:
                group.wait(pending)
            for message in pending:
                while not group.test(message):
                    pass
            for k, g in enumerate(got):
                assert (g == 10.0 * (k % size) + rank + k // size).all()
            assert group.all_reduce_sum([rank])[0] == size * (size - 1) // 2
            assert group.split(rank % 2).gather_bytes(b"%d" % rank) == [
                b"%d" % r for r in range(size) if r % 2 == rank % 2
            ]
        """)
    assert (ended.status, ended.err) == (0, "")


def test_halos_are_put_where_memory_is_shared_and_sent_elsewhere(any_mpi) -> None:
    """In one exchange: every part is packed once, and the bits are those of NumPy."""
    ended = any_mpi.run("""
        import re
        import jali
        from mpi4py import MPI
        from jali import settings
        if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            settings.use(shm=0)

        @jali.site_function
        def around(X, out, f):
            up = X.directions()[2]
            out[X] = f[X + up] + 3 * f[X - 2 * up]

        size = comm.current().size
        lattice = jali.Lattice(3, 4, 4 * size, grid=(1, 1, size))
        f, out = jali.Field(lattice, jali.Real()), jali.Field(lattice, jali.Real())
        for turn in range(3):
            f[...] = np.arange(48 * size).reshape(3, 4, 4 * size) * (turn + 1.0)
            around(out, f)
            whole = f[...]
            assert (out[...] == np.roll(whole, -1, 2) + 3 * np.roll(whole, 2, 2)).all()
        steps = around.bind(out, f).explain()
        packed = re.findall(r"pack .* for slab .* (?:even|odd)", steps)
        assert len(packed) == len(set(packed)) == 6, steps  # three layers of two parities
        if size > 2 and comm.current().rank == 1:
            assert ": put " in steps and ": receive " not in steps, steps
        if comm.current().rank == size - 1:
            assert ": put " not in steps and ": receive " in steps, steps
        """)
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.full
def test_lack_of_shared_memory_is_reported_and_an_error_if_it_was_requested(mpich) -> None:
    body = """
        import resource
        if comm.current().rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        world = comm.current()
        assert world.sharing_memory().transport == "mpi"
        assert world.all_reduce(np.array([2.0]))[0] == 4.0
        """
    ended = mpich.run(body)
    assert ended.status == 0, ended.err
    assert "jali: rank 1 shares no memory with the other ranks of its host" in ended.err
    assert ended.err.count("\n") == 1
    ended = mpich.run(body, JALI_SHM="1")
    assert ended.status != 0
    assert "JALI_SHM=1, but rank 1 shares no memory" in ended.err


def test_what_a_killed_process_left_is_removed_by_the_next(mpich) -> None:
    abandoned = Path("/dev/shm/jali-999999999-17")
    abandoned.write_bytes(b"x")
    ended = mpich.run("assert comm.current().sharing_memory().transport == 'shm'")
    assert (ended.status, ended.err) == (0, "")
    assert not abandoned.exists()


def test_virtual_ranks_need_no_shared_memory() -> None:
    def run() -> None:
        group = comm.current().sharing_memory()
        assert group.transport == "thread"
        assert group.gather_bytes(bytes([group.rank])) == [bytes([r]) for r in range(3)]
        got = np.zeros(1)
        pending = [group.receive(got, (group.rank + 1) % 3), group.send(np.ones(1), (group.rank - 1) % 3)]
        group.wait(pending)
        assert got[0] == 1

    comm.virtual_ranks(3, run)


def test_ring_carries_everything_once_and_in_order_between_threads(tmp_path: Path) -> None:
    source = Path(__file__).with_name("ring_check.cpp")
    core = Path(__file__).parents[2] / "core"
    program = tmp_path / "ring_check"
    build = [
        "c++",
        "-std=c++20",
        "-O1",
        "-g",
        "-fsanitize=thread",
        f"-I{core}",
        str(source),
        "-o",
        str(program),
    ]
    compiled = subprocess.run(build, capture_output=True, text=True)
    if compiled.returncode != 0:
        pytest.skip(f"no compiler with a thread sanitizer: {compiled.stderr[:200]}")
    ended = subprocess.run([str(program)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
