"""Times of decorated functions, and of what they do between marks, nested as they call each other.

    @benchmark
    def invert(d):
        mark("operator")
        A = VStack(...)
        mark("solver")
        return cgls(A, d)

The outermost function reports when it ends, also by an exception: on the first rank, to its logger, else to standard output.
Devices are waited for at each mark; ranks are not, so nothing hangs where only some call. Inside of `jali.profile.recording()`
functions and marked parts are also spans of the trace. Switched off (`benchmarks(False)`, BENCH_PYLOPS_MPI=0), a call costs the
check of a flag.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from jali import settings
from jali.comm import validation
from jali.comm.world import known
from jali.errors import ParameterError
from jali.files import value_shown
from jali.profile import recording

Function = TypeVar("Function", bound=Callable[..., Any])

_on = settings.of_others("BENCH_PYLOPS_MPI").get("BENCH_PYLOPS_MPI", "1") == "1"


@dataclass
class _Call:
    """A call of a decorated function that is under way."""

    name: str
    begin: int  # ns
    entries: list[tuple[int, str, float]] = field(default_factory=list)  # depth, what, seconds
    marked: str | None = None
    since: int = 0  # ns
    first: int = 0  # entry of the marked part

    def end_part(self, now: int) -> None:
        """Close the part that the last mark began; before the entries of calls inside of it, which are deeper."""
        if self.marked is not None:
            self.entries.insert(self.first, (1, self.marked, 1e-9 * (now - self.since)))
            _trace(self.marked, self.since, now)
        self.marked = None

    def begin_part(self, label: str, now: int) -> None:
        self.marked, self.since, self.first = label, now, len(self.entries)


class _Thread(threading.local):
    """Virtual ranks are threads."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_here = _Thread()


@contextmanager
def benchmarks(on: bool) -> Iterator[None]:
    """`benchmark` and `mark` switched on or off for a block, in all threads. Raises ParameterError."""
    global _on
    before, _on = _on, validation.flag("on", on, ParameterError)
    try:
        yield
    finally:
        _on = before


def mark(label: str) -> None:
    """What the function does from here to the next mark, or to its end, has this name.

    Raises RuntimeError outside of a decorated function, ParameterError for an object that is not a string.
    """
    if not _on:
        return
    if not _here.calls:
        raise RuntimeError("mark() called outside of a benchmarked region")
    recording.checked_name("label of a mark", label)
    wait_for_devices()
    now = time.perf_counter_ns()
    call = _here.calls[-1]
    call.end_part(now)
    call.begin_part(label, now)


@overload
def benchmark(
    func: Function, description: str | None = "", logger: logging.Logger | None = None
) -> Function: ...
@overload
def benchmark(
    func: None = None, description: str | None = "", logger: logging.Logger | None = None
) -> Callable[[Function], Function]: ...
def benchmark(func: Any = None, description: str | None = "", logger: logging.Logger | None = None) -> Any:
    """Decorates a function so that it reports how long it took, as `description` (default: its name) to `logger`. Raises
    ParameterError for a description that is not a string, and for an invalid function or logger."""
    # Here, since where times are reported an error would take the place of a result, or of the exception that ended the function.
    if description is not None:
        recording.checked_name("description of a function", description)
    if func is not None and not callable(func):
        raise ParameterError(f"benchmark decorates a function, not {value_shown(func)}")
    if logger is not None and not callable(getattr(logger, "info", None)):
        raise ParameterError(
            f"the logger of a benchmark has a method info, as logging's have; {value_shown(logger)} has none"
        )

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        name = description or function.__name__

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if not _on:
                return function(*arguments, **named)
            wait_for_devices()
            call = _Call(name, time.perf_counter_ns())
            _here.calls.append(call)
            try:
                found = function(*arguments, **named)
            except BaseException:
                _end(call, logger, failed=True)
                raise
            _end(call, logger)
            return found

        return timed

    return decorated if func is None else decorated(func)


def _end(call: _Call, logger: logging.Logger | None, failed: bool = False) -> None:
    if not failed:  # else devices may be what failed
        wait_for_devices()
    now = time.perf_counter_ns()
    call.end_part(now)
    _here.calls.pop()
    _trace(call.name, call.begin, now)
    what = call.name + (" (ended by an exception)" if failed else "")
    entries = [(0, what, 1e-9 * (now - call.begin)), *call.entries]
    if _here.calls:
        outer = _here.calls[-1]
        deeper = 1 if outer.marked is None else 2
        outer.entries += [(depth + deeper, text, seconds) for depth, text, seconds in entries]
    else:
        _report(entries, logger)


def _report(entries: list[tuple[int, str, float]], logger: logging.Logger | None) -> None:
    ranks = known()
    if ranks is not None and ranks.rank != 0:
        return
    lines = [("  " * depth + text, f"{seconds:.6f} s") for depth, text, seconds in entries]
    width = max(len(text) for text, _ in lines)
    report = "\n".join(f"{text:<{width}}  {seconds:>14}" for text, seconds in lines)
    if logger is not None:
        logger.info(report)
    else:
        sys.stdout.write(report + "\n")
        sys.stdout.flush()


def _trace(name: str, begin: int, end: int) -> None:
    timeline = recording.timeline_of_thread()
    if timeline is not None:
        shift = timeline.now() - time.perf_counter_ns()
        timeline.add_region(name, begin + shift, end + shift)


def wait_for_devices() -> None:
    """For what libraries that this program uses have enqueued."""
    if "cupy" in sys.modules and sys.modules["cupy"].cuda.is_available():  # not where only the library is
        sys.modules["cupy"].cuda.get_current_stream().synchronize()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        sys.modules["torch"].cuda.current_stream().synchronize()
