"""Faults that are seeded into what drivers are given: held against the checker, or made when the fake driver receives it.

A `Seeded` stands in for the `RecordedCalls` of a rank where a test makes faults of them: it can be asked and changed as
these can, and remembers what is changed. So one list of faults serves the checker and the fake devices, on which they
do harm that can be seen: other bits, or a device on which nothing moves.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jali import _core
from jali.errors import DeviceError, RankError

COUNTED = (  # calls that the fake driver counts
    *("launch", "copy", "fill", "record event", "wait for event"),
    *("ccl send", "ccl receive"),
)
ACTIONS = ("drop", "hold back", "repeat", "other bytes")  # as in fake_gpu_state.hpp


@dataclass(frozen=True)
class Seeded:
    """The calls of a rank with some changes: (method of RecordedCalls, arguments) each."""

    record: _core.RecordedCalls
    changes: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name in (
            "without",
            "with_call_repeated",
            "with_call_moved",
            "with_arguments",
            "with_memory",
            "with_addresses",
        ):
            return lambda *arguments: replace(self, changes=(*self.changes, (name, arguments)))
        return getattr(self.record, name)

    def recorded(self) -> _core.RecordedCalls:
        """What the checker takes."""
        record = self.record
        for name, arguments in self.changes:
            record = getattr(record, name)(*arguments)
        return record

    def in_every_run(self, run: int) -> Seeded:
        """The same in all runs of the record, which are alike: what is changed in `run` is a part of a graph."""
        begins = [
            k for k, (kind, name, _) in enumerate(self.record.calls) if (kind, name) == ("mark", "begin")
        ]
        size = begins[1] - begins[0]
        changes = []
        for other in reversed(range(len(begins))):  # later calls first, since others move up
            for name, arguments in self.changes:
                shift = 0 if name == "with_memory" else (other + 1 - run) * size
                addresses = 2 if name == "with_call_moved" else 1
                moved = (*(a + shift for a in arguments[:addresses]), *arguments[addresses:])
                changes.append((name, arguments if name == "with_memory" else moved))
        return replace(self, changes=tuple(changes))

    def can_be_made(self) -> bool:
        """Whether the driver sees the difference."""
        kinds = [kind for kind, _, _ in self.record.calls]
        return all(
            name == "with_memory" or all(kinds[k] in COUNTED for k in self._calls_of(name, arguments))
            for name, arguments in self.changes
        )

    @staticmethod
    def _calls_of(name: str, arguments: tuple[Any, ...]) -> tuple[int, ...]:
        """The calls that have to be changed."""
        return tuple(range(arguments[1], arguments[0] + 1)) if name == "with_call_moved" else arguments[:1]

    def change_tables(self) -> None:
        """Writes what is changed in device memory, while nothing runs."""
        for name, arguments in self.changes:
            if name == "with_memory":
                address, contents = arguments
                before = self.record.memory[address]
                for at in range(len(contents)):
                    if contents[at] != before[at]:
                        ctypes.memset(address + at, contents[at], 1)

    @contextlib.contextmanager
    def made(self, run: int) -> Iterator[None]:
        """What this thread does meanwhile is given to the driver with the changes in this run of the record."""
        runs = np.cumsum([(kind, name) == ("mark", "begin") for kind, name, _ in self.record.calls])
        mine = [k for k, (kind, _, _) in enumerate(self.record.calls) if runs[k] == run and kind in COUNTED]
        fake = fake_driver()
        fake.fakeChange(ctypes.c_long(-1), 0, None, ctypes.c_long(0))
        for name, arguments in self.changes:
            if name == "with_memory" or arguments[0] not in mine:
                continue
            call, action, contents = mine.index(arguments[0]), name, b""
            if name == "with_call_moved":  # those before it come later
                for k in range(arguments[1], arguments[0]):
                    _change(mine.index(k), "hold back", b"")
                continue
            action = {"without": "drop", "with_call_repeated": "repeat"}.get(name, "other bytes")
            if name == "with_arguments":
                contents = arguments[1]
            elif name == "with_addresses":
                contents = np.array(arguments[1:], np.uint64).tobytes()
            _change(call, action, contents)
        try:
            yield
        finally:
            fake.fakeChange(ctypes.c_long(-1), 0, None, ctypes.c_long(0))


def _change(call: int, action: str, contents: bytes) -> None:
    fake_driver().fakeChange(
        ctypes.c_long(call), ACTIONS.index(action), contents, ctypes.c_long(len(contents))
    )


def fake_driver() -> ctypes.CDLL:
    """The one that this process uses."""
    return ctypes.CDLL(os.environ["JALI_CUDA_DRIVER"])


def refused(records: list[_core.RecordedCalls]) -> str:
    """What the checker says of them, or nothing."""
    try:
        _core.check_recorded(records)
    except RuntimeError as error:
        return str(error)
    return ""


def outcome(body: Callable[[], bool]) -> str:
    """What came of a run in which nobody knows what is wrong: 'right', 'other bits', 'fault', 'stuck', or 'refused' by the
    vendor's library; devices are as new after it."""
    found = ""
    try:
        found = "right" if body() else "other bits"
    except (DeviceError, RankError) as error:
        for words, name in (
            ("a fault in ", "fault"),
            ("nothing moves", "stuck"),
            ("unhandled cuda error", "fault"),  # as NCCL says it
            ("invalid usage", "refused"),
        ):
            found = found or (name if words in str(error) else "")
        if not found:
            raise
    finally:
        fake_driver().fakeRecover()
        if found != "right":
            gc.collect()  # what failed hears of its ranks whenever a device is waited for, until it goes
    return found
