"""Transforms by cuFFT of an array that one process spreads over several devices: the vendor's alternative to ranks, for comparisons.

These are the functions "cufftXt" (cuFFT API reference, sections 2.8, 3.10 and "Multiple GPU Data Organization"). The library keeps the
parts; a transform is in place. Before it parts are of the first dimension, afterwards of the second ("shuffled"), and the other way
round for the one after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.comm.current_device import current_device
from jali.errors import DeviceError, ParameterError
from jali.fft import vendors
from jali.fft.vendors import FORWARD, INVERSE, KINDS, Library

IN_PLACE = 2  # cufftXtSubFormat_t: CUFFT_XT_FORMAT_INPLACE
TO_DEVICES, TO_HOST, ON_DEVICES = 0, 1, 2  # cufftXtCopyType_t
FEWEST, MOST = 2, 16  # devices
KIND_OF = {np.dtype(np.complex64): "C2C", np.dtype(np.complex128): "Z2Z"}


def _functions(handle: Any) -> dict[str, tuple[Any, ...]]:
    number, pointer = ctypes.c_int, ctypes.c_void_p
    sizes, parts = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(pointer)
    return {
        "XtSetGPUs": (handle, number, ctypes.POINTER(number)),
        "MakePlan2d": (handle, number, number, number, sizes),
        "MakePlan3d": (handle, number, number, number, number, sizes),
        "XtMalloc": (handle, parts, number),
        "XtMemcpy": (handle, pointer, pointer, number),
        "XtFree": (pointer,),
        **{f"XtExecDescriptor{kind}": (handle, pointer, pointer, number) for kind in ("C2C", "Z2Z")},
    }


class SpreadPlan:
    """A plan and two arrays of complex numbers on some devices of this process; `close` releases them.

    Raises ParameterError for other than two or three dimensions, complex numbers and 2 to 16 devices, DeviceError with the
    library's error: it does not support all extents and numbers of devices (no extent below 32).
    """

    def __init__(self, library: Library, ordinals: Sequence[int], extents: Sequence[int], dtype: Any) -> None:
        if len(extents) not in (2, 3):
            raise ParameterError(f"it transforms arrays of 2 or 3 dimensions, not of {len(extents)}")
        if not FEWEST <= len(ordinals) <= MOST:
            raise ParameterError(f"it works with {FEWEST} to {MOST} devices, not with {len(ordinals)}")
        self.library, self.ordinals, self.extents = (
            library,
            tuple(ordinals),
            tuple(map(operator.index, extents)),
        )
        self.dtype = np.dtype(dtype)
        if self.dtype not in KIND_OF:
            raise ParameterError(f"it transforms complex64 and complex128, not {self.dtype}")
        self._kind = KIND_OF[self.dtype]
        self._plan: Any = None
        self._parts: list[Any] = []
        library.declare(_functions(library.spec.handle), "so it has no transforms on several devices")
        plan, sizes = library.spec.handle(), (ctypes.c_size_t * len(ordinals))()
        self._call("Create", ctypes.byref(plan))
        self._plan = plan
        try:
            self._call("XtSetGPUs", plan, len(ordinals), (ctypes.c_int * len(ordinals))(*ordinals))
            self._call(f"MakePlan{len(extents)}d", plan, *self.extents, KINDS[self._kind], sizes)
            for _ in range(2):
                parts = ctypes.c_void_p()
                self._call("XtMalloc", plan, ctypes.byref(parts), IN_PLACE)
                self._parts.append(parts)
        except DeviceError:
            self.close()
            raise
        self.work = tuple(sizes)

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.extents))} numbers on {len(self.ordinals)} devices"

    def load(self, x: np.ndarray) -> None:
        """The values of an array of the host become those of the first array."""
        self._call("XtMemcpy", self._plan, self._parts[0], self._address(x), TO_DEVICES)

    def copy_to_host(self, out: np.ndarray) -> None:
        """The values of the first array, in natural order."""
        self._call("XtMemcpy", self._plan, self._address(out), self._parts[0], TO_HOST)

    def copy_natural_to_host(self, out: np.ndarray) -> None:
        """Those of the second."""
        self._call("XtMemcpy", self._plan, self._address(out), self._parts[1], TO_HOST)

    def transform(self, inverse: bool = False) -> None:
        """Of the first array, in place and not scaled; it need not be done yet."""
        direction = INVERSE if inverse else FORWARD
        parts = self._parts[0]
        self._call(f"XtExecDescriptor{self._kind}", self._plan, parts, parts, direction)

    def to_natural(self) -> None:
        """The first array, which a transform has shuffled, to the second, in natural order; it need not be done yet."""
        self._call("XtMemcpy", self._plan, self._parts[1], self._parts[0], ON_DEVICES)

    def wait(self) -> None:
        """For all devices."""
        for ordinal in self.ordinals:
            vendors.wait_for_device(self.library.spec.kind, ordinal)

    def close(self) -> None:
        """Give everything back."""
        while self._parts:
            with contextlib.suppress(DeviceError):
                self._call("XtFree", self._parts.pop())
        if self._plan is not None:
            with contextlib.suppress(DeviceError):
                self._call("Destroy", self._plan)
            self._plan = None

    def _address(self, x: np.ndarray) -> int:
        if x.shape != self.extents or x.dtype != self.dtype or not x.flags.c_contiguous:
            raise ParameterError(
                f"an array of {self.extents} {self.dtype} is needed, not of {x.shape} {x.dtype}"
            )
        return int(x.ctypes.data)

    def _call(self, name: str, *arguments: Any) -> None:
        with current_device(self.library.spec.kind, self.ordinals[0]):
            self.library.call(name, self, *arguments)
