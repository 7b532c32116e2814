"""Arrays of numbers that stay where they are made: `ScalarArray`.

What Scalars can do, arrays do element by element: the function is called once with Scalars that stand for the elements, and what it makes of
them is a program that one kernel runs for all. Matrices have functions of the prelude (`codegen/prelude/dense.hpp`). Both kinds of kernels
run on the host too, with the same bits. An array is computed when it is made, unlike Scalars; parts of it are views of its memory.
"""

from __future__ import annotations

import ctypes
import math
import numbers
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jali import _core, graph_recorder
from jali.codegen.ir import BOOL
from jali.codegen.number_array_kernels import MatrixWords, matrix_kernel, sums_kernel
from jali.codegen.types import Type
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.lattice.overflow import Count, raise_if_found, unreported
from jali.lattice.scalar_array_kernels import (
    Operand,
    bits_of,
    compute_elements,
    elements_of,
    launch,
    on_device,
)
from jali.lattice.scalar_parts import (
    BLOCK,
    MOST_EXTENT,
    THREADS,
    Location,
    ScalarPart,
    compute,
    constant,
    evaluate,
    in_order,
    number,
    read_nodes,
)
from jali.lattice.scalars import Condition, LocatedArray, LocatedValue, Scalar, lifted, name_of

MOST_ORDER = 16  # of what is factorised, solved or inverted: dense.hpp has memory for so much
_DTYPES = {"bool": np.dtype(bool), "real": np.dtype(np.float64), "complex": np.dtype(np.complex128)}


class _Memory:
    """Numbers of an array, which other arrays may be views of."""

    __slots__ = ("block", "changing", "dependents", "reals")

    def __init__(self, gpu: Any, reals: int, changing: bool = False):
        self.block = _core.ScalarBlock(gpu, reals)
        self.reals = reals
        self.changing = changing  # it gets other values, by `assign` or in a graph
        self.dependents = None  # nothing that is made of it waits to be computed

    def doubles(self) -> np.ndarray:
        """As the host sees them."""
        return np.ctypeslib.as_array((ctypes.c_double * self.reals).from_address(self.block.mirror()))

    def changes(self) -> None:
        """What a graph does with numbers that it has made, at the end of its recording."""
        self.changing = True


