"""What drivers are given for collectives is proved to do what their composition says, and seeded faults are found."""

from __future__ import annotations

import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collective_machine import (
    HEAD,
    ROWS,
    SMALL,
    Block,
    Memory,
    Row,
    WrongError,
    head_of,
    rows_of,
    run_launches,
)
from fake_driver import REAL, run_on_devices, use_fake_ccl, use_fake_gpus

from jali import _core, comm
from jali.comm import DeviceArray, algorithms
from jali.comm.calls import Call
from jali.comm.device_collectives import DeviceCollectives
from jali.devices import open_device

REDUCES = ("all_reduce", "reduce", "reduce_scatter")
UNEVEN = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
# small queues: a few KiB take several channels and iterations, and a few runs go round
QUEUES = "channels=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,flagged_below_combining=2048,bytes_per_channel=256"


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path) -> None:
    if REAL and _core.Gpu.count("cuda") < 4:
        pytest.skip("needs four GPUs")
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)
    use_settings(device_queues=QUEUES)


def call_of(
    name: str,
    way: str,
    count: int,
    dtype: str = "fp32",
    *,
    op: str = "sum",
    in_place: bool = False,
    reproducible: bool = False,
    uneven: bool = False,
) -> Call:
    """A call on the ranks of this thread's communicator; `count` elements per rank, other numbers on each if uneven."""
    ranks = comm.current().size
    elements: int | tuple[int, ...] = count
    if uneven and name == "all_to_all":
        elements = tuple((count + i + 2 * j) % (count + 1) for i in range(ranks) for j in range(ranks))
    elif uneven:
        elements = tuple((count + 3 * r) % (count + 2) for r in range(ranks))
    return Call(name, dtype, elements, ranks - 1, op, in_place, way, reproducible)


def there() -> DeviceCollectives:
    c = comm.current()
    return c.collectives.on_device(open_device("cuda", c))


def arrays_for(plan: _core.GpuPlan) -> tuple[Any, ...]:
    """An array of the right size for every buffer of a plan, of small numbers."""
    sizes = [plan.bytes_of(k) for k in range(plan.user_buffers)]
    return tuple(
        DeviceArray.from_host(np.arange(n, dtype=np.uint8) % 60, plan.gpu) if n else None for n in sizes
    )


def recorded(*arguments: Any, **named: Any) -> _core.RecordedCalls:
    """What this rank's driver is given for a call (as `call_of`)."""
    call = call_of(*arguments, **named)
    plan = there().plan_of((call, False))
    return there().recorded(call, plan, arrays_for(plan))


def checked(*arguments: Any, **named: Any) -> None:
    recorded(*arguments, **named).check_together(comm.current().core)


def ways_of(name: str) -> list[str]:
    rows = algorithms.rows(name, on_device=True)
    return [row.name for row in rows if row.name not in ("ccl", "staged")]


def all_ways(name: str, counts: list[int], dtypes: list[str]) -> set[str]:
    """Proves every way of a collective; the wires that they took."""
    wires = set()
    for way in ways_of(name):
        for count in counts:
            for dtype in dtypes:
                checked(name, way, count, dtype)
                if name in UNEVEN:
                    checked(name, way, count, dtype, uneven=True)
                call = call_of(name, way, count, dtype)
                wires.add(there().plan_of((call, False)).program().wire)
    return wires


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_every_way_of_a_collective_is_proved(name, ranks):
    """Both wires; one element, odd numbers, several channels, several iterations."""
    counts = [1, 7, 333, 5003]
    for wires in comm.virtual_ranks(ranks, all_ways, name, counts, ["fp32"]):
        assert wires == {"flagged", "slotted"}


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_every_way_of_a_collective_is_proved_for_other_types(name, ranks):
    comm.virtual_ranks(ranks, all_ways, name, [5, 100, 1023, 12345], ["fp64", "uint8", "fp16", "complex128"])


def further_calls() -> None:
    for way in ways_of("all_reduce"):
        checked("all_reduce", way, 777, "fp64", reproducible=True)
        checked("all_reduce", way, 4000, "fp16", reproducible=True)
        checked("all_reduce", way, 100, op="avg")
        checked("all_reduce", way, 3333, op="max", in_place=True)
    for name in ("broadcast", "reduce", "all_gather", "reduce_scatter"):
        for way in ways_of(name):
            checked(name, way, 500, in_place=True)
            checked(name, way, 5000, in_place=True)


def test_averages_orders_and_calls_in_place_are_proved():
    comm.virtual_ranks(4, further_calls)


def test_one_rank_is_proved():
    comm.virtual_ranks(1, all_ways, "all_reduce", [333], ["fp32"])


