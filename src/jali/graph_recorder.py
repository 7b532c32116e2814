"""What a thread records instead of executing it: the calls of a function that `jali.graph` will repeat.

A call that can be repeated takes the `GraphRecorder` of this thread and, where there is one, appends an operation to it. A call
that needs a value from the device, the host or other ranks calls `refuse`. Does not depend on what the operations do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jali import _core
from jali.codegen.lines import user_line
from jali.errors import RecordingError

recorders = 0
"""How many threads record now. Zero is the usual case, and all that a call checks."""

_guard = threading.Lock()
_this_thread = threading.local()


class Operation(NamedTuple):
    """One that a graph repeats. `warm_up` makes ready what `run` needs of the host and of other ranks, and lets fields count as written as
    `run` does, without running it; None: there is nothing of that."""

    run: Callable[[], Any]
    warm_up: Callable[[], Any] | None = None


class GraphRecorder:
    """Operations in the order of the program, and the objects that they keep alive."""

    def __init__(self, lattice: Any):
        self.lattice = lattice
        self.operations: list[Operation] = []
        self.flops = 0.0  # of a repetition on all ranks
        self.held: list[Any] = []
        self.launches: list[Any] = []
        self.bound: list[Any] = []  # calls
        self.sums: list[Any] = []  # left as digits, perhaps not taken yet
        self.made: list[Any] = []  # nodes of expressions, weakly
        self.borrowed: list[Any] = []  # storages in arrays of others
        self.written: list[Any] = []  # nodes whose locations get values
        self.changing: list[Any] = []  # (storage, parities) that are written

    def __enter__(self) -> GraphRecorder:
        if current() is not None:
            raise RecordingError(
                f"a graph is recorded already; its steps are calls, not graphs\n  at {line()}"
            )
        _count(+1)
        _this_thread.recorder = self
        return self

    def append(self, what: str, gpu: Any, run: Callable[[], Any], held: Any, borrowed: Sequence[Any]) -> None:
        """Appends work of ranks on a device, with what it needs; `borrowed`: arrays whose owners continue with them.
        Raises RecordingError."""
        if gpu is not self.lattice.gpu:
            raise RecordingError(
                f"{what} runs on {gpu.name}, which is not the device of the graph, that of {self.lattice}\n  at {line()}"
            )
        self.operations.append(Operation(run))
        self.held.append(held)
        self.borrowed += borrowed

    def __exit__(self, *_: Any) -> None:
        _this_thread.recorder = None
        _count(-1)


def _count(change: int) -> None:
    global recorders
    with _guard:
        recorders += change
        _core.count_recorders(
            change
        )  # calls that the core answers without Python are passed to Python meanwhile


def current() -> GraphRecorder | None:
    """What this thread records, if it does."""
    return getattr(_this_thread, "recorder", None)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """What this thread does meanwhile is done, not recorded."""
    recorder, _this_thread.recorder = current(), None
    try:
        yield
    finally:
        _this_thread.recorder = recorder


def line() -> str:
    """The user's line."""
    return user_line(beyond_trace=True)


def refuse(what: str, instead: str) -> None:
    """Raises RecordingError while this thread records: `what` (a sentence's subject and verb) cannot be part of a graph."""
    if recorders and current() is not None:
        raise RecordingError(
            f"{what} while a graph is recorded, which computes nothing yet; {instead}\n  at {line()}"
        )


def refuse_call(name: str) -> None:
    """Raises RecordingError while this thread records: what `name` does with other ranks cannot be part of a graph."""
    if recorders:
        refuse(
            f"{name} is called",
            "call it before or after. In graphs ranks meet in halos, in sums over sites, lattice.sum(..., wait=False), and in "
            "collectives, plans and messages on arrays of devices",
        )


def refuse_for_host(name: str, why: str) -> None:
    """Raises RecordingError while this thread records: `name` is of arrays on a device, but `why` it takes the host."""
    refuse(f"{name} {why}, which takes the host, is called", "call it before or after")
