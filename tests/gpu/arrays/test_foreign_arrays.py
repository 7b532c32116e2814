"""Arrays that change hands between jali and other libraries: streams are put in order, what does not fit is refused.

The other library is made here, on a fake driver whose streams are lazy, so a missing wait shows in the numbers.
"""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from by_library import ByLibrary
from ccl_ranks import FAKE, on_device, on_host, on_ranks, values
from fake_driver import current_context, current_device, primary_context

from jali import _core
from jali.comm import DeviceArray
from jali.comm.device_arrays import stream_handle, view_of
from jali.comm.device_of_array import memory_of
from jali.comm.elements import SIZES
from jali.errors import DeviceError, ParameterError

pytestmark = FAKE


class Foreign:
    """A library with a stream of its own, on which it fills arrays late: memory by CUDA's array interface or DLPack."""

    def __init__(self, driver: str | Path, gpu: Any) -> None:
        self.driver, self.gpu = ctypes.CDLL(str(driver)), gpu
        handle = ctypes.c_void_p()
        with current_device(self.driver, gpu.ordinal):
            assert self.driver.cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
        self.stream = handle.value or 0
        self.keep: list[Any] = []

    def array(self, numbers: npt.NDArray[Any], face: str = "interface", **more: Any) -> Any:
        """An array that will hold these numbers when this library's stream comes to it."""
        memory = DeviceArray.from_host(np.zeros_like(numbers), self.gpu)
        self.put(memory, numbers)
        return {"interface": ByInterface, "dlpack": ByDlpack, "current": OfCurrentDevice}[face](
            self, memory, **more
        )

    def put(self, array: Any, numbers: npt.NDArray[Any]) -> None:
        self.keep.append(numbers)
        source, stream = ctypes.c_void_p(numbers.ctypes.data), ctypes.c_void_p(self.stream)
        to = ctypes.c_uint64(array.address)
        with current_device(self.driver, self.gpu.ordinal):
            assert self.driver.cuMemcpyHtoDAsync_v2(to, source, ctypes.c_size_t(numbers.nbytes), stream) == 0

    def take(self, array: Any) -> npt.NDArray[Any]:
        """What this library's stream sees; it does not wait for anybody else."""
        got = np.zeros(array.shape, array.dtype)
        stream = ctypes.c_void_p(self.stream)
        at, bytes_ = ctypes.c_uint64(array.address), ctypes.c_size_t(got.nbytes)
        with current_device(self.driver, self.gpu.ordinal):
            assert self.driver.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(got.ctypes.data), at, bytes_, stream) == 0
            assert self.driver.cuStreamSynchronize(stream) == 0
        return got


class ByInterface:
    """As CuPy's arrays: `__cuda_array_interface__` with the stream."""

    def __init__(self, library: Foreign, memory: DeviceArray, **more: Any) -> None:
        self.memory, self.address, self.shape, self.dtype = memory, memory.address, memory.shape, memory.dtype
        self.__cuda_array_interface__ = {
            "shape": memory.shape,
            "typestr": memory.dtype.str,
            "data": (memory.address, False),
            "version": 3,
            "stream": library.stream,
            **more,
        }


class ByDlpack:
    """As PyTorch's tensors: DLPack, where the owner puts the streams in order."""

    def __init__(self, library: Foreign, memory: DeviceArray, device: int | None = None) -> None:
        self.library, self.memory = library, memory
        self.address, self.shape, self.dtype = memory.address, memory.shape, memory.dtype
        self.device = memory.gpu.ordinal if device is None else device

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        event = ctypes.c_void_p()
        driver, theirs = self.library.driver, ctypes.c_void_p(stream or 0)
        with current_device(driver, self.library.gpu.ordinal):
            assert driver.cuEventCreate(ctypes.byref(event), 2) == 0
            assert driver.cuEventRecord(event, ctypes.c_void_p(self.library.stream)) == 0
            assert driver.cuStreamWaitEvent(theirs, event, 0) == 0
        return _core.to_dlpack(self.address, self.shape, self.memory.element, 2, self.device, self)


