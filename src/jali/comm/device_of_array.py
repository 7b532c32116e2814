"""The memory of an array, as its owner reports it: the host's, or that of a device."""

from __future__ import annotations

import functools
from typing import Any

from jali import _core, vendors
from jali.comm.device_arrays import DeviceView, not_in_device_memory, view_of
from jali.comm.elements import Array, as_array

_open = functools.cache(_core.Gpu.open)  # they exist as long as the process


@functools.cache
def _kind_of(number: int) -> str | None:
    """The vendor of devices of this number in DLPack."""
    return next((name for name in vendors.names() if vendors.vendor(name).dlpack == number), None)


def device_of(x: Any) -> tuple[str, int] | None:
    """Kind and number of an array's device, as its owner reports it by DLPack; None without such a report or a device."""
    ask = getattr(x, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        number, ordinal = ask()
        kind = _kind_of(int(number))
        return None if kind is None else (kind, int(ordinal))
    except (BufferError, TypeError, ValueError, RuntimeError):
        return None


def is_on_device(x: Any) -> bool:
    """Whether an array is in device memory, as its owner reports it."""
    if isinstance(x, _core.GpuArray):
        return True
    if type(x).__module__.startswith("numpy"):
        return False
    if hasattr(x, "__dlpack_device__"):
        return device_of(x) is not None
    return hasattr(x, "__cuda_array_interface__")


def gpu_of(x: Any) -> _core.Gpu:
    """The core's device on which an array is, opened if need be. Raises DeviceError."""
    if isinstance(x, _core.GpuArray):
        return x.gpu
    if hasattr(x, "__dlpack_device__"):
        device = device_of(x)
        if device is None:
            raise not_in_device_memory(x)
        return _open(*device)
    device_id = getattr(getattr(x, "device", None), "id", None)
    if device_id is None:  # the driver identifies the owner of the memory
        if getattr(x, "__cuda_array_interface__", None) is None:
            raise not_in_device_memory(x)
        address = x.__cuda_array_interface__["data"][0]
        device_id = max(0, _core.device_of_address(_open("cuda", 0), address))
    return _open("cuda", int(device_id))


def memory_of(x: Any, writable: bool = False, stream: int | None = None) -> DeviceView | Array:
    """The memory of another library's array, on a device or on the host, for work of jali on it now, on `stream` as in `view_of`.

    Raises ParameterError.
    """
    device = device_of(x)
    if device is not None:
        return view_of(x, _open(*device), stream, writable, there=True)
    return view_of(x, gpu_of(x), stream, writable) if is_on_device(x) else as_array(x)
