"""Vector operations on whole fields: `axpy`, `inner`, `norm2`, `copy`.

The vector operations of a Krylov solver, each one kernel. A field is seen as one long vector over sites and components; the
sums are reproducible (same bits on any number of ranks) unless `fast=True`. Formulas with more than two operands are better
written as site functions of their own: one pass over memory instead of several.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from jali.errors import LayoutError
from jali.files import value_shown
from jali.host_sums import sum_in_order
from jali.lattice.base import no_field, what_differs
from jali.lattice.field import Field
from jali.lattice.sites import site_function


@site_function
def _axpy(X: Any, y: Any, x: Any, a: Any) -> None:
    y[X] += a * x[X]


@site_function
def _copy(X: Any, y: Any, x: Any) -> None:
    y[X] = x[X]


@site_function
def _inner(X: Any, x: Any, y: Any, total: Any) -> None:
    total += x[X].dot(y[X])


@site_function
def _norm2(X: Any, x: Any, total: Any) -> None:
    total += x[X].norm2()


def axpy(a: float | complex, x: Field, y: Field) -> Field:
    """y += a x, in place; returns y.

    Raises LayoutError when x and y differ in lattice or element, or when `a` is complex and the fields are real.
    """
    _same("axpy", x, y)
    factor = _number(a)
    if isinstance(factor, complex) and y.element.type.kind == "real":
        raise LayoutError(f"axpy: the factor {a} is complex, {y.name} holds {y.element}")
    _axpy(y, x, factor)
    return y


def copy(x: Field, y: Field) -> Field:
    """y = x, one kernel; returns y. `x.copy()` makes a new field. Raises LayoutError when x and y differ in lattice or element."""
    _same("copy", x, y)
    _copy(y, x)
    return y


def inner(x: Field, y: Field, fast: bool = False, wait: bool = True) -> Any:
    """Sum over sites and components of conj(x) y: a float for real fields, a complex number for complex ones; with `wait=False`
    a `Scalar`.

    Raises LayoutError when x and y differ in lattice or element.
    """
    _same("inner", x, y)
    return x.lattice.sum(_inner, x, y, fast=fast, wait=wait)


def norm2(x: Field, fast: bool = False, wait: bool = True) -> Any:
    """Sum over sites and components of |x|^2: a float, with `wait=False` a `Scalar`."""
    _same("norm2", x, x)
    return x.lattice.sum(_norm2, x, fast=fast, wait=wait)


def sum_of_members(numbers: Any) -> Any:
    """The sum of the numbers of the members of a batch, an array or with `wait=False` a `ScalarArray`: added in order, with the same bits."""
    return sum_in_order(numbers.tolist()) if isinstance(numbers, np.ndarray) else numbers.sum()


def _number(a: Any) -> float | complex:
    """`a` as a Python float, or as a complex number if it has an imaginary type: whole numbers would make another kernel."""
    if isinstance(a, numbers.Real):
        return float(a)
    if isinstance(a, numbers.Complex):
        return complex(a)
    raise LayoutError(f"a factor of fields is a number, not {value_shown(a)}")


def _same(what: str, x: Field, y: Field) -> None:
    for f in (x, y):
        if not isinstance(f, Field):
            raise LayoutError(f"{what} takes fields, not {no_field(f)}")
    if x.lattice is not y.lattice:
        raise LayoutError(
            f"{what}: {x.name} lives on {x.lattice}, {y.name} on {y.lattice} ({what_differs(x.lattice, y.lattice)})"
        )
    if x.element != y.element:
        raise LayoutError(f"{what}: {x.name} holds {x.element}, {y.name} holds {y.element}")
    if x.batch is not None and x.batch != y.batch and (y.batch is not None or what != "inner"):
        raise LayoutError(
            f"{what}: {x.name} has a batch of {x.batch}, {y.name} {'none' if y.batch is None else f'one of {y.batch}'}; f.members[k] is one member"
        )


__all__ = ["axpy", "copy", "inner", "norm2", "sum_of_members"]
