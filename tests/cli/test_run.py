"""`jali run`: its files, their sameness on any ranks and after resuming, and what it refuses."""

from __future__ import annotations

import csv
import json
import math
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from jali_command import jali_here
from programs import run_jali

import jali
from jali.cli.parameters import load_parameters
from jali.cli.report_data import HISTORY_COLUMNS
from jali.gauge import SU, GaugeField, dbw2_action, iwasaki_action, plaquette, sweep, symanzik_action
from jali.lattice import Random
from jali.lattice.random import CHAIN

THEORIES = {
    "u1": 'extents = [4, 6]\n[gauge]\ngroup = "U(1)"\nbeta = 1.5\n',
    "su2": 'extents = [4, 4, 4, 4]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\n',
    "su2 odd": 'extents = [3, 4, 5]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\n',
    "su3": 'extents = [4, 4, 4, 4]\n[gauge]\ngroup = "SU(3)"\nbeta = 5.7\n',
}
SHORT = (
    "[update]\nthermalisation = 2\nsweeps = 10\noverrelaxation = 1\n"
    "[run]\ncheckpoint_every = 3\nreunitarise_every = 4\n"
)


@pytest.fixture(autouse=True)
def _no_time_for_drawing(request, monkeypatch):
    """The report takes longer to draw than these runs take, and test_report.py is about it."""
    if "report" not in request.node.name:
        monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")


@pytest.fixture
def parameter_file(tmp_path: Path):
    """Writes a short run of a theory to a parameter file."""

    def write(theory: str = "su2", text: str = SHORT) -> Path:
        path = tmp_path / f"{theory.replace(' ', '-')}.toml"
        path.write_text("[lattice]\n" + THEORIES[theory] + text)
        return path

    return write


def history(directory: Path) -> bytes:
    return (directory / "history.csv").read_bytes()


def table(directory: Path, name: str = "history") -> list[dict[str, str]]:
    return list(csv.DictReader((directory / f"{name}.csv").read_text().splitlines()))


# ---- files ---------------------------------------------------------------------------------------------


def test_run_directory_holds_parameters_tables_checkpoint_and_report(parameter_file, tmp_path, capsys):
    file, out = parameter_file("su2"), tmp_path / "run"
    assert jali_here("run", file, "--output", out, "--set", "seed=7") == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "checkpoint", "history.csv", "parameters.toml", "report.html", "timing.csv",
    ]  # fmt: skip
    assert load_parameters(out / "parameters.toml") == load_parameters(file, ["seed=7"])
    rows = table(out)
    assert tuple(rows[0]) == HISTORY_COLUMNS
    assert [int(row["sweep"]) for row in rows] == list(range(1, 13))
    for row in rows:
        mean, spatial, temporal = (float(row[f"plaquette{kind}"]) for kind in ("", "_spatial", "_temporal"))
        assert mean == pytest.approx((spatial + temporal) / 2, abs=1e-14)
        assert all(repr(float(row[name])) == row[name] for name in HISTORY_COLUMNS[1:])
    assert [int(row["sweep"]) for row in table(out, "timing")] == list(range(1, 13))
    said = capsys.readouterr().out
    assert "plaquette" in said
    assert f"report: {out / 'report.html'}" in said


def test_two_dimensional_run_leaves_spatial_plaquette_empty(parameter_file, tmp_path):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out, "--set", "polyakov=false") == 0
    assert {row["plaquette_spatial"] for row in table(out)} == {""}
    assert {row["polyakov_re"] for row in table(out)} == {""}
    assert all(row["plaquette"] == row["plaquette_temporal"] for row in table(out))


