"""Processes that no launcher has connected find each other, share memory, and hear of who is gone."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jali import comm, settings
from jali.comm.sockets import SocketTransport
from jali.errors import RankError


def connect(
    folder: str, rank: int, size: int, seconds: float = 30, unknown: str | None = None
) -> SocketTransport:
    def publish(key: str, text: str) -> None:
        part = Path(folder) / f"{key}.part"
        part.write_text(text)
        part.rename(Path(folder) / key)

    def find(key: str) -> str:
        if key == unknown:
            raise TimeoutError(key)
        limit = time.monotonic() + seconds
        while not (Path(folder) / key).exists():
            if time.monotonic() > limit:
                raise TimeoutError(key)
            time.sleep(0.005)
        return (Path(folder) / key).read_text()

    return SocketTransport(rank, size, publish, find, "localhost", seconds)


def run_rank(function, folder, rank, size, results, shm) -> None:
    settings.use(shm=shm)
    try:
        results.put((rank, function(folder, rank, size)))
    except BaseException as error:
        results.put((rank, f"{type(error).__name__}: {error}"))


def on_processes(function, folder, size: int, alive: int | None = None, shm: str = "auto") -> list:
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [
        spawn.Process(target=run_rank, args=(function, str(folder), rank, size, results, shm))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    reported = dict(results.get(timeout=60) for _ in range(size if alive is None else alive))
    for process in processes:
        process.join(20)
        assert process.exitcode is not None
    return [reported.get(rank) for rank in range(size)]


def calls(folder, rank, size) -> list[str]:
    transport = connect(folder, rank, size)
    with comm.over(transport, 1) as world:
        kinds = [world.transport, world.sharing_memory().transport, *world.libraries]
        for count in (1, 1000, 300_000):
            x = np.full(count, rank + 1.0)
            assert np.array_equal(world.all_reduce(x), np.full(count, size * (size + 1) / 2))
            assert np.array_equal(world.all_gather(x), np.repeat(np.arange(1.0, size + 1), count))
            # by the sockets themselves
            into = np.empty(count)
            messages = [world.receive(into, (rank - 1) % size), world.send(x, (rank + 1) % size)]
            world.wait(messages)
            assert np.array_equal(into, np.full(count, (rank - 1) % size + 1.0))
        part = world.split(rank % 2)
        assert part.all_reduce(np.ones(3)).tolist() == [part.size] * 3
        world.barrier()
    transport.close()
    return kinds


@pytest.mark.short(2)
@pytest.mark.parametrize("shm", ["auto", "0"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_and_messages(tmp_path, size, shm):
    shared = size > 1 and shm != "0"
    expected = ["sockets", "shm" if shared else "sockets", *(["shm"] if shared else []), "sockets"]
    assert on_processes(calls, tmp_path, size, shm=shm) == [expected] * size


def until_it_dies(folder, rank, size) -> str:
    with comm.over(connect(folder, rank, size), 1) as world:
        world.all_reduce(np.ones(10))
        if rank == 1:
            while not all((Path(folder) / f"rank {other} is done").exists() for other in (0, 2)):
                time.sleep(0.005)  # else they can hear of it in the call above
            os.kill(os.getpid(), signal.SIGKILL)
        (Path(folder) / f"rank {rank} is done").touch()
        start = time.monotonic()
        with pytest.raises(RankError) as reported:
            world.all_reduce(np.ones(100_000))
        return f"rank {reported.value.rank}: {reported.value.cause} ({time.monotonic() - start < 5})"


@pytest.mark.parametrize("shm", ["auto", "0"])
def test_a_killed_rank_is_detected(tmp_path, shm):
    reported = on_processes(until_it_dies, tmp_path, 3, alive=2, shm=shm)
    assert reported == ["rank 1: its process has died (True)", None, "rank 1: its process has died (True)"]


def two_transports(folder: Path) -> list[SocketTransport]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: connect(str(folder), rank, 2), range(2)))


def until_received(transport: SocketTransport, source: int) -> bytes:
    message, limit = transport.receive(source, 7), time.monotonic() + 20
    while (body := transport.received(message)) is None:
        assert time.monotonic() < limit
    return bytes(body)


@pytest.mark.parametrize("sends_last_frame", [True, False])
def test_messages_of_a_rank_that_has_gone_arrive_also_after_one_to_it(tmp_path, sends_last_frame):
    """Writing to a connection that the other has ended fails; what it had sent by then is not lost by that."""
    staying, leaving = two_transports(tmp_path)
    for value in range(3):
        leaving.send(memoryview(bytes([value]) * 1000), 0, 7)
    if sends_last_frame:
        leaving.close()
    else:
        leaving._peers[0].connection.close()
    limit = time.monotonic() + 20
    while not staying._peers[1].is_closed and time.monotonic() < limit:
        staying.send(memoryview(bytes(10)), 1, 7)
        time.sleep(0.01)
    assert staying._peers[1].is_closed
    assert [bytes(staying.received(staying.receive(1, 7))) for _ in range(3)] == [
        bytes([value]) * 1000 for value in range(3)
    ]
    message = staying.receive(1, 7)
    if sends_last_frame:
        assert staying.received(message) is None
    else:
        with pytest.raises(RankError, match="rank 1 failed: its process has died"):
            staying.received(message)
    staying.close()


def ends_with_a_cause(folder, rank, size) -> str:
    try:
        with comm.over(connect(folder, rank, size), 1) as world:  # which nobody closes
            world.barrier()
            if rank == 2:
                raise ValueError("no such mass")
            if rank == 0:
                time.sleep(2)  # the others' programs have ended by then
            world.all_reduce(np.ones(10))
    except (ValueError, RankError) as error:
        return str(error)


@pytest.mark.parametrize("shm", ["auto", "0"])
def test_the_cause_of_a_failure_is_received_though_connections_have_ended(tmp_path, shm):
    message = "rank 2 failed: ValueError: no such mass"
    assert on_processes(ends_with_a_cause, tmp_path, 3, shm=shm) == [message, message, "no such mass"]


def dies_with_a_child(folder, rank, size) -> str:
    with comm.over(connect(folder, rank, size), 1) as world:
        world.barrier()
        if rank == 1:
            if os.fork() == 0:  # as a loader of data does
                time.sleep(15)
                os._exit(0)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(RankError, match="rank 1 failed: its process has died"):
            world.wait([world.receive(np.zeros(1), 1)])
        return f"{time.monotonic() - start < 10}"


def test_a_killed_rank_is_detected_though_a_forked_child_lives(tmp_path):
    assert on_processes(dies_with_a_child, tmp_path, 2, alive=1)[0] == "True"


def test_who_could_not_connect_with_all_is_not_waited_for(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        ranks = [
            pool.submit(connect, str(tmp_path), rank, 3, 2, "1" if rank == 2 else None) for rank in range(3)
        ]
        with pytest.raises(TimeoutError):
            ranks[2].result()
        with pytest.raises(RankError, match="rank 1 was not called by rank 2"):
            ranks[1].result()
        with pytest.raises(RankError, match="rank 2 failed: its process has died"):
            until_received(ranks[0].result(), 2)


def test_an_orderly_end_with_something_unread_loses_nothing(tmp_path):
    staying, leaving = two_transports(tmp_path)
    data = bytes(range(256)) * 8000
    sent = leaving.send(memoryview(data), 0, 7)
    for _ in range(200):  # the kernels have much of it, or all
        leaving.sent(sent)
    staying.send(memoryview(bytes(10)), 1, 9)
    time.sleep(0.1)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(leaving.close)
        time.sleep(0.2)
        assert until_received(staying, 1) == data
        closing.result()
    assert staying.received(staying.receive(1, 7)) is None
    assert staying._peers[1].sent_last
    leaving.close()  # again
    staying.close()


def test_memory_of_a_message_that_was_given_up_is_not_sent(tmp_path):
    sending, receiving = two_transports(tmp_path)
    memory = bytearray(30_000_000)
    borrowed = memoryview(memory)
    message = sending.send(borrowed, 1, 7)
    assert not sending.sent(message)  # more than the kernels take
    borrowed.release()
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(until_received, receiving, 0)
        why = r"rank 0 failed: a message to rank 1 was given up before it was sent \(the connection with rank 1 ended\)"
        with pytest.raises(RankError, match=why):
            until_received(sending, 1)
        with pytest.raises(RankError, match="rank 0 failed: its process has died"):
            came.result()
    sending.close()
    receiving.close()


def a_stranger_calls(folder, rank, size) -> int:
    if rank == 1:
        while not (Path(folder) / "0").exists():
            time.sleep(0.01)
        port = json.loads((Path(folder) / "0").read_text())["port"]
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(36)):  # the last is a hello with another number
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(data)
    with comm.over(connect(folder, rank, size), 1) as world:
        return int(world.all_reduce(np.ones(1))[0])


def test_who_does_not_know_the_number_is_not_let_in(tmp_path):
    assert on_processes(a_stranger_calls, tmp_path, 2) == [2, 2]


def test_a_rank_that_does_not_come_is_named(tmp_path):
    with pytest.raises(RankError, match="rank 0 was not called by ranks 1, 2: did they start"):
        connect(str(tmp_path), 0, 3, seconds=0.3)


def test_a_rank_that_is_not_reached_is_named_with_its_addresses(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    launcher_rank = {"host": "elsewhere", "addresses": ["127.0.0.1"], "port": port, "secret": "00" * 32}
    (tmp_path / "0").write_text(json.dumps(launcher_rank))
    with pytest.raises(
        RankError, match=rf"rank 1 cannot connect to rank 0 at port {port} of 127\.0\.0\.1: .*open the ports"
    ):
        connect(str(tmp_path), 1, 2, seconds=5)


def test_a_wait_is_stopped_by_another_thread_or_by_the_clock(tmp_path):
    transport = connect(str(tmp_path), 0, 1)
    transport.size = 2  # of whom the other never says anything
    request = transport.receive(1, 5)
    assert transport.received(request) is None
    transport.deadline, transport.late = time.monotonic() - 1, lambda: TimeoutError("too late")
    with pytest.raises(TimeoutError, match="too late"):
        transport.received(request)
    transport.stop = KeyError("stopped")
    with pytest.raises(KeyError, match="stopped"):
        transport.received(request)
    transport.close()
