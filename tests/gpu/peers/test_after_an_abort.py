"""What devices computed after a rank failed is of no use, and jali hands none of it out: every call says why.

A kernel that waits for a rank that is gone is told to stop and leaves what it was to compute as it is. The first wait
raises RankError; whatever reads later, asks whether it is done or starts more would find numbers that mean nothing.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import PATH, REAL, TWO_DEVICES, until_idle, use_fake_ccl, use_fake_gpus
from programs import on_ranks, run_program

import jali
from jali import _core, comm, planner
from jali.comm import DeviceArray
from jali.devices import open_device
from jali.errors import DeviceError, RankError

pytestmark = [
    TWO_DEVICES,
    pytest.mark.unproved("a rank fails in the middle"),
]
REFUSED = "told to give up what waits for other ranks .*rank 1 has had enough"
READ: list[str] = []  # what was tried


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Any) -> None:
    use_fake_gpus(monkeypatch, 2, folder=tmp_path)
    use_fake_ccl(use_settings)
    READ.clear()


def rank_1_fails_in_a_collective(ccl: bool = False) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    x = DeviceArray.from_host(np.ones(1000), gpu)
    lattice = jali.Lattice(
        4, 4, device="cuda", communicator=comm.Communicator(_core.make_self_communicator(), 1)
    )
    field = lattice.field(jali.Real())
    event = _core.GpuEvent(gpu)
    running = None
    if not ccl:
        composition = planner.Composition(2, "float64")
        whole = composition.buffer("x", 1000)
        composition.multicast(whole, whole, root=1, leaves=planner.OTHERS)
        running = composition.plan(hierarchy="flat").on(c)
    total = c.all_reduce(x)
    if running is not None:
        running.run(total)
    gpu.synchronize()
    c.barrier()
    if c.rank == 1:
        raise ArithmeticError("rank 1 has had enough")
    request = c.all_reduce(x, blocking=False)
    result = c.all_reduce(x)
    gpu.record(event)
    with pytest.raises((RankError, DeviceError), match="rank 1 has had enough") as caught:
        gpu.synchronize()
    until_idle()
    calls: dict[str, Callable[[], Any]] = {
        "the array that it gave": result.to_host,
        "any array": x.to_host,
        "the array as others take it": lambda: result.__dlpack__(stream=1),
        "its interface": lambda: result.__cuda_array_interface__,
        "a request that is waited for": request.wait,
        "a request that is tested": request.test,
        "the next collective": lambda: c.all_reduce(x),
        "the device": gpu.synchronize,
        "an event": event.wait,
        "a field": lambda: field[...],
    }
    if running is not None:
        calls["a plan that is waited for"] = running.wait
        calls["a plan that is tested"] = running.test
        calls["a plan that is run again"] = lambda: running.run(x)
    for name, call in calls.items():
        with pytest.raises((DeviceError, RankError), match="rank 1 has had enough"):
            call()
            pytest.fail(f"{name} was handed out")
        READ.append(name)
    with pytest.raises(DeviceError, match=REFUSED):
        result.to_host()
    raise caught.value


@pytest.mark.parametrize("ccl", [False, True])
def test_nothing_is_handed_out_after_a_rank_died_in_a_collective(
    ccl: bool, use_settings: Callable[..., None]
) -> None:
    if ccl:
        if REAL:
            pytest.skip("the fake library of collectives")
        use_settings(device_transport="nccl")
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        comm.virtual_ranks(2, rank_1_fails_in_a_collective, ccl)
    assert len(READ) == (10 if ccl else 13)
    until_idle()


def test_the_devices_are_there_for_the_next_ranks() -> None:
    gc.collect()  # what the ranks of other tests held, of which a device has room for a few
    failed: Any = None
    try:
        comm.virtual_ranks(2, rank_1_fails_in_a_collective)
    except ArithmeticError as error:
        failed = error  # with the frames of its ranks, and all that these hold
    until_idle()

    def total() -> Any:
        c = comm.current()
        return c.all_reduce(DeviceArray.from_host(np.ones(3), open_device("cuda", c))).to_host().tolist()

    assert comm.virtual_ranks(2, total) == [[2.0] * 3] * 2
    assert failed is not None


def process() -> None:
    with contextlib.suppress(RankError):
        rank_1_fails_in_a_collective()
    print(len(READ), flush=True)


@pytest.mark.full
@pytest.mark.mpi
def test_processes_hand_out_nothing_either(fake_environment: dict[str, str]) -> None:
    text = "import test_after_an_abort as t\nt.process()"
    env = {**fake_environment, "JALI_FAKE_GPUS": "2"}
    done = run_program(on_ranks(2, sys.executable, "-c", text), status=1, env=env, path=PATH)
    assert "13" in done.stdout.split()
