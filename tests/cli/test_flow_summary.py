"""Means along the gradient flow: t0 and w0 of curves that are known exactly, and what the report says about them."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from jali_command import jali_here

from jali.cli.flow_summary import FlowSummary, summarise_flow
from jali.cli.parameters import parse_parameters, render_parameters
from jali.cli.report import write_report
from jali.cli.report_data import FLOW_COLUMNS, HISTORY_COLUMNS, summarise
from jali.errors import FileFormatError
from jali.statistics import mean_error

TIMES = np.linspace(0, 4, 11)
EXTENTS = (16, 16, 16, 16)


def slopes(n: int = 400, seed: int = 1) -> np.ndarray:
    """c of t^2 E = c t^2, correlated in time: its E does not depend on t, and t0 = sqrt(0.3 / c) exactly."""
    noise = np.random.default_rng(seed).normal(0, 0.002, n)
    for k in range(1, n):
        noise[k] += 0.6 * noise[k - 1]
    return 0.04 + noise


def summary_of(c: np.ndarray, times: np.ndarray = TIMES, extents: tuple[int, ...] = EXTENTS) -> FlowSummary:
    energy = np.repeat(c[:, None], len(times), axis=1)
    charges = np.round(np.random.default_rng(2).normal(0, 2, len(c)))
    return summarise_flow(np.arange(1.0, len(c) + 1), times.tolist(), energy, energy, charges, extents)


def test_t0_and_w0_of_a_parabola_are_exact_with_the_error_that_the_slope_has():
    c = slopes()
    flow, slope = summary_of(c), mean_error(c)
    t0, w0 = math.sqrt(0.3 / c.mean()), (0.15 / c.mean()) ** 0.25
    assert flow.t0.mean == pytest.approx(t0, rel=1e-12)
    assert flow.w0.mean == pytest.approx(w0, rel=1e-12)
    assert flow.t0.error == pytest.approx(t0 / (2 * c.mean()) * slope.error, rel=1e-2)
    assert flow.w0.error == pytest.approx(w0 / (4 * c.mean()) * slope.error, rel=1e-2)
    assert flow.t0.tau_int == pytest.approx(slope.tau_int, rel=1e-3)
    assert flow.notes == ()
    assert flow.susceptibility.mean == pytest.approx(np.mean(flow.charges**2) / 16**4)
    assert [one.mean for one in flow.t2_energy] == pytest.approx(list(c.mean() * TIMES**2))


def test_scales_beyond_the_flow_are_missing_with_what_it_reached():
    flow = summary_of(slopes(), TIMES / 4)
    assert flow.t0 is None
    assert flow.w0 is None
    reached = f"{slopes().mean():.4g}"
    assert any("t0 is not known" in note and reached in note and "Flow longer" in note for note in flow.notes)
    assert flow.as_dict()["t0"] is None


def test_a_box_that_is_too_small_for_t0_is_pointed_out_and_two_dimensions_have_no_t0():
    assert (
        "more than half of the shortest extent, 8" in summary_of(slopes(), extents=(8, 16, 16, 16)).notes[0]
    )
    flat = summary_of(slopes(), extents=(16, 16))
    assert (flat.t0, flat.w0, flat.notes) == (None, None, ())


def test_one_measurement_has_scales_without_errors():
    flow = summary_of(slopes()[:1])
    assert flow.t0.mean == pytest.approx(math.sqrt(0.3 / slopes()[0]))
    assert flow.as_dict()["t0"]["error"] is None


# ---- in the report -------------------------------------------------------------------------------------


def write_run(directory: Path, c: np.ndarray, *overrides: str, charge: bool = True) -> Path:
    """The folder of a run whose flow of sweep k has E = c[k] at all times."""
    changes = ["extents=16,16,16,16", "group=SU2", "beta=2.31", "thermalisation=0", "flow=true", *overrides]
    parameters = parse_parameters("", overrides=changes)
    every = parameters.measure.flow_every
    history, flow = [",".join(HISTORY_COLUMNS)], [",".join(FLOW_COLUMNS)]
    for k, value in enumerate(c.tolist()):
        history.append(f"{k + 1},{0.6 + 0.001 * value!r},,,,")
        for t in TIMES.tolist():
            flow.append(
                f"{every * (k + 1)},{t!r},{value!r},{value!r},{t * t * value!r},{k % 5 - 2.0 if charge else ''}"
            )
    directory.mkdir()
    (directory / "parameters.toml").write_text(render_parameters(parameters))
    (directory / "history.csv").write_text("\n".join(history) + "\n")
    (directory / "flow.csv").write_text("\n".join(flow) + "\n")
    return directory


def test_the_report_has_a_plot_a_table_and_both_scales(tmp_path):
    without = write_run(tmp_path / "a", slopes())
    (without / "flow.csv").unlink()
    plain = write_report(without).read_text()
    page = write_report(write_run(tmp_path / "b", slopes())).read_text()
    assert page.count("<svg") == plain.count("<svg") + 1
    assert "Gradient flow" not in plain
    words = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    flow = summarise(tmp_path / "b").flow
    for name in ("t0", "w0"):
        digits = f"{getattr(flow, name).mean:.3f}"[:4]
        assert re.search(rf"{name}, where .*?>{digits}", words), name
    assert "⟨Q²⟩ / V" in words
    times = re.findall(r"<td>([\d.]+)</td><td>0\.0\d+\(\d+\)</td>", words)
    assert [float(time) for time in times] == pytest.approx(list(TIMES))
    assert "400 flows, one every 10 sweeps" in words


def test_autocorrelation_times_of_the_flow_are_in_sweeps(tmp_path):
    flow = summarise(write_run(tmp_path / "a", slopes(), "flow_every=3")).flow
    assert flow.as_dict()["t0"]["tau_int"] == pytest.approx(3 * mean_error(slopes()).tau_int, rel=1e-3)


def test_a_report_without_charges_or_without_a_flow_yet_is_made(tmp_path):
    page = write_report(write_run(tmp_path / "a", slopes(10), charge=False)).read_text()
    assert "⟨Q²⟩" not in page
    empty = write_run(tmp_path / "b", slopes(3))
    (empty / "flow.csv").write_text(",".join(FLOW_COLUMNS) + "\n")
    assert "Gradient flow" not in write_report(empty).read_text()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("sweep,flow_time", "sweep,time", "line 1: the header is"),
        ("\n20,0.4,", "\n20,0.5,", "do not have the same flow times"),
        ("\n20,0.0,", "\n5,0.0,", "sweep 5 follows sweep 10"),
        ("\n20,0.4,", "\n20,x,", "flow_time is 'x', not a number"),
    ],
)
def test_a_damaged_table_of_the_flow_is_refused(old, new, complaint, tmp_path):
    path = write_run(tmp_path / "a", slopes(3)) / "flow.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=r"flow\.csv") as caught:
        summarise(tmp_path / "a")
    assert complaint in str(caught.value)


def test_a_run_and_the_measurement_of_its_ensemble_have_the_same_flow(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")
    (tmp_path / "p.toml").write_text(
        '[lattice]\nextents = [4, 4, 4, 4]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\n'
        "[update]\nthermalisation = 2\nsweeps = 8\n[run]\nsave_every = 2\n"
        "[measure]\nflow = true\nflow_every = 2\nflow_time = 2.0\nflow_step = 0.05\n"
    )
    out = tmp_path / "run"
    assert jali_here("run", tmp_path / "p.toml", "--output", out, "--json") == 0
    ran = json.loads(capsys.readouterr().out)["flow"]
    words = ("--flow", "--flow-time", 2, "--flow-step", 0.05, "--json")
    assert jali_here("measure", out, *words, ranks=2) == 0
    measured = json.loads(capsys.readouterr().out)["means"]["flow"]
    assert ran["measurements"] == measured["measurements"] == 4
    table = list(csv.DictReader((out / "flow.csv").read_text().splitlines()))
    for one, other in zip(ran["points"], measured["points"], strict=True):
        energies = [float(row["energy"]) for row in table if float(row["flow_time"]) == one["flow_time"]]
        assert one["energy"]["mean"] == pytest.approx(np.mean(energies), rel=1e-12)
        for key in ("mean", "error"):
            assert other["energy"][key] == pytest.approx(one["energy"][key], rel=1e-9)
        assert one["t2_energy"]["mean"] == pytest.approx(one["flow_time"] ** 2 * one["energy"]["mean"])
    assert jali_here("measure", out, *words[:-1]) == 0
    said = capsys.readouterr().out
    assert ("t0 = " in said) == (ran["t0"] is not None)
    assert "<Q^2> / V" in said