def after_messages_of_some() -> None:
    """Few channels of few ranks have passed messages before: channels begin in other ways, and other ones on other ranks."""
    c = comm.current()
    for count, root, leaf in ((90, 0, 1), (250, 2, 0), (90, 2, 3), (700, 3, 1), (2000, 1, 2), (1500, 3, 0)):
        composition = comm.Composition(c.size, "float32")
        data = composition.buffer("data", count)
        composition.multicast(data[0:count], data[0:count], root=root, leaves=[leaf])
        plan = composition.plan().on(c)
        x = DeviceArray.from_host(np.full(count, c.rank, np.float32), there().gpu)
        plan.check(x)
        plan.run(x)
        assert x.to_host()[-1] == (root if c.rank == leaf else c.rank)
    for count in (50, 333, 5003):
        checked("all_reduce", "two_step", count)
        checked("all_to_all", "direct", count)


def test_channels_that_begin_in_different_ways_are_proved():
    comm.virtual_ranks(4, after_messages_of_some)


# ---- what users have --------------------------------------------------------------------------------------


def calls_in_checked_mode() -> list[bytes]:
    c = comm.current()
    results = []
    for count in (50, 4001):
        x = np.random.default_rng(c.rank).integers(0, 9, count * c.size).astype(np.float32)
        for name in algorithms.COLLECTIVES:
            if name == "scatter":
                out = DeviceArray.from_host(np.zeros(count, np.float32), open_device("cuda", c))
                host = np.zeros(count, np.float32)
                whole = DeviceArray.from_host(x, out.gpu) if c.rank == 0 else None
                for _ in range(2):
                    c.scatter(whole, out)
                c.scatter(x if c.rank == 0 else None, host)
                assert out.to_host().tobytes() == host.tobytes()
                continue
            there_x = DeviceArray.from_host(x, open_device("cuda", c))
            for _ in range(2):
                got = getattr(c, name)(there_x)
            wanted = getattr(c, name)(x.copy())
            assert (got is None) == (wanted is None)
            if got is not None:
                assert got.to_host().tobytes() == wanted.tobytes(), name
            results.append(there_x.to_host().tobytes())
    return results


def test_checked_mode_proves_every_collective_once_and_changes_nothing(monkeypatch, use_settings):
    told: list[tuple[int, str, int]] = []
    original = DeviceCollectives.recorded

    def counted(self: DeviceCollectives, call: tuple[Any, ...], plan: Any, arrays: Any) -> Any:
        of = Call._make(call)
        told.append((self.owner.rank, of.collective, int(of.elements)))
        return original(self, call, plan, arrays)

    monkeypatch.setattr(DeviceCollectives, "recorded", counted)
    use_settings(checked=True)
    comm.virtual_ranks(3, calls_in_checked_mode)
    assert len(told) == len(set(told)) == 3 * 2 * len(algorithms.COLLECTIVES)
    told.clear()
    use_settings(checked=False)
    comm.virtual_ranks(3, calls_in_checked_mode)
    assert told == []


@pytest.mark.mpi
def test_collectives_of_processes_are_proved(fake_environment):
    """Ranks see each other's memory under other addresses."""
    text = "import test_checked_collectives as t; t.calls_in_checked_mode(); print('proved')"
    experiments = "import jali; jali.settings.use(device_queues='" + QUEUES + "'); "
    done = run_on_devices(2, experiments + text, fake_environment | {"JALI_CHECKED": "1"})
    assert done.stdout.split() == ["proved"] * 2, done.stderr


def composition_of_the_user(libraries: list[str] | None) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    composition = comm.Composition.standard("all_reduce", 4, 401, dtype="float64", form="composed")
    plan = composition.plan(hierarchy=(2, 2), libraries=libraries or ["", ""])
    x = np.arange(401.0) + c.rank
    here, out = DeviceArray.from_host(x, gpu), DeviceArray.from_host(np.full(401, 7.0), gpu)
    plan.on(c).check(here, out)
    assert np.array_equal(here.to_host(), x)
    assert np.array_equal(out.to_host(), np.full(401, 7.0))
    plan.on(c).run(here, out)
    assert np.array_equal(out.to_host(), 4 * np.arange(401.0) + 6)
    if libraries is None:
        plan.on(c).check(x, np.zeros(401))


@pytest.mark.skipif(REAL, reason="the library's own tests run it on hardware")
@pytest.mark.parametrize("libraries", [None, ["peer", "ccl"], ["ccl", "peer"], ["ccl", "ccl"]])
def test_plans_of_the_user_are_checked_as_they_run(libraries):
    comm.virtual_ranks(4, composition_of_the_user, libraries)


