"""Arithmetic of whole fields: `2 * f + g` is an expression, and one kernel computes it when its values are wanted.

An expression is recorded calls of the functions of the site language (`recorded_calls`) over a list of fields and one of numbers. The
calls are fixed while tracing, numbers are run-time arguments: one kernel serves all expressions of the same calls.
"""

from __future__ import annotations

import math
import numbers
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import graph_recorder
from jali.codegen import state as tracing
from jali.codegen.arithmetics import IEEE_PRECISIONS, widest
from jali.codegen.lines import trace_error, user_line
from jali.codegen.operation import Operation
from jali.codegen.types import Complex, Element, Hermitian, Integer, Matrix, Real, Type, Vector
from jali.codegen.values import METHODS, Value
from jali.errors import LayoutError, ParameterError
from jali.files import name_shown, value_shown
from jali.lattice.base import no_field, what_differs
from jali.lattice.colours import sites_of
from jali.lattice.domain import ALL, Domain
from jali.lattice.recorded_calls import (
    NUMBER,
    Call,
    Function,
    Operand,
    RecordedCalls,
    record_one,
    record_several,
)
from jali.lattice.scalars import LocatedArray, Scalar
from jali.lattice.shape_calls import fixed_index, part, with_part

kernels: Any = None
"""The module `whole_fields`, which puts itself here: it stands above fields."""

MANY_OPERANDS = 32
"""Fields and numbers of an expression above which a warning is given."""

_OPERATORS: dict[Any, Function] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.matmul: operator.matmul,
}


def _prefix(function: Function) -> Callable[[Any], FieldExpression]:
    """The method by which an operator of one operand is called."""
    return lambda self: self._changed(function)


