"""Linear operators between distributed arrays, and their algebra: sums, products, powers, adjoints.

An operator has a `shape` in elements of the whole vectors, a `dtype`, and two functions, `_matvec` and `_rmatvec`, which take a
DistributedArray (or a stack of them) and return a new one. `dims` and `dimsd` are the shapes of what goes in and comes out where
these are arrays. Vectors bring their ranks and their memory along, so that operators know of neither unless they must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, StackedDistributedArray
from jali.errors import ParameterError, ShapeError

Vector = DistributedArray | StackedDistributedArray
Number = int | float | complex | np.number


class LinearOperator:
    """A linear operator on distributed arrays: the base of all, or from a serial one.

    `Op` is an operator of `pylops` or SciPy (anything with `shape`, `dtype`, `matvec` and `rmatvec`), which every rank applies to
    its part: this is what vectors that all ranks have want. Without it, a subclass has `_matvec` and `_rmatvec`.
    """

    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class

    def __init__(
        self,
        Op: Any = None,
        shape: tuple[int, int] | None = None,
        dims: Sequence[int] | None = None,
        dimsd: Sequence[int] | None = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        if Op is not None:
            shape = tuple(Op.shape) if shape is None else shape
            dtype = Op.dtype if dtype is None else dtype
            dims = getattr(Op, "dims", None) if dims is None else dims
            dimsd = getattr(Op, "dimsd", None) if dimsd is None else dimsd
        if shape is None:
            raise ParameterError("an operator needs its shape, (elements that come out, elements that go in)")
        rows, columns = shape
        self.Op = Op
        self.shape = (int(rows), int(columns))
        self.dtype = np.dtype(np.float64 if dtype is None else dtype)
        self.dims = (self.shape[1],) if dims is None else tuple(dims)
        self.dimsd = (self.shape[0],) if dimsd is None else tuple(dimsd)
        self._base_comm = base_comm

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} {type(self).__name__} with dtype={self.dtype}>"

    @property
    def base_comm(self) -> Any:
        """The ranks, as they were given; mpi4py's world where MPI is in use, else jali's communicator."""
        if self._base_comm is not None:
            return self._base_comm
        return DistributedArray((0,)).base_comm

    # --- application ----------------------------------------------------------------------------------------

    def matvec(self, x: Vector) -> Any:
        """A x. Raises ShapeError where `x` has not as many elements as the operator columns."""
        self._check(x, self.shape[1], "x")
        return self._matvec(x)

    def rmatvec(self, x: Vector) -> Any:
        """A^H x. Raises ShapeError where `x` has not as many elements as the operator rows."""
        self._check(x, self.shape[0], "x of the adjoint")
        return self._rmatvec(x)

    def _check(self, x: Any, elements: int, name: str) -> None:
        if not isinstance(x, Vector):
            raise ParameterError(
                f"{name} is a DistributedArray or a stack of them, not {type(x).__name__}: DistributedArray.to_dist makes one"
            )
        count = x.elements
        if count != elements:
            raise ShapeError(
                f"{self!r}: {name} has {count} elements (global shape {x.global_shape}), the operator takes {elements}"
            )

    def _matvec(self, x: Any) -> Any:
        return self._by_ranks(x, self.shape[0], self.Op.matvec)

    def _rmatvec(self, x: Any) -> Any:
        return self._by_ranks(x, self.shape[1], self.Op.rmatvec)

    def _by_ranks(self, x: Any, elements: int, function: Callable[[Any], Any]) -> DistributedArray:
        local = function(x.local_array.reshape(-1))
        if x.layout.scattered:
            found = DistributedArray.of(x.layout, x.local_array, x._base_comm).ravel()
            shapes = x.communicator.gather_bytes(np.int64(local.size).tobytes(), what="an operator")
            sizes = tuple((int(np.frombuffer(text, np.int64)[0]),) for text in shapes)
            layout = found.layout.with_(shape=(sum(n for (n,) in sizes),), axes=(0,), local_shapes=sizes)
            return DistributedArray.of(layout, local, x._base_comm)
        return DistributedArray.of(x.layout.with_(shape=(elements,), axes=(0,)), local, x._base_comm)

    # --- algebra --------------------------------------------------------------------------------------------

    def dot(self, x: Any) -> Any:
        """A x for a vector, A B for an operator, a A for a number."""
        if isinstance(x, LinearOperator):
            return self._algebra().product(self, x)
        if np.isscalar(x):
            return self._algebra().scaled(self, x)
        return self.matvec(x)

    def _algebra(self) -> Any:
        from jali.linops import algebra

        return algebra

    def __matmul__(self, x: Any) -> Any:
        if np.isscalar(x):
            raise ParameterError("scalars multiply operators with *, not with @")
        return self.dot(x)

    def __mul__(self, x: Any) -> Any:
        return self.dot(x)

    def __rmul__(self, x: Any) -> Any:
        return self._algebra().scaled(self, x) if np.isscalar(x) else NotImplemented

    def __pow__(self, power: int) -> Any:
        return self._algebra().power(self, power)

    def __add__(self, x: Any) -> Any:
        return self._algebra().sum_of(self, x)

    def __neg__(self) -> Any:
        return self._algebra().scaled(self, -1)

    def __sub__(self, x: Any) -> Any:
        return self + (-x)

    def adjoint(self) -> Any:
        """A^H."""
        return self._algebra().adjoint(self)

    H = property(adjoint)

    def transpose(self) -> Any:
        """A^T."""
        return self._algebra().transpose(self)

    T = property(transpose)

    def conj(self) -> Any:
        """The conjugate of A."""
        return self._algebra().conjugate(self)


class StackedLinearOperator(LinearOperator):
    """An operator that takes or gives a stack of distributed arrays."""
