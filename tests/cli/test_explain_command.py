"""`jali explain`: the algorithm that a call would take, and what all algorithms cost, without ranks and devices."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jali_command import jali_here

from jali import _core
from jali.comm.algorithms import COLLECTIVES
from jali.comm.elements import SIZES
from jali.planner.call_costs import machine_of_call
from jali.planner.composition import Composition
from jali.planner.machine import Machine


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Any:
    def explain(*words: object) -> dict[str, Any]:
        assert jali_here("explain", *words, "--json") == 0
        return dict(json.loads(capsys.readouterr().out))

    return explain


def test_the_algorithm_is_that_which_the_core_chooses(explained: Any) -> None:
    words = random.Random(3)
    seen = set()
    for _ in range(60):
        collective, type_ = words.choice(COLLECTIVES), words.choice(["fp32", "int64", "complex128"])
        ranks = words.randrange(1, 20)
        hosts = words.randrange(1, min(ranks, 4) + 1)
        size = int(2 ** words.uniform(0, 26))
        flags = [flag for flag in ("--reproducible", "--in-place") if words.random() < 0.5]
        facts = explained(
            collective.replace("_", "-"),
            "--size",
            size,
            "-n",
            ranks,
            "--hosts",
            hosts,
            "--dtype",
            type_,
            *flags,
        )
        of_hosts = [len(part) for part in np.array_split(range(ranks), hosts)]
        per_rank = SIZES[type_] * (1 if collective in ("all_reduce", "reduce", "broadcast") else ranks)
        numpy_type = {"fp32": "f4", "int64": "i8", "complex128": "c16"}[type_]
        call = _core.CollectiveCall(
            collective,
            np.dtype(numpy_type),
            -(-size // per_rank),
            in_place="--in-place" in flags or collective == "broadcast",
            reproducible="--reproducible" in flags,
        )
        choice = _core.choose_on_host(call, of_hosts)
        assert facts["takes"] == choice.name
        assert choice.why.startswith(facts["algorithms"][-1]["rule"])
        assert (facts["bytes"], facts["ranks_of_hosts"]) == (-(-size // per_rank) * per_rank, of_hosts)
        seen.add(choice.name)
    assert len(seen) > 4


RULES = """version = 1
[[rule]]
memory = "cuda"
bytes = "..64 KiB"
hosts = 2
algorithms = ["rccl", "ring by nccl", "recursive_doubling by nccl", "nccl"]
why = "measured on Sunday"

[[rule]]
mpich = "5.."
algorithms = ["pipelined"]

[[rule]]
nccl = "2.28"
algorithms = ["ring"]
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(RULES)
    return file


def test_rules_say_where_they_stand_and_what_held(explained: Any, rules: Path) -> None:
    facts = explained(
        "all-reduce", "--size", "64KiB", "-n", 4, "--hosts", 2, "--device", "cuda", "--rules", rules
    )
    first, ring, doubling, nccl, *_ = facts["algorithms"]
    assert first["rule"] == f"line 2 of {rules}"
    assert first["conditions"] == ['memory = "cuda"', 'bytes = "..64 KiB"', "hosts = 2"]
    assert first["why"] == "measured on Sunday"
    assert (first["verdict"], first["impossible"]) == ("not", "'rccl' is not for cuda devices")
    assert facts["takes"] == ring["algorithm"] == "ring by nccl"
    assert ring["verdict"] == "if"
    assert "not reached" in doubling["impossible"]  # it needs the same
    assert nccl["verdict"] == "if"  # it needs no kernels
    assert facts["algorithms"][-1]["verdict"] == "takes"
    other = explained(
        "all-reduce", "--size", "65KiB", "-n", 4, "--hosts", 2, "--device", "cuda", "--rules", rules
    )
    assert all("jali's own" in spec["rule"] for spec in other["algorithms"])


def test_versions_are_those_that_are_said(explained: Any, rules: Path) -> None:
    arguments = ("all-reduce", "-n", 4, "--rules", rules)
    assert explained(*arguments)["takes"] == "two_step"
    assert explained(*arguments, "--versions", "mpich=5.0.2")["takes"] == "pipelined"
    assert explained(*arguments, "--versions", "mpich=4.3")["takes"] == "two_step"
    assert explained(*arguments, "--device", "cuda", "--versions", "nccl=2.28.3")["takes"] == "ring"


