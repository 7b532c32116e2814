"""Arrays that are spread over ranks: NumPy's arithmetic on local parts, sums over ranks, and their way to other layouts.

What works element by element communicates nothing. A dot product or a norm is one all-reduce. Local parts are arrays of NumPy,
CuPy, PyTorch or JAX, or jali's fields; functions are looked up in the library of the part.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jali import _core
from jali.arrays import ghosts, moves
from jali.arrays.fields import FieldPart, layout_of_lattice, part_of_memory, to_field
from jali.arrays.layout import Box, Layout, Partition, Shape, communicator_of, extents, layout_of, shape_of
from jali.arrays.libraries import is_complex, library_by_name, library_of, numpy_dtype
from jali.comm import Communicator
from jali.comm.given import integer
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.lattice.field import Field

Scalar = Any  # a number of NumPy's or Python's


NUMBERS = (int, float, complex, np.generic)


class DistributedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of `global_shape`, of which each rank has a part, or all.

    Arguments:

    - `global_shape`: extents of the whole.
    - `base_comm`: the ranks, as a communicator of jali or of mpi4py (default: `jali.comm.current()`).
    - `partition`, `axis`: SCATTER along an axis, or several, whose `grid` says how many parts each has; or BROADCAST.
    - `local_array`: this rank's part, which is used as it is; without it a new one is made, of `dtype` in the library `engine`
      ("numpy", "cupy", "torch", "jax", or "jali", whose parts are fields on the lattice of the layout), whose values are not set.
    - `local_shapes`: those of all ranks, instead of an even split.
    - `mask`: a number for each rank; ranks with the same number are a group of their own for dot products and norms.
    - `base_comm_nccl`: for scripts of others: it changes nothing, since the communicator finds the best way itself.

    `x[...]` has local indices, `x.globally[...]` global ones. Operators and NumPy's ufuncs work on arrays of the same layout and on
    numbers, with NumPy's rules for types. Raises ShapeError where shapes do not fit; ParameterError for what is no partition or
    communicator.
    """

    __slots__ = ("_base_comm", "_engine", "_local", "layout")
    _engine: str
    __array_priority__ = 100.0

    def __init__(
        self,
        global_shape: int | Sequence[int],
        base_comm: Any = None,
        base_comm_nccl: Any = None,
        partition: Partition = Partition.SCATTER,
        axis: int | Sequence[int] = 0,
        local_array: Any = None,
        local_shapes: Sequence[Any] | None = None,
        mask: Sequence[Any] | None = None,
        engine: str = "numpy",
        dtype: Any = np.float64,
        *,
        grid: Sequence[int] | None = None,
    ) -> None:
        ranks = communicator_of(base_comm)
        layout = layout_of(
            ranks, global_shape, partition, axis, grid=grid, local_shapes=local_shapes, mask=mask
        )
        if local_array is None:
            library = library_by_name(engine)
            try:
                local_array = library.part(layout, dtype)
            except (TypeError, AttributeError) as error:
                raise ParameterError(f"{dtype!r} is no type of elements of {engine}: {error}") from None
        elif isinstance(local_array, _core.PlacedArray):
            local_array = part_of_memory(layout, local_array)
        else:
            library_of(local_array)
        self._set(layout, local_array, base_comm)

    def _set(self, layout: Layout, local: Any, base_comm: Any = None) -> None:
        if isinstance(local, np.generic):  # what NumPy makes of arrays of no dimension
            local = np.asarray(local)
        if not hasattr(local, "shape"):
            library_of(local)  # which says what there may be
        if tuple(local.shape) != layout.local_shape:
            raise ShapeError(
                f"the part of rank {layout.rank} has shape {layout.local_shape}, the array given for it {tuple(local.shape)}"
            )
        self.layout, self._local, self._base_comm = layout, local, base_comm

    @classmethod
    def of(cls, layout: Layout, local: Any, base_comm: Any = None) -> DistributedArray:
        """The array of this layout whose part on this rank is `local`, as it is."""
        array = cls.__new__(cls)
        array._set(layout, local, base_comm)
        return array

    @classmethod
    def to_dist(
        cls,
        x: Any,
        base_comm: Any = None,
        base_comm_nccl: Any = None,
        partition: Partition = Partition.SCATTER,
        axis: int | Sequence[int] = 0,
        local_shapes: Sequence[Any] | None = None,
        mask: Sequence[Any] | None = None,
        *,
        grid: Sequence[int] | None = None,
    ) -> DistributedArray:
        """Spread an array that every rank has; each takes a copy of its part. Of BROADCAST, that of rank 0 counts."""
        library = library_of(x)
        layout = layout_of(
            communicator_of(base_comm), x.shape, partition, axis, grid=grid, local_shapes=local_shapes, mask=mask
        )  # fmt: skip
        part = library.copy(x[_slices(layout.box, ())])
        if partition is Partition.BROADCAST:
            part = moves.that_of_rank_0(layout.communicator, part)
        return cls.of(layout, part, base_comm)

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def global_shape(self) -> Shape:
        """Of the whole."""
        return self.layout.shape

    @property
    def local_shape(self) -> Shape:
        """Of this rank's part."""
        return self.layout.local_shape

    @property
    def local_shapes(self) -> list[Shape]:
        """Of the parts of all ranks."""
        return list(self.layout.local_shapes)

    @property
    def local_array(self) -> Any:
        """This rank's part: not a copy."""
        return self._local

    @local_array.setter
    def local_array(self, value: Any) -> None:
        if library_of(value) is not library_of(self._local):
            self._engine = library_of(value).name
        if self.layout.partition is Partition.BROADCAST:
            value = moves.that_of_rank_0(self.layout.communicator, value)
        self._set(self.layout, value, self._base_comm)

    local = local_array

    @property
    def communicator(self) -> Communicator:
        """The ranks."""
        return self.layout.communicator

    @property
    def base_comm(self) -> Any:
        """The ranks, as they were given: mpi4py's communicator where MPI is in use, else jali's."""
        if self._base_comm is None and self.layout.communicator.transport == "mpi":
            from mpi4py import MPI

            if self.layout.communicator is communicator_of(MPI.COMM_WORLD):
                self._base_comm = MPI.COMM_WORLD
        return self.layout.communicator if self._base_comm is None else self._base_comm

    @property
    def base_comm_nccl(self) -> None:
        """Always None: there is one communicator."""
        return

    @property
    def sub_comm(self) -> Any:
        """The ranks of this rank's group; all where there is no mask."""
        return self.base_comm if self.layout.mask is None else self.layout.group

    @property
    def mask(self) -> list[Any] | None:
        """The number of each rank's group."""
        return None if self.layout.mask is None else list(self.layout.mask)

    @property
    def partition(self) -> Partition:
        """Whether ranks have parts."""
        return self.layout.partition

    @property
    def axis(self) -> int | Shape:
        """Which dimension is split, or which ones."""
        axes = self.layout.axes
        return axes[0] if len(axes) == 1 else axes

    @property
    def grid(self) -> Shape:
        """Into how many parts each of these."""
        return self.layout.grid

    @property
    def rank(self) -> int:
        """This one."""
        return self.layout.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.layout.communicator.size

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return self.layout.ndim

    @property
    def shape(self) -> Shape:
        """That of the whole."""
        return self.layout.shape

    @property
    def elements(self) -> int:
        """Of the whole."""
        return math.prod(self.layout.shape)

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        return self._local.dtype

    @property
    def engine(self) -> str:
        """The library of this rank's part: "numpy", "cupy", "torch", "jax" or "jali"."""
        try:
            return self._engine
        except AttributeError:  # not asked for yet
            self._engine = library_of(self._local).name
        return self._engine

    def __repr__(self) -> str:
        return (
            f"<DistributedArray {self.layout!r}, {self.dtype}, of {self.engine}, part {self.local_shape} "
            f"on rank {self.rank}>"
        )

    def __len__(self) -> int:
        if not self.layout.shape:
            raise TypeError("a number has no length")
        return self.layout.shape[0]

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise LayoutError(
            "a DistributedArray does not become an array by itself, since all ranks would have to gather it: call x.asarray() "
            "on all ranks, or take this rank's part, x.local"
        )

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        raise LayoutError(
            f"numpy.{function.__name__} does not know what is on other ranks; take methods of the DistributedArray, or do it to "
            "x.local or to x.asarray()"
        )

    def __bool__(self) -> bool:
        raise LayoutError("whether a DistributedArray is true is ambiguous; ask for a number of it")

    def __iter__(self) -> Any:
        raise LayoutError("a DistributedArray is not gone through element by element; x.local can be")

    def __copy__(self) -> DistributedArray:
        return self.copy()

    def __deepcopy__(self, _: Any) -> DistributedArray:
        return self.copy()  # of the same ranks, which pickling would not know

    def __reduce__(self) -> Any:
        layout = self.layout
        form = (layout.shape, layout.partition, layout.axes, layout.grid, layout.local_shapes, layout.mask)
        return _unpickled, (form, self._local)

    # --- elements -------------------------------------------------------------------------------------------

    def __getitem__(self, where: Any) -> Any:
        return self._local[where]

    def __setitem__(self, where: Any, value: Any) -> None:
        if isinstance(value, DistributedArray):
            self._alike(value, "assignment")
            value = value._local
        self._refuse_loss(value)
        if self.layout.partition is Partition.BROADCAST:
            value = moves.that_of_rank_0(self.layout.communicator, value, self.dtype)
        if type(self._local) is np.ndarray:
            self._local[where] = value
        else:
            self._local = library_of(self._local).put(self._local, where, value)

    def _refuse_loss(self, value: Any) -> None:
        """ParameterError where complex numbers would be assigned to real ones, of which NumPy would only warn."""
        if is_complex(value) and not is_complex(self._local):
            raise ParameterError(
                f"elements of type {self.dtype} would lose the imaginary parts of {getattr(value, 'dtype', 'complex')} numbers: assign "
                "their real parts, or make the array complex (x.astype)"
            )

    @property
    def globally(self) -> Globally:
        """Elements by global indices: `x.globally[10:20, 3]` is a DistributedArray, and may be assigned to."""
        return Globally(self)

    # --- arithmetic -----------------------------------------------------------------------------------------

    def _alike(self, other: DistributedArray, what: str) -> None:
        if other.layout is self.layout and type(other._local) is type(self._local):
            return
        mine, theirs = self.layout, other.layout
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
                f"{what}: local shapes of rank {self.rank} are {mine.local_shape} and {theirs.local_shape}: the arrays are split "
                f"differently ({mine!r}, {theirs!r}); redistribute one"
            )
        if mine.mask != theirs.mask:
            raise ShapeError(f"{what}: arrays with the masks {mine.mask} and {theirs.mask}")
        engines = library_of(self._local).name, library_of(other._local).name
        if len(set(engines)) > 1:
            raise ShapeError(
                f"{what}: parts of one array are of {engines[0]}, of the other of {engines[1]}; put one where the other is, as "
                f"DistributedArray.of(x.layout, part)"
            )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **named: Any
    ) -> Any:
        if method != "__call__" or ufunc.signature is not None:
            raise LayoutError(
                f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method} does not work element by element; take methods of the "
                "DistributedArray"
            )
        first, parts = None, []
        for x in inputs:
            if type(x) is DistributedArray:
                if first is None:
                    first = x
                else:
                    first._alike(x, ufunc.__name__)
                parts.append(x._local)
            elif isinstance(x, NUMBERS) or np.ndim(x) == 0:
                parts.append(x)
            else:
                raise LayoutError(
                    f"{ufunc.__name__} of a DistributedArray and an array of shape {np.shape(x)}, of which it is not known what part "
                    "of the whole it is: make it a DistributedArray (DistributedArray.to_dist, DistributedArray.of), or take x.local"
                )
        if first is None:
            first = self  # which is where the result goes
        if out is not None:
            for x in out:
                if x is None:  # a new one, of several
                    continue
                if not isinstance(x, DistributedArray):
                    raise LayoutError(f"{ufunc.__name__}: out is a DistributedArray, not {type(x).__name__}")
                first._alike(x, ufunc.__name__)
            new = any(library_of(x._local).immutable for x in out if x is not None)
            if not new:
                named["out"] = tuple(None if x is None else x._local for x in out)
        if isinstance(where := named.get("where"), DistributedArray):
            first._alike(where, ufunc.__name__)
            named["where"] = where._local
        elif where is not None and np.ndim(where) > 0:
            raise LayoutError(
                f"{ufunc.__name__}: where= an array of shape {np.shape(where)}, of which it is not known what part of the whole it is: "
                "make it a DistributedArray"
            )
        found = library_of(first._local).ufunc(ufunc)(*parts, **named)
        parts_found = found if isinstance(found, tuple) else (found,)
        if out is not None and new:  # arrays that never change give way to others
            for x, one in zip(out, parts_found, strict=True):
                if x is not None:
                    x._local = one.astype(x._local.dtype)
        given = (None,) * ufunc.nout if out is None else out
        results = tuple(
            DistributedArray.of(first.layout, one, first._base_comm) if x is None else x
            for x, one in zip(given, parts_found, strict=True)
        )
        return results[0] if len(results) == 1 else results

    def add(self, x: Any) -> DistributedArray:
        """self + x."""
        found: DistributedArray = self + x
        return found

    def iadd(self, x: Any) -> DistributedArray:
        """self += x."""
        self += x
        return self

    def multiply(self, x: Any) -> DistributedArray:
        """self * x."""
        found: DistributedArray = self * x
        return found

    def conj(self) -> DistributedArray:
        """Conjugate complex; a copy."""
        conjugate: Any = np.conjugate
        found: DistributedArray = conjugate(self)
        return found

    @property
    def real(self) -> DistributedArray:
        """Real parts: not a copy."""
        return DistributedArray.of(self.layout, self._local.real, self._base_comm)

    @property
    def imag(self) -> DistributedArray:
        """Imaginary parts."""
        local = library_of(self._local).imag(self._local)
        return DistributedArray.of(self.layout, local, self._base_comm)

    def astype(self, dtype: Any) -> DistributedArray:
        """A copy with elements of another type."""
        return DistributedArray.of(
            self.layout, library_of(self._local).astype(self._local, dtype), self._base_comm
        )

    def copy(self) -> DistributedArray:
        """With the same values."""
        return DistributedArray.of(self.layout, library_of(self._local).copy(self._local), self._base_comm)

    def zeros_like(self) -> DistributedArray:
        """Of the same layout and type, all 0."""
        return DistributedArray.of(
            self.layout, library_of(self._local).zeros_like(self._local), self._base_comm
        )

    def empty_like(self) -> DistributedArray:
        """Of the same layout and type; values are not set."""
        return DistributedArray.of(
            self.layout, library_of(self._local).empty_like(self._local), self._base_comm
        )

    # --- other memory ---------------------------------------------------------------------------------------

    def as_engine(self, engine: str) -> DistributedArray:
        """The same memory as parts of another library ("numpy", "cupy", "torch", "jax", "jali"), by DLPack: not a copy, but where
        JAX finds an array's address odd.

        Raises LayoutError where that library cannot use the memory. With "jali" all ranks call it.
        """
        library = library_by_name(engine)
        if library_of(self._local) is library:
            return self
        if engine == "jali":
            return DistributedArray.of(self.layout, FieldPart(self.to_field()), self._base_comm)
        return DistributedArray.of(self.layout, library.sharing(self._local), self._base_comm)

    def to_field(self, element: Any = None, boundary: Any = None) -> Any:
        """A `jali.Field` in the memory of this array: what is written to one is in the other. Collective.

        Every axis becomes a direction, but those at the end that are the indices of an `element` (`jali.Vector(3)`: the last one);
        `boundary` is that of `jali.Field`. Raises LayoutError for an array that all ranks have, for one that belongs to groups, and
        where parts are others than ranks of a lattice have: an even split along one axis, or along several with the last one first
        (`axis=(1, 0)`), does. `jali.arrays.from_field` is the way back.
        """
        return to_field(self, element, boundary)

    # --- sums over ranks ------------------------------------------------------------------------------------

    def dot(self, y: DistributedArray, vdot: bool = False) -> Scalar:
        """Sum of the products of all elements; with `vdot` those of this array are conjugated. One all-reduce; of arrays that all
        ranks have, none. One of the two may be in parts where all ranks have the other."""
        if not isinstance(y, DistributedArray):
            raise ParameterError(f"dot takes another DistributedArray, not {type(y).__name__}")
        if self.layout.scattered != y.layout.scattered and self.layout.shape == y.layout.shape:
            return self._as_parts_of(y).dot(y._as_parts_of(self), vdot)
        self._alike(y, "dot")
        self.check_same()
        library = library_of(self._local)
        return self._summed([library.dot(self._local, y._local, vdot)])[0]

    def _as_parts_of(self, y: DistributedArray) -> DistributedArray:
        """Of what all ranks have, the parts that `y` has, not copied; itself where it is in parts already."""
        if self.layout.scattered or not y.layout.scattered:
            return self
        self.check_same()
        where = tuple(slice(begin, end) for begin, end in y.layout.box)
        return DistributedArray.of(y.layout, self._local[where], self._base_comm)

    def check_same(self) -> None:
        """In checked mode LayoutError, on all ranks, where an array that all ranks have differs between them (`Communicator.checked`);
        otherwise nothing."""
        if not self.layout.scattered:
            moves.check_same(self.layout, self._local)

    def _summed(self, numbers: Sequence[Any], op: str = "sum") -> list[Any]:
        """Numbers of this rank, combined over the group where ranks have parts."""
        if not self.layout.scattered or self.layout.group.size == 1 or library_of(self._local).complete:
            return list(numbers)
        return moves.combined(self.layout.group, numbers, op)

    def sum(self) -> Scalar:
        """Of all elements."""
        return self._summed([library_of(self._local).number(self._local.sum())])[0]

    def mean(self) -> Scalar:
        """Of all elements."""
        return self.sum() / self._count()

    def max(self) -> Scalar:
        """The largest element. ShapeError where there are none."""
        return self._extreme("max")

    def min(self) -> Scalar:
        """The smallest element. ShapeError where there are none."""
        return self._extreme("min")

    def _extreme(self, name: str) -> Scalar:
        if self._count() == 0:
            raise ShapeError(f"an array of shape {self.global_shape} without elements has no {name}")
        dtype = numpy_dtype(self)
        if dtype.kind not in "iuf":
            raise ShapeError(f"elements of type {dtype} have no order")
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        low, high = (limits.min, limits.max) if limits else (-math.inf, math.inf)
        mine = (low if name == "max" else high) if 0 in self.local_shape else getattr(self._local, name)()
        return self._summed([dtype.type(library_of(self._local).number(mine))], name)[0]

    def _count(self) -> int:
        """Elements of the whole; of a masked array those of the group."""
        if self.layout.mask is None or not self.layout.scattered:
            return math.prod(self.global_shape)
        return sum(math.prod(self.layout.local_shapes[rank]) for rank in self.layout.members)

    def norm(self, ord: Any = None, axis: int | None = None) -> Any:
        """As `numpy.linalg.norm` of vectors: of all elements, a number, or along an `axis`, an array that all ranks have.

        `ord` is None or 2, 1, 0, inf, -inf or another power. Raises ShapeError for an axis that does not exist, NotImplementedError
        for norms of matrices ("fro", "nuc").
        """
        from jali.arrays.norms import norm

        self.check_same()
        return norm(self, ord, axis)

    # --- other layouts --------------------------------------------------------------------------------------

    def asarray(self, masked: bool = False) -> Any:
        """The whole, on every rank; with `masked` what this rank's group has. Collective where ranks have parts."""
        self.check_same()
        if library_of(self._local).complete:
            return self._local.whole()
        return self._lent(lambda local: moves.whole(self.layout, local, masked))

    def _lent(self, function: Callable[[Any], Any]) -> Any:
        """A function of this part that makes a new array, and writes to arrays on its way."""
        library = library_of(self._local)
        return library.returned(function(library.lent(self._local)))

    def redistribute(
        self,
        axis: int | Sequence[int] | None = None,
        *,
        partition: Partition = Partition.SCATTER,
        grid: Sequence[int] | None = None,
        local_shapes: Sequence[Any] | None = None,
    ) -> DistributedArray:
        """The same array with another layout: split along other axes, unevenly, or on all ranks. Collective."""
        layout = layout_of(
            self.communicator, self.global_shape, partition, self.layout.axes if axis is None else axis,
            grid=grid, local_shapes=local_shapes, mask=self.layout.mask,
        )  # fmt: skip
        self.check_same()
        if layout is self.layout:
            return self.copy()
        found = self._lent(lambda local: moves.move(local, self.layout, layout))
        return DistributedArray.of(layout, found, self._base_comm)

    def ravel(self, order: str = "C") -> DistributedArray:
        """The parts, each made flat, one after the other."""
        flat = library_of(self._local).ravel(self._local, order)
        sizes = [(math.prod(shape),) for shape in self.layout.local_shapes]
        total = sum(n for (n,) in sizes) if self.layout.scattered else sizes[0][0]
        layout = layout_of(
            self.communicator, total, self.partition, 0,
            local_shapes=tuple(sizes) if self.layout.scattered else None, mask=self.layout.mask,
        )  # fmt: skip
        return DistributedArray.of(layout, flat, self._base_comm)

    def reshape(self, local_shape: int | Sequence[int], axis: int = 0) -> DistributedArray:
        """Each part with another shape, which lie side by side along `axis`. Collective: every rank gives its own.

        Raises ShapeError on all ranks where one of them does not fit.
        """
        shape = extents("a local shape", local_shape)
        if not self.layout.scattered:
            self._check_reshaped([shape])
            layout = self.layout.with_(shape=shape, axes=(axis,))
            return DistributedArray.of(layout, self._local.reshape(shape), self._base_comm)
        texts = self.communicator.gather_bytes(np.array(shape, np.int64).tobytes(), what="reshape")
        shapes = tuple(tuple(map(int, np.frombuffer(text, np.int64))) for text in texts)
        if len({len(one) for one in shapes}) > 1:
            raise ShapeError(f"reshape: ranks gave local shapes of different dimensions, {shapes}")
        self._check_reshaped(shapes)
        whole = list(shapes[0])
        if not -len(whole) <= axis < len(whole):
            raise ShapeError(f"axis {axis} does not exist in an array of local shape {shape}")
        whole[axis] = sum(one[axis] for one in shapes)
        layout = layout_of(
            self.communicator, tuple(whole), self.partition, axis, local_shapes=shapes, mask=self.layout.mask
        )  # fmt: skip
        return DistributedArray.of(layout, self._local.reshape(shape), self._base_comm)

    def _check_reshaped(self, shapes: Sequence[Shape]) -> None:
        for rank, (before, after) in enumerate(zip(self.layout.local_shapes, shapes, strict=False)):
            if math.prod(before) != math.prod(after):
                raise ShapeError(
                    f"the part of rank {rank} has {math.prod(before)} elements, not {math.prod(after)} as shape {after}"
                )

    def add_ghost_cells(self, cells_front: int | None = None, cells_back: int | None = None) -> Any:
        """This rank's part with so many cells of its neighbours in front and behind, along the axis that is split; at the ends of the
        whole there are none. They may be more than a neighbour has. Collective. Raises ShapeError for a grid of axes and negative
        numbers."""
        front, back = _cells(cells_front), _cells(cells_back)
        return self._lent(lambda local: ghosts.with_ghosts(self.layout, local, front, back))

    def ghost_cells(self, cells_front: int = 0, cells_back: int = 0) -> tuple[Any, Any]:
        """The neighbours' cells alone, those in front and those behind, as `add_ghost_cells` puts them around a copy of the part:
        what moves is all that this costs. Collective."""
        library, front, back = library_of(self._local), _cells(cells_front), _cells(cells_back)
        found = ghosts.ghosts_alone(self.layout, library.lent(self._local), front, back)
        return library.returned(found[0]), library.returned(found[1])


