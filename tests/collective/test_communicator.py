"""Collectives of communicators on virtual ranks: results against NumPy, types, operations, variants, mistakes."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.comm.algorithms import ALGORITHMS, COLLECTIVES
from jali.errors import ParameterError, RankError

RANKS = [1, 2, 3, 4, 6]
COUNTS = [1, 3, 1021]
DTYPES = [
    *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def data(rank: int, count: int, dtype: str = "float64", salt: int = 0) -> np.ndarray:
    """Small whole numbers that depend on rank and place: sums of a few are exact in any type."""
    values = np.random.default_rng([rank, count, salt]).integers(1, 9, count)
    return values.astype(dtype)


def total(ranks: int, count: int, dtype: str = "float64", salt: int = 0) -> np.ndarray:
    return functools.reduce(np.add, (data(r, count, dtype, salt) for r in range(ranks)))


def on_ranks(ranks: int, function: Callable[[comm.Communicator], object]) -> list:
    return comm.virtual_ranks(ranks, lambda: function(comm.current()))


def check_all_eight(world: comm.Communicator, count: int, root: int, algorithm: str | None = None) -> None:
    """Every collective (that has the algorithm) against NumPy, with rank-dependent data and poisoned results."""
    p, me = world.size, world.rank
    chunks = [data(r, count) for r in range(p)]
    wholes = [data(r, p * count, salt=1) for r in range(p)]
    mine = slice(me * count, (me + 1) * count)

    def poisoned(n: int) -> np.ndarray:
        return np.full(n, np.nan)

    def named(collective: str) -> dict[str, str | None] | None:
        has = any(entry.name == algorithm and collective in entry.collectives for entry in ALGORITHMS)
        return {"algorithm": algorithm} if algorithm is None or has else None

    if (how := named("all_reduce")) is not None:
        out = poisoned(count)
        assert world.all_reduce(chunks[me], out, **how) is out
        np.testing.assert_array_equal(out, sum(chunks))
    if (how := named("reduce")) is not None:
        out = poisoned(count)
        result = world.reduce(chunks[me], out, root=root, **how)
        if me == root:
            np.testing.assert_array_equal(out, sum(chunks))
        else:
            assert result is None
            assert np.isnan(out).all()
    if (how := named("broadcast")) is not None:
        buffer = chunks[root].copy() if me == root else poisoned(count)
        world.broadcast(buffer, root, **how)
        np.testing.assert_array_equal(buffer, chunks[root])
    if (how := named("all_gather")) is not None:
        np.testing.assert_array_equal(world.all_gather(chunks[me], **how), np.concatenate(chunks))
    if (how := named("gather")) is not None:
        gathered = world.gather(chunks[me], root=root, **how)
        if me == root:
            np.testing.assert_array_equal(gathered, np.concatenate(chunks))
        else:
            assert gathered is None
    if (how := named("scatter")) is not None:
        part = poisoned(count)
        world.scatter(wholes[root] if me == root else None, part, root, **how)
        np.testing.assert_array_equal(part, wholes[root][mine])
    if (how := named("reduce_scatter")) is not None:
        np.testing.assert_array_equal(world.reduce_scatter(wholes[me], **how), sum(wholes)[mine])
    if (how := named("all_to_all")) is not None:
        swapped = world.all_to_all(wholes[me], **how)
        np.testing.assert_array_equal(swapped, np.concatenate([whole[mine] for whole in wholes]))
    np.testing.assert_array_equal(chunks[me], data(me, count))  # inputs are left alone
    np.testing.assert_array_equal(wholes[me], data(me, p * count, salt=1))


@pytest.mark.parametrize("ranks", RANKS)
def test_all_eight_collectives_agree_with_numpy(ranks: int) -> None:
    def run(world: comm.Communicator) -> None:
        for count in COUNTS:
            for root in {0, ranks - 1}:
                check_all_eight(world, count, root)

    on_ranks(ranks, run)


@pytest.mark.parametrize("algorithm", sorted({entry.name for entry in ALGORITHMS}))
@pytest.mark.parametrize("ranks", [3, 4])
def test_every_algorithm_of_the_table_gives_the_same_results(algorithm: str, ranks: int) -> None:
    on_ranks(ranks, lambda world: check_all_eight(world, 37, ranks - 1, algorithm))


def test_large_pipelined_algorithms_move_every_byte() -> None:
    def run(world: comm.Communicator) -> None:
        for algorithm in ("pipelined", "slices", "two_level", "ring", "two_step"):
            x = data(world.rank, 700_001)
            np.testing.assert_array_equal(world.all_reduce(x, algorithm=algorithm), total(4, 700_001))

    on_ranks(4, run)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_and_gather_of_every_element_type(dtype: str) -> None:
    def run(world: comm.Communicator) -> None:
        x = data(world.rank, 19, dtype)
        summed = world.all_reduce(x)
        assert summed.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(summed, total(3, 19, dtype))
        np.testing.assert_array_equal(
            world.all_gather(x), np.concatenate([data(r, 19, dtype) for r in range(3)])
        )

    on_ranks(3, run)


@pytest.mark.parametrize(
    ("op", "dtype", "reference"),
    [
        ("sum", "float64", np.add),
        ("prod", "int64", np.multiply),
        ("min", "float32", np.minimum),
        ("max", "int16", np.maximum),
        ("bit_and", "uint32", np.bitwise_and),
        ("bit_or", "int8", np.bitwise_or),
        ("bit_xor", "uint64", np.bitwise_xor),
        ("logical_and", "bool", np.logical_and),
        ("logical_or", "bool", np.logical_or),
        ("logical_xor", "bool", np.logical_xor),
    ],
)
def test_operations_agree_with_numpy(op: str, dtype: str, reference: np.ufunc) -> None:
    def value(rank: int) -> np.ndarray:
        return np.random.default_rng(rank).integers(0, 2 if dtype == "bool" else 7, 33).astype(dtype)

    def run(world: comm.Communicator) -> None:
        expected = functools.reduce(reference, map(value, range(4)))
        for algorithm in ("one_shot", "two_step", "recursive_doubling"):
            np.testing.assert_array_equal(
                world.all_reduce(value(world.rank), op=op, algorithm=algorithm), expected
            )

    on_ranks(4, run)


def test_average_divides_by_the_number_of_ranks() -> None:
    def run(world: comm.Communicator) -> None:
        np.testing.assert_array_equal(
            world.all_reduce(np.full(5, 3.0 * world.rank), op="avg"), np.full(5, 3.0)
        )
        with pytest.raises(ParameterError, match="avg"):
            world.all_reduce(np.arange(5), op="avg")

    on_ranks(3, run)


def maps_one_after_the_other(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """a + i b stands for x -> a x + b; f then g."""
    return g.real * f.real + 1j * (g.real * f.imag + g.imag)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("size", [1, 3, 5000])
def test_operations_that_do_not_commute_are_in_the_order_of_ranks_by_any_algorithm(
    ranks: int, size: int
) -> None:
    maps = [np.arange(size) % 3 - 1 + 1j * (np.arange(size) % (5 + r) - r) for r in range(ranks)]
    right = functools.reduce(maps_one_after_the_other, maps)
    named: dict[str, Any] = {"op": maps_one_after_the_other, "commutative": False}

    def run(world: comm.Communicator) -> None:
        mine = maps[world.rank]
        for entry in ALGORITHMS:
            if "all_reduce" in entry.collectives and entry.name not in ("mpi", "nccl", "rccl"):
                np.testing.assert_array_equal(world.all_reduce(mine, algorithm=entry.name, **named), right)
        np.testing.assert_array_equal(world.all_reduce(mine, checked=True, **named), right)
        root = world.size - 1
        found = world.reduce(mine, root=root, **named)
        assert found is None if world.rank != root else np.array_equal(found, right)
        counts = [size] + [0] * (world.size - 1)
        part = world.reduce_scatter(mine, counts=counts, **named)
        np.testing.assert_array_equal(part, right if world.rank == 0 else [])

    on_ranks(ranks, run)


def test_ranks_that_differ_in_whether_an_operation_commutes_raise_in_checked_mode() -> None:
    def run(world: comm.Communicator) -> None:
        with pytest.raises(ParameterError, match="commutative: .*rank"):
            world.all_reduce(
                np.ones(3), op=maps_one_after_the_other, commutative=world.rank > 0, checked=True
            )
        with pytest.raises(ParameterError, match="commutative is True or False, not 'no'"):
            world.all_reduce(np.ones(3), op=maps_one_after_the_other, commutative="no")

    on_ranks(2, run)


@pytest.mark.parametrize("flag", ["checked", "blocking", "reproducible"])
def test_flags_are_true_or_false(flag: str) -> None:
    for value in ("yes", 1, np.zeros(3), np.zeros(1)):
        with pytest.raises(ParameterError, match=f"{flag} is True or False, not "):
            comm.current().all_reduce(np.ones(3), **{flag: value})


def test_user_operation_sees_arrays_and_need_not_commute_when_reproducible() -> None:
    def affine(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        """(a, b) stands for x -> a x + b; f then g."""
        f, g = f.reshape(-1, 2), g.reshape(-1, 2)
        return np.stack([g[:, 0] * f[:, 0], g[:, 0] * f[:, 1] + g[:, 1]], axis=1).reshape(-1)

    def run(world: comm.Communicator) -> None:
        maps = [np.array([[r + 1, r], [2, r - 1]], dtype=float) for r in range(4)]
        out = world.all_reduce(maps[world.rank], op=affine, reproducible=True, algorithm="one_shot")
        np.testing.assert_array_equal(
            out.reshape(-1), functools.reduce(affine, (m.reshape(-1) for m in maps))
        )

    on_ranks(4, run)


def test_reproducible_sums_have_the_same_bits_with_any_algorithm() -> None:
    def run(world: comm.Communicator) -> set[bytes]:
        x = np.random.default_rng(world.rank).normal(size=257).astype(np.float32) * 10.0 ** (world.rank % 4)
        names = [entry.name for entry in ALGORITHMS if "all_reduce" in entry.collectives]
        return {world.all_reduce(x, reproducible=True, algorithm=name).tobytes() for name in names}

    assert len(set.union(*on_ranks(6, run))) == 1


@pytest.mark.parametrize("ranks", RANKS)
def test_uneven_parts_need_no_padding(ranks: int) -> None:
    rows = [(3 * r + 2) % 5 for r in range(ranks)]  # zero among them
    first = np.cumsum([0, *rows])

    def run(world: comm.Communicator) -> None:
        me = world.rank
        parts = [data(r, rows[r] * 2).reshape(rows[r], 2) for r in range(ranks)]
        for counts in (rows, "exchange"):
            np.testing.assert_array_equal(world.all_gather(parts[me], counts=counts), np.concatenate(parts))
            gathered = world.gather(parts[me], root=ranks - 1, counts=counts)
            if me == ranks - 1:
                np.testing.assert_array_equal(gathered, np.concatenate(parts))
        wholes = [data(r, 2 * sum(rows)).reshape(-1, 2) for r in range(ranks)]
        mine = slice(first[me], first[me + 1])
        np.testing.assert_array_equal(world.reduce_scatter(wholes[me], counts=rows), sum(wholes)[mine])
        out = np.full((rows[me], 2), np.nan)
        world.scatter(wholes[0] if me == 0 else None, out, counts=rows)
        np.testing.assert_array_equal(out, wholes[0][mine])

    on_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_all_to_all_with_counts_per_pair(ranks: int) -> None:
    matrix = [[(2 * i + 3 * j) % 4 for j in range(ranks)] for i in range(ranks)]

    def run(world: comm.Communicator) -> None:
        me = world.rank

        def message(i: int, j: int) -> np.ndarray:
            return np.full(matrix[i][j], 100 * i + j)

        x = np.concatenate([message(me, j) for j in range(ranks)])
        expected = np.concatenate([message(i, me) for i in range(ranks)])
        for counts in (matrix, matrix[me]):
            np.testing.assert_array_equal(world.all_to_all(x, counts=counts), expected)

    on_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_in_place_collectives_need_one_array(ranks: int) -> None:
    def run(world: comm.Communicator) -> None:
        me = world.rank
        mine = slice(me * 7, (me + 1) * 7)
        for algorithm in ("one_shot", "two_step", "recursive_doubling", "ring"):
            x = data(me, 41)
            assert world.all_reduce(x, out=x, algorithm=algorithm) is x
            np.testing.assert_array_equal(x, total(ranks, 41))
        x = data(me, 41)
        world.reduce(x, out=x, root=ranks - 1)
        if me == ranks - 1:
            np.testing.assert_array_equal(x, total(ranks, 41))
        x = np.full(7 * ranks, np.nan)
        x[mine] = data(me, 7)
        world.all_gather(x, out=x)
        np.testing.assert_array_equal(x, np.concatenate([data(r, 7) for r in range(ranks)]))
        x = data(me, 7 * ranks)
        world.reduce_scatter(x, out=x)
        np.testing.assert_array_equal(x[mine], total(ranks, 7 * ranks)[mine])

    on_ranks(ranks, run)


def test_empty_arrays_and_shapes() -> None:
    def run(world: comm.Communicator) -> None:
        assert world.all_reduce(np.zeros((0, 3))).shape == (0, 3)
        assert world.all_gather(np.zeros((2, 3))).shape == (6, 3)
        assert world.all_gather(np.float64(world.rank)).tolist() == [0.0, 1.0, 2.0]
        assert world.all_reduce(5).item() == 15
        assert world.reduce_scatter(np.zeros((6, 2))).shape == (2, 2)

    on_ranks(3, run)


def test_other_arrays_are_used_as_they_are() -> None:
    class Interface:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array
            self.__array_interface__ = array.__array_interface__

    class Capsule:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **arguments: object) -> object:
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    def run(world: comm.Communicator) -> None:
        for kind in (Interface, Capsule, memoryview):
            x, out = data(world.rank, 9), np.full(9, np.nan)
            world.all_reduce(kind(x), kind(out))
            np.testing.assert_array_equal(out, total(2, 9))

    on_ranks(2, run)


def test_requests_may_be_waited_for_in_any_order() -> None:
    def run(world: comm.Communicator) -> None:
        requests = [
            world.all_reduce(data(world.rank, 500 + k), blocking=False, algorithm="ring") for k in range(20)
        ]  # more than there are windows of tags, and the same plan never twice
        same = [world.all_reduce(data(world.rank, 64, salt=k), blocking=False) for k in range(5)]
        order = np.random.default_rng(world.rank).permutation(20)
        for k in order:
            np.testing.assert_array_equal(requests[k].wait(), total(4, 500 + k))
        for k, request in enumerate(same):
            while not request.test():
                pass
            np.testing.assert_array_equal(request.wait(), total(4, 64, salt=k))

    on_ranks(4, run)


def test_a_dropped_request_still_completes() -> None:
    def run(world: comm.Communicator) -> None:
        out = np.zeros(1000)
        world.all_reduce(data(world.rank, 1000), out, blocking=False)
        for _ in range(20):
            world.barrier()
            world.all_reduce(np.zeros(3))
        np.testing.assert_array_equal(world.all_reduce(data(world.rank, 5)), total(3, 5))

    on_ranks(3, run)


def test_parts_of_a_group_work_beside_the_whole() -> None:
    def run(world: comm.Communicator) -> None:
        odd = world.rank % 2
        part = world.split(odd, key=-world.rank)
        assert part is not None
        members = sorted(range(odd, 6, 2), reverse=True)
        assert (part.size, members[part.rank]) == (3, world.rank)
        one = part.all_reduce(np.full(100, float(world.rank)), blocking=False)
        two = world.all_reduce(np.full(100, 1.0), blocking=False)
        assert (two.wait() == 6).all()
        assert (one.wait() == sum(members)).all()
        np.testing.assert_array_equal(part.all_gather(np.array([world.rank])), members)
        check_all_eight(part, 11, 2)
        assert world.split(None if world.rank else 0) is None or world.rank == 0
        twin = world.duplicate()
        assert (twin.all_reduce(np.ones(2)) == 6).all()

    on_ranks(6, run)


def test_plans_are_kept_per_signature_and_dropped_when_old() -> None:
    def run(world: comm.Communicator) -> int:
        world.collectives.keep_at_most(8)
        for count in [*range(1, 40), *range(1, 40)]:
            np.testing.assert_array_equal(world.all_reduce(data(world.rank, count)), total(2, count))
        return int(world.collectives.plans["kept"])

    assert on_ranks(2, run) == [8, 8]


def test_a_setting_forces_an_algorithm(use_settings: Callable[..., None]) -> None:
    from jali._core import CollectiveCall

    def run(world: comm.Communicator) -> list[str]:
        calls = [CollectiveCall(c, np.dtype("float64"), 8, 0, "sum", False, None, False) for c in COLLECTIVES]
        return [world.collectives.algorithm_of(call).name for call in calls]

    use_settings(collective="all_reduce=ring,binomial")
    (names,) = on_ranks(1, run)
    assert dict(zip(COLLECTIVES, names, strict=True)) | {
        "all_reduce": "ring",
        "broadcast": "binomial",
    } == dict(zip(COLLECTIVES, names, strict=True))
    assert names[COLLECTIVES.index("all_to_all")] == "direct"
    with pytest.raises(ParameterError, match="collective=broadcast=bruck should be"):
        use_settings(collective="broadcast=bruck")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda w: w.all_reduce(np.zeros(4), np.zeros(5)),
            "has 32 bytes on this rank, the array given for it has 40",
        ),
        (lambda w: w.all_reduce(np.zeros((4, 4)).T[1:]), "no readable C-contiguous array"),
        (
            lambda w: w.all_reduce(np.zeros(4), np.zeros(4, "f4")),
            "the result is to be float32, but float64 is sent",
        ),
        (lambda w: w.all_reduce(np.zeros(4), np.broadcast_to(0.0, 4).copy().view(ReadOnly)), "no writable"),
        (lambda w: w.all_reduce(np.zeros(4), op="mean"), "operation 'mean' is not one of sum"),
        (lambda w: w.all_reduce(np.zeros(4), op="bit_or"), "bit_or"),
        (lambda w: w.all_reduce(np.zeros(4, bool)), "sum of booleans is no boolean"),
        (lambda w: w.all_reduce(np.array(["a"])), "elements of type <U1 cannot be sent"),
        (lambda w: w.all_reduce(np.zeros(4), algorithm="binomial"), "no algorithm 'binomial' for all_reduce"),
        (lambda w: w.broadcast(np.zeros(4), root=3), "root 3 does not exist among 1 rank"),
        (lambda w: w.broadcast(np.zeros(4), root="0"), "root is a whole number, not '0'"),
        (lambda w: w.reduce(np.zeros(4), root=0.0), "root is a whole number, not 0.0"),
        (lambda w: w.all_reduce(np.zeros(4), op=["sum"]), r"operation \['sum'\] is not one of"),
        (
            lambda w: w.all_reduce(np.zeros(4), algorithm=["ring"]),
            "the name of an entry of jali.comm.ALGORITHMS",
        ),
        (lambda w: w.all_reduce(np.zeros(4), algorithm=0), "the name of an entry of jali.comm.ALGORITHMS"),
        (lambda w: w.all_reduce(np.zeros(4), reproducible="no"), "reproducible is True or False, not 'no'"),
        (lambda w: w.all_gather(np.zeros(4), counts=4), "counts are whole numbers, one for each rank, not 4"),
        (lambda w: w.gather(np.zeros(4), counts=[4.0]), r"counts are whole numbers, .*not \[4.0\]"),
        (lambda w: w.all_to_all(np.zeros(4), counts=[["4"]]), "counts of an all_to_all are whole numbers"),
        (lambda w: w.all_gather(np.zeros(4), counts=[3]), r"counts \[3\] mean 3 rows on rank 0"),
        (lambda w: w.all_gather(np.zeros(4), counts=[3, 1]), "give a number from 0 for each"),
        (lambda w: w.all_to_all(np.zeros(4), counts=[[5]]), "rank 0 sends 5 rows by its counts"),
        (lambda w: overlapping(w), "overlap"),
    ],
)
def test_mistakes_are_named(call: Callable, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call(comm.current())


class ReadOnly(np.ndarray):
    """An array that refuses to be written."""

    def __array_finalize__(self, parent: object) -> None:
        self.flags.writeable = False


def overlapping(world: comm.Communicator) -> None:
    both = np.zeros(6)
    world.all_reduce(both[:4], both[2:])


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            (lambda w: w.all_reduce(np.zeros(4)), lambda w: w.all_reduce(np.zeros(5))),
            "count: 4 on ranks 0, 1, 5 on rank 2",
        ),
        (
            (lambda w: w.all_reduce(np.zeros(4)), lambda w: w.all_reduce(np.zeros(4, "f4"))),
            "element type: float64 on",
        ),
        (
            (lambda w: w.all_reduce(np.zeros(4)), lambda w: w.all_reduce(np.zeros(4), op="max")),
            "operation: sum on",
        ),
        (
            (lambda w: w.broadcast(np.zeros(4), 0), lambda w: w.broadcast(np.zeros(4), 1)),
            "root: 0 on ranks 0, 1, 1 on",
        ),
        (
            (lambda w: w.all_reduce(np.zeros(4)), lambda w: w.all_gather(np.zeros(4))),
            "call: all_reduce on ranks 0, 1",
        ),
        (
            (lambda w: w.barrier(), lambda w: w.all_gather(np.zeros(4))),
            "call: barrier on ranks 0, 1, all_gather on",
        ),
    ],
)
def test_checked_mode_reports_mismatches_on_every_rank(
    calls: tuple[Callable, Callable], message: str, use_settings: Callable[..., None]
) -> None:
    use_settings(checked="1")
    said = []

    def run(world: comm.Communicator) -> None:
        assert (world.all_reduce(np.ones(2)) == 3).all()  # calls that agree go through
        try:
            calls[world.rank == 2](world)
        except ParameterError as error:
            said.append(str(error))
        assert (world.all_reduce(np.ones(2)) == 3).all()  # and the group goes on

    on_ranks(3, run)
    assert len(said) == 3
    assert len(set(said)) == 1
    assert message in said[0]


def test_failing_rank_stops_those_that_wait_for_it() -> None:
    def run(world: comm.Communicator) -> None:
        world.all_reduce(np.ones(10))
        if world.rank == 1:
            raise ValueError("bad luck")
        world.all_reduce(np.ones(100_000), algorithm="ring")

    with pytest.raises(ValueError, match="bad luck"):
        on_ranks(3, run)


def test_failing_user_operation_reaches_every_rank() -> None:
    def broken(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("no inverse")

    seen = []

    def run(world: comm.Communicator) -> None:
        try:
            world.reduce(np.ones(10), op=broken, root=2)
            world.all_reduce(np.ones(3))
        except (ZeroDivisionError, RankError) as error:
            seen.append((world.rank, type(error).__name__))
            raise

    with pytest.raises(ZeroDivisionError, match="no inverse"):
        on_ranks(3, run)
    assert dict(seen)[2] == "ZeroDivisionError"
    assert len(seen) == 3


@pytest.mark.parametrize("ahead", [0, 1, 16, 63, 64, 4095])
@pytest.mark.parametrize("count", [2047, 2048, 100_003])
def test_destination_may_lie_anywhere_behind_its_source(ahead, count):
    memory = np.zeros(2 * count + 3 * 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    source = memory[start : start + count]
    behind = start + -(-count // 4096) * 4096 + ahead
    source[:] = np.random.default_rng(count).integers(0, 256, count)
    target = memory[behind : behind + count]
    comm.current().all_gather(source, target)
    np.testing.assert_array_equal(target, source)
    assert not memory[:start].any()
    assert not memory[behind + count :].any()


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        ({"op": "sum"}, {"op": "summ"}, "operation: sum on rank 0, summ on rank 1"),
        ({"op": "sum"}, {"op": 5}, "operation: sum on rank 0, 5 on rank 1"),
        ({}, {"algorithm": 5}, "algorithm: chosen on rank 0, 5 on rank 1"),
        ({}, {"reproducible": "x"}, "reproducible: False on rank 0, x on rank 1"),
        ({}, {"x": np.zeros(3, np.longdouble)}, "element type: float64 on rank 0, float128 on rank 1"),
        ({}, {"x": np.zeros(3, object)}, "element type: float64 on rank 0, object on rank 1"),
    ],
)
def test_an_error_on_one_rank_raises_on_all_in_checked_mode(
    mine: dict[str, Any], theirs: dict[str, Any], says: str
) -> None:
    def run(world: comm.Communicator) -> str:
        more = {"x": np.zeros(3)} | (theirs if world.rank else mine)
        with pytest.raises(ParameterError, match=says) as raised:
            world.all_reduce(**more, checked=True)
        assert raised.value.on_every_rank  # type: ignore[attr-defined]
        world.barrier()  # the group goes on
        return str(raised.value)

    assert len(set(on_ranks(2, run))) == 1


def test_threads_take_turns_on_a_communicator() -> None:
    world = comm.current().duplicate()
    wrong: list[Any] = []

    def calls(number: int) -> None:
        for turn in range(400):
            x = np.full(4 + (turn * 7 + number) % 300, float(number))
            if (world.all_reduce(x, op=(lambda a, b: a + b) if turn % 3 else "sum") != x).any():
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_operations_of_the_user_may_call_collectives() -> None:
    def run(world: comm.Communicator) -> Any:
        def add(a: Any, b: Any) -> Any:
            return a + inner.all_reduce(b)

        inner = comm.virtual_ranks(1, comm.current)[0] if world.size == 1 else world.split(world.rank)
        return world.all_reduce(np.ones(3), op=add)

    for found in on_ranks(2, run):
        np.testing.assert_array_equal(found, [2, 2, 2])


def test_odd_ways_to_call() -> None:
    world = comm.current()
    x = np.arange(3.0)
    np.testing.assert_array_equal(comm.Communicator.all_reduce(self=world, x=x), x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="all_reduce is a method of jali.comm.Communicator, not of a int"):
        comm.Communicator.all_reduce(5, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'self'"):
        comm.Communicator.all_reduce(x=x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="cannot create"):
        type(vars(comm.Communicator)["all_reduce"])()
    for name in ("ring\0", "\ud800"):
        with pytest.raises(ParameterError, match="there is no algorithm '.+' for all_reduce"):
            world.all_reduce(x, algorithm=name)
    with pytest.raises(ParameterError, match="is not one of sum"):
        world.all_reduce(x, op=np.array("sum"))
    for counts in ([2**63], np.array([2**63], np.uint64), [2**200]):
        with pytest.raises(ParameterError, match="beyond all that there can be"):
            world.all_gather(x, counts=counts)
    for matrix in ([[2**63]], np.array([[2**63]], np.uint64)):
        with pytest.raises(ParameterError, match="beyond all that there can be"):
            world.all_to_all(x, counts=matrix)


def test_counts_that_wrap_are_none() -> None:
    def run(world: comm.Communicator) -> None:
        y = np.ones((2, 4))
        for call in (world.all_gather, world.reduce_scatter):
            with pytest.raises(ParameterError, match="more elements than 64 bits can number"):
                call(y, y, counts=[2**61, 2**61, 2**62, 2**62])
        with pytest.raises(ParameterError, match="more elements than 64 bits can number"):
            world.all_to_all(np.ones((0, 8)), np.ones((0, 8)), counts=[[2**61] * 4] * 4)

    on_ranks(4, run)


def test_comparison_can_be_disabled_for_a_communicator(use_settings: Callable[..., None]) -> None:
    use_settings(checked=True)

    def run(world: comm.Communicator) -> str:
        assert world.checked
        world.checked = False
        world.barrier()
        with pytest.raises(ParameterError, match="no algorithm 'nosuch'"):
            world.all_reduce(np.ones(2), algorithm="nosuch")
        return str(world.checked)

    assert on_ranks(2, run) == ["False", "False"]


def test_explain_says_which_way_a_call_takes_and_why(use_settings: Callable[..., None]) -> None:
    def run(world: comm.Communicator) -> list[str]:
        x, before = np.full(1000, float(world.rank)), world.collectives.plans
        said = [
            world.explain("all_reduce", x),
            world.explain("all_reduce", x, op="max", algorithm="ring"),
            world.explain("gather", x=x, root=1, counts=[1000] * world.size),
            world.explain("broadcast", x),
        ]
        assert world.collectives.plans == before
        assert (x == world.rank).all()
        for wrong in ("barrier", "explain", 3, None, "all_reduce\0"):
            with pytest.raises(ParameterError, match="there is no collective"):
                world.explain(wrong, x)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="there is no algorithm 'ringg' for all_reduce"):
            world.explain("all_reduce", x, algorithm="ringg")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            world.explain("all_reduce")
        with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
            world.explain("all_reduce", x, axis=1)
        return said

    for said in on_ranks(3, run):
        chosen, requested, gathered, copied = said
        for text in (chosen, gathered, copied):
            assert re.fullmatch(r"\w+ \(line \d+ of jali's own rules\)", text), text
            assert text.split()[0] in {entry.name for entry in ALGORITHMS}
        assert requested == "ring (asked for)"
    use_settings(collective="pipelined")
    assert on_ranks(2, lambda world: world.explain("reduce", np.ones(9)))[0].startswith("pipelined (JALI_")