class OfCurrentDevice(ByDlpack):
    """As PyTorch's tensors, which are lent only while their device is the thread's current one."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        driver = self.library.driver
        if current_context(driver) != primary_context(driver, self.device).value:
            raise BufferError("Can't export tensors on a different CUDA device index.")
        return super().__dlpack__(stream=stream)


# Memory is reused with what was in it, so each test adds up numbers of its own.
numbers_of_tests = itertools.count(1000, 10)


@pytest.mark.parametrize("face", ["interface", "dlpack"])
def test_work_waits_for_the_streams_of_its_arrays(fake_driver: Path, face: str) -> None:
    n = next(numbers_of_tests)

    def body(gpus: ByLibrary) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x = other.array(np.full(5, n + gpus.rank + 0.0), face)
        y = gpus.all_reduce(x)
        np.testing.assert_array_equal(on_host(y), 3 * n + 3)  # looks at jali's stream only

    on_ranks(3, body)


def test_streams_of_arrays_wait_for_the_work(fake_driver: Path) -> None:
    n = next(numbers_of_tests)

    def body(gpus: ByLibrary) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x, y = other.array(np.full(5, n + gpus.rank + 0.0)), other.array(np.zeros(5))
        gpus.all_reduce(x, y)
        np.testing.assert_array_equal(other.take(y), 3 * n + 3)  # looks at the other stream only

    on_ranks(3, body)


def test_default_stream_waits_for_work_on_arrays_that_name_none(fake_driver: Path) -> None:
    n = next(numbers_of_tests)

    def body(gpus: ByLibrary) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x = other.array(np.full((2, 2), n + gpus.rank + 0.0), "dlpack")
        gpus.all_reduce(x, x)
        other.stream = 0
        np.testing.assert_array_equal(other.take(x), 2 * n + 1)

    on_ranks(2, body)


def test_work_on_a_stream_of_the_user_is_in_its_order(fake_driver: Path) -> None:
    n = next(numbers_of_tests)

    def body(gpus: ByLibrary) -> None:
        other = Foreign(fake_driver, gpus.gpu)

        class Stream:  # as CuPy's and PyTorch's
            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, other.stream

        x = other.array(np.full(5, n + gpus.rank + 0.0), stream=None)  # nobody need wait, says the interface
        y = DeviceArray.empty(gpus.gpu, (5,), "fp64")
        gpus.all_reduce(x, y, stream=Stream())
        np.testing.assert_array_equal(other.take(y), 3 * n + 3)
        other.put(y, np.full(5, -1.0))
        gpus.all_reduce(y, y, stream=other.stream)
        np.testing.assert_array_equal(on_host(y), -3)  # jali's stream waits for what happened to its array

    on_ranks(3, body)


@pytest.mark.parametrize("face", ["interface", "dlpack", "jali"])
def test_stream_of_the_user_waits_for_those_of_the_arrays(fake_driver: Path, face: str) -> None:
    n = next(numbers_of_tests)

    def body(gpus: ByLibrary) -> None:
        other, user = (Foreign(fake_driver, gpus.gpu) for _ in range(2))
        numbers = np.full(5, n + gpus.rank + 0.0)
        y = user.array(np.zeros(5))  # first, since it waits for jali's stream
        if face == "jali":  # the sum is not there yet
            x, wanted = gpus.all_reduce(on_device(numbers, "fp64", gpus.gpu)), 3 * (3 * n + 3)
        else:
            x, wanted = other.array(numbers, face), 3 * n + 3
        gpus.all_reduce(x, y, stream=user.stream)
        np.testing.assert_array_equal(user.take(y), wanted)

    on_ranks(3, body)


def test_streams_are_known_by_handle_or_as_objects() -> None:
    class Torch:
        cuda_stream = 17

    class Cupy:
        ptr = 18

    assert [stream_handle(s) for s in (None, 5, Torch(), Cupy())] == [None, 5, 17, 18]
    with pytest.raises(ParameterError, match="a str is no stream"):
        stream_handle("main")


def test_views_refuse_what_is_not_a_contiguous_array_of_this_device(fake_driver: Path) -> None:
    gpu = _core.Gpu.open("cuda", 1)
    other = Foreign(fake_driver, gpu)
    numbers = np.arange(6.0).reshape(2, 3)

    def refused(x: Any, error: type[Exception], text: str, writable: bool = False) -> None:
        with pytest.raises(error, match=text):
            view_of(x, gpu, writable=writable)

    refused(other.array(numbers, strides=(8, 16)), ParameterError, "not C-contiguous")
    refused(other.array(numbers, mask=numbers), ParameterError, "mask")
    refused(
        other.array(numbers, data=(numbers.ctypes.data, False)),
        DeviceError,
        "memory that no cuda device knows",
    )
    refused(other.array(numbers, typestr="<M8[s]"), ParameterError, "datetime64")
    refused(other.array(numbers, "dlpack", device=0), DeviceError, "on device 0, but this rank uses device 1")
    refused(numbers, DeviceError, "a ndarray in host memory is not on fake GPU 1")
    refused([1.0], DeviceError, "a list is not in device memory")

    class WithGradients:  # as PyTorch's
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, *, stream: int | None = None) -> Any:
            raise BufferError("Can't export tensors that require gradient")

    refused(
        WithGradients(), ParameterError, "a WithGradients cannot lend its memory: Can't export tensors that"
    )
    x = other.array(numbers)
    x.__cuda_array_interface__["data"] = (x.address, True)
    refused(x, ParameterError, "read-only", writable=True)
    view = view_of(x, gpu)
    assert (view.address, view.element, view.shape, view.nbytes) == (x.address, "fp64", (2, 3), 48)
    assert view_of(other.array(numbers, strides=(24, 8)), gpu).shape == (2, 3)
    elsewhere = Foreign(fake_driver, _core.Gpu.open("cuda", 2)).array(numbers)
    refused(elsewhere, DeviceError, "on device 2, but this rank uses device 1")


class DlTensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@pytest.mark.parametrize(
    ("element", "code"), [("fp64", 2), ("bf16", 4), ("complex64", 5), ("int16", 0), ("uint8", 1)]
)
def test_capsules_say_what_dlpack_wants_to_know(element: str, code: int) -> None:
    gpu = _core.Gpu.open("cuda", 2)
    array = on_device(values(element, (3, 4), 0), element, gpu)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = array.__dlpack__(stream=1, max_version=(1, 0))
    tensor = DlTensor.from_address(get(capsule, b"dltensor"))
    assert tensor.data == array.address
    assert (tensor.device_type, tensor.device_id) == array.__dlpack_device__() == (2, 2)
    assert (tensor.code, tensor.bits, tensor.lanes) == (code, 8 * SIZES[element], 1)
    assert tensor.shape[:2] == [3, 4]
    assert not tensor.strides or tensor.strides[:2] == [4, 1]
    assert tensor.byte_offset == 0
    held = gpu.memory_held
    del array, tensor
    assert gpu.memory_held == held  # the capsule keeps the memory
    del capsule
    assert gpu.memory_held == held - 12 * SIZES[element]
    assert _core.Gpu.open("hip", 0).kind == "hip"
    assert DeviceArray.empty(_core.Gpu.open("hip", 1), (3,), element).__dlpack_device__() == (10, 1)


@pytest.mark.parametrize("face", ["interface", "dlpack", "default"])
def test_takers_wait_for_what_jali_has_put_on_its_stream(fake_driver: Path, face: str) -> None:
    n = next(numbers_of_tests)

    def body(gpus: ByLibrary) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x = gpus.all_reduce(on_device(np.full(5, n + gpus.rank + 0.0), "fp64", gpus.gpu))  # not done yet
        if face == "interface":
            reported = x.__cuda_array_interface__
            assert (reported["version"], reported["typestr"], reported["shape"]) == (3, "<f8", (5,))
            assert reported["stream"] == gpus.gpu.stream  # who takes it waits for this
        else:
            stream = {"dlpack": other.stream, "default": None}[face]
            capsule = x.__dlpack__(stream=stream)
            other.stream = stream or 0
            np.testing.assert_array_equal(other.take(x), 3 * n + 3)
            assert _core.from_dlpack(capsule).shape == (5,)

    on_ranks(3, body)


def test_jalis_arrays_are_shared_without_copies() -> None:
    array = DeviceArray.from_host(np.zeros(3), _core.Gpu.open("cuda", 0))
    for wish in ({"copy": True}, {"dl_device": (1, 0)}, {"stream": 0}, {"stream": -2}):
        with pytest.raises(BufferError):
            array.__dlpack__(**wish)  # type: ignore[arg-type]
    array.__dlpack__(copy=False, dl_device=(2, 0), stream=-1)
    assert not hasattr(DeviceArray.empty(array.gpu, (3,), "bf16"), "__cuda_array_interface__")
    with pytest.raises(ParameterError, match="needs 400 bytes, not 24"):
        DeviceArray(array.gpu, array.memory, (50,), "fp64")


def test_arrays_of_any_device_are_taken_whatever_the_current_one_is(fake_driver: Path) -> None:
    driver = ctypes.CDLL(str(fake_driver))
    for ordinal in range(3):
        gpu = _core.Gpu.open("cuda", ordinal)
        library = Foreign(fake_driver, gpu)
        for current in range(3):
            n = next(numbers_of_tests)
            x = library.array(np.full(5, n + 0.0), "current")
            with current_device(driver, current):
                view = memory_of(x)
                assert view.gpu is gpu
                found = np.empty(5)
                gpu.download_address(view.address, found.view(np.uint8))
                np.testing.assert_array_equal(found, n)
                assert current_context(driver) == primary_context(driver, current).value
