"""The tuner of a device: what it remembers, and whether it may measure."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from jali import _core, settings
from jali.codegen import target
from jali.tune.entry import Entry, Question
from jali.tune.store import Store

MODES = {
    "off": "defaults; nothing is read, measured or written",
    "cached": "what is remembered, else defaults; nothing is measured",
    "on": "what is remembered; a kernel that is not is measured once it has run for long enough to pay for it (the default)",
    "now": "what is remembered; a kernel that is not is measured when it runs first",
    "again": "every kernel is measured when it runs first, whatever is remembered",
}

_tuners: dict[Path, Tuner] = {}
_guard = threading.Lock()


def mode() -> str:
    """The value of JALI_TUNE, one of `MODES`."""
    return settings.current().tune


class Tuner:
    """Answers about one device. Made by `tuner_of`; safe to use from several threads."""

    def __init__(self, store: Store):
        self.store = store
        self._known: dict[Question, Entry] | None = None
        self._fresh: set[Question] = set()  # measured by this process
        self._guard = threading.Lock()

    def recall(self, question: Question) -> Entry | None:
        """The remembered answer, if JALI_TUNE lets it count."""
        requested = mode()
        if requested == "off":
            return None
        with self._guard:
            if requested == "again" and question not in self._fresh:
                return None
            if self._known is None:
                self._known = self.store.read()
            return self._known.get(question)

    def remember(self, entry: Entry) -> None:
        """For this process and, in the file, for the next."""
        with self._guard:
            self._fresh.add(entry.question)
            if self._known is None:
                self._known = self.store.read()
            self._known[entry.question] = entry
        self.store.remember(entry)


def tuner_of(gpu: Any) -> Tuner:
    """The tuner of a device of the core, or (None) of the host. Raises CompileError where the cache cannot be used."""
    store = Store.of_device(device_words(gpu))
    with _guard:
        return _tuners.setdefault(store.path, Tuner(store))


def device_words(gpu: Any) -> str:
    """Name and driver of a device; of the host, its processor."""
    if gpu is None:
        return target.host().name
    _, version = _core.Gpu.driver(gpu.kind)
    return f"{gpu.name}, {gpu.kind} {version}"
