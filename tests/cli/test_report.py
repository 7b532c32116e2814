"""Run directories read back, judged and drawn: known numbers in, the same numbers and clear pages out."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from jali.cli import report
from jali.cli.parameters import parse_parameters, render_parameters
from jali.cli.report import plot_history, write_report
from jali.cli.report_data import HISTORY_COLUMNS, TIMING_COLUMNS, summarise
from jali.cli.report_plots import coupling_name, lattice_name, polyakov_figure
from jali.cli.schema import Gauge
from jali.errors import FileFormatError, ParameterError
from jali.gauge.literature import plaquette_reference
from jali.statistics import mean_error


def write_run(directory: Path, plaquettes: np.ndarray, *overrides: str, polyakov: bool = True) -> Path:
    """A run directory as ``jali run`` leaves it; one row per measurement, thermalisation included."""
    parameters = parse_parameters("", overrides=["extents=8,8,8,8", "group=SU3", "beta=5.7", *overrides])
    every = parameters.run.measure_every
    loops = np.random.default_rng(1).normal(0, 0.02, (len(plaquettes), 2))
    history, timing = [",".join(HISTORY_COLUMNS)], [",".join(TIMING_COLUMNS)]
    for k, value in enumerate(plaquettes):
        sweep = every * (k + 1)
        loop = f"{float(loops[k, 0])!r},{float(loops[k, 1])!r}" if polyakov else ","
        history.append(f"{sweep},{float(value)!r},{float(value)!r},{float(value)!r},{loop}")
        timing.append(f"{sweep},0.01,0.001,{16384 * 5 / 0.01!r}")
    directory.mkdir(exist_ok=True)
    (directory / "parameters.toml").write_text(render_parameters(parameters))
    (directory / "history.csv").write_text("\n".join(history) + "\n")
    (directory / "timing.csv").write_text("\n".join(timing) + "\n")
    return directory


def noise(n: int, mean: float = 0.5492, width: float = 0.003, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, width, n)


def with_transient(n: int, early: int) -> np.ndarray:
    return np.concatenate([np.linspace(0.0, 0.5, early), noise(n)])


def page_of(directory: Path) -> str:
    path = write_report(directory)
    assert path == directory / "report.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of which words are looked at: drawing takes longer than all else."""
    monkeypatch.setattr(report, "inline", lambda figure, name: "<svg></svg>")


def test_summary_leaves_out_thermalisation_and_gives_the_gamma_method_result(tmp_path):
    values = with_transient(300, 40)
    summary = summarise(write_run(tmp_path, values, "thermalisation=40"))
    assert summary.estimates["plaquette"] == mean_error(values[40:])
    assert len(summary.plaquette) == 300
    assert set(summary.estimates) == set(HISTORY_COLUMNS[1:])
    reference = plaquette_reference("SU(3)", 5.7, (8, 8, 8, 8))
    expected = (values[40:].mean() - reference.value) / math.hypot(
        summary.estimates["plaquette"].error, reference.error
    )
    assert summary.deviation == pytest.approx(expected)


def test_autocorrelation_times_are_in_sweeps_whatever_the_interval(tmp_path):
    values = np.repeat(noise(400), 4) + noise(1600, 0, 1e-5)
    every = summarise(write_run(tmp_path / "a", values, "thermalisation=0")).as_dict()
    fourth = summarise(
        write_run(tmp_path / "b", values[::4], "thermalisation=0", "measure_every=4")
    ).as_dict()
    # Four equal values in a row: tau_int = 1/2 + 3/4 + 2/4 + 1/4 = 2 sweeps; one in four is 1/2 x 4 sweeps.
    assert every["observables"]["plaquette"]["tau_int"] == pytest.approx(2.0, rel=0.2)
    assert fourth["observables"]["plaquette"]["tau_int"] == pytest.approx(2.0, rel=0.25)


