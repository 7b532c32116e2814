"""Arrays in device memory, shared with other libraries (CuPy, PyTorch, Numba). Nothing is copied.

`view_of` returns the address of another library's array; `DeviceArray` is memory of jali that others can use. Both
ways events order the two streams, without a wait on the host: jali's stream waits for imported arrays, the other
stream waits for jali's on export. Does not depend on fields or ranks.

Interfaces: DLPack, and `__cuda_array_interface__` (which also gives the stream, and which CuPy has on HIP as well).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jali import _core, graph_recorder
from jali.comm.current_device import current_device
from jali.comm.elements import NAMES, SIZES, element_name
from jali.errors import DeviceError, ParameterError
from jali.files import value_shown
from jali.vendors import vendor

# Types of arrays whose interface is of a version that names no stream, and which have DLPack: it is not read again.
_BY_DLPACK: set[type] = set()
_DTYPES = {core: np.dtype(name) for name, core in NAMES.items() if name not in ("bool", "bfloat16")}


def element_dtype(element: str) -> np.dtype[Any]:
    """NumPy's type for the core's name of an element type; bf16 is uint16 bits unless ml_dtypes has been imported."""
    if element != "bf16":
        return _DTYPES[element]
    try:
        return np.dtype("bfloat16")
    except TypeError:
        return np.dtype(np.uint16)


def stream_handle(stream: Any) -> int | None:
    """The driver's handle of a stream: a number, or a stream of CuPy (`ptr`), PyTorch (`cuda_stream`) or others
    (`__cuda_stream__`). None stays None, which is jali's own stream."""
    if stream is None:
        return None
    handle = _reported_handle(stream)
    if isinstance(handle, bool) or not 0 <= handle < 1 << 64:
        raise ParameterError(f"stream {handle!r} is no handle of a stream")
    return handle


def _reported_handle(stream: Any) -> int:
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        reported = stream.__cuda_stream__
        reported = reported() if callable(reported) else reported
        if not isinstance(reported, Sequence) or len(reported) != 2 or not isinstance(reported[1], int):
            raise ParameterError(
                f"__cuda_stream__ of a {type(stream).__name__} says {value_shown(reported)}, not a version and a handle"
            )
        return reported[1]
    for name in ("cuda_stream", "ptr"):
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    raise ParameterError(
        f"a {type(stream).__name__} is no stream; give a handle, or a stream of CuPy or PyTorch"
    )


class DeviceView(_core.GpuArray):
    """The memory of another library's array. Valid as long as `owner`, the array, exists.

    `element` is the core's name of the element type, `stream` the handle of the stream on which the owner continues
    to use the array (None: not given; the default stream is assumed).
    """

    __slots__ = ("foreign", "stream")

    def __init__(
        self,
        address: int,
        element: str,
        shape: tuple[int, ...],
        stream: int | None,
        owner: Any,
        gpu: _core.Gpu,
        read_only: bool = False,
        foreign: Any = None,
    ) -> None:
        goes_on = vendor(gpu.kind).default_stream if stream is None else stream
        super().__init__(gpu, address, shape, element, goes_on, read_only, owner)
        self.stream = stream
        self.foreign = foreign  # the borrowed object, to be kept as long

    def await_owner(self) -> None:
        """Makes jali's stream wait for the earlier work of the owner's."""
        if self.owner_stream != self.gpu.stream:
            self.gpu.wait_for(self.owner_stream)

    def let_owner_go_on(self) -> None:
        """Makes the owner's stream wait for the earlier work of jali's."""
        _core.let_owners_go_on((self,))


def borrowed_among(arrays: Sequence[Any]) -> list[DeviceView]:
    """Those that belong to other libraries."""
    return [array for array in arrays if isinstance(array, DeviceView)]


