"""Parts of what was gathered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["_unroll_allgather_recv"]


def _unroll_allgather_recv(
    recv_buf: Any,
    buffer_chunk_shape: Sequence[int],
    send_buf_shapes: Sequence[Sequence[int]],
    displs: Any = None,
) -> list[Any]:
    """The arrays of all ranks as views of `recv_buf`: they begin at `displs`, or every so many elements as a chunk has."""
    flat, step = recv_buf.reshape(-1), math.prod(buffer_chunk_shape)
    begins = [rank * step for rank in range(len(send_buf_shapes))] if displs is None else displs
    return [
        flat[begin : begin + math.prod(shape)].reshape(tuple(shape))
        for begin, shape in zip(begins, send_buf_shapes, strict=True)
    ]