def test_json_is_one_document_with_the_estimate(parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    values = [float(row["plaquette"]) for row in table(out)][2:]
    assert document["status"] == "done"
    assert (document["sweeps_done"], document["measurements"]) == (12, 10)
    assert document["observables"]["plaquette"]["mean"] == pytest.approx(sum(values) / 10, abs=1e-15)
    assert document["reference"]["source"].startswith("exact")


@pytest.mark.parametrize(
    "action", ["symanzik", *(pytest.param(name, marks=pytest.mark.full) for name in ("iwasaki", "dbw2"))]
)
def test_a_run_of_an_improved_action_is_that_of_its_functions(action, parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    words = ("--json", "--set", f"action={action}", "--set", "beta=1.1", "--set", "start=cold")
    assert jali_here("run", parameter_file("su2"), "--output", out, *words, ranks=2) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["action"], document["beta"], document["reference"]) == (action, 1.1, None)
    named = {"symanzik": symanzik_action, "iwasaki": iwasaki_action, "dbw2": dbw2_action}
    U, rng = GaugeField(jali.Lattice(4, 4, 4, 4), SU(2)).cold_start(), Random.reserved(CHAIN, 1, 0)
    for row in table(out)[:3]:
        sweep(U, named[action](1.1), rng, 1, 1)
        assert float(row["plaquette"]) == plaquette(U)


def test_a_lattice_on_which_rectangles_do_not_fit_is_refused_at_once(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(
        '[lattice]\nextents = [4, 4, 2, 4]\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\naction = "iwasaki"\n'
    )
    assert jali_here("run", file, "--output", tmp_path / "run") == 2
    assert (
        "the lattice (4, 4, 2, 4) a term of the action has one link twice, (0, 0, 2, 0) apart"
        in capsys.readouterr().err
    )


def test_run_of_u1_agrees_with_the_exact_plaquette(parameter_file, tmp_path, capsys):
    for algorithm in ("heatbath", "metropolis"):
        changes = [f"algorithm={algorithm}", "sweeps=500", "thermalisation=20", "metropolis_step=1.2"]
        changes += ["checkpoint_every=250"]  # a checkpoint takes as long as dozens of sweeps
        words = [word for change in changes for word in ("--set", change)]
        out = tmp_path / algorithm
        assert jali_here("run", parameter_file("u1"), "--output", out, "--json", *words) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["observables"]["plaquette"]["error"] < 0.01
        assert abs(document["reference"]["deviation_sigma"]) < 4


# ---- the same bits -------------------------------------------------------------------------------------


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("theory", "precision"), [*((theory, "float64") for theory in THEORIES), ("su3", "float32")]
)
def test_history_is_the_same_to_the_byte_on_1_2_and_3_ranks(theory, precision, parameter_file, tmp_path):
    file = parameter_file(theory)
    found = set()
    for ranks in (1, 2, 3):
        out = tmp_path / str(ranks)
        assert jali_here("run", file, "--output", out, "--set", f"precision={precision}", ranks=ranks) == 0
        found.add(history(out))
    assert len(found) == 1


def test_another_seed_and_another_stream_give_other_histories(parameter_file, tmp_path):
    file, found = parameter_file("u1"), set()
    for change in ("seed=1", "seed=2", "stream=1"):
        assert jali_here("run", file, "--output", tmp_path / change, "--set", change) == 0
        found.add(history(tmp_path / change))
    assert len(found) == 3


def test_metropolis_and_flow_are_the_same_on_2_ranks(parameter_file, tmp_path):
    file = parameter_file("su2")
    changes = ["algorithm=metropolis", "flow=true", "flow_every=5", "flow_time=0.1", "start=cold"]
    words = [word for change in changes for word in ("--set", change)]
    for ranks in (1, 2):
        assert jali_here("run", file, "--output", tmp_path / str(ranks), *words, ranks=ranks) == 0
    for name in ("history.csv", "flow.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    flow = table(tmp_path / "1", "flow")
    assert sorted({int(row["sweep"]) for row in flow}) == [5, 10]
    assert [float(row["flow_time"]) for row in flow[:6]] == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, 0.1])
    energies = [float(row["energy"]) for row in flow[:6]]
    assert energies == sorted(energies, reverse=True)


def test_measuring_and_saving_do_not_change_the_chain(parameter_file, tmp_path):
    file = parameter_file("su2")
    assert jali_here("run", file, "--output", tmp_path / "often") == 0
    changes = ["measure_every=4", "checkpoint_every=0", "flow=true", "flow_every=3", "flow_time=0.05"]
    words = [word for change in changes for word in ("--set", change)]
    assert jali_here("run", file, "--output", tmp_path / "seldom", *words) == 0
    assert table(tmp_path / "seldom") == table(tmp_path / "often")[3::4]


@pytest.mark.full  # tests/identity has a run on processes
@pytest.mark.mpi
def test_history_is_the_same_on_2_mpi_ranks(parameter_file, tmp_path):
    file = parameter_file("su3")
    assert jali_here("run", file, "--output", tmp_path / "here") == 0
    done = run_jali("run", file, "--output", tmp_path / "mpi", "-n", 2, "--json")
    assert json.loads(done.stdout)["status"] == "done"
    assert history(tmp_path / "mpi") == history(tmp_path / "here")


