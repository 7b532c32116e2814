"""A transport between processes without a launcher: TCP sockets between all pairs.

Ranks exchange addresses by the functions `publish` and `find` of the caller, such as those of PyTorch's store. Ranks
of one host share memory for their messages (`of_processes`); sockets then carry the control plane and messages to
other hosts. Frames are a tag, a length and bytes. Nothing is encrypted; a peer must send the published number.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import select
import socket
import struct
import termios
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from jali import _core
from jali.comm.transport import Transport
from jali.errors import RankError

_FRAME = struct.Struct("<QQ")  # tag, bytes
_HELLO = struct.Struct("<32sI")  # the number that was published, rank
_LAST_FRAME = (1 << 64) - 1  # the tag of a rank's last frame
_SPLICED = 1 << 16  # bytes up to which a frame is put together, which costs less than two pieces


class SendingMessage:
    __slots__ = ("borrowed", "left", "to")

    def __init__(self, to: int, pieces: list[memoryview], borrowed: memoryview | None = None) -> None:
        self.to = to
        self.left = pieces
        self.borrowed = borrowed  # released when its bytes, which pieces still show, change owner


class ReceivingMessage:
    __slots__ = ("body", "source")

    def __init__(self, source: int) -> None:
        self.source = source
        self.body: Any = None


class _Peer:
    """The connection with one rank."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.connection = connection
        self.outgoing: deque[SendingMessage] = deque()
        self.writes = False  # it is polled for writing
        self.head = bytearray(_FRAME.size)
        self.tag = 0
        self.body: bytearray | None = None
        self.filled = 0
        self.sent_last = self.is_closed = False
        self.fault = ""  # of this rank, for which the connection was ended


