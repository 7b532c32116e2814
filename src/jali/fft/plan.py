"""A plan: the steps of one kind of transform of arrays of one layout, made once, with the memory that they need between them."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jali import graph_recorder
from jali.array_namespaces import is_complex, may_overlap, namespace_of
from jali.arrays import DistributedArray, Layout, layout_of
from jali.arrays.exchange import check_workspace
from jali.arrays.layout import Shape, even_split
from jali.arrays.piece_exchange import meet
from jali.arrays.recorded import assign, contiguous, converted, is_recorded, multiply
from jali.comm.device_of_array import gpu_of, is_on_device, memory_of
from jali.comm.validation import each, integer
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.fft import steps as made
from jali.fft.providers import PROVIDERS, Resources, provider_for
from jali.fft.routes import alike, cut_in_two, is_whole, next_layout, with_mask
from jali.fft.steps import Run, Step
from jali.files import value_shown

KINDS = ("fft", "ifft", "rfft", "irfft")
NORMS = ("backward", "ortho", "forward")
LAYOUTS = ("natural", "transposed")
OF_ADJOINT = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
MOST_KEPT = 32  # plans of a communicator

PIECES, OVERLAPPED_BYTES = (
    4,
    64 << 20,
)  # of parts on devices, on average, from which on pieces are worth their calls


class FftPlan:
    """A transform of arrays of `layout` along `axes`, to be applied again and again.

    Arguments:

    - `kind`: "fft" or "ifft" of complex numbers, "rfft" from real numbers to the frequencies 0 to n/2 of the last of `axes`, "irfft"
      back, where `n` is the extent of that axis (default: the even one, 2 (m - 1)); others transform the extents of `layout`.
    - `result`: "natural" has the layout of the input; "transposed" as it comes out of the last transform, which saves an exchange.
    - `norm`: "backward", "ortho" or "forward", as NumPy has them.
    - `workspace`: the most bytes that an exchange uses beside its input and output; it then works in rounds.
    - `provider`: the library that transforms local arrays (`jali.fft.providers`), by default the best one for an
      array's library.
    - `pieces`: the number of pieces in which a part is transformed and sent, so that one is transformed while earlier ones are
      under way; not with a workspace limit. By default 4 on devices, where ranks have 64 MiB and more, and 1 elsewhere: on one
      host, whose ranks copy with the cores that transform, pieces gain nothing (`jali bench fft`).
    - `shift_before`, `shift_after`: axes to which ifftshift is applied before, fftshift after; where an axis is whole at that time, as
      it mostly is, nothing moves for it.

    `plan(x)` is the transform, `plan.inverse(y)` its inverse, `plan.adjoint(y)` its adjoint. Making a plan communicates nothing; all
    three are collective. Raises ShapeError for axes that do not exist or occur twice, ParameterError for unknown words.
    """

    def __init__(
        self,
        layout: Layout,
        axes: int | Sequence[int] | None = None,
        kind: str = "fft",
        *,
        result: str = "natural",
        norm: str = "backward",
        n: int | None = None,
        workspace: int | None = None,
        provider: str | None = None,
        pieces: int | None = None,
        shift_before: Sequence[int] = (),
        shift_after: Sequence[int] = (),
    ) -> None:
        for name, value, known in (("kind", kind, KINDS), ("layout", result, LAYOUTS), ("norm", norm, NORMS)):
            if value not in known:
                raise ParameterError(
                    f"{name} of a transform is one of {', '.join(known)}, not {value_shown(value)}"
                )
        if not isinstance(layout, Layout):
            raise ParameterError(
                f"a plan is of a layout, such as x.layout or jali.arrays.layout_of(ranks, shape), not of {value_shown(layout)}"
            )
        if n is not None and kind != "irfft":
            raise ParameterError(
                f"n={value_shown(n)} is of kind irfft alone, {kind} transforms the extents of its layout, {layout.shape}: jali.fft.{kind} cuts or "
                "fills arrays"
            )
        if provider is not None and provider not in tuple(PROVIDERS):
            raise ParameterError(
                f"transforms of local arrays come from {', '.join(PROVIDERS)}, not {value_shown(provider)}"
            )
        check_workspace(workspace)
        if pieces is not None and (integer(pieces) or 0) < 1:
            raise ParameterError(f"pieces are a whole number from 1, not {value_shown(pieces)}")
        self.layout, self.kind, self.norm, self.workspace = layout, kind, norm, workspace
        self.provider, self.pieces = provider, pieces
        self.axes = normal_axes(layout.shape, axes)
        last = self.axes[-1]
        before, after = (
            normal_axes(layout.shape, given) if each(given) else () for given in (shift_before, shift_after)
        )
        if not set(before) <= set(self.axes) or not set(after) <= set(self.axes):
            raise ShapeError(f"shifts along {before} and {after} of a transform along {self.axes}")
        if any(layout.shape[axis] == 0 for axis in self.axes):
            raise ShapeError(f"an array of shape {layout.shape} has no elements along an axis of {self.axes}")
        self._shifts = {"before": before, "after": after}
        m = layout.shape[last]
        self.n = m if kind != "irfft" else 2 * (m - 1) if n is None else integer(n) or 0
        if kind == "irfft" and not (self.n >= 1 and self.n // 2 + 1 == m):
            raise ShapeError(
                f"{m} frequencies of axis {last} are those of {2 * (m - 1)} or {2 * m - 1} real numbers, not of "
                f"{self.n if n is None else n}"
            )
        self.steps: list[Step] = []
        self._kept: dict[Any, Any] = {}
        self._stream: int | None = None  # of the last application, for which jali's has waited
        self._weights: dict[Any, Any] = {}
        self._now = with_mask(layout, None)
        self._make()
        if result == "natural":
            natural = alike(layout, self._now.shape)
            self._go(natural)
            self.result_layout = natural
        else:
            self.result_layout = with_mask(self._now, layout.mask)

    def __repr__(self) -> str:
        lines = [f"<{self.kind} along {self.axes} of {self.layout!r}:"]
        return "\n  ".join([*lines, *map(repr, self.steps)]) + ">"

    # --- steps ----------------------------------------------------------------------------------------------

    def _go(self, layout: Layout) -> None:
        """An exchange, where one is needed."""
        if layout.scattered and layout.boxes != self._now.boxes:
            self.steps.append(made.Redistribute(self._now, layout, self.workspace))
        self._now = layout

    def _make(self) -> None:
        remaining = list(self.axes)
        last = remaining[-1]
        while remaining:
            ready = [axis for axis in remaining if is_whole(self._now, axis)]
            if self.kind == "rfft" and last in remaining and last not in ready:
                ready = []
            if self.kind == "irfft" and len(remaining) > 1 and set(ready) != set(remaining):
                ready = [axis for axis in ready if axis != last]
            if ready:
                self._transform(tuple(ready))
                remaining = [axis for axis in remaining if axis not in ready]
                continue
            first = self.kind == "rfft" and last in remaining
            among = [axis for axis in remaining if axis != last] if self.kind == "irfft" else remaining
            lengths = {last: self.n} if self.kind == "irfft" and not among else {}
            target = next_layout(self._now, among or [last], last if first else None, lengths)
            if isinstance(target, Layout):
                self._go(target)
            else:
                self._four_steps(target, real=self.kind in ("rfft", "irfft") and target == last)
                remaining.remove(target)

    def _with_extent(self, axis: int, n: int) -> Shape:
        shape = self._now.shape
        return (*shape[:axis], n, *shape[axis + 1 :])

    def _transform(self, axes: tuple[int, ...]) -> None:
        """Along axes that are whole."""
        last = self.axes[-1]
        kept = {name: tuple(axis for axis in axes if axis in given) for name, given in self._shifts.items()}
        if self.kind in ("fft", "ifft") or last not in axes:
            self.steps.append(made.Transform(axes, self.kind in ("ifft", "irfft"), **kept))
            return
        shape = self._with_extent(last, self.n // 2 + 1 if self.kind == "rfft" else self.n)
        if self.kind == "rfft":
            self.steps.append(made.RealTransform(axes, self.n, **kept))
        else:
            swapped = {"before": kept["after"], "after": kept["before"]}
            step = made.RealTransform(axes, self.n, **swapped)
            self.steps.append(made.Backwards(step))
        self._now = self._with_whole(shape)

    def _with_whole(self, shape: Shape) -> Layout:
        """The layout of now for another shape, which differs along axes that are whole."""
        now = self._now
        if not now.scattered:
            return now.with_(shape=shape)
        shapes = tuple(
            tuple(new if mine == old else mine for mine, old, new in zip(part, now.shape, shape, strict=True))
            for part in now.local_shapes
        )
        return layout_of(now.communicator, shape, axis=now.axes, grid=now.grid, local_shapes=shapes)

    def _four_steps(self, axis: int, real: bool) -> None:
        """A transform along an axis that stays split, by its two factors."""
        now = self._now
        n = self.n if real else now.shape[axis]
        if axis in self._shifts["before"]:
            self.steps.append(made.Shift(now, (axis,), True, self.workspace))
        if real and self.kind == "irfft":
            full = _rows(now.communicator, self._with_extent(axis, n), axis, n)
            half = layout_of(now.communicator, now.shape, axis=axis)
            self._go(half)
            steps, end = self._cut(full, axis, n, False)
            self._now = end
            steps = [made.ToComplex(), *steps, made.Half(end, half, axis, self.workspace)]
            self.steps += [made.Backwards(step) for step in reversed(steps)]
            self._now = full
        else:
            full = _rows(now.communicator, now.shape, axis, n)
            self._go(full)
            if real:
                self.steps.append(made.ToComplex())
            steps, end = self._cut(full, axis, n, self.kind in ("ifft", "irfft"))
            self.steps += steps
            self._now = end
            if real:
                half = layout_of(now.communicator, self._with_extent(axis, n // 2 + 1), axis=axis)
                self.steps.append(made.Half(end, half, axis, self.workspace))
                self._now = half
        if axis in self._shifts["after"]:
            self.steps.append(made.Shift(self._now, (axis,), False, self.workspace))

    def _cut(self, full: Layout, axis: int, n: int, inverse: bool) -> tuple[list[Step], Layout]:
        """The transform of complex numbers that are split along `axis` by rows of its factors, and the layout of its result."""
        ranks, shape = full.communicator, full.shape
        factors = cut_in_two(n, ranks.size)
        assert factors is not None
        n1, n2 = factors
        cut = (*shape[:axis], n1, n2, *shape[axis + 1 :])
        swapped = (*shape[:axis], n2, n1, *shape[axis + 1 :])
        rows, columns = (layout_of(ranks, cut, axis=axis + k) for k in (0, 1))
        before, after = (layout_of(ranks, swapped, axis=axis + k) for k in (1, 0))
        end = _rows(ranks, shape, axis, n, second=True)
        steps: list[Step] = [
            made.View(full.local_shape, rows.local_shape),
            made.Redistribute(rows, columns, self.workspace),
            made.Transform((axis,), inverse),
            made.Twiddle(axis, n, inverse, columns.box[axis + 1][0]),
            made.Redistribute(columns, rows, self.workspace),
            made.Transform((axis + 1,), inverse),
            made.Swap(axis),
            made.Redistribute(before, after, self.workspace),
            made.View(after.local_shape, end.local_shape),
        ]
        return steps, end

    # --- application ----------------------------------------------------------------------------------------

    def __call__(
        self, x: DistributedArray, out: DistributedArray | None = None, overwrite_x: bool = False
    ) -> Any:
        """The transform of `x`, in `out` if that is given. With `overwrite_x` the values of `x` may be lost. Collective.

        Raises LayoutError for an array of another layout, ParameterError for real transforms of complex numbers.
        """
        return self._run(x, out, overwrite_x, True, self.norm)

    def inverse(
        self, y: DistributedArray, out: DistributedArray | None = None, overwrite_x: bool = False
    ) -> Any:
        """What the transform of is `y`: laid out as the plan takes it. Collective. Errors as in the transform."""
        return self._run(y, out, overwrite_x, False, self.norm)

    def adjoint(
        self, y: DistributedArray, out: DistributedArray | None = None, overwrite_x: bool = False
    ) -> Any:
        """The adjoint, applied to `y`: for real transforms with respect to the real part of the inner product, in which frequencies
        that stand for their conjugates too count once. Collective."""
        if self.kind in ("rfft", "irfft"):
            graph_recorder.refuse(
                "the adjoint of a transform of real numbers is taken",
                "take it before or after; or the inverse",
            )
        if self.kind == "rfft":
            y, overwrite_x = self.weighted(y, 0.5), True
        x = self._run(y, out, overwrite_x, False, OF_ADJOINT[self.norm])
        if self.kind == "irfft":
            multiply(x.local, self._weights_of(x, 2.0))
        return x

    def weighted(self, y: DistributedArray, weight: float, in_place: bool = False) -> DistributedArray:
        """A spectrum of real numbers in which frequencies that stand for their conjugates too are multiplied by `weight`."""
        if in_place:
            multiply(y.local, self._weights_of(y, weight))
            return y
        with namespace_of(y.local).where(y.local):
            weighted = y.local * self._weights_of(y, weight)
        return DistributedArray.of(y.layout, weighted, y._base_comm)

    def _weights_of(self, y: DistributedArray, weight: float) -> Any:
        """Along the last axis: 1 for frequencies 0 and n/2, wherever shifts have put them."""
        namespace, axis = namespace_of(y.local), self.axes[-1]
        key = (y.layout, str(y.dtype), namespace.name, weight)
        if key not in self._weights:
            m, shifted = self.n // 2 + 1, self._shifts["after" if self.kind == "rfft" else "before"]
            frequencies = np.arange(*y.layout.box[axis])
            if axis in shifted:
                frequencies = (frequencies - m // 2) % m
            factors = np.where((frequencies == 0) | (2 * frequencies == self.n), 1.0, weight)
            factors = factors.reshape(-1, *[1] * (y.ndim - axis - 1)).astype(made.real_of(y.dtype))
            self._weights[key] = namespace.from_host(factors, y.local)
        return self._weights[key]

    def _run(
        self, x: DistributedArray, out: DistributedArray | None, overwrite: bool, forward: bool, norm: str
    ) -> DistributedArray:
        start, end = (self.layout, self.result_layout) if forward else (self.result_layout, self.layout)
        _check(x, start, "a transform" if forward else "the inverse of a transform")
        if out is not None:
            _check(out, end, "the result of a transform")
            if not is_complex(out.local) and self.kind != ("irfft" if forward else "rfft"):
                raise ParameterError(
                    f"the result of a transform is complex, which an array of {out.dtype} does not hold"
                )
        recorder = graph_recorder.current() if graph_recorder.recorders else None
        if recorder is not None:
            self._ready_for_graphs(x, out, forward, norm)
        with namespace_of(x.local).where(x.local), self._in_turn(x.local):
            local = self._steps(x, None if out is None else out.local, overwrite, forward, norm)
            if out is None:
                out = DistributedArray.of(end, local, x._base_comm)
            elif out.local is not local:
                assign(out.local, local)
        if recorder is not None:  # whose owners continue with them
            recorder.borrowed += [memory_of(a.local) for a in (x, out) if 0 not in a.local.shape]
        return out

    @contextlib.contextmanager
    def _in_turn(self, local: Any) -> Iterator[None]:
        """Inside, the stream of the array's library has waited for applications on other streams, which use the same memory."""
        if is_recorded(local) or not is_on_device(local):
            yield
            return
        gpu, stream = gpu_of(local), namespace_of(local).stream(local)
        if self._stream not in (None, stream):
            meet(gpu, stream)
        try:
            yield
        finally:
            if self._kept:
                gpu.wait_for(stream)
                self._stream = stream

    def _ready_for_graphs(
        self, x: DistributedArray, out: DistributedArray | None, forward: bool, norm: str
    ) -> None:
        """The transform is done once, so that all that it needs is there. Raises RecordingError where graphs cannot have it. Collective."""
        if not is_recorded(x.local) or not (out is None or is_recorded(out.local)):
            graph_recorder.refuse_for_host("a Fourier transform", "of arrays on the host")
        provider = provider_for(x.local, self.provider)
        if not provider.recordable:
            graph_recorder.refuse(
                f"a Fourier transform by {provider.name}, which allocates memory as it goes, is taken",
                "give provider= cufft or hipfft, or take it before or after",
            )
        for step in self.steps:
            if not step.recordable(forward):
                graph_recorder.refuse(
                    f"a Fourier transform is taken that makes new arrays on the way ({value_shown(step)})",
                    "take it before or after",
                )
        with graph_recorder.suspended():
            self._run(x, None, False, forward, norm)

    def _steps(self, x: DistributedArray, out: Any, overwrite: bool, forward: bool, norm: str) -> Any:
        """This rank's part of the result, in `out` if it happens to fit."""
        local, owned = self._converted(x, forward)
        namespace, provider = namespace_of(local), provider_for(local, self.provider)
        steps = self.steps if forward else self.steps[::-1]
        makers = [number for number, step in enumerate(steps) if step.makes_memory]
        # a result in the memory of the input would be written while that is read, except from the second memory on
        if out is not None and len(makers) < 2 and (makers or out is not local) and may_overlap(out, local):
            out = None
        run = Run(
            provider, namespace, Resources(x.communicator.threads, self.workspace), norm,
            {} if is_recorded(local) else self._kept,
            out, owned or overwrite,
        )  # fmt: skip
        pieces = self._pieces_of(local)
        number = 0
        while number < len(steps):
            step, after = steps[number], steps[number + 1] if number + 1 < len(steps) else None
            if isinstance(step, made.Transform) and isinstance(after, made.Redistribute):
                run.last = number + 1 >= makers[-1]
                found = made.pipelined(step, after, forward, pieces, local, run)
                if found is not None:
                    local, number = found, number + 2
                    continue
            run.last = not makers or number >= makers[-1]
            local = step.forward(local, run) if forward else step.backward(local, run)
            number += 1
        return contiguous(local)

    def _pieces_of(self, local: Any) -> int:
        if self.pieces is not None:
            return self.pieces
        bytes_of_ranks = math.prod(self.layout.shape) * local.dtype.itemsize // self.layout.communicator.size
        large = bytes_of_ranks >= OVERLAPPED_BYTES and is_on_device(local) and not is_recorded(local)
        return PIECES if large else 1

    def _converted(self, x: DistributedArray, forward: bool) -> tuple[Any, bool]:
        """The part in the type that is transformed, and whether it is a copy."""
        name = str(x.dtype).removeprefix("torch.")
        takes_real = self.kind == ("rfft" if forward else "irfft")
        dtype = np.dtype(name) if name != "bfloat16" else np.dtype(object)
        if dtype.kind not in "iufcb" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            raise ParameterError(
                f"transforms are of numbers in single or double precision, not of {name}; convert them by x.astype"
            )
        if takes_real and dtype.kind == "c":
            raise ParameterError(f"a transform of real numbers got {name}; take fft, or x.real")
        single = dtype.name in ("float16", "float32", "complex64")
        kinds = ("float32", "float64") if takes_real else ("complex64", "complex128")
        wanted = kinds[0] if single else kinds[1]
        return (x.local, False) if name == wanted else (converted(x.local, wanted), True)


