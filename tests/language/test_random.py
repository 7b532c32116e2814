"""Random numbers: distribution, independence, and sameness on any number of lanes and ranks; rejection loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import random_field

import jali
from jali import EVEN, ODD, Complex, Field, Lattice, Random, Real, Vector
from jali.codegen import state

pytestmark = pytest.mark.lanes


@jali.site_function
def draw_uniform(X, out, rng):
    out[X] = rng.uniform(X)


@jali.site_function
def draw_gaussian(X, out, rng):
    out[X] = rng.gaussian(X)


@jali.site_function
def draw_many(X, out, rng):
    out[X] = jali.vector([rng.uniform(X), rng.gaussian(X), rng.uniform(X), rng.gaussian(X), rng.uniform(X)])


def uniforms(seed, stream=0, extents=(32, 32, 32), **options):
    lattice = Lattice(*extents, **options)
    out = Field(lattice, Real())
    draw_uniform(out, Random(seed, stream))
    return out[...]


def test_uniform_numbers_have_the_moments_of_the_uniform_distribution():
    u = uniforms(1)
    assert u.min() > 0
    assert u.max() < 1
    n = u.size
    for k in (1, 2, 3, 4):
        sigma = math.sqrt((1 / (2 * k + 1) - 1 / (k + 1) ** 2) / n)
        assert abs(np.mean(u**k) - 1 / (k + 1)) < 4.5 * sigma


def test_uniform_numbers_fill_equal_bins_equally():
    u = uniforms(2).ravel()
    counts, _ = np.histogram(u, bins=64, range=(0, 1))
    chi2 = np.sum((counts - u.size / 64) ** 2) / (u.size / 64)
    assert abs(chi2 - 63) < 4.5 * math.sqrt(2 * 63)


def test_gaussian_numbers_have_the_moments_of_the_normal_distribution():
    lattice = Lattice(32, 32, 32)
    out = Field(lattice, Real())
    draw_gaussian(out, Random(3))
    g = out[...].ravel()
    n = g.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(np.mean(g**power) - mean) < 4.5 * math.sqrt(variance / n)
    for threshold in (1.0, 2.0, 3.0):
        tail = math.erfc(threshold / math.sqrt(2))
        assert abs(np.mean(np.abs(g) > threshold) - tail) < 4.5 * math.sqrt(tail / n)


def test_draws_at_a_site_are_uncorrelated():
    lattice = Lattice(32, 32, 32)
    out = Field(lattice, Vector(5, kind="real"))
    draw_many(out, Random(4))
    draws = out[...].reshape(-1, 5)
    correlation = np.corrcoef(draws.T)
    off = correlation[~np.eye(5, dtype=bool)]
    assert np.max(np.abs(off)) < 4.5 / math.sqrt(len(draws))


def test_neighbouring_sites_and_calls_are_uncorrelated():
    u = uniforms(5) - 0.5
    for axis in range(3):
        r = np.mean(u * np.roll(u, 1, axis)) * 12
        assert abs(r) < 4.5 / math.sqrt(u.size)
    lattice = Lattice(32, 32, 32)
    rng, out = Random(5), Field(lattice, Real())
    calls = []
    for _ in range(3):
        draw_uniform(out, rng)
        calls.append(out[...] - 0.5)
    assert np.array_equal(calls[0], u)
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.mean(calls[i] * calls[j]) * 12) < 4.5 / math.sqrt(u.size)


def test_seeds_and_streams_are_independent():
    fields = [uniforms(s, t, (16, 16, 16)) - 0.5 for s, t in ((1, 0), (2, 0), (1, 1), (0, 1), (2**62, 0))]
    for i, a in enumerate(fields):
        for b in fields[:i]:
            assert abs(np.mean(a * b) * 12) < 4.5 / math.sqrt(a.size)


def test_same_seed_gives_the_same_numbers():
    assert np.array_equal(uniforms(7, extents=(4, 4)), uniforms(7, extents=(4, 4)))
    assert not np.any(uniforms(7, extents=(4, 4)) == uniforms(8, extents=(4, 4)))


def test_state_continues_where_it_was_taken():
    lattice = Lattice(4, 4)
    rng, a, b = Random(9, 2), Field(lattice, Real()), Field(lattice, Real())
    draw_uniform(a, rng)
    state = rng.state
    assert state == {"seed": 9, "stream": 2, "call": 1, "purpose": "caller"}
    draw_uniform(a, rng)
    draw_uniform(b, Random.from_state(state))
    assert np.array_equal(a[...], b[...])


def test_seeds_and_streams_are_not_interchangeable():
    """stream + 0x9E3779B97F4A7C15 used to wrap: seed and stream had one role each in the other's key."""
    assert Random(5, 0x61C8864680B583EB + 7).key != Random(7, 0x61C8864680B583EB + 5).key


