"""Faults, put into plans on purpose: one function per way to go wrong, seven classes.

A mutant is a plan (a list of `_core.schedule_to_dict`, one per rank) with one change. Steps keep their
numbers or are renumbered with what refers to them, so that nothing else changes by accident.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from brute_force import ITEM, Plan, WrongError, specs_of

Step = dict[str, Any]


@dataclass
class Mutant:
    fault: str  # class
    text: str
    plan: Plan
    suspects: tuple[tuple[int, int], ...] = ()  # (rank, step of the mutant): whom an adversary should delay


class DoesNotApplyError(Exception):
    """This fault cannot be put there; the caller draws again."""


# --- finding and editing steps


def steps_of(plan: Plan, *kinds: str) -> list[tuple[int, int]]:
    return [
        (rank, s)
        for rank, one in enumerate(plan)
        for s, step in enumerate(one["steps"])
        if step["kind"] in kinds
    ]


def pick(dice: random.Random, choices: list) -> Any:
    if not choices:
        raise DoesNotApplyError
    return dice.choice(choices)


def partner(plan: Plan, rank: int, s: int) -> tuple[int, int]:
    """The other side of a message: as many of its envelope before it there as here."""
    step = plan[rank]["steps"][s]
    other = {"send": "receive", "receive": "send"}[step["kind"]]
    earlier = sum(
        t["kind"] == step["kind"] and t["peer"] == step["peer"] and t["tag"] == step["tag"]
        for t in plan[rank]["steps"][:s]
    )
    there = [
        k
        for k, t in enumerate(plan[step["peer"]]["steps"])
        if t["kind"] == other and t["peer"] == rank and t["tag"] == step["tag"]
    ]
    return step["peer"], there[earlier]


def remove(one: Step, s: int) -> None:
    """Takes a step away; what needed it needs what it needed."""
    gone = one["steps"].pop(s)
    for step in one["steps"]:
        needs = set(step["needs"])
        if s in needs:
            needs = (needs - {s}) | set(gone["needs"])
        step["needs"] = sorted(need - (need > s) for need in needs)


def insert_after(one: Step, s: int, new: Step, successors_wait: bool) -> None:
    """Puts `new` behind step s; its needs are numbers before the insertion."""
    for step in one["steps"]:
        step["needs"] = [need + (need > s) for need in step["needs"]]
        if successors_wait and s in step["needs"]:
            step["needs"].append(s + 1)
    new["needs"] = [need + (need > s) for need in new["needs"]]
    one["steps"].insert(s + 1, new)


def touched(step: Step) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Elements read and written."""
    reads: set[tuple[int, int]] = set()
    writes: set[tuple[int, int]] = set()
    try:
        for sources, target in specs_of(step):
            for source in sources:
                reads.update(source)
            writes.update(target)
    except WrongError:
        raise DoesNotApplyError from None
    return reads, writes


def describe(plan: Plan, rank: int, s: int) -> str:
    return f"rank {rank} step {s} ({plan[rank]['steps'][s]['name']})"


# --- dropped


def drop_message(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "send"))
    peer, r = partner(plan, rank, s)
    text = f"message of {describe(plan, rank, s)}"
    remove(plan[rank], s)
    remove(plan[peer], r)
    return Mutant("dropped", text, plan)


def drop_one_side(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "send", "receive"))
    text = f"one side: {describe(plan, rank, s)}"
    remove(plan[rank], s)
    return Mutant("dropped", text, plan)


def drop_source(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "reduce"))
    entry = pick(dice, plan[rank]["steps"][s]["specs"])
    if len(entry["from"]) < 2:
        raise DoesNotApplyError
    entry["from"].pop(dice.randrange(len(entry["from"])))
    return Mutant("dropped", f"source of {describe(plan, rank, s)}", plan)


def drop_spec(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "reduce", "copy"))
    step = plan[rank]["steps"][s]
    text = f"spec of {describe(plan, rank, s)}"
    step["specs"].pop(dice.randrange(len(step["specs"])))
    if not step["specs"]:
        remove(plan[rank], s)
    return Mutant("dropped", text, plan)


# --- duplicated


def repeat_source(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "reduce"))
    entry = pick(dice, plan[rank]["steps"][s]["specs"])
    entry["from"].append(dice.choice(entry["from"]))
    return Mutant("duplicated", f"source of {describe(plan, rank, s)}", plan)


