"""How long the steps of an example take, and which part of it is communication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from jali import comm
from jali.profile import Span, recording
from jali.profile.marks import wait_for_devices

COMMUNICATING = ("collective", "transport", "send", "receive", "wait")
WAITING_FOR_DEVICE = ("wait", "device")  # for what it computes


@dataclass
class Timing:
    """Seconds of the slowest rank for so many steps, and the part of them in which a rank sent, received or waited for others, on
    average: communication, and what ranks wait because they are not equally fast."""

    steps: int
    seconds: float = 0.0
    communication: float = 0.0

    @property
    def per_step(self) -> float:
        """Seconds."""
        return self.seconds / max(1, self.steps)

    def __str__(self) -> str:
        return f"{1e3 * self.per_step:.4g} ms a step, {100 * self.communication:.1f} % of it in communication"


@contextmanager
def timing(steps: int) -> Iterator[Timing]:
    """Times a block of so many steps on all ranks; collective. Devices are waited for at both ends.

    Raises RuntimeError inside of `jali.profile.recording()`.
    """
    ranks, found = comm.current(), Timing(steps)
    wait_for_devices()
    with recording(ranks) as recorded:
        yield found
        wait_for_devices()
    measured = np.zeros(2)
    if ranks.rank == 0:  # which has the spans of all
        shares = [
            covered(s for s in recorded.spans if s.rank == rank) / seconds
            for rank, seconds in enumerate(recorded.seconds)
        ]
        measured[:] = max(recorded.seconds), sum(shares) / ranks.size
    ranks.broadcast(measured, 0)
    found.seconds, found.communication = map(float, measured)


def covered(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of these spans, of one rank, was communication."""
    total, until = 0.0, float("-inf")
    those = (s for s in spans if s.phase in COMMUNICATING and (s.phase, s.name) != WAITING_FOR_DEVICE)
    for span in sorted(those, key=lambda s: s.begin):
        total += max(0.0, span.end - max(span.begin, until))
        until = max(until, span.end)
    return total
