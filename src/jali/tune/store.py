"""The tuner's memory: a JSON file per device in the folder `tune` of the kernel cache.

It may be read, edited and deleted at any time. Processes that write at once lose nothing: each takes a lock, reads what is
there, adds its own and renames. A file that is damaged, or of something else, is warned about and set aside at the
next writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path

from jali.codegen.kernel_cache import cache_directory
from jali.errors import FileFormatError
from jali.files import open_lock, read_bytes
from jali.tune.entry import Entry, Question

FORMAT = "jali tuner 1"
_MOST = 1 << 28  # bytes of a file


def tune_directory() -> Path:
    """The folder; made if absent, for its user alone. Raises CompileError where the kernel cache cannot be used."""
    folder = cache_directory() / "tune"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def stores() -> list[Store]:
    """The files of all devices that were tuned for."""
    return [Store(path) for path in sorted(tune_directory().glob("*.json"))]


class Store:
    """One file. `device` describes its device; None accepts any."""

    def __init__(self, path: Path, device: str | None = None):
        self.path = path
        self.device = device

    @classmethod
    def of_device(cls, device: str) -> Store:
        """The file of a device such as "NVIDIA H200, cuda 12.8"."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", device).strip("-")
        return cls(tune_directory() / f"{name}.json", device)

    def read(self) -> dict[Question, Entry]:
        """What is remembered; nothing, and a warning that names the file, where it cannot be understood."""
        return self._read()[0]

    def remember(self, entry: Entry) -> None:
        """Adds an answer, in place of an older one to the same question."""

        def add(entries: dict[Question, Entry]) -> bool:
            known = entries.get(entry.question)
            if known is not None and known.same_answer(entry):
                return False  # another rank that shares this file was first
            entries[entry.question] = entry
            return True

        self._change(add)

    def forget(self, kernel: str | None = None) -> int:
        """Drops the answers about a kernel (its name, or the beginning of its digest), or all; returns how many."""
        gone = 0

        def drop(entries: dict[Question, Entry]) -> bool:
            nonlocal gone
            doomed = [
                q for q in entries if kernel is None or q.kernel == kernel or q.digest.startswith(kernel)
            ]
            for question in doomed:
                del entries[question]
            gone = len(doomed)
            return gone > 0

        self._change(drop)
        return gone

    def _read(self) -> tuple[dict[Question, Entry], bool]:
        """Entries, and whether the file was understood (or is not there)."""
        try:
            text = read_bytes(self.path, _MOST, "a file of this tuner").decode()
        except FileNotFoundError:
            return {}, True
        except (OSError, FileFormatError, UnicodeDecodeError) as error:
            return self._complain(f"cannot be read ({error})")
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                return self._complain(f"is not a file of this tuner (format {FORMAT!r})")
            if self.device is not None and found["device"] != self.device:
                return self._complain(f"is for another device, {found['device']!r}")
            self.device = str(found["device"])
            entries = [Entry.from_json(e) for e in found["entries"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return self._complain(f"is damaged ({type(error).__name__}: {error})")
        return {entry.question: entry for entry in entries}, True

    def _complain(self, what: str) -> tuple[dict[Question, Entry], bool]:
        warnings.warn(
            f"the tuner's file {self.path} {what}; what it knew is measured anew",
            RuntimeWarning,
            stacklevel=2,
        )
        return {}, False

    def _change(self, change: Callable[[dict[Question, Entry]], bool]) -> None:
        """Reads, changes and writes under the lock. Where that fails there is a warning, since nothing is lost but time."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(6)}")
        try:
            with open_lock(self.path.with_suffix(".lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                entries, understood = self._read()
                if not change(entries):
                    return
                if not understood:
                    os.replace(self.path, self.path.with_suffix(".unreadable"))
                ordered = sorted(
                    entries.values(), key=lambda e: (e.question.kernel, e.question.kind, e.question.volume)
                )
                document = {
                    "format": FORMAT,
                    "device": self.device,
                    "entries": [e.as_json() for e in ordered],
                }
                try:
                    temporary.write_text(json.dumps(document, indent=1) + "\n")
                    os.replace(temporary, self.path)
                finally:
                    temporary.unlink(missing_ok=True)
        except OSError as error:
            warnings.warn(
                f"the tuner's file {self.path} cannot be written: {error.strerror}; the next program measures again",
                RuntimeWarning,
                stacklevel=3,
            )
