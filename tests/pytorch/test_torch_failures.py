"""Ranks that are late, that stop, and that are killed: nobody waits for them for longer than was agreed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch has it")

import torch
import torch.distributed as dist
from rank_processes import RankProcesses

LONGEST = 10.0  # seconds in which everything returns when a rank is gone


class Within:
    """The body takes at most so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self):
        self.start = time.monotonic()

    def __exit__(self, *error):
        took = time.monotonic() - self.start
        assert took < self.seconds, f"took {took:.1f} s"


def one_is_late(large: bool) -> None:
    me = dist.get_rank()
    x = torch.ones(1_000_000 if large else 3)
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=1)
    if me == 0:
        with (
            Within(4),
            pytest.raises(
                dist.DistBackendError,
                match=r"allreduce \(call 1 of this group\) on rank 0 has not ended after 1 s",
            ),
        ):
            dist.group.WORLD.allreduce([x], options).wait()
    else:
        time.sleep(2)
        with (
            Within(4),
            pytest.raises(
                dist.DistBackendError,
                match="rank 0 failed: DistBackendError: allreduce .*has not ended after 1 s",
            ),
        ):
            for _ in range(2):  # what rank 0 sent before it gave up may have come
                dist.all_reduce(x)
    with Within(1), pytest.raises(dist.DistBackendError, match="has not ended after 1 s"):
        dist.all_reduce(x)  # the group has failed for good
    assert dist.group.WORLD.get_error() is not None
    with Within(LONGEST):
        dist.destroy_process_group()


@pytest.mark.parametrize("large", [False, True])
def test_a_call_that_lasts_too_long_raises_on_all_ranks(two_ranks, large):
    two_ranks.run(one_is_late, large)


def wait_with_a_limit() -> None:
    x = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"has not ended after 0\.2 s; it goes on"):
            work.wait(timedelta(seconds=0.2))
        work.wait()
    else:
        time.sleep(1)
        dist.all_reduce(x)
    assert x.sum() == 6


def test_a_wait_with_a_limit_leaves_the_call_under_way(two_ranks):
    two_ranks.run(wait_with_a_limit)


def message_too_late() -> None:
    if dist.get_rank() == 0:
        with (
            Within(8),
            pytest.raises(
                dist.DistBackendError, match="recv from rank 1 with tag 0 on rank 0 has not ended after 2 s"
            ),
        ):
            dist.recv(torch.empty(2), 1)
    else:
        time.sleep(3)
        with Within(LONGEST), pytest.raises(dist.DistBackendError, match="has not ended after 2 s"):
            for _ in range(100):
                dist.recv(torch.empty(2), 0)


def test_a_message_that_does_not_come_raises(two_ranks):
    two_ranks.run(message_too_late, seconds=2)


def abort_under_way() -> None:
    x = torch.ones(100_000)
    group = dist.group.WORLD
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        receive = dist.irecv(torch.empty(3), 1)
        future = work.get_future()
        threading.Timer(0.5, group.abort).start()
        with Within(5), pytest.raises(dist.DistBackendError, match=r"rank 0 called abort\(\)"):
            work.wait()
        with Within(5), pytest.raises(dist.DistBackendError, match=r"rank 0 called abort\(\)"):
            receive.wait()
        with pytest.raises(Exception, match=r"rank 0 called abort\(\)"):
            future.wait()
        assert work.exception() is not None
        assert not work.is_success()
    else:
        time.sleep(1.5)
        with (
            Within(5),
            pytest.raises(
                dist.DistBackendError, match=r"rank 0 failed: DistBackendError: rank 0 called abort\(\)"
            ),
        ):
            dist.all_reduce(x)
    with Within(LONGEST):
        dist.destroy_process_group()


def test_abort_ends_what_is_under_way(two_ranks):
    two_ranks.run(abort_under_way)


