"""jali.profile.benchmark and mark: reports are nested, survive exceptions, need nobody else, and are free when off."""

from __future__ import annotations

import logging
import re
import sys
import time
import types
from typing import Any

import pytest

from jali import comm
from jali.errors import ParameterError
from jali.profile import benchmark, benchmarks, mark, recording


class Kept(logging.Handler):
    """Messages of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def logger() -> tuple[logging.Logger, list[str]]:
    found, kept = logging.Logger("a test"), Kept()
    found.addHandler(kept)
    return found, kept.texts


def rows(text: str) -> list[tuple[int, str, float]]:
    """Depth, name, seconds."""
    found = []
    for line in text.splitlines():
        blanks, name, seconds = re.fullmatch(r"( *)(\S.*\S|\S) +([0-9.]+) s", line).groups()  # type: ignore[union-attr]
        found.append((len(blanks) // 2, name, float(seconds)))
    return found


def test_a_function_reports_its_time_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    @benchmark
    def work() -> int:
        """Works."""
        time.sleep(0.02)
        return 7

    assert work() == 7
    assert work.__doc__ == "Works."
    ((depth, name, seconds),) = rows(capsys.readouterr().out)
    assert (depth, name) == (0, "work")
    assert 0.02 <= seconds < 5


def test_nested_functions_stand_below_the_mark_in_which_they_are_called(
    logger: tuple[logging.Logger, list[str]],
) -> None:
    @benchmark(description="the inner one")
    def inner() -> None:
        mark("a")
        time.sleep(0.01)
        mark("b")
        time.sleep(0.02)

    @benchmark(logger=logger[0])
    def outer() -> None:
        inner()
        mark("first")
        inner()
        mark("second")

    outer()
    (text,) = logger[1]
    found = rows(text)
    assert [(depth, name) for depth, name, _ in found] == [
        (0, "outer"), (1, "the inner one"), (2, "a"), (2, "b"),
        (1, "first"), (2, "the inner one"), (3, "a"), (3, "b"), (1, "second"),
    ]  # fmt: skip
    assert found[3][2] >= 0.02 > 0.01 <= found[2][2]
    assert found[0][2] >= found[1][2] + found[4][2]


def test_an_exception_ends_what_is_under_way_and_nothing_else(
    logger: tuple[logging.Logger, list[str]],
) -> None:
    @benchmark
    def fails() -> None:
        mark("before it fails")
        raise KeyError("lost")

    @benchmark(logger=logger[0])
    def outer() -> None:
        mark("tries")
        with pytest.raises(KeyError, match="lost"):
            fails()
        mark("goes on")

    outer()
    assert [(depth, name) for depth, name, _ in rows(logger[1][0])] == [
        (0, "outer"), (1, "tries"), (2, "fails (ended by an exception)"), (3, "before it fails"), (1, "goes on"),
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="outside of a benchmarked region"):
        mark("nothing is left over")


def test_off_it_measures_and_reports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    @benchmark
    def work() -> str:
        mark("part")
        return "done"

    with benchmarks(False):
        assert work() == "done"
        mark("no error either")
    assert capsys.readouterr().out == ""


def test_ranks_do_not_wait_for_each_other_and_the_first_reports(
    logger: tuple[logging.Logger, list[str]],
) -> None:
    @benchmark(logger=logger[0])
    def work(rank: int) -> None:
        mark(f"of rank {rank}")

    def program() -> None:
        if (rank := comm.current().rank) != 1:  # a barrier would hang
            work(rank)

    comm.virtual_ranks(3, program)
    (text,) = logger[1]
    assert [name for _, name, _ in rows(text)] == ["work", "of rank 0"]


def test_functions_and_marked_parts_are_spans_of_a_recording(
    logger: tuple[logging.Logger, list[str]],
) -> None:
    @benchmark(logger=logger[0])
    def solve() -> None:
        mark("set up")
        time.sleep(0.01)
        mark("iterate")
        time.sleep(0.02)

    with recording() as r:
        solve()
    spans = {span.name: span for span in r.spans}
    assert {"solve", "set up", "iterate"} <= set(spans)
    assert spans["iterate"].seconds >= 0.02
    assert spans["solve"].begin <= spans["set up"].begin <= spans["iterate"].begin < spans["solve"].end + 1e-3
    solve()  # and nothing is added when it is over


def test_a_library_of_devices_without_devices_is_not_waited_for(
    logger: tuple[logging.Logger, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_current_stream() -> None:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    cuda = types.SimpleNamespace(is_available=lambda: False, get_current_stream=get_current_stream)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    assert benchmark(logger=logger[0])(lambda: 7)() == 7


def test_names_that_are_no_strings_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ParameterError, match="the description of a function is a string, not 7"):
        benchmark(description=7)  # type: ignore[call-overload]

    @benchmark(description=None)
    def work() -> str:
        for label in (0, None, b"x"):
            with pytest.raises(ParameterError, match=f"the label of a mark is a string, not {label!r}"):
                mark(label)  # type: ignore[arg-type]
        mark("part")
        return "done"

    assert work() == "done"
    assert [name for _, name, _ in rows(capsys.readouterr().out)] == ["work", "part"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"func": 5}, "benchmark decorates a function, not 5"),
        ({"logger": "file.log"}, "the logger of a benchmark has a method info, .*'file.log' has none"),
        ({"description": "\udc80"}, "the description of a function is text that UTF-8 can hold"),
    ],
)
def test_what_could_not_be_called_or_reported_is_refused_at_once(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ParameterError, match=words):
        benchmark(**arguments)


def test_benchmarks_are_switched_by_a_flag() -> None:
    with pytest.raises(ParameterError, match="on is True or False, not 'off'"), benchmarks("off"):  # type: ignore[arg-type]
        pass
