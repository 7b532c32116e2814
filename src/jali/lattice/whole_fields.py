"""The site functions behind `f += 2 * g` and `(f * g).sum()`: an expression of `field_arithmetic`, stored or summed."""

from __future__ import annotations

import sys
from typing import Any

from jali.lattice import field_arithmetic
from jali.lattice.recorded_calls import RecordedCalls
from jali.lattice.sites import site_function


def evaluate(recorded: RecordedCalls, fields: Any, numbers: Any, X: Any) -> Any:
    """The value of recorded calls at a site."""
    return recorded.fold(
        lambda operand: fields[operand.place][X] if operand.is_field else numbers[operand.place],
        lambda call, *values: call.function(*values, *call.fixed),
    )


def components(a: Any) -> list[Any]:
    """The numbers of a value at a site."""
    shape = a.shape
    if not shape:
        return [a]
    if len(shape) == 1:
        return [a[i] for i in range(shape[0])]
    return [a[i, j] for i in range(shape[0]) for j in range(shape[1])]


def sum_of_components(a: Any) -> Any:
    """The sum of the numbers of a value at a site."""
    return sum(components(a)[1:], components(a)[0])


def sum_of_squares(a: Any) -> Any:
    """The sum of the squared moduli of the numbers of a value at a site."""
    return a.norm2()


@site_function
def store(X: Any, target: Any, fields: Any, numbers: Any, recorded: Any) -> None:
    """Writes the value of recorded calls at every site."""
    target[X] = evaluate(recorded, fields, numbers, X)


@site_function
def total(X: Any, fields: Any, numbers: Any, recorded: Any, sum: Any) -> None:
    """Sums the value of recorded calls over sites."""
    sum += evaluate(recorded, fields, numbers, X)


@site_function
def highest(X: Any, fields: Any, numbers: Any, recorded: Any, high: Any) -> None:
    """The largest number of recorded calls."""
    for x in components(evaluate(recorded, fields, numbers, X)):
        high.max(x)


@site_function
def lowest(X: Any, fields: Any, numbers: Any, recorded: Any, low: Any) -> None:
    """The smallest number of recorded calls."""
    for x in components(evaluate(recorded, fields, numbers, X)):
        low.min(x)


field_arithmetic.kernels = sys.modules[__name__]
