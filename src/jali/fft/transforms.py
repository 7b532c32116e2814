"""Transforms as NumPy has them, of distributed arrays.

Arguments are those of `numpy.fft`: `n` or `s` (extents of what is transformed, which is cut or filled with zeros), `axis` or `axes`,
`norm`. The further ones are those of `Plan`: `layout` is "natural" (the result is split as `x`) or "transposed" (as it comes out of the
last transform, which saves an exchange; the result says how it is split), `workspace`, `provider`; with `overwrite_x` the values of `x`
may be lost. Plans are kept by layout. Collective, where ranks have parts.

All take fields as well: axes are directions of the lattice (default: all), what a field has at each site is transformed component by
component. The result is a field of complex numbers on the same lattice (as `out` is, if given), or a DistributedArray where extents
change or the layout is not that of the lattice: of `rfftn`, `irfftn`, other `s`, and `layout="transposed"`.

Errors, the same on all ranks: ShapeError for axes that do not exist or occur twice, and for extents that are none; ParameterError for
unknown words, real transforms of complex numbers, and types that are no numbers in single or double precision.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from jali.arrays import DistributedArray
from jali.arrays.exchange import Exchange
from jali.arrays.layout import Box
from jali.arrays.libraries import library_of
from jali.errors import ParameterError, ShapeError
from jali.fft.fields import transformed_field
from jali.fft.plan import normal_axes, plan_of
from jali.fft.routes import alike
from jali.lattice.field import Field


def fft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension."""
    return _transform("fft", x, None if n is None else (n,), (axis,), norm, **options)


def ifft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension, back."""
    return _transform("ifft", x, None if n is None else (n,), (axis,), norm, **options)


def rfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension, of real numbers: frequencies 0 to n/2."""
    return _transform("rfft", x, None if n is None else (n,), (axis,), norm, **options)


def irfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, **options: Any) -> Any:
    """One dimension, back to n real numbers (default: 2 (m - 1) for m frequencies)."""
    return _transform("irfft", x, None if n is None else (n,), (axis,), norm, **options)


def fft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions."""
    return _transform("fft", x, s, axes, norm, **options)


def ifft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions, back."""
    return _transform("ifft", x, s, axes, norm, **options)


def rfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions, of real numbers."""
    return _transform("rfft", x, s, axes, norm, **options)


def irfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, **options: Any) -> Any:
    """Two dimensions, back to real numbers."""
    return _transform("irfft", x, s, axes, norm, **options)


def fftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, by default all."""
    return _transform("fft", x, s, axes, norm, **options)


def ifftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, back."""
    return _transform("ifft", x, s, axes, norm, **options)


def rfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None, **options: Any) -> Any:
    """Several dimensions, of real numbers: of the last axis frequencies 0 to n/2."""
    return _transform("rfft", x, s, axes, norm, **options)


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
) -> Any:
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
        extents = _extents(s, axes)
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


def _extents(s: Any, axes: tuple[int, ...]) -> list[int]:
    try:
        extents = [operator.index(n) for n in ([s] if hasattr(s, "__index__") else s)]
    except TypeError:
        raise ShapeError(f"extents of a transform are whole numbers, not {s!r}") from None
    if len(extents) != len(axes) or any(n < 1 for n in extents):
        raise ShapeError(f"a transform along axes {axes} has a positive extent for each, not {s!r}")
    return extents


def resized(x: DistributedArray, shape: tuple[int, ...]) -> DistributedArray:
    """The array cut, or filled with zeros behind, to another global shape, and split likewise. Collective."""
    before, after = x.layout, alike(x.layout, shape)
    library = library_of(x.local)
    out = library.empty_beside(x.local, after.local_shape)
    out[...] = 0
    least = tuple(map(min, before.shape, shape))
    if not before.scattered:
        where = tuple(slice(0, n) for n in least)
        out[where] = x.local[where]
    else:
        Exchange(
            x.communicator, [_cut(box, least) for box in before.boxes], [_cut(box, least) for box in after.boxes],
            within=(before.boxes, after.boxes),
        ).run(x.local, out)  # fmt: skip
    return DistributedArray.of(after, out, x._base_comm)


def _cut(box: Box, shape: tuple[int, ...]) -> Box:
    return tuple((min(begin, n), min(end, n)) for (begin, end), n in zip(box, shape, strict=True))
