"""The site functions behind `f += 2 * g` and `(f * g).sum()`: a formula of `field_arithmetic`, stored or summed."""

from __future__ import annotations

from typing import Any

from jali.lattice.field_arithmetic import components, evaluate
from jali.lattice.sites import site_function


@site_function
def store(X: Any, target: Any, fields: Any, numbers: Any, formula: Any) -> None:
    """Writes the value of a formula at every site."""
    target[X] = evaluate(formula, fields, numbers, X)


@site_function
def total(X: Any, fields: Any, numbers: Any, formula: Any, sum: Any) -> None:
    """Sums the value of a formula over sites."""
    sum += evaluate(formula, fields, numbers, X)


@site_function
def highest(X: Any, fields: Any, numbers: Any, formula: Any, high: Any) -> None:
    """The largest number of a formula's values."""
    for x in components(evaluate(formula, fields, numbers, X)):
        high.max(x)


@site_function
def lowest(X: Any, fields: Any, numbers: Any, formula: Any, low: Any) -> None:
    """The smallest number of a formula's values."""
    for x in components(evaluate(formula, fields, numbers, X)):
        low.min(x)
