"""The progress display of a run: a bar with live plaquette and time left on a terminal, plain lines elsewhere.

Only one rank makes one of these. It shows numbers of sweeps and a plaquette, or the current step of a search.
"""

from __future__ import annotations

import time
from typing import Any, TextIO

from rich import progress as rich
from rich.console import Console

# A line is due after a share of the sweeps, but not too soon, and in any case after a while.
SHARE, SOONEST, LATEST = 0.05, 1.0, 10.0


class PlainProgress:
    """Lines for logs: every 5 % of the sweeps, every ten seconds at the latest, at most one a second."""

    def __init__(self, stream: TextIO, first: int, total: int, thermalisation: int) -> None:
        self._stream = stream
        self._total = total
        self._thermalisation = thermalisation
        self._shown = self._begun = first
        self._time = time.monotonic()
        # The first sweep may include compiling, so speed is counted from the second on.
        self._counted_from: tuple[int, float] | None = None

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open."""

    def advance(self, sweep: int, plaquette: float | None) -> None:
        """Sweep number `sweep` is done; `plaquette` is the latest that was measured."""
        now = time.monotonic()
        if self._counted_from is None:
            self._counted_from = (sweep, now)
        waited = now - self._time
        share = (sweep - self._shown) >= SHARE * (self._total - self._begun)
        if not (waited >= LATEST or (share and waited >= SOONEST) or sweep == self._total):
            return
        self._shown, self._time = sweep, now
        width = len(str(self._total))
        parts = [f"sweep {sweep:{width}d}/{self._total}"]
        if plaquette is not None:
            parts.append(f"plaquette {plaquette:.6f}")
        counted, since = self._counted_from
        if sweep > counted and now > since:
            speed = (sweep - counted) / (now - since)
            parts.append(f"{speed:.3g} sweeps/s")
            if sweep < self._total:
                parts.append(f"{clock((self._total - sweep) / speed)} left")
        if sweep <= self._thermalisation:
            parts.append("thermalising")
        print("  ".join(parts), file=self._stream, flush=True)


class TerminalProgress:
    """A bar that redraws itself."""

    def __init__(self, stream: TextIO, first: int, total: int, thermalisation: int) -> None:
        self._thermalisation = thermalisation
        self._progress = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=None),
            rich.MofNCompleteColumn(),
            rich.TextColumn("plaquette {task.fields[plaquette]}"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("left"),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task(
            self._phase(first), total=total, completed=first, plaquette="--------"
        )

    def __enter__(self) -> TerminalProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, sweep: int, plaquette: float | None) -> None:
        """Sweep number `sweep` is done; `plaquette` is the latest that was measured."""
        change: dict[str, Any] = {} if plaquette is None else {"plaquette": f"{plaquette:.6f}"}
        self._progress.update(self._task, completed=sweep, description=self._phase(sweep), **change)

    def _phase(self, sweep: int) -> str:
        return "thermalising" if sweep < self._thermalisation else "measuring"


Progress = PlainProgress | TerminalProgress


def show_progress(stream: TextIO, first: int, total: int, thermalisation: int) -> Progress:
    """The progress display that fits the stream, with `first` of `total` sweeps done."""
    kind = TerminalProgress if stream.isatty() and first < total else PlainProgress
    return kind(stream, first, total, thermalisation)


class ChangingLine:
    """A line of a terminal that is written over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = 0

    @property
    def is_shown(self) -> bool:
        """Whether it is there."""
        return self._width > 0

    def write(self, line: str) -> None:
        """Instead of what was there."""
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Take it away."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


class SearchProgress:
    """What a search for a plan is doing: on a terminal one line that changes, after a second; elsewhere a line every
    ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._begun = self._shown = time.monotonic()
        self._line = ChangingLine(stream)

    def __call__(self, what: str) -> None:
        """Print it, if it is time."""
        now = time.monotonic()
        if now - self._shown < (0.1 if self._line.is_shown else SOONEST if self._terminal else LATEST):
            return
        self._shown = now
        line = f"searching, {clock(now - self._begun)}: {what}"
        if self._terminal:
            self._line.write(line)
        else:
            print(line, file=self._stream, flush=True)

    def done(self) -> None:
        """Take the line away."""
        self._line.clear()


class StepProgress:
    """Steps of an application: on a terminal one line that changes; elsewhere a line every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._begun = self._shown = time.monotonic()
        self._line = ChangingLine(stream)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._line.clear()
        print(text, file=self._stream, flush=True)

    def advance(self, done: int, steps: int) -> None:
        """So many steps of so many are done."""
        now = time.monotonic()
        if done == 1:  # the first one may have prepared what others use, so speed is counted from here
            self._begun = now
        elif done < steps and now - self._shown >= (0.1 if self._terminal else LATEST):
            self._shown = now
            left = (now - self._begun) / (done - 1) * (steps - done)
            line = f"step {done}/{steps}, {clock(left)} left"
            if self._terminal:
                self._line.write(line)
            else:
                print(line, file=self._stream, flush=True)
        if done >= steps:
            self._line.clear()


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
