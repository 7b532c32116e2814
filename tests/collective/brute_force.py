"""A second, slow proof of plans, element by element, to judge the checker by; and an adversary that runs plans.

Plans are lists of `_core.schedule_to_dict` (one per rank), compositions are `Spec`s. `prove` follows the same
definitions as the checker in C++ but shares nothing with it: the happens-before relation is closed over all
ranks with one big integer per node, every pair of accesses to every element is looked at, and contents are
plain Python terms. `run` executes a plan on integers in an order chosen by an adversary, who may delay any
step, carry messages eagerly or not, read a message's bytes at its start or its end, let a send end long after
its message arrived, and spoil what a receive is about to overwrite as soon as it is posted. If asked, it reports
whoever touches the bytes of a message under way or copies bytes onto themselves, as memory checkers for MPI
programs do.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Plan = list[dict[str, Any]]


@dataclass(frozen=True)
class Primitive:
    kind: str  # "multicast" or "reduce"
    root: int
    ranks: tuple[int, ...]
    source: tuple[int, int]  # buffer, first element
    target: tuple[int, int]
    count: int
    operation: str = "sum"


@dataclass
class Spec:
    """A composition of int64 elements: counts per buffer and rank, and primitives step by step."""

    ranks: int
    buffers: list[tuple[str, list[int], bool]] = field(default_factory=list)  # name, count per rank, input
    steps: list[list[Primitive]] = field(default_factory=lambda: [[]])

    def buffer(self, name: str, count: int, is_input: bool = True) -> int:
        self.buffers.append((name, [count] * self.ranks, is_input))
        return len(self.buffers) - 1

    def multicast(self, source, target, count, root, leaves) -> None:
        self.steps[-1].append(Primitive("multicast", root, tuple(leaves), source, target, count))

    def reduce(self, source, target, count, sources, root, operation="sum") -> None:
        self.steps[-1].append(Primitive("reduce", root, tuple(sources), source, target, count, operation))

    def fence(self) -> None:
        self.steps.append([])


ITEM = 8  # bytes of an element


class WrongError(Exception):
    """The proof failed; `kind` is the checker's word for it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


# --- contents: nested tuples


def leaf(rank: int, buffer: int, element: int) -> tuple:
    return ("leaf", rank, buffer, element)


def combined(operation: str, sources: list[tuple], divide_by: int) -> tuple:
    if operation == "avg":
        operation = "sum"
    if len(sources) == 1 and divide_by == 1:
        return sources[0]
    terms: list[tuple] = []
    for source in sources:
        if source[0] == operation and source[1] == 1:
            terms.extend(source[2])
        else:
            terms.append(source)
    return (operation, divide_by, tuple(sorted(terms)))


# --- what a step touches: (buffer, element) lists


