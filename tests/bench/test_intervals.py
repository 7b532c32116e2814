"""Ratios, their intervals and the verdict: on numbers whose answer is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from jali.bench.compare.intervals import Interval, interval, too_much, verdict

US = 1e-6


def pairs_of(ratios, seconds=1.0):
    return [[(seconds, seconds * r) for r in turns] for turns in ratios]


def test_equal_turns_have_their_ratio_and_no_width():
    found = interval(pairs_of([[1.25] * 5] * 3))
    assert [found.ratio, found.low, found.high] == pytest.approx([1.25] * 3, abs=1e-15)
    assert found.low <= found.ratio <= found.high


def test_one_pair_has_the_interval_of_the_median_by_enumeration():
    """All 5^5 resamples of five turns are as likely as each other: their medians' quantiles are the exact bootstrap."""
    turns = [1.0, 1.1, 1.2, 1.4, 1.8]
    medians = np.sort([np.median(drawn) for drawn in itertools.product(turns, repeat=5)])
    found = interval(pairs_of([turns]), resamples=200_000)
    low, high = np.percentile(medians, [2.5, 97.5])
    assert found.ratio == pytest.approx(1.2)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_pairs_are_drawn_as_wholes():
    """Two pairs without noise, with ratios 1 and r: a quarter of the resamples has each alone, half the geometric mean."""
    found = interval(pairs_of([[1.0] * 4, [1.44] * 4]))
    assert found.ratio == pytest.approx(1.2)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(1.44))


def test_the_order_of_pairs_and_uneven_numbers_of_turns_do_not_matter_to_the_ratio():
    ratios = [[1.1, 1.2, 1.3], [0.9], [1.0, 1.1]]
    there, back = interval(pairs_of(ratios)), interval(pairs_of(ratios[::-1]))
    assert there.ratio == pytest.approx(back.ratio)
    assert there.ratio == pytest.approx(math.exp(sum(map(math.log, (1.2, 0.9, math.sqrt(1.1)))) / 3))


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        logs = rng.normal(0, 0.01, (12, 1)) + rng.normal(0, 0.03, (12, 7))
        found = interval(pairs_of(np.exp(logs)), resamples=500)
        held += found.low <= 1 <= found.high
    assert 0.86 <= held / 200 <= 1.0


def test_the_same_numbers_give_the_same_interval():
    numbers = pairs_of([[1.0, 1.1, 0.9], [1.2, 1.0, 1.0]])
    assert interval(numbers) == interval(numbers)


@pytest.mark.parametrize("pairs", [[], [[]], [[(1.0, 1.0)], []]])
def test_nothing_measured_is_refused(pairs):
    with pytest.raises(ValueError, match="one pair of processes or more"):
        interval(pairs)


@pytest.mark.parametrize(
    ("seconds", "allowed", "too_much_of_it"),
    [
        (1000 * US, 0.0199, 0.0201),  # above 50 us: 2 %
        (50.1 * US, 0.0199, 0.0201),
        (50 * US, 0.0059, 0.0061),  # up to 50 us: 0.3 us
        (10 * US, 0.0299, 0.0301),
        (6 * US, 0.0499, 0.0501),  # and from 6 us downwards: 5 %
        (1 * US, 0.0499, 0.0501),
    ],
)
def test_bounds_by_the_length_of_a_call(seconds, allowed, too_much_of_it):
    assert not too_much(allowed, seconds)
    assert too_much(too_much_of_it, seconds)
    assert not too_much(-0.5, seconds)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.03, 1.05, "lost"),
        (1.0201, 1.5, "lost"),
        (1.01, 1.05, "unclear"),  # a part of the interval is beyond the bound
        (0.95, 1.05, "unclear"),
        (1.005, 1.015, "slower"),
        (0.99, 1.01, "same"),
        (0.9, 0.99, "faster"),
    ],
)
def test_a_case_is_lost_only_where_its_whole_interval_is(low, high, said):
    assert verdict(Interval((low + high) / 2, low, high), 100 * US, 6) == said


def test_a_short_case_is_lost_by_what_it_loses_in_time():
    assert verdict(Interval(1.04, 1.035, 1.045), 10 * US, 6) == "lost"
    assert verdict(Interval(1.04, 1.035, 1.045), 1.3 * US, 6) == "slower"


def test_nothing_is_lost_before_there_are_six_pairs():
    for pairs in range(1, 6):
        assert verdict(Interval(2.0, 1.9, 2.1), 100 * US, pairs) == "unclear"
    assert verdict(Interval(0.5, 0.4, 0.6), 100 * US, 1) == "unclear"
