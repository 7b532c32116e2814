"""A stream that is full keeps its rank waiting, and nobody else: ranks that are threads go on with the interpreter.

Rank 0's device waits for a message of rank 1, and rank 0 puts more on its stream than fits (JALI_FAKE_QUEUE). Whoever
held the interpreter's lock in that would wait for ever, since rank 1 needs it to send.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import _core, comm
from jali.comm import DeviceArray
from jali.devices import open_device

pytestmark = [
    pytest.mark.skipif(REAL, reason="streams of real drivers hold thousands of operations"),
    pytest.mark.unproved("rank 0 starts what rank 1 does not start before"),
]
SLOTS, TIMES = 8, 24


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_fake_gpus(monkeypatch, 2)
    monkeypatch.setenv("JALI_FAKE_QUEUE", str(SLOTS))
    monkeypatch.setenv("JALI_FAKE_TIMEOUT", "3")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1)  # who does not release the lock keeps it
    yield
    sys.setswitchinterval(interval)


@jali.site_function
def shifted(X, out, f):
    out[X] = f[X + X.directions()[0]] + f[X + X.directions()[1]]


def fields_with_mapped_ghosts() -> list[Any]:
    lattice = jali.Lattice(4, 6, device="cuda")
    out, fields = lattice.field(jali.Real()), [lattice.field(jali.Real()) for _ in range(TIMES)]
    with jali.settings.using(halo_policy="remote-write-wait"):
        for field in fields:
            shifted(out, field)
    return fields


def messages(c: Any) -> SimpleNamespace:
    """This rank's ends of a message from rank 1 to rank 0, of one the other way, and of some by way of the host."""
    gpu = open_device("cuda", c)
    x, y = (DeviceArray.from_host(np.full(5, c.rank + 1.0), gpu) for _ in range(2))
    make = c.persistent_receive if c.rank == 0 else c.persistent_send
    back = c.persistent_send if c.rank == 0 else c.persistent_receive
    found = SimpleNamespace(gpu=gpu, x=x, y=y, there=make(x, 1 - c.rank), back=back(y, 1 - c.rank))
    found.event, found.room = _core.GpuEvent(gpu), gpu.allocate(64, "room")
    found.staged = [make(x, 1 - c.rank, tag=1, transport="host-staged") for _ in range(TIMES)]
    for message in (found.there, found.back, *found.staged):
        message.meet()
    return found


def borrowed(here: SimpleNamespace) -> _core.GpuArray:
    return _core.GpuArray(here.gpu, here.y.address, (5,), "fp64", 2, False, here.y)


# name: what rank 0 does again and again, and whether rank 1 has to take part
CALLS: dict[str, tuple[Callable[[SimpleNamespace], Any], bool]] = {
    "a message is started": (lambda here: here.back.start(), True),
    "a message's bytes are put": (lambda here: here.back.copy_alone(), False),
    "an event is recorded": (lambda here: here.gpu.record(here.event), False),
    "bytes are copied": (lambda here: here.gpu.copy_address(here.y.address, here.y.address, 8), False),
    "another stream is waited for": (lambda here: here.gpu.wait_for(2), False),
    "another stream waits": (lambda here: here.gpu.let_wait(here.gpu.stream), False),
    "owners go on": (lambda here: _core.let_owners_go_on([borrowed(here)]), False),
    "a field is dropped": (lambda here: here.fields.pop(), False),
    "pinned memory is dropped": (lambda here: here.staged.pop(), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_rank_whose_stream_is_full_lets_the_others_go_on(name: str) -> None:
    call, both = CALLS[name]
    full = threading.Event()

    def run() -> Any:
        c = comm.current()
        here = messages(c)
        here.fields = fields_with_mapped_ghosts() if name == "a field is dropped" else []
        here.gpu.synchronize()
        c.barrier()
        if c.rank == 1:
            full.wait()
            here.there.start()
            for _ in range(TIMES if both else 0):
                here.back.start()
        else:
            here.there.start()  # a launch
            for _ in range(SLOTS - 1):
                here.gpu.fill(here.room, 0)
            full.set()
            for _ in range(TIMES):
                call(here)
        return here.x.to_host().tolist()

    assert comm.virtual_ranks(2, run) == [[2.0] * 5] * 2