def view_of(
    x: Any, gpu: _core.Gpu, stream: int | None = None, writable: bool = False, there: bool = False
) -> DeviceView:
    """The memory of the array `x`, for work on `stream` (a handle; None: jali's) of `gpu`; `there`: it is known to be on `gpu`.

    From here on that stream waits for the earlier work of the owner's stream. Raises ParameterError for anything but
    a C-contiguous array of numbers (read-only ones if it is to be `writable`), DeviceError for memory of the host or
    of another device.
    """
    if isinstance(x, DeviceArray):
        if x.gpu is not gpu:
            raise _elsewhere(gpu, x.gpu.ordinal)
        if stream is not None:
            gpu.let_wait(stream)
        return DeviceView(x.address, x.element, x.shape, gpu.stream, x, gpu)
    if type(x) in _BY_DLPACK:
        return _from_dlpack(x, gpu, stream, there)
    try:
        interface = _interface_of(x)
    except (TypeError, ValueError, KeyError, RuntimeError):  # PyTorch: not of this type, or with gradients
        interface = None
    # DLPack lets the owner do the ordering, which is the only right way where the interface names no stream
    if interface is not None and (interface.get("stream") is not None or not hasattr(x, "__dlpack__")):
        return _from_interface(x, interface, gpu, stream, writable)
    if hasattr(x, "__dlpack__"):
        if interface is not None and interface.get("version", 3) < 3:
            _BY_DLPACK.add(type(x))
        return _from_dlpack(x, gpu, stream, there)
    raise not_in_device_memory(x)


def _interface_of(x: Any) -> Any:
    """CUDA's array interface, with the owner's stream. CuPy reports that of the current device."""
    if type(x).__module__ != "cupy":
        return getattr(x, "__cuda_array_interface__", None)
    with x.device:
        return x.__cuda_array_interface__


def not_in_device_memory(x: Any) -> DeviceError:
    """The error for an object that is not an array on a device."""
    return DeviceError(
        f"a {type(x).__name__} is not in device memory; give a jali.comm.DeviceArray (DeviceArray.from_host copies "
        "there), or an array of CuPy or PyTorch on the device"
    )


def _from_interface(
    x: Any, interface: dict[str, Any], gpu: _core.Gpu, stream: int | None, writable: bool
) -> DeviceView:
    if interface.get("mask") is not None:
        raise ParameterError("an array with a mask cannot be taken; give one without")
    address, read_only = interface["data"]
    if writable and read_only:
        raise ParameterError("the array that is to be written is read-only")
    dtype = np.dtype(interface["typestr"])
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    _check_contiguous(shape, strides, dtype.itemsize)
    if math.prod(shape):
        _check_device(gpu, _core.device_of_address(gpu, address))
    theirs = interface.get("stream")
    if theirs is not None:
        theirs = int(theirs)
        if stream is None:
            gpu.wait_for(theirs)
        elif stream != theirs:  # by way of jali's stream, for which it is only a moment
            gpu.wait_for(theirs)
            gpu.let_wait(stream)
    return DeviceView(address, element_name(dtype), shape, theirs, x, gpu, bool(read_only))


def _from_dlpack(x: Any, gpu: _core.Gpu, stream: int | None, there: bool) -> DeviceView:
    if not there:
        kind, ordinal = x.__dlpack_device__()
        if int(kind) != vendor(gpu.kind).dlpack:
            where = "in host memory" if int(kind) in (1, 3, 11) else "on a device of another kind"
            raise DeviceError(
                f"a {type(x).__name__} {where} is not on {gpu.name}; DeviceArray.from_host copies NumPy arrays there"
            )
        _check_device(gpu, int(ordinal))
    mine = gpu.stream if stream is None else stream or vendor(gpu.kind).default_stream
    try:
        capsule = _borrowed_from(x, gpu, mine)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise ParameterError(f"a {type(x).__name__} cannot lend its memory: {error}") from None
    foreign = _core.from_dlpack(capsule)
    if not foreign.element:
        raise ParameterError(f"elements of a {type(x).__name__} of this type cannot be taken")
    if not foreign.contiguous:
        item = SIZES[foreign.element]
        _check_contiguous(foreign.shape, [n * item for n in foreign.strides], item)
    return DeviceView(foreign.address, foreign.element, foreign.shape, None, x, gpu, foreign=foreign)


def _borrowed_from(x: Any, gpu: _core.Gpu, stream: int) -> Any:
    """The DLPack capsule of `x` for work on a stream. PyTorch exports arrays of the current device alone."""
    try:
        return x.__dlpack__(stream=stream)
    except BufferError:
        with current_device(gpu.kind, gpu.ordinal):
            return x.__dlpack__(stream=stream)


def _check_gpu(gpu: Any) -> None:
    if not isinstance(gpu, _core.Gpu):
        raise ParameterError(f"an array is on a device, such as lattice.gpu, not {value_shown(gpu)}")


