"""What repetitions of a graph leave, one after the other, for a host that reads while later ones already run.

A number of a graph has the value of its last repetition, and who reads it waits for that one. Kept results are copied at the end of each
repetition, by a kernel of the graph, to where the host sees them; so a device need not wait for the host between two.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jali import _core
from jali.codegen import kernel_cache
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.codegen.number_kernels import kept_results_kernel
from jali.errors import RecordingError
from jali.lattice.overflow import LaunchCount, raise_if_found, unreported
from jali.lattice.scalar_parts import MOST_EXTENT, THREADS, in_order
from jali.lattice.scalars import Condition, LocatedArray, LocatedValue

MOST = 2 * MOST_EXTENT * MOST_EXTENT  # numbers of a block of the core


class _Part(NamedTuple):
    """Where a result begins among the doubles of a repetition, and what it is: "number", "bool", "complex", or an array's kind and shape."""

    first: int
    kind: str
    shape: tuple[int, ...] | None = None


class KeptResults:
    """The numbers that a graph gives, of as many repetitions as are asked for. Nothing else may repeat the graph."""

    def __init__(self, lattice: Any, results: Sequence[Any], counting: Sequence[Any], repetitions: int):
        """`counting` are calls whose counts several ranks check together, alike on all of them; on one rank results have their counts."""
        gpu = lattice.gpu
        self.gpu, self.lattice, self.counting = gpu, lattice, counting
        self.results, self.repetitions = list(results), repetitions
        self._waiting: deque[Any] = deque()  # the numbers of each; of a device the events behind each
        addresses: list[int] = []
        self._parts = [self._part(one, addresses) for one in self.results]
        self._numbers = len(addresses)
        counts = [count for call in counting for count in call.counts()]
        counts += [count for one in self.results for count in _overflow_counts(one)]
        self._counts = list(dict.fromkeys(counts))
        self._counters = [count for count in self._counts if isinstance(count, LaunchCount)]
        addresses += [count.counters.address + 8 * count.number for count in self._counters]
        self._count = 0  # of repetitions so far
        if gpu is None:
            self._here = [ctypes.c_double.from_address(address) for address in addresses]
            return
        each = MOST // max(2, repetitions)
        self._copies = [
            _Copy(gpu, addresses[k : k + each], repetitions) for k in range(0, len(addresses), each)
        ]
        self._events = [_core.GpuEvent(gpu, False) for _ in range(repetitions)]

    def _part(self, result: Any, addresses: list[int]) -> _Part:
        first = len(addresses)
        if isinstance(result, LocatedArray):
            addresses += [result.address(k) for k in range(_reals(result))]
            return _Part(first, result.kind, result.shape)
        if not isinstance(result, LocatedValue):
            return _Part(first, "constant")
        for part in result.parts:
            assert part.location is not None
            addresses.append(part.location[0].address(part.location[1]))
        if isinstance(result, Condition):
            return _Part(first, "bool")
        return _Part(first, "complex" if len(result.parts) > 1 else "number")

    def record(self) -> None:
        """Puts the copy behind the operations of a graph that is captured."""
        if self.gpu is not None:
            for copy in self._copies:
                copy.record()

    def make_room(self) -> None:
        """Called before each repetition. Raises RecordingError where it would take the place of one that has not been read."""
        if len(self._waiting) == self.repetitions:
            raise RecordingError(
                f"a graph keeps the results of {self.repetitions} repetitions, and none of these has been read"
            )

    def repeated(self) -> None:
        """Called behind each repetition."""
        if self.gpu is None:
            self._waiting.append(np.array([number.value for number in self._here]))
            return
        event = self._events[self._count % self.repetitions]
        with in_order:
            self.gpu.record(event)
        self._waiting.append((self._count % self.repetitions, event))
        self._count += 1

    def next(self) -> list[Any]:
        """The results of the first repetition that has not been read; waits for it. Raises what reading a number does, on all ranks where it was found on one."""
        seen = self._waiting.popleft()
        if self.gpu is not None:
            row, event = seen
            event.wait()
            seen = np.concatenate([copy.seen[row] for copy in self._copies])
        if self._counts or self.counting:
            self._raise_if_found(seen[self._numbers :].view(np.int64).tolist())
        values = seen[: self._numbers].tolist()
        return [
            values[part.first] if part.kind == "number" else self._value(part, result, seen)
            for part, result in zip(self._parts, self.results, strict=True)
        ]

    def _raise_if_found(self, counted: list[int]) -> None:
        """Raises for sites that have been counted in this repetition."""
        found = counted != [count.reported for count in self._counters] or len(counted) < len(self._counts)
        ranks = self.lattice.communicator
        if ranks.size == 1:
            if found:
                raise_if_found(unreported(self._counts))
            return
        somewhere = np.array([found or bool(self.lattice.left)], float)
        ranks.all_reduce(somewhere, somewhere)
        if somewhere[0]:
            for call in self.counting:
                call.raise_if_overflow()

    def _value(self, part: _Part, result: Any, seen: np.ndarray) -> Any:
        if part.kind == "constant":
            return result
        if part.shape is None:
            first = seen[part.first]
            return bool(first != 0) if part.kind == "bool" else complex(first, seen[part.first + 1])
        found = seen[part.first : part.first + _reals(result)]
        if part.kind == "complex":
            found = found.view(np.complex128)
        found = found.reshape(part.shape)
        return found != 0 if part.kind == "bool" else found

    def forget(self) -> None:
        """Nobody will read what is kept."""
        self._waiting.clear()


class _Copy:
    """Numbers of a device, and where the host sees what each repetition has left of them."""

    def __init__(self, gpu: Any, addresses: list[int], repetitions: int):
        self.gpu, size = gpu, len(addresses)
        # the table of addresses, and behind them how many repetitions there were
        self._table = _core.ScalarBlock(gpu, size + 1)
        gpu.upload_address(self._table.address(), np.array([*addresses, 0], np.int64))
        self._kept = _core.ScalarBlock(gpu, size * repetitions)
        self.seen = np.ctypeslib.as_array(
            (ctypes.c_double * (size * repetitions)).from_address(self._kept.mirror())
        ).reshape(repetitions, size)
        self._function, _ = kernel_cache.load_on_device(
            gpu, "results", kept_results_kernel(), IEEE_PRECISIONS[-1], THREADS
        )
        table, kept = self._table, self._kept
        words = table.address(), table.address(size), kept.mirror(), size, repetitions
        self._arguments = struct.pack("5Q", *words)

    def record(self) -> None:
        """Puts the copy on the device's stream."""
        self.gpu.launch(self._function, 1, THREADS, self._arguments)


def _reals(result: Any) -> int:
    if isinstance(result, LocatedArray):
        return math.prod(result.shape) * (2 if result.kind == "complex" else 1)
    return len(result.parts) if isinstance(result, LocatedValue) else 0


def _overflow_counts(result: Any) -> list[Any]:
    if not isinstance(result, LocatedValue):
        return []
    own = getattr(result, "overflow_counts", ())
    return [*own, *(count for part in result.parts for count in part.overflow_counts)]
