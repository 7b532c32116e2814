"""Graphs mean the same as calling again and again; what cannot be repeated is refused at its line."""

from __future__ import annotations

import threading
import time
import warnings

import numpy as np
import pytest
from fake_driver import REAL, use_fake_gpus

import jali
from jali import EVEN, ODD, Field, Lattice, Real, _core, comm, planner
from jali.comm import CclCommunicator, DeviceArray
from jali.errors import LayoutError, ParameterError, RecordingError


@jali.site_function
def spread(X, out, a, c):
    out[X] = a[X] + c * (a[X + X.directions()[0]] + a[X - X.directions()[0]])


@jali.site_function
def scale(X, a, c):
    a[X] = c * a[X]


@jali.site_function
def size(X, a, total):
    total += a[X] * a[X]


def filled(lattice, seed=1):
    field = Field(lattice, Real())
    field[...] = np.random.default_rng(seed).normal(size=lattice.extents)
    return field


def power_iteration(lattice):
    """A step that normalises, and its numbers: everything that can be recorded."""
    a, b, n = filled(lattice), Field(lattice, Real()), lattice.scalar(0.0)

    def step():
        spread(b, a, 0.25)
        spread[EVEN](a, b, -0.5)
        spread[ODD](a, b, 0.125)
        norm = lattice.sum(size, a, wait=False)
        scale(a, 1 / jali.sqrt(norm))
        b.assign(a)
        n.assign(n + 1)
        return norm, jali.sqrt(norm) < 1.3

    return a, b, n, step


@pytest.fixture(params=["cpu", "cuda", "hip"])
def device(request):
    """The host means the same."""
    return request.param


def test_repetitions_are_calls(device):
    one, other = Lattice(6, 4, device=device), Lattice(6, 4, device=device)
    a, b, n, step = power_iteration(one)
    for _ in range(7):
        norm, small = step()
    c, d, m, recorded = power_iteration(other)
    graph = jali.graph(recorded, other)
    assert float(m) == 0  # nothing was done
    graph.run(3)
    graph.run(4)
    assert graph.read() == [float(norm), bool(small)]
    assert float(m) == float(n) == 7
    assert np.array_equal(a[...], c[...])
    assert np.array_equal(b[...], d[...])


def test_repeats_until_a_condition_holds_and_looks_now_and_then(device):
    lattice = Lattice(6, device=device)
    a, n = filled(lattice), lattice.scalar(0.0)

    def step():
        n.assign(n + 1)
        scale(a, 0.5)
        return n >= 10

    graph = jali.graph(step, lattice)
    assert graph.run_until(graph.result, at_most=100, check_interval=4) == 12
    assert float(n) == 12
    assert graph.run_until(graph.result, at_most=3, check_interval=2) == 2
    assert graph.run_until(lambda: n > 100, at_most=5, check_interval=2) == 5
    assert graph.run_until(lambda: n > 20, at_most=50, check_interval=1) == 2
    assert float(n) == 21


def test_numbers_are_those_of_the_recording(device):
    lattice = Lattice(5, device=device)
    a, factor = filled(lattice), 2.0
    before = a[...]
    start = lattice.scalar(3.0)
    tripled = start * 3  # not computed yet: has the value of now all the same

    def step():
        scale(a, factor)
        scale(a, tripled)
        start.assign(start + 1)

    graph = jali.graph(step, lattice)
    factor = 100.0
    graph.run(2)
    assert np.array_equal(a[...], before * 2 * 9 * 2 * 9)
    assert (float(start), float(tripled)) == (5.0, 9.0)


def test_what_was_made_of_numbers_before_a_run_keeps_its_value(device):
    lattice = Lattice(5, device=device)
    a, n = filled(lattice), lattice.scalar(1.0)

    def step():
        n.assign(2 * n)
        return lattice.sum(size, a, wait=False) * n

    graph = jali.graph(step, lattice)
    graph.run()
    later = graph.result + n
    expected = float(graph.result) + 2
    graph.run(3)
    assert float(later) == expected
    assert float(n) == 16


def test_sums_outside_of_a_graph_are_not_mixed_with_those_inside(device):
    lattice = Lattice(5, device=device)
    a = filled(lattice)
    expected = lattice.sum(size, a)
    graph = jali.graph(lambda: lattice.sum(size, a, wait=False), lattice)
    outside = lattice.sum(size, a, wait=False)
    lattice.sum(size, a, wait=False)  # nobody takes it
    graph.run(2)
    again = lattice.sum(size, a, wait=False)
    assert jali.read(graph.result, outside, again) == [expected] * 3