def test_no_two_of_many_seeds_and_streams_share_their_numbers():
    names = [
        *range(200),
        *(2**k + d for k in range(9, 63) for d in (-1, 0, 1)),
        2**63 - 1,
        0x61C8864680B583EB + 7,
    ]
    names = sorted(set(names))
    sources = [Random(seed, stream) for seed in names for stream in names]
    assert len({(r.key, r.next_call()) for r in sources}) == len(names) ** 2


def test_every_purpose_of_a_seed_has_numbers_of_its_own():
    lattice = Lattice(16, 16, 16)
    out, found = Field(lattice, Real()), []
    for purpose in ("caller", "hot start", "gauge transformation", "chain"):
        draw_uniform(out, Random.reserved(purpose, 1))
        found.append(out[...] - 0.5)
    assert np.array_equal(found[0], uniforms(1, 0, (16, 16, 16)) - 0.5)
    for i, a in enumerate(found):
        for b in found[:i]:
            assert abs(np.mean(a * b) * 12) < 4.5 / math.sqrt(a.size)


def test_a_source_that_is_given_twice_gives_different_numbers():
    lattice = Lattice(4, 4)
    a, b, c = (Field(lattice, Real()) for _ in range(3))

    @jali.site_function
    def two(X, a, b, first, second):
        a[X] = first.uniform(X)
        b[X] = second.uniform(X)

    rng = Random(1)
    two(a, b, rng, rng)
    draw_uniform(c, rng)
    assert len(np.unique(np.stack([a[...], b[...], c[...]]))) == 48


def test_a_source_says_when_its_calls_are_used_up_instead_of_repeating_them():
    lattice = Lattice(4, 4)
    out, rng = Field(lattice, Real()), Random(3)
    rng.call = 2**44 - 1
    draw_uniform(out, rng)
    last = out[...]
    with pytest.raises(jali.ParameterError, match=r"drawn from 2\*\*44 times.*another stream"):
        draw_uniform(out, rng)
    assert np.array_equal(out[...], last)
    for call in (-1, 1.5, 2**48, 2**70):
        rng.call = call
        with pytest.raises(jali.ParameterError, match="call is a whole number from 0 to"):
            draw_uniform(out, rng)


def test_the_state_of_an_earlier_version_is_continued_exactly_or_refused():
    # key of Random(9) as it was before sources had purposes: a function of the seed alone
    assert Random(9).key == Random.from_state({"seed": 9, "stream": 0, "call": 4}).key
    lattice = Lattice(4, 4)
    a, b = Field(lattice, Real()), Field(lattice, Real())
    rng = Random(9)
    rng.call = 4
    draw_uniform(a, rng)
    draw_uniform(b, Random.from_state({"seed": 9, "stream": 0, "call": 4}))
    assert np.array_equal(a[...], b[...])
    with pytest.raises(jali.ParameterError, match="stream 2 is of an earlier version of jali"):
        Random.from_state({"seed": 9, "stream": 2, "call": 4})


