"""Fourier transforms as operators: `jali.fft` with the scaling of `pylops.signalprocessing`.

For real models the operator is W F, where F gives frequencies 0 to n/2 of the last axis and W multiplies those that stand for their
conjugates too (all but 0 and n/2) by sqrt(2): then inner products of data are those of whole spectra, and the adjoint, F^H W, is exact
with respect to their real parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, is_complex
from jali.arrays import DistributedArray, Layout, Partition, layout_of
from jali.arrays.exchange import BoxExchange
from jali.arrays.layout import C_ORDER, even_split, extents
from jali.errors import ParameterError, ShapeError
from jali.fft.plan import FftPlan, normal_axes, plan_of
from jali.fft.routes import alike
from jali.fft.shifts import fftshift_nd, ifftshift_nd
from jali.fft.steps import complex_of, real_of
from jali.fft.transforms import resized
from jali.files import value_shown
from jali.linops.operator import LinearOperator
from jali.linops.validation import distance, positive

NORMS = {"none": "backward", "1/n": "forward", "ortho": "ortho"}


class FFTND(LinearOperator):
    """The transform of arrays of shape `dims` along `axes`, of which `real` models are halved along the last.

    Arguments:

    - `sampling`: distances of samples along each axis, for the frequencies `fs`.
    - `norm`: "none" scales neither forward nor adjoint, "1/n" both by 1/n, "ortho" both by 1/sqrt(n); `Op / y` is the inverse for each.
    - `ifftshift_before`, `fftshift_after`: for all axes, or one answer for each.
    - `dtype`: type of models. With a real one the imaginary part of models does not count.
    - `nffts`: extents that models are cut or filled with zeros to before the transform, None for those of `dims`.
    - `workspace`, `provider`: see `jali.fft.FftPlan`.

    It takes vectors of one dimension, whose elements are those of the array in C order, and arrays of shape `dims` (the adjoint
    `dimsd`), split in any way. Its result is alike: an array is split along the same axes; a vector is split evenly where the
    given one was, else by the array's rows. The other way gives back what this one took last. Raises ShapeError for axes that
    do not exist or occur twice and for arguments that do not fit them, ParameterError for unknown words, samplings of 0 and
    extents that are not positive.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self,
        dims: int | Sequence[int],
        axes: int | Sequence[int] = (0, 1, 2),
        sampling: float | Sequence[float] = 1.0,
        norm: str = "none",
        real: bool = False,
        ifftshift_before: bool | Sequence[bool] = False,
        fftshift_after: bool | Sequence[bool] = False,
        dtype: Any = "complex128",
        base_comm: Any = None,
        *,
        nffts: int | Sequence[int | None] | None = None,
        workspace: int | None = None,
        provider: str | None = None,
    ) -> None:
        shape = extents(f"{type(self).__name__}: dims", dims)
        self.axes = normal_axes(shape, axes)
        if norm not in NORMS:
            raise ParameterError(f"norm {value_shown(norm)} is not one of {', '.join(map(repr, NORMS))}")
        kind = dtype_of_numpy(dtype)
        if kind.kind not in "fc":
            raise ParameterError(f"models of a transform are real or complex numbers, not {kind}")
        self.norm, self.real = norm, bool(real)
        self.cdtype = complex_of(kind.name if kind.kind == "f" else real_of(kind).name)
        self.rdtype = real_of(self.cdtype) if self.real or kind.kind == "f" else self.cdtype
        self.clinear = self.rdtype.kind == "c"
        self.sampling = self._for_each("sampling", sampling)
        for step in self.sampling:
            distance(step)
        self.ifftshift_before = self._for_each("ifftshift_before", ifftshift_before)
        self.fftshift_after = self._for_each("fftshift_after", fftshift_after)
        lengths = self._for_each("nffts", nffts)
        self.nffts = tuple(
            shape[axis] if n is None else positive("an extent of the transform (nfft, nffts)", n)
            for axis, n in zip(self.axes, lengths, strict=True)
        )
        self._padded = _with(shape, self.axes, self.nffts)
        after = _with(self._padded, self.axes[-1:], (self.nffts[-1] // 2 + 1,)) if self.real else self._padded
        super().__init__(
            shape=(math.prod(after), math.prod(shape)), dims=shape, dimsd=after, dtype=self.cdtype, base_comm=base_comm
        )  # fmt: skip
        self._options: dict[str, Any] = {"norm": NORMS[norm], "workspace": workspace, "provider": provider}
        shifted = _chosen(self.axes, self.ifftshift_before)
        self._options["shift_before"] = tuple(axis for axis in shifted if self._padded[axis] == shape[axis])
        self._shifted = tuple(
            axis for axis in shifted if self._padded[axis] != shape[axis]
        )  # before they are cut or filled
        self._options["shift_after"] = _chosen(self.axes, self.fftshift_after)
        self._met: dict[tuple[bool, Layout], Layout] = {}

    def _for_each(self, name: str, given: Any) -> tuple[Any, ...]:
        values = (given,) * len(self.axes) if given is None or np.ndim(given) == 0 else tuple(given)
        if len(values) != len(self.axes):
            raise ShapeError(
                f"{name} of a transform along {self.axes} is one value or one for each axis, not {value_shown(given)}"
            )
        return values

    @property
    def fs(self) -> tuple[np.ndarray, ...]:
        """Frequencies of each axis, in the order of `axes`."""
        found = []
        for number, (n, d) in enumerate(zip(self.nffts, self.sampling, strict=True)):
            of_real = self.real and number == len(self.nffts) - 1
            f = np.fft.rfftfreq(n, d) if of_real else np.fft.fftfreq(n, d)
            found.append(np.fft.fftshift(f) if self.fftshift_after[number] else f)
        return tuple(found)

    # --- application ----------------------------------------------------------------------------------------

    def _plan(self, layout: Layout) -> FftPlan:
        return plan_of(layout, self.axes, "rfft" if self.real else "fft", **self._options)

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        x, given = self._as_model(x), x
        x = self._array(x, self.dims)
        if self._shifted:
            x = ifftshift_nd(x, self._shifted)
        if self._padded != self.dims:
            x = resized(x, self._padded)
        plan = self._plan(x.layout)
        y = plan(x)
        if self.real:
            y = plan.weighted(y, math.sqrt(2), in_place=True)
        return self._like(y, given, True)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self._back(x, "adjoint", math.sqrt(2))

    def __truediv__(self, y: DistributedArray) -> DistributedArray:
        """The model whose transform is `y`, which is one where no axis was cut. Collective. Raises ShapeError as `rmatvec` does."""
        self._check(y, self.shape[0], "y")
        return self._on_arrays(lambda y: self._back(y, "inverse", math.sqrt(0.5)), y, self.dimsd)

    def _back(self, y: DistributedArray, way: str, weight: float) -> DistributedArray:
        given = y
        if y.dtype != self.cdtype:
            y = y.astype(self.cdtype)
        y = self._array(y, self.dimsd)
        plan = self._plan(alike(y.layout, self._padded))
        if y.layout is not plan.result_layout:
            y = _moved(y, plan.result_layout)
        if self.real:
            y = plan.weighted(y, weight)
        x = getattr(plan, way)(y, overwrite_x=self.real)
        if self._padded != self.dims:
            x = resized(x, self.dims)
        if self._shifted:
            x = fftshift_nd(x, self._shifted)
        if self.rdtype.kind == "f" and not self.real:
            x = x.real.copy()
        return self._like(x, given, False)

    def _as_model(self, x: DistributedArray) -> DistributedArray:
        if self.rdtype.kind == "f" and is_complex(x.local):
            x = x.real
        return x if str(x.dtype).removeprefix("torch.") == self.rdtype.name else x.astype(self.rdtype)

    # --- vectors and arrays ---------------------------------------------------------------------------------

    def _array(self, x: DistributedArray, dims: tuple[int, ...]) -> DistributedArray:
        """A vector as an array of this shape, split by rows."""
        if x.global_shape == dims:
            return x
        if x.ndim != 1:
            raise ShapeError(
                f"{self!r}: an array of shape {x.global_shape}, not {dims} or {(math.prod(dims),)}"
            )
        if not x.layout.scattered:
            return DistributedArray.of(x.layout.with_(shape=dims), x.local.reshape(dims), x._base_comm)
        rows = _by_rows(x.layout, dims)
        flat = rows.flat
        if flat.local_shapes != x.layout.local_shapes:
            x = _moved(x, flat)
        return DistributedArray.of(rows, x.local.reshape(rows.local_shape), x._base_comm)

    def _like(self, y: DistributedArray, given: DistributedArray, forward: bool) -> DistributedArray:
        """The result in the form of what was given."""
        wanted = self._met.get((forward, given.layout.as_c_order))
        if given.ndim != 1 or len(self.dims) == 1:
            if wanted is None:
                wanted = y.layout
        elif not y.layout.scattered:
            y = DistributedArray.of(
                given.layout.with_(shape=(math.prod(y.global_shape),)), y.local.reshape(-1), y._base_comm
            )
            wanted = y.layout
        else:
            rows = _by_rows(given.layout, y.global_shape)
            if y.layout is not rows:
                y = _moved(y, rows)
            flat = rows.flat
            y = DistributedArray.of(flat, y.local.reshape(-1), y._base_comm)
            if wanted is None:
                ranks = given.layout.communicator.size
                even = (
                    tuple((n,) for n in even_split(given.global_shape[0], ranks)) == given.layout.local_shapes
                )
                wanted = (
                    layout_of(y.communicator, flat.shape, mask=flat.mask, flat_of=C_ORDER) if even else flat
                )
        if wanted is not y.layout:
            y = _moved(y, wanted)
        if len(self._met) > 64:
            self._met.clear()
        self._met[not forward, wanted.as_c_order] = given.layout
        return y


class FFT2D(FFTND):
    """The transform along two axes: see `FFTND`. `f1` and `f2` are their frequencies."""

    def __init__(
        self,
        dims: Sequence[int],
        axes: Sequence[int] = (0, 1),
        sampling: float | Sequence[float] = 1.0,
        norm: str = "none",
        real: bool = False,
        ifftshift_before: bool | Sequence[bool] = False,
        fftshift_after: bool | Sequence[bool] = False,
        dtype: Any = "complex128",
        base_comm: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            dims, axes, sampling, norm, real, ifftshift_before, fftshift_after, dtype, base_comm, **options
        )
        if len(self.axes) != 2:
            raise ShapeError(f"FFT2D transforms along two axes, not {self.axes}")

    @property
    def f1(self) -> np.ndarray:
        """Frequencies of the first axis."""
        return self.fs[0]

    @property
    def f2(self) -> np.ndarray:
        """Frequencies of the second axis."""
        return self.fs[1]


class FFT(FFTND):
    """The transform along one axis, which may be the one that is split: see `FFTND`. `f` are its frequencies."""

    def __init__(
        self,
        dims: int | Sequence[int],
        axis: int = -1,
        nfft: int | None = None,
        sampling: float = 1.0,
        norm: str = "ortho",
        real: bool = False,
        ifftshift_before: bool = False,
        fftshift_after: bool = False,
        dtype: Any = "complex128",
        base_comm: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            dims, (axis,), sampling, norm, real, ifftshift_before, fftshift_after, dtype, base_comm, nffts=nfft, **options
        )  # fmt: skip
        self.axis, self.nfft = self.axes[0], self.nffts[0]

    @property
    def f(self) -> np.ndarray:
        """Frequencies."""
        return self.fs[0]


def _with(shape: tuple[int, ...], axes: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    new = dict(zip(axes, extents, strict=True))
    return tuple(new.get(axis, n) for axis, n in enumerate(shape))


def _chosen(axes: Sequence[int], answers: Sequence[bool]) -> tuple[int, ...]:
    return tuple(axis for axis, answer in zip(axes, answers, strict=True) if answer)


def _by_rows(layout: Layout, dims: tuple[int, ...]) -> Layout:
    return layout_of(layout.communicator, dims, Partition.SCATTER, 0, mask=layout.mask)


def _moved(x: DistributedArray, layout: Layout) -> DistributedArray:
    """In another layout, by an exchange that is kept."""
    kept = x.communicator.kept.setdefault("exchanges of operators", {})
    key = (x.layout, layout)
    if key not in kept:
        if len(kept) > 64:
            kept.clear()
        kept[key] = BoxExchange(x.communicator, x.layout.boxes, layout.boxes)
    return DistributedArray.of(layout, kept[key].run(x.local), x._base_comm)
