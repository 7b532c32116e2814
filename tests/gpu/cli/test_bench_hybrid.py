"""`jali bench collectives --hybrid` and `--osu`: every choice beside single ways and MPI by hand, on hosts and on fake devices."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from fake_driver import REAL, run_on_devices
from programs import need_mpi, run_bench

from jali import comm
from jali.bench import hybrid, hybrid_report
from jali.bench.cases import COLLECTIVES, Case
from jali.bench.collectives import Cell, Timing
from jali.errors import ParameterError

WORDS = ("bench", "collectives", "--hybrid", "--rounds", "2")


@pytest.mark.mpi
def test_on_hosts_the_figure_has_the_librarys_own_calls(tmp_path: Path) -> None:
    need_mpi()
    run_bench(*WORDS[1:2], "--osu", "-n", 2, "--rounds", 2, "--factor", 512, "--output", tmp_path)
    document = json.loads((tmp_path / "collectives-host.json").read_text())
    assert [cell["bytes"] for cell in document["cells"]] == [4, 2048, 1 << 20]
    assert document["sides"][:2] == ["jali", "mpi, called"]
    assert all({"jali", "mpi, called", "ring", cell["chosen"]} <= set(cell) for cell in document["cells"])
    assert [verdict["asks"].split(":")[0] for verdict in document["verdicts"]] == ["host", "host"]
    rows = [r for r in csv.reader((tmp_path / "collectives-host.csv").open()) if not r[0].startswith("#")]
    assert {row[0] for row in rows[1:]} == {"all_reduce"}
    for picture in ("osu-host.png", "collectives-host.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize(
    "collectives",
    [
        ("broadcast", "reduce"),  # in place, and with a rank that receives nothing
        pytest.param(tuple(COLLECTIVES), marks=pytest.mark.full),
    ],
    ids=["chosen", "all"],
)
def test_on_devices_programs_copy_by_hand(
    collectives: tuple[str, ...], fake_environment: dict[str, str], tmp_path: Path
) -> None:
    """Collectives are right by all ways, by hand too, on streams and in graphs."""
    words = [*WORDS, "--device", "cuda", "--smallest", "4KiB", "--largest", "4KiB"]
    words += ["--only", ",".join(collectives)]
    # batches of one call, whose times nobody reads
    text = "from jali.bench.collective_algorithms import AlgorithmBenchmark as W\nW._length = lambda self, case: 1\n"
    text += f"from jali.cli.main import main\nassert main({[*words, '--output', str(tmp_path)]!r}) == 0"
    said = run_on_devices(2, text, fake_environment).stdout
    for order in ("stream", "graph"):
        document = json.loads((tmp_path / f"collectives-{order}.json").read_text())
        found = {(cell["collective"], cell["bytes"]) for cell in document["cells"]}
        assert found == {(c, n) for c in collectives for n in (4096,)}
        for cell in document["cells"]:
            assert {"jali", "by hand", "by hand, pinned"} <= set(cell)
            assert ("host-staged" in cell) == (order == "stream")  # which takes the host
            if not REAL:
                assert "nccl" in cell
        assert all(f"{order}: {name}: " in said for name in collectives)


def test_ranks_without_mpi_are_refused() -> None:
    def run() -> None:
        with pytest.raises(ParameterError, match="start MPI ranks; say how many, like -n 2"):
            hybrid.measure(comm.current(), None, [8], ["all_reduce"])

    comm.virtual_ranks(2, run)


def report(times: dict[int, dict[str, float]], chosen: list[str], baselines: list[str]) -> object:
    cells = [
        Cell("all_reduce", size, {name: Timing([t] * 9) for name, t in of.items()})
        for size, of in times.items()
    ]
    return hybrid.HybridReport({"order": "stream"}, ["jali"], cells, baselines=baselines, chosen=chosen)


def test_crossovers_and_changes_are_found() -> None:
    hand = hybrid.BY_HAND
    found = report(
        {
            4: {"jali": 2e-6, "ring": 2.2e-6, "nccl": 9e-6, hand: 1e-6},
            64: {"jali": 2e-6, "ring": 2e-6, "nccl": 9e-6, hand: 3e-6},
            1024: {"jali": 5e-6, "ring": 5e-6, "nccl": 9e-6, hand: 4e-6},
            4096: {"jali": 9e-6, "ring": 20e-6, "nccl": 9e-6, hand: 40e-6},
            1 << 20: {"jali": 10e-6, "ring": 9e-5, "nccl": 9e-6, hand: 199e-6},
        },
        ["ring", "ring", "ring", "nccl", "nccl"],
        [hand],
    )
    [(name, numbers)] = hybrid_report.of_collectives(found)
    assert (name, numbers) == ("all_reduce", [0, 1, 2, 3, 4])
    assert hybrid_report.crossover(found, numbers, hand) == 4096
    assert hybrid_report.crossover(found, numbers[:3], hand) is None
    assert hybrid_report.changes(found, numbers) == [(4096, "ring", "nccl")]
    near, slower, fast = hybrid_report.judge(found, "stream")
    assert near.missing == ("all_reduce 1 MiB: 1.11 times the time of nccl",)
    assert slower.missing == (
        "all_reduce 4 B: 2.00 times the time of by hand",
        "all_reduce 1 KiB: 1.25 times the time of by hand",
    )
    assert (fast.found, fast.holds) == ("19.90 (19.90 .. 19.90)", False)
    assert found.best(found.cells[0]) == "ring"


def test_a_difference_that_may_be_noise_is_no_miss() -> None:
    cells = [
        Cell(
            "gather",
            8,
            {"jali": Timing([3e-6, 1e-6] * 9), "ring": Timing([2e-6] * 18), "mpi": Timing([2e-6] * 18)},
        )
    ]
    found = hybrid.HybridReport({}, ["jali"], cells, baselines=["mpi"], chosen=["ring"])
    assert [verdict.holds for verdict in hybrid_report.judge(found, "host")] == [True, True]


def test_whole_buffers_have_one_chunk() -> None:
    for collective in COLLECTIVES:
        case = Case(collective, 4, 0, 4)
        assert case.payload == (4 if collective in ("all_reduce", "reduce", "broadcast") else 16)
