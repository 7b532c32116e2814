"""What works element by element: operators and NumPy's ufuncs of distributed arrays of the same layout and numbers.

Nothing here communicates.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import is_complex, namespace_of
from jali.arrays.layout import C_ORDER
from jali.errors import LayoutError, ParameterError, ShapeError

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray
    from jali.arrays.layout import Layout

SERIAL = (
    "a serial operator A (of pylops, of SciPy, a matrix) is applied as jali.linops.aslinearoperator(A) to arrays that all ranks have, "
    "x.redistribute(partition=Partition.BROADCAST), and as jali.linops.BlockDiag([A]) to each rank's part"
)
NUMBERS = (int, float, complex, np.generic)


def check_alike(x: DistributedArray, y: DistributedArray, what: str) -> Layout:
    """Raises ShapeError unless the same elements of two arrays are in the same places; `what` is done to both. Returns the
    layout of the result: of flat vectors that of the one whose order is known."""
    if y.layout is x.layout and type(y._local) is type(x._local):
        return x.layout
    mine, theirs = x.layout, y.layout
    if mine.communicator is not theirs.communicator:
        raise ShapeError(f"{what}: the arrays belong to different communicators")
    if mine.shape != theirs.shape:
        raise ShapeError(f"{what}: arrays of global shapes {mine.shape} and {theirs.shape}")
    if mine.partition is not theirs.partition and (mine.scattered or theirs.scattered):
        raise ShapeError(
            f"{what}: one array has Partition.{mine.partition.name}, the other Partition.{theirs.partition.name}; redistribute one"
        )
    # along several axes the same shapes may be those of other places
    several = mine.scattered and len(mine.axes) + len(theirs.axes) > 2
    if mine.local_shapes != theirs.local_shapes or (several and mine.boxes != theirs.boxes):
        raise ShapeError(
            f"{what}: the arrays are split differently, {mine!r} into {_shapes(mine)}, {theirs!r} into {_shapes(theirs)}; "
            "redistribute one"
        )
    if mine.mask != theirs.mask:
        raise ShapeError(f"{what}: arrays with the masks {mine.mask} and {theirs.mask}")
    if not mine.is_order_of(theirs):
        raise ShapeError(
            f"{what}: the elements of two flat vectors are in different orders, one is {mine!r}, the other {theirs!r}; redistribute the "
            "arrays that they were made of alike, or make them flat after x.redistribute(0)"
        )
    engines = namespace_of(x._local).name, namespace_of(y._local).name
    if len(set(engines)) > 1:
        raise ShapeError(
            f"{what}: parts of one array are of {engines[0]}, of the other of {engines[1]}; put one where the other is, as "
            f"DistributedArray.of(x.layout, part)"
        )
    if mine.flat_of is None and theirs.flat_of is not None:
        return mine.as_c_order if theirs.flat_of is C_ORDER else mine.with_(flat_of=theirs.flat_of)
    return mine


def _shapes(layout: Layout) -> str:
    """Local shapes of all ranks."""
    return ", ".join(map(str, layout.local_shapes))


def refuse_loss(x: DistributedArray, value: Any) -> None:
    """ParameterError where complex numbers would be assigned to real ones, of which NumPy would only warn."""
    if is_complex(value) and not is_complex(x._local):
        raise ParameterError(
            f"elements of type {x.dtype} would lose the imaginary parts of {getattr(value, 'dtype', 'complex')} numbers: assign "
            "their real parts, or make the array complex (x.astype)"
        )


def apply_ufunc(
    array: DistributedArray, ufunc: np.ufunc, method: str, inputs: Any, out: Any, named: dict[str, Any]
) -> Any:
    """What `array.__array_ufunc__` returns. Raises LayoutError, ShapeError."""
    kind = type(array)
    if method != "__call__" or ufunc.signature is not None:
        raise LayoutError(
            f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method} does not work element by element; take methods of the "
            f"DistributedArray; {SERIAL}"
        )
    first: Any = None
    parts: list[Any] = []
    for x in inputs:
        if type(x) is kind:
            if first is None:
                first, layout = x, x.layout
            elif (found := check_alike(first, x, ufunc.__name__)) is not first.layout:
                layout = found
            parts.append(x._local)
        elif isinstance(x, NUMBERS) or np.ndim(x) == 0:
            parts.append(x)
        else:
            raise LayoutError(
                f"{ufunc.__name__} of a DistributedArray and an array of shape {np.shape(x)}, of which it is not known what part "
                "of the whole it is: make it a DistributedArray (DistributedArray.to_dist, DistributedArray.of), or take x.local"
            )
    if first is None:
        first, layout = array, array.layout  # which is where the result goes
    if out is not None:
        for x in out:
            if x is None:  # a new one, of several
                continue
            if not isinstance(x, kind):
                raise LayoutError(f"{ufunc.__name__}: out is a DistributedArray, not {type(x).__name__}")
            check_alike(first, x, ufunc.__name__)
            if layout.flat_of is not None:
                x.layout = layout
        new = any(namespace_of(x._local).immutable for x in out if x is not None)
        if not new:
            named["out"] = tuple(None if x is None else x._local for x in out)
    if isinstance(where := named.get("where"), kind):
        check_alike(first, where, ufunc.__name__)
        named["where"] = where._local
    elif where is not None and np.ndim(where) > 0:
        raise LayoutError(
            f"{ufunc.__name__}: where= an array of shape {np.shape(where)}, of which it is not known what part of the whole it is: "
            "make it a DistributedArray"
        )
    found = namespace_of(first._local).ufunc(ufunc)(*parts, **named)
    parts_found = found if isinstance(found, tuple) else (found,)
    if out is not None and new:  # arrays that never change give way to others
        for x, one in zip(out, parts_found, strict=True):
            if x is not None:
                x._local = one.astype(x._local.dtype)
    given = (None,) * ufunc.nout if out is None else out
    results = tuple(
        kind.of(layout, one, first._base_comm) if x is None else x
        for x, one in zip(given, parts_found, strict=True)
    )
    return results[0] if len(results) == 1 else results


def add_operators(kind: type[DistributedArray]) -> None:
    """Operators between arrays of one layout, and with Python's numbers, at the cost of those of local parts; the rest are ufuncs."""
    plain = (int, float, complex)

    def between(name: str, reflected: bool, in_place: bool) -> None:
        method = f"__{'r' if reflected else 'i' if in_place else ''}{name}__"
        apply = getattr(operator, f"__{'i' if in_place else ''}{name}__")
        as_ufunc = getattr(np.lib.mixins.NDArrayOperatorsMixin, method)

        def call(self: DistributedArray, other: Any) -> Any:
            given = type(other)
            if given is kind and other.layout is self.layout and type(other._local) is type(self._local):
                value = other._local
            elif given in plain:
                value = other
            else:
                return as_ufunc(self, other)
            if type(self._local) is np.ndarray:
                found = apply(value, self._local) if reflected else apply(self._local, value)
            else:
                with namespace_of(self._local).where(self._local):
                    found = apply(value, self._local) if reflected else apply(self._local, value)
            if in_place:
                if found is not self._local:  # arrays that never change give way to others
                    self._local = found
                return self
            if isinstance(found, np.generic):  # of no dimension
                found = np.asarray(found)
            made = kind.__new__(kind)
            made.layout, made._local, made._base_comm = self.layout, found, self._base_comm
            return made

        call.__name__ = method
        setattr(kind, method, call)

    for name in ("add", "sub", "mul", "truediv", "pow"):
        for reflected, in_place in ((False, False), (True, False), (False, True)):
            between(name, reflected, in_place)
