"""Graphs on devices of several ranks: halos, sums and collectives in them give the bits of calls, on any number of ranks."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from fake_driver import PATH, REAL, TWO_DEVICES, run_on_devices, until_idle, use_fake_ccl, use_fake_gpus
from programs import run_python
from test_extremes_on_devices import between_sums, fields, four
from test_graphs import filled, power_iteration, scale, spread
from test_scalar_arrays_on_devices import sums_of_slices
from test_solvers_on_devices import operator, random_field

import jali
from jali import EVEN, ODD, Complex, Field, Lattice, Real, Spinor, _core, comm, graph_recorder, planner
from jali.comm import DeviceArray
from jali.errors import DeviceError, RankError, RecordingError
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField
from jali.solvers import cg

pytestmark = TWO_DEVICES
RANKS = [2] if REAL else [2, 3, 4]
KINDS = ["cuda"] if REAL else ["cuda", "hip"]
ORDERS = ("overlap", "wait", "directions")


@pytest.fixture(autouse=True)
def devices(monkeypatch, tmp_path, use_settings):
    """Four, one for each rank, and a library of collectives."""
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    monkeypatch.setenv("JALI_FAKE_GPU_BYTES", str(4 << 30))  # together; queues of collectives take some
    gc.collect()
    for ordinal in range(len(RANKS) + 1):
        _core.Gpu.open("cuda", ordinal).trim()
    use_fake_ccl(use_settings)


def iterated(kind, extents, turns):
    """What calls or repetitions of a graph leave: fields, the number of turns, norm and condition."""
    lattice = Lattice(*extents, device=kind)
    a, b, n, step = power_iteration(lattice)
    if kind == "cpu":
        for _ in range(sum(turns)):
            norm, small = step()
        found = [float(norm), bool(small)]
    else:
        graph = jali.graph(step, lattice)
        assert float(n) == 0  # nothing was done
        for turn in turns:
            graph.run(turn)
        found = graph.read()
    return a[...].tolist(), b[...].tolist(), float(n), found


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", KINDS)
def test_repetitions_are_calls(kind, ranks):
    wanted = iterated("cpu", (6, 7), (7,))
    assert jali.virtual_ranks(ranks, iterated, kind, (6, 7), (3, 4)) == [wanted] * ranks


def recordable(kind):
    """Policies that graphs can have, where this kind of device has them at all."""
    return [name for name, _, can, *_, never in _core.halo_policies(kind) if can and not never]


@pytest.mark.short(3)
@pytest.mark.parametrize("policy", recordable("cuda"))
def test_every_entry_that_can_be_recorded(policy, use_settings):
    use_settings(halo_policy=policy)
    wanted = iterated("cpu", (9, 5), (5,))
    assert jali.virtual_ranks(2, iterated, "cuda", (9, 5), (1, 4)) == [wanted] * 2


def turns(kind, exchanges, mixed):
    """Repetitions of so many exchanges, with one and then two between them that belong to no repetition."""
    lattice = Lattice(9, 5, device=kind)
    a, b = filled(lattice), Field(lattice, Real())

    def step():
        for number in range(exchanges):
            spread(b, a, 0.25 - 0.125 * number)
            a.assign(b)

    graph = jali.graph(step, lattice) if mixed else None
    for repetitions, between in ((2, 1), (1, 2), (3, 0)):
        if graph is not None:
            graph.run(repetitions)
        else:
            for _ in range(repetitions):
                step()
        for _ in range(between):
            spread(b, a, 0.5)
            a.assign(b)
    return a[...].tolist()


@pytest.mark.parametrize("policy", ["buffered-write-overlap", *(f"copy-engine-{order}" for order in ORDERS)])
@pytest.mark.parametrize("exchanges", [1, 2, 3])
def test_odd_and_even_numbers_of_exchanges_in_graphs_and_between(exchanges, policy, use_settings):
    use_settings(halo_policy=policy)
    wanted = turns("cpu", exchanges, False)
    assert jali.virtual_ranks(2, turns, "cuda", exchanges, True) == [wanted] * 2
    assert jali.virtual_ranks(2, turns, "cuda", exchanges, False) == [wanted] * 2


@pytest.mark.parametrize("policy", ["host-staged-overlap", "host-staged-wait"])
def test_rows_that_need_the_host_are_refused_by_name(policy, use_settings):
    use_settings(halo_policy=policy)
    with pytest.raises(
        RecordingError, match=f"spread exchanges halos.*{policy}: its exchanges need the host.*\n.*at "
    ):
        jali.virtual_ranks(2, iterated, "cuda", (6, 4), (1,))


def solved(kind, element, precision, check_interval):
    b = random_field(Lattice(6, 4, device=kind), element, precision=precision)
    found = cg(
        operator(0.1), b, rtol=1e-10 if precision == "float64" else 1e-05, check_interval=check_interval
    )
    return found.history, found.residual, found.x[...].tolist(), found.check_interval


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("element", "precision"), [(Real(), "float64"), (Complex(), "float32")], ids=str)
@pytest.mark.parametrize("check_interval", [None, 3])
def test_iterations_of_a_solver_are_one_graph(element, precision, ranks, check_interval):
    *wanted, _ = solved("cpu", element, precision, None)
    found = jali.virtual_ranks(ranks, solved, "cuda", element, precision, check_interval)
    assert found == [(*wanted, check_interval or 8)] * ranks


def wilson(kind):
    """A solve whose gauge field is read with halos in the graph and written between two of them."""
    lattice = Lattice(4, 4, 2, 4, device=kind)
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    b = random_field(lattice, Spinor(3))
    found = cg(WilsonDirac(U, 0.3).normal, b, rtol=1e-08)
    return found.history, found.x[...].tolist(), found.check_interval


def test_wilson_operator_in_a_graph():
    *wanted, _ = wilson("cpu")
    assert jali.virtual_ranks(2, wilson, "cuda") == [(*wanted, 8)] * 2


@jali.site_function
def shift(X, out, a, b):
    out[X] = a[X + X.directions()[0]] - b[X - X.directions()[1]]


@jali.site_function
def far(X, out, a):
    out[X] = a[X + 2 * X.directions()[0]]


def driven(kind):
    """A graph that reads a field which is only written outside, whose ghosts move between two runs."""
    lattice = Lattice(8, 6, device=kind)
    a, b, out = filled(lattice, 1), filled(lattice, 2), Field(lattice, Real())
    found = []

    def step():
        shift(out, a, b)
        a.assign(out)

    graph = None if kind == "cpu" else jali.graph(step, lattice)

    def run(times):
        if graph is not None:
            graph.run(times)
        else:
            for _ in range(times):
                step()
        found.append(a[...].tolist())

    run(2)
    b[...] = 3 * b[...]
    run(1)
    scale(b, 0.5)
    run(3)
    c = Field(lattice, Real())
    far(c, b)  # asks for more ghosts of all fields
    far(c, a)
    run(2)
    spread(c, a, 0.5)
    run(2)
    return found, c[...].tolist()


@pytest.mark.short(2)
@pytest.mark.parametrize(
    "policy", ["remote-write-overlap", "remote-write-one-launch", "buffered-write-wait", "nccl-overlap"]
)
@pytest.mark.parametrize("ranks", RANKS)
def test_fields_that_change_outside_and_memory_that_moves(ranks, policy, use_settings):
    use_settings(halo_policy=policy)
    wanted = driven("cpu")
    assert jali.virtual_ranks(ranks, driven, "cuda") == [wanted] * ranks


def numbers(kind, in_graph):
    lattice = Lattice(5, 3, 4, device=kind)
    f, n = fields(lattice)

    def step():
        return lattice.reduce(four, f, n, wait=False) + lattice.reduce(between_sums, f, n, wait=False)

    if not in_graph:
        return [float(x) for x in step()]
    graph = jali.graph(step, lattice)
    graph.run(3)
    return graph.read()


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("in_graph", [False, True])
def test_maxima_minima_and_sums_together(ranks, in_graph):
    wanted = numbers("cpu", False)
    assert jali.virtual_ranks(ranks, numbers, "cuda", in_graph) == [wanted] * ranks


def measured_before():
    """A policy that cannot be recorded was found to be the fastest; it stays that of calls."""
    lattice = Lattice(6, 4, device="cuda")
    a, b = filled(lattice), Field(lattice, Real())
    call = spread.bind(b, a, 0.25)
    call()
    for kernel in call.kernels:
        kernel.launch.set_policy("host-staged-wait")
    graph = jali.graph(lambda: (call(), scale(a, 0.5)), lattice)
    assert [kernel.launch.policy for kernel in call.kernels] == ["host-staged-wait"]
    graph.run(3)
    first = b[...].tolist()
    call()
    return first, b[...].tolist()


def test_an_entry_that_was_measured_is_that_of_calls_and_another_that_of_the_graph(use_settings):
    use_settings(halo_policy="auto")
    lattice = Lattice(6, 4)
    a, b = filled(lattice), Field(lattice, Real())
    wanted = []
    for factor in (0.25, 0.5):
        scale(a, factor)
        spread(b, a, 0.25)
        wanted.append(b[...].tolist())
    assert jali.virtual_ranks(2, measured_before) == [tuple(wanted)] * 2


@jali.site_function
def hop(X, out, a):
    out[X] = a[X + X.directions()[0]] + 0.5 * a[X - X.directions()[1]]


def on_even_sites(kind):
    """Even sites are written in the graph and read with halos only outside; odd ones the other way round."""
    lattice = Lattice(8, 4, device=kind)
    a, out = filled(lattice), Field(lattice, Real())

    def step():
        hop[EVEN](out, a)
        scale[EVEN](a, 0.5)

    found = []
    graph = None if kind == "cpu" else jali.graph(step, lattice)
    for times in (1, 4, 2):
        for _ in range(times) if graph is None else ():
            step()
        if graph is not None:
            graph.run(times)
        found.append(out[...].tolist())
        hop[ODD](out, a)
        found.append(out[...].tolist())
        scale[ODD](a, 3.0)
    return found


def test_even_and_odd_sites_in_and_outside_of_the_graph():
    wanted = on_even_sites("cpu")
    assert jali.virtual_ranks(2, on_even_sites, "cuda") == [wanted] * 2


SHARED = """
import jali, test_graphs_of_ranks as t
for kind in ("cpu", "cuda"):
    print(jali.virtual_ranks(2, t.solved, kind, jali.Real(), "float64", None)[1])
