"""The tuner's choice, with a clock of the test's own: who wins, who is given up, and that ranks decide alike."""

from __future__ import annotations

import pytest

import jali
from jali import comm
from jali.tune import (
    Autotuner,
    Candidate,
    Entry,
    Impossible,
    LaunchConfig,
    Question,
    over_ranks,
    variants_for,
)

QUESTION = Question("launch", "staples", "0123abcd", "4096 positions of 8x8x8x8")


class Clock:
    """Seconds per candidate; counts the runs. `Impossible` where a candidate has none."""

    def __init__(self, **seconds: float):
        self.seconds = seconds
        self.runs = dict.fromkeys(seconds, 0)

    def __call__(self, name: str, repetitions: int) -> list[float]:
        if name not in self.seconds:
            raise Impossible(f"{name} needs another machine")
        self.runs[name] += repetitions
        return [self.seconds[name]] * repetitions


def autotuner(clock: Clock, names: list[str], **options) -> Autotuner:
    found = Autotuner(names[0], clock, **options)
    for name in names[1:]:
        found.try_candidate(name)
    return found


def test_the_fastest_is_chosen():
    clock = Clock(a=3e-3, b=2e-3, c=2.5e-3)
    assert autotuner(clock, ["a", "b", "c"]).chosen == "b"
    assert min(clock.runs.values()) >= 4  # one to look, three for the median


def test_the_median_counts_not_the_fastest_run():
    def measure(name: str, repetitions: int) -> list[float]:
        return [1e-3] * repetitions if name == "steady" else [0.1e-3] + [1.5e-3] * (repetitions - 1)

    found = Autotuner("steady", measure)
    found.try_candidate("lucky")
    assert found.chosen == "steady"


def test_the_default_stays_within_the_noise():
    assert autotuner(Clock(a=1.00e-3, b=0.99e-3), ["a", "b"]).chosen == "a"
    assert autotuner(Clock(a=1.00e-3, b=0.97e-3), ["a", "b"]).chosen == "b"


def test_hopeless_candidates_run_once():
    clock = Clock(a=1e-3, b=2.1e-3, c=1.9e-3)
    found = autotuner(clock, ["a", "b", "c"])
    assert clock.runs["b"] == 1
    assert clock.runs["c"] > 1
    assert "more than 2 times the best" in found.candidates["b"].note


def test_what_is_impossible_is_left_out_and_says_why():
    found = autotuner(Clock(a=1e-3, c=0.5e-3), ["a", "b", "c"])
    assert found.candidates["b"] == Candidate("b", None, "b needs another machine")
    assert found.chosen == "c"
    assert autotuner(Clock(b=1e-3), ["a", "b"]).chosen == "b"  # not even the default is possible
    assert autotuner(Clock(), ["a", "b"]).chosen == "a"


def test_tuning_ends():
    clock = Clock(**{name: 1.0 for name in "abcdef"})
    found = autotuner(clock, list("abcdef"))
    assert sum(clock.runs.values()) <= 8
    assert "not measured" in found.candidates["f"].note


def test_an_entry_says_why_and_survives_its_file():
    entry = autotuner(Clock(a=2e-3, b=1e-3), ["a", "b", "x"]).entry(QUESTION)
    lines = entry.why().splitlines()
    assert lines[0] == "staples (launch) on 4096 positions of 8x8x8x8: b"
    assert [line.split()[0] for line in lines[1:]] == ["b", "a", "x"]
    assert "1,000.0 us  chosen" in lines[1]
    assert "2,000.0 us  default" in lines[2]
    assert "x needs another machine" in lines[3]
    assert "b: 2.00 times as fast as a, of 3" in entry.summary()
    again = Entry.from_json(entry.as_json())
    assert again.same_answer(entry)
    assert again == entry


def chosen_on(times: dict[str, list[float | None]]) -> tuple[str, tuple[Candidate, ...]]:
    """The choice of a rank, whose times are its column."""
    here = comm.current()
    mine = {name: column[here.rank] for name, column in times.items()}
    clock = Clock(**{name: t for name, t in mine.items() if t is not None})
    found = autotuner(clock, list(times), agree=over_ranks(here))
    return found.chosen, tuple(found.candidates.values())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_choose_the_least_maximum(ranks):
    # a is best on most ranks, b has the least maximum, c is impossible on the last rank, d hopeless on the first
    times: dict[str, list[float | None]] = {
        "a": [1e-3] * (ranks - 1) + [4e-3],
        "b": [3e-3] * ranks,
        "c": [0.1e-3] * (ranks - 1) + [None],
        "d": [9e-3] + [2e-3] * (ranks - 1),
    }
    found = jali.virtual_ranks(ranks, chosen_on, times)
    assert [chosen for chosen, _ in found] == ["b"] * ranks
    seconds = [{c.name: c.seconds for c in candidates} for _, candidates in found]
    assert all(s == {"a": 4e-3, "b": 3e-3, "c": None, "d": 9e-3} for s in seconds)


def test_launch_configs_have_names_and_only_sensible_ones_are_read():
    for config in (
        LaunchConfig(256, 1, 256),
        LaunchConfig(256, 2, 64),
        LaunchConfig(128, 3, 128, 4),
        LaunchConfig(256, 1, 128, 1),
        LaunchConfig(256, 1, 256, sites=2),
        LaunchConfig(256, 1, 256, width=4),
        LaunchConfig(256, 1, 64, 4, sites=4, width=2),
    ):
        assert LaunchConfig.parse(config.name) == config
    assert LaunchConfig(256, 2, 128, 1).name == "256,2 as 128 threads in 1 wave"
    assert LaunchConfig(256, 1, 256, sites=2).name == "256,1,2"
    assert LaunchConfig(256, 1, 256, width=2).name == "256,1,1,2"
    assert LaunchConfig(256, 1, 64, 4, sites=4, width=2).name == "256,1,4,2 as 64 threads in 4 waves"
    assert LaunchConfig(256, 1, 64, 4, sites=4, width=2).each == 8
    for name in (
        "",
        "256",
        "256,0",
        "4096,1",
        "256,1 as 512 threads",
        "256,1 in 99 waves",
        "256,1,3",
        "256,1,0",
        "256,1,2,16",
        "256,1,2,2,2",
        "rm -rf",
        "256,1\n",
    ):
        assert LaunchConfig.parse(name) is None


def test_only_variants_that_bound_something_are_compiled():
    assert [s.name for s in variants_for("cuda", 255)] == ["256,1", "128,3", "256,2", "256,3"]
    assert [s.most_registers for s in variants_for("cuda", 255)] == [255, 168, 128, 80]
    assert [s.name for s in variants_for("cuda", 100)] == ["256,1", "256,3"]
    assert [s.name for s in variants_for("cuda", 40)] == ["256,1"]
    assert [s.name for s in variants_for("hip", 255)] == ["256,1"]
