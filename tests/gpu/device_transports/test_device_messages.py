"""Persistent messages between devices: every way brings the right bytes, again and again, and both ends hear of mistakes."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, run_on_devices, until_idle, use_fake_ccl, use_fake_gpus

from jali import _core, comm, settings
from jali.comm import DeviceArray
from jali.errors import DeviceError, ParameterError, RankError

PEER = ("remote-write", "copy-engine")


@pytest.fixture(autouse=True)
def four_devices(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    use_settings: Callable[..., None],
    tmp_path: Any,
) -> None:
    if REAL and request.node.get_closest_marker("mpi") is None and _core.Gpu.count("cuda") < 3:
        pytest.skip("needs three GPUs")
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)


def open_gpu() -> Any:
    from jali.devices import open_device

    return open_device("cuda", comm.current())


def on_device(values: Any) -> DeviceArray:
    return DeviceArray.from_host(values, open_gpu())


def fill(array: DeviceArray, values: Any) -> None:
    """New contents, in order with what is on jali's stream."""
    array.gpu.upload_address(array.address, np.ascontiguousarray(values).view(np.uint8).reshape(-1))


def pattern(rank: int, number: int, count: int) -> Any:
    return (np.arange(count, dtype=np.int64) * 7 + 1000 * rank + 13 * number) % 127


def one_way(transport: str | None, counts: tuple[int, ...], rounds: int = 4) -> list[str]:
    """Rank 0 sends to rank 1, changing what it sends; the receiver looks at every arrival."""
    c = comm.current()
    transports = []
    for count in counts:
        x = on_device(np.full(count, -1, np.int8))
        if c.rank == 0:
            message = c.persistent_send(x, 1, tag=5, transport=transport)
        else:
            message = c.persistent_receive(x, 0, tag=5)
        for number in range(rounds):
            wanted = pattern(0, number, count).astype(np.int8)
            if c.rank == 0:
                fill(x, wanted)
                message.start()
            else:
                message.start()
                assert x.to_host().tobytes() == wanted.tobytes(), (transport, count, number)
        transports.append(message.transport)
    return transports


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"tag": 1.5}, "tag 1.5 of a message; tags are whole numbers from 0"),
        ({"tag": "a"}, "tag 'a' of a message"),
        ({"tag": 1 << 63}, f"tag {1 << 63} of a message"),
        ({"tag": -1}, "tag -1 of a message"),
        ({"tag": True}, "tag True of a message"),
        ({"tag": np.float64(2)}, "tag .*2.0.* of a message"),
        ({"to": False}, "rank False does not exist"),
        ({"to": np.bool_(False)}, "rank .*False.* does not exist"),
        ({"to": -1}, "rank -1 does not exist"),
        ({"to": 0.0}, "rank 0.0 does not exist among 1 rank"),
        ({"to": "0"}, "rank '0' does not exist"),
        ({"to": 1}, "rank 1 does not exist"),
        ({"transport": 5}, "transport=5: the transport of a message is a name, such as 'copy-engine'"),
        (
            {"transport": ""},
            "transport='': the transport of a message is a name, or None for that of its size",
        ),
    ],
)
def test_arguments_that_are_none_are_refused_by_name(named: dict[str, Any], message: str) -> None:
    def run() -> None:
        with pytest.raises(ParameterError, match=message):
            comm.current().persistent_send(**({"x": on_device(np.zeros(4)), "to": 0} | named))

    comm.virtual_ranks(1, run)


def test_ranks_and_tags_may_be_numbers_of_numpy() -> None:
    def run() -> None:
        c, x = comm.current(), on_device(np.arange(4.0))
        ends = [
            c.persistent_send(x, np.int64(0), np.uint8(4)),
            c.persistent_receive(on_device(np.zeros(4)), np.int32(0), np.int64(4)),
        ]
        c.start(tuple(ends))
        assert ends[1].array.to_host().tolist() == [0, 1, 2, 3]
        assert (ends[0].array, ends[0].peer, ends[0].tag, ends[0].sends, ends[0].nbytes) == (
            x,
            0,
            4,
            True,
            32,
        )

    comm.virtual_ranks(1, run)