def _steps(shape: tuple[int, ...], width: int = 1) -> tuple[int, ...]:
    """From one index to the next along each axis, of elements of so many doubles, row by row."""
    return tuple([width * math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


def _prefix(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """The method by which an operator of one Scalar is called."""
    return lambda self: self.elementwise(function, self)


def _operators(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods by which an operator of two Scalars is called: of its left operand, and of its right one."""
    return (
        lambda self, other: self._binary(function, other),
        lambda self, other: self._binary(function, other, swapped=True),
    )


class ScalarArray(LocatedArray):
    """A vector or matrix of real or complex numbers (float64) that stays on a device, or with the host, until it is read.

    Made by `lattice.scalars(values)`, `jali.stack([...])` of Scalars, and by what follows. `+ - * /`, powers, comparisons, `jali.exp` and
    its like do element by element what they do with `Scalar`s, between arrays, Scalars and numbers, with NumPy's rules of shapes. `@`,
    `cholesky` and what else matrices have is computed in an order of its own, with the same bits on the host and on devices. Comparisons give
    arrays of conditions. An index, a slice, `.T`, `.real` and `.imag` are NumPy's; one element is a Scalar. `numpy.asarray(a)` and
    `a.read()` wait for the values; `jali.read` waits once for several. An array never changes, but that of `lattice.scalars` by `assign`, and in
    graphs. Arrays have at most 64 rows and columns; what is factorised, solved or inverted at most 16.
    """

    __slots__ = ("kind", "memory", "offset", "overflow_counts", "shape", "steps", "variable")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # arrays of NumPy leave operators to this class

    def __init__(
        self,
        gpu: Any,
        kind: str,
        shape: tuple[int, ...],
        memory: _Memory | None = None,
        offset: int = 0,
        steps: tuple[int, ...] | None = None,
        reproducible: bool = True,
        overflow_counts: tuple[Count, ...] = (),
        variable: bool = False,
    ):
        super().__init__(gpu, (), reproducible)
        self.kind = kind  # "real", "complex", or "bool" of conditions
        self.shape = shape
        width = 2 if kind == "complex" else 1
        self.memory = memory if memory is not None else _Memory(gpu, width * math.prod(shape), variable)
        self.offset = offset  # of the first number, in doubles, as are steps
        self.steps = _steps(shape, width) if steps is None else steps
        self.overflow_counts = overflow_counts  # what reading it reports, as of a Scalar
        self.variable = variable

    # ---- what it is ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        what = "conditions" if self.kind == "bool" else f"{self.kind} numbers"
        return f"<array of {' x '.join(map(str, self.shape))} {what} on {name_of(self.gpu)}>"

    @property
    def ndim(self) -> int:
        """1 of a vector, 2 of a matrix."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the NumPy array that `read` gives."""
        return _DTYPES[self.kind]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __bool__(self) -> bool:
        raise ParameterError(
            "an array of numbers is neither true nor false; .all() and .any() of a comparison are"
        )

    # ---- reading and assigning -------------------------------------------------------------------

    def read(self) -> np.ndarray:
        """The values as an array of NumPy, a copy; waits for them. nan is where a factor does not exist. Raises StorageError for what sums
        of fields report, RecordingError in a graph."""
        read_nodes(self.gpu, [])
        if self.overflow_counts:
            raise_if_found(unreported(self.overflow_counts))
        dtype = np.dtype(np.complex128 if self.kind == "complex" else np.float64)
        steps = [8 * step for step in self.steps]
        found = np.ndarray(self.shape, dtype, self.memory.doubles(), 8 * self.offset, steps)
        return found != 0 if self.kind == "bool" else found.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array of numbers is copied when it is read")
        found = self.read()
        return found if dtype is None else found.astype(dtype, copy=False)

    def assign(self, value: Any) -> ScalarArray:
        """Gives an array of `lattice.scalars(...)` other values, those of an array, a Scalar or a number; in a graph, at every repetition.
        Returns self.

        What was made of it before is unchanged. Raises ParameterError for an array that never changes and for complex values of a real
        array, ShapeError for another shape.
        """
        if not self.variable:
            raise ParameterError(
                "only arrays made by lattice.scalars(...) can be assigned; others never change"
            )
        given = _operand(value, self)
        if "bool" in (self.kind, given.kind):
            raise ParameterError(f"numbers are assigned to arrays of numbers, not {value_shown(value)}")
        if given.kind == "complex" and self.kind == "real":
            raise ParameterError("complex numbers cannot be assigned to a real array; take .real or .imag")
        if _broadcast([self.shape, given.shape]) != self.shape:
            raise ShapeError(f"an array of shape {self.shape} cannot be assigned one of shape {given.shape}")
        located = [self, value] if isinstance(value, LocatedValue) else [self]
        self.reproducible = self._with(located[-1])
        self.overflow_counts = _counts(located)
        self._compute(_as_complex if self.kind == "complex" else _same, [given])
        return self

    def _compute(self, function: Callable[..., Any], given: Sequence[Operand]) -> None:
        """Puts what a function makes of operands there; the numbers are the whole of their memory or a row."""
        compute_elements(self.gpu, function, given, self._kept(), self.shape, self.memory)

    def _addresses(self) -> list[int]:
        """Of the real and imaginary part of the first element."""
        return [self.memory.block.address(self.offset + k) for k in range(2 if self.kind == "complex" else 1)]

    def address(self, component: int) -> int:
        """Where a kernel finds a real component, row by row: the double `component`."""
        element, part = divmod(component, 2 if self.kind == "complex" else 1)
        row, column = divmod(element, self.shape[-1])
        at = self.offset + part + column * self.steps[-1] + row * (self.steps[0] if row else 0)
        return int(self.memory.block.address(at))

    def _kept(self) -> list[int]:
        """Where it is, and where the host sees it."""
        return [self.memory.block.address(self.offset), self.memory.block.mirror(self.offset)]

    # ---- parts of it -----------------------------------------------------------------------------

    def _view(self, kind: str, shape: tuple[int, ...], offset: int, steps: Sequence[int]) -> ScalarArray:
        """Numbers of the same memory; the first is so many doubles behind its own."""
        at, counts = self.offset + offset, self.overflow_counts
        return ScalarArray(self.gpu, kind, shape, self.memory, at, tuple(steps), self.reproducible, counts)

    def _settled(self) -> ScalarArray:
        """One whose memory keeps its values."""
        return self.elementwise(_same, self) if self.memory.changing else self

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > self.ndim:
            raise IndexError(f"{len(indices)} indices of an array of shape {self.shape}")
        base = self._settled()
        shape, steps, offset = [], [], 0
        for axis, extent in enumerate(self.shape):
            at = indices[axis] if axis < len(indices) else slice(None)
            if isinstance(at, slice):
                chosen = range(extent)[at]
                if not chosen:
                    raise ShapeError(
                        f"the part {value_shown(index)} of an array of shape {self.shape} is empty"
                    )
                shape.append(len(chosen))
                steps.append(base.steps[axis] * chosen.step)
                offset += base.steps[axis] * chosen[0]
                continue
            try:
                k = None if isinstance(at, bool) else operator.index(at)
            except TypeError:
                k = None
            if k is None:
                raise ParameterError(
                    f"an array is indexed by whole numbers and slices, not by {value_shown(at)}"
                )
            if not -extent <= k < extent:
                raise IndexError(
                    f"index {k} of an axis of {extent} elements, of an array of shape {self.shape}"
                )
            offset += base.steps[axis] * (k % extent)
        found = base._view(self.kind, tuple(shape), offset, steps)
        return found if shape else found._element()

    def _element(self) -> Any:
        """The first number as a Scalar, or a Condition."""
        width = 2 if self.kind == "complex" else 1
        parts = tuple([number(self.memory.block, self.offset + k) for k in range(width)])
        for part in parts:
            part.type = BOOL if self.kind == "bool" else part.type
            part.add_overflow_counts(self.overflow_counts)
        if graph_recorder.recorders and (recorder := graph_recorder.current()) is not None:
            recorder.written += parts
        return (Condition if self.kind == "bool" else Scalar)(self.gpu, parts, self.reproducible)

    @property
    def T(self) -> ScalarArray:
        """Rows and columns exchanged; of a vector itself."""
        base = self._settled()
        return base._view(self.kind, self.shape[::-1], 0, base.steps[::-1])

    @property
    def real(self) -> ScalarArray:
        """The real parts."""
        base = self._settled()
        return base._view("real", self.shape, 0, base.steps)

    @property
    def imag(self) -> ScalarArray:
        """The imaginary parts."""
        if self.kind != "complex":
            return self.elementwise(_imaginary, self)
        base = self._settled()
        return base._view("real", self.shape, 1, base.steps)

    def diagonal(self) -> ScalarArray:
        """The diagonal of a matrix, a vector. Raises ShapeError for a vector."""
        if self.ndim != 2:
            raise ShapeError(f"a vector, of shape {self.shape}, has no diagonal")
        base = self._settled()
        return base._view(self.kind, (min(self.shape),), 0, (sum(base.steps),))

    # ---- element by element ----------------------------------------------------------------------

    def elementwise(self, function: Callable[..., Any], *operands: Any) -> ScalarArray:
        """A function of Scalars, element by element, by one kernel; `operands` are arrays, Scalars and numbers.

        `function` is called once for operands of one kind and must give a Scalar or a Condition of its arguments alone: what it refers to
        besides must never change. Raises ParameterError for other operands, ShapeError for shapes that do not fit, what the function raises.
        """
        given = [_operand(one, self) for one in operands]
        kind = elements_of(function, tuple([one.form for one in given])).kind
        out = _made_of((self, *operands), kind, _broadcast([one.shape for one in given]))
        out._compute(function, given)
        return out

    def _binary(self, function: Callable[..., Any], other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, LocatedValue | numbers.Number | np.generic | np.ndarray):
            return NotImplemented
        return self.elementwise(function, *((other, self) if swapped else (self, other)))

    def conj(self) -> ScalarArray:
        """The complex conjugates."""
        return self.elementwise(Scalar.conj, self) if self.kind == "complex" else self

    def dagger(self) -> ScalarArray:
        """The adjoint of a matrix: `a.conj().T`."""
        return self.conj().T

    def sqrt(self) -> ScalarArray:
        """The square roots; nan of negative real numbers."""
        return self.elementwise(Scalar.sqrt, self)

    def where(self, a: Any, b: Any) -> ScalarArray:
        """Of conditions: `a` where they hold, else `b`; as `jali.where(condition, a, b)`."""
        return self.elementwise(Condition.where, self._conditions("where"), a, b)

    __add__, __radd__ = _operators(operator.add)
    __sub__, __rsub__ = _operators(operator.sub)
    __mul__, __rmul__ = _operators(operator.mul)
    __truediv__, __rtruediv__ = _operators(operator.truediv)
    __and__, __rand__ = _operators(operator.and_)
    __or__, __ror__ = _operators(operator.or_)
    __lt__, __gt__ = _operators(operator.lt)[0], _operators(operator.gt)[0]
    __le__, __ge__ = _operators(operator.le)[0], _operators(operator.ge)[0]
    __eq__, __ne__ = _operators(operator.eq)[0], _operators(operator.ne)[0]
    __neg__, __abs__, __invert__ = _prefix(operator.neg), _prefix(abs), _prefix(operator.invert)

    def __pow__(self, exponent: Any) -> Any:
        if not isinstance(exponent, numbers.Number):
            return NotImplemented
        return self.elementwise(_power(exponent), self)

    def __pos__(self) -> ScalarArray:
        return self

    # ---- sums and products -----------------------------------------------------------------------

    def sum(self, axis: int | None = None) -> Any:
        """The sum of all elements, a Scalar; of a matrix along an axis, a vector. They are added in order, row by row. Of conditions: how
        many hold."""
        kind = "complex" if self.kind == "complex" else "real"
        if axis is None or (self.ndim == 1 and axis in (0, -1)):
            terms = self._words()
            return self._matrices("sums", [(kind, ())], terms, terms._replace(rows=1))[0]._element()
        if self.ndim == 1 or axis not in (0, 1, -1, -2):
            raise ParameterError(
                f"an array of shape {self.shape} is summed along axis {'0 or 1' if self.ndim == 2 else '0'}, not {value_shown(axis)}"
            )
        rows = self if axis % 2 else self.T
        terms = rows._words()
        return rows._matrices("sums", [(kind, rows.shape[:1])], terms._replace(rows=1), terms)[0]

    def trace(self) -> Scalar:
        """The sum of the diagonal of a matrix."""
        return self.diagonal().sum()

    def all(self) -> Condition:
        """Of conditions: whether all hold."""
        return self._conditions("all").sum() == self.size

    def any(self) -> Condition:
        """Of conditions: whether any holds."""
        return self._conditions("any").sum() > 0

    def _conditions(self, what: str) -> ScalarArray:
        if self.kind != "bool":
            raise ParameterError(f"{what} is of conditions, such as a > 0, not of {self!r}")
        return self

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            _operand(other, self)  # raises
        if not isinstance(other, ScalarArray):
            return NotImplemented
        self._numbers("a product")
        other._numbers("a product")
        if self.shape[-1] != other.shape[0]:
            raise ShapeError(
                f"a product of shapes {self.shape} and {other.shape}: {self.shape[-1]} and {other.shape[0]} differ"
            )
        left, right = self._words(as_row=True), other._words()
        shape = (*self.shape[:-1], *other.shape[1:])
        found = self._matrices("multiply", [(_widest([self, other]), shape)], left, right, beside=other)[0]
        return found if shape else found._element()

    # ---- factors ---------------------------------------------------------------------------------

    def cholesky(self) -> ScalarArray:
        """The lower triangular L with a = L L^dagger of a positive definite Hermitian matrix, whose lower triangle is read.

        From the first pivot that is not positive on it is nan: `L[-1, -1].real > 0` tells. Golub and Van Loan, Matrix Computations, 4.2.
        Raises ShapeError for what is no square matrix of order 16 at most.
        """
        return self._matrices("cholesky", [(self.kind, self._square("cholesky"))], self._words())[0]

    def log_det(self) -> Scalar:
        """log(det(a)) of a positive definite Hermitian matrix, by its factor; nan where it is not. No determinant leaves the range.

        Raises ShapeError for what is no square matrix of order 16 at most.
        """
        self._square("log_det")
        return self._matrices("log_det", [("real", ())], self._words(), number=self.kind)[0]._element()

    def solve(self, b: ScalarArray) -> ScalarArray:
        """The x with a x = b of a square matrix, for a vector or the columns of a matrix; inf or nan where a is singular.

        By Gaussian elimination with partial pivoting: Golub and Van Loan, 3.4. Raises ShapeError for shapes that do not fit.
        """
        n, _ = self._square("solve")
        if not isinstance(b, ScalarArray):
            raise ParameterError(f"solve takes an array of numbers, lattice.scalars(b), not {value_shown(b)}")
        b._numbers("solve")
        if b.shape[0] != n:
            raise ShapeError(
                f"solve of a matrix of order {n} takes a vector or matrix with {n} rows, not one of shape {b.shape}"
            )
        results = [(_widest([self, b]), b.shape)]
        return self._matrices("solve", results, self._words(), b._words(), beside=b)[0]

    def inverse(self) -> ScalarArray:
        """The inverse of a square matrix, as `solve` finds it; inf or nan where it is singular.

        Raises ShapeError for what is no square matrix of order 16 at most.
        """
        n, _ = shape = self._square("inverse")
        unit = MatrixWords(0, 0, n, n, 0, 0)
        return self._matrices("solve", [(self.kind, shape)], self._words(), unit)[0]

    def qr(self) -> tuple[ScalarArray, ScalarArray]:
        """Q with orthonormal columns, of the shape of a, and the upper triangular R with a positive real diagonal: a = Q R.

        Where a column depends on those before it, to 4 times the number of rows roundings of its norm, R has zero on the diagonal and Q a
        column of zeros. A column with nan or an infinity makes it and those behind it nan, in Q and R. By the Gram-Schmidt process, every
        column twice: Golub and Van Loan, 5.2. Columns may be as large and as small as doubles are. Raises ShapeError for more columns than
        rows, or more than 16 rows.
        """
        self._numbers("qr")
        rows, columns = self.shape if self.ndim == 2 else (0, 0)
        if not columns <= rows <= MOST_ORDER or not rows:
            raise ShapeError(
                f"qr is of matrices with at most as many columns as rows, and at most {MOST_ORDER} rows, not of shape {self.shape}"
            )
        results = [(self.kind, (rows, columns)), (self.kind, (columns, columns))]
        q, r = self._matrices("qr", results, self._words())
        return q, r

    def eigh(self) -> tuple[ScalarArray, ScalarArray]:
        """Eigenvalues in ascending order, and a matrix whose columns are eigenvectors, of a Hermitian matrix, whose lower triangle is read.

        By Jacobi's method, until a sweep of rotations changes nothing, at most 30 times: Golub and Van Loan, 8.5. Errors are roundings of
        the largest eigenvalue; phases of eigenvectors are as they come. Raises ShapeError for what is no square matrix of order 16 at most.
        """
        n, _ = shape = self._square("eigh")
        values, vectors = self._matrices(
            "eigh", [("real", (n,)), (self.kind, shape)], self._words(), number=self.kind
        )
        return values, vectors

    def _numbers(self, what: str) -> None:
        if self.kind == "bool":
            raise ParameterError(f"{what} is of numbers, not of {self!r}")

    def _square(self, what: str) -> tuple[int, ...]:
        self._numbers(what)
        if self.ndim != 2 or self.shape[0] != self.shape[1] or self.shape[0] > MOST_ORDER:
            raise ShapeError(
                f"{what} is of square matrices of order {MOST_ORDER} at most, not of shape {self.shape}"
            )
        return self.shape

    def _words(self, as_row: bool = False) -> MatrixWords:
        """A matrix, or a vector as a column or row, for kernels."""
        real, imaginary = [*self._addresses(), 0][:2]
        (rows, columns), (row, column) = (self.shape * 2)[:2], (self.steps * 2)[:2]
        if self.ndim == 1:
            (rows, row), (columns, column) = ((1, 0), (columns, column))[:: 1 if as_row else -1]
        return MatrixWords(real, imaginary, rows, columns, row, column)

    def _matrices(
        self,
        function: str,
        results: Sequence[tuple[str, tuple[int, ...]]],
        *matrices: MatrixWords,
        beside: ScalarArray | None = None,
        number: str = "",
    ) -> list[ScalarArray]:
        """New arrays that a function of the prelude computes of matrices, of the kind `number` or that of the first result."""
        given = [self] if beside is None else [self, beside]
        out = [_made_of(given, kind, shape) for kind, shape in results]
        is_complex = (number or results[0][0]) == "complex"
        words = [word for array in out for word in array._kept()]
        words += [word for matrix in matrices for word in matrix]
        text = _matrix_text(function, len(out), len(matrices), is_complex, self.gpu is not None)
        launch(self.gpu, text, words, given, [array.memory for array in out])
        return out


def _operand(value: Any, beside: ScalarArray) -> Operand:
    """What is computed with an array. Raises ParameterError for what is no number, LayoutError for one of another device."""
    if isinstance(value, LocatedValue):
        beside._with(value)
        if isinstance(value, ScalarArray):
            return Operand(value.kind, value._addresses(), True, value.shape, value.steps, value)
        evaluate(value.gpu, value.parts)
        at = [part.location for part in value.parts if part.location is not None]
        kind = "bool" if isinstance(value, Condition) else "complex" if len(at) == 2 else "real"
        return Operand(kind, [block.address(k) for block, k in at], True, held=value)
    if isinstance(value, bool | np.bool_):
        return Operand("bool", [bits_of(float(value))], False)
    if isinstance(value, numbers.Complex):
        reals = [part.value or 0.0 for part in lifted(value, beside).parts]
        return Operand("complex" if len(reals) == 2 else "real", [bits_of(x) for x in reals], False)
    raise ParameterError(
        "an array of numbers combines with arrays, Scalars and numbers (lattice.scalars(values) makes an array of NumPy's), "
        f"not with {value_shown(value)}"
    )


def _made_of(given: Sequence[Any], kind: str, shape: tuple[int, ...]) -> ScalarArray:
    """A new array, which is to be computed of these values and numbers."""
    located = [one for one in given if isinstance(one, LocatedValue)]
    reproducible = all([located[0]._with(one) for one in located])
    return ScalarArray(
        located[0].gpu, kind, shape, reproducible=reproducible, overflow_counts=_counts(located)
    )


def _counts(given: Sequence[LocatedValue]) -> tuple[Count, ...]:
    """What reading these reports."""
    holders: list[Any] = [holder for one in given for holder in (one.parts or (one,))]
    return tuple(dict.fromkeys(count for holder in holders for count in holder.overflow_counts))


def _widest(given: Sequence[ScalarArray]) -> str:
    return "complex" if any(one.kind == "complex" for one in given) else "real"


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of what is made of these. Raises ShapeError."""
    distinct = {shape for shape in shapes if shape}
    if len(distinct) == 1:
        return distinct.pop()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(map(str, dict.fromkeys(shape for shape in shapes if shape)))
        raise ShapeError(
            f"arrays of shapes {shown} do not fit: extents, from the last one on, are equal or 1"
        ) from None


# Functions of Scalars; kernels are known by them.


def _same(x: Any) -> Any:
    return x


def _as_complex(x: Scalar) -> Scalar:
    return x if x.is_complex else Scalar(x.gpu, (*x.parts, constant(0.0)))


_imaginary = operator.attrgetter("imag")


@lru_cache(maxsize=128, typed=True)
def _power(exponent: Any) -> Callable[[Scalar], Scalar]:
    return lambda x: x**exponent


_matrix_text = lru_cache(maxsize=256)(matrix_kernel)


def variable_array(gpu: Any, values: Any) -> ScalarArray:
    """An array that can be assigned."""
    graph_recorder.refuse("an array of numbers is made", "make it before, and assign to it in the graph")
    try:
        given = np.asarray(values)
    except ValueError as error:
        raise ParameterError(f"lattice.scalars takes rows of equal length: {error}") from None
    if given.dtype.kind not in "iufc":
        hint = "; jali.stack([...]) takes Scalars" if given.dtype.kind == "O" else ""
        raise ParameterError(
            f"lattice.scalars takes real and complex numbers, not {value_shown(values)}{hint}"
        )
    _check_shape(given.shape, "lattice.scalars")
    kind = "complex" if given.dtype.kind == "c" else "real"
    doubles = np.ascontiguousarray(given, _DTYPES[kind]).reshape(-1).view(np.float64)
    array = ScalarArray(gpu, kind, given.shape, variable=True)
    _set_memory(gpu, array.memory, doubles)
    return array


class StayingSums:
    """Arrays of what a call sums, per slice or vectors and matrices, and what fills them when a launch has summed. Sums that are
    numbers are Scalars."""

    def __init__(self, gpu: Any, types: Sequence[Type], slices: tuple[int, ...], reproducible: bool):
        width = sum(type.reals for type in types)
        self.gpu = gpu
        self.memory = _Memory(gpu, width * math.prod(slices))  # [slice][sum], components of a sum row by row
        self.arrays: list[ScalarArray] = []
        of_slices = [width * step for step in _steps(slices)]
        first = 0
        for type in types:
            steps = (*of_slices, *_steps(type.shape, type.reals // type.size))
            shape = (*slices, *type.shape)
            self.arrays.append(ScalarArray(gpu, type.kind, shape, self.memory, first, steps, reproducible))
            first += type.reals

    def result(self, counts: Sequence[Count]) -> Any:
        """What the call returns."""
        for array in self.arrays:
            array.overflow_counts = tuple(counts)
        found = [array if array.shape else array._element() for array in self.arrays]
        return found[0] if len(found) == 1 else tuple(found)

    def run_into(self, launch: Any) -> None:
        """Runs a launch of the host."""
        launch.run_into(self.memory.block)

    def set(self, sums: np.ndarray) -> None:
        """Puts there what the host has summed for a device."""
        _set_memory(self.gpu, self.memory, sums.reshape(-1))

    def taking(self, launch: Any) -> Callable[[], None]:
        """What takes the sums that a launch has left on a device."""
        block, count = self.memory.block, self.memory.reals
        there = struct.pack("4Q", block.address(), block.mirror(), count, launch.words_of_sums)
        function = on_device(self.gpu.kind, self.gpu.ordinal, sums_kernel())

        def take() -> None:
            with in_order:
                self.gpu.launch(function, 1, THREADS, there)
                launch.sums_taken()

        return take


def _set_memory(gpu: Any, memory: _Memory, doubles: np.ndarray) -> None:
    if gpu is not None:
        with in_order:  # and after what used this memory before
            gpu.upload_address(memory.block.address(), doubles)
    memory.doubles()[...] = doubles


def _check_shape(shape: tuple[int, ...], what: str) -> None:
    if len(shape) not in (1, 2) or not 0 < min(shape) <= max(shape) <= MOST_EXTENT:
        one = "; lattice.scalar(value) is one number" if not shape else ""
        raise ShapeError(
            f"{what} makes vectors and matrices of 1 to {MOST_EXTENT} rows and columns, not of shape {shape}{one}"
        )


def stack(values: Sequence[Any], axis: int = 0) -> ScalarArray:
    """Scalars and numbers as a vector; vectors of one length as the rows (axis 0) or columns (axis 1) of a matrix.

    Raises ParameterError for anything else, ShapeError for vectors of several lengths and more than 64 values.
    """
    first = next(one for one in values if isinstance(one, LocatedValue))
    if any(isinstance(one, ScalarArray) for one in values):
        return _stack_vectors(first, values, axis)
    if axis not in (0, -1):
        raise ParameterError(f"jali.stack along axis {value_shown(axis)}: of numbers it is 0")
    _check_shape((len(values),), "jali.stack")
    scalars = [lifted(one, first) for one in values]
    width = max(len(one.parts) for one in scalars)
    out = _made_of(scalars, "complex" if width == 2 else "real", (len(values),))
    parts = [part for one in scalars for part in (_as_complex(one) if width == 2 else one).parts]
    targets: list[tuple[ScalarPart, Location | None]] = [
        (part, (out.memory.block, k)) for k, part in enumerate(parts)
    ]
    for k in range(0, len(targets), BLOCK):
        compute(first.gpu, targets[k : k + BLOCK])
    if graph_recorder.recorders and (recorder := graph_recorder.current()) is not None:
        recorder.written.append(out.memory)
    return out


def _stack_vectors(first: Any, vectors: Sequence[Any], axis: int) -> ScalarArray:
    shapes = {getattr(one, "shape", None) for one in vectors}
    if len(shapes) > 1 or not all(isinstance(one, ScalarArray) and one.ndim == 1 for one in vectors):
        raise ShapeError("jali.stack takes numbers, or arrays of numbers that are vectors of one length")
    if axis not in (0, 1, -1, -2):
        raise ParameterError(f"jali.stack along axis {value_shown(axis)}: of vectors it is 0 or 1")
    shape = (len(vectors), len(first))
    _check_shape(shape, "jali.stack")
    out = _made_of(vectors, _widest(vectors), shape)
    for k, one in enumerate(vectors):
        one._numbers("jali.stack")
        row = out._view(out.kind, out.shape[1:], k * out.steps[0], out.steps[1:])
        row._compute(_as_complex if out.kind == "complex" else _same, [_operand(one, out)])
    return out if axis % 2 == 0 else out.T
