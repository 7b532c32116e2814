"""Messages between the devices of two ranks that are made once and started again and again (`Communicator.persistent_send`).

Where devices reach each other's memory the sender puts the bytes straight into the receiver's array, by stores of a kernel
("remote-write") or by a copy engine ("copy-engine"); nobody waits on the host, and starts may be recorded in graphs (core/transport/peer_message.hpp).
Elsewhere the vendor's library carries them ("nccl", "rccl"), or they go through the host ("host-staged"); to oneself it is a copy
("local").
The two ends meet by a message each over the host when they are made; nobody else takes part in that.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jali import _core, recording, settings
from jali.codegen import cache
from jali.comm.ccl_library import library_communicator
from jali.comm.device_arrays import DeviceArray, stream_handle, view_of
from jali.errors import DeviceError, ParameterError
from jali.vendors import library_of, vendor

STORE_UP_TO = 4 << 20  # bytes; longer messages go by the copy engine, which is faster but begins later
TOLD_BYTES = 4096  # of what one end tells the other
_PEER = ("remote-write", "copy-engine")  # ways into the memory of a peer
_STAGED = "host-staged"


class PersistentMessage:
    """One end of a message between devices: `start()` sends, or receives, the array as it then is.

    The array stays where it is and alive as long as this is. Attributes: `peer`, `tag`, `sends`, `array`.
    """

    def __init__(
        self, owner: DeviceMessages, x: Any, peer: int, tag: int, sends: bool, way: str | None
    ) -> None:
        self.owner, self.array, self.peer, self.tag, self.sends = owner, x, peer, tag, sends
        self._view = view_of(x, owner.gpu, None, writable=not sends)
        self._named = way
        self._other: dict[str, Any] | None = None  # what the other end told
        self._met = False
        self._way, self._why, trouble = "", "", ""
        self.sent_from = 0  # the address of the array at its sender, known when the ends have met
        self._core: _core.PeerMessage | None = None
        self._pair: _Pair | None = None
        self._buffer: npt.NDArray[np.uint8] | None = None  # on the host, if staged
        self._sending: _core.PendingMessage | None = None
        try:
            self._way, self._why = owner.choose(peer, self._view.nbytes, way)
            if owner.reaches(peer):
                self._core = _core.PeerMessage(
                    owner.ends, peer, sends, self._view.address if self._view.nbytes else 0, self._view.nbytes
                )
        except DeviceError as error:
            trouble = str(error)
        self._channel = owner.introduce(self, trouble)
        if trouble:
            raise DeviceError(trouble)

    def __repr__(self) -> str:
        direction = f"to rank {self.peer}" if self.sends else f"from rank {self.peer}"
        return f"<message {direction}, tag {self.tag}, {self._view.nbytes} bytes, {self._way or 'not met'}: {self._why}>"

    @property
    def nbytes(self) -> int:
        return self._view.nbytes

    @property
    def way(self) -> str:
        """How it goes, by the sender's choice: "remote-write", "copy-engine", "nccl" or "rccl", "host-staged", or "local". Waits for the
        other end to be made."""
        self.meet()
        return self._way

    @property
    def why(self) -> str:
        """Why it goes that way, in words; waits for the other end to be made."""
        self.meet()
        return self._why

    def start(self, stream: Any = None) -> None:
        """Start it alone; see `Communicator.start`, which is for messages that are under way at once."""
        self.owner.start((self,), stream)

    def copy_alone(self, stream: Any = None) -> None:
        """Put the bytes of a message by the copy engine without any order with the receiver: what benchmarks compare with.

        For senders of "remote-write" and "copy-engine" messages; ParameterError for others.
        """
        if not self.sends or self.way not in _PEER or self._core is None:
            raise ParameterError(f"{self!r} is none that is put into the memory of a peer")
        self._core.copy_alone(stream_handle(stream))

    def meet(self) -> None:
        """Wait until the other end has been made too. The first start does it. Raises ParameterError if the ends do not fit."""
        if self._met:
            return
        other = self.owner.told_to(self)
        mine = self._told() | {"channel": self._channel}
        here, there = _described(mine, self.owner.rank), _described(other, self.peer)
        if not self.sends:
            here, there = there, here
        if other["trouble"]:
            raise DeviceError(f"rank {self.peer} cannot make its end of a message: {other['trouble']}")
        if (mine["element"], mine["bytes"]) != (other["element"], other["bytes"]):
            raise ParameterError(
                f"a message with tag {self.tag}: {here} sends, but {there} receives; make the arrays alike"
            )
        sender = mine if self.sends else other
        receiver = other if self.sends else mine
        if receiver["named"] and _carrier(receiver["named"]) != _carrier(sender["way"]):
            raise ParameterError(
                f"a message with tag {self.tag} goes by {sender['way']!r} at its sender, and by {receiver['named']!r} at its "
                "receiver; name the same on both sides, or none at the receiver"
            )
        self._way, self._why, self.sent_from = sender["way"], sender["why"], int(sender["address"])
        if self._way in _PEER:
            assert self._core is not None
            self._core.meet(bytes.fromhex(other["core"]), self._way == "copy-engine")
        else:
            self._core = None  # words and mappings are not needed
        if self._way == _STAGED:
            self._buffer = np.empty(self._view.nbytes, np.uint8)
            self._channel = receiver["channel"]
        self._met = True

    def _told(self) -> dict[str, Any]:
        """What the other end is told, but for its channel and trouble."""
        return {
            "tag": self.tag,
            "sends": self.sends,
            "element": self._view.element,
            "bytes": self._view.nbytes,
            "address": self._view.address,
            "shape": str(self._view.shape)[:80],
            "named": self._named or "",
            "way": self._way,
            "why": self._why[:400],
            "core": self._core.told().hex() if self._core is not None else "",
        }


class DeviceMessages:
    """What the persistent messages of a communicator share on one device. Made at their first use, which is collective."""

    def __init__(self, ranks: _core.Communicator, gpu: _core.Gpu) -> None:
        self.gpu, self.rank, self.size = gpu, ranks.rank, ranks.size
        self._ranks = ranks
        gpu.set_builtin_kernels(cache.builtin_kernels(gpu))
        ranks.barrier("setting up device messages")  # says what is made
        self._control = ranks.duplicate()
        self._data = ranks.duplicate()
        self.ends = _core.MessageEnds(gpu, self._control)
        self.library = library_of(gpu.kind)
        self._forced = self._checked(settings.current().message_way or None)  # the same on all ranks
        self._ccl: _core.CclCommunicator | None = None
        self.why_not_ccl = (
            "devices reach each other's memory; "
            f"jali.tune.experiment(message_way={self.library!r}) on all ranks makes it"
        )
        if self._forced == self.library or not self.ends.all_reached:
            try:
                self._ccl = library_communicator(ranks, gpu)
            except DeviceError as error:  # the same on all ranks
                self.why_not_ccl = str(error)
        # What other ranks tell: expected, come before its end was made here, and ends that wait for it.
        self._expected: dict[int, deque[tuple[_core.PendingMessage, npt.NDArray[np.uint8]]]] = defaultdict(
            deque
        )
        self._early: dict[tuple[int, bool, int], deque[dict[str, Any]]] = defaultdict(deque)
        self._waiting: dict[tuple[int, bool, int], deque[PersistentMessage]] = defaultdict(deque)
        # What this one has sent over the host and has not arrived, also of messages that are gone.
        self._telling: deque[_core.PendingMessage] = deque()
        self._flying: deque[_core.PendingMessage] = deque()
        self._channels = 0

    def send(self, x: Any, to: int, tag: int, way: str | None) -> PersistentMessage:
        """See `Communicator.persistent_send`."""
        return self._make(x, to, tag, True, way)

    def receive(self, x: Any, source: int, tag: int, way: str | None) -> PersistentMessage:
        """See `Communicator.persistent_receive`."""
        return self._make(x, source, tag, False, way)

    def _make(self, x: Any, peer: int, tag: int, sends: bool, way: str | None) -> PersistentMessage:
        if not 0 <= peer < self.size:
            raise ParameterError(f"rank {peer} does not exist among {self.size} ranks")
        if tag < 0:
            raise ParameterError(f"tag {tag} of a message; tags are numbers from 0")
        return PersistentMessage(self, x, peer, tag, sends, self._checked(way))

    def _checked(self, way: str | None) -> str | None:
        ways = [name for name in (*_PEER, self.library, _STAGED) if name]
        if way is not None and way not in ways:
            raise ParameterError(
                f"way={way}: ways of a message on {self.gpu.kind} devices are {', '.join(ways)}"
            )
        return way

    def reaches(self, peer: int) -> bool:
        """Whether this rank's device and that of `peer` reach each other's memory."""
        return peer != self.rank and not self.ends.why_not(peer)

    def choose(self, peer: int, nbytes: int, way: str | None) -> tuple[str, str]:
        """How a message of this rank to `peer` goes, and why. Raises DeviceError where a way that was named is closed."""
        if peer == self.rank:
            return "local", "to oneself"
        named, told = way or self._forced, "it was named" if way else "message_way"
        closed = self.ends.why_not(peer)
        if named in _PEER and closed:
            raise DeviceError(
                f"messages of rank {self.rank} with rank {peer} cannot go by {named!r}: {closed}"
            )
        if named == self.library and self._ccl is None:
            raise DeviceError(f"messages cannot go by {named!r}: {self.why_not_ccl}")
        if named:
            return named, told
        if not closed:
            rule = f"'remote-write' is for up to {STORE_UP_TO} bytes"
            return _PEER[nbytes > STORE_UP_TO], f"{nbytes} bytes, and {rule}"
        found = (
            (self.library, closed) if self._ccl is not None else (_STAGED, f"{closed}; {self.why_not_ccl}")
        )
        if self.rank < peer:  # one of the two says so
            _core.tell_once(f"messages between devices go by way of {found[0]!r}, since {found[1]}")
        return found

    # --- how two ends meet ------------------------------------------------------------------------------------

    def introduce(self, message: PersistentMessage, trouble: str) -> int:
        """Tell the other end; returns the number under which a staged message's bytes come to this rank."""
        self._channels = (self._channels + 1) % (self._data.largest_tag + 1)
        told = message._told() | {"channel": self._channels, "trouble": trouble[:400]}
        peer = message.peer
        if peer == self.rank:
            self._deliver(peer, told, message)
        else:
            text = json.dumps(told).encode()
            buffer = np.zeros(TOLD_BYTES, np.uint8)
            buffer[: len(text)] = np.frombuffer(text, np.uint8)
            self._keep(self._telling, self._control, self._control.send(buffer, peer, 0))
            heard = np.zeros(TOLD_BYTES, np.uint8)
            self._expected[peer].append((self._control.receive(heard, peer, 0), heard))
        key = (peer, not message.sends, message.tag)
        if self._early[key]:
            message._other = self._early[key].popleft()
            self._pair_up(message)
        else:
            self._waiting[key].append(message)
        return self._channels

    def _keep(
        self, kept: deque[_core.PendingMessage], core: _core.Communicator, pending: _core.PendingMessage
    ) -> None:
        while kept and core.test(kept[0]):
            kept.popleft()
        kept.append(pending)

    def told_to(self, message: PersistentMessage) -> dict[str, Any]:
        """What the other end of this one has told; waits for it."""
        expected = self._expected[message.peer]
        while message._other is None:
            if not expected:
                raise ParameterError(
                    f"{message!r} has no other end on this rank; make both before the first of them starts"
                )
            pending, heard = expected[0]
            what = "receive" if message.sends else "send"
            self._control.wait(
                [pending], f"the persistent_{what} of rank {message.peer} with tag {message.tag}"
            )
            expected.popleft()
            self._deliver(message.peer, json.loads(heard.tobytes().rstrip(b"\0")), None)
        return message._other

    def _deliver(self, peer: int, told: dict[str, Any], teller: PersistentMessage | None) -> None:
        if teller is not None:
            told["teller"] = teller  # of this rank
        key = (peer, bool(told["sends"]), int(told["tag"]))
        if self._waiting[key]:
            message = self._waiting[key].popleft()
            message._other = told
            self._pair_up(message)
        else:
            self._early[key].append(told)

    def _pair_up(self, message: PersistentMessage) -> None:
        assert message._other is not None
        other = message._other.pop("teller", None)
        if other is not None:  # both ends are here
            message._pair = other._pair = other._pair or _Pair()

    # --- starts -----------------------------------------------------------------------------------------------

    def start(self, messages: Sequence[PersistentMessage], stream: Any = None) -> None:
        """See `Communicator.start`."""
        recording.refuse_call("start")
        handle = stream_handle(stream)
        if len(set(map(id, messages))) < len(messages):
            raise ParameterError(
                "a message is started twice at once; start it again when this start is on its stream"
            )
        for message in messages:
            if message.owner is not self:
                raise ParameterError(
                    f"{message!r} is of another communicator or device; start those together"
                )
            message.meet()
        gpu = self.gpu
        # in order with who else uses the arrays; graphs and streams of the caller are put in order by the caller
        theirs: set[int] = set()
        if handle is None and not all(type(m.array) is DeviceArray for m in messages) and not gpu.recording:
            default = vendor(gpu.kind).default_stream
            theirs = {default if m._view.stream is None else m._view.stream for m in messages} - {gpu.stream}
            for owner in theirs:
                gpu.wait_for(owner)
        by_peer: list[Any] = [m._core for m in messages if m._way in _PEER]
        others = [m for m in messages if m._way not in _PEER] if len(by_peer) < len(messages) else []
        staged = [m for m in others if m._way == _STAGED]
        if staged:
            self._send_staged([m for m in staged if m.sends], handle)
        if by_peer:
            _core.PeerMessage.start(by_peer, handle)
        for message in others:
            if message._way == "local":
                self._start_local(message, handle)
        by_ccl = [m for m in others if m._way == self.library]
        if by_ccl:
            assert self._ccl is not None
            by_ccl.sort(key=lambda m: m.tag)  # the library knows no tags: between two ranks, in their order
            self._ccl.exchange([(m._view.address, m._view.nbytes, m.peer, m.sends) for m in by_ccl], handle)
        if staged:
            self._receive_staged([m for m in staged if not m.sends], handle)
        for owner in theirs:
            gpu.let_wait(owner)

    def check(self, messages: Sequence[PersistentMessage]) -> None:
        """See `Communicator.check_messages`."""
        self.recorded(messages).check_together(self._ranks)

    def recorded(self, messages: Sequence[PersistentMessage]) -> _core.RecordedCalls:
        """What this rank gives to its driver in some starts of these messages. Collective."""
        arrays = []
        for message in messages:
            message.meet()
            if message._way == _STAGED:
                raise ParameterError(f"{message!r} goes through the host, where nothing is recorded")
            sender = (self.rank if message.sends else message.peer, message.sent_from)
            label = int.from_bytes(hashlib.blake2b(repr(sender).encode(), digest_size=8).digest())
            arrays.append((message._view.address, message.nbytes, label, message.sends))
        return _core.RecordedCalls(self.gpu, self._ranks, lambda: self.start(messages), arrays)

    def _start_local(self, message: PersistentMessage, stream: int | None) -> None:
        pair = message._pair
        assert pair is not None
        pair.starts[message.sends] += 1
        pair.addresses[message.sends] = message._view.address
        ahead = pair.starts[True] - pair.starts[False]
        if ahead == 0:
            if pair.stream != stream:
                raise ParameterError("the two ends of a message to oneself are started on different streams")
            self.gpu.copy_address(pair.addresses[False], pair.addresses[True], message.nbytes, stream)
        elif abs(ahead) > 1:
            raise ParameterError(f"{message!r} is started again before its other end was")
        pair.stream = stream

    def _send_staged(self, messages: Sequence[PersistentMessage], stream: int | None) -> None:
        if self.gpu.recording:
            raise DeviceError(
                "messages that go through the host ('host-staged') cannot be recorded in a graph"
            )
        if stream is not None:
            self.gpu.wait_for(stream)
        for m in messages:
            assert m._buffer is not None
            if m._sending is not None:
                self._data.wait([m._sending], f"the start before of {m!r}")
            self.gpu.download_address(m._view.address, m._buffer)
            m._sending = self._data.send(m._buffer, m.peer, m._channel)
            self._keep(self._flying, self._data, m._sending)

    def _receive_staged(self, messages: Sequence[PersistentMessage], stream: int | None) -> None:
        pending = [self._data.receive(m._buffer, m.peer, m._channel) for m in messages]
        for m, one in zip(messages, pending, strict=True):
            assert m._buffer is not None
            self._data.wait([one], f"the start of {m!r}")
            if stream is not None:
                self.gpu.wait_for(stream)
            self.gpu.upload_address(m._view.address, m._buffer)


class _Pair:
    """The two ends of a message to oneself, by whether they send: how often they were started, and on which stream last."""

    def __init__(self) -> None:
        self.starts = {True: 0, False: 0}
        self.addresses = {True: 0, False: 0}
        self.stream: int | None = None


def _carrier(way: str) -> str:
    return "memory of peers" if way in _PEER else way


def _described(told: dict[str, Any], rank: int) -> str:
    return f"rank {rank}'s array of {told['bytes']} bytes (shape {told['shape']}, {told['element']})"
