"""Linear operators between distributed arrays, and their algebra: sums, products, powers, adjoints.

An operator has a `shape` in elements of the whole vectors, a `dtype`, and two functions, `_matvec` and `_rmatvec`, which take a
DistributedArray (or a stack of them) and return a new one. `dims` and `dimsd` are the shapes of input and output where these
are arrays. Ranks and memory are those of the vectors, so operators depend on neither unless they must. A composed operator
keeps its operators, and communicates nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, namespace_of, numpy_dtype
from jali.arrays import DistributedArray, StackedDistributedArray, communicator_of, layout_of
from jali.arrays.layout import C_ORDER, Layout, Partition, extents
from jali.comm import Communicator
from jali.comm.validation import several
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.lattice.field import Field
from jali.lattice.field_arithmetic import FieldExpression
from jali.linops import dense
from jali.linops.local import LocalOperator
from jali.linops.spaces import (
    Space,
    flattened,
    in_c_order,
    knows_order,
    order_for,
    owned,
    space_of,
    unflattened,
)
from jali.linops.validation import positive

Vector = DistributedArray | StackedDistributedArray
AS_OPERATOR = "jali.linops.aslinearoperator makes an operator of distributed arrays of a serial one"
MOST_KEPT = 16  # layouts whose results an operator has cached


class LinearOperator:
    """A linear operator on distributed arrays: the base of all, or from a serial one.

    `Op` is an operator of `pylops` or SciPy (anything with `shape`, `dtype`, `matvec` and `rmatvec`) or a matrix, which every rank
    applies to the whole of a vector that all ranks have. Without it, a subclass has `_matvec` and `_rmatvec`. Results have the type
    that holds elements of the operator and of the vector.

    Raises ParameterError where there is neither `Op` nor `shape`.
    """

    __array_ufunc__ = None  # so that NumPy's numbers leave operators to this class
    of_fields = False  # whether vectors may be fields
    takes_stacks = True  # whether a vector may be a stack
    of_arrays = False  # whether vectors are arrays of `dims`, or these made flat, so that it matters in which order elements are
    copies = 1  # so many ranks, one after the other, have the same part of a vector; 0: as it is of the operators beside it
    keeps_order = False  # whether results have the order of elements of the arguments, in any order
    gives_new = True  # whether what an application gives is never written to by a later one

    def __init__(
        self,
        Op: Any = None,
        shape: tuple[int, int] | None = None,
        dims: Sequence[int] | None = None,
        dimsd: Sequence[int] | None = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        self._local: LocalOperator | None = None
        if Op is not None:
            if isinstance(Op, LinearOperator):
                raise ParameterError(f"{value_shown(Op)} is an operator of distributed arrays already")
            self._local, self.takes_stacks = LocalOperator(Op), False
            has = self._local.rows, self._local.columns
            shape = has if shape is None else shape
            if tuple(shape) != has:
                raise ShapeError(f"an operator of shape {has} was given, and shape={shape}")
            dtype = self._local.dtype if dtype is None else dtype
            dims = getattr(Op, "dims", None) if dims is None else dims
            dimsd = getattr(Op, "dimsd", None) if dimsd is None else dimsd
            self.of_arrays = any(n is not None and several(n) and len(n) > 1 for n in (dims, dimsd))
        if shape is None:
            raise ParameterError("an operator needs its shape, (elements that come out, elements that go in)")
        self.Op = Op
        self.shape: tuple[int, int] = extents("the shape of an operator", shape)  # type: ignore[assignment]
        if len(self.shape) != 2:
            raise ShapeError(
                f"an operator has a shape (elements that come out, elements that go in), not {value_shown(shape)}"
            )
        self.dtype = dtype_of_numpy(np.float64 if dtype is None else dtype)
        self.dims = (self.shape[1],) if dims is None else tuple(dims)
        self.dimsd = (self.shape[0],) if dimsd is None else tuple(dimsd)
        self._base_comm = base_comm
        self._kept: dict[Any, tuple[Layout, np.dtype[Any]]] = {}

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} {type(self).__name__} with dtype={self.dtype}>"

    @property
    def base_comm(self) -> Any:
        """The ranks, as they were given; mpi4py's world where MPI is in use, else jali's communicator."""
        if self._base_comm is not None:
            return self._base_comm
        return DistributedArray((0,)).base_comm

    @property
    def communicator(self) -> Communicator:
        """The ranks."""
        return communicator_of(self._base_comm)

    def domain(self) -> Space | None:
        """The layout of its arguments, or a list of them for stacks. None where there are several or it is not known."""
        if self._local is None:
            return None
        return layout_of(self.communicator, self.shape[1], Partition.BROADCAST)

    def range_(self) -> Space | None:
        """The layout of its results for arguments of its domain, and of its adjoint's arguments; None as there."""
        if self._local is None:
            return None
        return layout_of(self.communicator, self.shape[0], Partition.BROADCAST)

    # --- application ----------------------------------------------------------------------------------------

    def matvec(self, x: Vector) -> Any:
        """A x. Raises ShapeError where `x` has not as many elements as the operator columns."""
        self._check(x, self.shape[1], "x")
        return with_mutable_views(self._matvec if not self.of_arrays else self._forward, x)

    def rmatvec(self, x: Vector) -> Any:
        """A^H x. Raises ShapeError where `x` has not as many elements as the operator rows."""
        self._check(x, self.shape[0], "x of the adjoint")
        return with_mutable_views(self._rmatvec if not self.of_arrays else self._backward, x)

    def flat_order(self, space: Space, forward: bool) -> Any:
        """How flat vectors of this layout (of each layout of a list, for stacks) are interpreted without a given order of
        elements: a layout with that order (`Layout.flat_of`), None where any order is valid."""
        if not isinstance(space, Layout):
            return [LinearOperator.flat_order(self, one, forward) for one in space]
        return space.as_c_order if self.of_arrays and space.ndim == 1 else None

    def _forward(self, x: Any) -> Any:
        return self._on_arrays(self._matvec, x, self.dims)

    def _backward(self, x: Any) -> Any:
        return self._on_arrays(
            self._rmatvec, x, self.dims if isinstance(x, StackedDistributedArray) else self.dimsd
        )

    def _on_arrays(self, function: Any, x: Any, dims: tuple[int, ...]) -> Any:
        """A function of arrays, of what `x` is the flattening of if it is one: then its result is flattened as well."""
        if type(x) is DistributedArray and (x.layout.ndim != 1 or x.layout.flat_of is C_ORDER):
            return in_c_order(function(x))
        if not isinstance(x, Vector):
            return function(x)
        given, one = x, x
        while isinstance(one, StackedDistributedArray):
            one = one.distarrays[0]
        if one.ndim != 1:
            return in_c_order(function(x))
        x = self._as_array(x, dims)
        return in_c_order(function(x)) if x is given else flattened(function(x))

    def _as_array(self, x: Any, dims: tuple[int, ...]) -> Any:
        """The array that it is the flattening of; itself where its elements are in C order."""
        if isinstance(x, StackedDistributedArray):
            parts = [self._as_array(one, dims) for one in x.distarrays]
            same = all(a is b for a, b in zip(parts, x.distarrays, strict=True))
            return x if same else StackedDistributedArray(parts, x._base_comm)
        found = unflattened(x, dims, self)
        return x if found is None else found

    def _check(self, x: Any, elements: int, name: str) -> None:
        if isinstance(x, Field):
            self._check_field(x, elements, name)
            return
        if not isinstance(x, Vector):
            raise ParameterError(
                f"{name} is a DistributedArray or a stack of them, not {type(x).__name__}: "
                + (AS_OPERATOR if _is_serial(x) else "DistributedArray.to_dist makes one")
            )
        if not self.takes_stacks:
            self._refuse_stack(x)
        count = x.elements
        if count != elements:
            raise ShapeError(
                f"{self!r}: {name} has {count} elements (global shape {x.global_shape}), not {elements}"
            )
        for array in [x] if isinstance(x, DistributedArray) else x.leaves():
            array.check_replicated()

    def _check_field(self, x: Field, elements: int, name: str) -> None:
        if not self.of_fields:
            raise ParameterError(
                f"{self!r} takes distributed arrays, not fields: jali.arrays.from_field(x) is one in the memory of a field"
            )
        if x.size != elements:
            raise ShapeError(f"{self!r}: {name} has {x.size} numbers ({value_shown(x)}), not {elements}")

    def _matvec(self, x: Any) -> Any:
        return self._whole(x, True)

    def _rmatvec(self, x: Any) -> Any:
        return self._whole(x, False)

    def _whole(self, x: Any, forward: bool) -> DistributedArray:
        """The serial operator, on every rank."""
        if self._local is None:
            raise NotImplementedError(f"{type(self).__name__} has no {'_matvec' if forward else '_rmatvec'}")
        layout, dtype = self._result(x, forward)
        namespace = namespace_of(x.local)
        out = namespace.empty_beside(x.local, layout.local_shape, dtype)
        flat = namespace.contiguous(x.local).reshape(-1)
        (self._local.forward if forward else self._local.adjoint)(flat, out)
        return DistributedArray.of(layout, out, x._base_comm)

    def _result(self, x: DistributedArray, forward: bool) -> tuple[Layout, np.dtype[Any]]:
        """Layout and type of the result for `x`. ShapeError where the layout of `x` does not fit; checked once for each layout."""
        key = (x.layout, x.local.dtype, forward)
        found = self._kept.get(key)
        if found is None:
            layout = self._layout_for(x, forward)
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            found = self._kept[key] = layout, np.result_type(self.dtype, numpy_dtype(x.local))
        return found

    def _layout_for(self, x: DistributedArray, forward: bool) -> Layout:
        if x.layout.scattered and x.layout.communicator.size > 1:
            raise ShapeError(
                f"{self!r} takes the whole vector on every rank, x is scattered ({x.layout!r}): take "
                "x.redistribute(partition=Partition.BROADCAST), or spread the operator by BlockDiag, VStack or HStack"
            )
        return x.layout.with_(shape=(self.shape[0 if forward else 1],), axes=(0,), grid=(1,))

    def _refuse_stack(self, x: Any) -> None:
        if not isinstance(x, DistributedArray):
            raise ShapeError(f"{self!r} takes one DistributedArray, not a stack of {len(x)}")

    # --- algebra --------------------------------------------------------------------------------------------

    def dot(self, x: Any) -> Any:
        """A x for a vector, A B for an operator, a A for a number."""
        if isinstance(x, LinearOperator):
            return _product(self, x)
        if np.isscalar(x):
            return _scaled(self, x)
        return self.matvec(x)

    def __matmul__(self, x: Any) -> Any:
        if np.isscalar(x):
            raise ParameterError("scalars multiply operators with *, not with @")
        return self.dot(x)

    def __mul__(self, x: Any) -> Any:
        return self.dot(x)

    def __rmul__(self, x: Any) -> Any:
        return _scaled(self, x) if np.isscalar(x) else NotImplemented

    def __truediv__(self, y: Any) -> Any:
        """`div(y)` of a vector; (1 / a) A of a number."""
        if np.isscalar(y):
            if isinstance(y, str | bytes) or y == 0:
                raise ParameterError(
                    f"operators are divided by numbers other than 0, not by {value_shown(y)}"
                )
            return _scaled(self, 1 / y)  # type: ignore[operator]
        return self.div(y)

    def __pow__(self, power: int) -> Any:
        return _power(self, power)

    def __add__(self, x: Any) -> Any:
        return _sum(self, x)

    def __neg__(self) -> Any:
        return _scaled(self, -1)

    def __sub__(self, x: Any) -> Any:
        return self + (-x)

    def adjoint(self) -> Any:
        """A^H."""
        return _made(AdjointLinearOperator, self.shape[::-1], self.dtype, self.dimsd, self.dims, self)

    H = property(lambda self: self.adjoint(), doc="A^H.")

    def transpose(self) -> Any:
        """A^T."""
        return _made(TransposedLinearOperator, self.shape[::-1], self.dtype, self.dimsd, self.dims, self)

    T = property(lambda self: self.transpose(), doc="A^T.")

    def conj(self) -> Any:
        """The conjugate of A."""
        return _made(ConjLinearOperator, self.shape, self.dtype, self.dims, self.dimsd, self)

    # --- properties of the whole ---------------------------------------------------------------------

    def div(self, y: Vector, maxiter: int = 100) -> Any:
        """x with the least |A x - y|, by at most so many iterations of `jali.solvers.lsqr`: also `A / y`.

        Square operators are solved likewise, since they need not be Hermitian and positive definite; `jali.solvers.cg` is for
        those that are. Raises ParameterError for an invalid number of iterations, ShapeError where `y` does not fit.
        """
        from jali.solvers import lsqr

        positive("maxiter", maxiter)
        self._check(y, self.shape[0], "y")
        return lsqr(self, y, maxiter=maxiter).x

    def todense(self, like: Vector | None = None, most_elements: int = dense.MOST_ELEMENTS) -> np.ndarray:
        """The matrix, on the host of every rank; see `jali.linops.dense`."""
        return dense.matrix(self, like, most_elements)

    def eigs(
        self,
        neigs: int | None = None,
        symmetric: bool = False,
        maxiter: int | None = None,
        like: Vector | None = None,
    ) -> np.ndarray:
        """The eigenvalues of largest modulus, sorted from the largest value to the smallest, so that a negative one is late,
        however large its modulus; complex ones by their real parts. Of an operator that is not square its singular values. See
        `jali.linops.dense`."""
        return dense.eigenvalues(self, neigs, symmetric, maxiter, like)

    def cond(self, like: Vector | None = None) -> float:
        """The largest singular value over the smallest; see `jali.linops.dense`."""
        return dense.condition(self, like)

    def trace(self, neval: int | None = None, like: Vector | None = None, seed: int = 0) -> Any:
        """Sum of the diagonal, or an estimate by `neval` applications; see `jali.linops.dense`."""
        return dense.trace(self, neval, like, seed)