def test_graph_holds_its_fields_and_numbers(device):
    lattice = Lattice(5, device=device)

    def made():
        a = filled(lattice)

        def step():
            scale(a, 1 / jali.sqrt(lattice.sum(size, a, wait=False)))
            return lattice.sum(size, a, wait=False)

        return jali.graph(step, lattice)

    graph = made()
    for _ in range(20):  # what else could get their memory
        filled(lattice)
        float(lattice.scalar(1.0) + 1)
    graph.run(2)
    assert float(graph.result) == pytest.approx(1, abs=1e-15)


def test_a_copy_is_made_once_and_filled_by_each_repetition(device):
    lattice = Lattice(5, device=device)
    a = filled(lattice)
    expected = lattice.sum(size, a)

    def step():
        before = a.copy()
        scale(a, 2.0)
        return lattice.sum(size, before, wait=False)

    graph = jali.graph(step, lattice)
    graph.run(3)
    assert float(graph.result) == 16 * expected


def test_calls_that_need_the_host_are_refused_at_their_line(device):
    lattice, rng = Lattice(4, device=device), jali.Random(1)
    a, s = filled(lattice), lattice.scalar(2.0)
    other = jali.graph(lambda: scale(a, 1.0), lattice)

    @jali.site_function
    def noise(X, a, rng):
        a[X] = rng.uniform(X)

    def set_value():
        a[0] = 1.0

    refused = {
        "a number is read on the host": lambda: float(s),
        "a number is read": lambda: bool(s > 1),
        "size sums for the host": lambda: lattice.sum(size, a),
        "is read or set from Python": lambda: a[...],
        "is read or set": set_value,
        "set from Python": lambda: a.set_local(np.zeros(4)),
        "read or set from Python": lambda: a.set_stored_bytes(stored, a.format),
        "a lattice is made": lambda: Lattice(4),
        "attempts that gave up": lambda: scale.exhausted,
        "a field is made": lambda: a.like(),
        "a scalar is made": lambda: lattice.scalar(1.0),
        "noise draws random numbers": lambda: noise(a, rng),
        "a graph runs": lambda: other.run(2),
        "a graph is recorded already": lambda: jali.graph(lambda: scale(a, 2.0), lattice),
    }
    before, stored = a[...], a.stored_bytes()
    for match, call in refused.items():

        def step(call=call):
            scale(a, 0.5)
            call()

        with pytest.raises(RecordingError, match=f"{match}(?s:.*)test_graphs.py"):
            jali.graph(step, lattice)
    assert np.array_equal(a[...], before)
    assert rng.state == jali.Random(1).state
    scale(a, 2.0)  # nothing is recorded any more
    assert np.array_equal(a[...], 2 * before)


def refused_in_graphs(calls):
    """On every rank of a lattice on the host each of the calls is an error of its name and line, and nothing was done."""
    lattice = Lattice(6, 4)
    a = filled(lattice)
    before = a[...]
    for name, call in calls.items():

        def step(call=call):
            scale(a, 0.5)
            call()

        with pytest.raises(RecordingError, match=f"^{name} is called while(?s:.*)test_graphs.py"):
            jali.graph(step, lattice)
    assert np.array_equal(a[...], before)


def test_what_ranks_do_together_is_refused_on_every_rank():
    def run():
        c = comm.current()
        x, parts, whole = np.ones(4), np.ones((2, 3)), np.zeros((2, 4))
        later = c.duplicate()
        plan = planner.Composition.standard("all_reduce", ranks=2, count=4).plan().on(c)
        request = c.all_reduce(x, blocking=False)
        pending = [c.send(x, 1 - c.rank), c.receive(whole[0], 1 - c.rank)]
        refused_in_graphs(
            {
                "all_reduce": lambda: c.all_reduce(x),
                "reduce": lambda: c.reduce(x, op="max"),
                "broadcast": lambda: c.broadcast(x),
                "all_gather": lambda: c.all_gather(x, counts="exchange"),
                "gather": lambda: c.gather(x),
                "scatter": lambda: c.scatter(parts if c.rank == 0 else None, np.zeros((1, 3))),
                "reduce_scatter": lambda: c.reduce_scatter(parts, blocking=False),
                "all_to_all": lambda: c.all_to_all(parts),
                "barrier": c.barrier,
                "split": lambda: c.split(0),
                "duplicate": c.duplicate,
                "sharing_memory": c.sharing_memory,
                "the first collective of a communicator": lambda: later.libraries,
                "send": lambda: c.send(x, 1 - c.rank),
                "receive": lambda: c.receive(x, 1 - c.rank),
                "test": lambda: c.test(pending[0]),
                "wait": lambda: c.wait(pending),
                "gather_bytes": lambda: c.gather_bytes(b""),
                "broadcast_bytes": lambda: c.broadcast_bytes(b"", 0),
                "all_reduce_sum": lambda: c.all_reduce_sum([1]),
                "(?#of a request)test": request.test,
                "(?#of a request)wait": request.wait,
                "start": lambda: plan.start(x, x),
                "run": lambda: plan.run(x, x),
            }
        )
        c.wait(pending)  # what was under way goes on
        assert request.wait().tolist() == c.all_reduce(x).tolist() == [2.0] * 4
        assert whole[0].tolist() == x.tolist()

    jali.virtual_ranks(2, run)


