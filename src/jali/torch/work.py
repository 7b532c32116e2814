"""The result of a call of the backend: to wait for, to query, and as a future.

Current streams and devices of PyTorch are read by the functions of `torch._C` that its own compiler's code uses: they
return numbers, where `torch.cuda.current_stream` makes objects, which takes longer than the call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jali import _core
from jali.comm.communicator import Communicator
from jali.errors import ParameterError

_NO_LIMIT = timedelta(0)


class Work(dist._Work):
    """What all of them have."""

    __slots__ = ("_tensors", "number", "source", "what")

    def __init__(self, what: str, tensors: Sequence[torch.Tensor], number: int = 0) -> None:
        dist._Work.__init__(self)
        self.what = what
        self.number = number  # of the call, in the order of the group
        self.source = -1  # of what was received
        self._tensors = list(tensors)

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank


class HostWork(Work):
    """A call that a thread of the group makes. `finish` is called once, when it has been made or has failed."""

    __slots__ = ("_ended", "_error", "_future", "_lock", "_started")

    def __init__(self, what: str, tensors: Sequence[torch.Tensor], number: int = 0) -> None:
        Work.__init__(self, what, tensors, number)
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._started: torch.futures.Future | None = None
        self._future: torch.futures.Future | None = None

    def finish(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._error = error
            self._ended.set()
            started = self._started
        if started is not None:
            started.set_result(None)

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """True when it has ended. Raises DistBackendError where it has failed, or lasts longer than `timeout`."""
        if not self._ended.is_set():
            limit = timeout.total_seconds() if timeout and timeout > _NO_LIMIT else None
            if not self._ended.wait(limit):
                raise dist.DistBackendError(f"{self.what} has not ended after {limit:g} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors. It has the error for all waiters, in C++ too, where a Python future's exception is a value."""
        with self._lock:
            if self._future is None:
                started: torch.futures.Future = torch.futures.Future()
                self._future = started.then(self._outcome)
                if self._ended.is_set():
                    started.set_result(None)
                else:
                    self._started = started
            return self._future

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors


class DeviceWork(Work):
    """A call that is on a stream of a device already: `wait` makes the caller's stream wait, and not the host.

    A captured call runs only when its graph is launched, so a query of its completion is an error.
    """

    __slots__ = ("_future", "device_and_stream", "kept", "request")

    def __init__(
        self,
        what: str,
        tensors: Sequence[torch.Tensor],
        number: int,
        device_and_stream: tuple[int, int],
        steps: Sequence[Any],
    ) -> None:
        Work.__init__(self, what, tensors, number)
        self.device_and_stream = device_and_stream  # number of the device, handle of the stream
        self.kept = [steps]  # until the caller's stream waits: what the stream still uses
        self.request: _core.DeviceRequest = None  # type: ignore[assignment]
        self._future: torch.futures.Future | None = None

    def put(self, world: Communicator) -> None:
        """Puts it on its stream: once, while `world` is not in use."""
        (steps,) = self.kept
        index, stream = self.device_and_stream
        how = {"stream": stream, "blocking": False}
        if torch._C._cuda_getDevice() == index and not any([step.copies for step in steps]):
            for step in steps:
                self.request = step.start(world, how)
            return
        with torch.cuda.stream(_stream_of(*self.device_and_stream)):  # where PyTorch copies, too
            for step in steps:
                step.begin()
            for step in steps:
                self.request = step.start(world, how)
            for step in steps:
                step.end()
        self.request.extend()

    def is_completed(self) -> bool:
        if self.request.captured:
            raise ParameterError(f"{self.what} is captured in a graph, and made when that is launched")
        return self.request.test()

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> Exception | None:
        return None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        self.request.let_wait(torch._C._cuda_getCurrentRawStream(self.device_and_stream[0]))
        self.kept.clear()
        return True

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            future: torch.futures.Future = torch.futures.Future(
                devices=[torch.device("cuda", self.device_and_stream[0])]
            )
            with torch.cuda.stream(_stream_of(*self.device_and_stream)):  # whose event the future takes
                future.set_result(self._tensors)
            self._future = future
        return self._future


def _stream_of(index: int, handle: int) -> Any:
    """The stream of this handle, for PyTorch."""
    device = torch.device("cuda", index)
    return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)


class Together(Work):
    """Several works as one, in the order of their start."""

    __slots__ = ("_works",)

    def __init__(self, what: str, works: Sequence[Work]) -> None:
        Work.__init__(self, what, [tensor for work in works for tensor in work._tensors])
        self._works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        return all([work.wait(timeout) for work in self._works])

    def get_future(self) -> torch.futures.Future:
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(
            lambda all: [tensor for future in all.value() for tensor in future.value()]
        )
