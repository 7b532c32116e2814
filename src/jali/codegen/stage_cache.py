"""Caches of the stages of a kernel, and counts of what was found in them and what had to be made.

A cache belongs to the thing that its contents are made of (`stages.py`), and is deleted with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")
STAGES = ("traced", "rewritten", "analysed", "lowered", "source", "binary", "bound")


@dataclass
class Counts:
    """How often a stage was found, and how often it had to be made, in this process."""

    found: int = 0
    made: int = 0

    def count(self, found: bool) -> None:
        """One more."""
        self.found += found
        self.made += not found


COUNTS = {stage: Counts() for stage in STAGES}


class StageCache(Generic[Made]):
    """The results of a stage for one object, by its other inputs; the oldest is dropped first.

    Two threads that request the same result at once may both make it, and both get the first one stored: no thread waits.
    """

    __slots__ = ("_guard", "_made", "counts", "most")

    def __init__(self, stage: str, most: int):
        self.counts = COUNTS[stage]
        self.most = most
        self._made: dict[Hashable, Made] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What there is for this key, made on first use."""
        with self._guard:
            found = self._made.get(key)
            self.counts.count(found is not None)
            if found is not None:
                return found
        made = make()
        with self._guard:
            found = self._made.setdefault(key, made)
            while len(self._made) > self.most:
                del self._made[next(iter(self._made))]
        return found