class SocketTransport(Transport):
    """Messages between processes by TCP. Any thread may set `stop`; it is raised where this rank waits.

    `publish(key, text)` and `find(key)` exchange addresses; `find` waits for the text, up to a timeout of its own.
    `near` is an address that all ranks reach: the local end of a route to it is the first address that a rank publishes.
    Raises RankError where a rank is not reached in `seconds`.
    """

    name = "sockets"
    of_processes = True

    def __init__(
        self,
        rank: int,
        size: int,
        publish: Callable[[str, str], None],
        find: Callable[[str], str],
        near: str = "",
        seconds: float = 300.0,
    ) -> None:
        self.rank, self.size = rank, size
        self.stop: Exception | None = None
        self.deadline = float("inf")  # of time.monotonic(): a longer wait raises `late`
        self.late: Callable[[], Exception] = lambda: TimeoutError("a message")
        self.giving_up: Callable[[Exception], None] = lambda error: (
            None
        )  # to notify others of the cause, before it is raised
        self._peers: dict[int, _Peer] = {}
        self._by_file: dict[int, _Peer] = {}
        self._came: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self._posted: dict[tuple[int, int], deque[ReceivingMessage]] = defaultdict(deque)
        self._poll = select.epoll()
        _transports.add(self)
        try:
            self._connect(publish, find, near, time.monotonic() + seconds)
        except BaseException:
            self._disconnect()  # without a goodbye: ranks that are connected would wait for this one
            raise

    # --- making connections -----------------------------------------------------------------------------------

    def _connect(
        self, publish: Callable[[str, str], None], find: Callable[[str], str], near: str, limit: float
    ) -> None:
        if self.size == 1:
            return
        secret = secrets.token_bytes(32)
        with socket.create_server(("", 0), backlog=self.size) as server:
            contact = {
                "host": _core.host_identity(),
                "addresses": _addresses(near),
                "port": server.getsockname()[1],
                "secret": secret.hex(),
            }
            publish(str(self.rank), json.dumps(contact))
            for rank in range(self.rank):
                self._add(rank, self._reach(rank, json.loads(find(str(rank))), limit))
            while len(self._peers) < self.size - 1:
                self._accept(server, secret, limit)

    def _reach(self, rank: int, contact: dict[str, Any], limit: float) -> socket.socket:
        here = contact["host"] == _core.host_identity()
        addresses = (["127.0.0.1"] if here else []) + contact["addresses"]
        reported = []
        for address in addresses:
            try:
                connection = socket.create_connection(
                    (address, contact["port"]), timeout=min(10.0, max(0.1, limit - time.monotonic()))
                )
                connection.sendall(_HELLO.pack(bytes.fromhex(contact["secret"]), self.rank))
                connection.settimeout(max(0.1, limit - time.monotonic()))  # it may still wait for others
                if _read(connection, 1) == b"\1":
                    return connection
                connection.close()
                reported.append(f"{address}: another program answers")
            except OSError as error:
                reported.append(f"{address}: {error}")
        raise RankError(
            f"rank {self.rank} cannot connect to rank {rank} at port {contact['port']} of {'; '.join(reported)}. Ranks need "
            "TCP connections with each other: open the ports between their hosts"
        )

    def _accept(self, server: socket.socket, secret: bytes, limit: float) -> None:
        server.settimeout(max(0.0, limit - time.monotonic()))
        try:
            connection, _ = server.accept()
        except OSError:
            missing = [rank for rank in range(self.rank + 1, self.size) if rank not in self._peers]
            raise RankError(
                f"rank {self.rank} was not called by rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}: did "
                "they start, and do they call the same?"
            ) from None
        connection.settimeout(10.0)
        try:
            reported, rank = _HELLO.unpack(_read(connection, _HELLO.size))
            known = hmac.compare_digest(reported, secret) and self.rank < rank < self.size
            if not known or rank in self._peers:
                connection.close()
                return
            connection.sendall(b"\1")
        except (OSError, struct.error):  # a foreign program, or one that ended
            connection.close()
            return
        self._add(rank, connection)

    def _add(self, rank: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        peer = self._peers[rank] = self._by_file[connection.fileno()] = _Peer(rank, connection)
        self._poll.register(peer.connection, select.EPOLLIN)

    # --- messages ---------------------------------------------------------------------------------------------

    def send(self, data: memoryview, to: int, tag: int) -> Any:
        borrowed = data
        data = data.cast("B") if data.nbytes else memoryview(b"")
        if to == self.rank:
            self._deliver(self.rank, tag, bytes(data))
            return SendingMessage(to, [])
        head = _FRAME.pack(tag, data.nbytes)
        if data.nbytes <= _SPLICED:
            message = SendingMessage(to, [memoryview(head + bytes(data))])
        else:
            message = SendingMessage(to, [memoryview(head), data], borrowed)
        return self._post(self._peers[to], message)

    def _post(self, peer: _Peer, message: SendingMessage) -> SendingMessage:
        if peer.is_closed:
            message.left = []
            return message
        peer.outgoing.append(message)
        if len(peer.outgoing) == 1:
            self._write(peer)
        return message

    def sent(self, message: SendingMessage) -> bool:
        if message.left:
            self._progress()
        return not message.left

    def receive(self, source: int, tag: int) -> Any:
        message = ReceivingMessage(source)
        came = self._came.get((source, tag))
        if came:
            message.body = came.popleft()
            if not came:
                del self._came[source, tag]
        else:
            self._posted[source, tag].append(message)
        return message

    def received(self, message: ReceivingMessage) -> Any:
        if message.body is None:
            self._progress()
        if message.body is None:
            self._refuse_to_wait(message.source)
            return None
        body, message.body = message.body, b""
        return body

    def _refuse_to_wait(self, source: int) -> None:
        error: Any = self.stop
        if error is None and time.monotonic() > self.deadline:
            error = self.late()
        peer = self._peers.get(source)
        if error is None and peer is not None and peer.is_closed and not peer.sent_last:
            rank, cause = (self.rank, peer.fault) if peer.fault else (source, "its process has died")
            error = RankError(f"rank {rank} failed: {cause} (the connection with rank {source} ended)")
            error.rank, error.cause = rank, cause
            raise error  # the others detect it, and it may have sent the cause
        if error is not None:
            self.giving_up(error)
            raise error

    def _deliver(self, source: int, tag: int, body: Any) -> None:
        posted = self._posted.get((source, tag))
        if not posted:
            self._came[source, tag].append(body)
            return
        posted.popleft().body = body
        if not posted:
            del self._posted[source, tag]

    # --- what the sockets do ----------------------------------------------------------------------------------

    def _progress(self, seconds: float = 0.0) -> None:
        for file, what in self._poll.poll(seconds):
            peer = self._by_file[file]
            if what & ~select.EPOLLOUT:
                self._read_from(peer)
            if what & select.EPOLLOUT and not peer.is_closed:
                self._write(peer)

    def _write(self, peer: _Peer) -> None:
        try:
            while peer.outgoing:
                message = peer.outgoing[0]
                if message.borrowed is not None:
                    message.borrowed.nbytes  # noqa: B018  # ValueError if it was released
                count = peer.connection.sendmsg(message.left)
                while message.left and count >= message.left[0].nbytes:
                    count -= message.left[0].nbytes
                    message.left.pop(0)
                if not message.left:
                    peer.outgoing.popleft()
                elif count:
                    message.left[0] = message.left[0][count:]
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self._read_from(peer)  # it can have sent this rank something before it left
            if not peer.is_closed:  # but the frame cannot be completed
                why = "given up before it was sent" if isinstance(error, ValueError) else f"not sent: {error}"
                peer.fault = f"a message to rank {peer.rank} was {why}"
                self._mark_closed(peer)
            return
        if bool(peer.outgoing) != peer.writes:
            peer.writes = bool(peer.outgoing)
            self._poll.modify(peer.connection, select.EPOLLIN | (select.EPOLLOUT if peer.writes else 0))

    def _read_from(self, peer: _Peer) -> None:
        try:
            while True:
                into = memoryview(peer.head if peer.body is None else peer.body)
                if peer.filled < len(into):
                    count = peer.connection.recv_into(into[peer.filled :])
                    if count == 0:
                        self._mark_closed(peer)
                        return
                    peer.filled += count
                    if peer.filled < len(into):
                        continue
                if peer.body is None:
                    peer.tag, length = _FRAME.unpack(peer.head)
                    peer.body, peer.filled = bytearray(length), 0
                    if length:
                        continue
                body, peer.body, peer.filled = peer.body, None, 0
                if peer.tag == _LAST_FRAME:
                    peer.sent_last = True
                else:
                    self._deliver(peer.rank, peer.tag, body)
        except BlockingIOError:
            pass
        except OSError:
            self._mark_closed(peer)

    def _mark_closed(self, peer: _Peer) -> None:
        peer.is_closed = True
        for message in peer.outgoing:
            message.left = []
        peer.outgoing.clear()
        self._poll.unregister(peer.connection)
        del self._by_file[peer.connection.fileno()]
        peer.connection.close()

    def close(self, seconds: float = 2.0) -> None:
        """Notify all ranks of the departure, and close the connections when their hosts have received all, or after
        so many seconds.

        The memory of a host is limited: of messages of some megabytes to a rank that does not read, the rest is lost then.
        """
        if self._poll.closed:
            return
        last = _FRAME.pack(_LAST_FRAME, 0)
        farewells = [
            self._post(peer, SendingMessage(peer.rank, [memoryview(last)])) for peer in self._peers.values()
        ]
        limit = time.monotonic() + seconds
        waits = 1e-4
        while (
            any(farewell.left for farewell in farewells) or any(map(_has_unsent, self._peers.values()))
        ) and time.monotonic() < limit:
            self._progress(waits)
            waits = min(2 * waits, 0.01)
        self._progress()  # a connection that is closed with something unread loses what it has not sent
        self._disconnect()

    def _disconnect(self) -> None:
        for peer in self._peers.values():
            if not peer.is_closed:
                peer.connection.close()
        self._peers.clear()
        self._by_file.clear()
        self._poll.close()


def _has_unsent(peer: _Peer) -> bool:
    """Whether this host has bytes of the connection that the other host has not confirmed."""
    count = bytearray(4)
    if not peer.is_closed:
        fcntl.ioctl(peer.connection, termios.TIOCOUTQ, count)
    return any(count)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise OSError("the connection was closed")
        data += more
    return data


def _addresses(near: str) -> list[str]:
    """Addresses of this host, the likeliest first."""
    found = []
    if near:
        try:
            for family, kind, _, _, address in socket.getaddrinfo(near, 9, type=socket.SOCK_DGRAM):
                with socket.socket(family, kind) as probe:
                    probe.connect(address)  # sends nothing: it only finds the route
                    found.append(probe.getsockname()[0])
        except OSError:
            pass
    with contextlib.suppress(OSError):
        found += [address[0] for *_, address in socket.getaddrinfo(socket.gethostname(), None)]
    return list(dict.fromkeys(str(address) for address in found))


_transports: weakref.WeakSet[SocketTransport] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """The death of a rank's process would not be detected while a forked child holds its connections."""
    for transport in list(_transports):
        transport._disconnect()


os.register_at_fork(after_in_child=_let_go_in_child)
