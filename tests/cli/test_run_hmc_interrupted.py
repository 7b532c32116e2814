"""Runs with hybrid Monte Carlo that get a signal in the middle of a trajectory: the histories after resuming are those of an undisturbed run, to the byte.

The program is `jali run` with links that stop in the middle of a trajectory: they say so by a file, and go on once that file is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jali_command import jali_here, running_program, wait_for
from programs import TIMEOUT, on_ranks

from jali.comm.launcher import local_ranks
from jali.io import open_checkpoint

PARAMETERS = """\
[lattice]
extents = [4, 6]
[gauge]
group = "SU(2)"
beta = 2.0
[update]
algorithm = "hmc"
thermalisation = 2
sweeps = 6
[run]
checkpoint_every = 3
reunitarise_every = 4
[hmc]
steps = 4
spread = 0.2
forces_every = 2
"""

STOPPED = (
    5  # trajectory in which the links stop: two after the first checkpoint, so that tables are ahead of it
)
MOVE = 3  # of its 8 moves of the links

PROGRAM = """\
import sys, time, types
from pathlib import Path

import jali
from jali import comm
from jali.cli.main import main
from jali.errors import RecordingError
from jali.hmc import HMC, kinetic

folder, stopped, wanted = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
# drawing takes longer than the run, and so does importing what draws
sys.modules["jali.cli.report"] = types.SimpleNamespace(write_report=lambda directory: directory / "report.html")
trajectory, move, begun, moves = HMC.trajectory, kinetic.OF_LINKS.move, 0, 0


def refuse(*arguments):
    raise RecordingError("moves are counted in Python")


def counted(hmc):
    global begun, moves
    begun, moves = hmc.number + 1, 0
    return trajectory(hmc)


def stopping(*arguments):
    global moves
    moves += 1
    if (begun, moves) == (stopped, wanted):
        mark = folder / f"rank{comm.current().rank}"
        mark.touch()
        while mark.exists():
            time.sleep(0.005)
    move(*arguments)


jali.graph, HMC.trajectory, kinetic.OF_LINKS.move = refuse, counted, stopping
sys.exit(main(sys.argv[4:]))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parameters") / "p.toml"
    path.write_text(PARAMETERS)
    return path


@pytest.fixture(scope="module")
def undisturbed(file: Path) -> list[bytes]:
    """The histories of the run that nobody stops; trajectories of it are graphs."""
    out = file.with_name("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")
        assert jali_here("run", file, "--output", out) == 0
    return histories(out)


@pytest.fixture(autouse=True)
def _no_time_for_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jali.cli.report.write_report", lambda directory: directory / "report.html")


def histories(directory: Path) -> list[bytes]:
    return [(directory / f"{name}.csv").read_bytes() for name in ("history", "trajectories", "forces")]


def rows(directory: Path, name: str = "history") -> int:
    return (directory / f"{name}.csv").read_bytes().count(b"\n") - 1


@contextlib.contextmanager
def in_a_trajectory(file: Path, out: Path, ranks: int) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """The program while it waits in the middle of a trajectory, and the files that it waits for the end of."""
    command = [sys.executable, "-c", PROGRAM, out.parent, STOPPED, MOVE, "run", file, "--output", out]
    marks = [out.parent / f"rank{rank}" for rank in range(ranks)]
    with running_program(on_ranks(ranks, *command) if ranks > 1 else command) as process:
        wait_for(lambda: all(mark.exists() for mark in marks), process)
        assert rows(out) == rows(out, "trajectories") == STOPPED - 1
        assert open_checkpoint(out / "checkpoint").state["sweep"] == 3
        yield process, marks


def resumed(out: Path, ranks: int) -> list[bytes]:
    assert jali_here("run", "--resume", out, ranks=ranks) == 0
    return histories(out)


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.mpi)]
)
def test_a_run_that_is_killed_in_a_trajectory_goes_on_bit_for_bit_on_other_ranks(
    ranks: int, file: Path, undisturbed: list[bytes], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with in_a_trajectory(file, out, ranks) as (process, _):
        os.kill(process.pid if ranks == 1 else local_ranks(process.pid)[1], signal.SIGKILL)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode not in (0, None)
    assert rows(out) == STOPPED - 1
    assert open_checkpoint(out / "checkpoint").state["sweep"] == 3
    assert resumed(out, 3 - ranks) == undisturbed


@pytest.mark.parametrize(
    ("number", "status", "ranks"),
    [
        (signal.SIGTERM, 143, 1),
        pytest.param(signal.SIGINT, 130, 1, marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, 143, 2, marks=[pytest.mark.mpi, pytest.mark.full]),
        pytest.param(signal.SIGINT, 130, 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    ],
)
def test_a_signal_in_a_trajectory_ends_the_run_after_it_with_a_checkpoint(
    number: signal.Signals,
    status: int,
    ranks: int,
    file: Path,
    undisturbed: list[bytes],
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    with in_a_trajectory(file, out, ranks) as (process, marks):
        os.kill(process.pid if ranks == 1 else local_ranks(process.pid)[1], number)
        for mark in marks:
            mark.unlink()
        said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == status, said
    assert said.count(f"interrupted ({number.name}) after sweep {STOPPED} of 8") == 1
    assert open_checkpoint(out / "checkpoint").state["sweep"] == rows(out) == STOPPED
    assert resumed(out, 3 - ranks) == undisturbed
