"""Ctrl-C and SIGTERM as a request: finish the sweep, write a checkpoint, stop, on all ranks at the same
place.

A signal may reach one rank only, so a rank merely notes it, and once per sweep the ranks agree. A second
Ctrl-C after a moment means now: it is an ordinary `KeyboardInterrupt`, and the checkpoint before it stands.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

from jali.comm import Communicator

SIGNALS = (signal.SIGINT, signal.SIGTERM)

# A terminal and a launcher may both pass on one Ctrl-C.
SAME_PRESS = 1.0


class Interruption:
    """Notes SIGINT and SIGTERM while it is entered. Outside the main thread it notes `request` only."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks
        self._noted: signal.Signals | None = None
        self._since = 0.0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def request(self, number: signal.Signals) -> None:
        """Ask to stop at the next agreement, as the signal would."""
        if self._noted is None:
            self._since = time.monotonic()
        if self._noted is not signal.SIGTERM:
            self._noted = number

    def agreed(self) -> signal.Signals | None:
        """The signal that some rank has received, the same answer on all ranks (collective); SIGTERM goes first."""
        noted = [int(self._noted is number) for number in SIGNALS]
        interrupts, terminations = self._ranks.all_reduce_sum(noted)
        if terminations:
            return signal.SIGTERM
        return signal.SIGINT if interrupts else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self._noted is not None and time.monotonic() - self._since > SAME_PRESS
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.request(signal.Signals(number))
