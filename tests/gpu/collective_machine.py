"""A second reading of the kernel of collectives (src/jali/codegen/prelude/collective.hpp), in Python.

It shares no code with the checker. It runs launches of all ranks on bytes, as groups of threads that take turns at
random: a group has every packet whose number is its own modulo the number of groups, and does what single threads do
for words. So whoever needs an order that nobody makes gets other bytes in some of these runs, or stands still. For sums
of fp32.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

GROUPS = 3  # of threads in a block; warps, if messages are flagged
SMALL = 160  # words of a table that is among the arguments
HEAD = [f"buffer {k}" for k in range(16)] + [
    "table",
    "table_words",
    "instructions",
    "sources",
    "actions",
    "waits",
    "first_last_action",
    "iterations",
    "channels",
    "ranks",
    "rank",
    "leads",
    "memories",
    "own_memory",
    "arrived",
    "freed",
    "queues",
    "slots",
    "slot_bytes",
    "numbers",
    "watch",
    "overflows",
]
OPERAND = [("offset", 8), ("where", 4), ("packet", 4)]
ENTRIES = {  # as in core/running/device_program.hpp: words and their bytes
    "instructions": [
        *((f"to {word}", size) for word, size in OPERAND),
        *(
            ("bytes", 8),
            ("chunk", 8),
            ("first_source", 4),
            ("sources", 4),
            ("first_action", 4),
            ("actions", 4),
        ),
        *(("first_wait", 4), ("waits", 4), ("meets", 4), ("divide_by", 4), ("together", 8)),
    ],
    "sources": OPERAND,
    "actions": [("kind", 4), ("peer", 4), ("packet", 4), ("ahead", 4)],
    "waits": [("kind", 4), ("peer", 4), ("packet", 4), ("unused", 4)],
    "ranks": [("sent", 4), ("received", 4)],
}
Entry = dict[str, int]
Steps = Generator[bool, None, None]  # whether something was done, step by step


class WrongError(Exception):
    """Something that a device would not survive, or that stands still."""


def head_of(arguments: bytes) -> Entry:
    return dict(zip(HEAD, map(int, np.frombuffer(arguments, np.int64)), strict=False))


def entries_of(table: bytes, head: Entry) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    at = 0
    for name, words in ENTRIES.items():
        found[name] = []
        for _ in range(head[name]):
            entry = {}
            for word, size in words:
                entry[word] = int.from_bytes(table[at : at + size], "little", signed=True)
                at += size
            found[name].append(entry)
    return found


@dataclass
class Memory:
    """Pieces of memory by their addresses."""

    pieces: list[tuple[int, npt.NDArray[np.uint8]]] = field(default_factory=list)

    def add(self, address: int, contents: npt.NDArray[np.uint8]) -> None:
        self.pieces.append((address, contents))

    def at(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        for begin, contents in self.pieces:
            if begin <= address and address + size <= begin + len(contents):
                return contents[address - begin : address - begin + size]
        raise WrongError(f"{size} bytes at {address} belong to nobody")

    def word(self, address: int) -> int:
        return int.from_bytes(self.at(address, 8).tobytes(), "little", signed=True)

    def set_word(self, address: int, value: int) -> None:
        self.at(address, 8)[:] = np.frombuffer(value.to_bytes(8, "little", signed=True), np.uint8)


class Block:
    """A channel of one launch on one rank."""

    def __init__(self, memory: Memory, arguments: bytes, table: bytes, wire: str, channel: int) -> None:
        self.memory, self.a, self.wire, self.channel = memory, head_of(arguments), wire, channel
        entries = entries_of(table, self.a)
        self.instructions, self.sources = entries["instructions"], entries["sources"]
        self.actions, self.waits, self.ranks = entries["actions"], entries["waits"], entries["ranks"]
        self.numbers = [[0, 0] for _ in self.ranks]
        self.met = self.here = 0

    def meet(self) -> Steps:
        mine = self.met
        self.here += 1
        if self.here == GROUPS:
            self.met, self.here = self.met + 1, 0
        while self.met == mine:
            yield False
        yield True

    def until(self, address: int, value: int) -> Steps:
        while self.memory.word(address) < value:
            yield False
        yield True

    # --- places -----------------------------------------------------------------------------------------------

    def base(self, rank: int) -> int:
        return self.memory.word(self.a["memories"] + 8 * rank)

    def number(self, peer: int, packet: int, received: int, iteration: int) -> int:
        per = self.ranks[peer]["received" if received else "sent"]
        return self.numbers[peer][received] + iteration * per + packet

    def slot(self, owner: int, sender: int, number: int) -> int:
        a = self.a
        at = (self.channel * a["ranks"] + sender) * a["slots"] + (number & (a["slots"] - 1))
        return self.base(owner) + a["queues"] + at * a["slot_bytes"]

    def arrived(self, owner: int, sender: int, number: int) -> int:
        a = self.a
        at = (self.channel * a["ranks"] + sender) * a["slots"] + (number & (a["slots"] - 1))
        return self.base(owner) + a["arrived"] + 8 * at

    def freed(self, owner: int, by: int) -> int:
        return self.base(owner) + self.a["freed"] + 8 * (self.channel * self.a["ranks"] + by)

    # --- one group of threads ---------------------------------------------------------------------------------

    def run(self, group: int) -> Steps:
        a, memory = self.a, self.memory
        lasting = a["numbers"] + 16 * self.channel * a["ranks"]
        for k in range(group, a["ranks"], GROUPS):
            self.numbers[k] = [memory.word(lasting + 16 * k), memory.word(lasting + 16 * k + 8)]
            per = self.ranks[k]["sent"]
            if self.wire == "flagged" and per > 0:
                word = a["own_memory"] + a["freed"] + 8 * (self.channel * a["ranks"] + k)
                yield from self.until(word, self.numbers[k][0] + per - a["slots"])
        yield from self.meet()
        yield from self.flagged(group) if self.wire == "flagged" else self.slotted(group)
        yield from self.meet()
        for k in range(group, a["ranks"], GROUPS):
            sent, received = self.numbers[k]
            now = received + a["iterations"] * self.ranks[k]["received"]
            memory.set_word(lasting + 16 * k, sent + a["iterations"] * self.ranks[k]["sent"])
            memory.set_word(lasting + 16 * k + 8, now)
            halves = now & ~(a["slots"] // 2 - 1)
            if self.wire == "flagged" and halves > received:
                memory.set_word(self.freed(k, a["rank"]), halves)
            yield True

    def slotted(self, group: int) -> Steps:
        a = self.a
        for k in range(a["leads"]):
            yield from self.instruction(group, self.instructions[k], 0)
        if a["leads"] > 0:
            yield from self.meet()
            yield from self.act(group, [d if d["ahead"] else None for d in self.actions], -1)
        for now in range(a["iterations"]):
            if a["leads"] > 0 and now + 1 < a["iterations"]:
                for k in range(a["leads"]):
                    yield from self.instruction(group, self.instructions[k], now + 1)
            for i in self.instructions[a["leads"] :]:
                yield from self.instruction(group, i, now)
            yield from self.meet()
            yield from self.act(group, self.actions[a["first_last_action"] :], now)

    def act(self, group: int, actions: list[Any], iteration: int) -> Steps:
        for d in actions[group::GROUPS]:
            if d is None or iteration + d["ahead"] >= self.a["iterations"]:
                continue
            n = self.number(d["peer"], d["packet"], d["kind"], iteration)
            n += d["ahead"] * self.ranks[d["peer"]]["sent"]
            me = self.a["rank"]
            word = self.freed(d["peer"], me) if d["kind"] else self.arrived(d["peer"], me, n)
            self.memory.set_word(word, n + 1)
            yield True

    def instruction(self, group: int, i: Entry, iteration: int) -> Steps:
        me, slots = self.a["rank"], self.a["slots"]
        if i["meets"]:
            yield from self.meet()
            yield from self.act(group, self.actions[i["first_action"] :][: i["actions"]], iteration)
            for w in self.waits[i["first_wait"] :][: i["waits"]][group::GROUPS]:
                n = self.number(w["peer"], w["packet"], 0 if w["kind"] else 1, iteration)
                if not w["kind"]:
                    yield from self.until(self.arrived(me, w["peer"], n), n + 1)
                elif n >= slots:
                    yield from self.until(self.freed(me, w["peer"]), n + 1 - slots)
            yield from self.meet()
        begin = (iteration * self.a["channels"] + self.channel) * i["chunk"]
        yield from self.slice(i, iteration, begin, group, GROUPS)

    def flagged(self, group: int) -> Steps:
        first = 0
        while first < self.a["instructions"]:
            together = self.instructions[first]["together"]
            if first > 0:
                yield from self.meet()
            for k in range(group % together, together, GROUPS):
                helpers = (GROUPS - 1 - k) // together + 1 if together < GROUPS else 1
                i = self.instructions[first + k]
                yield from self.slice(i, 0, self.channel * i["chunk"], group // together, helpers)
            first += together

    def slice(self, i: Entry, iteration: int, begin: int, first: int, step: int) -> Steps:
        size = min(i["bytes"] - begin, i["chunk"])
        wide = 32 if self.wire == "flagged" else 16
        me = self.a["rank"]
        for p in range(first, (size + 15) // 16, step):
            valid = min(16, size - 16 * p)
            total: Any = None
            for o in self.sources[i["first_source"] :][: i["sources"]]:
                q = np.zeros(16, np.uint8)
                if o["where"] >= 0:
                    q[:valid] = self.memory.at(
                        self.a[f"buffer {o['where']}"] + o["offset"] + begin + 16 * p, valid
                    )
                else:
                    n = self.number(~o["where"], o["packet"], 1, iteration)
                    at = self.slot(me, ~o["where"], n) + wide * p
                    if wide == 32:
                        while not (self.memory.at(at, 32).view(np.uint32)[1::2] == n + 1).all():
                            yield False
                        q = self.memory.at(at, 32).view(np.uint32)[::2].copy().view(np.uint8)
                    else:
                        q = self.memory.at(at, 16).copy()
                yield True
                if i["sources"] == 1 and i["divide_by"] == 1:
                    total = q
                else:
                    with np.errstate(all="ignore"):
                        total = q.view(np.float32).copy() if total is None else total + q.view(np.float32)
            if total is None:
                raise WrongError("an instruction without sources")
            if total.dtype == np.float32:
                total = (total / np.float32(i["divide_by"])).view(np.uint8)
            if i["to where"] >= 0:
                at = self.a[f"buffer {i['to where']}"] + i["to offset"] + begin + 16 * p
                self.memory.at(at, valid)[:] = total[:valid]
            else:
                n = self.number(~i["to where"], i["to packet"], 0, iteration)
                at = self.slot(~i["to where"], me, n) + wide * p
                if wide == 32:
                    both = np.full(8, n + 1, np.uint32)
                    both[::2] = total.view(np.uint32)
                    total = both.view(np.uint8)
                self.memory.at(at, wide)[:] = total
            yield True


def run_launches(
    of_ranks: list[Iterator[list[Block]]],
    seed: int,
) -> None:
    """Runs the blocks of all ranks, each rank's launches one after the other. Raises WrongError if they stand still."""
    chance = random.Random(seed)
    speeds: dict[int, float] = {}

    def next_of(rank: int) -> list[Steps]:
        steps = [block.run(group) for block in next(of_ranks[rank], []) for group in range(GROUPS)]
        speeds.update((id(one), chance.random() ** 3) for one in steps)
        return steps

    def go_on(steps: Steps) -> bool:
        """Whether something was done; StopIteration at the end."""
        done = False
        try:
            for _ in range(chance.choice((1, 1, 4, 40))):
                if not next(steps):
                    break
                done = True
        except (IndexError, ZeroDivisionError, ValueError) as error:
            raise WrongError(str(error)) from error
        return done

    running = [next_of(rank) for rank in range(len(of_ranks))]
    everybody = False  # a turn; else those that are in no hurry may let it pass
    while any(running):
        moved = False
        turns = [(rank, steps) for rank, all_steps in enumerate(running) for steps in all_steps]
        chance.shuffle(turns)
        for rank, steps in turns:
            if not everybody and chance.random() > speeds[id(steps)]:
                continue
            try:
                moved = go_on(steps) or moved
            except StopIteration:
                running[rank].remove(steps)
                moved = True
                if not running[rank]:
                    running[rank] = next_of(rank)
        if everybody and not moved:
            raise WrongError("they stand still")
        everybody = not moved
