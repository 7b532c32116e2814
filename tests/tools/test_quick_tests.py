"""`tools/quick_tests.py`: which tests belong to which change, and that it ends in time."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from programs import git, run_program

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "quick_tests.py"


@pytest.fixture(scope="module")
def quick():
    spec = importlib.util.spec_from_file_location("quick_tests", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    """The tool in a repository of its own, with two folders of tests."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    for name in ("tools", "src/jali/io", "src/jali/gauge", "tests/io", "tests/gauge"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(TOOL, tmp_path / "tools")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["full"]\n')
    for name in ("io/test_nersc", "io/test_ildg", "gauge/test_flow"):
        (tmp_path / "tests" / f"{name}.py").write_text("def test_it():\n    print('ran', __name__)\n")
        (tmp_path / "src" / "jali" / f"{name.replace('test_', '')}.py").write_text("")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "checkout", "-q", "-b", "work")
    return tmp_path


def lines_of(project, *words, status=0):
    done = run_program(
        [sys.executable, project / "tools" / "quick_tests.py", *words, "--", "-p", "no:cacheprovider"],
        cwd=project,
        status=status,
    )
    return done.stdout.splitlines()


def test_tests_nearest_to_a_change_come_first(quick):
    found = quick.picked(
        ["core/halo/layout.cpp", "src/jali/io/nersc.py", "tests/gauge/test_gauge_observables.py"]
    )
    assert list(found) == [
        "tests/gauge/test_gauge_observables.py",
        "tests/core/test_layout.py",
        *[p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "tests/io").glob("test_nersc*.py"))],
        "tests/core",
        "tests/any_ranks",
        "tests/gpu/halo",
        "tests/io",
    ]
    assert found["tests/core"] == found["tests/core/test_layout.py"] == "core/halo/layout.cpp"


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("src/jali/codegen/prelude/matrix.hpp", ("codegen", "language")),
        ("src/jali/gauge/flow.py", ("gauge",)),
        ("src/jali/statistics.py", ("cli",)),
        ("src/jali/errors.py", ("cli",)),
        ("core/device/gpu.cpp", ("gpu/device",)),
        ("docs/gpus.md", ("docs",)),
        ("tools/environment.py", ("tools",)),
        ("README.md", ("README",)),
    ],
)
def test_a_file_has_the_tests_of_its_folder(quick, name, tests):
    assert quick.folders_of(name) == tests


def test_every_folder_of_sources_has_tests_that_exist(quick):
    tests = ROOT / "tests"
    for pattern in ("src/jali/*/", "core/*/"):
        for folder in ROOT.glob(pattern):
            if folder.is_dir() and folder.name != "__pycache__":
                name = folder.relative_to(ROOT).as_posix() + "/some.py"
                assert all((tests / test).exists() for test in quick.folders_of(name)), name
    assert all((tests / test).exists() for found in quick.FOLDERS.values() for test in found)


def test_what_changed_since_main_and_in_the_working_tree_is_run(project):
    (project / "src/jali/gauge/flow.py").write_text("x = 1\n")
    git(project, "commit", "-q", "-a", "-m", "two")
    (project / "src/jali/io/nersc.py").write_text("x = 1\n")
    (project / "tests/io/test_new.py").write_text("def test_it():\n    pass\n")
    lines = lines_of(project)
    assert lines[0].startswith("since ")
    assert lines[0].endswith(" one:")
    assert lines[1:6] == [
        "  tests/io/test_new.py: it changed",
        "  tests/gauge/test_flow.py: src/jali/gauge/flow.py",
        "  tests/io/test_nersc.py: src/jali/io/nersc.py",
        "  tests/gauge: src/jali/gauge/flow.py",
        "  tests/io: src/jali/io/nersc.py",
    ]
    assert "4 passed" in lines[-1]  # each test once


def test_when_the_time_is_over_no_test_begins_and_what_is_left_is_said(project):
    git(project, "commit", "-q", "--allow-empty", "-m", "two")
    for name in ("test_nersc", "test_ildg"):
        (project / "tests" / "io" / f"{name}.py").write_text("def test_it():\n    assert 0\n")
    lines = lines_of(project, "--seconds", "0")
    assert any(line.startswith("0 s are over: 2 tests were not run") for line in lines)


def test_tests_begin_until_the_time_is_over(quick):
    budget = quick.Budget(1000)
    assert budget.pytest_runtest_protocol(None) is None
    budget.end -= 1000
    assert budget.pytest_runtest_protocol(None) is True
    assert budget.left == 1


def test_a_failing_test_fails(project):
    git(project, "commit", "-q", "--allow-empty", "-m", "two")
    (project / "tests/io/test_nersc.py").write_text("def test_it():\n    assert 0\n")
    lines_of(project, status=1)


def test_without_a_commit_before_it_says_so(project):
    (line,) = lines_of(project, status=2)
    assert line.startswith("there is no commit to compare with")


def test_without_a_change_nothing_runs(project):
    git(project, "commit", "-q", "--allow-empty", "-m", "two")
    (line,) = lines_of(project)
    assert line.startswith("nothing that has tests changed since ")
