"""Maxima and minima over sites: of real and whole numbers, per slice, over domains, on ranks, and what NaN and zero do."""

from __future__ import annotations

import numpy as np
import pytest
from support import where_colour

import jali
from jali import (
    EVEN,
    ODD,
    Colouring,
    Complex,
    Field,
    Integer,
    Lattice,
    Matrix,
    ParameterError,
    Real,
    TraceError,
)

pytestmark = pytest.mark.lanes

EXTENTS = [(1,), (5,), (8,), (3, 3), (5, 7, 2), (4, 6, 3, 2), (2, 1, 2, 3, 2)]


@jali.site_function
def extremes(X, f, n, highest, lowest, total, most, least):
    highest.max(f[X])
    lowest.min(f[X])
    total += f[X]
    most.max(n[X])
    least.min(n[X])


def arrays(extents, precision, seed=1):
    """Real and whole numbers of a global lattice; whole ones use all their bits."""
    rng = np.random.default_rng(seed)
    whole = np.iinfo("int64" if precision == "float64" else "int32")
    reals = rng.normal(size=extents).astype(precision) - 3  # the largest is mostly negative, too
    return reals, rng.integers(whole.min, whole.max, size=extents, endpoint=True)


def fields(lattice, precision, seed=1):
    out = Field(lattice, Real(), precision=precision), Field(lattice, Integer(), precision=precision)
    for field, values in zip(out, arrays(lattice.extents, precision, seed), strict=True):
        field[...] = values
    return out


def expected(reals, whole, inside, per=None):
    """What NumPy says, over the sites inside; per slice of a direction as lists."""
    if per is not None:
        parts = [
            expected(*(np.moveaxis(a, per, 0)[k] for a in (reals, whole, inside)))
            for k in range(reals.shape[per])
        ]
        return tuple(map(list, zip(*parts, strict=True)))
    v, w = reals[inside], whole[inside]
    return float(v.max()), float(v.min()), int(w.max()), int(w.min())


def found(lattice, arguments, **options):
    """The extremes as numbers or lists, without the sum."""
    highest, lowest, total, most, least = lattice.reduce(extremes, *arguments, **options)
    assert np.all(np.isfinite(total))
    if options.get("per") is None:
        assert [type(x) for x in (highest, lowest, most, least)] == [float, float, int, int]
        return highest, lowest, most, least
    assert most.dtype == least.dtype == np.int64
    return tuple(x.tolist() for x in (highest, lowest, most, least))


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_extremes_of_all_sites_and_slices_are_those_of_numpy(extents, precision):
    lattice = Lattice(*extents)
    reals, whole = arrays(extents, precision)
    everywhere = np.full(extents, True)
    pair = fields(lattice, precision)
    assert found(lattice, pair) == expected(reals, whole, everywhere)
    for mu in lattice.directions:
        assert found(lattice, pair, per=mu) == expected(reals, whole, everywhere, mu.axis)


@pytest.mark.parametrize("extents", EXTENTS[1:], ids=str)
@pytest.mark.parametrize("domain", [EVEN, ODD, Colouring(3, lambda x: sum(x) % 3)[1]], ids=str)
def test_extremes_over_a_colour(extents, domain):
    """Lanes outside the domain, with larger and smaller numbers than all inside, must not matter."""
    lattice = Lattice(*extents)
    reals, whole = arrays(extents, "float64")
    inside = where_colour(lattice, domain)
    reals[~inside] = np.where(np.arange((~inside).sum()) % 2, 1e6, -1e6)
    pair = fields(lattice, "float64")
    pair[0][...] = reals
    assert found(lattice, pair, over=domain) == expected(reals, whole, inside)
    if len(extents) > 2:
        assert found(lattice, pair, over=domain, per=0) == expected(reals, whole, inside, 0)


def test_extremes_that_are_infinite_are_found_among_masked_lanes():
    lattice = Lattice(3, 5)
    f, n = fields(lattice, "float64")
    for value in (np.inf, -np.inf):
        f[...] = value
        highest, lowest, *_ = lattice.reduce(extremes, f, n, over=ODD)
        assert highest == lowest == value
    n[...] = np.iinfo(np.int64).min
    assert lattice.reduce(extremes, f, n, over=ODD)[3:] == (np.iinfo(np.int64).min,) * 2
    n[...] = np.iinfo(np.int64).max
    assert lattice.reduce(extremes, f, n, over=EVEN)[3:] == (np.iinfo(np.int64).max,) * 2


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_nan_wins_as_in_numpy_in_its_slice_only(precision):
    lattice = Lattice(5, 4)
    f, n = fields(lattice, precision)
    values = arrays((5, 4), precision)[0]
    values[2, 3], values[0, 0] = np.nan, np.inf
    f[...] = values
    highest, lowest, *_ = lattice.reduce(extremes, f, n)
    assert np.isnan(highest)
    assert np.isnan(lowest)
    highest, lowest, *_ = lattice.reduce(extremes, f, n, per=0)
    assert np.array_equal(highest, values.max(axis=1), equal_nan=True)
    assert np.array_equal(lowest, values.min(axis=1), equal_nan=True)
    values[0, 0], values[2, 3] = 0.0, np.copysign(np.nan, -1.0)  # what processors make, below all in bits
    f[...] = values
    assert np.isnan(lattice.reduce(extremes, f, n)[:2]).all()


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_zeros_of_either_sign_do_not_depend_on_their_order(first):
    lattice = Lattice(9)
    f, n = fields(lattice, "float64")
    f[...] = -first
    f[0] = first
    highest, lowest, *_ = lattice.reduce(extremes, f, n)
    assert (np.signbit(highest), np.signbit(lowest)) == (False, True)


