"""A CuPy of NumPy's arrays in the memory of fake devices, whose work is on a stream of its own.

What NumPy computes is done when the stream has come so far, so that what others have put on other streams and nobody has waited for
shows. A thread has the device and the kind that it chose by `use`. The host's copies of arrays are counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import current_context, make_fake_fft, primary_context

from jali import _core
from jali.array_namespaces import NAMESPACES
from jali.comm import DeviceArray
from jali.errors import JaliError
from jali.fft import vendors

_thread = threading.local()
_driver: list[Any] = []
_library: list[Any] = []
_all: list[_Memory] = []  # what was allocated
_streams: list[int] = []  # that were made
_pieces: dict[_core.Gpu, tuple[DeviceArray, int]] = {}  # with how much of each has been given out
_lock = threading.Lock()


def copies_to_host() -> int:
    """Of this thread, so far."""
    return getattr(_thread, "copies", 0)


def chosen_device() -> int | None:
    """That of this thread, if it has chosen one."""
    return getattr(getattr(_thread, "gpu", None), "ordinal", None)


class Device:
    """Inside, this thread works on this device, on a stream of its own there."""

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        self._before = _thread.gpu
        _make_current(_core.Gpu.open(_thread.gpu.kind, self.id))
        return self

    def __exit__(self, *_: object) -> None:
        _make_current(self._before)


def _make_current(gpu: _core.Gpu) -> None:
    _driver[0].cuCtxSetCurrent(primary_context(_driver[0], gpu.ordinal))
    _thread.gpu = gpu


def use(kind: str, ordinal: int) -> _core.Gpu:
    """From now on this thread works on this device, on a new stream."""
    gpu = _core.Gpu.open(kind, ordinal)
    gpu.synchronize()
    _make_current(gpu)
    _thread.streams = {gpu: _new_stream()}
    return gpu


def stream() -> int:
    """Of the current device."""
    found: dict[_core.Gpu, int] = _thread.streams
    if _thread.gpu not in found:
        found[_thread.gpu] = _new_stream()
    return found[_thread.gpu]


def _new_stream() -> int:
    handle = ctypes.c_void_p()
    assert _driver[0].cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
    assert handle.value is not None
    _streams.append(handle.value)
    return handle.value


def another_stream() -> ExternalStream:
    """Inside, this thread works on a new stream, which waits for nothing."""
    return ExternalStream(_new_stream())


def wait() -> None:
    """For what is on this thread's stream."""
    assert _driver[0].cuStreamSynchronize(ctypes.c_void_p(stream())) == 0


