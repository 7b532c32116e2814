"""`jali bench fft`: every provider and case runs, goals are judged, what it does not know is refused."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from programs import need_mpi, run_jali

import jali
from jali.bench import fft, fft_report
from jali.bench.collectives import Timing
from jali.errors import ParameterError, RankError, ShapeError

WORDS = ("bench", "fft", "--dims", "9,4,6", "--rounds", "1", "--seconds", "0.01")


def test_one_rank_is_measured_beside_the_library_itself(tmp_path: Path) -> None:
    said = run_jali(
        *WORDS, "--providers", "scipy,numpy", "--dtype", "complex128", "--output", tmp_path
    ).stdout
    document = json.loads((tmp_path / "fft.json").read_text())
    assert {cell["case"]: set(cell) - {"case"} for cell in document["cells"]} == {
        "transposed": {"scipy", "numpy"},
        "transposed, there and back": {"scipy", "numpy"},
        "natural": {"scipy", "numpy", "numpy.fft itself"},
        "local transforms": {"scipy", "numpy"},
    }
    assert document["conditions"]["array"] == [9, 4, 6]
    cases = [r for r in csv.reader((tmp_path / "fft.csv").open()) if not r[0].startswith("#")]
    assert len(cases) == 1 + 2 + 2 + 3 + 2
    assert (tmp_path / "fft.png").stat().st_size > 5_000
    assert re.search(r"^transposed +scipy .*GFLOP/s  numpy ", said, re.MULTILINE)


@pytest.mark.mpi
def test_two_ranks_are_measured_beside_another_library(tmp_path: Path) -> None:
    need_mpi()
    pytest.importorskip("mpi4py_fft")
    words = ("--against", "mpi4py-fft", "--pieces", "2", "--json")
    document = json.loads(run_jali(*WORDS, "-n", 2, "--providers", "scipy", *words).stdout)
    cells = {cell["case"]: set(cell) - {"case"} for cell in document["cells"]}
    assert list(cells) == list(fft.CASES)
    assert cells["transposed"] == {"scipy", "scipy in 2 pieces", "mpi4py-fft"}
    assert cells["exchanges"] == {"scipy", "mpi4py-fft"}
    assert "exchange to" in document["conditions"]["plan"]


@pytest.mark.short(1)
@pytest.mark.parametrize("grid", [None, (2, 2), (1, 4)])
def test_ranks_on_a_grid_are_measured(grid: tuple[int, ...] | None) -> None:
    def body() -> fft.Report:
        ranks = jali.comm.current()
        x = fft.make_array(ranks, (8, 6, 4), "complex64", grid, None, None)
        return fft.measure(ranks, x, ["scipy"], pieces=2, rounds=1, seconds=0.001)

    report = jali.virtual_ranks(4, body)[0]
    assert [cell.case for cell in report.cells] == list(fft.CASES)
    assert all(min(t.seconds) > 0 for cell in report.cells for t in cell.timings.values())
    text = fft_report.summary(report)
    assert "scipy: 2 pieces are" in text
    assert "pass" not in text  # goals are of devices, and against another library


def report(on_device: bool, **times: dict[str, float]) -> fft.Report:
    cells = [
        fft.Cell(case.replace("_", " "), {side: Timing([t] * 3) for side, t in sides.items()})
        for case, sides in times.items()
    ]
    return fft.Report({}, (8, 8), ["pyfftw"], 4, "mpi4py-fft", on_device, cells)


def test_goals_are_judged() -> None:
    found = report(
        False,
        transposed={"pyfftw": 2.0, "pyfftw in 4 pieces": 1.0, "mpi4py-fft": 1.1},
        exchanges={"pyfftw": 1.0, "mpi4py-fft": 1.4},
    )
    verdicts = fft_report.judge(found)
    assert [(v.asks, v.found, v.holds) for v in verdicts] == [
        ("transposed: 1 times as fast as mpi4py-fft", "1.10 (1.10 .. 1.10)", True),
        ("exchanges: 1.5 times as fast as mpi4py-fft", "1.40 (1.40 .. 1.40)", False),
    ]
    assert "pyfftw: 4 pieces are 2.00 times as fast as one" in fft_report.summary(found)
    for whole, holds in ((2.9, True), (3.1, False)):
        times = {
            "transposed": {"pyfftw": whole},
            "local_transforms": {"pyfftw": 2.0},
            "exchanges": {"pyfftw": 1.0},
        }
        (verdict,) = fft_report.judge(report(True, **times))
        assert (
            verdict.asks == "pyfftw: at most the sum of its local transforms and its exchanges (share of it)"
        )
        assert verdict.holds is holds


def test_transforms_that_do_not_come_back_are_noticed() -> None:
    ranks = jali.comm.current()
    x = fft.make_array(ranks, (4, 4), "complex64", None, None, None)
    fft._check(x, x * (1 + 1e-6), "scipy")
    with pytest.raises(RankError, match="scipy: the inverse of the transform is off by 1.0e-02 of the whole"):
        fft._check(x, x * 1.01, "scipy")


def test_what_it_does_not_know_is_refused() -> None:
    ranks = jali.comm.current()
    x = fft.make_array(ranks, (4, 4), "complex64", None, None, None)
    with pytest.raises(
        ParameterError, match="--against pigeon: libraries of distributed transforms are mpi4py-fft"
    ):
        fft.measure(ranks, x, ["numpy"], "pigeon")
    with pytest.raises(ParameterError, match="mpi4py-fft: it needs MPI ranks; say how many, like -n 2"):
        fft.measure(ranks, x, ["numpy"], "mpi4py-fft")
    with pytest.raises(ParameterError, match="come from scipy.*, not 'abacus'"):
        fft.chosen(x, ["abacus"])
    with pytest.raises(ParameterError, match="complex64 and complex128 are measured, not of float32"):
        fft.make_array(ranks, (4,), "float32", None, None, None)
    with pytest.raises(ParameterError, match="dimensions are positive"):
        fft.make_array(ranks, (4, 0), "complex64", None, None, None)
    with pytest.raises(ParameterError, match="a grid of 3 numbers is for as many dimensions, there are 2"):
        fft.make_array(ranks, (4, 4), "complex64", (1, 1, 1), None, None)
    with pytest.raises(ShapeError):
        fft.make_array(ranks, (4, 4), "complex64", (2, 1), None, None)
    assert "scipy" in fft.chosen(x, ())
    for words, text in (
        (("--pieces", "0"), "give --rounds and --pieces 1 or more"),
        (("--hybrid",), "--hybrid is for collectives; jali bench fft takes --against, --providers"),
    ):
        assert text in run_jali(*WORDS, *words, status=2).stderr
    assert (
        "jali bench arrays measures float32 or float64"
        in run_jali("bench", "arrays", "--dtype", "complex64", status=2).stderr
    )
    assert np.isclose(fft.Report({}, (8,), [], 1, "", False).operations, 120)
