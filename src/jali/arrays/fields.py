"""Jali's own memory as that of distributed arrays: fields, on hosts and on devices that need no other library.

The part of such an array is a `FieldPart`, a view of a field on a lattice that all ranks share. So arithmetic is that of fields, a
kernel for each operation; sums are those of all ranks at once, the same to the last bit on any number of them; and site functions
take the field as it is. `from_field` makes an array of a field, `to_field` a field of an array, neither of them a copy.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import _core
from jali.array_namespaces import NAMESPACES, ArrayNamespace
from jali.arrays.layout import Layout, Partition, layout_of
from jali.codegen.arithmetics import arithmetic_of
from jali.codegen.types import Complex, Element, Integer, Real
from jali.comm.device_of_array import gpu_of, is_on_device
from jali.devices import default_device
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice import functions
from jali.lattice.field import Field, wrapped
from jali.lattice.field_arithmetic import FieldArithmetic
from jali.lattice.lattice import Lattice

MOST_LATTICES = 32  # that a communicator keeps where no field lives on them
NUMBERS = (int, float, complex, np.number)


class FieldPart:
    """This rank's part of a field, as that of a distributed array: made by `from_field` and by engine "jali".

    `x.local.field` is the field itself. Indices are local; what they give is a copy.
    """

    __slots__ = ("field",)
    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class

    def __init__(self, field: Field) -> None:
        self.field = field

    def __repr__(self) -> str:
        return f"<part {self.shape} of {self.field!r}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of this rank's part."""
        shape: tuple[int, ...] = self.field.lattice.local_extents + self.field.element.numpy_shape
        return shape

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Numbers of this rank's part."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.field.dtype

    @property
    def array(self) -> Any:
        """The array that holds the numbers. Raises LayoutError where the field keeps them otherwise."""
        if self.field.array is None:
            raise LayoutError(
                f"{self.field.name} keeps its sites as vectors or devices like them, not as an array: x.local[...] copies this rank's "
                "part to NumPy; a field made by lattice.wrap(array) is an array"
            )
        return self.field.array

    def __getitem__(self, where: Any) -> Any:
        return self.field.local()[where]

    def __setitem__(self, where: Any, value: Any) -> None:
        everything = where is Ellipsis or (isinstance(where, slice) and where == slice(None))
        if isinstance(value, FieldPart):
            if everything:
                self.field.assign(value.field)
                return
            value = value[...]
        values = np.empty(self.shape, self.dtype) if everything else self.field.local()
        values[where] = value
        self.field.set_local(values)

    def reshape(self, *shape: Any) -> FieldPart:
        """Itself where it has this shape. Raises LayoutError for others."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self if wanted == self.shape else NAMESPACES["jali"].xp

    def gather(self) -> np.ndarray:
        """What all ranks have, in NumPy's memory. Collective."""
        return np.asarray(self.field[...])

    def copy(self) -> FieldPart:
        """With the same values."""
        return FieldPart(self.field.copy())

    def zeros(self) -> FieldPart:
        """Of the same form, all 0."""
        return FieldPart(self.field.like())

    def astype(self, dtype: Any) -> FieldPart:
        """A copy of another type, which holds all numbers of this one's kind. Raises ParameterError for others."""
        element, precision = element_of(dtype)
        mine = self.field.element
        if mine.type.shape and element.type.kind != mine.type.kind:
            raise ParameterError(
                f"a field of {mine} does not become one of {np.dtype(dtype)}; x.local[...] does"
            )
        if not mine.type.shape and mine.type.kind != element.type.kind:
            return FieldPart(self.field.like(element=element, precision=precision).assign(self.field))
        return FieldPart(self.field.like(precision=precision).assign(self.field))

    @property
    def real(self) -> FieldPart:
        """Real parts: a copy."""
        return self._made(self.field.real) if self.dtype.kind == "c" else self.copy()

    @property
    def imag(self) -> FieldPart:
        """Imaginary parts."""
        return self._made(self.field.imag)

    def conj(self) -> FieldPart:
        """Conjugate complex; itself where numbers are real."""
        return self._made(self.field.conj()) if self.dtype.kind == "c" else self

    # --- sums of all ranks ----------------------------------------------------------------------------------

    def inner(self, other: FieldPart) -> Any:
        """Sum of conj(x) y over all ranks."""
        return self.field.inner(other.field)

    def sum(self) -> Any:
        """Of the whole."""
        return self.field.sum()

    def max(self) -> Any:
        """Of the whole."""
        return self.field.max()

    def min(self) -> Any:
        """Of the whole."""
        return self.field.min()

    def norm(self, order: float) -> float:
        """Of the whole, as a vector. Raises LayoutError for orders that are none of 1, 2, inf and -inf."""
        if order == 2:
            return math.sqrt(self.field.norm2())
        if order not in (1, math.inf, -math.inf) or self.field.element.type.shape:
            raise LayoutError(
                f"norms of arrays in jali's own memory (engine 'jali') have order 2, of numbers also 1, inf and -inf, not {order:g}"
            )
        size = abs(self.field)
        return float(size.sum() if order == 1 else size.max() if order > 0 else size.min())

    # --- arithmetic -----------------------------------------------------------------------------------------

    def _made(self, found: Any, out: FieldPart | None = None) -> FieldPart:
        """The values of an expression, in memory like this one's where that holds them."""
        if isinstance(found, Field):
            found = found._expression()
        if out is None:
            element, precision = found.element(), found._precision
            if element.spinor or element == self.field.element:
                out = FieldPart(
                    self.field.like(precision=precision)
                    if precision != self.field.precision
                    else self.field.like()
                )
            else:
                boundary = self.field.boundary.conditions
                out = FieldPart(Field(self.field.lattice, element, precision, boundary=boundary))
        found.store(out.field)
        return out

    def __add__(self, other: Any) -> Any:
        return _combined(np.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _combined(np.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _combined(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _combined(np.subtract, other, self)

    def __mul__(self, other: Any) -> Any:
        return _combined(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _combined(np.multiply, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _combined(np.true_divide, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _combined(np.true_divide, other, self)

    def __pow__(self, other: Any) -> Any:
        return _combined(np.power, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _combined(np.power, other, self)

    def __iadd__(self, other: Any) -> Any:
        return _combined(np.add, self, other, self)

    def __isub__(self, other: Any) -> Any:
        return _combined(np.subtract, self, other, self)

    def __imul__(self, other: Any) -> Any:
        return _combined(np.multiply, self, other, self)

    def __itruediv__(self, other: Any) -> Any:
        return _combined(np.true_divide, self, other, self)

    def __ipow__(self, other: Any) -> Any:
        return _combined(np.power, self, other, self)


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, int | np.integer):
        return a ** int(b)
    return a**b if isinstance(a, FieldArithmetic) else functions.power(a, b)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "power": _power,
    "negative": lambda a: -a,
    "positive": lambda a: +a,
    "square": lambda a: a**2,
    "absolute": abs,
    "conjugate": lambda a: a.conj(),
    **{
        name: getattr(functions, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh")
    },
    **{name: getattr(functions, name) for name in ("tanh", "floor", "ceil", "maximum", "minimum", "sign")},
    **{f"arc{name}": getattr(functions, f"a{name}") for name in ("sin", "cos", "tan", "tan2")},
}


def function_of_fields(ufunc: np.ufunc) -> Callable[..., Any]:
    """What a ufunc does to parts that are fields. Raises ParameterError where jali has no such function."""
    if ufunc.__name__ not in _UFUNCS:
        raise ParameterError(
            f"fields (engine 'jali') have no {ufunc.__name__}; of NumPy's functions they have {', '.join(sorted(_UFUNCS))}"
        )

    def call(*parts: Any, out: tuple[FieldPart, ...] | None = None, **named: Any) -> Any:
        if named:
            raise ParameterError(f"{ufunc.__name__} of fields takes out=, and not {', '.join(named)}=")
        first, second = (*parts, None)[:2]
        return _combined(ufunc, first, second, None if out is None else out[0])

    return call


def _combined(ufunc: np.ufunc, a: Any, b: Any, out: FieldPart | None = None) -> Any:
    given = (a,) if ufunc.nin == 1 else (a, b)
    if not all(isinstance(x, (FieldPart, *NUMBERS)) for x in given):
        return NotImplemented
    fields = [x for x in given if isinstance(x, FieldPart)]
    if ufunc.__name__ not in ("add", "subtract", "negative", "positive"):
        matrices = [x.field.element for x in fields if x.field.element.type.shape]
        if len(matrices) > (ufunc.__name__ in ("multiply", "divide", "conjugate") and len(fields) == 1):
            raise LayoutError(
                f"{ufunc.__name__} of a field of {matrices[0]}, whose elements are multiplied as a whole and not number by number: "
                "take arrays of numbers"
            )
    found = _UFUNCS[ufunc.__name__](*(x.field if isinstance(x, FieldPart) else x for x in given))
    return fields[0]._made(found, out)


# --- arrays and fields --------------------------------------------------------------------------------------


def element_of(dtype: Any) -> tuple[Element, str]:
    """What a field has at each site for numbers of this type, and its precision. Raises ParameterError where it has none."""
    kind = np.dtype(dtype)
    if (arithmetic := arithmetic_of(kind)) is not None:
        for element in (Real(), Complex(), Integer()):
            if element.numpy_dtype(arithmetic.name) == kind:
                return element, arithmetic.name
    raise ParameterError(
        f"fields (engine 'jali') hold float32, float64, complex64, complex128, int32 and int64, not {kind}"
    )


def new_part(layout: Layout, dtype: Any) -> FieldPart:
    """Zeros, on the device of lattices (`jali.use_device`)."""
    element, precision = element_of(dtype)
    return FieldPart(Field(lattice_of(layout, layout.ndim, default_device()), element, precision))


def layout_of_lattice(lattice: Lattice, element: Element) -> Layout:
    """The layout of an array with an element at each site. Ranks of a lattice are numbered with direction 0 fastest, so its
    axes are those that are split, the last one first."""
    inner: tuple[int, ...] = element.numpy_shape
    axes = tuple(axis for axis in reversed(range(lattice.ndim)) if lattice.grid[axis] > 1) or (0,)
    ranks = range(lattice.communicator.size)
    return layout_of(
        lattice.communicator, lattice.extents + inner, Partition.SCATTER, axes,
        grid=tuple(lattice.grid[axis] for axis in axes),
        local_shapes=tuple(tuple(lattice.partition.extents(rank)) + inner for rank in ranks),
    )  # fmt: skip


def lattice_of(layout: Layout, ndim: int, device: str) -> Lattice:
    """The lattice on which arrays of this layout are fields, their first `ndim` axes being directions; kept with the communicator.

    Raises LayoutError where ranks of a lattice cannot have these parts.
    """
    recent, alive = layout.communicator.kept.setdefault(
        "lattices of arrays", ({}, weakref.WeakValueDictionary())
    )
    key = (layout, ndim, device)
    if key not in recent:
        made = _lattice_of(layout, ndim, device)
        if len(recent) >= MOST_LATTICES:
            del recent[next(iter(recent))]
        # arrays of several layouts may be fields of one, whose axes at the end are elements
        recent[key] = alive.setdefault((made.extents, made.grid, made.gpu), made)
    found: Lattice = recent[key]
    return found


def _lattice_of(layout: Layout, ndim: int, device: str) -> Lattice:
    if layout.mask is not None:
        raise LayoutError("a field belongs to all ranks, and this array to groups of them (mask)")
    if not layout.scattered and layout.communicator.size > 1:
        raise LayoutError(
            "a field is spread over all ranks, and of this array each has all: x.redistribute(0) scatters it"
        )
    if not 1 <= ndim <= 8 or 0 in layout.shape:
        raise LayoutError(
            f"a field has 1 to 8 directions with sites, an array of shape {layout.shape} has not"
        )
    grid = [1] * layout.ndim
    for axis, parts in zip(layout.axes, layout.grid, strict=True):
        grid[axis] = parts
    if math.prod(grid[ndim:]) > 1:
        raise LayoutError(
            f"the array is split along {layout.axes}, and an element of a field is in one place"
        )
    lattice = Lattice(*layout.shape[:ndim], grid=grid[:ndim], communicator=layout.communicator, device=device)
    check_parts(layout, lattice)
    return lattice


def check_parts(layout: Layout, lattice: Lattice) -> None:
    """Raises LayoutError, on all ranks, unless each has the same of an array of this layout and of the lattice."""
    if layout.communicator is not lattice.communicator or layout.shape[: lattice.ndim] != lattice.extents:
        raise LayoutError(f"an array of {layout!r} is no field on {lattice}: other ranks, or other extents")
    for rank, box in enumerate(layout.boxes):
        first, extents = lattice.partition.origin(rank), lattice.partition.extents(rank)
        theirs = tuple((o, o + n) for o, n in zip(first, extents, strict=True))
        if box[: lattice.ndim] != theirs:
            several = ", for several axes the last one first, axis=(1, 0)" if len(layout.axes) > 1 else ""
            raise LayoutError(
                f"rank {rank} has {box} of the array, and would have {theirs} of a lattice: redistribute it evenly{several}"
            )


def to_field(
    x: Any,
    element: Element | None = None,
    boundary: Any = None,
    lattice: Lattice | None = None,
    agree: bool = True,
) -> Field:
    """See `DistributedArray.to_field`. On a `lattice` at hand; `agree`: ranks compare what they wrap, which is one message."""
    if isinstance(x.local, FieldPart):
        field = x.local.field
        if element not in (None, field.element):
            raise LayoutError(f"the array is a field of {field.element}, not of {element}")
        if boundary is not None:
            raise LayoutError("the array is a field, with a boundary of its own")
        return field
    if lattice is None:
        if element is not None and not isinstance(element, Element):
            raise LayoutError(
                f"the element of a field is one such as jali.Vector(3), not {value_shown(element)}"
            )
        inner = () if element is None else element.numpy_shape
        lattice = lattice_of(x.layout, x.ndim - len(inner), device_name(x.local))
    else:
        check_parts(x.layout, lattice)
    return wrapped(lattice, x.local, element, None, boundary, "", None, agree=agree)


def device_name(local: Any) -> str:
    """Where an array is, as lattices name it."""
    if type(local) is np.ndarray or not is_on_device(local):
        return "cpu"
    gpu = gpu_of(local)
    return f"{gpu.kind}:{gpu.ordinal}"


def part_of_memory(layout: Layout, array: _core.GpuArray) -> FieldPart:
    """An array in a device's memory of jali's own (`jali.comm.DeviceArray`) as a part."""
    lattice = lattice_of(layout, layout.ndim, f"{array.gpu.kind}:{array.gpu.ordinal}")
    return FieldPart(lattice.wrap(array))


class Fields(ArrayNamespace):
    """Jali's own memory: parts are those of fields."""

    complete = True

    def find(self) -> None:
        pass

    @property
    def xp(self) -> Any:
        raise LayoutError(
            "a part in jali's own memory (engine 'jali') has arithmetic, sums and operators of site functions "
            "(jali.linops.SiteOperator), and nothing else: x.as_engine('numpy') shares its memory where that is an array, and "
            "DistributedArray.of(x.layout, x.local[...]) copies it"
        )

    def part(self, layout: Any, dtype: Any) -> Any:
        return new_part(layout, dtype)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        return self.xp

    empty = empty_beside = zeros_beside = contiguous = ravel = transpose = mutable_view = from_host = _refuse

    def copy(self, x: Any) -> Any:
        return x.copy()

    def zeros_like(self, x: Any) -> Any:
        return x.zeros()

    empty_like = zeros_like

    def dot(self, x: Any, y: Any, conjugate: bool) -> Any:
        return (x if conjugate else x.conj()).inner(y)

    def squares(self, x: Any) -> Any:
        return x.field.norm2()

    def ufunc(self, function: np.ufunc) -> Callable[..., Any]:
        return function_of_fields(function)

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x[...])


NAMESPACES["jali"] = Fields("jali", "jali")
