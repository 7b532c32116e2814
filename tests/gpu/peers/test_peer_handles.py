"""Ways in which processes map each other's device memory: IPC handles, and memory with handles where IPC is refused."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_driver import PATH, REAL, current_device, make_fake_ccl, make_fake_driver, primary_context
from programs import on_ranks, run_program

import jali
from jali import _core, comm
from jali.comm.device_arrays import DeviceArray
from jali.devices import open_device

# How the second way comes to be used: named, or because the driver does not export, or does not open.
SECOND_ALGORITHM = {
    "named": {"JALI_PEER_HANDLES": "virtual"},
    "not exported": {"JALI_FAKE_NO_IPC": "1"},
    "not opened": {"JALI_FAKE_NO_IPC_OPEN": "1"},
    "by HIP 7.1": {"JALI_PEER_HANDLES": "virtual", "JALI_FAKE_HIP_VERSION": "70151831"},  # imports otherwise
}
POLICIES = ("remote-write-overlap", "remote-write-wait", "buffered-write-overlap", "copy-engine-overlap")

needs_fake_driver = pytest.mark.skipif(REAL, reason="needs a fake driver")


def on_processes(text: str, environment: dict[str, str], ranks: int = 2, fails: bool = False) -> str:
    """What `ranks` processes print that have this module as `t`; if they shall fail, what they say about it too."""
    fake = {} if REAL else {"JALI_FAKE_GPUS": "2", "JALI_NCCL": str(make_fake_ccl())}
    done = run_program(
        on_ranks(ranks, sys.executable, "-c", f"import test_peer_handles as t\n{text}"),
        status=None if fails else 0,
        env={**environment, **fake},
        path=PATH,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout + (done.stderr if fails else "")


@jali.site_function
def spread(X, out, x):
    mu, nu = X.directions()
    out[X] = x[X + mu - nu] - 2 * x[X - mu] + x[X + 2 * nu]


def halos(device: str) -> list[bytes]:
    """Fields that come and go and get more ghosts, as bytes of the whole lattice."""
    ranks = comm.current()
    lattice = jali.Lattice(8, 12, grid=(1, ranks.size), device=device)
    found = []
    for number in range(3):
        x, out = (lattice.field(jali.Vector(3)) for _ in range(2))
        x[...] = np.random.default_rng(number).normal(size=(*x[...].shape, 2)).view(complex)[..., 0]
        for _ in range(3):
            spread(out, x)
            x.assign(out)
        found.append(x[...].tobytes())
    return found


def collectives(device: str) -> list[bytes]:
    c = comm.current().duplicate()
    rng = np.random.default_rng(c.rank)
    found = []
    for count in (3, 1000, 300_000):
        values = rng.integers(-1000, 1000, count).astype(np.float64)  # sums are exact
        x = DeviceArray.from_host(values, open_device(device, c)) if device != "cpu" else values
        for y in (c.all_reduce(x), c.all_gather(x)):
            found.append(np.asarray(y.to_host() if isinstance(y, DeviceArray) else y).tobytes())
    return found


def messages(device: str) -> None:
    """Round a ring, short and long, by both transports of peers, some in a graph."""
    c, gpu = comm.current(), open_device(device, comm.current())
    right, left = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    for transport in ("remote-write", "copy-engine"):
        for count in (1, 1000, 3 << 20):
            x, y = (DeviceArray.from_host(np.zeros(count, np.uint8), gpu) for _ in range(2))
            ends = [c.persistent_send(x, right, transport=transport), c.persistent_receive(y, left)]
            for number in range(3):
                gpu.upload_address(x.address, np.full(count, 10 * c.rank + number, np.uint8))
                if number < 2:
                    c.start(ends)
                else:
                    gpu.launch_graph(_core.GpuGraph(gpu, lambda ends=ends: c.start(ends)))
                assert np.all(y.to_host() == 10 * left + number), (transport, count, number)
            assert not ends[1].lands_beside
            c.barrier()


def everything(device: str, how: str, policies: tuple[str, ...] = POLICIES) -> None:
    """What the tests of both ways to map memory run: the same bits as on the host."""
    wanted = halos("cpu")
    for policy in policies:
        with jali.settings.using(halo_policy=policy):
            assert halos(device) == wanted, policy
    wanted = collectives("cpu")
    for transport in ("remote-write", "copy-engine"):
        with jali.settings.using(device_transport=transport):
            assert collectives(device) == wanted, transport
    messages(device)
    print(open_device(device, comm.current()).peer_handles == how, flush=True)


@pytest.mark.mpi
@needs_fake_driver
@pytest.mark.parametrize(
    ("device", "how"),
    [
        ("cuda", "not exported"),
        *(
            pytest.param(device, how, marks=pytest.mark.full)
            for device, how in (
                ("hip", "named"),
                ("hip", "by HIP 7.1"),
                ("cuda", "named"),
                ("cuda", "not opened"),
            )
        ),
    ],
)
def test_processes_map_memory_with_handles(device: str, how: str, fake_environment: dict[str, str]) -> None:
    text = f"t.everything({device!r}, 'virtual')" if device == "cuda" else "t.why_not('hip')"
    environment = {**fake_environment, **SECOND_ALGORITHM[how]}
    assert on_processes(text, environment).split() == ["True", "True"]


def freed_beside_another_device() -> None:
    """What maps the memory of other ranks goes while the other device is the thread's: that it stays."""
    driver, context = ctypes.CDLL(str(make_fake_driver())), ctypes.c_void_p()
    ranks = comm.current()
    lattice, own = jali.Lattice(8, 12, grid=(1, 2), device="cuda"), ranks.duplicate()
    x, out = lattice.field(jali.Real()), lattice.field(jali.Real())
    with jali.settings.using(halo_policy=POLICIES[0]):
        spread(out, x)
    own.all_reduce(DeviceArray.from_host(np.zeros(300_000), lattice.gpu))
    lattice.gpu.synchronize()
    other = 1 - lattice.gpu.ordinal
    with current_device(driver, other):
        del lattice, x, out, own
        gc.collect()
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    print(context.value == primary_context(driver, other).value, flush=True)
    ranks.barrier()