@pytest.mark.parametrize("position", range(3))
def test_several_numbers_of_a_site_meet_and_nan_stays(position):
    @jali.site_function
    def of_three(X, f, high, low):
        for value in (X.coordinate(0), f[X], 2.5 * f[X]):  # whole and real ones
            high.max(value)
            low.min(value)

    lattice = Lattice(6, 3)
    f = fields(lattice, "float64")[0]
    values, x = f[...], np.indices((6, 3))[0]
    assert lattice.reduce(of_three, f) == (
        np.maximum(x, np.maximum(values, 2.5 * values)).max(),
        np.minimum(x, np.minimum(values, 2.5 * values)).min(),
    )

    @jali.site_function
    def with_nan(X, f, high, low):
        for k in range(3):
            high.max(f[X] if k == position else X.coordinate(0) + 0.5)
            low.min(f[X] if k == position else X.coordinate(0) + 0.5)

    f[1, 1] = np.nan
    assert np.isnan(lattice.reduce(with_nan, f)).all()


def test_a_function_may_write_and_read_neighbours_at_the_same_time():
    @jali.site_function
    def difference(X, out, f, largest):
        out[X] = f[X + X.directions()[0]] - f[X]
        largest.max(abs(out[X]))

    def of_ranks():
        lattice = Lattice(6, 5)
        f, _ = fields(lattice, "float64")
        out = f.like()
        return lattice.reduce(difference, out, f), out[...]

    values = arrays((6, 5), "float64")[0]
    change = np.roll(values, -1, 0) - values
    for ranks in (1, 2, 3):
        for largest, out in jali.virtual_ranks(ranks, of_ranks):
            assert largest == abs(change).max()
            assert np.array_equal(out, change)


def _on_ranks(extents, precision):
    lattice = Lattice(*extents)
    pair = fields(lattice, precision)
    scalars = lattice.reduce(extremes, *pair, wait=False)
    out = [[float(s) for s in scalars]]
    for options in ({}, {"per": 0}, {"over": EVEN}, {"over": ODD, "per": 1}, {"fast": True}):
        out.append(found(lattice, pair, **options))
    return out


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_all_ranks_have_the_same_extremes_on_any_number_of_ranks(precision):
    extents = (6, 5, 4)
    (alone,) = jali.virtual_ranks(1, _on_ranks, extents, precision)
    everywhere = np.full(extents, True)
    assert alone[1] == alone[5] == expected(*arrays(extents, precision), everywhere)
    assert [alone[0][k] for k in (0, 1, 3, 4)] == list(map(float, alone[1]))
    for ranks in (2, 3, 5):
        assert jali.virtual_ranks(ranks, _on_ranks, extents, precision) == [alone] * ranks


def test_arrays_in_rows_have_the_extremes_of_their_own_sites_only():
    """The lanes beyond the end of a row are no sites."""
    lattice = Lattice(3, 7, device="cpu")
    values = np.random.default_rng(4).normal(size=(3, 7)) - 10
    wrapped = lattice.wrap(values)

    @jali.site_function
    def both(X, f, high, low):
        high.max(f[X])
        low.min(f[X])

    assert lattice.reduce(both, wrapped) == (values.max(), values.min())
    assert lattice.reduce(both, wrapped, per=1)[0].tolist() == values.max(axis=0).tolist()


def test_extremes_that_stay_are_scalars_and_are_repeated_by_graphs():
    lattice = Lattice(4, 5)
    f, n = fields(lattice, "float64")

    @jali.site_function
    def halve(X, f):
        f[X] *= 0.5

    @jali.site_function
    def largest(X, f, n, high, most):
        high.max(abs(f[X]))
        most.max(n[X])

    n[...] = np.arange(20).reshape(4, 5)

    def step():
        halve(f)
        high, most = lattice.reduce(largest, f, n, wait=False)
        return high * 2, most

    begin = abs(f[...]).max()
    graph = jali.graph(step, lattice)
    for k in range(1, 4):
        graph.run()
        assert graph.read() == [2 * begin * 0.5**k, 19.0]
    high, most = lattice.reduce(largest, f, n, wait=False)
    assert (float(high), float(most)) == (abs(f[...]).max(), 19.0)
    assert repr(high)
    assert float(high + most) == float(high) + 19.0


