"""cuFFT and hipFFT (which calls rocFFT), loaded at their first use: an entry for each vendor's library, and its plans.

No header of theirs is needed: the functions that are used have the same form in both (cuFFT API reference, section 3; hipFFT
API reference). Plans are made for a device, kept, and have no memory of their own: the caller provides the work area. Calls are
made in the primary context of the device, which is that of CuPy, PyTorch and jali; the thread's own context is restored.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jali import vendors
from jali.comm.current_device import current_device, driver_functions
from jali.errors import DeviceError, ParameterError
from jali.fft.passes import Form
from jali.files import value_shown

MOST_PLANS = 64  # that a library keeps
FORWARD, INVERSE = -1, 1
KINDS = {"C2C": 0x29, "R2C": 0x2A, "C2R": 0x2C, "Z2Z": 0x69, "D2Z": 0x6A, "Z2D": 0x6C}  # the same in both
ERRORS = {
    1: ("INVALID_PLAN", "the plan is none"),
    2: ("ALLOC_FAILED", "no memory for the plan"),
    3: ("INVALID_TYPE", "a kind of transform that it does not know"),
    4: ("INVALID_VALUE", "a pointer or an argument that makes no sense"),
    5: ("INTERNAL_ERROR", "an error of the driver or of the library itself"),
    6: ("EXEC_FAILED", "the transform could not be started"),
    7: ("SETUP_FAILED", "the library could not be initialised"),
    8: ("INVALID_SIZE", "extents that it does not transform"),
    9: ("UNALIGNED_DATA", "unaligned memory"),
    10: ("INCOMPLETE_PARAMETER_LIST", "arguments are missing"),
    11: ("INVALID_DEVICE", "the plan is of another device"),
    12: ("PARSE_ERROR", "an error of its own database"),
    13: ("NO_WORKSPACE", "the plan has no work area"),
    14: ("NOT_IMPLEMENTED", "not implemented"),
    16: ("NOT_SUPPORTED", "not supported"),
    17: ("MISSING_DEPENDENCY", "a library that it needs is missing"),
    18: ("NVRTC_FAILURE", "a kernel could not be compiled"),
    19: ("NVJITLINK_FAILURE", "a kernel could not be linked"),
}


@dataclass(frozen=True)
class LibrarySpec:
    """A vendor's library: the kind of its devices, its title, the prefix of its functions, the type of a plan, where it is looked for
    (`files` by the loader, patterns of `packages` below the folders of sys.path), and what to do where it is not found."""

    kind: str
    title: str
    prefix: str
    handle: Any
    files: tuple[str, ...]
    packages: tuple[str, ...]
    install: str


FFT_LIBRARIES = {
    "cufft": LibrarySpec(
        "cuda",
        "cuFFT",
        "cufft",
        ctypes.c_int,
        ("libcufft.so.12", "libcufft.so.11", "libcufft.so.10", "libcufft.so"),
        ("nvidia/cu*/lib/libcufft.so.*", "nvidia/cufft/lib/libcufft.so.*"),
        "pip install nvidia-cufft-cu12, or nvidia-cufft for CUDA 13 (as the driver's CUDA version is), or load the machine's module",
    ),
    "hipfft": LibrarySpec(
        "hip",
        "hipFFT",
        "hipfft",
        ctypes.c_void_p,
        ("libhipfft.so.0", "libhipfft.so", "/opt/rocm/lib/libhipfft.so.0", "/opt/rocm/lib/libhipfft.so"),
        ("torch/lib/libhipfft.so*", "_rocm_sdk_libraries*/lib/libhipfft.so*"),
        "install ROCm's hipFFT",
    ),
}


class Library:
    """A library that is loaded. Raises DeviceError where a file lacks a function."""

    def __init__(self, spec: LibrarySpec, handle: ctypes.CDLL, path: str) -> None:
        self.spec, self.path = spec, path
        self.lock = threading.Lock()  # a plan has one stream and one work area at a time
        self._plans: OrderedDict[tuple[int, Form], VendorPlan] = OrderedDict()
        number, pointer, long = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
        numbers, plan = ctypes.POINTER(long), spec.handle
        size = ctypes.POINTER(ctypes.c_size_t)
        side = (numbers, long, long)
        arguments: dict[str, tuple[Any, ...]] = {
            "GetVersion": (ctypes.POINTER(number),),
            "Create": (ctypes.POINTER(plan),),
            "SetAutoAllocation": (plan, number),
            "MakePlanMany64": (plan, number, numbers, *side, *side, number, long, size),
            "SetStream": (plan, pointer),
            "SetWorkArea": (plan, pointer),
            "Destroy": (plan,),
            **{f"Exec{kind}": (plan, pointer, pointer, number) for kind in ("C2C", "Z2Z")},
            **{f"Exec{kind}": (plan, pointer, pointer) for kind in ("R2C", "D2Z", "C2R", "Z2D")},
        }
        self._handle, self._functions = handle, {}  # type: ignore[var-annotated]
        self.declare(arguments, f"so it is no {spec.title}")

    def declare(self, arguments: Mapping[str, tuple[Any, ...]], meaning: str) -> None:
        """Functions that `call` knows from now on, by their names without the prefix; `meaning` of one's absence. Raises DeviceError."""
        for name, types in arguments.items():
            try:
                function = getattr(self._handle, self.spec.prefix + name)
            except AttributeError:
                raise DeviceError(
                    f"{self.path} has no function {self.spec.prefix}{name}, {meaning}"
                ) from None
            function.restype, function.argtypes = ctypes.c_int, types
            self._functions[name] = function

    @functools.cached_property
    def version(self) -> int:
        """As the library reports it: 11206 is 11.2.6."""
        found = ctypes.c_int()
        self.call("GetVersion", "its version", ctypes.byref(found))
        return found.value

    def call(self, name: str, what: Any, *arguments: Any) -> None:
        """A function by its name without the prefix; `what` it is about. Raises DeviceError with what its code means."""
        code = self._functions[name](*arguments)
        if code:
            word, meaning = ERRORS.get(code, ("", "an error that jali does not know"))
            said = f"{self.spec.prefix.upper()}_{word}, " if word else ""
            raise DeviceError(f"{self.spec.prefix}{name} ({what}) failed with code {code}: {said}{meaning}")

    def plan(self, ordinal: int, form: Form) -> VendorPlan:
        """The plan of a form on a device. Raises DeviceError."""
        with self.lock, current_device(self.spec.kind, ordinal):
            return self._plan(ordinal, form)

    def _plan(self, ordinal: int, form: Form) -> VendorPlan:
        """The same. The lock is held and the context set."""
        key = ordinal, form
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        plan = VendorPlan(self, ordinal, form)
        while len(self._plans) >= MOST_PLANS:
            self._plans.popitem(last=False)
        self._plans[key] = plan
        return plan

    def fitting(self, ordinal: int, form: Form, workspace: int | None, step: int = 1) -> Form:
        """The form for as many arrays, a multiple of `step`, as work in so many bytes. Raises ParameterError where not even `step` do."""
        with self.lock, current_device(self.spec.kind, ordinal):
            batch = form.batch
            while True:
                work = self._plan(ordinal, form.of(batch)).work
                if workspace is None or work <= workspace:
                    return form.of(batch)
                if batch <= step:
                    raise ParameterError(
                        f"{form.of(batch)} takes {work} bytes of work area in {self.spec.title}; the workspace limit is {workspace} bytes"
                    )
                fewer = min(batch - 1, batch * workspace // work)
                batch = max(step, fewer - fewer % step)

    @property
    def plans(self) -> int:
        """How many are kept."""
        return len(self._plans)

    def forget(self) -> None:
        """Give all plans back but those of graphs."""
        with self.lock:
            self._plans.clear()


class VendorPlan:
    """A plan of the library, released with its last reference, such as that of a graph which contains it. `work` is the size of
    its work area in bytes."""

    def __init__(self, library: Library, ordinal: int, form: Form) -> None:
        self._library, self._ordinal, self.form = library, ordinal, form
        self._plan: Any = None
        plan, work = library.spec.handle(), ctypes.c_size_t()
        library.call("Create", form, ctypes.byref(plan))
        self._plan = plan
        try:
            library.call("SetAutoAllocation", form, plan, 0)
            rank = len(form.extents)
            (before, stride, distance), (after, out_stride, out_distance) = form.before, form.after
            array = ctypes.c_longlong * rank
            library.call(
                "MakePlanMany64", form, plan, rank, array(*form.extents), array(*before), stride, distance,
                array(*after), out_stride, out_distance, KINDS[form.kind], form.batch, ctypes.byref(work),
            )  # fmt: skip
        except DeviceError:
            self._destroy()
            raise
        self.work = work.value

    def run(self, stream: int, before: int, after: int, inverse: bool, area: int | None) -> None:
        """From one address to another, on a stream, in a work area that is kept until the stream has completed it.
        Raises DeviceError."""
        library, form, plan = self._library, self.form, self._plan
        with library.lock, current_device(library.spec.kind, self._ordinal):
            library.call("SetStream", form, plan, stream)
            if self.work:
                library.call("SetWorkArea", form, plan, area)
            direction = (INVERSE if inverse else FORWARD,) if form.kind in ("C2C", "Z2Z") else ()
            library.call(f"Exec{form.kind}", form, plan, before, after, *direction)

    def _destroy(self) -> None:
        if self._plan is not None:
            with contextlib.suppress(DeviceError), current_device(self._library.spec.kind, self._ordinal):
                self._library.call("Destroy", self.form, self._plan)
            self._plan = None

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the driver may be unloaded by then
            self._destroy()


_named: dict[str, str] = {}  # files that programs named


def use_file(name: str, path: str | None) -> None:
    """From now on the library of this entry is this file; None: the one that is found. Raises ParameterError for an unknown entry."""
    if name not in FFT_LIBRARIES:
        raise ParameterError(
            f"{value_shown(name)} is no vendor's library of transforms; there are {', '.join(FFT_LIBRARIES)}"
        )
    if path is None:
        _named.pop(name, None)
    else:
        _named[name] = path
    _found.cache_clear()


def find(name: str) -> Library:
    """The library of this entry, loaded. Raises DeviceError where there is none: the attempts, and a remedy."""
    library, why = _found(name)
    if library is None:
        raise DeviceError(why)
    return library


def why_not(name: str) -> str:
    """Why the library of this entry cannot be used; empty if it can."""
    return _found(name)[1]


@functools.cache
def _found(name: str) -> tuple[Library | None, str]:
    spec = FFT_LIBRARIES[name]
    tried = []
    for path, mode in _candidates(name):
        try:
            return Library(spec, ctypes.CDLL(path, mode=mode), path), ""
        except OSError as error:
            if not mode & os.RTLD_NOLOAD:
                tried.append(str(error))
        except DeviceError as error:
            tried.append(str(error))
    return None, f"{spec.title} was not found ({'; '.join(tried)}): {spec.install}"


def _candidates(name: str) -> Iterator[tuple[str, int]]:
    """What this process has loaded already, which goes with its driver and its PyTorch; then packages; then what the loader finds."""
    if name in _named:
        yield _named[name], ctypes.DEFAULT_MODE
        return
    spec: Any = FFT_LIBRARIES[name]
    for file in spec.files:
        yield file, ctypes.DEFAULT_MODE | os.RTLD_NOLOAD
    for file in (*vendors.packaged(spec), *spec.files):
        yield file, ctypes.DEFAULT_MODE


def wait_for_device(kind: str, ordinal: int) -> None:
    """For all that its primary context has been given. Raises DeviceError."""
    with current_device(kind, ordinal):
        if code := driver_functions(kind)["context_synchronize"]():
            raise DeviceError(f"work of {kind} device {ordinal} has failed (code {code})")
