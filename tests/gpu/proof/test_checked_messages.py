"""What drivers are given for persistent messages is proved to be in order, and seeded faults are found."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, run_on_devices, use_fake_ccl, use_fake_gpus
from test_device_messages import on_device

from jali import _core, comm
from jali.errors import ParameterError
from jali.tune import experiment

SIZE = 4096


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path) -> None:
    if REAL and _core.Gpu.count("cuda") < 3:
        pytest.skip("needs three GPUs")
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)


def ring(transport: str | None) -> list[Any]:
    """To the next rank, from the one before, twice, with one array that is sent in both; and one message to oneself."""
    c = comm.current()
    sent, mine = on_device(np.arange(SIZE, dtype=np.int8)), on_device(np.zeros(SIZE, np.int8))
    messages = []
    for tag in (3, 7):
        messages.append(c.persistent_send(sent, (c.rank + 1) % c.size, tag, transport=transport))
        messages.append(c.persistent_receive(on_device(np.zeros(SIZE, np.int8)), (c.rank - 1) % c.size, tag))
    messages += [c.persistent_send(sent, c.rank, 1), c.persistent_receive(mine, c.rank, 1)]
    return messages


def checked(transport: str | None) -> list[str]:
    messages = ring(transport)
    comm.current().check_messages(messages)
    comm.current().check_messages(messages[:4])
    assert all(m.array.to_host().tobytes() == np.arange(SIZE, dtype=np.int8).tobytes() for m in messages)
    return [m.transport for m in messages[:4]]


@pytest.mark.parametrize("transport", ["remote-write", "copy-engine", "nccl"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_are_in_order(transport, ranks):
    with experiment(message_transport=transport):
        ways = comm.virtual_ranks(ranks, checked, None)
    assert {w for of_rank in ways for w in of_rank} == {transport}


def test_messages_through_the_host_are_refused():
    def body() -> None:
        messages = ring("host-staged")
        with pytest.raises(ParameterError, match="goes through the host"):
            comm.current().check_messages(messages)

    comm.virtual_ranks(2, body)


def missed_without_a_call() -> list[str]:
    """Calls of a start by GPU-aware MPI that rank 0 could leave out, and nobody would see."""
    c = comm.current()
    messages = ring("gpu-aware-mpi")[:4]
    record = _core.recorded_messages(messages)
    calls = [k for k, (kind, *_) in enumerate(record.calls) if kind != "mark"]
    assert len(calls) == 3 * (2 + 4 + 1)  # the host waits for an event; messages; complete
    missed = []
    for k in calls:
        try:
            (record.without(k) if c.rank == 0 else record).check_together(c.core)
            missed.append(str(record.calls[k]))
        except RuntimeError:
            pass
    record.check_together(c.core)
    return missed


@pytest.mark.mpi
@pytest.mark.skipif(REAL, reason="its MPI library takes no addresses of real devices")
def test_what_is_missing_in_messages_of_an_mpi_library_is_found(fake_environment):
    text = "import test_checked_messages as t; print(t.missed_without_a_call(), flush=True)"
    done = run_on_devices(2, text, {**fake_environment, "JALI_GPU_AWARE_MPI": "1"})
    assert done.stdout.split() == ["[]", "[]"]


def into_one_array() -> str:
    """Two messages fill the same array, and nothing orders them."""
    c = comm.current()
    x = on_device(np.zeros(SIZE, np.int8))
    ends = [
        (c.persistent_send if c.rank == 0 else c.persistent_receive)(
            x, 1 - c.rank, tag, **({"transport": "remote-write"} if c.rank == 0 else {})
        )
        for tag in (0, 1)
    ]
    try:
        c.check_messages(ends)
    except RuntimeError as error:
        return str(error)
    return "nothing found"


def test_two_messages_into_one_array_are_found():
    reported = comm.virtual_ranks(2, into_one_array)
    assert reported[0] == reported[1]
    assert "writes 4096 bytes" in reported[0]
    assert "nothing orders them" in reported[0]


class In(ctypes.Structure):  # as in core/peers/message_kernels.hpp
    _fields_ = [(name, ctypes.c_int64) for name in ("ready", "arrived", "count")]


class Out(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in [
            "from",
            "to",
            "bytes",
            "ready",
            "arrived",
            "count",
            "done",
            "roles",
            "unit",
            "first_block",
            "blocks",
        ]
    ]


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("incoming", "outgoing", "steps", "watch")),
        ("received", In * 16),
        ("sent", Out * 16),
    ]


def mutants(record: _core.RecordedCalls, run: int) -> Iterator[tuple[str, _core.RecordedCalls]]:
    calls = record.calls
    runs = np.cumsum([(kind, name) == ("mark", "begin") for kind, name, _ in calls])
    mine = [k for k in range(len(calls)) if runs[k] == run and calls[k][0] != "mark"]
    for k in mine:
        kind, name, _ = calls[k]
        what = f"{k - mine[0]} {kind} {name}"
        yield f"no {what}", record.without(k)
        if kind in ("copy", "ccl send", "ccl receive"):
            to, source, size = record.addresses(k)
            yield f"shorter {what}", record.with_addresses(k, to, source, size - 1)
            moved = record.with_addresses(k, to and to + 1, source if to else source + 1, size)
            yield f"displaced {what}", moved
        if name != "pass_messages":
            continue
        whole = Arguments.from_buffer_copy(record.arguments(k))

        def other(
            change: Callable[[Arguments], None], k: int = k, whole: Arguments = whole
        ) -> _core.RecordedCalls:
            copy = Arguments.from_buffer_copy(bytes(whole))
            change(copy)
            return record.with_arguments(k, bytes(copy))

        for step in (1, 2):
            if whole.steps & step:
                yield (
                    f"{what}: no step {step}",
                    other(lambda a, step=step: setattr(a, "steps", a.steps & ~step)),
                )
        for m in range(whole.outgoing):
            for role in (1, 2, 4):
                if whole.sent[m].roles & role:
                    yield (
                        f"{what}: no role {role} of {m}",
                        other(lambda a, m=m, role=role: setattr(a.sent[m], "roles", a.sent[m].roles & ~role)),
                    )
        for entries, count in ((whole.sent, whole.outgoing), (whole.received, whole.incoming)):
            field = "sent" if entries is whole.sent else "received"
            for m in range(count):
                used = [("ready", whole.steps & 1), ("arrived", whole.steps & 2)]
                if entries is whole.sent:
                    roles = whole.sent[m].roles
                    used = [
                        ("ready", roles & 1),
                        ("to", roles & 2),
                        ("bytes", roles & 2),
                        ("arrived", roles & 4),
                    ]
                words = [word for word, uses in used if uses]
                for word in words:
                    value = getattr(entries[m], word)
                    for new in {getattr(entries[n], word) for n in range(count)} - {value} | (
                        {value - 8} if word == "bytes" else set()
                    ):
                        yield (
                            f"{what}: {field} {m} other {word}",
                            other(
                                lambda a, field=field, m=m, word=word, new=new: setattr(
                                    getattr(a, field)[m], word, new
                                )
                            ),
                        )


# Faults that change nothing, and why: way, fault.
EQUIVALENT = [
    (
        "copy-engine",
        r"0 .*: no role 1 of \d",
        "the one launch waits for the other array of the same rank, granted credit by one launch, too",
    ),
    (
        "copy-engine",
        r"no [23] .*",
        "the second message, which the receiver awaits too, is announced after both copies",
    ),
    (
        "copy-engine",
        r"9 .*: received \d other arrived",
        "both messages of a rank are announced after both copies",
    ),
]


def recorded(transport: str) -> _core.RecordedCalls:
    messages = ring(transport)[:4]
    return _core.recorded_messages(messages)


@pytest.mark.skipif(REAL, reason="the same on every driver")
@pytest.mark.parametrize("transport", ["remote-write", "copy-engine"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_seeded_faults_are_found(transport, ranks):
    records = comm.virtual_ranks(ranks, recorded, transport)
    _core.check_recorded(records)
    found: dict[str, bool] = {}
    for run in (2, 3):
        for what, mutant in mutants(records[0], run):
            found.setdefault(what, False)
            try:
                _core.check_recorded([mutant, *records[1:]])
            except RuntimeError:
                found[what] = True
    harmless = [fault for of, fault, _ in EQUIVALENT if of == transport]
    missed = [what for what, one in found.items() if not one]
    assert [what for what in missed if not any(re.fullmatch(fault, what) for fault in harmless)] == []
    assert len(found) > 10


@pytest.mark.skipif(REAL, reason="the same on every driver")
def test_starts_are_proved_once_by_the_ranks_that_they_connect():
    """Two of four ranks take part; the others need not know."""

    def body() -> None:
        c = comm.current()
        x = on_device(np.full(SIZE, c.rank, np.int8))
        if c.rank > 1:
            return
        end = c.persistent_send(x, 1) if c.rank == 0 else c.persistent_receive(x, 0)
        for _ in range(3):
            end.start()
        assert np.all(x.to_host() == 0)

    def all_ranks() -> None:
        comm.current().device_messages(_core.Gpu.open("cuda", comm.current().rank))
        body()

    before, _ = _core.first_runs()
    comm.virtual_ranks(4, all_ranks)
    assert _core.first_runs()[0] == before + 2


@pytest.mark.skipif(REAL, reason="unasked, first runs are proved on stand-ins for devices only")
def test_ranks_that_start_other_messages_at_once_hear_of_it():
    def body() -> None:
        c = comm.current()
        x, y = (on_device(np.zeros(SIZE, np.int8)) for _ in range(2))
        ends = [
            c.persistent_send(z, 1, tag) if c.rank == 0 else c.persistent_receive(z, 0, tag)
            for tag, z in enumerate((x, y))
        ]
        with pytest.raises(ParameterError, match="ranks start the same messages with each other at once"):
            c.start(ends[: 2 - c.rank])

    comm.virtual_ranks(2, body)


@pytest.mark.skipif(REAL, reason="needs four devices")
@pytest.mark.parametrize("wrong", [False, True])
def test_ranks_at_both_ends_of_a_chain_look_at_starts_together(wrong: bool) -> None:
    """Each knows its neighbours alone; what the first one does wrong, the last one hears."""

    def body() -> None:
        c = comm.current()
        x, y = on_device(np.full(SIZE, c.rank, np.int8)), on_device(np.zeros(SIZE, np.int8))
        ends = [c.persistent_send(x, c.rank + 1, 2)] if c.rank + 1 < c.size else []
        ends += [c.persistent_receive(y, c.rank - 1, 2)] if c.rank > 0 else []
        if not wrong:
            c.check_messages(ends)
            assert c.rank == 0 or np.all(y.to_host() == c.rank - 1)
            return
        x = on_device(np.zeros(SIZE, np.int8))
        more = (
            c.persistent_send(x, 1, 3)
            if c.rank == 0
            else c.persistent_receive(x, 0, 3)
            if c.rank == 1
            else None
        )
        reported = (
            "rank 0 starts a message from rank 0 to rank 1 with tag 3 1 time, rank 1 does so 0 times: ranks start the "
            "same messages with each other at once, if these are looked at"
        )
        with pytest.raises(ParameterError) as caught:
            c.check_messages(ends if more is None or c.rank == 1 else [*ends, more])
        assert str(caught.value) == reported

    def all_ranks() -> None:
        comm.current().device_messages(_core.Gpu.open("cuda", comm.current().rank))
        body()

    comm.virtual_ranks(4, all_ranks)
