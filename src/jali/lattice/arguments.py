"""Arguments of site functions: what identifies them, what the tracer needs of them, and the numbers in them."""

from __future__ import annotations

import enum
import inspect
import types
from typing import Any

import numpy as np

from jali.codegen.arithmetics import widest
from jali.codegen.directions import Direction, Offset
from jali.codegen.lines import trace_error
from jali.codegen.storage_formats import ArrayArgument, FieldArgument
from jali.codegen.symbol import Symbol
from jali.codegen.types import Element, Type
from jali.errors import LayoutError
from jali.files import value_shown
from jali.lattice.domain import Domain
from jali.lattice.field import Field
from jali.lattice.field_arithmetic import FieldArithmetic
from jali.lattice.lattice import Lattice
from jali.lattice.random import Random
from jali.lattice.ratio import ratio_of, why_not_together
from jali.lattice.recorded_calls import RecordedCalls
from jali.lattice.scalars import Condition, LocatedArray, Scalar


class _Sum:
    """Stands where a parameter is a sum: `SUM`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "a sum"


SUM = _Sum()
REAL, COMPLEX, INT = Type("real"), Type("complex"), Type("int")


def check_function(function: Any) -> None:
    """Raises TraceError at the user's line for what cannot become a site function."""
    if hasattr(function, "__wrapped_site_function__"):
        raise trace_error(f"{function.__name__} is a site function already; decorate it once")
    if not isinstance(function, types.FunctionType | types.MethodType):
        hint = (
            "; other decorators stand above @jali.site_function" if hasattr(function, "__wrapped__") else ""
        )
        raise trace_error(
            f"@jali.site_function stands above a function, def f(X, ...), and without parentheses; {value_shown(function)} is none{hint}"
        )
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise trace_error(
            f"{function.__name__} is a generator or a coroutine; a site function is an ordinary one, without yield and await"
        )
    if isinstance(function, types.FunctionType) and code.co_varnames[:1] == ("cls",):
        raise trace_error(
            f"{function.__name__} is a method of a class; a site function has the site in front, def f(X, ...), or is a method "
            "of objects, def f(self, X, ...)"
        )


def is_constant(argument: Any) -> bool:
    """Whether an argument is fixed while tracing and known by its value: an object marked as constant (`SITE_CONSTANT`), or an
    enumeration's member that is no number."""
    return getattr(type(argument), "SITE_CONSTANT", False) or (
        isinstance(argument, enum.Enum) and not isinstance(argument, int | float | str)
    )


def key_of(argument: Any) -> Any:
    """The part of an argument that decides which bound launch is used; cheap, called for every run.

    Objects are known by their identity: the key keeps them alive.
    """
    kind = type(argument)
    if kind is Field:
        return argument.serial
    if kind is float or kind is int or kind is complex or kind is Random:
        return kind
    if kind is RecordedCalls:
        return argument
    if kind is Direction or kind is types.FunctionType:  # without the many questions below
        return (kind, argument)
    if kind is tuple or kind is list:
        return (kind, *map(key_of, argument))
    if getattr(kind, "SITE_CONSTANT", False):
        return (kind, argument)
    if kind is Scalar:
        return argument.key
    if kind is _Sum:
        return kind
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return tuple([f.serial for f in fields])
    if isinstance(argument, np.ndarray):
        return (kind, argument.shape, argument.dtype.kind)
    if isinstance(argument, Field):
        return argument.serial
    if argument is None or isinstance(
        argument, str | bool | np.bool_ | Direction | Offset | Element | Domain
    ):
        return (kind, argument)
    if is_constant(argument):
        return (kind, argument)
    if isinstance(argument, np.generic | int | float | complex):
        return kind
    if isinstance(argument, LocatedArray):
        return argument.key
    if kind is types.MethodType:  # bound anew at every look
        return (kind, id(argument.__self__), id(argument.__func__))
    return (kind, id(argument))


