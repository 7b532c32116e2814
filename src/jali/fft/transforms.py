"""Transforms as NumPy has them, of distributed arrays.

Arguments are those of `numpy.fft`: `n` or `s` (extents of what is transformed, which is cut or filled with zeros), `axis` or `axes`,
`norm`; an extent -1 in `s` is that of `x`.

Options beyond NumPy's, which have to be named:

- `layout`: "natural", the result is split as `x`, or "transposed", as it comes out of the last transform, which saves an
  exchange; the result has its layout.
- `workspace`, `provider`: see `jali.fft.FftPlan`.
- `out`: where the result goes, an array of its layout.
- `overwrite_x`: whether the values of `x` may be overwritten.

Plans are kept by layout. Collective, where ranks have parts.

All take fields as well: axes are directions of the lattice (default: all), what a field has at each site is transformed component by
component. The result is a field of complex numbers on the same lattice (as `out` is, if given), or a DistributedArray where extents
change or the layout is not that of the lattice: of `rfftn`, `irfftn`, other `s`, and `layout="transposed"`.

Errors, the same on all ranks: ShapeError for axes that do not exist or occur twice, and for extents that are none; ParameterError for
unknown words, real transforms of complex numbers, and types that are no numbers in single or double precision.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray
from jali.arrays.exchange import BoxExchange
from jali.arrays.layout import Box
from jali.arrays.recorded import assign
from jali.errors import ParameterError, ShapeError
from jali.fft.fields import transformed_field
from jali.fft.plan import normal_axes, plan_of
from jali.fft.routes import alike
from jali.files import value_shown
from jali.lattice.field import Field

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS = (__doc__ or "").partition("\n\nOptions")[2].partition("\n\nPlans")[0]
NAMES = ("layout", "workspace", "provider", "out", "overwrite_x")


def _with_options(function: Function) -> Function:
    """Adds the options to the function's docstring."""
    function.__doc__ = f"{function.__doc__}\n\nOptions{OPTIONS}\n"
    return function


@_with_options
def fft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension."""
    return _transform("fft", x, _one(n), (axis,), norm, **options)


@_with_options
def ifft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension, back."""
    return _transform("ifft", x, _one(n), (axis,), norm, **options)


@_with_options
def rfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension, of real numbers: frequencies 0 to n/2."""
    return _transform("rfft", x, _one(n), (axis,), norm, **options)


@_with_options
def irfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension, back to n real numbers (default: 2 (m - 1) for m frequencies)."""
    return _transform("irfft", x, _one(n), (axis,), norm, **options)


@_with_options
def fft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions."""
    return _transform("fft", x, s, axes, norm, **options)


@_with_options
def ifft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions, back."""
    return _transform("ifft", x, s, axes, norm, **options)


@_with_options
def rfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions, of real numbers."""
    return _transform("rfft", x, s, axes, norm, **options)


@_with_options
def irfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions, back to real numbers."""
    return _transform("irfft", x, s, axes, norm, **options)


@_with_options
def fftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, by default all."""
    return _transform("fft", x, s, axes, norm, **options)


@_with_options
def ifftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, back."""
    return _transform("ifft", x, s, axes, norm, **options)


@_with_options
def rfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, of real numbers: of the last axis frequencies 0 to n/2."""
    return _transform("rfft", x, s, axes, norm, **options)


@_with_options
def irfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, back to real numbers."""
    return _transform("irfft", x, s, axes, norm, **options)


def _transform(
    kind: str,
    x: Any,
    s: int | Sequence[int] | None,
    axes: Any,
    norm: str | None = None,
    *,
    layout: str = "natural",
    workspace: int | None = None,
    provider: str | None = None,
    out: Any = None,
    overwrite_x: bool = False,
    **others: Any,
) -> Any:
    if others:
        hint = ": a jali.fft.FftPlan does" if set(others) <= {"pieces", "shift_before", "shift_after"} else ""
        raise ParameterError(
            f"a transform has no option {', '.join(others)}{hint}; its options are {', '.join(NAMES)}"
        )
    if isinstance(x, Field):
        return transformed_field(
            _transform, kind, x, s, axes, out, layout, norm=norm, workspace=workspace, provider=provider,
            overwrite_x=overwrite_x,
        )  # fmt: skip
    if not isinstance(x, DistributedArray):
        raise ParameterError(
            f"jali.fft transforms a DistributedArray or a Field, not a {type(x).__name__}: DistributedArray.to_dist makes one"
        )
    if s is not None and axes is None:
        count = 1 if hasattr(s, "__index__") else len(s)
        axes = range(x.ndim - count, x.ndim) if count <= x.ndim else None
    axes = normal_axes(x.global_shape, axes)
    n = None
    if s is not None:
        extents = _extents(s, axes, x.global_shape)
        n = extents[-1]
        shape = list(x.global_shape)
        for axis, extent in zip(axes, extents, strict=True):
            shape[axis] = extent
        if kind == "irfft":
            shape[axes[-1]] = n // 2 + 1
        if tuple(shape) != x.global_shape:
            x, overwrite_x = resized(x, tuple(shape)), True
    plan = plan_of(
        x.layout, axes, kind, n=n if kind == "irfft" else None, result=layout, norm="backward" if norm is None else norm,
        workspace=workspace, provider=provider,
    )  # fmt: skip
    found: DistributedArray = plan(x, out, overwrite_x)
    return found


def _one(n: int | None) -> tuple[int] | None:
    """The extent of one dimension, which is not -1, as NumPy has it."""
    if n == -1:
        raise ShapeError("the extent n of a transform is positive, not -1")
    return None if n is None else (n,)


def _extents(s: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    try:
        extents = [operator.index(n) for n in ([s] if hasattr(s, "__index__") else s)]
    except TypeError:
        raise ShapeError(f"extents of a transform are whole numbers, not {value_shown(s)}") from None
    if len(extents) != len(axes) or any(n < 1 and n != -1 for n in extents):
        raise ShapeError(
            f"a transform along axes {axes} has a positive extent for each, or -1 for that of x, not {value_shown(s)}"
        )
    return [shape[axis] if n == -1 else n for n, axis in zip(extents, axes, strict=True)]


def resized(x: DistributedArray, shape: tuple[int, ...]) -> DistributedArray:
    """The array cut, or filled with zeros behind, to another global shape, and split likewise. Collective."""
    before, after = x.layout, alike(x.layout, shape)
    namespace = namespace_of(x.local)
    out = namespace.zeros_beside(x.local, after.local_shape)
    least = tuple(map(min, before.shape, shape))
    if not before.scattered:
        where = tuple(slice(0, n) for n in least)
        assign(out[where], x.local[where])
        return DistributedArray.of(after, out, x._base_comm)
    exchange = BoxExchange(
        x.communicator, [_cut(box, least) for box in before.boxes], [_cut(box, least) for box in after.boxes],
        within=(before.boxes, after.boxes),
    )  # fmt: skip
    with namespace.where(x.local):
        exchange.run(x.local, out)
    return DistributedArray.of(after, out, x._base_comm)


def _cut(box: Box, shape: tuple[int, ...]) -> Box:
    return tuple((min(begin, n), min(end, n)) for (begin, end), n in zip(box, shape, strict=True))
