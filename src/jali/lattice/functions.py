"""Functions for use inside site functions; on plain numbers they compute at once."""

from __future__ import annotations

import cmath
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.codegen import shapes
from jali.codegen.language import conversions, elementary
from jali.codegen.lines import trace_error
from jali.codegen.operation import Operation
from jali.codegen.state import builder, tracing
from jali.codegen.symbol import Symbol, WithoutValue
from jali.codegen.values import Value, complex_number, identity, is_list, lift, matrix, vector, zero
from jali.codegen.values import where as where_symbols
from jali.errors import ParameterError
from jali.files import value_shown
from jali.lattice.field_arithmetic import FieldArithmetic, expression_of
from jali.lattice.scalars import Condition, LocatedArray, LocatedValue, Scalar, apply
from jali.lattice.shape_calls import fixed_axis, joined, stacked


def _at_once(name: str, plain: Callable[..., Any], *numbers_given: Any) -> Any:
    """`plain` of numbers. What Python refuses is a TraceError while a function is traced, a ParameterError otherwise."""
    try:
        for x in numbers_given:
            if not isinstance(x, numbers.Number | np.number) and not (
                isinstance(x, np.ndarray) and x.shape == ()
            ):
                raise TypeError("takes numbers and symbols")
        return plain(*[x[()] if isinstance(x, np.ndarray) else x for x in numbers_given])
    except (TypeError, ValueError, OverflowError) as error:
        said = f"jali.{name}({', '.join(map(value_shown, numbers_given))}): {error}"
        raise (trace_error if tracing() else ParameterError)(said) from error


def _one(
    name: str,
    plain: Callable[[Any], Any],
    complex_plain: Callable[[Any], Any] | None = None,
    operation: Operation | None = None,
) -> Callable[[Any], Any]:
    """The function of a number, a Scalar, a symbol or a whole field that an operation is; without one, the elementary function of
    this name. `plain` computes it of Python's numbers, `complex_plain` of complex ones."""
    descriptor, attrs = (elementary.call, (name,)) if operation is None else (operation, ())

    def function(x: Any) -> Any:
        if isinstance(x, Value):
            if x.shape and name == "exp":
                return x.exp()
            return Value(descriptor(builder(), *attrs, x.node))
        if isinstance(x, WithoutValue):
            lift(x)
        if isinstance(x, FieldArithmetic):
            return x.applied(function)
        if isinstance(x, Scalar):
            return apply(descriptor, attrs, x)
        if isinstance(x, LocatedArray):
            return x.elementwise(function, x)
        if name in ("exp", "log", "sqrt") and hasattr(x, name):  # a Total, which has a history
            return getattr(x, name)()
        return _at_once(name, complex_plain if complex_plain and np.iscomplexobj(x) else plain, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"`{name}` of a number, a `Scalar`, a symbol, a whole field, or the elements of a `ScalarArray`"
        f"{', or of a `Total`' if name in ('exp', 'log', 'sqrt') else ''}."
    )
    return function


def _two(
    name: str, ir_name: str, plain: Callable[[Any, Any], Any], operation: Operation | None = None
) -> Callable[[Any, Any], Any]:
    """The same of two; without an operation the elementary function `ir_name`."""
    descriptor, attrs = (elementary.call, (ir_name,)) if operation is None else (operation, ())

    def function(x: Any, y: Any) -> Any:
        if isinstance(x, FieldArithmetic):
            return x.applied(function, y)
        if isinstance(y, FieldArithmetic):
            return y.applied(function, x, swapped=True)
        if isinstance(x, LocatedArray) or isinstance(y, LocatedArray):
            return (x if isinstance(x, LocatedArray) else y).elementwise(function, x, y)
        if isinstance(x, Scalar) or isinstance(y, Scalar):
            return apply(descriptor, attrs, x, y)
        if isinstance(x, Symbol) or isinstance(y, Symbol):
            return Value(descriptor(builder(), *attrs, lift(x), lift(y)))
        return _at_once(name, plain, x, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"`{name}` of two numbers, `Scalar`s, symbols, whole fields, or the elements of `ScalarArray`s."
    )
    return function


def _sign(x: Any) -> Any:
    found = int(x > 0) - int(x < 0)
    return x if x != x else found if isinstance(x, bool | np.bool_) else type(x)(found)


