"""Every transport that carries collectives between devices does all of them as NumPy does, and says alike what it cannot."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from by_library import HAVE
from fake_driver import REAL, run_on_devices, use_fake_ccl, use_fake_gpus
from programs import run_python

import jali
from jali import _core, comm, planner, settings
from jali._core import CollectiveCall
from jali.comm import DeviceArray, algorithms
from jali.devices import open_device
from jali.errors import DeviceError, ParameterError, PlanError
from jali.vendors import libraries, library_of

pytestmark = pytest.mark.skipif(REAL, reason="the library's own tests run it on hardware")
REDUCE = {"sum": np.add, "max": np.maximum, "prod": np.multiply, "bit_xor": np.bitwise_xor}
ROOTED = ("broadcast", "reduce", "gather", "scatter")
IN_PLACE = ("broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter")
UNEVEN = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]) -> None:
    use_fake_gpus(monkeypatch, 4)
    use_fake_ccl(use_settings)
    use_settings(
        device_queues="channels=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,bytes_per_channel=256"
    )


def there() -> Any:
    c = comm.current()
    return c.collectives.on_device(open_device("cuda", c))


def values(rank: int, count: int, dtype: str) -> Any:
    return (np.arange(count) * (rank + 2) % 11 + rank + 1).astype(dtype)


def buffers_of(call: CollectiveCall, of: int, dtype: str) -> tuple[list[Any], list[Any], Any]:
    """What rank `of` has in its buffers, in NumPy: those given, those after (None: not looked at), which part of the last."""
    ranks, me = comm.current().size, of
    table = np.asarray(call.counts if len(call.counts) > 1 else call.counts[0])
    if call.collective == "all_to_all":
        counts = np.broadcast_to(table.reshape(ranks, ranks) if table.ndim else table, (ranks, ranks))
        sent = [[values(10 * i + j, counts[i][j], dtype) for j in range(ranks)] for i in range(ranks)]
        mine, got = np.concatenate(sent[me]), np.concatenate([sent[i][me] for i in range(ranks)])
        return [mine, 0 * got], [mine, got], slice(None)
    if call.collective in ("all_reduce", "reduce", "broadcast"):
        all_of = [values(r, call.counts[0], dtype) for r in range(ranks)]
        if call.collective == "broadcast":
            return [all_of[me]], [all_of[call.root]], slice(None)
        total = combined(call.operation, all_of)
        if call.in_place:
            at_root = call.collective == "all_reduce" or me == call.root
            return [all_of[me]], [total], slice(None) if at_root else slice(0)
        if call.collective == "reduce" and me != call.root:
            return [all_of[me], None], [all_of[me], None], slice(None)
        return [all_of[me], 0 * total], [all_of[me], total], slice(None)
    counts = np.broadcast_to(table, ranks)
    at = np.concatenate([[0], np.cumsum(counts)])
    part = slice(at[me], at[me + 1])
    if call.collective == "reduce_scatter":
        wholes = [values(r, at[-1], dtype) for r in range(ranks)]
        total = combined(call.operation, wholes)
        if call.in_place:
            return [wholes[me]], [total], part
        return [wholes[me], 0 * total[part]], [wholes[me], total[part]], slice(None)
    parts = [values(r, counts[r], dtype) for r in range(ranks)]
    whole = np.concatenate(parts)
    if call.collective == "scatter":
        given = whole if me == call.root else None
        return [given, 0 * parts[me]], [given, parts[me]], slice(None)
    if call.in_place:
        holes = 0 * whole
        holes[part] = parts[me]
        return [holes], [whole], slice(None)
    if call.collective == "gather" and me != call.root:
        return [parts[me], None], [parts[me], None], slice(None)
    return [parts[me], 0 * whole], [parts[me], whole], slice(None)


def combined(op: str, arrays: list[Any]) -> Any:
    return list(itertools.accumulate(arrays, REDUCE[op]))[-1]


def run(call: CollectiveCall, dtype: str) -> None:
    """Makes the plan of a call, and runs it twice on this rank's buffers."""
    collectives = there()
    plan = collectives.plan_of(call)
    given, wanted, part = buffers_of(call, comm.current().rank, dtype)
    assert plan.user_buffers == len(given)
    assert [plan.bytes_of(k) for k in range(len(given))] == [0 if x is None else x.nbytes for x in given]
    for _ in range(2):
        arrays = [None if x is None else DeviceArray.from_host(x, collectives.gpu) for x in given]
        plan(tuple(arrays))
        for k, (array, right) in enumerate(zip(arrays, wanted, strict=True)):
            if array is not None:
                looked_at = part if k == len(given) - 1 else slice(None)
                assert np.array_equal(array.to_host()[looked_at], right[looked_at]), (call, k)


