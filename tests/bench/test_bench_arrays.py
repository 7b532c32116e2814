"""`jali bench arrays`: cases are right beside plain NumPy, goals are judged, what it does not know is refused."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from programs import need_mpi, run_bench

from jali.bench import arrays, arrays_report
from jali.bench.collectives import Timing
from jali.errors import ParameterError

WORDS = ("bench", "arrays", "--dims", "9,4,5", "--rounds", "1")


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.full)])
def test_every_entry_runs_on_two_ranks(tmp_path: Path, dtype: str) -> None:
    need_mpi()
    pytest.importorskip("pylops")
    said = run_bench(*WORDS[1:], "-n", 2, "--dtype", dtype, "--output", tmp_path).stdout
    document = json.loads((tmp_path / "arrays.json").read_text())
    assert [cell["case"] for cell in document["cells"]] == [case.name for case in arrays.CASES]
    for cell, case in zip(document["cells"], arrays.CASES, strict=True):
        assert set(cell) == {"case", "jali", *(["numpy"] if case.roof else [])}
    cases = [r for r in csv.reader((tmp_path / "arrays.csv").open()) if not r[0].startswith("#")]
    assert {r[1] for r in cases[1:]} == {"jali", "numpy"}
    assert (tmp_path / "arrays.png").stat().st_size > 5_000
    assert re.search(r"^\(?(pass|FAIL|unclear)\)?: dot: 0.8 of the speed of plain NumPy", said, re.M)


class Alone:
    """As much of mpi4py's communicator as a comparison asks for."""

    rank = 0

    def allgather(self, value: str) -> list[str]:
        return [value]


def test_other_results_are_noticed() -> None:
    right, case = np.arange(4.0), arrays.CASES[0]
    arrays._compare(Alone(), case, {"jali": right, "other": right * (1 + 1e-6)})
    for wrong in (right + 0.01, right[:3]):
        with pytest.raises(Exception, match="dot: jali and other give different results on rank 0"):
            arrays._compare(Alone(), case, {"jali": right, "other": wrong})


def test_goals_are_judged() -> None:
    def cell(name: str, ours: float, theirs: float, by_hand: float) -> arrays.Cell:
        (case,) = [case for case in arrays.CASES if case.name == name]
        times = {"jali": ours, "pylops-mpi": theirs, "numpy": by_hand}
        return arrays.Cell(case, {side: Timing([t] * 3) for side, t in times.items()})

    report = arrays.Report({}, "pylops-mpi", [cell("dot", 1.0, 6.1, 0.79), cell("norm", 1.0, 59.0, 0.9)])
    assert [(v.found, v.holds) for v in arrays_report.judge(report)] == [
        ("6.10 (6.10 .. 6.10)", True),
        ("0.79 (0.79 .. 0.79)", False),
        ("59.00 (59.00 .. 59.00)", False),
        ("0.90 (0.90 .. 0.90)", True),
    ]


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(ParameterError, match="no case bogus; there are dot, norm"):
        arrays.measure(None, "", ["bogus"])
    with pytest.raises(
        ParameterError, match="--against pigeon: libraries with the same interface are pylops-mpi"
    ):
        arrays.other_library("pigeon")
    assert not any("," in case.name for case in arrays.CASES)  # which stand between names
