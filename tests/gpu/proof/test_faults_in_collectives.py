"""Faults that are seeded into what drivers are given for collectives are found, or change nothing (`collective_machine`)."""

from __future__ import annotations

import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from collective_machine import (
    ENTRIES,
    HEAD,
    SMALL,
    Block,
    Entry,
    Memory,
    WrongError,
    entries_of,
    head_of,
    run_launches,
)
from fake_driver import REAL
from test_checked_collectives import call_of, four_devices, recorded, there

from jali import _core, comm

__all__ = ["four_devices"]  # a fixture


def is_looked_at(entry: dict[str, int], table: str, word: str, wire: str, opens_round: bool) -> bool:
    """Whether the kernel reads this word of an entry (prelude/collective.hpp)."""
    if word == "unused":
        return False
    if word.endswith(("offset", "packet")) and table in ("instructions", "sources"):
        where = entry[word.rpartition(" ")[0] + " where" if " " in word else "where"]
        return (where >= 0) == word.endswith("offset")
    if word in ("first_action", "actions", "first_wait", "waits"):
        return wire == "slotted" and entry["meets"] != 0
    if word == "meets":
        return wire == "slotted"
    if word == "together":
        return wire == "flagged" and opens_round
    return True


def table_words(table: bytes, head: Entry, wire: str) -> Iterator[tuple[str, int, int, int, set[int]]]:
    """(what, byte, bytes, value, other values to try) of each word that the kernel reads."""
    at, left = 0, 0
    for name, entries in entries_of(table, head).items():
        for number, entry in enumerate(entries):
            opens = name == "instructions" and left == 0
            left = (entry.get("together", 0) if opens else left) - 1
            for word, size in ENTRIES[name]:
                value = entry[word]
                if is_looked_at(entry, name, word, wire, opens):
                    others = {other[word] for other in entries} | {value + d for d in (1, -1, 16, -16)}
                    if word == "meets" or (word == "kind" and name == "waits"):
                        others = {int(value == 0)}  # all others are alike
                    yield f"{name} {number} {word}", at, size, value, others - {value}
                at += size
    assert at == 8 * head["table_words"]