def test_results_are_plain_json(tmp_path):
    for name, count in (("one", 1), ("two", 2), ("many", 100)):
        result = summarise(write_run(tmp_path / name, noise(count), "thermalisation=0")).as_dict()
        assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["reference"]["plaquette"] == 0.549195
    assert result["measurements"] == 100


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all figures, and its page."""
    directory = write_run(tmp_path_factory.mktemp("complete"), with_transient(300, 40), "thermalisation=40")
    write_report(directory)
    return directory


def test_page_is_complete_and_fetches_nothing(complete):
    page = (complete / "report.html").read_text(encoding="utf-8")
    estimate = summarise(complete).estimates["plaquette"]
    assert str(estimate) in page
    assert "SU(3) on 8⁴ at β = 5.7" in page
    assert "0.549195(10)" in page
    assert "300" in page
    assert page.count("<svg") == 5
    assert not re.search(r"<script|<link|<iframe|@import", page)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page)
    assert "beta = 5.7" in page
    for figure in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(figure)


def test_page_is_the_same_when_written_again(complete):
    before = (complete / "report.html").read_text(encoding="utf-8")
    assert page_of(complete) == before
    assert not list(complete.glob("*.new"))


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("values", "thermalisation", "expected"),
    [
        (np.empty(0), 0, "No measurements after thermalisation yet"),
        (noise(20), 20, "No measurements after thermalisation yet"),
        (noise(1), 0, "error unknown"),
        (noise(2), 0, "2 measurements"),
        pytest.param(noise(3), 0, "3 measurements", marks=pytest.mark.full),
        (np.full(2, 0.5), 0, "error 0"),
        pytest.param(np.full(50, 0.5), 10, "error 0", marks=pytest.mark.full),
        pytest.param(np.full(50, 1.0), 0, "error 0", marks=pytest.mark.full),
        (np.full(50, 0.0), 0, "error 0"),
        (np.where(np.arange(50) % 2, 0.5, np.nextafter(0.5, 1)), 0, "50 measurements"),
    ],
)
def test_degenerate_runs_get_a_page_and_a_picture(tmp_path, values, thermalisation, expected):
    write_run(tmp_path, values, f"thermalisation={thermalisation}")
    assert expected in page_of(tmp_path)
    assert plot_history(tmp_path, tmp_path / "history.png").stat().st_size > 1000


def test_run_without_polyakov_loop_or_timing_leaves_those_pictures_out(tmp_path):
    write_run(tmp_path, noise(100), "thermalisation=0", polyakov=False)
    (tmp_path / "timing.csv").unlink()
    page = page_of(tmp_path)
    assert page.count("<svg") == 3
    assert "Polyakov loop, real" not in page


class Elements(HTMLParser):
    """The elements of a page, each with the classes and names of those around it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        around = [word for name, classes in self._open for word in (name, *classes.split())]
        self.found.append((tag, dict(attributes), around))
        if tag not in ("meta", "link", "br", "img"):
            self._open.append((tag, dict(attributes).get("class") or ""))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes), []))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag


def test_a_narrow_screen_scrolls_tables_in_their_own_box_and_nothing_else(tmp_path, without_figures):
    write_run(tmp_path, noise(100), "thermalisation=0")
    page = page_of(tmp_path)
    elements = Elements(page).found
    assert [a["content"] for tag, a, _ in elements if tag == "meta" and a.get("name") == "viewport"] == [
        "width=device-width, initial-scale=1"
    ]
    tables = [around for tag, _, around in elements if tag == "table"]
    assert tables
    assert all("scroll" in around for around in tables)
    css = page[page.index("<style>") : page.index("</style>")]
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", css)
    assert re.search(r"pre \{[^}]*overflow-x: auto", css)
    assert re.search(r"svg, img \{[^}]*max-width: 100%", css)
    # nothing asks for a width that a telephone does not have
    assert not re.search(r"min-width: *\d|minmax\([1-9]", css)


@pytest.mark.short(2)
@pytest.mark.parametrize("left_out", [(), ("timing",), ("polyakov",), ("timing", "polyakov")])
def test_figures_beside_each_other_are_equally_high_and_none_has_an_empty_place_beside_it(tmp_path, left_out):
    write_run(tmp_path, noise(100), "thermalisation=0", polyakov="polyakov" not in left_out)
    if "timing" in left_out:
        (tmp_path / "timing.csv").unlink()
    pages = [
        (a["viewbox"].split()[2:], "whole" in around)
        for tag, a, around in Elements(page_of(tmp_path)).found
        if tag == "svg" and "pair" in around
    ]
    assert len(pages) == 4 - len(left_out)
    beside = [float(height) / float(width) for (width, height), whole in pages if not whole]
    assert len(beside) % 2 == 0
    assert beside == pytest.approx([beside[0]] * len(beside), rel=1e-3)
    assert [whole for _, whole in pages if whole] == [True] * (len(pages) % 2)