try:
    jali.virtual_ranks(2, t.iterated, "cuda", (6, 4), (1,))
except jali.errors.RecordingError as error:
    print(str(error).partition("\\n")[0])
"""


@pytest.mark.skipif(REAL, reason="sees one device")
def test_ranks_that_share_a_device_are_reported_and_solvers_go_on(fake_environment):
    environment = {**fake_environment, "JALI_FAKE_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    done = run_python(SHARED, env=environment, path=PATH)
    assert done.returncode == 0, done.stderr
    host, device, refused = done.stdout.splitlines()
    assert host.endswith(", 8)")
    assert device == f"{host.removesuffix(', 8)')}, 1)"  # the host looks in every iteration
    assert (
        refused
        == "size has sums of several ranks, which cannot stay on these devices: ranks add them by way of 'host-staged'"
    )


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize("checked", [pytest.param("0", marks=pytest.mark.full), "1"])
def test_processes(checked, fake_environment):
    wanted = [iterated("cpu", (6, 7), (7,)), solved("cpu", Real(), "float64", None)[:3]]
    text = """
import jali, test_graphs_of_ranks as t
print([t.iterated("cuda", (6, 7), (3, 4)), t.solved("cuda", jali.Real(), "float64", None)[:3]], flush=True)
"""
    done = run_on_devices(2, text, {**fake_environment, "JALI_CHECKED": checked})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(wanted)] * 2


def in_a_loop(in_graph, check_interval=None):
    """What collectives, a plan and messages leave beside a halo and a sum, by calls or by repetitions of a graph."""
    lattice = Lattice(6, 4, device="cuda")
    c, gpu = lattice.communicator, lattice.gpu
    a, b, n, step = power_iteration(lattice)
    given = np.arange(1.0, 1 + 4 * c.size) + c.rank
    x = DeviceArray.from_host(given, gpu)
    summed, scattered, came, again = (
        DeviceArray.empty(gpu, (k,), "fp64") for k in (4 * c.size, 4, 4 * c.size, 4 * c.size)
    )
    reported = DeviceArray.from_host(given, gpu)
    plan = planner.Composition.standard("all_reduce", ranks=c.size, count=4 * c.size).plan(
        libraries=["remote-write"]
    )
    running, planned = plan.on(c), DeviceArray.empty(gpu, (4 * c.size,), "fp64")
    messages = [  # two copies: copy engines announce them on another stream
        end
        for tag, y in enumerate((came, again))
        for end in (
            c.persistent_send(x, (c.rank + 1) % c.size, tag),
            c.persistent_receive(y, (c.rank - 1) % c.size, tag),
        )
    ]
    gathered = []

    def turn():
        result = step()
        c.all_reduce(x, summed, reproducible=True)
        c.broadcast(reported, root=c.size - 1)
        c.reduce_scatter(summed, scattered, reproducible=True)
        gathered[:] = [c.all_gather(scattered)]
        running.run(summed, planned)
        c.start(messages)
        c.all_reduce(x, op="avg", reproducible=True)  # what messages have sent may change then
        c.all_reduce(came, x, op="max")
        return result

    if in_graph:
        graph = jali.graph(turn, lattice)
        assert float(n) == 0
        assert x.to_host().tolist() == given.tolist()  # warm-ups touch nothing
        if check_interval is None:
            graph.run(2)
            graph.run(3)
        else:
            assert graph.run_until(lambda: n > 4.5, at_most=9, check_interval=check_interval) == 5
    else:
        for _ in range(5):
            turn()
    arrays = (x, reported, summed, scattered, *gathered, planned, came, again)
    return a[...].tolist(), b[...].tolist(), float(n), [array.to_host().tolist() for array in arrays]


@pytest.mark.short(2)
@pytest.mark.parametrize("transport", ["remote-write", "copy-engine", "nccl"])
@pytest.mark.parametrize("ranks", [2] if REAL else [2, 4])
@pytest.mark.parametrize("check_interval", [None, 5])
def test_collectives_plans_and_messages_are_parts_of_graphs(ranks, check_interval, transport, use_settings):
    use_settings(message_transport=transport, device_transport=transport)
    wanted = jali.virtual_ranks(ranks, in_a_loop, False)
    assert jali.virtual_ranks(ranks, in_a_loop, True, check_interval) == wanted


def by_library_at_once(in_graph):
    """A graph whose first collective is the library's own and the first that there is."""
    c = comm.current()
    lattice = Lattice(6, 4, device="cuda")
    x = DeviceArray.from_host(np.ones(3) + c.rank, lattice.gpu)

    def step():
        c.all_reduce(x, x, algorithm="nccl")

    if in_graph:
        jali.graph(step, lattice).run(3)
    else:
        for _ in range(3):
            step()
    return x.to_host().tolist()


