"""Ensembles: configurations that a run saves, its manifest of them, and what reads them."""

from __future__ import annotations

import csv
import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from jali_command import jali_here, link_trace, plaquettes, running, wait_for
from programs import TIMEOUT, run_jali

import jali
from jali.errors import FileFormatError
from jali.gauge import SU, GaugeField
from jali.io import open_checkpoint, open_configuration, saved_configurations
from jali.io.writing import create_beside
from jali.statistics import mean_error

SU2 = """\
[lattice]
extents = [4, 2, 4, 6]
[gauge]
group = "SU(2)"
beta = 2.3
[update]
thermalisation = 2
sweeps = 10
overrelaxation = 1
[run]
checkpoint_every = 3
save_every = 2
"""
SU3 = SU2.replace("SU(2)", "SU(3)").replace("2.3", "5.7")


@pytest.fixture(autouse=True)
def _no_time_for_drawing(monkeypatch):
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "su2.toml"
    path.write_text(SU2)
    return path


def run(file: Path, out: Path, *changes: str, ranks: int = 1, status: int = 0) -> Path:
    words = [word for change in changes for word in ("--set", change)]
    assert jali_here("run", file, "--output", out, *words, ranks=ranks) == status
    return out


def resume(out: Path, *changes: str, ranks: int = 1, status: int = 0) -> None:
    words = [word for change in changes for word in ("--set", change)]
    assert jali_here("run", "--resume", out, *words, ranks=ranks) == status


def manifest(out: Path) -> bytes:
    return (out / "configurations" / "manifest.csv").read_bytes()


def rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(manifest(out).decode().splitlines()))


# ---- saving --------------------------------------------------------------------------------------------


@pytest.mark.short(1)
@pytest.mark.parametrize("format", ["ildg", "nersc"])
def test_every_second_configuration_is_there_and_is_what_the_history_and_the_manifest_say(format, tmp_path):
    (tmp_path / "su3.toml").write_text(SU3)
    out = run(tmp_path / "su3.toml", tmp_path / "run", f"save_format={format}", ranks=2)
    found = rows(out)
    assert [int(row["number"]) for row in found] == [2, 4, 6, 8, 10, 12]
    assert [row["file"] for row in found] == [f"{n:08d}.{format}" for n in range(2, 13, 2)]
    history = {row["sweep"]: row for row in csv.DictReader((out / "history.csv").read_text().splitlines())}
    for row in found:
        file = open_configuration(out / "configurations" / row["file"])
        links = file.read()
        assert (row["format"], file.format) == (format, format)
        assert row["plaquette"] == history[row["number"]]["plaquette"]
        assert float(row["plaquette"]) == pytest.approx(plaquettes(links)[0], abs=1e-14)
        assert file.link_trace == pytest.approx(link_trace(links), abs=1e-12)
        assert row["checksum"].split() == [file.checksum_kind, *(f"{value:08x}" for value in file.checksum)]
        assert file.metadata["SEQUENCE_NUMBER"] == row["number"]
        assert float(file.metadata["BETA"]) == 5.7
    assert sorted(p.name for p in (out / "configurations").iterdir()) == [
        *(row["file"] for row in found), "manifest.csv",
    ]  # fmt: skip


def test_the_manifest_is_the_same_to_the_byte_on_any_ranks_and_saving_changes_no_number(file, tmp_path):
    without = run(file, tmp_path / "none", "save_every=0")
    assert not (without / "configurations").exists()
    found = set()
    for ranks in (1, 2, 3):
        out = run(file, tmp_path / str(ranks), ranks=ranks)
        assert (out / "history.csv").read_bytes() == (without / "history.csv").read_bytes()
        found.add(manifest(out))
    assert len(found) == 1


def test_links_in_single_precision_are_saved_as_they_are(file, tmp_path):
    out = run(file, tmp_path / "run", "precision=float32", "save_every=12")
    (saved,) = saved_configurations(out)
    opened = open_configuration(saved.path)
    assert opened.precision == 32
    assert opened.read().dtype == np.complex64


# ---- going on ------------------------------------------------------------------------------------------


def test_a_run_in_parts_on_other_ranks_has_the_ensemble_of_one_long_run(file, tmp_path):
    long, parts = run(file, tmp_path / "long"), tmp_path / "parts"
    run(file, parts, "sweeps=3", ranks=2)
    resume(parts, "sweeps=6", ranks=3)
    resume(parts, "sweeps=10")
    assert manifest(parts) == manifest(long)