def _operator(function: Function) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The methods by which an operator is called: of its left operand, and of its right one."""
    return (
        lambda self, other: self._combined(function, other),
        lambda self, other: self._combined(function, other, swapped=True),
    )


class FieldArithmetic:
    """What fields and expressions of fields have in common: they combine, are summed, and look like arrays of NumPy.

    Operators are those of the site language, at every site: `*` of two fields of matrices is the matrix product.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def _expression(self) -> FieldExpression:
        raise NotImplementedError

    # ---- operators -------------------------------------------------------------------------------

    def _combined(self, function: Function, other: Any, swapped: bool = False) -> Any:
        refuse_while_tracing(self)
        given = _as_expression(other, self)
        if given is NotImplemented:
            return NotImplemented
        a, b = (given, self._expression()) if swapped else (self._expression(), given)
        return _join(function, a, b)

    def _changed(self, function: Function, *fixed: Any) -> FieldExpression:
        refuse_while_tracing(self)
        mine = self._expression()
        recorded = record_one(function, mine.recorded, fixed)
        return FieldExpression(recorded, mine.members, mine.numbers, mine.versions)

    def applied(self, function: Function, *others: Any, swapped: bool = False) -> Any:
        """A function of the site language at every site, of itself or of two operands; `swapped`: of these it is the second.

        `jali.exp(f)` and its like call this. Raises LayoutError for an operand that is neither a field nor a number.
        """
        found = self._combined(function, others[0], swapped) if others else self._changed(function)
        if found is NotImplemented:
            raise LayoutError(
                f"{name_shown(function.__name__)} takes fields, expressions of fields and numbers, not {no_field(*others)}"
            )
        return found

    __add__, _added_to = _operator(operator.add)
    __sub__, __rsub__ = _operator(operator.sub)
    __mul__, __rmul__ = _operator(operator.mul)
    __matmul__, __rmatmul__ = _operator(operator.matmul)
    __truediv__, __rtruediv__ = _operator(operator.truediv)
    _raised, __rpow__ = _operator(operator.pow)
    __neg__, __pos__ = _prefix(operator.neg), _prefix(operator.pos)
    __abs__ = _prefix(abs)

    def __round__(self, digits: int | None = None) -> FieldExpression:
        if digits is not None:
            raise trace_error(
                "round(f, digits) does not take whole fields; round(f * 10**digits) / 10**digits does"
            )
        return self._changed(round)

    def __radd__(self, other: Any) -> Any:
        if type(other) is int and other == 0:  # where Python's sum() begins
            refuse_while_tracing(self)
            return self._expression()
        return self._added_to(other)

    def __pow__(self, exponent: Any) -> Any:
        return self._changed(operator.pow, int(exponent)) if _is_whole(exponent) else self._raised(exponent)

    def __mod__(self, divisor: Any) -> Any:  # by a fixed whole number, as in the site language
        return self._changed(operator.mod, int(divisor)) if _is_whole(divisor) else NotImplemented

    def __floordiv__(self, divisor: Any) -> Any:
        return self._changed(operator.floordiv, int(divisor)) if _is_whole(divisor) else NotImplemented

    def transpose(self) -> FieldExpression:
        """Transposes at every site."""
        return self._changed(Value.transpose)

    def reshape(self, *shape: Any) -> FieldExpression:
        """The same components at every site, row by row, as a vector `f.reshape(n)` or matrix `f.reshape(n, m)`; one extent may be -1."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        try:
            return self._changed(Value.reshape, *map(operator.index, given))
        except TypeError:
            raise trace_error(f"reshape takes whole numbers, not {value_shown(tuple(given))}") from None

    def diagonal(self) -> FieldExpression:
        """The diagonal of the matrix at every site, a vector. `np.diagonal(f)` is NumPy's, of the axes of the lattice."""
        return self._changed(Value.diagonal)

    @property
    def components(self) -> Components:
        """Components at every site: `f.components[:, 0:2]` is indexed as `f[X][:, 0:2]` in a site function; of a field they can be assigned."""
        return Components(self)

    if TYPE_CHECKING:  # methods of symbols, which `METHODS` gives below, for type checkers
        real: FieldExpression
        imag: FieldExpression
        conj: Callable[[], FieldExpression]
        dagger: Callable[[], FieldExpression]
        trace: Callable[[], FieldExpression]
        det: Callable[[], FieldExpression]
        inverse: Callable[[], FieldExpression]
        reunitarise: Callable[[], FieldExpression]
        traceless_antihermitian: Callable[[], FieldExpression]
        hermitian: Callable[[], FieldExpression]
        cholesky: Callable[[], FieldExpression]
        solve: Callable[[Any], FieldExpression]
        log_det: Callable[[], FieldExpression]
        dot: Callable[[Any], FieldExpression]
        outer: Callable[[Any], FieldExpression]

    # ---- comparison ------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, numbers.Number | np.ndarray | Scalar):
            self._refuse_order(other)
        return self is other

    def _refuse_order(self, *_: Any) -> Any:
        raise trace_error(
            f"{self!r} is not compared as a whole: f[...] == 0 compares in NumPy, f[X] == 0 in a site function"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _refuse_order

    def __bool__(self) -> bool:
        raise trace_error(
            f"{self!r} is neither true nor false: f[...].any() or f[...].all() in NumPy says more"
        )

    def _refuse_number(self, *_: Any) -> Any:
        raise trace_error(f"{self!r} is no number: f[0, 0] is the value at a site, f.sum() the sum of all")

    __float__ = __complex__ = __int__ = __index__ = _refuse_number

    # ---- sums ------------------------------------------------------------------------------------

    def norm2(self, *, fast: bool = False, wait: bool = True) -> Any:
        """Sum over sites and components of |f|^2: a float, with `wait=False` a `Scalar`. See `Lattice.sum` for `fast`.

        Whole numbers of any precision are squared as float64.
        """
        return _as_reals(self._expression())._summed(kernels.sum_of_squares, fast=fast, wait=wait)

    def inner(self, other: Any, *, fast: bool = False, wait: bool = True) -> Any:
        """Sum over sites and components of conj(f) g: a float for real fields, a complex number for complex ones.

        Whole numbers of any precision are multiplied as float64.
        """
        given = _as_expression(other, self)
        if not isinstance(other, FieldArithmetic):
            raise LayoutError(f"inner takes a field or an expression of fields, not {no_field(other)}")
        return _as_reals(self._expression()).dot(_as_reals(given))._summed(fast=fast, wait=wait)

    def sum(self, axis: Any = None, *, fast: bool = False, wait: bool = True) -> Any:
        """Sum over all sites and components, as `f[...].sum()`; of each component by itself see `Lattice.sum`."""
        _refuse_axis("sum", axis)
        return self._summed(kernels.sum_of_components, fast=fast, wait=wait)

    def mean(self, axis: Any = None, *, fast: bool = False, wait: bool = True) -> Any:
        """Mean of its sites and components: as `f[...].mean()`, but of a field on a colour only the sites of that colour count."""
        _refuse_axis("mean", axis)
        mine = self._expression()
        sites = sites_of(mine.over, mine.lattice.extents)
        if sites == 0:
            raise ParameterError(
                f"{mine.over} has no sites of {mine.lattice}, and of no numbers there is no mean"
            )
        return self.sum(fast=fast, wait=wait) / (sites * math.prod(mine.element().numpy_shape))

    def max(self, axis: Any = None, *, wait: bool = True) -> Any:
        """The largest of all real or whole numbers, as `f[...].max()`; NaN if there is one."""
        _refuse_axis("max", axis)
        return self._extreme("max", wait)

    def min(self, axis: Any = None, *, wait: bool = True) -> Any:
        """The smallest of all real or whole numbers, as `f[...].min()`; NaN if there is one."""
        _refuse_axis("min", axis)
        return self._extreme("min", wait)

    def _extreme(self, which: str, wait: bool) -> Any:
        refuse_while_tracing(self)
        mine = self._expression()
        if mine.element().type.kind == "complex":
            raise LayoutError(f"complex numbers have no order: abs({self!r}).{which}() compares moduli")
        function = kernels.highest if which == "max" else kernels.lowest
        return mine.lattice.reduce(function, *mine.arguments(), wait=wait)

    def _summed(self, *functions: Function, **how: Any) -> Any:
        refuse_while_tracing(self)
        mine = self._expression()
        for function in functions:
            mine = mine._changed(function)
        return mine.lattice.sum(kernels.total, *mine.arguments(), **how)

    # ---- NumPy -----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as an array: extents of the whole lattice, then that of an element."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers that NumPy sees."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Axes as an array; the directions of the lattice are `lattice.ndim`."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Numbers as an array, of the whole lattice."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All values, on every rank; every rank makes the same call."""
        if copy is False:
            raise ValueError(
                f"{self!r} becomes an array by a copy only; lattice.wrap makes a field of an array"
            )
        values = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        refuse_while_tracing(self)
        written = inputs[:1] if method == "at" else _tuple(named.get("out"))
        if any(isinstance(x, FieldArithmetic) for x in written):
            raise LayoutError(
                f"{ufunc.__name__} cannot write into a field; f[...] = sets values, f += and its like compute in place"
            )
        function = _OPERATORS.get(ufunc)
        both = all(isinstance(x, FieldArithmetic) for x in inputs)  # f * g calls this of neither field
        if method == "__call__" and function and len(inputs) == 2 and not named and not both:
            a, b = inputs
            if isinstance(a, FieldArithmetic):
                found = a._combined(function, b)
            else:
                found = b._combined(function, a, swapped=True)
            if found is not NotImplemented:
                return found
        return _of_arrays(getattr(ufunc, method), inputs, named)

    def __array_function__(self, function: Callable[..., Any], types: Any, given: Any, named: Any) -> Any:
        refuse_while_tracing(self)
        return _of_arrays(function, given, named)

    def __iter__(self) -> Any:
        return iter(self[...])  # all values at once: every row would be a call of all ranks

    def __contains__(self, value: Any) -> bool:
        return value in self[...]

    def __copy__(self) -> Any:
        return self.copy() if hasattr(self, "copy") else self

    def __deepcopy__(self, known: Any) -> Any:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} is not pickled: f.save(path) keeps it, f[...] is an array")


