"""Assignments to replicated arrays, which all ranks have: the value of rank 0 counts, and an error of one rank is raised on all.

Ranks first compare a line with the index, shape and type of the values, or the error. Rank 0 has then converted its value by
the rules of the array's library. Only then are values sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import NUMPY, as_sent, namespace_of
from jali.arrays.layout import Layout
from jali.comm import Communicator
from jali.comm.validation import integer
from jali.errors import DeviceError, JaliError, LayoutError, ParameterError, RankError, ShapeError

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


def from_rank_0(layout: Layout, make: Callable[[], Any]) -> Any:
    """What `make` gives for an array of this layout: where all ranks have one array, a copy of its result on rank 0. Collective
    then; raises on all ranks the error of one of them, and ShapeError where shapes or types differ."""
    if not layout.of_rank_0:
        return make()
    ranks = layout.communicator

    def look() -> tuple[str, Any]:
        value = make()
        return f"an array of shape {tuple(value.shape)} and {_type(value)} to all of {layout!r}", value

    value = _agreed(ranks, look)
    return _sent(ranks, value if namespace_of(value).immutable else namespace_of(value).copy(value))


def assign(x: DistributedArray, find: Callable[[], tuple[Any, Any]]) -> None:
    """`x[where] = value`, where `find` gives these two. Collective.

    Raises on all ranks the error of one of them, and that of the assignment on rank 0; ShapeError where ranks assign to
    different elements, or values of different shapes.
    """
    ranks = x.communicator

    def look() -> tuple[str, Any]:
        where, value = find()
        if type(x._local) is np.ndarray and not x._local.flags.writeable:
            raise ValueError("assignment destination is read-only")
        section = x._local[where]
        shape = tuple(np.shape(section))
        report = f"a value of shape {tuple(np.shape(value))} to [{_index(where)}], of shape {shape} and {_type(x)}, of {x.layout!r}"
        return report, (where, shape, _prepared(section, value, ranks.rank == 0))

    where, shape, prepared = _agreed(ranks, look)
    x._local = namespace_of(x._local).put(x._local, where, _sent(ranks, prepared).reshape(shape))


def _prepared(section: Any, value: Any, mine: bool) -> Any:
    """A new array for the elements of a section; with the value in it if that is `mine`."""
    if isinstance(section, np.generic):  # one element, to which NumPy assigns by other rules than to an array
        found = np.empty(1, section.dtype)
        return NUMPY.put(found, 0, value) if mine else found
    namespace = namespace_of(section)
    found = namespace.empty_beside(section, tuple(section.shape))
    return namespace.put(found, ..., value) if mine else found


def _sent(ranks: Communicator, array: Any) -> Any:
    """Rank 0's, in the memory of this array, which is contiguous, unless its library has immutable ones."""
    namespace = namespace_of(array)
    memory = np.array(namespace.mutable_view(array)) if namespace.immutable else array
    if 0 not in memory.shape:
        ranks.broadcast(as_sent(memory.reshape(-1)), 0)
    return namespace.from_mutable(memory)


def _type(x: Any) -> str:
    """That of an array's elements, in words that libraries share."""
    return str(x.dtype).removeprefix("torch.")


def _index(where: Any) -> str:
    """Indices in words that are the same for the same ones."""
    if isinstance(where, tuple):
        return ", ".join(map(_index, where))
    if isinstance(where, slice):
        numbers = (where.start, where.stop) if where.step is None else (where.start, where.stop, where.step)
        return ":".join("" if n is None else str(n) for n in numbers)
    if where is Ellipsis:
        return "..."
    if where is None or integer(where) is not None:
        return str(where)
    is_array = hasattr(where, "dtype") and not isinstance(where, np.generic)
    array = namespace_of(where).to_host(where) if is_array else np.asarray(where)
    if array.size <= 8:
        return str(array.tolist())
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
    return f"<indices of {array.dtype} and shape {array.shape}, {digest}>"


_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ShapeError, LayoutError, ParameterError, DeviceError, JaliError, OverflowError, IndexError, TypeError, ValueError, MemoryError,
        RankError, RuntimeError, RuntimeWarning,
    )
}  # fmt: skip


def _agreed(ranks: Communicator, look: Callable[[], tuple[str, Any]]) -> Any:
    """What `look` gives beside a line that is the same on all ranks. Raises on all of them where it is not, or what `look` raises on the
    first of those where it does: of a kind that NumPy or jali raises, since one rank alone raises that as well."""
    error, found = None, None
    try:
        line, found = look()
        report = {"line": line}
    except Exception as caught:
        error = caught
        kind = next((k.__name__ for k in type(caught).__mro__ if _KINDS.get(k.__name__) is k), "")
        report = {"kind": kind, "text": str(caught) if kind else f"{type(caught).__name__}: {caught}"}
    texts = ranks.gather_bytes(json.dumps(report).encode(), what="an assignment to what all ranks have")
    if error is None and all(text == texts[0] for text in texts):
        return found
    of_ranks = [json.loads(text) for text in texts]
    rank = next((rank for rank, one in enumerate(of_ranks) if "kind" in one), None)
    if rank is not None:
        text = of_ranks[rank]["text"]
        if rank > 0 and f"rank {rank}" not in text:
            text = f"rank {rank}: {text}"
        agreed = _KINDS.get(of_ranks[rank]["kind"], RankError)(text)
    else:
        rank = next(rank for rank, one in enumerate(of_ranks) if one != of_ranks[0])
        agreed = ShapeError(
            f"rank 0 assigns {of_ranks[0]['line']}, rank {rank} {of_ranks[rank]['line']}: all ranks assign to the same elements of what "
            "they all have, and give the same shape and type; the values are those of rank 0"
        )
    agreed.on_every_rank = True  # type: ignore[attr-defined]
    raise agreed from error
