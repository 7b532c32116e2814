"""What a transform consists of: steps, each with its way back.

A step takes this rank's part and returns a new one, or the same with other values where it may overwrite it. What steps share while
they run, memory above all, is a `Run`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import ArrayNamespace, namespace_of
from jali.arrays.exchange import BoxExchange
from jali.arrays.layout import Box, Layout, Shape
from jali.arrays.recorded import assign, contiguous, copied, multiply
from jali.fft.providers import Provider, Resources

Axes = tuple[int, ...]


class Run:
    """One application of a plan: its provider, and the memory of results.

    `owned` is whether the next part may be overwritten. `new` returns memory for a step's result: one of two arrays that the
    plan keeps, in turn, or, from the last step on that needs some, the caller's result.
    """

    def __init__(
        self,
        provider: Provider,
        namespace: ArrayNamespace,
        resources: Resources,
        norm: str,
        kept: dict[Any, Any],
        out: Any,
        owned: bool,
    ) -> None:
        self.provider, self.namespace, self.resources, self.norm = provider, namespace, resources, norm
        self.owned, self.last = owned, False
        self._kept, self._out, self._turn = kept, out, 0

    def new(self, x: Any, shape: Shape, dtype: Any = None, last: bool = True) -> Any:
        """Memory that is not that of `x`, the result of the step before; not for the caller if not `last`."""
        dtype = x.dtype if dtype is None else dtype
        self.owned = True
        if self.last and last:
            out = self._out
            if out is not None and tuple(out.shape) == tuple(shape) and out.dtype == dtype:
                return out
            return self.namespace.empty_beside(x, shape, dtype)
        self._turn ^= 1
        key, count = (self._turn, str(dtype), self.namespace.name), math.prod(shape)
        if key not in self._kept or self._kept[key].shape[0] < count:
            self._kept[key] = self.namespace.empty_beside(x, (count,), dtype)
        return self._kept[key][:count].reshape(shape)


class Step:
    """Forward and backward. `makes_memory`: whether its result is never the memory it was given."""

    makes_memory = False

    def forward(self, x: Any, run: Run) -> Any:
        """The step."""
        raise NotImplementedError

    def backward(self, x: Any, run: Run) -> Any:
        """Its inverse."""
        raise NotImplementedError

    def recordable(self, forward: bool) -> bool:
        """Whether graphs can have it, this way."""
        return True


class Backwards(Step):
    """Another step from its end."""

    def __init__(self, step: Step) -> None:
        self.step, self.makes_memory = step, step.makes_memory

    def __repr__(self) -> str:
        return f"back: {self.step!r}"

    def forward(self, x: Any, run: Run) -> Any:
        return self.step.backward(x, run)

    def backward(self, x: Any, run: Run) -> Any:
        return self.step.forward(x, run)

    def recordable(self, forward: bool) -> bool:
        return self.step.recordable(not forward)


class Transform(Step):
    """A complex transform along axes that are whole."""

    def __init__(self, axes: Axes, inverse: bool = False, before: Axes = (), after: Axes = ()) -> None:
        self.axes, self.inverse = axes, inverse
        self.shift_before, self.shift_after = before, after

    def __repr__(self) -> str:
        return f"{'inverse ' * self.inverse}transform along {_said(self.axes)}"

    def forward(self, x: Any, run: Run) -> Any:
        x = rolled(x, self.shift_before, -1, run)
        x = self._transform(x, run, not self.inverse)
        return rolled(x, self.shift_after, 1, run)

    def backward(self, x: Any, run: Run) -> Any:
        x = rolled(x, self.shift_after, -1, run)
        x = self._transform(x, run, self.inverse)
        return rolled(x, self.shift_before, 1, run)

    def recordable(self, forward: bool) -> bool:
        return not self.shift_before and not self.shift_after

    def _transform(self, x: Any, run: Run, forward: bool) -> Any:
        out = x if run.owned else run.new(x, tuple(x.shape))
        if 0 in x.shape:
            return out
        return run.provider.c2c(x, self.axes, forward, run.norm, out, run.resources)


def pipelined(step: Transform, move: Redistribute, forward: bool, pieces: int, x: Any, run: Run) -> Any:
    """A transform and the exchange after it, in pieces: one is transformed while those before it are under way. None where the
    exchange has nothing to cut that is not transformed; then nothing has been done."""
    exchange = move.there if forward else move.back
    axes = [axis for axis in exchange.axes_to_cut() if axis not in step.axes]
    if pieces < 2 or not axes or exchange.workspace is not None or step.shift_before or step.shift_after:
        return None
    ready = x if run.owned else run.new(x, tuple(x.shape), last=False)
    inverse = step.inverse == forward

    def transform(where: tuple[slice, ...]) -> None:
        part = x[where]
        if 0 not in part.shape:
            out = part if ready is x else ready[where]
            run.provider.c2c(part, step.axes, not inverse, run.norm, out, run.resources)

    # pieces of an outer dimension are large pieces of memory
    outer = min((axis for axis in axes if exchange.shortest(axis) >= pieces), default=axes[0])
    return exchange.pipelined(pieces, outer, ready, run.new(x, exchange.shape), transform)


class RealTransform(Step):
    """From real numbers: the last of the axes becomes half as long, of extent n before."""

    makes_memory = True

    def __init__(self, axes: Axes, n: int, before: Axes = (), after: Axes = ()) -> None:
        self.axes, self.n = axes, n
        self.shift_before, self.shift_after = before, after

    def __repr__(self) -> str:
        return f"transform of real numbers along {_said(self.axes)}"

    def recordable(self, forward: bool) -> bool:
        return not self.shift_before and not self.shift_after

    def _empty(self, shape: Sequence[int], old: int, new: int) -> Shape:
        """Of a part without elements, which may have none along this very axis."""
        axis = self.axes[-1]
        return (*shape[:axis], new if shape[axis] == old else shape[axis], *shape[axis + 1 :])

    def forward(self, x: Any, run: Run) -> Any:
        x = rolled(x, self.shift_before, -1, run)
        if 0 in x.shape:
            x = run.new(x, self._empty(x.shape, self.n, self.n // 2 + 1), complex_of(x.dtype))
        else:
            x = run.provider.r2c(x, self.axes, run.norm, run.resources)
        run.owned = True
        return rolled(x, self.shift_after, 1, run)

    def backward(self, x: Any, run: Run) -> Any:
        x = rolled(x, self.shift_after, -1, run)
        if 0 in x.shape:
            x = run.new(x, self._empty(x.shape, self.n // 2 + 1, self.n), real_of(x.dtype))
        else:
            x = run.provider.c2r(x, self.n, self.axes, run.norm, run.resources)
        run.owned = True
        return rolled(x, self.shift_before, 1, run)


class Redistribute(Step):
    """To another layout of the same shape."""

    makes_memory = True

    def __init__(self, before: Layout, after: Layout, workspace: int | None) -> None:
        self.before, self.after = before, after
        self.there = BoxExchange(
            before.communicator, before.boxes, after.boxes, workspace=workspace, keep=True
        )
        self.back = self.there.reversed()

    def __repr__(self) -> str:
        return f"exchange to {self.after!r}"

    def forward(self, x: Any, run: Run) -> Any:
        return self.there.run(x, run.new(x, self.there.shape))

    def backward(self, x: Any, run: Run) -> Any:
        return self.back.run(x, run.new(x, self.back.shape))


class View(Step):
    """An axis as two, or two as one; or two that take each other's places: nothing moves."""

    def __init__(self, before: Shape, after: Shape) -> None:
        self.before, self.after = before, after

    def __repr__(self) -> str:
        return f"part of shape {self.before} as {self.after}"

    def forward(self, x: Any, run: Run) -> Any:
        return contiguous(x).reshape(self.after)

    def backward(self, x: Any, run: Run) -> Any:
        return contiguous(x).reshape(self.before)