def _cells(given: int | None) -> int:
    if (number := integer(0 if given is None else given)) is None:
        raise ShapeError(f"a number of ghost cells is a whole number, not {given!r}")
    return number


def _operators() -> None:
    """Operators between arrays of one layout, and with Python's numbers, at the cost of those of local parts; the rest are ufuncs."""
    kinds = (int, float, complex)

    def between(name: str, reflected: bool, in_place: bool) -> None:
        method = f"__{'r' if reflected else 'i' if in_place else ''}{name}__"
        apply = getattr(operator, f"__{'i' if in_place else ''}{name}__")
        as_ufunc = getattr(np.lib.mixins.NDArrayOperatorsMixin, method)

        def call(self: DistributedArray, other: Any) -> Any:
            kind = type(other)
            if (
                kind is DistributedArray
                and other.layout is self.layout
                and type(other._local) is type(self._local)
            ):
                value = other._local
            elif kind in kinds:
                value = other
            else:
                return as_ufunc(self, other)
            found = apply(value, self._local) if reflected else apply(self._local, value)
            if in_place:
                if found is not self._local:  # arrays that never change give way to others
                    self._local = found
                return self
            if isinstance(found, np.generic):  # of no dimension
                found = np.asarray(found)
            made = DistributedArray.__new__(DistributedArray)
            made.layout, made._local, made._base_comm = self.layout, found, self._base_comm
            return made

        call.__name__ = method
        setattr(DistributedArray, method, call)

    for name in ("add", "sub", "mul", "truediv", "pow"):
        for reflected, in_place in ((False, False), (True, False), (False, True)):
            between(name, reflected, in_place)


