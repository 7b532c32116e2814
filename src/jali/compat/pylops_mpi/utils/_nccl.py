"""The names of pylops_mpi.utils._nccl. There is no second communicator: jali's uses NCCL by itself where it is fastest.

`initialize_nccl_comm` and `nccl_split` return jali's communicator, which operators and arrays take as `base_comm_nccl` and ignore; the
other functions communicate over it. They take arrays in any memory, and complex numbers in every reduction that these have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali.arrays import communicator_of, layout_of
from jali.arrays.layout import Partition
from jali.arrays.redistribution import gather
from jali.comm import Communicator
from jali.compat.pylops_mpi.utils._mpi import (
    _prepare_allgather_inputs_mpi,
    _whole,
    mpi_allreduce,
    mpi_bcast,
    mpi_recv,
    mpi_send,
    mpi_sendrecv,
)

__all__ = [
    "_nccl_sync",
    "_prepare_allgather_inputs_nccl",
    "initialize_nccl_comm",
    "nccl_allgather",
    "nccl_allreduce",
    "nccl_asarray",
    "nccl_bcast",
    "nccl_recv",
    "nccl_send",
    "nccl_sendrecv",
    "nccl_split",
]


def _nccl_sync() -> None:
    """Wait for CuPy's default stream; nothing where there is no CuPy."""
    import importlib.util

    if importlib.util.find_spec("cupy") is not None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def initialize_nccl_comm() -> Communicator:
    """The communicator of all ranks."""
    return communicator_of(None)


def nccl_split(mask: Sequence[Any]) -> Communicator:
    """The communicator of the ranks with this rank's number in the mask. Collective at first."""
    return layout_of(communicator_of(None), (0,), mask=mask).group


def nccl_allgather(nccl_comm: Any, send_buf: Any, recv_buf: Any = None) -> Any:
    """The arrays of all ranks, which have the same size, one after the other in a flat array."""
    data = _whole(send_buf)
    return communicator_of(nccl_comm).all_gather(data.reshape(-1), recv_buf).reshape(-1)


def nccl_allreduce(nccl_comm: Any, send_buf: Any, recv_buf: Any = None, op: Any = None) -> Any:
    """The arrays of all ranks combined element by element; the default is their sum."""
    return mpi_allreduce(nccl_comm, send_buf, recv_buf, op=op)


def nccl_bcast(nccl_comm: Any, send_buf: Any, root: int = 0) -> None:
    """The array of rank `root`, on every rank, in place."""
    mpi_bcast(nccl_comm, send_buf, root)


def nccl_asarray(nccl_comm: Any, local_array: Any, local_shapes: Sequence[Any], axis: int) -> Any:
    """The parts of all ranks side by side along an axis, on every rank."""
    shape = list(local_shapes[0])
    shape[axis] = sum(one[axis] for one in local_shapes)
    layout = layout_of(communicator_of(nccl_comm), shape, Partition.SCATTER, axis, local_shapes=local_shapes)
    return gather(layout, local_array)


def nccl_send(nccl_comm: Any, send_buf: Any, dest: int, count: int) -> None:
    """Send so many elements to rank `dest`."""
    mpi_send(nccl_comm, send_buf, dest, count)


def nccl_recv(nccl_comm: Any, recv_buf: Any, source: int, count: int | None = None) -> Any:
    """Receive so many elements (default: all) from rank `source`."""
    return mpi_recv(nccl_comm, recv_buf, source, count)


def nccl_sendrecv(nccl_comm: Any, sendbuf: Any, dest: int, recvbuf: Any, source: int) -> Any:
    """Send an array to rank `dest` while receiving one from rank `source`."""
    return mpi_sendrecv(nccl_comm, sendbuf, recvbuf, dest=dest, source=source)


def _prepare_allgather_inputs_nccl(
    send_buf: Any, send_buf_shapes: Sequence[Any], engine: str
) -> tuple[Any, Any]:
    """The array padded to the size of the largest one, and one for those of all ranks."""
    data, _, counts, _ = _prepare_allgather_inputs_mpi(send_buf, send_buf_shapes, engine)
    from jali.array_namespaces import namespace_of

    library, most = namespace_of(data), max(counts)
    padded = library.zeros_beside(data, (most,))
    padded[: counts[0] if most == 0 else data.reshape(-1).shape[0]] = data.reshape(-1)
    return padded, library.zeros_beside(data, (most * len(counts),))
