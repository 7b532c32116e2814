"""What goes another way than the first one says so on stderr, once for each reason; and graphs that are launched while they run."""

from __future__ import annotations

import pytest
from fake_driver import PATH, REAL, make_fake_ccl
from programs import run_python

pytestmark = pytest.mark.skipif(REAL, reason="real devices reach each other's memory")
HEAD = """
import numpy as np
import jali
from jali import _core, comm
from jali.comm import DeviceArray
"""


def said(program: str, environment: dict[str, str], **more: str) -> list[str]:
    """Lines on stderr of a program that prints 'right' at the end."""
    done = run_python(HEAD + program, env={**environment, "JALI_FAKE_GPUS": "2", **more}, path=PATH)
    assert done.stdout.split() == ["right"], done.stderr
    return done.stderr.splitlines()


def test_collectives_that_go_another_way_say_so(fake_environment):
    program = """
def both():
    c = comm.current()
    gpu = _core.Gpu.open("cuda", c.rank)
    for count in (5, 5000):
        for name in ("all_reduce", "all_gather"):
            x = DeviceArray.from_host(np.ones(count, np.float32), gpu)
            for _ in range(2):
                found = getattr(c, name)(x)
    assert found.to_host().sum() == 2 * 5000
comm.virtual_ranks(2, both)
print("right")
"""
    lines = said(program, fake_environment, JALI_FAKE_NO_PEERS="1", JALI_NCCL="/nowhere/libnccl.so")
    (line,) = [line for line in lines if "collectives on devices" in line]
    assert line.startswith("jali: collectives on devices go by way of 'host-staged', since ")
    assert "NCCL was not found" in line
    assert said(program, fake_environment) == []


def test_messages_that_go_another_way_say_so(fake_environment):
    program = """
def both():
    c = comm.current()
    x = DeviceArray.from_host(np.full(8, c.rank), _core.Gpu.open("cuda", c.rank))
    for tag in range(3):
        message = c.persistent_send(x, 1, tag) if c.rank == 0 else c.persistent_receive(x, 0, tag)
        message.start()
    assert x.to_host().sum() == 0
comm.virtual_ranks(2, both)
print("right")
"""
    lines = said(program, fake_environment, JALI_FAKE_NO_PEERS="1", JALI_NCCL="/nowhere/libnccl.so")
    (line,) = [line for line in lines if "messages between devices" in line]
    assert line.startswith("jali: messages between devices go by way of 'host-staged', since ")
    assert said(program, fake_environment) == []


def test_halos_that_go_another_way_say_so_once(fake_environment):
    program = """
@jali.site_function
def shifted(X, y, x):
    y[X] = x[X + X.directions()[1]]

def both():
    for extents in ((4, 8), (8, 8)):
        lattice = jali.Lattice(*extents, device="cuda", grid=(1, 2))
        x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
        x[...] = 1.0
        shifted(y, x)
        assert y[...].sum() == extents[0] * 8
jali.virtual_ranks(2, both)
print("right")
"""
    (line,) = said(program, fake_environment, JALI_FAKE_NO_PEERS="1")
    assert line.startswith(
        "jali: halos between devices go by way of the host (policy host-staged-overlap), since "
    )
    assert said(program, fake_environment) == []


def test_a_graph_that_is_launched_on_another_stream_while_it_runs_waits_and_says_so(fake_environment):
    program = """
@jali.site_function
def step(X, y, x):
    y[X] = 2 * x[X]

lattice = jali.Lattice(6, 4, device="cuda")
x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
x[...] = 1.0
def both():
    step(y, x)
    step(x, y)
both()
gpu, other = lattice.gpu, 1  # the default stream
graph = _core.GpuGraph(gpu, both)
gpu.launch_graph(graph)
gpu.synchronize()
gpu.launch_graph(graph, other)  # the last launch has ended
gpu.wait_for(other)
for _ in range(SAYS):
    gpu.launch_graph(graph)
    gpu.launch_graph(graph, other)
gpu.wait_for(other)
assert (x[...] == 4.0 ** (3 + 2 * SAYS)).all()
print("right")
"""
    assert said(program.replace("SAYS", "0"), fake_environment) == []
    (line,) = said(program.replace("SAYS", "3"), fake_environment)
    assert line.startswith("jali: a graph is launched on another stream while its last launch still runs")
    for seed in ("1", "2"):  # with which it may have ended
        assert len(said(program.replace("SAYS", "3"), fake_environment, JALI_FAKE_SEED=seed)) <= 1