def repeat_step(plan: Plan, dice: random.Random) -> Mutant:
    """A copy or reduction once more, after the first; a reduction onto its own source counts twice."""
    rank, s = pick(dice, steps_of(plan, "reduce", "copy"))
    wait = dice.random() < 0.5
    new = copy.deepcopy(plan[rank]["steps"][s])
    new["needs"] = [*new["needs"], s]
    text = f"{describe(plan, rank, s)}{', and what follows waits for it' if wait else ''}"
    insert_after(plan[rank], s, new, wait)
    return Mutant("duplicated", text, plan, ((rank, s + 1),))


def repeat_message(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "send"))
    peer, r = partner(plan, rank, s)
    wait = dice.random() < 0.5
    text = f"message of {describe(plan, rank, s)}{', and what follows waits for it' if wait else ''}"
    for where, step in ((rank, s), (peer, r)):
        new = copy.deepcopy(plan[where]["steps"][step])
        new["needs"] = [*new["needs"], step]
        insert_after(plan[where], step, new, wait)
    return Mutant("duplicated", text, plan, ((rank, s + 1), (peer, r + 1)))


def repeat_one_side(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "send", "receive"))
    new = copy.deepcopy(plan[rank]["steps"][s])
    new["needs"] = [*new["needs"], s]
    text = f"one side: {describe(plan, rank, s)}"
    insert_after(plan[rank], s, new, False)
    return Mutant("duplicated", text, plan, ((rank, s + 1),))


# --- swapped


def pair_on_a_rank(plan: Plan, dice: random.Random, *kinds: str) -> tuple[int, int, int]:
    rank, a = pick(dice, steps_of(plan, *kinds))
    kind = plan[rank]["steps"][a]["kind"]
    others = [s for r, s in steps_of(plan, kind) if r == rank and s != a]
    return rank, a, pick(dice, others)


def swap_fields(field: str) -> Callable[[Plan, random.Random], Mutant]:
    def swap(plan: Plan, dice: random.Random) -> Mutant:
        rank, a, b = pair_on_a_rank(plan, dice, "send", "receive")
        one, two = plan[rank]["steps"][a], plan[rank]["steps"][b]
        if one[field] == two[field] or one["region"][2] != two["region"][2]:
            raise DoesNotApplyError
        one[field], two[field] = two[field], one[field]
        return Mutant(
            "swapped", f"{field} of {describe(plan, rank, a)} and step {b}", plan, ((rank, a), (rank, b))
        )

    return swap


def swap_sources(plan: Plan, dice: random.Random) -> Mutant:
    """Sources of two specs of the same size; within one spec that changes nothing but the order."""
    rank, a = pick(dice, steps_of(plan, "reduce", "copy"))
    kind = plan[rank]["steps"][a]["kind"]
    if kind == "reduce":
        specs = [
            (s, entry, k)
            for r, s in steps_of(plan, "reduce")
            if r == rank
            for entry in plan[rank]["steps"][s]["specs"]
            for k in range(len(entry["from"]))
        ]
        s, entry, k = pick(dice, specs)
        t, other, j = pick(dice, specs)
        if entry["from"][k] == other["from"][j] or entry["into"][2] != other["into"][2]:
            raise DoesNotApplyError
        entry["from"][k], other["from"][j] = other["from"][j], entry["from"][k]
    else:
        specs = [
            (s, entry)
            for r, s in steps_of(plan, "copy")
            if r == rank
            for entry in plan[rank]["steps"][s]["specs"]
        ]
        (s, entry), (t, other) = pick(dice, specs), pick(dice, specs)
        if entry["from"] == other["from"] or entry["to"][2] != other["to"][2]:
            raise DoesNotApplyError
        entry["from"], other["from"] = other["from"], entry["from"]
    return Mutant(
        "swapped", f"sources in {describe(plan, rank, s)} and step {t}", plan, ((rank, s), (rank, t))
    )


def swap_targets(plan: Plan, dice: random.Random) -> Mutant:
    rank, a = pick(dice, steps_of(plan, "reduce", "copy"))
    key = {"reduce": "into", "copy": "to"}[plan[rank]["steps"][a]["kind"]]
    specs = [
        (s, entry)
        for r, s in steps_of(plan, plan[rank]["steps"][a]["kind"])
        if r == rank
        for entry in plan[rank]["steps"][s]["specs"]
    ]
    (s, entry), (t, other) = pick(dice, specs), pick(dice, specs)
    if entry[key] == other[key] or entry[key][2] != other[key][2]:
        raise DoesNotApplyError
    entry[key], other[key] = other[key], entry[key]
    return Mutant(
        "swapped", f"targets in {describe(plan, rank, s)} and step {t}", plan, ((rank, s), (rank, t))
    )


