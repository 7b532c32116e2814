"""Sums of a few numbers on the host, with the same bits in every version of Python and on devices."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any


def sum_in_order(numbers: Iterable[Any]) -> Any:
    """Their sum, rounded after each addition; there is at least one. The built-in `sum` of Python 3.12 carries what rounding takes from floats along,
    so its last bits are not those of a device or of an older Python."""
    return functools.reduce(operator.add, numbers)
