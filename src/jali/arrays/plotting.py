"""Pictures of distributed arrays by matplotlib: which rank has what, and what it has.

Both gather their data, so that all ranks call them and each gets the figure, which the caller shows or writes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays.distributed import DistributedArray
from jali.arrays.layout import shape_of
from jali.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ParameterError(f"pictures need matplotlib, which is not installed: {error}") from None
    return pyplot


def _plane(arr: DistributedArray, what: str) -> None:
    if not isinstance(arr, DistributedArray):
        raise ParameterError(f"{what} draws a DistributedArray, not {type(arr).__name__}")
    if not 1 <= arr.ndim <= 2 or 0 in arr.global_shape:
        raise ShapeError(
            f"{what} draws arrays of one or two dimensions that have elements, not of shape {arr.global_shape}"
        )


def plot_distributed_array(arr: DistributedArray) -> Figure:
    """A picture of which rank has which part of an array of one or two dimensions, a color for each rank. Communicates nothing.

    Of an array that all ranks have, it is one color. Raises ShapeError for other dimensions.
    """
    _plane(arr, "plot_distributed_array")
    pyplot = _pyplot()
    owner = np.zeros(arr.global_shape, np.int64)
    if arr.layout.scattered:
        for rank, box in enumerate(arr.layout.boxes):
            owner[tuple(slice(begin, end) for begin, end in box)] = rank
    figure, axes = pyplot.subplots()
    colors = pyplot.get_cmap("tab20" if arr.size > 10 else "tab10", max(arr.size, 1))
    image = axes.imshow(
        owner if arr.ndim == 2 else owner[:, None], cmap=colors, vmin=-0.5, vmax=max(arr.size, 1) - 0.5,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    figure.colorbar(image, ax=axes, ticks=range(arr.size), label="rank")
    axes.set_title(f"{arr.global_shape}, Partition.{arr.partition.name}")
    axes.set_xlabel("axis 1" if arr.ndim == 2 else "")
    axes.set_ylabel("axis 0")
    return figure


def plot_local_arrays(
    arr: DistributedArray, title: str | None = None, vmin: Any = None, vmax: Any = None
) -> Figure:
    """Pictures of the parts of all ranks beside each other, with the same scale of colors. Collective.

    Parts have one or two dimensions; of complex numbers it is the real part. Raises ShapeError for others.
    """
    _plane(arr, "plot_local_arrays")
    pyplot = _pyplot()
    whole = namespace_of(arr.local).to_host(arr.asarray()).real
    parts = [whole[tuple(slice(begin, end) for begin, end in box)] for box in arr.layout.boxes]
    low = float(whole.min()) if vmin is None else vmin
    high = float(whole.max()) if vmax is None else vmax
    columns = min(arr.size, 4)
    rows = math.ceil(arr.size / columns)
    figure, panels = pyplot.subplots(
        rows, columns, squeeze=False, figsize=(3 * columns + 1, 3 * rows), layout="constrained"
    )
    image = None
    for rank, panel in enumerate(panels.flat):
        if rank >= arr.size or 0 in shape_of(arr.layout.boxes[rank]):
            panel.set_axis_off()
            continue
        part = parts[rank]
        image = panel.imshow(part if part.ndim == 2 else part[:, None], vmin=low, vmax=high, aspect="auto")
        panel.set_title(f"rank {rank}")
    figure.colorbar(image, ax=panels)
    figure.suptitle(title or f"Parts of {arr.global_shape}")
    return figure