@pytest.mark.parametrize("wrong", [None, [1.0, 2.0], 3])
def test_what_is_no_array_on_a_device_is_refused_as_such(wrong: Any) -> None:
    with pytest.raises(DeviceError, match=f"a {type(wrong).__name__} is not in device memory; give a"):
        comm.virtual_ranks(1, lambda: comm.current().persistent_send(wrong, 0))


def test_an_array_of_the_host_on_one_rank_is_refused_before_ranks_communicate() -> None:
    def run() -> None:
        c = comm.current()
        if c.rank == 1:
            with pytest.raises(DeviceError, match="a ndarray is not in device memory; give a"):
                c.persistent_receive(np.zeros(4), 0)
        c.barrier()

    comm.virtual_ranks(2, run)


def test_what_is_no_list_of_messages_is_not_started() -> None:
    def run() -> None:
        c = comm.current()
        ends = [
            c.persistent_send(on_device(np.zeros(4)), 0),
            c.persistent_receive(on_device(np.zeros(4)), 0),
        ]
        for wrong in (ends[0], [*ends, None], [None], iter(ends), 7, 0, None, "ends"):
            with pytest.raises(ParameterError, match="messages are a list of ends that persistent_send and"):
                c.start(wrong)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="stream -1 is no handle of a stream"):
            c.start(ends, -1)
        c.start([])
        c.start(ends)
        with pytest.raises(ParameterError, match="rank None does not exist among 1 rank"):
            c.device_messages(open_gpu()).why_not("copy-engine", None)  # type: ignore[arg-type]

    comm.virtual_ranks(1, run)


SIZES = (0, 1, 8, 13, 1024, 16384, 100_003)


@pytest.mark.parametrize("transport", [*PEER, "host-staged", None])
def test_what_is_sent_arrives_at_every_start(transport: str | None) -> None:
    reported = comm.virtual_ranks(2, one_way, transport, SIZES)
    assert reported[0] == reported[1] == [transport or "remote-write"] * len(SIZES)


