"""Plans for tests: by the planner, and drawn by hand, message by message."""

from __future__ import annotations

from typing import Any

import numpy as np
from brute_force import ITEM, Plan, Primitive, Spec, specs_of

from jali import _core
from jali.errors import PlanError


def spec_of(composition: _core.Composition) -> Spec:
    """The same composition as plain Python."""
    ranks = composition.ranks

    def members(primitive: dict[str, Any]) -> tuple[int, ...]:
        if primitive["ranks"] == "all":
            return tuple(range(ranks))
        if primitive["ranks"] == "others":
            return tuple(r for r in range(ranks) if r != primitive["root"])
        return tuple(primitive["ranks"])

    return Spec(
        ranks,
        [
            (name, counts * ranks if len(counts) == 1 else counts, given)
            for name, counts, given in composition.buffers
        ],
        [
            [
                Primitive(
                    p["kind"],
                    p["root"],
                    members(p),
                    p["source"],
                    p["target"],
                    p["count"],
                    p.get("operation", "sum"),
                )
                for p in step
            ]
            for step in composition.steps
        ],
    )


def composition_of(spec: Spec, type: str = "int64") -> _core.Composition:
    composition = _core.Composition(spec.ranks, type)
    for name, counts, given in spec.buffers:
        composition.add_buffer(name, counts, given)
    for number, step in enumerate(spec.steps):
        if number:
            composition.fence()
        for p in step:
            if p.kind == "multicast":
                composition.multicast(p.source, p.target, p.count, p.root, list(p.ranks))
            else:
                composition.reduce(p.source, p.target, p.count, list(p.ranks), p.root, p.operation)
    return composition


def plan(composition: _core.Composition, factors: list[int], **parameters: Any) -> list[_core.Schedule]:
    """The schedules of all ranks."""
    how = _core.PlanParameters(_core.Hierarchy(composition.ranks, factors), **parameters)
    return [_core.plan_rank(composition, how, rank) for rank in range(composition.ranks)]


def tight_plan(
    composition: _core.Composition, factors: list[int], **parameters: Any
) -> tuple[list[_core.Schedule], int]:
    """Plans with as little scratch as the planner can do with (to 1/16), and how much that is, in bytes."""
    loose = plan(composition, factors, **parameters)
    most = max(schedule.buffers[-1][1] for schedule in loose)
    for sixteenths in range(4, 16):
        limit = most * sixteenths // 16
        try:
            return plan(composition, factors, scratch_limit=limit, **parameters), limit
        except PlanError:
            continue
    return loose, most


def plain(schedules: list[_core.Schedule]) -> Plan:
    return [_core.schedule_to_dict(schedule) for schedule in schedules]


def schedules(plan: Plan) -> list[_core.Schedule]:
    return [_core.schedule_from_dict(one) for one in plan]


class Drawing:
    """A plan drawn step by step in an order in which it could run; needs follow from what steps touch."""

    def __init__(self, spec: Spec, scratch: int = 0) -> None:
        self.plan: Plan = [
            {
                "buffers": [(name, counts[rank] * ITEM, given) for name, counts, given in spec.buffers]
                + [("scratch", scratch * ITEM, False)],
                "libraries": [""],
                "steps": [],
            }
            for rank in range(spec.ranks)
        ]
        self.scratch = len(spec.buffers)
        self.tags = 0

    def add(self, rank: int, kind: str, **fields: Any) -> int:
        steps = self.plan[rank]["steps"]
        step = {"kind": kind, "name": f"{kind} {len(steps)}", "mark": (-1, -1, -1), "needs": [], **fields}
        mine = _touched(step)
        for number, earlier in enumerate(steps):
            theirs = _touched(earlier)
            if mine[1] & (theirs[0] | theirs[1]) or mine[0] & theirs[1]:
                step["needs"].append(number)
        steps.append(step)
        return len(steps) - 1

    def message(self, source: int, target: int, a: tuple[int, int], b: tuple[int, int], count: int) -> None:
        """`count` elements from (buffer, element) of one rank to (buffer, element) of another."""
        self.tags += 1
        both = {"tag": self.tags, "library": 0}
        self.add(source, "send", region=(a[0], a[1] * ITEM, count * ITEM), peer=target, **both)
        self.add(target, "receive", region=(b[0], b[1] * ITEM, count * ITEM), peer=source, **both)

    def copy(self, rank: int, a: tuple[int, int], b: tuple[int, int], count: int) -> None:
        size = count * ITEM
        entry = {
            "from": (a[0], a[1] * ITEM, size),
            "to": (b[0], b[1] * ITEM, size),
            "row_bytes": size,
            "rows": None,
        }
        self.add(rank, "copy", specs=[entry])

    def reduce(
        self, rank: int, sources: list[tuple[int, int]], into: tuple[int, int], count: int, **how: Any
    ) -> None:
        size = count * ITEM
        entry = {"from": [(b, k * ITEM, size) for b, k in sources], "into": (into[0], into[1] * ITEM, size)}
        self.add(
            rank, "reduce", specs=[entry], **{"type": "int64", "operation": "sum", "divide_by": 1, **how}
        )


def _touched(step: dict[str, Any]) -> tuple[set, set]:
    specs = specs_of(step)
    return {e for sources, _ in specs for s in sources for e in s}, {e for _, target in specs for e in target}


def ring_all_gather(ranks: int, count: int) -> tuple[Spec, Drawing]:
    spec = Spec(ranks)
    send, recv = spec.buffer("send", count), spec.buffer("recv", ranks * count, False)
    for root in range(ranks):
        spec.multicast((send, 0), (recv, root * count), count, root, range(ranks))
    drawing = Drawing(spec)
    for rank in range(ranks):
        drawing.copy(rank, (send, 0), (recv, rank * count), count)
    for hop in range(ranks - 1):
        for rank in range(ranks):
            at = (recv, (rank - hop) % ranks * count)
            drawing.message(rank, (rank + 1) % ranks, at, at, count)
    return spec, drawing


def direct_reduce_scatter(ranks: int, count: int, slots: int = 2) -> tuple[Spec, Drawing]:
    """Every rank sends each other rank its chunk; `slots` places take turns to receive them."""
    spec = Spec(ranks)
    send, recv = spec.buffer("send", ranks * count), spec.buffer("recv", count, False)
    for root in range(ranks):
        spec.reduce((send, root * count), (recv, 0), count, range(ranks), root)
    drawing = Drawing(spec, slots * count)
    for rank in range(ranks):
        drawing.copy(rank, (send, rank * count), (recv, 0), count)
    for turn in range(1, ranks):
        for rank in range(ranks):
            target, slot = (rank + turn) % ranks, (drawing.scratch, turn % slots * count)
            drawing.message(rank, target, (send, target * count), slot, count)
            drawing.reduce(target, [(recv, 0), slot], (recv, 0), count)
    return spec, drawing


def random_inputs(
    composition: _core.Composition, plan_: list[_core.Schedule], seed: int
) -> list[list[np.ndarray]]:
    """Memory of all ranks for int64 plans: inputs random, all else poison that differs everywhere."""
    dice = np.random.default_rng(seed)
    memory = []
    for schedule in plan_:
        mine = []
        for name, size in schedule.buffers:
            given = next((given for other, _, given in composition.buffers if other == name), False)
            low, high = (-(1 << 40), 1 << 40) if given else (-(1 << 62), -(1 << 61))
            mine.append(dice.integers(low, high, -(-size // ITEM)))
        memory.append(mine)
    return memory
