"""Messages between the devices of two ranks that are made once and started again and again (`Communicator.persistent_send`).

Who carries them is an entry of core/device_transports/message_transport.hpp; how two ends meet, what a start is and how it is proved to be in
order stands in core/device_transports/device_messages.hpp, and what users see in core/bind/device_messages.cpp. Here is what that asks of
Python: starts that a graph records.
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