# ---- resuming ------------------------------------------------------------------------------------------


@pytest.mark.short(1)
@pytest.mark.parametrize("theory", ["u1", "su2 odd", "su3"])
def test_prolonged_run_on_other_ranks_has_the_history_of_one_long_run(theory, parameter_file, tmp_path):
    file = parameter_file(theory)
    long, parts = tmp_path / "long", tmp_path / "parts"
    assert jali_here("run", file, "--output", long) == 0
    assert jali_here("run", file, "--output", parts, "--set", "sweeps=3", ranks=2) == 0
    assert jali_here("run", "--resume", parts, "--set", "sweeps=6", ranks=3) == 0
    assert jali_here("run", "--resume", parts, "--set", "sweeps=10") == 0
    assert history(parts) == history(long)
    assert load_parameters(parts / "parameters.toml").update.sweeps == 10


def test_rows_after_the_checkpoint_are_made_again(parameter_file, tmp_path):
    file = parameter_file("u1")
    out, copy = tmp_path / "run", tmp_path / "earlier"
    assert jali_here("run", file, "--output", out, "--set", "sweeps=5") == 0
    shutil.copytree(out, copy)
    assert jali_here("run", "--resume", out, "--set", "sweeps=10") == 0
    # What a kill leaves: the old checkpoint and a history that is ahead of it and ends in the middle of a row.
    shutil.rmtree(out / "checkpoint")
    shutil.copytree(copy / "checkpoint", out / "checkpoint")
    whole = history(out)
    (out / "history.csv").write_bytes(whole[:-20])
    assert jali_here("run", "--resume", out, "--set", "sweeps=7") == 0
    assert history(out).splitlines() == whole.splitlines()[:10], "1 header, 2 + 7 sweeps"
    assert jali_here("run", "--resume", out, "--set", "sweeps=10") == 0
    assert history(out) == whole


def test_resuming_a_finished_run_changes_nothing_and_says_how_to_prolong(parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out) == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != "report.html"}
    capsys.readouterr()
    assert jali_here("run", "--resume", out) == 0
    assert "update.sweeps=N" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != "report.html"} == before


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("beta=2.5", "gauge.beta was 1.5 and is 2.5 now"),
        ("extents=6,4", "lattice.extents was [4, 6]"),
        ("seed=3", "run.seed was 1"),
        ("measure_every=2", "run.measure_every"),
        ("sweeps=2", "12 are done; give 10 or more"),
        ("swoops=2", "sweeps"),
    ],
)
def test_resuming_with_other_physics_or_fewer_sweeps_is_refused(
    change, complaint, parameter_file, tmp_path, capsys
):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out) == 0
    before = history(out)
    assert jali_here("run", "--resume", out, "--set", change, ranks=2) == 2
    assert complaint in capsys.readouterr().err
    assert history(out) == before


def test_resuming_with_an_edited_parameter_file_is_refused(parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out) == 0
    file = out / "parameters.toml"
    file.write_text(file.read_text().replace("beta = 1.5", "beta = 1.6"))
    assert jali_here("run", "--resume", out) == 2
    assert "gauge.beta was 1.5 and is 1.6 now" in capsys.readouterr().err


def test_resuming_an_edited_or_shortened_history_is_refused(parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out) == 0
    whole = history(out)
    for damaged, complaint in (
        (whole.replace(b"0.", b"1.", 1), "other contents"),
        (whole[:-30], "ends after"),
    ):
        (out / "history.csv").write_bytes(damaged)
        assert jali_here("run", "--resume", out, "--set", "sweeps=12") == 2
        assert complaint in capsys.readouterr().err
        assert history(out) == damaged


