"""What a call of the backend returns: to wait for, to ask, and as a future."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from jali import _core
from jali.errors import ParameterError

_NO_LIMIT = timedelta(0)


class Work(dist._Work):
    """A call that a thread of the group makes. `finish` is called once, when it has been made or has failed."""

    def __init__(self, what: str, tensors: Sequence[torch.Tensor], number: int = 0) -> None:
        super().__init__()
        self.what = what
        self.number = number  # of the call, in the order of the group
        self.source = -1  # of what was received
        self._tensors = list(tensors)
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

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors. It carries the error for whoever waits, in C++ too, where a Python future's exception is a value."""
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
    """A call that is on `stream` of a device already: waiting lets the caller's stream wait, and not the host.

    What a graph captures is only made when the graph is launched, so that asking whether it has ended is an error.
    """

    def __init__(
        self,
        what: str,
        tensors: Sequence[torch.Tensor],
        number: int,
        stream: Any,
        requests: Sequence[Any],
        kept: Sequence[Any],
    ) -> None:
        super().__init__(what, tensors, number)
        self._stream = stream
        self._event = torch.cuda.Event()
        self._event.record(stream)
        self.requests = requests  # of jali
        self._kept: Any = kept  # until the caller's stream waits: what the stream still uses
        self._device = stream.device
        self.is_captured = torch.cuda.is_current_stream_capturing()  # of `stream`, which is the current one

    def is_completed(self) -> bool:
        if self.is_captured:
            raise ParameterError(f"{self.what} is captured in a graph, and made when that is launched")
        return self._event.query()

    def is_success(self) -> bool:
        return self.is_completed()

    def let_others_capture(self) -> None:
        """The calling thread may look at events while another captures a graph."""
        kind = "hip" if torch.version.hip else "cuda"
        _core.Gpu.open(kind, self._device.index).let_others_capture()

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._kept = None
        return True

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future(devices=[self._device])
                with torch.cuda.stream(self._stream):  # whose event the future takes
                    self._future.set_result(self._tensors)
            return self._future


class Together(Work):
    """Several works as one, in the order of their start."""

    def __init__(self, what: str, works: Sequence[Work]) -> None:
        super().__init__(what, [tensor for work in works for tensor in work._tensors])
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
