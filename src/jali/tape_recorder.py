"""What a thread records beside executing it: the calls whose derivatives a `jali.Tape` is for.

A call that has a derivative looks for the recorder of this thread and, where there is one, gives itself to it. Does not depend on what
tapes do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

recorders = 0
"""How many threads record now. Zero is the usual case, and all that a call checks."""

_guard = threading.Lock()
_this_thread = threading.local()


def current() -> Any:
    """The tape that this thread records on, or None."""
    return getattr(_this_thread, "tape", None)


@contextlib.contextmanager
def recording(tape: Any) -> Iterator[None]:
    """What this thread calls meanwhile is recorded on a tape; None: on none."""
    global recorders
    before, _this_thread.tape = current(), tape
    change = (tape is not None) - (before is not None)
    with _guard:
        recorders += change
    try:
        yield
    finally:
        _this_thread.tape = before
        with _guard:
            recorders -= change


def before_write(field: Any, whole: bool) -> None:
    """A field, or a part of it, is about to be written by something that is no call: its values before may be needed."""
    if recorders and (tape := current()) is not None:
        tape.before_write(field, whole)


def refuse(name: str, instead: str) -> None:
    """Raises TraceError while this thread records: `name` has no derivative that a tape knows."""
    if recorders and (tape := current()) is not None:
        tape.refuse(f"{name} has no derivative that a tape knows: {instead}")