def _method(function: Function, described: Operation) -> Any:
    """A method of symbols as one of whole fields: an expression of its values at every site."""

    def alone(self: FieldArithmetic) -> FieldExpression:
        return self._changed(function)

    def with_another(self: FieldArithmetic, other: Any) -> Any:
        return self.applied(function, other)

    method: Any = alone if function.__code__.co_argcount == 1 else with_another
    method.__name__, method.__qualname__ = described.method, f"FieldArithmetic.{described.method}"
    method.__doc__ = f"{function.__doc__}\n\nAt every site; what is made is an expression."
    return property(method) if described.is_property else method


for _function, _described in METHODS.items():
    if not hasattr(FieldArithmetic, _described.method):  # norm2 is summed over sites
        setattr(FieldArithmetic, _described.method, _method(_function, _described))


class Components:
    """The components of a field or an expression, at every site at once, by fixed numbers and slices.

    `f.components[1, :]` is an expression, `f.components[1, :] = value` takes a number, a field or an expression. Indices are those of the value
    in a site function: of a spinor colour, then spin. Errors of shapes are raised when the expression is computed.
    """

    __slots__ = ("of",)

    def __init__(self, of: FieldArithmetic):
        self.of = of

    def __repr__(self) -> str:
        return f"<components of {self.of!r}>"

    def __getitem__(self, index: Any) -> FieldExpression:
        return self.of._changed(part, *fixed_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(self.of, FieldExpression):
            raise LayoutError(f"components of {self.of!r} cannot be assigned: make a field of it")
        expression_of(with_part, (self.of, value), fixed_index(index)).store(self.of)


class FieldExpression(FieldArithmetic):
    """A formula of fields of one lattice, such as `2 * f + g`, that has not been computed yet.

    `field()` makes a field of it, `h[...] = 2 * f + g` stores it in one, `h += ...` in place; each is one kernel. Its fields keep
    their values until then: where one has changed, evaluation raises LayoutError.
    """

    __slots__ = ("members", "numbers", "recorded", "versions")

    def __init__(
        self,
        recorded: RecordedCalls,
        fields: tuple[Any, ...],
        given: tuple[Any, ...],
        versions: tuple[Any, ...],
    ):
        self.recorded = recorded
        self.members = fields
        self.numbers = given
        self.versions = versions  # of its fields, when it was written

    def _expression(self) -> FieldExpression:
        return self

    @property
    def lattice(self) -> Any:
        """The lattice of its fields."""
        return self.members[0].lattice

    def __repr__(self) -> str:
        fields, given = enumerate(self.members), enumerate(self.numbers)
        names = {Operand(True, k): field.name for k, field in fields if field.name.isidentifier()}
        names |= {Operand(False, k): repr(x) for k, x in given if not isinstance(x, Scalar)}
        return f"<{self.recorded.as_written(names)}, of fields on {self.lattice}; .field() computes it>"

    def arguments(self) -> tuple[list[Any], list[Any], RecordedCalls]:
        """What the site functions of `whole_fields` take: fields, numbers, calls. Raises LayoutError where a field has changed."""
        for field, version in zip(self.members, self.versions, strict=True):
            if field.storage.versions() != version:
                raise LayoutError(
                    f"{field.name} has changed since it was written in an expression; compute that before, by .field(), or write it anew"
                )
        return list(self.members), list(self.numbers), self.recorded

    def element(self) -> Element:
        """What it has at a site. Raises TraceError where the formula has no meaning for its fields."""
        found = kernels.total.types_of_sums(self.lattice, *self.arguments())[0]
        if found == Real().type and any(field.element.type.kind == "int" for field in self.members):
            found = kernels.highest.types_of_sums(self.lattice, *self.arguments())[0]  # sums are real
        return _element_of(found, self)

    def field(self, boundary: Any = None) -> Any:
        """A new field with its values, of the widest precision of its fields and stored as plain numbers of that.

        Its `boundary` follows from those of its fields, which are alike: where they are open or periodic so is it, and factors
        are those that the formula gives, so the product of two antiperiodic fields is periodic. Raises LayoutError where fields
        differ or where there is no such factor, as of `f + 1`; then `boundary=`, as `Field` takes it, has to be given.
        """
        graph_recorder.refuse("a field is made", "make it before, and assign to it in the graph")
        return self._computed(_boundary_of(self) if boundary is None else boundary)

    def _computed(self, boundary: Any) -> Any:
        if boundary is None:  # odd extents are possible where a field on a colour is open
            boundary = next((field.boundary for field in self.members if field.over is not ALL), None)
        return self.store(
            self.lattice.field(
                self.element(),
                precision=self._precision,
                boundary=boundary,
                over=self.over,
                batch=self.batch,
            )
        )

    @property
    def batch(self) -> int | None:
        """The members of its fields that have a batch; None where none has one."""
        return next((field.batch for field in self.members if field.batch is not None), None)

    @property
    def over(self) -> Domain:
        """Where all of its fields are: ALL sites, or the colour of those that are on one."""
        return next((field.over for field in self.members if field.over is not ALL), ALL)

    def store(self, target: Any, partly: bool = False) -> Any:
        """Writes its values to a field, which may be one of its own. Returns the field. `partly`: a field on all sites may keep its values
        where fields on a colour give none."""
        for field in self.members:
            check_same_lattice(target, field)
            if target.batch is None and field.batch is not None:
                raise LayoutError(
                    f"{target.name} has no batch, and what is assigned to it has {field.batch} members; f.members[k] is one of them"
                )
            if field.over is not target.over and target.over is ALL and not partly:
                check_gives_all(field, target)
        kernels.store(target, *self.arguments())
        return target

    @property
    def shape(self) -> tuple[int, ...]:
        batch = () if self.batch is None else (self.batch,)
        return self.lattice.extents + batch + self.element().numpy_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.element().numpy_dtype(self._precision)

    @property
    def _precision(self) -> str:
        return widest(field.precision for field in self.members)

    def __getitem__(self, index: Any) -> Any:
        """Values at global sites, as of a field; all of it is computed."""
        refuse_while_tracing(self)
        graph_recorder.refuse(f"{self!r} is read from Python", "do it before or after")
        return self._computed(None)[index]  # it is not read across its edges


def refuse_while_tracing(field: Any) -> None:
    """Raises TraceError inside a site function, where a field is a value at a site only."""
    if getattr(tracing.active, "trace", None) is not None:
        raise trace_error(
            f"{value_shown(field)} has no arithmetic of its own in a site function: one that has it as an argument uses f[X]"
        )


def _refuse_axis(name: str, axis: Any) -> None:
    """Raises LayoutError unless `axis` is None, the only one that a field has."""
    if axis is not None:
        raise LayoutError(
            f"{name} of a field is over all sites and components, not along axis {value_shown(axis)}: np.{name}(f, axis=...) makes "
            "an array of it first"
        )


def check_gives_all(source: Any, target: Any) -> None:
    """Raises LayoutError where a field on a colour would set a part of another one."""
    if source.over is not ALL and source.over is not target.over:
        raise LayoutError(
            f"{source.name} lives on {source.over} and gives {target.name} no values on "
            f"{'the other sites' if target.over is ALL else target.over}; jali.join(even, odd) makes one field of two"
        )


def check_same_lattice(a: Any, b: Any) -> None:
    """Raises LayoutError unless two fields are on one lattice, and not on two colours of it."""
    if a.lattice is b.lattice and a.over is b.over and a.batch is b.batch:  # the usual case
        return
    if a.lattice is b.lattice and ALL not in (a.over, b.over) and a.over is not b.over:
        raise LayoutError(
            f"{a.name} lives on {a.over}, {b.name} on {b.over}; fields of one colour combine, and with them fields on all sites"
        )
    if a.batch != b.batch and None not in (a.batch, b.batch):
        raise LayoutError(
            f"{a.name} has a batch of {a.batch}, {b.name} one of {b.batch}; batches of one size combine, and with them fields without one"
        )
    if a.lattice is not b.lattice:
        raise LayoutError(
            f"{a.name} lives on {a.lattice}, {b.name} on {b.lattice} ({what_differs(a.lattice, b.lattice)}); fields of one lattice "
            "combine"
        )


def _is_whole(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _as_expression(other: Any, beside: Any) -> Any:
    """A field, an expression or a number as an expression; NotImplemented for anything else."""
    if isinstance(other, FieldArithmetic):
        return other._expression()
    if (isinstance(other, np.ndarray) and other.ndim) or isinstance(other, LocatedArray):
        batch = beside._expression().batch
        if batch is not None and other.shape == (batch,):
            raise LayoutError(
                f"{value_shown(beside)} and an array of {batch} numbers do not combine: a number for each member is an argument of a site "
                "function, out[X] = numbers[X.member] * f[X]"
            )
        raise LayoutError(
            f"{value_shown(beside)} and an array of NumPy do not combine: take f[...] for NumPy's arithmetic, or make a field of the array"
        )
    if isinstance(other, np.ndarray):
        other = other[()]
    if isinstance(other, Scalar):  # what is made of one keeps its value when it is assigned
        return FieldExpression(NUMBER, (), (other * 1.0 if other.variable else other,), ())
    if not isinstance(other, numbers.Number | np.bool_):
        return NotImplemented
    whole = all(field.element.type.kind == "int" for field in beside._expression().members)
    if isinstance(other, numbers.Integral) and whole:
        return FieldExpression(NUMBER, (), (int(other),), ())
    try:
        number = complex(other) if isinstance(other, complex | np.complexfloating) else float(other)  # type: ignore[arg-type]
    except OverflowError:
        raise LayoutError(
            "a number beside fields is a float64, which cannot hold one as large as this"
        ) from None
    return FieldExpression(NUMBER, (), (number,), ())


def _as_reals(a: FieldExpression) -> FieldExpression:
    """Whole numbers as real ones of double precision, whose products lose no bits; others as they are."""
    if a.element().type.kind != "int":
        return a
    if a._precision != IEEE_PRECISIONS[-1]:
        a = a._computed(None).astype(IEEE_PRECISIONS[-1])._expression()
    return _join(operator.mul, FieldExpression(NUMBER, (), (1.0,), ()), a)


def expression_of(
    function: Function, operands: Sequence[Any], fixed: tuple[Any, ...] = ()
) -> FieldExpression:
    """A function of the site language of fields, expressions and numbers, one of which is no number, and of what is fixed.

    Raises LayoutError for other operands and TraceError inside a site function.
    """
    first = next(x for x in operands if isinstance(x, FieldArithmetic))
    refuse_while_tracing(first)
    given = [_as_expression(x, first) for x in operands]
    for operand, one in zip(operands, given, strict=True):
        if one is NotImplemented:
            raise LayoutError(
                f"whole fields combine with fields, expressions of fields and numbers, not with {no_field(operand)}"
            )
    return _join(function, *given, fixed=fixed)


def _join(function: Function, *parts: FieldExpression, fixed: tuple[Any, ...] = ()) -> FieldExpression:
    """A call with the values of several; fields that they share are one."""
    first = parts[0]
    fields, versions, given = list(first.members), list(first.versions), first.numbers
    places_of = []
    for one in parts[1:]:
        places = []
        for field, version in zip(one.members, one.versions, strict=True):
            place = len(fields)
            for k, known in enumerate(fields):
                if known is field:
                    place = k
                    break
                check_same_lattice(known, field)
            if place == len(fields):
                fields.append(field)
                versions.append(version)
            elif versions[place] != version:
                raise LayoutError(
                    f"{field.name} has changed between two parts of an expression; compute the first before, by .field()"
                )
            places.append(place)
        places_of.append((tuple(places), len(given)))
        given += one.numbers
    recorded = record_several(function, tuple([one.recorded for one in parts]), tuple(places_of), fixed)
    if recorded.operands > MANY_OPERANDS >= max(one.recorded.operands for one in parts):
        _warn_of_length(fields[0].lattice)
    return FieldExpression(recorded, tuple(fields), given, tuple(versions))


def _warn_of_length(lattice: Any) -> None:
    """Warns, on one of the ranks, of the cost of an expression that grows in a loop."""
    if lattice.rank == 0:
        warnings.warn(
            f"an expression has more than {MANY_OPERANDS} operands; each formula is compiled by itself, so one that grows in a loop "
            f"is for every length: keep a field, x = (...).field() and then x += ...\n  at {user_line(beyond_trace=True)}",
            RuntimeWarning,
            stacklevel=2,
        )


def _element_of(type: Type, expression: FieldExpression) -> Element:
    """What a field of values of this type holds: a spinor if its fields do, an algebra or Hermitian matrices where these are kept."""
    for element in (field.element for field in expression.members):
        if element.spinor and element.type.shape == type.shape:
            return (
                element
                if element.type == type
                else Element(f"{element.name}, {type.kind}", type, spinor=True)
            )
    kept = _kept(expression)
    if isinstance(kept, Element) and kept.codec == "algebra":
        return kept
    if kept == "hermitian" and type.kind == "complex":
        return Hermitian(type.shape[0])
    if not type.shape:
        return {"complex": Complex, "real": Real, "int": Integer}[type.kind]()
    kind = "real" if type.kind == "real" else "complex"
    return Vector(type.shape[0], kind) if len(type.shape) == 1 else Matrix(type.shape[0], type.shape[1], kind)


def _boundary_of(expression: FieldExpression) -> Any:
    """What the values of an expression meet across each edge, where its fields agree. Raises LayoutError."""
    kept: list[Any] = []
    same = True
    for axis in range(expression.lattice.ndim):
        given = list(dict.fromkeys(f.boundary.conditions[axis] for f in expression.members))
        if len(given) > 1:
            raise LayoutError(
                f"the fields of {expression!r} differ at the boundary in direction {axis}, {' and '.join(map(str, given))}; say "
                "what the new field has: .field(boundary=...)"
            )
        condition, power = given[0], 1
        if condition not in ("periodic", "open"):
            found = expression.recorded.power_of_factor(is_phase=condition != "antiperiodic")
            if found is None:
                raise LayoutError(
                    f"fields that are {condition} in direction {axis} give {expression!r} no factor of its own at that boundary; say "
                    "what the new field has: .field(boundary=...)"
                )
            power = found
        factor = -1 if condition == "antiperiodic" else condition
        kept.append(condition if power == 1 else factor**power)
        same &= power == 1
    return expression.members[0].boundary if same else kept


def _kept(expression: FieldExpression) -> Any:
    """The element of all fields where they are added, and multiplied by real numbers, "hermitian" for what is known to be so; else None."""

    def of_operand(operand: Operand) -> Any:
        if operand.is_field:
            element = expression.members[operand.place].element
            return "hermitian" if element.codec == "hermitian" else element
        return "real" if isinstance(expression.numbers[operand.place], float) else None

    def of_call(call: Call, a: Any, b: Any = None, *_: Any) -> Any:
        if call.function in (operator.add, operator.sub):
            return a if a == b else None
        if call.function is operator.mul and "real" in (a, b):
            return b if a == "real" else a
        if (method := METHODS.get(call.function)) is not None and a == "hermitian":
            return a if method.keeps_hermitian else None
        if method is not None and method.makes_hermitian:
            return "hermitian"
        is_kept = call.function in (operator.neg, operator.pos) or (
            call.function is operator.truediv and b == "real"
        )
        return a if is_kept else None

    return expression.recorded.fold(of_operand, of_call)


def _as_numpy(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(map(_as_numpy, x))
    if not isinstance(x, FieldArithmetic):
        return x
    values = np.asarray(x)
    values.flags.writeable = False
    return values


def _of_arrays(function: Callable[..., Any], given: Any, named: Any) -> Any:
    """A function of NumPy, called with the values of fields instead of fields; what would write into them raises LayoutError."""
    try:
        found = function(*map(_as_numpy, given), **{name: _as_numpy(x) for name, x in named.items()})
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise LayoutError(
            f"{function.__name__} cannot write into a field: f[...] = sets values, f += and its like compute in place"
        ) from None
    return found.copy() if isinstance(found, np.ndarray) and not found.flags.writeable else found


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)
