"""The choice beats the paper's parameters in simulation, says why, and works where shapes are odd."""

import os
import signal
import threading
import time

import pytest

from jali import _core
from jali.errors import ParameterError, PlanError
from jali.planner.choice import FormParameters, choose, choose_for, simulate_collective
from jali.planner.machine import Machine


def test_small_messages_go_flat_or_shallow_and_large_ones_deep():
    machine = Machine.load("perlmutter")
    small, large = choose(machine, "broadcast", 1024), choose(machine, "broadcast", 4e9)
    assert small.parameters.depth < large.parameters.depth
    assert large.parameters.ring == 4
    assert large.parameters.stripe == 4


def test_chosen_time_is_that_of_simulating_the_chosen_parameters():
    machine = Machine.load("delta")
    choice = choose(machine, "all_reduce", 1e8)
    assert simulate_collective(machine, "all_reduce", 1e8, choice.parameters).time == choice.time
    assert choice.form == choice.parameters.form


def test_runners_up_are_other_structures_and_slower():
    choice = choose(Machine.load("delta"), "all_gather", 1e8)
    assert choice.runners_up
    times = [candidate.time for candidate in choice.runners_up]
    assert times == sorted(times)
    assert times[0] >= choice.time
    assert "plans simulated" in choice.why
    assert choice.result.bottleneck in choice.why


def test_unequal_cards_get_weighted_stripes():
    machine = Machine.load("aurora", nodes=2)
    choice = choose(machine, "broadcast", 1e9, shortlist=2)
    weights = choice.parameters.stripe_weights
    # Tiles 0 to 3 share their card with tiles 8 to 11.
    assert [w == weights[4] for w in weights[:12]] == [False] * 4 + [True] * 4 + [False] * 4
    assert weights[0] == pytest.approx(weights[4] / 2)
    equal = FormParameters.of_factors((2, 6, 2), ("mpi", "ipc", "ipc"), stripe=12, depth=32)
    assert choice.time < simulate_collective(machine, "broadcast", 1e9, equal).time


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 13])
def test_any_number_of_ranks_gets_a_plan(ranks):
    choice = choose(Machine.load("perlmutter"), "all_reduce", 1e7, ranks=ranks)
    assert choice.parameters.ranks == ranks
    if ranks > 1:
        assert choice.time > 0


def test_one_host_without_other_nodes_gets_a_plan():
    choice = choose(Machine.load("h200x8"), "all_reduce", 1e9)
    assert choice.result.fraction_of_bound > 0.7


def test_choice_for_a_composition_of_ones_own():
    ranks, count = 8, 1_000_000
    composition = _core.Composition(ranks, "fp32")
    data, out = composition.add_buffer("data", [count]), composition.add_buffer("out", [count], False)
    for root in (0, 3, 5):
        composition.reduce((data, 0), (out, 0), count, list(range(ranks)), root, "sum")
    machine = Machine.load("delta")
    choice = choose_for(machine, composition, 4e6)
    assert choice.parameters.ranks == ranks
    simulated = _core.simulate_plan(composition, choice.parameters.plan_parameters(), machine.core())
    assert simulated.result.time == choice.time > 0
    flat = _core.simulate_plan(composition, _core.PlanParameters(_core.Hierarchy(ranks)), machine.core())
    assert choice.time < flat.result.time


@pytest.mark.parametrize(
    ("collective", "size", "ranks", "message"),
    [
        ("broadcast", 0, None, "a size of 0"),
        ("broadcast", 1e6, 17, "17 ranks on machine 'delta' with 16"),
        ("broadcast", float("inf"), None, "a size of inf"),
        ("broadcast", float("nan"), None, "a size of nan"),
        ("broadcast", 1e300, None, r"a size of 1e\+300 bytes; it must be positive and below 2\^62"),
        ("broadcast", 1e6, 0, "0 ranks on machine 'delta' with 16"),
        ("shuffle", 1e6, None, "no collective 'shuffle'"),
    ],
)
def test_impossible_questions_are_refused(collective, size, ranks, message):
    with pytest.raises(ParameterError, match=message):
        choose(Machine.load("delta"), collective, size, ranks=ranks)


def test_factors_of_parameters():
    parameters = FormParameters.of_factors((2, 3, 4), ("a", "b", "c"))
    assert parameters.sizes == ((12, 12), (4,) * 6)
    assert parameters.factors == (2, 3, 4)
    assert FormParameters(((4, 4, 3),), 11, ("a", "b")).factors is None


def test_nodes_are_split_at_once_in_two_steps_and_by_primes():
    assert _core.factorings(60) == ((60,), (5, 3, 2, 2), (10, 6))
    assert _core.factorings(16) == ((16,), (2, 2, 2, 2), (4, 4))
    assert _core.factorings(7) == ((7,),)


def test_a_root_that_does_not_exist_is_refused():
    with pytest.raises(PlanError, match="broadcast: root 16 does not exist; ranks are 0 to 15"):
        choose(Machine.load("delta"), "broadcast", 1e6, root=16)


def test_a_composition_without_elements_is_not_searched_for():
    with pytest.raises(ParameterError, match="a size of 0 bytes"):
        choose_for(Machine.load("delta"), _core.Composition(4, "fp32"), 0.0)


class Stopped(BaseException):
    """What nobody would mistake for an error of the search."""


@pytest.mark.parametrize(("after", "text"), [(1, "structure 1 of"), (4, "structure 4 of"), (50, "plan ")])
def test_what_progress_raises_ends_the_search(after, text):
    said = []

    def progress(text):
        said.append(text)
        if len(said) == after:
            raise Stopped(text)

    with pytest.raises(Stopped, match=text):
        choose(Machine.load("delta"), "all_reduce", 1e6, progress=progress)
    assert len(said) == after


def test_an_interrupt_ends_a_search_that_tells_nobody():
    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    started = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            choose(Machine.load("aurora", nodes=16), "broadcast", 1e9)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert time.perf_counter() - started < 5


def test_other_threads_run_during_a_search():
    counted, over = [0], threading.Event()

    def count():
        while not over.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        choose(Machine.load("perlmutter", nodes=16), "all_reduce", 1e8)
    finally:
        over.set()
        thread.join()
    assert counted[0] > 10