@pytest.mark.skipif(REAL, reason="needs a fake library")
@pytest.mark.parametrize("peers", [True, False])
def test_the_library_carries_messages_if_it_must_or_shall(
    peers: bool, monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    if peers:
        use_settings(message_transport="nccl")
    else:
        monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    reported = comm.virtual_ranks(2, one_way, None, (8, 1000))
    assert reported == [["nccl", "nccl"]] * 2


@pytest.mark.skipif(REAL, reason="needs fake devices")
def test_without_peers_and_library_messages_go_through_the_host_and_say_why(
    monkeypatch: pytest.MonkeyPatch,
    use_settings: Callable[..., None],
) -> None:
    monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    use_settings(nccl="/nowhere/libnccl.so")
    assert comm.virtual_ranks(2, one_way, None, (8, 1000)) == [["host-staged", "host-staged"]] * 2

    def run() -> None:
        c = comm.current()
        x = on_device(np.zeros(4))
        end = c.persistent_send(x, 1) if c.rank == 0 else c.persistent_receive(x, 0)
        assert "not access each other" in end.why
        assert "/nowhere/libnccl.so" in end.why
        with pytest.raises(DeviceError, match="cannot be recorded in a graph"):
            if c.rank == 0:
                _core.GpuGraph(x.gpu, end.start)
            else:
                raise DeviceError("a receive cannot be recorded in a graph")
        c.barrier()
        with pytest.raises(DeviceError, match="cannot go by 'remote-write'"):
            c.persistent_send(x, 1 - c.rank, transport="remote-write")
        with pytest.raises(DeviceError, match="cannot go by 'nccl'"):
            c.persistent_send(x, 1 - c.rank, tag=1, transport="nccl")

    comm.virtual_ranks(2, run)


def both_ways(transport: str, ranks: int) -> None:
    """Everybody with everybody, several tags, started together; again and again, in a graph as well."""
    c = comm.current()
    gpu = open_gpu()
    tags, count = 6, 500
    out, into, ends = {}, {}, []
    for peer in range(ranks):
        for tag in range(tags):
            out[peer, tag] = on_device(np.zeros(count + tag, np.int64))
            into[peer, tag] = on_device(np.zeros(count + tag, np.int64))
            ends.append(
                c.persistent_send(out[peer, tag], peer, tag, transport=transport if tag % 2 else None)
            )
            ends.append(c.persistent_receive(into[peer, tag], peer, tag))

    def data(source: int, to: int, tag: int, number: int) -> Any:
        return pattern(source + 10 * to + 100 * tag, number, count + tag)

    def check(number: int) -> None:
        for (peer, tag), array in into.items():
            wanted = data(peer, c.rank, tag, number)
            assert np.array_equal(array.to_host(), wanted), (peer, tag, number)

    def prepare(number: int) -> None:
        for (peer, tag), array in out.items():
            fill(array, data(c.rank, peer, tag, number))

    order = ends if c.rank % 2 else ends[::-1]
    for number in range(3):
        prepare(number)
        c.start(order)
        check(number)
    graph = _core.GpuGraph(gpu, lambda: c.start(order))
    for number in range(3, 6):
        prepare(number)
        gpu.launch_graph(graph)
        gpu.launch_graph(graph)  # the same again
        check(number)
    prepare(6)
    c.start(order)  # counts went on in the graph
    check(6)
    gpu.synchronize()
    c.barrier()


@pytest.mark.parametrize(
    ("transport", "ranks"), [("remote-write", 2), ("copy-engine", 2), ("copy-engine", 3)]
)
def test_messages_between_all_ranks_both_ways_with_tags_and_graphs(transport: str, ranks: int) -> None:
    comm.virtual_ranks(ranks, both_ways, transport, ranks)


PROGRAMS = {
    ("remote-write", 1): ["stream 0: grant credit + await + put + announce + take"],
    ("copy-engine", 1): [
        "stream 0: grant credit + await",
        "stream 0: copy to rank {peer}",
        "stream 0: announce + take",
    ],
    ("copy-engine", 2): [
        "stream 0: grant credit + await",
        "stream 0: copy to rank {peer}",
        "stream 1: announce; after 'copy to rank {peer}'",
        "stream 0: copy to rank {peer}",
        "stream 1: announce; after 'copy to rank {peer}'",
        "stream 0: take",
        "stream 0: go on after 'announce'",
    ],
    ("nccl", 2): ["stream 0: a group of 4 messages of the library"],
    ("host-staged", 2): [
        "stream 0: the host copies and sends 2 messages",
        "stream 0: the host receives and copies 2 messages",
    ],
}


@pytest.mark.parametrize(("transport", "pairs"), PROGRAMS)
def test_a_start_says_what_it_puts_on_streams(transport: str, pairs: int, use_settings: Any) -> None:
    use_settings(message_transport=transport)

    def run() -> None:
        c = comm.current()
        peer = 1 - c.rank
        ends = []
        for tag in range(pairs):
            ends.append(c.persistent_send(on_device(np.zeros(8)), peer, tag))
            ends.append(c.persistent_receive(on_device(np.zeros(8)), peer, tag))
        assert c.explain_messages(ends).splitlines() == [
            line.format(peer=peer) for line in PROGRAMS[transport, pairs]
        ]

    comm.virtual_ranks(2, run)


def test_more_lists_of_messages_than_programs_are_kept_may_be_started() -> None:
    def run() -> None:
        c = comm.current()
        orders = list(itertools.permutations(range(5)))[:70]  # 64 programs are kept
        x, y = ([on_device(np.zeros(8)) for _ in range(5)] for _ in range(2))
        ends = [
            c.persistent_send(x[tag], 1, tag) if c.rank == 0 else c.persistent_receive(y[tag], 0, tag)
            for tag in range(5)
        ]
        for number, order in enumerate(orders + orders[:3]):
            for tag in order:
                fill(x[tag], np.full(8, 10.0 * number + tag))
            c.start([ends[tag] for tag in order])
            if c.rank == 1:
                assert [array.to_host()[0] for array in y] == [10.0 * number + tag for tag in range(5)]

    comm.virtual_ranks(2, run)


def in_turn(transport: str) -> None:
    """A round trip: a rank answers with what it got, on its stream alone, ten times in a graph."""
    c = comm.current()
    x = on_device(np.full(1000, c.rank, np.float32))
    y = on_device(np.zeros(1000, np.float32))
    there, back = (
        c.persistent_send(x, 1 - c.rank, 1, transport=transport),
        c.persistent_receive(y, 1 - c.rank, 1),
    )

    def trip() -> None:
        for _ in range(5):
            if c.rank == 0:
                there.start()
                back.start()
                x.gpu.copy(x.memory, y.memory)
            else:
                back.start()
                x.gpu.copy(x.memory, y.memory)
                there.start()

    c.start([there, back])
    trip()
    graph = _core.GpuGraph(x.gpu, trip)
    for _ in range(4):
        x.gpu.launch_graph(graph)
    # what rank 0 had at the beginning went round; rank 1's was overwritten
    assert np.all(x.to_host() == 0)
    assert np.all(y.to_host() == 0)
    c.barrier()


@pytest.mark.parametrize("transport", PEER)
def test_answers_wait_for_what_they_answer_on_the_stream_alone(transport: str) -> None:
    comm.virtual_ranks(2, in_turn, transport)


def test_more_messages_at_once_than_a_launch_takes() -> None:
    def run() -> None:
        c = comm.current()
        x = [on_device(np.full(40, 100 * c.rank + k)) for k in range(40)]
        y = [on_device(np.zeros(40, np.int64)) for _ in range(40)]
        ends = [c.persistent_send(a, 1 - c.rank, k, transport=PEER[k % 2]) for k, a in enumerate(x)]
        ends += [c.persistent_receive(a, 1 - c.rank, k) for k, a in enumerate(y)]
        for _ in range(3):
            c.start(ends)
        for k, a in enumerate(y):
            assert np.all(a.to_host() == 100 * (1 - c.rank) + k)
        c.barrier()

    comm.virtual_ranks(2, run)


def test_the_way_is_chosen_by_size_by_argument_and_by_setting(use_settings: Callable[..., None]) -> None:
    most = 4 << 20  # bytes that go by stores

    def run(expected: list[str]) -> None:
        c = comm.current()
        found = []
        for tag, (count, transport) in enumerate(
            [(most, None), (most + 1, None), (most + 1, "remote-write"), (5, "copy-engine")]
        ):
            x = on_device(np.zeros(count, np.uint8))
            if c.rank == 0:
                found.append(c.persistent_send(x, 1, tag, transport=transport).transport)
            else:
                found.append((end := c.persistent_receive(x, 0, tag)).transport)
                if transport is None and not settings.current().message_transport:
                    assert end.why == f"{count} bytes, and 'remote-write' is for up to {most} bytes"
        assert found == expected

    comm.virtual_ranks(2, run, ["remote-write", "copy-engine", "remote-write", "copy-engine"])
    use_settings(message_transport="copy-engine")
    comm.virtual_ranks(2, run, ["copy-engine", "copy-engine", "remote-write", "copy-engine"])


@pytest.mark.skipif(REAL, reason="needs a fake library")
def test_the_library_that_is_not_made_here_says_how_it_is() -> None:
    def run() -> None:
        c = comm.current()
        make = c.persistent_send if c.rank == 0 else c.persistent_receive
        with pytest.raises(
            DeviceError, match=r"jali.tune.experiment\(message_transport='nccl'\) on all ranks makes"
        ):
            make(on_device(np.zeros(4)), 1 - c.rank, transport="nccl").start()

    comm.virtual_ranks(2, run)


def test_ends_that_do_not_fit_are_refused_on_both_ranks() -> None:
    def run() -> None:
        c = comm.current()
        shape = (4, 5) if c.rank == 0 else (7,)
        x = on_device(np.zeros(shape, np.float32))
        end = c.persistent_send(x, 1, 3) if c.rank == 0 else c.persistent_receive(x, 0, 3)
        reported = (
            r"tag 3: rank 0's array of 80 bytes \(shape \(4, 5\), fp32\) sends, "
            r"but rank 1's array of 28 bytes \(shape \(7,\), fp32\) receives; make the arrays alike"
        )
        for _ in range(2):
            with pytest.raises(ParameterError, match=reported):
                end.start()
        y = on_device(np.zeros(8, np.float32 if c.rank == 0 else np.int32))
        end = c.persistent_send(y, 1, 3) if c.rank == 0 else c.persistent_receive(y, 0, 3)
        with pytest.raises(ParameterError, match=r"32 bytes \(shape \(8,\), int32\) receives"):
            end.start()
        end = (
            c.persistent_send(y, 1, 4, transport="copy-engine")
            if c.rank == 0
            else c.persistent_receive(x, 0, 4, transport="host-staged")
        )
        with pytest.raises(ParameterError):
            end.start()
        z = on_device(np.zeros(8))
        end = (
            c.persistent_send(z, 1, 4, transport="copy-engine")
            if c.rank == 0
            else c.persistent_receive(z, 0, 4, transport="host-staged")
        )
        with pytest.raises(
            ParameterError, match="by 'copy-engine' at its sender, and by 'host-staged' at its receiver"
        ):
            end.start()

    comm.virtual_ranks(2, run)


def test_arguments_are_checked() -> None:
    def run() -> None:
        c = comm.current()
        x = on_device(np.zeros(4))
        with pytest.raises(ParameterError, match="rank 2 does not exist among 2 ranks"):
            c.persistent_send(x, 2)
        with pytest.raises(ParameterError, match="tag -1"):
            c.persistent_receive(x, 0, -1)
        transports = "remote-write, copy-engine, nccl, gpu-aware-mpi, host-staged"
        for name in ("raven", "local", "rccl"):
            with pytest.raises(
                ParameterError,
                match=f"transport={name}: transports of a message on cuda devices are {transports}$",
            ):
                c.persistent_send(x, 1, transport=name)
        spec = next(spec for spec in settings.specs() if spec.name == "message_transport")
        assert all(name in spec.values for name in transports.split(", "))
        with pytest.raises(
            DeviceError, match="by 'gpu-aware-mpi': messages of transport 'thread' are copied"
        ):
            c.persistent_send(x, 1 - c.rank, 5, transport="gpu-aware-mpi")
        with pytest.raises(ParameterError, match="made once, by persistent_send"):
            c.send(x, 1 - c.rank)
        with pytest.raises(ParameterError, match="made once, by persistent_receive"):
            c.receive(x, 1 - c.rank)
        end = c.persistent_send(x, 1) if c.rank == 0 else c.persistent_receive(x, 0)
        with pytest.raises(ParameterError, match="started twice at once"):
            c.start([end, end])
        other = c.split(0)
        assert other is not None
        elsewhere = other.persistent_send(x, 1) if c.rank == 0 else other.persistent_receive(x, 0)
        with pytest.raises(
            ParameterError, match="<message .* rank [01], tag 0, 32 bytes.* of another communicator"
        ):
            c.start([end, elsewhere])
        staged = (
            c.persistent_send(x, 1, 2, transport="host-staged")
            if c.rank == 0
            else c.persistent_receive(x, 0, 2)
        )
        for one in (staged, *([] if c.rank == 0 else [end])):
            with pytest.raises(ParameterError, match="is none that is put into the memory of a peer"):
                one.copy_alone()

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.unproved("one end of a message to oneself is started alone, or by a graph")
def test_a_message_to_oneself_is_a_copy(ranks: int) -> None:
    def run() -> None:
        c = comm.current()
        x, y = on_device(np.arange(10) + c.rank), on_device(np.zeros(10, np.int64))
        lonely = c.persistent_send(x, c.rank, 8)
        with pytest.raises(ParameterError, match="has no other end on this rank"):
            lonely.start()
        there = c.persistent_send(x, c.rank, 7)
        back = c.persistent_receive(y, c.rank, 7)
        assert there.transport == back.transport == "local"
        for number in range(3):
            fill(x, np.arange(10) * number)
            c.start([back, there] if number % 2 else [there, back])
            assert np.array_equal(y.to_host(), np.arange(10) * number)
        graph = _core.GpuGraph(x.gpu, lambda: c.start([there, back]))
        fill(x, np.arange(10) + 50)
        x.gpu.launch_graph(graph)
        assert np.array_equal(y.to_host(), np.arange(10) + 50)
        there.start()
        with pytest.raises(ParameterError, match="started again before its other end"):
            there.start()

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.unproved("one end of a message to oneself is started alone, or by a graph")
def test_a_message_to_oneself_whose_other_end_is_gone_is_refused(sends: bool, started: bool) -> None:
    def run() -> None:
        c = comm.current()
        kept, goes = on_device(np.zeros(10)), on_device(np.ones(10))
        make = (c.persistent_send, c.persistent_receive)
        stays, other = make[sends](kept, 0, 3), make[not sends](goes, 0, 3)
        other.meet()
        stays.meet()
        if started:
            other.start()
        del other, goes
        another = on_device(np.full(10, 5.0))  # where that was
        with pytest.raises(
            ParameterError, match="other end of a message to oneself with tag 3 is gone; keep both"
        ):
            stays.start()
        assert np.all(kept.to_host() == 0)
        assert np.all(another.to_host() == 5)

    comm.virtual_ranks(1, run)


def test_messages_come_and_go_without_end() -> None:
    """Words of dropped messages are used again, and mean nothing to the next one."""

    def run() -> None:
        c = comm.current()
        x = on_device(np.zeros(100))
        for number in range(60):
            fill(x, np.full(100, float(number if c.rank == 0 else -1)))
            end = c.persistent_send(x, 1) if c.rank == 0 else c.persistent_receive(x, 0)
            for _ in range(number % 3):
                end.start()
            if number % 3 and c.rank == 1:
                assert np.all(x.to_host() == number)
            end.meet()
            del end
        c.barrier()

    comm.virtual_ranks(2, run)


def test_an_end_that_is_gone_before_the_other_was_made_does_not_meet_the_next_one() -> None:
    def run() -> None:
        c = comm.current()
        x, y = on_device(np.zeros(5)), on_device(np.full(7, 2.0 - c.rank))
        make = c.persistent_send if c.rank == 0 else c.persistent_receive
        make(x, 1 - c.rank)  # and gone
        end = make(y, 1 - c.rank)
        end.start()
        assert np.all(y.to_host() == 2)
        c.barrier()

    comm.virtual_ranks(2, run)


def left_alone(transport: str) -> None:
    c = comm.current()
    x = on_device(np.zeros(100))
    end = c.persistent_receive(x, 1, 2) if c.rank == 0 else c.persistent_send(x, 0, 2, transport=transport)
    end.start()
    x.gpu.synchronize()
    c.barrier()
    if c.rank == 1:
        raise ArithmeticError("rank 1 has had enough")
    end.start()  # waits on the device for a message that never comes
    with pytest.raises(RankError, match="rank 1 has had enough") as caught:
        x.to_host()
    raise caught.value


@pytest.mark.short(1)
@pytest.mark.parametrize("transport", PEER)
def test_a_rank_whose_device_waits_for_one_that_failed_stops(transport: str) -> None:
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        comm.virtual_ranks(2, left_alone, transport)
    until_idle()


def test_a_rank_that_waits_for_an_end_that_is_never_made_stops() -> None:
    def run() -> None:
        c = comm.current()
        x = on_device(np.zeros(100))
        c.device_messages(x.gpu)
        if c.rank == 1:
            raise ArithmeticError("rank 1 has had enough")
        with pytest.raises(RankError, match="rank 1 has had enough") as caught:
            c.persistent_receive(x, 1).start()
        raise caught.value

    with pytest.raises(ArithmeticError):
        comm.virtual_ranks(2, run)


def on_processes(text: str, environment: dict[str, str], ranks: int = 2, **options: str) -> list[str]:
    """Words that ranks which are processes print, each with a fake device; `t` in their text is this module."""
    text = "import test_device_messages as t\n" + text
    return run_on_devices(ranks, text, environment, **options).stdout.split()


@pytest.mark.mpi
def test_processes_send_both_ways_and_in_graphs(fake_environment: dict[str, str]) -> None:
    text = """
for way in t.PEER:
    t.both_ways(way, 2)
    t.in_turn(way)
    print(*t.one_way(way, (1, 1000)), *t.one_way("host-staged", (77,)), flush=True)
"""
    reported = on_processes(text, fake_environment)
    assert sorted(reported) == sorted(
        2 * ["remote-write", "remote-write", "host-staged", "copy-engine", "copy-engine", "host-staged"]
    )


def by_mpi(transport: str | None) -> list[str]:
    """The MPI library gets the addresses of arrays; in order with jali's stream, and never in a graph."""
    reported = one_way(transport, (0, 1, 13, 100_003))
    c = comm.current()
    x, y = on_device(np.full(1000, c.rank + 1.0)), on_device(np.zeros(1000))
    ends = [c.persistent_send(x, 1 - c.rank, 9, transport=transport), c.persistent_receive(y, 1 - c.rank, 9)]
    with pytest.raises(DeviceError, match="'gpu-aware-mpi' take the host, so that they cannot be recorded"):
        _core.GpuGraph(x.gpu, lambda: c.start(ends))
    c.check_messages(ends)
    for number in range(3):
        c.start(ends)
        x.gpu.copy(x.memory, y.memory)
        assert np.all(x.to_host() == (c.rank + number + 1) % 2 + 1)
    return [*reported, ends[0].transport]


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="its MPI library takes no addresses of real devices")
def test_processes_whose_mpi_library_takes_addresses_of_devices(fake_environment: dict[str, str]) -> None:
    environment = {**fake_environment, "JALI_GPU_AWARE_MPI": "1"}
    reported = on_processes("print(*t.by_mpi('gpu-aware-mpi'), flush=True)", environment)
    assert reported == ["gpu-aware-mpi"] * 10
    text = """
import jali
with jali.settings.using(nccl="/nowhere/libnccl.so"):
    print(*t.by_mpi(None), flush=True)
"""
    assert on_processes(text, {**environment, "JALI_FAKE_NO_PEERS": "1"}) == ["gpu-aware-mpi"] * 10


