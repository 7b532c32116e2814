"""The site functions behind `f += 2 * g` and `(f * g).sum()`: a formula of `field_arithmetic`, stored or summed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from jali.lattice import field_arithmetic, functions
from jali.lattice.formulas import BINARY, is_operand
from jali.lattice.sites import site_function


def evaluate(formula: str, fields: Any, given: Any, X: Any) -> Any:
    """The value of a formula at a site."""
    stack: list[Any] = []
    for token in formula.split():
        if token in BINARY:
            b, a = stack.pop(), stack.pop()
            stack.append((_BINARY.get(token) or getattr(functions, token))(a, b))
        elif is_operand(token):
            stack.append(fields[int(token[1:])][X] if token[0] == "f" else given[int(token[1:])])
        else:
            a = stack.pop()
            if token.startswith(("**", "//")):
                stack.append(a ** int(token[2:]) if token[0] == "*" else a // int(token[2:]))
            elif token[0] == "%":
                stack.append(a % int(token[1:]))
            elif token in _UNARY:
                stack.append(_UNARY[token](a))
            else:
                stack.append(getattr(functions, token)(a))
    return stack.pop()


def components(a: Any) -> list[Any]:
    """The numbers of a value at a site."""
    shape = a.shape
    if not shape:
        return [a]
    if len(shape) == 1:
        return [a[i] for i in range(shape[0])]
    return [a[i, j] for i in range(shape[0]) for j in range(shape[1])]


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "@": lambda a, b: a @ b,
    "**": lambda a, b: a**b,
    "dot": lambda a, b: a.dot(b),
    "outer": lambda a, b: a.outer(b),
}

_UNARY: dict[str, Callable[[Any], Any]] = {
    "round": functions.round_,  # as `jali.round` is called
    "negative": lambda a: -a,
    "positive": lambda a: a,
    "abs": abs,
    "real": lambda a: a.real,
    "imag": lambda a: a.imag,
    "conj": lambda a: a.conj(),
    "dagger": lambda a: a.dagger(),
    "trace": lambda a: a.trace(),
    "transpose": lambda a: a.transpose(),
    "det": lambda a: a.det(),
    "inverse": lambda a: a.inverse(),
    "norm2": lambda a: a.norm2(),
    "sum": lambda a: sum(components(a)[1:], components(a)[0]),
}


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


field_arithmetic.kernels = sys.modules[__name__]