@pytest.mark.parametrize(
    ("policy", "lines"), [("host-staged-wait", 1), ("copy-engine-wait", 0), ("nccl-wait", 0)]
)
def test_a_graph_whose_halos_go_by_another_row_than_the_tuned_one_says_so_once(
    policy, lines, fake_environment
):
    program = f"""
@jali.site_function
def shifted(X, y, x):
    y[X] = x[X + X.directions()[1]]

def both():
    for _ in range(2):
        lattice = jali.Lattice(4, 8, device="cuda", grid=(1, 2))
        x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
        x[...] = 1.0
        call = shifted.bind(y, x)
        call()
        for kernel in call.kernels:
            kernel.launch.set_policy("{policy}")  # as the tuner does
        jali.graph(lambda: (call(), x.assign(y)), lattice).run(2)
        assert (x[...] == 1).all()
jali.virtual_ranks(2, both)
print("right")
"""
    reported = said(program, fake_environment, JALI_NCCL=str(make_fake_ccl()))
    assert reported == lines * [
        "jali: halos of shifted go by remote-write-overlap in a graph, not by host-staged-wait: its exchanges need the host "
        "(JALI_HALO_POLICY=auto-graph measures those that do not)"
    ]


WITH_HALOS = """
import ctypes, os, threading

def another_stream():  # of this device alone, which the default stream of the fake driver is not
    handle = ctypes.c_void_p()
    assert ctypes.CDLL(os.environ["JALI_CUDA_DRIVER"]).cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
    return handle.value

@jali.site_function
def around(X, y, x):
    y[X] = x[X + X.directions()[1]] + 2 * x[X - X.directions()[1]]

def step(y, x):
    around(y, x)
    around(x, y)

def wanted(times):
    x = np.random.default_rng(1).normal(size=(4, 8))
    for _ in range(2 * times):
        x = np.roll(x, -1, 1) + 2 * np.roll(x, 1, 1)
    return x

def both():
    lattice = jali.Lattice(4, 8, device="cuda", grid=(1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x[...] = wanted(0)
    step(y, x)
    gpu, other = lattice.gpu, another_stream()
    graph = _core.GpuGraph(gpu, lambda: step(y, x))
    gpu.let_wait(other)  # for the first step
    LAUNCHES
    gpu.wait_for(other)
    gpu.synchronize()
    assert np.array_equal(x[...], wanted(1 + TIMES))
jali.virtual_ranks(2, both)
print("right")
"""


def test_a_graph_with_halos_that_is_launched_on_another_stream_waits_and_says_so(fake_environment):
    alternating = """for _ in range(3):
        gpu.launch_graph(graph)
        gpu.launch_graph(graph, other)"""
    program = WITH_HALOS.replace("LAUNCHES", alternating).replace("TIMES", "6")
    (line,) = said(program, fake_environment)
    assert line.startswith("jali: a graph is launched on another stream while its last launch still runs")
    for seed in ("1", "2", "3"):
        assert len(said(program, fake_environment, JALI_FAKE_SEED=seed)) <= 1


def test_a_graph_that_several_threads_launch_counts_each_launch(fake_environment):
    """On streams of their own, with halos; each is a whole repetition, one after the other."""
    threads = """meet = threading.Barrier(4)
    def launch(stream):
        meet.wait()
        for _ in range(5):
            gpu.launch_graph(graph, stream)
    all = [threading.Thread(target=launch, args=(s,)) for s in (None, other, None, other)]
    for thread in all:
        thread.start()
    for thread in all:
        thread.join()"""
    program = WITH_HALOS.replace("LAUNCHES", threads).replace("TIMES", "20")
    for seed in ("0", "1", "2"):
        assert len(said(program, fake_environment, JALI_FAKE_SEED=seed)) <= 1