@pytest.mark.skipif(REAL, reason="the library's own tests run it on hardware")
@pytest.mark.parametrize("name", ["all_reduce", "all_to_all"])
def test_messages_of_the_library_are_proved(name, use_settings):
    use_settings(device_carrier="ccl")
    comm.virtual_ranks(4, all_ways, name, [7, 333], ["fp32"])


def against(name: str, plan: dict[str, Any], meaning: dict[str, Any]) -> str:
    """What is found when a call's plan is held against the meaning of another."""
    way = ways_of(name)[0]
    mine = call_of(name, way, 400, **plan)
    other = call_of(name, way, 400, **meaning)
    if "root" in meaning:
        other = other._replace(root=0)
    c, of = comm.current(), there()
    made = of.plan_of((mine, False))
    composition = of.owner.composition(other, algorithms.algorithm(way, name))
    record = made.recorded(arrays_for(made), composition, other.reproducible, c.core)
    try:
        record.check_together(c.core)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "plan", "meaning", "says"),
    [
        ("all_reduce", {"op": "sum"}, {"op": "max"}, "the sum of byte .* instead of the max of"),
        ("all_reduce", {"op": "avg"}, {"op": "sum"}, "divided by 3 instead of"),
        ("all_gather", {}, {"dtype": "fp32"}, ""),
    ],
)
def test_what_a_plan_does_is_held_against_its_composition(name, plan, meaning, says):
    told = comm.virtual_ranks(
        3, against, name, plan, {k: v for k, v in meaning.items() if k != "op"} | meaning
    )
    assert len(set(told)) == 1
    if says:
        assert re.search(says, told[0]), told[0]
    else:
        assert told[0] == ""


def test_a_plan_that_is_not_reproducible_is_told_from_one_that_is():
    def run() -> str:
        name, way = "all_reduce", "recursive_doubling"
        of, c = there(), comm.current()
        made = of.plan_of((call_of(name, way, 100), False))
        call = call_of(name, way, 100, reproducible=True)
        composition = of.owner.composition(call, algorithms.algorithm(way, name))
        try:
            made.recorded(arrays_for(made), composition, True, c.core).check_together(c.core)
        except RuntimeError as error:
            return str(error)
        return ""

    assert "instead of the sum of" in comm.virtual_ranks(4, run)[0]


# ---- seeded faults ----------------------------------------------------------------------------------------


def is_looked_at(row: dict[str, int], table: str, word: str, wire: str, opens_round: bool) -> bool:
    """Whether the kernel reads this word of a row (prelude/collective.hpp)."""
    if word == "unused":
        return False
    if word.endswith(("offset", "packet")) and table in ("instructions", "sources"):
        where = row[word.rpartition(" ")[0] + " where" if " " in word else "where"]
        return (where >= 0) == word.endswith("offset")
    if word in ("first_action", "actions", "first_wait", "waits"):
        return wire == "slotted" and row["meets"] != 0
    if word == "meets":
        return wire == "slotted"
    if word == "together":
        return wire == "flagged" and opens_round
    return True


