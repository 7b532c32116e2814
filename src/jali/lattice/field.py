"""Fields: one element per site, spread over ranks, seen through NumPy."""

from __future__ import annotations

import functools
import itertools
import math
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import _core, graph_recorder, tape_recorder
from jali.codegen import state as tracing
from jali.codegen.arithmetics import ARITHMETICS, PRECISIONS, seen_by_numpy, widest
from jali.codegen.lines import trace_error
from jali.codegen.storage_formats import plain, stored
from jali.codegen.symbols import Site
from jali.codegen.types import KINDS, Element
from jali.errors import LayoutError, UnsetError
from jali.files import value_shown
from jali.lattice import borrowed_arrays, field_arithmetic
from jali.lattice.base import LatticeBase, what_differs
from jali.lattice.batches import Members, batch_of_field
from jali.lattice.boundary import Boundary
from jali.lattice.colours import box_of_array, colour_of_field, mask_of
from jali.lattice.domain import ALL, EVEN, ODD, Domain
from jali.lattice.field_arithmetic import FieldArithmetic, FieldExpression, check_gives_all
from jali.lattice.indexing import OnlyOfArraysError, Part, Selection, select, with_first_direction_first
from jali.lattice.overflow import (
    Count,
    Found,
    LaunchCount,
    PastCount,
    raise_if_found,
    raise_on_all_ranks,
    unreported,
)
from jali.lattice.recorded_calls import FIELD, NUMBER
from jali.lattice.scalar_parts import perform
from jali.lattice.scalars import Scalar

if TYPE_CHECKING:
    from jali.lattice.lattice import Lattice

_serials = itertools.count(1)

# what a field keeps as long as it lives, since kernels are prepared for it, and what makes a field of another
_KEPT = {
    **{
        name: f"f.like({name}=...)"
        for name in ("element", "precision", "storage", "boundary", "over", "batch")
    },
    **dict.fromkeys(("stored", "layout"), "f.like(storage=...)"),
    "lattice": "Field(lattice, f.element)",
    "borrowed": "lattice.wrap(array)",
    **dict.fromkeys(("members_in_memory", "listed_members", "view_of", "views"), "f.members[...]"),
    "serial": "f.like()",
}


def next_serial() -> int:
    """A number that is larger than those of all fields, and smaller than those of fields to come."""
    return next(_serials)


def as_array(values: Any, what: str) -> np.ndarray:
    """Numbers from Python as an array. Raises LayoutError, a sentence that begins with `what`, for anything else."""
    if isinstance(values, FieldArithmetic):
        raise LayoutError(f"{what} takes an array of numbers; f.assign(g) takes the values of another field")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise LayoutError(f"{what} takes an array without masked values; fill them, array.filled(value)")
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise LayoutError(f"{what} takes an array of numbers: {error}") from None
    if array.dtype.kind not in "biufc":
        raise LayoutError(f"{what} takes numbers, not {type(values).__name__} ({array.dtype})")
    return array


def precision_named(given: Any) -> str:
    """A precision by its name or as a type of NumPy's. Raises LayoutError."""
    of_numpy = isinstance(given, np.dtype) or any(given is a.dtype("real").type for a in ARITHMETICS.values())
    name = np.dtype(given).name if of_numpy else given
    if not isinstance(name, str) or name not in PRECISIONS:
        raise LayoutError(
            f"precision {value_shown(given)} is unknown; use {' or '.join(map(repr, reversed(PRECISIONS)))}"
        )
    return name


