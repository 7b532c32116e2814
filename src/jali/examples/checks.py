"""What parameters of an example may be, and what the numbers that it gives should be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jali.errors import ParameterError
from jali.files import value_shown


@dataclass(frozen=True)
class Sizes:
    """Parameters of an example: numbers by name, each at least that of `LEAST`, else 1 if it is a whole one and 0 if not; and
    words, of those in `WORDS`, or any without an entry there.

    Raises ParameterError for others.
    """

    LEAST: ClassVar[Mapping[str, float]] = {}
    WORDS: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                known = self.WORDS.get(name, (value,))
                if value not in known:
                    raise ParameterError(f"{name} is {' or '.join(known)}, not {value_shown(value)}")
                continue
            least: Any = self.LEAST.get(name, 1 if isinstance(value, int) else 0.0)
            if not (value >= least and math.isfinite(value)):
                raise ParameterError(f"{name} is {least} or more, not {value}")


@dataclass(frozen=True)
class Near:
    """This value, up to a relative difference, or for zero an absolute one."""

    value: float
    allowed: float

    def holds(self, number: float) -> bool:
        """Whether a number is near enough; NaN is not."""
        return abs(number - self.value) <= self.allowed * (abs(self.value) or 1.0)

    def __str__(self) -> str:
        return f"{self.value:.6g} up to {self.allowed:.0e}"


@dataclass(frozen=True)
class AtMost:
    """This value or less."""

    value: float

    def holds(self, number: float) -> bool:
        """Whether a number is; NaN is not."""
        return number <= self.value

    def __str__(self) -> str:
        return f"at most {self.value:.6g}"


@dataclass(frozen=True)
class AtLeast:
    """This value or more."""

    value: float

    def holds(self, number: float) -> bool:
        """Whether a number is; NaN is not."""
        return number >= self.value

    def __str__(self) -> str:
        return f"at least {self.value:.6g}"


@dataclass(frozen=True)
class Of:
    """A number that only the check computes, such as the difference from a reference, and what it should be."""

    number: float
    wanted: Near | AtMost | AtLeast


Expected = Mapping[str, Near | AtMost | AtLeast | Of]


def furthest(series: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative difference of a number from that of a reference; NaN where there are fewer numbers than there."""
    if len(series) < len(reference):
        return math.nan
    return max(abs(x - y) / abs(y) for x, y in zip(series, reference, strict=False))


@dataclass(frozen=True)
class Verdict:
    """A number that was found, what it should be, and whether it is."""

    name: str
    found: float
    wanted: str
    holds: bool


def verdicts(numbers: Mapping[str, float], expected: Expected) -> list[Verdict]:
    """Of each number that is expected; one that was not found is NaN."""
    entries = []
    for name, wanted in expected.items():
        number = numbers.get(name, float("nan"))
        if isinstance(wanted, Of):
            number, wanted = wanted.number, wanted.wanted
        entries.append(Verdict(name, float(number), str(wanted), bool(wanted.holds(number))))
    return entries
