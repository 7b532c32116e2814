"""The file of a comparison: one line with what is compared and how, every other one with the results of a pair of
processes, as JSON.

Lines are only added, each with a system call of its own, so an interrupted comparison leaves a file that can be continued; a
truncated last line is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jali.bench.compare.intervals import Turns
from jali.errors import FileFormatError, ParameterError

VERSION = 1


class Record:
    """What has been measured of each case: the turns of its pairs, or why there are none."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, dict(about)
        self.pairs: dict[str, list[Turns]] = {}
        self.without: dict[str, tuple[str, str]] = {}
        """Cases that were not compared: ("missing" or "failed", and why)."""
        self.work: dict[str, dict[str, Any]] = {}
        """Cases' units, and how many of them a call does."""

    @classmethod
    def begin(cls, path: Path, about: Mapping[str, Any]) -> Record:
        """An empty file, in place of an older one."""
        record = cls(path, about)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_line({"jali-bench-compare": VERSION, **about}))
        return record

    @classmethod
    def continued(cls, path: Path, about: Mapping[str, Any]) -> Record:
        """What an earlier part left; raises `ParameterError` if that compared something else, or otherwise."""
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.truncate(path, len(whole.encode()))
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            version = first.pop("jali-bench-compare")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise FileFormatError(f"{path} is no file of a comparison of jali") from None
        if version != VERSION:
            raise FileFormatError(f"{path} has version {version} of its format; this jali reads {VERSION}")
        for key, value in about.items():
            if first.get(key) == value:
                continue
            if _shown(first.get(key)) == _shown(value):
                raise ParameterError(
                    f"{path} cannot be continued: the sources of {key}, {_shown(value)}, have changed since"
                )
            raise ParameterError(
                f"{path} cannot be continued: its {key} is {_shown(first.get(key))}, now it is {_shown(value)}"
            )
        record = cls(path, about)
        for line in lines:
            record._take(line)
        return record

    def add(self, case: str, turns: Turns, unit: str, per: float) -> None:
        """What a pair of processes measured."""
        self._write({"case": case, "turns": [list(turn) for turn in turns], "unit": unit, "per": per})

    def leave_out(self, case: str, how: str, why: str) -> None:
        """A case that cannot be compared."""
        self._write({"case": case, how: why})

    def _write(self, line: dict[str, Any]) -> None:
        data = _line(line).encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, data)
        finally:
            os.close(file)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        case = line["case"]
        for how in ("missing", "failed", "stalled"):
            if how in line:
                self.without[case] = how, line[how]
                return
        self.pairs.setdefault(case, []).append([(a, b) for a, b in line["turns"]])
        self.work[case] = {"unit": line["unit"], "per": line["per"]}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value) + "\n"


def _shown(value: Any) -> str:
    return value["label"] if isinstance(value, dict) and "label" in value else repr(value)