def interrupted_receive() -> str:
    """Rank 0 is interrupted while it waits for a message, drops its array and has another one in its place."""
    c = comm.current()
    x = on_device(np.full(1000, float(c.rank)))
    make = c.persistent_send if c.rank == 1 else c.persistent_receive
    end = make(x, 1 - c.rank, tag=3, transport="gpu-aware-mpi")
    end.meet()

    def interrupt(*_: Any) -> None:
        raise TimeoutError("enough")

    if c.rank == 0:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with contextlib.suppress(TimeoutError):
            end.start()
            raise AssertionError("nobody sends that")
        address = x.address
        del end, x
        x = on_device(np.full(1000, 5.0))
        assert x.address == address
    c.barrier()
    if c.rank == 1:
        end.start()
    for _ in range(100):  # so that the MPI library works
        c.barrier()
    assert np.all(x.to_host() == (5 if c.rank == 0 else 1))
    return "untouched"


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="its MPI library takes no addresses of real devices")
@pytest.mark.parametrize("shm", [pytest.param("0", marks=pytest.mark.full), "1"])
def test_what_comes_after_an_interrupt_does_not_land_in_memory_that_others_have(
    shm: str, fake_environment: dict[str, str]
) -> None:
    environment = {**fake_environment, "JALI_GPU_AWARE_MPI": "1", "JALI_SHM": shm}
    text, why = "print(t.interrupted_receive(), flush=True)", "one end of a message is started alone"
    assert on_processes(text, environment, unproved=why) == ["untouched"] * 2