@pytest.mark.short(1)
@pytest.mark.mpi
@needs_fake_driver
@pytest.mark.parametrize("handles", ["ipc", "virtual"])
def test_freeing_mapped_memory_leaves_the_callers_device_current(
    handles: str, fake_environment: dict[str, str]
) -> None:
    environment = {**fake_environment, "JALI_PEER_HANDLES": handles}
    assert on_processes("t.freed_beside_another_device()", environment).split() == ["True", "True"]


def why_not(device: str) -> None:
    """Memory with handles is tried and works, and is not of the kind that signals take."""
    lattice = jali.Lattice(8, 12, device=device)
    reason = lattice.layout("float64").why_not_halo_policy(comm.current().core, POLICIES[0])
    print("fine-grained memory, which has no handle of the type virtual" in reason, flush=True)


@pytest.mark.mpi
@pytest.mark.gpu
@pytest.mark.parametrize("transport", ["ipc", "virtual"])
def test_two_real_devices_by_either_way(transport: str) -> None:
    if _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    environment = {**os.environ, "JALI_PEER_HANDLES": transport}
    assert on_processes(f"t.everything('cuda', {transport!r})", environment).split() == ["True", "True"]


def alone(text: str, environment: dict[str, str]) -> str:
    """What one process prints that has this module as `t`."""
    command = [sys.executable, "-c", f"import test_peer_handles as t\n{text}"]
    return run_program(command, env={**environment, "JALI_FAKE_GPUS": "2"}, path=PATH).stdout


def test_devices_of_one_process_use_memory_with_handles(fake_environment: dict[str, str]) -> None:
    """Such memory is closed to other devices until each has been let in."""
    environment = dict(os.environ) if REAL else fake_environment
    if REAL and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    text = "t.comm.virtual_ranks(2, t.everything, 'cuda', 'virtual', ('remote-write-overlap', 'copy-engine-overlap'))"
    assert alone(text, {**environment, "JALI_PEER_HANDLES": "virtual"}).split() == ["True"] * 2


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def come_and_go(device: str) -> None:
    """Descriptors that are open after some mappings are as many as after many."""
    c, gpu = comm.current(), open_device(device, comm.current())

    def once(number: int) -> None:
        halos(device)
        x, y = (DeviceArray.from_host(np.zeros(2 << 20, np.uint8), gpu) for _ in range(2))
        ends = [c.persistent_send(x, 1 - c.rank), c.persistent_receive(y, 1 - c.rank)]
        c.start(ends)
        gpu.synchronize()
        c.barrier()
        del ends
        halos(device)  # what was dropped is closed when the device has come by
        c.barrier()
        if number % 2:
            gpu.trim()

    open_before = []
    for number in range(14):
        once(number)
        open_before.append(descriptors())
    # A thread may have a file open for a moment; one left open by each of these would be eight more.
    assert max(open_before[-4:]) <= max(open_before[2:6]) + 3, open_before
    print("even", flush=True)


