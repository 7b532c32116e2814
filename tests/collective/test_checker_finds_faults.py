"""The checker finds every fault that can change a result or exceed a bound.

Faults are seeded into real plans (`mutants`), class by class. For each mutant the checker's verdict is compared
with that of an independent proof (`brute_force.prove`):

- a mutant that passes has to be proved equivalent: every pair of conflicting accesses is ordered and every
  element ends with what the composition says. It is listed with the reason;
- a mutant that is rejected has to be shown wrong by execution: wrong data, deadlock or an error in some order
  that an adversary picks, who among other things delays the steps that were tampered with.

`pytest -s` prints the table.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from brute_force import Graph, Plan, Spec, WrongError, evaluate, prove, run, start_memory
from mutants import FAULTS, Mutant, mutants
from plans import plain, schedules, spec_of, tight_plan

from jali import _core
from jali.errors import CheckError


@dataclass
class Base:
    """A right plan, with no more scratch than it needs, so that places are used again."""

    name: str
    spec: Spec
    composition: _core.Composition
    plan: Plan
    scratch_limit: int


# Collective, form, ranks, count, in place, factors, parameters.
SMALL = [
    ("all_reduce", "composed", 4, [12], False, [2, 2], {"depth": 2}),
    ("broadcast", "composed", 6, [12], True, [3, 2], {"stripe": 2, "depth": 2}),
    ("all_gather", "single", 8, [2], False, [2, 4], {}),
    ("reduce_scatter", "single", 6, [2], False, [3, 2], {"ring": 3}),
    ("reduce", "single", 8, [16], False, [2, 2, 2], {"stripe": 2, "depth": 2}),
    ("all_to_all", "single", 4, [2], False, [2, 2], {}),
    ("all_reduce", "composed", 6, [12], True, [2, 3], {}),
    ("gather", "single", 6, [3], False, [3, 2], {"depth": 3, "pack_below": 1}),
]
LARGE = [
    (collective, form, 8, [count], False, factors, {"stripe": stripe, "ring": ring, "depth": depth})
    for collective, form, count in [
        ("all_reduce", "composed", 16),
        ("all_reduce", "single", 6),
        ("all_reduce", "rooted", 6),
        ("broadcast", "single", 12),
        ("broadcast", "composed", 16),
        ("reduce", "composed", 16),
        ("all_gather", "composed", 2),
        ("reduce_scatter", "single", 2),
        ("scatter", "single", 3),
        ("gather", "single", 3),
        ("all_to_all", "single", 1),
    ]
    for factors in ([8], [2, 4], [4, 2], [2, 2, 2])
    for stripe, ring, depth in ((1, 1, 2), (2, 1, 1), (1, 4, 2), (2, 2, 3))
]


def base(collective, form, ranks, counts, in_place, factors, parameters) -> Base:
    composition = _core.standard_composition(ranks, collective, form, "int64", counts, in_place=in_place)
    all_ranks, limit = tight_plan(composition, factors, **parameters)
    words = " ".join(f"{key} {value}" for key, value in parameters.items())
    return Base(
        f"{collective} {form} {factors} {words}", spec_of(composition), composition, plain(all_ranks), limit
    )


def rejected_by_checker(b: Base, plan: Plan) -> CheckError | None:
    try:
        _core.check_plan(b.composition, schedules(plan), scratch_limit=b.scratch_limit)
    except CheckError as error:
        return error
    return None


def rejected_by_proof(b: Base, plan: Plan) -> WrongError | None:
    try:
        prove(b.spec, plan, b.scratch_limit)
    except WrongError as wrong:
        return wrong
    return None


def shown_wrong(b: Base, mutant: Mutant, attempts: int = 40) -> str | None:
    """What an adversary brings about: "data", or the report of `run`; None: nothing wrong was seen."""
    begin = [0]
    for one in mutant.plan:
        begin.append(begin[-1] + len(one["steps"]))
    suspects = [begin[rank] + s for rank, s in mutant.suspects]
    for seed in range(attempts):
        delayed = frozenset()
        if suspects and seed % 3 == 0:
            delayed = frozenset([suspects[seed // 3 % len(suspects)]])
        elif suspects and seed % 3 == 1:
            delayed = frozenset(random.Random(seed).sample(suspects, (len(suspects) + 1) // 2))
        memory, expected = (start_memory(b.spec, mutant.plan, seed) for _ in range(2))
        evaluate(b.spec, expected)
        report = run(mutant.plan, memory, seed, delayed, strict=seed >= attempts // 2)
        if report:
            return report
        for mine, right in zip(memory, expected, strict=True):
            if any((x != y).any() for x, y in zip(mine[:-1], right[:-1], strict=True)):
                return "data"
    return None


def ordered(graph: Graph, rank: int, earlier: int, later: int) -> bool:
    """By the needs of the rank alone."""
    steps = [step for r, _, step in graph.steps if r == rank]
    stack, seen = [later], set()
    while stack:
        for need in steps[stack.pop()]["needs"]:
            if need == earlier:
                return True
            if need not in seen:
                seen.add(need)
                stack.append(need)
    return False


def reason(mutant: Mutant, original: Plan) -> str:
    """Why an equivalent mutant is equivalent, in words for the table; the proof is `prove`."""
    if [len(one["steps"]) for one in mutant.plan] != [len(one["steps"]) for one in original]:
        return "the same contents are written once more, and whoever reads waits"
    graph = Graph(mutant.plan)
    removed = [
        (rank, s, need)
        for rank, (new, old) in enumerate(zip(mutant.plan, original, strict=True))
        for s, (a, b) in enumerate(zip(new["steps"], old["steps"], strict=True))
        for need in set(b["needs"]) - set(a["needs"])
    ]
    if removed:
        if all(ordered(graph, rank, need, s) for rank, s, need in removed):
            return "the need is implied by other needs"
        return "the need is implied through messages of other ranks, or orders steps that do not conflict"
    if mutant.text.startswith("spec of"):
        return "the place still holds the same contents from an earlier use"
    if mutant.text.startswith("scratch"):
        return "the new place is free whenever it is used"
    if mutant.text.startswith(("sources", "targets")):
        return "the operation commutes, or both specs are the same"
    return "both messages carry the same contents"


def examine(bases: list[Base], per_base: int) -> tuple[dict[str, Counter], list[str], list[str]]:
    table: dict[str, Counter] = {}
    equivalent: list[str] = []
    wrong: list[str] = []
    for fault in FAULTS:
        entry = table[fault] = Counter()
        for number, b in enumerate(bases):
            for mutant in mutants(b.plan, fault, per_base, number):
                entry["mutants"] += 1
                where = f"{fault}; {b.name}: {mutant.text}"
                error, proof = rejected_by_checker(b, mutant.plan), rejected_by_proof(b, mutant.plan)
                if (error is None) != (proof is None):
                    wrong.append(f"{where}: checker says {error}, the proof {proof}")
                elif error is None:
                    entry["equivalent"] += 1
                    why = reason(mutant, b.plan)
                    entry[why] += 1
                    equivalent.append(f"{where}: {why}")
                    if shown_wrong(b, mutant, 4):
                        wrong.append(f"{where}: passes the checker and the proof, but goes wrong")
                else:
                    entry["rejected"] += 1
                    entry[f"kind {error.kind}"] += 1
                    seen = shown_wrong(b, mutant)
                    entry[f"shown: {seen}" if seen else "not shown"] += 1
                    if not seen:
                        wrong.append(f"{where}: {error}, but no execution shows it")
    return table, equivalent, wrong


def print_table(table: dict[str, Counter], equivalent: list[str]) -> None:
    columns = [
        "mutants",
        "rejected",
        "shown: data",
        "shown: deadlock",
        "shown: message",
        "shown: bounds",
        "shown: memory",
        "equivalent",
    ]
    print("\n" + f"{'fault':20}" + "".join(f"{c.removeprefix('shown: '):>12}" for c in columns))
    for fault, entry in table.items():
        print(f"{fault:20}" + "".join(f"{entry[c]:12}" for c in columns))
    print("\n".join(["", "equivalent, by the second proof:", *equivalent]))


def test_plans_without_faults_pass_both_proofs_and_run_right():
    for b in map(lambda args: base(*args), SMALL):
        assert rejected_by_checker(b, b.plan) is None
        assert rejected_by_proof(b, b.plan) is None
        assert shown_wrong(b, Mutant("", "", b.plan), 6) is None


def test_every_seeded_fault_is_found():
    table, equivalent, wrong = examine([base(*args) for args in SMALL], 10)
    print_table(table, equivalent)
    assert not wrong, "\n".join(wrong)
    for fault, entry in table.items():
        assert entry["rejected"] >= 40, f"{fault}: only {entry['rejected']} mutants that matter"


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_seeded_fault_is_found_in_many_plans():
    table, equivalent, wrong = examine([base(*args) for args in LARGE], 4)
    print_table(table, equivalent[:50])
    print(json.dumps({fault: dict(entry) for fault, entry in table.items()}, indent=1))
    assert not wrong, "\n".join(wrong)
    for fault, entry in table.items():
        assert entry["rejected"] >= 300, fault


@pytest.mark.parametrize("excess", [1, 4096])
def test_more_scratch_than_allowed_is_found(excess):
    b = base(*SMALL[0])
    name, size, given = b.plan[1]["buffers"][-1]
    b.plan[1]["buffers"][-1] = (name, b.scratch_limit + excess, given)
    error = rejected_by_checker(b, b.plan)
    assert error is not None
    assert (error.kind, error.rank) == ("scratch", 1)
