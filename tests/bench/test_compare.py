"""`jali bench compare`: sides, pairs of processes that take turns, a file that can be continued, and what is refused."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import TIMEOUT, alive, git, run_jali, wait_until

from jali import settings
from jali.bench.compare import checkouts, pairs, report
from jali.bench.compare.cases import CASES, chosen, first_of
from jali.bench.compare.checkouts import OutOfTimeError
from jali.bench.compare.record import Record
from jali.errors import CompileError, FileFormatError, ParameterError

FAKE = Path(__file__).with_name("fake_cases.py")
ABOUT = {"A": {"label": "a", "digest": "1"}, "B": {"label": "b", "digest": "2"}, "machine": "m", "starts": 2}
SETTINGS = pairs.Settings(starts=2, turns=3, seconds=0.001)


def later(seconds: float = 300.0) -> float:
    return time.monotonic() + seconds


def package(folder: Path, **values: float) -> Path:
    """A package that is called jali and has these numbers."""
    (folder / "jali").mkdir(parents=True)
    (folder / "jali" / "__init__.py").write_text("".join(f"{k} = {v!r}\n" for k, v in values.items()))
    return folder


@pytest.fixture
def packages(tmp_path):
    return [
        package(tmp_path / "a", SLEEP=0.002, CLOCK=0.010),
        package(tmp_path / "b", SLEEP=0.004, CLOCK=0.011, ONLY_NEW=0.1),
    ]


def measured(tmp_path, packages, *names, settings=SETTINGS, until=None, about=ABOUT):
    record = Record.begin(tmp_path / "found.jsonl", about)
    pairs.measure(record, packages, names, settings, until or later(), cases=FAKE)
    return record


# ---- what is found ----------------------------------------------------------------------------------------------


def test_a_seeded_slowdown_is_lost_and_measured_again_before_that_is_said(tmp_path, packages):
    record = measured(tmp_path, packages, "clock", "sleep")
    clock, sleep = report.results(record, ["clock", "sleep"])
    assert (clock["A"], clock["B"], clock["unit"]) == (pytest.approx(10), pytest.approx(11), "ms")
    assert clock["ratio"] == pytest.approx(1.1)
    assert (clock["verdict"], clock["starts"], clock["turns"]) == ("lost", 6, 18)
    assert sleep["ratio"] > 1
    assert report.failing([clock]) == ["clock"]


def test_equal_sides_lose_nothing_and_need_no_second_look(tmp_path, packages):
    record = measured(tmp_path, [packages[0], packages[0]], "clock")
    (case,) = report.results(record, ["clock"])
    assert (case["verdict"], case["ratio"], case["low"], case["high"], case["starts"]) == (
        "same",
        1.0,
        1.0,
        1.0,
        2,
    )
    assert report.failing([case]) == []


def test_a_case_that_one_side_does_not_have_is_said_and_fails_nothing(tmp_path, packages):
    record = measured(tmp_path, packages, "new", "clock")
    new, clock = report.results(record, ["new", "clock"])
    assert new["verdict"] == "missing"
    assert "A: AttributeError" in new["why"]
    assert clock["starts"] == 6
    assert report.failing([new]) == []


def test_a_side_that_breaks_is_named_with_its_last_words(tmp_path, packages):
    record = measured(tmp_path, packages, "wrong", "dies")
    wrong, dies = report.results(record, ["wrong", "dies"])
    assert (wrong["verdict"], wrong["why"]) == ("failed", "A: ValueError: a field of the wrong size")
    assert (dies["verdict"], dies["why"]) == ("failed", "A: its process ended (7)")
    assert report.failing([wrong, dies]) == ["wrong", "dies"]


def test_a_case_that_stalls_is_named_and_the_others_go_on(tmp_path, packages, monkeypatch):
    monkeypatch.setattr(pairs, "SILENCE", 1.0)
    record = measured(tmp_path, [packages[0], packages[0]], "hangs", "clock")
    hangs, clock = report.results(record, ["hangs", "clock"])
    assert (hangs["verdict"], hangs["why"]) == ("stalled", "A: no answer for 1 s")
    assert clock["verdict"] == "same"
    assert report.failing([hangs, clock]) == ["hangs"]


@pytest.mark.full
def test_a_row_that_hangs_ends_with_the_part(tmp_path, packages):
    with pytest.raises(OutOfTimeError):
        measured(tmp_path, packages, "hangs", until=later(2.0))


MEASURE = """
import sys, time
from pathlib import Path
from jali.bench.compare import pairs
a, b, cases = map(Path, sys.argv[1:])
with pairs.pair([a, b], cases, 1, time.monotonic() + 300) as (side, _):
    side.ask(case="starts another", precision="float64", device="cpu")