def calls(name: str, spec: str | None, op: str, element: str) -> list[CollectiveCall]:
    ranks = comm.current().size
    found = []
    for uneven, in_place in itertools.product((False, name in UNEVEN), (False, name in IN_PLACE)):
        elements: Any = 37
        if uneven and name == "all_to_all":
            elements = tuple((i + 2 * j) % 5 for i in range(ranks) for j in range(ranks))
        elif uneven:
            elements = tuple((7 + 3 * r) % 8 for r in range(ranks))
        in_place = in_place or name == "broadcast"
        found.append(CollectiveCall(name, element, elements, (ranks - 1) % ranks, op, in_place, spec, False))
    return list(dict.fromkeys(found))


def every_call(name: str, spec: str | None, kinds: list[tuple[str, str, str]]) -> int:
    """Runs what the transport has, and sees that it refuses the rest with the reason that it gives; how many it has."""
    done = 0
    for op, element, dtype in kinds:
        for call in calls(name, spec, op, element):
            core = there()
            if spec in core_transports_that_do() and (why := core.why_not(spec, call)):
                with pytest.raises((ParameterError, DeviceError), match="has no|cannot combine|knows no"):
                    there().plan_of(call)
                assert spec in ("nccl", *HAVE), why
                continue
            run(call, dtype)
            done += 1
    return done


def core_transports_that_do() -> set[str]:
    return {name for name, _, _, itself in _core.collective_transports(libraries()) if itself}


KINDS = [("sum", "fp64", "float64"), ("max", "int32", "int32"), ("prod", "complex64", "complex64")]
KINDS += [("sum", "uint8", "uint8"), ("sum", "int16", "int16"), ("bit_xor", "uint64", "uint64")]


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
@pytest.mark.parametrize(
    "how",
    ["remote-write", "copy-engine", "array-write", "nccl", "nccl itself", *HAVE, "host-staged"],
)
@pytest.mark.unproved("runs plans of the core by themselves")
def test_every_entry_does_what_numpy_does(
    name: str, how: str, ranks: int, use_settings: Callable[..., None]
) -> None:
    transport, spec = (
        (how, None) if how in ("remote-write", "copy-engine", "array-write", "nccl") else ("", how.split()[0])
    )
    use_settings(device_transport=transport)
    reduces = name in ("all_reduce", "reduce", "reduce_scatter")
    done = comm.virtual_ranks(ranks, every_call, name, spec, KINDS if reduces else KINDS[:2] + KINDS[4:5])
    assert len(set(done)) == 1
    if name not in HAVE.get(how, algorithms.COLLECTIVES):
        assert done[0] == 0
    else:
        assert done[0] >= 3  # of the library at least sums of some types


COUNTS = (1, 127, 128, 129, 511, 513, 1000, 4096, 5003)


