"""`jali tune collectives`: the file that it writes is read and used, an interrupted run goes on, what is there is not lost."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jali_command import jali_here, running, wait_for
from programs import TIMEOUT, need_mpi, run_jali

import jali
from jali import _core, comm
from jali.bench.collective_algorithms import AlgorithmBenchmark, specs_of
from jali.cli.interruption import Interruption

SMALL = ("--only", "all_reduce,broadcast", "--largest", "4KiB", "--rounds", "11", "--seconds", "0")
DEFAULT_FILE = Path("collective-rules-host-2-ranks.toml")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[object, str], float]], None]:
    """Every call is made, and what it is said to take is a function of its case and its algorithm."""
    timed = AlgorithmBenchmark._timed

    def use(seconds: Callable[[object, str], float]) -> None:
        def made_up(self, case, calls, *arguments, **more):  # type: ignore[no-untyped-def]
            rounds = timed(self, case, calls, *arguments, **more)
            return {spec: [seconds(case, spec)] * len(rounds[spec]) for spec in rounds}

        monkeypatch.setattr(AlgorithmBenchmark, "_timed", made_up)

    return use


def tune(*words: object, ranks: int = 2) -> int:
    return jali_here("tune", "collectives", *SMALL, *words, ranks=ranks)


def chosen(
    collective: str, bytes_: int, *, ranks: int = 2, in_place: bool = False, reproducible: bool = False
) -> str:
    count = bytes_ // 4
    call = _core.CollectiveCall(collective, "fp32", count, in_place=in_place, reproducible=reproducible)
    return str(_core.choose_on_host(call, [ranks]).name)


def ring_and_chain(case: object, spec: str) -> float:
    """A ring is the fastest all-reduce from 64 to 512 bytes, a chain the fastest broadcast of 4 KiB."""
    collective, payload = case.collective, case.payload  # type: ignore[attr-defined]
    fast = {"all_reduce": ("ring", 64 <= payload <= 512), "broadcast": ("chain", payload == 4096)}[collective]
    return 0.5 if fast[1] and spec in (fast[0], "rules") else 1.0


def test_rules_are_written_read_and_used(made_up, capsys, use_settings) -> None:
    made_up(ring_and_chain)
    assert tune("--picture", "times.png") == 0
    said = capsys.readouterr().out
    assert f"2 rules for 3 cells of 8 in {DEFAULT_FILE}" in said
    assert f"JALI_COLLECTIVE_RULES={DEFAULT_FILE}" in said
    assert len(re.findall(r"ratio 2.00 \(2.00 .. 2.00\), 12 rounds  stays", said)) == 3
    assert sorted(os.listdir()) == [str(DEFAULT_FILE), "times.png"]
    assert Path("times.png").read_bytes().startswith(b"\x89PNG")
    text = DEFAULT_FILE.read_text()
    assert re.search(r"^# jali: \d", text, re.MULTILINE)
    assert "# all_reduce 512 B: ring 500.00 ms, jali's choice 1000.00 ms, ratio 2.00" in text
    before = [chosen("all_reduce", n) for n in (32, 64, 1024)]
    use_settings(collective_rules=str(DEFAULT_FILE.resolve()))
    assert [chosen("all_reduce", n) for n in (60, 64, 300, 512, 516)] == [before[0], *["ring"] * 3, before[2]]
    assert chosen("all_reduce", 64, ranks=3) == "recursive_doubling"
    assert chosen("all_reduce", 64, in_place=True) == before[1]
    assert chosen("all_reduce", 64, reproducible=True) == before[1]
    assert [chosen("broadcast", n) for n in (512, 4096)] == ["direct", "chain"]

    def use() -> bool:
        x = np.arange(32, dtype=np.float32) + comm.current().rank
        return np.array_equal(comm.current().all_reduce(x), 2 * np.arange(32) + 1)

    assert jali.virtual_ranks(2, use) == [True, True]


def test_what_is_not_faster_again_is_left_out(made_up, capsys) -> None:
    def seconds(case, spec):  # type: ignore[no-untyped-def]
        again = spec == "rules" and case.payload == 64
        return 1.0 if again else ring_and_chain(case, spec)

    made_up(seconds)
    assert tune() == 0
    assert re.search(r"all_reduce 64 B: ring .* is left out", capsys.readouterr().out)
    text = DEFAULT_FILE.read_text()
    assert "bytes = 512\n" in text
    assert 'bytes = "4 KiB"\n' in text
    assert text.count("[[rule]]") == 2


def test_types_and_in_place_that_change_nothing_make_one_rule(made_up) -> None:
    made_up(lambda case, spec: 0.5 if spec in ("ring", "rules") else 1.0)
    words = (
        "--only",
        "all_reduce",
        "--in-place",
        "--dtypes",
        "float32,int64",
        "--smallest",
        "64",
        "--largest",
        "512",
    )
    assert tune(*words) == 0
    text = DEFAULT_FILE.read_text()
    assert text.count("[[rule]]") == 1
    assert 'bytes = "64..512"' in text
    assert "in_place" not in text
    assert "type =" not in text


def test_nothing_faster_is_a_file_without_rules(made_up, capsys) -> None:
    made_up(lambda case, spec: 1.0)
    assert tune("--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["rules"] == reported["verified"] == []
    assert len(reported["cells"]) == 8
    assert _core.check_rules(DEFAULT_FILE.read_text(), "x") == 0


@pytest.mark.parametrize(("ranks", "keep"), [(2, 1 << 20), (3, 0)])
def test_every_algorithm_is_measured_and_right(ranks: int, keep: int, monkeypatch, capsys) -> None:
    """With the times that there are, whether plans are kept or made anew."""
    monkeypatch.setattr("jali.bench.collective_algorithms.KEEP", keep)
    words = ("--only", "all_reduce,reduce,all_gather,reduce-scatter,all-to-all,gather,scatter", "--in-place")
    assert tune(*words, "--largest", "64", "--output", "a.toml", "--json", ranks=ranks) == 0
    reported = json.loads(capsys.readouterr().out)
    assert len(reported["cells"]) == 2 * (4 * 2 + 3)
    for cell in reported["cells"]:
        names = {*cell["times"], *cell["far"], *cell["impossible"]}
        assert names == {"default", *map(str, specs_of(cell["collective"], "host"))}
        assert list(cell["impossible"]) == ["mpi"]
        assert "default" in cell["times"]
    assert _core.check_rules(Path("a.toml").read_text(), "a.toml") == len(reported["rules"])


def stop_after(monkeypatch: pytest.MonkeyPatch, cells: int, number: signal.Signals = signal.SIGINT) -> None:
    """Some rank hears a signal after so many cells."""
    calls = [0]
    agreed = Interruption.agreed

    def noted(self, ranks):  # type: ignore[no-untyped-def]
        if ranks.rank == 1:
            calls[0] += 1
            if calls[0] == cells + 1:
                self.request(number)
        return agreed(self, ranks)

    monkeypatch.setattr(Interruption, "agreed", noted)


@pytest.mark.parametrize(
    ("cells", "kept"), [(3, 3), (9, 8)]
)  # while all are measured, and while some are measured again
def test_an_interrupted_run_goes_on(cells: int, kept: int, made_up, monkeypatch, capsys) -> None:
    made_up(ring_and_chain)
    with monkeypatch.context() as patch:
        stop_after(patch, cells)
        assert tune() == 130
    state = Path(f"{DEFAULT_FILE}.state")
    said = capsys.readouterr().err
    assert f"interrupted after {kept} of 8 cells, which are kept in {state}" in said
    assert "--continue goes on" in said
    assert os.listdir() == [str(state)]
    assert len(json.loads(state.read_text())["cells"]) == kept

    assert tune() == 2
    assert f"{state} is of an interrupted run; --continue goes on with it" in capsys.readouterr().err
    assert tune("--continue", "--rounds", "12") == 2
    assert "was measured under other conditions (rounds: 11 then, 12 now)" in capsys.readouterr().err

    measured = []
    measure = AlgorithmBenchmark.measure

    def counted(self, case, *arguments, **more):  # type: ignore[no-untyped-def]
        measured.append((case.rank, case.payload))
        return measure(self, case, *arguments, **more)

    monkeypatch.setattr(AlgorithmBenchmark, "measure", counted)
    assert tune("--continue") == 0
    assert len(measured) == 2 * (8 - kept)
    assert f"{kept} of 8 cells are known" in capsys.readouterr().out
    assert os.listdir() == [str(DEFAULT_FILE)]
    assert DEFAULT_FILE.read_text().count("[[rule]]") == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "x"}', "cells", "null", "bad cell", "[" * 100_000]
)
def test_a_damaged_state_is_distinguished_from_one(text: str, made_up, monkeypatch, capsys) -> None:
    state = Path(f"{DEFAULT_FILE}.state")
    if text in ("cells", "bad cell"):
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            assert tune() == 130
        reported = json.loads(state.read_text())
        if text == "cells":
            del reported["cells"]
        else:
            reported["cells"][1]["times"]["default"] = [-1.0]
        text = json.dumps(reported)
    state.write_text(text)
    assert tune("--continue") == 2
    assert f"{state} is not what an interrupted `jali tune collectives` leaves" in capsys.readouterr().err
    assert state.read_text() == text


def test_files_that_are_there_stay_unless_forced(made_up, capsys) -> None:
    made_up(lambda case, spec: 1.0)
    Path("mine.toml").write_text("mine")
    assert tune("--output", "mine.toml") == 2
    assert "mine.toml exists; --force writes over it" in capsys.readouterr().err
    assert Path("mine.toml").read_text() == "mine"
    assert tune("--continue") == 2
    assert "to go on with; begin without --continue" in capsys.readouterr().err
    assert tune("--output", "mine.toml", "--force") == 0
    assert Path("mine.toml").read_text() != "mine"
    assert tune("--output", "nowhere/mine.toml") != 0
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rounds", "10"), "give --rounds 11 or more"),
        (("--factor", "1"), "give --factor 2 or more"),
        (("--smallest", "8KiB"), "--largest not below --smallest"),
        (("--only", "gathers"), "no collective gathers; there are all_reduce"),
        (("--dtypes", "float16"), "sums of float16 are not exact enough"),
        (("--dtypes", "floats"), "there is no type 'floats'"),
        (("--why",), "--why is for show"),
        (("--seconds", "nan"), "give --seconds 0 or more, not nan"),
        (("--picture", "times.txt"), "--picture times.txt: pictures end in .png"),
        (("--output", "..", "--force"), ".. is a folder; --output names a file"),
    ],
)
def test_mistakes_are_said_on_all_ranks(words, said, capsys) -> None:
    assert tune(*words) == 2
    assert said in capsys.readouterr().err
    assert os.listdir() == []


def test_one_rank_has_nothing_to_measure(capsys) -> None:
    assert tune(ranks=1) == 2
    assert "say how many, like -n 2" in capsys.readouterr().err
    assert jali_here("tune", "collectives", "ring", ranks=2) == 2
    assert "jali tune collectives takes no 'ring'; --only names collectives" in capsys.readouterr().err
    assert jali_here("tune", "show", "--force") == 2
    assert (
        "--force is for collectives, import-mpich and solvers; jali tune show takes --why"
        in capsys.readouterr().err
    )


def test_a_way_that_is_forced_leaves_nothing_to_choose(use_settings, capsys) -> None:
    use_settings(collective="ring")
    assert tune() == 2
    assert "JALI_COLLECTIVE=ring overrules whatever rules say" in capsys.readouterr().err


def test_rules_of_the_user_are_not_what_algorithms_are_compared_with(made_up, use_settings, capsys) -> None:
    Path("mine.toml").write_text("version = 1\n[[rule]]\nmemory = 'host'\nalgorithms = ['ring', 'chain']\n")
    use_settings(collective_rules=str(Path("mine.toml").resolve()))
    made_up(ring_and_chain)
    assert tune() == 0
    assert "those of JALI_COLLECTIVE_RULES are left out" in capsys.readouterr().out
    assert DEFAULT_FILE.read_text().count("[[rule]]") == 2
    assert jali.settings.current().collective_rules == str(Path("mine.toml").resolve())


@pytest.mark.full
@pytest.mark.mpi
def test_processes_are_interrupted_and_go_on() -> None:
    need_mpi()
    words = ("tune", "collectives", "-n", "2", *SMALL, "--seconds", "0.5", "--output", "mine.toml")
    state = Path("mine.toml.state")

    def cells() -> int:
        return len(json.loads(state.read_text())["cells"]) if state.exists() else 0

    with running(*words) as process:
        wait_for(lambda: cells() >= 2, process)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, said
    kept = json.loads(state.read_text())["cells"]
    assert f"interrupted after {len(kept)} of 8 cells, which are kept in {state}" in said
    reported = json.loads(run_jali(*words, "--continue", "--json").stdout)
    assert reported["cells"][: len(kept)] == kept
    assert len(reported["cells"]) == 8
    assert not state.exists()
    assert _core.check_rules(Path("mine.toml").read_text(), "mine.toml") == len(reported["rules"])