def swap_regions(plan: Plan, dice: random.Random) -> Mutant:
    return swap_fields("region")(plan, dice)


def swap_peers(plan: Plan, dice: random.Random) -> Mutant:
    return swap_fields("peer")(plan, dice)


def swap_tags(plan: Plan, dice: random.Random) -> Mutant:
    return swap_fields("tag")(plan, dice)


# --- misrouted


def misroute_one_side(plan: Plan, dice: random.Random) -> Mutant:
    rank, s = pick(dice, steps_of(plan, "send", "receive"))
    step = plan[rank]["steps"][s]
    step["peer"] = pick(dice, [r for r in range(len(plan)) if r not in (rank, step["peer"])])
    return Mutant(
        "misrouted", f"{describe(plan, rank, s)} to or from rank {step['peer']}", plan, ((rank, s),)
    )


def misroute_message(plan: Plan, dice: random.Random) -> Mutant:
    """Another rank sends it: both sides agree, the data is another's."""
    rank, s = pick(dice, steps_of(plan, "send"))
    peer, r = partner(plan, rank, s)
    other = pick(dice, [k for k in range(len(plan)) if k not in (rank, peer)])
    step = plan[rank]["steps"][s]
    buffer, offset, size = step["region"]
    if offset + size > plan[other]["buffers"][buffer][1]:
        raise DoesNotApplyError
    new = copy.deepcopy(step)
    new["needs"] = list(range(len(plan[other]["steps"])))
    text = f"{describe(plan, rank, s)} sent by rank {other} instead"
    remove(plan[rank], s)
    new["tag"] = plan[peer]["steps"][r]["tag"] = 30000
    new["needs"] = []
    plan[other]["steps"].append(new)
    plan[peer]["steps"][r]["peer"] = other
    return Mutant("misrouted", text, plan, ((other, len(plan[other]["steps"]) - 1),))