def test_the_polyakov_loop_of_su2_is_one_real_number_and_that_of_su3_is_not(tmp_path, without_figures):
    for group, labels in (("SU2", ("sweep", "L")), ("SU3", ("Re L", "Im L"))):
        write_run(tmp_path / group, noise(100), "thermalisation=0", f"group={group}")
        summary = summarise(tmp_path / group)
        (axis,) = polyakov_figure(summary).axes
        assert (axis.get_xlabel(), axis.get_ylabel()) == labels
        assert ("polyakov_im" in summary.as_dict()["observables"]) == (group == "SU3")
        assert ("imaginary part" in page_of(tmp_path / group)) == (group == "SU3")


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("count", "group"),
    [
        pytest.param(count, group, marks=() if (k - j) % 4 == 0 and k != 3 else pytest.mark.full)
        for k, count in enumerate((1, 2, 5, 40, 6000))
        for j, group in enumerate(("U1", "SU2", "SU3", "SU4"))
    ],
)
def test_making_a_report_warns_of_nothing(group, count, tmp_path, caplog):
    write_run(tmp_path, noise(count), "thermalisation=0", f"group={group}", f"sweeps={count}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page_of(tmp_path)
        plot_history(tmp_path, tmp_path / "history.png")
    assert [(record.name, record.getMessage()) for record in caplog.records] == []


def test_the_plane_of_polyakov_loops_has_equal_scales_and_holds_all_of_them(tmp_path):
    write_run(tmp_path, noise(200), "thermalisation=0")
    summary = summarise(tmp_path)
    for size in ((5.2, 4.0), (10, 3.6), (3, 6)):
        figure = polyakov_figure(summary)
        figure.set_size_inches(*size)
        figure.draw_without_rendering()
        (axis,) = figure.axes
        (x0, y0), (x1, y1) = axis.transData.transform([(0, 0), (1e-3, 1e-3)])
        assert x1 - x0 == pytest.approx(y1 - y0)
        for name, (low, high) in (("polyakov_re", axis.get_xlim()), ("polyakov_im", axis.get_ylim())):
            assert low < summary.history[name].min()
            assert summary.history[name].max() < high


def test_a_value_of_another_code_is_not_called_literature(tmp_path, without_figures):
    write_run(tmp_path, noise(100, 0.602), "thermalisation=0", "group=SU2", "beta=2.3")
    page = page_of(tmp_path)
    assert "literature" not in page
    assert "another code" in page
    assert "no published value is known to us" in page
    assert summarise(tmp_path).as_dict()["reference"]["kind"] == "another code"
    write_run(tmp_path, noise(100), "thermalisation=0", "beta=5.7")
    assert ">literature<" in page_of(tmp_path)
    write_run(tmp_path, noise(100), "thermalisation=0", "extents=4,4")
    assert ">exact<" in page_of(tmp_path)
    write_run(tmp_path, noise(100), "thermalisation=0", "group=SU2", "beta=2.31")
    assert "No published or exact value for this group, coupling and lattice is known to us." in page_of(
        tmp_path
    )


def test_two_dimensional_run_is_compared_with_the_exact_torus(tmp_path, without_figures):
    exact = plaquette_reference("U(1)", 2.0, (4, 4)).value
    write_run(
        tmp_path, noise(400, exact + 0.1, 0.01), "thermalisation=0", "extents=4,4", "group=U1", "beta=2"
    )
    summary = summarise(tmp_path)
    assert summary.reference.value == pytest.approx(0.6992519268, abs=1e-10)
    assert summary.deviation == pytest.approx(0.1 / summary.estimates["plaquette"].error, rel=0.05)
    assert 'class="small bad"' in page_of(tmp_path)


def test_small_box_is_compared_with_a_caution_and_no_verdict(tmp_path, without_figures):
    write_run(tmp_path, noise(100, 0.59), "thermalisation=0", "beta=6.0")
    page = page_of(tmp_path)
    assert "holds for 12 sites or more in every direction, not for 8" in page
    assert 'class="small bad"' not in page


def test_a_value_that_does_not_hold_for_the_lattice_gives_no_sigma_anywhere(tmp_path, without_figures):
    write_run(tmp_path, noise(100, 0.62), "thermalisation=0", "beta=6.0", "extents=4,4,4,4")
    summary = summarise(tmp_path)
    assert summary.reference.caution
    assert summary.deviation is None
    assert summary.as_dict()["reference"]["deviation_sigma"] is None
    page = page_of(tmp_path)
    assert "\u03c3" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)
    assert "deviation" not in page