class Swap(Step):
    """This axis and the next take each other's places; nothing moves."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def __repr__(self) -> str:
        return f"axes {self.axis} and {self.axis + 1} swapped"

    def forward(self, x: Any, run: Run) -> Any:
        return x.swapaxes(self.axis, self.axis + 1)

    backward = forward


class Twiddle(Step):
    """Times exp(-2 pi i k j / n), k along `axis` from 0, j along the next from `first`; the other sign for inverse transforms."""

    def __init__(self, axis: int, n: int, inverse: bool, first: int) -> None:
        self.axis, self.n, self.inverse, self.first = axis, n, inverse, first
        self._kept: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"twiddle factors of length {self.n}"

    def forward(self, x: Any, run: Run) -> Any:
        return self._times(x, run, self.inverse)

    def backward(self, x: Any, run: Run) -> Any:
        return self._times(x, run, not self.inverse)

    def _times(self, x: Any, run: Run, conjugate: bool) -> Any:
        key = (str(x.dtype), run.namespace.name, conjugate)
        if key not in self._kept:
            rows, columns = x.shape[self.axis], x.shape[self.axis + 1]
            k = np.arange(rows, dtype=np.int64)[:, None]
            j = np.arange(self.first, self.first + columns, dtype=np.int64)[None, :]
            angle = (2 * np.pi / self.n) * (k * j % self.n)
            factors = np.exp((1j if conjugate else -1j) * angle)
            factors = factors.reshape(rows, columns, *[1] * (len(x.shape) - self.axis - 2))
            self._kept[key] = run.namespace.from_host(factors.astype(str(x.dtype).removeprefix("torch.")), x)
        if not run.owned:
            x, run.owned = copied(x), True
        multiply(x, self._kept[key])
        return x


class ToComplex(Step):
    """Real numbers as complex ones."""

    makes_memory = True

    def __repr__(self) -> str:
        return "real numbers as complex ones"

    def forward(self, x: Any, run: Run) -> Any:
        out = run.new(x, tuple(x.shape), complex_of(x.dtype))
        assign(out, x)
        return out

    def backward(self, x: Any, run: Run) -> Any:
        out = run.new(x, tuple(x.shape), real_of(x.dtype))
        assign(out, x.real)
        return out


class Half(Step):
    """Of a spectrum of real numbers, frequencies 0 to n/2 along an axis; back, the others are their conjugates in reverse."""

    makes_memory = True

    def __init__(self, full: Layout, half: Layout, axis: int, workspace: int | None) -> None:
        self.axis, self.full, self.half = axis, full, half
        n, h = full.shape[axis], half.shape[axis]
        ranks = full.communicator
        low = [_between(box, axis, 0, h) for box in full.boxes]
        named: dict[str, Any] = {"workspace": workspace, "keep": True}
        self._take = BoxExchange(ranks, low, half.boxes, within=(full.boxes, None), **named)
        self._low = BoxExchange(ranks, half.boxes, low, within=(None, full.boxes), **named)
        mirrored = []
        for box in full.boxes:
            begin, end = _between(box, axis, h, n)[axis]
            mirrored.append(_set(box, axis, (n - end + 1, n - begin + 1) if begin < end else (0, 0)))
        self._high = BoxExchange(ranks, half.boxes, mirrored, **named)
        begin, end = _between(full.box, axis, h, n)[axis]
        at = full.box[axis][0]
        self._where = (slice(None),) * axis + (slice(begin - at, end - at),)

    def __repr__(self) -> str:
        return f"exchange of frequencies 0 to {self.half.shape[self.axis] - 1} of axis {self.axis}"

    def forward(self, x: Any, run: Run) -> Any:
        return self._take.run(x, run.new(x, self.half.local_shape))

    def backward(self, x: Any, run: Run) -> Any:
        out = run.new(x, self.full.local_shape)
        self._low.run(x, out)
        high = self._high.run(x)
        high = run.namespace.xp.flip(high, (self.axis,))
        out[self._where] = high.conj()
        return out

    def recordable(self, forward: bool) -> bool:
        return forward


class Shift(Step):
    """fftshift along axes, also split ones, or with `back` ifftshift: a round trip through other ranks."""

    makes_memory = True

    def __init__(self, layout: Layout, axes: Axes, back: bool, workspace: int | None) -> None:
        self.axes, self._sign = axes, -1 if back else 1
        self._whole = tuple(axis for axis in axes if layout.axes.count(axis) == 0 or not layout.scattered)
        self._there, self._back = [], []
        for axis in axes:
            if axis not in self._whole:
                n = layout.shape[axis]
                self._there.append(_shifts(layout, axis, self._sign * (n // 2) % n if n else 0, workspace))
                self._back.append(_shifts(layout, axis, -self._sign * (n // 2) % n if n else 0, workspace))

    def __repr__(self) -> str:
        return f"{'fftshift' if self._sign > 0 else 'ifftshift'} along {_said(self.axes)}"

    def forward(self, x: Any, run: Run) -> Any:
        return self._run(x, self._there, self._sign, run)

    def backward(self, x: Any, run: Run) -> Any:
        return self._run(x, self._back, -self._sign, run)

    def recordable(self, forward: bool) -> bool:
        return False

    def _run(self, x: Any, exchanges: list[list[BoxExchange]], sign: int, run: Run) -> Any:
        x = rolled(x, self._whole, sign, run)
        for parts in exchanges:
            out = run.namespace.empty_beside(x, tuple(x.shape))
            for exchange in parts:
                exchange.run(x, out)
            x = out
        if not exchanges:
            out = run.new(x, tuple(x.shape))
            out[...] = x
            return out
        run.owned = True
        return x


def _shifts(layout: Layout, axis: int, by: int, workspace: int | None) -> list[BoxExchange]:
    """Index i maps to (i + by) mod n: the part that does not wrap around, and the part that does."""
    n = layout.shape[axis]
    found = []
    for low, high, offset in ((0, n - by, by), (n - by, n, by - n)):
        if low >= high:
            continue
        moved = []
        within = []
        for box in layout.boxes:
            begin, end = _between(box, axis, low, high)[axis]
            moved.append(_set(box, axis, (begin + offset, end + offset)))
            within.append(_set(box, axis, (box[axis][0] + offset, box[axis][1] + offset)))
        found.append(
            BoxExchange(layout.communicator, moved, layout.boxes, within=(within, None), workspace=workspace)
        )
    return found


def rolled(x: Any, axes: Axes, sign: int, run: Run) -> Any:
    """fftshift along axes that are whole, or for sign -1 ifftshift."""
    axes = tuple(axis for axis in axes if x.shape[axis] > 1)
    if not axes or 0 in x.shape:
        return x
    run.owned = True
    return namespace_of(x).xp.roll(x, tuple(sign * (x.shape[axis] // 2) for axis in axes), axes)


def complex_of(dtype: Any) -> Any:
    """The complex type of a real one's precision."""
    return np.dtype("complex64" if "float32" in str(dtype) else "complex128")


def real_of(dtype: Any) -> Any:
    """The real type of a complex one's precision."""
    return np.dtype("float32" if "complex64" in str(dtype) else "float64")


def _between(box: Box, axis: int, low: int, high: int) -> Box:
    begin, end = box[axis]
    begin = min(max(begin, low), high)
    return _set(box, axis, (begin, max(begin, min(end, high))))


def _set(box: Box, axis: int, interval: tuple[int, int]) -> Box:
    return (*box[:axis], interval, *box[axis + 1 :])


def _said(axes: Axes) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes}"
