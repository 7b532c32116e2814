"""Nonblocking exchange of pieces of arrays between ranks: by messages of the host, or from device to device. `ghosts` and
`exchange` select the pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np

from jali import graph_recorder
from jali.array_namespaces import as_sent, namespace_of, numpy_dtype
from jali.arrays.layout import Shape, Slices
from jali.comm import Communicator, DeviceArray
from jali.comm.device_of_array import gpu_of, is_on_device
from jali.errors import JaliError

Piece = tuple[Any, Any]  # what names it, and its values

TAG = 1 << 62  # of messages between devices, away from those of users


class PendingExchange(ABC):
    """Pending messages; the array that they are sent from stays as it is until `arrived` has been entered.

    `with pending.arrived() as pieces` gives names and arrays, in the order in which they were named. They may belong to what is used
    again: inside they are read, not kept.

    Code that may fail before that is inside `with pending`, which then waits, so that the next exchange does not receive these pieces.
    """

    _open = True

    @abstractmethod
    def arrived(self) -> AbstractContextManager[list[Piece]]:
        """Once."""

    def __enter__(self) -> PendingExchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            with suppress(JaliError), self.arrived():  # the first error is reported
                pass


class PieceExchange:
    """Between ranks that send pieces of arrays and receive others: what is made once, for any number of exchanges.

    `to` has the rank that gets a piece, where that is in the array, and its shape; `source` the rank that a piece comes from, its name
    (any object), and its shape.
    """

    def __init__(
        self,
        ranks: Communicator,
        to: Sequence[tuple[int, Slices, Shape]],
        source: Sequence[tuple[int, Any, Shape]],
    ) -> None:
        self.ranks, self.to, self.source = ranks, to, source
        self._buffer_sets: dict[Any, list[_Buffers]] = {}

    def start(self, array: Any) -> PendingExchange:
        """Send its pieces. Collective where it is the first on a device; between devices that access each other's memory the
        host does not wait, except for the other ends when more exchanges are pending than ever before."""
        graph_recorder.refuse_call("an exchange of pieces of arrays")
        if namespace_of(array).name == "numpy" or not is_on_device(array):
            return _PendingOnHost(self, array)
        gpu, dtype = gpu_of(array), numpy_dtype(array)
        self.ranks.device_messages(gpu)
        sets = self._buffer_sets.setdefault((gpu, dtype, namespace_of(array).name), [])
        buffers = next((one for one in sets if not one.under_way), None)
        if buffers is None:  # as many as are under way at once: on all ranks, which do the same
            sets.append(buffers := _Buffers(self, array))
        return _PendingOnDevice(buffers, array)


class _PendingOnHost(PendingExchange):
    def __init__(self, exchange: PieceExchange, array: Any) -> None:
        namespace = namespace_of(array)
        self._array, self._namespace = array, namespace
        self._ranks = exchange.ranks.sharing_memory() if exchange.ranks.size > 1 else exchange.ranks
        dtype = numpy_dtype(array)
        self._under_way, self._sent = [], []
        self._pieces: list[Piece] = []
        for rank, name, shape in exchange.source:
            into = np.empty(shape, dtype)
            self._under_way.append(self._ranks.receive(as_sent(into), rank))
            self._pieces.append((name, into))
        for rank, where, _ in exchange.to:
            data = np.ascontiguousarray(namespace.to_host(array[where]))
            self._sent.append(data)
            self._under_way.append(self._ranks.send(as_sent(data), rank))

    @contextmanager
    def arrived(self) -> Iterator[list[Piece]]:
        self._open = False
        if self._under_way:
            self._ranks.wait(self._under_way, "pieces of arrays")
        if self._namespace.name == "numpy":
            yield self._pieces
        else:
            yield [(name, self._namespace.from_host(data, self._array)) for name, data in self._pieces]


class _Buffers:
    """What a pending exchange on a device needs: memory of jali's, which others can write, and messages from there to there."""

    def __init__(self, exchange: PieceExchange, array: Any) -> None:
        self.gpu, self.under_way = gpu_of(array), False
        ranks, namespace = exchange.ranks, namespace_of(array)
        self.messages = []
        self.sent: list[Piece] = []
        self.received: list[Piece] = []
        for pieces, pieces_here in ((exchange.source, self.received), (exchange.to, self.sent)):
            for rank, name, shape in pieces:
                memory = DeviceArray.empty(self.gpu, shape, numpy_dtype(array), "pieces of arrays")
                end = ranks.persistent_receive if pieces_here is self.received else ranks.persistent_send
                self.messages.append(end(memory, rank, TAG))
                pieces_here.append((name, namespace.of_memory(memory, array.dtype)))
        self.ranks = ranks
        self.stream = namespace.stream(
            array
        )  # that has waited for the last messages, and may overwrite what they sent


def meet(gpu: Any, stream: int) -> None:
    """Streams of jali and of a library wait for each other: the latter too, since it may be one that a graph captures, with which jali's
    then goes."""
    gpu.wait_for(stream)
    gpu.let_wait(stream)


class _PendingOnDevice(PendingExchange):
    """On jali's stream, which waits for that of the library and is waited for, so that the library may change its stream in between."""

    def __init__(self, buffers: _Buffers, array: Any) -> None:
        self._buffers, self._array, self._namespace = buffers, array, namespace_of(array)
        buffers.under_way = True
        stream = self._namespace.stream(array)
        if stream != buffers.stream:
            meet(buffers.gpu, stream)
        with self._namespace.where(array):
            for where, data in buffers.sent:
                data[...] = array[where]
        buffers.gpu.wait_for(stream)
        buffers.ranks.start(buffers.messages)

    @contextmanager
    def arrived(self) -> Iterator[list[Piece]]:
        self._open = False
        gpu = self._buffers.gpu
        self._buffers.stream = self._namespace.stream(self._array)
        gpu.let_wait(self._buffers.stream)
        try:
            yield self._buffers.received
        finally:  # the pieces are read before others overwrite them
            gpu.wait_for(self._namespace.stream(self._array))
            self._buffers.under_way = False
