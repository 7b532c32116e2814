"""Collectives on arrays in device memory: every way, type and operation gives the bits of the host."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import _core, comm, planner
from jali._core import CollectiveCall
from jali.comm import DeviceArray, algorithms
from jali.comm.elements import OPERATIONS, SIZES
from jali.errors import DeviceError, ParameterError, PlanError

RANKS = 4


@pytest.fixture(autouse=True)
def enough_devices(request: pytest.FixtureRequest, four_devices: None) -> None:
    """On a real machine, tests with more ranks than devices are skipped: ranks of one process need one each."""
    if not REAL:
        return
    needed = request.node.callspec.params.get("ranks", 0) if hasattr(request.node, "callspec") else 0
    mark = request.node.get_closest_marker("ranks")
    needed = mark.args[0] if mark else needed
    if needed > _core.Gpu.count("cuda"):
        pytest.skip(f"ranks of one process need a device each: {needed}")


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]) -> None:
    use_fake_gpus(monkeypatch, 4)
    # small queues: a few KiB take several channels and iterations
    use_settings(
        device_queues="channels=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,bytes_per_channel=256"
    )


def open_gpu(device: str = "cuda") -> Any:
    from jali.devices import open_device

    return open_device(device, comm.current())


def numbers(rank: int, count: int, dtype: str) -> Any:
    """Different on all ranks, and not so large that everything becomes infinite."""
    rng = np.random.default_rng(100 + rank)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(max(info.min, -5), 7, count).astype(kind)
    if kind.kind == "c":
        return (rng.normal(size=count) + 1j * rng.normal(size=count)).astype(kind)
    return rng.normal(size=count).astype(kind)


def raw(x: Any) -> bytes:
    host = x.to_host() if isinstance(x, DeviceArray) else np.asarray(x)
    return bytes(host.tobytes())


def counts_of(ranks: int, rows: int) -> list[int]:
    return [(rows + 3 * r) % (rows + 2) for r in range(ranks)]


def one_call(c: Any, name: str, x: Any, make: Any, uneven: bool, **more: Any) -> Any:
    """A collective on `x`, of `rows` per rank; `make` puts NumPy arrays where they are wanted."""
    ranks, rows = c.size, len(x) // c.size
    counts = counts_of(ranks, rows)
    if name in ("all_reduce", "reduce"):
        root = {} if name == "all_reduce" else {"root": ranks - 1}
        return getattr(c, name)(make(x), **root, **more)
    if name == "broadcast":
        return c.broadcast(make(x), root=1 % ranks, **more)
    if name == "reduce_scatter":
        if uneven:
            return c.reduce_scatter(make(x[: sum(counts)]), counts=counts, **more)
        return c.reduce_scatter(make(x[: ranks * rows]), **more)
    if name in ("all_gather", "gather"):
        root = {} if name == "all_gather" else {"root": ranks - 1}
        if uneven:
            return getattr(c, name)(make(x[: counts[c.rank]]), counts=counts, **root, **more)
        return getattr(c, name)(make(x[:rows]), **root, **more)
    if name == "scatter":
        if uneven:
            out = make(np.zeros(counts[c.rank], x.dtype))
            whole = make(x[: sum(counts)]) if c.rank == 0 else None
            return c.scatter(whole, out, counts=counts, **more)
        out = make(np.zeros(rows, x.dtype))
        return c.scatter(make(x[: ranks * rows]) if c.rank == 0 else None, out, **more)
    if uneven:
        matrix = [[(rows + i + 2 * j) % (rows + 1) for j in range(ranks)] for i in range(ranks)]
        return c.all_to_all(make(x[: sum(matrix[c.rank])]), counts=matrix, **more)
    return c.all_to_all(make(x[: ranks * rows]), **more)


def compare(device: str, name: str, sizes: list[int], specs: list[str], uneven: bool) -> None:
    c = comm.current()
    gpu = open_gpu(device)
    reduces = name in ("all_reduce", "reduce", "reduce_scatter")
    dtype = "float32" if reduces else "int16"

    def on_device(x: Any) -> Any:
        return DeviceArray.from_host(x, gpu)

    for count in sizes:
        x = numbers(c.rank, count, dtype)
        for spec in specs:
            if spec in algorithms.ON_DEVICES:
                continue
            wanted = one_call(c, name, x.copy(), np.ascontiguousarray, uneven, algorithm=spec)
            for _ in range(2):  # queues go round
                got = one_call(c, name, x.copy(), on_device, uneven, algorithm=spec)
                if wanted is None:
                    assert got is None
                else:
                    assert raw(got) == raw(wanted), (name, spec, count, uneven)


@pytest.mark.parametrize(
    "ranks", [1, pytest.param(2, marks=pytest.mark.full), 3, pytest.param(4, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_every_algorithm_gives_the_bits_of_the_host(name: str, ranks: int) -> None:
    specs = algorithms.names(name, on_device=True)
    comm.virtual_ranks(ranks, compare, "cuda", name, [1, 7, 64, 1000], specs, False)
    if name in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"):
        comm.virtual_ranks(ranks, compare, "cuda", name, [8, 1000], specs, True)


def combine(device: str, dtype: str, op: str) -> None:
    c = comm.current()
    gpu = open_gpu(device)
    for count in (3, 100, 1000):
        x = numbers(c.rank, count, dtype)
        for name, spec in (
            ("all_reduce", "one_shot"),
            ("all_reduce", "two_step"),
            ("reduce_scatter", "direct"),
        ):
            if name == "reduce_scatter":
                x = numbers(c.rank, count * c.size, dtype)
            wanted = getattr(c, name)(x, op=op, algorithm=spec)
            got = getattr(c, name)(DeviceArray.from_host(x, gpu), op=op, algorithm=spec)
            assert raw(got) == raw(wanted), (name, spec, count)


TYPES = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
PAIRS = [(dtype, "sum") for dtype in (*TYPES, "complex64", "complex128")]
PAIRS += [(dtype, op) for dtype in ("int32", "uint8") for op in OPERATIONS if op not in ("sum", "avg")]
PAIRS += [
    ("float16", "max"),
    ("float64", "min"),
    ("float32", "avg"),
    ("complex64", "prod"),
    ("complex128", "avg"),
]
SHORT = {("int8", "sum"), ("float16", "sum"), ("complex64", "prod"), ("float32", "avg"), ("uint8", "bit_xor")}


@pytest.mark.short(2)
@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("dtype", "op"), [pytest.param(*p, marks=() if p in SHORT else pytest.mark.full) for p in PAIRS]
)
def test_every_type_and_operation_gives_the_bits_of_the_host(dtype: str, op: str) -> None:
    comm.virtual_ranks(3, combine, "hip" if dtype == "float32" else "cuda", dtype, op)


@pytest.mark.ranks(3)
def test_bfloat16_numbers_are_summed_in_single_precision() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bf16 = np.dtype(ml_dtypes.bfloat16)

    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = np.random.default_rng(c.rank).normal(size=333).astype(bf16)
        wanted = c.all_reduce(x, algorithm="one_shot")
        assert raw(c.all_reduce(DeviceArray.from_host(x, gpu), algorithm="one_shot")) == raw(wanted)

    comm.virtual_ranks(3, run)


@pytest.mark.ranks(4)
def test_reproducible_sums_do_not_depend_on_the_algorithm() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = numbers(c.rank, 777, "float32") * np.float32(1000.0) ** (np.arange(777, dtype=np.float32) % 5)
        wanted = raw(c.all_reduce(x, reproducible=True, algorithm="one_shot"))
        for spec in ("one_shot", "two_step", "recursive_doubling", "ring"):
            got = c.all_reduce(DeviceArray.from_host(x, gpu), reproducible=True, algorithm=spec)
            assert raw(got) == wanted, spec

    comm.virtual_ranks(4, run)


def in_place(name: str) -> None:
    c, gpu = comm.current(), open_gpu()
    rows = 90
    x = numbers(c.rank, rows * c.size, "float32")
    a, b = x.copy(), DeviceArray.from_host(x, gpu)
    if name == "broadcast":
        c.broadcast(a)
        c.broadcast(b)
    else:
        spec = {"all_reduce": "two_step", "reduce": "two_step"}.get(name, "direct")  # in one order
        getattr(c, name)(a, a, algorithm=spec)
        assert getattr(c, name)(b, b, algorithm=spec) is (b if name != "reduce" or c.rank == 0 else None)
    mine = slice(c.rank * rows, (c.rank + 1) * rows) if name == "reduce_scatter" else slice(None)
    if name != "reduce" or c.rank == 0:
        assert b.to_host()[mine].tobytes() == a[mine].tobytes()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"])
def test_in_place(name: str) -> None:
    comm.virtual_ranks(3, in_place, name)


@pytest.mark.ranks(2)
def rounds_of(text: str) -> list[list[tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]]]:
    """What a described plan does side by side: (written, read) regions, each buffer, begin and end, of its instructions."""
    rounds: list[Any] = [[]]
    for line in text.splitlines()[1:]:
        if line.strip() == "then":
            rounds.append([])
            continue
        target, _, rest = line.partition(" = ")
        bytes_ = int(rest.rpartition("(")[2].split()[0])

        def regions(part: str, bytes_: int = bytes_) -> list[tuple[int, int, int]]:
            found = re.findall(r"buffer (\d+) \+ (\d+)", part)
            return [(int(buffer), int(at), int(at) + bytes_) for buffer, at in found]

        rounds[-1].append((regions(target), regions(rest)))
    return rounds


def overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def side_by_side(algorithm: str, name: str, is_in_place: bool) -> int:
    """Checks that no instruction needs or spoils what another of its round makes; how many there are in the largest round."""
    c = comm.current()
    call = CollectiveCall(name, "fp32", 256, 0, "sum", is_in_place, algorithm, False)
    found = rounds_of(c.collectives.on_device(open_gpu()).explain(call))
    for instructions in found:
        for one, other in itertools.permutations(instructions, 2):
            for written in one[0]:
                assert not any(overlap(written, region) for region in other[0] + other[1]), instructions
    return max(map(len, found))


def first_line(algorithm: str) -> str:
    c = comm.current()
    call = CollectiveCall("all_reduce", "fp32", 4096, 0, "sum", False, algorithm, False)
    return str(c.collectives.on_device(open_gpu()).explain(call)).splitlines()[0]


@pytest.mark.ranks(2)
def test_older_names_of_sizes_of_queues_are_read_with_a_warning(
    use_settings: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    use_settings(device_queues="channels=3,bytes_per_channel=256")
    wanted = comm.virtual_ranks(2, first_line, "two_step")
    assert ": 3 channels, " in wanted[0]
    assert capfd.readouterr().err == ""
    use_settings(device_queues="lanes=3,bytes_per_lane=256")
    assert comm.virtual_ranks(2, first_line, "two_step") == wanted
    assert "jali: device_queues: 'lanes' is called 'channels'" in capfd.readouterr().err


@pytest.mark.ranks(4)
@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "name", "most"),
    [
        ("direct", "all_gather", 6),
        ("direct", "all_to_all", 6),
        ("one_shot", "all_reduce", 3),
        ("two_step", "all_reduce", 6),
        ("recursive_doubling", "all_reduce", 1),
    ],
)
def test_instructions_side_by_side_do_not_need_each_other(
    algorithm: str, name: str, most: int, is_in_place: bool
) -> None:
    if is_in_place and name == "all_to_all":
        pytest.skip("its pieces go through another buffer")
    found = jali.virtual_ranks(4, side_by_side, algorithm, name, is_in_place)
    assert min(found) >= most


def test_algorithms_by_name() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(np.ones(4, np.float32), gpu)
        assert c.all_reduce(x, algorithm="host-staged").to_host()[0] == c.size
        assert c.all_reduce(x, op=lambda a, b: a + b).to_host()[0] == c.size  # by way of the host
        with pytest.raises(ParameterError, match="one array is in device memory"):
            c.all_reduce(x, np.ones(4, np.float32))
        with pytest.raises(ParameterError, match="no algorithm 'pipelined' for all_reduce on devices"):
            c.all_reduce(x, algorithm="pipelined")
        with pytest.raises(ParameterError, match="has 16 bytes on this rank, the array given for it has 8"):
            c.all_reduce(x, DeviceArray.empty(gpu, (2,), np.float32))
        request = c.all_reduce(x, blocking=False)
        result = request.wait().to_host()
        assert request.test()
        assert result[0] == c.size

    comm.virtual_ranks(2, run)


@pytest.mark.ranks(4)
def test_a_composition_of_the_user_runs_on_devices() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        p, n = c.size, 600
        composition = planner.Composition(p, "float64")
        send = composition.buffer("send", n)
        recv = composition.buffer("recv", n, input=False)
        part = n // p
        for i in range(p):
            composition.reduce(send[i * part : (i + 1) * part], recv[i * part : (i + 1) * part], root=i)
        composition.fence()
        for i in range(p):
            piece = recv[i * part : (i + 1) * part]
            composition.multicast(piece, piece, root=i, leaves=planner.OTHERS)
        plan = composition.plan(hierarchy="flat", ring=2)
        x = numbers(c.rank, n, "float64")
        wanted = np.zeros(n)
        plan.on(c).run(x, wanted)
        out = DeviceArray.empty(gpu, (n,), np.float64)
        plan.on(c).run(DeviceArray.from_host(x, gpu), out)
        assert raw(out) == wanted.tobytes()

    comm.virtual_ranks(4, run)


def many_messages(fenced: bool) -> None:
    c, gpu = comm.current(), open_gpu()
    pieces, n = 11, 400  # more messages between two ranks than a queue has places
    composition = planner.Composition(2, "float64")
    a = composition.buffer("a", pieces * n)
    for k in range(pieces):
        piece = a[k * n : (k + 1) * n]
        composition.multicast(piece, piece, root=k % 2 if not fenced else 0, leaves=planner.OTHERS)
        if fenced:
            composition.fence()
    x = numbers(c.rank, pieces * n, "float64")
    wanted = x.copy()
    composition.plan(hierarchy="flat").on(c).run(wanted)
    data = DeviceArray.from_host(x, gpu)
    composition.plan(hierarchy="flat").on(c).run(data)
    assert raw(data) == wanted.tobytes()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("fenced", [False, True])
def test_more_messages_than_a_queue_takes(fenced: bool, use_settings: Callable[..., None]) -> None:
    use_settings(watchdog="120")
    comm.virtual_ranks(2, many_messages, fenced)


@pytest.mark.ranks(2)
def test_pieces_that_overlap_in_part_are_refused() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        composition = planner.Composition(2, "float32")
        a = composition.buffer("a", 30)
        composition.multicast(a[0:20], a[0:20], root=0, leaves=planner.OTHERS)
        composition.fence()
        composition.multicast(a[10:30], a[10:30], root=1, leaves=planner.OTHERS)
        plan = composition.plan(hierarchy="flat")
        with pytest.raises(jali.errors.PlanError, match="overlap in part"):
            plan.on(c).run(DeviceArray.from_host(np.zeros(30, np.float32), gpu))

    comm.virtual_ranks(2, run)


@pytest.mark.ranks(2)
def test_sixteen_bit_overflow_is_reported_in_checked_mode() -> None:
    def run() -> str:
        c, gpu = comm.current(), open_gpu()
        fine = DeviceArray.from_host(np.full(50, 100, np.float16), gpu)
        c.all_reduce(fine, checked=True)
        large = DeviceArray.from_host(np.full(50, 60000, np.float16), gpu)
        try:
            c.all_reduce(large, checked=True)
        except ParameterError as error:
            return str(error)
        return ""

    reported = comm.virtual_ranks(2, run)
    assert all("100 results are too large for fp16" in text for text in reported), reported


@pytest.mark.ranks(3)
def test_graphs_repeat_collectives() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(numbers(c.rank, 300, "float64"), gpu)
        out = DeviceArray.empty(gpu, (300,), np.float64)
        wanted = raw(c.all_reduce(x, out))
        graph = _core.GpuGraph(gpu, lambda: c.all_reduce(x, out))
        for _ in range(20):
            gpu.fill(out.memory, 3)
            gpu.launch_graph(graph)
            c.all_reduce(x)  # in between
        assert raw(out) == wanted

    comm.virtual_ranks(3, run)


@pytest.mark.ranks(2)
def test_devices_without_peers_say_so(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    if REAL:
        pytest.skip("the machine's devices have peers")
    monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    use_settings(nccl="/nowhere/libnccl.so")

    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(np.ones(5, np.int64), gpu)
        assert c.all_reduce(x).to_host()[0] == c.size  # staged
        with pytest.raises(DeviceError):
            c.all_reduce(x, algorithm="ring")

    comm.virtual_ranks(2, run)


def test_sizes_of_elements_are_known_to_the_kernels() -> None:
    for name in SIZES:
        assert "JALI_STORED" in _core.collective_text("slotted", name, "none")[0]


@pytest.fixture
def fake_nccl(use_settings: Callable[..., None]) -> None:
    if REAL:
        pytest.skip("CUDA's driver is the machine's in this run")
    from fake_driver import make_fake_ccl

    use_settings(nccl=str(make_fake_ccl()), rccl=str(make_fake_ccl()))


def over_the_library(transport: str) -> None:
    c, gpu = comm.current(), open_gpu()
    x = numbers(c.rank, 240, "float32")
    for name, spec in (
        ("all_reduce", "two_step"),
        ("all_gather", "ring"),
        ("broadcast", "binomial"),
        ("reduce", "chain"),
    ):
        wanted = getattr(c, name)(x.copy(), algorithm=spec)
        there = DeviceArray.from_host(x, gpu)
        got = getattr(c, name)(there, algorithm=spec)
        assert (wanted is None and got is None) or raw(got) == raw(wanted), (name, spec)
    if transport != "remote-write":
        assert f"{transport}: send" in c.collectives.on_device(gpu).explain(
            CollectiveCall("all_reduce", "fp32", 240, 0, "sum", False, "two_step", False)
        )


@pytest.mark.ranks(4)
@pytest.mark.parametrize("transport", ["nccl", "copy-engine", "remote-write"])
def test_algorithms_by_every_transport(
    transport: str, fake_nccl: None, use_settings: Callable[..., None]
) -> None:
    use_settings(device_transport=transport)
    comm.virtual_ranks(4, over_the_library, transport)


def both_transports() -> None:
    c, gpu = comm.current(), open_gpu()
    n = 400
    composition = planner.Composition.standard(
        "all_reduce", ranks=4, count=n, dtype="float64", form="composed"
    )
    plan = composition.plan(hierarchy=(2, 2), libraries=["nccl", "remote-write"])
    x = numbers(c.rank, n, "float64")
    wanted = np.zeros(n)
    composition.plan(hierarchy=(2, 2)).on(c).run(x, wanted)
    out = DeviceArray.empty(gpu, (n,), np.float64)
    for _ in range(3):
        gpu.fill(out.memory, 5)
        plan.on(c).run(DeviceArray.from_host(x, gpu), out)
        assert raw(out) == wanted.tobytes()


@pytest.mark.ranks(4)
def test_one_schedule_over_the_library_and_the_memory_of_peers(fake_nccl: None) -> None:
    comm.virtual_ranks(4, both_transports)


def chosen_algorithm() -> None:
    c, gpu = comm.current(), open_gpu()
    x = numbers(c.rank, 24, "float32")
    for name in algorithms.COLLECTIVES:
        wanted = one_call(c, name, x.copy(), np.ascontiguousarray, False)
        got = one_call(c, name, x.copy(), lambda a: DeviceArray.from_host(a, gpu), False, algorithm="nccl")
        if wanted is None:
            assert got is None
        else:
            np.testing.assert_allclose(
                np.frombuffer(raw(got), np.float32), np.asarray(wanted).ravel(), rtol=1e-5
            )


def of_another_vendor() -> None:
    c, gpu = comm.current(), open_gpu()
    x = DeviceArray.from_host(np.ones(5, np.int64), gpu)
    with pytest.raises(ParameterError, match="'rccl' is not for cuda devices; theirs is 'nccl'"):
        c.all_reduce(x, algorithm="rccl")
    for old in ("ccl", "staged"):
        with pytest.raises(
            ParameterError,
            match=f"no algorithm '{old}' .* host-staged, nccl, nccl-streams, nccl-windows, rccl",
        ):
            c.all_reduce(x, algorithm=old)
    with pytest.raises(
        PlanError,
        match="'rccl' carries no messages .* remote-write, nccl, copy-engine, array-write and gpu-aware-mpi do",
    ):
        composition = planner.Composition.standard("all_reduce", ranks=c.size, count=5, dtype="int64")
        composition.plan(libraries=["rccl"]).on(c).run(x, x)
    assert c.all_reduce(x).to_host()[0] == c.size  # the setting says nothing about these devices


def test_the_library_of_another_vendor_is_not_taken(
    fake_nccl: None, use_settings: Callable[..., None]
) -> None:
    use_settings(collective="rccl")
    comm.virtual_ranks(2, of_another_vendor)


@pytest.mark.ranks(3)
def test_the_vendors_collectives_are_entries(fake_nccl: None) -> None:
    comm.virtual_ranks(3, chosen_algorithm)
