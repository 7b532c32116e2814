"""What `f[...]` from Python means: the sites of a NumPy index, those of a rank, and their order in the result.

Sites are moved with the last direction first, as memory has them; an index of slices and numbers then moves in long runs. An index with
lists or masks names its sites one by one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jali.errors import LayoutError
from jali.files import value_shown


class OnlyOfArraysError(LayoutError):
    """An index of NumPy that names no set of sites: it is taken of an array of all values, and cannot be assigned to."""


class Part(NamedTuple):
    """Sites of a selection that are in a box: the smallest part of the box that holds them, where in it, and where in the selection;
    `whole` if these are all sites of that part."""

    first: list[int]
    extents: list[int]
    inside: Any
    chosen: Any
    whole: bool


class Selection:
    """The sites that an index names.

    `lead` is the shape in which ranks bring sites together, `shape` that of the result, first direction first. `components` is
    the index into the element, () for all of it. `sliced`: some direction has a slice, so that not every site is named by itself.
    """

    lead: tuple[int, ...]
    shape: tuple[int, ...]

    def __init__(self, extents: tuple[int, ...], components: tuple[Any, ...], sliced: bool):
        self.extents = extents
        self.components = components
        self.sliced = sliced

    @property
    def everything(self) -> bool:
        """Whether it is the whole field, in its order."""
        return False

    def part(self, origin: tuple[int, ...], extents: tuple[int, ...]) -> Part | None:
        """What of it is in a box."""
        raise NotImplementedError

    def coordinates_of_sites(self) -> list[np.ndarray]:
        """The coordinates of its sites in each direction, broadcast together to `lead`."""
        raise NotImplementedError

    def result(self, sites: np.ndarray) -> np.ndarray:
        """An array `(*lead, ...)` as `(*shape, ...)`."""
        raise NotImplementedError

    def brought(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `result`."""
        raise NotImplementedError


