"""`jali tune collectives --device`, on fake devices and a fake NCCL: algorithms by each transport, and rules that name them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, TWO_DEVICES, use_fake_ccl, use_fake_gpus

import jali
from jali import comm
from jali._core import CollectiveCall
from jali.bench.collective_algorithms import AlgorithmBenchmark, specs_of
from jali.cli.main import main
from jali.comm import DeviceArray
from jali.devices import open_device

WORDS = ["tune", "collectives", "--device", "cuda", "--rounds", "11", "--seconds", "0", "--factor", "32"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path) -> None:
    use_fake_gpus(monkeypatch, 2, folder=tmp_path)
    use_settings(device_queues="channels=4,slot_bytes=1024,flagged_bytes=512,flagged_below=1024")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlgorithmBenchmark, "_length", lambda self, case: 1)


def test_choices_are_algorithms_by_each_transport_and_who_has_collectives() -> None:
    found = list(map(str, specs_of("broadcast", "cuda")))
    assert len(found) == len(set(found))
    assert {
        "nccl",
        "nccl-windows",
        "host-staged",
        "direct",
        "direct by copy-engine",
        "chain by nccl",
        "two_step by gpu-aware-mpi",
    } <= {*found}
    assert not {
        "rccl",
        "rccl-windows",
        "hosts",
        "direct by rccl",
        "direct by remote-write",
        "nccl by nccl",
    } & {*found}
    assert {"rccl", "chain by rccl"} <= set(map(str, specs_of("broadcast", "hip")))


def test_between_hosts_there_are_algorithms_with_two_transports() -> None:
    found = set(map(str, specs_of("all_reduce", "cuda", [2, 2])))
    assert {
        "two_level",
        "slices by nccl",
        "slices by remote-write and nccl",
        "two_level by copy-engine and nccl",
    } <= found
    assert (
        not {"two_level by nccl and nccl", "slices by remote-write and rccl", "ring by nccl and copy-engine"}
        & found
    )
    for hosts in ([4], [1, 1, 1]):
        assert not any(spec.name in ("two_level", "slices") for spec in specs_of("all_reduce", "cuda", hosts))


def measured_between_hosts() -> dict[str, Any]:
    c = comm.current()
    specs = AlgorithmBenchmark(c, open_device("cuda", c))
    found = specs.measure(specs.case("all_reduce", 64, "float32", False), 1, 0.0)
    return {**found.times, **found.far, **found.impossible}


def test_algorithms_with_two_transports_are_measured(short_batches, monkeypatch, use_settings) -> None:
    """Ranks of one host that are said to be on two: such ways run, without levels."""
    use_fake_gpus(monkeypatch, 4)
    use_fake_ccl(use_settings)
    monkeypatch.setattr("jali.bench.collective_algorithms.ranks_per_host", lambda communicator: [2, 2])
    for found in jali.virtual_ranks(4, measured_between_hosts):
        assert {"slices by remote-write and nccl", "two_level by nccl and copy-engine"} <= set(found)
        assert "MPI" in found["slices by gpu-aware-mpi and nccl"]


def chosen(collective: str, bytes_: int, in_place: bool) -> tuple[str, str]:
    c = comm.current()
    there = c.collectives.on_device(open_device("cuda", c))
    spec = there.algorithm_of(
        CollectiveCall(collective, "fp32", bytes_ // 4, 0, "sum", in_place, None, False)
    )
    return spec.name, spec.transport


def sums(count: int) -> bool:
    c = comm.current()
    x = np.arange(count, dtype=np.float32) + c.rank
    found = c.all_reduce(DeviceArray.from_host(x, open_device("cuda", c))).to_host()
    return bool(np.array_equal(found, c.all_reduce(x)))


@pytest.mark.skipif(REAL, reason="a fake library is named")
def test_rules_name_transports_and_are_used(short_batches, use_settings, monkeypatch, capsys) -> None:
    """Every way runs and is right; what it is said to take is made up."""
    use_fake_ccl(use_settings)
    timed = AlgorithmBenchmark._timed

    def seconds(collective: str, payload: int, spec: str) -> float:
        fast = "ring by copy-engine" if payload < 1000 else "nccl"
        return 0.5 if collective == "all_reduce" and spec in (fast, "rules") else 1.0

    def made_up(self, case, calls, *arguments, **more):  # type: ignore[no-untyped-def]
        rounds = timed(self, case, calls, *arguments, **more)
        return {w: [seconds(case.collective, case.payload, w)] * len(rounds[w]) for w in rounds}

    monkeypatch.setattr(AlgorithmBenchmark, "_timed", made_up)
    words = [
        "--only",
        "all_reduce,broadcast",
        "--smallest",
        "64",
        "--largest",
        "4KiB",
        "--json",
        "--out",
        "mine.toml",
    ]
    assert jali.virtual_ranks(2, main, [*WORDS, *words]) == [0, 0]
    reported = json.loads(capsys.readouterr().out)
    assert reported["conditions"]["library"] == "nccl 2.28.3"
    for cell in reported["cells"]:
        of_mpi = {str(w) for w in specs_of(cell["collective"], "cuda") if w.transport == "gpu-aware-mpi"}
        of_windows = {"nccl-windows"} if cell["collective"] == "broadcast" else set()
        assert set(cell["impossible"]) == of_mpi | of_windows
        assert all(re.search("MPI|has no broadcast", why) for why in cell["impossible"].values())
    text = Path("mine.toml").read_text()
    rules = tomllib.loads(text)["rule"]
    assert [(r["collective"], r["bytes"], r["algorithms"]) for r in rules] == [
        ("all_reduce", "64..362", ["ring by copy-engine"]),
        ("all_reduce", "363..4 KiB", ["nccl"]),
    ]
    assert [r.get("nccl") for r in rules] == [None, "2.28"]
    assert all(r["memory"] == "cuda" and r["ranks"] == 2 and r["hosts"] == 1 for r in rules)
    use_settings(collective_rules=str(Path("mine.toml").resolve()))
    for bytes_, in_place, spec in (
        (64, False, ("ring", "copy-engine")),
        (4096, False, ("nccl", "")),
        (64, True, ("one_shot", "")),
        (4100, False, ("one_shot", "")),
    ):
        assert jali.virtual_ranks(2, chosen, "all_reduce", bytes_, in_place) == [spec, spec]
    assert jali.virtual_ranks(2, sums, 16) == [True, True]


@TWO_DEVICES
def test_graphs_have_rules_of_their_own(short_batches, use_settings, monkeypatch, capsys) -> None:
    """Batches are graphs whose results are compared; what they are said to take is made up."""
    timed = AlgorithmBenchmark._timed
    graphs: list[bool] = []
    measure = AlgorithmBenchmark.measure

    def noted(self, case, *arguments, graphs: bool, **more):  # type: ignore[no-untyped-def]
        case.in_graphs = graphs
        return measure(self, case, *arguments, graphs=graphs, **more)

    def made_up(self, case, runs, *arguments, **more):  # type: ignore[no-untyped-def]
        rounds = timed(self, case, runs, *arguments, **more)
        fast = ["two_step" if getattr(case, "in_graphs", False) else "ring", "rules"]
        graphs.append(getattr(case, "in_graphs", False))
        return {w: [0.5 if w in fast else 1.0] * len(rounds[w]) for w in rounds}

    monkeypatch.setattr(AlgorithmBenchmark, "measure", noted)
    monkeypatch.setattr(AlgorithmBenchmark, "_timed", made_up)
    words = ["--graphs", "--only", "all_reduce", "--smallest", "64", "--largest", "64", "--out", "mine.toml"]
    assert jali.virtual_ranks(2, main, [*WORDS, *words]) == [0, 0]
    assert {*graphs} == {False, True}
    rules = tomllib.loads(Path("mine.toml").read_text())["rule"]
    assert [(r["persistent"], r["algorithms"]) for r in rules] == [(False, ["ring"]), (True, ["two_step"])]
    assert re.search("^all_reduce in a graph +64 B", capsys.readouterr().out, re.MULTILINE)


def test_graphs_are_of_devices(capsys) -> None:
    words = [word for word in WORDS if word not in ("--device", "cuda")]
    assert jali.virtual_ranks(2, main, [*words, "--graphs"]) == [2, 2]
    assert "--graphs is for collectives on devices" in capsys.readouterr().err


@pytest.mark.parametrize("keep", [0, 1 << 20])
def test_all_collectives_are_measured_in_place_too(keep: int, short_batches, monkeypatch, capsys) -> None:
    """With the times that there are, and without a fake vendor's library; plans are kept or made anew."""
    monkeypatch.setattr("jali.bench.collective_algorithms.KEEP", keep)
    words = [
        "--in-place",
        "--largest",
        "64",
        "--smallest",
        "64",
        "--only",
        "all_reduce,all_gather,reduce_scatter,reduce",
    ]
    assert jali.virtual_ranks(2, main, [*WORDS, *words]) == [0, 0]
    said = capsys.readouterr().out
    if not REAL:
        assert re.search(r"^not possible: nccl: .*NCCL", said, re.MULTILINE)
    assert len(re.findall("^not possible: .*by gpu-aware-mpi", said, re.MULTILINE)) <= 1
    for name in ("all_reduce", "all_gather", "reduce_scatter", "reduce"):
        assert re.search(rf"^{name} +64 B", said, re.MULTILINE)
        assert re.search(rf"^{name} in place +64 B", said, re.MULTILINE)
    assert re.search(r"in collective-rules-cuda-2-ranks.toml", said)
