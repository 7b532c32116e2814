"""`recording()`: records what all ranks do in a block, and gathers it on rank 0.

A recording costs two reads of the clock per span on the host and two events per span on a device; the spans of
devices are read when the block ends, so nothing waits in between. It changes no result.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from jali import _core, comm
from jali.comm import validation
from jali.errors import ParameterError
from jali.files import value_shown
from jali.profile.load import Load
from jali.profile.roofs import Roofs
from jali.profile.spans import Span, decode
from jali.profile.table import Table, make_table
from jali.profile.trace import write_trace

CAPACITY = 1 << 18  # spans of a rank that are kept: 16 MiB


_here = threading.local()


def timeline_of_thread() -> _core.Timeline | None:
    """What this thread's recording, if one is under way, adds spans to."""
    return getattr(_here, "timeline", None)


def checked_name(what: str, name: Any) -> str:
    """A name that a trace can hold. Raises ParameterError."""
    if not isinstance(name, str):
        raise ParameterError(f"the {what} is a string, not {value_shown(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"the {what} is text that UTF-8 can hold, not {value_shown(name)}") from None
    return name


class Recording:
    """The spans of a block. On rank 0 those of all ranks, on others those of this rank, once the block has ended.

    `seconds` is how long the block took on each rank, `dropped` how many spans are missing of each rank because there
    were more than the recording keeps, `accuracy` how well times of different ranks and devices can be compared, in
    seconds.
    """

    def __init__(self, ranks: comm.Communicator, capacity: int) -> None:
        if not isinstance(ranks, comm.Communicator):
            raise ParameterError(f"a recording takes a communicator of jali, not {value_shown(ranks)}")
        if (capacity := validation.whole("capacity", capacity, error=ParameterError)) < 1:
            raise ParameterError(f"capacity is a number of spans from 1, not {capacity}")
        self.ranks = ranks
        self.spans: list[Span] = []
        self.seconds: list[float] = []
        self.dropped: list[int] = []
        self.accuracy = 0.0
        self._timeline = _core.Timeline(capacity)
        self._origin = 0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records a part of the program under a name of its own, such as "sweep 3"; a range of NVTX as well. Raises ParameterError."""
        name = checked_name("name of a span", name)
        ranged = _core.push_range(name)
        begin = _core.Timeline.now()
        try:
            yield
        finally:
            if self._timeline.recording:
                self._timeline.add_region(name, begin, _core.Timeline.now())
            if ranged:
                _core.pop_range()

    def table(self, roofs: list[Roofs] | None = None, loads: Sequence[Load] = ()) -> Table:
        """Times and rates of all kernels, halos and collectives; with the roofs of all ranks also how near they come.

        `loads` are the loads of the hosts by other programs meanwhile.
        """
        return make_table(self.spans, self.seconds, roofs or [], sum(self.dropped), self.accuracy, loads)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the spans as JSON for Perfetto (ui.perfetto.dev) or chrome://tracing. Raises OSError,
        ParameterError."""
        write_trace(path, self.spans, sum(self.dropped), self.accuracy)

    def _begin(self) -> None:
        self.ranks.barrier()
        self._origin = _core.Timeline.now()
        self._timeline.start()
        _here.timeline = self._timeline

    def _gather(self) -> None:
        """Collective."""
        end = _core.Timeline.now()
        timeline, ranks = self._timeline, self.ranks
        data = timeline.bytes()
        offsets = _core.clock_offsets(ranks.core)
        head = {
            "names": timeline.names,
            "tracks": timeline.tracks,
            "dropped": timeline.dropped,
            "seconds": 1e-9 * (end - self._origin),
            "origin": self._origin,
            "accuracy": timeline.device_accuracy,
        }
        heads: list[dict[str, Any]] = [
            json.loads(text) for text in ranks.gather_bytes(json.dumps(head).encode(), what="a profile")
        ]
        self.seconds = [h["seconds"] for h in heads]
        self.dropped = [h["dropped"] for h in heads]
        self.accuracy = max(h["accuracy"] for h in heads) + 1e-9 * max(u for _, u in offsets)
        all_data = self._to_root(data)
        for rank, theirs in all_data.items():
            ahead = offsets[rank][0]
            names, tracks = heads[rank]["names"], heads[rank]["tracks"]
            self.spans += decode(theirs, names, tracks, rank, heads[0]["origin"] + ahead)
        self.spans.sort(key=lambda span: span.begin)

    def _to_root(self, data: bytes) -> dict[int, bytes | np.ndarray]:
        """This rank's spans, on rank 0 those of all."""
        ranks = self.ranks
        if ranks.size == 1:
            return {0: data}
        sizes = [int(text) for text in ranks.gather_bytes(str(len(data)).encode(), what="spans of a profile")]
        if ranks.rank != 0:
            if data:
                ranks.core.wait([ranks.core.send(np.frombuffer(data, np.uint8), 0, 0)], "gathering a profile")
            return {ranks.rank: data}
        found: dict[int, bytes | np.ndarray] = {0: data}
        for rank in range(1, ranks.size):
            buffer = np.empty(sizes[rank], np.uint8)
            if len(buffer):
                ranks.core.wait([ranks.core.receive(buffer, rank, 0)], "gathering a profile")
            found[rank] = buffer
        return found


@contextmanager
def recording(communicator: comm.Communicator | None = None, capacity: int = CAPACITY) -> Iterator[Recording]:
    """Records what this rank and the others do in the block; collective over `communicator` (default: all ranks).

    The last `capacity` spans of each rank are kept. Of this thread only: threads that a program starts by itself are
    not recorded. Raises RuntimeError where a recording is under way already, ParameterError.
    """
    found = Recording(comm.current() if communicator is None else communicator, capacity)
    found._begin()
    try:
        yield found
    finally:
        found._timeline.stop()
        _here.timeline = None
    found._gather()