@pytest.mark.mpi
@pytest.mark.full
def test_many_mappings_leave_no_descriptor_open(fake_environment: dict[str, str]) -> None:
    if REAL and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    found = dict(os.environ) if REAL else fake_environment
    environment = {**found, "JALI_PEER_HANDLES": "virtual", "JALI_HALO_POLICY": "remote-write-wait"}
    assert on_processes("t.come_and_go('cuda')", environment).split() == ["even", "even"]


class Expandable:
    """Memory that another library has put together: pieces with handles, one behind the other, in a larger range."""

    def __init__(self, pieces: int, offset: int, bytes_: int) -> None:
        driver = ctypes.CDLL(os.environ["JALI_CUDA_DRIVER"])
        word, unit = ctypes.c_uint64, 2 << 20
        properties = (ctypes.c_int * 8)(1, 1, 1, comm.current().rank)
        access = (ctypes.c_int * 3)(1, comm.current().rank, 3)
        begin, zero = word(), word(0)
        assert driver.cuMemAddressReserve(ctypes.byref(begin), word(8 * unit), zero, zero, zero) == 0
        at = begin.value + unit
        for number in range(pieces):
            handle = word()
            position = word(at + number * unit)
            assert driver.cuMemCreate(ctypes.byref(handle), word(unit), properties, zero) == 0
            assert driver.cuMemMap(position, word(unit), zero, handle, zero) == 0
            assert driver.cuMemRelease(handle) == 0
        assert driver.cuMemSetAccess(word(at), word(pieces * unit), access, word(1)) == 0
        self.__cuda_array_interface__ = {
            "shape": (bytes_,),
            "typestr": "|u1",
            "data": (at + offset, False),
            "strides": None,
            "version": 3,
            "stream": 1,
        }


def from_elsewhere(beside: bool) -> None:
    c, gpu = comm.current(), open_device("cuda", comm.current())
    count = 3 << 20
    x = Expandable(3, (2 << 20) - 5, count)  # over all three
    address = x.__cuda_array_interface__["data"][0]
    end = c.persistent_receive(x, 0) if c.rank else c.persistent_send(x, 1)
    for number in range(3):
        wanted = ((np.arange(count) * 7 + number) % 251).astype(np.uint8)
        if c.rank == 0:
            gpu.upload_address(address, wanted)
        end.start()
        got = np.empty(count, np.uint8)
        gpu.download_address(address, got)
        assert np.array_equal(got, wanted), number
    print(c.rank == 0 or end.lands_beside == beside, flush=True)
    c.barrier()


@pytest.mark.full
@pytest.mark.mpi
@needs_fake_driver
def test_pieces_of_another_library_are_mapped_one_behind_the_other(fake_environment: dict[str, str]) -> None:
    """As PyTorch's expandable segments are made, which IPC handles cannot pass on."""
    assert on_processes("t.from_elsewhere(False)", fake_environment).split() == ["True", "True"]


@pytest.mark.mpi
@needs_fake_driver
@pytest.mark.full
def test_pieces_of_another_library_land_beside_where_only_ipc_is_allowed(
    fake_environment: dict[str, str],
) -> None:
    environment = {**fake_environment, "JALI_PEER_HANDLES": "ipc"}
    assert on_processes("t.from_elsewhere(True)", environment).split() == ["True", "True"]


NO_WAY = [
    ({"JALI_FAKE_NO_IPC": "1", "JALI_FAKE_NO_VIRTUAL": "1"}, ("NOT_SUPPORTED", "NOT_SUPPORTED")),
    ({"JALI_FAKE_NO_IPC": "1", "JALI_FAKE_NO_VIRTUAL_IMPORT": "1"}, ("NOT_SUPPORTED", "importing memory")),
    ({"JALI_FAKE_NO_IPC": "1", "JALI_PEER_HANDLES": "ipc"}, ("NOT_SUPPORTED", "leaves it out")),
]


@pytest.mark.mpi
@needs_fake_driver
@pytest.mark.parametrize(
    ("settings", "reasons"),
    [NO_WAY[0], *(pytest.param(*case, marks=pytest.mark.full) for case in NO_WAY[1:])],
)
def test_where_no_way_works_errors_say_why_and_what_to_do(
    settings: dict[str, str], reasons: tuple[str, str], fake_environment: dict[str, str]
) -> None:
    text = """
import jali
wanted = t.halos("cpu")
with jali.settings.using(halo_policy=None):
    assert t.halos("cuda") == wanted  # another transport, said once
with jali.settings.using(halo_policy="remote-write-wait"):
    try:
        t.halos("cuda")
    except jali.DeviceError as error:
        print(error, flush=True)
c, gpu = t.comm.current(), t.open_device("cuda", t.comm.current())
x = t.DeviceArray.from_host(t.np.zeros(4), gpu)
try:
    c.persistent_send(x, 1 - c.rank, transport="remote-write")
except jali.DeviceError as error:
    print(error, flush=True)
"""
    said = on_processes(text, {**fake_environment, **settings}).splitlines()
    assert len(said) == 4
    for line in said:
        _, ipc, rest = line.partition("(ipc: ")
        by_ipc, virtual, by_descriptor = rest.partition("; virtual: ")
        assert (ipc, virtual) == ("(ipc: ", "; virtual: "), line
        assert reasons[0] in by_ipc
        assert reasons[1] in by_descriptor
        assert "or use transports that need no such memory" in line