@pytest.mark.parametrize("beta", ["1e4", "1e9", "1e300"])
@pytest.mark.parametrize("group", ["U1", "SU2", "SU3"])
def test_an_absurd_coupling_in_two_dimensions_has_no_comparison_and_takes_no_time(tmp_path, group, beta):
    write_run(tmp_path, noise(20), "thermalisation=0", "extents=4,4", f"group={group}", f"beta={beta}")
    assert summarise(tmp_path).reference is None


@pytest.mark.parametrize(
    "write", [write_report, lambda d: plot_history(d, d / "report.html")], ids=["page", "picture"]
)
def test_a_full_disk_while_the_report_is_written_names_the_path_and_leaves_nothing_half(tmp_path, write):
    import resource

    write_run(tmp_path, noise(50), "thermalisation=0")
    (tmp_path / "report.html").write_text("the older one")
    before = sorted(os.listdir(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=re.escape(f"cannot write {tmp_path / 'report.html'}: File too large")
        ):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "report.html").read_text() == "the older one"


def test_unknown_theory_has_no_comparison(tmp_path, without_figures):
    write_run(tmp_path, noise(100), "thermalisation=0", "beta=5.71")
    summary = summarise(tmp_path)
    assert summary.reference is None
    assert summary.deviation is None
    assert "deviation" not in page_of(tmp_path)


def test_drifting_and_too_short_runs_are_pointed_out(tmp_path, without_figures):
    drifting = noise(400) + np.repeat([0.0, 0.004], 200)
    write_run(tmp_path / "a", drifting, "thermalisation=0")
    page = page_of(tmp_path / "a")
    assert "thermalisation may be too short" in page or "the error may be too small" in page
    write_run(tmp_path / "b", noise(8), "thermalisation=0")
    assert "8 measurements are few" in page_of(tmp_path / "b")
    write_run(tmp_path / "c", noise(400), "thermalisation=0")
    assert 'class="note"' not in page_of(tmp_path / "c")


def test_long_run_keeps_the_page_small(tmp_path):
    write_run(tmp_path, noise(20_000), "thermalisation=100")
    assert len(page_of(tmp_path)) < 2_000_000


def test_picture_is_a_png_of_the_promised_width(tmp_path):
    write_run(tmp_path, with_transient(200, 30), "thermalisation=30")
    data = plot_history(tmp_path, tmp_path / "h.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20]) == 1800


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sweep,plaquette,", "sweep,plaq,", "line 1: the header is 'sweep,plaq,"),
        ("\n3,", "\n3,1,", "line 4: 7 fields instead of 6"),
        ("\n3,", "\n3,abc", "line 4: plaquette is 'abc0"),
        ("\n3,", "\n2,", "line 4: sweep 2 follows sweep 2"),
        ("\n3,0.5", "\n3,nan#", "line 4: plaquette is 'nan#"),
        ("\n3,0.5", "\n3,1e9990", "line 4: plaquette is 1e999"),
    ],
)
def test_damaged_history_is_refused_with_its_line(tmp_path, old, new, message):
    path = write_run(tmp_path, noise(5), "thermalisation=0") / "history.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=re.escape(message)):
        summarise(tmp_path)


def test_history_cut_off_in_a_row_is_refused(tmp_path):
    path = write_run(tmp_path, noise(5), "thermalisation=0") / "history.csv"
    path.write_text(path.read_text()[:-45])
    with pytest.raises(FileFormatError, match="was the file cut off"):
        summarise(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ParameterError, match=r"parameters\.toml: No such file"):
        write_report(tmp_path)
    write_run(tmp_path, noise(5))
    (tmp_path / "history.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        write_report(tmp_path)
    (tmp_path / "history.csv").unlink()
    with pytest.raises(FileFormatError, match=r"history\.csv: No such file"):
        write_report(tmp_path)


def test_lattices_are_named_as_in_papers():
    assert lattice_name((8, 8, 8, 8)) == "8⁴"
    assert lattice_name((16, 16, 16, 32)) == "16³ × 32"
    assert lattice_name((4, 6)) == "4 × 6"
    assert lattice_name((12, 12)) == "12²"
    assert coupling_name(Gauge("SU(3)", 5.7)) == "β = 5.7"
    assert coupling_name(Gauge("SU(3)", 2.6, "iwasaki")) == "β = 2.6 (Iwasaki action)"
