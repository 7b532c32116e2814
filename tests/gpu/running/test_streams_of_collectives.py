"""Collectives on a stream of the user's instead of jali's: in its order, whoever carries them, and beside others of the same plan."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_library import HAVE
from ccl_ranks import FAKE
from fake_driver import current_device
from test_foreign_arrays import Foreign

import jali
from jali import _core, comm, planner
from jali.comm import DeviceArray, algorithms
from jali.comm.requests import DeviceRequest
from jali.devices import open_device
from jali.errors import DeviceError, ParameterError, RecordingError

pytestmark = FAKE
RANKS = 2
# transports of the messages of plans, without queues where devices do not reach each other; and who has collectives itself
WAYS = (
    "",
    " by copy-engine",
    " by array-write",
    " by nccl",
    " by nccl without peers",
    "nccl",
    "nccl-windows",
    "nccl-streams",
    "host-staged",
)


@pytest.fixture(params=WAYS)
def spec(
    request: pytest.FixtureRequest, use_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> str | None:
    """As `algorithm`."""
    name, _, transport = request.param.partition(" by ")
    if transport.endswith(" without peers"):
        monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    use_settings(device_transport=transport.removesuffix(" without peers"))
    return name or None


def numbers(rank: int, count: int) -> Any:
    return (np.arange(count) % 13 + 3 * rank + 1).astype(np.float32)


def busy(other: Foreign) -> None:
    """That stream comes to what is put on it later."""
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    stream = ctypes.c_void_p(other.stream)
    assert other.driver.cuLaunchHostFunc(stream, usleep, ctypes.c_void_p(30_000)) == 0  # us


def usual(c: comm.Communicator, name: str, spec: str | None) -> dict[str, Any]:
    """Keywords of a call; where jali chooses, of an algorithm that every collective has on devices."""
    names = algorithms.names(name, on_device=True)
    return {"algorithm": spec or next(one for one in names if one not in algorithms.ON_DEVICES)} | (
        {"root": 1} if name in ("reduce", "gather", "scatter", "broadcast") else {}
    )


def every_collective(fake_driver: Path, spec: str | None) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    theirs, user = (Foreign(fake_driver, gpu) for _ in range(2))
    rows = {"all_gather": 12, "gather": 12, "scatter": 3, "reduce_scatter": 3}
    for name in HAVE.get(spec or "", algorithms.COLLECTIVES):
        call, more = getattr(c, name), usual(c, name, spec)
        count, mine = rows.get(name, 6), numbers(c.rank, 6)
        sends = name != "scatter" or c.rank == 1
        gets = name not in ("reduce", "gather") or c.rank == 1
        if name == "broadcast":
            wanted = call(mine.copy(), root=1)
        else:
            root = {"root": 1} if "root" in more else {}
            wanted = call(mine if sends else None, np.empty(count, np.float32) if gets else None, **root)
        for face in ("interface", "dlpack"):
            x = theirs.array(mine, face)  # late, on another stream
            out = user.array(np.zeros(count, np.float32), stream=None) if gets else None
            if name == "broadcast":
                out = x
                call(x, **more, stream=user.stream)
            else:
                call(x if sends else None, out, **more, stream=user.stream)
            if gets:
                np.testing.assert_array_equal(user.take(out), wanted, err_msg=name)


def test_every_collective_is_in_the_order_of_the_users_stream(fake_driver: Path, spec: str | None) -> None:
    comm.virtual_ranks(RANKS, every_collective, fake_driver, spec)


@pytest.mark.parametrize("handle", [0, 1])
def test_default_streams_of_ranks_that_are_threads_are_those_of_their_devices(
    fake_driver: Path, handle: int
) -> None:
    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        user = Foreign(fake_driver, gpu)
        user.stream = handle  # as PyTorch and CuPy have it where nobody chooses another
        for count in (1, 33, 4097):
            x, out = user.array(numbers(c.rank, count)), user.array(np.zeros(count, np.float32))
            if c.rank == 0:
                busy(user)
            c.all_reduce(x, out, stream=handle)
            c.all_reduce(out, out, stream=handle)
            np.testing.assert_array_equal(user.take(out), RANKS * (numbers(0, count) + numbers(1, count)))

    comm.virtual_ranks(RANKS, run)


def overlapping(spec: str | None) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    x = DeviceArray.from_host(numbers(c.rank, 4 * RANKS), gpu)
    same = DeviceArray(gpu, x.memory, x.shape, np.float32)
    part = DeviceArray(gpu, x.memory, (4,), np.float32)
    refused = pytest.raises(ParameterError, match="the arrays of buffers 0 and 1 overlap, and 1 is written")
    for call, arrays in (
        ("all_reduce", (x, same)),
        ("all_gather", (part, x)),
        ("reduce_scatter", (x, part)),
    ):
        if call in HAVE.get(spec or "", algorithms.COLLECTIVES):
            with refused:
                getattr(c, call)(*arrays, **usual(c, call, spec))
    np.testing.assert_array_equal(x.to_host(), numbers(c.rank, 4 * RANKS))
    total = c.all_reduce(x, x, **usual(c, "all_reduce", spec))  # in place is said by the same object
    np.testing.assert_array_equal(total.to_host(), numbers(0, 4 * RANKS) + numbers(1, 4 * RANKS))


def test_arrays_that_overlap_are_refused_on_devices_as_on_hosts(spec: str | None) -> None:
    comm.virtual_ranks(RANKS, overlapping, spec)


def several_streams(fake_driver: Path, spec: str | None) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    users = [Foreign(fake_driver, gpu) for _ in range(2)]
    more = usual(c, "all_reduce", spec)
    for turn in range(4):
        calls = []
        for k, user in enumerate(users):
            x = user.array(numbers(c.rank + 10 * turn + k, 3000), stream=None)
            out = user.array(np.zeros(3000, np.float32), stream=None)
            calls.append((user, x, out, numbers(10 * turn + k, 3000) + numbers(10 * turn + k + 1, 3000)))
        mine = DeviceArray.from_host(numbers(c.rank, 3000), gpu)
        if c.rank == turn % 2:
            busy(users[turn // 2])
        c.all_reduce(calls[0][1], calls[0][2], **more, stream=users[0].stream)
        c.all_reduce(calls[1][1], calls[1][2], **more, stream=users[1].stream)
        total = c.all_reduce(mine, **more)
        np.testing.assert_array_equal(total.to_host(), numbers(0, 3000) + numbers(1, 3000))
        for user, _, out, wanted in calls:
            np.testing.assert_array_equal(user.take(out), wanted)
    assert c.collectives.on_device(gpu).plans["made"] == 1


@pytest.mark.short(3)
def test_runs_of_one_plan_on_several_streams_do_not_meet(fake_driver: Path, spec: str | None) -> None:
    comm.virtual_ranks(RANKS, several_streams, fake_driver, spec)


def jalis_arrays(fake_driver: Path, spec: str | None) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    user = Foreign(fake_driver, gpu)
    more = usual(c, "all_reduce", spec)
    x, y, z = (DeviceArray.from_host(numbers(c.rank, 50), gpu) for _ in range(3))
    busy(user)
    c.all_reduce(x, y, **more)
    assert c.all_reduce(y, z, **more, stream=user.stream) is z  # behind what jali has put on its stream
    c.all_reduce(z, x, **more)  # and jali's stream behind it
    np.testing.assert_array_equal(x.to_host(), 4 * (numbers(0, 50) + numbers(1, 50)))


def test_arrays_of_jali_are_in_order_with_its_stream(fake_driver: Path, spec: str | None) -> None:
    comm.virtual_ranks(RANKS, jalis_arrays, fake_driver, spec)


def plans(fake_driver: Path, library: str) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    users = [Foreign(fake_driver, gpu) for _ in range(2)]
    of_all = planner.Composition.standard("all_reduce", ranks=RANKS, count=3000, dtype="float32").plan(
        libraries=library
    )
    plan = of_all.on(c)
    wanted = numbers(0, 3000) + numbers(1, 3000)
    for turn in range(4):
        given = [user.array(numbers(c.rank, 3000), stream=None) for user in users]
        taken = [user.array(np.zeros(3000, np.float32), stream=None) for user in users]
        mine = DeviceArray.from_host(numbers(c.rank, 3000), gpu)
        other, again = (DeviceArray.empty(gpu, (3000,), np.float32) for _ in range(2))
        if c.rank == turn % 2:
            busy(users[turn // 2])
        for user, x, out in zip(users, given, taken, strict=True):
            plan.start(x, out, stream=user.stream)
        plan.run(mine, other)
        plan.run(send=other, recv=again, stream=users[0].stream)  # behind what jali has put on its stream
        for user, out in zip(users, taken, strict=True):
            np.testing.assert_array_equal(user.take(out), wanted)
        np.testing.assert_array_equal(again.to_host(), 2 * wanted)  # and jali's stream behind it
        assert plan.test()
    for wrong, reported in (
        (-1, "stream -1 is no handle of a stream"),
        ("x", "a str is no stream; give a handle"),
    ):
        with pytest.raises(ParameterError, match=reported):
            plan.start(mine, other, stream=wrong)
    with pytest.raises(ParameterError, match="`check` makes runs of its own and takes no stream"):
        plan.check(mine, other, stream=users[0].stream)
    host = of_all.replace(libraries=None).on(c)
    with pytest.raises(
        ParameterError, match="`stream` is for arrays in device memory; these are in the host"
    ):
        host.run(numbers(0, 3000), numbers(0, 3000), stream=users[0].stream)
    lattice = jali.Lattice(4, 4, device="cuda", grid=(1, RANKS))
    x, out = (DeviceArray.empty(lattice.gpu, (3000,), np.float32) for _ in range(2))
    with pytest.raises(RecordingError, match="a plan on a stream of its own is started while a graph"):
        jali.graph(lambda: plan.run(x, out, stream=users[0].stream), lattice)


@pytest.mark.parametrize("library", ["remote-write", "copy-engine", "array-write", "nccl"])
def test_plans_run_on_streams_of_the_user(fake_driver: Path, library: str) -> None:
    comm.virtual_ranks(RANKS, plans, fake_driver, library)


def dropped(fake_driver: Path) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    user = Foreign(fake_driver, gpu)
    x = user.array(numbers(c.rank, 3000), stream=None)
    out = user.array(np.zeros(3000, np.float32), stream=None)
    gpu.let_wait(user.stream)
    of_all = planner.Composition.standard("all_reduce", ranks=RANKS, count=3000, dtype="float32").plan(
        depth=32
    )
    plan = c.collectives.on_device(gpu).plan(of_all.composition.core, of_all.parameters, "a sum")
    busy(user)
    plan.run([x.address, out.address], user.stream)
    del plan  # with a table of instructions that does not go with the launch
    for nbytes in range(256, 16384, 256):
        gpu.fill(gpu.allocate(nbytes, "others"), 119)
    gpu.synchronize()
    np.testing.assert_array_equal(user.take(out), numbers(0, 3000) + numbers(1, 3000))


@pytest.mark.unproved("runs a plan of the core by itself")
def test_memory_of_a_plan_that_goes_is_not_given_out_before_its_last_run(fake_driver: Path) -> None:
    comm.virtual_ranks(RANKS, dropped, fake_driver)


def graphs(fake_driver: Path) -> None:
    c = comm.current()
    lattice = jali.Lattice(4, 4, device="cuda", grid=(1, RANKS))
    gpu = lattice.gpu
    user = Foreign(fake_driver, gpu)
    x, total = DeviceArray.from_host(numbers(c.rank, 300), gpu), DeviceArray.empty(gpu, (300,), np.float32)
    graph = jali.graph(lambda: c.all_reduce(x, total, algorithm="two_step") and None, lattice)
    theirs = user.array(numbers(c.rank + 5, 300), stream=None)
    out = user.array(np.zeros(300, np.float32), stream=None)
    for turn in range(3):
        if c.rank == turn % 2:
            busy(user)
        c.all_reduce(theirs, out, algorithm="two_step", stream=user.stream)
        graph.run()
        c.all_reduce(theirs, out, algorithm="two_step", stream=user.stream)
        np.testing.assert_array_equal(user.take(out), numbers(5, 300) + numbers(6, 300))
        np.testing.assert_array_equal(total.to_host(), numbers(0, 300) + numbers(1, 300))
    with pytest.raises(RecordingError, match="a collective on a stream of its own is started while a graph"):
        jali.graph(lambda: c.all_reduce(x, total, stream=user.stream), lattice)


def test_graphs_of_jali_are_in_order_with_calls_on_other_streams(fake_driver: Path) -> None:
    comm.virtual_ranks(RANKS, graphs, fake_driver)


def captured(fake_driver: Path, spec: str) -> None:
    c = comm.current()
    gpu = open_device("cuda", c)
    user = Foreign(fake_driver, gpu)
    driver, stream = user.driver, ctypes.c_void_p(user.stream)
    x = DeviceArray.from_host(numbers(c.rank, 30), gpu)
    out = DeviceArray.from_host(np.zeros(30, np.float32), gpu)
    c.all_reduce(x, out, algorithm=spec, stream=user.stream)
    gpu.fill(out.memory, 3)
    gpu.let_wait(user.stream)
    with current_device(driver, gpu.ordinal):
        assert driver.cuStreamBeginCapture_v2(stream, 1) == 0
        c.all_reduce(x, out, algorithm=spec, stream=user.stream)  # jali's stream takes no part
        recorded, graph = ctypes.c_void_p(), ctypes.c_void_p()
        assert driver.cuStreamEndCapture(stream, ctypes.byref(recorded)) == 0
        assert driver.cuGraphInstantiateWithFlags(ctypes.byref(graph), recorded, ctypes.c_uint64(0)) == 0
        assert driver.cuGraphLaunch(graph, stream) == 0
    np.testing.assert_array_equal(user.take(out), numbers(0, 30) + numbers(1, 30))


@pytest.mark.parametrize("spec", ["two_step", "nccl"])
def test_a_users_graph_may_hold_calls_on_its_stream(fake_driver: Path, spec: str) -> None:
    comm.virtual_ranks(RANKS, captured, fake_driver, spec)


def test_requests_know_the_stream(fake_driver: Path) -> None:
    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        user = Foreign(fake_driver, gpu)
        x = user.array(numbers(c.rank, 6), stream=None)
        out = user.array(np.zeros(6, np.float32), stream=None)
        c.all_reduce(x, out, stream=user.stream)
        user.take(out)
        busy(user)
        request = c.all_reduce(x, out, stream=user.stream, blocking=False)
        assert type(request) is DeviceRequest
        gpu.synchronize()
        assert not request.test()
        assert request.wait() is out
        np.testing.assert_array_equal(user.take(out), numbers(0, 6) + numbers(1, 6))
        assert request.test()

    comm.virtual_ranks(RANKS, run)


@pytest.mark.parametrize(
    "use",
    [
        lambda request, stream: request.test(),
        lambda request, stream: request.wait(),
        lambda request, stream: request.wait_on_host(),
        lambda request, stream: request.let_wait(stream),
        lambda request, stream: request.extend(),
    ],
    ids=["test", "wait", "wait_on_host", "let_wait", "extend"],
)
def test_requests_leave_the_current_device(fake_driver: Path, use: Callable[[Any, int], Any]) -> None:
    driver, found = ctypes.CDLL(str(fake_driver)), []

    def current() -> int | None:
        context = ctypes.c_void_p()
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        user, other = Foreign(fake_driver, gpu), Foreign(fake_driver, gpu)
        x = user.array(numbers(c.rank, 6), stream=None)
        request = c.all_reduce(x, x, stream=user.stream, blocking=False)
        with current_device(driver, 1 - gpu.ordinal):
            before = current()
            use(request, other.stream)
            found.append(current() == before)
        request.wait_on_host()

    comm.virtual_ranks(RANKS, run)
    assert found == [True] * RANKS


def view(array: Any, gpu: Any, stream: int) -> Any:
    """Of memory of jali's, as somebody has it who uses it on this stream."""
    return _core.GpuArray(gpu, array.address, array.shape, array.element, stream, False, None)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_views_on_the_stream_of_the_call_do_not_wait_for_jalis(fake_driver: Path, elsewhere: bool) -> None:
    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        user, other, jalis = (Foreign(fake_driver, gpu) for _ in range(3))
        jalis.stream = gpu.stream
        x = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        seen = view(x, gpu, other.stream if elsewhere else user.stream)
        c.all_reduce(seen, seen, stream=user.stream)
        gpu.synchronize()
        for _ in range(10):
            busy(jalis)  # 0.3 s
        end = _core.GpuEvent(gpu, False)
        gpu.record(end)
        c.all_reduce(seen, seen, stream=user.stream)
        assert user.driver.cuStreamSynchronize(ctypes.c_void_p(user.stream)) == 0
        assert end.reached() == elsewhere
        np.testing.assert_array_equal(x.to_host(), RANKS * (numbers(0, 6) + numbers(1, 6)))

    comm.virtual_ranks(RANKS, run)