_operators()


class Globally:
    """Elements of a DistributedArray by global indices: whole numbers, and slices whose step is 1."""

    def __init__(self, array: DistributedArray) -> None:
        self._array = array

    def __getitem__(self, where: Any) -> DistributedArray:
        """The section as an array of its own, which shares memory with this one; ranks that have nothing of it have empty parts.

        A whole number keeps its dimension, of extent 1, where the array is split along it, and drops it elsewhere.
        """
        array, layout = self._array, self._array.layout
        if (library := library_of(array._local)).complete:
            return library.xp  # which says that it has no sections
        box, dropped = _box(layout, where)
        if not layout.scattered:
            local = array._local[_slices(box, dropped)]
            return DistributedArray.of(layout.with_(shape=tuple(local.shape), axes=(0,)), local)
        shapes, kept = [], [axis for axis in range(layout.ndim) if axis not in dropped]
        for theirs in layout.boxes:
            shape = shape_of(_common(box, theirs))
            shapes.append(tuple(shape[axis] for axis in kept))
        shape = tuple(shape_of(box)[axis] for axis in kept)
        axes = tuple(kept.index(axis) for axis in layout.axes)
        found = layout.with_(shape=shape, axes=axes, grid=layout.grid, local_shapes=tuple(shapes))
        local = array._local[_slices(_within(_common(box, layout.box), layout.box), dropped)]
        return DistributedArray.of(found, local)

    def __setitem__(self, where: Any, value: Any) -> None:
        """A number, or an array that all ranks have and that NumPy could assign there."""
        array, layout = self._array, self._array.layout
        box, dropped = _box(layout, where, drop_all=True)
        part = _common(box, layout.box)
        if isinstance(value, DistributedArray):
            value = value.asarray()
        array._refuse_loss(value)
        if np.ndim(value) > 0:
            wanted = tuple(end - begin for axis, (begin, end) in enumerate(box) if axis not in dropped)
            if not hasattr(value, "shape"):
                value = np.asarray(value)
            value = library_of(value).xp.broadcast_to(value, wanted)
            inside = [slice(p[0] - b[0], p[1] - b[0]) for p, b in zip(part, box, strict=True)]
            value = value[tuple(s for axis, s in enumerate(inside) if axis not in dropped)]
        if any(begin == end for begin, end in part):
            return
        array._local = library_of(array._local).put(
            array._local, _slices(_within(part, layout.box), dropped), value
        )


