"""Functions as operators, and serial operators as those of distributed arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, StackedDistributedArray
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.operator import MOST_KEPT, LinearOperator

Function = Callable[[Any], Any]


def aslinearoperator(Op: Any) -> LinearOperator:
    """A serial operator (of `pylops`, SciPy, or a matrix) as one of vectors that all ranks have; a LinearOperator as it is."""
    return Op if isinstance(Op, LinearOperator) else LinearOperator(Op)


def from_functions(
    matvec: Function,
    rmatvec: Function,
    shape: tuple[int, int],
    dtype: Any = None,
    *,
    parts: bool = False,
    dims: Sequence[int] | None = None,
    dimsd: Sequence[int] | None = None,
    base_comm: Any = None,
) -> LinearOperator:
    """The operator of this shape whose application is `matvec(x)`, and that of its adjoint `rmatvec(y)`.

    They take and return distributed arrays or, with `parts`, this rank's part of them, flat: the result is then the part of a
    flat vector, whose sizes the ranks exchange at the first use of a layout. A function may return the same array every time:
    operators made of this one (sums, stacks, matrices) copy it where they hold it over another call.

    Raises ParameterError for arguments that are not functions; the operator raises it for other results, and ShapeError where
    their number of elements is not that of the shape.
    """
    if not callable(matvec) or not callable(rmatvec):
        raise ParameterError(
            f"an operator is made of two functions, not of {value_shown(matvec)} and {value_shown(rmatvec)}"
        )
    kind = _OfParts if parts else _OfVectors
    return kind(matvec, rmatvec, shape, dtype, dims, dimsd, base_comm)


class _OfVectors(LinearOperator):
    """Functions of distributed arrays."""

    gives_new = False  # a function may give an array that it keeps

    def __init__(
        self,
        matvec: Function,
        rmatvec: Function,
        shape: Any,
        dtype: Any,
        dims: Any,
        dimsd: Any,
        base_comm: Any,
    ) -> None:
        super().__init__(None, shape, dims, dimsd, dtype, base_comm)
        self.functions = matvec, rmatvec
        self._sizes: dict[Any, tuple[tuple[int, ...], ...]] = {}

    def _name(self, forward: bool) -> str:
        return f"{'matvec' if forward else 'rmatvec'} of {self!r}"

    def _matvec(self, x: Any) -> Any:
        return self._apply(x, True)

    def _rmatvec(self, x: Any) -> Any:
        return self._apply(x, False)

    def _apply(self, x: Any, forward: bool) -> Any:
        found = self.functions[0 if forward else 1](x)
        if not isinstance(found, DistributedArray | StackedDistributedArray):
            raise ParameterError(
                f"{self._name(forward)} gave {type(found).__name__}, not a DistributedArray or a stack of them"
            )
        self._check(
            found, self.shape[0 if forward else 1], f"the result of {'matvec' if forward else 'rmatvec'}"
        )
        return found


class _OfParts(_OfVectors):
    """Functions of this rank's part."""

    takes_stacks = False

    def _apply(self, x: Any, forward: bool) -> Any:
        local = self.functions[0 if forward else 1](x.local.reshape(-1))
        if not hasattr(local, "shape"):
            raise ParameterError(f"{self._name(forward)} gave {type(local).__name__}, not an array")
        local = local.reshape(-1)
        size = int(local.shape[0])
        wanted = self.shape[0 if forward else 1]
        if not x.layout.scattered:
            if size != wanted:
                raise ShapeError(f"{self._name(forward)} gave {size} elements, not {wanted}")
            return DistributedArray.of(
                x.layout.with_(shape=(size,), axes=(0,), grid=(1,)), local, x._base_comm
            )
        key = (
            forward,
            x.layout.local_shapes,
            x.layout.axes,
        )  # the same on all ranks, which exchange sizes together
        if key not in self._sizes:
            if len(self._sizes) >= MOST_KEPT:
                self._sizes.clear()
            gathered = x.communicator.gather_bytes(
                np.int64(size).tobytes(), what="sizes of an operator's parts"
            )
            self._sizes[key] = tuple((int(np.frombuffer(text, np.int64)[0]),) for text in gathered)
        sizes = self._sizes[key]
        total = sum(n for (n,) in sizes)
        if total != wanted:
            del self._sizes[key]
            raise ShapeError(
                f"{self._name(forward)} gave {' + '.join(str(n) for (n,) in sizes)} elements on the ranks, together {total}, not {wanted}"
            )
        layout = x.layout.with_(shape=(total,), axes=(0,), grid=None, local_shapes=sizes)
        return DistributedArray.of(layout, local, x._base_comm)