def with_mutable_views(function: Any, x: Any) -> Any:
    """`function` of a vector, where it is; where its parts are immutable (of JAX), of mutable views of them, and the
    result is a copy of their kind."""
    first = x
    while type(first) is StackedDistributedArray:
        first = first.distarrays[0]
    if not isinstance(first, DistributedArray) or type(first.local) is np.ndarray:
        return function(x)
    namespace = namespace_of(first.local)
    if not namespace.immutable:
        with namespace.where(first.local):
            return function(x)
    return _with_parts(function(_with_parts(x, namespace.mutable_view)), namespace.from_mutable)


def _with_parts(x: Any, of: Any) -> Any:
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([_with_parts(one, of) for one in x.distarrays], x._base_comm)
    return DistributedArray.of(x.layout, of(x.local), x._base_comm)


class StackedLinearOperator(LinearOperator):
    """An operator that takes or gives a stack of distributed arrays: a subclass has `_matvec` and `_rmatvec`."""

    def __init__(
        self,
        shape: tuple[int, int] | None = None,
        dims: Sequence[int] | None = None,
        dimsd: Sequence[int] | None = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        super().__init__(None, shape, dims, dimsd, dtype, base_comm)


# --- operators made of others -------------------------------------------------------------------------------


class _Of(LinearOperator):
    """Composed of these operators, and a number."""

    def __init__(self, shape: tuple[int, int], dtype: Any, *args: Any) -> None:
        super().__init__(shape=shape, dtype=dtype)
        self.args = args
        operators = [A for A in args if isinstance(A, LinearOperator)]
        self.of_fields = all(A.of_fields for A in operators)
        self.gives_new = all(A.gives_new for A in operators)
        self.keeps_order = all(A.keeps_order for A in operators)
        self._agreed: set[Any] = set()

    @property
    def copies(self) -> int:  # type: ignore[override]
        return max(A.copies for A in self.args if isinstance(A, LinearOperator))

    def domain(self) -> Space | None:
        return _first([A.domain() for A in self.args if isinstance(A, LinearOperator)])

    def range_(self) -> Space | None:
        return _first([A.range_() for A in self.args if isinstance(A, LinearOperator)])

    def flat_order(self, space: Space, forward: bool) -> Any:
        return order_for([A for A in self.args if isinstance(A, LinearOperator)], space, forward, repr(self))

    def _check(self, x: Any, elements: int, name: str) -> None:
        super()._check(x, elements, name)
        if isinstance(x, Vector) and not knows_order(x):
            key = x.layout if isinstance(x, DistributedArray) else None, name
            if key not in self._agreed:
                self.flat_order(space_of(x), not name.endswith("adjoint"))
                if key[0] is not None:
                    self._agreed.add(key)


def _field(x: Any) -> Any:
    """What an expression of fields is computed to; other vectors as they are."""
    return x.field() if isinstance(x, FieldExpression) else x


def _first(spaces: Sequence[Space | None]) -> Space | None:
    """Of the first that does not take all."""
    return next((space for space in spaces if space is not None), None)


class _Flipped(LinearOperator):
    """Takes what A gives."""

    def domain(self) -> Space | None:
        return super().range_()

    def range_(self) -> Space | None:
        return super().domain()


class AdjointLinearOperator(_Flipped, _Of):
    """A^H."""

    def flat_order(self, space: Space, forward: bool) -> Any:
        return super().flat_order(space, not forward)

    def _matvec(self, x: Any) -> Any:
        return self.args[0].rmatvec(x)

    def _rmatvec(self, x: Any) -> Any:
        return self.args[0].matvec(x)

    def adjoint(self) -> Any:
        return self.args[0]


class TransposedLinearOperator(_Flipped, _Of):
    """A^T x is the conjugate of A^H conj(x)."""

    def flat_order(self, space: Space, forward: bool) -> Any:
        return super().flat_order(space, not forward)

    def _matvec(self, x: Any) -> Any:
        return _field(self.args[0].rmatvec(_field(x.conj())).conj())

    def _rmatvec(self, x: Any) -> Any:
        return _field(self.args[0].matvec(_field(x.conj())).conj())

    def transpose(self) -> Any:
        return self.args[0]


class ConjLinearOperator(_Of):
    """conj(A) x is the conjugate of A conj(x)."""

    def _matvec(self, x: Any) -> Any:
        return _field(self.args[0].matvec(_field(x.conj())).conj())

    def _rmatvec(self, x: Any) -> Any:
        return _field(self.args[0].rmatvec(_field(x.conj())).conj())


class ScaledLinearOperator(_Of):
    """a A."""

    def _matvec(self, x: Any) -> Any:
        return _field(self.args[0].matvec(x) * self.args[1])

    def _rmatvec(self, x: Any) -> Any:
        return _field(self.args[0].rmatvec(x) * self.args[1].conjugate())


class SumLinearOperator(_Of):
    """A + B."""

    def _matvec(self, x: Any) -> Any:
        return _field(owned(self.args[0], self.args[0].matvec(x)) + self.args[1].matvec(x))

    def _rmatvec(self, x: Any) -> Any:
        return _field(owned(self.args[0], self.args[0].rmatvec(x)) + self.args[1].rmatvec(x))


class ProductLinearOperator(_Of):
    """A B."""

    def flat_order(self, space: Space, forward: bool) -> Any:
        first, then = reversed(self.args) if forward else self.args
        return order_for([first, then] if first.keeps_order else [first], space, forward, repr(self))

    def _matvec(self, x: Any) -> Any:
        return self.args[0].matvec(self._between(self.args[1].matvec(x)))

    def _rmatvec(self, x: Any) -> Any:
        return self.args[1].rmatvec(self._between(self.args[0].rmatvec(x)))

    def _between(self, found: Any) -> Any:
        """Both may be of one function, which reads what it writes to then."""
        A, B = self.args
        return found if A.gives_new or B.gives_new else found.copy()

    def domain(self) -> Space | None:
        return self.args[1].domain()

    def range_(self) -> Space | None:
        return self.args[0].range_()


class PowerLinearOperator(_Of):
    """A^n."""

    def _matvec(self, x: Any) -> Any:
        return self._times(x, self.args[0].matvec)

    def _rmatvec(self, x: Any) -> Any:
        return self._times(x, self.args[0].rmatvec)

    def _times(self, x: Any, function: Any) -> Any:
        if self.args[1] == 0:
            return x.copy()
        for number in range(self.args[1]):
            x = function(owned(self.args[0], x) if number else x)
        return x


_STACKED: dict[type[_Of], type[_Of]] = {
    kind: type(f"Stacked{kind.__name__}", (kind, StackedLinearOperator), {"__doc__": kind.__doc__})
    for kind in _Of.__subclasses__()
}


def _made(
    kind: type[_Of], shape: tuple[int, int], dtype: Any, dims: Any, dimsd: Any, *args: Any
) -> LinearOperator:
    of_stacks = any(isinstance(x, StackedLinearOperator) for x in args)
    found = (_STACKED[kind] if of_stacks else kind)(shape, dtype, *args)
    found.dims, found.dimsd = dims, dimsd
    found._base_comm = next((x._base_comm for x in args if isinstance(x, LinearOperator)), None)
    return found


def _is_serial(x: Any) -> bool:
    """Whether it is an operator of pylops or SciPy."""
    return callable(getattr(x, "matvec", None)) and callable(getattr(x, "rmatvec", None))


def _scaled(A: LinearOperator, a: Any) -> LinearOperator:
    """Numbers of Python's do not widen what they multiply, unless they are complex."""
    if not np.isscalar(a) or isinstance(a, str | bytes):
        raise ParameterError(f"operators are multiplied by numbers, not by {value_shown(a)}")
    dtype = np.result_type(a.dtype if isinstance(a, np.generic) else a, A.dtype)
    return _made(ScaledLinearOperator, A.shape, dtype, A.dims, A.dimsd, A, a)


def _sum(A: LinearOperator, B: Any) -> LinearOperator:
    if not isinstance(B, LinearOperator):
        raise ParameterError(
            f"an operator is added to operators, not to {type(B).__name__}"
            + (f": {AS_OPERATOR}" if _is_serial(B) else "")
        )
    if A.shape != B.shape:
        raise ShapeError(f"cannot add {A!r} and {value_shown(B)}: shape mismatch")
    dtype = np.result_type(A.dtype, B.dtype)
    return _made(SumLinearOperator, A.shape, dtype, A.dims, A.dimsd, A, B)


def _product(A: LinearOperator, B: LinearOperator) -> LinearOperator:
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"cannot multiply {A!r} and {B!r}: shape mismatch")
    dtype = np.result_type(A.dtype, B.dtype)
    return _made(ProductLinearOperator, (A.shape[0], B.shape[1]), dtype, B.dims, A.dimsd, A, B)


def _power(A: LinearOperator, n: Any) -> LinearOperator:
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"only square operators have powers, not {A!r}")
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise ParameterError(f"powers of operators are whole numbers from 0, not {value_shown(n)}")
    return _made(PowerLinearOperator, A.shape, A.dtype, A.dims, A.dimsd, A, int(n))
