"""The result of two sides' times: the ratio, its 95 % interval, and whether the case is lost.

The turns of one pair of processes are not independent of each other: they share pages, kernels and the hour. So the bootstrap
has two levels. It draws pairs with replacement, and for each drawn pair turns with replacement; a ratio is the geometric mean
over pairs of the median over turns, and the interval the middle 95 % of the results. With three pairs this is about the range
of their medians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LONG = 50e-6  # seconds: above, a case may lose 2 %
LONG_LOSS, SHORT_LOSS, SHORT_SECONDS = 0.02, 0.05, 0.3e-6
RESAMPLES = 4000
ENOUGH = 6  # pairs without which no case is lost

Turns = Sequence[tuple[float, float]]
"""Seconds of a call of A and of B, turn by turn."""


@dataclass(frozen=True)
class Interval:
    """How many times as long B takes as A (above 1: B is slower), and between what bounds with 95 %."""

    ratio: float
    low: float
    high: float


def interval(pairs: Sequence[Turns], resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The ratio B/A of a case from the turns of each pair of processes; the same numbers give the same interval.

    Raises `ValueError` if there is no pair, or one without turns.
    """
    if not pairs or not all(pairs):
        raise ValueError("a ratio needs one pair of processes or more, and each of them one turn or more")
    logs = [np.log([b / a for a, b in turns]) for turns in pairs]
    rng = np.random.default_rng(seed)
    count = len(logs)
    # medians[p]: of pair p, for every resample and every place at which the pair may be drawn
    medians = np.array(
        [np.median(rng.choice(turns, (resamples, count, len(turns))), axis=2) for turns in logs]
    )
    drawn = rng.integers(count, size=(resamples, count))
    means = np.take_along_axis(medians, drawn[None], axis=0)[0].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    middle = float(np.mean([np.median(turns) for turns in logs]))
    # The middle may lie outside by rounding alone where all turns agree.
    return Interval(float(np.exp(middle)), float(np.exp(min(low, middle))), float(np.exp(max(high, middle))))


def too_much(loss: float, seconds: float) -> bool:
    """Whether a call of `seconds` may not lose this part of its time: 2 % above 50 us; below, 5 % or 0.3 us, whichever is less."""
    if seconds > LONG:
        return loss > LONG_LOSS
    return loss > SHORT_LOSS or loss * seconds > SHORT_SECONDS


def looks_lost(found: Interval, seconds: float) -> bool:
    """Whether the whole interval of a call that takes A `seconds` is beyond what may be lost."""
    return too_much(found.low - 1, seconds)


def verdict(found: Interval, seconds: float, pairs: int) -> str:
    """`lost`, `unclear`, `slower`, `same` or `faster`, for a call that takes A `seconds`, after so many pairs of processes.

    lost: the whole interval is beyond what may be lost, and there are six pairs or more. Noise widens the interval, so it
    does not fail a case, while a real loss does as soon as there is enough data. A case at the very bound has all of six pairs on the wrong side
    with 1.6 % probability; of three, 12 %. unclear: a part of the interval is beyond, or data is lacking. slower: certainly,
    but no more than allowed.
    """
    if pairs < 2:
        return "unclear"
    if looks_lost(found, seconds):
        return "lost" if pairs >= ENOUGH else "unclear"
    if found.high < 1:
        return "faster"
    if too_much(found.high - 1, seconds):
        return "unclear"
    return "slower" if found.low > 1 else "same"
