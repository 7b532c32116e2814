"""Persistent messages between the devices of two ranks: made once, started many times (`Communicator.persistent_send`).

Their transports are entries of core/device_transports/message_transport.hpp; core/device_transports/device_messages.hpp matches
the two ends, starts messages and proves their order, and core/bind/device_messages.cpp is the interface of users. Here is its
Python part: starts that a graph records.
"""

from __future__ import annotations

import functools
from typing import Any

from jali import _core, graph_recorder
from jali._core import PersistentMessage as PersistentMessage


def record(
    recorder: graph_recorder.GraphRecorder, messages: tuple[PersistentMessage, ...], stream: Any
) -> None:
    """Appends a start to a graph. Its ends meet now."""
    if stream is not None:
        graph_recorder.refuse("a start on a stream of its own is made", "leave the stream to the graph")
    with graph_recorder.suspended():
        _core.warm_up_messages(messages)
    for message in messages:
        if not message.recordable:
            graph_recorder.refuse_for_host("start", f"of a message by way of {message.transport!r}")
    start = functools.partial(_core.start_messages, messages)
    borrowed = [message.view for message in messages]
    recorder.append("start", messages[0].owner.gpu, start, messages, borrowed)
