"""Arrays of others as fields: where they lie, and which elements they hold."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jali import _core
from jali.codegen.arithmetics import IEEE_PRECISIONS, arithmetic_of
from jali.codegen.types import Complex, Element, Integer, Matrix, Real, Vector
from jali.errors import DeviceError, LayoutError, ParameterError

if TYPE_CHECKING:
    from jali.lattice.field import Field
    from jali.lattice.lattice import Lattice


class BorrowedArray(NamedTuple):
    """An array that becomes a field: what was given, and its memory as the core takes it."""

    array: Any
    memory: Any  # of NumPy, or a _core.GpuArray
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    span: tuple[int, int]  # addresses of its first byte and of that behind its last
    read_only: bool
    stream: int  # on a device: handle of that on which its owner continues
    guard: Any = None  # NumPy does not resize, that is move, an array that a weak reference leads to

    def overlaps(self, other: BorrowedArray) -> bool:
        """Whether memory is shared."""
        return self.span[0] < other.span[1] and other.span[0] < self.span[1]


def borrowed(lattice: Lattice, array: Any, stream: Any) -> BorrowedArray:
    """An array in the memory of the lattice. Raises LayoutError."""
    return _on_host(array, stream) if lattice.gpu is None else _on_device(array, lattice.gpu, stream)


def _on_host(array: Any, stream: Any) -> BorrowedArray:
    if stream is not None:
        raise LayoutError("a stream is for arrays on devices; this lattice lives on the host")
    given = array
    if isinstance(array, np.ma.MaskedArray):
        raise LayoutError("an array with a mask is no field: kernels would use what is masked")
    if not isinstance(array, np.ndarray):
        from jali.comm.elements import as_array

        if isinstance(array, list | tuple | int | float | complex):
            raise LayoutError(
                f"wrap takes an array, not a {type(array).__name__}, which has no memory to share"
            )
        try:
            array = as_array(array, "wrap")
        except ParameterError as error:
            raise LayoutError(str(error)) from None
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise LayoutError(
            "an array that is wrapped is C-ordered and aligned, so that kernels can use it where it is; np.ascontiguousarray copies "
            "one that is not"
        )
    address = int(array.__array_interface__["data"][0])
    span = address, address + array.nbytes
    read_only = not array.flags.writeable
    return BorrowedArray(given, array, array.shape, array.dtype, span, read_only, 0, weakref.ref(array))


def _on_device(array: Any, gpu: _core.Gpu, stream: Any) -> BorrowedArray:
    from jali.comm.device_arrays import element_dtype, stream_handle, view_of

    if isinstance(array, np.ndarray):
        raise LayoutError(
            f"an array of NumPy is on the host, and this lattice on {gpu.name}: copy it there (jali.comm.DeviceArray.from_host), or "
            "set a field from it, f[...] = array"
        )
    try:
        handle = stream_handle(stream)
        view = view_of(array, gpu)
    except (ParameterError, DeviceError) as error:
        raise LayoutError(f"wrap: {error}") from None
    goes_on = view.owner_stream if handle is None else handle
    span = view.address, view.address + view.nbytes
    dtype = element_dtype(view.element)
    return BorrowedArray(array, view, tuple(view.shape), dtype, span, view.read_only, goes_on)


def new_like(lattice: Lattice, array: BorrowedArray, shape: tuple[int, ...]) -> BorrowedArray:
    """A new array of the same type in the memory of the lattice, of NumPy or a `jali.comm.DeviceArray`. Its contents are not
    set."""
    if lattice.gpu is None:
        return _on_host(np.empty(shape, array.dtype), None)
    from jali.comm.device_arrays import DeviceArray

    return _on_device(
        DeviceArray.empty(lattice.gpu, shape, array.dtype, "array like another"), lattice.gpu, None
    )


def element_of(dtype: np.dtype[Any], inner: tuple[int, ...]) -> Element:
    """What is at each site of an array with these trailing indices. Raises LayoutError where that is not known."""
    if dtype.kind in "iub" and not inner:
        return Integer()
    if dtype.kind not in "fc" or len(inner) > 2:
        raise LayoutError(
            f"an array of {dtype} with {inner} at each site is no element that is known; name it with element="
        )
    kind = "complex" if dtype.kind == "c" else "real"
    if not inner:
        return Complex() if kind == "complex" else Real()
    return Vector(inner[0], kind) if len(inner) == 1 else Matrix(inner[0], inner[1], kind)


def storage_of(box: tuple[int, ...], array: BorrowedArray, element: Element) -> tuple[str, str]:
    """Precision of the numbers of an array, and the storage format that they are. Raises LayoutError where it is no array of that
    element, of so many sites and members."""
    shape = array.shape
    if element.codec != "plain":
        raise LayoutError(
            f"{element} is kept as {element.stored_reals} numbers, not as a matrix; wrap a Matrix"
        )
    if shape[len(box) :] != element.numpy_shape:
        raise LayoutError(
            f"an array of {element} on this rank's box has shape {box + element.numpy_shape}, this one {shape}"
        )
    arithmetic = arithmetic_of(array.dtype)
    if arithmetic is None or array.dtype != element.numpy_dtype(arithmetic.name):
        possible = " or ".join(str(element.numpy_dtype(p)) for p in reversed(IEEE_PRECISIONS))
        raise LayoutError(f"an array of {element} is one of {possible}, not of {array.dtype}")
    if element.type.kind == "int":
        return arithmetic.name, arithmetic.dtype("int").name
    return arithmetic.name, f"{arithmetic.name}-spin-first" if element.spinor else arithmetic.name


def in_rows(fields: Sequence[Field]) -> frozenset[int]:
    """Which of these are arrays on a device that differ from its fields: sites of one packet lie the same way in groups and in rows,
    but for their ghosts."""
    return frozenset(
        k
        for k, field in enumerate(fields)
        if field.borrowed is not None
        and (
            field.lattice.communicator.size > 1
            or field.stored.memory[0].units > field.stored.memory[0].packet_units
            or field.members_in_memory > 1
        )
    )