def _box(layout: Layout, where: Any, drop_all: bool = False) -> tuple[Box, set[int]]:
    where = where if isinstance(where, tuple) else (where,)
    if dots := [at for at, index in enumerate(where) if index is Ellipsis]:
        at = dots[0]
        where = (*where[:at], *[slice(None)] * (layout.ndim - len(where) + 1), *where[at + 1 :])
    if len(where) > layout.ndim:
        raise ShapeError(f"{len(where)} indices for an array of shape {layout.shape}")
    box, dropped = [], set()
    for axis, extent in enumerate(layout.shape):
        index = where[axis] if axis < len(where) else slice(None)
        if isinstance(index, slice):
            begin, end, step = index.indices(extent)
            if step != 1:
                raise ShapeError(f"global slices have step 1, not {step}; x[...] has local indices")
            box.append((begin, max(begin, end)))
            continue
        number = integer(index)
        if number is None:
            raise ShapeError(
                f"global indices are whole numbers, slices and one ellipsis, not {index!r}; x[...] has local indices"
            )
        if not -extent <= number < extent:
            raise IndexError(f"index {number} is outside of axis {axis} with {extent} elements")
        box.append((number % extent, number % extent + 1))
        if drop_all or not layout.scattered or axis not in layout.axes:
            dropped.add(axis)
    return tuple(box), dropped


