"""Starting small programs on MPI ranks, with each MPI library that the tests can use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import TIMEOUT, end_of, need_mpi, need_openmpi, on_ranks

HEAD = """
import os, sys, time
import numpy as np
from jali import comm
from jali.errors import RankError
with open(f"{os.path.dirname(__file__)}.rank-{os.getpid()}", "w"):
    pass  # beside the test's folder: what is in there is its own
"""


# Where MPI libraries and their launchers differ most; with Open MPI the short run has these alone, and the long run all.
WITH_OPEN_MPI = {
    "test_all_eight_in_all_forms_agree_with_numpy",
    "test_killed_rank_ends_the_job",
    "test_signal_to_the_launcher_reaches_every_rank_once",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = item.path.parent == Path(__file__).parent and hasattr(item, "callspec")
        library = item.callspec.params.get("mpi") if here else None
        if library == "openmpi" and item.originalname not in WITH_OPEN_MPI:
            item.add_marker(pytest.mark.full)


@dataclass
class Ended:
    """How a job ended."""

    status: int
    out: str
    err: str


@dataclass
class Job:
    """A running job."""

    process: subprocess.Popen[str]

    def end(self, timeout: float = TIMEOUT) -> Ended:
        """Wait for the end; a job that takes longer is killed, with all its ranks, and the test fails."""
        out, err = end_of(self.process, timeout)
        return Ended(self.process.returncode, out, err)


@dataclass
class Library:
    """An MPI library: the interpreter whose mpi4py loads it, and how many ranks this machine can run with it."""

    name: str
    python: str
    ranks: int
    folder: Path

    def start(self, body: str, ranks: int | None = None, **environment: str) -> Job:
        """Start a program (imports are supplied) on the ranks, through jali's own launcher."""
        script = self.folder / "program.py"
        script.write_text(HEAD + textwrap.dedent(body))
        process = subprocess.Popen(
            list(map(str, on_ranks(ranks or self.ranks, self.python, script, python=self.python))),
            env=dict(os.environ) | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return Job(process)

    def run(self, body: str, ranks: int | None = None, **environment: str) -> Ended:
        """Start a program and wait for its end."""
        return self.start(body, ranks, **environment).end()

    def left_behind(self) -> list[str]:
        """What the ranks of this test have a name for in shared memory; other programs of this host may be making theirs."""
        ranks = [
            path.suffix.removeprefix(".rank-")
            for path in self.folder.parent.glob(f"{self.folder.name}.rank-*")
        ]
        assert ranks
        return [path.name for rank in ranks for path in Path("/dev/shm").glob(f"jali-{rank}-*")]


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Library:
    """Each usable MPI library, for what libraries and their launchers do differently."""
    return _library(request.param, tmp_path)


@pytest.fixture(params=["mpich", pytest.param("openmpi", marks=pytest.mark.full)])
def any_mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Library:
    """One MPI library, for what is jali's own doing; the other one as well in the full tests."""
    return _library(request.param, tmp_path)


@pytest.fixture
def mpich(tmp_path: Path) -> Library:
    """MPICH alone."""
    return _library("mpich", tmp_path)


@pytest.fixture
def openmpi(tmp_path: Path) -> Library:
    """Open MPI alone."""
    return _library("openmpi", tmp_path)


def _library(name: str, folder: Path) -> Library:
    """MPICH in this environment, Open MPI in the environment whose Python JALI_TEST_OPENMPI_PYTHON names."""
    if name == "openmpi":
        return Library(name, need_openmpi(), 4, folder)
    launcher = need_mpi()
    if launcher.implementation.name != "MPICH":
        pytest.skip(f"the MPI library of this environment is {launcher.implementation.name}, not MPICH")
    # MPICH polls without rest: more ranks than cores would take turns of milliseconds.
    return Library(name, sys.executable, 2, folder)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Waits until something is true."""

    def wait(true: Callable[[], bool]) -> None:
        limit = time.monotonic() + TIMEOUT
        while not true():
            assert time.monotonic() < limit
            time.sleep(0.02)

    return wait
