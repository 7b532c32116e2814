"""Providers of transforms of local arrays: an entry for each library.

An entry has three functions. `c2c` transforms a complex array along `axes`, forward or back, into `out`, which may be the array itself.
`r2c` transforms a real array along the last of `axes`, which becomes half as long, then along the others; `c2r` is its inverse, and
`n` the extent of that axis. Arrays need not be contiguous. `norm` is NumPy's: "backward", "ortho" or "forward".

By default SciPy's pocketfft for arrays in the host's memory. Arrays on devices are transformed by the vendor's library, cuFFT
or hipFFT (`vendors`), where one is found, else by their own library: `cupy.fft`, `torch.fft`. pyFFTW is used only when it is
named.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays.recorded import assign, contiguous, copied, do, multiply
from jali.comm.device_of_array import device_of
from jali.errors import ParameterError
from jali.fft import vendors
from jali.fft.passes import Form, Pass, complex_passes, real_pass
from jali.fft.vendors import VendorPlan
from jali.files import value_shown

Axes = Sequence[int]


@dataclass(frozen=True)
class Resources:
    """What a transform may use: threads of the rank, bytes of work area on devices (None: any)."""

    threads: int = 1
    workspace: int | None = None


class Provider:
    """A library that has `fft.fftn` and its like, as NumPy names them. `recordable`: whether graphs can have its transforms."""

    recordable = False

    def __init__(self, name: str, module: str, of: str) -> None:
        self.name, self.namespace, self._module = name, of, module

    @property
    def installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self._module.partition(".")[0]) is not None

    def takes(self, x: Any) -> bool:
        """Whether arrays like this one are transformed."""
        return namespace_of(x).name == self.namespace

    def why_not(self) -> str:
        """Why it cannot be used, though it takes an array."""
        return "" if self.installed else f"{self.name} is not installed"

    @property
    def _fft(self) -> Any:
        return importlib.import_module(self._module)

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, resources: Resources) -> Any:
        """Returns the result, which is `out`."""
        out[...] = (self._fft.fftn if forward else self._fft.ifftn)(x, axes=axes, norm=norm)
        return out

    def r2c(self, x: Any, axes: Axes, norm: str, resources: Resources) -> Any:
        """Returns a new array."""
        return self._fft.rfftn(x, axes=axes, norm=norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, resources: Resources) -> Any:
        """Returns a new array."""
        shape = [x.shape[axis] for axis in axes[:-1]] + [n]
        return self._fft.irfftn(x, shape, axes=axes, norm=norm)


class NumPy(Provider):
    """Axis by axis, each into `out`; in single precision too."""

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, resources: Resources) -> Any:
        function = self._fft.fft if forward else self._fft.ifft
        for axis in reversed(axes):
            x = function(x, axis=axis, norm=norm, out=out)
        return out


class SciPy(Provider):
    """pocketfft, in place, by all threads of the rank."""

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, resources: Resources) -> Any:
        if out is not x:
            out[...] = x
        function = self._fft.fftn if forward else self._fft.ifftn
        found = function(out, axes=axes, norm=norm, overwrite_x=True, workers=resources.threads)
        if not np.may_share_memory(found, out):
            out[...] = found
        return out

    def r2c(self, x: Any, axes: Axes, norm: str, resources: Resources) -> Any:
        return self._fft.rfftn(x, axes=axes, norm=norm, workers=resources.threads)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, resources: Resources) -> Any:
        shape = [x.shape[axis] for axis in axes[:-1]] + [n]
        return self._fft.irfftn(x, shape, axes=axes, norm=norm, workers=resources.threads)


class PyFFTW(Provider):
    """FFTW; plans are measured once for each form of arrays, and kept."""

    def __init__(self, name: str, module: str, of: str) -> None:
        super().__init__(name, module, of)
        self._plans: dict[Any, Any] = {}

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, resources: Resources) -> Any:
        direction = "FFTW_FORWARD" if forward else "FFTW_BACKWARD"
        self._run(x, out, axes, direction, resources.threads, x is out)
        return _scaled(out, [x.shape[axis] for axis in axes], forward, norm)

    def r2c(self, x: Any, axes: Axes, norm: str, resources: Resources) -> Any:
        shape = list(x.shape)
        shape[axes[-1]] = shape[axes[-1]] // 2 + 1
        out = np.empty(shape, np.result_type(x.dtype, np.complex64))
        self._run(x, out, axes, "FFTW_FORWARD", resources.threads, False)
        return _scaled(out, [x.shape[axis] for axis in axes], True, norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, resources: Resources) -> Any:
        shape = list(x.shape)
        shape[axes[-1]] = n
        out = np.empty(shape, x.real.dtype)
        self._run(x.copy(), out, axes, "FFTW_BACKWARD", resources.threads, False)  # it overwrites its input
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
        multiply(x, 1 / math.sqrt(n))
    elif (norm == "forward") == forward:
        multiply(x, 1 / n)
    return x


class Torch(Provider):
    """`torch.fft`, on any device."""

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, resources: Resources) -> Any:
        out[...] = (self._fft.fftn if forward else self._fft.ifftn)(x, dim=tuple(axes), norm=norm)
        return out

    def r2c(self, x: Any, axes: Axes, norm: str, resources: Resources) -> Any:
        return self._fft.rfftn(x, dim=tuple(axes), norm=norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, resources: Resources) -> Any:
        shape = [x.shape[axis] for axis in axes[:-1]] + [n]
        return self._fft.irfftn(x, s=shape, dim=tuple(axes), norm=norm)


FEW_CALLS = 16  # of a library for one array
SMALL_CALL = 1 << 20  # elements; copies that save many such calls take less time than starting them


class Vendor(Provider):
    """A vendor's library, on the stream on which the array's own library works."""

    recordable = True

    def __init__(self, name: str) -> None:
        super().__init__(name, "", f"{vendors.FFT_LIBRARIES[name].kind} devices")
        self._spec = vendors.FFT_LIBRARIES[name]

    @property
    def installed(self) -> bool:
        return not self.why_not()

    def why_not(self) -> str:
        return vendors.why_not(self.name)

    def takes(self, x: Any) -> bool:
        device = None if type(x) is np.ndarray else device_of(x)
        return device is not None and device[0] == self._spec.kind

    def c2c(self, x: Any, axes: Axes, forward: bool, norm: str, out: Any, resources: Resources) -> Any:
        long = [axis for axis in axes if x.shape[axis] > 1]
        if long:
            self._complex(x, long, not forward, out, resources)
        elif out is not x:
            assign(out, x)
        return _scaled(out, [x.shape[axis] for axis in axes], forward, norm)

    def r2c(self, x: Any, axes: Axes, norm: str, resources: Resources) -> Any:
        namespace, shape = namespace_of(x), list(x.shape)
        shape[axes[-1]] = shape[axes[-1]] // 2 + 1
        kind, dtype = ("R2C", "complex64") if _single(x) else ("D2Z", "complex128")
        x = _forward_strides(namespace, x)
        out = namespace.empty_beside(x, tuple(shape), dtype)
        one, left = self._real(kind, axes, x, out, resources)
        if self._many([one], resources) or self._unaligned(namespace.address(x), 0, one):
            order = _axes_last(len(shape), axes)
            y = copied(namespace.transpose(x, order))  # at the beginning of an allocation
            found = self.r2c(y, range(len(shape) - len(axes), len(shape)), norm, resources)
            return namespace.transpose(found, _back(order))
        self._run(one, False, x, out, resources)
        if left:
            self._complex(out, left, False, out, resources)
        return _scaled(out, [x.shape[axis] for axis in axes], True, norm)

    def c2r(self, x: Any, n: int, axes: Axes, norm: str, resources: Resources) -> Any:
        namespace = namespace_of(x)
        order = _axes_last(len(x.shape), axes)
        y = copied(namespace.transpose(x, order))  # it overwrites its input
        along = range(len(order) - len(axes), len(order))
        shape = (*y.shape[:-1], n)
        kind, dtype = ("C2R", "float32") if _single(x) else ("Z2D", "float64")
        out = namespace.empty_beside(y, shape, dtype)
        one, left = self._real(kind, along, y, out, resources)
        if left:
            self._complex(y, left, True, y, resources)
        self._run(one, True, y, out, resources)
        found = namespace.transpose(out, _back(order))
        return _scaled(found, [found.shape[axis] for axis in axes], False, norm)

    def _complex(self, x: Any, axes: Axes, inverse: bool, out: Any, resources: Resources) -> None:
        namespace = namespace_of(x)
        x = _forward_strides(namespace, x)
        kind, strides = "C2C" if _single(x) else "Z2Z", (namespace.strides(x), namespace.strides(out))
        passes = complex_passes(kind, axes, tuple(x.shape), strides)
        if not all(self._fits(one, x, out, resources) for one in passes):  # one axis at a time takes less
            passes = complex_passes(kind, axes, tuple(x.shape), strides, 1)
        if self._many(passes, resources):
            order = _axes_last(len(x.shape), axes)
            y = copied(namespace.transpose(x, order))
            self._complex(y, range(len(order) - len(axes), len(order)), inverse, y, resources)
            assign(out, namespace.transpose(y, _back(order)))
            return
        for one in passes:
            self._run(one, inverse, x, out, resources)
            x = out

    def _real(self, kind: str, axes: Axes, x: Any, out: Any, resources: Resources) -> tuple[Pass, list[int]]:
        """The pass of real numbers, and the axes that are left."""
        namespace = namespace_of(x)
        shapes = tuple(x.shape), tuple(out.shape)
        strides = namespace.strides(x), namespace.strides(out)
        one, left = real_pass(kind, axes, shapes, strides)
        return (
            (one, left) if self._fits(one, x, out, resources) else real_pass(kind, axes, shapes, strides, 1)
        )

    def _fits(self, one: Pass, x: Any, out: Any, resources: Resources) -> bool:
        if resources.workspace is None or len(one.form.extents) == 1:
            return True
        try:
            self._fitting(one.form, x, out, resources)
        except ParameterError:
            return False
        return True

    def _fitting(self, form: Form, x: Any, out: Any, resources: Resources) -> Form:
        """For as many arrays at once as the workspace allows."""
        device, sizes = device_of(x), (x.dtype.itemsize, out.dtype.itemsize)
        assert device is not None
        distances = form.before[2] * sizes[0], form.after[2] * sizes[1]
        odd = form.kind not in ("C2C", "Z2Z") and any(d % max(sizes) for d in distances)
        step = 2 if odd and form.batch > 1 else 1
        return vendors.find(self.name).fitting(device[1], form, resources.workspace, step)

    def _many(self, passes: Sequence[Pass], resources: Resources) -> bool:
        return resources.workspace is None and any(
            one.calls > FEW_CALLS and one.elements < SMALL_CALL for one in passes
        )

    def _unaligned(self, before: int, after: int, one: Pass) -> bool:
        """Real numbers begin where complex ones may, on every call."""
        size = 4 if one.form.kind in ("R2C", "C2R") else 8
        side = 0 if one.form.kind in ("R2C", "D2Z") else 1
        steps = [loop[1 + side] for loop in one.loops]
        return bool((before, after)[side] % (2 * size) or any(step % 2 for step in steps))

    def _run(self, one: Pass, inverse: bool, x: Any, out: Any, resources: Resources) -> None:
        namespace, mine, device = namespace_of(x), vendors.find(self.name), device_of(x)
        assert device is not None
        form, fits = one.form, self._fitting(one.form, x, out, resources)
        sizes = x.dtype.itemsize, out.dtype.itemsize
        distances = form.before[2] * sizes[0], form.after[2] * sizes[1]
        begin = namespace.address(x), namespace.address(out)
        plan, rest, area = mine.plan(device[1], fits), form.batch % fits.batch, None
        last = mine.plan(device[1], fits.of(rest)) if rest else plan
        if work := max(plan.work, last.work):
            area = namespace.empty_beside(x, (work,), "uint8")

        def run(part: VendorPlan, a: int, b: int) -> None:
            part.run(namespace.stream(x), a, b, inverse, None if area is None else namespace.address(area))

        for offsets in one.offsets():
            for done in range(0, form.batch, fits.batch):
                a, b = (begin[k] + offsets[k] * sizes[k] + done * distances[k] for k in (0, 1))
                do(out, partial(run, plan if form.batch - done >= fits.batch else last, a, b))


def _single(x: Any) -> bool:
    return str(x.dtype).removeprefix("torch.") in ("float32", "complex64")


def _forward_strides(namespace: Any, x: Any) -> Any:
    """The array, or a copy of one that is not stored in the order of its elements."""
    strides = namespace.strides(x)
    return x if all(s > 0 or n == 1 for s, n in zip(strides, x.shape, strict=True)) else contiguous(x)


def _axes_last(ndim: int, axes: Axes) -> tuple[int, ...]:
    return (*(axis for axis in range(ndim) if axis not in axes), *axes)


def _back(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


PROVIDERS = {
    "scipy": SciPy("scipy", "scipy.fft", "numpy"),
    "numpy": NumPy("numpy", "numpy.fft", "numpy"),
    "pyfftw": PyFFTW("pyfftw", "pyfftw", "numpy"),
    "cufft": Vendor("cufft"),
    "hipfft": Vendor("hipfft"),
    "cupy": Provider("cupy", "cupy.fft", "cupy"),
    "torch": Torch("torch", "torch.fft", "torch"),
}


def provider_for(x: Any, name: str | None = None) -> Provider:
    """The entry of this name, or the first installed one for arrays like this.

    Raises ParameterError for an unknown name, one that is not installed, and one for other arrays.
    """
    if name is None:
        return next(provider for provider in PROVIDERS.values() if provider.takes(x) and provider.installed)
    if name not in PROVIDERS:
        raise ParameterError(
            f"transforms of local arrays come from {', '.join(PROVIDERS)}, not {value_shown(name)}"
        )
    provider = PROVIDERS[name]
    if not provider.takes(x):
        raise ParameterError(
            f"{name} transforms arrays of {provider.namespace}, this one is of {namespace_of(x).name}"
        )
    if why := provider.why_not():
        raise ParameterError(f"{why}; without a name there is {provider_for(x).name}")
    return provider