def in_parts(name: str) -> None:
    """Parts end where arrays do, in place and not, and in a graph."""
    for count, in_place in itertools.product(COUNTS, (False, True)):
        for op, element, dtype in (
            ("sum", "fp32", "float32"),
            ("sum", "complex128", "complex128"),
            ("max", "int8", "int8"),
        ):
            if in_place or name != "broadcast":
                run(CollectiveCall(name, element, count, 1, op, in_place, "nccl-streams"), dtype)
    c, core = comm.current(), there()
    x, out = (DeviceArray.from_host(np.arange(5000.0) + c.rank, core.gpu) for _ in range(2))
    call = CollectiveCall(name, "fp64", 5000, 1, "sum", name == "broadcast", "nccl-streams")
    plan = core.plan_of(call)
    buffers = [out.address] if name == "broadcast" else [x.address, out.address]
    core.gpu.launch_graph(_core.GpuGraph(core.gpu, lambda: plan.run(buffers)))
    if name != "reduce" or c.rank == 1:
        total = np.arange(5000.0) + 1 if name == "broadcast" else c.size * np.arange(5000.0) + 3
        assert np.array_equal(out.to_host(), total)


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "broadcast"])
@pytest.mark.unproved("runs plans of the core by themselves")
def test_the_library_on_several_streams(name: str) -> None:
    comm.virtual_ranks(3, in_parts, name)


def described() -> list[str]:
    core = there()
    calls = [
        CollectiveCall("all_reduce", "fp32", n, 0, "sum", False, "nccl-streams") for n in (0, 100, 129, 5000)
    ]
    return [core.plan_of(call).describe().split(" in ")[-1].strip() for call in calls]


def test_how_many_parts_there_are_is_said() -> None:
    reported = [f"{n} parts, each on a stream" for n in (0, 1, 2, 4)]
    assert comm.virtual_ranks(2, described) == [reported, reported]


def by_mpi() -> int:
    """All collectives by an MPI library that takes addresses; also where nobody names it and no other transport is open."""
    done = sum(every_call(name, None, KINDS[:2]) for name in algorithms.COLLECTIVES)
    c = comm.current()
    composition = planner.Composition.standard("all_reduce", ranks=c.size, count=9, dtype="float64")
    plan = composition.plan(libraries=["gpu-aware-mpi"]).on(c)
    gpu = there().gpu
    x, out = DeviceArray.from_host(np.arange(9.0) + c.rank, gpu), DeviceArray.empty(gpu, (9,), np.float64)
    plan.run(x, out)
    assert np.array_equal(out.to_host(), c.size * np.arange(9.0) + sum(range(c.size)))
    plan.check(x, out)
    return done


@pytest.mark.mpi
@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.full)])
def test_an_mpi_library_that_takes_addresses_carries_every_algorithm(
    named: bool, fake_environment: dict[str, str]
) -> None:
    environment = {**fake_environment, "JALI_GPU_AWARE_MPI": "1"}
    name = "gpu-aware-mpi" if named else ""
    if not named:
        environment |= {"JALI_FAKE_NO_PEERS": "1", "JALI_NCCL": "/nowhere/libnccl.so"}
    text = (
        "import jali.tune\nimport test_collective_transports as t\n"
        f"with jali.tune.experiment(device_transport={name!r}):\n    print(t.by_mpi(), flush=True)"
    )
    first, second = run_on_devices(
        2, text, environment, unproved="runs plans of the core by themselves"
    ).stdout.split()
    assert first == second
    assert int(first) >= 3 * len(algorithms.COLLECTIVES) - 6


def use_on_all_ranks(**changes: Any) -> None:
    """Other settings of the process, whose threads the ranks are, while none of them asks."""
    comm.current().barrier()
    if comm.current().rank == 0:
        settings.use(**changes)
    comm.current().barrier()


def reasons() -> list[str]:
    collectives = there()
    x = DeviceArray.from_host(np.arange(5.0) + comm.current().rank, collectives.gpu)
    transports = ("remote-write", "nccl", "copy-engine", "gpu-aware-mpi", "host-staged")
    found = [collectives.why_not(transport) for transport in transports]
    ranks = comm.current().size
    for _ in range(2):
        total = comm.current().all_reduce(x)
        assert np.array_equal(total.to_host(), ranks * np.arange(5.0) + sum(range(ranks)))
    # which of the two says so depends on whether there is a library
    by_mpi, by_library = (
        "MPI, but messages of transport 'thread' are copied",
        "the vendor's library, but ranks 0 and 2",
    )
    with pytest.raises(DeviceError, match=f"goes through ({by_mpi}|{by_library})"):
        comm.current().all_reduce(x, algorithm="ring")
    use_on_all_ranks(device_transport="nccl")
    with pytest.raises(DeviceError, match="goes through the vendor's library, but ranks 0 and 2 use one GPU"):
        comm.current().all_reduce(x, algorithm="two_step")
    use_on_all_ranks(device_transport=None)
    transports = "remote-write, nccl, nccl-windows, nccl-streams, copy-engine, array-write, gpu-aware-mpi and host-staged do"
    with pytest.raises(PlanError, match=f"'pigeon' carries nothing .*; {transports}"):
        collectives.why_not("pigeon")
    return found