def test_requests_let_other_streams_wait(fake_driver: Path) -> None:
    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        user, other = (Foreign(fake_driver, gpu) for _ in range(2))
        array = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        x = view(array, gpu, user.stream)
        c.all_reduce(x, x, stream=user.stream)
        for extends in (False, True):
            if not extends:
                busy(user)
            request = c.all_reduce(x, x, stream=user.stream, blocking=False)
            assert request.stream == user.stream
            assert not request.captured
            if extends:
                busy(user)
                request.extend()
            waited, own = (_core.GpuEvent(gpu, False) for _ in range(2))
            request.let_wait(other.stream)
            request.let_wait(user.stream)
            gpu.record(waited, other.stream)
            gpu.record(own, user.stream)
            assert not request.test()
            assert not waited.reached()
            waited.wait()
            assert request.test()
            own.wait()
            request.wait_on_host()
        busy(user)
        gpu.order(user.stream, other.stream)
        gpu.record(waited, other.stream)
        gpu.record(own, user.stream)
        assert not waited.reached()
        waited.wait()
        assert own.reached()

    comm.virtual_ranks(RANKS, run)


def test_requests_in_a_cycle_with_their_array_are_collected(fake_driver: Path) -> None:
    class Kept(DeviceArray):
        request: Any = None

    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        memory = DeviceArray.from_host(numbers(c.rank, 6), gpu).memory
        x = Kept(gpu, memory, (6,), np.float32)
        x.request = c.all_reduce(x, x, blocking=False)
        gone = weakref.ref(x)
        del x
        gc.collect()
        assert gone() is None

    comm.virtual_ranks(1, run)


