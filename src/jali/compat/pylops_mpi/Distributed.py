"""Communication as methods, under the names of pylops_mpi.Distributed, for operators that scripts derive from it.

`base_comm_nccl` and `engine` are ignored: `jali.comm.Communicator` chooses the transport of each array itself.
"""

from __future__ import annotations

from typing import Any

from jali.compat.pylops_mpi.utils import _mpi

__all__ = ["DistributedMixIn"]


class DistributedMixIn:
    """Collectives and messages of arrays."""

    def _allreduce(
        self, base_comm: Any, base_comm_nccl: Any, send_buf: Any, recv_buf: Any = None, op: Any = None,
        engine: str = "numpy",
    ) -> Any:  # fmt: skip
        return _mpi.mpi_allreduce(base_comm, send_buf, recv_buf, op=op)

    def _allreduce_subcomm(
        self, sub_comm: Any, base_comm_nccl: Any, send_buf: Any, recv_buf: Any = None, op: Any = None,
        engine: str = "numpy",
    ) -> Any:  # fmt: skip
        return _mpi.mpi_allreduce(sub_comm, send_buf, recv_buf, op=op)

    def _allgather(
        self, base_comm: Any, base_comm_nccl: Any, send_buf: Any, recv_buf: Any = None, engine: str = "numpy"
    ) -> Any:
        return _mpi.mpi_allgather(base_comm, send_buf, recv_buf)

    def _allgather_subcomm(
        self, sub_comm: Any, base_comm_nccl: Any, send_buf: Any, recv_buf: Any = None, engine: str = "numpy"
    ) -> Any:
        return _mpi.mpi_allgather(sub_comm, send_buf, recv_buf)

    def _bcast(
        self, base_comm: Any, base_comm_nccl: Any, send_buf: Any, root: int = 0, engine: str = "numpy"
    ) -> Any:
        return _mpi.mpi_bcast(base_comm, send_buf, root)

    def _send(
        self, base_comm: Any, base_comm_nccl: Any, send_buf: Any, dest: int, count: int | None = None,
        tag: int = 0, engine: str = "numpy",
    ) -> None:  # fmt: skip
        _mpi.mpi_send(base_comm, send_buf, dest, count, tag)

    def _recv(
        self, base_comm: Any, base_comm_nccl: Any, recv_buf: Any = None, source: int = 0,
        count: int | None = None, tag: int = 0, engine: str = "numpy",
    ) -> Any:  # fmt: skip
        return _mpi.mpi_recv(base_comm, recv_buf, source, count, tag)

    def _sendrecv(
        self, base_comm: Any, base_comm_nccl: Any, sendbuf: Any, recvbuf: Any, dest: int = 0,
        sendtag: int = 0, source: int = 0, recvtag: int = 0, engine: str | None = "numpy",
    ) -> Any:  # fmt: skip
        return _mpi.mpi_sendrecv(base_comm, sendbuf, recvbuf, dest, sendtag, source, recvtag)