def test_what_takes_the_host_is_refused_on_devices_of_every_rank(monkeypatch):
    """Also calls whose plan is kept."""
    if REAL and _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")

    def run():
        c = comm.current()
        gpu = _core.Gpu.open("cuda", c.rank)
        x = DeviceArray.from_host(np.ones(4), gpu)
        y = DeviceArray.empty(gpu, (4,), "fp64")
        for _ in range(3):
            c.all_reduce(x, y)
        assert c.collectives.on_device(gpu).plans["made"] == 1
        request = c.all_reduce(x, y, blocking=False)
        make = c.persistent_send if c.rank == 0 else c.persistent_receive
        staged = make(x, 1 - c.rank, transport="host-staged")
        staged.start()
        refused_in_graphs(
            {
                "all_reduce with blocking=False": lambda: c.all_reduce(x, y, blocking=False),
                "all_reduce by way of 'host-staged'.*": lambda: c.all_reduce(x, y, algorithm="host-staged"),
                "all_reduce by way of .*": lambda: c.all_reduce(x, y, op=np.add),
                "all_gather": lambda: c.all_gather(x, counts="exchange"),
                "start of a message by way of 'host-staged'.*": staged.start,
                "(?#of a request)test": request.test,
                "(?#of a request)wait": request.wait,
                "persistent_send": lambda: c.persistent_send(x, 1 - c.rank),
                "persistent_receive": lambda: c.persistent_receive(x, 1 - c.rank),
                "CclCommunicator": lambda: CclCommunicator(c, gpu),
            }
        )
        lattice = Lattice(4)
        for match, call in (
            ("a device is read on the host", y.to_host),
            ("copied to a device", lambda: DeviceArray.from_host(np.ones(4), gpu)),
        ):
            with pytest.raises(RecordingError, match=match):
                jali.graph(call, lattice)
        c.all_reduce(x, y)
        assert y.to_host().tolist() == [2.0] * 4

    use_fake_gpus(monkeypatch, 2)
    jali.virtual_ranks(2, run)


def test_what_ranks_agree_about_a_call_is_no_part_of_a_graph():
    """Whether sites of a colouring meet is asked of all ranks when a call is bound, also while it is recorded."""

    def run(recorded):
        lattice = Lattice(6, 4)
        a, three = filled(lattice), jali.Colouring(3, lambda x: (x[0] + x[1]) % 3)

        def step():
            for colour in range(3):
                spread_in_place[three[colour]](a)

        if not recorded:
            step()
            return a[...].tolist()
        graph = jali.graph(step, lattice)
        graph.run()
        return a[...].tolist()

    @jali.site_function
    def spread_in_place(X, a):
        a[X] = a[X] + a[X + X.directions()[0]] / 2

    assert jali.virtual_ranks(2, run, True) == jali.virtual_ranks(2, run, False) == [run(True)] * 2


def test_mistaken_graphs_are_refused(device):
    lattice = Lattice(4, device=device)
    a = filled(lattice)
    with pytest.raises(ParameterError, match="recorded for a Lattice"):
        jali.graph(lambda: None, 5)
    with pytest.raises(ParameterError, match="a function without arguments"):
        jali.graph(5, lattice)
    with pytest.raises(RecordingError, match="makes no call"):
        jali.graph(lambda: None, lattice)
    graph = jali.graph(lambda: scale(a, 1.0), lattice)
    outside = lattice.scalar(1.0) > 2
    for condition, match in ((outside, "not made by the recorded function"), (True, "takes a condition")):
        with pytest.raises(ParameterError, match=match):
            graph.run_until(condition, at_most=1)
    with pytest.raises(ParameterError, match="gave True, not a condition"):
        graph.run_until(lambda: True, at_most=1)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ParameterError, match="times is a whole number"):
            graph.run(wrong)
    with pytest.raises(ParameterError, match="check_interval is a whole number of at least 1"):
        graph.run_until(lambda: outside, at_most=1, check_interval=0)