"""


def ends_what_it_started(number, started, command, **options):
    """A signal to this program ends the processes whose numbers stand in the file `started`."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **options) as process:
        wait_until(lambda: started.exists() or process.poll() is not None)
        processes = [int(word) for word in started.read_text().split()]
        assert all(map(alive, processes))
        process.send_signal(number)
        process.wait(TIMEOUT)
    wait_until(lambda: not any(map(alive, processes)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_of_rows_end_with_the_comparison(number, tmp_path, packages):
    started = tmp_path / "started"
    env = {**settings.environment(), "FAKE_CASES_STARTED": str(started)}
    ends_what_it_started(number, started, [sys.executable, "-c", MEASURE, *packages, FAKE], env=env)


def test_each_process_imports_its_own_side(tmp_path, packages):
    with pairs.pair(packages, FAKE, 1, later()) as (a, b):
        for side, seconds in ((a, 0.010), (b, 0.011)):
            (answer,) = side.ask(case="clock", precision="float64", device="cpu")
            assert answer["once"] == pytest.approx(seconds)


# ---- parts ------------------------------------------------------------------------------------------------------


def test_what_was_interrupted_is_continued_and_nothing_is_measured_twice(tmp_path, packages):
    path = tmp_path / "found.jsonl"
    record = Record.begin(path, ABOUT)
    names = ["clock", "sleep"]

    def interrupt(name):
        if name == "sleep":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pairs.measure(record, packages, names, SETTINGS, later(), cases=FAKE, say=interrupt)
    before = path.read_text()
    path.write_text(before + '{"case": "clock", "tur')  # cut while it was written
    record = Record.continued(path, ABOUT)
    assert {name: len(record.pairs[name]) for name in names} == {"clock": 1, "sleep": 1}
    pairs.measure(record, packages, names, SETTINGS, later(), cases=FAKE)
    assert path.read_text().startswith(before)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["case"] for line in lines[1:5]] == ["clock", "sleep", "clock", "sleep"]
    assert Record.continued(path, ABOUT).pairs == record.pairs
    size = path.stat().st_size
    pairs.measure(record, packages, names, SETTINGS, later(), cases=FAKE)
    assert path.stat().st_size == size


def test_a_part_begins_nothing_that_it_cannot_end(tmp_path, packages):
    record = Record.begin(tmp_path / "found.jsonl", ABOUT)
    with pytest.raises(OutOfTimeError):
        pairs.measure(record, packages, ["clock"], SETTINGS, time.monotonic() - 1, cases=FAKE)
    assert record.pairs == {}


def test_a_file_of_another_comparison_is_not_continued(tmp_path):
    path = tmp_path / "found.jsonl"
    Record.begin(path, ABOUT)
    with pytest.raises(ParameterError, match="the sources of B, b, have changed since"):
        Record.continued(path, {**ABOUT, "B": {"label": "b", "digest": "3"}})
    with pytest.raises(ParameterError, match="its B is b, now it is c"):
        Record.continued(path, {**ABOUT, "B": {"label": "c", "digest": "3"}})
    with pytest.raises(ParameterError, match="its starts is 2, now it is 5"):
        Record.continued(path, {**ABOUT, "starts": 5})
    for text in ("", "{}\n", "[1]\n", "what\n"):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="no file of a comparison"):
            Record.continued(path, ABOUT)