# ---- mistakes ------------------------------------------------------------------------------------------


@jali.site_function
def highest_of(X, f, high):
    high.max(f[X])


@pytest.mark.parametrize(
    ("extents", "options", "message"),
    [
        ((1,), {"over": ODD}, r"takes a maximum or minimum, but ODD has no sites of Lattice\(1\), and of no"),
        ((4, 1), {"over": EVEN, "per": 0}, r"EVEN has no sites in slices 1, 3 of direction 0"),
        ((2,), {"over": ODD, "per": 0}, r"no sites in slice 0 of direction 0"),
        ((20,), {"over": ODD, "per": 0}, r"slices 0, 2, 4, 6, \.\.\. of direction 0"),
        (
            (4, 1, 3),
            {"over": EVEN, "per": (2, 0)},
            r"in slices \(0, 1\), \(0, 3\), \(1, 0\), \(1, 2\), ... of directions 2, 0",
        ),
        (
            (3, 2),
            {"over": Colouring(2, lambda x: x[0] % 2)[1], "per": (1, 0)},
            r"slices \(0, 0\), \(0, 2\), \(1, 0\)",
        ),
        ((4, 4), {"over": Colouring(3, lambda x: x[0] * 0)[2]}, "has no sites of Lattice"),
        ((3, 2), {"over": Colouring(2, lambda x: x[0] % 2)[1], "per": 0}, "in slices 0, 2 of direction 0"),
    ],
)
def test_no_sites_have_no_maximum_and_all_ranks_hear_it(extents, options, message):
    def ask():
        lattice = Lattice(*extents)
        with pytest.raises(ParameterError, match=message):
            lattice.reduce(highest_of, Field(lattice, Real()), **options)
        return True

    assert all(jali.virtual_ranks(1 if max(extents) < 3 else 2, ask))


def test_extremes_per_slice_of_two_directions():
    reals, whole = arrays((5, 4, 3), "float64")
    lattice = Lattice(5, 4, 3)
    highest, _, _, most, _ = lattice.reduce(extremes, *fields(lattice, "float64"), per=(2, 0))
    assert np.array_equal(highest, reals.max(axis=1).T)
    assert np.array_equal(most, whole.max(axis=1).T)


def test_every_slice_of_a_colour_that_has_sites_is_accepted():
    lattice = Lattice(4, 2)
    assert lattice.reduce(highest_of, Field(lattice, Real()), over=ODD, per=0).tolist() == [0.0] * 4


def error_of(function, *elements):
    lattice = Lattice(4, 4)
    with pytest.raises(TraceError) as caught:
        lattice.reduce(jali.site_function(function), *(Field(lattice, element) for element in elements))
    assert "test_extremes.py:" in str(caught.value)
    return str(caught.value)


def test_an_accumulator_is_used_in_one_way():
    def sum_and_max(X, f, a):
        a += f[X]
        a.max(f[X])

    def max_and_sum(X, f, a):
        a.max(f[X])
        a -= f[X]

    def min_and_max(X, f, a):
        a.min(f[X])
        a.max(f[X])

    assert "a.max(...) after a += ... (at " in error_of(sum_and_max, Real())
    assert "a += ... after a.max(...) (at " in error_of(max_and_sum, Real())
    assert "a.max(...) after a.min(...) (at " in error_of(min_and_max, Real())


def test_only_numbers_with_an_order_are_compared():
    def of_field(X, f, a):
        a.max(f[X])

    def of_condition(X, f, a):
        a.min(f[X] > 0)

    def in_loop(X, f, rng, a):
        X.repeat_until(lambda: (a.max(f[X]), f[X]), 3, f[X])

    assert "have no order: take .real, .imag or abs()" in error_of(of_field, Complex())
    assert "give it one component at a time" in error_of(of_field, Matrix(2))
    assert "jali.where(condition, 1, 0)" in error_of(of_condition, Real())
    lattice = Lattice(4)
    with pytest.raises(
        TraceError, match=r"a.max\(...\) inside repeat_until; take the accepted value after it"
    ):
        lattice.reduce(jali.site_function(in_loop), Field(lattice, Real()), jali.Random(1))


def test_lattice_sum_is_for_sums():
    lattice = Lattice(4)
    with pytest.raises(
        TraceError, match=r"highest_of takes a maximum \(at .*call lattice.reduce\(highest_of"
    ):
        lattice.sum(highest_of, Field(lattice, Real()))

    @jali.site_function
    def total(X, f, a):
        a += f[X]

    assert lattice.reduce(total, Field(lattice, Real())) == 0.0


def test_inspection_says_what_is_gathered():
    lattice = Lattice(4)
    report = jali.inspect(highest_of, Field(lattice, Real()))
    assert "max 0 += %" in report.stages["traced"].text
