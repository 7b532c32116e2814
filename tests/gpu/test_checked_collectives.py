"""What drivers are given for collectives is proved to do what their composition says, and seeded faults are found."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, run_on_devices, use_fake_ccl, use_fake_gpus

from jali import _core, comm
from jali.comm import DeviceArray, algorithms
from jali.comm.calls import Call
from jali.comm.device_collectives import DeviceCollectives
from jali.comm.elements import SIZES
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
    told = comm.virtual_ranks(3, against, name, plan, {k: v for k, v in meaning.items() if k != "op"} | meaning)
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

HEAD = [f"buffer {k}" for k in range(16)] + (
    "table table_words instructions sources actions waits first_last_action iterations channels ranks rank leads "
    "memories own_memory arrived freed queues slots slot_bytes numbers abandoned overflows"
).split()
OPERAND = [("offset", 8), ("where", 4), ("packet", 4)]
ROWS = {  # as in core/collective/device_program.hpp: words and their bytes
    "instructions": [
        *((f"to {word}", size) for word, size in OPERAND),
        *(("bytes", 8), ("chunk", 8), ("first_source", 4), ("sources", 4), ("first_action", 4), ("actions", 4)),
        *(("first_wait", 4), ("waits", 4), ("meets", 4), ("divide_by", 4), ("together", 8)),
    ],
    "sources": OPERAND,
    "actions": [("kind", 4), ("peer", 4), ("packet", 4), ("ahead", 4)],
    "waits": [("kind", 4), ("peer", 4), ("packet", 4), ("unused", 4)],
    "ranks": [("sent", 4), ("received", 4)],
}
SMALL = 160  # words of a table that is among the arguments


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


def table_words(table: bytes, head: dict[str, int], wire: str) -> Iterator[tuple[str, int, int, int, set[int]]]:
    """(what, byte, bytes, value, the values of that word in other rows) of each word that the kernel reads."""
    at, left = 0, 0
    for name, words in ROWS.items():
        rows: list[dict[str, int]] = []
        begin = at
        for _ in range(head[name]):
            rows.append({})
            for word, size in words:
                kind = np.int32 if size == 4 else np.int64
                rows[-1][word] = int(np.frombuffer(table[at : at + size], kind)[0])
                at += size
        for number, row in enumerate(rows):
            if name == "instructions":
                opens = left == 0
                left = (row["together"] if opens else left) - 1
            else:
                opens = False
            for word, size in words:
                if is_looked_at(row, name, word, wire, opens):
                    others = {other[word] for other in rows} - {row[word]}
                    yield f"{name} {number} {word}", begin, size, row[word], others
                begin += size
    assert at == 8 * head["table_words"]


def mutants(record: _core.RecordedCalls, wire: str, ranks: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The record with one fault each, as what it is and how it is made."""
    calls = record.calls
    launches = [k for k, (_, name, _) in enumerate(calls) if name == "collective"]
    for what, k in (("first", launches[0]), ("second", launches[1]), ("last", launches[-1])):
        yield f"no {what} launch", lambda k=k: record.without(k)
        yield f"{what} launch twice", lambda k=k: record.with_call_repeated(k)
    data = record.arguments(launches[0])
    head = dict(zip(HEAD, map(int, np.frombuffer(data, np.int64)), strict=False))
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
            yield f"{word} {change:+d} once", lambda changed=changed: given(changed, launches[1:2])

    begin = 8 * len(HEAD)
    table = data[begin : begin + 8 * head["table_words"]] if small else record.memory[head["table"]]
    for what, at, size, value, others in table_words(table, head, wire):
        for new in {value + 1, value - 1, value + 16, value - 16, *others}:
            bits = int(new).to_bytes(size, sys.byteorder, signed=True)
            other = table[:at] + bits + table[at + size :]

            def in_table(other: bytes = other) -> _core.RecordedCalls:
                if not small:
                    return record.with_memory(head["table"], other)
                return given(lambda a: a[:begin] + other + a[begin + len(other) :], launches)

            yield f"{what}: {new} for {value}", in_table
    for what in ("numbers", "memories"):
        words = np.frombuffer(record.memory[head[what]], np.int64)
        mine = np.flatnonzero(words) if what == "memories" else range(len(words))
        for number in mine:
            for change in (1, -1, 16):
                other = words.copy()
                other[number] += change
                yield (
                    f"{what} {number} {change:+d}",
                    lambda what=what, other=other: record.with_memory(head[what], other.tobytes()),
                )


SHAPES = {  # collective, way, elements per rank, ranks, more
    "flagged pair": ("all_reduce", "two_step", 333, 2, {}),
    "flagged rounds": ("all_reduce", "recursive_doubling", 100, 4, {}),
    "flagged ring": ("reduce_scatter", "ring", 91, 3, {}),
    "slotted pair": ("all_reduce", "two_step", 5003, 2, {}),
    "slotted chain": ("broadcast", "chain", 5003, 3, {}),
    "slotted ring": ("all_gather", "ring", 1250, 4, {}),
    "uneven": ("all_to_all", "direct", 700, 3, {"uneven": True}),
    "in order": ("reduce", "direct", 2000, 3, {"reproducible": True}),
}
EQUIVALENT: list[tuple[str, str, str]] = []  # shape, fault, why it changes nothing


@pytest.mark.skipif(REAL, reason="the same on every driver")
@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_faults_are_found(shape, request):
    name, way, count, ranks, more = SHAPES[shape]

    def record() -> tuple[_core.RecordedCalls, str]:
        wire = there().plan_of((call_of(name, way, count, **more), False)).program().wire
        return recorded(name, way, count, **more), wire

    told = comm.virtual_ranks(ranks, record)
    records, wire = [one for one, _ in told], told[0][1]
    _core.check_recorded(records)
    missed, tried = [], 0
    for who in range(ranks):
        for what, make in mutants(records[who], wire, ranks):
            tried += 1
            try:
                _core.check_recorded([*records[:who], make(), *records[who + 1 :]])
            except RuntimeError:
                continue
            missed.append(f"{who} {what}")
    print(tried, len(missed))
    for m in missed:
        print("   ", m)