def test_algorithms_requested_by_name_or_setting(explained: Any, use_settings: Any) -> None:
    facts = explained("reduce", "-n", 3, "--algorithm", "two-step")
    assert (facts["takes"], facts["algorithms"][0]["rule"]) == ("two_step", "asked for")
    use_settings(collective="rccl,broadcast=chain")
    assert explained("broadcast", "-n", 3)["takes"] == "chain"
    of_cuda = explained("all-reduce", "-n", 3, "--device", "cuda")  # the setting is for other devices
    assert "jali's own" in of_cuda["algorithms"][0]["rule"]
    use_settings(collective="", device_transport="copy-engine")
    facts = explained("all-reduce", "-n", 3, "--device", "cuda")
    assert facts["algorithms"][0]["by"] == "copy-engine"
    assert {entry["words"] for entry in facts["costs"] if entry["algorithm"].endswith(" by nccl")} == {
        "device_transport=copy-engine is to carry all messages"
    }


def test_operations_of_the_user_go_by_the_host(explained: Any) -> None:
    assert explained("reduce", "--op", "user", "-n", 4, "--device", "cuda")["takes"] == "host-staged"


def test_costs_are_those_of_the_same_plan_simulated(explained: Any) -> None:
    facts = explained("all-reduce", "--size", "4MiB", "-n", 8, "--device", "cuda", "--machine", "h200x8")
    times = {entry["algorithm"]: entry["time"] for entry in facts["costs"]}
    known = [entry["time"] for entry in facts["costs"] if entry["time"] is not None]
    assert known == sorted(known)
    assert len(known) > 10
    machine = Machine.load("h200x8")
    composition = Composition.standard("all_reduce", ranks=8, count=1 << 20, dtype="float32", form="composed")
    core = machine.core_of_halos()
    for spec, ring in (("two_step", 1), ("ring", 8)):
        parameters = _core.PlanParameters(
            _core.Hierarchy(8), libraries=["remote-write"], ring=ring, pack_below=0
        )
        assert times[spec] == pytest.approx(
            _core.simulate_plan(composition.core, parameters, core).result.time
        )
    by_engine = _core.PlanParameters(_core.Hierarchy(8), libraries=["copy-engine"], pack_below=0)
    messages = _core.simulate_plan(composition.core, by_engine, core).result.time
    assert times["two_step by copy-engine"] == pytest.approx(messages + 2 * 20e-6)  # two stages, of 9 + 11 us
    assert times["nccl"] == min(t for spec, t in times.items() if spec.endswith(" by nccl"))


def test_between_hosts_only_what_goes_there_has_a_cost(explained: Any) -> None:
    facts = explained("all-gather", "-n", 16, "--hosts", 2, "--device", "cuda")
    times = {entry["algorithm"]: entry["time"] for entry in facts["costs"]}
    assert times["direct"] is None  # remote-write stays in a host
    assert times["direct by nccl"] is not None
    assert (facts["takes"], facts["takes_there"]) == ("direct", "nccl")


@pytest.mark.parametrize(
    ("name", "hosts", "shape", "nics"),
    [
        ("frontier", [8, 8], (2, 4, 2), 8),
        ("frontier", [4, 4, 4], (3, 2, 2), 4),
        ("frontier", [3], (3, 1), 3),
        ("h200x8", [5], (5,), 5),
        ("h200x8", [1, 1], (2, 1), 1),
    ],
)
def test_ranks_are_put_on_a_part_of_nodes(name: str, hosts: list[int], shape: Any, nics: int) -> None:
    machine = Machine.load(name)
    fitted = machine_of_call(machine, hosts)
    assert (fitted.nodes, fitted.ranks_per_node) == (len(hosts), hosts[0])
    assert tuple(n for n in shape if n > 1) == tuple(n for n in fitted.shape if n > 1)
    assert len(fitted.network.binding) == nics
    if name == "frontier" and hosts == [3]:  # a die of each of three cards, and that one's NIC
        assert fitted.network.binding == tuple(machine.network.binding[2 * k] for k in range(3))