def test_the_library_connects_before_it_is_recorded():
    assert jali.virtual_ranks(2, by_library_at_once, True) == [[12.0] * 3] * 2
    assert jali.virtual_ranks(2, by_library_at_once, False) == [[12.0] * 3] * 2


@pytest.mark.short(1)
@pytest.mark.parametrize("transport", ["remote-write", "copy-engine", "nccl"])
def test_a_rank_that_makes_a_graph_ready_keeps_no_other_from_recording(transport, monkeypatch, use_settings):
    """The device of rank 0 waits for the warm-up of rank 1, which comes to it when rank 0 has recorded all of its own."""
    use_settings(message_transport=transport, device_transport=transport)
    append = graph_recorder.GraphRecorder.append

    def late(recorder, *arguments):
        if comm.current().rank == 1:
            time.sleep(0.3)
        append(recorder, *arguments)

    wanted = jali.virtual_ranks(2, in_a_loop, False)
    monkeypatch.setattr(graph_recorder.GraphRecorder, "append", late)
    assert jali.virtual_ranks(2, in_a_loop, True) == wanted


@pytest.mark.mpi
@pytest.mark.parametrize("checked", [pytest.param("0", marks=pytest.mark.full), "1"])
def test_collectives_of_processes_are_parts_of_graphs(checked, fake_environment):
    text = """
import test_graphs_of_ranks as t
wanted = t.in_a_loop(False)
print(wanted == t.in_a_loop(True) == t.in_a_loop(True, 5), flush=True)
"""
    done = run_on_devices(2, text, {**fake_environment, "JALI_CHECKED": checked})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True"] * 2


