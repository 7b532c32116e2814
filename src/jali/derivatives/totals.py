"""Numbers that recorded sums have left, and what is made of them: `Total`s, which a tape differentiates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.codegen.lines import user_line
from jali.errors import ParameterError, TraceError
from jali.files import value_shown

Pull = Callable[[Any], Any]


def _conjugate(value: Any) -> Any:
    return (
        value.conj()
        if hasattr(value, "conj") and np.iscomplexobj(getattr(value, "value", value))
        else np.conj(value)
        if isinstance(value, complex | np.ndarray | np.generic)
        else value
    )


def _summed_to(c: Any, like: Any) -> Any:
    """A cotangent of the shape of a value that was broadcast."""
    shape = np.shape(like)
    if np.shape(c) == shape:
        return c
    lead = np.ndim(c) - len(shape)
    c = np.sum(c, axis=tuple(range(lead)))
    ones = tuple(k for k, n in enumerate(shape) if n == 1 and np.shape(c)[k] != 1)
    return np.sum(c, axis=ones, keepdims=True) if ones else c


class Total:
    """A number, or an array of numbers, that depends on fields which a tape is for; `value` is the number itself, without its history.

    It has arithmetic with numbers and other Totals, `t[k]`, `t.sum()`, `t.real`, `t.imag`, `t.exp()`, `t.log()`, `t.sqrt()`, and comparisons, which
    are those of the value. It is no float: what is made of a float has no derivative. `tape.gradient(t)` takes a real one.
    """

    __array_ufunc__ = None
    __slots__ = ("_parents", "_source", "tape", "value")

    def __init__(
        self, tape: Any, value: Any, source: Any = None, parents: tuple[tuple[Total, Pull], ...] = ()
    ):
        self.tape = tape
        self.value = value
        self._source = source
        self._parents = parents

    def __repr__(self) -> str:
        return f"Total({self.value!r})"

    def __format__(self, how: str) -> str:
        return format(self.value, how)

    def __float__(self) -> float:
        raise TraceError(
            f"a float has no derivative: t.value is the number alone, arithmetic of Totals keeps the history\n  at {user_line(beyond_trace=True)}"
        )

    __int__ = __complex__ = __float__

    def __bool__(self) -> bool:
        return bool(self.value)

    def _of(self, value: Any, *parents: tuple[Total, Pull]) -> Total:
        return Total(self.tape, value, None, parents)

    def _with(
        self, other: Any, value: Callable[[Any, Any], Any], mine: Callable[[Any, Any, Any], Any], theirs: Any
    ) -> Any:
        """`mine(c, a, b)` and `theirs(c, a, b)` are the cotangents of the two operands."""
        if isinstance(other, Total):
            if other.tape is not self.tape:
                raise ParameterError("these are Totals of two tapes")
            a, b = self.value, other.value
            return self._of(
                value(a, b),
                (self, lambda c: _summed_to(mine(c, a, b), a)),
                (other, lambda c: _summed_to(theirs(c, a, b), b)),
            )
        a, b = self.value, other
        return self._of(value(a, b), (self, lambda c: _summed_to(mine(c, a, b), a)))

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b, lambda c, a, b: c, lambda c, a, b: c)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b, lambda c, a, b: c, lambda c, a, b: -c)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Total:
        return self._of(-self.value, (self, lambda c: -c))

    def __pos__(self) -> Total:
        return self

    def __mul__(self, other: Any) -> Any:
        return self._with(
            other, lambda a, b: a * b, lambda c, a, b: c * _conjugate(b), lambda c, a, b: c * _conjugate(a)
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._with(
            other,
            lambda a, b: a / b,
            lambda c, a, b: c / _conjugate(b),
            lambda c, a, b: -c * _conjugate(a / (b * b)),
        )

    def __rtruediv__(self, other: Any) -> Total:
        a = self.value
        return self._of(other / a, (self, lambda c: -c * _conjugate(other / (a * a))))

    def __pow__(self, power: Any) -> Total:
        if isinstance(power, Total) or not isinstance(power, int | float | np.number):
            raise ParameterError(f"a Total has powers that are numbers, not {value_shown(power)}")
        a = self.value
        return self._of(a**power, (self, lambda c: c * _conjugate(power * a ** (power - 1))))

    def _function(self, name: str, slope: Callable[[Any, Any], Any]) -> Total:
        import jali

        value = self.value
        found = (
            getattr(np, name)(value)
            if isinstance(value, np.ndarray | np.generic | float | complex | int)
            else getattr(jali, name)(value)
        )
        return self._of(found, (self, lambda c: c * _conjugate(slope(value, found))))

    def exp(self) -> Total:
        """The exponential."""
        return self._function("exp", lambda a, found: found)

    def log(self) -> Total:
        """The natural logarithm."""
        return self._function("log", lambda a, found: 1 / a)

    def sqrt(self) -> Total:
        """The square root."""
        return self._function("sqrt", lambda a, found: 0.5 / found)

    @property
    def real(self) -> Total:
        """The real part."""
        return self._of(self.value.real, (self, lambda c: c))

    @property
    def imag(self) -> Total:
        """The imaginary part."""
        return self._of(self.value.imag, (self, lambda c: 1j * c))

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the value."""
        return np.shape(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Total:
        whole = self.value

        def pull(c: Any) -> Any:
            found = np.zeros(np.shape(whole), np.result_type(np.asarray(c).dtype, np.float64))
            np.add.at(found, index, c)
            return found

        return self._of(whole[index], (self, pull))

    def sum(self) -> Total:
        """The sum of the numbers of an array."""
        value = self.value
        found = (
            value.sum() if hasattr(value, "sum") else np.sum(value)
        )  # of numbers on a device by themselves
        return self._of(found, (self, lambda c: np.broadcast_to(c, np.shape(value))))

    def __lt__(self, other: Any) -> Any:
        return self.value < value_of(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= value_of(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > value_of(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= value_of(other)

    def __eq__(self, other: object) -> Any:
        return self.value == value_of(other)

    def __ne__(self, other: object) -> Any:
        return self.value != value_of(other)

    __hash__ = None  # type: ignore[assignment]


def value_of(number: Any) -> Any:
    """The number of a Total, others as they are."""
    return number.value if isinstance(number, Total) else number


def weights_of(total: Total) -> dict[Any, Any]:
    """The cotangents of the sums that a real Total is made of, by their sources."""
    order: list[Total] = []
    seen: set[int] = set()
    stack: list[tuple[Total, bool]] = [(total, False)]
    while stack:
        one, done = stack.pop()
        if done:
            order.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            stack.append((one, True))
            stack += [(parent, False) for parent, _ in one._parents]
    cotangents: dict[int, Any] = {id(total): 1.0}
    found: dict[Any, Any] = {}
    for one in reversed(order):
        c = cotangents.pop(id(one), None)
        if c is None:
            continue
        if one._source is not None:
            found[one._source] = c if one._source not in found else found[one._source] + c
        for parent, pull in one._parents:
            part = pull(c)
            before = cotangents.get(id(parent))
            cotangents[id(parent)] = part if before is None else before + part
    return found