class _Slices(Selection):
    """Numbers and slices: a range in each direction."""

    def __init__(
        self, extents: tuple[int, ...], components: tuple[Any, ...], ranges: list[range], kept: list[bool]
    ):
        super().__init__(extents, components, any(kept))
        self.ranges = ranges
        self.kept = kept
        self.lead = tuple(len(r) for r in reversed(ranges))
        self.shape = tuple(len(r) for r, k in zip(ranges, kept, strict=True) if k)

    @property
    def everything(self) -> bool:
        whole = self.ranges == [range(n) for n in self.extents]
        return whole and all(self.kept) and not self.components

    def part(self, origin: tuple[int, ...], extents: tuple[int, ...]) -> Part | None:
        first, size, inside, chosen = [], [], [], []
        for r, o, n in zip(self.ranges, origin, extents, strict=True):
            up = r.step > 0
            # the first and the last position of the range in the box
            near, far = (o, o + n - 1) if up else (o + n - 1, o)
            begin = max(0, -((r.start - near) // r.step))
            end = min(len(r), (far - r.start) // r.step + 1)
            if begin >= end:
                return None
            low, high = sorted((r[begin] - o, r[end - 1] - o))
            first.append(low)
            size.append(high - low + 1)
            inside.append(slice(None, None, r.step))
            chosen.append(slice(begin, end))
        whole = all(abs(r.step) == 1 for r, n in zip(self.ranges, size, strict=True) if n > 1)
        return Part(first, size, tuple(reversed(inside)), tuple(reversed(chosen)), whole)

    def coordinates_of_sites(self) -> list[np.ndarray]:
        return np.ix_(*map(np.asarray, reversed(self.ranges)))[::-1]  # type: ignore[return-value]

    def result(self, sites: np.ndarray) -> np.ndarray:
        values = with_first_direction_first(sites, len(self.extents))
        return values[tuple(slice(None) if k else 0 for k in self.kept)]

    def brought(self, values: np.ndarray) -> np.ndarray:
        element = values.shape[len(self.shape) :]
        full = values.reshape(tuple(map(len, self.ranges)) + element)
        return with_first_direction_first(full, len(self.extents))


class _Listed(Selection):
    """Lists or masks among the indices: sites one by one."""

    def __init__(
        self,
        extents: tuple[int, ...],
        components: tuple[Any, ...],
        sliced: bool,
        coordinates: list[np.ndarray],
    ):
        super().__init__(extents, components, sliced)
        together = np.broadcast_arrays(*coordinates)
        self.shape = together[0].shape
        self.coordinates = [c.ravel() for c in together]
        self.lead = (math.prod(self.shape),)

    def part(self, origin: tuple[int, ...], extents: tuple[int, ...]) -> Part | None:
        here = np.ones(self.lead, bool)
        for c, o, n in zip(self.coordinates, origin, extents, strict=True):
            here &= (o <= c) & (c < o + n)
        chosen = np.flatnonzero(here)
        if len(chosen) == 0:
            return None
        inside = [c[chosen] - o for c, o in zip(self.coordinates, origin, strict=True)]
        first = [int(c.min()) for c in inside]
        size = [int(c.max()) + 1 - f for c, f in zip(inside, first, strict=True)]
        positions = tuple(c - f for c, f in zip(reversed(inside), reversed(first), strict=True))
        return Part(first, size, positions, chosen, False)

    def coordinates_of_sites(self) -> list[np.ndarray]:
        return self.coordinates

    def result(self, sites: np.ndarray) -> np.ndarray:
        return sites.reshape(self.shape + sites.shape[1:])

    def brought(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(self.lead + values.shape[len(self.shape) :])


def select(name: str, extents: tuple[int, ...], element_shape: tuple[int, ...], index: Any) -> Selection:
    """The sites and components that `index` names, as it would of an array `(*extents, *element_shape)` of this name.

    Raises LayoutError for an invalid index, IndexError for one outside.
    """
    shape = extents + element_shape
    items, rest = _complete(name, shape, index if isinstance(index, tuple) else (index,))
    sites, components = items[: len(extents)], tuple(items[len(extents) :])
    for axis, item in enumerate(components, len(extents)):
        if isinstance(item, np.ndarray):
            raise OnlyOfArraysError(f"{name}: components are set by numbers and slices, not by lists")
        if isinstance(item, int):
            _place(item, axis, shape[axis])
        else:
            _range(item, shape[axis])
    if all(item == slice(None) for item in components):
        components = ()
    if any(isinstance(item, np.ndarray) for item in sites):
        sliced = any(isinstance(item, slice) for item in sites)
        return _Listed(extents, components, sliced, _coordinates(items, extents, rest))
    ranges, kept = [], []
    for axis, (item, n) in enumerate(zip(sites, extents, strict=True)):
        kept.append(isinstance(item, slice))
        if isinstance(item, slice):
            ranges.append(_range(item, n))
        else:
            k = _place(item, axis, n)
            ranges.append(range(k, k + 1))
    return _Slices(extents, components, ranges, kept)


def with_first_direction_first(array: np.ndarray, ndim: int) -> np.ndarray:
    """Reverses the order of the first `ndim` axes; its own inverse."""
    axes = tuple(range(ndim))[::-1] + tuple(range(ndim, array.ndim))
    return np.transpose(array, axes)


def _complete(name: str, shape: tuple[int, ...], items: tuple[Any, ...]) -> tuple[list[Any], int | None]:
    """One slice, number or array of whole numbers for each axis, and before which of them there was a '...'."""
    out: list[Any] = []
    rest = None  # where the axes go that are not named
    masks: list[tuple[int, bool, tuple[int, ...]]] = []
    for item in items:
        if item is Ellipsis:
            if rest is not None:
                raise LayoutError(f"{name}: an index has one '...' at most")
            rest = len(out)
        elif isinstance(item, bool | np.bool_) or item is None:
            raise OnlyOfArraysError(f"{name}: True, False and new axes name no sites")
        elif isinstance(item, slice):
            out.append(item)
        elif isinstance(item, int | np.integer) and not isinstance(item, bool):
            out.append(int(item))
        else:
            array = _array(name, item)
            if array.dtype.kind == "b":
                masks.append((len(out), rest is not None, array.shape))
                out += np.nonzero(array)
            else:
                out.append(array.astype(np.int64))
    missing = len(shape) - len(out)
    if missing < 0:
        raise LayoutError(f"{name} has shape {shape}; {len(out)} indices were given")
    for first, behind, given in masks:
        axis = first + missing if behind else first
        if shape[axis : axis + len(given)] != given:
            raise LayoutError(
                f"{name}: a mask of axis {axis} and the next ones is one of {shape[axis : axis + len(given)]} sites, not of {given}"
            )
    where = len(out) if rest is None else rest
    return out[:where] + [slice(None)] * missing + out[where:], rest


def _array(name: str, item: Any) -> np.ndarray:
    """A list of coordinates or a mask."""
    try:
        array = np.asarray(item) if isinstance(item, list | tuple | np.ndarray) else None
    except ValueError:
        array = None
    if array is not None and array.dtype.kind == "b" and array.ndim:
        return array
    if array is not None and array.size == 0:
        return array.astype(np.int64)
    if array is None or array.dtype.kind not in "iu":
        raise LayoutError(
            f"{name}: sites are given by whole numbers and slices, lists of numbers and masks, not by {value_shown(item)}"
        )
    return array


def _range(item: slice, n: int) -> range:
    try:
        return range(n)[item]
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"sites are given by numbers and slices, not by {value_shown(item)}: {error}"
        ) from None


def _place(k: int, axis: int, n: int) -> int:
    if not -n <= k < n:
        raise IndexError(f"index {k} of axis {axis} is outside 0..{n - 1}")
    return k % n


def _inside(array: np.ndarray, axis: int, n: int) -> np.ndarray:
    wrong = (array < -n) | (array >= n)
    if wrong.any():
        raise IndexError(f"index {int(array[wrong].ravel()[0])} of axis {axis} is outside 0..{n - 1}")
    return np.where(array < 0, array + n, array)


def _coordinates(items: list[Any], extents: tuple[int, ...], rest: int | None) -> list[np.ndarray]:
    """The coordinates that each direction contributes, ready to be broadcast to the shape of the result.

    As in NumPy: lists and numbers, those of components too, are taken together, and their axes stand where the first of them stood if
    they are neighbours (also without a '...' of no axes between them), else in front.
    """
    together = [axis for axis, item in enumerate(items) if not isinstance(item, slice)]
    neighbours = together[-1] - together[0] + 1 == len(together)
    neighbours &= rest is None or not together[0] < rest <= together[-1]
    try:
        shape = np.broadcast_shapes(*(np.shape(items[axis]) for axis in together))
    except ValueError:
        given = ", ".join(str(np.shape(items[axis])) for axis in together if np.ndim(items[axis]))
        raise IndexError(f"lists of coordinates of shapes {given} do not fit together") from None
    slices = [axis for axis in range(len(extents)) if isinstance(items[axis], slice)]
    before = [axis for axis in slices if neighbours and axis < together[0]]
    after = [axis for axis in slices if axis not in before]
    positions = {axis: position for position, axis in enumerate(before)}
    positions |= {axis: len(before) + len(shape) + position for position, axis in enumerate(after)}
    dims = len(slices) + len(shape)
    found = []
    for axis, n in enumerate(extents):
        item = items[axis]
        if isinstance(item, slice):
            line = np.array(_range(item, n), np.int64)
            found.append(line.reshape((1,) * positions[axis] + (-1,) + (1,) * (dims - positions[axis] - 1)))
        else:
            array = _inside(np.asarray(item, np.int64), axis, n)
            padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
            found.append(padded.reshape((1,) * len(before) + padded.shape + (1,) * len(after)))
    return found
