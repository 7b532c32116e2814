"""What a collective call is: a tuple that is equal on all ranks, and what ranks compare of it in checked mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jali import _core
from jali.comm import checking, given
from jali.comm.device_arrays import DeviceArray, DeviceView
from jali.comm.elements import Array, check_operation, element_name
from jali.errors import ParameterError
from jali.files import value_shown

EXCHANGE = "exchange"  # as counts: each rank knows only its own


class Call(NamedTuple):
    """A collective call, equal on all ranks. `elements` as the `count` of `jali.comm.Composition.standard`; a tuple for
    the variants with counts per rank."""

    collective: str
    dtype: Any
    elements: int | tuple[int, ...]
    root: int
    op: str | Callable[[Array, Array], Array]
    in_place: bool
    algorithm: str | None
    reproducible: bool


def compare_collective(core: _core.Communicator, fields: tuple[Any, ...], arrays: tuple[Any, ...]) -> None:
    """Raise ParameterError on every rank unless all ranks make the same call. Collective."""
    call = Call._make(fields)
    op = call.op if isinstance(call.op, str) else getattr(call.op, "__name__", "function")
    reduces = call.collective in ("all_reduce", "reduce", "reduce_scatter")
    rooted = call.collective in ("broadcast", "reduce", "gather", "scatter")
    checking.compare(
        core,
        {
            "call": call.collective,
            "memory": "of devices" if on_device(arrays) else "of the host",
            "element type": str(call.dtype),
            "counts" if isinstance(call.elements, tuple) else "count": call.elements,
            **({"operation": op} if reduces else {}),
            **({"root": call.root} if rooted else {}),
            "in place": call.in_place,
            "algorithm": call.algorithm or "chosen",
            "reproducible": call.reproducible,
        },
    )


def check_call(call: Call) -> None:
    """Raise ParameterError for an operation, an algorithm or a flag that is none; before a plan is made, and where it has no hash."""
    check_operation(call.op, np.dtype(np.float64))
    given.flag("reproducible", call.reproducible, ParameterError)
    if call.algorithm is not None and not isinstance(call.algorithm, str):
        raise ParameterError(
            f"algorithm is the name of a row of jali.comm.ALGORITHMS, or None, not {value_shown(call.algorithm)}"
        )


def payload(call: Call, ranks: int) -> int:
    """Bytes of the largest buffer of a call."""
    return _core.payload(call.collective, element_name(call.dtype), counts_of(call), ranks)


def counts_of(call: Call) -> list[int]:
    """As the core has them: one for all, or one for each."""
    return list(call.elements) if isinstance(call.elements, tuple) else [call.elements]


def operation_of(call: Call) -> str:
    """The name of a call's operation."""
    return "user" if callable(call.op) else call.op


def composition_of(call: Call, ranks: int, form: str) -> _core.Composition:
    """What a call means, in one of the forms of its collective."""
    return _core.standard_composition(
        ranks,
        call.collective,
        form,
        element_name(call.dtype),
        counts_of(call),
        root=call.root,
        operation=operation_of(call),
        user=call.op if callable(call.op) else None,
        in_place=call.in_place,
    )


def on_device(arrays: tuple[Any, ...]) -> bool:
    """Whether the arrays of a call, one per buffer, are in device memory."""
    kind = type(arrays[-1] if arrays[0] is None else arrays[0])
    return kind is DeviceArray or kind is DeviceView
