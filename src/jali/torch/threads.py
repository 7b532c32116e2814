"""The threads of a process group: each has a communicator of its own, which it alone uses while it works.

`CollectiveThread` makes collective calls in the order of issue, which is the same on all ranks. `MessageThread` has sends and
receives under way, any number at once, beside them. Any failure fails the group: the other ranks receive the cause, and every
current or later call raises it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import struct
import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from jali import _core, settings
from jali.comm.communicator import Communicator, as_cause
from jali.comm.sockets import SocketTransport
from jali.comm.transport import over
from jali.errors import ParameterError
from jali.torch.tensors import gpu_of
from jali.torch.work import DeviceWork, HostWork

BETWEEN_CHECKS = 0.2  # seconds, at what streams have to do
_MANY = 256  # calls on streams, after which checks are more frequent
TIMEOUT = 4.0  # seconds in which a thread is expected to stop after a request


class GroupThread:
    """A thread with a communicator over the transport that `connect` gives."""

    def __init__(
        self, name: str, connect: Callable[[], SocketTransport], fail_group: Callable[[Exception], None]
    ):
        self.lock = threading.RLock()  # of what follows; entered as it is, which is quicker than `changed`
        self.changed = threading.Condition(self.lock)
        self.failure: Exception | None = None
        self.world: Communicator = None  # type: ignore[assignment]
        self._transport: SocketTransport | None = None
        self._connect = connect
        self._fail_group = fail_group
        self._ready = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def await_ready(self) -> None:
        """Returns when the ranks are connected; raises what prevented it."""
        self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._transport = self._connect()
            self._transport.giving_up = lambda error: self.world.fail(as_cause(error))
            with over(self._transport, settings.current().threads or 1) as self.world:
                self.set_up()
                self._ready.set()
                try:
                    self.work()
                finally:
                    if self.failure is not None:
                        self.world.fail(as_cause(self.failure.__cause__ or self.failure))
        except Exception as error:  # raised in the caller
            self.fail(error)
        finally:
            self._ready.set()
            self.let_go()
            self.world = None  # type: ignore[assignment]
            if self._transport is not None:
                self._transport.close()

    def fail(self, error: Exception) -> None:
        """From now on every call raises this; the thread ends. By any thread; the first failure counts."""
        with self.changed:
            if self.failure is None:
                self.failure = _as_backend_error(error)
            failure = self.failure
            if self._transport is not None and self._transport.stop is None:
                self._transport.stop = failure
            self._ending = True
            self.changed.notify_all()
        self.drop_all(failure)
        self._fail_group(failure)

    def stop(self, seconds: float) -> bool:
        """Ends the thread after all issued calls; whether that was so after `seconds`."""
        with self.changed:
            self._ending = True
            self.changed.notify_all()
        if self._thread is threading.current_thread():
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def set_up(self) -> None: ...

    @abstractmethod
    def work(self) -> None:
        """Until `_ending`; raises what fails the group."""

    def let_go(self) -> None:
        """Drops the objects of the communicator, and its memory."""

    @abstractmethod
    def drop_all(self, failure: Exception) -> None:
        """Fails calls that were not made."""


def _as_backend_error(error: Exception) -> Exception:
    if isinstance(error, dist.DistError):
        return error
    raised = dist.DistBackendError(f"jali: {as_cause(error)}")
    raised.__cause__ = error
    return raised


@dataclass
class Call:
    """A collective call: `make` is given the communicator."""

    work: HostWork
    make: Callable[[Communicator], None]
    limit: float  # seconds that it may take
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limit

    def too_late(self) -> Exception:
        return _too_late(self.work.what, self.limit)


def _too_late(what: str, limit: float) -> Exception:
    return dist.DistBackendError(
        f"{what} has not ended after {limit:g} s: not all ranks have called it in that time (timeout= of the group or of the call)"
    )


class _OnStream(NamedTuple):
    """A pending call of a stream. Without its `DeviceWork`, whose results the caller keeps."""

    request: _core.DeviceRequest
    device_and_stream: tuple[int, int]  # device and stream
    kept: list[Any]  # what the stream uses, until the caller has waited
    what: str
    limit: float
    deadline: float


class CollectiveThread(GroupThread):
    def __init__(self, *arguments: Any) -> None:
        self._calls: deque[Call] = deque()
        self._busy = False
        self._waiting = 0  # threads in `enqueue`
        self._lets_capture = False  # queries of streams would end captures of graphs otherwise
        self._on_device: deque[_OnStream] = deque()
        self._watches = False  # the thread, which wakes up by itself
        self._wants_turn = False  # the thread, which would always be too late
        super().__init__(*arguments)

    def set_up(self) -> None:
        _ = self.world.collectives

    def issue(self, call: Call, waited_for: bool) -> None:
        """Makes a call after those before it. One that is waited for anyway, and comes at once, is made by the calling thread."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if self._ending:
                raise dist.DistBackendError(f"{call.work.what}: the group has been shut down")
            if self._busy or self._calls or self._wants_turn or not waited_for:
                self._calls.append(call)
                self.changed.notify_all()
                return
            self._busy = True
        try:
            self._perform(call)
        except BaseException as error:
            if not isinstance(error, Exception):  # such as KeyboardInterrupt, in the middle of the call
                error = dist.DistBackendError(f"{call.work.what} was stopped by {as_cause(error)}")
                self.fail(error)
                raise
            self.fail(error)
        finally:
            self._rest()

    def work(self) -> None:
        next_check = 0.0
        while True:
            with self.lock:
                if self._busy or not (self._calls or self._is_over()):
                    self._watches = bool(self._on_device)
                    self.changed.wait(BETWEEN_CHECKS if self._watches else None)
                checks = bool(self._on_device) and (
                    len(self._on_device) >= _MANY or time.monotonic() >= next_check
                )
                # also after a failure: the communicator is in use until that call has raised
                if self._busy:
                    self._wants_turn = checks
                    continue
                self._wants_turn = False
                if self._is_over():
                    return
                call = self._calls.popleft() if self._calls else None
                if call is None and not checks:
                    continue
                self._busy = True
            try:
                if call is not None:
                    self._perform(call)
                else:
                    next_check = time.monotonic() + BETWEEN_CHECKS
                    self._check_streams()
            finally:
                self._rest()

    def _is_over(self) -> bool:  # only called by this thread
        if self.failure is not None:
            return True
        if not self._ending or self._calls:
            return False
        self._forget_what_is_done()
        return not self._on_device

    def _forget_what_is_done(self) -> None:
        """Finds the last completed call of each stream: earlier ones need no query."""
        if not self._on_device:
            return
        if not self._lets_capture:
            gpu_of(self._on_device[0].device_and_stream[0]).let_others_capture()
            self._lets_capture = True
        done: set[tuple[int, int]] = set()
        left = []
        calls = list(self._on_device)  # others append meanwhile
        for call in reversed(calls):
            if call.device_and_stream not in done:
                if call.request.test():
                    done.add(call.device_and_stream)
                else:
                    left.append(call)
        for _ in calls:
            self._on_device.popleft()
        self._on_device.extendleft(left)

    def _check_streams(self) -> None:
        """The host does not wait for work on a stream, so this thread detects that a rank has failed, or that a call lasts too long."""
        self._forget_what_is_done()
        if not self._on_device:
            return
        oldest = self._on_device[0]
        transport: Any = self._transport
        try:
            transport.deadline = oldest.deadline
            transport.late = functools.partial(_too_late, oldest.what, oldest.limit)
            self.world.check()
        except Exception:
            with contextlib.suppress(Exception):
                oldest.request.wait_on_host()  # which stops the kernels that wait for other ranks
            raise
        finally:
            transport.deadline = float("inf")

    def _rest(self) -> None:
        with self.lock:
            self._busy = False
            # Waking a thread that has nothing to do costs more than the call.
            if (
                self._calls
                or self._ending
                or self._waiting
                or self._wants_turn
                or (self._on_device and (not self._watches or len(self._on_device) % _MANY == 0))
            ):
                self._watches = True
                self.changed.notify_all()

    def _perform(self, call: Call) -> None:
        transport: Any = self._transport
        try:
            transport.deadline, transport.late = call.deadline, call.too_late
            call.make(self.world)
        except Exception as error:
            self.fail(error)  # before a caller is notified, and calls again
            call.work.finish(self.failure)
            raise
        finally:
            transport.deadline = float("inf")
        call.work.finish()

    def enqueue(self, work: DeviceWork, limit: float) -> None:
        """Puts it on its stream with the communicator, in the calling thread, after all calls before it.

        It is monitored, and what it uses is kept, until the stream has completed it; what is captured belongs to the
        graph.
        """
        with self.lock:
            if self._busy or self._calls or self._ending or self._wants_turn:
                self._await_turn()
            self._busy = True
        try:
            work.put(self.world)
            request = work.request
            if not request.captured:
                self._on_device.append(
                    _OnStream(
                        request, work.device_and_stream, work.kept, work.what, limit, time.monotonic() + limit
                    )
                )
        except ParameterError:
            raise
        except Exception as error:
            self.fail(error)
            raise _as_backend_error(error) from error
        finally:
            self._rest()

    def _await_turn(self) -> None:
        self._waiting += 1
        self.changed.wait_for(lambda: not (self._busy or self._calls or self._wants_turn) or self._ending)
        self._waiting -= 1
        if self.failure is not None:
            raise self.failure
        if self._ending:
            raise dist.DistBackendError("the group has been shut down")

    def drop_all(self, failure: Exception) -> None:
        with self.changed:
            calls, self._calls = self._calls, deque()
        for call in calls:
            call.work.finish(failure)