def test_checked_calls_on_a_stream_report_overflows(fake_driver: Path) -> None:
    def run() -> str:
        c = comm.current()
        gpu = open_device("cuda", c)
        user = Foreign(fake_driver, gpu)
        for value in (100, 60000):
            x = user.array(np.full(8, value, np.float16), stream=None)
            out = user.array(np.zeros(8, np.float16), stream=None)
            busy(user)
            try:
                c.all_reduce(x, out, checked=True, stream=user.stream)
            except ParameterError as error:
                return str(error)
            np.testing.assert_array_equal(user.take(out), 200)
        return ""

    assert all("16 results are too large for fp16" in reported for reported in comm.virtual_ranks(RANKS, run))


class StreamLike:
    """A stream of another library that says this of itself."""

    def __init__(self, **reported: Any) -> None:
        vars(self).update(reported)


def test_streams_that_cannot_be_are_refused(fake_driver: Path) -> None:
    def run() -> None:
        c = comm.current()
        gpu = open_device("cuda", c)
        x = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        stream = Foreign(fake_driver, gpu).stream
        needs = "a result on another stream than jali's needs `out`"
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: c.all_reduce(x, stream=stream), needs),
            (lambda: c.all_reduce(x, stream=gpu.stream), needs),
            (lambda: c.reduce(x, root=c.rank, stream=stream), needs),
            (lambda: c.all_gather(x, stream=stream), needs),
            (lambda: c.reduce_scatter(x, stream=stream), needs),
            (lambda: c.all_to_all(x, stream=stream), needs),
            (lambda: c.scatter(x, root=c.rank, stream=stream), needs),
            (lambda: c.all_reduce(x, x, stream="main"), "a str is no stream; give a handle, or a stream of"),
            (lambda: c.all_reduce(x, x, stream=-1), "stream -1 is no handle of a stream"),
            (lambda: c.all_reduce(x, x, stream=True), "stream True is no handle of a stream"),
            (
                lambda: c.all_reduce(x, x, stream=StreamLike(ptr=True)),
                "stream True is no handle of a stream",
            ),
            *(
                (
                    partial(c.all_reduce, x, x, stream=StreamLike(__cuda_stream__=reported)),
                    "says .*, not a version and a handle",
                )
                for reported in (None, 5, (0,), (0, "7"), (0, None), lambda: (0, 7, 7))
            ),
            (
                lambda: c.all_reduce(x, x, stream=StreamLike(__cuda_stream__=(0, -3))),
                "stream -3 is no handle of a stream",
            ),
            (
                lambda: c.all_reduce(x, x, stream=StreamLike(__cuda_stream__=(0, False))),
                "stream False is no handle",
            ),
            (lambda: c.all_reduce(np.ones(6), stream=stream), "`stream` is for arrays in device memory"),
            (lambda: c.broadcast(np.ones(6), stream=stream), "`stream` is for arrays in device memory"),
        ]
        for call, text in calls:
            with pytest.raises(ParameterError, match=text):
                call()
        assert c.all_reduce(x, x, stream=gpu.stream) is x  # jali's own by its handle
        np.testing.assert_array_equal(x.to_host(), numbers(0, 6) + numbers(1, 6))

    comm.virtual_ranks(RANKS, run)