def test_what_was_saved_after_the_checkpoint_is_made_again_and_listed_once(file, tmp_path):
    out, earlier = run(file, tmp_path / "run", "sweeps=5"), tmp_path / "earlier"
    shutil.copytree(out, earlier)
    resume(out, "sweeps=10")
    whole = manifest(out)
    # what a kill leaves: the checkpoint of sweep 7, files and rows up to 12, the last of them half written
    shutil.rmtree(out / "checkpoint")
    shutil.copytree(earlier / "checkpoint", out / "checkpoint")
    (out / "configurations" / "manifest.csv").write_bytes(whole[:-9])
    assert [saved.number for saved in saved_configurations(out)] == [2, 4, 6, 8, 10], "half a row is none"
    resume(out, "sweeps=10", ranks=2)
    assert manifest(out) == whole


def test_a_killed_run_lists_only_configurations_that_are_whole(file, tmp_path):
    out = tmp_path / "run"
    words = ("--set", "sweeps=1000000", "--set", "save_every=1")
    with running("run", file, "--output", out, *words) as process:
        wait_for(lambda: out.exists() and len(saved_configurations(out)) > 5, process)
        process.kill()
        process.wait(timeout=TIMEOUT)
    saved = saved_configurations(out)
    for one in saved:
        assert plaquettes(open_configuration(one.path).read())[0] == pytest.approx(one.plaquette, abs=1e-14)
    resume(out, f"sweeps={saved[-1].number}")
    assert [one.number for one in saved_configurations(out)] == list(range(1, saved[-1].number + 3))


def test_saving_can_begin_change_and_end_when_a_run_is_resumed(tmp_path):
    (tmp_path / "su3.toml").write_text(SU3)
    out = run(tmp_path / "su3.toml", tmp_path / "run", "save_every=0", "sweeps=2")
    resume(out, "save_every=1", "sweeps=4", ranks=2)
    resume(out, "save_every=3", "save_format=nersc", "sweeps=8")
    resume(out, "save_every=0", "sweeps=10")
    assert [(s.number, s.format) for s in saved_configurations(out)] == [
        (5, "ildg"), (6, "ildg"), (9, "nersc"),
    ]  # fmt: skip


def test_half_a_file_that_a_kill_left_goes_when_the_run_is_resumed_and_nothing_else(file, tmp_path):
    out = run(file, tmp_path / "run")
    folder = out / "configurations"
    create_beside(str(folder / "00000014.ildg"))  # as the writer does first
    assert len(list(folder.glob(".*.tmp"))) == 1
    (folder / ".mine.tmp").write_text("mine")
    resume(out, "sweeps=12")
    assert [p.name for p in folder.glob(".*")] == [".mine.tmp"]


def test_a_run_whose_configurations_were_moved_away_goes_on(file, tmp_path):
    out = run(file, tmp_path / "run")
    (out / "configurations" / "00000004.ildg").rename(tmp_path / "elsewhere")
    resume(out, "sweeps=12")
    assert len(saved_configurations(out)) == 7


# ---- what is refused -----------------------------------------------------------------------------------


def test_going_on_with_a_contradictory_ensemble_is_refused_and_changes_nothing(file, tmp_path, capsys):
    out = run(file, tmp_path / "run")
    folder, before = out / "configurations", manifest(out)
    shutil.copy(folder / "00000004.ildg", folder / "00000006.ildg")
    resume(out, "sweeps=12", status=2, ranks=2)
    assert "another file has taken the name" in capsys.readouterr().err
    shutil.rmtree(out)
    run(file, out)
    (folder / "manifest.csv").write_bytes(before.replace(b"00000004.ildg", b"00000006.ildg"))
    resume(out, "sweeps=12", status=2)
    assert "another file has taken the name" in capsys.readouterr().err
    cut = b"".join(before.splitlines(keepends=True)[:-1])
    (folder / "manifest.csv").write_bytes(cut)
    resume(out, "sweeps=12", status=2)
    assert "manifest.csv ends after" in capsys.readouterr().err
    assert manifest(out) == cut


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("configurations", "/configurations is gone"),
        ("configurations/manifest.csv", "/manifest.csv is gone"),
        ("history.csv", "/history.csv is gone"),
    ],
)
def test_a_run_whose_table_is_gone_says_so_and_how_to_go_on(gone, named, file, tmp_path, capsys):
    out = run(file, tmp_path / "run")
    (out / gone).rename(tmp_path / "elsewhere")
    for ranks in (1, 2):
        capsys.readouterr()
        resume(out, "sweeps=12", status=2, ranks=ranks)
        said = capsys.readouterr().err
        assert said.startswith("jali: ")
        assert named in said
        assert "Put it back to resume this run" in said
    assert not (out / gone).exists()
    links = tmp_path / "links.ildg"  # as it proposes
    assert jali_here("convert", out, links) == 0
    other = run(file, tmp_path / "other", "start=file", f'start_file="{links}"')
    assert len(saved_configurations(other)) == 6
    (tmp_path / "elsewhere").rename(out / gone)
    resume(out, "sweeps=12")
    assert rows(out)[-1]["number"] == "14"


