"""The device whose context is current in the thread: some libraries export and import arrays of that one alone
(PyTorch), or order streams there."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from jali import _core, vendors
from jali.errors import DeviceError


@functools.cache
def driver_functions(kind: str) -> dict[str, Any]:
    """The driver's functions of contexts."""
    handle, names = ctypes.CDLL(_core.Gpu.driver(kind)[0]), vendors.vendor(kind).functions
    types: dict[str, tuple[Any, ...]] = {
        "device_get": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
        "context_retain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
        "context_current": (ctypes.POINTER(ctypes.c_void_p),),
        "context_set": (ctypes.c_void_p,),
        "context_synchronize": (),
    }
    found = {}
    for name, arguments in types.items():
        found[name] = function = getattr(handle, names[name])
        function.restype, function.argtypes = ctypes.c_int, arguments
    return found


@functools.cache
def _primary(kind: str, ordinal: int) -> int:
    """The primary context of a device, which jali keeps."""
    driver, device, context = driver_functions(kind), ctypes.c_int(), ctypes.c_void_p()
    code = driver["device_get"](ctypes.byref(device), ordinal) or driver["context_retain"](
        ctypes.byref(context), device.value
    )
    if code:
        raise DeviceError(f"the driver gives no context of {kind} device {ordinal} (code {code})")
    return context.value or 0


@contextlib.contextmanager
def current_device(kind: str, ordinal: int) -> Iterator[None]:
    """The device's primary context is the thread's inside. Raises DeviceError."""
    driver, wanted, before = driver_functions(kind), _primary(kind, ordinal), ctypes.c_void_p()
    driver["context_current"](ctypes.byref(before))
    if before.value != wanted and (code := driver["context_set"](wanted)):
        raise DeviceError(f"the driver does not take the context of {kind} device {ordinal} (code {code})")
    try:
        yield
    finally:  # a library that works on several devices may have left another one
        driver["context_set"](before.value)
