"""The arithmetics that kernels compute in, one descriptor each; users name them by `precision=`.

A new arithmetic is an entry of `ARITHMETICS` (docs/recipes/arithmetic.md). What depends on an arithmetic is a column; nothing else
compares names of arithmetics. How a field keeps its numbers is something else (`storage_formats.py`).

A real number of one machine word is an IEEE number of the processor: the compiler has vectors of it, NumPy has its type, and the
prelude knows its bits. One of several words is a C++ class that the entry brings along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic."""

    name: str
    bits: int  # of a real number in memory
    c_type: str  # of a real number in kernels
    epsilon: float  # twice the largest relative error of rounding: of IEEE numbers from 1 to the next
    suffix: str = ""  # of C's functions of such numbers: fma, fmaf
    letter: str = ""  # of instructions and libraries: d, s
    words: int = 1  # machine words of a real number
    operations: int = 1  # of the processor, for one on such numbers
    # the arithmetic whose numbers NumPy sees and whose whole ones its kernels have, float64 where a number has several words; "": itself
    numpy: str = ""
    sums: str = "float64"  # the arithmetic that terms of sums are of
    # C++ that defines `c_type`, with constructors from `double`, `float`, `int` and `int64_t`, explicit conversions to the first, the
    # second and the last, + - * /, comparisons, `fma_one`, `sqrt_one` and `floor_one`; without lines of the preprocessor. "": the
    # compiler has it
    text: str = ""
    # C++ that keeps such numbers in memory, a struct as in `storage_formats.py` whose units are machine words: in kernels of this
    # arithmetic, where JALI_IEEE is 0, and of wider ones. "": as they are
    storage: str = ""

    @property
    def bytes(self) -> int:
        """Of a real number in memory."""
        return self.bits // 8

    @property
    def word(self) -> str:
        """The arithmetic of a machine word."""
        return next(name for name in IEEE_PRECISIONS if ARITHMETICS[name].bits * self.words == self.bits)

    @property
    def whole_bits(self) -> int:
        """Of a whole number."""
        return 8 * self.dtype("int").itemsize

    @property
    def widens_whole(self) -> bool:
        """Whether sums hold whole numbers that its reals would round."""
        return not self._holds(self.whole_bits) and ARITHMETICS[self.sums]._holds(self.whole_bits)

    def _holds(self, bits: int) -> bool:
        """Whether its reals hold all whole numbers of so many bits."""
        return self.epsilon * 2.0 ** (bits - 1) <= 2

    def dtype(self, kind: str) -> np.dtype[Any]:
        """The type of its numbers of a kind, `int`, `real` or `complex`, as NumPy sees them."""
        if self.numpy:
            return ARITHMETICS[self.numpy].dtype(kind)
        return np.dtype(
            {"int": f"int{self.bits}", "real": self.name, "complex": f"complex{2 * self.bits}"}[kind]
        )


ARITHMETICS = {
    arithmetic.name: arithmetic
    for arithmetic in (
        Arithmetic("float32", 32, "float", 2.0**-23, "f", "s"),
        Arithmetic("float64", 64, "double", 2.0**-52, "", "d"),
    )
}
"""By name, the narrowest first."""

PRECISIONS = tuple(ARITHMETICS)
IEEE_PRECISIONS = tuple(name for name, arithmetic in ARITHMETICS.items() if arithmetic.words == 1)


def widest(names: Iterable[str]) -> str:
    """The widest of some arithmetics; of none the widest of the processor's."""
    return max(names, key=PRECISIONS.index, default=IEEE_PRECISIONS[-1])


def at_least(name: str) -> tuple[str, ...]:
    """The arithmetics that hold all numbers of this one."""
    return PRECISIONS[PRECISIONS.index(name) :]


def seen_by_numpy(name: str) -> str:
    """The arithmetic whose numbers NumPy sees of one."""
    return ARITHMETICS[name].numpy or name


def arithmetic_of(dtype: np.dtype[Any]) -> Arithmetic | None:
    """The arithmetic whose real, complex or whole numbers have this type of NumPy's; None if none has it."""
    kinds = ("int", "real", "complex")
    ieee = (ARITHMETICS[name] for name in IEEE_PRECISIONS)
    return next((a for a in ieee if any(dtype == a.dtype(kind) for kind in kinds)), None)