# What opens a message: the tag of PyTorch, which jali's are too small for, bytes, and the tag of jali under which they come.
_ENVELOPE = struct.Struct("<qqq")
_OF_ENVELOPES = 0
_BODIES = 32000  # tags of bodies, used in turn


@dataclass
class Message:
    work: HostWork
    data: Any  # bytes, as an array
    peer: int  # -1: any
    tag: int
    limit: float
    deadline: float = field(init=False)
    done: Callable[[], None] = lambda: None
    parts: list[Any] = field(default_factory=list)
    envelope: Any = None

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limit


class MessageThread(GroupThread):
    """Each message is an envelope and a body. A request for every rank's envelope is always pending, so a receive may
    name a tag, or no rank."""

    def __init__(self, *arguments: Any) -> None:
        self._sends: deque[Message] = deque()
        self._receives: deque[Message] = deque()
        self._opened: dict[int, tuple[Any, Any]] = {}  # by rank: the requested envelope, and its bytes
        self._wanted: list[Message] = []  # receives whose envelope has not arrived
        self._under_way: list[Message] = []
        super().__init__(*arguments)

    def set_up(self) -> None:
        self._channel = self.world.sharing_memory()
        self._sent = [0] * self._channel.size
        self._come: list[tuple[int, int, int, int]] = []  # rank and envelope of messages not yet requested

    def let_go(self) -> None:
        self._channel = None  # type: ignore[assignment]
        self._opened = {}
        for message in [*self._wanted, *self._under_way]:
            message.parts.clear()
        self._wanted, self._under_way = [], []

    def issue(self, message: Message, sends: bool) -> None:
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if self._ending:
                raise dist.DistBackendError(f"{message.work.what}: the group has been shut down")
            (self._sends if sends else self._receives).append(message)
            self.changed.notify_all()

    def work(self) -> None:
        try:
            for peer in range(self._channel.size):
                if peer != self._channel.rank:
                    self._ask(peer)
            self._serve()
        except Exception as error:
            self.fail(error)  # all messages report the first failure
            for message in [*self._wanted, *self._under_way]:
                message.work.finish(self.failure)
            raise

    def _serve(self) -> None:
        idle = 0
        while True:
            with self.changed:
                if not self._wanted and not self._under_way:
                    self.changed.wait_for(lambda: self._sends or self._receives or self._ending)
                    idle = 0
                if self.failure is not None:
                    raise self.failure
                if self._ending and not (self._sends or self._receives or self._wanted or self._under_way):
                    return
                sends, self._sends = self._sends, deque()
                self._wanted.extend(self._receives)
                self._receives.clear()
                self._under_way.extend(sends)
            moved = bool(sends)
            for message in sends:
                self._send(message)
            moved |= self._read_envelopes()
            for message in list(self._wanted):
                if self._match(message):
                    self._wanted.remove(message)
                    self._under_way.append(message)
                    moved = True
            for message in list(self._under_way):
                if all([self._channel.test(part) for part in message.parts]):
                    message.done()
                    self._under_way.remove(message)
                    message.work.finish()
                    moved = True
            self._check_clock()
            idle = 0 if moved else idle + 1
            if idle:  # others of this process need the interpreter
                time.sleep(0 if idle < 200 else 5e-5 if idle < 2000 else 1e-3)

    def _send(self, message: Message) -> None:
        tag = 1 + self._sent[message.peer] % _BODIES
        self._sent[message.peer] += 1
        message.envelope = np.frombuffer(_ENVELOPE.pack(message.tag, message.data.nbytes, tag), np.uint8)
        message.parts = [self._channel.send(message.envelope, message.peer, _OF_ENVELOPES)]
        if message.data.nbytes:
            message.parts.append(self._channel.send(message.data, message.peer, tag))

    def _ask(self, peer: int) -> None:
        into = np.empty(_ENVELOPE.size, np.uint8)
        self._opened[peer] = (self._channel.receive(into, peer, _OF_ENVELOPES), into)

    def _read_envelopes(self) -> bool:
        moved = False
        for peer, (pending, into) in list(self._opened.items()):
            if self._channel.test(pending):
                self._come.append((peer, *_ENVELOPE.unpack(into)))
                self._ask(peer)
                moved = True
        return moved

    def _match(self, message: Message) -> bool:
        for come in self._come:
            peer, tag, count, body = come
            if tag != message.tag or message.peer not in (-1, peer):
                continue
            self._come.remove(come)
            if count != message.data.nbytes:
                raise ParameterError(
                    f"{message.work.what} takes {message.data.nbytes} bytes, but rank {peer} sent {count} with tag {tag}"
                )
            message.work.source = peer
            if count:
                message.parts = [self._channel.receive(message.data, peer, body)]
            return True
        return False

    def _check_clock(self) -> None:
        now = time.monotonic()
        for message in [*self._wanted, *self._under_way]:
            if now > message.deadline:
                raise dist.DistBackendError(
                    f"{message.work.what} has not ended after {message.limit:g} s (timeout= of the group)"
                )

    def drop_all(self, failure: Exception) -> None:
        with self.changed:
            left = [*self._sends, *self._receives]
            self._sends.clear()
            self._receives.clear()
        for message in left:
            message.work.finish(failure)


_groups: weakref.WeakSet[Any] = weakref.WeakSet()


def end_with_program(group: Any) -> None:
    """`group.shutdown()` before the interpreter goes, for which threads must not wait any more."""
    _groups.add(group)


@atexit.register
def _end_all() -> None:
    for group in list(_groups):
        with contextlib.suppress(Exception):
            group.shutdown()
