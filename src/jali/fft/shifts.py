"""fftshift and ifftshift of distributed arrays: frequency 0 to the middle and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali import graph_recorder
from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray
from jali.errors import ParameterError
from jali.fft.fields import array_of, directions_of, set_from
from jali.fft.plan import MOST_KEPT, normal_axes
from jali.fft.providers import Resources, provider_for
from jali.fft.steps import Run, Shift
from jali.lattice.field import Field


def fftshift_nd(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """Move frequency 0 to the middle, as `numpy.fft.fftshift`, along axes (default: all), split ones too. Collective.

    Of a field it gives a field, and axes are directions. Raises ShapeError for axes that do not exist.
    """
    return _shift(x, axes, False)


def ifftshift_nd(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """The inverse of `fftshift_nd`. Collective."""
    return _shift(x, axes, True)


def _shift(x: Any, axes: Any, back: bool) -> Any:
    if isinstance(x, Field):
        shifted = _shift(array_of(x), directions_of(x.lattice, None, axes), back)
        return set_from(x.like(boundary=None), shifted)
    if not isinstance(x, DistributedArray):
        raise ParameterError(f"what is shifted is a DistributedArray or a Field, not a {type(x).__name__}")
    graph_recorder.refuse("an array is shifted", "shift it before or after")
    along = normal_axes(x.global_shape, axes)
    kept = x.communicator.kept.setdefault("shifts of arrays", {})
    key = (x.layout, along, back)
    if key not in kept:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[key] = Shift(x.layout, along, back, None)
    run = Run(provider_for(x.local), namespace_of(x.local), Resources(), "backward", {}, None, False)
    run.last = True
    with run.namespace.where(x.local):
        shifted = kept[key].forward(x.local, run)
    return DistributedArray.of(x.layout, shifted, x._base_comm)
