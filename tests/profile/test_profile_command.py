"""`jali profile`: sweeps of a simulation as a table and a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import run_jali

import jali
from jali.cli.main import main

PARAMETERS = """
[lattice]
extents = [4, 4, 4, 8]

[gauge]
group = "SU(2)"
beta = 2.3

[update]
sweeps = 4
overrelaxation = 1
"""


@pytest.fixture
def parameters(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(PARAMETERS)
    return path


def check_files(directory: Path, ranks: int) -> None:
    trace = json.loads((directory / "trace.json").read_text())["traceEvents"]
    assert {e["pid"] for e in trace} == set(range(ranks))
    assert {f"sweep {k}" for k in (2, 3)} <= {e["name"] for e in trace}
    table = json.loads((directory / "profile.json").read_text())
    kernels = {entry["name"]: entry for entry in table["entries"] if entry["kind"] == "kernel"}
    assert {"heat_bath_kennedy_pendleton", "overrelax"} <= set(kernels)
    for entry in kernels.values():
        assert entry["of_memory"] > 0
        assert entry["GB/s"] > 0
    assert len(table["roofs"]) == len(table["seconds"]) == ranks
    for roofs in table["roofs"]:
        assert min(roofs["memory"], roofs["cache"], *roofs["arithmetic"].values()) > 0
    assert (directory / "profile.csv").read_text().startswith("kind,name,")


def test_a_profile_has_a_table_and_a_trace(parameters, tmp_path, capsys):
    assert main(["profile", str(parameters), "--sweeps", "2", "--output", str(tmp_path / "out")]) == 0
    check_files(tmp_path / "out", 1)
    text = capsys.readouterr().out
    assert "roofs of a rank: host" in text
    assert "bound by" in text
    assert "trace.json opens in ui.perfetto.dev" in text


def test_virtual_ranks_are_profiled_together(parameters, tmp_path, capsys):
    command = ["profile", str(parameters), "--sweeps", "2", "--output", str(tmp_path / "out")]
    assert jali.virtual_ranks(2, main, command) == [0, 0]
    check_files(tmp_path / "out", 2)
    assert "of which computing hid" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.full
def test_processes_are_profiled_together(parameters, tmp_path):
    words = ["profile", parameters, "--sweeps", "2", "-n", "2", "--json", "--output", tmp_path / "out"]
    done = run_jali(*words)
    check_files(tmp_path / "out", 2)
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "out" / "profile.json").read_text())
    assert [one["exchanges"] > 0 for one in printed["halos"]] == [True, True]


@pytest.mark.parametrize("words", [["--sweeps", "0"], ["--warm-up", "-1"]])
def test_numbers_of_sweeps_that_make_no_sense_are_refused(words, parameters, capsys):
    assert main(["profile", str(parameters), *words]) == 2
    assert "--sweeps 1 or more and --warm-up 0 or more" in capsys.readouterr().err


def test_a_missing_file_is_bad_input(tmp_path, capsys):
    assert main(["profile", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
