"""The way "mpi" of collectives on arrays of the host: the MPI library's own, as part of jali's calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jali
from jali import comm
from jali.errors import ParameterError

ON_MPI = pytest.mark.mpi

DATA = """
world = comm.current()
p, me = world.size, world.rank

def data(rank, count, dtype, salt=0):
    numbers = np.random.default_rng([rank, count, salt]).integers(1, 5, count)
    return (numbers % 2 == 1) if dtype == "bool" else numbers.astype(dtype)

def right(result, expected, *what):
    assert result.dtype == expected.dtype and result.shape == expected.shape, what
    np.testing.assert_array_equal(result, expected, str(what))

OF_NUMPY = {
    "sum": lambda all: np.sum(all, axis=0, dtype=all[0].dtype),
    "prod": lambda all: np.prod(all, axis=0, dtype=all[0].dtype),
    "min": lambda all: np.min(all, axis=0),
    "max": lambda all: np.max(all, axis=0),
    "logical_and": lambda all: np.all(all, axis=0).astype(all[0].dtype),
    "logical_or": lambda all: np.any(all, axis=0).astype(all[0].dtype),
    "logical_xor": lambda all: np.logical_xor.reduce(all).astype(all[0].dtype),
    "bit_and": lambda all: np.bitwise_and.reduce(all),
    "bit_or": lambda all: np.bitwise_or.reduce(all),
    "bit_xor": lambda all: np.bitwise_xor.reduce(all),
}
"""


@ON_MPI
def test_all_operations_and_types_that_mpi_has_agree_with_numpy(mpi) -> None:
    ended = mpi.run(
        DATA
        + """
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    has = {dtype: list(OF_NUMPY) for dtype in integers}
    has |= {"float32": list(OF_NUMPY)[:4], "float64": list(OF_NUMPY)[:4]}
    has |= {"complex64": ["sum", "prod"], "complex128": ["sum", "prod"], "bool": ["logical_and", "logical_or", "logical_xor"]}
    for dtype, operations in has.items():
        for op in operations:
            for count in (0, 1, 7, 1021):
                chunks = [data(r, count, dtype) for r in range(p)]
                expected = OF_NUMPY[op](chunks)
                right(world.all_reduce(chunks[me], op=op, algorithm="mpi"), expected, dtype, op, count)
    # What is only moved may be of any type.
    for dtype in (*has, "float16"):
        whole = [data(r, 5 * p, dtype, 1) for r in range(p)]
        mine = slice(5 * me, 5 * me + 5)
        right(world.all_gather(whole[me], algorithm="mpi"), np.concatenate(whole), dtype)
        right(world.all_to_all(whole[me], algorithm="mpi"), np.concatenate([w[mine] for w in whole]), dtype)
    print(f"rank {me} is content", flush=True)
    """.replace("\n    ", "\n")
    )
    assert ended.status == 0, ended.err
    assert sorted(re.findall(r"rank (\d) is content", ended.out)) == [str(rank) for rank in range(mpi.ranks)]


@pytest.mark.short(1)
@ON_MPI
def test_all_eight_in_all_forms_agree_with_numpy(mpi) -> None:
    """Sizes, roots, in place or not, counts that differ; arrays around the results stay as they are."""
    ended = mpi.run(
        DATA
        + """
    from jali import _core

    def by_call(collective, counts, root, in_place, *arrays):
        call = _core.CollectiveCall(collective, np.dtype("float64"), counts, root, "sum", in_place, "mpi")
        world.collectives.plan_of(call).run(*[a if a is not None and a.size else None for a in arrays])

    none = np.empty(0)
    for count in (0, 1, 3, 1021, 70_000):
        for root in {0, p - 1}:
            chunks = [data(r, count, "float64") for r in range(p)]
            wholes = [data(r, p * count, "float64", 1) for r in range(p)]
            part = slice(me * count, (me + 1) * count)
            what = (count, root)
            total = OF_NUMPY["sum"](chunks)
            right(world.all_reduce(chunks[me], algorithm="mpi"), total, what)
            x = chunks[me].copy()
            world.all_reduce(x, out=x, algorithm="mpi")
            right(x, total, what)
            x = chunks[root].copy() if me == root else np.full(count, np.nan)
            right(world.broadcast(x, root, algorithm="mpi"), chunks[root], what)
            x = np.full(count, np.nan)
            by_call("broadcast", count, root, False, chunks[root] if me == root else none, x)
            right(x, chunks[root], what)
            reduced = world.reduce(chunks[me], root=root, algorithm="mpi")
            x = chunks[me].copy()
            world.reduce(x, x, root=root, algorithm="mpi")
            if me == root:
                right(reduced, total, what)
            right(x, total if me == root else chunks[me], what)

            everything = np.concatenate(chunks)
            right(world.all_gather(chunks[me], algorithm="mpi"), everything, what)
            x = np.full(p * count, np.nan)
            x[part] = chunks[me]
            world.all_gather(x, x, algorithm="mpi")
            right(x, everything, what)
            gathered = world.gather(chunks[me], root=root, algorithm="mpi")
            if me == root:
                right(gathered, everything, what)
            x = np.full(p * count, np.nan) if me == root else chunks[me].copy()
            if me == root:
                x[part] = chunks[me]
            by_call("gather", count, root, True, x)
            right(x, everything if me == root else chunks[me], what)

            summed = OF_NUMPY["sum"](wholes)[part]
            right(world.reduce_scatter(wholes[me], algorithm="mpi"), summed, what)
            x = wholes[me].copy()
            world.reduce_scatter(x, x, algorithm="mpi")
            right(x[part], summed, what)
            x = np.full(count, np.nan)
            world.scatter(wholes[root] if me == root else None, x, root, algorithm="mpi")
            right(x, wholes[root][part], what)
            x = wholes[root].copy() if me == root else np.full(count, np.nan)
            by_call("scatter", count, root, True, x)
            right(x, wholes[root] if me == root else wholes[root][part], what)
            exchanged = np.concatenate([w[part] for w in wholes])
            right(world.all_to_all(wholes[me], algorithm="mpi"), exchanged, what)
            x = wholes[me].copy()
            by_call("all_to_all", count, 0, True, x)
            right(x, exchanged, what)

    # Ranks that have more than others, and one that has nothing.
    counts = [3 * (r % 3) + (r == p - 1) for r in range(p)]
    ends = np.cumsum([0, *counts])
    part = slice(ends[me], ends[me + 1])
    parts = [data(r, counts[r], "int32") for r in range(p)]
    wholes = [data(r, sum(counts), "int32", 1) for r in range(p)]
    right(world.all_gather(parts[me], counts=counts, algorithm="mpi"), np.concatenate(parts))
    x = np.zeros(sum(counts), np.int32)
    x[part] = parts[me]
    right(world.all_gather(x, x, counts=counts, algorithm="mpi"), np.concatenate(parts))
    summed = OF_NUMPY["sum"](wholes)[part]
    right(world.reduce_scatter(wholes[me], counts=counts, algorithm="mpi"), summed)
    x = wholes[me].copy()
    world.reduce_scatter(x, x, counts=counts, algorithm="mpi")
    right(x[part], summed)
    for root in range(p):
        gathered = world.gather(parts[me], counts=counts, root=root, algorithm="mpi")
        if me == root:
            right(gathered, np.concatenate(parts))
        x = np.zeros(counts[me], np.int32)
        world.scatter(wholes[root] if me == root else None, x, root, counts=counts, algorithm="mpi")
        right(x, wholes[root][part])
    matrix = np.array([[(i + 2 * j) % 4 for j in range(p)] for i in range(p)])
    sent = [[100 * i + 10 * j + np.arange(matrix[i, j], dtype="int32") for j in range(p)] for i in range(p)]
    came = np.concatenate([sent[i][me] for i in range(p)])
    right(world.all_to_all(np.concatenate(sent[me]), counts=matrix, algorithm="mpi"), came)
    print(f"rank {me} is content", flush=True)
    """.replace("\n    ", "\n")
    )
    assert ended.status == 0, ended.err
    assert sorted(re.findall(r"rank (\d) is content", ended.out)) == [str(rank) for rank in range(mpi.ranks)]


@ON_MPI
def test_several_are_under_way_beside_plans_and_are_waited_for_in_any_order(mpi) -> None:
    ended = mpi.run("""
        world = comm.current()
        p, me = world.size, world.rank
        groups = [world, world.sharing_memory(), world.split(me % 2)]
        for count in (1, 2000, 100_000):
            requests = []
            for k in range(6):
                for group in groups:
                    how = "mpi" if k % 2 else None
                    x = np.arange(count) + 1000.0 * (me + k)
                    requests.append((group, k, group.all_reduce(x, algorithm=how, blocking=False)))
            for n in np.random.default_rng(me).permutation(len(requests)):
                group, k, request = requests[n]
                members = range(me % 2, p, 2) if group is groups[2] else range(p)
                expected = sum(np.arange(count) + 1000.0 * (r + k) for r in members)
                np.testing.assert_array_equal(request.wait(), expected)
        print(f"rank {me} is content", flush=True)
        """)
    assert ended.status == 0, ended.err
    assert sorted(re.findall(r"rank (\d) is content", ended.out)) == [str(rank) for rank in range(mpi.ranks)]


@ON_MPI
def test_rules_choose_it_and_say_so_and_settings_ask_for_it(any_mpi) -> None:
    (any_mpi.folder / "rules.toml").write_text(
        "version = 1\n[[rule]]\nmemory = 'host'\nbytes = '1 KiB..'\nalgorithms = ['mpi']\nwhy = 'measured on Sunday'\n"
    )
    ended = any_mpi.run(
        f"""
        import jali

        world = comm.current()
        file = {str(any_mpi.folder / "rules.toml")!r}
        with jali.settings.using(collective_rules=file):
            group = world.duplicate()
            for op in ("sum", "avg"):
                x = np.full(1000, group.rank + 1.0)
                assert (group.all_reduce(x, op=op) == {{"sum": 1, "avg": 1 / group.size}}[op] * sum(range(group.size + 1))).all()
                print(op, group.explain("all_reduce", x, op=op), flush=True)
            print("small", group.explain("all_reduce", x[:8]), flush=True)
        with jali.settings.using(collective="reduce=mpi"):
            print("setting", world.explain("reduce", x), flush=True)
        """
    )
    assert ended.status == 0, ended.err
    said = ended.out.splitlines()
    file = any_mpi.folder / "rules.toml"
    assert said.count(f"sum mpi (line 2 of {file}: measured on Sunday)") == any_mpi.ranks
    assert ended.out.count("; not mpi: MPI has no operation 'avg' of its own)") == any_mpi.ranks
    assert "small mpi" not in ended.out
    assert said.count("setting mpi (JALI_COLLECTIVE)") == any_mpi.ranks


@ON_MPI
def test_what_mpi_has_not_is_refused_on_all_ranks_and_the_group_goes_on(any_mpi) -> None:
    ended = any_mpi.run("""
        from jali.errors import ParameterError

        world = comm.current()
        x = np.ones(8)
        for words, call in {
            "operation 'avg'": lambda: world.all_reduce(x, op="avg", algorithm="mpi"),
            "operation 'user'": lambda: world.reduce(x, op=np.add, algorithm="mpi"),
            "type fp16": lambda: world.all_reduce(x.astype("float16"), algorithm="mpi"),
            "'bit_or' of fp64": lambda: world.all_reduce(x, op="bit_or", algorithm="mpi"),
            "'max' of complex128": lambda: world.all_reduce(x.astype(complex), op="max", algorithm="mpi"),
            "in the order of ranks": lambda: world.all_reduce(x, reproducible=True, algorithm="mpi"),
            "has 128": lambda: world.all_reduce(x, np.empty(16), algorithm="mpi"),
        }.items():
            try:
                call()
            except ParameterError as error:
                assert words in str(error), error
                print("refused", flush=True)
        assert (world.all_reduce(x, algorithm="mpi") == world.size).all()
        """)
    assert ended.status == 0, ended.err
    assert ended.out.count("refused") == 7 * any_mpi.ranks


@ON_MPI
def test_ranks_that_call_otherwise_hear_of_it_in_checked_mode(any_mpi) -> None:
    ended = any_mpi.run(
        """
        from jali.errors import ParameterError

        world = comm.current()
        try:
            world.all_reduce(np.zeros(4 + (world.rank == 1)), algorithm="mpi")
        except ParameterError as error:
            print(f"rank {world.rank}: {error}", flush=True)
        """,
        JALI_CHECKED="1",
    )
    assert ended.status == 0, ended.err
    for rank in range(any_mpi.ranks):
        assert re.search(
            rf"rank {rank}: ranks do not make the same call; count: 4 on rank.* 5 on rank 1", ended.out
        )


@ON_MPI
def test_a_failed_rank_is_reported(mpi) -> None:
    ended = mpi.run("""
        world = comm.current()
        x = np.ones(100_000)
        world.all_reduce(x, algorithm="mpi")
        if world.rank == world.size - 1:
            raise ValueError("out of paper")
        world.all_reduce(x, algorithm="mpi")
        """)
    assert ended.status != 0
    assert f"jali: rank 0 stopped: rank {mpi.ranks - 1} failed: ValueError: out of paper" in ended.err


@pytest.mark.full
@ON_MPI
def test_the_watchdog_reports_a_missing_rank(any_mpi) -> None:
    ended = any_mpi.run(
        """
        world = comm.current()
        x = np.ones(1000)
        world.all_reduce(x, algorithm="mpi")
        if world.rank == 1:
            time.sleep(1000)
        world.all_reduce(x, algorithm="mpi")
        """,
        JALI_WATCHDOG="1",
    )
    assert ended.status != 0
    # All wait alike, and whose second is over first says so.
    assert re.search(
        r"rank [023] waited for step 'all_reduce by mpi' of all_reduce of 8000 bytes \(mpi\) "
        r"\(a collective of its own with all ranks\) \(transport mpi\): nothing has moved for 1 s",
        ended.err,
    ), ended.err


@pytest.mark.full
@ON_MPI
def test_a_rank_whose_program_has_ended_is_reported(any_mpi) -> None:
    ended = any_mpi.run("""
        world = comm.current()
        x = np.ones(1000)
        world.all_reduce(x, algorithm="mpi")
        if world.rank > 0:
            try:
                world.all_reduce(x, algorithm="mpi")
            except RankError as error:
                print(f"rank {world.rank}: {error}", flush=True)
                sys.exit(3)
        """)
    assert ended.status != 0
    assert "rank 0 failed: its program ended while" in ended.out + ended.err


def on_two_ranks(call: Any) -> list[str]:
    """What the call says on each of two virtual ranks."""

    def program() -> str:
        try:
            return str(call(comm.current()))
        except ParameterError as error:
            return f"refused: {error}"

    return comm.virtual_ranks(2, program)


def test_virtual_ranks_have_it_not_and_say_why(tmp_path: Path) -> None:
    x = np.ones(8)
    refused = "refused: all_reduce, asked for as 'mpi': the ranks are not MPI's"
    assert on_two_ranks(lambda world: world.all_reduce(x, algorithm="mpi")) == [refused] * 2
    with jali.settings.using(collective="all_reduce=mpi"):
        reported = on_two_ranks(lambda world: world.all_reduce(x))
    assert reported == ["refused: all_reduce, JALI_COLLECTIVE as 'mpi': the ranks are not MPI's"] * 2
    file = tmp_path / "rules.toml"
    file.write_text("version = 1\n[[rule]]\nalgorithms = ['mpi', 'ring']\n")
    with jali.settings.using(collective_rules=str(file)):
        reported = on_two_ranks(lambda world: world.explain("all_reduce", x))
        assert reported == [f"ring (line 2 of {file}; not mpi: the ranks are not MPI's)"] * 2
        assert on_two_ranks(lambda world: world.all_reduce(x).sum()) == ["16.0"] * 2
