"""Validation of what communicators, compositions and plans are given: whole numbers, flags and names, as the core can hold them.

Whole numbers may be NumPy's; flags, floats and texts are none. Whether a number makes sense is decided where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index as as_integer
from typing import Any

import numpy as np

from jali.errors import ParameterError, PlanError
from jali.files import name_shown, value_shown


def whole(name: str, value: Any, bits: int = 31, error: type[ParameterError] = PlanError) -> int:
    """A whole number of so many bits (31: an int of the core). Raises PlanError, or `error`, by this name."""
    number = integer(value)
    if number is None:
        raise error(f"{name} is a whole number, not {value_shown(value)}")
    if abs(number) >> bits:
        raise error(f"{name} {value_shown(number)} is beyond all that there can be; give less than 2^{bits}")
    return number


def integer(value: Any) -> int | None:
    """A whole number of any size; None for everything else, flags among it."""
    try:
        return None if isinstance(value, bool | np.bool_) else as_integer(value)
    except TypeError:
        return None


def several(value: Any) -> bool:
    """Whether these are several things; texts, bytes and arrays of no dimension are one."""
    return (
        isinstance(value, Iterable)
        and not isinstance(value, str | bytes | bytearray)
        and getattr(value, "shape", None) != ()
    )


def each(value: Any) -> list[Any]:
    """Several things, or one."""
    return list(value) if several(value) else [value]


def memory(name: str, value: Any) -> int:
    """A number of bytes from 0, at most what the core can number. Raises PlanError."""
    number = integer(value)
    if number is None or number < 0:
        raise PlanError(f"{name} is a number of bytes from 0, not {value_shown(value)}")
    return min(number, (1 << 63) - 1)


def flag(name: str, value: Any, error: type[ParameterError] = PlanError) -> bool:
    """Raises PlanError, or `error`, for a value that is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} is True or False, not {value_shown(value)}")
    return bool(value)


def names(name: str, value: Any) -> list[str]:
    """One name or several. Raises PlanError."""
    given = each(value)
    for one in given:
        if not isinstance(one, str):
            raise PlanError(
                f"{name} are names like 'mpi', one or one for each level, not {value_shown(value)}"
            )
    return [name_shown(one) for one in given]


def weights(name: str, value: Any) -> list[float]:
    """Real numbers. Raises PlanError."""
    given = each(value)
    try:
        if any(isinstance(one, bool | np.bool_ | str) for one in given):
            raise TypeError
        return [float(one) for one in given]
    except (TypeError, ValueError):
        raise PlanError(f"{name} are real numbers, one for each rank, not {value_shown(value)}") from None
    except OverflowError:
        raise PlanError(f"{name} are finite, not {value_shown(value)}") from None