def test_sums_of_several_devices_are_the_same_whether_waited_for_or_not(monkeypatch):
    def run():
        lattice = Lattice(6, 4, device="cuda")
        a = filled(lattice)
        assert float(lattice.sum(size, a, wait=False)) == lattice.sum(size, a)
        scale(a, 1 / jali.sqrt(lattice.sum(size, a, wait=False)))
        assert lattice.sum(size, a) == pytest.approx(1)

    use_fake_gpus(monkeypatch, 2)
    jali.virtual_ranks(2, run)


def test_graphs_run_on_one_device():
    lattice, elsewhere = Lattice(6, device="cuda"), Lattice(6, device="cpu")
    a, b = filled(lattice), filled(elsewhere)

    def step():
        scale(a, 1.0)
        scale(b, 1.0)

    with pytest.raises(RecordingError, match="not on the device of the graph"):
        jali.graph(step, lattice)
    with pytest.raises(LayoutError, match="scale runs on cuda:0, but got <real scalar on the host>"):
        scale(a, elsewhere.scalar(1.0))
    with pytest.raises(LayoutError, match="do not meet"):
        elsewhere.scalar(1.0) + lattice.scalar(1.0)


def test_ranks_repeat_halos_and_leave_together():
    def run():
        lattice = Lattice(6, 4)
        a, b, n, step = power_iteration(lattice)
        graph = jali.graph(step, lattice)
        done = graph.run_until(graph.result[1], at_most=30, check_interval=3)
        return done, graph.read(), a[...].tolist(), b[...].tolist(), float(n)

    alone = run()
    for ranks in (2, 3):
        assert jali.virtual_ranks(ranks, run) == [alone] * ranks


def test_conditions_of_fast_sums_are_refused_on_several_ranks():
    def run():
        lattice = Lattice(6, 4)
        a = filled(lattice)

        def step():
            scale(a, 1.0)
            return lattice.sum(size, a, fast=True, wait=False) < 1

        graph = jali.graph(step, lattice)
        with pytest.raises(ParameterError, match="made of fast sums"):
            graph.run_until(graph.result, at_most=2)

    jali.virtual_ranks(2, run)


def test_a_graph_that_waits_for_a_thread_of_its_rank_ends_with_an_error_of_that_thread():
    lattice = Lattice(6)
    a, b = filled(lattice), filled(lattice)
    errors = []

    def run(call):
        try:
            call()
        except RecordingError as error:
            errors.append(str(error))

    def step():
        scale(a, 1.0)
        for call in (lambda: scale(b, 1.0), lambda: b[...]):
            thread = threading.Thread(target=run, args=(call,))
            thread.start()
            thread.join()

    with jali.settings.using(watchdog=1, wait_warning=0.5), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert jali.graph(step, lattice).operations == 1
    assert len(errors) == 2
    assert all("another thread has been recording" in e and "test_graphs.py" in e for e in errors)
    assert any("waited" in str(w.message) for w in seen)
    scale(b, 1.0)


def test_numbers_of_other_threads_are_no_part_of_a_graph():
    """What a thread computes and reads while another one records belongs to neither."""
    lattice = Lattice(6, device="cuda")
    a = filled(lattice)
    n = lattice.scalar(1.0)
    failed = []

    def compute():
        try:
            for k in range(40):
                assert float(n * k + 1) == k + 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    graphs = [jali.graph(lambda: scale(a, 1.0), lattice) for _ in range(10)]
    for thread in threads:
        thread.join()
    assert failed == []
    assert {graph.operations for graph in graphs} == {1}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_invalid_condition_raises_before_anything_is_repeated(device):
    lattice = jali.Lattice(4, device=device)
    y = lattice.scalar(0.0)
    graph = jali.graph(lambda: y.assign(y + 1), lattice)
    with pytest.raises(jali.ParameterError, match="the function gave True, not a condition"):
        graph.run_until(lambda: True, at_most=5)
    with pytest.raises(ZeroDivisionError):
        graph.run_until(lambda: 1 / 0, at_most=5)
    assert float(y) == 0.0
    assert graph.run_until(lambda: y > 2.5, at_most=5, check_interval=1) == 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_long_chains_of_numbers_take_time_in_proportion(device):
    """10,000 steps took 20 s when every piece looked at all that follow it."""
    number, expected = jali.Lattice(4, device=device).scalar(1.0), 1.0
    for _ in range(10_000):
        number, expected = number * 1.0000001 + 1, expected * 1.0000001 + 1
    began = time.monotonic()
    assert float(number) == expected
    assert time.monotonic() - began < 15  # 0.1 s
