"""The eight standard collectives in all their forms, evaluated, give what NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jali import _core
from jali.errors import PlanError
from jali.planner import Composition

COLLECTIVES = [
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "scatter",
    "gather",
    "all_to_all",
]
VECTORS = ("broadcast", "reduce", "all_reduce")
CASES = [(name, form) for name in COLLECTIVES for form in _core.forms_of(name)]

Vector = npt.NDArray[np.int64]


def value(rank: int, count: int, salt: int = 0) -> Vector:
    """Data that no other rank or place has."""
    return (np.arange(count, dtype=np.int64) + 7) * (1000 + 37 * rank) + rank + salt


def pieces(x: Vector, counts: list[int]) -> list[Vector]:
    return np.split(x, np.cumsum(counts)[:-1])


class Case:
    """What a collective is given and must give on each rank, by the words of the MPI standard."""

    def __init__(self, name: str, ranks: int, counts: list[int], root: int) -> None:
        p, total = ranks, sum(counts)
        self.send: list[Vector]
        self.recv: list[Vector | None]
        if name == "broadcast":
            self.send = [value(r, total if r == root else 0) for r in range(p)]
            self.recv = [self.send[root]] * p
        elif name in ("reduce", "all_reduce", "reduce_scatter"):
            self.send = [value(r, total) for r in range(p)]
            result = sum(self.send[1:], self.send[0])
            parts = pieces(result, counts)
            self.recv = [
                parts[r]
                if name == "reduce_scatter"
                else result
                if name == "all_reduce" or r == root
                else None
                for r in range(p)
            ]
        elif name in ("all_gather", "gather"):
            self.send = [value(r, counts[r]) for r in range(p)]
            gathered = np.concatenate(self.send)
            self.recv = [gathered if name == "all_gather" or r == root else None for r in range(p)]
        elif name == "scatter":
            self.send = [value(r, total if r == root else 0) for r in range(p)]
            self.recv = list(pieces(self.send[root], counts))
        else:
            table = np.array(counts).reshape(p, p)
            self.send = [value(i, int(table[i].sum())) for i in range(p)]
            parts_of = [pieces(self.send[i], list(table[i])) for i in range(p)]
            self.recv = [np.concatenate([parts_of[i][j] for i in range(p)]) for j in range(p)]


def run(composition: Composition, memory: list[dict[str, Vector]]) -> None:
    composition.check()
    for rank, arrays in enumerate(memory):
        for name, buffer in composition.buffers.items():
            if name not in arrays:
                arrays[name] = np.full(buffer.count(rank), -(10**15), np.int64)
    composition.evaluate(memory)


def counts_of(name: str, ranks: int, kind: str) -> list[int]:
    size = ranks * ranks if name == "all_to_all" else ranks
    if kind == "even":
        return [5] * size
    rng = np.random.default_rng(size)
    return [int(n) for n in rng.choice([0, 1, 2, 3, 7, 13], size)]


@pytest.mark.parametrize("kind", ["even", "uneven"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_form_gives_the_collective(name: str, form: str, ranks: int, kind: str) -> None:
    counts = counts_of(name, ranks, kind)
    given = sum(counts) if name in VECTORS else counts if kind == "uneven" else counts[0]
    for root in {0, ranks // 2, ranks - 1}:
        case = Case(name, ranks, counts, root)
        c = Composition.standard(name, ranks=ranks, count=given, dtype="int64", form=form, root=root)
        before = [x.copy() for x in case.send]
        memory = [{"send": case.send[r]} for r in range(ranks)]
        run(c, memory)
        for rank in range(ranks):
            expected = case.recv[rank]
            if expected is None:
                assert memory[rank]["recv"].size == 0
            else:
                np.testing.assert_array_equal(memory[rank]["recv"], expected)
            np.testing.assert_array_equal(memory[rank]["send"], before[rank])


@pytest.mark.parametrize("kind", ["even", "uneven"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_form_works_in_place(name: str, form: str, ranks: int, kind: str) -> None:
    counts = counts_of(name, ranks, kind)
    if name == "all_to_all":  # messages of a pair are alike
        table = np.array(counts).reshape(ranks, ranks)
        counts = [int(n) for n in (np.tril(table) + np.tril(table, -1).T).ravel()]
    given = sum(counts) if name in VECTORS else counts if kind == "uneven" else counts[0]
    total = sum(counts)
    for root in {0, ranks // 2, ranks - 1}:
        case = Case(name, ranks, counts, root)
        begin = np.concatenate([[0], np.cumsum(counts)])
        memory = []
        for rank in range(ranks):
            own = slice(int(begin[rank]), int(begin[rank + 1])) if name != "all_to_all" else slice(0)
            if name == "broadcast":
                data = case.send[root].copy() if rank == root else np.full(total, -1, np.int64)
            elif name == "all_gather" or (name == "gather" and rank == root):
                data = np.full(total, -1, np.int64)
                data[own] = case.send[rank]
            elif name == "scatter" and rank != root:
                data = np.full(counts[rank], -1, np.int64)
            else:
                data = case.send[rank].copy()
            memory.append({"data": data})
        c = Composition.standard(
            name, ranks=ranks, count=given, dtype="int64", form=form, root=root, in_place=True
        )
        before = [arrays["data"].copy() for arrays in memory]
        run(c, memory)
        for rank in range(ranks):
            own = slice(int(begin[rank]), int(begin[rank + 1]))
            data, expected = memory[rank]["data"], case.recv[rank]
            if name == "reduce_scatter" or (name == "scatter" and rank == root):
                data = data[own]
            np.testing.assert_array_equal(data, before[rank] if expected is None else expected)


def test_in_place_scatter_keeps_what_the_root_has() -> None:
    c = Composition.standard("scatter", ranks=3, count=[2, 1, 4], dtype="int64", root=1, in_place=True)
    memory = [{"data": np.zeros(2, np.int64)}, {"data": value(1, 7)}, {"data": np.zeros(4, np.int64)}]
    run(c, memory)
    np.testing.assert_array_equal(memory[1]["data"], value(1, 7))


@pytest.mark.parametrize("form", ["single", "composed", "rooted"])
@pytest.mark.parametrize("op", ["prod", "min", "max", "avg"])
def test_operations_of_all_reduce(form: str, op: str) -> None:
    c = Composition.standard("all_reduce", ranks=3, count=7, dtype="float64", form=form, op=op, root=1)
    send = [np.array([3.0, -2, 7, 0, 1, 5, 9]) * (r + 1) * (-1) ** r for r in range(3)]
    memory: list[dict[str, Any]] = [{"send": x, "recv": np.zeros(7)} for x in send]
    c.check()
    c.evaluate(memory)
    stacked = np.array(send)
    expected = {
        "prod": stacked.prod(0),
        "min": stacked.min(0),
        "max": stacked.max(0),
        "avg": stacked.mean(0),
    }[op]
    for arrays in memory:
        np.testing.assert_array_equal(arrays["recv"], expected)


def test_user_operation_is_one_operation_for_all_chunks() -> None:
    c = Composition.standard(
        "reduce_scatter", ranks=3, count=[1, 2, 3], dtype="int64", op=lambda a, b: 3 * a + b
    )
    send = [value(r, 6) for r in range(3)]
    memory = [{"send": x} for x in send]
    run(c, memory)
    result = 3 * (3 * send[0] + send[1]) + send[2]
    for rank, expected in enumerate(pieces(result, [1, 2, 3])):
        np.testing.assert_array_equal(memory[rank]["recv"], expected)


def test_composed_all_reduce_moves_each_chunk_through_its_own_rank() -> None:
    c = Composition.standard("all-reduce", ranks=4, count=10, dtype="float32").core
    first, second = c.steps
    assert [(p["kind"], p["root"], p["ranks"], p["target"], p["count"]) for p in first] == [
        ("reduce", 0, "all", (1, 0), 3),
        ("reduce", 1, "all", (1, 3), 3),
        ("reduce", 2, "all", (1, 6), 2),
        ("reduce", 3, "all", (1, 8), 2),
    ]
    assert [(p["kind"], p["root"], p["ranks"], p["source"], p["target"]) for p in second] == [
        ("multicast", i, "others", (1, o), (1, o)) for i, o in enumerate([0, 3, 6, 8])
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "allreduce"}, "no collective 'allreduce'; use one of broadcast, reduce, all_gather"),
        ({"form": "ringed"}, "no form 'ringed'; use one of single, composed, rooted"),
        ({"collective": "gather", "form": "composed"}, "gather has no form 'composed'; it has single"),
        (
            {"collective": "broadcast", "form": "rooted"},
            "broadcast has no form 'rooted'; it has single, composed",
        ),
        ({"root": 4}, "root 4 does not exist; ranks are 0 to 3"),
        ({"root": -1}, "root -1 does not exist"),
        ({"count": -3}, "count -3 of chunk 0"),
        ({"count": [1, 2]}, "all_reduce of 4 ranks takes one count, not 2"),
        ({"collective": "gather", "count": [1, 2]}, "gather of 4 ranks takes one count or 4, not 2"),
        (
            {"collective": "all_to_all", "count": [1] * 4},
            "all_to_all of 4 ranks takes one count or 16, not 4",
        ),
        ({"collective": "all_gather", "count": 2**62}, "more elements than 64 bits can number"),
        ({"count": 2**62}, "elements; it must be 0 to"),
        ({"dtype": "int32", "op": "avg"}, "'avg' is not defined for int32"),
        ({"op": "xor"}, "no operation 'xor'"),
        (
            {"collective": "all_to_all", "count": list(range(16)), "in_place": True},
            "rank 1 sends 4 elements to rank 0 and receives 1; both must be the same",
        ),
    ],
)
def test_calls_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"collective": "all_reduce", "ranks": 4, "count": 3} | arguments
    with pytest.raises(PlanError, match=message):
        Composition.standard(**call)
