"""A CuPy of NumPy's arrays in the memory of fake devices, whose work is on a stream of its own.

What NumPy computes is done when the stream has come so far, so that what others have put on other streams and nobody has waited for
shows. A thread has the device and the kind that it chose by `use`. The host's copies of arrays are counted.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import _core
from jali.arrays.libraries import LIBRARIES
from jali.comm import DeviceArray

_thread = threading.local()
_driver: list[Any] = []
copies_to_host = [0]


class Device:
    """A context manager, as CuPy's."""

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def use(kind: str, ordinal: int) -> _core.Gpu:
    """From now on this thread works on this device, on a new stream."""
    gpu = _core.Gpu.open(kind, ordinal)
    gpu.synchronize()  # which makes it the device of this thread
    handle = ctypes.c_void_p()
    assert _driver[0].cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
    _thread.gpu, _thread.stream = gpu, handle.value
    return gpu


def wait() -> None:
    """For what is on this thread's stream."""
    assert _driver[0].cuStreamSynchronize(ctypes.c_void_p(_thread.stream)) == 0


class ndarray(np.ndarray):  # noqa: N801
    """In memory of a device, like all that is made of it."""

    __module__ = "cupy"
    memory: DeviceArray

    def __array_finalize__(self, of: Any) -> None:
        self.memory = getattr(of, "memory", None)  # type: ignore[assignment]

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self) -> Any:  # type: ignore[override]
        return Device(self.memory.gpu.ordinal)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ctypes.data, False),
            "strides": None if self.flags.c_contiguous else self.strides,
            "version": 3,
            "stream": _thread.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("take the interface, which says the stream")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        wait()
        plain = [_plain(x) for x in inputs]
        if out is not None:
            getattr(ufunc, method)(*plain, out=tuple(_plain(x) for x in out), **named)
            return out[0]
        return there(getattr(ufunc, method)(*plain, **named))

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, named: Any) -> Any:
        raise TypeError(f"numpy.{getattr(function, '__name__', function)} of an array on a device")

    def __setitem__(self, where: Any, value: Any) -> None:
        assert not (type(value) is np.ndarray and value.ndim), "an array of the host"
        wait()
        _plain(self)[where] = _plain(value)

    def reshape(self, *shape: Any, **named: Any) -> Any:
        found = super().reshape(*shape, **named)
        return found if np.may_share_memory(_plain(found), _plain(self)) else there(_plain(found))

    def copy(self, *_: Any) -> Any:
        wait()
        return there(_plain(self).copy())

    def astype(self, dtype: Any) -> Any:
        wait()
        return there(_plain(self).astype(dtype))

    def flatten(self, order: str = "C") -> Any:
        wait()
        return there(_plain(self).flatten(order))

    def conj(self) -> Any:
        return np.conjugate(self)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, ndarray) else x


def empty(shape: Any, dtype: Any = float) -> Any:
    """On the device of this thread."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    count = max(1, int(np.prod(shape)))
    memory = DeviceArray.empty(_thread.gpu, (count * dtype.itemsize,), "uint8")
    raw = (ctypes.c_char * memory.nbytes).from_address(memory.address)
    found = np.frombuffer(raw, dtype).view(ndarray)
    found.memory = memory
    return found[: int(np.prod(shape))].reshape(shape)


def there(x: Any) -> Any:
    """What NumPy has computed, on the device."""
    if not isinstance(x, np.ndarray):
        return x
    found = empty(x.shape, x.dtype)
    found[...] = x if x.ndim == 0 else _Allowed(x)
    return found


class _Allowed:
    """Numbers of the host that may go to the device."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.x


def asnumpy(x: Any) -> np.ndarray:
    """A copy on the host, which is counted."""
    copies_to_host[0] += 1
    wait()
    return np.array(_plain(x))


def _on_device(name: str) -> Any:
    function = getattr(np, name)

    def call(x: Any, *arguments: Any, **named: Any) -> Any:
        wait()
        return there(function(_plain(x), *(_plain(y) for y in arguments), **named))

    return call


def ascontiguousarray(x: Any) -> Any:
    """As it is where it can be."""
    return x if x.flags.c_contiguous else x.copy()


@contextmanager
def installed(driver: Path) -> Iterator[types.ModuleType]:
    """`import cupy` gives this inside."""
    _driver[:] = [ctypes.CDLL(str(driver))]
    copies_to_host[0] = 0
    module: Any = types.ModuleType("cupy")
    module.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    module.ndarray, module.empty, module.asnumpy, module.ascontiguousarray = (
        ndarray,
        empty,
        asnumpy,
        ascontiguousarray,
    )
    module.asarray = lambda x: x if isinstance(x, ndarray) else there(np.asarray(x))
    module.empty_like = lambda x: empty(x.shape, x.dtype)
    module.zeros = lambda shape, dtype=float: there(np.zeros(shape, dtype))
    module.zeros_like = lambda x: there(np.zeros(x.shape, x.dtype))
    for name in ("roll", "flip", "vdot", "dot"):
        setattr(module, name, _on_device(name))
    module.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=_thread.stream))
    module.fft = types.ModuleType("cupy.fft")
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        function = getattr(np.fft, name)
        setattr(module.fft, name, _fft(function))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", module)
        patch.setitem(sys.modules, "cupy.fft", module.fft)
        LIBRARIES["cupy"].__dict__.pop("xp", None)
        yield module
        LIBRARIES["cupy"].__dict__.pop("xp", None)


def _fft(function: Any) -> Any:
    def call(x: Any, *arguments: Any, **named: Any) -> Any:
        wait()
        return there(function(_plain(x), *arguments, **named))

    return call
