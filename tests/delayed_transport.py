"""A transport made for tests: bytes between threads of this process that arrive late, and its ranks."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import jali.comm

Boxes = dict[tuple[int, int, int], deque]  # from, to, tag: when there, and what


class Delayed(jali.comm.Transport):
    """Every message takes from nothing to `delay` seconds; those of one pair and tag stay in order."""

    name = "delayed"

    def __init__(self, rank: int, boxes: Boxes, size: int, delay: float) -> None:
        self.rank, self.size, self.boxes, self.delay = rank, size, boxes, delay
        self.random = random.Random(rank)
        self.requested: dict[tuple[int, int], deque] = defaultdict(deque)
        self.messages = 0

    def send(self, data: memoryview, to: int, tag: int) -> float:
        self.messages += 1
        there = time.monotonic() + self.random.uniform(0, self.delay)
        self.box(self.rank, to, tag).append((there, bytes(data)))
        return there

    def box(self, source: int, to: int, tag: int) -> deque:
        """One for both ends: a defaultdict may make two, one of which is lost, if both look at once."""
        return self.boxes.setdefault((source, to, tag), deque())

    def sent(self, message: float) -> bool:
        return time.monotonic() > message

    def receive(self, source: int, tag: int) -> tuple[int, int, object]:
        mine = (source, tag, object())
        self.requested[source, tag].append(mine)
        return mine

    def received(self, message: tuple[int, int, object]) -> bytes | None:
        source, tag, _ = message
        box = self.box(source, self.rank, tag)
        is_first = self.requested[source, tag][0] is message
        if not is_first or not box or box[0][0] > time.monotonic():
            return None
        self.requested[source, tag].popleft()
        return box.popleft()[1]


def on_delayed_ranks(size: int, function: Callable[..., Any], *arguments: Any, delay: float = 0.001) -> list:
    """`function(*arguments)` on ranks that are threads of this process; the first exception, if there is one."""
    boxes: Boxes = {}
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with jali.comm.over(Delayed(rank, boxes, size, delay), threads=1):
                results[rank] = function(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
