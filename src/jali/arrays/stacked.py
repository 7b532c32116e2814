"""Several distributed arrays as one long vector: what operators with blocks of several kinds give and take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays.distributed import DistributedArray
from jali.arrays.norms import checked_order, floating, of_norms, of_vector
from jali.arrays.reductions import batch_of_squares, dot_of_all
from jali.comm.validation import flag
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.host_sums import sum_in_order


class StackedDistributedArray:
    """A list of DistributedArrays, or of such lists, with the algebra of one vector.

    `base_comm` is for scripts of others; arrays bring their ranks along. Raises ParameterError for objects that are not arrays,
    ValueError where arrays of several libraries are mixed.
    """

    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class

    def __init__(self, distarrays: Sequence[Any], base_comm: Any = None) -> None:
        if not hasattr(distarrays, "__len__"):
            raise ParameterError(
                f"what is stacked are several distributed arrays, not {value_shown(distarrays)}"
            )
        for x in distarrays:
            if not isinstance(x, DistributedArray | StackedDistributedArray):
                raise ParameterError(f"what is stacked are distributed arrays, not {type(x).__name__}")
        if not len(distarrays):
            raise ShapeError("a stack has one array at least")
        engines = {x.engine for x in distarrays}
        if len(engines) > 1:
            raise ShapeError(f"Stacked arrays have different engines: {', '.join(sorted(engines))}")
        self.distarrays, self._base_comm = list(distarrays), base_comm

    @property
    def narrays(self) -> int:
        """How many there are."""
        return len(self.distarrays)

    def __len__(self) -> int:
        return len(self.distarrays)

    def __getitem__(self, number: int) -> Any:
        return self.distarrays[number]

    def __setitem__(self, number: int, value: Any) -> None:
        self.distarrays[number][:] = value

    def __iter__(self) -> Any:
        return iter(self.distarrays)

    def __repr__(self) -> str:
        return f"<StackedDistributedArray of {', '.join(map(repr, self.distarrays))}>"

    @property
    def base_comm(self) -> Any:
        """The ranks."""
        return self.distarrays[0].base_comm if self._base_comm is None else self._base_comm

    @property
    def rank(self) -> int:
        """This one."""
        return int(self.distarrays[0].rank)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(self.distarrays[0].size)

    @property
    def engine(self) -> str:
        """The library of the parts."""
        return str(self.distarrays[0].engine)

    @property
    def dtype(self) -> Any:
        """The type that holds all elements."""
        return np.result_type(*[x.dtype for x in self.distarrays])

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Sums of the extents of all arrays, dimension by dimension, as existing scripts expect; where these have different
        dimensions, all elements as one. Vectors have one, and it counts elements; `elements` always does."""
        shapes = [x.global_shape for x in self.distarrays]
        if len({len(shape) for shape in shapes}) > 1:
            return (self.elements,)
        return tuple(map(sum, zip(*shapes, strict=True)))

    @property
    def elements(self) -> int:
        """Of all arrays together."""
        return sum(x.elements for x in self.distarrays)

    def asarray(self) -> Any:
        """All elements, flat, on every rank. Collective."""
        return np.concatenate([np.ravel(x.asarray()) for x in self.distarrays])

    # --- algebra --------------------------------------------------------------------------------------------

    def _each(self, function: Callable[..., Any], *others: Any) -> StackedDistributedArray:
        if any(isinstance(x, DistributedArray) for x in others):
            raise ShapeError(
                "a stack is computed with stacks like itself and with numbers, not with an array"
            )
        rows = [x.distarrays if isinstance(x, StackedDistributedArray) else [x] * len(self) for x in others]
        if any(len(row) != len(self) for row in rows):
            raise ShapeError(f"stacks of {len(self)} and {', '.join(str(len(row)) for row in rows)} arrays")
        return StackedDistributedArray(
            [function(x, *rest) for x, *rest in zip(self.distarrays, *rows, strict=True)], self._base_comm
        )

    def __neg__(self) -> StackedDistributedArray:
        return self._each(lambda x: -x)

    def __add__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: a + b, x)

    def __radd__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: b + a, x)

    def __sub__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: a - b, x)

    def __rsub__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: b - a, x)

    def __mul__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: a * b, x)

    def __rmul__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: b * a, x)

    def __truediv__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: a / b, x)

    def __rtruediv__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: b / a, x)

    def __pow__(self, x: Any) -> StackedDistributedArray:
        return self._each(lambda a, b: a**b, x)

    def _in_place(self, name: str, x: Any) -> StackedDistributedArray:
        self.distarrays = self._each(lambda a, b: getattr(a, name)(b), x).distarrays
        return self

    def __iadd__(self, x: Any) -> StackedDistributedArray:
        return self._in_place("__iadd__", x)

    def __isub__(self, x: Any) -> StackedDistributedArray:
        return self._in_place("__isub__", x)

    def __imul__(self, x: Any) -> StackedDistributedArray:
        return self._in_place("__imul__", x)

    def __itruediv__(self, x: Any) -> StackedDistributedArray:
        return self._in_place("__itruediv__", x)

    def add(self, x: Any) -> StackedDistributedArray:
        """self + x."""
        return self + x

    def iadd(self, x: Any) -> StackedDistributedArray:
        """self += x."""
        return self.__iadd__(x)

    def multiply(self, x: Any) -> StackedDistributedArray:
        """self * x."""
        return self * x

    def conj(self) -> StackedDistributedArray:
        """Conjugate complex; a copy."""
        return self._each(lambda x: x.conj())

    def copy(self) -> StackedDistributedArray:
        """With the same values."""
        return self._each(lambda x: x.copy())

    def zeros_like(self) -> StackedDistributedArray:
        """Of the same layouts and types, all 0."""
        return self._each(lambda x: x.zeros_like())

    def empty_like(self) -> StackedDistributedArray:
        """Of the same layouts and types; values are not set."""
        return self._each(lambda x: x.empty_like())

    def __copy__(self) -> StackedDistributedArray:
        return self.copy()

    def __deepcopy__(self, _: Any) -> StackedDistributedArray:
        return self.copy()

    def __reduce__(self) -> Any:
        return StackedDistributedArray, (self.distarrays,)  # communicators are of this program

    def leaves(self) -> list[DistributedArray]:
        """All distributed arrays, those of nested stacks too, in order."""
        found: list[DistributedArray] = []
        for x in self.distarrays:
            found += x.leaves() if isinstance(x, StackedDistributedArray) else [x]
        return found

    # --- sums over ranks ------------------------------------------------------------------------------------

    def dot(self, y: StackedDistributedArray, vdot: bool = False) -> Any:
        """Sum of the products of all elements; one all-reduce where all arrays have one group of ranks."""
        if not isinstance(y, StackedDistributedArray):
            raise ParameterError(f"dot takes another StackedDistributedArray, not {type(y).__name__}")
        mine, theirs = self.leaves(), y.leaves()
        if len(mine) != len(theirs):
            raise ShapeError(f"stacks of {len(mine)} and {len(theirs)} arrays")
        return dot_of_all(list(zip(mine, theirs, strict=True)), flag("vdot", vdot, ParameterError))

    def norm(self, ord: Any = None) -> Any:
        """As `numpy.linalg.norm` of one long vector."""
        order = checked_order(ord)
        leaves = self.leaves()
        kind = of_norms(np.result_type(*(numpy_dtype(x) for x in leaves)))
        if order == 2:
            squares = batch_of_squares([DistributedArray.of(x.layout, floating(x.local)) for x in leaves])
            return kind.type(np.sqrt(sum_in_order(squares)))
        norms = [x.norm(order) if namespace_of(x.local).complete else of_vector(x, order) for x in leaves]
        return kind.type(
            sum_in_order(norms) if order == 0 else np.linalg.norm(norms, order)
        )  # a norm is one of norms