def _elements(region: tuple[int, int, int]) -> list[tuple[int, int]]:
    buffer, offset, size = region
    if offset % ITEM or size % ITEM:
        raise WrongError("bounds", f"{region} cuts an element")
    return [(buffer, k) for k in range(offset // ITEM, (offset + size) // ITEM)]


def specs_of(step: dict[str, Any]) -> list[tuple[list[list[tuple[int, int]]], list[tuple[int, int]]]]:
    """Per spec: the elements of each source, and those written."""
    if step["kind"] == "send":
        return [([_elements(step["region"])], [])]
    if step["kind"] == "receive":
        return [([], _elements(step["region"]))]
    result = []
    for entry in step["specs"]:
        if step["kind"] == "reduce":
            result.append(([_elements(r) for r in entry["from"]], _elements(entry["into"])))
        else:
            buffer, offset, _ = entry["from"]
            size = entry["to"][2]
            if entry["rows"] is None:
                source = _elements((buffer, offset, size))
            else:
                source = []
                for k in entry["rows"]:
                    source += _elements((buffer, offset + k * entry["row_bytes"], entry["row_bytes"]))
            result.append(([source], _elements(entry["to"])))
    return result


class Graph:
    """Nodes 2g (start) and 2g + 1 (end) of all ranks' steps, messages paired in the order of the lists."""

    def __init__(self, plan: Plan) -> None:
        self.steps = [(rank, s, step) for rank, one in enumerate(plan) for s, step in enumerate(one["steps"])]
        self.base = np.cumsum([0] + [len(one["steps"]) for one in plan]).tolist()
        self.peer: dict[int, int] = {}
        self.envelopes: list[list[int]] = []
        sends: dict[tuple, list[int]] = defaultdict(list)
        receives: dict[tuple, list[int]] = defaultdict(list)
        for g, (rank, _, step) in enumerate(self.steps):
            if step["kind"] == "send":
                sends[rank, step["peer"], step["tag"]].append(g)
            elif step["kind"] == "receive":
                receives[step["peer"], rank, step["tag"]].append(g)
        for envelope in sends.keys() | receives.keys():
            if len(sends[envelope]) != len(receives[envelope]):
                raise WrongError(
                    "message",
                    f"{len(sends[envelope])} sends, {len(receives[envelope])} receives in {envelope}",
                )
            for s, r in zip(sends[envelope], receives[envelope], strict=True):
                if self.steps[s][2]["region"][2] != self.steps[r][2]["region"][2]:
                    raise WrongError("message", f"sizes differ in {envelope}")
                libraries = [plan[self.steps[g][0]]["libraries"][self.steps[g][2]["library"]] for g in (s, r)]
                if libraries[0] != libraries[1]:
                    raise WrongError("message", f"libraries differ in {envelope}")
                self.peer[s], self.peer[r] = r, s
            self.envelopes += [sends[envelope], receives[envelope]]

    def before(self, node: int, rendezvous: bool) -> list[int]:
        g = node // 2
        rank, _, step = self.steps[g]
        if node % 2 == 0:
            return [2 * (self.base[rank] + need) + 1 for need in step["needs"]]
        nodes = [2 * g]
        if step["kind"] == "receive" or (step["kind"] == "send" and rendezvous):
            nodes.append(2 * self.peer[g])
        return nodes

    def order(self) -> list[int]:
        total = 2 * len(self.steps)
        open_ = [0] * total
        after: list[list[int]] = [[] for _ in range(total)]
        for node in range(total):
            for earlier in self.before(node, True):
                after[earlier].append(node)
                open_[node] += 1
        order = [node for node in range(total) if open_[node] == 0]
        for node in order:
            for later in after[node]:
                open_[later] -= 1
                if open_[later] == 0:
                    order.append(later)
        if len(order) < total:
            raise WrongError("deadlock", f"{total - len(order)} of {total} starts and ends never come")
        return order


def prove(spec: Spec, plan: Plan, scratch_limit: int | None = None) -> None:
    """Raises WrongError unless every execution of the plan does what `spec` says."""
    for rank, one in enumerate(plan):
        sizes = [n for _, n, _ in one["buffers"]]
        if sizes[:-1] != [counts[rank] * ITEM for _, counts, _ in spec.buffers]:
            raise WrongError("structure", f"buffers of rank {rank}")
        if scratch_limit is not None and sizes[-1] > scratch_limit:
            raise WrongError("scratch", f"{sizes[-1]} bytes on rank {rank}")
        for step in one["steps"]:
            if step["kind"] in ("send", "receive") and not (
                0 <= step["peer"] < spec.ranks and step["peer"] != rank
            ):
                raise WrongError("message", f"peer {step['peer']}")
            for sources, target in specs_of(step):
                for elements in [*sources, target]:
                    for buffer, k in elements:
                        if not (0 <= buffer < len(sizes) and 0 <= k < sizes[buffer] // ITEM):
                            raise WrongError("bounds", f"rank {rank}, {step['name']}")
                if any(len(source) != len(sources[0]) for source in sources) or (
                    sources and target and len(sources[0]) != len(target)
                ):
                    raise WrongError("bounds", f"rank {rank}, {step['name']}: sizes differ")
    graph = Graph(plan)
    order = graph.order()
    ancestors = [0] * len(order)
    for node in order:
        bits = 0
        for earlier in graph.before(node, False):
            bits |= ancestors[earlier] | (1 << earlier)
        ancestors[node] = bits

    def comes_first(a: int, b: int) -> bool:
        return bool(ancestors[b] >> a & 1)

    # Messages of an envelope cannot overtake each other.
    for envelope in graph.envelopes:
        for first, second in itertools.pairwise(envelope):
            if not comes_first(2 * first, 2 * second):
                raise WrongError("message", "two messages of an envelope may overtake each other")

    # All pairs of accesses to all elements.
    uses: dict[tuple[int, int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for g, (rank, _, step) in enumerate(graph.steps):
        for number, (sources, target) in enumerate(specs_of(step)):
            for source in sources:
                for buffer, k in source:
                    uses[rank, buffer, k].append((g, number, False))
            for buffer, k in target:
                uses[rank, buffer, k].append((g, number, True))
            own = [source for source in sources if set(source) & set(target)]
            if own and (step["kind"] == "copy" or any(source != target for source in own)):
                raise WrongError("race", f"{step['name']} overlaps itself")
            if len(set(target)) != len(target):
                raise WrongError("race", f"{step['name']} writes twice")
    ordered: set[tuple[int, int]] = set()
    for location, users in uses.items():
        if not any(writes for _, _, writes in users):
            continue
        for i, (a, entry_a, writes_a) in enumerate(users):
            for b, entry_b, writes_b in users[:i]:
                if not (writes_a or writes_b) or (a, b) in ordered:
                    continue
                if a == b:
                    if entry_a != entry_b:
                        raise WrongError("race", f"specs of one step meet at {location}")
                    continue
                if not comes_first(2 * a + 1, 2 * b) and not comes_first(2 * b + 1, 2 * a):
                    raise WrongError(
                        "race", f"{graph.steps[a][2]['name']} and {graph.steps[b][2]['name']} at {location}"
                    )
                ordered.add((a, b))

    # Contents.
    expected = direct(spec)
    allowed = {
        (rank, p.target[0], p.target[1] + k)
        for step in spec.steps
        for p in step
        for rank in (p.ranks if p.kind == "multicast" else (p.root,))
        for k in range(p.count)
    }
    now: dict[tuple[int, int, int], tuple] = {}
    for rank in range(spec.ranks):
        for b, (_, counts, is_input) in enumerate(spec.buffers):
            if is_input:
                now.update({(rank, b, k): leaf(rank, b, k) for k in range(counts[rank])})
    carried: dict[int, list[tuple]] = {}

    def load(rank: int, locations: list[tuple[int, int]]) -> list[tuple]:
        try:
            return [now[rank, buffer, k] for buffer, k in locations]
        except KeyError as missing:
            raise WrongError("unwritten", f"{missing}") from None

    def store(rank: int, locations: list[tuple[int, int]], contents: list[tuple]) -> None:
        for (buffer, k), content in zip(locations, contents, strict=True):
            if buffer < len(spec.buffers) and (rank, buffer, k) not in allowed:
                raise WrongError("overwritten", f"rank {rank}, buffer {buffer}, element {k}")
            now[rank, buffer, k] = content

    for node in order:
        g = node // 2
        rank, _, step = graph.steps[g]
        if node % 2 == 1:
            if step["kind"] == "receive":
                store(rank, specs_of(step)[0][1], carried.pop(graph.peer[g]))
        elif step["kind"] == "send":
            carried[g] = load(rank, specs_of(step)[0][0][0])
        else:
            for sources, target in specs_of(step):
                contents = [load(rank, source) for source in sources]
                if step["kind"] == "reduce":
                    store(
                        rank,
                        target,
                        [
                            combined(step["operation"], list(c), step["divide_by"])
                            for c in zip(*contents, strict=True)
                        ],
                    )
                elif step["kind"] == "copy":
                    store(rank, target, contents[0])
    for location, content in expected.items():
        if now.get(location) != content:
            raise WrongError("contribution", f"{location} is {now.get(location)} instead of {content}")


def direct(spec: Spec) -> dict[tuple[int, int, int], tuple]:
    """The contents that the composition defines."""
    now: dict[tuple[int, int, int], tuple] = {}
    for rank in range(spec.ranks):
        for b, (_, counts, is_input) in enumerate(spec.buffers):
            if is_input:
                now.update({(rank, b, k): leaf(rank, b, k) for k in range(counts[rank])})
    for step in spec.steps:
        before = dict(now)
        for p in step:
            for k in range(p.count):
                source, target = (p.source[0], p.source[1] + k), (p.target[0], p.target[1] + k)
                if p.kind == "multicast":
                    for rank in p.ranks:
                        now[(rank, *target)] = before[(p.root, *source)]
                else:
                    divide_by = len(p.ranks) if p.operation == "avg" else 1
                    now[(p.root, *target)] = combined(
                        p.operation, [before[(rank, *source)] for rank in p.ranks], divide_by
                    )
    return now


# --- execution

POISON = -(1 << 40)
COMBINE = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "bit_xor": np.bitwise_xor,
}


def start_memory(spec: Spec, plan: Plan, seed: int) -> list[list[np.ndarray]]:
    """Inputs are random and different everywhere; everything else is poison."""
    random_ = np.random.default_rng(seed)
    memory = []
    for rank in range(spec.ranks):
        mine = [
            random_.integers(-(1 << 30), 1 << 30, counts[rank])
            if is_input
            else np.full(counts[rank], POISON + rank)
            for _, counts, is_input in spec.buffers
        ]
        mine.append(np.full(plan[rank]["buffers"][-1][1] // ITEM, 3 * POISON + rank))
        memory.append(mine)
    return memory


def evaluate(spec: Spec, memory: list[list[np.ndarray]]) -> None:
    """Does the composition on `memory`, in place."""
    for step in spec.steps:
        before = [[buffer.copy() for buffer in mine] for mine in memory]
        for p in step:
            source = slice(p.source[1], p.source[1] + p.count)
            target = slice(p.target[1], p.target[1] + p.count)
            if p.kind == "multicast":
                for rank in p.ranks:
                    memory[rank][p.target[0]][target] = before[p.root][p.source[0]][source]
            else:
                value = before[p.ranks[0]][p.source[0]][source]
                for rank in p.ranks[1:]:
                    value = COMBINE[p.operation](value, before[rank][p.source[0]][source])
                memory[p.root][p.target[0]][target] = value


def run(
    plan: Plan,
    memory: list[list[np.ndarray]],
    seed: int,
    delayed: frozenset[int] = frozenset(),
    strict: bool = True,
) -> str | None:
    """Executes with int64 elements. Returns what goes wrong, if it shows before the end: "deadlock", "message"
    (sizes or peers do not fit), "bounds" or, if `strict`, "memory" (somebody touched the bytes of a message
    under way, or copied bytes onto themselves).

    `delayed`: steps (numbered through all ranks) that start, and sends that end, only when nothing else can;
    other steps have random urgencies, drawn from `seed`.
    """
    dice = random.Random(seed)
    steps = [(rank, step) for rank, one in enumerate(plan) for step in one["steps"]]
    base = np.cumsum([0] + [len(one["steps"]) for one in plan]).tolist()
    open_ = [len(step["needs"]) for _, step in steps]
    after: list[list[int]] = [[] for _ in steps]
    for g, (rank, step) in enumerate(steps):
        for need in step["needs"]:
            after[base[rank] + need].append(g)
    # Half of the adversaries prefer what stands last in the plan.
    backwards = dice.random() < 0.5
    priority = [dice.random() + (0.0 if not backwards else -g / len(steps)) for g in range(len(steps))]
    for g in delayed:
        priority[g] += 10
    eager = dice.random() < 0.3
    early = [dice.random() < 0.5 for _ in steps]  # a send's bytes leave when it starts, not when it arrives
    envelopes: dict[tuple[int, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    wire: dict[int, np.ndarray] = {}
    flying: list[dict[int, tuple[int, int, int]]] = [
        {} for _ in plan
    ]  # regions of messages under way, per rank
    ended = 0
    ready = [g for g in range(len(steps)) if open_[g] == 0]
    landing: list[tuple[int, int]] = []  # sends and receives that have met
    returning: list[int] = []  # sends that arrived

    class TouchedError(Exception):
        pass

    def view(rank: int, region: tuple[int, int, int]) -> np.ndarray:
        buffer, offset, size = region
        if not 0 <= buffer < len(memory[rank]) or offset % ITEM or size % ITEM:
            raise IndexError
        whole = memory[rank][buffer]
        if offset + size > len(whole) * ITEM:
            raise IndexError
        return whole[offset // ITEM : (offset + size) // ITEM]

    def touch(rank: int, region: tuple[int, int, int], writes: bool) -> np.ndarray:
        for g, (buffer, offset, size) in flying[rank].items():
            meets = buffer == region[0] and offset < region[1] + region[2] and region[1] < offset + size
            if strict and meets and (writes or steps[g][1]["kind"] == "receive"):
                raise TouchedError
        return view(rank, region)

    def finish(g: int) -> None:
        nonlocal ended
        ended += 1
        flying[steps[g][0]].pop(g, None)
        for later in after[g]:
            open_[later] -= 1
            if open_[later] == 0:
                ready.append(later)

    try:
        while ready or landing or returning:
            # Messages land, and sends return, early or late, as the adversary likes.
            stuck = all(g in delayed for g in ready)
            if landing and (stuck or dice.random() < 0.3):
                s, r = landing.pop(dice.randrange(len(landing)))
                (rank, send), (to, receive) = steps[s], steps[r]
                if send["region"][2] != receive["region"][2]:
                    return "message"
                if s not in wire:
                    wire[s] = view(rank, send["region"]).copy()
                view(to, receive["region"])[:] = wire.pop(s)
                finish(r)
                if not eager:
                    returning.append(s)
                continue
            if returning and (not (ready or landing) or dice.random() < 0.3):
                prompt = [s for s in returning if s not in delayed]
                if prompt or not (ready or landing):
                    s = dice.choice(prompt or returning)
                    returning.remove(s)
                    finish(s)
                    continue
            if not ready:
                continue
            g = min(ready, key=priority.__getitem__)
            ready.remove(g)
            rank, step = steps[g]
            if step["kind"] in ("send", "receive"):
                sending = step["kind"] == "send"
                if not 0 <= step["peer"] < len(plan) or step["peer"] == rank:
                    return "message"
                envelope = envelopes[
                    (rank, step["peer"], step["tag"]) if sending else (step["peer"], rank, step["tag"])
                ]
                envelope[0 if sending else 1].append(g)
                location = touch(rank, step["region"], not sending)
                flying[rank][g] = step["region"]
                if sending and (eager or early[g]):
                    wire[g] = location.copy()
                if not sending:
                    location[:] = 5 * POISON + g
                if sending and eager:
                    finish(g)
                count = len(envelope[0 if sending else 1])
                if count <= len(envelope[1 if sending else 0]):
                    landing.append((envelope[0][count - 1], envelope[1][count - 1]))
            else:
                specs = list(step["specs"])
                dice.shuffle(specs)
                for entry in specs:
                    if step["kind"] == "reduce":
                        parts = [touch(rank, r, False) for r in entry["from"]]
                        value = parts[0]
                        for part in parts[1:]:
                            value = COMBINE[step["operation"]](value, part)
                        target = touch(rank, entry["into"], True)
                    else:
                        if entry["rows"] is not None:
                            raise NotImplementedError("plans of collectives gather no listed rows")
                        value = touch(rank, (*entry["from"][:2], entry["to"][2]), False)
                        target = touch(rank, entry["to"], True)
                    if len(value) != len(target):
                        return "bounds"
                    if strict and step["kind"] == "copy" and np.shares_memory(value, target):
                        raise TouchedError
                    target[:] = value.copy()
                finish(g)
    except TouchedError:
        return "memory"
    except (IndexError, ValueError):
        return "bounds"
    unmet = any(len(sends) != len(receives) for sends, receives in envelopes.values())
    return "deadlock" if ended < len(steps) or unmet else None