def mutants(record: _core.RecordedCalls, wire: str, ranks: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The record with one fault each, as what it is and how it is made."""
    calls = record.calls
    launches = [k for k, (_, name, _) in enumerate(calls) if name == "collective"]
    for what, k in (("first", launches[0]), ("second", launches[1]), ("last", launches[-1])):
        yield f"no {what} launch", lambda k=k: record.without(k)
        yield f"{what} launch twice", lambda k=k: record.with_call_repeated(k)
    data = record.arguments(launches[0])
    head, table = head_of(data), table_of(record, data)
    small = head["table_words"] <= SMALL

    def given(arguments: Callable[[bytes], bytes], at: list[int]) -> _core.RecordedCalls:
        other = record
        for k in at:
            other = other.with_arguments(k, arguments(record.arguments(k)))
        return other

    for number, word in enumerate(HEAD):
        # who gives up, and what overflows, concerns neither order nor bytes
        used = head[word] != 0 if word.startswith("buffer") else word not in ("watch", "overflows")
        used = used and not (word == "table" and small) and not (word == "own_memory" and wire == "slotted")
        used = used and not (word in ("arrived", "leads", "first_last_action") and wire == "flagged")
        for change in (1, -1, 8, 16) if used else ():

            def changed(arguments: bytes, number: int = number, change: int = change) -> bytes:
                words = np.frombuffer(arguments, np.int64).copy()
                words[number] += change
                return words.tobytes()

            yield f"{word} {change:+d}", lambda changed=changed: given(changed, launches)

    begin = 8 * len(HEAD)
    for what, at, size, value, others in table_words(table, head, wire):
        for new in others:
            bits = int(new).to_bytes(size, sys.byteorder, signed=True)
            other = table[:at] + bits + table[at + size :]

            def in_table(other: bytes = other) -> _core.RecordedCalls:
                if not small:
                    return record.with_memory(head["table"], other)
                return given(lambda a: a[:begin] + other + a[begin + len(other) :], launches)

            yield f"{what}: {new} for {value}", in_table
    sent, received = np.frombuffer(table[-8 * ranks :], np.int32).reshape(ranks, 2).T
    mine, somebody = head["own_memory"], (sent + received > 0) | (np.arange(ranks) == head["rank"])
    addresses = [  # where, how words go on from rank to rank, whose are looked at, what could be there
        ("numbers", head["numbers"], 1, np.ones(2 * ranks, bool), (1, -1, 16)),
        ("memories", head["memories"], 1, somebody, (1, -1, 16)),
        ("freed", mine + head["freed"], 1, sent > 0, (16, -16)),
    ]
    if wire == "slotted":
        addresses.append(("arrived", mine + head["arrived"], head["slots"], received > 0, (16,)))
    for what, start, each, looked_at, changes in addresses:
        words = np.frombuffer(record.memory[start], np.int64)
        for number in range(len(words)):
            for change in changes if looked_at[number // each % len(looked_at)] else ():
                other = words.copy()
                other[number] += change
                yield (
                    f"{what} {number} {change:+d}",
                    lambda start=start, other=other: record.with_memory(start, other.tobytes()),
                )


def table_of(record: _core.RecordedCalls, arguments: bytes) -> bytes:
    head = head_of(arguments)
    size, begin = 8 * head["table_words"], 8 * len(HEAD)
    return arguments[begin : begin + size] if head["table_words"] <= SMALL else record.memory[head["table"]]


@dataclass
class Recorded:
    """What one rank's driver was given."""

    calls: _core.RecordedCalls
    wire: str
    sizes: list[int]  # bytes of the buffers of the user


def recorded_with_sizes(name: str, spec: str, count: int, more: dict[str, Any]) -> Recorded:
    plan = there().plan_of(call_of(name, spec, count, **more))
    sizes = [plan.bytes_of(k) for k in range(plan.user_buffers)]
    return Recorded(recorded(name, spec, count, **more), plan.program().wire, sizes)


def launches_of(calls: _core.RecordedCalls) -> list[bytes]:
    names = [name for _, name, _ in calls.calls]
    return [calls.arguments(k) for k, name in enumerate(names) if name == "collective"]


def outcome(ranks: list[Recorded], calls: list[_core.RecordedCalls], seed: int) -> list[bytes]:
    """What the users' buffers hold after every run of every rank, where threads take turns at random. Raises WrongError.

    Memory lies where `ranks` have it; `calls` are theirs, with faults perhaps.
    """
    memory, results = Memory(), {}
    addresses = []  # of the user's buffers
    for one in ranks:
        head = head_of(launches_of(one.calls)[0])
        entries = entries_of(table_of(one.calls, launches_of(one.calls)[0]), head)
        queues = head["queues"] + CHANNELS * len(ranks) * head["slots"] * head["slot_bytes"]
        memory.add(head["own_memory"], np.zeros(queues, np.uint8))
        used: dict[int, int] = defaultdict(int)
        for i in entries["instructions"]:
            sources = entries["sources"][i["first_source"] :][: i["sources"]]
            for where, at in [(i["to where"], i["to offset"]), *((o["where"], o["offset"]) for o in sources)]:
                used[where] = max(used[where], at + i["bytes"])
        addresses.append([head[f"buffer {b}"] for b in range(len(one.sizes))])
        for b in range(16):
            size = one.sizes[b] if b < len(one.sizes) else -(-used[b] // 256) * 256  # as allocations are
            memory.add(head[f"buffer {b}"], np.zeros(size, np.uint8))
    for rank_calls in calls:
        for address, contents in rank_calls.memory.items():
            try:
                memory.at(address, len(contents))[:] = np.frombuffer(contents, np.uint8)
            except WrongError:
                memory.add(address, np.frombuffer(contents, np.uint8).copy())

    def launches(rank: int) -> Iterator[list[Block]]:
        buffers = [
            memory.at(at, size) for at, size in zip(addresses[rank], ranks[rank].sizes, strict=True) if size
        ]
        for run, arguments in enumerate(launches_of(calls[rank])):
            for b, contents in enumerate(buffers):  # other numbers in every run
                rng = np.random.default_rng((rank, run, b))
                contents[:] = rng.integers(0, 9, len(contents) // 4).astype(np.float32).view(np.uint8)
            table = table_of(calls[rank], arguments)
            channels = head_of(arguments)["channels"]
            yield [Block(memory, arguments, table, ranks[rank].wire, c) for c in range(channels)]
            results[rank, run] = b"".join(contents.tobytes() for contents in buffers)

    run_launches([launches(rank) for rank in range(len(ranks))], seed)
    return [results[key] for key in sorted(results)]


CHANNELS = 5  # of which three stand for all
SMALL_QUEUES = (
    f"channels={CHANNELS},slot_bytes=32,flagged_bytes=32,flagged_slots=4,flagged_below=96,"
    "flagged_below_combining=96,bytes_per_channel=16"
)
SHAPES = {  # collective, way, elements per rank, ranks, more
    "flagged pair": ("all_reduce", "two_step", 37, 2, {}),
    "flagged rounds": ("all_reduce", "recursive_doubling", 19, 4, {}),
    "flagged ring": ("reduce_scatter", "ring", 23, 3, {}),
    "slotted pair": ("all_reduce", "two_step", 199, 2, {}),
    "slotted chain": ("broadcast", "chain", 111, 3, {}),
    "slotted ring": ("all_gather", "ring", 87, 4, {}),
    "slotted, large table": ("all_reduce", "two_step", 331, 4, {}),  # which does not fit among the arguments
    "uneven": ("all_to_all", "direct", 87, 3, {"uneven": True}),
    "in order": ("reduce", "direct", 87, 3, {"reproducible": True}),
}
LONG = ("slotted ring", "slotted, large table")  # of which a run takes long
SAID_OTHERWISE = (
    "what is waited for is said by another message of that rank too, or comes without this one's help"
)
SAID_LATER = "what is said later says this as well, and nobody stands still till then"
EQUIVALENT = [  # faults that change nothing, and why: shape, fault
    (".*", r"leads \+1", "one more instruction is done an iteration ahead"),
    ("slotted.*", r"first_last_action \+1", SAID_LATER),
    (".*", r"instructions \d+ meets: 1 for 0", "the threads meet once more"),
    (".*", r"instructions \d+ meets: 0 for 1", "nothing but room is waited for there: " + SAID_OTHERWISE),
    (".*", r"instructions \d+ (first_wait|waits): .*", SAID_OTHERWISE),
    (".*", r"waits \d+ (kind: 0 for 1|peer|packet).*", SAID_OTHERWISE),
    (".*", r"instructions \d+ (first_action|actions): .*", SAID_LATER),
    (".*", r"actions \d+ (ahead|packet): .*", SAID_LATER),
    (
        "slotted ring",
        r"sources \d+ where: -\d for \d",
        "the message that was stored there, still in its slot",
    ),
    (".*", r"(freed|arrived) \d+ .*", SAID_OTHERWISE),
    (".*", r"instructions \d+ chunk: .*", "a copy within a rank, in other slices"),
    (".*", r"instructions \d+ first_source: .*", "the other entry says the same"),
    ("flagged rounds", r"buffer 2 .*", "the scratch is not used to its end, so it may begin later"),
]


@pytest.mark.short(2)
@pytest.mark.skipif(REAL, reason="the same on every driver")
@pytest.mark.parametrize("most", [100, pytest.param(10**6, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=pytest.mark.full if s in LONG else ()) for s in SHAPES]
)
def test_seeded_faults_are_found(shape, most, use_settings):
    """And what is not found changes no byte, in whatever order threads take turns."""
    use_settings(device_queues=SMALL_QUEUES)
    name, spec, count, size, more = SHAPES[shape]
    ranks = comm.virtual_ranks(size, recorded_with_sizes, name, spec, count, more)
    assert {one.wire for one in ranks} == {"flagged" if shape.startswith("flagged") else "slotted"}
    right = [one.calls for one in ranks]
    assert head_of(launches_of(right[0])[0])["channels"] == CHANNELS
    assert (head_of(launches_of(right[0])[0])["table_words"] > SMALL) == shape.endswith("large table")
    _core.check_recorded(right)
    wanted = outcome(ranks, right, 0)
    assert outcome(ranks, right, 1) == wanted
    faults = [
        (rank, what, make)
        for rank in range(size)
        for what, make in mutants(right[rank], ranks[rank].wire, size)
    ]
    faults = random.Random(1).sample(faults, min(most, len(faults)))
    missed, found = [], []
    for rank, what, make in faults:
        calls = [*right[:rank], make(), *right[rank + 1 :]]
        try:
            _core.check_recorded(calls)
            missed.append((rank, what, calls))
        except RuntimeError:
            found.append(calls)
    known = [fault for of, fault, _ in EQUIVALENT if re.fullmatch(of, shape)]
    assert [what for _, what, _ in missed if not any(re.fullmatch(fault, what) for fault in known)] == []
    assert len(found) > 4 * len(missed)
    for rank, what, calls in missed[: 100 if most > len(faults) else 6]:
        for seed in range(2):
            assert outcome(ranks, calls, seed) == wanted, (rank, what)
    assert any(
        goes_wrong(ranks, calls, wanted) for calls in found[:12]
    )  # the second reading sees what happens


def goes_wrong(ranks: list[Recorded], calls: list[_core.RecordedCalls], wanted: list[bytes]) -> bool:
    try:
        return outcome(ranks, calls, 0) != wanted
    except WrongError:
        return True


def library_calls() -> _core.RecordedCalls:
    return recorded("all_reduce", "two_step", 333)


def faults_of_messages(record: Any) -> Iterator[tuple[str, Any]]:
    """Of messages that others than kernels carry, and of the launches around them."""
    for k, (kind, name, _) in enumerate(record.calls):
        if kind in ("ccl send", "ccl receive", "copy"):
            to, source, size = record.addresses(k)
            yield f"{k} shorter {kind}", record.with_addresses(k, to, source, size - 4)
            yield (
                f"{k} {kind} elsewhere",
                record.with_addresses(k, to and to + 4, source and source + 4, size),
            )
        if kind in ("ccl send", "ccl receive", "copy") or name in ("collective", "pass_messages"):
            yield f"no {k} {kind}", record.without(k)


@pytest.mark.skipif(REAL, reason="the same on every driver")
@pytest.mark.parametrize("transport", ["nccl", "copy-engine"])
def test_seeded_faults_in_messages_between_launches_are_found(transport, use_settings):
    use_settings(device_transport=transport)
    records = comm.virtual_ranks(3, library_calls)
    _core.check_recorded(records)
    found = 0
    for _, fault in faults_of_messages(records[0]):
        with pytest.raises(RuntimeError):
            _core.check_recorded([fault, *records[1:]])
        found += 1
    assert found > 20