@pytest.mark.mpi
@pytest.mark.full
def test_processes_without_peers_use_the_library(fake_environment: dict[str, str]) -> None:
    text = "t.both_ways(None, 2); print(*t.one_way(None, (1, 1000)), flush=True)"
    reported = on_processes(text, {**fake_environment, "JALI_FAKE_NO_PEERS": "1"})
    assert reported == ["nccl"] * 4


class Foreign:
    """Memory that another library has allocated: `bytes_` bytes, of which the array takes those from `offset` on."""

    def __init__(self, bytes_: int, offset: int) -> None:
        open_gpu()
        driver = ctypes.CDLL(os.environ["JALI_CUDA_DRIVER"])
        self.address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(bytes_)) == 0
        self.__cuda_array_interface__ = {
            "shape": (bytes_ - offset,),
            "typestr": "|i1",
            "data": (self.address.value + offset, False),
            "strides": None,
            "version": 3,
            "stream": 1,
        }


def from_elsewhere(transport: str, exported: bool) -> None:
    """Arrays of another library, which lie at odd addresses."""
    c, gpu = comm.current(), open_gpu()
    c.device_messages(gpu)
    if not exported:
        os.environ["JALI_FAKE_NOT_EXPORTED"] = "70001"
    x = Foreign(70001, 5)
    end = c.persistent_receive(x, 0) if c.rank else c.persistent_send(x, 1, transport=transport)
    address = x.__cuda_array_interface__["data"][0]
    for number in range(3):
        wanted = pattern(0, number, 69996).astype(np.uint8)
        if c.rank == 0:
            gpu.upload_address(address, wanted)
        end.start()
        got = np.empty(69996, np.uint8)
        gpu.download_address(address, got)
        assert np.array_equal(got, wanted), number
    if c.rank == 1:
        assert end.lands_beside == (not exported)
    c.barrier()


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="takes memory from a fake driver")
@pytest.mark.full
def test_arrays_of_other_libraries_at_odd_addresses_exported_or_not(fake_environment: dict[str, str]) -> None:
    for exported in (True, False):
        text = f"for way in t.PEER: t.from_elsewhere(way, {exported}); print(way, flush=True)"
        assert sorted(on_processes(text, fake_environment)) == [
            "copy-engine",
            "copy-engine",
            "remote-write",
            "remote-write",
        ]


def no_messages_yet() -> None:
    c = comm.current()
    other = 1 - c.rank
    x = on_device(np.zeros(3))
    messages = [c.persistent_send(x, other), c.persistent_receive(on_device(np.ones(3)), other)]
    with pytest.raises(ParameterError, match="has not met its other end"):
        messages[1].lands_beside  # noqa: B018
    with pytest.raises(ParameterError, match="messages are a list of ends"):
        c.start([*messages, None])  # type: ignore[list-item]
    c.start(messages)
    assert messages[1].array.to_host().tolist() == [0, 0, 0]


def test_none_is_no_message_and_what_has_not_met_is_none_yet() -> None:
    comm.virtual_ranks(2, no_messages_yet)