def _check_device(gpu: _core.Gpu, ordinal: int) -> None:
    if ordinal != gpu.ordinal:
        raise _elsewhere(gpu, ordinal)


def _elsewhere(gpu: _core.Gpu, ordinal: int) -> DeviceError:
    where = f"on device {ordinal}" if ordinal >= 0 else f"in memory that no {gpu.kind} device knows"
    return DeviceError(f"the array is {where}, but this rank uses device {gpu.ordinal} ({gpu.name})")


def _check_contiguous(shape: Sequence[int], strides: Sequence[int] | None, item: int) -> None:
    """`strides` in bytes; None is contiguous."""
    if strides is None or 0 in shape:
        return
    expected = item
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            raise ParameterError(
                f"an array of shape {tuple(shape)} and strides {tuple(strides)} is not C-contiguous; copy it first"
            )
        expected *= extent


class DeviceArray(_core.GpuArray):
    """A C-contiguous array in memory of a device of jali's (`gpu`), for other libraries to take without a copy.

    `cupy.asarray(a)`, `torch.from_dlpack(a)` and the like share the memory, keep it alive, and let their stream wait for what
    jali has put on its own so far. The way back is to pass their array to jali. `element` is the core's name of the element
    type, and `dtype` NumPy's (bf16 has one only with ml_dtypes). Its shape, type and memory never change; `memory` is the block
    that it is the beginning of, `address` where that is.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, gpu: _core.Gpu, memory: _core.GpuMemory, shape: Sequence[int], dtype: npt.DTypeLike):
        """A view of the beginning of `memory`, which is on `gpu`."""
        super().__init__(gpu, memory, tuple(int(n) for n in shape), element_name(dtype))

    @classmethod
    def empty(
        cls, gpu: _core.Gpu, shape: Sequence[int], dtype: npt.DTypeLike, label: str = "array"
    ) -> DeviceArray:
        """New memory with unspecified contents; `label` names it in the device's memory report."""
        _check_gpu(gpu)
        return cls(gpu, gpu.allocate(math.prod(shape) * SIZES[element_name(dtype)], label), shape, dtype)

    @classmethod
    def from_host(cls, array: npt.ArrayLike, gpu: _core.Gpu, label: str = "array") -> DeviceArray:
        """A copy of a NumPy array. bfloat16 of ml_dtypes stays bf16."""
        _check_gpu(gpu)
        graph_recorder.refuse("an array is copied to a device", "do it before or after")
        array = np.asarray(array, order="C")
        raw = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        return cls(gpu, gpu.upload(raw.reshape(-1).view(np.uint8), label), array.shape, array.dtype)

    def to_host(self) -> npt.NDArray[Any]:
        """A copy as a NumPy array, after jali's work so far; bf16 comes as uint16 bits unless ml_dtypes is imported."""
        graph_recorder.refuse("an array of a device is read on the host", "do it before or after")
        array = np.empty(self.shape, element_dtype(self.element))
        raw = np.empty(self.nbytes, np.uint8)
        self.gpu.download_address(self.address, raw)
        return raw.view(array.dtype).reshape(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return element_dtype(self.element)

    def __repr__(self) -> str:
        return f"<array of shape {self.shape} and type {self.element} on {self.gpu.name}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.element == "bf16":
            raise AttributeError("the CUDA array interface has no bf16; use DLPack")
        self.gpu.refuse_if_aborted()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, False),
            "strides": None,
            "version": 3,
            "stream": self.gpu.stream,  # the consumer waits for this one
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return vendor(self.gpu.kind).dlpack, self.gpu.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule; the taker's `stream` waits for jali's (None: its default stream, -1: nothing waits)."""
        if copy or (dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__()):
            raise BufferError("this array is borrowed as it is; copy it afterwards, or use to_host()")
        self.gpu.refuse_if_aborted()
        entry = vendor(self.gpu.kind)
        if stream is not None and stream <= 2 and stream not in (-1, *entry.named_streams):
            raise BufferError(
                f"stream {stream} is none; {entry.default_stream} is the default stream of {entry.platform}"
            )
        if stream != -1:
            self.gpu.let_wait(entry.default_stream if stream is None else stream)
        return _core.to_dlpack(self.address, self.shape, self.element, *self.__dlpack_device__(), self)
