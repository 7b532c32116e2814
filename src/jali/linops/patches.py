"""An operator on overlapping windows of an array that is spread over ranks: each window has one owner, its data may have several.

The forward operator maps windows to data: the serial operator's result for a window is tapered and added at the window's
position. So its adjoint needs an exchange like that of ghost cells, and itself the reverse of it, which adds up.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, namespace_of, numpy_dtype
from jali.arrays import DistributedArray, Partition, layout_of
from jali.arrays.ghosts import GhostExchange, added, joined
from jali.arrays.layout import Box, Layout, Shape, communicator_of, extents, shape_of
from jali.arrays.pool import empty
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.local import LocalOperator
from jali.linops.operator import LinearOperator

TAPERS = {"hanning": 1.0, "cosine": 1.0, "cosinesquare": 2.0, "cosinesqrt": 0.5}  # powers of raised cosines


def taper(samples: int, overlap: int, kind: str | None, first: bool, last: bool) -> np.ndarray:
    """Weights of a window's samples, which rise over the overlap with its neighbours: not at the first window's front and not at the
    last one's back.

    Raised cosines, from 0 at the outermost sample to 1 at the innermost of the overlap, to the power of TAPERS.
    """
    weights = np.ones(samples)
    if kind is None or overlap == 0:
        return weights
    if overlap == 1:
        rise = np.ones(1)
    else:
        rise = (0.5 * (1 - np.cos(np.pi * np.arange(overlap) / (overlap - 1)))) ** TAPERS[kind]
    if not first:
        weights[:overlap] = rise
    if not last:
        weights[samples - overlap :] = rise[::-1]
    return weights


class Patch(LinearOperator):
    """From windows to data: `Op` on each window, tapered, and added up.

    Arguments:

    - `Op`: a serial operator (of `pylops` or SciPy) from the model of a window to its data.
    - `dimsd`: shape of the data.
    - `nwin`, `nover`: samples of a window, and how many it shares with the next, along the first axes; windows have all of the axes
      behind these. Those that do not fit at the end are left out, as in serial PyLops.
    - `tapertype`: "hanning", "cosine", "cosinesquare", "cosinesqrt" or None.
    - `base_comm`: the ranks.

    `dims`, the shape of the model, is the number of windows along each of these axes, then the model of one. Model and data are split
    evenly along their first axis, as arrays or flat (the model of data with one axis comes flat). One exchange with the neighbours each way. Raises ShapeError where shapes do not
    fit, ParameterError for an unknown taper.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self,
        Op: Any,
        dimsd: int | Sequence[int],
        nwin: int | Sequence[int],
        nover: int | Sequence[int],
        tapertype: str | None = "hanning",
        base_comm: Any = None,
        dtype: Any = None,
    ) -> None:
        data, self.nwin, self.nover = (
            extents(f"{type(self).__name__}: {name}", given)
            for name, given in (("dimsd", dimsd), ("nwin", nwin), ("nover", nover))
        )
        if tapertype is not None and tapertype not in TAPERS:
            raise ParameterError(
                f"tapertype is one of {', '.join(TAPERS)} or None, not {value_shown(tapertype)}"
            )
        self.tapertype = tapertype
        if not 0 < len(self.nwin) == len(self.nover) <= len(data):
            raise ShapeError(f"windows {self.nwin} with overlaps {self.nover} in data of shape {data}")
        for n, window, overlap in zip(data, self.nwin, self.nover, strict=False):
            if not (0 <= overlap < window <= n and (tapertype is None or 2 * overlap <= window)):
                raise ShapeError(
                    f"a window of {window} samples with {overlap} shared in {n}: a window is not longer than the data, and not less than "
                    "twice what it shares (more than that without a taper)"
                )
        self.window: Shape = (*self.nwin, *data[len(self.nwin) :])
        self.windows: Shape = tuple(
            (n - w) // (w - o) + 1 for n, w, o in zip(data, self.nwin, self.nover, strict=False)
        )
        LocalOperator(Op)  # which raises for what is none
        if Op.shape[0] != math.prod(self.window):
            raise ShapeError(
                f"Op gives {Op.shape[0]} elements, a window of shape {self.window} has {math.prod(self.window)}"
            )
        self.Op_of_window = Op
        inner = tuple(int(n) for n in getattr(Op, "dims", None) or (Op.shape[1],))
        dims = (*self.windows, *inner)
        super().__init__(
            shape=(math.prod(data), math.prod(dims)), dims=dims, dimsd=data, dtype=Op.dtype if dtype is None else dtype,
            base_comm=base_comm,
        )  # fmt: skip
        ranks = communicator_of(base_comm)
        self._model, self._data = layout_of(ranks, dims), layout_of(ranks, data)
        self._exchange = GhostExchange(
            ranks, self._data.boxes, [self._covered(box) for box in self._model.boxes]
        )

    def _covered(self, windows: Box) -> Box:
        """Data of a rank's windows."""
        rest = tuple((0, n) for n in self.dimsd[1:])
        begin, end = windows[0]
        step = self.nwin[0] - self.nover[0]
        return ((begin * step, (end - 1) * step + self.nwin[0] if begin < end else begin * step), *rest)

    @functools.cached_property
    def _flat(self) -> tuple[Layout, Layout]:
        """Of models and data that are vectors."""
        return self._model.flat, self._data.flat

    def domain(self) -> Layout:
        """Of flat vectors."""
        return self._flat[0]

    def range_(self) -> Layout:
        """Of flat vectors."""
        return self._flat[1]

    def _part(self, x: DistributedArray, layout: Layout, flat: Layout) -> tuple[Any, bool]:
        given = x.layout
        for wanted in (flat, layout):
            same = given.communicator is wanted.communicator and given.shape == wanted.shape
            if same and given.partition is Partition.SCATTER and given.boxes == wanted.boxes:
                return namespace_of(x.local).contiguous(x.local).reshape(layout.local_shape), wanted is flat
        raise ShapeError(
            f"{self!r} takes {layout!r}, or the same parts flat, not {given!r}; redistribute() gives an array another layout"
        )

    def _here(self) -> Iterator[tuple[Shape, tuple[slice, ...], np.ndarray]]:
        """Windows of this rank: where they are in its model, where in the data that they cover, and their tapers."""
        box = self._model.box[: len(self.windows)]
        for position in itertools.product(*(range(begin, end) for begin, end in box)):
            where, weights = [], np.ones(())
            for axis, number in enumerate(position):
                n, overlap = self.nwin[axis], self.nover[axis]
                begin = number * (n - overlap) - self._exchange.wanted[axis][0]
                where.append(slice(begin, begin + n))
                ends = number == 0, number == self.windows[axis] - 1
                weights = np.multiply.outer(weights, taper(n, overlap, self.tapertype, *ends))
            yield (position[0] - box[0][0], *position[1:]), tuple(where), weights

    def _weights(self, weights: np.ndarray, like: Any, dtype: Any) -> Any:
        """To be multiplied with a window."""
        dtype = dtype_of_numpy(dtype)
        real = np.empty(0, dtype).real.dtype if dtype.kind in "fc" else np.dtype(float)
        shaped = weights.reshape(weights.shape + (1,) * (len(self.dimsd) - weights.ndim)).astype(real)
        namespace = namespace_of(like)
        return shaped if namespace.name == "numpy" else namespace.from_host(shaped, like)

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        model, as_flat = self._part(x, self._model, self._flat[0])
        dtype = np.result_type(numpy_dtype(model), self.dtype)
        covered = empty(model, shape_of(self._exchange.wanted), dtype)
        covered[...] = 0
        for position, where, weights in self._here():
            window = self.Op_of_window.matvec(model[position].reshape(-1)).reshape(self.window)
            covered[where] += self._weights(weights, model, dtype) * window
        out = added(self._exchange, covered, self._exchange.start_back(covered))
        return self._made(x, out, self._data, self._flat[1], as_flat)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        data, as_flat = self._part(x, self._data, self._flat[1])
        dtype = np.result_type(numpy_dtype(data), self.dtype)
        covered = joined(self._exchange, data, self._exchange.start(data))
        out = empty(data, self._model.local_shape, dtype)
        for position, where, weights in self._here():
            window = self._weights(weights, data, dtype) * covered[where]
            out[position] = self.Op_of_window.rmatvec(window.reshape(-1)).reshape(
                self.dims[len(self.windows) :]
            )
        return self._made(x, out, self._model, self._flat[0], as_flat)

    def _made(
        self, x: DistributedArray, local: Any, layout: Layout, flat: Layout, as_flat: bool
    ) -> DistributedArray:
        if as_flat:
            return DistributedArray.of(flat, local.reshape(-1), x._base_comm)
        return DistributedArray.of(layout, local, x._base_comm)


class Sliding(Patch):
    """Windows along the first axis alone: `nwin` and `nover` are numbers. Everything else as for `Patch`."""

    def __init__(
        self,
        Op: Any,
        dimsd: int | Sequence[int],
        nwin: int,
        nover: int,
        tapertype: str | None = "hanning",
        base_comm: Any = None,
        dtype: Any = None,
    ) -> None:
        if np.size(nwin) != 1 or np.size(nover) != 1:
            raise ShapeError(
                f"Sliding has windows along one axis, not {value_shown(nwin)} with overlaps {value_shown(nover)}; Patch has several"
            )
        super().__init__(Op, dimsd, nwin, nover, tapertype, base_comm, dtype)
