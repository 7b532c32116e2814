"""The Python part of collective calls (core/bind/collective_methods.cpp is the rest): arrays of other libraries, counts and
other arguments as users pass them, the comparison of calls in checked mode, and graphs that record them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jali import _core, graph_recorder
from jali.amounts import counted
from jali.comm import checking, elements, validation
from jali.comm.device_arrays import borrowed_among
from jali.comm.device_of_array import memory_of as memory_of
from jali.comm.elements import element_name as element_name
from jali.errors import ParameterError
from jali.files import name_shown, value_shown

EXCHANGE = "exchange"  # as counts: each rank knows only its own


def make_collectives(
    ranks: _core.Communicator, sharing_memory: Callable[[], Any], what: str
) -> _core.Collectives:
    """Collective; `what` names the call in errors. `sharing_memory` is that of the `Communicator`."""
    with graph_recorder.suspended():  # it is there before what is recorded
        return _core.Collectives(ranks, lambda: sharing_memory().core, what)


def compare(
    ranks: _core.Communicator,
    collective: str,
    kind: Any,
    on_device: bool,
    counts: list[int],
    root: int,
    in_place: bool,
    op: Any,
    algorithm: Any,
    reproducible: Any,
    commutative: Any,
) -> None:
    """Raise ParameterError on every rank unless all ranks make the same call, as it was given, on elements of this kind. Collective."""
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    several = len(counts) > 1
    operation = getattr(op, "__name__", "function") if callable(op) else op
    checking.compare(
        ranks,
        {
            "call": collective,
            "memory": "of devices" if on_device else "of the host",
            "element type": str(kind),
            "counts" if several else "count": counts if several else counts[0],
            **({"operation": _said(operation)} if op is not None else {}),
            **({"root": root} if rooted else {}),
            "in place": in_place,
            "algorithm": "chosen" if algorithm is None else _said(algorithm),
            "reproducible": _said(reproducible),
            "commutative": _said(commutative),
        },
        f"Communicator.{collective}",
    )


def _said(value: Any) -> str:
    return value if isinstance(value, str) else value_shown(value)


def record(
    recorder: graph_recorder.GraphRecorder,
    there: _core.DeviceCollectives,
    call: _core.CollectiveCall,
    arrays: tuple[Any, ...],
) -> None:
    """Appends a call on arrays of a device to a graph, which is not checked for overflows. Collective."""
    with graph_recorder.suspended():
        plan = there.persistent_plan(call, arrays)
    if not plan.recordable:
        graph_recorder.refuse_for_host(call.collective, f"by way of {there.algorithm_of(call).name!r}")
    recorder.append(
        call.collective, there.gpu, functools.partial(plan, arrays), arrays, borrowed_among(arrays)
    )
    with graph_recorder.suspended():
        there.prove_once(call, plan, arrays)
        plan.warm_up()


def check_operation(op: Any, booleans: bool) -> None:
    """Raise ParameterError for an unknown operation, or one that does not apply to booleans if these are some."""
    elements.check_operation(op, np.dtype(np.bool_ if booleans else np.float64))


def flag_of(name: str, value: Any) -> bool:
    """Raise ParameterError, by this name, for a value that is neither True nor False."""
    return validation.flag(name, value, ParameterError)


def name_of_algorithm(algorithm: Any) -> str:
    """Raise ParameterError for a name that is not a string."""
    if not isinstance(algorithm, str):
        raise ParameterError(
            f"algorithm is the name of an entry of jali.comm.ALGORITHMS, or None, not {value_shown(algorithm)}"
        )
    return name_shown(algorithm)


def rows_of_ranks(
    ranks: _core.Communicator, counts: Any, collective: str, mine: int, whole: bool, checked: bool
) -> list[int]:
    """Rows of all ranks. `whole`: this rank's array has all of them, otherwise it has `mine`. Raises ParameterError."""
    if isinstance(counts, str):
        if counts != EXCHANGE or whole:
            raise ParameterError(
                f"counts={value_shown(counts)}: give rows per rank" + ("" if whole else f", or {EXCHANGE!r}")
            )
        return [n for (n,) in _agreed_counts(ranks, collective, [mine], checked)]
    return _numbers(ranks, counts)


def matrix_of_ranks(ranks: _core.Communicator, counts: Any, checked: bool) -> list[int]:
    """Rows from each rank to each other one, one row after the other. Raises ParameterError."""
    try:
        matrix = np.asarray(counts)
    except ValueError:  # rows of unequal lengths
        matrix = np.empty(0, object)
    if matrix.dtype.kind not in "iu":
        raise ParameterError(
            f"counts of an all_to_all are whole numbers, a row for each rank, not {value_shown(counts)}"
        )
    if matrix.ndim == 1:
        mine = _numbers(ranks, matrix)
        matrix = np.array(_agreed_counts(ranks, "all_to_all", mine, checked), dtype=np.int64)
    size = ranks.size
    if matrix.shape != (size, size) or matrix.min(initial=0) < 0:
        raise ParameterError(
            f"counts of shape {matrix.shape} for {counted(size, 'rank')}; give one row of {size} numbers from 0, "
            "or one row for each rank"
        )
    if int(matrix.max(initial=0)) >> 62:
        raise ParameterError(
            f"counts up to {matrix.max()} are beyond all that there can be; give less than 2^62"
        )
    return [int(n) for n in matrix.reshape(-1)]


def _numbers(ranks: _core.Communicator, counts: Any) -> list[int]:
    if not validation.several(counts) or any(validation.integer(n) is None for n in counts):
        raise ParameterError(f"counts are whole numbers, one for each rank, not {value_shown(counts)}")
    numbers = [int(n) for n in counts]
    if any(n >= 1 << 62 for n in numbers):
        raise ParameterError(f"counts {numbers} are beyond all that there can be; give less than 2^62")
    if len(numbers) != ranks.size or any(n < 0 for n in numbers):
        raise ParameterError(
            f"counts {list(counts)} for {counted(ranks.size, 'rank')}; give a number from 0 for each"
        )
    return numbers


def _agreed_counts(
    ranks: _core.Communicator, collective: str, mine: Iterable[int], checked: bool
) -> list[list[int]]:
    """What every rank passes to `collective`, which compares the rest of the call once the counts are known."""
    graph_recorder.refuse_call(collective)
    if checked:
        checking.compare(
            ranks,
            {"call": f"{collective} that exchanges counts"},
            f"Communicator.{collective}",
        )
    gathered = ranks.gather_bytes(json.dumps(list(mine)).encode(), "counts of a collective")
    return [json.loads(text) for text in gathered]