class ExternalStream:
    """Somebody's stream, on which this library works inside."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __enter__(self) -> None:
        self.before, _thread.streams[_thread.gpu] = stream(), self.handle

    def __exit__(self, *_: object) -> None:
        _thread.streams[_thread.gpu] = self.before


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):  # noqa: N801
    """In memory of a device, like all that is made of it: `plain` is what NumPy sees there."""

    __module__ = "cupy"

    def __init__(self, plain: np.ndarray, memory: DeviceArray) -> None:
        self.plain, self.memory = plain, memory

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.plain.ctypes.data)

    @property
    def device(self) -> Device:
        return Device(self.memory.gpu.ordinal)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "strides": None if self.flags.c_contiguous else self.strides,
            "version": 3,
            "stream": stream(),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array on a device does not become one of the host by itself")

    def __imul__(self, factor: Any) -> Any:
        _elementwise(self, factor, multiply=True)
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        wait()
        plain = [_plain(x) for x in inputs]
        if out is not None:
            getattr(ufunc, method)(*plain, out=tuple(_plain(x) for x in out), **named)
            return out[0]
        return there(getattr(ufunc, method)(*plain, **named))

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, ndarray):  # a copy
            wait()
            return there(self.plain[where.plain])
        found = self.plain[where]
        if isinstance(found, np.generic):  # of CuPy an array of no dimension, which the host has not seen
            found = self.plain[(*where, ...) if isinstance(where, tuple) else (where, ...)]
        return ndarray(found, self.memory)

    def __float__(self) -> float:
        wait()
        return float(self.plain)

    def item(self) -> Any:
        """Its only number, on the host."""
        wait()
        return self.plain.item()

    def __setitem__(self, where: Any, value: Any) -> None:
        assert not (isinstance(value, np.ndarray) and value.ndim), "an array of the host"
        _elementwise(self[where], value, multiply=False)

    def __len__(self) -> int:
        return len(self.plain)

    def reshape(self, *shape: Any) -> Any:
        found = self.plain.reshape(*shape)
        if found.size and not np.may_share_memory(found, self.plain):
            return self.copy().reshape(*shape)
        return ndarray(found, self.memory)

    def view(self, dtype: Any) -> Any:
        return ndarray(self.plain.view(dtype), self.memory)

    def copy(self) -> Any:
        wait()
        return there(self.plain.copy())

    def astype(self, dtype: Any) -> Any:
        wait()
        return there(self.plain.astype(dtype))

    def flatten(self, order: str = "C") -> Any:
        wait()
        return there(self.plain.flatten(order))

    def conj(self) -> Any:
        return np.conjugate(self)


for _name in ("shape", "dtype", "ndim", "size", "strides", "flags", "nbytes"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self.plain, name)))
for _name in ("real", "imag"):
    setattr(
        ndarray, _name, property(lambda self, name=_name: ndarray(getattr(self.plain, name), self.memory))
    )
for _name in ("transpose", "swapaxes"):

    def _view(self: ndarray, *axes: Any, name: str = _name) -> ndarray:
        return ndarray(getattr(self.plain, name)(*axes), self.memory)

    setattr(ndarray, _name, _view)
for _name in ("sum", "max", "take", "clip"):

    def _new(self: ndarray, *arguments: Any, name: str = _name, **named: Any) -> ndarray:
        wait()
        found = getattr(self.plain, name)(*(_plain(x) for x in arguments), **named)
        return there(np.asarray(found))

    setattr(ndarray, _name, _new)


TYPES = {"float32": 4, "float64": 8, "complex64": 80, "complex128": 160}


def _elementwise(to: ndarray, value: Any, multiply: bool) -> None:
    """Puts it on the stream; work with other types is done at once."""
    source = value.plain if isinstance(value, ndarray) else None
    if to.dtype.name not in TYPES or (source is None and not isinstance(value, float | int)) or (
        source is not None and source.dtype.name not in TYPES
    ):  # fmt: skip
        wait()
        to.plain[...] = to.plain * _plain(value) if multiply else _plain(value)
        return
    number, from_steps, address, kind = float(value) if source is None else 0.0, to.strides, None, 0
    if source is not None:
        source = np.broadcast_to(source, to.shape)
        from_steps, address, kind = source.strides, source.ctypes.data, TYPES[source.dtype.name]
    numbers = ctypes.c_longlong * max(1, to.ndim)
    code = _library[0].fakeElementwise(
        ctypes.c_void_p(stream()), int(multiply), to.ndim, numbers(*to.shape), ctypes.c_void_p(to.data.ptr),
        TYPES[to.dtype.name], numbers(*to.strides), ctypes.c_void_p(address), kind, numbers(*from_steps),
        ctypes.c_double(number),
    )  # fmt: skip
    assert code == 0


def _plain(x: Any) -> Any:
    return x.plain if isinstance(x, ndarray) else x


def empty(shape: Any, dtype: Any = float) -> Any:
    """On the device of this thread."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count, dtype = max(1, int(np.prod(shape))), np.dtype(dtype)
    found = _in(_Memory(_thread.gpu, count * dtype.itemsize), shape, dtype)
    _all.append(found.memory)
    return found


