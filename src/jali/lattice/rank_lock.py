"""The lock that is held while working with the lattices of a rank, or waiting for other ranks."""

from __future__ import annotations

import threading
import time
import warnings

from jali import graph_recorder, settings
from jali.errors import RecordingError


class RankLock:
    """A reentrant lock. `acquire` and `release` are the plain lock's, for callers that wait for a recorder themselves."""

    def __init__(self) -> None:
        lock = threading.RLock()
        self.acquire = lock.acquire
        self.release = lock.release
        self.recorded = False  # its holder records a graph, and perhaps waits for other threads

    def __enter__(self) -> None:
        if graph_recorder.recorders:
            self.await_recorder()
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def await_recorder(self) -> None:
        """Waits while another thread records. Raises RecordingError after the watchdog's time: it may wait for this thread."""
        chosen = settings.current()
        start, warned = time.monotonic(), False
        while not self.acquire(timeout=0.1):
            waited = time.monotonic() - start
            if not self.recorded:
                start = time.monotonic()
            elif chosen.watchdog and waited > chosen.watchdog:
                raise RecordingError(
                    f"another thread has been recording a graph for {waited:.0f} s, and this one waits for it to end; a graph's "
                    f"function must not wait for threads that use its rank\n  at {graph_recorder.line()}"
                )
            elif chosen.wait_warning and waited > chosen.wait_warning and not warned:
                warned = True
                warnings.warn(
                    f"this thread has waited {waited:.0f} s for another one that records a graph",
                    RuntimeWarning,
                    stacklevel=3,
                )
        self.release()