@pytest.mark.full
@pytest.mark.mpi
@needs_fake_driver
def test_a_rank_that_fails_beside_mapped_memory_stops_the_others(fake_environment: dict[str, str]) -> None:
    text = """
t.halos("cuda")
if t.comm.current().rank == 1:
    raise ArithmeticError("rank 1 has had enough")
t.halos("cuda")
"""
    environment = {**fake_environment, "JALI_PEER_HANDLES": "virtual"}
    said = on_processes(text, environment, fails=True)
    assert "rank 1 has had enough" in said


@pytest.mark.full
@needs_fake_driver
def test_an_old_driver_has_one_way(fake_environment: dict[str, str]) -> None:
    driver = str(make_fake_driver("-DWITHOUT_VIRTUAL_MEMORY", "-Wno-unused-function", "-Wno-unused-variable"))
    environment = {**fake_environment, "JALI_CUDA_DRIVER": driver, "JALI_HIP_DRIVER": driver}
    text = """
for kind in ("cuda", "hip"):
    gpu = t._core.Gpu.open(kind, 0)
    print(gpu.peer_handles, repr(gpu.why_not_peer_handles()))
    gpu.allocate(1000, "some").nbytes
"""
    cuda, hip = alone(text, environment).splitlines()
    assert cuda.startswith("ipc {'ipc': '', 'virtual': 'the driver lacks cuMemCreate, ")
    assert hip.startswith("ipc {'ipc': '', 'virtual': 'the driver lacks hipMemCreate, ")
    text = """
import jali
gpu = t._core.Gpu.open("cuda", 0)
try:
    gpu.allocate(1000, "some")
except jali.DeviceError as error:
    print(error)
"""
    said = alone(text, {**environment, "JALI_PEER_HANDLES": "virtual"})
    assert "JALI_PEER_HANDLES=virtual; auto chooses a type that works" in said
    assert "the driver lacks cuMemCreate" in said


@needs_fake_driver
def test_the_pool_of_memory_with_handles_gives_back_what_it_took(fake_environment: dict[str, str]) -> None:
    text = """
gpu = t._core.Gpu.open("cuda", 0)
free = gpu.free_memory
kept = [gpu.allocate(n, "some") for n in (1, 1000, 70_000, 3 << 20)]
assert len({memory.address for memory in kept}) == 4
used = free - gpu.free_memory
assert used == 10 << 20, used  # three segments for small blocks of three sizes, one of 4 MiB
assert gpu.memory_held == 1 + 1000 + 70_000 + (3 << 20)
first = kept.pop(0)
del first
gpu.trim()
assert free - gpu.free_memory == 8 << 20
again = gpu.allocate(900, "more")  # beside the block of 1000
assert free - gpu.free_memory == 8 << 20
del kept, again
gpu.trim()
assert gpu.free_memory == free and gpu.memory_cached == 0
try:
    gpu.allocate(2 << 30, "too much")
except MemoryError as error:
    assert "'too much' asked for 2.0 GiB" in str(error)
    print("fine")
"""
    assert alone(text, {**fake_environment, "JALI_PEER_HANDLES": "virtual"}) == "fine\n"


@needs_fake_driver
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "other processes map its memory by ipc handles; virtual would work too"),
        ({"JALI_FAKE_NO_IPC": "1"}, "by virtual handles; ipc: exporting memory: NOT_SUPPORTED"),
        pytest.param(
            {"JALI_PEER_HANDLES": "virtual"},
            "by virtual handles; ipc: JALI_PEER_HANDLES leaves it out",
            marks=pytest.mark.full,
        ),
        pytest.param(
            {"JALI_FAKE_NO_PEERS": "1"},
            "other processes cannot map its memory (ipc: exporting memory: NOT_SUPPORTED",
            marks=pytest.mark.full,
        ),
    ],
)
def test_info_says_which_algorithms_there_are(
    settings: dict[str, str], words: str, fake_environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {**fake_environment, "JALI_CACHE_DIR": str(tmp_path), **settings}
    said = run_program([sys.executable, "-m", "jali", "info"], env=environment).stdout
    assert said.count(words) == 2, said  # of cuda and of hip