def test_arrays_of_two_devices_are_refused() -> None:
    x, out = (DeviceArray.empty(_core.Gpu.open("cuda", k), (6,), np.float32) for k in range(2))
    with pytest.raises(
        ParameterError, match="one array is on fake GPU 0 and one on fake GPU 1; give both on"
    ):
        comm.current().all_reduce(x, out)


def test_plans_refuse_arrays_of_two_devices_those_that_overlap_and_those_that_are_given_twice() -> None:
    x, out, same = (DeviceArray.empty(_core.Gpu.open("cuda", k), (6,), np.float32) for k in (0, 1, 0))
    plan = (
        planner.Composition.standard("all_reduce", ranks=1, count=6, dtype="float32")
        .plan()
        .on(comm.current())
    )
    for wrong, text in (
        (
            lambda: plan.run(x, out),
            "some arrays of a plan are on fake GPU 0 and some on fake GPU 1; give all on",
        ),
        (
            lambda: plan.check(x, out),
            "some arrays of a plan are on fake GPU 0 and some on fake GPU 1; give all on",
        ),
        (lambda: plan.run(x, x), "the arrays of buffers 0 and 1 overlap, and 1 is written"),
        (lambda: plan.check(x, x), "the arrays of buffers 0 and 1 overlap, and 1 is written"),
        (lambda: plan.start(x, same, send=same), "buffer 'send' is given twice, as number 0 and by its name"),
    ):
        with pytest.raises(ParameterError, match=text):
            wrong()
    plan.run(x, same)
    there, back = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    plan.start(there, back)
    with pytest.raises(RuntimeError, match="is under way on the host; wait for it before the next start"):
        plan.start(x, same)
    plan.wait()
    np.testing.assert_array_equal(back, there)
    plan.run(x, same)


