"""Recorded calls: what `2 * f + g` computes, without its fields and numbers, as the calls of functions of the site language.

The functions are those that symbols have themselves: Python's operators, the methods of `Value`, the functions of
`jali.lattice.functions`. Calls stand behind their arguments (postfix), so that an expression of any length is evaluated by one loop.
What follows of the calls alone is here: how Python writes them, and the factor of a value at a boundary.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jali.codegen.values import METHODS
from jali.lattice.shape_calls import LINEAR, METHODS_OF_SHAPE, WRITTEN

Function = Callable[..., Any]


class Operand(NamedTuple):
    """A field or a number, by its place among the fields or the numbers of an expression."""

    is_field: bool
    place: int

    def __str__(self) -> str:
        return f"{'f' if self.is_field else 'n'}{self.place}"


class Call(NamedTuple):
    """A call of a function with values, and behind them whole numbers (of an index also slices, as tuples) that are fixed while tracing."""

    function: Function
    arity: int  # how many values
    fixed: tuple[Any, ...] = ()


class RecordedCalls:
    """Operands and calls in the order of their evaluation. It is immutable, and an argument of site functions known by its value."""

    __slots__ = ("_hash", "operands", "steps")
    SITE_CONSTANT = True

    def __init__(self, *steps: Operand | Call):
        self.steps = steps
        self.operands = sum(isinstance(step, Operand) for step in steps)  # each as often as it occurs
        self._hash = hash(steps)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedCalls) and self.steps == other.steps

    def __repr__(self) -> str:
        return self.as_written({})

    def fold(self, of_operand: Callable[[Operand], Any], of_call: Callable[..., Any]) -> Any:
        """The value of the last call: `of_operand(operand)` are those of operands, `of_call(call, *values)` those of calls."""
        stack: list[Any] = []
        for step in self.steps:
            if isinstance(step, Operand):
                stack.append(of_operand(step))
            else:
                values = stack[-step.arity :]
                del stack[-step.arity :]
                stack.append(of_call(step, *values))
        return stack.pop()

    def as_written(self, names: Mapping[Operand, str]) -> str:
        """The calls as Python writes them, with these names of operands, or f0, n0 and so on."""

        def of_operand(operand: Operand) -> tuple[str, int]:
            name = names.get(operand, str(operand))
            return name, _SIGN if name.startswith("-") else _ATOM

        return self.fold(of_operand, _written)[0]

    def power_of_factor(self, is_phase: bool) -> int | None:
        """The power of a factor that the value is multiplied by when its fields are by that factor, a phase or -1; None where there
        is none."""

        def of_call(call: Call, *powers: int | None) -> int | None:
            if None in powers:
                return None
            found = {sum(map(operator.mul, degrees, powers)) for degrees in _degrees(call)}
            found = found if is_phase else {power % 2 for power in found}
            return found.pop() if len(found) == 1 else None

        return self.fold(lambda operand: int(operand.is_field), of_call)


FIELD, NUMBER = RecordedCalls(Operand(True, 0)), RecordedCalls(Operand(False, 0))
"""What a field and a number are alone."""


@functools.lru_cache(512)
def record_one(function: Function, a: RecordedCalls, fixed: tuple[Any, ...] = ()) -> RecordedCalls:
    """A call with the value of `a`."""
    return RecordedCalls(*a.steps, Call(function, 1, fixed))


@functools.lru_cache(512)
def record_several(
    function: Function,
    parts: tuple[RecordedCalls, ...],
    moved: tuple[tuple[tuple[int, ...], int], ...],
    fixed: tuple[Any, ...] = (),
) -> RecordedCalls:
    """A call with the values of several. Of all but the first `moved` has the new places of the fields, and behind how many numbers
    theirs come."""
    steps = list(parts[0].steps)
    for part, (places, numbers) in zip(parts[1:], moved, strict=True):
        steps += [
            Operand(step.is_field, places[step.place] if step.is_field else numbers + step.place)
            if isinstance(step, Operand)
            else step
            for step in part.steps
        ]
    return RecordedCalls(*steps, Call(function, len(parts), fixed))


_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(5)  # what binds more is larger
_INFIX: dict[Function, tuple[str, int, int, int]] = {  # what its operands bind at least, and it itself
    operator.add: (" + ", _SUM, _PRODUCT, _SUM),
    operator.sub: (" - ", _SUM, _PRODUCT, _SUM),
    operator.mul: (" * ", _PRODUCT, _SIGN, _PRODUCT),
    operator.matmul: (" @ ", _PRODUCT, _SIGN, _PRODUCT),
    operator.truediv: (" / ", _PRODUCT, _SIGN, _PRODUCT),
    operator.mod: (" % ", _PRODUCT, _SIGN, _PRODUCT),
    operator.floordiv: (" // ", _PRODUCT, _SIGN, _PRODUCT),
    operator.pow: ("**", _ATOM, _SIGN, _POWER),
}
_PREFIX: dict[Function, str] = {operator.neg: "-", operator.pos: "+"}


def _written(call: Call, *values: tuple[str, int]) -> tuple[str, int]:
    """A call as Python writes it, of what is written already, and what it binds."""
    if call.function in WRITTEN:
        least = _ATOM if call.arity == 1 else _SUM
        texts = [text if own >= least else f"({text})" for text, own in values]
        return WRITTEN[call.function](texts, call.fixed), _ATOM
    values += tuple((str(number), _ATOM) for number in call.fixed)

    def taken(place: int, least: int) -> str:
        text, own = values[place]
        return text if own >= least else f"({text})"

    if call.function in _INFIX:
        sign, left, right, own = _INFIX[call.function]
        return f"{taken(0, left)}{sign}{taken(1, right)}", own
    if call.function in _PREFIX:
        return f"{_PREFIX[call.function]}{taken(0, _SIGN)}", _SIGN
    name, texts = call.function.__name__, [text for text, _ in values]
    method = METHODS.get(call.function)
    if method and method.is_property:
        return f"{taken(0, _ATOM)}.{name}", _ATOM
    if method or call.function in METHODS_OF_SHAPE:
        return f"{taken(0, _ATOM)}.{name}({', '.join(texts[1:])})", _ATOM
    return f"{name}({', '.join(texts)})", _ATOM


_DEGREES: dict[Function, tuple[tuple[int, ...], ...]] = {
    operator.add: ((1, 0), (0, 1)),
    operator.sub: ((1, 0), (0, 1)),
    operator.mul: ((1, 1),),
    operator.matmul: ((1, 1),),
    operator.truediv: ((1, -1),),
    operator.neg: ((1,),),
    operator.pos: ((1,),),
    abs: ((0,),),
    **{function: described.degrees for function, described in METHODS.items() if described.degrees},
}
"""Of functions what the column `degrees` of `Operation` is of methods."""


def _degrees(call: Call) -> tuple[tuple[int, ...], ...]:
    if call.function is operator.pow and call.fixed:
        return (call.fixed,)
    linear = tuple(tuple(int(k == place) for k in range(call.arity)) for place in range(call.arity))
    if call.function in LINEAR:
        return linear
    # of others only periodic values have a factor, as of 1 + a + b
    return _DEGREES.get(call.function, ((0,) * call.arity, *linear))
