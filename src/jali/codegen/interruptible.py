"""Work that may take minutes and changes nothing: tracing and compiling. It can be aborted at any time.

A program with signal handlers of its own, like `jali run`, which otherwise finishes a sweep first, queries here whether its
main thread does such work at present, and is called before more of it begins.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_depth = 0
_before: Callable[[], None] | None = None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Around such work. What the main thread's listener raises ends it."""
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        if _before is not None:
            _before()
        yield
    finally:
        _depth -= 1


def under_way() -> bool:
    """Whether the main thread does such work."""
    return _depth > 0


def listen(before: Callable[[], None] | None) -> None:
    """Call `before` when such work of the main thread begins; None ends that."""
    global _before
    _before = before