class WithoutOperators:
    """Fields of many parts: arithmetic with them belongs into a site function, and raises an error at the user's
    line."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise trace_error(
            f"{self!r} has no arithmetic of its own: inside a site function that has it as an argument f[X] is a value, "
            "outside f[...] is a NumPy array"
        )

    __array__ = __array_ufunc__ = __array_function__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __mod__ = __floordiv__ = _refuse
    __neg__ = __pos__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __float__ = __complex__ = __int__ = (
        _refuse
    )


class Field(FieldArithmetic):
    """One `element` per site of a lattice, zero at first.

    `precision` is that of the arithmetic, `"float64"` or `"float32"` (NumPy's types of these names do, too), `storage` names an entry of
    `jali.codegen.storage_formats`, how values are kept in memory (by default numbers of that precision; `float32` under `float64` halves
    the traffic). `boundary` is a condition for all directions, a list of one per direction or a dictionary: see `Boundary`. `over` are its
    sites: `ALL`, or one colour, `EVEN` or `ODD`, of a lattice whose extents are even (open directions may be odd): half the memory, and
    functions run where it is. With a `batch` there are so many elements at each site: functions run for every one of them, sums are
    arrays, `members` takes some.

    `f[x, y, z, t]` and slices read and write global sites from Python: every rank must make the same call, and every rank receives the
    values; sites of the other colour are zero and stay so. `borrowed` is the array of a field that `Lattice.wrap` makes, None where memory
    is jali's own. Raises LayoutError for unknown precisions, conditions, shapes and colours.
    """

    VECTORS_IN = (
        "jali.lattice.vectors"  # for `jali.vectors.vectors_of`; programs without solvers do not load it
    )

    def __init__(
        self,
        lattice: Lattice,
        element: Element,
        precision: Any = "float64",
        storage: str | None = None,
        boundary: Any = None,
        name: str = "",
        borrowed: borrowed_arrays.BorrowedArray | None = None,
        over: Domain = ALL,
        batch: int | None = None,
    ):
        graph_recorder.refuse("a field is made", "make it before, and assign to it in the graph")
        if not isinstance(lattice, LatticeBase):
            raise LayoutError(
                f"a field lives on a Lattice, not on {value_shown(lattice)}: Field(lattice, element)"
            )
        if not isinstance(element, Element):
            raise LayoutError(
                f"a field holds an element type such as SU(3) or Real(), not {value_shown(element)}"
            )
        if not isinstance(name, str):
            raise LayoutError(f"the name of a field is a string, not {value_shown(name)}")
        precision = precision_named(precision)
        self.stored = plain(element, precision) if storage is None else stored(storage, element, precision)
        self.lattice = lattice
        self.element = element
        self.precision = precision
        if isinstance(boundary, Boundary) and len(boundary.conditions) == lattice.ndim:
            boundary.check(element)
            self.boundary = boundary
        else:
            self.boundary = Boundary(lattice.ndim, boundary, element)
        self.over = ALL if over is ALL else colour_of_field(over, lattice, self.boundary.conditions)
        self.batch = batch_of_field(batch)
        self.members_in_memory = self.batch or 0
        self.listed_members: tuple[int, ...] | None = None  # of a view: which of these it has
        self.view_of: Field | None = None  # the field whose memory a view has, and which it keeps
        if self.batch is not None:
            self.views: weakref.WeakValueDictionary[Any, Field] = weakref.WeakValueDictionary()
        self.serial = next(_serials)
        self.name = name or f"{element} field {self.serial}"
        self.named = bool(name)  # by its user
        self.borrowed = borrowed
        where: tuple[Any, ...]
        if borrowed is None:
            self.layout, where = lattice.layout(precision), (lattice.pool, self.over.parities)
        else:
            self.layout = lattice.array_layout(self.over is not ALL)
            where = (borrowed.memory, borrowed.stream, self.over.parities)
        with lattice.lock:
            memory = self.stored.memory * (self.batch or 1)
            self.storage = _core.FieldStorage(self.layout, memory, self.name, *where)
        self.set_by = (
            ""  # what sets this field, in words, if it may not be read before; empty where zeros are values
        )
        self.overflow: list[LaunchCount] = []  # of launches that write here
        self._may_overflow = False
        weakref.finalize(self, lattice.left.add, self.overflow).atexit = False
        self._release: weakref.WeakSet[Callable[[], None]] = weakref.WeakSet()
        weakref.finalize(self, _run_all, self._release).atexit = False

    def __repr__(self) -> str:
        over = "" if self.over is ALL else f"{self.over} sites of "
        batch = "" if self.batch is None else f", batch of {self.batch}"
        return f"<{self.element} field on {over}{self.lattice}, {self.precision}{batch}>"

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises LayoutError for what a field keeps."""
        if name in _KEPT and hasattr(self, name):
            raise LayoutError(f"{self.name} keeps its {name}; {_KEPT[name]} makes another field")
        object.__setattr__(self, name, value)

    def _begin_view(self, name: str) -> None:
        """Makes a shallow copy of a field one of its own, with the same memory."""
        vars(self)["serial"] = next(_serials)
        self.name, self.named = name, False
        self._release = weakref.WeakSet()
        weakref.finalize(self, _run_all, self._release).atexit = False

    @property
    def array(self) -> Any:
        """The array that this field is, if it was made by `Lattice.wrap`; None for a view of some of its members."""
        return None if self.borrowed is None or self.view_of is not None else self.borrowed.array

    @property
    def read_only(self) -> bool:
        """Whether this is an array that may not be written."""
        return self.borrowed is not None and self.borrowed.read_only

    def _writable(self, whole: bool = True) -> None:
        """Before values are set from Python, all of them or a part. Raises LayoutError for an array that is read-only."""
        self._check_writable()
        tape_recorder.before_write(self, whole)

    def _check_writable(self) -> None:
        if self.read_only:
            raise LayoutError(f"{self.name} is a read-only array: set a copy of it")

    @property
    def may_overflow(self) -> bool:
        """Whether there ever was a count of launches that write here, or to any view of this memory; alike on all ranks."""
        return self._may_overflow if self.view_of is None else self.view_of._may_overflow

    @property
    def is_set(self) -> bool:
        """Whether it may be read; while a graph is recorded, what the graph writes may."""
        if not self.set_by or self.storage.versions() != (1, 1):
            return True
        recorder = graph_recorder.current() if graph_recorder.recorders else None
        return recorder is not None and any(storage is self.storage for storage, _ in recorder.changing)

    def check_set(self) -> None:
        """Raises UnsetError, alike on all ranks, for a field that is read before it is set, and may not."""
        if not self.is_set:
            raise UnsetError(f"{self.name} is read, but was never set: {self.set_by}")

    def on_release(self, action: Callable[[], None]) -> None:
        """Calls `action` when this field is deleted, if the action still exists: the reference to it is weak."""
        self._release.add(action)

    def like(self, **changes: Any) -> Field:
        """A field of zeros with the same lattice, element, precision, storage, boundary and sites, but for `changes`. A new element or
        precision is stored as its own numbers, unless `storage` says otherwise.
        """
        if not isinstance(changes.get("element", self.element), Element):
            raise LayoutError(f"like: element is an element, not {value_shown(changes['element'])}")
        options: dict[str, Any] = {
            "precision": self.precision,
            "storage": self.stored.format.name,
            "boundary": self.boundary,
            "over": self.over,
            "batch": self.batch,
        }
        if "precision" in changes or changes.get("element", self.element) != self.element:
            del options["storage"]
        options.update(changes)
        if unknown := set(options) - {
            "element",
            "precision",
            "storage",
            "boundary",
            "name",
            "over",
            "batch",
        }:
            raise LayoutError(
                f"like changes element, precision, storage, boundary, name, over and batch, not {', '.join(sorted(unknown))}"
            )
        element = options.pop("element", self.element)
        kept_alike = "storage" in options and "storage" not in changes
        if self.borrowed is not None and kept_alike and (self.over is ALL) == (options["over"] == ALL):
            members = () if options["batch"] is None else (batch_of_field(options["batch"]),)
            shape = (*box_of_array(options["over"], self.lattice), *members, *element.numpy_shape)
            options["borrowed"] = borrowed_arrays.new_like(
                self.lattice, self.borrowed, shape
            )  # an array, too
        field = Field(self.lattice, element, **options)
        if field.borrowed is not None:
            field.storage.fill_zero()
        return field

    def is_like(self, other: Field, over: Domain | None = None) -> bool:
        """Whether `other.like(over=over)` would be such a field: of the same lattice, element, precision, storage, boundary, sites and batch."""
        return (
            self.lattice is other.lattice
            and self.element == other.element
            and self.precision == other.precision
            and self.format == other.format
            and self.boundary == other.boundary
            and self.over is (other.over if over is None else over)
            and self.batch == other.batch
        )

    def copy(self) -> Field:
        """A field with the same values."""
        self.check_set()
        with graph_recorder.suspended():  # all that it holds is assigned
            out = self.like()
        if self.listed_members is not None or tape_recorder.recorders or graph_recorder.recorders:
            return out.assign(self)
        with self.lattice.lock:
            out.storage.copy_from(self.storage, self.lattice.pool)
            out._share_counts(self)
        return out

    @property
    def members(self) -> Members:
        """The members of the batch: `f.members[k]` is one as a field, `f.members[2:5]` and `f.members[[0, 3]]` are batches of some. They are
        views: what is written to them is written to this field, and a loop over `f.members` has each. `copy()` makes a field of their own. Calls
        with a new view are prepared anew: keep those that are used often. Raises LayoutError for a field without a batch."""
        return Members(self)

    def on(self, over: Domain) -> Field:
        """A new field with the values at the sites of one colour, `EVEN` or `ODD`, half as large. Raises LayoutError where they are not
        there, or cannot be a field of their own (see `Field`)."""
        return self.like(over=over).assign(self)

    @property
    def has_colours(self) -> bool:
        """Whether its sites of one colour can be a field of their own: no direction that goes on across its edge has an odd extent."""
        try:
            colour_of_field(EVEN, self.lattice, self.boundary.conditions)
        except LayoutError:
            return False
        return True

    def split(self) -> tuple[Field, Field]:
        """`on(EVEN)` and `on(ODD)`, which `jali.join` puts together again."""
        return self.on(EVEN), self.on(ODD)

    def assign(self, other: Field) -> Field:
        """Copies the values of another field on the same lattice, of any precision. Returns self.

        Its elements are the same, or of the same shape and less than these: whole numbers go into real ones and both into complex ones.
        A field on one colour takes what a field on all sites has there.
        """
        return self._assign(other, False)

    def _assign(self, other: Field, partly: bool) -> Field:
        """Assigns; `partly`: a field on all sites may keep its values where one on a colour gives none."""
        if not isinstance(other, Field):
            raise LayoutError(f"a field is assigned, not {value_shown(other)}; f[...] = array sets values")
        if other.lattice is not self.lattice:
            raise LayoutError(
                f"cannot assign a field on {other.lattice} to one on {self.lattice}: different lattices "
                f"({what_differs(other.lattice, self.lattice)})"
            )
        if not partly:
            check_gives_all(other, self)
        if other.element.stored_reals != self.element.stored_reals or other.element.type != self.element.type:
            if not _is_less(other.element, self.element):
                raise LayoutError(f"cannot assign a field of {other.element} to one of {self.element}")
            return other._expression().store(self, partly)
        views = self.listed_members is not None or other.listed_members is not None
        if other.batch != self.batch or views:
            other._expression().store(self, partly)
            self._share_counts(other)
            return self
        self._check_writable()
        other.check_set()
        if tape_recorder.recorders and (tape := tape_recorder.current()) is not None:
            return tape.copy(self, other, partly, lambda: self._assign(other, partly))
        mine, theirs = self.borrowed, other.borrowed
        if self is not other and mine is not None and theirs is not None and mine.overlaps(theirs):
            raise LayoutError(
                f"cannot assign {other.name} to {self.name}: their arrays share memory; assign a copy of the array"
            )
        from jali.lattice.recoding import recode_on_host, recode_on_lattice

        precision = widest((self.precision, other.precision))
        copy: Callable[[], Any]
        with self.lattice.lock:
            if other.stored.format == self.stored.format and other.stored.memory == self.stored.memory:
                self.storage.prepare_copy_from(other.storage)
                copy = functools.partial(self.storage.copy_from, other.storage, self.lattice.pool)
            elif other.layout is self.layout and other.over is self.over and self.batch is None:
                copy = recode_on_lattice(self, other, precision)
            elif self.lattice.gpu is not None or other.over is not self.over or other.layout is self.layout:
                other._expression().store(self, partly)
                self._share_counts(other)
                return self
            else:
                copy = functools.partial(recode_on_host, self, other, precision)
            perform(copy, (self, other), (self.storage, other.storage), (self.storage,))
            self._share_counts(other)
        return self

    def add_overflow_count(self, overflow: LaunchCount) -> None:
        """From now on the host reports the sites at which a launch has failed, when it reads this field."""
        left, whole = self.lattice.left, self if self.view_of is None else self.view_of
        left.possible = whole._may_overflow = True
        gone = [count for count in self.overflow if count.final]
        left.add(gone)
        left.shorten()
        self.overflow[:] = [*(count for count in self.overflow if count not in gone), overflow]

    def _share_counts(self, other: Field) -> None:
        """What could not be stored there is not here either. Each of the two reports it, once."""
        known = [count.source for count in self.overflow]
        for count in other.overflow:
            if count.source not in known:
                self.add_overflow_count(count.for_a_copy())

    def counts(self) -> list[Count]:
        """The counts that a read of this field reports: of the launches that write to it, and what is left on its lattice."""
        counts = [*self.overflow, *self.lattice.left.take()]
        self.overflow[:] = [count for count in self.overflow if not count.final]
        return counts

    def _raise_if_overflow(self) -> None:
        if self.overflow or self.lattice.left:
            raise_if_found(unreported(self.counts()))

    def astype(self, precision: Any) -> Field:
        """A copy in another precision."""
        return self.like(precision=precision).assign(self)

    def save(self, path: str | os.PathLike[str], format: str | None = None, name: str = "field") -> None:
        """Writes the field into a file, which `jali.load` and, for `.npy` and `.h5`, NumPy and h5py read. Every rank calls it.

        `format` and errors are those of `jali.save`; `name` is that in the file, a dataset's in HDF5.
        """
        from jali.lattice.saving import save_fields

        save_fields(path, format, {name: self})

    # ---- whole fields ----------------------------------------------------------------------------

    def _expression(self) -> FieldExpression:
        return FieldExpression(FIELD, (self,), (), (self.storage.versions(),))

    def _stored(self, found: Any) -> Any:
        """Itself, with the values of an expression."""
        return found if found is NotImplemented else found.store(self)

    def __iadd__(self, other: Any) -> Any:
        return self._stored(self.__add__(other))

    def __isub__(self, other: Any) -> Any:
        return self._stored(self.__sub__(other))

    def __imul__(self, other: Any) -> Any:
        return self._stored(self.__mul__(other))

    def __imatmul__(self, other: Any) -> Any:
        return self._stored(self.__matmul__(other))

    def __itruediv__(self, other: Any) -> Any:
        return self._stored(self.__truediv__(other))

    def __ipow__(self, exponent: Any) -> Any:
        return self._stored(self.__pow__(exponent))

    def __imod__(self, divisor: Any) -> Any:
        return self._stored(self.__mod__(divisor))

    def __ifloordiv__(self, divisor: Any) -> Any:
        return self._stored(self.__floordiv__(divisor))

    # ---- NumPy -----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as an array: extents of the whole lattice, then that of an element."""
        return self.lattice.extents + self._site_shape

    @property
    def _site_shape(self) -> tuple[int, ...]:
        """What NumPy sees of a site."""
        return self.element.numpy_shape if self.batch is None else (self.batch, *self.element.numpy_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers that NumPy sees."""
        return self.element.numpy_dtype(self.values_precision)

    def local(self) -> np.ndarray:
        """A copy of this rank's box: array `(*local_extents, *element.numpy_shape)`, first index the first direction; the batch, where there is
        one, stands in front of the element."""
        lattice = self.lattice
        self._not_while_tracing()
        self.check_set()
        with lattice.lock:
            self._raise_if_overflow()
            sites = self._exported_box()
        values = with_first_direction_first(self._decoded(sites), lattice.ndim)
        if self.over is not ALL:
            values[~self._own_sites()] = 0
        return values

    def stored_bytes(self) -> np.ndarray:
        """A copy of this rank's box as it is kept: bytes `(*local_extents, site_bytes)`, with `format` what a checkpoint needs.

        Unlike values they are restored bit for bit in any storage, 8 reals of a matrix too.
        """
        self._not_while_tracing()
        self.check_set()
        with self.lattice.lock:
            self._raise_if_overflow()
            sites = self._exported_box()
        return with_first_direction_first(
            sites.reshape(*sites.shape[: self.lattice.ndim], -1), self.lattice.ndim
        )

    def set_stored_bytes(self, sites: np.ndarray, format: tuple[str, int]) -> Field:
        """Sets this rank's box from what `stored_bytes` gave, kept in `format`: name and version. Every rank calls it. Returns self.

        Raises LayoutError where this field is stored otherwise.
        """
        self._not_while_tracing()
        wanted = (*self.lattice.local_extents, self.stored.site_bytes * (self.batch or 1))
        if not (isinstance(format, tuple | list) and len(format) == 2):
            raise LayoutError(
                f"a format is a name and a version, as Field.format gives them, not {value_shown(format)}"
            )
        if tuple(format) != self.format:
            raise LayoutError(
                f"{self.name} is stored as {self.format[0]} version {self.format[1]}, the bytes are {format[0]} version "
                f"{format[1]}; read them into a field of that storage and assign it"
            )
        sites = as_array(sites, "set_stored_bytes")
        if sites.shape != wanted or sites.dtype != np.uint8:
            raise LayoutError(
                f"this rank's box of {self.name} is bytes of shape {wanted}, the array is {sites.dtype} {sites.shape}"
            )
        self._writable()
        with self.lattice.lock:
            self._import_box(np.ascontiguousarray(with_first_direction_first(sites, self.lattice.ndim)))
        return self

    @property
    def format(self) -> tuple[str, int]:
        """Name and version of the storage format."""
        return self.stored.format.name, self.stored.format.version

    @property
    def values_precision(self) -> str:
        """Precision of the numbers that NumPy sees: that of the memory where it holds them as they are."""
        return (
            self.stored.format.name
            if self.stored.format.scalar and not self.stored.format.packing
            else seen_by_numpy(self.precision)
        )

    def _of_view(self, sites: np.ndarray) -> np.ndarray:
        """Of the bytes `(..., all of a site)` those of the members of this field, `(..., batch, bytes)`; without one `(..., bytes)`."""
        if not self.members_in_memory:
            return sites
        members = sites.reshape(*sites.shape[:-1], self.members_in_memory, self.stored.site_bytes)
        if self.listed_members is None:
            return members
        return (
            members[..., self.listed_members, :]
            if self.batch is not None
            else members[..., self.listed_members[0], :]
        )

    def _exported_box(self) -> np.ndarray:
        """This rank's box as bytes `(..., batch, bytes)`, the last direction first; without a batch `(..., bytes)`."""
        return self._of_view(self.storage.export_box())

    def _import_box(self, sites: np.ndarray) -> None:
        """Sets this rank's box to bytes `(..., batch, bytes)`, or flat."""
        box = sites.shape[: self.lattice.ndim]
        if self.listed_members is not None:
            whole = self.storage.export_box()
            self._put(whole, sites)
            sites = whole
        self.storage.import_box(np.ascontiguousarray(sites.reshape(*box, -1)))

    def _put(self, whole: np.ndarray, sites: np.ndarray) -> None:
        """Sets the bytes of this field's members in those of all that are in memory."""
        if self.listed_members is None:
            whole[...] = sites.reshape(whole.shape)
            return
        members = whole.reshape(*whole.shape[:-1], self.members_in_memory, self.stored.site_bytes)
        sites = sites.reshape(*whole.shape[:-1], len(self.listed_members), self.stored.site_bytes)
        members[..., self.listed_members, :] = sites

    def _decoded(self, sites: np.ndarray) -> np.ndarray:
        """Elements `(..., *numpy_shape)` of bytes `(..., site_bytes)`."""
        as_numbers = plain(self.element, self.values_precision)
        if as_numbers.format != self.stored.format:
            from jali.codegen.recode import recode

            sites, _ = recode(sites, self.stored, as_numbers, self.precision)
        return self.element.from_reals(
            np.ascontiguousarray(sites)
            .view(self._numbers)
            .reshape(*sites.shape[:-1], self.element.stored_reals)
        )

    def _encoded(self, values: np.ndarray) -> tuple[np.ndarray, int]:
        """Inverse of `_decoded`, and how many sites cannot be stored."""
        as_numbers = plain(self.element, self._set_precision)
        reals = self.element.to_reals(values, self._set_precision)
        lead = reals.shape[:-1]
        sites = np.ascontiguousarray(reals).view(np.uint8).reshape(*lead, as_numbers.site_bytes)
        if as_numbers.format == self.stored.format:
            return sites, 0
        from jali.codegen.recode import recode

        return recode(sites, as_numbers, self.stored, self.precision)

    @property
    def _set_precision(self) -> str:
        """Of the numbers that values from Python become, before they are stored."""
        return seen_by_numpy(self.precision) if self.stored.counts(self.precision) else self.values_precision

    @property
    def _numbers(self) -> np.dtype[Any]:
        """Of one number that an element is given by."""
        if self.element.type.kind == "int":
            return self.element.numpy_dtype(self.values_precision)
        return np.dtype(self.values_precision)

    def set_local(self, values: Any) -> Field:
        """Sets this rank's box from an array `(*local_extents, *element.numpy_shape)`. Every rank calls it. Returns self."""
        lattice = self.lattice
        self._not_while_tracing()
        array = as_array(values, "set_local")
        wanted = lattice.local_extents + self._site_shape
        if array.shape != wanted:
            raise LayoutError(f"this rank's box of {self.name} has shape {wanted}, the array {array.shape}")
        self._writable()
        if (
            self.borrowed is not None
            and lattice.gpu is None
            and np.may_share_memory(array, self.borrowed.memory)
        ):
            array = array.copy()
        if self.over is not ALL:
            inside = self._own_sites()
            array = np.where(inside.reshape(inside.shape + (1,) * len(self._site_shape)), array, 0)
        sites, overflow = self._encoded(with_first_direction_first(array, lattice.ndim))
        if self.stored.counts(self.precision):
            found = Found(overflow, f"setting {self.name} from Python")
            raise_on_all_ranks(lattice.communicator, [PastCount(found)])
        with lattice.lock:
            self._import_box(sites)
        return self

    def __getitem__(self, index: Any) -> Any:
        """Values at global sites, on every rank: what the same index takes of an array of the field's `shape`, a copy."""
        if isinstance(index, Site) or (isinstance(index, tuple) and index and isinstance(index[0], Site)):
            return self._symbol()[index]
        try:
            chosen = self._select(index)
        except OnlyOfArraysError:
            return self[...][index]
        self._not_while_tracing()
        self.check_set()
        lattice, inside = self.lattice, self._chosen_sites(chosen, index)
        with lattice.lock:
            if lattice.left.possible:
                raise_on_all_ranks(lattice.communicator, self.counts())
            sites = self._gathered(chosen)
        decoded = self._decoded(sites)
        if inside is not None:
            decoded[~inside] = 0
        values = chosen.result(decoded)
        if chosen.components:
            values = values[(..., *chosen.components)]
        return values[()] if values.ndim == 0 else values

    def __setitem__(self, index: Any, value: Any) -> None:
        """Sets global sites; every rank passes the same values. `f[...] = 2 * f + g` computes an expression in place."""
        if isinstance(index, Site) or (isinstance(index, tuple) and index and isinstance(index[0], Site)):
            self._symbol()[index] = value
            return
        try:
            chosen = self._select(index)
        except OnlyOfArraysError:
            values = self[...]
            values[index] = np.asarray(value)
            value, chosen = values, self._select(...)
        if chosen.everything and isinstance(value, FieldArithmetic):
            if isinstance(value, Field):
                self.assign(value)
            else:
                value._expression().store(self)
            return
        if chosen.everything and isinstance(value, Scalar):
            field_arithmetic.kernels.store(self, [], [value], NUMBER)
            return
        self._not_while_tracing()
        if isinstance(value, FieldArithmetic):
            value = value[...]
        components = chosen.components
        if self.batch is not None and components:  # members are kept apart
            components = () if all(c == slice(None) for c in components[1:]) else components
        if components and (self.element.codec != "plain" or self.stored.format.packing):
            raise LayoutError(
                f"{self.name} keeps {self.stored} of each {self.element}: set whole elements, not components"
            )
        if chosen.components:
            self.check_set()
        self._writable(chosen.everything and not chosen.components)
        element = np.empty(self._site_shape)[chosen.components].shape
        array = as_array(value, self.name)
        lattice, inside = self.lattice, self._chosen_sites(chosen, index)
        checked = self.batch is None or not chosen.components  # on every rank, whichever has the sites
        if checked and inside is None:
            self.element.check(array, self._set_precision)
        try:
            array = np.broadcast_to(array, chosen.shape + element)
        except ValueError:
            raise LayoutError(
                f"{self.name}[{index}] takes values of shape {chosen.shape + element}, not {array.shape}"
            ) from None
        array = chosen.brought(array)
        if inside is not None:
            array = np.where(inside.reshape(inside.shape + (1,) * len(element)), array, 0)
            if checked:
                self.element.check(array, self._set_precision)
        with lattice.lock:
            mine = chosen.part(lattice.local_origin, lattice.local_extents)
            new: Any = None
            overflow = 0
            if mine is not None:
                values = array[mine.chosen]
                if chosen.components or not mine.whole:
                    new = self._export(mine)
                if chosen.components:
                    whole = self._decoded(self._of_view(new[mine.inside]))
                    index_in = (slice(None),) * (whole.ndim - len(self._site_shape))
                    whole[(*index_in, *chosen.components)] = values
                    values = whole
                encoded, overflow = self._encoded(values)
                if new is None and self.listed_members is not None:
                    new = self._export(mine)
                if new is None:
                    new = encoded[mine.inside].reshape(*(len(range(n)) for n in reversed(mine.extents)), -1)
                else:
                    part = new[mine.inside]
                    self._put(part, encoded)
                    new[mine.inside] = part
            if self.stored.counts(self.precision):
                raise_on_all_ranks(
                    lattice.communicator, [PastCount(Found(overflow, f"setting {self.name} from Python"))]
                )
            if mine is not None:
                new = np.ascontiguousarray(new)
                if self._is_box(mine):
                    self.storage.import_box(new)
                else:
                    self.storage.import_part(mine.first, new)
            self.storage.mark_written(self.over.parities)  # on every rank, whichever of them wrote

    def _select(self, index: Any) -> Selection:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Site) for part in parts):
            raise trace_error(
                f"{self.name} is used in a site function but is not one of its arguments; pass it as one"
            )
        return select(self.name, self.lattice.extents, self._site_shape, index)

    def _own_sites(self) -> np.ndarray:
        """Of a field on a colour: which sites of this rank's box it has, `(*local_extents)`."""
        ranges = zip(self.lattice.local_origin, self.lattice.local_extents, strict=True)
        return mask_of(self.over, np.ix_(*(np.arange(o, o + n) for o, n in ranges)))

    def _chosen_sites(self, chosen: Selection, index: Any) -> np.ndarray | None:
        """Which sites of a selection this field has, `(*chosen.lead)`; None for all of them. Raises LayoutError where sites are named one
        by one and it has none of them."""
        if self.over is ALL:
            return None
        inside = mask_of(self.over, chosen.coordinates_of_sites())
        if inside.size and not inside.any() and not chosen.sliced:
            raise LayoutError(f"{self.name} lives on {self.over} and has no site at {value_shown(index)}")
        return inside

    def _is_box(self, part: Part) -> bool:
        return tuple(part.extents) == self.lattice.local_extents

    def _export(self, part: Part) -> np.ndarray:
        """Bytes of a part of this rank's box; the whole box goes by another way, which is faster."""
        return (
            self.storage.export_box()
            if self._is_box(part)
            else self.storage.export_part(part.first, part.extents)
        )

    def _gathered(self, chosen: Selection) -> np.ndarray:
        """Bytes of all sites of a selection, `(*chosen.lead, site_bytes)`. Collective; the caller holds the lattice's
        lock."""
        lattice, partition = self.lattice, self.lattice.partition
        mine = chosen.part(lattice.local_origin, lattice.local_extents)
        size = self.stored.site_bytes * (self.batch or 1)
        here = np.empty((0, size), np.uint8)
        if mine is not None:
            here = self._of_view(self._export(mine)[mine.inside])
        if lattice.communicator.size == 1:
            return self._of_batch(here.reshape(*chosen.lead, size))
        sites = np.empty((*chosen.lead, size), np.uint8)
        parts = lattice.communicator.gather_bytes(np.ascontiguousarray(here).tobytes(), what="reading sites")
        for rank, data in enumerate(parts):
            theirs = chosen.part(tuple(partition.origin(rank)), tuple(partition.extents(rank)))
            if theirs is not None:
                chosen_sites = sites[theirs.chosen]
                sites[theirs.chosen] = np.frombuffer(data, np.uint8).reshape(chosen_sites.shape)
        return self._of_batch(sites)

    def _of_batch(self, sites: np.ndarray) -> np.ndarray:
        """Bytes of sites, member by member where there is a batch."""
        return (
            sites
            if self.batch is None
            else sites.reshape(*sites.shape[:-1], self.batch, self.stored.site_bytes)
        )

    def _symbol(self) -> Any:
        """The symbol of this field in the trace of a method whose object has it. Raises TraceError in other traces."""
        trace = getattr(tracing.active, "trace", None)
        if trace is None or trace.capture is None:
            raise trace_error(
                f"{self.name} is used in a site function but is not one of its arguments; pass it as one"
            )
        return trace.capture(self)

    def _not_while_tracing(self) -> None:
        """A number that is read here would stay in the kernel when the field changes, and in the graph."""
        graph_recorder.refuse(f"{self.name} is read or set from Python", "do it before or after")
        if getattr(tracing.active, "trace", None) is not None:
            raise trace_error(
                f"{self.name} is read from Python while a site function is traced; read what is needed before, and pass it as an "
                "argument"
            )


