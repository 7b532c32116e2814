"""Mistakes with sums by label: in the function, and in the call that says how many entries there are."""

from __future__ import annotations

import pytest

import jali
from jali import Field, Integer, Lattice, ParameterError, Real, TraceError


@jali.site_function
def histogram(X, f, n, total, counts, energy):
    total += f[X]
    counts[n[X]] += 1
    energy[n[X]] += f[X] * f[X]


def fields(lattice):
    return Field(lattice, Real()), Field(lattice, Integer())


CALLS = [
    (lambda L, f, n: L.sum(histogram, f, n), r"counts\[label\] \+= ...; the call says how many .* bins=10"),
    (
        lambda L, f, n: L.sum(histogram, f, n, bins={"counts": 3}),
        "given bins of counts, but .* are counts, energy",
    ),
    (
        lambda L, f, n: L.sum(histogram, f, n, bins={"counts": 3, "energy": 3, "x": 1}),
        "of counts, energy, x, but",
    ),
    (lambda L, f, n: L.sum(plain, f, bins=3), r"given bins, but of its sums none has labels"),
    (lambda L, f, n: L.sum(plain, f, bins={}), "none has labels"),
    (
        lambda L, f, n: L.sum(histogram, f, n, bins=3, per=0),
        r"counts\[label \+ 3 \* X.coordinate\(mu\)\] \+= ...",
    ),
    (
        lambda L, f, n: L.sum(histogram, f, n, bins=40000),
        "sums into 80001 real numbers; by label at most 65536",
    ),
    (lambda L, f, n: L.sum(histogram, f, n, bins=3, wait=False), "sums by label are waited for"),
]


@jali.site_function
def plain(X, f, total):
    total += f[X]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_wrong_calls_say_what_would_be_right(call, message):
    lattice = Lattice(4, 4)
    with pytest.raises(TraceError, match=message) as caught:
        call(lattice, *fields(lattice))
    assert "test_label_mistakes.py:" in str(caught.value)


@pytest.mark.parametrize("bins", [0, -1, 1.5, True, "ten", 1 << 17, {"counts": 0}, [3]])
def test_bins_are_numbers_of_entries(bins):
    lattice = Lattice(4, 4)
    with pytest.raises(ParameterError, match="is a number of entries from 1 to 65536, not"):
        lattice.sum(histogram, *fields(lattice), bins=bins)


def _real_label(X, f, n, a):
    a[f[X]] += 1


def _negative(X, f, n, a):
    a[-1] += 1


def _sliced(X, f, n, a):
    a[1:2] += 1


def _both(X, f, n, a):
    a += 1
    a[n[X]] += 1


def _assigned(X, f, n, a):
    a[n[X]] = 1


def _read(X, f, n, a):
    f[X] = a[n[X]] + 1


def _shapes(X, f, n, a):
    a[0] += 1
    a[1] += jali.vector([f[X], f[X]])


def _compared(X, f, n, a):
    a[n[X]].max(f[X])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            _real_label,
            r"one whole number per site, such as X.coordinate\(mu\), jali.floor\(x\) or jali.round\(x\), not a real",
        ),
        (_negative, "counted from 0; -1 is no entry"),
        (_sliced, "not slice"),
        (_both, r"a\[label\] \+= ... after a \+= ... \(at .*sums by label"),
        (_assigned, r"an entry of a can only be added to: a\[label\] \+= value"),
        (_read, r"an entry of a sum can only be added to: a\[label\] \+= value"),
        (_shapes, r"a is given a real Vector\(2\), and a real elsewhere"),
        (_compared, r"by label there are sums only: a\[label\] \+= value"),
    ],
)
def test_mistakes_in_functions_are_trace_errors_at_their_line(function, message):
    lattice = Lattice(4, 4)
    with pytest.raises(TraceError, match=message) as caught:
        lattice.sum(jali.site_function(function), *fields(lattice), bins=4)
    assert "test_label_mistakes.py:" in str(caught.value)


def test_inspection_shows_labels():
    lattice = Lattice(4, 4)
    page = jali.inspect(histogram, *fields(lattice), bins=3).stages["traced"].text
    assert "sum 1[label 0] += %" in page
    assert "label 0 = %" in page
