"""Numbers of a step, where the vectors are: of a host, or of a device, where nothing waits for them. Of a batch they are arrays with one for each member.

Functions that `computed` gets are one kernel of a device; what they divide by zero is chosen away with `where`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b: of numbers of the host or of a device."""
    return condition.where(a, b) if hasattr(condition, "where") else np.where(condition, a, b)


def sqrt(x: Any) -> Any:
    """The root, of numbers of the host or of a device."""
    return x.sqrt() if hasattr(x, "sqrt") else np.sqrt(x)


def going(rr: Any, size: Any, tolerance: Any) -> Any:
    """Whether |r| / |b| is above the tolerance."""
    return sqrt(rr) / size > tolerance


def times(a: Any, b: Any) -> Any:
    """a b."""
    return a * b


def quotient(new: Any, old: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """new / old, zero where a member has converged."""
    return where(going(rr, size, tolerance), new / old, 0.0)


def ratio(above: Any, below: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """above / below, zero where a member has converged, or there is nothing to divide by."""
    return where(going(rr, size, tolerance) & (abs(below) > 0), above / below, 0.0)


def over(value: Any, real: Any) -> Any:
    """value / real, with the bits of numbers of a device: NumPy divides complex numbers by real ones as by complex ones."""
    if isinstance(value, np.ndarray | np.generic) and np.iscomplexobj(value):
        return value.real / real + 1j * (value.imag / real)
    return value / real


def part(product: Any, square: Any) -> Any:
    """product / square, zero where the square is."""
    return where(square > 0, over(product, square), 0.0)


def length(product: Any, square: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """product / square, zero where the square is, or a member has converged."""
    return where(going(rr, size, tolerance) & (square > 0), over(product, square), 0.0)


def if_going(value: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """The value, zero where a member has converged."""
    return where(going(rr, size, tolerance), value, 0.0)


def kept(new: Any, old: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """The new number; where a member has converged the old one, by which something may divide."""
    return where(going(rr, size, tolerance), new, old)


def read(value: Any) -> np.ndarray:
    """A number, or an array of them, on the host."""
    if hasattr(value, "is_complex"):
        value = complex(value) if value.is_complex else float(value)
    return np.asarray(value)


def computed(function: Callable[..., Any], *numbers: Any) -> Any:
    """The function of numbers; of arrays on a device by one kernel."""
    if hasattr(numbers[0], "elementwise"):
        return numbers[0].elementwise(function, *numbers)
    with np.errstate(all="ignore"):  # what is not finite is found when it is read
        return function(*(np.asarray(x) if isinstance(x, int | float | complex) else x for x in numbers))


def settle(*numbers: Any) -> None:
    """Computes these numbers now, on a device by one launch, where they would be computed with what is made of them."""
    if hasattr(numbers[0], "computed"):
        numbers[0].computed(*numbers[1:])


def of_host(value: Any) -> Any:
    """A value that a number of a device can be assigned: a number for one, an array for those of members."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def assign(numbers: list[Any], values: list[Any]) -> None:
    """Gives numbers that stay where the vectors are these values, which are there."""
    for number, value in zip(numbers, values, strict=True):
        number.assign(value)