def _nan_wins(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`min` or `max` of two numbers, NaN where one of them is, as at a site."""
    return lambda a, b: a if a != a else b if b != b else compare(a, b)


exp = _one("exp", math.exp, cmath.exp)
log = _one("log", math.log, cmath.log)
sqrt = _one("sqrt", math.sqrt, cmath.sqrt)
sin = _one("sin", math.sin)
cos = _one("cos", math.cos)
tan = _one("tan", math.tan)
sinh = _one("sinh", math.sinh)
cosh = _one("cosh", math.cosh)
tanh = _one("tanh", math.tanh)
asin = _one("asin", math.asin)
acos = _one("acos", math.acos)
atan = _one("atan", math.atan)
floor = _one("floor", math.floor)
ceil = _one("ceil", math.ceil)
round_ = _one("round", round)
sign = _one("sign", _sign)
arg = _one("arg", cmath.phase)
atan2 = _two("atan2", "atan2", math.atan2)
power = _two("power", "pow", math.pow)
minimum = _two("minimum", "minimum", _nan_wins(min))
maximum = _two("maximum", "maximum", _nan_wins(max))


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where `condition` holds, else `b`; both are evaluated. Of symbols, of a `Condition` and Scalars or numbers, or
    of elements of arrays of numbers.

    Raises TraceError in a site function, else ParameterError, for a condition that is none.
    """
    for x in (condition, a, b):
        if isinstance(x, LocatedArray):
            return x.elementwise(where, condition, a, b)
    if isinstance(condition, Condition):
        return condition.where(a, b)
    if tracing():
        return where_symbols(condition, a, b)
    if isinstance(condition, bool | np.bool_):
        return a if condition else b
    raise ParameterError(
        f"jali.where chooses by a comparison of Scalars, such as s > 0, or by symbols in a site function, not by {value_shown(condition)}"
    )


def complex_(re: Any, im: Any) -> Any:
    """re + i im, of real numbers, Scalars, symbols, whole fields or arrays of numbers. Raises TraceError for complex ones."""
    if isinstance(re, FieldArithmetic):
        return re.applied(complex_, im)
    if isinstance(im, FieldArithmetic):
        return im.applied(complex_, re, swapped=True)
    if isinstance(re, LocatedArray) or isinstance(im, LocatedArray):
        return (re if isinstance(re, LocatedArray) else im).elementwise(complex_, re, im)
    if isinstance(re, Scalar) or isinstance(im, Scalar):
        return apply(conversions.complex_number, (), re, im)
    if isinstance(re, Symbol) or isinstance(im, Symbol):
        return complex_number(re, im)
    return _at_once("complex", complex, re, im)


def _of_fields(values: Any, what: str) -> list[Any] | None:
    """A list in which whole fields are; None for others."""
    if isinstance(values, FieldArithmetic):
        raise trace_error(f"{what} needs a list of fields, [f, g], not {value_shown(values)}")
    found = list(values) if is_list(values) else []
    return found if any(isinstance(value, FieldArithmetic) for value in found) else None


def stack(values: Any, axis: int = 0) -> Any:
    """Numbers as a vector, vectors as the rows (axis 0) or columns (axis 1) of a matrix: of symbols, of `Scalar`s and arrays of numbers, or of
    whole fields at every site.

    Raises TraceError in a site function where shapes differ, of fields when the expression is computed; else ParameterError or ShapeError.
    """
    if isinstance(values, list | tuple) and any(isinstance(value, LocatedValue) for value in values):
        from jali.lattice.scalar_arrays import stack as stack_numbers

        return stack_numbers(values, axis)
    if (fields := _of_fields(values, "jali.stack")) is not None:
        return expression_of(stacked, fields, (fixed_axis(axis, "jali.stack"),))
    return shapes.stack(values, axis)


def concatenate(values: Any, axis: int = 0) -> Any:
    """Vectors one behind the other, matrices one below the other (axis 0) or side by side (axis 1); of symbols, or of whole fields at every
    site.

    Raises TraceError where they do not fit, of fields when the expression is computed.
    """
    if isinstance(values, list | tuple) and any(isinstance(value, LocatedValue) for value in values):
        raise ParameterError(
            "jali.concatenate takes symbols or whole fields, not arrays of numbers that stay on the device: jali.stack puts Scalars and vectors "
            "of them together, lattice.scalars(np.concatenate(jali.read(a, b))) joins them through the host"
        )
    if (fields := _of_fields(values, "jali.concatenate")) is not None:
        return expression_of(joined, fields, (fixed_axis(axis, "jali.concatenate"),))
    return shapes.concatenate(values, axis)


def diagonal(v: Any) -> Any:
    """The diagonal matrix of a vector, 0 elsewhere as in `jali.identity(n)`; of a real one it is known to be Hermitian. Of a symbol, or of a
    whole field at every site."""
    if isinstance(v, LocatedValue):
        raise ParameterError(
            "jali.diagonal takes a symbol or a whole field, not numbers that stay on the device: of a vector v, v * lattice.scalars(np.eye(n)) "
            "is the diagonal matrix, and of a matrix a.diagonal() the diagonal"
        )
    return v.applied(shapes.diagonal) if isinstance(v, FieldArithmetic) else shapes.diagonal(v)


__all__ = [
    "acos",
    "arg",
    "asin",
    "atan",
    "atan2",
    "ceil",
    "complex_",
    "concatenate",
    "cos",
    "cosh",
    "diagonal",
    "exp",
    "floor",
    "identity",
    "log",
    "matrix",
    "maximum",
    "minimum",
    "power",
    "round_",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "stack",
    "tan",
    "tanh",
    "vector",
    "where",
    "zero",
]
