"""What all tests share."""

import contextlib
import os

# Threads of NumPy's library wait for their next task without rest, on the cores that tests and their programs share.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Parts of distributed arrays that are JAX's lie on the host, also where JAX would take a device.
os.environ["JAX_PLATFORMS"] = "cpu"

import gc
import random
import signal
import sys
from collections.abc import Callable, Generator, Iterator

import pytest

from jali import settings

ORDER = "JALI_TEST_ORDER"  # its variable: the seed of a random order

# Unbuffered output is written word by word, and a launcher may then put the words of two ranks on one line.
os.environ.pop("PYTHONUNBUFFERED", None)
# Without it every program that tests start, hundreds of them, would compile all modules that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What is started in the background or behind nohup ignores these, and so would the programs to which tests send them.
for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting tests makes stays until the end: the collector of garbage need not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before options choose by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The short run has of a function with several parameters each value of each, or of one marked `short(n)` n of its cases; the long
    run and real devices have all.

    Tests of one file run in one process, those that start MPI processes one after the other: these poll without
    rest, and two at once would take turns on the cores."""
    if os.environ.get("JALI_TEST_REAL_GPU") != "1":
        leave_combinations_to_the_long_run(items)
    if seed := os.environ.get(ORDER):
        shuffle(items, int(seed))
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:  # it has said with whom
            continue
        alone = item.get_closest_marker("mpi") is not None
        item.add_marker(pytest.mark.xdist_group("mpi" if alone else item.path.name))


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Puts files in a random order, the same on all workers, and the tests of each; fixtures of a file are made once."""
    chance, files = random.Random(seed), {item.path: [] for item in items}
    for item in items:
        files[item.path].append(item)
    order = list(files)
    chance.shuffle(order)
    for path in order:
        chance.shuffle(files[path])
    items[:] = [item for path in order for item in files[path]]


def pytest_report_header() -> list[str]:
    """Says how to repeat the order."""
    seed = os.environ.get(ORDER)
    return [f"tests in a random order: {ORDER}={seed} repeats it"] if seed else []


def leave_combinations_to_the_long_run(items: list[pytest.Item]) -> None:
    """Marks tests none of whose values of parameters is new to their function, but for those that depend on the width of vectors."""
    met: dict[object, set[tuple[str, str]]] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if len(parameters) > 1 and not any(item.get_closest_marker(name) for name in ("full", "lanes")):
            values = {(name, repr(value)) for name, value in parameters.items()}
            before = met.setdefault(item.function, set())
            if values <= before:
                item.add_marker(pytest.mark.full)
            before |= values
    leave_cases_to_the_long_run(items)


def leave_cases_to_the_long_run(items: list[pytest.Item]) -> None:
    """Of functions that are marked `short(n)` n cases stay, the first of them, at equal distances."""
    cases: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("short") and not item.get_closest_marker("full"):
            cases.setdefault((item.path, item.function), []).append(item)
    for alike in cases.values():
        (count,) = alike[0].get_closest_marker("short").args
        kept = {k * len(alike) // count for k in range(min(count, len(alike)))}
        for number, item in enumerate(alike):
            if number not in kept:
                item.add_marker(pytest.mark.full)


@pytest.fixture
def use_settings() -> Iterator[Callable[..., None]]:
    """`use_settings(tune="now")`: other settings (`jali.settings`) until the test ends, in this process; programs that it starts are
    given an environment."""
    with contextlib.ExitStack() as stack:
        yield lambda **changes: stack.enter_context(settings.using(**changes)) and None
