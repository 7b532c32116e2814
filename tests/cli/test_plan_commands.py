"""`jali plan`, `jali simulate` and `jali bench`: explanations, pictures, JSON, bad input."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from jali_command import jali_here

from jali.cli import progress

HALO = ("simulate", "halo", "--machine", "h200x8", "--lattice", "16,16,16,32")
PLAN = ("plan", "all-reduce", "--machine", "perlmutter", "--nodes", 2, "--size", "1MiB", "--hierarchy", "2,4")


def test_plan_is_explained_proved_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here(*PLAN, "--libraries", "nccl,ipc", "--depth", 2, "--check", "--output", tmp_path) == 0
    out = capsys.readouterr().out
    for words in (
        "all_reduce over 8 ranks, 1 MiB",
        "hierarchy 2 x 4",
        "on perlmutter (2 nodes of 4)",
        "checked: right",
    ):
        assert words in out
    assert (tmp_path / "all-reduce-perlmutter-8.png").stat().st_size > 5000


def test_plan_as_json_has_stages_time_and_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here(*PLAN, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ranks"], facts["size"], facts["hierarchy"]) == (8, 1 << 20, "2 x 4")
    assert facts["time"] > 0
    assert 0 < facts["fraction_of_bound"] < 1
    assert sum(stage["messages"] for stage in facts["stages"]) > 0
    assert facts["links"][0]["load"] >= facts["links"][-1]["load"]


def test_plan_without_parameters_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("plan", "broadcast", "--machine", "delta", "--nodes", 2, "--size", "64KiB") == 0
    assert "structures estimated" in capsys.readouterr().out


def test_simulation_scales_over_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "simulate",
        "all-gather",
        "--machine",
        "delta",
        "--nodes",
        6,
        "--size",
        "1MiB,4MiB",
        "--depth",
        2,
    )
    assert jali_here(*words, "--scaling", "--json") == 0
    cases = json.loads(capsys.readouterr().out)
    assert [(c["nodes"], c["size"]) for c in cases] == [(n, s << 20) for n in (2, 4, 6) for s in (1, 4)]
    assert all(c["time"] > 0 and c["ranks"] == 4 * c["nodes"] for c in cases)
    assert jali_here(*words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_updates_with_halos_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here(*HALO, "--grid", "1,1,2,2", "--kernel", "wilson", "--precision", "float32") == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "wilson_hop, float32, 16x16x16x32 sites on 4 ranks as 1x1x2x2\n  on h200x8 (1 node of 8)"
    )
    assert " wins: " in out
    assert "gpu-aware-mpi-wait         not here: machine 'h200x8' says nothing of it" in out
    assert jali_here(*HALO, "--policies", "nccl-wait,remote-write-wait", "--site-ns", "1.0", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ranks"] == facts["grid"][0] * facts["grid"][1] * facts["grid"][2] * facts["grid"][3] == 8
    assert {prediction["policy"] for prediction in facts["predictions"]} == {"nccl-wait", "remote-write-wait"}
    assert facts["compute"] == pytest.approx(facts["sites"] * 1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*PLAN[:-1], "3,3"), "ranks, but there are 8; the product must agree"),
        ((*PLAN, "--libraries", "foo,ipc"), "no library 'foo'"),
        (("plan", "all-sum", "--machine", "delta"), "no collective 'all_sum'"),
        (("plan", "x" * 5000, "--machine", "delta"), "x (5000 characters)'; there are broadcast"),
        ((*PLAN, "--dtype", ",,"), "elements of type ',,' cannot be sent; choose one of"),
        ((*PLAN, "--dtype", "1_0"), "elements of type '1_0' cannot be sent"),
        (
            (*PLAN, "--output", __file__),
            "test_plan_commands.py is no folder, and none can be made of this name",
        ),
        (("plan", "reduce", "--machine", "nowhere"), "no machine 'nowhere'"),
        (("plan", "reduce", "--machine", "delta", "--root", 99), "root 99 does not exist"),
        (("simulate", "reduce", "--machine", "delta", "--scaling", "--hierarchy", "4,4"), "leave it out"),
        (HALO[:4], "give the sites of the whole lattice"),
        ((*HALO, "--scaling"), "--scaling is for collectives"),
        (
            (*HALO, "--dtype", "float64"),
            "--dtype is for collectives; jali simulate halo takes --kernel, --lattice",
        ),
        ((*HALO, "--depth", "2"), "--depth is for collectives"),
        (
            ("simulate", "reduce", "--machine", "delta", "--site-ns", "2"),
            "--site-ns is for halo; jali simulate reduce",
        ),
        ((*HALO, "--kernel", "sort"), "no kernel 'sort' here; there are staple, plaquette, wilson, laplace"),
        ((*HALO, "--grid", "1,1,1"), "is for 4 directions"),
        ((*HALO, "--policies", "teleport"), "no halo policy teleport"),
        ((*HALO, "--site-ns", "0"), "a positive number of nanoseconds is needed"),
        ((*HALO, "--site-ns", "inf"), "a positive number of nanoseconds is needed"),
        (
            ("simulate", "halo", "--machine", "delta", "--lattice", "8,8,8,8"),
            "does not say what its ranks compute",
        ),
        (("simulate", "halo", "--machine", "h200x8", "--lattice", "8"), "needs 2 to 4 directions, not 1"),
        ((*HALO, "--kernel", ""), "no kernel '' here"),
        (("bench", "collectives"), "need MPI ranks"),
        (("bench", "collectives", "--sides", "jali"), "--sides is for collectives on devices"),
        (
            ("bench", "halo", "--smallest", "16"),
            "--smallest is for collectives; jali bench halo takes --kernel, --operator, --format, --local",
        ),
        (("bench", "halo", "--continue"), "--continue is for compare; jali bench halo"),
        (("bench", "fft", "--seconds", "inf"), "a positive number of --seconds"),
        (
            ("bench", "compare", ".", ".", "--rounds", "3"),
            "--rounds is for collectives, arrays, fft and halo; jali bench",
        ),
        (
            ("bench", "collectives", "--seconds", "1"),
            "--seconds is for fft, halo and compare; jali bench coll",
        ),
    ],
)
def test_bad_input_is_status_2_with_a_sentence(
    words: tuple, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jali_here(*words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("names", [",", "", "remote-write-wait,", "a, ,b"])
def test_empty_names_are_refused_by_the_parser(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((*HALO, "--policies"), (*PLAN, "--libraries"), ("bench", "collectives", "--only")):
        with pytest.raises(SystemExit) as stopped:
            jali_here(*words, names)
        assert stopped.value.code == 2
        assert f"{names!r} has an empty name; write them like a,b" in capsys.readouterr().err


def test_size_that_is_none_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        jali_here("plan", "reduce", "--machine", "delta", "--size", "12 parsecs")
    assert stopped.value.code == 2
    assert "is no size" in capsys.readouterr().err


def test_measured_machine_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "here.toml"
    assert jali_here("machine", "measure", "-o", file, ranks=2) == 0
    assert f"written to {file}" in capsys.readouterr().out
    assert jali_here("machine", "show", file, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["name"], facts["nodes"], facts["ranks_per_node"]) == ("here", 1, 2)
    assert (
        jali_here("simulate", "all-reduce", "--machine", file, "--size", "8B,8MiB", "--depth", 1, "--json")
        == 0
    )
    short, long = json.loads(capsys.readouterr().out)
    assert 0 < short["time"] < long["time"]
    words = ("simulate", "halo", "--machine", file, "--lattice", "8,8,8,16", "--grid", "1,1,1,2", "--json")
    assert jali_here(*words) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [
        prediction["policy"] for prediction in predictions if "time" in prediction and prediction["time"] > 0
    ] == [prediction["policy"] for prediction in predictions]
    assert len(predictions) == 4
    assert jali_here("machine", "measure") == 2
    assert "2 ranks or more" in capsys.readouterr().err


def test_shipped_machines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert jali_here("machine", "list", "--json") == 0
    assert {"delta", "perlmutter", "frontier", "aurora"} <= set(json.loads(capsys.readouterr().out))


class Stream(io.StringIO):
    """Text, of a terminal or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "seconds", "lines"), [(True, 0.5, 0), (True, 2, 1), (False, 2, 0), (False, 11, 1)]
)
def test_a_search_says_what_it_looks_at_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, seconds: float, lines: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = Stream(terminal)
    shown = progress.SearchProgress(stream)
    now[0] += seconds
    shown("plan 7")
    shown("plan 8")
    assert stream.getvalue().count("searching") == lines
    assert ("plan 7" in stream.getvalue()) == bool(lines)
    shown.done()
    assert not terminal or not lines or stream.getvalue().endswith("\r")


@pytest.mark.parametrize(
    "words",
    [
        (*PLAN, "--stripe", "9" * 5000),
        ("bench", "fft", "--rounds", "9" * 5000),
        ("tune", "collectives", "--factor", "nan"),
        ("run", "a.toml", "--check", "9" * 5000),
    ],
)
def test_a_number_of_too_many_digits_is_a_short_line_with_its_option(
    words: tuple, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        jali_here(*words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"argument {words[-2]}: " in said
    assert said.count("\n") == 1
    assert len(said) < 300


def test_a_pipe_of_rules_is_waited_for_by_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "rules")
    assert jali_here("explain", "all-reduce", "-n", 4, "--rules", tmp_path / "rules") == 2
    assert "is a pipe, not a file" in capsys.readouterr().err