def abort_of_a_call_that_is_waited_for() -> None:
    if dist.get_rank() == 0:
        threading.Timer(0.5, dist.group.WORLD.abort).start()
        with Within(5), pytest.raises(dist.DistBackendError, match=r"rank 0 called abort\(\)"):
            dist.all_reduce(torch.ones(100_000))
    else:
        time.sleep(1.5)
        with Within(5), pytest.raises(dist.DistBackendError, match=r"rank 0 called abort\(\)"):
            for _ in range(2):
                dist.all_reduce(torch.ones(100_000))


def test_abort_ends_the_call_of_another_thread(two_ranks):
    two_ranks.run(abort_of_a_call_that_is_waited_for)


def killed(how: str) -> str:
    me = dist.get_rank()
    group = dist.new_group()
    x = torch.ones(500_000)
    dist.all_reduce(x)
    dist.all_reduce(x, group=group)
    store = dist.distributed_c10d._get_default_store()
    if me == 1:
        store.wait(["rank 0 is done", "rank 2 is done"])  # else they can hear of it in the calls above
        os.kill(os.getpid(), signal.SIGKILL)
    store.set(f"rank {me} is done", "")
    with Within(LONGEST):
        calls = {
            "collective": lambda: dist.all_reduce(x),
            "asynchronous": lambda: dist.all_reduce(x, async_op=True).wait(),
            "message": lambda: dist.recv(x, 1),
            "barrier": lambda: dist.barrier(),
        }
        with pytest.raises(dist.DistBackendError, match=r"rank 1 failed: its process has died"):
            calls[how]()
        with pytest.raises(
            dist.DistBackendError, match=r"rank 1 failed: its process has died|its program ended"
        ):
            dist.all_reduce(x, group=group)
    with Within(LONGEST):
        if how == "message":
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
    return "returned"


@pytest.mark.parametrize(
    ("how", "shm"),
    [
        ("collective", "auto"),
        ("asynchronous", "auto"),
        ("message", "auto"),
        ("barrier", "auto"),
        ("collective", "0"),
        ("message", "0"),
    ],
)
def test_after_a_killed_rank_everything_returns(how, shm):
    with RankProcesses(3, shm) as ranks:
        assert ranks.run(killed, how, ranks=[0, 2]) == ["returned"] * 2


def destroyed_while_others_wait() -> None:
    x = torch.ones(10)
    if dist.get_rank() == 0:
        dist.destroy_process_group()
    else:
        with Within(LONGEST), pytest.raises(dist.DistBackendError, match="rank 0 failed: its program ended"):
            dist.all_reduce(x)


def test_a_group_that_one_rank_has_left_is_an_error_for_who_waits(two_ranks):
    two_ranks.run(destroyed_while_others_wait)


def again_and_again() -> int:
    files = []
    for _ in range(8):
        groups = [dist.new_group() for _ in range(2)]
        for group in groups:
            dist.all_reduce(torch.ones(5), group=group)
        for group in groups:
            dist.destroy_process_group(group)
        files.append(len(os.listdir("/proc/self/fd")))
    assert threading.active_count() < 10, threading.enumerate()
    return files[-1] - files[1]


def test_groups_that_are_gone_leave_nothing(two_ranks):
    assert max(two_ranks.run(again_and_again)) <= 2


PROGRAM = """
import sys, torch, torch.distributed as dist
import jali.torch
dist.init_process_group("jali")
x = torch.ones(4)
dist.all_reduce(x)
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
sys.stdout.write(f"sum {{int(x.sum())}}\\n")  # in one piece
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("dist.destroy_process_group()", 0),
        ("sys.exit(3 if dist.get_rank() else 0)", 1),
        ("1 / 0", 1),
    ],
)
def test_programs_of_torchrun_end(tmp_path, end, status):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(end=end))
    with Within(90):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--standalone",
                str(program),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=Path(__file__).parent,
        )
    assert done.stdout.count("sum 8") == 2, done.stderr
    assert done.returncode == status, done.stderr
    assert "Fatal Python error" not in done.stderr
    assert "terminate called" not in done.stderr
