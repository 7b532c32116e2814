"""How a global array is spread over ranks: an immutable object that all arrays of one form share.

Nothing here communicates but `Layout.group`, whose first use splits the communicator where there is a mask, and `communicator_of` a communicator of mpi4py.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jali import comm
from jali.amounts import counted
from jali.arrays.lazy_property import lazy_property
from jali.comm import Communicator
from jali.comm.validation import each, integer, several
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.files import value_shown

Shape = tuple[int, ...]
Slices = tuple[slice, ...]
Box = tuple[tuple[int, int], ...]  # first index and the one behind the last, in each dimension


class Partition(enum.Enum):
    """What a rank has of a global array.

    SCATTER: a part, along one axis or a grid of axes. BROADCAST: all of it, and what one assigns is what rank 0 assigned.
    UNSAFE_BROADCAST: all of it, and what one assigns is one's own affair.
    """

    BROADCAST = "Broadcast"
    UNSAFE_BROADCAST = "UnsafeBroadcast"
    SCATTER = "Scatter"


def communicator_of(given: Any) -> Communicator:
    """A communicator from what users have: None (the current one), jali's own, or mpi4py's, whose first use is collective.

    Raises ParameterError for anything else.
    """
    if given is None:
        return comm.current()
    if isinstance(given, Communicator):
        return given
    if hasattr(given, "Get_attr"):
        return comm.from_mpi4py(given)
    raise ParameterError(f"ranks are given as a communicator of jali or of mpi4py, not {value_shown(given)}")


def even_split(extent: int, parts: int) -> Shape:
    """As equal as possible: the first ones get one more."""
    least, more = divmod(extent, parts)
    return tuple(least + 1 if part < more else least for part in range(parts))


def near_square(ranks: int, axes: int) -> Shape:
    """Factors of the number of ranks, as equal as possible, the largest first."""
    factors = [1] * axes
    left, prime, found = ranks, 2, []
    while left > 1:
        while left % prime:
            prime += 1
        found.append(prime)
        left //= prime
    for prime in reversed(found):
        factors[factors.index(min(factors))] *= prime
    return tuple(sorted(factors, reverse=True))


class Layout:
    """Which part of a global array each rank has. Made by `layout_of`; equal ones are the same object.

    `axes` are the dimensions that are split, `grid` into how many parts each; rank r has the position of r in the grid, counted
    with the last axis fastest. `local_shapes` are those of all ranks. `of_rank_0` is whether rank 0's value counts in
    assignments.

    `flat_of` is the order of the elements of a flat vector: C_ORDER, or another layout, whose parts, each flattened, follow one
    another. None where it is not given, and for arrays of several dimensions.
    """

    communicator: Communicator
    shape: Shape
    partition: Partition
    axes: Shape
    grid: Shape
    local_shapes: tuple[Shape, ...]
    mask: tuple[Any, ...] | None
    flat_of: Layout | str | None
    of_rank_0: bool

    def __init__(
        self,
        communicator: Communicator,
        shape: Shape,
        partition: Partition,
        axes: Shape,
        grid: Shape,
        local_shapes: tuple[Shape, ...],
        mask: tuple[Any, ...] | None,
        flat_of: Layout | str | None = None,
    ) -> None:
        self.flat_of = flat_of
        self.communicator, self.shape, self.partition = communicator, shape, partition
        self.axes, self.grid, self.local_shapes, self.mask = axes, grid, local_shapes, mask
        self.of_rank_0 = partition is Partition.BROADCAST and communicator.size > 1

    def __repr__(self) -> str:
        words = [f"{self.shape} {self.partition.name.lower()} over {counted(self.communicator.size, 'rank')}"]
        if self.scattered:
            words.append(
                f"along axis {self.axes[0]}"
                if len(self.axes) == 1
                else f"along axes {self.axes} as {self.grid}"
            )
        if self.mask is not None:
            words.append(f"in groups {self.mask}")
        if self.flat_of is not None:
            words.append("in C order" if self.flat_of is C_ORDER else f"flattening of {self.flat_of!r}")
        return f"<{', '.join(words)}>"

    def __reduce__(self) -> Any:
        raise LayoutError(
            "a layout belongs to the ranks of this program; arrays are pickled with their local part"
        )

    @property
    def scattered(self) -> bool:
        """Whether ranks have parts."""
        return self.partition is Partition.SCATTER

    @property
    def rank(self) -> int:
        """This one."""
        return self.communicator.rank

    @property
    def local_shape(self) -> Shape:
        """Of this rank's part."""
        return self.local_shapes[self.communicator.rank]

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Global indices of every rank's part. ShapeError where local parts do not lie side by side."""
        if not self.scattered:
            return (tuple((0, n) for n in self.shape),) * self.communicator.size
        starts: dict[int, list[int]] = {}
        for number, axis in enumerate(self.axes):
            starts[axis] = [0]
            for coordinate in range(self.grid[number]):
                starts[axis].append(starts[axis][-1] + self._extent(number, coordinate))
        boxes = []
        for coordinates in itertools.product(*map(range, self.grid)):
            box = [(0, n) for n in self.shape]
            for axis, coordinate in zip(self.axes, coordinates, strict=True):
                box[axis] = starts[axis][coordinate], starts[axis][coordinate + 1]
            boxes.append(tuple(box))
        if tuple(shape_of(box) for box in boxes) != self.local_shapes or any(
            starts[axis][-1] != self.shape[axis] for axis in self.axes
        ):
            raise ShapeError(
                f"local parts of shapes {', '.join(map(str, self.local_shapes))} do not lie side by side in an array of shape "
                f"{self.shape}, split {'along axis ' + str(self.axes[0]) if len(self.axes) == 1 else f'along axes {self.axes} as {self.grid}'}"
            )
        return tuple(boxes)

    def _extent(self, number: int, coordinate: int) -> int:
        stride = math.prod(self.grid[number + 1 :])
        return self.local_shapes[coordinate * stride][self.axes[number]]

    @cached_property
    def in_c_order(self) -> bool:
        """Whether the parts, each made flat, one after the other, are the whole made flat."""
        if not self.scattered or (self.ndim == 1 and not isinstance(self.flat_of, Layout)):
            return True
        if self.ndim == 1:
            return False
        reached = 0
        for box in self.boxes:
            size = math.prod(end - begin for begin, end in box)
            if size > 0:
                first, last = (
                    int(np.ravel_multi_index(corner, self.shape))
                    for corner in ([begin for begin, _ in box], [end - 1 for _, end in box])
                )
                if first != reached or last + 1 - first != size:
                    return False
            reached += size
        return True

    @cached_property
    def flat(self) -> Layout:
        """That of the parts, each made flat, one after the other: what `ravel` gives."""
        if self.ndim == 1:
            return self
        shapes = tuple((math.prod(shape),) for shape in self.local_shapes) if self.scattered else None
        size = sum(n for (n,) in shapes) if shapes else math.prod(self.shape)
        return layout_of(
            self.communicator, size, self.partition, 0, local_shapes=shapes, mask=self.mask, flat_of=C_ORDER if self.in_c_order else self
        )  # fmt: skip

    @cached_property
    def as_c_order(self) -> Layout:
        """The same, of a flat vector whose elements are in C order."""
        return self if self.ndim != 1 or self.flat_of is C_ORDER else self.with_(flat_of=C_ORDER)

    def is_order_of(self, other: Layout) -> bool:
        """Whether elements of two flat vectors may be in the same order, as far as is known."""
        mine, theirs = self.flat_of, other.flat_of
        if mine is None or theirs is None or mine is theirs:
            return True
        if not isinstance(mine, Layout) or not isinstance(theirs, Layout):
            return False
        return mine.shape == theirs.shape and mine.boxes == theirs.boxes

    @property
    def box(self) -> Box:
        """Global indices of this rank's part."""
        return self.boxes[self.communicator.rank]

    @property
    def group(self) -> Communicator:
        """The ranks that an array is reduced over: all, or those with the same number in the mask. The first use of a mask is
        collective; parts are kept as long as the communicator."""
        if self.mask is None:
            return self.communicator
        kept = self.communicator.kept.setdefault("groups of arrays", {})
        if self.mask not in kept:
            numbers = {value: number for number, value in enumerate(dict.fromkeys(self.mask))}
            kept[self.mask] = self.communicator.split(numbers[self.mask[self.rank]])
        return kept[self.mask]

    @lazy_property
    def summed_over(self) -> Communicator | None:
        """The ranks whose parts make the whole, where there are others than this one."""
        return self.group if self.scattered and self.group.size > 1 else None

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of this rank's group, in the communicator's numbers."""
        if self.mask is None:
            return tuple(range(self.communicator.size))
        mine = self.mask[self.rank]
        return tuple(rank for rank, value in enumerate(self.mask) if value == mine)

    def with_(self, **changes: Any) -> Layout:
        """The same but for these: shape, partition, axes, grid, local_shapes, mask, flat_of. A shape that is given, also the same, is one of
        elements whose order is not known."""
        flat_of = changes.pop("flat_of", None if "shape" in changes else self.flat_of)
        now = {name: changes.pop(name, getattr(self, name)) for name in ("shape", "partition", "mask")}
        where = {name: changes.pop(name, None) for name in ("axes", "grid", "local_shapes")}
        if changes:
            raise TypeError(f"a layout has no {', '.join(changes)}")
        if where["axes"] is None:
            where["axes"], where["grid"] = self.axes, where["grid"] or self.grid
            if where["local_shapes"] is None and now["shape"] == self.shape and where["grid"] == self.grid:
                where["local_shapes"] = self.local_shapes if now["partition"] is self.partition else None
        return layout_of(
            self.communicator, now["shape"], now["partition"], where["axes"], grid=where["grid"],
            local_shapes=where["local_shapes"], mask=now["mask"], flat_of=flat_of,
        )  # fmt: skip


C_ORDER = "C"
MOST_KEPT = 1024  # layouts of a communicator


def common(a: Box, b: Box) -> Box | None:
    """What two boxes share, if anything."""
    found = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return found if all(begin < end for begin, end in found) else None


def slices_in(box: Box, of: Box) -> Slices:
    """A box as indices of an array that has another one."""
    return tuple(slice(begin - at, end - at) for (begin, end), (at, _) in zip(box, of, strict=True))


def shape_of(box: Box) -> Shape:
    """Extents."""
    return tuple(end - begin for begin, end in box)


def layout_of(
    communicator: Communicator,
    shape: int | Sequence[int],
    partition: Partition = Partition.SCATTER,
    axis: int | Sequence[int] = 0,
    *,
    grid: Sequence[int] | None = None,
    local_shapes: Sequence[Any] | None = None,
    mask: Sequence[Any] | None = None,
    flat_of: Layout | str | None = None,
) -> Layout:
    """The layout of these, the same object for the same arguments. Communicates nothing.

    `local_shapes`, of all ranks, replace the even split; without a `grid` several axes get factors of the number of ranks that
    are as equal as possible. Raises ShapeError where they are inconsistent, ParameterError for an invalid partition.
    """
    if not isinstance(communicator, Communicator):
        raise ParameterError(
            f"a layout is one among the ranks of a communicator of jali, not {value_shown(communicator)}"
        )
    kept = communicator.kept.setdefault("layouts of arrays", {})
    key = (shape, partition, axis, grid, local_shapes, mask, flat_of)
    try:
        found = kept[key]  # as it was given: the cheapest way
        if (
            _are_whole(shape)
            and (type(axis) is int or _are_whole(axis))
            and (grid is None or _are_whole(grid))
            and (
                local_shapes is found.local_shapes
                or local_shapes is None
                or all(map(_are_whole, local_shapes))
            )
        ):
            return found
    except (KeyError, TypeError):
        pass
    whole = extents("a global shape", shape)
    if not isinstance(partition, Partition):
        raise ParameterError(
            f"a partition is one of {', '.join(f'Partition.{p.name}' for p in Partition)}, not {value_shown(partition)}"
        )
    axes, parts = _grid(communicator.size, whole, axis, grid, partition)
    shapes = _local_shapes(communicator.size, whole, partition, axes, parts, local_shapes)
    groups = None
    if mask is not None:
        if not several(mask):
            raise ShapeError(
                f"a mask has a number for each of {counted(communicator.size, 'rank')}, not {value_shown(mask)}"
            )
        try:
            groups = tuple(value.item() if hasattr(value, "item") else value for value in mask)
        except (ValueError, RuntimeError):  # of several numbers
            raise ShapeError(
                f"a mask has a number for each of {counted(communicator.size, 'rank')}, not {value_shown(mask)}"
            ) from None
        if len(groups) != communicator.size:
            raise ShapeError(
                f"a mask has a number for each of {counted(communicator.size, 'rank')}, this one has {len(groups)}"
            )
    full = (whole, partition, axes, parts, shapes, groups, flat_of)
    if full not in kept:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[full] = Layout(communicator, *full)
    found = kept[full]
    with contextlib.suppress(TypeError):  # of lists
        kept[key] = found
    return found


WHOLE = frozenset((int, np.int64))  # as most are given


def _are_whole(given: Any) -> bool:
    """Whether one or several are whole numbers: 4.0 is none, and finds in a dictionary what 4 has left there."""
    return type(given) is int or WHOLE.issuperset(map(type, given))


def extents(what: str, given: Any) -> Shape:
    """Whole numbers from 0, from one or several. Raises ShapeError."""
    numbers = [integer(n) for n in each(given)]
    shape = tuple(n for n in numbers if n is not None)
    if len(shape) < len(numbers):
        raise ShapeError(f"{what} is a whole number or several, not {value_shown(given)}")
    if any(n < 0 for n in shape):
        raise ShapeError(f"{what} has no negative extents, this one is {value_shown(shape)}")
    if any(n >> 62 for n in shape):
        raise ShapeError(f"{what} has extents below 2^62, this one is {value_shown(shape)}")
    return shape


def _grid(
    ranks: int, shape: Shape, axis: int | Sequence[int], grid: Sequence[int] | None, partition: Partition
) -> tuple[Shape, Shape]:
    axes = []
    for given in each(axis):
        number = integer(given)
        if number is None:
            raise ShapeError(f"an axis is a whole number, or several, not {value_shown(axis)}")
        if not -len(shape) <= number < len(shape) and shape:
            raise ShapeError(f"axis {number} does not exist in an array of shape {shape}")
        axes.append(number % len(shape) if shape else 0)
    if len(set(axes)) != len(axes) or not axes:
        raise ShapeError(f"axes of a grid are different ones, not {tuple(axes)}")
    if partition is not Partition.SCATTER:
        return tuple(axes), (1,) * len(axes)
    if not shape:
        raise ShapeError("a number has no axis to be scattered along; use Partition.BROADCAST")
    parts = near_square(ranks, len(axes)) if grid is None else extents("a grid", grid)
    if len(parts) != len(axes) or math.prod(parts) != ranks:
        raise ShapeError(
            f"a grid for {counted(ranks, 'rank')} along axes {axes} has a number for each axis, whose product is {ranks}; "
            f"not {parts}"
        )
    return tuple(axes), parts


def _local_shapes(
    ranks: int, shape: Shape, partition: Partition, axes: Shape, grid: Shape, given: Sequence[Any] | None
) -> tuple[Shape, ...]:
    if given is None:
        if partition is not Partition.SCATTER:
            return (shape,) * ranks
        splits = [even_split(shape[axis], parts) for axis, parts in zip(axes, grid, strict=True)]
        found = []
        for each in itertools.product(*splits):
            local = list(shape)
            for axis, extent in zip(axes, each, strict=True):
                local[axis] = extent
            found.append(tuple(local))
        return tuple(found)
    if not several(given):
        raise ShapeError(
            f"local_shapes has a shape for each of {counted(ranks, 'rank')}, not {value_shown(given)}"
        )
    shapes = tuple(extents("a local shape", one) for one in given)
    if len(shapes) != ranks:
        raise ShapeError(
            f"local_shapes has {counted(len(shapes), 'shape')}, there are {counted(ranks, 'rank')}"
        )
    if partition is not Partition.SCATTER:
        if any(one != shape for one in shapes):
            raise ShapeError(f"every rank has all of a broadcast array of shape {shape}, not {shapes}")
        return shapes
    for rank, one in enumerate(shapes):
        if len(one) != len(shape) or any(
            n != whole for axis, (n, whole) in enumerate(zip(one, shape, strict=True)) if axis not in axes
        ):
            raise ShapeError(
                f"the local shape {one} of rank {rank} differs from the global shape {shape} in more than "
                f"{'axis ' + str(axes[0]) if len(axes) == 1 else f'axes {axes}'}"
            )
    if sum(map(math.prod, shapes)) != math.prod(shape):
        raise ShapeError(
            f"local shapes {', '.join(map(str, shapes))} have {sum(map(math.prod, shapes))} elements together, "
            f"the global shape {shape} has {math.prod(shape)}"
        )
    return shapes


def local_split(global_shape: Any, base_comm: Any, partition: Partition, axis: int) -> Shape:
    """The shape of this rank's part where a global array is split evenly."""
    return layout_of(communicator_of(base_comm), global_shape, partition, axis).local_shape