def test_times_of_a_file_are_interpolated(explained: Any, tmp_path: Path) -> None:
    def cell(size: int, **times: list[float]) -> dict[str, Any]:
        return {"collective": "reduce", "type": "fp32", "in_place": False, "bytes": size, "times": times,
                "far": {"chain": size * 1e-6}, "impossible": {}}  # fmt: skip

    reported = {
        "conditions": {"memory": "host", "ranks": 4, "hosts": 2, "ranks_per_host": 2},
        "cells": [
            cell(4096, default=[3e-4, 1e-4, 2e-4], two_step=[5e-5, 6e-5, 7e-5]),
            cell(1024, default=[1e-4], two_step=[1.5e-5]),
        ],
    }
    file = tmp_path / "times.json"
    file.write_text(json.dumps(reported))
    arguments = ("reduce", "-n", 4, "--hosts", 2, "--times", file, "--size")
    at = {entry["algorithm"]: entry["time"] for entry in explained(*arguments, 4096)["costs"]}
    assert at == pytest.approx({"default": 2e-4, "two_step": 6e-5, "chain": 4096e-6})
    between = {entry["algorithm"]: entry["time"] for entry in explained(*arguments, 2048)["costs"]}
    assert between == pytest.approx({"default": 2**0.5 * 1e-4, "two_step": 3e-5, "chain": 2048e-6})
    for words, said in (
        (("reduce", "-n", 4, "--hosts", 1), "was measured with hosts 2, not 1; ranks_per_host 2, not 4"),
        (("reduce", "-n", 4, "--hosts", 2, "--dtype", "fp64"), "no reduce of fp64; it has reduce of fp32"),
        (("gather", "-n", 4, "--hosts", 2), "no gather of fp32; it has reduce of fp32"),
        (("reduce", "-n", 4, "--hosts", 2, "--in-place"), "no reduce of fp32 in place; it has"),
        (("reduce", "-n", 4, "--hosts", 2, "--size", 512), "1024 to 4096 bytes, not of 512"),
        (("reduce", "-n", 4, "--hosts", 2, "--size", 4096, "--machine", "delta"), "give one of them"),
    ):
        assert said in refused(*words, "--times", file)