def _check(x: Any, layout: Layout, what: str) -> None:
    if not isinstance(x, DistributedArray):
        raise ParameterError(f"{what} is of a DistributedArray, not of a {type(x).__name__}")
    if x.layout is not layout:
        raise LayoutError(
            f"{what} that is planned for {layout!r} got {x.layout!r}; redistribute it, or make another plan"
        )


def _rows(ranks: Any, shape: Shape, axis: int, n: int, second: bool = False) -> Layout:
    """Split along `axis`, of extent n = n1 n2, by whole rows of n2 numbers, or of n1."""
    factors = cut_in_two(n, ranks.size)
    assert factors is not None
    n1, n2 = reversed(factors) if second else factors
    shapes = [(*shape[:axis], rows * n2, *shape[axis + 1 :]) for rows in even_split(n1, ranks.size)]
    return layout_of(ranks, shape, axis=axis, local_shapes=tuple(shapes))


def normal_axes(shape: Shape, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """Axes from 0; all where None. Raises ShapeError."""
    if axes is None:
        axes = range(len(shape))
    given, found = each(axes), []
    for axis in given:
        try:
            number = operator.index(axis)
        except TypeError:
            raise ShapeError(f"axes are whole numbers, not {value_shown(axis)}") from None
        if not -len(shape) <= number < len(shape):
            raise ShapeError(f"axis {number} does not exist in an array of shape {shape}")
        found.append(number % len(shape))
    if not found:
        raise ShapeError("a transform is along an axis or several, none is given")
    if len(set(found)) < len(found):
        raise ShapeError(f"axes {tuple(given)} of a transform: one occurs twice")
    return tuple(found)


def plan_of(layout: Layout, axes: Any, kind: str, **options: Any) -> FftPlan:
    """The plan of these, which is kept with the communicator; arguments of `Plan`."""
    kept = layout.communicator.kept.setdefault("plans of transforms", {})
    key = (layout, axes if not isinstance(axes, list) else tuple(axes), kind, *sorted(options.items()))
    try:
        return kept[key]
    except (KeyError, TypeError):
        pass
    plan = FftPlan(layout, axes, kind, **options)
    if len(kept) >= MOST_KEPT:
        kept.clear()
    try:
        kept[key] = plan
    except TypeError:  # of arguments that are lists
        return plan
    return plan
