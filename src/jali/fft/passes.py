"""How a transform of a strided array becomes calls of a vendor's library.

A call transforms up to three dimensions whose strides nest, for a number of arrays at one distance; its arguments are those of
"advanced data layouts" (CUDA Toolkit documentation, cuFFT, section 2.6). Axes that do not nest take further passes over the
result, dimensions beside that do not merge into one distance are loops of calls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Numbers = tuple[int, ...]
MOST_DIMENSIONS = 3  # of a call


@dataclass(frozen=True)
class Form:
    """What a plan is made for: `kind` is "C2C", "R2C", "C2R" or the same in double precision ("Z2Z", "D2Z", "Z2D"), `extents` those
    of real numbers; on each side extents of storage, stride and distance in elements."""

    kind: str
    extents: Numbers
    before: tuple[Numbers, int, int]
    after: tuple[Numbers, int, int]
    batch: int

    def __str__(self) -> str:
        number = f"{self.batch} transforms" if self.batch > 1 else "a transform"
        return f"{number} {self.kind} of {' x '.join(map(str, self.extents))} numbers"

    def of(self, batch: int) -> Form:
        """The same for so many arrays."""
        return Form(self.kind, self.extents, self.before, self.after, batch)


@dataclass(frozen=True)
class Pass:
    """A form and its loops: extent, stride before and stride after of each."""

    form: Form
    loops: tuple[tuple[int, int, int], ...]

    @property
    def calls(self) -> int:
        """Of the library."""
        return math.prod(n for n, _, _ in self.loops)

    @property
    def elements(self) -> int:
        """That a call transforms."""
        return math.prod(self.form.extents) * self.form.batch

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Where each call begins, in elements, on both sides."""
        for numbers in itertools.product(*[range(n) for n, _, _ in self.loops]):
            yield (
                sum(k * a for k, (_, a, _) in zip(numbers, self.loops, strict=True)),
                sum(k * b for k, (_, _, b) in zip(numbers, self.loops, strict=True)),
            )


def nested(extents: Sequence[int], strides: Sequence[int]) -> Numbers | None:
    """Extents of storage of dimensions with these strides, the longest first; None where they do not nest."""
    found = [extents[0]]
    for n, outer, inner in zip(extents[1:], strides, strides[1:], strict=False):
        storage, rest = divmod(outer, inner)
        if rest or storage < n:
            return None
        found.append(storage)
    return tuple(found)


def one_pass(
    kind: str, axes: Sequence[int], shapes: tuple[Numbers, Numbers], strides: tuple[Numbers, Numbers]
) -> Pass | None:
    """Along these axes, the last of which is the innermost, from an array of the first shape and strides to one of the second;
    None where they do not nest."""
    sides = []
    for shape, steps in zip(shapes, strides, strict=True):
        storage = nested([shape[axis] for axis in axes], [steps[axis] for axis in axes])
        if storage is None:
            return None
        sides.append((storage, steps[axes[-1]]))
    merged: list[tuple[int, int, int]] = []
    beside = [
        (shapes[0][axis], strides[0][axis], strides[1][axis])
        for axis in range(len(shapes[0]))
        if axis not in axes and shapes[0][axis] > 1
    ]
    for n, a, b in sorted(beside, key=lambda one: -one[1]):
        if merged and merged[-1][1:] == (n * a, n * b):
            merged[-1] = merged[-1][0] * n, a, b
        else:
            merged.append((n, a, b))
    batch = max(merged, default=(1, 1, 1))
    if merged:
        merged.remove(batch)
    extents = tuple(max(shapes[0][axis], shapes[1][axis]) for axis in axes)
    form = Form(
        kind, extents, (sides[0][0], sides[0][1], batch[1]), (sides[1][0], sides[1][1], batch[2]), batch[0]
    )
    return Pass(form, tuple(merged))


def complex_passes(
    kind: str,
    axes: Sequence[int],
    shape: Numbers,
    strides: tuple[Numbers, Numbers],
    most: int = MOST_DIMENSIONS,
) -> list[Pass]:
    """Along axes of extents above 1, `most` at once: the first pass writes from the array to the result, the others
    work there."""
    left = sorted(axes, key=lambda axis: -strides[0][axis])
    found: list[Pass] = []
    while left:
        here = strides if not found else (strides[1], strides[1])
        for count in range(min(most, len(left)), 0, -1):
            one = one_pass(kind, left[:count], (shape, shape), here)
            if one is not None:
                break
        assert one is not None
        found.append(one)
        left = left[count:]
    return found


def real_pass(
    kind: str,
    axes: Sequence[int],
    shapes: tuple[Numbers, Numbers],
    strides: tuple[Numbers, Numbers],
    most: int = MOST_DIMENSIONS,
) -> tuple[Pass, list[int]]:
    """The pass along the last of the axes, which is of real numbers, with as many others as nest around it; and the rest."""
    last, others = axes[-1], sorted(axes[:-1], key=lambda axis: -strides[0][axis])
    others = [axis for axis in others if shapes[0][axis] > 1]
    for count in range(min(most - 1, len(others)), -1, -1):
        inside = others[len(others) - count :]
        one = one_pass(kind, [*inside, last], shapes, strides)
        if one is not None:
            return one, others[: len(others) - count]
    raise AssertionError("one dimension nests")
