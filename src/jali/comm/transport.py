"""A transport of your own: what carries bytes between two ranks, in Python.

jali needs to send, to receive and to look whether that is done; groups, collectives, halos, plans and errors that reach all
ranks are made of it (`core/device_transports/custom_transport.cpp`). For a new kind of network, for tests, for a simulator;
fast transports are files of `core/messaging`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jali import _core
from jali.amounts import counted
from jali.comm import validation
from jali.comm.communicator import Communicator
from jali.comm.virtual import communicator_of_thread, rank_of_thread
from jali.errors import ParameterError
from jali.files import name_shown, value_shown


class Transport(ABC):
    """Messages between the ranks of one group, seen from one of them; `name`, `rank` and `size` are set by its maker.

    Messages between two ranks with equal tags (0 up to 2**63) arrive in the order sent, others in any order. Any number
    may be under way; one that arrives before it is requested is kept. No method waits. Each is called by the thread of
    its rank alone. An exception is raised where the rank waits.
    """

    name: str
    rank: int
    size: int
    of_processes: bool = False  # whether they are: those of one host then share memory

    @abstractmethod
    def send(self, data: memoryview, to: int, tag: int) -> Any:
        """Starts to send these bytes, which stay unchanged until `sent` returns True; returns a handle of the
        message.

        The `data` of a message that is abandoned before is released; casts and slices of it do not detect this.
        """

    @abstractmethod
    def sent(self, message: Any) -> bool:
        """Whether the bytes of a message that `send` returned may be overwritten."""

    @abstractmethod
    def receive(self, source: int, tag: int) -> Any:
        """Requests the next message of rank `source` with this tag; returns a handle of it."""

    @abstractmethod
    def received(self, message: Any) -> Any:
        """The bytes (any buffer) of a message that `receive` named, once; None while it is under way."""


@contextmanager
def over(transport: Transport, threads: int | None = None) -> Iterator[Communicator]:
    """While this lasts, `jali.comm.current()` of this thread is a communicator over a transport of your own.

    Each rank enters it once with its own `Transport`, whose messages belong to it from then on; entering does not
    wait. `threads` of this rank compute, by default as many as the processor has cores. A rank that leaves notifies
    the others, which then no longer wait for it; one that leaves with an exception stops them with `RankError`. Raises
    ParameterError for an object that is not a transport.
    """
    if not isinstance(transport, Transport):
        raise ParameterError(f"a transport is a jali.comm.Transport, not {value_shown(transport)}")
    for attribute, kind in {"name": str, "rank": int, "size": int}.items():
        value = getattr(transport, attribute, None)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ParameterError(
                f"{attribute} of {type(transport).__name__} is {value_shown(value)}, not {kind.__name__}"
            )
    if transport.name != name_shown(transport.name):
        raise ParameterError(
            f"name of {type(transport).__name__} is a word, not {value_shown(transport.name)}"
        )
    validation.whole(f"size of {type(transport).__name__}", transport.size, error=ParameterError)
    if threads is not None and (threads := validation.whole("threads", threads, error=ParameterError)) < 1:
        raise ParameterError(f"threads is a number from 1, not {threads}")
    if not 0 <= transport.rank < transport.size:
        raise ParameterError(f"rank {transport.rank} does not exist among {counted(transport.size, 'rank')}")
    outer = communicator_of_thread()
    communicator = Communicator(
        _core.make_custom_communicator(transport),
        threads or _core.default_threads(1),
        None if outer is None else outer.known_rank_on_host,  # a virtual rank has one device
    )
    with rank_of_thread(communicator):
        yield communicator