@pytest.mark.parametrize(
    "bad",
    [
        {"seed": 1},
        {"seed": 1, "stream": 0, "call": -1, "purpose": "caller"},
        {"seed": 1, "stream": 0, "call": 2**60, "purpose": "caller"},
        {"seed": 1.5, "stream": 0, "call": 0, "purpose": "caller"},
        {"seed": "1", "stream": 0, "call": 0, "purpose": "caller"},
        {"seed": 1, "stream": 0, "call": 0, "purpose": "lottery"},
        {"seed": 1, "stream": 0, "call": 0, "purpose": ["caller"]},
        None,
        [],
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(bad):
    with pytest.raises(jali.ParameterError):
        Random.from_state(bad)


def test_numpy_integers_are_seeds():
    assert Random(np.int64(7), np.uint8(3)).key == Random(7, 3).key


@pytest.mark.parametrize("bad", [-1, 1 << 63, 1 << 20000, 1.5, True, "7", None, np.float64(1)], ids=type)
def test_seed_is_a_whole_number_in_range(bad):
    with pytest.raises(jali.ParameterError, match="seed is a whole number from 0 to"):
        Random(bad)
    with pytest.raises(jali.ParameterError, match="stream is a whole number from 0 to"):
        Random(1, bad)


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", [(8, 8), (4, 4, 4, 8), (16,)], ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_numbers_do_not_depend_on_the_lanes(extents, precision):
    found = []
    for lanes in (1, 2, 4, 8, None):
        lattice = Lattice(*extents, lanes=lanes)
        out = Field(lattice, Vector(5, kind="real"), precision=precision)
        draw_many(out, Random(11))
        found.append(out[...])
    assert all(np.array_equal(found[0], f) for f in found)


def metropolis_run():
    """A checkerboard update with rejection on the lattice of this rank; its field and its exact sum."""
    lattice = Lattice(6, 4, 8)
    rng = Random(12)
    phi = Field(lattice, Real())

    @jali.site_function
    def update(X, phi, rng, width):
        h = jali.zero(Real())
        for mu in X.directions():
            h = h + phi[X + mu] + phi[X - mu]
        proposal = phi[X] + width * rng.gaussian(X)
        change = 3.5 * (proposal * proposal - phi[X] * phi[X]) - h * (proposal - phi[X])
        phi[X] = jali.where(rng.uniform(X) < jali.exp(-change), proposal, phi[X])

    @jali.site_function
    def norm(X, phi, total):
        total += phi[X] * phi[X]

    history = []
    for _ in range(5):
        for colour in (EVEN, ODD):
            update[colour](phi, rng, 1.0)
        history.append(lattice.sum(norm, phi))
    return phi[...], history


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_update_is_bit_identical_on_any_number_of_ranks(ranks):
    one, history = metropolis_run()
    for values, others in jali.virtual_ranks(ranks, metropolis_run):
        assert np.array_equal(values, one)
        assert others == history


def test_every_draw_of_a_kernel_is_a_new_number():
    lattice = Lattice(4, 4)
    a, b = Field(lattice, Real()), Field(lattice, Real())

    @jali.site_function
    def two(X, a, b, rng):
        a[X] = rng.uniform(X)
        b[X] = rng.uniform(X)

    two(a, b, Random(1))
    assert not np.any(a[...] == b[...])


def test_numbers_in_a_shifted_write_belong_to_the_loop_site():
    """Writing at X + mu moves where the number goes, not which number the site X draws."""
    lattice = Lattice(4, 4)
    a, b = Field(lattice, Real()), Field(lattice, Real())

    @jali.site_function
    def shifted(X, a, rng):
        a[X + X.directions()[0]] = rng.uniform(X)

    shifted(a, Random(1))
    draw_uniform(b, Random(1))
    assert np.array_equal(a[...], np.roll(b[...], 1, axis=0))


# ---- repeat_until --------------------------------------------------------------------------------------


@jali.site_function
def semicircle(X, out, rng, limit_value):
    """x with density proportional to sqrt(1 - x^2), by rejection."""

    def attempt():
        x = 2 * rng.uniform(X) - 1
        return rng.uniform(X) ** 2 < 1 - x * x, x

    out[X] = X.repeat_until(attempt, limit=100, otherwise=limit_value)


def test_rejection_gives_the_wanted_distribution():
    lattice = Lattice(32, 32, 32)
    out = Field(lattice, Real())
    semicircle(out, Random(21), 99.0)
    x = out[...]
    assert semicircle.exhausted == 0
    n = x.size
    assert abs(np.mean(x)) < 4.5 * math.sqrt(0.25 / n)
    assert abs(np.mean(x**2) - 0.25) < 4.5 * math.sqrt((1 / 8 - 1 / 16) / n)
    assert abs(np.mean(x**4) - 1 / 8) < 4.5 * math.sqrt((7 / 128 - 1 / 64) / n)


@pytest.mark.parametrize("extents", [(8, 8), (5, 3)], ids=str)
@pytest.mark.parametrize("domain", [jali.ALL, EVEN, ODD], ids=str)
def test_exhaustion_keeps_the_old_value_and_is_counted(extents, domain):
    lattice = Lattice(*extents)
    out = Field(lattice, Real())
    out[...] = -5.0

    @jali.site_function
    def rare(X, out, rng):
        def attempt():
            u = rng.uniform(X)
            return u < 0.25, u

        out[X] = X.repeat_until(attempt, limit=2, otherwise=out[X])

    rare[domain](out, Random(22))
    values = out[...]
    inside = np.ones(extents, bool)
    if domain is not jali.ALL:
        inside = np.indices(extents).sum(axis=0) % 2 == (0 if domain is EVEN else 1)
    assert np.all(values[~inside] == -5)
    kept = np.sum(values[inside] == -5)
    assert 0 < kept < inside.sum()
    assert np.all(values[inside & (values != -5)] < 0.25)
    assert rare.exhausted == kept


def test_impossible_condition_exhausts_everywhere_and_never_accepts():
    lattice = Lattice(4, 6)
    out = random_field(lattice, Complex(), 1)
    before = out[...]

    @jali.site_function
    def never(X, out, rng):
        def attempt():
            u = rng.uniform(X)
            return u < 0.0, jali.complex(u, u)

        out[X] = X.repeat_until(attempt, limit=7, otherwise=out[X])

    never(out, Random(1))
    assert np.array_equal(out[...], before)
    assert never.exhausted == 24
    never(out, Random(1))
    assert never.exhausted == 48


def attempt_below(X, rng, bound, limit):
    """A rejection loop that gives up with -1, which no random number is."""

    def attempt():
        u = rng.uniform(X)
        return u < bound, u

    return X.repeat_until(attempt, limit=limit, otherwise=-1.0)


@pytest.mark.parametrize("domain", [jali.ALL, EVEN, ODD], ids=str)
@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_loop_beside_writes_at_several_offsets_is_counted_once(writes, domain):
    lattice = Lattice(12, 8)
    a, b, c = (Field(lattice, Real()) for _ in range(3))

    @jali.site_function
    def scatter(X, a, b, c, rng):
        mu, nu = X.directions()
        u = attempt_below(X, rng, 0.3, limit=2)
        a[X] = u
        if writes > 1:
            b[X + mu] = 2 * u
        if writes > 2:
            c[X - nu] = 3 * u

    scatter[domain](a, b, c, Random(4))
    given_up = np.sum(a[...] == -1)
    assert 0 < given_up < lattice.volume
    assert scatter.exhausted == given_up
    if writes > 1:
        assert np.array_equal(b[...], 2 * np.roll(a[...], 1, 0))
    if writes > 2:
        assert np.array_equal(c[...], 3 * np.roll(a[...], -1, 1))
    scatter[domain](a, b, c, Random(4))
    assert scatter.exhausted == 2 * given_up


def test_loops_are_counted_whichever_written_offsets_they_belong_to():
    """One loop in the first kernel alone, one in the second alone, one in the second and the third."""
    lattice = Lattice(12, 8)
    a, b, c, d = (Field(lattice, Real()) for _ in range(4))

    @jali.site_function
    def scatter(X, a, b, c, d, rng):
        mu, nu = X.directions()
        first, second, both = (attempt_below(X, rng, bound, limit=1) for bound in (0.3, 0.5, 0.7))
        a[X] = first
        b[X + mu] = second
        c[X + mu] = both
        d[X - nu] = both

    @jali.site_function
    def later(X, a, b, rng):
        a[X] = 1.0
        b[X + X.directions()[0]] = attempt_below(X, rng, 0.3, limit=1)

    scatter(a, b, c, d, Random(4))
    counts = [np.sum(f[...] == -1) for f in (a, b, c)]
    assert len(set(counts)) == 3
    assert np.sum(d[...] == -1) == counts[2]
    assert scatter.exhausted == sum(counts)
    later(a, b, Random(5))
    assert later.exhausted == np.sum(b[...] == -1) > 0


def test_a_loop_is_counted_once_over_all_ranks():
    @jali.site_function
    def scatter(X, a, b, rng):
        a[X + X.directions()[0]] = u = attempt_below(X, rng, 0.3, limit=2)
        b[X] = u

    def given_up():
        lattice = Lattice(12, 8, grid=(2, 1))
        a, b = (Field(lattice, Real()) for _ in range(2))
        scatter(a, b, Random(4))
        return int(np.sum(b[...] == -1))

    found = jali.virtual_ranks(2, given_up)
    assert scatter.exhausted == found[0] == found[1] > 0


def test_a_loop_that_a_write_and_sums_use_is_counted_once():
    lattice = Lattice(12, 8)
    out = Field(lattice, Real())

    @jali.site_function
    def write_and_sum(X, out, rng, total, highest, per_slice):
        u = attempt_below(X, rng, 0.3, limit=2)
        out[X + X.directions()[0]] = u
        total += u
        highest.max(u)
        per_slice[X.coordinate(1)] += u

    total, highest, per_slice = lattice.reduce(write_and_sum, out, Random(4), bins=8)
    values = out[...]
    assert write_and_sum.exhausted == np.sum(values == -1) > 0
    assert total == pytest.approx(values.sum(), rel=1e-13)
    assert highest == values.max()
    assert np.allclose(per_slice, values.sum(axis=0), rtol=1e-13)


@pytest.mark.parametrize("wait", [True, False])
def test_sums_beside_writes_at_several_offsets_are_added_once(wait):
    lattice = Lattice(12, 8)
    a, b, f = (random_field(lattice, Real(), k) for k in range(3))

    @jali.site_function
    def scatter_and_sum(X, a, b, f, total):
        mu, nu = X.directions()
        a[X] = f[X]
        a[X + mu] = 2 * f[X]
        b[X - nu] = f[X] + 1
        total += f[X] * f[X + mu]

    x = f[...]
    total = lattice.sum(scatter_and_sum, a, b, f, wait=wait)
    assert float(total) == pytest.approx(np.sum(x * np.roll(x, -1, 0)), rel=1e-12)
    assert np.array_equal(a[...], 2 * np.roll(x, 1, 0))
    assert np.array_equal(b[...], np.roll(x, -1, 1) + 1)


def test_attempts_may_return_several_values():
    lattice = Lattice(16, 16)
    a, b = Field(lattice, Real()), Field(lattice, Complex())

    @jali.site_function
    def disc(X, a, b, rng):
        """A point in the unit disc."""

        def attempt():
            x, y = 2 * rng.uniform(X) - 1, 2 * rng.uniform(X) - 1
            r2 = x * x + y * y
            return r2 < 1, (r2, jali.complex(x, y))

        a[X], b[X] = X.repeat_until(attempt, limit=200, otherwise=(9.0, 9.0 + 0j))

    disc(a, b, Random(2))
    assert disc.exhausted == 0
    assert np.max(a[...]) < 1
    assert np.allclose(np.abs(b[...]) ** 2, a[...], rtol=1e-13)


def test_draws_before_inside_and_after_a_loop_are_all_different():
    lattice = Lattice(8, 8)
    a, b, c = (Field(lattice, Real()) for _ in range(3))

    @jali.site_function
    def f(X, a, b, c, rng):
        a[X] = rng.uniform(X)

        def attempt():
            u = rng.uniform(X)
            return u < 0.5, u

        b[X] = X.repeat_until(attempt, limit=50, otherwise=2.0)
        c[X] = rng.uniform(X)

    f(a, b, c, Random(3))
    values = np.concatenate([f[...].ravel() for f in (a, b, c)])
    assert len(np.unique(values)) == 3 * 64
    assert abs(np.corrcoef(a[...].ravel(), b[...].ravel())[0, 1]) < 0.5


def test_rejection_does_not_depend_on_the_lanes():
    found = []
    for lanes in (1, None):
        lattice = Lattice(8, 8, 8, lanes=lanes)
        out = Field(lattice, Real())
        semicircle(out, Random(23), 0.0)
        found.append(out[...])
    assert np.array_equal(*found)


def test_two_loops_in_one_function():
    lattice = Lattice(16, 16)
    out = Field(lattice, Vector(2, kind="real"))

    @jali.site_function
    def f(X, out, rng):
        def small():
            u = rng.uniform(X)
            return u < 0.3, u

        def large():
            u = rng.uniform(X)
            return u > 0.6, u

        x = X.repeat_until(small, limit=100, otherwise=5.0)
        y = X.repeat_until(large, limit=100, otherwise=5.0)
        out[X] = jali.vector([x, y])

    f(out, Random(4))
    assert np.all(out[...][..., 0] < 0.3)
    assert np.all((out[...][..., 1] > 0.6) & (out[...][..., 1] < 1))
    assert f.exhausted == 0


def test_the_last_counter_of_a_site_is_used_and_no_more(monkeypatch):
    """A counter gives two numbers."""
    monkeypatch.setattr(state, "MOST_DRAWS", 2)

    def drawing(count):
        @jali.site_function
        def draw(X, out, rng):
            out[X] = sum(rng.uniform(X) for _ in range(count))

        draw(Field(Lattice(4, 4), Real()), Random(1))

    drawing(4)
    with pytest.raises(jali.TraceError, match="more than 4 random numbers at a site"):
        drawing(5)
