"""The arithmetics that kernels compute in, one descriptor each; users name them by `precision=`.

A new arithmetic is an entry of `ARITHMETICS`. What depends on an arithmetic is a column; nothing else compares names of arithmetics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic. Real numbers have `bits` bits, and so have whole ones."""

    name: str  # of NumPy's type of real numbers
    bits: int
    c_type: str  # of a real number in kernels
    suffix: str  # of C's functions of such numbers: fma, fmaf
    letter: str  # of instructions and libraries: d, s
    epsilon: float  # from 1 to the next number
    # Whether sums, which are of doubles, hold whole numbers that its reals would round.
    widens_whole: bool

    @property
    def bytes(self) -> int:
        """Of a real number."""
        return self.bits // 8

    def dtype(self, kind: str) -> np.dtype[Any]:
        """NumPy's type of its numbers of a kind: `int`, `real` or `complex`."""
        return np.dtype(
            {"int": f"int{self.bits}", "real": self.name, "complex": f"complex{2 * self.bits}"}[kind]
        )


ARITHMETICS = {
    arithmetic.name: arithmetic
    for arithmetic in (
        Arithmetic("float32", 32, "float", "f", "s", 2.0**-23, widens_whole=True),
        Arithmetic("float64", 64, "double", "", "d", 2.0**-52, widens_whole=False),
    )
}
"""By name, the narrowest first."""

PRECISIONS = tuple(ARITHMETICS)


def widest(names: Iterable[str]) -> str:
    """The widest of some arithmetics; of none the widest that there is."""
    return max(names, key=PRECISIONS.index, default=PRECISIONS[-1])


def at_least(name: str) -> tuple[str, ...]:
    """The arithmetics that hold all numbers of this one."""
    return PRECISIONS[PRECISIONS.index(name) :]


def arithmetic_of(dtype: np.dtype[Any]) -> Arithmetic | None:
    """The arithmetic whose real, complex or whole numbers have this type of NumPy's; None if none has it."""
    kinds = ("int", "real", "complex")
    return next((a for a in ARITHMETICS.values() if any(dtype == a.dtype(kind) for kind in kinds)), None)
