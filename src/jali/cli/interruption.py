"""Ctrl-C and SIGTERM as a request: finish the sweep, write a checkpoint, stop, on all ranks at the same
place.

A signal may reach one rank only, so a rank merely notes it, and once per sweep the ranks agree. Where no
sweep would be lost (before the first one, or while kernels are made for one that follows a checkpoint) a
signal ends the program where it is: by `Interrupted`, a `KeyboardInterrupt`. So does a second Ctrl-C
after a moment anywhere, and the checkpoint before it stands.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

from jali.codegen import interruptible
from jali.comm import Communicator

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

# A terminal and a launcher may both pass on one Ctrl-C.
SAME_PRESS = 1.0


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program at once; `number` is the signal's."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"interrupted ({number.name})")
        self.number = number


class Interruption:
    """Notes SIGINT and SIGTERM while it is entered. Outside the main thread it notes `request` only.

    `at_once` is whether a signal ends the program at any point, `saved` whether it does so while kernels are
    made, since all sweeps that are done are in a checkpoint. Both may be changed at any time.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self.saved = False
        self._noted: signal.Signals | None = None
        self._since = 0.0
        self._raised = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            interruptible.listen(self._making_kernels)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._before:
            interruptible.listen(None)

    def request(self, number: signal.Signals) -> None:
        """Request a stop at the next agreement, as the signal would."""
        if self._noted is None:
            self._since = time.monotonic()
        if self._noted is not signal.SIGTERM:
            self._noted = number

    def agreed(self, ranks: Communicator) -> signal.Signals | None:
        """The signal that some rank has received, the same answer on all ranks (collective); SIGTERM goes first."""
        noted = [int(self._noted is number) for number in SIGNALS]
        interrupts, terminations = ranks.all_reduce_sum(noted)
        if terminations:
            return signal.SIGTERM
        return signal.SIGINT if interrupts else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again = self._noted is not None and time.monotonic() - self._since > SAME_PRESS
        self.request(signal.Signals(number))
        if again and number == signal.SIGINT:
            raise Interrupted(signal.SIGINT)
        if self.at_once or (self.saved and interruptible.under_way()):
            self._end()

    def _making_kernels(self) -> None:
        """Kernels are about to be made, which may take minutes: too long for a signal that has come already."""
        if self._noted is not None and (self.at_once or self.saved):
            self._end()

    def _end(self) -> None:
        # Once: a second signal of the same press must not end what cleans up after the first.
        if not self._raised:
            self._raised = True
            assert self._noted is not None
            raise Interrupted(self._noted)
