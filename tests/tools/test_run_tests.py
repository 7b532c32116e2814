"""`tools/run_tests.py`: parts of the tests under conditions of their own, all of which run and count."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from programs import run_program

from jali.codegen.target import host

ROOT = Path(__file__).resolve().parents[2]
TESTS = """\
import os, pathlib, pytest
WIDTH = os.environ.get("JALI_VECTOR_BYTES")
@pytest.mark.lanes
def test_fails_at_16():
    assert WIDTH != "16"
@pytest.mark.full
def test_long():
    pass
def test_notes_conditions():
    busy = 0
    for one in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            busy += b"while os.getppid() == parent" in one.read_bytes()
        except OSError:
            pass
    with open("conditions", "a") as file:
        print(WIDTH, len(os.sched_getaffinity(0)), busy, file=file)
"""
SETTINGS = '[tool.pytest.ini_options]\nmarkers = ["full", "lanes"]\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The tool beside tests of its own."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tools" / "run_tests.py", tmp_path / "tools")
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    return tmp_path


def run(project: Path, *words: str, status: int) -> list[str]:
    """The lines that it prints."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "JALI_VECTOR"))
    }
    command = [
        sys.executable,
        project / "tools" / "run_tests.py",
        *words,
        "--workers",
        "0",
        "--",
        "-p",
        "no:cacheprovider",
    ]
    return run_program(command, status=status, env=environment).stdout.splitlines()


def test_tests_marked_lanes_run_at_every_width_and_one_failure_fails_all(project: Path) -> None:
    lines = run(project, "lanes", status=1)
    for width, how in ((8, "passed"), (16, r"FAILED \(status 1\)"), (32, "passed"), (64, "passed")):
        assert any(
            re.match(rf"== lanes, {width} bytes: {how}, \d+ s: 1 (passed|failed)", line) for line in lines
        )
    assert re.fullmatch(r"=+ 1 failed, 3 passed, 8 deselected in [\d.]+s =+", lines[-1])


@pytest.mark.full
def test_beside_all_tests_those_marked_lanes_run_at_the_narrowest_or_the_widest_other_width(
    project: Path,
) -> None:
    second = "import pytest\n@pytest.mark.lanes\ndef test_passes():\n    pass\n"
    (project / "tests" / "test_some_more.py").write_text(second)
    others = sorted({8, 16, 32, 64} - {host().vector_bytes})
    lines = run(project, "quick", "lanes", status=int(others[0] == 16))
    found = [re.match(r"== lanes, (\d+) bytes: \S+, \d+ s: (.*) in", line) for line in lines]
    parts = [(int(one[1]), one[2]) for one in found if one]
    assert [width for width, _ in parts] == [others[0], others[-1]]
    assert parts[0][1] == "1 passed, 2 deselected"
    assert parts[1][1] == "1 passed"
    assert any(line.startswith("== quick: passed") for line in lines)


@pytest.mark.full
def test_widths_one_core_and_a_loaded_machine_are_what_they_say(project: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    lines = run(project, "full", "widths", "one-core", "loaded", status=int(host().vector_bytes != 16))
    seen = [line.split() for line in (project / "conditions").read_text().splitlines()]
    widths = [width for width, _, _ in seen]
    assert widths[0] == widths[-1] == widths[-2] == "None"
    assert len(set(widths[1:-2])) == 3
    assert set(widths[1:-2]) < {"8", "16", "32", "64"}
    assert [int(count) for _, count, _ in seen] == [cores] * 4 + [1, cores]
    assert int(seen[-1][2]) >= cores
    assert re.search(r"\d+ passed", lines[-1])