def test_a_file_with_other_links_under_the_next_name_is_not_overwritten(file, tmp_path, capsys):
    out = run(file, tmp_path / "run")
    folder = out / "configurations"
    shutil.copy(folder / "00000004.ildg", folder / "00000014.ildg")
    whole = manifest(out)
    resume(out, "sweeps=12", status=2, ranks=2)
    said = capsys.readouterr().err
    assert "00000014.ildg" in said
    assert "move the file away" in said
    assert (folder / "00000014.ildg").read_bytes() == (folder / "00000004.ildg").read_bytes()
    assert manifest(out) == whole
    (folder / "00000014.ildg").unlink()
    resume(out, "sweeps=12")
    assert manifest(out).startswith(whole)
    assert rows(out)[-1]["number"] == "14"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("extents=4,4", "hold lattices of four directions"),
        ("save_format=nersc", 'holds SU(3) only, not SU(2); use "ildg"'),
        ("save_format=milc", 'must be one of "ildg", "nersc"'),
        ("save_every=-1", "0 or more"),
    ],
)
def test_what_no_file_can_hold_is_refused_before_the_run_begins(change, complaint, file, tmp_path, capsys):
    run(file, tmp_path / "run", change, status=2, ranks=2)
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_with_an_ensemble_is_not_used_for_a_new_run(file, tmp_path, capsys):
    out = run(file, tmp_path / "run")
    new = tmp_path / "new"
    new.mkdir()
    shutil.copytree(out / "configurations", new / "configurations")
    run(file, new, status=2)
    assert "configurations/manifest.csv" in capsys.readouterr().err


def test_a_run_that_cannot_begin_leaves_no_folder_of_configurations(file, tmp_path):
    def tiny_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    done = run_jali("run", file, "--output", tmp_path / "run", status=1, preexec_fn=tiny_files)
    assert "cannot write checkpoint" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("number,", "nummer,", "line 1: the header is"),
        ("\n4,", "\nfour,", "line 3: 'four,"),
        ("\n4,", "\n4,4,", "line 3: '4,4,"),
        ("\n4,", "\n2,", "line 3: configuration 2 follows 2"),
        ("00000004.ildg", "../su2.toml", "is not the name of a file beside it"),
    ],
)
def test_a_manifest_that_is_none_is_refused_with_its_line(old, new, complaint, file, tmp_path):
    out = run(file, tmp_path / "run", "sweeps=4")
    text = manifest(out).decode()
    assert old in text
    (out / "configurations" / "manifest.csv").write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match="manifest.csv") as caught:
        saved_configurations(out)
    assert complaint in str(caught.value)


# ---- measuring -----------------------------------------------------------------------------------------


def measured(capsys, *words: object, ranks: int = 1, status: int = 0) -> dict:
    capsys.readouterr()
    assert jali_here("measure", *words, "--json", ranks=ranks) == status
    return json.loads(capsys.readouterr().out)


def test_means_of_a_run_are_those_of_its_history_after_thermalisation(file, tmp_path, capsys):
    out = run(file, tmp_path / "run", "sweeps=40", "save_every=1")
    found = measured(capsys, out, ranks=2)
    assert [one["number"] for one in found["configurations"]] == list(range(1, 43))
    history = list(csv.DictReader((out / "history.csv").read_text().splitlines()))[2:]
    means = found["means"]
    assert (means["configurations"], means["left_out"], means["spacing"]) == (40, 2, 1)
    for name in ("plaquette", "plaquette_spatial", "plaquette_temporal", "polyakov_re"):
        expected = mean_error([float(row[name]) for row in history])
        for key in ("mean", "error", "tau_int"):
            assert means["observables"][name][key] == pytest.approx(getattr(expected, key), rel=1e-8)
    assert jali_here("measure", out) == 0
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if ".ildg  plaquette" in line]) == 42
    assert "means of 40 configurations, 1 sweep apart, 2 left out, errors with autocorrelation" in said


def test_the_folder_of_configurations_stands_for_its_run(file, tmp_path, capsys, monkeypatch):
    out = run(file, tmp_path / "run")
    found = measured(capsys, out)
    assert found["means"]["left_out"] > 0
    assert measured(capsys, out / "configurations")["means"] == found["means"]
    monkeypatch.chdir(out / "configurations")
    assert measured(capsys, ".")["means"] == found["means"]


def test_errors_of_means_grow_with_the_autocorrelation(file, tmp_path, capsys):
    """Each configuration four times in a row is worth as much as once: tau_int is four times as long, the error the same."""
    out = run(file, tmp_path / "run", "sweeps=30", "save_every=1", "thermalisation=0")
    files = [saved.path for saved in saved_configurations(out)]
    once = measured(capsys, *files)["means"]["observables"]["plaquette"]
    often = measured(capsys, *[name for name in files for _ in range(4)])["means"]["observables"]["plaquette"]
    assert often["mean"] == pytest.approx(once["mean"], abs=1e-14)
    assert often["tau_int"] == pytest.approx(4 * once["tau_int"], rel=0.35)
    assert often["error"] == pytest.approx(once["error"], rel=0.2)