def describe(argument: Any, name: str, lattice: Any) -> Any:
    """An argument as the tracer wants it, of a call that runs over a lattice."""
    if isinstance(argument, Symbol):
        raise trace_error(
            f"{name} is a symbol of another site function; a site function is inlined by calling it with the site first, f(X, ...)"
        )
    if argument is SUM:
        return "sum"
    if isinstance(argument, Field):
        return _described(argument, lattice)
    if isinstance(argument, Scalar):
        return COMPLEX if argument.is_complex else REAL
    if isinstance(argument, LocatedArray) and argument.kind != "bool":
        if not ArrayArgument(argument.kind, argument.shape).is_value:
            raise trace_error(
                f"{name}: {value_shown(argument)} is too large for a site function, which takes up to 256 numbers; pass a part, {name}[:8]"
            )
        return Type(argument.kind, argument.shape)
    if isinstance(argument, Condition | LocatedArray):
        raise trace_error(f"{name}: a condition is no number; pass jali.where({name}, a, b)")
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return [describe(f, name, lattice) for f in fields]
    if isinstance(argument, Random):
        return "random"
    if isinstance(argument, Direction | Offset | bool | np.bool_ | str | type(None) | Element | Domain):
        return ("static", argument)
    if is_constant(argument):
        return ("static", argument)
    if isinstance(argument, list | tuple):
        return [describe(a, f"{name}[{k}]", lattice) for k, a in enumerate(argument)]
    if isinstance(argument, int | np.integer):
        return INT
    if isinstance(argument, float | np.floating):
        return REAL
    if isinstance(argument, complex | np.complexfloating):
        return COMPLEX
    if isinstance(argument, np.ndarray):
        if argument.dtype.kind not in "fciub":
            raise trace_error(f"{name}: an array of {argument.dtype} cannot be used in a site function")
        if not argument.size:
            raise trace_error(f"{name}: an array without numbers, of shape {argument.shape}")
        if not argument.ndim:
            return {"c": COMPLEX, "i": INT, "u": INT}.get(argument.dtype.kind, REAL)
        return ArrayArgument({"c": "complex", "f": "real"}.get(argument.dtype.kind, "int"), argument.shape)
    if callable(argument):
        return ("static", argument)
    raise trace_error(
        f"{name}: a {type(argument).__name__} cannot be an argument; fields, numbers, small arrays, jali.Random, directions and "
        "functions can"
    )


def _described(field: Field, lattice: Any) -> FieldArgument:
    return FieldArgument(
        field.stored,
        field.serial,
        ratio_of(lattice, field.lattice),
        field.boundary.open,
        field.batch or 0,
        field.boundary.crossing,
    )


def fields_of(arguments: Any) -> Any:
    for a in arguments:
        if isinstance(a, Field):
            yield a
        elif getattr(a, "fields", None) is not None:
            yield from a.fields
        elif isinstance(a, FieldArithmetic):
            raise trace_error(
                f"{value_shown(a)} is no field yet; a site function takes fields: pass (...).field()"
            )
        elif isinstance(a, list | tuple):
            yield from fields_of(a)


class Outside:
    """What a trace may request from its call: fields of a method's object, and numbers for offsets.

    `known` are the fields that a method is known to take, `taken` those that it did take; `fixed` are the names of arguments whose
    values the trace depends on.
    """

    def __init__(self, known: list[Field], lattice: Any, of_object: bool, numbers: dict[str, Any]):
        self.known = known
        self.lattice = lattice
        self.of_object = of_object  # whether there is an object
        self.taken: dict[int, Field] = {}
        self.fixed: set[str] = set()
        self._numbers = numbers

    def number(self, name: str, component: int) -> int:
        """The value of a whole number among the arguments: of `k`, of a member of a list, `k[0]`, of a component of an array."""
        parameter, *positions = name.replace("]", "").split("[")
        value = self._numbers[parameter]
        for position in positions:
            value = value[int(position)]
        self.fixed.add(parameter)
        return int(np.ravel(value)[component])

    def describe(self, field: Field) -> FieldArgument:
        """As an argument would be described."""
        return _described(field, self.lattice)

    def take(self, field: Field) -> None:
        """Notes a use. Raises LayoutError for a field that cannot meet the lattice."""
        if why := why_not_together(self.lattice, field.lattice):
            raise LayoutError(
                f"{field.name} lives on {field.lattice}, the loop runs over {self.lattice}; {why}"
            )
        self.taken[field.serial] = field