def test_resuming_a_damaged_checkpoint_is_refused(parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out) == 0
    (data,) = out.glob("checkpoint/data-*/links.bin")
    links = bytearray(data.read_bytes())
    links[100] ^= 1
    data.write_bytes(links)
    assert jali_here("run", "--resume", out, "--set", "sweeps=12", ranks=2) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["beta=4.0"], ""),
        (["algorithm=metropolis", "beta=0.1"], ""),
        (["group=U1", "beta=0.1"], ""),
        (["beta=0.1"], "drew other numbers"),
        (["beta=4.0", "precision=float32"], "drew other numbers"),
        (["beta=4.0", "stream=3"], "stream 3 is of an earlier version"),
    ],
    ids=str,
)
def test_the_chain_of_an_earlier_version_goes_on_exactly_or_not_at_all(words, refused, tmp_path):
    """Its state had no purpose. What it would have drawn next is what a caller's Random draws."""
    import jali
    from jali.cli.markov_chain import MarkovChain
    from jali.cli.parameters import parse_parameters

    parameters = parse_parameters("", overrides=["extents=4,4", "group=SU2", *words])
    ranks = jali.comm.current()
    before = MarkovChain.start(parameters, ranks)
    before.rng = jali.Random(parameters.run.seed, parameters.run.stream)
    before.rng.call = 7
    state = {name: value for name, value in before.rng.state.items() if name != "purpose"}
    box = jali.io.Box((0, 0), (4, 4))
    links = {"links": before.U.local_links()}
    jali.io.write_checkpoint(tmp_path / "c", (4, 4), box, links, rng=state, state={"sweep": 3})
    checkpoint = jali.io.open_checkpoint(tmp_path / "c")
    if refused:
        with pytest.raises(jali.errors.JaliError, match=refused):
            MarkovChain.restore(parameters, ranks, checkpoint)
        return
    after = MarkovChain.restore(parameters, ranks, checkpoint)
    before.advance()
    after.advance()
    assert np.array_equal(before.U.local_links(), after.U.local_links())


def test_a_run_and_a_script_with_the_same_seed_share_no_numbers(tmp_path):
    import jali
    from jali.cli.markov_chain import MarkovChain
    from jali.cli.parameters import parse_parameters
    from jali.gauge import SU, GaugeField

    parameters = parse_parameters("", overrides=["extents=8,8,8,8", "group=SU2", "beta=2.0", "run.seed=1"])
    links = [MarkovChain.start(parameters, jali.comm.current()).U.local_links().ravel()]
    lattice = jali.Lattice(8, 8, 8, 8)
    for source in (1, jali.Random(1)):
        links.append(GaugeField(lattice, SU(2)).hot_start(source).local_links().ravel())
    correlation = np.corrcoef(np.array([x.real for x in links]))
    assert np.abs(correlation - np.eye(3)).max() < 5 / math.sqrt(8**4 * 4)


def test_resuming_with_a_grid_for_other_ranks_says_how_to_drop_it(parameter_file, tmp_path, capsys):
    out = tmp_path / "run"
    assert jali_here("run", parameter_file("u1"), "--output", out, "--set", "grid=2,1", ranks=2) == 0
    assert jali_here("run", "--resume", out, "--set", "sweeps=12") == 2
    assert "--set lattice.grid=[]" in capsys.readouterr().err
    assert jali_here("run", "--resume", out, "--set", "sweeps=12", "--set", "lattice.grid=[]") == 0
    assert len(table(out)) == 14


# ---- what is refused -----------------------------------------------------------------------------------


def test_unknown_key_is_bad_input_and_names_the_nearest_one(parameter_file, tmp_path, capsys):
    file = parameter_file("u1", SHORT.replace("sweeps", "sweaps"))
    assert jali_here("run", file, "--output", tmp_path / "run", ranks=2) == 2
    said = capsys.readouterr().err
    assert 'did you mean "sweeps"' in said
    assert said.count("sweaps") == 1, "one rank should speak for all"
    assert not (tmp_path / "run").exists()


def test_directory_of_a_run_is_not_overwritten(parameter_file, tmp_path, capsys):
    file, out = parameter_file("u1"), tmp_path / "run"
    assert jali_here("run", file, "--output", out) == 0
    before = history(out)
    assert jali_here("run", file, "--output", out, "--set", "seed=2") == 2
    said = capsys.readouterr().err
    assert "--resume" in said
    assert "another --output" in said
    assert history(out) == before


