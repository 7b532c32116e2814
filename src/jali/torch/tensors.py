"""Tensors as jali's collectives take them: their memory, and the operations of PyTorch in jali's words.

What only moves is bytes, of any type. Reductions have a type and an operation. Tensors that are not in one
piece are copied, before or after.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp

from jali import _core
from jali.comm.elements import NAMES
from jali.errors import ParameterError

_Op = ReduceOp.RedOpType
_NAMES = {
    _Op.SUM: "sum",
    _Op.PREMUL_SUM: "sum",
    _Op.AVG: "avg",
    _Op.PRODUCT: "prod",
    _Op.MIN: "min",
    _Op.MAX: "max",
    _Op.BAND: "bit_and",
    _Op.BOR: "bit_or",
    _Op.BXOR: "bit_xor",
}
# As in NCCL's backend: a sum of booleans is whether any is true.
_OF_BOOLEANS = {
    **{op: _NAMES[op] for op in (_Op.MIN, _Op.MAX, _Op.BAND, _Op.BOR, _Op.BXOR)},
    _Op.SUM: "logical_or",
    _Op.PRODUCT: "logical_and",
}
_BITWISE = {_Op.BAND, _Op.BOR, _Op.BXOR}
_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}
_INTEGERS |= {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COMPLEX = {torch.complex64, torch.complex128}
COMBINED = _INTEGERS | _FLOATS | _COMPLEX | {torch.bool}


def operation(op: Any, dtype: torch.dtype) -> tuple[str, Any]:
    """jali's name of `op` for elements of this type, and the factor by which each rank's numbers are multiplied before (None: by none).

    Raises ParameterError for what jali does not have.
    """
    kind = (op if isinstance(op, _Op) else op.op).value
    word = _words.get((kind, dtype))
    if word is None:
        word = _words[kind, dtype] = _word(_Op(kind), dtype)
    return word, op.__getstate__()[1] if kind == _PREMUL_SUM else None


_words: dict[tuple[int, torch.dtype], str] = {}  # cached: enumerations of PyTorch are slow
_PREMUL_SUM = _Op.PREMUL_SUM.value


def _word(kind: Any, dtype: torch.dtype) -> str:
    if dtype not in COMBINED:
        known = ", ".join(sorted(str(one).removeprefix("torch.") for one in COMBINED))
        raise ParameterError(f"jali combines no {dtype}; it has {known}")
    names = _OF_BOOLEANS if dtype == torch.bool else _NAMES
    if (
        kind not in names
        or (kind in _BITWISE and dtype not in _INTEGERS | {torch.bool})
        or (kind in (_Op.MIN, _Op.MAX) and dtype in _COMPLEX)
        or (kind in (_Op.PREMUL_SUM, _Op.AVG) and dtype in _INTEGERS)
    ):
        raise ParameterError(f"jali has no ReduceOp.{str(kind).rpartition('.')[2]} of {dtype}")
    return names[kind]


def check(tensor: Any) -> None:
    """Raises ParameterError for tensors without memory that can be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise ParameterError(f"collectives take tensors, not {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ParameterError(f"jali takes dense tensors; this one has layout {tensor.layout}; use to_dense()")
    if not (tensor.is_cuda or tensor.is_cpu):
        raise ParameterError(f"jali takes tensors of the host and of GPUs; this one is on {tensor.device}")


def is_whole(tensor: Any) -> bool:
    """Whether a tensor is one piece of memory, as it is; raises ParameterError if it has none that can be sent."""
    check(tensor)
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Rows:
    """Tensors of one type as one row of numbers: `row`, a tensor in one piece (of any shape), is their own memory where this is one piece.

    Where it is not (`copies`), `begin` copies their values into it, and `end` copies its results back to them.
    """

    __slots__ = ("copies", "row", "tensors")

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors = list(tensors)
        if len(tensors) == 1:
            (first,) = tensors
            self.copies = not is_whole(first)
            self.row: torch.Tensor = (
                torch.empty(first.numel(), dtype=first.dtype, device=first.device) if self.copies else first
            )
            return
        self.copies = not _follow_each_other(tensors)
        first = tensors[0]
        if any(one.dtype != first.dtype or one.device != first.device for one in tensors):
            raise ParameterError("the tensors of a list have one type and one device")
        count = sum(one.numel() for one in tensors)
        self.row = (
            torch.empty(count, dtype=first.dtype, device=first.device)
            if self.copies
            else first.detach().as_strided((count,), (1,), first.storage_offset())
        )

    def _parts(self) -> list[torch.Tensor]:
        """Of `row`, in the shapes of the tensors."""
        pieces = self.row.split([one.numel() for one in self.tensors])
        return [piece.view(one.shape) for piece, one in zip(pieces, self.tensors, strict=True)]

    def begin(self) -> torch.Tensor:
        row = self.row.detach()
        if not self.copies:
            return row
        if len(self.tensors) == 1:
            self._parts()[0].copy_(self.tensors[0].detach())
        else:
            torch.cat([_as_row(one) for one in self.tensors], out=row)
        return row

    def end(self) -> None:
        if self.copies:
            for part, one in zip(self._parts(), self.tensors, strict=True):
                one.detach().copy_(part)


def _as_row(tensor: torch.Tensor) -> torch.Tensor:
    """A copy where it is not in one piece."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _follow_each_other(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are one piece of memory, in this order."""
    if not all([is_whole(one) for one in tensors]):
        return False
    storage = tensors[0].untyped_storage().data_ptr()
    at = tensors[0].data_ptr()
    for one in tensors:
        if one.data_ptr() != at or one.untyped_storage().data_ptr() != storage:
            return False
        at += one.nbytes
    return True


# --- as jali's collectives take them --------------------------------------------------------------------------


class _Memory:
    """The memory of a row, for NumPy. `Tensor.numpy()` would forbid that the storage is resized, which FSDP does."""

    def __init__(self, row: torch.Tensor, dtype: np.dtype[Any]) -> None:
        self.row = row  # kept as long as the array
        self.__array_interface__ = {
            "version": 3,
            "shape": (row.nbytes // dtype.itemsize,),
            "typestr": dtype.str,
            "data": (row.data_ptr() or 1, False),  # NumPy takes 0 for no address
        }


_BYTES = np.dtype(np.uint8)
_DTYPES = {one: torch.empty(0, dtype=one).numpy().dtype for one in COMBINED - {torch.bfloat16}}
_ELEMENTS = {one: NAMES[str(one).removeprefix("torch.")] for one in COMBINED}


def as_bytes(row: torch.Tensor, stream: int | None = None) -> Any:
    """The memory of a row: for the host an array of NumPy, for a device one of jali's views, of what is used on this stream."""
    if stream is not None:
        return _view_of_row(row, row.nbytes, "uint8", stream)
    return np.asarray(_Memory(row, _BYTES))


def as_numbers(row: torch.Tensor, stream: int | None = None) -> Any:
    """The same with the type of its elements, for what is combined."""
    if stream is not None:
        return _view_of_row(row, row.numel(), _ELEMENTS[row.dtype], stream)
    if row.dtype == torch.bfloat16:
        return as_bytes(row).view(_bfloat16())
    return np.asarray(_Memory(row, _DTYPES[row.dtype]))


def _view_of_row(row: torch.Tensor, count: int, element: str, stream: int) -> _core.GpuArray:
    # Not by DLPack: that queries streams and makes tensors, to order what is ordered already.
    return _core.GpuArray(gpu_of(row.device.index), row.data_ptr(), (count,), element, stream, False, None)


@functools.cache
def gpu_of(index: int) -> _core.Gpu:
    """jali's device of this number of PyTorch."""
    return _core.Gpu.open("hip" if torch.version.hip else "cuda", index)


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise ParameterError(
            "sums of bfloat16 on the host need ml_dtypes, which has the type for NumPy; pip install ml_dtypes"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)
