"""Who computes transforms of local arrays: a row for each library.

A row has three functions. `c2c` transforms a complex array along `axes`, forward or back, into `out`, which may be the array itself.
`r2c` transforms a real array along the last of `axes`, which becomes half as long, then along the others; `c2r` is its inverse, and
`n` the extent of that axis. Arrays need not be contiguous. `norm` is NumPy's: "backward", "ortho" or "forward".

By default SciPy's pocketfft, and what an array's own library has: `cupy.fft` (cuFFT, or rocFFT), `torch.fft`. pyFFTW is taken by
name. Loading the vendors' libraries at run time, without CuPy or PyTorch, is not here yet.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays.libraries import library_of
from jali.errors import ParameterError

Axes = Sequence[int]


class Provider:
    """A library that has `fft.fftn` and its like, as NumPy names them."""

    def __init__(self, name: str, module: str, of: str) -> None:
        self.name, self.library, self._module = name, of, module

    @property
    def installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self._module.partition(".")[0]) is not None

    @property
    def _fft(self) -> Any:
        return importlib.import_module(self._module)

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, threads: int) -> Any:
        """Returns the result, which is `out`."""
        out[...] = (self._fft.fftn if forward else self._fft.ifftn)(x, axes=axes, norm=norm)
        return out

    def r2c(self, x: Any, axes: Axes, norm: str, threads: int) -> Any:
        """Returns a new array."""
        return self._fft.rfftn(x, axes=axes, norm=norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, threads: int) -> Any:
        """Returns a new array."""
        shape = [x.shape[axis] for axis in axes[:-1]] + [n]
        return self._fft.irfftn(x, shape, axes=axes, norm=norm)


class NumPy(Provider):
    """Axis by axis, each into `out`; in single precision too."""

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, threads: int) -> Any:
        function = self._fft.fft if forward else self._fft.ifft
        for axis in reversed(axes):
            x = function(x, axis=axis, norm=norm, out=out)
        return out


class SciPy(Provider):
    """pocketfft, in place, by all threads of the rank."""

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, threads: int) -> Any:
        if out is not x:
            out[...] = x
        function = self._fft.fftn if forward else self._fft.ifftn
        found = function(out, axes=axes, norm=norm, overwrite_x=True, workers=threads)
        if not np.may_share_memory(found, out):
            out[...] = found
        return out

    def r2c(self, x: Any, axes: Axes, norm: str, threads: int) -> Any:
        return self._fft.rfftn(x, axes=axes, norm=norm, workers=threads)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, threads: int) -> Any:
        shape = [x.shape[axis] for axis in axes[:-1]] + [n]
        return self._fft.irfftn(x, shape, axes=axes, norm=norm, workers=threads)


class PyFFTW(Provider):
    """FFTW; plans are measured once for each form of arrays, and kept."""

    def __init__(self, name: str, module: str, of: str) -> None:
        super().__init__(name, module, of)
        self._plans: dict[Any, Any] = {}

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, threads: int) -> Any:
        direction = "FFTW_FORWARD" if forward else "FFTW_BACKWARD"
        self._run(x, out, axes, direction, threads, x is out)
        return _scaled(out, [x.shape[axis] for axis in axes], forward, norm)

    def r2c(self, x: Any, axes: Axes, norm: str, threads: int) -> Any:
        shape = list(x.shape)
        shape[axes[-1]] = shape[axes[-1]] // 2 + 1
        out = np.empty(shape, np.result_type(x.dtype, np.complex64))
        self._run(x, out, axes, "FFTW_FORWARD", threads, False)
        return _scaled(out, [x.shape[axis] for axis in axes], True, norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, threads: int) -> Any:
        shape = list(x.shape)
        shape[axes[-1]] = n
        out = np.empty(shape, x.real.dtype)
        self._run(x.copy(), out, axes, "FFTW_BACKWARD", threads, False)  # it overwrites its input
        return _scaled(out, [out.shape[axis] for axis in axes], False, norm)

    def _run(self, x: Any, out: Any, axes: Axes, direction: str, threads: int, in_place: bool) -> None:
        aligned = [self._fft.is_byte_aligned(a) for a in (x, out)]
        key = (
            x.shape, x.strides, x.dtype, out.shape, out.strides, out.dtype, *aligned, tuple(axes), direction, threads, in_place,
        )  # fmt: skip
        if key not in self._plans:
            before = _alike(self._fft, x, aligned[0])
            after = before if in_place else _alike(self._fft, out, aligned[1])
            flags = ["FFTW_MEASURE"] + ["FFTW_UNALIGNED"] * (not all(aligned))
            self._plans[key] = self._fft.FFTW(
                before, after, axes=tuple(axes), direction=direction, flags=flags, threads=threads
            )
        plan = self._plans[key]
        plan.update_arrays(x, out)
        plan.execute()


def _alike(pyfftw: Any, x: Any, aligned: bool) -> Any:
    """An array of the same shape and strides, for plans that are measured."""
    last = sum((n - 1) * abs(stride) for n, stride in zip(x.shape, x.strides, strict=True)) + x.itemsize
    room = pyfftw.empty_aligned(last + 64, np.uint8)
    if not aligned:
        room = room[x.itemsize :]
    room[...] = 0
    found: Any = np.ndarray(x.shape, x.dtype, room, 0, x.strides)
    return found


def _scaled(x: Any, extents: Sequence[int], forward: bool, norm: str) -> Any:
    n = math.prod(extents)
    if norm == "ortho":
        x *= x.real.dtype.type(1 / math.sqrt(n))
    elif (norm == "forward") == forward:
        x *= x.real.dtype.type(1 / n)
    return x


class Torch(Provider):
    """`torch.fft`, on any device."""

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, threads: int) -> Any:
        out[...] = (self._fft.fftn if forward else self._fft.ifftn)(x, dim=tuple(axes), norm=norm)
        return out

    def r2c(self, x: Any, axes: Axes, norm: str, threads: int) -> Any:
        return self._fft.rfftn(x, dim=tuple(axes), norm=norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, threads: int) -> Any:
        shape = [x.shape[axis] for axis in axes[:-1]] + [n]
        return self._fft.irfftn(x, s=shape, dim=tuple(axes), norm=norm)


PROVIDERS = {
    "scipy": SciPy("scipy", "scipy.fft", "numpy"),
    "numpy": NumPy("numpy", "numpy.fft", "numpy"),
    "pyfftw": PyFFTW("pyfftw", "pyfftw", "numpy"),
    "cupy": Provider("cupy", "cupy.fft", "cupy"),
    "torch": Torch("torch", "torch.fft", "torch"),
}


def provider_for(x: Any, name: str | None = None) -> Provider:
    """The row of this name, or the first installed one for arrays of this library.

    Raises ParameterError for an unknown name, one that is not installed, and one for arrays of another library.
    """
    library = library_of(x).name
    if name is None:
        return next(row for row in PROVIDERS.values() if row.library == library and row.installed)
    if name not in PROVIDERS:
        raise ParameterError(f"transforms of local arrays come from {', '.join(PROVIDERS)}, not {name!r}")
    row = PROVIDERS[name]
    if row.library != library:
        raise ParameterError(f"{name} transforms arrays of {row.library}, this one is of {library}")
    if not row.installed:
        raise ParameterError(f"{name} is not installed; without a name there is {provider_for(x).name}")
    return row