def wrapped(
    lattice: Lattice,
    array: Any,
    element: Element | None,
    precision: str | None,
    boundary: Any,
    name: str,
    stream: Any,
    over: Domain = ALL,
    batch: int | None = None,
    agree: bool = True,
) -> Field:
    """A field in another library's array; see `Lattice.wrap`. `agree`: ranks compare what they wrap."""
    if isinstance(array, Field):
        raise LayoutError(f"{value_shown(array)} is a field already")
    if element is not None and not isinstance(element, Element):
        raise LayoutError(
            f"a field holds an element type such as SU(3) or Real(), not {value_shown(element)}"
        )
    borrowed = borrowed_arrays.borrowed(lattice, array, stream)
    box, shape = box_of_array(over, lattice), borrowed.shape
    if shape[: lattice.ndim] != box:
        sites = "" if over == ALL else f", {math.prod(box)} of them {over}"
        raise LayoutError(
            f"this rank's box has {lattice.local_extents} sites{sites}, an array of them shape {box} first; it has {shape}"
        )
    batch = batch_of_field(batch)
    if batch is not None:
        box = (*box, batch)
        if shape[: len(box)] != box:
            raise LayoutError(
                f"an array with a batch of {batch} has shape {box} first, the members behind the sites; this one has {shape}"
            )
    if element is None:
        element = borrowed_arrays.element_of(borrowed.dtype, shape[len(box) :])
    kept, storage = borrowed_arrays.storage_of(box, borrowed, element)
    field = Field(lattice, element, precision or kept, storage, boundary, name, borrowed, over, batch)
    if agree and lattice.communicator.size > 1:  # arrays come from anywhere, and ranks must have the same
        from jali.comm import checking

        checking.compare(
            lattice.communicator.core,
            {
                "call": "wrap",
                "array of": str(borrowed.dtype),
                "element": str(element),
                "precision": field.precision,
                "boundary": str(field.boundary.conditions),
                "over": str(field.over),
                "batch": str(field.batch),
            },
        )
    return field


def _is_less(a: Element, b: Element) -> bool:
    """Whether each value of `a` is one of `b`, whose numbers are of a higher kind."""
    return (
        b.codec == "plain"
        and a.numpy_shape == b.numpy_shape
        and KINDS.index(a.type.kind) < KINDS.index(b.type.kind)
    )


def _run_all(actions: weakref.WeakSet[Callable[[], None]]) -> None:
    for action in list(actions):
        action()
