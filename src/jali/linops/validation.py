"""Numbers that users pass to operators."""

from __future__ import annotations

from typing import Any

from jali.comm.validation import integer
from jali.errors import ParameterError
from jali.files import value_shown


def positive(name: str, value: Any) -> int:
    """A whole number from 1. Raises ParameterError, by this name."""
    number = integer(value)
    if number is None or number < 1:
        raise ParameterError(f"{name} is a positive whole number, not {value_shown(value)}")
    return number


def distance(sampling: Any) -> float:
    """That of samples. Raises ParameterError for a value that is not a number, and for 0."""
    try:
        step = float(sampling)
    except (TypeError, ValueError):
        step = 0.0
    if step == 0.0 or step != step:
        raise ParameterError(
            f"sampling is the distance of samples, a number that is not 0; not {value_shown(sampling)}"
        )
    return step
