"""Measures cases: pairs of processes, one for each side, which take turns on the same cores until the time of this part is over."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jali.bench.compare.checkouts import OutOfTimeError
from jali.bench.compare.intervals import ENOUGH, interval, looks_lost
from jali.bench.compare.record import Record
from jali.processes import ended_with_us

WORKER = Path(__file__).with_name("worker.py")
CASES = Path(__file__).with_name("cases.py")
LAUNCH = "import sys; from jali.comm.launcher import launch; sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))"
SIDES = ("A", "B")
SILENCE = 180.0  # seconds after which a case has stalled; a turn takes less than one, its kernels are compiled in some tens


@dataclass(frozen=True)
class Settings:
    """How cases are measured: pairs of processes per case, turns of each process, seconds of a turn, and what cases run on."""

    starts: int = 3
    turns: int = 7
    seconds: float = 0.05
    precision: str = "float64"
    device: str = "cpu"


class CaseError(Exception):
    """A case cannot be measured: `how` is "missing" where a side does not have it, "stalled" where no answer comes, else "failed"."""

    def __init__(self, how: str, why: str) -> None:
        super().__init__(why)
        self.how = how


class Side:
    """The processes of one side for one case; ends them when it is closed. All that is waited for ends at `until`."""

    def __init__(self, name: str, package: Path, cases: Path, ranks: int, until: float) -> None:
        self.name, self.until = name, until
        self.folder = tempfile.TemporaryDirectory(prefix="jali-")
        address = os.path.join(self.folder.name, "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        command = [sys.executable, "-P", str(WORKER), str(package), str(cases), address]
        if ranks > 1:
            command = [sys.executable, "-c", LAUNCH, str(ranks), *command]
        self.errors = Path(self.folder.name, "errors")
        self.ending = contextlib.ExitStack()
        with open(self.errors, "ab") as errors:
            environment = {**os.environ, "JALI_THREADS": "1"}
            guarded = ended_with_us(command, stdout=errors, stderr=errors, env=environment)
            self.process = self.ending.enter_context(guarded)
        self.links: list[IO[str]] = []
        self.sockets: list[socket.socket] = []
        try:
            with listener:
                for _ in range(ranks):
                    self._accept(listener)
            for line in self._lines():
                if package.absolute() not in Path(line["jali"]).absolute().parents:
                    raise CaseError(
                        "failed", f"{name} imported {line['jali']} instead of what is in {package}"
                    )
        except BaseException as error:
            self.close(type(error))
            raise

    def _accept(self, listener: socket.socket) -> None:
        while True:
            listener.settimeout(min(0.2, self._left()))
            with contextlib.suppress(TimeoutError):
                link, _ = listener.accept()
                self.sockets.append(link)
                self.links.append(link.makefile("rw"))
                return
            if self.process.poll() is not None:
                raise CaseError("failed", self._last_words())

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise OutOfTimeError(f"a case of {self.name}")
        return left

    def _lines(self) -> list[dict[str, Any]]:
        """An answer of every rank."""
        found = []
        for link, line in zip(self.sockets, self.links, strict=True):
            link.settimeout(min(self._left(), SILENCE))
            try:
                text = line.readline()
            except TimeoutError:
                self._left()
                raise CaseError("stalled", f"{self.name}: no answer for {SILENCE:g} s") from None
            except ConnectionError:
                text = ""
            if not text:
                raise CaseError("failed", self._last_words())
            found.append(json.loads(text))
        return found

    def ask(self, **order: Any) -> list[dict[str, Any]]:
        """Give all ranks an order; their answers. Raises `CaseError` for what a rank refuses."""
        for line in self.links:
            try:
                line.write(json.dumps(order) + "\n")
                line.flush()
            except ConnectionError:
                raise CaseError("failed", self._last_words()) from None
        answers = self._lines()
        for how in ("missing", "failed"):
            for answer in answers:
                if how in answer:
                    raise CaseError(how, f"{self.name}: {answer[how]}")
        return answers

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        return f"{self.name}: its process ended ({lines[-1].strip() if lines else self.process.returncode})"

    def close(self, error: type[BaseException] | None = None, *_: object) -> None:
        """End the processes: they exit when their socket closes. After a timeout, on Ctrl-C at once, they are terminated;
        a launcher forwards this to its ranks."""
        for link, line in zip(self.sockets, self.links, strict=True):
            with contextlib.suppress(OSError):
                line.close()
            link.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0 if error is KeyboardInterrupt else 5)
        finally:  # also where the wait is interrupted
            self.ending.close()
            self.folder.cleanup()


@contextlib.contextmanager
def pair(packages: Sequence[Path], cases: Path, ranks: int, until: float) -> Iterator[list[Side]]:
    """A process (or `ranks` of them) of each side."""
    with contextlib.ExitStack() as stack:
        sides = []
        for name, package in zip(SIDES, packages, strict=True):
            sides.append(Side(name, package, cases, ranks, until))
            stack.push(sides[-1].close)
        yield sides


def measure_pair(
    case: str,
    packages: Sequence[Path],
    settings: Settings,
    until: float,
    *,
    cases: Path = CASES,
    ranks: int = 1,
    turns: int = 0,
    first: int = 0,
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """Turns of one fresh pair of processes, and the case's unit; `first` is the side that begins, `turns` other than the settings'.

    Raises `CaseError` or, at `until`, `OutOfTimeError`.
    """
    with pair(packages, cases, ranks, until) as sides:
        about: dict[str, Any] = {}
        counts = []
        for side in sides:
            answers = side.ask(case=case, precision=settings.precision, device=settings.device)
            once = max(answer["once"] for answer in answers)
            counts.append(max(1, round(settings.seconds / max(once, 1e-9))))
            about = {"unit": answers[0]["unit"], "per": answers[0]["per"]}
        found = []
        for turn in range(turns or settings.turns):
            seconds = [0.0, 0.0]
            order = (0, 1) if (first + turn) % 2 == 0 else (1, 0)
            for k in order:
                seconds[k] = max(answer["seconds"] for answer in sides[k].ask(count=counts[k]))
            found.append((seconds[0], seconds[1]))
        return found, about


def measure(
    record: Record,
    packages: Sequence[Path],
    names: Sequence[str],
    settings: Settings,
    until: float,
    *,
    cases: Path = CASES,
    ranks: Mapping[str, int] | None = None,
    turns: Mapping[str, int] | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> None:
    """Add to the record what it lacks: `starts` pairs of each case, and twice as many (six at least) of cases that look lost, since a
    slow machine can look like a loss.

    Pairs of a case are spread over the whole time. Raises `OutOfTimeError` at `until`; a pair that was under way is measured again later.
    """
    took: dict[str, float] = {}
    for start in range(max(2 * settings.starts, ENOUGH)):
        for name in names:
            done = record.pairs.get(name, [])
            if name in record.without or len(done) > start:
                continue
            if start >= settings.starts and not _suspect(done[: settings.starts]):
                continue
            began = time.monotonic()
            if began + took.get(name, 0.0) > until:
                raise OutOfTimeError(name)
            try:
                found, about = measure_pair(
                    name,
                    packages,
                    settings,
                    until,
                    cases=cases,
                    ranks=(ranks or {}).get(name, 1),
                    turns=(turns or {}).get(name, 0),
                    first=start,
                )
                record.add(name, found, **about)
            except CaseError as error:
                record.leave_out(name, error.how, str(error))
            took[name] = time.monotonic() - began
            say(name)


def _suspect(pairs: Sequence[Sequence[tuple[float, float]]]) -> bool:
    return looks_lost(interval(pairs), seconds_of(pairs))


def seconds_of(pairs: Sequence[Sequence[tuple[float, float]]], side: int = 0) -> float:
    """The median time of a call of one side."""
    times = sorted(turn[side] for turns in pairs for turn in turns)
    return (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2
