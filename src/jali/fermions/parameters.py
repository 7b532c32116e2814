"""Parameters of operators that may change: attributes that take what the constructor takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.files import value_shown


def real_number(name: str, value: Any) -> float:
    """A finite real number. Raises ParameterError."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool | np.complexfloating)
    if not number or not math.isfinite(value):
        raise ParameterError(f"{name} is a finite real number, not {value_shown(value)}")
    return float(value)


class RealParameter:
    """An attribute that is a finite real number; `positive`: above zero, `optional`: or None. Setting another value raises ParameterError."""

    def __init__(self, said: str = "", *, positive: bool = False, optional: bool = False, since: str = ""):
        self._said, self._positive, self._optional, self._since = said, positive, optional, since

    def __set_name__(self, owner: type, name: str) -> None:
        self._kept, self._said = f"_{name}", self._said or name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self._kept)

    def __set__(self, instance: Any, value: Any) -> None:
        if not (self._optional and value is None):
            value = real_number(self._said, value)
            if self._positive and value <= 0:
                raise ParameterError(f"{self._said} is positive{self._since}, not {value_shown(value)}")
        setattr(instance, self._kept, value)


class FixedParameter:
    """An attribute that is set once: another value takes another operator. Setting it again raises ParameterError, with what to do instead."""

    def __init__(self, instead: str):
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._kept = name, f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self._kept)

    def __set__(self, instance: Any, value: Any) -> None:
        if hasattr(instance, self._kept):
            raise ParameterError(f"{self._name} does not change: {self._instead}")
        setattr(instance, self._kept, value)
