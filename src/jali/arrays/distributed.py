"""Arrays that are spread over ranks: NumPy's arithmetic on local parts, sums over ranks, and their way to other layouts.

What works element by element communicates nothing. A dot product or a norm is one all-reduce. Local parts are arrays of NumPy,
CuPy, PyTorch or JAX, or jali's fields; functions are looked up in the library of the part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali import _core
from jali.array_namespaces import elements_of, namespace_by_name, namespace_of, where_its_part_is
from jali.arrays import elementwise, ghosts, redistribution, reductions, relayout
from jali.arrays.fields import FieldPart, layout_of_lattice, part_of_memory, to_field
from jali.arrays.global_index import GlobalIndex, slices_of
from jali.arrays.layout import C_ORDER, Layout, Partition, Shape, communicator_of, layout_of
from jali.arrays.replicated import assign, from_rank_0
from jali.comm import Communicator
from jali.comm.validation import flag, integer
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.files import value_shown
from jali.lattice.domain import ALL
from jali.lattice.field import Field

Scalar = Any  # a number of NumPy's
Axis = int | Sequence[int] | None


class DistributedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of `global_shape`, of which each rank has a part, or all.

    Arguments:

    - `global_shape`: extents of the whole.
    - `base_comm`: the ranks, as a communicator of jali or of mpi4py (default: `jali.comm.current()`).
    - `partition`, `axis`: SCATTER along an axis, or several, with `grid` parts along each; or BROADCAST.
    - `local_array`: this rank's part, which is used as it is; without it a new one is made, of `dtype` in the library `engine`
      ("numpy", "cupy", "torch", "jax", or "jali", whose parts are fields on the lattice of the layout), all 0.
    - `local_shapes`: those of all ranks, instead of an even split.
    - `mask`: a number for each rank; ranks with the same number are a group of their own for dot products and norms.
    - `base_comm_nccl`: ignored, for scripts of pylops-mpi: the communicator chooses the transport itself.

    `x[...]` has local indices, `x.global_index[...]` global ones. Operators and NumPy's ufuncs work on arrays of the same
    layout and on numbers, with NumPy's rules for types. Raises ShapeError where shapes do not fit; ParameterError for an
    invalid partition or communicator, and for elements that are not numbers.
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
            namespace = namespace_by_name(engine)
            with elements_of(engine, dtype):
                local_array = namespace.part(layout, dtype)
        elif isinstance(local_array, _core.GpuArray):
            local_array = part_of_memory(layout, local_array)
        else:
            namespace_of(local_array)
        self._set(layout, local_array, base_comm)

    def _set(self, layout: Layout, local: Any, base_comm: Any = None) -> None:
        if type(local) is not np.ndarray:
            if isinstance(local, np.generic):  # what NumPy makes of arrays of no dimension
                local = np.asarray(local)
            if not hasattr(local, "shape"):
                namespace_of(local)  # which names the possible ones
        if type(local) is np.ndarray and local.dtype.kind in "OSUMmV" and local.dtype.name != "bfloat16":
            raise ParameterError(
                f"the elements of a DistributedArray are numbers, not {local.dtype}: convert the array (x.astype)"
            )
        if tuple(local.shape) != layout.local_shape:
            raise ShapeError(
                f"the part of rank {layout.rank} of {layout!r} has shape {layout.local_shape}, the array given for it "
                f"{tuple(local.shape)}"
            )
        self.layout, self._local, self._base_comm = layout, local, base_comm

    @classmethod
    def of(cls, layout: Layout, local: Any, base_comm: Any = None) -> DistributedArray:
        """The array of this layout whose part on this rank is `local`, as it is."""
        if not isinstance(layout, Layout):
            raise ParameterError(
                f"the layout of an array is one of jali.arrays.layout_of, not {value_shown(layout)}"
            )
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
        namespace = namespace_of(x)
        layout = layout_of(
            communicator_of(base_comm), x.shape, partition, axis, grid=grid, local_shapes=local_shapes, mask=mask,
            flat_of=C_ORDER if len(x.shape) == 1 else None,
        )  # fmt: skip
        part = from_rank_0(layout, lambda: namespace.copy(x[slices_of(layout.box, ())]))
        return cls.of(layout, part, base_comm)

    def _with(self, local: Any) -> DistributedArray:
        """An array like this one with another part."""
        return DistributedArray.of(self.layout, local, self._base_comm)

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
        before = namespace_of(self._local)
        if self.layout.of_rank_0:
            self._local = from_rank_0(self.layout, lambda: self._with(value)._local)
        else:
            self._set(self.layout, value, self._base_comm)
        if namespace_of(self._local) is not before:
            self._engine = namespace_of(self._local).name

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
        except AttributeError:  # not requested yet
            self._engine = namespace_of(self._local).name
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
            f"on all ranks, or take this rank's part, x.local; {elementwise.SERIAL}"
        )

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        raise LayoutError(
            f"numpy.{function.__name__} does not know what is on other ranks; take methods of the DistributedArray, or do it to "
            f"x.local or to x.asarray(); {elementwise.SERIAL}"
        )

    def __getattr__(self, name: str) -> Any:
        words = f"a DistributedArray has no attribute {name!r}"
        if hasattr(np.ndarray, name):
            words += f", x.local and x.asarray() have; {elementwise.SERIAL}"
        raise AttributeError(words)

    def __bool__(self) -> bool:
        raise LayoutError("whether a DistributedArray is true is ambiguous; ask for a number of it")

    def __iter__(self) -> Any:
        raise LayoutError("a DistributedArray is not gone through element by element; x.local can be")

    def __copy__(self) -> DistributedArray:
        return self.copy()

    def __deepcopy__(self, _: Any) -> DistributedArray:
        return self.copy()  # of the same ranks, which pickling would not know

    def __reduce__(self) -> Any:
        return _unpickled, (_form(self.layout), self._local)

    # --- elements -------------------------------------------------------------------------------------------

    @where_its_part_is
    def __getitem__(self, where: Any) -> Any:
        try:
            return self._local[where]
        except IndexError as error:
            raise IndexError(f"{error}{self._indices_are_local()}") from None

    @where_its_part_is
    def __setitem__(self, where: Any, value: Any) -> None:
        if self.layout.of_rank_0:
            assign(self, lambda: (where, self._checked(value)))
            return
        value = self._checked(value)
        try:
            if type(self._local) is np.ndarray:
                self._local[where] = value
            else:
                self._local = namespace_of(self._local).put(self._local, where, value)
        except IndexError as error:
            raise IndexError(f"{error}{self._indices_are_local()}") from None
        except ValueError as error:
            if not (note := self._indices_are_local()):
                raise
            raise ShapeError(f"{error}{note}") from error

    def _indices_are_local(self) -> str:
        """The error text for an index or a value that does not fit this rank's part, which is not the whole."""
        if self.local_shape == self.global_shape:
            return ""
        return (
            f": x[...] has the indices of this rank's part, of shape {self.local_shape}; x.global_index[...] has those of the whole, of shape "
            f"{self.global_shape}, to which all ranks assign the same value"
        )

    def _checked(self, value: Any) -> Any:
        """The value assigned to this rank's part."""
        if isinstance(value, DistributedArray):
            self.layout = self._alike(value, "assignment")
            value = value._local
        elementwise.refuse_loss(self, value)
        return value

    @property
    def global_index(self) -> GlobalIndex:
        """Elements by global indices: `x.global_index[10:20, 3]` is a DistributedArray, and may be assigned to."""
        return GlobalIndex(self)

    # --- arithmetic -----------------------------------------------------------------------------------------

    def _alike(self, other: DistributedArray, what: str) -> Layout:
        return elementwise.check_alike(self, other, what)

    @where_its_part_is
    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **named: Any
    ) -> Any:
        return elementwise.apply_ufunc(self, ufunc, method, inputs, out, named)

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
        return self._with(self._local.real)

    @property
    def imag(self) -> DistributedArray:
        """Imaginary parts."""
        local = namespace_of(self._local).imag(self._local)
        return self._with(local)

    def astype(self, dtype: Any) -> DistributedArray:
        """A copy with elements of another type."""
        with elements_of(self.engine, dtype):
            found = namespace_of(self._local).astype(self._local, dtype)
        return self._with(found)

    def copy(self) -> DistributedArray:
        """With the same values."""
        return self._with(namespace_of(self._local).copy(self._local))

    def zeros_like(self) -> DistributedArray:
        """Of the same layout and type, all 0."""
        return self._with(namespace_of(self._local).zeros_like(self._local))

    def empty_like(self) -> DistributedArray:
        """An array of the same layout and type with unset values: the only one that is not zeroed."""
        return self._with(namespace_of(self._local).empty_like(self._local))

    # --- other memory ---------------------------------------------------------------------------------------

    def as_engine(self, engine: str) -> DistributedArray:
        """The same memory as parts of another library ("numpy", "cupy", "torch", "jax", "jali"), by DLPack: not a copy, except
        where JAX does not accept the alignment.

        Raises LayoutError where that library cannot use the memory. With "jali" all ranks call it.
        """
        namespace = namespace_by_name(engine)
        if namespace_of(self._local) is namespace:
            return self
        if engine == "jali":
            return self._with(FieldPart(self.to_field()))
        return self._with(namespace.sharing(self._local))

    def to_field(self, element: Any = None, boundary: Any = None) -> Any:
        """A `jali.Field` in the memory of this array: what is written to one is in the other. Collective.

        Every axis becomes a direction, but those at the end that are the indices of an `element` (`jali.Vector(3)`: the last one);
        `boundary` is that of `jali.Field`. Raises LayoutError for an array that all ranks have, for one that belongs to groups, and
        where parts are others than ranks of a lattice have: an even split along one axis, or along several with the last one first
        (`axis=(1, 0)`), does. `jali.arrays.from_field` is the way back.
        """
        return to_field(self, element, boundary)

    # --- sums over ranks ------------------------------------------------------------------------------------

    @where_its_part_is
    def dot(self, y: DistributedArray, vdot: bool = False) -> Scalar:
        """Sum of the products of all elements; with `vdot` those of this array are conjugated. One all-reduce; of arrays that all
        ranks have, none. One of the two may be in parts where all ranks have the other."""
        return reductions.dot(self, y, flag("vdot", vdot, ParameterError))

    def check_replicated(self) -> None:
        """In checked mode LayoutError, on all ranks, where an array that all ranks have differs between them (`Communicator.checked`);
        otherwise nothing."""
        if not self.layout.scattered:
            redistribution.check_replicated(self.layout, self._local)

    # Along an axis, or several, the result is a DistributedArray: of Partition.BROADCAST where one of them is split over ranks, else split
    # as this one is.

    @where_its_part_is
    def sum(self, axis: Axis = None, dtype: Any = None) -> Any:
        """The sum of all elements, or along an axis or several, in NumPy's type for it or in `dtype`."""
        return reductions.total(self, "sum", axis, dtype)

    @where_its_part_is
    def prod(self, axis: Axis = None, dtype: Any = None) -> Any:
        """The product, as `sum`."""
        return reductions.total(self, "prod", axis, dtype)

    @where_its_part_is
    def mean(self, axis: Axis = None, dtype: Any = None) -> Any:
        """The mean, as `sum`; of whole numbers in float64."""
        return reductions.mean(self, axis, dtype)

    @where_its_part_is
    def var(self, axis: Axis = None, ddof: float = 0) -> Any:
        """The variance: the sum of |x - mean|^2 over the number of elements less `ddof`. Two all-reduces."""
        return reductions.variance(self, axis, ddof, root=False)

    @where_its_part_is
    def std(self, axis: Axis = None, ddof: float = 0) -> Any:
        """The standard deviation, the root of `var`."""
        return reductions.variance(self, axis, ddof, root=True)

    @where_its_part_is
    def max(self, axis: Axis = None) -> Any:
        """The largest element, of all or along axes. ShapeError where there are none, and of complex numbers."""
        return reductions.extreme(self, "max", axis)

    @where_its_part_is
    def min(self, axis: Axis = None) -> Any:
        """The smallest element, as `max`."""
        return reductions.extreme(self, "min", axis)

    @where_its_part_is
    def argmax(self, axis: int | None = None) -> Any:
        """The index of the first largest element along an axis, or in the whole made flat in C order. Raises as `max`. Two all-reduces."""
        return reductions.index_of_extreme(self, "max", axis)

    @where_its_part_is
    def argmin(self, axis: int | None = None) -> Any:
        """The index of the first smallest element, as `argmax`."""
        return reductions.index_of_extreme(self, "min", axis)

    @where_its_part_is
    def any(self, axis: Axis = None) -> Any:
        """Whether one element is not 0, of all or along axes."""
        return reductions.truth(self, "any", axis)

    @where_its_part_is
    def all(self, axis: Axis = None) -> Any:
        """Whether no element is 0, as `any`."""
        return reductions.truth(self, "all", axis)

    @where_its_part_is
    def norm(self, ord: Any = None, axis: int | None = None) -> Any:
        """As `numpy.linalg.norm` of vectors: of all elements, a number, or along an `axis`, an array that all ranks have.

        `ord` is None or 2, 1, 0, inf, -inf or another power. Raises ShapeError for an axis that does not exist, NotImplementedError
        for norms of matrices ("fro", "nuc").
        """
        from jali.arrays.norms import norm

        self.check_replicated()
        return norm(self, ord, axis)

    # --- other layouts --------------------------------------------------------------------------------------

    @property
    def T(self) -> DistributedArray:
        """With its axes in reverse order: each part transposed where it is, not a copy."""
        return self.transpose()

    @where_its_part_is
    def transpose(self, *axes: Any) -> DistributedArray:
        """With its axes in another order, reverse by default, as `numpy.transpose`: not a copy. What is split stays where it
        is, so that another axis of the result is. Communicates nothing. ShapeError for an invalid order of axes."""
        return relayout.transpose(self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    @where_its_part_is
    def asarray(self, masked: bool = False) -> Any:
        """The whole, on every rank; with `masked` what this rank's group has. Collective where ranks have parts."""
        flag("masked", masked, ParameterError)
        self.check_replicated()
        if namespace_of(self._local).complete:
            return self._local.gather()
        return namespace_of(self._local).made_of(
            self._local, lambda local: redistribution.gather(self.layout, local, masked)
        )

    @where_its_part_is
    def redistribute(
        self,
        axis: int | Sequence[int] | None = None,
        *,
        partition: Partition = Partition.SCATTER,
        grid: Sequence[int] | None = None,
        local_shapes: Sequence[Any] | None = None,
    ) -> DistributedArray:
        """The same array with another layout: split along other axes, unevenly, or on all ranks. Collective."""
        return relayout.redistribute(self, axis, partition, grid, local_shapes)

    @where_its_part_is
    def ravel(self, order: str = "C") -> DistributedArray:
        """The parts, each made flat, one after the other."""
        return relayout.ravel(self, order)

    @where_its_part_is
    def reshape(self, local_shape: int | Sequence[int], axis: int = 0) -> DistributedArray:
        """Each part with another shape, which lie side by side along `axis`. Collective: every rank gives its own.

        Raises ShapeError on all ranks where one of them does not fit.
        """
        return relayout.reshape(self, local_shape, axis)

    @where_its_part_is
    def add_ghost_cells(self, cells_front: int | None = None, cells_back: int | None = None) -> Any:
        """This rank's part with so many cells of its neighbours in front and behind, along the axis that is split; at the ends of the
        whole there are none. They may be more than a neighbour has. Collective. Raises ShapeError for a grid of axes and negative
        numbers."""
        front, back = _cells(cells_front), _cells(cells_back)
        return namespace_of(self._local).made_of(
            self._local, lambda local: ghosts.with_ghosts(self.layout, local, front, back)
        )

    @where_its_part_is
    def ghost_cells(self, cells_front: int = 0, cells_back: int = 0) -> tuple[Any, Any]:
        """The neighbours' cells alone, those in front and those behind, as `add_ghost_cells` puts them around a copy of the part:
        what moves is all that this costs. Collective."""
        namespace, front, back = namespace_of(self._local), _cells(cells_front), _cells(cells_back)
        found = ghosts.ghosts_alone(self.layout, namespace.mutable_view(self._local), front, back)
        return namespace.from_mutable(found[0]), namespace.from_mutable(found[1])


def _cells(given: int | None) -> int:
    if (number := integer(0 if given is None else given)) is None:
        raise ShapeError(f"a number of ghost cells is a whole number, not {value_shown(given)}")
    return number


elementwise.add_operators(DistributedArray)


def _form(layout: Layout) -> tuple[Any, ...]:
    """What there is to a layout but its ranks."""
    order = _form(layout.flat_of) if isinstance(layout.flat_of, Layout) else layout.flat_of
    return (layout.shape, layout.partition, layout.axes, layout.grid, layout.local_shapes, layout.mask, order)


def _unpickled(form: tuple[Any, ...], local: Any) -> DistributedArray:
    return DistributedArray.of(_layout_here(form), local)


def _layout_here(form: tuple[Any, ...]) -> Layout:
    shape, partition, axes, grid, local_shapes, mask, order = form
    ranks = communicator_of(None)
    if len(local_shapes) != ranks.size:
        raise LayoutError(
            f"an array of {len(local_shapes)} ranks was pickled, here are {ranks.size}; write arrays to files to change their number"
        )
    scattered = partition is Partition.SCATTER
    return layout_of(
        ranks, shape, partition, axes, grid=grid if scattered else None, local_shapes=local_shapes, mask=mask,
        flat_of=_layout_here(order) if isinstance(order, tuple) else order,
    )  # fmt: skip


def from_field(field: Field) -> DistributedArray:
    """A DistributedArray whose memory is that of a field: what is written to one is in the other. Communicates nothing.

    Its shape is that of the field, the indices of an element last, and it is split as the lattice is. Raises LayoutError for a field
    whose elements are kept as other numbers than NumPy sees, as those of Algebra(3) and of packed formats are, for one on a colour, and for
    batches and their members.
    """
    if not isinstance(field, Field):
        raise LayoutError(f"from_field takes a field, not a {type(field).__name__}")
    if field.over is not ALL:
        raise LayoutError(
            f"{field.name} lives on {field.over}, and an array has all sites: DistributedArray.to_dist(field[...]) copies them, with zeros "
            "elsewhere"
        )
    if field.members_in_memory:
        raise LayoutError(
            f"{field.name} has a batch or is a member of one, whose memory is not that of an array: DistributedArray.to_dist(field[...]) "
            "copies its values"
        )
    if field.element.codec != "plain" or not field.stored.format.scalar or field.stored.format.packing:
        raise LayoutError(
            f"{field.name} keeps {field.stored} of each {field.element}, which are not the numbers of an array: "
            "DistributedArray.to_dist(field[...]) copies them"
        )
    return DistributedArray.of(layout_of_lattice(field.lattice, field.element), FieldPart(field))