def _common(a: Box, b: Box) -> Box:
    """What two boxes share; empty at b's edge where that is nothing."""
    found = []
    for (begin, end), (first, last) in zip(a, b, strict=True):
        low = min(max(begin, first), last)
        found.append((low, max(low, min(end, last))))
    return tuple(found)


def _within(box: Box, of: Box) -> Box:
    return tuple((begin - first, end - first) for (begin, end), (first, _) in zip(box, of, strict=True))


def _slices(box: Box, dropped: Iterable[int]) -> tuple[Any, ...]:
    """Indices of a box, whose result is an array also where no dimension is left."""
    return (*(begin if axis in dropped else slice(begin, end) for axis, (begin, end) in enumerate(box)), ...)


def _unpickled(form: tuple[Any, ...], local: Any) -> DistributedArray:
    shape, partition, axes, grid, local_shapes, mask = form
    ranks = communicator_of(None)
    if len(local_shapes) != ranks.size:
        raise LayoutError(
            f"an array of {len(local_shapes)} ranks was pickled, here are {ranks.size}; write arrays to files to change their number"
        )
    scattered = partition is Partition.SCATTER
    layout = layout_of(
        ranks, shape, partition, axes, grid=grid if scattered else None, local_shapes=local_shapes, mask=mask
    )  # fmt: skip
    return DistributedArray.of(layout, local)


