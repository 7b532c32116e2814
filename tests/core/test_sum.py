"""core/sum: reproducible sums against exact rational arithmetic, in any order and any partition."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jali._core import BinnedSum

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


def bits(x):
    return struct.pack("<d", x)


def binned(values):
    s = BinnedSum()
    s.deposit(np.asarray(values, dtype=np.float64))
    return s


def bound(values):
    """Half a unit of the third bin per value (see binned.hpp), and the rounding of the result."""
    exact = sum(map(Fraction, values), Fraction(0))
    largest = max((abs(Fraction(v)) for v in values), default=Fraction(0))
    return len(values) * largest / 2**80 + abs(exact) / 2**53 + Fraction(1, 2**1074), exact


def check(values, rng):
    values = [float(v) for v in values]
    reference = binned(values).value()
    allowed, exact = bound(values)
    if abs(exact) < Fraction(2**1024 - 2**970):
        assert abs(Fraction(reference) - exact) <= allowed
    for _ in range(4):
        shuffled = rng.permutation(values)
        cuts = sorted(rng.integers(0, len(values) + 1, size=rng.integers(0, 6)))
        parts = [binned(p) for p in np.split(shuffled, cuts)]
        merged = BinnedSum()
        for k in rng.permutation(len(parts)):
            merged.merge(parts[k])
        assert bits(merged.value()) == bits(reference)
        words = sum((p.words() for p in parts), np.zeros_like(parts[0].words()))
        assert bits(BinnedSum.value_of_words(words)) == bits(reference)
    return reference


@settings(max_examples=150, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_any_finite_values_in_any_order_and_partition_give_the_same_bits(values, seed):
    check(values, np.random.default_rng(seed))


@pytest.mark.parametrize("spread", [0, 1, 10, 100, 300])
def test_mixed_magnitudes(spread):
    rng = np.random.default_rng(spread)
    check(rng.normal(size=3000) * 10.0 ** rng.uniform(-spread, min(spread, 300), size=3000), rng)


def test_cancellation_leaves_what_is_left():
    rng = np.random.default_rng(7)
    big = rng.normal(size=500) * 1e9
    values = np.concatenate([big, -big, [1e-9, 2e-9]])
    assert check(values, rng) == pytest.approx(3e-9, rel=1e-5)


def test_denormals_are_summed_exactly():
    rng = np.random.default_rng(8)
    values = rng.integers(-1000, 1000, size=300) * 5e-324
    assert check(values, rng) == math.fsum(values)
    assert binned([5e-324]).value() == 5e-324


def test_the_largest_doubles_do_not_overflow_on_the_way():
    rng = np.random.default_rng(9)
    huge = np.finfo(float).max
    assert check([huge, huge, -huge, 1.0], rng) == huge
    assert binned([huge, huge]).value() == math.inf
    assert binned([-huge, -huge]).value() == -math.inf
    check(rng.normal(size=200) * 2.0 ** rng.integers(900, 1020, size=200), rng)


@pytest.mark.parametrize("exponent", range(-1074, 1024, 7))
def test_values_at_every_bin_edge_are_exact_on_their_own(exponent):
    for x in (2.0**exponent, np.nextafter(2.0**exponent, math.inf), -np.nextafter(2.0**exponent, 0)):
        assert binned([x]).value() == x
        assert binned([x, x, -x]).value() == x


def test_halves_of_a_bin_unit_round_to_even_in_any_company():
    # Ties at the edge between bins are where digits could depend on company.
    rng = np.random.default_rng(10)
    edges = [
        s * m * 2.0 ** (40 * i - 1074 - 1)
        for i in range(20, 40)
        for m in (1, 3, 2**39, 2**40 - 1)
        for s in (1, -1)
    ]
    check(edges, rng)
    for k in range(0, len(edges), 3):
        check([edges[k], edges[-k - 1], 1.0, edges[k] * 3], rng)


def test_ordinary_sums_are_correctly_rounded():
    rng = np.random.default_rng(11)
    for n in (1, 7, 8, 9, 4095, 4096, 4097, 100_000):
        values = rng.normal(size=n)
        assert binned(values).value() == math.fsum(values)


def test_nan_and_infinities_decide_as_in_ieee_arithmetic():
    assert math.isnan(binned([1.0, math.nan]).value())
    assert math.isnan(binned([math.inf, 2.0, -math.inf]).value())
    assert binned([math.inf, 1e308, math.inf]).value() == math.inf
    assert binned([-math.inf, 1e308]).value() == -math.inf
    a, b = binned([math.inf]), binned([-math.inf])
    a.merge(b)
    assert math.isnan(a.value())
    assert math.isnan(binned([math.nan] * 8 + [0.0] * 8).value())


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("index", [0, 3, 4095])
def test_specials_in_a_later_chunk_decide_too(special, index):
    values = np.ones(3 * 4096)
    values[4096 + index] = special
    found = binned(values).value()
    assert math.isnan(found) if math.isnan(special) else found == special


@pytest.mark.parametrize("exponent", [-1070, -300, -80, -40, -1, 0, 1, 38, 39, 40, 41, 80, 300, 1020])
def test_a_later_value_of_another_bin_gives_the_same_bits_as_an_earlier_one(exponent):
    values = [1 / 3] * 4096 + [-1.7 * 2.0**exponent] + [1 / 7] * 5000
    late, early = binned(values).value(), binned(values[::-1]).value()
    allowed, exact = bound(values)
    assert bits(late) == bits(early)
    assert abs(Fraction(late) - exact) <= allowed


def test_an_empty_sum_and_a_sum_of_zeros_are_zero():
    assert BinnedSum().value() == 0.0
    assert bits(binned([-0.0, 0.0]).value()) == bits(0.0)
    assert binned([1.0, -1.0]).value() == 0.0


def test_words_of_two_billion_ranks_do_not_overflow():
    # 2^39 - 1 is the largest digit; the low halves stay below 2^32 each.
    s = binned(np.full(4096, 2.0**300 * (1 - 2.0**-53)))
    for _ in range(20):
        s.merge(s)
    words = s.words().astype(object) * 2**31
    assert all(abs(int(w)) < 2**63 for w in words)


@pytest.mark.parametrize("exponent", range(40))
def test_full_chunks_are_exact_wherever_the_values_lie_within_a_bin(exponent):
    rng = np.random.default_rng(exponent)
    values = rng.uniform(1, 2, size=8192) * 2.0**exponent
    total = binned(values).value()
    assert total == math.fsum(values)
    assert binned(np.sort(values)[::-1].copy()).value() == total
    # Beside a large value that cancels, a small one is rounded to the third bin's unit, at most max / 2^79.
    for large, small in zip(values[:40], values[-40:] * 2.0**-60, strict=True):
        left = binned([large, -large, small]).value()
        assert abs(Fraction(left) - Fraction(small)) <= Fraction(large) / 2**80


def test_the_result_is_rounded_to_nearest_and_ties_to_even():
    assert binned([2.0**53, 1.0]).value() == 2.0**53
    assert binned([2.0**53 + 2, 1.0]).value() == 2.0**53 + 4
    assert binned([2.0**53, 1.0, 2.0**-20]).value() == 2.0**53 + 2
    assert binned([-(2.0**53) - 2, -1.0]).value() == -(2.0**53) - 4
    assert binned([2.0**53, 1.0, -(2.0**-20)]).value() == 2.0**53
