"""Chooses the fastest of some candidates: how often each is measured, which are dropped, and by how much one must be
faster.

Has no clock: `measure` is the caller's. With several ranks every number goes through `agree` before a decision, so that
all ranks decide alike.
"""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from jali.tune.entry import Candidate, Entry, Question

MARGIN = 0.02  # the default stays unless another is faster by more than this: below is noise
HOPELESS = 2.0  # a candidate whose first run takes so many times the best is not measured further
BUDGET = 2.0  # seconds of measured runs after which no further candidate is tried
SERIES = 2e-3  # seconds: short candidates are repeated until this is filled
FEWEST, MOST = 3, 20  # repetitions


class Impossible(Exception):  # noqa: N818  (not an error: the candidate is out)
    """A candidate cannot run here; has the reason."""


Measure = Callable[[str, int], list[float]]
Agree = Callable[[float], float]


def alone(value: float) -> float:
    """Agreement of one rank."""
    return value


def over_ranks(communicator: Any) -> Agree:
    """The largest of the values of all ranks. Collective; infinity stands for a candidate that failed."""
    if communicator.size == 1:
        return alone

    def largest(value: float) -> float:
        mine = math.inf if math.isnan(value) else value
        gathered = communicator.gather_bytes(struct.pack("d", mine), what="times of tuning")
        return max(struct.unpack("d", part)[0] for part in gathered)

    return largest


class Autotuner:
    """Tries candidates one after the other, the default first.

    `measure(name, n)` returns the seconds of n runs or raises Impossible. `agree` combines a number over ranks.
    """

    def __init__(self, default: str, measure: Measure, agree: Agree = alone):
        self.default = default
        self.candidates: dict[str, Candidate] = {}
        self._measure = measure
        self._agree = agree
        self._spent = 0.0
        self.try_candidate(default)

    def try_candidate(self, name: str) -> Candidate:
        """Measures a candidate that has not been yet."""
        if name not in self.candidates:
            self.candidates[name] = self._try(name)
        return self.candidates[name]

    @property
    def best(self) -> str:
        """The fastest so far; the default where nothing could be measured."""
        timed = [c for c in self.candidates.values() if c.seconds is not None]
        return min(timed, key=lambda c: c.seconds or 0.0).name if timed else self.default

    @property
    def chosen(self) -> str:
        """The fastest, if it beats the default by more than noise."""
        best, usual = self.candidates[self.best].seconds, self.candidates[self.default].seconds
        if best is None or usual is None:
            return self.best
        return self.best if best < (1 - MARGIN) * usual else self.default

    def entry(self, question: Question) -> Entry:
        """The answer to a question."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017
        return Entry(question, self.chosen, self.default, tuple(self.candidates.values()), now)

    def _try(self, name: str) -> Candidate:
        if self._spent > BUDGET:
            return Candidate(name, None, f"not measured: the others took {BUDGET:g} s already")
        first, note = self._timed(name, 1)
        if first == math.inf:
            return Candidate(name, None, note or "not possible on another rank")
        fastest = self.candidates[self.best].seconds if self.candidates else None
        if fastest is not None and first > HOPELESS * fastest:
            return Candidate(name, first, f"measured once: more than {HOPELESS:g} times the best")
        repetitions = max(FEWEST, min(MOST, int(SERIES / max(first, 1e-7))))
        seconds, note = self._timed(name, repetitions)
        if seconds == math.inf:
            return Candidate(name, None, note or "not possible on another rank")
        return Candidate(name, seconds)

    def _timed(self, name: str, repetitions: int) -> tuple[float, str]:
        """The median over runs, the largest over ranks; infinity and a reason where it cannot run."""
        note, mine = "", math.inf
        try:
            seconds = self._measure(name, repetitions)
            mine = statistics.median(seconds)
        except Impossible as reason:
            note = str(reason)
        agreed = self._agree(mine)
        if agreed != math.inf:
            self._spent += repetitions * agreed
        return agreed, note
