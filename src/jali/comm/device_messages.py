"""Messages between the devices of two ranks that are made once and started again and again (`Communicator.persistent_send`).

Who carries them is a row of core/transport/message_transport.hpp; how two ends meet, and what a start is, stands in
core/transport/device_messages.hpp. Here are arrays, arguments and what users read.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jali import _core, recording
from jali.amounts import counted
from jali.comm.device_arrays import stream_handle, view_of
from jali.errors import ParameterError

MOST_TAG = (1 << 63) - 1


class PersistentMessage(_core.DeviceMessage):
    """One end of a message between devices: `start()` sends, or receives, the array as it then is.

    The array stays where it is and alive as long as this is. Attributes: `peer`, `tag`, `sends`, `array`, `nbytes`.
    """

    def __init__(
        self, owner: DeviceMessages, x: Any, peer: int, tag: int, sends: bool, way: str | None
    ) -> None:
        self._view = view_of(x, owner.gpu, None, writable=not sends)  # keeps what was lent
        super().__init__(owner.core, self._view, peer, tag, sends, way or "")
        self.owner, self.array = owner, x
        self.number = next(owner.numbers)

    @property
    def way(self) -> str:
        """How it goes, by the sender's choice: "remote-write", "copy-engine", "nccl" or "rccl", "gpu-aware-mpi", "host-staged", or
        "local". Waits for the other end to be made."""
        self.meet()
        return super().way

    @property
    def why(self) -> str:
        """Why it goes that way, in words; waits for the other end to be made."""
        self.meet()
        return super().why

    def start(self, stream: Any = None) -> None:
        """Start it alone; see `Communicator.start`, which is for messages that are under way at once."""
        self.owner.start((self,), stream)

    def copy_alone(self, stream: Any = None) -> None:
        """Put the bytes of a message by the copy engine without any order with the receiver: what benchmarks compare with.

        For senders of messages that are put into the memory of a peer; ParameterError for others.
        """
        self.meet()
        super().copy_alone(stream_handle(stream))

    def meet(self) -> None:
        """Wait until the other end has been made too. The first start does it. Raises ParameterError if the ends do not fit."""
        super().meet()


def _is_whole(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def check_are_messages(messages: Any) -> None:
    """Raises ParameterError for what is no sequence of persistent messages."""
    if not isinstance(messages, Sequence) or not all(isinstance(one, PersistentMessage) for one in messages):
        raise ParameterError(
            f"messages are a list of ends that persistent_send and persistent_receive made, not {messages!r}"
        )


class DeviceMessages:
    """What the persistent messages of a communicator share on one device. Made at their first use, which is collective."""

    def __init__(self, ranks: _core.Communicator, gpu: _core.Gpu) -> None:
        self.gpu, self._ranks = gpu, ranks
        self.core = _core.DeviceMessages(gpu, ranks)
        self.numbers = itertools.count()  # of messages, in the order in which they are made
        self._proved: set[frozenset[int]] = set()

    def make(self, x: Any, peer: int, tag: int, sends: bool, way: str | None) -> PersistentMessage:
        """See `Communicator.persistent_send` and `persistent_receive`."""
        self._check_rank(peer)
        if not _is_whole(tag) or not 0 <= tag <= MOST_TAG:
            raise ParameterError(f"tag {tag!r} of a message; tags are whole numbers from 0 to 2**63 - 1")
        if way is not None and not isinstance(way, str):
            raise ParameterError(f"way={way!r}: the way of a message is a name, such as 'copy-engine'")
        return PersistentMessage(self, x, peer, tag, sends, way)

    def why_not(self, way: str, rank: int) -> str:
        """Why messages with `rank` cannot go this way; empty if they can. Raises ParameterError for ways that are none."""
        self._check_rank(rank)
        if not isinstance(way, str):
            raise ParameterError(f"way={way!r}: the way of a message is a name, such as 'copy-engine'")
        return self.core.why_not(way, rank)

    def _check_rank(self, rank: int) -> None:
        if not _is_whole(rank) or not 0 <= rank < self._ranks.size:
            raise ParameterError(f"rank {rank!r} does not exist among {counted(self._ranks.size, 'rank')}")

    def start(self, messages: Sequence[PersistentMessage], stream: Any = None) -> None:
        """See `Communicator.start`."""
        if recording.recorders and (tape := recording.current()) is not None:
            return self._record(tape, messages, stream)
        handle = stream_handle(stream)
        if _core.first_runs_are_proved():
            self._prove_once(messages, handle)
        self.core.start(messages, handle)

    def _record(self, tape: recording.Tape, messages: Sequence[PersistentMessage], stream: Any) -> None:
        """Appends a start to a graph. Its ends meet now."""
        if stream is not None:
            recording.refuse("a start on a stream of its own is made", "leave the stream to the graph")
        messages = tuple(messages)
        with recording.suspended():
            self.core.rehearse(messages)
        for message in messages:
            if not message.recordable:
                recording.refuse_for_host("start", f"of a message by way of {message.way!r}")
        if _core.first_runs_are_proved():
            with recording.suspended():
                self._prove_once(messages, None)
        lent = [message._view for message in messages]
        tape.append("start", self.gpu, functools.partial(self.core.start, messages), messages, lent)

    def check(self, messages: Sequence[PersistentMessage]) -> None:
        """See `Communicator.check_messages`."""
        self._check(messages, self._connected(messages))

    def recorded(self, messages: Sequence[PersistentMessage]) -> _core.RecordedCalls:
        """What this rank gives to its driver in some starts of these messages. All ranks that they connect call this."""
        return self._recorded(messages, self._connected(messages))

    def _prove_once(self, messages: Sequence[PersistentMessage], stream: int | None) -> None:
        """Before the first start of these messages together; those that cannot be started are left to who says so."""
        if any(message.owner is not self for message in messages) or self.gpu.recording:
            return
        together = frozenset(message.number for message in messages)
        if together in self._proved or len(together) < len(messages):
            return
        self._proved.add(together)
        connected = self._connected(messages)
        if all(end.noted for ends in connected.ends.values() for end in ends):
            if stream is not None:
                self.gpu.wait_for(stream)
            self._check(messages, connected)
            _core.count_proof()
            if stream is not None:
                self.gpu.let_wait(stream)

    def _connected(self, messages: Sequence[PersistentMessage]) -> _Connected:
        for message in messages:
            message.meet()
        mine = [_End(m.peer, m.tag, m.sends, m.noted) for m in messages]
        return _Connected(self.core, self._ranks.rank, mine)

    def _check(self, messages: Sequence[PersistentMessage], connected: _Connected) -> None:
        _core.check_told(connected.tell(self._recorded(messages, connected).told()))

    def _recorded(self, messages: Sequence[PersistentMessage], connected: _Connected) -> _core.RecordedCalls:
        arrays = []
        for rank, ends in sorted(connected.ends.items()):
            for end in ends:
                if not end.noted:
                    raise ParameterError(f"{end.of(rank)} goes through the host, where nothing is recorded")
        for message in messages:
            sender = (self._ranks.rank if message.sends else message.peer, message.sent_from)
            label = int.from_bytes(hashlib.blake2b(repr(sender).encode(), digest_size=8).digest())
            arrays.append((message.address, message.nbytes, label, message.sends))
        return _core.RecordedCalls(
            self.gpu,
            self._ranks.rank,
            lambda: connected.tell(b""),
            lambda: self.core.start(messages, None),
            arrays,
        )


class _End(NamedTuple):
    """An end of a message, as other ranks hear of it."""

    peer: int
    tag: int
    sends: bool
    noted: bool

    def of(self, rank: int) -> str:
        """In errors."""
        return f"a message from rank {rank if self.sends else self.peer} to rank {self.peer if self.sends else rank} with tag {self.tag}"


class _Connected:
    """The ranks that messages which are started at once connect, directly or by way of others, and what each of them starts.

    Each knows its peers alone, so all pass on what they have heard until everybody has heard everything. Making it waits for all of them.
    Raises ParameterError, on all of them, where two do not start the same messages with each other.
    """

    def __init__(self, core: _core.DeviceMessages, rank: int, mine: list[_End]) -> None:
        self._core, self._rank = core, rank
        self._peers = sorted({end.peer for end in mine} - {rank})
        self.ends: dict[int, list[_End]] = {rank: mine}
        self._rounds = 0
        while self._rounds < self._rounds_needed():
            self._rounds += 1
            self._pass_on(self.ends)
        for here, ends in sorted(self.ends.items()):
            for end in ends:
                same = sum(e[:3] == end[:3] for e in ends)
                there = sum(e[:3] == (here, end.tag, not end.sends) for e in self.ends[end.peer])
                if end.peer != here and same != there:  # either end of a message to oneself starts it
                    raise ParameterError(
                        f"rank {here} starts {end.of(here)} {counted(same, 'time')}, rank {end.peer} does so "
                        f"{counted(there, 'time')}: ranks start the same messages with each other at once, if these are looked at"
                    )

    def tell(self, mine: bytes) -> dict[int, bytes]:
        """What every rank tells, by rank."""
        told = {self._rank: mine}
        for _ in range(self._rounds):
            self._pass_on(told)
        return told

    def _pass_on(self, known: dict[int, Any]) -> None:
        for theirs in self._core.tell(self._peers, pickle.dumps(known)):
            known.update(pickle.loads(theirs))

    def _rounds_needed(self) -> int:
        """Until everybody has heard everything, as far as it can be told by now."""
        farthest = 0
        for start in self.ends:
            distance, at = {start: 0}, [start]
            for rank in at:
                if rank not in self.ends:
                    return self._rounds + 1
                for end in self.ends[rank]:
                    if end.peer not in distance:
                        distance[end.peer] = distance[rank] + 1
                        at.append(end.peer)
            farthest = max(farthest, *distance.values())
        return farthest
