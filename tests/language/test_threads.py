"""Threads of Python: what several of them may do with site functions, and that jali's own state stays whole."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

import jali
from jali import EVEN, Field, Lattice, Random, Real

TIMEOUT = 300.0  # seconds; only against hanging


@pytest.fixture(autouse=True)
def _threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work, threads=4):
    """Results of work(number) in so many threads that begin together."""
    results, errors = [None] * threads, []
    begin = threading.Barrier(threads)

    def run(k):
        begin.wait(TIMEOUT)
        try:
            results[k] = work(k)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "threads hang"
    if errors:
        raise errors[0]
    return results


def test_threads_that_pass_other_numbers_get_their_own_sums():
    lattice = Lattice(8, 8, 8)
    a = Field(lattice, Real())
    a[...] = 1.0

    @jali.site_function
    def total(X, a, k, s):
        s += k * a[X]

    def work(k):
        return {lattice.sum(total, a, float(k + 1)) for _ in range(1500)}

    assert in_threads(work) == [{512.0 * (k + 1)} for k in range(4)]
    assert len(total._bound) == 1


def test_threads_that_pass_numbers_of_every_kind_get_their_own_sums():
    lattice = Lattice(4, 4)
    a = Field(lattice, Real())
    a[...] = 1.0

    @jali.site_function
    def total(X, a, n, z, m, rest, s):
        s += n * z * m[0] * rest[0] * a[X]

    def work(k):
        n = k + 1
        return {
            lattice.sum(total, a, n, complex(n, 0), np.array([float(n), 0.0]), [float(n)]) for _ in range(800)
        }

    assert in_threads(work) == [{16.0 * (k + 1) ** 4 + 0j} for k in range(4)]


def test_first_calls_of_several_threads_trace_once_and_agree():
    for _ in range(10):
        lattice = Lattice(4, 4)
        k = 3.0

        @jali.site_function
        def total(X, a, s):
            s += k * a[X]  # noqa: B023

        def work(number):
            a = Field(lattice, Real())  # noqa: B023
            a[...] = number
            return lattice.sum(total, a), a.layout  # noqa: B023

        values, layouts = zip(*in_threads(work), strict=True)
        assert values == tuple(48.0 * n for n in range(4))
        assert all(layout is layouts[0] for layout in layouts), "fields of one lattice have one layout"
        assert sum(map(len, total._programs.values())) == 1


def test_fields_come_and_go_in_threads():
    lattice = Lattice(4, 4)

    @jali.site_function
    def copy(X, out, a):
        out[X] = a[X]

    shared = Field(lattice, Real())
    shared[...] = 7.0

    def work(_):
        for _ in range(300):
            out = Field(lattice, Real())
            copy(out, shared)
            assert out[2, 3] == 7.0
            copy[EVEN](out, shared)
        return True

    assert in_threads(work) == [True] * 4
    gc.collect()
    assert not copy._bound
    assert not copy._latest


def test_every_call_of_every_thread_draws_numbers_of_its_own():
    lattice = Lattice(4, 4)
    rng = Random(5)

    @jali.site_function
    def noise(X, out, rng):
        out[X] = rng.uniform(X)

    drawn = []

    def work(_):
        out = Field(lattice, Real())
        for _ in range(200):
            noise(out, rng)
            drawn.append(out[1, 1])

    in_threads(work)
    assert rng.call == 800
    assert len(set(drawn)) == 800
    again, out = Random(5), Field(lattice, Real())
    expected = set()
    for _ in range(800):
        noise(out, again)
        expected.add(out[1, 1])
    assert set(drawn) == expected


def test_a_changed_coupling_is_seen_by_all_threads():
    lattice = Lattice(4, 4)
    a = Field(lattice, Real())
    a[...] = 1.0
    k = 1.0

    @jali.site_function
    def total(X, a, s):
        s += k * a[X]

    for k in (1.0, 2.0, 1.0, 3.0):
        assert in_threads(lambda _: {lattice.sum(total, a) for _ in range(100)}) == [{16.0 * k}] * 4


def test_virtual_ranks_share_a_site_function_with_other_numbers():
    @jali.site_function
    def total(X, a, k, s):
        s += k * (a[X + X.directions()[0]] + a[X])

    def rank():
        lattice = Lattice(8, 4)
        a = Field(lattice, Real())
        results = []
        for k in range(1, 40):
            a[...] = float(k)
            results.append(lattice.sum(total, a, float(k)))
        return results

    expected = [64.0 * k * k for k in range(1, 40)]
    assert jali.comm.virtual_ranks(2, rank) == [expected, expected]


def test_more_launches_than_are_remembered_count_their_exhaustions(monkeypatch):
    monkeypatch.setattr("jali.lattice.sites._MOST_BOUND", 4)
    lattice = Lattice(4, 4)

    @jali.site_function
    def never(X, out, rng):
        def attempt():
            x = rng.uniform(X)
            return x > 2, x

        out[X] = X.repeat_until(attempt, limit=2, otherwise=0.0)

    rng = Random(1)
    fields = [Field(lattice, Real()) for _ in range(7)]
    for field in fields:
        never(field, rng)
    assert len(never._bound) == 4
    assert never.exhausted == 7 * 16