# ---- sides ------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    """A checkout whose core is one line of C++, with two commits and a branch."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    root = tmp_path / "repository"
    (root / "src" / "jali").mkdir(parents=True)
    (root / "core").mkdir()
    (root / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(tiny LANGUAGES CXX)\n"
        "add_library(core STATIC core/core.cpp)\n"
        "install(TARGETS core ARCHIVE DESTINATION jali COMPONENT python)\n"
    )
    (root / "core" / "core.cpp").write_text("int one() { return 1; }\n")
    (root / "src" / "jali" / "__init__.py").write_text("CLOCK = 1\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "one")
    git(root, "branch", "old")
    (root / "src" / "jali" / "__init__.py").write_text("CLOCK = 2\n")
    git(root, "commit", "-q", "-a", "-m", "two")
    return root


def test_commits_branches_and_the_working_tree_are_taken_as_they_are(repository, tmp_path):
    cache = tmp_path / "cache"
    old, new = (checkouts.take(name, cache, repository / "core") for name in ("old", "HEAD"))
    tree = checkouts.take(".", cache, repository / "core")
    assert old.digest != new.digest == tree.digest
    assert old.label.startswith("old (")
    (repository / "src" / "jali" / "__init__.py").write_text("CLOCK = 3\n")
    (repository / "core" / "core.cpp").unlink()
    assert checkouts.changed(repository)
    changed = checkouts.take(".", cache, repository)
    assert changed.digest != tree.digest
    assert changed.label.endswith("and changes)")
    assert not (changed.home / "tree" / "core" / "core.cpp").exists()
    assert checkouts.take(str(repository), cache, tmp_path).digest == changed.digest
    assert checkouts.take("HEAD", cache, repository).digest == new.digest


def test_a_side_is_built_once_and_again_after_a_change(repository, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no CMake here")
    pytest.importorskip("nanobind")
    said = []
    side = checkouts.take(".", tmp_path / "cache", repository)
    for _ in range(2):
        checkouts.build(side, later(), said.append)
    assert said == [f"building {side.label}"]
    assert (side.package / "jali" / "__init__.py").read_text() == "CLOCK = 2\n"
    assert list((side.package / "jali").glob("libcore.*"))
    with pytest.raises(OutOfTimeError):
        (repository / "core" / "core.cpp").write_text("int two() { return 2; }\n")
        checkouts.build(checkouts.take(".", tmp_path / "cache", repository), time.monotonic(), said.append)
    (repository / "core" / "core.cpp").write_text("int three() { return three; }\n")
    with pytest.raises(CompileError, match=r"cannot be built: .*core\.cpp:1.*error"):
        checkouts.build(checkouts.take(".", tmp_path / "cache", repository), later(), said.append)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_ends_with_the_comparison(number, repository, tmp_path):
    pytest.importorskip("nanobind")
    started, program = tmp_path / "started", tmp_path / "bin" / "cmake"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $$ $! > {started}.new\nmv {started}.new {started}\nwait\n"
    )
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**settings.environment(), "PATH": path, "JALI_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "jali", "bench", "compare", "old", "HEAD"]
    ends_what_it_started(number, started, command, env=env, cwd=repository)


def test_what_is_no_side_is_said_in_one_line(repository, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    for name in ("nothing", "-x", "src", "../elsewhere", ""):
        with pytest.raises(ParameterError, match="neither a checkout of jali .* nor a commit") as caught:
            checkouts.take(name, cache, repository)
        assert "\n" not in str(caught.value)
    with pytest.raises(ParameterError, match="does not belong to one"):
        checkouts.take("HEAD", cache, tmp_path)
    git(repository, "rm", "-q", "-r", "src")
    git(repository, "commit", "-q", "-m", "none")
    bare = checkouts._git(repository, "rev-parse", "HEAD").stdout.decode().strip()
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    with pytest.raises(ParameterError, match="without src/jali"):
        checkouts.take(bare, cache, repository)
    monkeypatch.setattr(checkouts, "SPACE", 1 << 60)
    with pytest.raises(ParameterError, match=r"has \d+ MB free, and a build takes up to"):
        checkouts.take("old", tmp_path / "full", repository)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ParameterError, match="there is no git"):
        checkouts.take("HEAD", cache, repository)
    shutil.rmtree(repository / ".git")
    monkeypatch.undo()
    with pytest.raises(ParameterError, match="is no git repository"):
        checkouts.take("HEAD", cache, repository)


RENAMED_CASES = """
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import jali

{first_of}

class Work:
    per, unit, own_clock = 1, "ms", True

    def __init__(self, seconds):
        self.call = lambda: seconds


def set_up(name, precision, device):
    if name == "renamed":
        return Work(first_of(lambda: jali.TIMER, lambda: jali.CLOCK))
    if name == "moved":
        return Work(first_of("jali.times:TIMER", "jali:CLOCK"))
    return Work(first_of(lambda: jali.TIMER, "jali.times:CLOCK"))
"""


def test_one_file_of_cases_runs_on_two_commits_in_which_a_public_name_differs(repository, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("no CMake here")
    pytest.importorskip("nanobind")
    sources = repository / "src" / "jali"
    (sources / "__init__.py").write_text("TIMER = 0.5\n")
    (sources / "times.py").write_text("TIMER = 0.25\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "CLOCK is called TIMER")
    sides = [checkouts.take(name, tmp_path / "cache", repository) for name in ("old", "HEAD")]
    for side in sides:
        checkouts.build(side, later(), lambda _: None)
    cases = tmp_path / "cases.py"
    cases.write_text(RENAMED_CASES.format(first_of=inspect.getsource(first_of)))
    record = Record.begin(tmp_path / "found.jsonl", ABOUT)
    names = ["renamed", "moved", "only new"]
    pairs.measure(record, [side.package for side in sides], names, SETTINGS, later(), cases=cases)
    renamed, moved, only_new = report.results(record, names)
    assert (renamed["A"], renamed["B"]) == (pytest.approx(1000), pytest.approx(500))
    assert (moved["A"], moved["B"]) == (pytest.approx(1000), pytest.approx(250))
    assert only_new["verdict"] == "missing"
    assert only_new["why"].startswith(
        "A: AttributeError: none of these is there: module 'jali' has no attribute 'TIMER'"
    )


def test_the_first_that_is_there_is_chosen_and_other_errors_are_not_hidden():
    assert first_of("os:nothing", "nowhere.at_all:x", "os.path:join") is os.path.join
    assert first_of(lambda: 1, lambda: 1 / 0) == 1
    with pytest.raises(ZeroDivisionError):
        first_of("os:nothing", lambda: 1 / 0)
    with pytest.raises(AttributeError, match="none of these is there: .*nothing"):
        first_of("os:nothing")


# ---- the command ------------------------------------------------------------------------------------------------


def test_cases_are_chosen_by_patterns_and_devices_have_most_of_them():
    assert chosen([], "cpu") == list(CASES)
    assert chosen(["staple ?", "import"], "cpu") == ["staple 8", "import"]
    assert chosen(["staple ?", "import"], "cuda") == ["staple 8"]
    assert {case.ranks for case in CASES.values()} == {1, 2}


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["HEAD"], "say which two"),
        (["HEAD", ".", "--minutes", "11"], "at most 10 minutes, not 11"),
        (["HEAD", ".", "--turns", "0"], "1 or more"),
        (["HEAD", ".", "--cases", "nosuch*"], "no case is called nosuch"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(words, said):
    done = run_jali("bench", "compare", *words, status=2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_cases_are_listed():
    names = [case["case"] for case in json.loads(run_jali("bench", "compare", "--list", "--json").stdout)]
    assert names == list(CASES)
