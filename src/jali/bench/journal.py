"""What a benchmark has measured, case by case, in a file that outlives its ranks, and what else ran on the machine meanwhile.

Ranks that `jali bench -n N` starts write here which case they begin and what they found. Where a case stalls, or its ranks die,
neither their communicators nor their devices can be used any more: the process that started them records that the case is lost
(`give_up`) and starts fresh ranks, which read the existing results and continue with the other cases. Cases are known by their
names; what was found is anything that can be pickled.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jali.errors import FileFormatError, JaliError, ParameterError
from jali.files import shown
from jali.profile import Load, LoadMeter, loads

Found = TypeVar("Found")

STALL = "nothing has moved for"
"""In errors of waits that have timed out (core/messaging/wait_loop.cpp)."""
BEGUN, ENDED, ERROR, LOST = "begun", "ended", "error", "lost"
LONGEST = 600  # characters of the text of a case


class Journal:
    """The cases of one benchmark. Everything is collective over `ranks`; without a `path` nothing outlives them, and without `ranks` (this is one
    `rank` of some) the load is that which this rank sees.

    `lost`: cases that were given up, by name, and why.
    """

    def __init__(self, ranks: Any = None, path: Path | None = None, rank: int = 0) -> None:
        self._ranks, self._path = ranks, path
        self._rank = rank if ranks is None else ranks.rank
        self._done: dict[str, tuple[Any, list[Load]]] = {}
        self.lost: dict[str, str] = {}
        self.measured: list[str] = []  # cases, by these ranks
        contents = b""
        if path is not None:
            contents = ranks.broadcast_bytes(path.read_bytes() if ranks.rank == 0 else b"", 0)
        for kind, name, *what in records(contents):
            if kind == ENDED:
                self._done[name] = (what[0], what[1])
            elif kind == LOST:
                self.lost[name] = what[0]

    def case(
        self, name: str, measure: Callable[[], Found], progress: Callable[[Found], object] | None = None
    ) -> Found | None:
        """The result of `measure`, or an earlier one; None where the case is lost. `progress` is called on rank 0 for new results."""
        if name in self.lost:
            return None
        if name in self._done:
            return self._done[name][0]
        if self._rank == 0:
            self._write(BEGUN, name)
        meter = LoadMeter()
        try:
            found = measure()
        except (ParameterError, FileFormatError):  # bad input, which the next case would have as well
            raise
        except (JaliError, OSError, MemoryError) as error:
            self._write(ERROR, name, str(error))
            if self._path is None and self._rank == 0:
                print(
                    f"jali: {name} {word_for(str(error))}; the cases behind it are not measured. Where jali starts the ranks (-n) it goes on",
                    file=sys.stderr,
                    flush=True,
                )
            raise
        readings = [meter.reading()] if self._ranks is None else self._ranks.gather_bytes(meter.reading())
        load = loads(readings)
        self._done[name] = (found, load)
        self.measured.append(name)
        if self._rank == 0:
            self._write(ENDED, name, found, load)
            if progress is not None:
                progress(found)
        return found

    def _write(self, *record: Any) -> None:
        if self._path is None:
            return
        with contextlib.suppress(FileNotFoundError):  # another host, whose ranks receive the error anyway
            _append(self._path, record)

    @property
    def load(self) -> list[Load]:
        """Of each host, over all cases."""
        loads = [load for _, of_case in self._done.values() for load in of_case]
        found = []
        for host in dict.fromkeys(load.host for load in loads):
            here = [load for load in loads if load.host == host]
            seconds = sum(load.seconds for load in here)
            others = sum(load.others * load.seconds for load in here) / seconds
            found.append(Load(host, here[0].cores, others, seconds))
        return found

    def conditions(self) -> dict[str, str]:
        """Conditions of the numbers for readers: the load meanwhile, and cases that are lost."""
        contents = {
            f"load of {one.host} by others": f"{one.others:.1f} of {one.cores} cores" for one in self.load
        }
        return contents | {name: why for name, why in self.lost.items()}


def busy_words(load: Sequence[Load]) -> str:
    """What other programs took of processors, where that is enough to spoil numbers; else nothing."""
    busy = [one for one in load if one.is_busy]
    words = ", ".join(f"{one.others:.1f} of the {one.cores} cores of {one.host}" for one in busy)
    return f"other programs kept {words} busy meanwhile" if busy else ""


def why_no_verdict(load: Sequence[Load]) -> str:
    """Why numbers are insufficient for a verdict; empty where they are not."""
    words = busy_words(load)
    return f"the machine was too busy for a verdict: {words}" if words else ""


def word_for(error: str) -> str:
    """What became of a case with this error."""
    return "stalled" if STALL in error else "failed"


def records(contents: bytes) -> list[tuple[Any, ...]]:
    """All that were written whole."""
    stream, found = io.BytesIO(contents), []
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while stream.tell() < len(contents):
            found.append(pickle.load(stream))
    return found


def _append(path: Path, record: tuple[Any, ...]) -> None:
    """In one piece, since any rank may write; raises FileNotFoundError where the file does not exist."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(descriptor, pickle.dumps(record))
    finally:
        os.close(descriptor)


def _under_way(found: list[tuple[Any, ...]]) -> str | None:
    """The case that was begun last, if it has not ended."""
    last = next((record for record in reversed(found) if record[0] in (BEGUN, ENDED, LOST)), None)
    return None if last is None or last[0] != BEGUN else str(last[1])


def is_hung(path: Path, seconds: float) -> bool:
    """Whether a case is under way without a sign of progress for so long."""
    return time.time() - path.stat().st_mtime > seconds and _under_way(records(path.read_bytes())) is not None


def give_up(path: Path, otherwise: str) -> tuple[str, str] | None:
    """Record that the case that was under way when the ranks ended is lost: its name, and why (`otherwise`: where no rank
    reported it). None where none was under way."""
    found = records(path.read_bytes())
    name = _under_way(found)
    if name is None:
        return None
    errors = [str(text) for kind, of, *rest in found if kind == ERROR and of == name for text in rest]
    said = next((text for text in errors if STALL in text), errors[0] if errors else otherwise)
    why = f"{word_for(said)}: {shown(said, LONGEST)}"
    _append(path, (LOST, name, why))
    return name, why
