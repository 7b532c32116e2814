"""Collectives inside hosts and between them, each with its transport: on ranks that pretend to be on several hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import prove
from plans import plain, spec_of
from test_communicator import check_all_eight, data

from jali import _core, comm
from jali._core import CollectiveCall
from jali.comm.algorithms import ALGORITHMS, COLLECTIVES, OTHER_NAMES
from jali.errors import ParameterError

Hosts = list[list[int]]
EVEN, UNEVEN, MIXED, LONELY, ONE = (
    [[0, 1], [2, 3]],
    [[0, 1, 2], [3], [4, 5]],
    [[0, 3, 4], [1, 2]],
    [[0], [1], [2]],
    [[0, 1, 2]],
)
NESTED = [EVEN, UNEVEN, MIXED]
LEVELS = [entry for entry in ALGORITHMS if entry.hierarchy == "hosts"]


def on_hosts(hosts: Hosts, function: Callable[[comm.Communicator], Any]) -> list[Any]:
    def run() -> Any:
        world = comm.current()
        world.collectives.override_hosts(hosts)
        return function(world)

    return comm.virtual_ranks(sum(map(len, hosts)), run)


@pytest.mark.parametrize("hosts", [*NESTED, LONELY, ONE], ids=str)
@pytest.mark.parametrize("algorithm", ["two_level", "slices"])
def test_all_collectives_agree_with_numpy(algorithm: str, hosts: Hosts) -> None:
    def run(world: comm.Communicator) -> None:
        for count in (1, 3, 1021):
            for root in {0, world.size - 1}:
                check_all_eight(world, count, root, algorithm)

    on_hosts(hosts, run)


@pytest.mark.parametrize("hosts", NESTED, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("op", ["sum", "max", "avg", "user"])
def test_all_reduces_of_any_operation_in_place_or_not(op: str, in_place: bool, hosts: Hosts) -> None:
    size = sum(map(len, hosts))
    whole = np.array([data(rank, 1000) for rank in range(size)])
    expected = {"sum": whole.sum(0), "max": whole.max(0), "avg": whole.mean(0), "user": whole.min(0)}[op]

    def run(world: comm.Communicator) -> None:
        for algorithm in ("two_level", "slices", "two_level by thread and thread"):
            x = data(world.rank, 1000)
            how: Any = np.minimum if op == "user" else op
            out = world.all_reduce(x, x if in_place else None, how, algorithm=algorithm)
            np.testing.assert_allclose(out, expected, rtol=0 if op != "avg" else 1e-15)

    on_hosts(hosts, run)


@pytest.mark.parametrize("hosts", NESTED, ids=str)
def test_what_is_reproducible_has_the_bits_of_any_algorithm(hosts: Hosts) -> None:
    def run(world: comm.Communicator) -> None:
        x = np.random.default_rng(world.rank).normal(size=777).astype(np.float32)
        found = {
            world.all_reduce(x, reproducible=True, algorithm=algorithm).tobytes()
            for algorithm in ("two_level", "slices", "two_step", "recursive_doubling", "alpha")
        }
        assert len(found) == 1

    on_hosts(hosts, run)


def planned(
    entry: Any, call: CollectiveCall, hosts: Hosts, inside: str = "", between: str = ""
) -> tuple[Any, Any, list[Any]]:
    composition, parameters = entry.plan(call, hosts, inside, between)
    schedules = [_core.plan_rank(composition, parameters, rank) for rank in range(composition.ranks)]
    return composition, parameters, schedules


@pytest.mark.parametrize("hosts", NESTED, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("entry", "collective"),
    [(entry, c) for entry in LEVELS for c in entry.collectives],
    ids=lambda v: getattr(v, "name", v),
)
def test_plans_are_proved(entry: Any, collective: str, in_place: bool, hosts: Hosts) -> None:
    """By the prover, and by one that shares no code with it."""
    if in_place and collective in ("gather", "scatter", "all_to_all"):
        in_place = False
    for reproducible in (False, True):
        call = CollectiveCall(
            collective,
            "fp64",
            13,
            1,
            in_place=in_place or collective == "broadcast",
            reproducible=reproducible,
        )
        composition, parameters, schedules = planned(entry, call, hosts)
        composition.check()
        _core.check_plan(composition, schedules, reproducible=reproducible, hierarchy=parameters.hierarchy)
        if not reproducible:
            prove(spec_of(composition), plain(schedules))


@pytest.mark.parametrize("hosts", NESTED, ids=str)
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce"])
def test_only_one_rank_of_each_host_talks_to_others_in_two_levels(collective: str, hosts: Hosts) -> None:
    (entry,) = (entry for entry in LEVELS if entry.name == "two_level" and collective in entry.collectives)
    call = CollectiveCall(collective, "fp64", 600, 0, in_place=True)
    _, _, schedules = planned(entry, call, hosts, "shm", "mpi")
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    crossed: dict[int, int] = {}
    for rank, schedule in enumerate(schedules):
        libraries = schedule.libraries
        for step in _core.schedule_to_dict(schedule)["steps"]:
            if step["kind"] not in ("send", "receive"):
                continue
            across = host_of[rank] != host_of[step["peer"]]
            assert libraries[step["library"]] == ("mpi" if across else "shm")
            if across and step["kind"] == "send":
                crossed[rank] = crossed.get(rank, 0) + step["region"][2]
    leaders = {host[0] for host in hosts}
    assert set(crossed) <= leaders
    if (
        collective == "all_reduce"
    ):  # reduce-scatter and all-gather between them: 2 (h - 1) / h of the vector each
        assert crossed == dict.fromkeys(leaders, 2 * (len(hosts) - 1) * 600 * 8 // len(hosts))


def test_slices_cross_between_ranks_of_the_same_position() -> None:
    (entry,) = (entry for entry in LEVELS if entry.name == "slices" and "all_reduce" in entry.collectives)
    _, _, schedules = planned(entry, CollectiveCall("all_reduce", "fp64", 800), EVEN, "shm", "mpi")
    for rank, schedule in enumerate(schedules):
        sent = 0
        for step in _core.schedule_to_dict(schedule)["steps"]:
            if step["kind"] == "send" and step["peer"] // 2 != rank // 2:
                assert step["peer"] % 2 == rank % 2
                assert schedule.libraries[step["library"]] == "mpi"
                sent += step["region"][2]
        assert sent == 2 * 800 * 8 // 4  # its slice is half, of which half goes and half comes back


# --- names --------------------------------------------------------------------------------------------------------------


def test_other_names_are_those_of_mpich_for_each_collective() -> None:
    greek = {(name, collective): (spec, one) for name, collective, spec, one in OTHER_NAMES}
    assert greek["alpha", "all_reduce"] == ("two_level", False)
    assert greek["gamma", "all_reduce"] == ("", True)
    assert greek["gamma", "broadcast"] == ("", False)  # the letters differ
    assert greek["delta", "broadcast"] == ("", True)
    assert greek["delta", "all_reduce"] == ("slices", False)
    assert greek["alpha", "all_gather"] == ("slices", False)
    assert {c for name, c, *_ in OTHER_NAMES if name == "flat"} == set(COLLECTIVES)


ASKED = [  # a way, what it is for an all-reduce on two hosts of two, and for a broadcast
    ("two_level", "two_level", "two_level"),
    ("alpha", "two_level", "two_level"),
    ("beta", "two_step", "two_level"),
    ("gamma", None, "direct"),
    ("delta", "slices", None),
    ("flat", "two_step", "direct"),
    ("flat by thread", "two_step by thread", "direct by thread"),
    ("node_only", None, None),
    ("slices by thread", "slices by thread", "slices by thread"),
    ("two_level by thread and thread", "two_level by thread and thread", "two_level by thread and thread"),
]


@pytest.mark.parametrize(("requested", "reduces", "copies"), ASKED)
def test_arguments_settings_and_rules_mean_the_same(
    requested: str, reduces: str | None, copies: str | None, use_settings: Any, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f"version = 1\n[[rule]]\nalgorithms = ['{requested}', 'ring', 'chain']\n")

    def reported(world: comm.Communicator, named: str | None) -> list[tuple[str, str]]:
        found = []
        for collective in ("all_reduce", "broadcast"):
            call = CollectiveCall(
                collective,
                "fp64",
                100,
                in_place=collective == "broadcast",
                algorithm=named,
                reproducible=False,
            )
            try:
                choice = world.collectives.algorithm_of(call)
                found.append((choice.spec, choice.why))
                x = data(0, 100)
                expected = x * (world.size if collective == "all_reduce" else 1)
                result = getattr(world, collective)(x, algorithm=named)
                np.testing.assert_array_equal(result, expected)
            except ParameterError as error:
                found.append(("", str(error)))
        return found

    wanted = [reduces or "", copies or ""]
    for world in on_hosts(EVEN, lambda world: reported(world, requested)):
        assert [spec for spec, _ in world] == wanted
        for spec, why in world:
            assert why == "asked for" if spec else "for the ranks of one host, and these are on 2" in why
    use_settings(collective=requested)
    for world in on_hosts(EVEN, lambda world: reported(world, None)):
        assert [spec for spec, _ in world] == wanted
    use_settings(collective=None, collective_rules=str(rules))
    for world in on_hosts(EVEN, lambda world: reported(world, None)):
        assert [spec for spec, _ in world] == [reduces or "ring", copies or "chain"]
        for (_, why), spec in zip(world, wanted, strict=True):
            assert spec or "is for the ranks of one host, and these are on 2" in why


def test_settings_name_transports_of_one_collective(use_settings: Any) -> None:
    use_settings(
        collective="all_reduce=two_level by thread and thread, broadcast=alpha,gather=flat by thread"
    )

    def specs(world: comm.Communicator) -> list[str]:
        calls = [
            CollectiveCall(c, "fp64", 10, in_place=c == "broadcast")
            for c in ("all_reduce", "broadcast", "gather", "reduce")
        ]
        return [world.collectives.algorithm_of(call).spec for call in calls]

    assert on_hosts(EVEN, specs)[0] == [
        "two_level by thread and thread",
        "two_level",
        "direct by thread",
        "direct",
    ]


def test_what_does_not_apply_is_skipped_with_its_reason(use_settings: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        "version = 1\n[[rule]]\nalgorithms = ['two_level by remote-write and nccl', 'slices', 'two_level by shm and mpi', 'node_only by thread', "
        "'halving_doubling']\n"
    )
    use_settings(collective_rules=str(rules))

    def explained(world: comm.Communicator) -> str:
        return world.explain("all_reduce", np.ones(5))

    one = on_hosts(ONE, explained)[0]
    assert one.startswith("two_step by thread (line 2 of")
    assert "not two_level by remote-write and nccl: 'remote-write' carries messages between devices" in one
    assert "not slices: 'slices' is for several hosts with several ranks, and there is one host" in one
    alone = on_hosts(LONELY, explained)[0]
    assert alone.startswith("halving_doubling (line 2 of")
    assert "and each of these has one" in alone
    assert (
        "not node_only by thread: 'node_only by thread' is for the ranks of one host, and these are on 3"
        in alone
    )
    assert on_hosts(EVEN, explained)[0].startswith("slices (line 2 of")


@pytest.mark.parametrize(
    ("requested", "said"),
    [
        ("two_level by pigeon", "'pigeon' carries no messages; array-write"),
        ("two_level by ", "does not say by which transport"),
        ("two_level by thread and ", "does not say by which transport"),
        ("two_level by shm and mpi", "'shm' carries no messages between these ranks; thread does"),
        ("two_level by nccl", "'nccl' carries no messages on hosts; mpi, shm, thread do"),
        ("ring by thread and thread", "'ring' does not tell messages inside hosts from those between them"),
        ("epsilon", "there is no algorithm 'epsilon' for all_reduce; choose one of one_shot, .* flat, node_only, alpha"),
        ("bruck by thread", "there is no algorithm 'bruck by thread' for all_reduce"),
        ("two_level  by thread", "there is no algorithm"),
        ("node_only", "asked for as 'node_only': 'node_only' is for the ranks of one host, and these are on 2"),
    ],
)  # fmt: skip
def test_an_invalid_algorithm_is_an_error_on_all_ranks(requested: str, said: str) -> None:
    def run(world: comm.Communicator) -> None:
        with pytest.raises(ParameterError, match=said):
            world.all_reduce(np.ones(3), algorithm=requested)
        assert world.all_reduce(np.ones(3))[0] == 4

    on_hosts(EVEN, run)


@pytest.mark.parametrize("hosts", [[[0, 1]], [[0, 1, 2, 2]], [[0, 1], [], [2]], [[0, 1], [2, 3]], []])
def test_hosts_that_cannot_be(hosts: Hosts) -> None:
    def run() -> None:
        with pytest.raises(ParameterError, match="hosts are lists of ranks, in which each of 0 to 2 is once"):
            comm.current().collectives.override_hosts(hosts)

    comm.virtual_ranks(3, run)


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", range(12))
def test_any_call_on_any_hosts(seed: int) -> None:
    """Random hosts, roots, counts that differ or are zero, types, in place or not: against NumPy."""
    words = np.random.default_rng(seed)
    ranks = int(words.integers(1, 8))
    order, hosts = words.permutation(ranks), list[list[int]]()
    while len(order):
        n = int(words.integers(1, len(order) + 1))
        hosts.append([int(rank) for rank in order[:n]])
        order = order[n:]
    calls = [
        (
            str(words.choice(COLLECTIVES)),
            str(
                words.choice(
                    [
                        "two_level",
                        "slices",
                        "flat",
                        "slices by thread and thread",
                        "alpha",
                        "two_level by thread",
                    ]
                )
            ),
            int(words.integers(0, ranks)),
            [int(n) for n in words.integers(0, 40, ranks)]
            if words.random() < 0.5
            else [int(words.integers(0, 300))] * ranks,
            str(words.choice(["float64", "int32", "complex128"])),
        )
        for _ in range(30)
    ]

    def run(world: comm.Communicator) -> None:
        me = world.rank
        for collective, spec, root, counts, dtype in calls:
            try:
                world.collectives.algorithm_of(
                    CollectiveCall(collective, dtype, 1, algorithm=spec, in_place=collective == "broadcast")
                )
            except ParameterError:
                continue  # no way of this collective
            n, total, at = counts[0], sum(counts), np.cumsum([0, *counts])
            chunks = [data(r, counts[r], dtype) for r in range(ranks)]
            wholes = [data(r, total, dtype, salt=1) for r in range(ranks)]
            vectors = [data(r, n, dtype, salt=2) for r in range(ranks)]
            mine = slice(at[me], at[me + 1])
            how: dict[str, Any] = {"algorithm": spec}
            if collective in ("gather", "all_gather", "scatter", "reduce_scatter"):
                how["counts"] = counts
            if collective in ("gather", "scatter", "reduce", "broadcast"):
                how["root"] = root
            wanted: Any = None
            if collective in ("all_reduce", "reduce"):
                found = getattr(world, collective)(vectors[me], **how)
                wanted = np.sum(vectors, axis=0) if collective == "all_reduce" or me == root else None
            elif collective == "broadcast":
                found, wanted = world.broadcast(vectors[me].copy(), **how), vectors[root]
            elif collective in ("all_gather", "gather"):
                found = getattr(world, collective)(chunks[me], **how)
                wanted = np.concatenate(chunks) if collective == "all_gather" or me == root else None
            elif collective == "reduce_scatter":
                found, wanted = world.reduce_scatter(wholes[me], **how), np.sum(wholes, axis=0)[mine]
            elif collective == "scatter":
                out = np.empty(counts[me], dtype)
                found, wanted = (
                    world.scatter(wholes[root] if me == root else None, out, **how),
                    wholes[root][mine],
                )
            else:
                x = data(me, n * ranks, dtype)
                found = world.all_to_all(x, **how)
                wanted = np.concatenate(
                    [data(r, n * ranks, dtype)[me * n : (me + 1) * n] for r in range(ranks)]
                )
            if wanted is None:
                assert found is None
            else:
                np.testing.assert_array_equal(found, wanted, err_msg=f"{collective} {spec} {hosts} {counts}")

    on_hosts(hosts, run)