def test_the_document_of_a_measurement_is_stored_on_request(file, tmp_path, capsys):
    out = run(file, tmp_path / "run")
    stored = tmp_path / "means.json"
    found = measured(capsys, out, "--output", stored, "--flow", "--flow-time", "0.04", ranks=2)
    assert json.loads(stored.read_text()) == found
    assert len(found["configurations"][0]["flow"]) > 1
    assert jali_here("measure", out, "--output", tmp_path / "nowhere" / "means.json") == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_listed_file_that_is_missing_is_said_beside_the_manifest_in_lines_of_jali(
    ranks, file, tmp_path, capsys
):
    out = run(file, tmp_path / "run")
    folder = out / "configurations"

    def complaints() -> list[str]:
        capsys.readouterr()
        assert jali_here("measure", out, tmp_path / "nothing", ranks=ranks) == 2
        return capsys.readouterr().err.splitlines()

    here = f"jali: cannot read {tmp_path / 'nothing'}: No such file or directory"
    assert complaints() == [here]
    (folder / "00000008.ildg").unlink()
    assert complaints() == [
        f"jali: cannot read {folder / '00000008.ildg'}: No such file or directory; {folder / 'manifest.csv'} lists it",
        here,
    ]


def test_a_bad_configuration_is_named_and_left_out_of_the_means(file, tmp_path, capsys):
    out = run(file, tmp_path / "run", "thermalisation=0", "sweeps=12")
    folder = out / "configurations"
    shutil.copy(folder / "00000004.ildg", folder / "00000006.ildg")
    (folder / "00000008.ildg").unlink()
    assert jali_here("measure", out, "--json", ranks=2) == 2
    said = capsys.readouterr()
    found = json.loads(said.out[said.out.index("{") :])
    assert "another file has taken the name" in said.err
    assert "00000008.ildg" in said.err
    assert [one["number"] for one in found["configurations"] if one["in_means"]] == [2, 4, 10, 12]
    assert (found["means"]["configurations"], found["means"]["left_out"]) == (4, 1)
    assert found["means"]["spacing"] is None


def test_one_configuration_and_unlike_ones_have_no_means(file, tmp_path, capsys):
    one = run(file, tmp_path / "one", "save_every=12")
    other = run(file, tmp_path / "other", "save_every=12", "extents=2,2,4,6")
    assert measured(capsys, one)["means"] is None
    assert measured(capsys, one, other)["means"] is None
    assert measured(capsys, one, one / "checkpoint")["means"]["observables"]["plaquette"]["error"] == 0


def test_the_folder_of_a_run_that_saves_nothing_stands_for_its_checkpoint(file, tmp_path, capsys):
    out = run(file, tmp_path / "run", "save_every=0")
    (only,) = measured(capsys, out)["configurations"]
    assert (only["format"], only["number"]) == ("checkpoint", None)


def test_a_gauge_field_from_the_folder_of_a_run_is_its_newest_configuration_or_its_checkpoint(file, tmp_path):
    saving, resting = (
        run(file, tmp_path / "saving", "save_every=5"),
        run(file, tmp_path / "b", "save_every=0"),
    )

    def links(source: Path) -> np.ndarray:
        return GaugeField.from_file(source).local_links()

    newest = open_configuration(saving / "configurations" / "00000010.ildg").read()
    assert np.array_equal(links(saving), newest)
    assert np.array_equal(links(saving / "configurations"), newest)
    last = open_checkpoint(resting / "checkpoint").read("links")
    assert np.array_equal(links(resting), last)
    assert np.array_equal(links(resting / "checkpoint"), last)
    parts = jali.virtual_ranks(2, links, saving)
    split = next(axis for axis, (a, b) in enumerate(zip(parts[0].shape, newest.shape, strict=True)) if a != b)
    assert np.array_equal(np.concatenate(parts, split), newest)
    with pytest.raises(jali.LayoutError, match="holds a lattice"):
        GaugeField.from_file(resting, lattice=jali.Lattice(4, 4, 4, 4))
    with pytest.raises(jali.LayoutError, match="links, not"):
        GaugeField.from_file(resting, group=SU(3))
    shutil.copy(saving / "configurations" / "00000005.ildg", saving / "configurations" / "00000010.ildg")
    with pytest.raises(FileFormatError, match="another file has taken the name"):
        links(saving)
    with pytest.raises(FileFormatError, match="neither a run nor a checkpoint"):
        links(tmp_path)