def test_where_one_rank_has_no_peers_all_say_so_alike(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ranks 0 and 2 share a device; rank 1 could reach both."""
    use_fake_gpus(monkeypatch, 2)
    found = comm.virtual_ranks(3, reasons)
    assert found[0] == found[1] == found[2]
    by_stores, by_library, by_copies, by_mpi, by_host = found[0]
    assert by_stores.endswith("3 ranks of one process share 2 GPUs")
    assert by_library.startswith("ranks 0 and 2 use one GPU")
    assert by_copies == "3 ranks of one process share 2 GPUs"
    assert by_host == ""
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "collectives on devices" in line]
    assert line.endswith(f"go by way of 'host-staged', since {by_stores}; {by_library}; {by_mpi}")


def what_the_library_lacks() -> None:
    c, core = comm.current(), there()
    x = DeviceArray.from_host(np.ones(4 * c.size, np.int16), there().gpu)

    def why(**changes: Any) -> str:
        a_call = {"collective": "all_reduce", "type": "fp64", "counts": 8, **changes}
        return str(core.why_not("nccl", CollectiveCall(**a_call)))

    assert why() == ""
    assert why(reproducible=True).startswith("algorithm 'nccl' does not say in which order it combines")
    assert why(type="int16").startswith("NCCL cannot combine elements of type int16")
    assert why(operation=np.add) == "'nccl' has no operations of the user"
    assert why(type="complex64", operation="min") != ""
    for more, error, words in (
        ({"algorithm": "nccl", "op": lambda a, b: a + b}, ParameterError, "choose 'host-staged', or none"),
        ({"algorithm": "nccl", "reproducible": True}, ParameterError, "leave reproducible out"),
        ({"algorithm": "nccl"}, DeviceError, "cannot combine elements of type int16"),
    ):
        with pytest.raises(error, match=words):
            c.all_reduce(x, **more)
    assert "no broadcast into another array" in why(collective="broadcast")
    to_all = {"collective": "all_to_all", "in_place": True}
    assert why(**to_all) == "algorithm 'nccl' has no all_to_all in place; choose another, or none"
    with pytest.raises(
        ParameterError, match="'nccl' has no reduce_scatter of parts that differ; choose another"
    ):
        c.reduce_scatter(x, counts=[5, 3] + [4] * (c.size - 2), algorithm="nccl")
    for spec in ("nccl", "nccl-windows"):  # counts that say what would be so without them
        if spec == "nccl-windows" and (closed := core.why_not(spec)):
            assert "handle" in closed  # of memory, which this device had not when it was opened
            continue
        ones = DeviceArray.from_host(np.ones(4 * c.size, np.float32), core.gpu)
        part = c.reduce_scatter(ones, counts=[4] * c.size, algorithm=spec)
        assert part.to_host().tolist() == [c.size] * 4
    # not asked for by name, they find another transport
    assert c.all_reduce(x, op=lambda a, b: a + b).to_host()[0] == c.size
    assert c.all_reduce(x).to_host()[0] == c.size
    assert c.all_reduce(x, reproducible=True).to_host()[0] == c.size


@pytest.mark.parametrize("peers", [True, False])
def test_what_an_entry_lacks_is_said_and_another_does_it(
    peers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not peers:
        monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    comm.virtual_ranks(2, what_the_library_lacks)


def explained() -> str:
    return str(there().explain(CollectiveCall("all_reduce", "fp64", 8, 0, "sum", False, "nccl", False)))


def test_a_collective_of_the_library_says_whether_symmetric_windows_may_be_used(
    ccl_library: str, use_settings: Callable[..., None]
) -> None:
    use_settings(nccl=ccl_library)
    text, other = comm.virtual_ranks(2, explained)
    assert text == other
    if "no symmetric windows" in text:
        assert "NCCL 2.22.3 has no symmetric windows; NCCL has them since 2.27" in text
    else:
        assert "lies in memory of CclCommunicator.symmetric" in text


def recorded_or_refused(spec: str) -> bool:
    c, collectives = comm.current(), there()
    gpu = collectives.gpu
    x = DeviceArray.from_host(np.arange(6.0) + c.rank, gpu)
    out = DeviceArray.empty(gpu, (6,), np.float64)
    call = CollectiveCall("all_reduce", "fp64", 6, 0, "sum", False, spec, False)
    plan = collectives.plan_of(call)
    plan((x, out))  # the fake driver records what this thread does; the library connects ranks in another
    if plan.recordable:
        graph = _core.GpuGraph(gpu, lambda: plan.run([x.address, out.address]))
        for _ in range(3 if isinstance(plan, _core.GpuPlan) else 1):  # the fake library does so once
            gpu.fill(out.memory, 3)
            gpu.launch_graph(graph)
            assert np.array_equal(out.to_host(), c.size * np.arange(6.0) + sum(range(c.size)))
    else:
        words = rf"all_reduce of 48 bytes on devices \({spec}\) takes the host, so that it cannot be recorded"
        with pytest.raises(DeviceError, match=words):
            _core.GpuGraph(gpu, lambda: plan.run([x.address, out.address]))
        plan((x, out))  # no harm was done
        assert np.array_equal(out.to_host(), c.size * np.arange(6.0) + sum(range(c.size)))
    return bool(plan.recordable)


@pytest.mark.parametrize(
    "spec",
    ["two_step", "two_step by copy-engine", "two_step by array-write", "nccl", *HAVE, "host-staged"],
)
@pytest.mark.unproved("runs plans of the core by themselves")
def test_entries_are_recorded_in_graphs_or_refuse_it(spec: str, use_settings: Callable[..., None]) -> None:
    spec, _, transport = spec.partition(" by ")
    use_settings(device_transport=transport)
    assert comm.virtual_ranks(3, recorded_or_refused, spec) == [spec != "host-staged"] * 3


def too_large() -> str:
    """What all others send to the root has no room there beside the arrays."""
    c, gpu = comm.current(), there().gpu
    x = DeviceArray.empty(gpu, (4 << 20,), np.float64)
    out = DeviceArray.empty(gpu, (c.size * x.shape[0],), np.float64) if c.rank == 0 else None
    with pytest.raises(MemoryError if c.rank == 0 else DeviceError) as error:
        c.gather(x, out)
    small = DeviceArray.from_host(np.arange(3.0), gpu)
    assert np.array_equal(c.all_reduce(small).to_host(), c.size * np.arange(3.0))  # and all go on
    return str(error.value)


def test_where_a_rank_has_no_memory_for_messages_all_say_so(
    use_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays take twice 32 MiB for each rank, messages to the root 32 MiB for each other one."""
    ranks = 3
    use_settings(device_transport="copy-engine")
    for ordinal in range(4):
        _core.Gpu.open("cuda", ordinal).trim()
    monkeypatch.setenv("JALI_FAKE_GPU_BYTES", str((2 * ranks * 32 + 24) << 20))
    at_root, *elsewhere = comm.virtual_ranks(ranks, too_large)
    assert "landing of a message" in at_root
    assert elsewhere == [f"making the messages of a plan: rank 0: {at_root}"] * (ranks - 1)


def wrong_buffers(spec: str) -> None:
    collectives = there()
    gpu = collectives.gpu
    call = CollectiveCall("all_reduce", "fp64", 6, 0, "sum", False, spec, False)
    plan = collectives.plan_of(call)
    x, short = DeviceArray.empty(gpu, (6,), "fp64"), DeviceArray.empty(gpu, (5,), "fp64")
    with pytest.raises(PlanError, match="has 2 buffers, 1 were given"):
        plan.run([x.address])
    with pytest.raises(
        ParameterError, match="a buffer has 48 bytes on this rank, the array given for it has 40"
    ):
        plan((x, short))
    with pytest.raises(ParameterError, match="a buffer has 48 bytes on this rank, none was given"):
        plan((x, None))


@pytest.mark.parametrize("spec", ["two_step", "nccl", *HAVE, "host-staged"])
def test_plans_of_all_entries_refuse_other_buffers(spec: str) -> None:
    comm.virtual_ranks(2, wrong_buffers, spec)


def test_names_of_entries_are_those_of_settings_and_algorithms() -> None:
    entries = _core.collective_transports(libraries())
    allowed = {
        spec.name: spec.values for spec in settings.specs() if spec.name in ("device_transport", "collective")
    }
    transports = [name for name, _, carries, _ in entries if carries]
    assert re.split(", | or ", allowed["device_transport"]) == transports
    assert list(algorithms.ON_DEVICES) == [name for name, _, _, itself in entries if itself]
    for name in core_transports_that_do():
        assert name in allowed["collective"]
        jali.settings.current().changed({"collective": f"all_reduce={name}"})
    assert {library_of("cuda"), library_of("hip")} == set(libraries())


def host_and_devices() -> None:
    c, gpu = comm.current(), there().gpu
    composition = planner.Composition.standard("all_reduce", ranks=c.size, count=9, dtype="float64")
    of_devices = composition.plan(libraries=["remote-write"]).on(c)
    x = np.arange(9.0) + c.rank
    with pytest.raises(PlanError, match="libraries remote-write is for arrays in device memory"):
        of_devices.run(x, np.zeros(9))
    out = DeviceArray.empty(gpu, (9,), np.float64)
    of_devices.run(DeviceArray.from_host(x, gpu), out)
    assert np.array_equal(out.to_host(), c.size * np.arange(9.0) + sum(range(c.size)))
    assert of_devices.start(send=DeviceArray.from_host(x, gpu), recv=out) is of_devices
    of_devices.wait()
    gpu.synchronize()
    assert of_devices.test()
    assert not of_devices.running
    for wrong, reported in (
        (np.zeros(9), "some arrays of a plan are in device memory and some are not; give all in the same"),
        (
            DeviceArray.empty(gpu, (8,), np.float64),
            "all_reduce: buffer 'recv' has 72 bytes on this rank, the array given for it 64",
        ),
        (None, "all_reduce: buffer 'recv' has 72 bytes on this rank, the array given for it 0"),
        (DeviceArray.empty(gpu, (9,), np.int64), "buffer 'recv' holds fp64, the array given for it int64"),
    ):
        with pytest.raises(ParameterError, match=reported):
            of_devices.run(DeviceArray.from_host(x, gpu), wrong)
    with pytest.raises(
        PlanError,
        match="'rccl' carries no messages .*; remote-write, nccl, copy-engine, array-write and gpu-aware-mpi do",
    ):
        composition.plan(libraries=["rccl"]).on(c).run(DeviceArray.from_host(x, gpu), out)
    with pytest.raises(PlanError, match="no library 'host-staged' connects these ranks"):
        composition.plan(libraries=["host-staged"]).on(c)


def test_plans_of_the_user_ask_the_entries_which_libraries_are_of_devices() -> None:
    comm.virtual_ranks(2, host_and_devices)


def test_copy_engines_carry_plans_between_devices_that_no_lattice_has_been_on(fake_environment):
    """Devices are opened by whoever owns the arrays."""
    program = """
import numpy as np
from jali import _core, comm, planner

plan = planner.Composition.standard("all_reduce", ranks=2, count=7, dtype="float32").plan(libraries="copy-engine")

def summed():
    c = comm.current()
    gpu = _core.Gpu.open("cuda", c.rank)
    x, y = (comm.DeviceArray.from_host(np.full(7, c.rank + 1, np.float32), gpu) for _ in range(2))
    plan.on(c).run(x, y)
    return y.to_host().tolist()

assert comm.virtual_ranks(2, summed) == [[3.0] * 7] * 2
"""
    run_python(program, env={**fake_environment, "JALI_FAKE_GPUS": "2"})