def whole_numbers_of(argument: Any) -> Any:
    """The whole numbers in an argument, which offsets may be made of, as a key; None for what is none."""
    if isinstance(argument, list | tuple):
        return tuple(map(whole_numbers_of, argument))
    if isinstance(argument, np.ndarray) and argument.dtype.kind in "iu":
        return argument.shape, tuple(argument.ravel().tolist())
    return int(argument) if isinstance(argument, int | np.integer) else None


def fields_at_hand(function: Any) -> list[Field]:
    """Of a method: fields that are attributes of its object and that its code mentions, those in lists too; each once."""
    if not isinstance(function, types.MethodType):
        return []
    own = getattr(function.__self__, "__dict__", {})
    found = [own[name] for name in function.__code__.co_names if name in own]
    lists = [[value] if isinstance(value, Field) else getattr(value, "fields", value) for value in found]
    several = [one for one in lists if isinstance(one, list | tuple)]
    return list({f.serial: f for one in several for f in one if isinstance(f, Field)}.values())


def aliases(fields: list[Field]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(f.serial, k) for k, f in enumerate(fields)]


def hashable(shape: Any) -> Any:
    if isinstance(shape, FieldArgument):
        return shape.storage, shape.ratio, shape.open, shape.batch
    if isinstance(shape, tuple) and len(shape) == 2 and shape[0] == "static":
        return ("static", key_of(shape[1]))
    if isinstance(shape, list | tuple):
        return tuple(hashable(s) for s in shape)
    return shape


def lattice_of(name: str, fields: list[Field], lattice: Any) -> Any:
    """The lattice that a call runs over: the one that is given, else that of its first field. Raises LayoutError where the others
    are neither it nor multiples of it."""
    if not isinstance(lattice, Lattice | None):
        raise LayoutError(f"{name} runs on a Lattice, not on {value_shown(lattice)}")
    if lattice is None and not fields:
        raise LayoutError(
            f"{name} has no field argument, so its lattice is unknown; use lattice.sum or pass a field (lattice.wrap makes one of an array)"
        )
    lattice = lattice or fields[0].lattice
    for field in fields:
        if why := why_not_together(lattice, field.lattice):
            raise LayoutError(
                f"{name}: {field.name} lives on {field.lattice}, another argument on {lattice}; {why}"
            )
    return lattice


def common_precision(fields: list[Field]) -> str:
    """The arithmetic of a call: the widest precision of its fields (`arithmetics.py`)."""
    return widest(f.precision for f in fields)


def scalars_of(arguments: Any) -> list[Any]:
    """Values of the run-time scalars, in the order in which the tracer numbered them; called for every run."""
    found: list[Any] = []
    for a in arguments:
        kind = type(a)
        if kind is float or kind is int:
            found.append(a)
        elif kind is tuple or kind is list:
            found += scalars_of(a)
        elif kind in _WITHOUT_SCALARS or getattr(a, "fields", None) is not None:
            continue
        elif isinstance(a, list | tuple):
            found += scalars_of(a)
        elif isinstance(
            a, int | float | complex | Scalar | LocatedArray | np.generic | np.ndarray
        ) and not isinstance(a, bool | np.bool_):
            found.append(a)
    return found


_WITHOUT_SCALARS = {
    Field,
    Random,
    Direction,
    Offset,
    bool,
    np.bool_,
    str,
    type(None),
    Element,
    types.FunctionType,
}


def randoms_of(arguments: Any) -> Any:
    for a in arguments:
        if isinstance(a, Random):
            yield a
        elif isinstance(a, list | tuple):
            yield from randoms_of(a)


def statics_of(arguments: Any) -> Any:
    """Arguments that are fixed while tracing and may see other things: functions and callable objects."""
    for a in arguments:
        if isinstance(a, list | tuple):
            yield from statics_of(a)
        elif callable(a) and not isinstance(a, Field) and getattr(a, "fields", None) is None:
            yield a
