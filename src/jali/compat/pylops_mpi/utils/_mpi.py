"""Communication of arrays by `jali.comm.Communicator`, under the names of pylops_mpi.utils._mpi.

`engine` is ignored: the communicator sees where an array is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays import communicator_of
from jali.compat.pylops_mpi.utils._common import _unroll_allgather_recv
from jali.errors import ParameterError, ShapeError

__all__ = [
    "_prepare_allgather_inputs_mpi",
    "mpi_allgather",
    "mpi_allreduce",
    "mpi_bcast",
    "mpi_recv",
    "mpi_send",
    "mpi_sendrecv",
]


def _operation(op: Any) -> str:
    """jali's name of one of MPI's reductions."""
    if op is None or isinstance(op, str):
        return op or "sum"
    from mpi4py import MPI

    for theirs, name in ((MPI.SUM, "sum"), (MPI.PROD, "prod"), (MPI.MAX, "max"), (MPI.MIN, "min")):
        if op == theirs:
            return name
    raise ParameterError(f"reductions are MPI.SUM, MPI.PROD, MPI.MAX and MPI.MIN, not {op!r}")


def _whole(x: Any) -> Any:
    """An array of at least one dimension in one piece."""
    if not hasattr(x, "shape") or isinstance(x, np.generic):
        x = np.asarray(x)
    return namespace_of(x).contiguous(x if x.shape else x.reshape(1))


def _shapes(base_comm: Any, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    texts = communicator_of(base_comm).gather_bytes(np.array(shape, np.int64).tobytes(), what="shapes")
    return [tuple(map(int, np.frombuffer(text, np.int64))) for text in texts]


def mpi_allgather(base_comm: Any, send_buf: Any, recv_buf: Any = None, engine: str = "numpy") -> Any:
    """The arrays of all ranks, as a list; where `recv_buf` is given, there, one after the other."""
    data = _whole(send_buf)
    shapes = _shapes(base_comm, tuple(data.shape))
    sizes = [math.prod(shape) for shape in shapes]
    into = namespace_of(data).empty((sum(sizes),), data.dtype) if recv_buf is None else recv_buf
    communicator_of(base_comm).all_gather(data.reshape(-1), into.reshape(-1), counts=sizes)
    if recv_buf is not None:
        return recv_buf
    return _unroll_allgather_recv(into, data.shape, shapes, np.cumsum([0, *sizes[:-1]]).tolist())


def mpi_allreduce(
    base_comm: Any, send_buf: Any, recv_buf: Any = None, engine: str = "numpy", op: Any = None
) -> Any:
    """The arrays of all ranks combined element by element; the default is their sum."""
    data = _whole(send_buf)
    found = communicator_of(base_comm).all_reduce(data, op=_operation(op))
    if recv_buf is None:
        return found
    recv_buf[...] = found.reshape(recv_buf.shape)
    return recv_buf


def mpi_bcast(base_comm: Any, send_buf: Any, root: int = 0, engine: str | None = "numpy") -> Any:
    """The array of rank `root`, on every rank, in place."""
    data = _whole(send_buf)
    communicator_of(base_comm).broadcast(data, root)
    if data is not send_buf and hasattr(send_buf, "shape") and not isinstance(send_buf, np.generic):
        send_buf[...] = data.reshape(send_buf.shape)
        return send_buf
    return data


def _message(x: Any, count: int | None) -> Any:
    flat = _whole(x).reshape(-1)
    return flat if count is None else flat[:count]


def mpi_send(
    base_comm: Any, send_buf: Any, dest: int, count: int | None = None, tag: int = 0, engine: str = "numpy"
) -> None:
    """Send so many elements (default: all) to rank `dest`."""
    ranks = communicator_of(base_comm)
    ranks.wait([ranks.send(_message(send_buf, count), dest, tag)], "mpi_send")


def mpi_recv(
    base_comm: Any,
    recv_buf: Any = None,
    source: int = 0,
    count: int | None = None,
    tag: int = 0,
    engine: str | None = "numpy",
) -> Any:
    """Receive so many elements (default: all) from rank `source` into `recv_buf`. Raises ShapeError without it."""
    if recv_buf is None:
        raise ShapeError("mpi_recv: give an array to receive into, recv_buf; its size is not sent along")
    ranks = communicator_of(base_comm)
    into = _message(recv_buf, count)
    ranks.wait([ranks.receive(into, source, tag)], "mpi_recv")
    _back(recv_buf, into)
    return recv_buf


def _back(x: Any, flat: Any) -> None:
    """Where the message was received beside an array that is not in one piece."""
    if not np.shares_memory(x, flat):
        x.flat[: flat.size] = flat


def mpi_sendrecv(
    base_comm: Any,
    sendbuf: Any,
    recvbuf: Any,
    dest: int = 0,
    sendtag: int = 0,
    source: int = 0,
    recvtag: int = 0,
    engine: str | None = "numpy",
) -> Any:
    """Send an array to rank `dest` while receiving one from rank `source`."""
    ranks = communicator_of(base_comm)
    into = _message(recvbuf, None)
    ranks.wait(
        [ranks.receive(into, source, recvtag), ranks.send(_message(sendbuf, None), dest, sendtag)],
        "mpi_sendrecv",
    )
    _back(recvbuf, into)
    return recvbuf


def _prepare_allgather_inputs_mpi(
    send_buf: Any, send_buf_shapes: Sequence[Sequence[int]], engine: str
) -> tuple[Any, Any, list[int], list[int]]:
    """What MPI's Allgatherv takes: the array in one piece, one for all of them, their numbers of elements and where they begin."""
    data = _whole(send_buf)
    counts = [math.prod(shape) for shape in send_buf_shapes]
    into = namespace_of(data).empty((sum(counts),), data.dtype)
    return data, into, counts, np.cumsum([0, *counts[:-1]]).tolist()