def batch_of_dots(pairs: Sequence[tuple[DistributedArray, DistributedArray]], vdot: bool = True) -> list[Any]:
    """Dot products of several pairs of arrays, by one all-reduce for each group of ranks that they are summed over."""
    numbers: list[Any] = []
    groups: dict[Communicator, list[int]] = {}
    for number, (x, y) in enumerate(pairs):
        x._alike(y, "dot")
        x.check_same()
        numbers.append(library_of(x._local).dot(x._local, y._local, vdot))
        if x.layout.scattered and x.layout.group.size > 1 and not library_of(x._local).complete:
            groups.setdefault(x.layout.group, []).append(number)
    for group, members in groups.items():
        summed = moves.combined(group, [numbers[number] for number in members])
        for number, total in zip(members, summed, strict=True):
            numbers[number] = total
    return numbers


def from_field(field: Field) -> DistributedArray:
    """A DistributedArray whose memory is that of a field: what is written to one is in the other. Communicates nothing.

    Its shape is that of the field, the indices of an element last, and it is split as the lattice is. Raises LayoutError for a field
    whose elements are kept as other numbers than NumPy sees, as those of Algebra(3) and of packed formats are.
    """
    if not isinstance(field, Field):
        raise LayoutError(f"from_field takes a field, not a {type(field).__name__}")
    if field.element.codec != "plain" or not field.stored.format.scalar or field.stored.format.packing:
        raise LayoutError(
            f"{field.name} keeps {field.stored} of each {field.element}, which are not the numbers of an array: "
            "DistributedArray.to_dist(field[...]) copies them"
        )
    return DistributedArray.of(layout_of_lattice(field.lattice, field.element), FieldPart(field))
