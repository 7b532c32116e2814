"""Tensors as jali's collectives take them: their memory, and the operations of PyTorch in jali's words.

What only moves is bytes, of any type. What is combined has a type and an operation. Tensors that are not in one
piece are copied, before or after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp

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
# As NCCL's backend has it: a sum of booleans says whether any is true.
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
    kind = ReduceOp(op).op if isinstance(op, _Op) else op.op
    text = str(kind).rpartition(".")[2]
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
        raise ParameterError(f"jali has no ReduceOp.{text} of {dtype}")
    return names[kind], op.__getstate__()[1] if kind == _Op.PREMUL_SUM else None


def check(tensor: Any) -> torch.Tensor:
    """`tensor`, if it has memory that can be sent; ParameterError otherwise."""
    if not isinstance(tensor, torch.Tensor):
        raise ParameterError(f"collectives take tensors, not {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ParameterError(f"jali takes dense tensors; this one has layout {tensor.layout}; use to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ParameterError(f"jali takes tensors of the host and of GPUs; this one is on {tensor.device}")
    return tensor.detach()


def in_one_piece(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def to_read(tensor: Any) -> torch.Tensor:
    """This tensor as one row of numbers; a copy where it is not in one piece."""
    tensor = check(tensor)
    whole = tensor if in_one_piece(tensor) else tensor.resolve_conj().resolve_neg().contiguous()
    return whole.reshape(-1)


class Written:
    """Tensors of one type that one row of numbers shall be written into: `row` is their own memory where this is one piece.

    `begin` puts into it what they hold (for what is read as well), `end` brings what `row` got to where it belongs.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = [check(tensor) for tensor in tensors]
        self.copies = not _follow_each_other(self.tensors)
        first = self.tensors[0]
        if any(one.dtype != first.dtype or one.device != first.device for one in self.tensors):
            raise ParameterError("the tensors of a list have one type and one device")
        count = sum(one.numel() for one in self.tensors)
        self.row = (
            torch.empty(count, dtype=first.dtype, device=first.device)
            if self.copies
            else first.as_strided((count,), (1,), first.storage_offset())
        )

    def begin(self) -> torch.Tensor:
        if self.copies:
            torch.cat([to_read(one) for one in self.tensors], out=self.row)
        return self.row

    def end(self) -> None:
        if not self.copies:
            return
        at = 0
        for one in self.tensors:
            one.copy_(self.row[at : at + one.numel()].view(one.shape))
            at += one.numel()


def _follow_each_other(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are one piece of memory, in this order."""
    if not all(in_one_piece(one) for one in tensors):
        return False
    if len(tensors) == 1:
        return True
    storage = tensors[0].untyped_storage().data_ptr()
    at = tensors[0].data_ptr()
    for one in tensors:
        if one.data_ptr() != at or one.untyped_storage().data_ptr() != storage:
            return False
        at += one.nbytes
    return True


def joined(tensors: Sequence[Any]) -> torch.Tensor:
    """These tensors as one row of numbers: their own memory where this is one piece, else a copy."""
    return Written(tensors).begin()


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


def as_bytes(row: torch.Tensor) -> Any:
    """The memory of a row: for the host an array of NumPy, for a device a tensor of bytes."""
    return np.asarray(_Memory(row, _BYTES)) if row.device.type == "cpu" else row.view(torch.uint8)


def as_numbers(row: torch.Tensor) -> Any:
    """The same with the type of its elements, for what is combined."""
    if row.device.type != "cpu":
        return row
    if row.dtype == torch.bfloat16:
        return as_bytes(row).view(_bfloat16())
    return np.asarray(_Memory(row, _DTYPES[row.dtype]))


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise ParameterError(
            "sums of bfloat16 on the host need ml_dtypes, which has the type for NumPy; pip install ml_dtypes"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)
