"""What people see while a run runs."""

from __future__ import annotations

import io

import pytest

from jali.cli import progress
from jali.cli.progress import clock, show_progress


class Clock:
    """Stands in for the time module of the display: time passes when told."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def passing(monkeypatch):
    ticking = Clock()
    monkeypatch.setattr(progress, "time", ticking)
    return ticking


def test_plain_lines_come_every_five_percent_with_speed_and_time_left(passing):
    stream = io.StringIO()
    with show_progress(stream, 0, 1000, 100) as display:
        for sweep in range(1, 1001):
            passing.now += 0.1
            display.advance(sweep, 0.5 + sweep / 1e4)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "sweep   50/1000  plaquette 0.505000  10 sweeps/s  1:35 left  thermalising"
    assert lines[9] == "sweep  500/1000  plaquette 0.550000  10 sweeps/s  0:50 left"
    assert lines[-1] == "sweep 1000/1000  plaquette 0.600000  10 sweeps/s"


def test_plain_lines_of_slow_runs_come_every_ten_seconds_and_of_fast_ones_not_more_than_one_a_second(passing):
    slow, fast = io.StringIO(), io.StringIO()
    with show_progress(slow, 0, 1000, 0) as display:
        for sweep in range(1, 21):
            passing.now += 4.0
            display.advance(sweep, None)
    assert [line.split()[1] for line in slow.getvalue().splitlines()] == [
        f"{n}/1000" for n in (3, 6, 9, 12, 15, 18)
    ]
    with show_progress(fast, 0, 1000, 0) as display:
        for sweep in range(1, 1001):
            passing.now += 0.004
            display.advance(sweep, None)
    assert len(fast.getvalue().splitlines()) == 4


def test_speed_does_not_count_the_first_sweep_which_may_compile(passing):
    stream = io.StringIO()
    with show_progress(stream, 0, 3, 0) as display:
        for sweep, seconds in ((1, 60.0), (2, 2.0), (3, 2.0)):
            passing.now += seconds
            display.advance(sweep, None)
    assert stream.getvalue().splitlines()[-1] == "sweep 3/3  0.5 sweeps/s"


def test_terminal_shows_a_bar_with_the_live_plaquette():
    stream = Terminal()
    with show_progress(stream, 0, 10, 5) as display:
        for sweep in range(1, 11):
            display.advance(sweep, 0.123456)
    said = stream.getvalue()
    assert "plaquette 0.123456" in said
    assert "10/10" in said
    assert "left" in said


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (36061, "10:01:01")]
)
def test_clock_reads_like_a_clock(seconds, text):
    assert clock(seconds) == text