def table_words(table: bytes, head: Row, wire: str) -> Iterator[tuple[str, int, int, int, set[int]]]:
    """(what, byte, bytes, value, other values to try) of each word that the kernel reads."""
    at, left = 0, 0
    for name, rows in rows_of(table, head).items():
        for number, row in enumerate(rows):
            opens = name == "instructions" and left == 0
            left = (row.get("together", 0) if opens else left) - 1
            for word, size in ROWS[name]:
                value = row[word]
                if is_looked_at(row, name, word, wire, opens):
                    others = {other[word] for other in rows} | {value + d for d in (1, -1, 16, -16)}
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
        used = head[word] != 0 if word.startswith("buffer") else word not in ("abandoned", "overflows")
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
    places = [  # where, how words go on from rank to rank, whose are looked at, what could be there
        ("numbers", head["numbers"], 1, np.ones(2 * ranks, bool), (1, -1, 16)),
        ("memories", head["memories"], 1, somebody, (1, -1, 16)),
        ("freed", mine + head["freed"], 1, sent > 0, (16, -16)),
    ]
    if wire == "slotted":
        places.append(("arrived", mine + head["arrived"], head["slots"], received > 0, (16,)))
    for what, place, each, looked_at, changes in places:
        words = np.frombuffer(record.memory[place], np.int64)
        for number in range(len(words)):
            for change in changes if looked_at[number // each % len(looked_at)] else ():
                other = words.copy()
                other[number] += change
                yield (
                    f"{what} {number} {change:+d}",
                    lambda place=place, other=other: record.with_memory(place, other.tobytes()),
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


def recorded_with_sizes(name: str, way: str, count: int, more: dict[str, Any]) -> Recorded:
    plan = there().plan_of((call_of(name, way, count, **more), False))
    sizes = [plan.bytes_of(k) for k in range(plan.user_buffers)]
    return Recorded(recorded(name, way, count, **more), plan.program().wire, sizes)


def launches_of(calls: _core.RecordedCalls) -> list[bytes]:
    names = [name for _, name, _ in calls.calls]
    return [calls.arguments(k) for k, name in enumerate(names) if name == "collective"]


def outcome(ranks: list[Recorded], calls: list[_core.RecordedCalls], seed: int) -> list[bytes]:
    """What the buffers of the user hold after every run of every rank, where threads take turns at random. Raises WrongError.

    Memory lies where `ranks` have it; `calls` are theirs, with faults perhaps.
    """
    memory, results = Memory(), {}
    places = []  # of the user's buffers
    for one in ranks:
        head = head_of(launches_of(one.calls)[0])
        rows = rows_of(table_of(one.calls, launches_of(one.calls)[0]), head)
        queues = head["queues"] + CHANNELS * len(ranks) * head["slots"] * head["slot_bytes"]
        memory.add(head["own_memory"], np.zeros(queues, np.uint8))
        used: dict[int, int] = defaultdict(int)
        for i in rows["instructions"]:
            sources = rows["sources"][i["first_source"] :][: i["sources"]]
            for where, at in [(i["to where"], i["to offset"]), *((o["where"], o["offset"]) for o in sources)]:
                used[where] = max(used[where], at + i["bytes"])
        places.append([head[f"buffer {b}"] for b in range(len(one.sizes))])
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
            memory.at(at, size) for at, size in zip(places[rank], ranks[rank].sizes, strict=True) if size
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


CHANNELS = 3
SMALL_QUEUES = (
    f"channels={CHANNELS},slot_bytes=32,flagged_bytes=32,flagged_slots=4,flagged_below=96,"
    "flagged_below_combining=96,bytes_per_channel=32"
)
SHAPES = {  # collective, way, elements per rank, ranks, more
    "flagged pair": ("all_reduce", "two_step", 21, 2, {}),
    "flagged rounds": ("all_reduce", "recursive_doubling", 19, 4, {}),
    "flagged ring": ("reduce_scatter", "ring", 23, 3, {}),
    "slotted pair": ("all_reduce", "two_step", 133, 2, {}),
    "slotted chain": ("broadcast", "chain", 111, 3, {}),
    "slotted ring": ("all_gather", "ring", 35, 4, {}),
    "uneven": ("all_to_all", "direct", 31, 3, {"uneven": True}),
    "in order": ("reduce", "direct", 61, 3, {"reproducible": True}),
}
SAID_OTHERWISE = (
    "what is waited for is said by another message of that rank too, or comes without this one's help"
)
SAID_LATER = "what is said later says this as well, and nobody stands still till then"
EQUIVALENT = [  # faults that change nothing, and why: shape, fault
    (".*", r"leads \+1", "one more instruction is done an iteration ahead"),
    ("slotted .*", r"first_last_action \+1", SAID_LATER),
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
    (".*", r"instructions \d+ first_source: .*", "the other row says the same"),
    ("flagged rounds", r"buffer 2 .*", "the scratch is not used to its end, so it may begin later"),
]


@pytest.mark.skipif(REAL, reason="the same on every driver")
@pytest.mark.parametrize("most", [250, pytest.param(10**6, marks=pytest.mark.full)])
@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_faults_are_found(shape, most, use_settings):
    """And what is not found changes no byte, in whatever order threads take turns."""
    use_settings(device_queues=SMALL_QUEUES)
    name, way, count, size, more = SHAPES[shape]
    ranks = comm.virtual_ranks(size, recorded_with_sizes, name, way, count, more)
    assert {one.wire for one in ranks} == {"flagged" if shape.startswith("flagged") else "slotted"}
    right = [one.calls for one in ranks]
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
    for rank, what, calls in missed if most > len(faults) else missed[:6]:
        for seed in range(3):
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


@pytest.mark.skipif(REAL, reason="the same on every driver")
def test_seeded_faults_in_messages_of_the_library_are_found(use_settings):
    use_settings(device_carrier="ccl")
    records = comm.virtual_ranks(3, library_calls)
    _core.check_recorded(records)
    calls = records[0].calls
    found = 0
    for k, (kind, name, _) in enumerate(calls):
        faults = []
        if kind in ("ccl send", "ccl receive"):
            to, source, size = records[0].places(k)
            faults += [records[0].with_places(k, to, source, size - 4), records[0].without(k)]
            faults += [records[0].with_places(k, to and to + 4, source and source + 4, size)]
        if name == "collective":
            faults += [records[0].without(k)]
        for fault in faults:
            with pytest.raises(RuntimeError):
                _core.check_recorded([fault, *records[1:]])
            found += 1
    assert found > 20