def test_a_stream_of_another_device_is_refused_by_the_driver(fake_driver: Path) -> None:
    gpu, other = (_core.Gpu.open("cuda", k) for k in range(2))
    user = Foreign(fake_driver, other)
    x, out = (DeviceArray.from_host(numbers(k, 6), gpu) for k in range(2))
    with pytest.raises(DeviceError, match="recording an event on a stream that is not jali's: "):
        comm.current().all_reduce(x, out, stream=user.stream)
    comm.current().all_reduce(x, out)
    np.testing.assert_array_equal(out.to_host(), numbers(0, 6))


def test_plans_in_a_graph_that_the_driver_captures_say_nothing_of_their_end(fake_driver: Path) -> None:
    gpu = _core.Gpu.open("cuda", 0)
    user = Foreign(fake_driver, gpu)
    x, out = (user.array(numbers(k, 6), stream=None) for k in range(2))
    plan = (
        planner.Composition.standard("all_reduce", ranks=1, count=6, dtype="float32")
        .plan()
        .on(comm.current())
    )
    plan.run(x, out, stream=user.stream)
    user.take(out)
    assert plan.test()
    recorded, stream = ctypes.c_void_p(), ctypes.c_void_p(user.stream)
    with current_device(user.driver, gpu.ordinal):
        assert user.driver.cuStreamBeginCapture_v2(stream, 1) == 0
    plan.run(x, out, stream=user.stream)
    assert user.driver.cuStreamEndCapture(stream, ctypes.byref(recorded)) == 0
    assert plan.test()  # of the run before
    assert not plan.running


def test_collectives_of_one_rank_take_a_stream_too(fake_driver: Path) -> None:
    gpu = _core.Gpu.open("cuda", 0)
    user = Foreign(fake_driver, gpu)
    x, out = (user.array(numbers(k, 6), stream=None) for k in range(2))
    comm.current().all_reduce(x, out, stream=user.stream)
    np.testing.assert_array_equal(user.take(out), numbers(0, 6))