class _Memory:
    """Part of a large piece of a device, given out once: not of jali's pool, which would give it away before this stream has come so far."""

    def __init__(self, gpu: _core.Gpu, nbytes: int) -> None:
        self.gpu, self.nbytes = gpu, nbytes
        with _lock:
            piece, used = _pieces.get(gpu, (None, 0))
            if piece is None or used + nbytes > piece.nbytes:
                piece, used = DeviceArray.empty(gpu, (max(nbytes, 1 << 18),), "uint8"), 0
                gpu.let_wait(stream())  # for who had it before
            self.piece, self.address = piece, piece.address + used
            _pieces[gpu] = piece, used + -(-nbytes // 256) * 256

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.piece.__dlpack_device__()


def _in(memory: DeviceArray, shape: tuple[int, ...], dtype: Any) -> Any:
    raw = (ctypes.c_char * memory.nbytes).from_address(memory.address)
    return ndarray(np.frombuffer(raw, dtype)[: int(np.prod(shape))].reshape(shape), memory)


def there(x: Any) -> Any:
    """What NumPy has computed, on the device."""
    if not isinstance(x, np.ndarray):
        return x
    found = empty(x.shape, x.dtype)
    wait()
    found.plain[...] = x
    return found


def asarray(x: Any) -> Any:
    """As it is where it can be, also in memory of jali's."""
    if isinstance(x, DeviceArray):
        x.gpu.let_wait(stream())
        return _in(x, x.shape, x.dtype)
    return x if isinstance(x, ndarray) else there(np.asarray(x))


def asnumpy(x: Any) -> np.ndarray:
    """A copy on the host, which is counted."""
    _thread.copies = copies_to_host() + 1
    wait()
    return np.array(_plain(x))


def _on_device(function: Any) -> Any:
    def plain(x: Any) -> Any:
        return [_plain(one) for one in x] if isinstance(x, list) else _plain(x)

    def call(x: Any, *arguments: Any, **named: Any) -> Any:
        wait()
        named = {name: plain(y) for name, y in named.items()}
        return there(function(plain(x), *(plain(y) for y in arguments), **named))

    return call


def ascontiguousarray(x: Any) -> Any:
    """As it is where it can be."""
    return x if x.flags.c_contiguous else x.copy()


@contextlib.contextmanager
def installed(driver: Path) -> Iterator[types.ModuleType]:
    """`import cupy` gives this inside."""
    _driver[:] = [ctypes.CDLL(str(driver))]
    before = current_context(_driver[0])
    _library[:] = [ctypes.CDLL(str(make_fake_fft()))]
    module: Any = types.ModuleType("cupy")
    module.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    module.ndarray, module.empty, module.asnumpy, module.ascontiguousarray = (
        ndarray,
        empty,
        asnumpy,
        ascontiguousarray,
    )
    module.asarray = module.from_dlpack = asarray
    for name in ("add", "subtract", "multiply", "divide"):
        setattr(module, name, getattr(np, name))
    module.empty_like = lambda x: empty(x.shape, x.dtype)
    module.zeros = lambda shape, dtype=float: there(np.zeros(shape, dtype))
    module.zeros_like = lambda x: there(np.zeros(x.shape, x.dtype))
    for name in ("abs", "roll", "flip", "vdot", "dot", "bincount", "broadcast_to", "stack", "concatenate"):
        setattr(module, name, _on_device(getattr(np, name)))
    for name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "sqrt",
        "cos",
        "sin",
        "promote_types",
    ):  # which ask arrays
        setattr(module, name, getattr(np, name))
    module.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        get_current_stream=lambda: types.SimpleNamespace(ptr=stream(), synchronize=wait),
        ExternalStream=ExternalStream,
        Device=Device,
    )
    module.fft = types.ModuleType("cupy.fft")
    for name in ("fftn", "ifftn", "rfftn", "irfftn", "rfft", "irfft"):
        setattr(module.fft, name, _on_device(getattr(np.fft, name)))
    module.freed = []  # what was cleared
    kept = types.SimpleNamespace(
        clear=lambda: module.freed.append("plans"),
        free_all_blocks=lambda: module.freed.append("blocks"),
    )
    module.fft.config = types.SimpleNamespace(get_plan_cache=lambda: kept)
    module.get_default_memory_pool = lambda: kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", module)
        patch.setitem(sys.modules, "cupy.fft", module.fft)
        NAMESPACES["cupy"].__dict__.pop("xp", None)
        for name in vendors.FFT_LIBRARIES:  # whose transforms take these arrays
            vendors.use_file(name, str(make_fake_fft()))
        yield module
        _driver[0].cuCtxSetCurrent(ctypes.c_void_p(before))
        _thread.__dict__.clear()
        for name in vendors.FFT_LIBRARIES:
            vendors.use_file(name, None)
        for gpu in {memory.gpu for memory in _all}:
            with contextlib.suppress(JaliError):
                gpu.synchronize()
        while _streams:  # which may still write what the next test is given
            _driver[0].cuStreamSynchronize(ctypes.c_void_p(_streams.pop()))
        _all.clear()
        _pieces.clear()
        NAMESPACES["cupy"].__dict__.pop("xp", None)
