"""The 95 % interval of a number that is computed from the medians of repeated measurements, by drawing rounds again (bootstrap).

A goal is missed only where the whole interval misses it; where a part does, more rounds or a quieter machine would
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jali.bench.reports import Verdict

RESAMPLES = 400
Interval = tuple[float, float, float]
"""A number, and what lies below and above it with 95 %."""


def interval(statistic: Callable[..., float], *samples: Sequence[float]) -> Interval:
    """Of `statistic(median of the first sample, of the second, ...)`. The same numbers give the same interval."""
    rng = np.random.default_rng(0)
    medians = []
    for sample in map(np.asarray, samples):
        drawn = rng.integers(len(sample), size=(RESAMPLES, len(sample)))
        medians.append(np.median(sample[drawn], axis=1))
    found = [statistic(*map(float, row)) for row in zip(*medians, strict=True)]
    value = statistic(*(float(np.median(sample)) for sample in samples))
    low, high = np.percentile(found, [2.5, 97.5])
    return value, min(float(low), value), max(float(high), value)


def speed(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """How many times as fast as theirs ours is, from the seconds of rounds."""
    return interval(lambda a, b: b / a, ours, theirs)


def mean_speed(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Interval:
    """The geometric mean of such ratios."""

    def mean(*medians: float) -> float:
        logs = np.log(medians)
        return float(np.exp(np.mean(logs[1::2] - logs[::2])))

    return interval(mean, *(sample for pair in pairs for sample in pair))


def words(found: Interval) -> str:
    """The number and its interval."""
    return "{:.2f} ({:.2f} .. {:.2f})".format(*found)


def at_least(asks: str, found: Interval, goal: float) -> Verdict:
    """Whether a number reaches a goal."""
    _, low, high = found
    return Verdict(asks, words(found), high >= goal, clear=low >= goal or high < goal)


def at_most(asks: str, found: Interval, goal: float) -> Verdict:
    """Whether a number stays below a bound."""
    _, low, high = found
    return Verdict(asks, words(found), low <= goal, clear=high <= goal or low > goal)