def test_directory_with_other_files_is_used_and_they_stay(parameter_file, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert jali_here("run", parameter_file("u1"), "--output", out) == 0
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("inside", [False, True])
def test_file_in_the_way_of_the_directory_is_bad_input(inside, parameter_file, tmp_path, capsys):
    (tmp_path / "occupied").write_text("mine")
    out = tmp_path / "occupied" / "run" if inside else tmp_path / "occupied"
    assert jali_here("run", parameter_file("u1"), "--output", out, ranks=2) == 2
    assert str(out) in capsys.readouterr().err
    assert (tmp_path / "occupied").read_text() == "mine"


def test_start_from_a_missing_file_leaves_nothing_behind(parameter_file, tmp_path, capsys):
    words = ["--set", "start=file", "--set", "start_file=nowhere.ildg"]
    assert jali_here("run", parameter_file("su2"), "--output", tmp_path / "run", *words, ranks=2) == 2
    assert "nowhere.ildg" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_lattice_without_room_for_updates_or_ranks_is_bad_input(parameter_file, tmp_path, capsys):
    file, out = parameter_file("u1"), tmp_path / "run"
    assert jali_here("run", file, "--output", out, "--set", "extents=1,8") == 2
    assert jali_here("run", file, "--output", out, "--set", "extents=2,2", ranks=5) == 2
    assert jali_here("run", file, "--output", out, "--set", "grid=1,3", ranks=2) == 2
    assert "grid" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["u1.toml"],
        ["--resume", "run", "--output", "other"],
        ["u1.toml", "--resume", "run"],
        ["--resume", "nowhere"],
        ["nowhere.toml", "--output", "run"],
        ["u1.toml", "--check", "0"],
    ],
)
def test_arguments_that_make_no_sense_are_bad_input(words, parameter_file, tmp_path, monkeypatch, capsys):
    parameter_file("u1")
    monkeypatch.chdir(tmp_path)
    assert jali_here("run", *words) == 2
    assert capsys.readouterr().err.startswith("jali: ")


def test_full_disk_is_a_clear_failure_and_resuming_later_loses_nothing(parameter_file, tmp_path):
    file = parameter_file("u1")
    words = ["--set", "sweeps=120", "--set", "checkpoint_every=20"]
    assert jali_here("run", file, "--output", tmp_path / "whole", *words) == 0

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))

    done = run_jali("run", file, "--output", tmp_path / "run", *words, status=1, preexec_fn=small_files)
    assert "cannot write" in done.stderr
    assert "history.csv: File too large" in done.stderr
    assert history(tmp_path / "run").endswith(b"\n"), "no part of a row should be left"
    assert 40 <= len(table(tmp_path / "run")) < 122
    assert jali_here("run", "--resume", tmp_path / "run") == 0
    assert history(tmp_path / "run") == history(tmp_path / "whole")


def test_run_that_cannot_write_its_first_checkpoint_leaves_nothing_in_the_way(parameter_file, tmp_path):
    file, out = parameter_file("su2"), tmp_path / "run"

    def tiny_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    done = run_jali("run", file, "--output", out, status=1, preexec_fn=tiny_files)
    assert "cannot write checkpoint" in done.stderr
    assert not out.exists()
    assert jali_here("run", file, "--output", out) == 0


# ---- checking ------------------------------------------------------------------------------------------


def test_check_says_layout_and_memory_and_runs_nothing(parameter_file, tmp_path, capsys):
    file = parameter_file("su3")
    assert jali_here("run", file, "--check", 6, "--set", "extents=8,8,8,16", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert math.prod(found["grid"]) == 6
    largest = found["local_extents"]["largest"]
    assert math.prod(largest) * 4 * 18 * 8 == found["bytes_per_rank"]["links"]
    assert found["bytes_per_rank"]["halo"] > 0
    assert found["bytes_per_rank"]["total"] == sum(found["bytes_per_rank"].values()) / 2
    assert jali_here("run", file, "--check", 6) == 0
    assert "per rank" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["su3.toml"]


def test_check_of_the_layout_counts_what_the_fields_of_a_run_hold(parameter_file, tmp_path, capsys):
    import jali
    from jali.gauge import SU, GaugeField, heat_bath_sweep

    assert jali_here("run", parameter_file("su3"), "--check", 2, "--json", "--set", "extents=4,4,4,8") == 0
    memory = json.loads(capsys.readouterr().out)["bytes_per_rank"]

    def held() -> int:
        U = GaugeField(jali.Lattice(4, 4, 4, 8), SU(3)).cold_start()
        heat_bath_sweep(U, 5.7, jali.Random(1))
        return sum(field.storage.nbytes for field in U.fields)

    assert jali.virtual_ranks(2, held) == [memory["links"] + memory["halo"]] * 2


def test_check_refuses_ranks_without_a_site_or_another_grid(parameter_file, capsys):
    assert jali_here("run", parameter_file("u1"), "--check", 29) == 2
    assert jali_here("run", parameter_file("u1"), "--check", 4, "--set", "grid=2,1") == 2
    assert "grid of 2 ranks, not of 4" in capsys.readouterr().err