def leaves_others_waiting(how):
    """Rank 1 fails between two runs of a graph; what rank 0 hears when it reads a number, a field, and when it goes on."""
    lattice = Lattice(6, 4, device="cuda")
    a, _, _, step = power_iteration(lattice)
    graph = jali.graph(step, lattice)
    graph.run(2)
    graph.read()
    comm.current().barrier()
    if comm.current().rank == 1:
        raise ArithmeticError("rank 1 has had enough")
    numbers = []
    with pytest.raises(RankError, match="rank 1 has had enough") as caught:
        if how == "graph":
            graph.run(3)
            graph.read()
        else:
            numbers += step()
            float(numbers[0])
    until_idle()
    for call in (
        graph.read,
        graph.run,
        lambda: a[...],
        lambda: float(numbers[0]) if numbers else graph.read(),
    ):
        with pytest.raises((DeviceError, RankError), match="had enough"):
            call()
    HEARD.append(how)
    raise caught.value


HEARD: list[str] = []


@pytest.mark.parametrize("how", ["graph", "calls"])
def test_nothing_is_read_or_repeated_after_a_rank_failed(how, use_settings):
    # Checked calls meet on the host first: it would hear of the failure before its device waits for anybody.
    use_settings(watchdog="20", checked="0")
    HEARD.clear()
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        jali.virtual_ranks(2, leaves_others_waiting, how)
    assert [how] == HEARD
    until_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_sums_per_slice_are_those_of_one_rank(kind):
    """Words of sums are added on the devices, slice by slice."""
    expected = sums_of_slices(Lattice(4, 6), recorded=False)
    for recorded in (False, True):
        for found in jali.virtual_ranks(
            2, lambda recorded=recorded: sums_of_slices(Lattice(4, 6, device=kind), recorded)
        ):
            for one, other in zip(found, expected, strict=True):
                assert np.array_equal(one, other)