def refused(*words: object) -> str:
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert jali_here("explain", *words) == 2
    return err.getvalue()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all-reduced",), "there is no collective 'all-reduced'; there are broadcast, reduce, all-gather,"),
        (("reduce", "--dtype", "fp8"), "--dtype: there is no type 'fp8'; there are uint8, int8"),
        (("reduce", "--op", "plus"), "--op: there is no operation 'plus'; there are sum, prod"),
        (("reduce", "--device", "gpu"), "--device: device 'gpu' is unknown; use 'cpu', 'cuda', 'hip'"),
        (("reduce", "-n", 2, "--hosts", 3), "--hosts 3: 2 ranks can be on 1 to 2 hosts"),
        (("reduce", "-n", 2, "--hosts", 0), "--hosts 0: 2 ranks can be on 1 to 2 hosts"),
        (("reduce", "-n", 2, "--root", 2), "root 2 does not exist among 2 ranks"),
        (("reduce", "-n", 2, "--algorithm", "bruck"), "no algorithm 'bruck' for reduce; choose one of direct"),
        (("reduce", "-n", 2, "--machine", "summit"), "no machine 'summit'; jali knows aurora"),
        (("reduce", "-n", 9, "--device", "cuda", "--machine", "h200x8"), "machine 'h200x8' has 8 positions for ranks on a node, not 9"),
        (("reduce", "-n", 5, "--machine", "frontier"), "fill no equal parts of a node of machine 'frontier', which has 4 x 2"),
        (("reduce", "-n", 3, "--hosts", 2, "--machine", "delta"), "has equal nodes; 2 and 1 ranks cannot"),
        (("gather", "--op", "max"), "--op is for what combines; gather does not"),
        (("reduce", "-n", 2, "--algorithm", "two-level by pigeon"), "'pigeon' carries no messages; array-write"),
        (("reduce", "--versions", "nccl"), "'nccl' is no version like nccl=2.28.3; there are nccl, rccl"),
        (("reduce", "--versions", "ucc=1.2"), "'ucc=1.2' is no version"),
        (("reduce", "--rules", "/nowhere/rules.toml"), "/nowhere/rules.toml, cannot be read"),
        (("reduce", "--times", "/nowhere/times.json"), "/nowhere/times.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(words: tuple[object, ...], said: str) -> None:
    assert said in refused(*words)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"conditions": {}, "cells": [{}]}', '{"conditions": 3, "cells": 4}']
)
def test_other_files_are_no_times(text: str, tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    assert "has no times of collectives" in refused("reduce", "-n", 2, "--times", file)


def test_the_text_says_it_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("explain", "all-reduce", "--size", "1MiB", "--device", "cuda", "-n", 4) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all_reduce sum of 1 MiB of fp32, on 4 ranks of 1 host, in memory of cuda devices"
    assert lines[1].startswith("  takes  one_shot, messages by remote-write: line ")
    assert "only the ranks can know" in lines[3]
    assert sum("<- taken" in line for line in lines) == 1
    assert jali_here("explain", "all-gather", "--size", 10, "-n", 3) == 0
    out = capsys.readouterr().out
    assert "(10 bytes are no whole elements on all ranks)" in out
    assert "no costs: no machine is described" in out


def test_ranks_that_were_started_say_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("explain", "broadcast", "--size", "1MiB", "--json", ranks=3) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ranks"] == 3
    assert facts["here"]["algorithm"] == facts["takes"]
    assert jali_here("explain", "broadcast", "-n", 2, ranks=3) == 2
    assert "-n 2 where 3 ranks were started" in capsys.readouterr().err


def test_compositions_are_explained(explained: Any) -> None:
    arguments = ("all-reduce", "--size", "64MiB", "-n", 16, "--hosts", 2, "--device", "cuda")
    facts = explained(*arguments, "--algorithm", "two-level by remote-write and nccl")
    (spec,) = facts["algorithms"]
    assert spec["algorithm"] == facts["takes"] == "two_level by remote-write and nccl"
    assert spec["by"] == "remote-write inside hosts, nccl between them"
    assert "devices of the ranks map each other's memory inside hosts (remote-write)" in spec["needs"]
    times = {entry["algorithm"]: entry["time"] for entry in facts["costs"]}
    assert times["two_level by remote-write and nccl"] > 0
    assert (
        times["slices by remote-write and nccl"] < times["two_level by remote-write and nccl"]
    )  # all cards of a host carry
    assert times["slices"] == times["slices by remote-write and nccl"]
    assert times["slices by nccl and remote-write"] is None  # which stays in a host
    alone = explained("all-reduce", "-n", 4, "--hosts", 1, "--algorithm", "alpha")
    assert (alone["takes"], alone["algorithms"][0]["verdict"]) == ("two_level", "takes")  # without levels
    assert "two_level" not in {
        entry["algorithm"] for entry in explained("all-reduce", "-n", 4, "--device", "cuda")["costs"]
    }
    (refused_,) = explained("all-reduce", "-n", 4, "--hosts", 2, "--algorithm", "node-only")["algorithms"]
    assert refused_["verdict"] == "not"
    assert "for the ranks of one host, and these are on 2" in refused_["impossible"]
    assert (
        explained("broadcast", "-n", 4, "--device", "cuda", "--algorithm", "host-staged")["takes"]
        == "host-staged"
    )


def test_a_default_machine_refuses_nothing(explained: Any) -> None:
    facts = explained("gather", "-n", 7, "--hosts", 3, "--device", "hip")
    assert facts["costs"] == []
    assert "has equal nodes" in facts["no_costs"]


def test_the_mpi_librarys_own_is_for_ranks_of_mpi_and_calls_that_it_has(
    explained: Any, tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("version = 1\n[[rule]]\nalgorithms = ['mpi', 'chain']\n")
    own, chain = explained("reduce", "-n", 3, "--rules", file)["algorithms"]
    assert (own["verdict"], own["by"], own["needs"]) == ("if", "its own", ["the ranks are MPI's"])
    assert chain["verdict"] == "takes"
    own, chain = explained("reduce", "--op", "avg", "-n", 3, "--rules", file)["algorithms"]
    assert (own["verdict"], own["impossible"]) == ("not", "MPI has no operation 'avg' of its own")
    facts = explained("reduce", "-n", 16, "--hosts", 4, "--algorithm", "mpi", "--machine", "perlmutter")
    cost = next(entry for entry in facts["costs"] if entry["algorithm"] == "mpi")
    assert facts["takes"] == "mpi"
    assert cost["takes"]
    assert cost["words"].startswith("its own choice is not known: as ")
