"""Applications that come with jali: inverse problems and spectra, on as many ranks as there are. `jali example` lists and runs them.

An example is a module with a docstring, `solve(options)`, which gives what was found, `draw(found, path)`, and `EXPECTED`: numbers that
it should give, each with the relative difference that is allowed. A new one is a module and a row of `EXAMPLES`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """A row of the table: where it lives, what it shows, which packages it needs."""

    module: str
    summary: str
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Those of the packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


EXAMPLES: dict[str, Example] = {
    "lsm": Example(
        "jali.examples.lsm", "least-squares migration: reflectors from seismic data, sources over ranks"
    ),
}


@dataclass(frozen=True)
class Options:
    """How an example is run: the library of local parts ("numpy", "cupy", "torch"), and whom to tell how far it is (on rank 0)."""

    engine: str = "numpy"
    progress: Callable[[str], object] = lambda text: None


@dataclass
class Found:
    """What an example gives: numbers by name, equal on all ranks, and arrays for pictures, on rank 0."""

    numbers: dict[str, float]
    arrays: dict[str, Any] = field(default_factory=dict)


Expected = dict[str, tuple[float, float]]


def verdicts(found: Found, expected: Expected) -> list[tuple[str, float, float, bool]]:
    """Of each number that is expected: its name, what was found, what should be, and whether that is near enough."""
    rows = []
    for name, (value, allowed) in expected.items():
        number = found.numbers.get(name, float("nan"))
        rows.append((name, number, value, abs(number - value) <= allowed * abs(value)))
    return rows
