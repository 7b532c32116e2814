"""Arithmetic of whole fields: `2 * f + g` is an expression, and one kernel computes it when its values are wanted.

An expression is a formula in postfix notation over a list of fields and one of numbers. The formula is fixed while tracing, numbers are
run-time arguments: one kernel serves all expressions of one formula.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import graph_recorder
from jali.codegen import state as tracing
from jali.codegen.arithmetics import PRECISIONS, widest
from jali.codegen.lines import trace_error, user_line
from jali.codegen.types import Complex, Element, Integer, Matrix, Real, Type, Vector
from jali.errors import LayoutError
from jali.files import name_shown, value_shown
from jali.lattice.base import no_field, what_differs
from jali.lattice.formulas import BINARY, as_written, count_operands, power_of_factor
from jali.lattice.scalars import Scalar

kernels: Any = None
"""The module `whole_fields`, which puts itself here: it stands above fields."""

MANY_OPERANDS = 32
"""Fields and numbers of an expression above which a warning is given."""

_OPERATORS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.true_divide: "/", np.matmul: "@"}


class FieldArithmetic:
    """What fields and expressions of fields have in common: they combine, are summed, and look like arrays of NumPy.

    Operators are those of the site language, at every site: `*` of two fields of matrices is the matrix product.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def _expression(self) -> FieldExpression:
        raise NotImplementedError

    # ---- operators -------------------------------------------------------------------------------

    def _combined(self, operator: str, other: Any, swapped: bool = False) -> Any:
        refuse_while_tracing(self)
        given = _as_expression(other, self)
        if given is NotImplemented:
            return NotImplemented
        a, b = (given, self._expression()) if swapped else (self._expression(), given)
        return _join(operator, a, b)

    def _changed(self, operator: str) -> FieldExpression:
        refuse_while_tracing(self)
        mine = self._expression()
        return FieldExpression(f"{mine.formula} {operator}", mine.members, mine.numbers, mine.versions)

    def __add__(self, other: Any) -> Any:
        return self._combined("+", other)

    def __radd__(self, other: Any) -> Any:
        if type(other) is int and other == 0:  # where Python's sum() begins
            refuse_while_tracing(self)
            return self._expression()
        return self._combined("+", other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._combined("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._combined("-", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combined("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._combined("*", other, swapped=True)

    def __matmul__(self, other: Any) -> Any:
        return self._combined("@", other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._combined("@", other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._combined("/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combined("/", other, swapped=True)

    def __pow__(self, exponent: Any) -> Any:
        if isinstance(exponent, int | np.integer) and not isinstance(exponent, bool):
            return self._changed(f"**{int(exponent)}")
        return self._combined("**", exponent)

    def __rpow__(self, base: Any) -> Any:
        return self._combined("**", base, swapped=True)

    def __mod__(self, divisor: Any) -> Any:
        return self._divided("%", divisor)

    def __floordiv__(self, divisor: Any) -> Any:
        return self._divided("//", divisor)

    def _divided(self, operator: str, divisor: Any) -> Any:
        """By a fixed whole number, as in the site language."""
        if not isinstance(divisor, int | np.integer) or isinstance(divisor, bool):
            return NotImplemented
        return self._changed(f"{operator}{int(divisor)}")

    def __neg__(self) -> FieldExpression:
        return self._changed("negative")

    def __pos__(self) -> FieldExpression:
        return self._changed("positive")

    def __abs__(self) -> FieldExpression:
        return self._changed("abs")

    def __round__(self) -> FieldExpression:
        return self._changed("round")

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

    @property
    def real(self) -> FieldExpression:
        """Real parts."""
        return self._changed("real")

    @property
    def imag(self) -> FieldExpression:
        """Imaginary parts."""
        return self._changed("imag")

    def conj(self) -> FieldExpression:
        """Complex conjugates, component by component."""
        return self._changed("conj")

    def dagger(self) -> FieldExpression:
        """Adjoints at every site."""
        return self._changed("dagger")

    def trace(self) -> FieldExpression:
        """Traces at every site."""
        return self._changed("trace")

    def transpose(self) -> FieldExpression:
        """Transposes at every site."""
        return self._changed("transpose")

    def det(self) -> FieldExpression:
        """Determinants at every site."""
        return self._changed("det")

    def inverse(self) -> FieldExpression:
        """Inverse matrices at every site."""
        return self._changed("inverse")

    def dot(self, other: Any) -> Any:
        """The sum of conj(v_k) w_k at every site; `inner` sums it over sites."""
        return self._of_two("dot", other)

    def outer(self, other: Any) -> Any:
        """The matrix v_i conj(w_j) at every site."""
        return self._of_two("outer", other)

    def applied(self, name: str, *others: Any) -> Any:
        """The function `name` of the site language at every site; `jali.exp(f)` and its like call this."""
        return self._of_two(name, *others) if others else self._changed(name)

    def applied_to(self, name: str, first: Any) -> Any:
        """The same of two arguments, of which this is the second."""
        return self._of_two(name, first, swapped=True)

    def _of_two(self, name: str, other: Any, swapped: bool = False) -> Any:
        """`_combined` by a function, which has no other operand to defer to. Raises LayoutError for operands that are
        neither fields nor numbers."""
        found = self._combined(name, other, swapped)
        if found is NotImplemented:
            raise LayoutError(
                f"{name_shown(name)} takes fields, expressions of fields and numbers, not {no_field(other)}"
            )
        return found

    # ---- sums ------------------------------------------------------------------------------------

    def norm2(self, *, fast: bool = False, wait: bool = True) -> Any:
        """Sum over sites and components of |f|^2: a float, with `wait=False` a `Scalar`. See `Lattice.sum` for `fast`.

        Whole numbers of any precision are squared as float64.
        """
        return _as_reals(self._expression())._summed("norm2", fast=fast, wait=wait)

    def inner(self, other: Any, *, fast: bool = False, wait: bool = True) -> Any:
        """Sum over sites and components of conj(f) g: a float for real fields, a complex number for complex ones.

        Whole numbers of any precision are multiplied as float64.
        """
        given = _as_expression(other, self)
        if not isinstance(other, FieldArithmetic):
            raise LayoutError(f"inner takes a field or an expression of fields, not {no_field(other)}")
        return _join("dot", _as_reals(self._expression()), _as_reals(given))._summed(fast=fast, wait=wait)

    def sum(self, axis: Any = None, *, fast: bool = False, wait: bool = True) -> Any:
        """Sum over all sites and components, as `f[...].sum()`; of each component by itself see `Lattice.sum`."""
        _refuse_axis("sum", axis)
        return self._summed("sum", fast=fast, wait=wait)

    def mean(self, axis: Any = None, *, fast: bool = False, wait: bool = True) -> Any:
        """Mean of all sites and components, as `f[...].mean()`."""
        _refuse_axis("mean", axis)
        return self.sum(fast=fast, wait=wait) / self.size

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

    def _summed(self, *operators: str, **how: Any) -> Any:
        refuse_while_tracing(self)
        mine = self._expression()
        for operator in operators:
            mine = mine._changed(operator)
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
        operator = _OPERATORS.get(ufunc)
        both = all(isinstance(x, FieldArithmetic) for x in inputs)  # f * g calls this of neither field
        if method == "__call__" and operator and len(inputs) == 2 and not named and not both:
            a, b = inputs
            if isinstance(a, FieldArithmetic):
                found = a._combined(operator, b)
            else:
                found = b._combined(operator, a, swapped=True)
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


class FieldExpression(FieldArithmetic):
    """A formula of fields of one lattice, such as `2 * f + g`, that has not been computed yet.

    `field()` makes a field of it, `h[...] = 2 * f + g` stores it in one, `h += ...` in place; each is one kernel. Its fields keep
    their values until then: where one has changed, evaluation raises LayoutError.
    """

    __slots__ = ("formula", "members", "numbers", "versions")

    def __init__(
        self, formula: str, fields: tuple[Any, ...], given: tuple[Any, ...], versions: tuple[Any, ...]
    ):
        self.formula = formula
        self.members = fields
        self.numbers = given
        self.versions = versions

    def _expression(self) -> FieldExpression:
        return self

    @property
    def lattice(self) -> Any:
        """The lattice of its fields."""
        return self.members[0].lattice

    def __repr__(self) -> str:
        names = {f"f{k}": f.name if f.name.isidentifier() else f"f{k}" for k, f in enumerate(self.members)}
        names |= {f"n{k}": f"n{k}" if isinstance(x, Scalar) else repr(x) for k, x in enumerate(self.numbers)}
        return f"<{as_written(self.formula, names)}, of fields on {self.lattice}; .field() computes it>"

    def arguments(self) -> tuple[list[Any], list[Any], str]:
        """What the site functions of `whole_fields` take: fields, numbers, formula. Raises LayoutError where a field has changed."""
        for field, version in zip(self.members, self.versions, strict=True):
            if field.storage.versions() != version:
                raise LayoutError(
                    f"{field.name} has changed since it was written in an expression; compute that before, by .field(), or write it anew"
                )
        return list(self.members), list(self.numbers), self.formula

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
        return self.store(self.lattice.field(self.element(), precision=self._precision, boundary=boundary))

    def store(self, target: Any) -> Any:
        """Writes its values to a field, which may be one of its own. Returns the field."""
        check_same_lattice(target, self.members[0])
        kernels.store(target, *self.arguments())
        return target

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lattice.extents + self.element().numpy_shape

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


def check_same_lattice(a: Any, b: Any) -> None:
    """Raises LayoutError unless two fields are on one lattice."""
    if a.lattice is not b.lattice:
        raise LayoutError(
            f"{a.name} lives on {a.lattice}, {b.name} on {b.lattice} ({what_differs(a.lattice, b.lattice)}); fields of one lattice "
            "combine"
        )


def _as_expression(other: Any, beside: Any) -> Any:
    """A field, an expression or a number as an expression; NotImplemented for anything else."""
    if isinstance(other, FieldArithmetic):
        return other._expression()
    if isinstance(other, np.ndarray) and other.ndim:
        raise LayoutError(
            f"{value_shown(beside)} and an array of NumPy do not combine: take f[...] for NumPy's arithmetic, or make a field of the array"
        )
    if isinstance(other, np.ndarray):
        other = other[()]
    if isinstance(other, Scalar):  # what is made of one keeps its value when it is assigned
        return FieldExpression("n0", (), (other * 1.0 if other.variable else other,), ())
    if not isinstance(other, numbers.Number | np.bool_):
        return NotImplemented
    whole = all(field.element.type.kind == "int" for field in beside._expression().members)
    if isinstance(other, numbers.Integral) and whole:
        return FieldExpression("n0", (), (int(other),), ())
    try:
        number = complex(other) if isinstance(other, complex | np.complexfloating) else float(other)  # type: ignore[arg-type]
    except OverflowError:
        raise LayoutError(
            "a number beside fields is a float64, which cannot hold one as large as this"
        ) from None
    return FieldExpression("n0", (), (number,), ())


def _as_reals(a: FieldExpression) -> FieldExpression:
    """Whole numbers as real ones of double precision, whose products lose no bits; others as they are."""
    if a.element().type.kind != "int":
        return a
    if a._precision != PRECISIONS[-1]:
        a = a._computed(None).astype(PRECISIONS[-1])._expression()
    return _join("*", FieldExpression("n0", (), (1.0,), ()), a)


def _join(operator: str, a: FieldExpression, b: FieldExpression) -> FieldExpression:
    """The formula `a operator b`; fields that both have are one."""
    fields, versions = list(a.members), list(a.versions)
    if fields and b.members:
        check_same_lattice(fields[0], b.members[0])
    names = {}
    for number, (field, version) in enumerate(zip(b.members, b.versions, strict=True)):
        known = next((k for k, f in enumerate(fields) if f is field), None)
        if known is None:
            known = len(fields)
            fields.append(field)
            versions.append(version)
        elif versions[known] != version:
            raise LayoutError(
                f"{field.name} has changed between two parts of an expression; compute the first before, by .field()"
            )
        names[f"f{number}"] = f"f{known}"
    for number in range(len(b.numbers)):
        names[f"n{number}"] = f"n{len(a.numbers) + number}"
    renamed = " ".join(names.get(token, token) for token in b.formula.split())
    formula = f"{a.formula} {renamed} {operator}"
    if max(count_operands(a.formula), count_operands(b.formula)) <= MANY_OPERANDS < count_operands(formula):
        _warn_of_length(fields[0].lattice)
    return FieldExpression(formula, tuple(fields), a.numbers + b.numbers, tuple(versions))


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
    """What a field of values of this type holds: a spinor if its fields do, an algebra where it is kept."""
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
            found = power_of_factor(expression.formula, is_phase=condition != "antiperiodic")
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
    """The element of all fields where they are added, and multiplied by real numbers; else None."""
    stack: list[Any] = []
    for token in expression.formula.split():
        if token in BINARY:
            b, a = stack.pop(), stack.pop()
            if token in "+-":
                stack.append(a if a == b else None)
            elif token == "*" and "real" in (a, b):
                stack.append(b if a == "real" else a)
            else:
                stack.append(a if token == "/" and b == "real" else None)
        elif token[0] == "f" and token[1:].isdigit():
            stack.append(expression.members[int(token[1:])].element)
        elif token[0] == "n" and token[1:].isdigit():
            stack.append("real" if isinstance(expression.numbers[int(token[1:])], float) else None)
        elif token not in ("negative", "positive"):
            stack[-1] = None
    return stack.pop()


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