def misroute_region(plan: Plan, dice: random.Random) -> Mutant:
    """From or to another place: shifted by some elements, or in another buffer."""
    rank, s = pick(dice, steps_of(plan, "send", "receive", "copy", "reduce"))
    step = plan[rank]["steps"][s]
    holders: list[tuple[Any, Any]] = []
    if "region" in step:
        holders.append((step, "region"))
    else:
        for entry in step["specs"]:
            if step["kind"] == "copy":
                holders += [(entry, "from"), (entry, "to")]
            else:
                holders += [(entry, "into"), *((entry["from"], k) for k in range(len(entry["from"])))]
    holder, key = dice.choice(holders)
    buffer, offset, size = holder[key]
    if size == 0:
        raise DoesNotApplyError
    if dice.random() < 0.5:
        buffer = dice.randrange(len(plan[rank]["buffers"]))
    offset += dice.choice([-1, 1]) * ITEM * dice.randint(1, 2 * size // ITEM)
    if (buffer, offset) == tuple(holder[key][:2]) or offset < 0:
        raise DoesNotApplyError
    holder[key] = (buffer, offset, size)
    return Mutant("misrouted", f"{key} of {describe(plan, rank, s)} at {holder[key]}", plan, ((rank, s),))


# --- early read, late overwrite, missing dependency


def needs_that(plan: Plan, why: Callable[[Step, Step], bool]) -> list[tuple[int, int, int]]:
    """(rank, step, need) where `why(earlier, later)`."""
    return [
        (rank, s, need)
        for rank, one in enumerate(plan)
        for s, step in enumerate(one["steps"])
        for need in step["needs"]
        if why(one["steps"][need], step)
    ]


def reads_it(earlier: Step, later: Step) -> bool:
    return bool(touched(earlier)[1] & touched(later)[0])


def overwrites_it(earlier: Step, later: Step) -> bool:
    reads, writes = touched(earlier)
    return bool((reads | writes) & touched(later)[1])


def read_early(plan: Plan, dice: random.Random) -> Mutant:
    rank, s, need = pick(dice, needs_that(plan, reads_it))
    plan[rank]["steps"][s]["needs"].remove(need)
    return Mutant(
        "early read", f"{describe(plan, rank, s)} without step {need}", plan, ((rank, need), (rank, s))
    )


def read_before_all(plan: Plan, dice: random.Random) -> Mutant:
    """All that a step reads may come later than it."""
    rank, s, _ = pick(dice, needs_that(plan, reads_it))
    step = plan[rank]["steps"][s]
    gone = [need for need in step["needs"] if reads_it(plan[rank]["steps"][need], step)]
    step["needs"] = [need for need in step["needs"] if need not in gone]
    return Mutant(
        "early read",
        f"{describe(plan, rank, s)} without steps {gone}",
        plan,
        (*((rank, need) for need in gone), (rank, s)),
    )


def overwrite_late(plan: Plan, dice: random.Random) -> Mutant:
    rank, s, need = pick(dice, needs_that(plan, overwrites_it))
    plan[rank]["steps"][s]["needs"].remove(need)
    return Mutant(
        "late overwrite", f"{describe(plan, rank, s)} without step {need}", plan, ((rank, need), (rank, s))
    )


def move_scratch(plan: Plan, dice: random.Random) -> Mutant:
    """What a rank keeps in one place of its scratch now lies elsewhere in it, for all steps that use it."""
    rank = pick(dice, [r for r, one in enumerate(plan) if one["buffers"][-1][1] > 0])
    one = plan[rank]
    scratch = len(one["buffers"]) - 1
    written = sorted(
        {
            region
            for step in one["steps"]
            for region in _targets(step)
            if region[0] == scratch and region[2] > 0
        }
    )
    _, begin, size = pick(dice, written)
    room = one["buffers"][-1][1] - size
    to = dice.randrange(room // ITEM + 1) * ITEM
    if to == begin:
        raise DoesNotApplyError

    def moved(region: tuple[int, int, int]) -> tuple[int, int, int]:
        if region[0] == scratch and begin <= region[1] and region[1] + region[2] <= begin + size:
            return (scratch, region[1] - begin + to, region[2])
        return region

    suspects = []
    for s, step in enumerate(one["steps"]):
        before = copy.deepcopy(step)
        if "region" in step:
            step["region"] = moved(tuple(step["region"]))
        for entry in step.get("specs", ()):
            for key in ("to", "into"):
                if key in entry:
                    entry[key] = moved(tuple(entry[key]))
            if step["kind"] == "copy":
                entry["from"] = moved(tuple(entry["from"]))
            else:
                entry["from"] = [moved(tuple(region)) for region in entry["from"]]
        if step != before:
            suspects.append((rank, s))
    return Mutant(
        "late overwrite", f"scratch of rank {rank} at {begin} (+{size}) moved to {to}", plan, tuple(suspects)
    )


def _targets(step: Step) -> Iterator[tuple[int, int, int]]:
    if step["kind"] == "receive":
        yield tuple(step["region"])
    for entry in step.get("specs", ()):
        yield tuple(entry.get("to", entry.get("into")))


def forget_need(plan: Plan, dice: random.Random) -> Mutant:
    rank, s, need = pick(dice, needs_that(plan, lambda earlier, later: True))
    plan[rank]["steps"][s]["needs"].remove(need)
    return Mutant(
        "missing dependency",
        f"{describe(plan, rank, s)} without step {need}",
        plan,
        ((rank, need), (rank, s)),
    )


def forget_all_needs(plan: Plan, dice: random.Random) -> Mutant:
    rank, s, _ = pick(dice, needs_that(plan, lambda earlier, later: True))
    gone = plan[rank]["steps"][s]["needs"]
    plan[rank]["steps"][s]["needs"] = []
    return Mutant(
        "missing dependency",
        f"{describe(plan, rank, s)} without any need",
        plan,
        (*((rank, need) for need in gone), (rank, s)),
    )


FAULTS: dict[str, list[Callable[[Plan, random.Random], Mutant]]] = {
    "dropped": [drop_message, drop_one_side, drop_source, drop_spec],
    "duplicated": [repeat_source, repeat_step, repeat_message, repeat_one_side],
    "swapped": [swap_regions, swap_peers, swap_tags, swap_sources, swap_targets],
    "misrouted": [misroute_one_side, misroute_message, misroute_region],
    "early read": [read_early, read_before_all],
    "late overwrite": [overwrite_late, move_scratch],
    "missing dependency": [forget_need, forget_all_needs],
}


def mutants(plan: Plan, fault: str, count: int, seed: int) -> Iterator[Mutant]:
    """Up to `count` mutants of one class, always the same for a seed."""
    dice = random.Random(f"{fault} {seed}")
    seen: set[str] = set()
    for attempt in range(20 * count):
        if len(seen) == count:
            return
        spec = FAULTS[fault][attempt % len(FAULTS[fault])]
        try:
            mutant = spec(copy.deepcopy(plan), dice)
        except DoesNotApplyError:
            continue
        if mutant.text not in seen:
            seen.add(mutant.text)
            yield mutant
